"""The newest records of every queue in memory, so that a consumer at the tail reads no file.

What was appended together stays the one ``bytes`` object that was written, in blocks of at most 128 records aligned by
queue offset; a read joins slices of blocks. The budget is global and in bytes; the block that was started first goes
first, so an append costs three list appends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import accumulate

from aiorocket.storage.block import BLOCK_MASK, BLOCK_SHIFT, Block
from aiorocket.storage.consume_queue import ConsumeQueue

__all__ = ("LARGE", "TailCache", "cut_to_bytes", "read_tail", "scan_tail")

#: Pieces of this size, in the middle, are not joined: the socket takes them as they are, and the join of a large answer
#: costs more in fresh memory than in copying.
LARGE = 4096


class TailCache:
    """``size`` may pass ``budget`` by one append; the appender then calls ``evict``."""

    __slots__ = ("_blocks", "budget", "size")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.size = 0
        #: Each with its queue, in the order they were started.
        self._blocks: OrderedDict[Block, ConsumeQueue] = OrderedDict()

    def start(self, queue: ConsumeQueue, offset: int) -> Block:
        """A new block of ``queue`` that begins at ``offset``; in the place of one whose append found no memory."""
        block = Block(offset)
        self._blocks[block] = queue
        queue.blocks[offset >> BLOCK_SHIFT] = block
        queue.block = block
        return block

    def evict(self) -> None:
        """Drop the oldest blocks until the budget holds."""
        blocks = self._blocks
        while self.size > self.budget and blocks:
            block, queue = blocks.popitem(last=False)
            self.size -= block.size
            if queue.blocks.get(key := block.first >> BLOCK_SHIFT) is block:
                del queue.blocks[key]
            queue.cached_first = block.first + len(block.records)
            if queue.block is block:
                queue.block = None

    def forget(self, queue: ConsumeQueue, offset: int) -> None:
        """Drop the records of ``queue`` from ``offset`` on: their append failed, or the topic is gone."""
        for key, block in list(queue.blocks.items()):
            keep = max(0, offset - block.first)
            if keep and keep >= len(block.records):
                continue
            if keep:
                head, inside = block.before(keep)
                if inside:
                    block.records[head] = block.records[head][:inside]
            del block.records[keep:], block.sizes[keep:], block.codes[keep:]
            # Its sizes, not what was noted of them: an append may have ended between the two.
            kept = sum(block.sizes)
            self.size += kept - block.size
            block.size = kept
            if not keep:
                del queue.blocks[key], self._blocks[block]
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


def read_tail(queue: ConsumeQueue, offset: int, count: int, max_bytes: int) -> tuple[list[bytes], int]:
    """Up to ``count`` records from ``offset`` on (all of them cached) and how many they are: batches as the buffers
    they were written from, single messages joined."""
    blocks = queue.blocks
    block = blocks[offset >> BLOCK_SHIFT]
    low = offset - block.first
    parts = block.records[low : low + count]
    sizes = block.sizes[low : low + count]
    if not parts[0]:
        head, inside = block.before(low)
        parts[0] = block.records[head][inside:]
    missing = count - len(parts)
    key = offset >> BLOCK_SHIFT
    while missing > 0:
        key += 1
        following = blocks.get(key)
        if following is None:
            break
        parts += following.records if len(following.records) <= missing else following.records[:missing]
        sizes += following.sizes if len(following.sizes) <= missing else following.sizes[:missing]
        missing = count - len(parts)
    total = sum(sizes)
    if total > max_bytes:
        taken = cut_to_bytes(sizes, max_bytes)
        del parts[taken:], sizes[taken:]
        total = sum(sizes)
    pieces = list(filter(None, parts))
    # The last of them may be the beginning of a batch that goes on.
    if too_many := sum(map(len, pieces)) - total:
        pieces[-1] = pieces[-1][:-too_many]
    if len(pieces) * LARGE > total:
        pieces = [b"".join(pieces)]
    return pieces, len(parts)


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
        records, sizes = block.records, block.sizes
        head, at = block.before(low)
        for index, code in enumerate(block.codes[low:high], low):
            size = sizes[index]
            if records[index]:
                head, at = index, 0
            if accept(code):
                total += size
                if parts and total > max_bytes:
                    return parts, block.first + index
                record = records[head]
                parts.append(record if len(record) == size else record[at : at + size])
                if len(parts) == count:
                    return parts, block.first + index + 1
            at += size
        offset = block.first + high
    return parts, offset
