"""Opening a store: find the end of the log, cut a torn tail, bring the consume queues up to date.

1. The newest valid checkpoint says how far everything was durable (D) and up to which log offset the consume queues
   are complete.
2. The log is read from there on: size, magic, inner lengths, body CRC, and PHYSICALOFFSET equal to the place itself.
   Bad bytes below D, or in a segment that has a non-empty one behind it, are damage: StoreCorruptedError, nothing is
   changed. Later ones are a torn tail: it is cut, and the rest of the segment is zeroed so that nothing in it can
   look like a record later.
3. Every record that was read is put into its consume queue. A consume queue that does not fit the checkpoint or the
   log makes all of them be built again from the beginning of the log.

All of it blocks and runs in the disk's writer thread. A checkpoint at the end makes the next start short.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

from aiorocket.config import StoreConfig
from aiorocket.errors import ProtocolError, StoreCorruptedError, UsageError
from aiorocket.runtime.disk import Disk
from aiorocket.storage.consume_queue import (
    FILE_SIZE,
    UNIT,
    UNIT_SIZE,
    ConsumeQueue,
    queue_directory,
    remove_queue,
    write_units,
)
from aiorocket.storage.results import Recovery
from aiorocket.storage.segment import Segment
from aiorocket.storage.snapshots import Snapshot
from aiorocket_protocol import BLANK_SIZE, RECORD_MAGIC_V1, RECORD_MAGIC_V2, RecordView, check_record, parse_blank

__all__ = ("FORMAT", "Recovered", "QueueTable", "checkpoint_state", "recover", "sync_queue")

#: Version of the directory layout; a store with a higher one is refused.
FORMAT = 1
_WINDOW = 1 << 20
_SECTOR = 512
#: Units a queue gathers in memory before they are put into its file (without a sync).
WRITE_OUT = 64 * 1024
_HEAD = Struct(">ii")
_RECORDS = (RECORD_MAGIC_V1, RECORD_MAGIC_V2)

QueueTable = dict[tuple[str, int], ConsumeQueue]


class Recovered(NamedTuple):
    """A store ready to go on."""

    segments: list[Segment]
    end: int
    queues: QueueTable
    timestamp: int
    deleted: dict[str, int]
    #: Where checkpoints go.
    snapshot: Snapshot
    report: Recovery


class _QueuesDoNotFit(Exception):
    """The consume queues contradict the checkpoint or the log; the text says where."""


class _Bad(NamedTuple):
    offset: int
    reason: str


def checkpoint_state(
    queues: QueueTable, *, replay: int, durable: int, timestamp: int, deleted: dict[str, int], clean: bool
) -> dict[str, Any]:
    """What a checkpoint says; queues are [id, min offset, count] by topic."""
    topics: dict[str, list[list[int]]] = {}
    for (topic, queue_id), queue in queues.items():
        topics.setdefault(topic, []).append([queue_id, queue.min_offset, queue.max_offset])
    return {
        "format": FORMAT,
        "clean": clean,
        "replay": replay,
        "durable": durable,
        "timestamp": timestamp,
        "deleted": deleted,
        "queues": topics,
    }


def sync_queue(disk: Disk, queue: ConsumeQueue) -> None:
    """Blocking: put everything of a queue into its files, durably."""
    count = queue.max_offset
    data = bytes(queue.tail[: (count - queue.tail_first) * UNIT_SIZE])
    write_units(disk, queue.directory, queue.tail_first, data, queue.synced)
    queue.written(count, synced=True)


def recover(disk: Disk, directory: str, config: StoreConfig, tags_code_of: Callable[[RecordView], int]) -> Recovered:
    """Blocking. StoreCorruptedError when durable bytes are damaged or missing; OSError passes."""
    snapshot = Snapshot(disk, f"{directory}/checkpoint")
    state = _load(snapshot)
    steps = _Steps(disk, directory, config, state, tags_code_of)
    steps.find_segments()
    rebuilt = state is None and bool(steps.segments)
    if not rebuilt:
        try:
            steps.load_queues()
            steps.scan()
        except _QueuesDoNotFit:
            rebuilt = True
    if rebuilt:
        steps.forget_queues()
        steps.scan()
    steps.finish()
    for queue in steps.queues.values():
        queue.cached_first = queue.max_offset
        if queue.synced < queue.max_offset:
            sync_queue(disk, queue)
    snapshot.save(
        checkpoint_state(
            steps.queues,
            replay=steps.end,
            durable=steps.end,
            timestamp=steps.timestamp,
            deleted=steps.deleted,
            clean=False,
        )
    )
    report = Recovery(
        records=steps.records,
        scanned_bytes=steps.scanned,
        truncated_bytes=steps.truncated,
        reason=steps.reason if steps.truncated else "",
        clean=steps.clean,
        rebuilt=rebuilt,
        queues=len(steps.queues),
        end=steps.end,
    )
    return Recovered(steps.segments, steps.end, steps.queues, steps.timestamp, steps.deleted, snapshot, report)


def _load(snapshot: Snapshot) -> dict[str, Any] | None:
    try:
        state = snapshot.load()
    except StoreCorruptedError:
        return None  # both generations are damaged: the log itself tells everything but the last second's durability
    if state is not None and state["format"] > FORMAT:
        raise StoreCorruptedError(
            f"{snapshot.path}: the store has format {state['format']}, this program knows up to {FORMAT}:"
            " use a newer one"
        )
    return state


class _Steps:
    """The steps of one recovery and what they found."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: StoreConfig,
        state: dict[str, Any] | None,
        tags_code_of: Callable[[RecordView], int],
    ) -> None:
        self.disk = disk
        self.log_directory = f"{directory}/commitlog"
        self.queue_directory = f"{directory}/consumequeue"
        self.config = config
        self.tags_code_of = tags_code_of
        self.state = state or {}
        self.clean = bool(self.state.get("clean", False))
        self.durable: int = self.state.get("durable", 0)
        self.replay: int = self.state.get("replay", 0)
        self.timestamp: int = self.state.get("timestamp", 0)
        self.deleted: dict[str, int] = dict(self.state.get("deleted", {}))
        self.segments: list[Segment] = []
        #: Empty segments behind the end of the log.
        self.unused: list[Segment] = []
        #: Log offset of the oldest segment.
        self.start = 0
        self.queues: QueueTable = {}
        self.rebuilding = False
        self.end = 0
        self.records = self.scanned = self.truncated = 0
        self.reason = ""

    # ---- the log

    def find_segments(self) -> None:
        """List the segments, check that none is missing, and raise ``durable`` to the start of the last one in use."""
        disk, directory = self.disk, self.log_directory
        bases = [int(name) for name in disk.listdir(directory) if len(name) == 20 and name.isdigit()]
        sizes = {base: self._file_size(base) for base in bases}
        used = [base for base in bases if sizes[base][1]]
        for base in bases:
            segment = Segment(directory, base, max(self.config.segment_size, sizes[base][0]))
            if base > (used[-1] if used else bases[0]) and base >= self.durable:
                self.unused.append(segment)  # made ahead, or torn before anything was promised: made again when needed
            else:
                self.segments.append(segment)
        for before, after in zip(self.segments, self.segments[1:], strict=False):
            before.capacity = after.base - before.base
            before.end = after.base
            size = sizes[before.base][0]
            if size < before.capacity and not self._ends_blank(before, size):
                raise StoreCorruptedError(
                    f"{before.path} ends at {size} bytes, the next segment begins at {after.base}:"
                    " a segment is missing or cut; restore it from a copy"
                )
        if used:
            self.durable = max(self.durable, used[-1])
        last = self.segments[-1].end if self.segments else 0
        if self.durable > last:
            raise StoreCorruptedError(
                f"{directory}: the checkpoint promises messages up to log offset {self.durable}, the files end at"
                f" {last}; restore the missing files from a copy"
            )
        self.start = self.segments[0].base if self.segments else 0
        self.replay = max(self.replay, self.start)

    def _file_size(self, base: int) -> tuple[int, bool]:
        """Size of a segment file, and whether it has a first record."""
        file = self.disk.open(f"{self.log_directory}/{base:020d}")
        try:
            return file.size(), bool(file.pread(4, 0).strip(b"\0"))
        finally:
            file.close()

    def _ends_blank(self, segment: Segment, size: int) -> bool:
        # A disk that reserves no space leaves a rolled segment shorter: its last bytes are then the head of the blank.
        file = self.disk.open(segment.path)
        try:
            head = file.pread(BLANK_SIZE, max(0, size - BLANK_SIZE))
            return parse_blank(head, 0) == segment.capacity - size + BLANK_SIZE
        except ProtocolError:
            return False
        finally:
            file.close()

    def scan(self) -> None:
        """Read from ``replay`` to the end of the log, dispatching every record; sets ``end``."""
        offset = self.replay
        self.end = offset
        for index, segment in enumerate(self.segments):
            if segment.end <= offset:
                continue
            bad = self._scan_segment(segment, max(offset, segment.base))
            if bad is None:
                self.end = segment.end
                continue
            if bad.offset < self.durable or index + 1 < len(self.segments):
                raise StoreCorruptedError(
                    f"{segment.path}: log offset {bad.offset} was durable (up to {self.durable}) and is damaged:"
                    f" {bad.reason}; nothing was changed, restore the file from a copy"
                )
            self.end = bad.offset
            self.reason = bad.reason
            return

    def _scan_segment(self, segment: Segment, offset: int) -> _Bad | None:
        """Dispatch the records from ``offset`` on. None when the segment is full, else where and why reading ended."""
        file = self.disk.open(segment.path)
        try:
            buffer, start = b"", 0
            while True:
                left = segment.end - offset
                for _ in range(2):  # the first read may only tell how much a large record needs
                    have = len(buffer) - start
                    size, magic = _HEAD.unpack_from(buffer, start) if have >= BLANK_SIZE else (BLANK_SIZE, 0)
                    if size <= have or size > left or (have >= BLANK_SIZE and magic not in _RECORDS):
                        break
                    buffer, start = file.pread(min(max(_WINDOW, size), left), offset - segment.base), 0
                if len(buffer) - start < BLANK_SIZE:
                    return _Bad(offset, "the file ends")
                if not any(buffer[start : start + BLANK_SIZE]):
                    return _Bad(offset, "nothing was written here")
                try:
                    blank = parse_blank(buffer, start)
                    if blank is not None:
                        return None if blank == left else _Bad(offset, f"blank of {blank} bytes where {left} are left")
                    size = check_record(buffer, start)
                    view = RecordView(buffer, start, start + size)
                    if view.physical_offset != offset:
                        return _Bad(offset, f"the record says it stands at {view.physical_offset}")
                    if offset >= self.durable and _has_lost_sector(view, offset - segment.base):
                        return _Bad(offset, "a sector of the record was never written")
                    self._dispatch(view, offset, size)
                except ProtocolError as error:
                    return _Bad(offset, error.what)
                except UsageError as error:
                    return _Bad(offset, str(error))
                self.records += 1
                self.scanned += size
                start += size
                offset += size
        finally:
            file.close()

    def finish(self) -> None:
        """Cut what stands behind the end, and make everything before it durable."""
        for segment in reversed(self.unused):
            segment.remove(self.disk)
        for topic in [topic for topic, upto in self.deleted.items() if upto <= self.start]:
            del self.deleted[topic]
        if not self.segments or self.segments[-1].end == self.end:
            return
        segment = self.segments[-1]
        position = self.end - segment.base
        file = segment.prepare(self.disk, 0)
        if self.clean and not self.records and not file.pread(8, position).strip(b"\0"):
            return
        self.clean = False
        last = _last_written(file.pread, position, file.size())
        if last > position:
            self.truncated = last - position
            segment.cut(position)
        else:
            file.fdatasync()

    # ---- the consume queues

    def load_queues(self) -> None:
        """Take over the queues of the checkpoint, cut to what it says; _QueuesDoNotFit when a file is missing or
        differs."""
        for topic, rows in self.state.get("queues", {}).items():
            for queue_id, minimum, count in rows:
                path = queue_directory(self.queue_directory, topic, queue_id)
                self.queues[topic, queue_id] = ConsumeQueue(path, topic, queue_id, count, minimum)
        kept: dict[str, None] = {}
        for topic in self.disk.listdir(self.queue_directory):
            for name in self.disk.listdir(f"{self.queue_directory}/{topic}"):
                path = f"{self.queue_directory}/{topic}/{name}"
                kept[path] = None
                queue = self.queues.get((topic, int(name) if name.isdigit() else -1))
                if queue is None or not queue.max_offset:
                    remove_queue(self.disk, path)
                else:
                    self._fit_files(queue)
        for queue in self.queues.values():
            if queue.max_offset and queue.directory not in kept:
                raise _QueuesDoNotFit(f"{queue.directory} is missing")

    def _fit_files(self, queue: ConsumeQueue) -> None:
        end = queue.max_offset * UNIT_SIZE
        bases = [int(name) for name in self.disk.listdir(queue.directory) if name.isdigit()]
        expected = range(queue.min_offset * UNIT_SIZE // FILE_SIZE * FILE_SIZE, end, FILE_SIZE)
        if not set(expected) <= set(bases):
            raise _QueuesDoNotFit(f"{queue.directory} lacks a file")
        for base in bases:
            path = f"{queue.directory}/{base:020d}"
            if base >= end:
                self.disk.unlink(path)
                continue
            file = self.disk.open(path)
            try:
                size, wanted = file.size(), min(FILE_SIZE, end - base)
                if size < wanted:
                    raise _QueuesDoNotFit(f"{path} is too short")
                if size > wanted:
                    file.truncate(wanted)
                if base + wanted == end:
                    self._check_unit(queue, file.pread(UNIT_SIZE, wanted - UNIT_SIZE))
            finally:
                file.close()

    def _check_unit(self, queue: ConsumeQueue, unit: bytes) -> None:
        """The last unit of a queue must point at the record that says the same."""
        place, size, _ = UNIT.unpack(unit)
        for segment in self.segments:
            if segment.base <= place < segment.end and 0 < size <= segment.end - place:
                file = self.disk.open(segment.path)
                try:
                    data = file.pread(size, place - segment.base)
                finally:
                    file.close()
                if _says(data, size, (place, queue.queue_id, queue.max_offset - 1)):
                    return
        raise _QueuesDoNotFit(f"{queue.directory}: unit {queue.max_offset - 1} points at {place}, no such record there")

    def forget_queues(self) -> None:
        """Start over: no queues, and the log from its beginning."""
        for topic in self.disk.listdir(self.queue_directory):
            for name in self.disk.listdir(f"{self.queue_directory}/{topic}"):
                remove_queue(self.disk, f"{self.queue_directory}/{topic}/{name}")
        self.queues.clear()
        self.rebuilding = True
        self.replay = self.start
        self.records = self.scanned = 0

    def _dispatch(self, view: RecordView, offset: int, size: int) -> None:
        timestamp = view.store_timestamp
        if timestamp > self.timestamp:
            self.timestamp = timestamp
        topic = view.topic
        if offset < self.deleted.get(topic, 0):
            return
        key = (topic, view.queue_id)
        queue = self.queues.get(key)
        position = view.queue_offset
        if queue is None:
            # The first record left of a queue sets where it begins, if the log's beginning was removed.
            first = position if self.rebuilding and self.start > 0 else 0
            queue = ConsumeQueue(queue_directory(self.queue_directory, *key), topic, view.queue_id, first, first)
            self.queues[key] = queue
        if position != queue.next_offset:
            if not self.rebuilding:
                raise _QueuesDoNotFit(f"{topic} {view.queue_id}: record {position} follows {queue.next_offset}")
            if position != 0:
                raise StoreCorruptedError(
                    f"log offset {offset}: offset {position} of queue {view.queue_id} of topic {topic} follows"
                    f" {queue.next_offset - 1}; records between them are missing"
                )
            # The topic was deleted and made again, and the checkpoint that knew it is lost.
            if self.disk.exists(queue.directory):
                remove_queue(self.disk, queue.directory)
            queue = self.queues[key] = ConsumeQueue(queue.directory, topic, view.queue_id)
        queue.tail += UNIT.pack(offset, size, self.tags_code_of(view))
        queue.next_offset += 1
        queue.max_offset = queue.next_offset
        if len(queue.tail) >= WRITE_OUT:
            write_units(self.disk, queue.directory, queue.tail_first, bytes(queue.tail), None)
            queue.written(queue.max_offset, synced=False)


def _says(data: bytes, size: int, expected: tuple[int, int, int]) -> bool:
    """Whether ``data`` is a record with these physical offset, queue id and queue offset."""
    try:
        if len(data) != size or check_record(data, 0, check_crc=False) != size:
            return False
    except ProtocolError:
        return False
    view = RecordView(data, 0, size)
    return (view.physical_offset, view.queue_id, view.queue_offset) == expected


def _has_lost_sector(view: RecordView, position: int) -> bool:
    """Whether the property bytes of an unpromised record have a sector that reads as zeros. The body's CRC covers the
    body, the inner lengths cover the head; properties have no checksum of their own
    (a checksum file beside each segment will cover all)."""
    properties = view.raw_properties
    if b"\0" not in properties:
        return False
    begin = position + view.size - len(properties)
    end = position + view.size
    while begin < end:
        stop = min(end, begin - begin % _SECTOR + _SECTOR)
        piece = properties[len(properties) - (end - begin) : len(properties) - (end - stop)]
        if not piece.strip(b"\0"):
            return True
        begin = stop
    return False


def _last_written(pread: Callable[[int, int], bytes], position: int, size: int) -> int:
    """Where the last byte that is not zero ends, at or behind ``position``."""
    last = position
    while position < size:
        data = pread(min(_WINDOW, size - position), position)
        if not data:
            break
        used = len(data.rstrip(b"\0"))
        if used:
            last = position + used
        position += len(data)
    return last
