"""How many bytes of the log messages take, by their units: those of deleted queues in each segment."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from aiorocket.runtime.disk import Disk
from aiorocket.storage.consume_queue import FILE_UNITS, UNIT, UNIT_SIZE, ConsumeQueue
from aiorocket.storage.files import read_pages

__all__ = ("Piece", "bytes_in_segments", "bytes_of", "pieces_of")

#: Units in a piece.
_UNITS = 4096


class _Part(NamedTuple):
    """Of a file."""

    path: str
    position: int
    size: int


Piece = _Part | bytes


def bytes_of(units: bytes) -> int:
    """Of all messages of these units, 0.02 µs each."""
    sizes = struct.unpack(">" + "8xi8x" * (len(units) // UNIT_SIZE), units)
    return sum(sizes) if min(sizes, default=0) >= 0 else sum(size for size in sizes if size > 0)  # with gaps


def pieces_of(queue: ConsumeQueue) -> Iterator[Piece]:
    """Where the units of a deleted queue are: parts of its files, then what is in memory alone."""
    low, end = queue.min_offset, queue.tail_first
    tail = bytes(queue.tail[max(0, low - end) * UNIT_SIZE :])
    while low < end:
        inside = low % FILE_UNITS
        count = min(end - low, FILE_UNITS - inside, _UNITS)
        path = f"{queue.directory}/{(low - inside) * UNIT_SIZE:020d}"
        yield _Part(path, inside * UNIT_SIZE, count * UNIT_SIZE)
        low += count
    yield tail


def bytes_in_segments(disk: Disk, pieces: list[Piece], bases: list[int]) -> dict[int, int]:
    """Blocking: of the messages of these units in each of the segments that begin at ``bases``, by these."""
    found: dict[int, int] = {}
    for piece in pieces:
        units = _read(disk, piece) if isinstance(piece, _Part) else piece
        at, count = 0, len(units) // UNIT_SIZE
        while at < count:  # the places of messages ascend
            segment = bisect_right(bases, _place(units, at))
            upto = count
            if segment < len(bases):
                following = bisect_left(range(count), bases[segment], at, key=lambda each: _place(units, each))
                upto = max(at + 1, following)
            if segment:
                base = bases[segment - 1]
                found[base] = found.get(base, 0) + bytes_of(units[at * UNIT_SIZE : upto * UNIT_SIZE])
            at = upto
    return found


def _place(units: bytes, index: int) -> int:
    place: int = UNIT.unpack_from(units, index * UNIT_SIZE)[0]
    return place


def _read(disk: Disk, part: _Part) -> bytes:
    try:
        file = disk.open(part.path)
    except FileNotFoundError:
        return b""
    try:
        return read_pages(file, part.position, part.size)
    finally:
        file.close()
