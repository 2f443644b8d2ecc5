"""The newest records of every queue in memory, so that a consumer at the tail reads no file.

Records stay the ``bytes`` objects that were written, in blocks of at most 128 aligned by queue offset; a read joins
slices of blocks. The budget is global and in bytes; the block that was started first goes first, so an append costs
two list appends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorocket.storage.consume_queue import ConsumeQueue

__all__ = ("BLOCK_MASK", "BLOCK_SHIFT", "Block", "TailCache", "cut_to_bytes", "read_tail", "scan_tail")

BLOCK_SHIFT = 7
BLOCK_MASK = (1 << BLOCK_SHIFT) - 1


class Block:
    """Records ``first`` to ``first + len(records)`` of one queue, and their tags codes beside them."""

    __slots__ = ("codes", "first", "queue", "records", "size")

    def __init__(self, queue: ConsumeQueue, first: int) -> None:
        self.queue = queue
        self.first = first
        self.size = 0
        self.records: list[bytes] = []
        self.codes: list[int] = []


class TailCache:
    """``size`` may pass ``budget`` by one append; the appender then calls ``evict``."""

    __slots__ = ("_blocks", "budget", "size")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.size = 0
        self._blocks: deque[Block] = deque()

    def start(self, queue: ConsumeQueue, offset: int) -> Block:
        """A new block of ``queue`` that begins at ``offset``."""
        block = Block(queue, offset)
        queue.block = block
        queue.blocks[offset >> BLOCK_SHIFT] = block
        self._blocks.append(block)
        return block

    def evict(self) -> None:
        """Drop the oldest blocks until the budget holds."""
        blocks = self._blocks
        while self.size > self.budget and blocks:
            block = blocks.popleft()
            self.size -= block.size
            queue = block.queue
            key = block.first >> BLOCK_SHIFT
            if queue.blocks.get(key) is block:
                del queue.blocks[key]
                queue.cached_first = block.first + len(block.records)
                if queue.block is block:
                    queue.block = None

    def forget(self, queue: ConsumeQueue, offset: int) -> None:
        """Drop the records of ``queue`` from ``offset`` on: their append failed, or the topic is gone."""
        for key in [key for key, block in queue.blocks.items() if block.first + len(block.records) > offset]:
            block = queue.blocks[key]
            keep = max(0, offset - block.first)
            dropped = sum(map(len, block.records[keep:]))
            del block.records[keep:], block.codes[keep:]
            block.size -= dropped
            self.size -= dropped
            if not keep:
                del queue.blocks[key]  # the emptied block leaves the deque when its turn comes
        queue.block = None if not offset & BLOCK_MASK else queue.blocks.get(offset >> BLOCK_SHIFT)
        queue.cached_first = min(queue.cached_first, offset)
        if not queue.blocks:
            queue.cached_first = offset


def cut_to_bytes(sizes: list[int], limit: int) -> int:
    """How many of ``sizes`` fit into ``limit`` together; at least one."""
    count = 0
    for total in accumulate(sizes):
        if total > limit:
            break
        count += 1
    return count or 1


def read_tail(queue: ConsumeQueue, offset: int, count: int, max_bytes: int) -> tuple[bytes, int]:
    """Up to ``count`` records from ``offset`` on (all of them cached) as one buffer, and how many they are."""
    blocks = queue.blocks
    block = blocks[offset >> BLOCK_SHIFT]
    low = offset - block.first
    parts = block.records[low : low + count]
    missing = count - len(parts)
    key = offset >> BLOCK_SHIFT
    while missing > 0:
        key += 1
        following = blocks.get(key)
        if following is None:
            break
        records = following.records
        parts += records if len(records) <= missing else records[:missing]
        missing = count - len(parts)
    if len(parts) > 1:
        sizes = list(map(len, parts))
        if sum(sizes) > max_bytes:
            del parts[cut_to_bytes(sizes, max_bytes) :]
    return b"".join(parts), len(parts)


def scan_tail(
    queue: ConsumeQueue, offset: int, stop: int, count: int, max_bytes: int, accept: Callable[[int], bool]
) -> tuple[list[bytes], int]:
    """Records in ``offset`` to ``stop`` whose tags code is accepted, and the first offset that was not looked at."""
    parts: list[bytes] = []
    total = 0
    blocks = queue.blocks
    while offset < stop:
        block = blocks[offset >> BLOCK_SHIFT]
        low = offset - block.first
        high = min(len(block.records), stop - block.first)
        records = block.records
        for index, code in enumerate(block.codes[low:high], low):
            if accept(code):
                record = records[index]
                total += len(record)
                if parts and total > max_bytes:
                    return parts, block.first + index
                parts.append(record)
                if len(parts) == count:
                    return parts, block.first + index + 1
        offset = block.first + high
    return parts, offset
