"""The checksum file beside each segment: which bytes were written, so that what a disk makes of them later is noticed.

``<segment>.sums`` is a header and one block per commit group. A block is a head (checksum of the rest of the block,
number of entries, log offset where it begins, *durable*, *replay*, bytes of counts), its entries (size, CRC-32), one
for each buffer that was written: a record or a batch, and its counts: how many numbers each queue of the group had
given behind it. Nothing else tells of messages that are lost before a checkpoint knows them. Blocks without entries
carry newer marks. Entries touch each other and cover the segment from its first byte; none crosses a page of 32 KiB.
An entry's CRC is that of its page from the start to the entry's end. So the last one of a page checks the whole page
in one call, which is what a cold read does, and any other is checked on its own by beginning with the CRC before it,
which is how damage is narrowed down to a record.

The file of a full segment ends with a summary, a block whose entries are the pages: a reader needs nothing else.

*durable* is the log offset that a sync had confirmed when the block was written. Whatever is bad below it is damage,
not a torn tail. *replay* is how far the consume queues were synced then, for a start without a checkpoint.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from struct import Struct, pack, unpack_from
from struct import error as StructError
from typing import NamedTuple
from zlib import crc32

from aiorocket.errors import StoreCorruptedError
from aiorocket.runtime.disk import Buffer, Disk
from aiorocket.storage.files import read_whole
from aiorocket_protocol.fast import compiled

__all__ = (
    "COUNT",
    "FORMAT",
    "PAGE",
    "Checksums",
    "Entries",
    "encode_block",
    "encode_head",
    "load",
    "parse_counts",
    "read_counts",
    "read_entries",
    "sums_path",
    "written_again",
)

#: Version of the store: directory layout and files. A store with a higher one is refused. Format 1 has no checksum
#: files, in those of format 2 there are no counts.
FORMAT = 3
#: Bytes of a segment that one CRC of a summary covers.
PAGE = 32 * 1024

_MAGIC = b"arckSUMS"
_CRC32 = 1
#: magic, store format, algorithm, page size, log offset of the segment, CRC of these
_HEAD = Struct(">8sHHIQI")
_BLOCK = Struct(">IIQQQI")
#: Of format 2.
_SHORT_BLOCK = Struct(">IIQQQ")
#: One of the counts of a block: length of the topic, which follows, queue id, how many numbers the queue has given.
COUNT = Struct(">BHQ")
_cover = compiled("cover")
_wrong_pages = compiled("wrong_pages")
_block_rest = Struct(">IQQQI").pack


def sums_path(segment: str) -> str:
    """The checksum file of the segment in this file."""
    return segment + ".sums"


class Entries(NamedTuple):
    """What a checksum file says in full. ``ends`` are positions in the segment, ``crcs`` go on within a page."""

    ends: array[int]
    crcs: array[int]
    durable: int
    replay: int
    #: Position in the checksum file behind the last good block.
    position: int
    #: Bytes stand behind it that are neither a block nor a summary: the file is torn or damaged.
    torn: bool
    #: The store format of the file.
    version: int = FORMAT

    @property
    def end(self) -> int:
        """Bytes of the segment that are covered."""
        return self.ends[-1] if self.ends else 0

    def wrong(self, data: bytes, position: int) -> list[tuple[int, int]]:
        """The ranges (from, to: positions in the segment) of ``data`` that are not what was written. ``data`` begins
        with the page at ``position``; what it holds only a part of counts as wrong, what is not covered does not."""
        found: list[tuple[int, int]] = []
        view, crc = memoryview(data), 0
        begin = position
        for index in range(bisect_right(self.ends, position), len(self.ends)):
            if begin >= position + len(data):
                break
            end = self.ends[index]
            if begin % PAGE == 0:
                crc = 0
            if end > position + len(data) or crc32(view[begin - position : end - position], crc) != self.crcs[index]:
                if found and found[-1][1] == begin:
                    found[-1] = found[-1][0], end
                else:
                    found.append((begin, end))
            begin, crc = end, self.crcs[index]
        return found

    def cut(self, end: int) -> Entries:
        """Only the entries up to position ``end``, and which block they need not: ``position`` stays."""
        count = bisect_right(self.ends, end)
        return self._replace(ends=self.ends[:count], crcs=self.crcs[:count])

    def checksums(self) -> Checksums:
        """The same by page, to be extended."""
        found = Checksums()
        for end, crc in zip(self.ends, self.crcs, strict=True):
            if end % PAGE == 0:
                found.pages.append(crc)
        found.last = (self.end, self.crcs[-1] if self.end % PAGE else 0)
        return found


class Checksums:
    """The CRCs of one segment by page. The writer's thread extends it while the loop reads: ``last`` is replaced as a
    whole, and what it vouches for has been written before."""

    __slots__ = ("last", "pages")

    def __init__(self) -> None:
        #: Of each full page.
        self.pages: array[int] = array("I")
        #: (bytes covered, CRC of the page they end in)
        self.last = (0, 0)

    def restore(self, last: tuple[int, int]) -> None:
        """Take back what was added since ``last`` was the last."""
        self.last = last
        del self.pages[last[0] // PAGE :]

    def add(self, buffers: Sequence[Buffer]) -> list[int]:
        """Cover the bytes that were written behind the last; size and CRC of each entry, flat."""
        end, crc = self.last
        inside = end % PAGE
        if _cover is not None and (covered := _cover(list(buffers), inside, crc)) is not None:
            found: list[int]
            found, pages, _, crc = covered
            self.pages.extend(pages)
            self.last = (end + sum(found[::2]), crc)
            return found
        rows: list[int] = []
        for buffer in buffers:
            size = len(buffer)
            if inside + size < PAGE:
                crc = crc32(buffer, crc)
                inside += size
                rows += (size, crc)
                continue
            view = memoryview(buffer)
            while len(view):
                part = view[: PAGE - inside]
                crc = crc32(part, crc)
                inside += len(part)
                rows += (len(part), crc)
                if inside == PAGE:
                    self.pages.append(crc)
                    inside = crc = 0
                view = view[len(part) :]
        self.last = (end + sum(rows[::2]), crc)
        return rows

    def wrong(self, data: bytes, position: int, last: tuple[int, int]) -> list[int]:
        """Positions of the pages in ``data`` that are not what was written. ``data`` was read from the page at
        ``position`` on, after ``last`` had been taken, and ends with a page or behind what ``last`` covers."""
        end, crc = last
        full = end // PAGE
        pages = self.pages
        if _wrong_pages is not None:
            positions: list[int] | None = _wrong_pages(data, position, end, crc, pages)
            if positions is not None:
                return positions
        view = memoryview(data)
        found = []
        for at in range(position, min(end, position + len(data)), PAGE):
            begin = at - position
            index = at // PAGE
            if index < full:
                if crc32(view[begin : begin + PAGE]) != pages[index]:
                    found.append(at)
            elif crc32(view[begin : begin + end - at]) != crc:
                found.append(at)
        return found

    def summary(self, base: int, durable: int, replay: int) -> bytes:
        """What closes the file of the segment at ``base``: a block whose entries are the pages, and its size."""
        rows = [part for crc in self.pages for part in (PAGE, crc)]
        end, crc = self.last
        if end % PAGE:
            rows += (end % PAGE, crc)
        block = encode_block(rows, base, durable, replay)
        return block + len(block).to_bytes(4, "big")


def encode_head(base: int, version: int = FORMAT) -> bytes:
    """The head of the checksum file of the segment at ``base``."""
    head = _HEAD.pack(_MAGIC, version, _CRC32, PAGE, base, 0)[:-4]
    return head + crc32(head).to_bytes(4, "big")


def encode_block(rows: Sequence[int], start: int, durable: int, replay: int, counts: Buffer = b"") -> bytes:
    """A block whose entries are ``rows`` (size, CRC, size, ...) from log offset ``start`` on."""
    rest = _block_rest(len(rows) // 2, start, durable, replay, len(counts)) + pack(f">{len(rows)}I", *rows) + counts
    return crc32(rest).to_bytes(4, "big") + rest


def parse_counts(counts: bytes) -> Iterator[tuple[str, int, int]]:
    """(topic, queue id, count) of each."""
    at = 0
    while at < len(counts):
        size, queue_id, count = COUNT.unpack_from(counts, at)
        at += COUNT.size + size
        yield counts[at - size : at].decode(), queue_id, count


def _read(disk: Disk, path: str, base: int) -> tuple[bytes, int] | None:
    """The file and its version, if it begins with the head of the segment at ``base``. StoreCorruptedError when a newer
    program wrote it."""
    try:
        data = read_whole(disk, path)
    except FileNotFoundError:
        return None
    if len(data) < _HEAD.size or crc32(data[: _HEAD.size - 4]) != int.from_bytes(
        data[_HEAD.size - 4 : _HEAD.size], "big"
    ):
        return None
    magic, version, algorithm, page, found, _ = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        return None
    if version > FORMAT or algorithm != _CRC32 or page != PAGE:
        raise StoreCorruptedError(
            f"{path} has store format {version} (checksum {algorithm}, pages of {page}), this program knows up to"
            f" {FORMAT}: use a newer one"
        )
    return (data, version) if found == base else None


def _block(data: bytes, at: int, version: int) -> tuple[int, int, int, int, tuple[int, ...], int] | None:
    """(size, start, durable, replay, rows, bytes of counts at its end) of the block at ``at``; None when none is
    there."""
    try:
        if version < 3:
            check, count, start, durable, replay = _SHORT_BLOCK.unpack_from(data, at)
            first, counts = at + _SHORT_BLOCK.size, 0
        else:
            check, count, start, durable, replay, counts = _BLOCK.unpack_from(data, at)
            first = at + _BLOCK.size
        size = first - at + 8 * count + counts
        if at + size > len(data) or crc32(memoryview(data)[at + 4 : at + size]) != check:
            return None
        rows = unpack_from(f">{2 * count}I", data, first)
    except StructError:
        return None
    return size, start, durable, replay, rows, counts


def _blocks(data: bytes, base: int, version: int) -> Iterator[tuple[int, int, int, int, tuple[int, ...], int]]:
    """(position behind it, bytes of the segment covered with it, durable, replay, rows, bytes of counts at its end) of
    each block, up to what does not go on where they end."""
    at, end = _HEAD.size, 0
    while (block := _block(data, at, version)) is not None and block[1] == base + end:
        size, _, durable, replay, rows, counts = block
        at += size
        end += sum(rows[::2])
        yield at, end, durable, replay, rows, counts


def load(disk: Disk, path: str, base: int) -> Checksums | None:
    """The summary of a full segment's file; None when there is no good one."""
    read = _read(disk, path, base)
    if read is None:
        return None
    data, version = read
    found = Checksums()
    at = len(data) - 4
    # A summary is found from the end: it says how long it is.
    size = int.from_bytes(data[at:], "big")
    block = _block(data, at - size, version) if _HEAD.size <= at - size else None
    if block is not None and block[0] == size and block[1] == base and block[4]:
        rows = block[4]
        end = sum(rows[::2])
        full = end // PAGE
        found.pages.extend(rows[1 : 2 * full : 2])
        found.last = (end, rows[-1] if end % PAGE else 0)
        return found
    return None


def read_entries(disk: Disk, path: str, base: int) -> Entries | None:
    """Everything a checksum file says as far as it is good; None when it is not this segment's."""
    read = _read(disk, path, base)
    if read is None:
        return None
    data, version = read
    ends, crcs = array("Q"), array("I")
    at, end, durable, replay = _HEAD.size, 0, 0, 0
    for at, _, block_durable, block_replay, rows, _ in _blocks(data, base, version):  # noqa: B007 - it stays
        durable, replay = max(durable, block_durable), max(replay, block_replay)
        for row in rows[::2]:
            end += row
            ends.append(end)
        crcs.extend(rows[1::2])
    summary = _block(data, at, version)
    closed = summary is not None and summary[1] == base and sum(summary[4][::2]) == end
    return Entries(ends, crcs, durable, replay, at, not closed and any(data[at:]), version)


def read_counts(disk: Disk, path: str, base: int) -> Iterator[tuple[int, bytes]]:
    """(log offset behind it, its counts) of each block with entries that a checksum file has, none of format 2."""
    read = _read(disk, path, base)
    if read is not None and read[1] >= 3:
        data, version = read
        for at, end, _, _, rows, counts in _blocks(data, base, version):
            if rows:
                yield base + end, data[at - counts : at]


def written_again(disk: Disk, path: str, base: int, kept: Entries, durable: int) -> bytes:
    """A whole checksum file of this version that says what is ``kept`` of the one at ``path``, and what its blocks that
    are kept as a whole say of queues."""
    data, end = encode_head(base), 0
    read = _read(disk, path, base)
    if read is not None and read[1] == FORMAT:
        for at, reached, *_ in _blocks(read[0], base, FORMAT):
            if reached > kept.end:
                break
            data, end = read[0][:at], reached
    start, rows = base + end, list[int]()
    first = bisect_right(kept.ends, end)
    for upto, crc in zip(kept.ends[first:], kept.crcs[first:], strict=True):
        rows += (upto - end, crc)
        end = upto
    return data + encode_block(rows, start, durable, kept.replay)
