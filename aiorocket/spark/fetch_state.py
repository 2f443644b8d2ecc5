"""What a fetch knows of its ranges: plain state and arithmetic, nothing that waits."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from aiorocket.errors import ProtocolError
from aiorocket_protocol import PHYSICAL_OFFSET_AT, QUEUE_OFFSET_AT

if TYPE_CHECKING:
    import asyncio

    from aiorocket.spark.planner import QueueRange

__all__ = ("GROW_AFTER", "HEAD", "Answer", "Pace", "Part", "first_offset", "within")

#: Full answers after which the next pulls ask for twice as much.
GROW_AFTER = 8

_size_at = Struct(">i").unpack_from
_long_at = Struct(">q").unpack_from
#: Bytes of a stored record up to the end of its queueOffset.
HEAD = PHYSICAL_OFFSET_AT


class Answer(NamedTuple):
    """What is known of the offsets up to ``end``. ``lost`` ones are no part of any chunk."""

    end: int
    data: bytes
    rows: int
    lost: bool = False


class Pace:
    """How many offsets to ask a broker for at a time.

    One that limits the messages always gives the same number; one that limits the bytes gives a little more or less
    each time, and then asking for less than that avoids second questions about the last few."""

    __slots__ = ("_full", "_limit", "_short", "span")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._full = self._short = 0
        self.span = limit

    def note(self, asked: int, got: int) -> None:
        if got < asked:
            varies = self._short not in (0, got)
            self.span = max(1, min(got, self._short) * 7 // 8) if varies else got
            self._short, self._full = got, 0
        elif got > self.span:
            self.span = min(self._limit, got)  # a filter let it look at more than it was asked for
        elif asked >= self.span:
            self._full += 1
            if self._full >= GROW_AFTER:
                self.span, self._full = min(self._limit, 2 * self.span), 0


class Part:
    """One range: ``answers`` by the offset they begin at, ``position`` is what was handed out or is being gathered."""

    __slots__ = (
        "address", "answers", "begin", "end", "failed_since", "failures", "held", "index", "lost_from", "pace",
        "position", "queue", "repair", "warned", "wire_topic",
    )  # fmt: skip

    def __init__(self, index: int, span: QueueRange, wire_topic: str, pace: Pace) -> None:
        self.index = index
        self.queue, self.begin, self.end = span
        self.wire_topic = wire_topic
        self.pace = pace
        self.position = self.begin
        self.answers: dict[int, Answer] = {}
        self.address: str | None = None
        #: Gaps that wait for the end of ``repair``.
        self.held: list[tuple[int, int]] = []
        self.repair: asyncio.Task[None] | None = None
        self.failed_since: float | None = None
        self.failures = 0
        #: From here on nothing is asked for any more.
        self.lost_from = self.end
        self.warned = False

    def at(self, offset: int) -> str:
        queue = self.queue
        where = f" at {self.address}" if self.address else ""
        return f"topic {queue.topic}, broker {queue.broker_name}{where}, queue {queue.queue_id}, offset {offset}"


def first_offset(data: bytes) -> int:
    """The queueOffset of the record that ``data`` begins with."""
    offset: int = _long_at(data, QUEUE_OFFSET_AT)[0]
    return offset


def within(data: bytes, begin: int, end: int) -> tuple[bytes, int, int]:
    """The records with offsets from ``begin`` up to ``end``, how many they are, and the first one's offset (or
    ``end``)."""
    at, size = 0, len(data)
    start, rows, first = 0, 0, end
    while at + HEAD <= size:
        length: int = _size_at(data, at)[0]
        if length < HEAD or at + length > size:
            break
        offset: int = _long_at(data, at + QUEUE_OFFSET_AT)[0]
        if offset >= end:
            return data[start:at], rows, first
        at += length
        if offset < begin:
            start = at
            continue
        if not rows:
            first = offset
        rows += 1
    if at != size:
        raise ProtocolError(f"{size - at} bytes that are no record, at byte {at} of {size}", where="pull answer")
    return data[start:], rows, first
