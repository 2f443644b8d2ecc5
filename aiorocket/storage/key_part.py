"""One part of the key index: how it grows, record by record, and what its file looks like.

A file is a head, a table of buckets, the entries bucket by bucket in the order of the log. An entry is the hash of
``topic#key`` and where its record stands in the part's range.
"""

from __future__ import annotations

import logging
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from aiorocket.errors import ProtocolError
from aiorocket.runtime.disk import Disk, File
from aiorocket.storage.files import read_pages
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
    V4_HEAD,
    RecordView,
    check_record,
    parse_blank,
)
from aiorocket_protocol.record_layout import ANY_V6

__all__ = (
    "NO_CUT",
    "Cut",
    "Growing",
    "Part",
    "behind_bad",
    "hash_of",
    "keys_of",
    "places_of",
    "read_cut",
    "read_entries",
    "read_head",
)

#: Log bytes read in one job of the disk's thread: some 1,000 records of 1 KiB, which is what a turn takes in at most.
#: Two of them are in memory at times.
_SLICE = 1 << 20

_BUCKETS = 1024
_MAGIC = b"aiokeys1"
#: magic, start, end, oldest and newest store timestamp; the checksum of these and the table follows the table.
_HEAD = Struct(">8sqqqq")
#: Where the bucket ends (in entries) and its checksum.
_ROW = Struct(">II")
_ENTRY = Struct(">II")
_pack_entry = _ENTRY.pack
#: Size and magic of a record.
_START = Struct(">ii")
_ENTRIES_AT = _HEAD.size + _BUCKETS * _ROW.size + 4
_UNIQ_KEY, _KEYS, _TAGS = (name.encode() for name in (PROPERTY_UNIQ_KEY, PROPERTY_KEYS, PROPERTY_TAGS))
#: Size, magic, sysFlag, store timestamp and length of the body of a record with hosts of IPv4.
_unpack_head = Struct(">ii28xi16xq20xi").unpack_from
#: Properties of so many bytes count as one record more.
_PROPERTIES = 256

_LOG = logging.getLogger("aiorocket.storage")


class Part(NamedTuple):
    """Log offsets ``start`` to ``end``; the store timestamps of its first and last message with a key (ms)."""

    start: int
    end: int
    oldest: int
    newest: int

    @property
    def name(self) -> str:
        return f"{self.start:020d}-{self.end:020d}"


class Cut(NamedTuple):
    """``data`` of the log from ``offset`` on, read when it went up to ``stop``."""

    offset: int
    data: bytes
    stop: int


NO_CUT = Cut(0, b"", 0)


class Growing:
    """The part that is being made: of the log from ``start`` on, so far up to ``end``."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self.oldest = 0
        self.newest = 0
        self.count = 0
        self.buckets = [bytearray() for _ in range(_BUCKETS)]

    def take(self, cut: Cut, records: int, entries: int) -> bool:
        """Take in ``records`` that a cut of the log has where this ends, fewer when their properties are long or there
        are ``entries``; False when no whole and good one is there."""
        data, buckets, count = cut.data, self.buckets, self.count
        at, end = self.end - cut.offset, len(data)
        if not 0 <= at < end:
            return False
        place = cut.offset - self.start
        left = records
        last, of_topic = b"", 0
        try:
            while left > 0 and count < entries:
                if end - at < MIN_RECORD:
                    at += parse_blank(data, at) or 0
                    break
                size, magic, sys_flag, stamp, length = _unpack_head(data, at)
                begins = at + V4_HEAD + length
                ends = following = 0
                if magic == RECORD_MAGIC_V1 and not sys_flag & ANY_V6 and length >= 0:
                    ends = begins + 1 + data[begins]
                    following = ends + 2 + (data[ends] << 8 | data[ends + 1])
                if at < following == at + size <= end and data[ends] < 0x80:
                    topic, properties = data[begins + 1 : ends], data[ends + 2 : following]
                else:  # a blank, IPv6, a long topic, or nothing good
                    blank = parse_blank(data, at)
                    if blank is not None:
                        at += blank
                        continue
                    following = at + check_record(data, at, check_crc=False)
                    view = RecordView(data, at, following)
                    topic, properties, stamp = view.raw_topic, view.raw_properties, view.store_timestamp
                keys = keys_of(properties)
                if keys and sys_flag & SYS_FLAG_TRANSACTION_MASK != SYS_FLAG_TRANSACTION_ROLLBACK:
                    if topic != last:
                        last, of_topic = topic, crc32(topic + b"#")
                    for key in keys:
                        number = crc32(key, of_topic)
                        buckets[number % _BUCKETS] += _pack_entry(number, place + at)
                    count += len(keys)
                    self.oldest = self.oldest or stamp
                    if stamp > self.newest:
                        self.newest = stamp
                left -= 1 + len(properties) // _PROPERTIES
                at = following
        except (ProtocolError, IndexError):
            pass  # cut off here, or damaged
        taken = cut.offset + at > self.end
        self.end, self.count = min(cut.offset + at, cut.stop), count
        return taken

    def part(self) -> Part:
        return Part(self.start, self.end, self.oldest, self.newest)

    def encode(self) -> bytes:
        rows, upto = bytearray(), 0
        for bucket in self.buckets:
            upto += len(bucket) // _ENTRY.size
            rows += _ROW.pack(upto, crc32(bucket))
        head = _HEAD.pack(_MAGIC, *self.part()) + rows
        return b"".join((head, crc32(head).to_bytes(4, "big"), *self.buckets))

    def entries(self, number: int) -> bytes:
        """Those of the bucket of a hash."""
        return bytes(self.buckets[number % _BUCKETS])


def _read_table(file: File) -> bytes | None:
    """Head and buckets of a file; None when they do not fit their checksum."""
    data = read_pages(file, 0, _ENTRIES_AT)
    fits = len(data) == _ENTRIES_AT and crc32(data[:-4]) == int.from_bytes(data[-4:], "big")
    return data if fits else None


def read_head(file: File, name: str) -> Part | None:
    """The part in a file called ``name``; None when it is no good one."""
    data = _read_table(file)
    if data is None:
        return None
    magic, *numbers = _HEAD.unpack_from(data, 0)
    part = Part(*numbers)
    return part if magic == _MAGIC and name == part.name else None


def read_entries(file: File, number: int) -> bytes | None:
    """The entries of the bucket of a hash; None when they do not fit their checksum."""
    table = _read_table(file)  # zeros in it would be a bucket without entries
    if table is None:
        return None
    bucket = number % _BUCKETS
    at = _HEAD.size + bucket * _ROW.size
    upto, checksum = _ROW.unpack_from(table, at)
    start = _ROW.unpack_from(table, at - _ROW.size)[0] if bucket else 0
    data = read_pages(file, _ENTRIES_AT + start * _ENTRY.size, (upto - start) * _ENTRY.size)
    return data if crc32(data) == checksum else None


def hash_of(topic: bytes, key: bytes) -> int:
    """What stands for ``key`` in an entry."""
    return crc32(key, crc32(topic + b"#"))


def places_of(number: int, entries: bytes) -> list[int]:
    """Where in their part the records of a hash stand, ascending."""
    return [place for each, place in _ENTRY.iter_unpack(entries) if each == number]


def keys_of(properties: bytes) -> list[bytes]:
    """What a message is found by, without its topic. Properties are read as ``find_property`` does, all at once."""
    unique = words = tag = b""
    for pair in properties.split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        if not value:
            continue
        if name == _UNIQ_KEY:
            unique = value
        elif name == _KEYS:
            words = value
        elif name == _TAGS:
            tag = value
    keys = [unique] if unique else []
    if words:
        keys += filter(None, words.split(b" "))
    if tag:
        keys.append(b"T#" + tag)
    return keys


def read_cut(disk: Disk, segment: Segment, offset: int, stop: int) -> Cut:
    """Blocking: a slice of the log from ``offset`` on, or the one record when that is larger, nothing from ``stop``
    on."""
    file = disk.open(segment.path)
    try:
        data = read_pages(file, offset - segment.base, min(_SLICE, stop - offset))
        size = int.from_bytes(data[:4], "big", signed=True)
        if len(data) < size <= stop - offset and parse_blank(data, 0) is None:
            data = read_pages(file, offset - segment.base, size)
    finally:
        file.close()
    return Cut(offset, data, stop)


def behind_bad(disk: Disk, segment: Segment, offset: int, stop: int) -> int:
    """Blocking: where the log goes on when no good record begins at ``offset``, but not behind ``stop``."""
    following = _next_start(disk, segment, offset)
    if not following:
        bad = next(walk(disk, segment.path, segment.base, segment.capacity, None, offset), None)
        following = segment.end if bad is None else bad.end if isinstance(bad, Bad) else bad.offset + bad.size
        if isinstance(bad, Bad):
            _LOG.warning(
                "%s: log offsets %d to %d are not in the key index: %s", segment.path, offset, following, bad.reason
            )
    return min(following, stop)


def _next_start(disk: Disk, segment: Segment, offset: int) -> int:
    """Where the first record behind a log offset starts, when the segment was compacted since and none starts there any
    more; 0 when that is not why."""
    file = disk.open(segment.path)
    at = segment.base
    try:
        while at < offset:
            head = read_pages(file, at - segment.base, BLANK_SIZE)
            size, magic = _START.unpack(head) if len(head) == BLANK_SIZE else (0, 0)
            if size < MIN_RECORD or magic not in (RECORD_MAGIC_V1, RECORD_MAGIC_V2):
                return 0
            at += size
    finally:
        file.close()
    return at if at > offset else 0
