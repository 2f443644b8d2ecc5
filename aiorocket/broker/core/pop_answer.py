"""What a pop asks for, and what it collects for its answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.pops import QueueKey
from aiorocket.broker.core.topics import Topic
from aiorocket_protocol import (
    ORDER_REVIVE_QUEUE,
    PopMessageResponseHeader,
    retry_mark,
    write_offset_lists,
    write_offsets,
)

__all__ = ("Found", "Wanted")


class Wanted(NamedTuple):
    """What a pop or notification asks for, checked. ``most`` is 0 for a notification."""

    group: str
    topic: Topic
    queue_id: int
    most: int
    invisible_ms: int
    init_mode: int
    in_order: bool
    attempt: str
    accept: Callable[[int], bool] | None


class Found:
    """What one pop collects. ``pop_time`` is its time, ``count`` and ``size`` how much more it may have."""

    def __init__(self, count: int, size: int, pop_time: int) -> None:
        self.count, self.size, self.pop_time = count, size, pop_time
        self.pieces: list[bytes] = []
        self.starts: list[tuple[str, object, int]] = []
        self.offsets: list[tuple[str, int, list[int]]] = []
        self.times: list[tuple[str, object, int]] = []
        #: Messages behind those that were found.
        self.rest = 0
        #: Why the group may not begin with a queue.
        self.refusal: Refusal | None = None
        #: Offsets behind which something may match, had the reads gone on.
        self.unread = False

    def add(self, key: QueueKey, data: bytes, offsets: Sequence[int]) -> None:
        """Messages of one queue."""
        mark = retry_mark(key.topic)
        self.pieces.append(data)
        self.count -= len(offsets)
        self.size -= len(data)
        self.starts.append((mark, key.queue_id, offsets[0]))
        self.offsets.append((mark, key.queue_id, list(offsets)))

    def add_times(self, key: QueueKey, offsets: Sequence[int], times: Sequence[int]) -> None:
        """In order: how often each went out before, and for older clients the least for the queue."""
        mark = retry_mark(key.topic)
        self.times += [
            (mark, f"qo{key.queue_id}%{one}", count) for one, count in zip(offsets, times, strict=True) if count
        ]
        self.times.append((mark, key.queue_id, min(times)))

    def header(self, wanted: Wanted) -> PopMessageResponseHeader:
        return PopMessageResponseHeader(
            self.pop_time,
            wanted.invisible_ms,
            ORDER_REVIVE_QUEUE if wanted.in_order else 0,
            self.rest,
            write_offsets(self.starts),
            write_offset_lists(self.offsets),
            write_offsets(self.times) if wanted.in_order else None,
        )
