"""What the commit log writes and acknowledges together."""

from __future__ import annotations

from collections.abc import Callable

from aiorocket.runtime.disk import Buffer, Disk
from aiorocket.storage.checksums import COUNT
from aiorocket.storage.consume_queue import ConsumeQueue
from aiorocket.storage.results import PutResult
from aiorocket.storage.segment import AHEAD, SMALL, Segment

__all__ = ("KEPT", "KEPT_EACH", "KEPT_IN_RUN", "CommitGroup", "Done", "Run", "SyncError")

#: Bytes of memory that an append keeps beside its record while it waits, about: its result, and who is to be told. Of a
#: batch each message keeps more; a send of a run, see broker/plain_run.py, keeps less.
KEPT = 1280
KEPT_EACH = 128
KEPT_IN_RUN = 384

_count = COUNT.pack

Done = Callable[[PutResult], None]


class SyncError(Exception):
    """A sync failed; the OSError is the cause."""


class Run:
    """Consecutive bytes of a group within one segment. ``mark`` is what the segment's checksums covered before,
    ``counts`` are for the checksum file: the next offsets of the group's queues behind it."""

    __slots__ = ("buffers", "counts", "mark", "position", "segment")

    def __init__(self, segment: Segment, position: int) -> None:
        self.segment = segment
        self.position = position
        self.buffers: list[bytes] = []
        self.counts: Buffer = b""
        self.mark: tuple[tuple[int, int], int] | None = None

    def put(self, durable: int, replay: int, sync: bool) -> None:
        """Blocking: write the bytes and their checksums, and before a ``sync`` maybe zeros behind them."""
        segment = self.segment
        self.mark = segment.mark()
        if self.buffers:
            end = segment.write(self.buffers, self.position, durable, replay, self.counts)
            segment.groups += 1
            if sync and end > segment.decided_to:
                if segment.groups >= SMALL:
                    segment.zero_ahead(end)
                segment.groups, segment.decided_to = 0, end + AHEAD


class CommitGroup:
    """What is written and acknowledged together, and what it takes until then. ``marks`` are (queue, its next offset,
    tags code or None if they differ)."""

    __slots__ = ("dones", "end", "marks", "results", "runs", "size", "start", "touched")

    def __init__(self, start: int, runs: list[Run]) -> None:
        self.start = start
        self.end = start
        self.size = 0
        self.runs = runs
        self.dones: list[Done] = []
        self.results: list[PutResult] = []
        self.touched: list[ConsumeQueue] = []
        self.marks: list[tuple[ConsumeQueue, int, int | None]] = []

    def go_on(self, run: Run) -> None:
        """In the next segment; what it has so far is in front of it, with counts of its own."""
        if self.runs:
            self.runs[-1].counts = b"".join(
                _count(len(queue.topic_bytes), queue.queue_id, queue.next_offset) + queue.topic_bytes
                for queue in self.touched
                if not queue.deleted
            )
        self.runs.append(run)

    def seal(self, end: int, size: int) -> None:
        self.end = end
        self.size = size
        marks, counts = self.marks, bytearray()
        for queue in self.touched:
            queue.marked = False
            upto, topic = queue.next_offset, queue.topic_bytes
            marks.append((queue, upto, queue.code))
            if not queue.deleted:  # made again meanwhile, it begins anew in front of this group's end
                counts += _count(len(topic), queue.queue_id, upto) + topic
        if self.runs:
            self.runs[-1].counts = counts

    def write(self, disk: Disk, min_free: int, durable: int, replay: int, sync: bool) -> None:
        """Blocking, in the disk's thread. Each run but the last is synced before the next is begun."""
        last = self.runs[-1]
        for run in self.runs:
            segment = run.segment
            file = segment.prepare(disk, min_free)
            run.put(durable, replay, sync)
            if sync or run is not last:
                try:
                    file.fdatasync()
                    if run is not last:
                        segment.finish(durable, replay)
                except OSError as error:
                    segment.failed = error
                    raise SyncError from error
