"""Bringing the consume queues up to date when a store is opened: taken over from the checkpoint or from their files, or
made again record by record."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from aiorocket.errors import ProtocolError, UsageError
from aiorocket.runtime.disk import Disk
from aiorocket.storage.checkpoint import QueueTable
from aiorocket.storage.consume_queue import (
    FILE_SIZE,
    FILE_UNITS,
    GAP,
    UNIT,
    UNIT_SIZE,
    ConsumeQueue,
    queue_directory,
    remove_queue,
    write_units,
)
from aiorocket.storage.counts import Counts
from aiorocket.storage.files import read_pages
from aiorocket.storage.segment import Segment
from aiorocket.storage.walk import Bad, Found, Row, has_torn_head
from aiorocket_protocol import MIN_RECORD, PROPERTY_TAGS, RecordView, check_record, tags_code

__all__ = (
    "WRITE_OUT",
    "Codes",
    "QueueSteps",
    "QueuesDoNotFitError",
    "TornEndError",
    "code_of",
    "count_units",
    "sync_queue",
    "tags_code_in",
)

#: Units a queue gathers in memory before they are put into its file (without a sync).
WRITE_OUT = 64 * 1024

_LOG = logging.getLogger("aiorocket.storage")
_SEPARATOR = b"\2"
_TAGS = _SEPARATOR + PROPERTY_TAGS.encode() + b"\1"
_unit_of = UNIT.pack

#: Topic -> what stands beside its records in their queues, where that is not the hash of TAGS. Asked with what a unit
#: says, which is to be believed as far as it may be true; with None where there is no unit.
Codes = Mapping[str, Callable[[RecordView, int | None], int]]


class QueuesDoNotFitError(Exception):
    """The consume queues contradict the checkpoint or the log; the text says where."""


class TornEndError(Exception):
    """A power cut left a record that contradicts those before it, behind everything that was promised."""


def sync_queue(disk: Disk, queue: ConsumeQueue) -> None:
    """Blocking: put everything of a queue into its files, durably."""
    count = queue.max_offset
    data = bytes(queue.tail[: (count - queue.tail_first) * UNIT_SIZE])
    write_units(disk, queue.directory, queue.tail_first, data, queue.synced)
    queue.written(count, synced=True)


class QueueSteps:
    """The steps of one recovery that are about queues, and what they found."""

    def __init__(self, disk: Disk, directory: str, state: dict[str, Any] | None, codes: Codes) -> None:
        self.disk = disk
        self.queue_directory = f"{directory}/consumequeue"
        self.codes = codes
        self.state = state or {}
        self.replay: int = self.state.get("replay", 0)
        self.timestamp: int = self.state.get("timestamp", 0)
        self.deleted: dict[str, int] = dict(self.state.get("deleted", {}))
        self.damage = [Bad(*row) for row in self.state.get("damaged", ())]
        #: How many of these are from earlier.
        self.known = len(self.damage)
        # What a start found that did not come to its end.
        begun = self.state.get("begun", {})
        self.damage += [Bad(*row) for row in begun.get("found", ())]
        #: Bytes of damage that the scan passed: so many records may be missing in queues.
        self.lost = 0
        #: Bytes of the log that are missing in front of its oldest segment.
        self.missing = 0
        #: Checksums vouch for the records below this log offset, for what they say of themselves too.
        self.trusted = 0
        #: Nothing from this log offset on was promised, as far as is known, and no checksum covers it.
        self.unpromised = sys.maxsize
        #: A place in the last of it, for the units of what is missing.
        self.gap = 0
        #: What the checksum files say of queues.
        self.counts: Counts
        self.segments: list[Segment] = []
        #: Log offset of the oldest segment.
        self.start = 0
        self.queues: QueueTable = {}
        self.by_bytes: dict[tuple[bytes, int], ConsumeQueue] = {}
        self.rebuilding = False
        #: When queues are made again: where the checkpoint says that they begin.
        self.minimum: dict[tuple[str, int], int] = {}
        #: ``state`` is what the queues' own files say.
        self.guessed = False
        #: The newest checkpoint was found, and it names every topic that was deleted.
        self.all_deletions_known = False
        #: The log has filler: what was in front of a record may have been removed by compaction.
        self.compacted = False
        self.records = self.scanned = 0
        #: Where the log has lost something: see ``count_units``, and what ``counts`` say.
        self.units = {(topic, queue_id): (first, count) for topic, queue_id, first, count in begun.get("given", ())}

    def lose(self, start: int, end: int, reason: str) -> None:
        """Quarantine a range of the log."""
        if end > start and not any(bad.offset <= start and end <= bad.end for bad in self.damage):
            self.damage.append(Bad(start, end, reason))

    def pass_over(self, start: int, end: int, reason: str) -> None:
        """The scan has come to a range of the log that is lost."""
        self.keep_counts(start)
        self.lost += end - start
        self.gap = start
        self.lose(start, end, reason)

    def keep_counts(self, upto: int) -> None:
        """What the blocks that end at or below log offset ``upto`` say of queues is so where messages are lost, too."""
        unknown = not self.state and (self.start > 0 or self.compacted)  # how many of a queue were removed
        for key, (first, count) in self.counts.upto(upto, self.deleted).items() if self.lost else ():
            queue, minimum = self.queues.get(key), self.minimum.get(key, 0)
            if queue is None and count > minimum:
                queue = self._queue(*key, first - 1 if unknown else minimum)
            if queue is not None and queue.next_offset < count:
                low, high = self.units.get(key, (queue.min_offset, 0))
                self.units[key] = min(low, queue.min_offset), max(high, count)
                self._fill(queue, count)

    def do_without_checkpoint(self, replay: int) -> None:
        """Both generations are lost: the checksum files say ``replay``, up to where the consume queues were synced, and
        their own files how long they are."""
        # What was written last is read whatever they say: a queue that has lost its files shows there.
        self.replay = min(replay, self.segments[-1].base)
        if self.replay <= self.start:
            raise QueuesDoNotFitError("there is no checkpoint")
        newest = (0, 0)
        rows: dict[str, list[list[int]]] = {}
        for topic in self.disk.listdir(self.queue_directory):
            for name in self.disk.listdir(f"{self.queue_directory}/{topic}"):
                path = f"{self.queue_directory}/{topic}/{name}"
                bases = [int(name) for name in self.disk.listdir(path) if name.isdigit()]
                if not name.isdigit() or not bases:
                    raise QueuesDoNotFitError(f"there is no checkpoint and {path} has no file")
                low, count = bases[0] // UNIT_SIZE, _count_below(self.disk, path, bases, self.replay)
                if count <= low:
                    raise QueuesDoNotFitError(f"there is no checkpoint and {path} has no unit")
                first = _count_below(self.disk, path, bases, self.start)
                rows.setdefault(topic, []).append([int(name), max(low, first), count])
                newest = max(newest, _unit(self.disk, path, count - 1)[:2])
        self.state = {"queues": rows}
        self.guessed = True
        place, size = newest
        if size:
            record = _record(self.disk, self.segments, place, size)
            if record is not None:
                self.timestamp = record.store_timestamp
        _LOG.warning("no checkpoint: %s is taken as it is up to log offset %d", self.queue_directory, replay)

    def load_queues(self) -> None:
        """Take over the queues of the checkpoint, cut to what it says; QueuesDoNotFitError when a file is missing or
        differs."""
        for topic, rows in self.state.get("queues", {}).items():
            for queue_id, minimum, count in rows:
                path = queue_directory(self.queue_directory, topic, queue_id)
                known = ConsumeQueue(path, topic, queue_id, count, minimum)
                self.queues[topic, queue_id] = self.by_bytes[known.topic_bytes, queue_id] = known
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
            if queue.min_offset < queue.max_offset and queue.directory not in kept:
                raise QueuesDoNotFitError(f"{queue.directory} is missing")

    def _fit_files(self, queue: ConsumeQueue) -> None:
        end = queue.max_offset * UNIT_SIZE
        bases = [int(name) for name in self.disk.listdir(queue.directory) if name.isdigit()]
        expected = range(queue.min_offset * UNIT_SIZE // FILE_SIZE * FILE_SIZE, end, FILE_SIZE)
        if not set(expected) <= set(bases):
            raise QueuesDoNotFitError(f"{queue.directory} lacks a file")
        for base in bases:
            path = f"{queue.directory}/{base:020d}"
            if base >= end:
                self.disk.unlink(path)
                continue
            file = self.disk.open(path)
            try:
                size, wanted = file.size(), min(FILE_SIZE, end - base)
                if size < wanted:
                    raise QueuesDoNotFitError(f"{path} is too short")
                if size > wanted:
                    file.truncate(wanted)
                if base + wanted == end and queue.min_offset < queue.max_offset:
                    self._check_unit(queue, read_pages(file, wanted - UNIT_SIZE, UNIT_SIZE))
            finally:
                file.close()

    def _check_unit(self, queue: ConsumeQueue, unit: bytes) -> None:
        """The last unit of a queue must point at the record that says the same, or at damage."""
        place, size, _ = UNIT.unpack(unit)
        if size == GAP or any(bad.offset < place + size and place < bad.end for bad in self.damage):
            return
        record = _record(self.disk, self.segments, place, size)
        if record is None or (record.queue_id, record.queue_offset, record.topic) != (
            queue.queue_id, queue.max_offset - 1, queue.topic,
        ):  # fmt: skip
            raise QueuesDoNotFitError(
                f"{queue.directory}: unit {queue.max_offset - 1} points at {place}, no such record there"
            )

    def forget_queues(self) -> None:
        """Start over: no queues, and the log from its beginning."""
        for topic in self.disk.listdir(self.queue_directory):
            for name in self.disk.listdir(f"{self.queue_directory}/{topic}"):
                remove_queue(self.disk, f"{self.queue_directory}/{topic}/{name}")
        self.queues.clear()
        self.by_bytes.clear()
        self.rebuilding = True
        if self.guessed:
            self.state = {}  # it came from the files that turned out to be wrong
        rows = self.state.get("queues", {}).items()
        self.minimum = {(topic, queue_id): minimum for topic, found in rows for queue_id, minimum, _ in found}
        self.replay = self.start
        self.records = self.scanned = 0
        self.lost, self.gap = self.missing, self.start - self.missing

    def _queue(self, topic: str, queue_id: int, first: int) -> ConsumeQueue:
        path = queue_directory(self.queue_directory, topic, queue_id)
        queue = self.queues[topic, queue_id] = ConsumeQueue(path, topic, queue_id, first, first)
        queue.synced -= first % FILE_UNITS  # its file is new, and so is the name
        self.by_bytes[queue.topic_bytes, queue_id] = queue
        return queue

    def _fill(self, queue: ConsumeQueue, upto: int) -> None:
        """Offsets below ``upto`` whose records are lost get units that say so."""
        _LOG.error(
            "topic %s queue %d: %d messages from offset %d on are lost with the log at offset %d",
            queue.topic, queue.queue_id, upto - queue.next_offset, queue.next_offset, self.gap,
        )  # fmt: skip
        while queue.next_offset < upto:
            count = min(upto - queue.next_offset, WRITE_OUT)
            queue.tail += UNIT.pack(self.gap, GAP, 0) * count
            queue.next_offset += count
            self._grown(queue)

    def _grown(self, queue: ConsumeQueue) -> None:
        queue.max_offset = queue.next_offset
        if len(queue.tail) >= WRITE_OUT:
            write_units(self.disk, queue.directory, queue.tail_first, bytes(queue.tail), None)
            queue.written(queue.max_offset, synced=False)

    def dispatch(self, rows: list[Row]) -> None:
        """Put records that touch into their queues."""
        find, codes, deleted, newest = self.by_bytes.get, self.codes, self.deleted, self.timestamp
        for row in rows:
            offset, size, topic, queue_id, position, timestamp, buffer, start, properties = row
            if timestamp > newest:
                newest = timestamp
            queue = find((topic, queue_id))
            if queue is None or position != queue.next_offset or deleted:
                queue = self._place_of(Found._make(row), queue)
                if queue is None:
                    continue
            if queue.topic in codes:
                code = code_of(Found._make(row), codes, queue.topic)
            else:
                code = tags_code_in(buffer, properties, start + size)
            tail = queue.tail
            tail += _unit_of(offset, size, code)
            queue.next_offset = queue.max_offset = position + 1
            if len(tail) >= WRITE_OUT:
                self._grown(queue)
        self.timestamp = newest
        self.records += len(rows)
        self.scanned += rows[-1][0] + rows[-1][1] - rows[0][0]

    def _reject(self, found: Found, what: str) -> None:
        """A record that contradicts the others, and that no checksum vouches for, is damage: where it was taken from
        there is a gap now. At the end of a log where nothing else is missing it may be torn."""
        whole = not self.lost and self.all_deletions_known
        if whole and found.offset >= self.unpromised and has_torn_head(found, self.segments[-1].base):
            raise TornEndError(what)
        self.lose(found.offset, found.offset + found.size, what)
        self.lost += found.size
        self.gap = found.offset

    def _place_of(self, found: Found, queue: ConsumeQueue | None) -> ConsumeQueue | None:
        """The queue that the record is next in, made if need be and with gaps for what was lost in front of it; None
        for a record that belongs to no queue."""
        position = found.queue_offset
        if not found.topic:
            self.compacted = True
            return None
        try:
            topic = found.topic.decode()
            if found.offset < self.deleted.get(topic, 0):
                return None
            minimum = self.minimum.get((topic, found.queue_id), 0)
            if position < minimum and found.offset < self.state.get("replay", 0):
                return None  # too old to be served when the checkpoint was saved; what followed it may be gone
            if queue is None:
                # The first record left of a queue sets where it begins, if the log's beginning was removed.
                removed = self.start > 0 or self.compacted or found.offset < self.trusted
                first = position if self.rebuilding and removed else minimum
                if self.lost and self.all_deletions_known:  # or what was in front of it is damaged
                    first = min(first, minimum)
                queue = self._queue(topic, found.queue_id, first)
        except (UnicodeDecodeError, UsageError) as error:
            self._reject(found, str(error))
            return None
        if position == queue.next_offset:
            return queue
        trusted = self.rebuilding and found.offset < self.trusted
        if queue.next_offset < position and (trusted or position <= queue.next_offset + self.lost // MIN_RECORD):
            self._fill(queue, position)
            return queue
        what = f"record {position} of queue {found.queue_id} of topic {topic} follows {queue.next_offset - 1}"
        if not self.rebuilding:
            raise QueuesDoNotFitError(what)
        known = self.all_deletions_known and found.offset >= self.trusted
        gone = self.compacted and (position > queue.next_offset or found.offset < self.trusted)
        if (position != 0 or known) and not gone:
            self._reject(found, what)
            return None
        # The topic was deleted and made again, and the checkpoint that knew it is lost; or compaction removed what was
        # in between, its new beginning too.
        if self.disk.exists(queue.directory):
            remove_queue(self.disk, queue.directory)
        return self._queue(topic, found.queue_id, position)


def count_units(
    disk: Disk, queue_directory: str, deleted: Mapping[str, int], upto: int
) -> dict[tuple[str, int], tuple[int, int]]:
    """How many units there are for the log below ``upto``, but of deleted topics: nothing else knows of messages behind
    the checkpoint when the log is missing. (Topic, queue) -> the first one and the number behind the last."""
    units: dict[tuple[str, int], tuple[int, int]] = {}
    for topic in disk.listdir(queue_directory):
        for name in disk.listdir(f"{queue_directory}/{topic}"):
            path = f"{queue_directory}/{topic}/{name}"
            bases = [int(each) for each in disk.listdir(path) if each.isdigit()]
            if name.isdigit() and bases and topic not in deleted:
                try:
                    count = _count_below(disk, path, bases, upto)
                except QueuesDoNotFitError:
                    continue  # damaged too
                units[topic, int(name)] = bases[0] // UNIT_SIZE, count
    return units


def _record(disk: Disk, segments: list[Segment], place: int, size: int) -> RecordView | None:
    """The record that stands at ``place``; its body is not checked."""
    for segment in segments:
        if segment.base <= place < segment.end and MIN_RECORD <= size <= segment.end - place:
            file = disk.open(segment.path)
            try:
                data = read_pages(file, place - segment.base, size)
            finally:
                file.close()
            try:
                if len(data) == size == check_record(data, 0, check_crc=False):
                    view = RecordView(data, 0, size)
                    return view if view.physical_offset == place and view.topic else None
            except ProtocolError:
                return None
    return None


def _count_below(disk: Disk, path: str, bases: list[int], upto: int) -> int:
    """How many units of a queue point below log offset ``upto``; places ascend, but for pages that were lost."""
    low = bases[0] // UNIT_SIZE
    file = disk.open(f"{path}/{bases[-1]:020d}")
    try:
        high = (bases[-1] + file.size()) // UNIT_SIZE
    finally:
        file.close()
    middle = high - 1  # the last one first: where all are below, no zeros in front of it end the search
    while low < high:
        place, size, _ = _unit(disk, path, middle)
        if place < upto and (place or size):
            low = middle + 1
        else:
            high = middle
        middle = (low + high) // 2
    # The search ends behind the last unit that it took for one below: a damaged one stands out there.
    places = [_unit(disk, path, index)[0] for index in range(max(bases[0] // UNIT_SIZE, low - 2), low)]
    if places != sorted(places):
        raise QueuesDoNotFitError(f"there is no checkpoint and the units of {path} below {low} are out of order")
    return low


def _unit(disk: Disk, path: str, index: int) -> tuple[int, int, int]:
    base = index * UNIT_SIZE // FILE_SIZE * FILE_SIZE
    try:
        file = disk.open(f"{path}/{base:020d}")
    except FileNotFoundError:
        raise QueuesDoNotFitError(f"{path} lacks a file") from None
    try:
        unit = read_pages(file, index * UNIT_SIZE - base, UNIT_SIZE)
    finally:
        file.close()
    if len(unit) != UNIT_SIZE:
        raise QueuesDoNotFitError(f"{path} lacks units")
    return UNIT.unpack(unit)


def code_of(found: Found, codes: Codes, topic: str, said: int | None = None) -> int:
    """What stands beside a record in its queue: what ``codes`` say, else the hash of its tag, 0 when it has none.
    ``said`` is what its unit says, if there is one."""
    own = codes.get(topic)
    if own is not None:
        return own(found.view, said)
    return tags_code_in(found.buffer, found.properties, found.start + found.size)


def tags_code_in(buffer: bytes, first: int, end: int) -> int:
    """The hash of the tag in a property string, stored as it came; the last one that is not empty wins, as in every
    parser."""
    text = _SEPARATOR + buffer[first:end]
    _, found, behind = text.rpartition(_TAGS)
    if not found:
        return 0
    tag = behind.partition(_SEPARATOR)[0]
    if not tag:
        tags = [part.partition(_SEPARATOR)[0] for part in text.split(_TAGS)[1:]]
        tag = next(filter(None, reversed(tags)), b"")
    return _code_of_tag(tag)


@lru_cache(maxsize=4096)
def _code_of_tag(tag: bytes) -> int:
    return tags_code(tag.decode("utf-8", "replace"))
