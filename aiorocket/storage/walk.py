"""Walking the log from record to record, over what is damaged.

A record is good when its size, magic and inner lengths fit, when it says PHYSICALOFFSET = the place where it stands,
and when the checksums of its segment cover it and agree; where they do not cover it, its body's CRC must fit. Behind
bad bytes the next good record is looked for by its magic: none can be mistaken, because each names its own place.
"""

from __future__ import annotations

from collections.abc import Generator
from struct import Struct
from typing import NamedTuple

from aiorocket.errors import ProtocolError
from aiorocket.runtime.disk import Disk, File
from aiorocket.storage.checksums import PAGE, Entries
from aiorocket.storage.files import read_pages
from aiorocket_protocol import (
    BLANK_SIZE,
    MIN_RECORD,
    RECORD_MAGIC_BLANK,
    RECORD_MAGIC_V1,
    RECORD_MAGIC_V2,
    V4_HEAD,
    RecordView,
    check_record,
    parse_blank,
)

__all__ = ("Bad", "Found", "Row", "has_torn_head", "walk", "walk_runs")

#: Read at once: small enough that memory is used again as it is, where a MiB is fetched anew from the system each time,
#: page by page.
_WINDOW = 256 << 10
_SECTOR = 512
# size, magic, queue id, queue offset, physical offset, sysFlag, store timestamp, body length; both hosts IPv4
_unpack = Struct(">ii4xi4xqqi16xq20xi").unpack_from
_V6 = 0x030
_MAGICS = tuple(magic.to_bytes(4, "big", signed=True) for magic in (RECORD_MAGIC_V1, RECORD_MAGIC_V2))
_BLANK = RECORD_MAGIC_BLANK.to_bytes(4, "big", signed=True)


class Found(NamedTuple):
    """A good record: ``buffer[start : start + size]``; its property string begins at ``properties`` of the buffer."""

    offset: int
    size: int
    topic: bytes
    queue_id: int
    queue_offset: int
    store_timestamp: int
    buffer: bytes
    start: int
    properties: int

    @property
    def view(self) -> RecordView:
        return RecordView(self.buffer, self.start, self.start + self.size)


#: What a ``Found`` is made of.
Row = tuple[int, int, bytes, int, int, int, bytes, int, int]


class Bad(NamedTuple):
    """Log offsets ``offset`` to ``end`` hold no good record."""

    offset: int
    end: int
    reason: str


class _Window:
    """A piece of a segment in memory, and what of it is not as it was written."""

    __slots__ = ("at", "data", "end", "entries", "file", "sums", "wrong")

    def __init__(self, file: File, end: int, entries: Entries | None) -> None:
        self.file = file
        #: Nothing is read from this position on.
        self.end = end
        self.entries = entries
        self.sums = None if entries is None else entries.checksums()
        self.at = 0
        self.data = b""
        self.wrong: list[tuple[int, int]] = []

    def need(self, position: int, size: int) -> int:
        """Have ``size`` bytes from ``position`` on, or as many as there are; where ``position`` is in ``data``."""
        start = position - self.at
        if start < 0 or start + size > len(self.data):
            self.at = position - position % PAGE
            upto = position + max(size, _WINDOW)
            upto = min(upto - upto % -PAGE, self.end)
            self.data = read_pages(self.file, self.at, upto - self.at) if upto > self.at else b""
            self.wrong = []
            sums = self.sums
            if self.entries is not None and sums is not None and sums.wrong(self.data, self.at, sums.last):
                self.wrong = self.entries.wrong(self.data, self.at)
            start = position - self.at
        return start

    def is_wrong(self, position: int, end: int) -> bool:
        return any(low < end and position < high for low, high in self.wrong)

    def right_upto(self, position: int) -> int:
        """Where the next bytes begin that are not as they were written."""
        return next((max(low, position) for low, high in self.wrong if position < high), self.at + len(self.data))


def walk(
    disk: Disk, path: str, base: int, capacity: int, entries: Entries | None, offset: int, durable: int | None = None
) -> Generator[Found | Bad]:
    """Blocking. The records of a segment from log offset ``offset`` on, and the ranges without one in between.

    With ``durable`` the segment is the last one of the log: bad bytes at or behind it end the walk (the range then
    reaches to the end of the segment).
    """
    for item in walk_runs(disk, path, base, capacity, entries, offset, durable):
        if isinstance(item, Bad):
            yield item
        else:
            yield from map(Found._make, item)


def walk_runs(
    disk: Disk, path: str, base: int, capacity: int, entries: Entries | None, offset: int, durable: int | None = None
) -> Generator[list[Row] | Bad]:
    """As ``walk``, with all records at once that touch and are in memory: a start reads them a third faster."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        yield Bad(offset, base + capacity, "the file is missing")
        return
    try:
        yield from _walk(file, base, capacity, entries, offset, durable)
    finally:
        file.close()


def _walk(
    file: File, base: int, capacity: int, entries: Entries | None, offset: int, durable: int | None
) -> Generator[list[Row] | Bad]:
    window = _Window(file, capacity, entries)
    covered = 0 if entries is None else entries.end
    position = offset - base
    while position < capacity:
        if position < covered:
            start = window.need(position, MIN_RECORD)
            upto = min(covered, window.right_upto(position))
            if rows := _plain(window.data, start, upto - window.at, base + position):
                yield rows
                position = rows[-1][0] + rows[-1][1] - base
                continue
        reason = ""
        try:
            found = _careful(window, position, base, covered, durable)
        except ProtocolError as error:
            reason = error.what
        else:
            if isinstance(found, Found):
                yield [found]
                position += found.size
                continue
            if found == capacity - position:
                return
            if not window.is_wrong(position, position + BLANK_SIZE) and 0 < found < capacity - position:
                # Or segments were shorter when it ended here: a process that was killed before the next one, and then
                # one with longer ones, which went on in this file.
                position += found
                if durable is None or base + position < durable:
                    following = _next_record(window, position, base, covered, durable)
                    if following > position:
                        yield Bad(base + position, base + following, "a segment is missing behind this one")
                    position = following
                continue
            reason = f"blank of {found} bytes where {capacity - position} are left"
        if durable is not None and base + position >= durable:
            yield Bad(base + position, base + capacity, reason)
            return
        following = _next_record(window, position + 1, base, covered, durable)
        yield Bad(base + position, base + following, reason)
        position = following


def _plain(data: bytes, start: int, end: int, place: int) -> list[Row]:
    """The records that stand one behind the other in these bytes, which are as they were written, the first at log
    offset ``place``; up to one that is rare, not whole or bad."""
    rows: list[Row] = []
    add = rows.append
    shift = place - start
    last = end - MIN_RECORD
    while start <= last:
        size, magic, queue_id, queue_offset, physical, flags, stamp, body = _unpack(data, start)
        stop = start + size
        topic_at = start + V4_HEAD + 1 + body
        if magic != RECORD_MAGIC_V1 or flags & _V6 or physical - start != shift or body < 0:
            break
        if topic_at >= stop or stop > end:
            break
        topic_end = topic_at + data[topic_at - 1]
        properties = topic_end + 2
        if properties > stop or data[topic_end] << 8 | data[topic_end + 1] != stop - properties:
            break
        add((physical, size, data[topic_at:topic_end], queue_id, queue_offset, stamp, data, start, properties))
        start = stop
    return rows


def _careful(window: _Window, position: int, base: int, covered: int, durable: int | None) -> Found | int:
    """The record at ``position`` checked in every way, or the size of the blank there. ProtocolError says what is
    wrong."""
    start = window.need(position, MIN_RECORD)
    data = window.data
    if len(data) - start < BLANK_SIZE:
        raise _bad("the file ends")
    if not any(data[start : start + BLANK_SIZE]):
        raise _bad("nothing was written here")
    blank = parse_blank(data, start)
    if blank is not None:
        if window.is_wrong(position, position + BLANK_SIZE):
            raise _bad("the checksum of the segment differs")
        return blank
    size = int.from_bytes(data[start : start + 4], "big", signed=True)
    if MIN_RECORD <= size <= window.end - position:
        start = window.need(position, size)
        data = window.data
    is_covered = position + size <= covered
    size = check_record(data, start, check_crc=not is_covered)
    view = RecordView(data, start, start + size)
    if view.physical_offset != base + position:
        raise _bad(f"the record says it stands at {view.physical_offset}")
    if window.is_wrong(position, position + size):
        raise _bad("the checksum of the segment differs")
    if not is_covered and durable is not None and base + position >= durable and _has_lost_sector(view, position):
        raise _bad("a sector of the record was never written")
    return Found(
        base + position,
        size,
        view.topic.encode(),
        view.queue_id,
        view.queue_offset,
        view.store_timestamp,
        data,
        start,
        view.end - len(view.raw_properties),
    )


def _bad(reason: str) -> ProtocolError:
    return ProtocolError(reason, where="log")


def _next_record(window: _Window, position: int, base: int, covered: int, durable: int | None) -> int:
    """Where the next good record or blank begins at or behind ``position``; the end of the segment if there is none."""
    end = window.end
    while position + BLANK_SIZE <= end:
        start = window.need(position, BLANK_SIZE)
        data = window.data
        if len(data) - start < BLANK_SIZE:
            return end
        candidates = []
        for magic in (*_MAGICS, _BLANK):
            at = data.find(magic, start + 4)
            if at >= 0:
                candidates.append(at - 4)
        if not candidates:
            position = max(position + 1, window.at + len(data) - BLANK_SIZE + 1)
            if window.at + len(data) >= end:
                return end
            continue
        position = window.at + min(candidates)
        try:
            found = _careful(window, position, base, covered, durable)
        except ProtocolError:
            position += 1
            continue
        if isinstance(found, Found) or found == end - position:
            return position
        position += 1
    return end


def has_torn_head(found: Found, base: int) -> bool:
    """Whether the numbers in the head of a record, in a segment that begins at ``base``, may be those of a sector that
    was not written to its end."""
    behind = _SECTOR - (found.offset - base) % _SECTOR
    return behind < V4_HEAD and found.buffer[found.start + behind - 1] == 0


def _has_lost_sector(view: RecordView, position: int) -> bool:
    """Whether the topic or the properties of a record that nothing vouches for have a sector that was not written to
    its end. The body's CRC covers the body, the inner lengths cover the head; these have no checksum of their own."""
    if "\0" in view.topic:
        return True
    properties = view.raw_properties
    if b"\0" not in properties:
        return False
    begin = position + view.size - len(properties)
    end = position + view.size
    while begin < end:
        stop = min(end, begin - begin % _SECTOR + _SECTOR)
        piece = properties[len(properties) - (end - begin) : len(properties) - (end - stop)]
        if piece.endswith(b"\0"):
            return True
        begin = stop
    return False
