"""Key index: which records of a topic carry a key. Derived from the log, never trusted over it.

A part covers a range of the log and is one file, ``index/START-END``: a head, a table of buckets, the entries bucket
by bucket in the order of the log. An entry is the hash of ``topic#key`` and where its record stands in the range. The
newest part grows in memory and becomes a file when it has ``PART_ENTRIES``; after a restart it is read from the log
again. What an entry points at is read with its CRC and compared, so an entry that is wrong finds nothing; a part whose
checksums do not fit is thrown away and made again.

Nothing of this is on the way of an append. The log is read behind the checkpoints in slices of the writer thread, with
pauses of nine times what a slice took; a lookup reads what is left itself.

Keys are RocketMQ's: UNIQ_KEY and each word of KEYS in one space of names, tags in one of their own, as 5.5 keeps them;
no message that rolls a transaction back.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from aiorocket.errors import ProtocolError, StoreCorruptedError
from aiorocket.runtime.disk import Disk
from aiorocket.storage.commit_log import CommitLog
from aiorocket.storage.files import FileCache
from aiorocket.storage.segment import Segment
from aiorocket.storage.walk import Bad, walk
from aiorocket_protocol import (
    BLANK_SIZE,
    MIN_RECORD,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    RECORD_MAGIC_V1,
    RECORD_MAGIC_V2,
    SYS_FLAG_TRANSACTION_MASK,
    SYS_FLAG_TRANSACTION_ROLLBACK,
    RecordView,
    check_record,
    find_property,
    parse_blank,
)

__all__ = ("PART_ENTRIES", "KeyIndex", "Part", "Parts", "load_parts")

#: Entries of a part: 2 MiB.
PART_ENTRIES = 1 << 18
#: A part covers at most this much of the log, so that places fit 32 bits.
_PART_BYTES = 1 << 30
#: Log bytes read in one job of the writer thread: about 0.5 ms with records of 1 KiB.
_SLICE = 128 << 10
_PAUSE = 9.0

_BUCKETS = 1024
#: Bytes of records read before others have their turn, and what a record takes beside them.
_A_TURN, _A_LOOK = 1 << 20, 8 << 10
_MAGIC = b"aiokeys1"
#: magic, start, end, oldest and newest store timestamp; the checksum of these and the table follows the table.
_HEAD = Struct(">8sqqqq")
#: Where the bucket ends (in entries) and its checksum.
_ROW = Struct(">II")
_ENTRY = Struct(">II")
#: Size and magic of a record.
_START = Struct(">ii")
_ENTRIES_AT = _HEAD.size + _BUCKETS * _ROW.size + 4
_UNIQ_KEY, _KEYS, _TAGS = (name.encode() for name in (PROPERTY_UNIQ_KEY, PROPERTY_KEYS, PROPERTY_TAGS))

_LOG = logging.getLogger("aiorocket.storage")

Read = Callable[[int], "bytes | None"]


class Part(NamedTuple):
    """Log offsets ``start`` to ``end``; the store timestamps of its first and last message with a key (ms)."""

    start: int
    end: int
    oldest: int
    newest: int

    @property
    def name(self) -> str:
        return f"{self.start:020d}-{self.end:020d}"


class Parts(NamedTuple):
    """The ``found`` files of an index in ``directory``."""

    directory: str
    found: list[Part]


class _Growing:
    """The part that is being made: of the log from ``start`` on, so far up to ``end``."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.oldest = 0
        self.newest = 0
        self.count = 0
        self.buckets = [bytearray() for _ in range(_BUCKETS)]

    def add(self, view: RecordView, place: int) -> None:
        if view.sys_flag & SYS_FLAG_TRANSACTION_MASK == SYS_FLAG_TRANSACTION_ROLLBACK:
            return
        properties = view.raw_properties
        keys = _keys(properties)
        if not keys:
            return
        topic = view.raw_topic
        for key in keys:
            number = crc32(b"%b#%b" % (topic, key))
            self.buckets[number % _BUCKETS] += _ENTRY.pack(number, place)
        self.count += len(keys)
        stamp = view.store_timestamp
        self.oldest = self.oldest or stamp
        self.newest = max(self.newest, stamp)

    def part(self) -> Part:
        return Part(self.start, self.end, self.oldest, self.newest)

    def encode(self) -> bytes:
        rows, upto = bytearray(), 0
        for bucket in self.buckets:
            upto += len(bucket) // _ENTRY.size
            rows += _ROW.pack(upto, crc32(bucket))
        head = _HEAD.pack(_MAGIC, *self.part()) + rows
        return b"".join((head, crc32(head).to_bytes(4, "big"), *self.buckets))


def _keys(properties: bytes) -> list[bytes]:
    """What a message is found by, without its topic."""
    keys = []
    if _UNIQ_KEY in properties and (unique := find_property(properties, _UNIQ_KEY)):
        keys.append(unique)
    if _KEYS in properties and (words := find_property(properties, _KEYS)):
        keys += filter(None, words.split(b" "))
    if _TAGS in properties and (tag := find_property(properties, _TAGS)):
        keys.append(b"T#" + tag)
    return keys


class _DamagedPart(Exception):
    """The file of ``part`` is not what was written."""

    def __init__(self, what: str, part: Part) -> None:
        super().__init__(what)
        self.part = part


def load_parts(disk: Disk, directory: str, start: int, end: int) -> Parts:
    """Blocking: the parts in ``directory`` that belong to a log of ``start`` to ``end``, ascending. Others go: a log
    that was cut goes on with other records at the same places."""
    disk.makedirs(directory)
    parts: list[Part] = []
    for name in disk.listdir(directory):
        path = f"{directory}/{name}"
        part = _read_head(disk, path)
        if part is None or not start < part.end <= end or (parts and part.start < parts[-1].end):
            disk.unlink(path)
        else:
            parts.append(part)
    return Parts(directory, parts)


def _read_head(disk: Disk, path: str) -> Part | None:
    file = disk.open(path)
    try:
        data = file.pread(_ENTRIES_AT, 0)
    finally:
        file.close()
    if len(data) < _ENTRIES_AT or crc32(data[:-4]) != int.from_bytes(data[-4:], "big"):
        return None
    magic, *numbers = _HEAD.unpack_from(data, 0)
    part = Part(*numbers)
    return part if magic == _MAGIC and path.endswith("/" + part.name) else None


class KeyIndex:
    """``read`` gives the checked record at a log offset, or None."""

    def __init__(
        self,
        disk: Disk,
        log: CommitLog,
        files: FileCache,
        parts: Parts,
        read: Read,
        *,
        entries: int = PART_ENTRIES,
    ) -> None:
        self._disk = disk
        self._log = log
        self._files = files
        self._directory = parts.directory
        self._read = read
        self._entries = entries
        self._loop = asyncio.get_running_loop()
        self._one_at_a_time = asyncio.Lock()
        self._searching = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.parts = parts.found
        self._growing = _Growing(0)
        self._begin()

    # ---- growing

    @property
    def behind(self) -> int:
        """Bytes of the log that are not indexed yet."""
        return sum(stop - start for start, stop in self._gaps()) - (self._growing.end - self._growing.start)

    def _gaps(self) -> Iterator[tuple[int, int]]:
        """Ranges of the log that no file covers."""
        at = self._log.start_offset
        for part in self.parts:
            if part.start > at:
                yield at, part.start
            at = max(at, part.end)
        yield at, max(at, self._log.written)

    def _covers(self, upto: int) -> bool:
        """Is all of the log below an offset indexed?"""
        return self._growing.end >= upto and sum(start < upto for start, _ in self._gaps()) <= 1

    def _begin(self) -> None:
        start, _ = next(self._gaps())
        self._growing = _Growing(start)

    def _stop(self) -> int:
        """Where the growing part has to end."""
        at = bisect_right(self.parts, self._growing.start, key=lambda part: part.start)
        return self.parts[at].start if at < len(self.parts) else self._log.written

    def keep_up(self) -> None:
        """Index what has come, in the background; does nothing while that runs."""
        if self._task is None and not self._closed and self.behind:
            self._task = self._loop.create_task(self._keep_up(), name="store key index")

    async def _keep_up(self) -> None:
        try:
            while True:
                began = self._loop.time()
                async with self._one_at_a_time:
                    if not await self._step():
                        return
                await asyncio.sleep((self._loop.time() - began) * _PAUSE)
        except OSError as error:
            _LOG.warning("the key index in %s waits for the next checkpoint: %s", self._directory, error)
        finally:
            self._task = None

    async def close(self) -> None:
        """End what runs."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _step(self) -> bool:
        """Index one slice; False when there is nothing left. OSError passes."""
        growing, log = self._growing, self._log
        if growing.start < log.start_offset:
            self._begin()  # retention took what this covered
            growing = self._growing
        stop = self._stop()
        if growing.count >= self._entries or (growing.end == stop < log.written) or _is_wide(growing):
            await self._disk.run(self._disk.replace, f"{self._directory}/{growing.part().name}", growing.encode())
            self.parts.append(growing.part())
            self.parts.sort()
            self._begin()
            return True
        if growing.end >= stop:
            return False
        segments = log.segments
        segment = segments[bisect_right(segments, growing.end, key=lambda each: each.base) - 1]
        await self._disk.run(_index_slice, self._disk, segment, growing, min(stop, segment.end), self._entries)
        return True

    def forget_before(self, offset: int) -> None:
        """The log begins at ``offset`` now. Parts that are all before it go, their files behind this call."""
        for part in [part for part in self.parts if part.end <= offset]:
            self._drop(part)

    def _drop(self, part: Part) -> None:
        self.parts.remove(part)
        path = f"{self._directory}/{part.name}"
        self._files.forget(path)
        self._disk.run(self._disk.unlink, path).add_done_callback(_look)

    # ---- lookups

    async def find(
        self, topic: str, key: str, begin: int, end: int, *, tag: bool, limit: int, max_bytes: int
    ) -> list[bytes]:
        """The newest ``limit`` messages of a topic with a key (or ``tag``) stored in ``begin`` to ``end`` (ms), in the
        order of the log; at most ``max_bytes`` of them, but at least one. OSError when a file cannot be read,
        StoreCorruptedError when the disk does not keep what is written."""
        wanted = (b"T#" if tag else b"") + key.encode()
        upto = self._log.written  # no more: senders may be as fast as the index
        damaged = 0
        while True:
            async with self._one_at_a_time:
                if not self._covers(upto) and await self._step():
                    continue
            try:
                async with self._searching:  # one works in turns of the loop, not each of many
                    return await self._search(topic.encode(), wanted, begin, end, limit, max_bytes)
            except _DamagedPart as damage:
                damaged += 1
                if damaged > len(self.parts) + 1:
                    raise StoreCorruptedError(f"{damage}, also when it was made again: look at the disk") from None
                _LOG.warning("%s; the part is made again from the log", damage)
                if damage.part in self.parts:
                    self._drop(damage.part)
                    self._begin()

    async def _search(
        self, topic: bytes, wanted: bytes, begin: int, end: int, limit: int, max_bytes: int
    ) -> list[bytes]:
        found: list[bytes] = []
        size = looked = 0
        for places in self._places(crc32(b"%b#%b" % (topic, wanted)), begin, end):
            for place in reversed(places[: bisect_right(places, end, key=self._stamp)]):
                # Keys of others may have the same hash, as many as somebody likes.
                looked += _A_LOOK
                if looked > _A_TURN:
                    looked = 0
                    await asyncio.sleep(0)
                record = self._read(place)
                if record is None:
                    continue
                looked += len(record)
                view = RecordView(record, 0, len(record))
                if view.store_timestamp < begin:
                    return found[::-1]
                if view.store_timestamp <= end and view.raw_topic == topic and wanted in _keys(view.raw_properties):
                    size += len(record)
                    if found and size > max_bytes:
                        return found[::-1]
                    found.append(record)
                    if len(found) == limit:
                        return found[::-1]
            await asyncio.sleep(0)
        return found[::-1]

    def _stamp(self, place: int) -> int:
        """Store timestamps rise with the log; what cannot be read any more is old."""
        record = self._read(place)
        return 0 if record is None else RecordView(record, 0, len(record)).store_timestamp

    def _places(self, number: int, begin: int, end: int) -> Iterator[list[int]]:
        """Log offsets of what may be meant, the newest part first, ascending in each."""
        growing = self._growing
        for part in reversed([*self.parts, growing.part()]):
            if part.newest < begin or part.oldest > end or part.oldest == 0:
                continue
            if part.start == growing.start:
                data = bytes(growing.buckets[number % _BUCKETS])
            else:
                data = self._bucket(part, number % _BUCKETS)
            yield [part.start + place for each, place in _ENTRY.iter_unpack(data) if each == number]

    def _bucket(self, part: Part, bucket: int) -> bytes:
        path = f"{self._directory}/{part.name}"
        try:
            file = self._files.open(path)
        except FileNotFoundError:
            raise _DamagedPart(f"{path} is missing", part) from None
        first = max(0, bucket - 1)
        rows = file.pread((bucket - first + 1) * _ROW.size, _HEAD.size + first * _ROW.size)
        if len(rows) == (bucket - first + 1) * _ROW.size:
            upto, checksum = _ROW.unpack_from(rows, len(rows) - _ROW.size)
            start = _ROW.unpack_from(rows, 0)[0] if bucket else 0
            count = min(max(0, upto - start), file.size() // _ENTRY.size)  # what is damaged may be anything
            data = file.pread(count * _ENTRY.size, _ENTRIES_AT + start * _ENTRY.size)
            if crc32(data) == checksum:
                return data
        raise _DamagedPart(f"{path}: a bucket does not fit its checksum", part)


def _is_wide(growing: _Growing) -> bool:
    return growing.end - growing.start > _PART_BYTES


def _index_slice(disk: Disk, segment: Segment, growing: _Growing, stop: int, entries: int) -> None:
    """Blocking: take in records from ``growing.end`` on, as many as a slice holds, until there are ``entries``, none
    from ``stop`` on."""
    offset = growing.end
    file = disk.open(segment.path)
    try:
        data = file.pread(min(_SLICE, stop - offset), offset - segment.base)
        size = int.from_bytes(data[:4], "big", signed=True)
        if len(data) < size <= stop - offset and parse_blank(data, 0) is None:
            data = file.pread(size, offset - segment.base)
    finally:
        file.close()
    at, end = 0, len(data)
    try:
        while end - at >= (MIN_RECORD if at else BLANK_SIZE) and growing.count < entries:
            blank = parse_blank(data, at)
            if blank is not None:
                at += blank
                continue
            if at and int.from_bytes(data[at : at + 4], "big", signed=True) > end - at:
                break
            size = check_record(data, at, check_crc=False)
            growing.add(RecordView(data, at, at + size), offset + at - growing.start)
            at += size
    except ProtocolError as error:
        following = 0 if at else _next_start(disk, segment, offset)
        if not following:
            bad, following = offset + at, _behind_damage(disk, segment, offset + at)
            _LOG.warning("%s: log offsets %d to %d are not in the key index: %s", segment.path, bad, following, error)
        at = following - offset
    growing.end = min(offset + (at or segment.end - offset), stop)


def _behind_damage(disk: Disk, segment: Segment, offset: int) -> int:
    """Where the first good record begins behind bad bytes at a log offset; the end of the segment without one."""
    item = next(walk(disk, segment.path, segment.base, segment.capacity, None, offset), None)
    return item.end if isinstance(item, Bad) else segment.end


def _next_start(disk: Disk, segment: Segment, offset: int) -> int:
    """Where the first record behind a log offset starts, when the segment was compacted since and none starts there any
    more; 0 when that is not why."""
    file = disk.open(segment.path)
    at = segment.base
    try:
        while at < offset:
            head = file.pread(BLANK_SIZE, at - segment.base)
            size, magic = _START.unpack(head) if len(head) == BLANK_SIZE else (0, 0)
            if size < MIN_RECORD or magic not in (RECORD_MAGIC_V1, RECORD_MAGIC_V2):
                return 0
            at += size
    finally:
        file.close()
    return at if at > offset else 0


def _look(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()
