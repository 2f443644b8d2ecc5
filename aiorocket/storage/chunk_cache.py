"""Cold reads of the log: larger pieces of segments, shared by all queues.

Queues interleave in one log, so the records of one pull lie spread between those of the others. Records that touch
(they were sent as a batch) are one run. Reading 256 KiB once and slicing the runs of every queue out of it costs about
0.2 us per run; a pread for each of them 1.5 us.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import compress, count
from operator import add, ne, sub
from typing import Protocol

__all__ = ("CHUNK", "ChunkCache", "LogBytes", "in_parts", "runs")

CHUNK = 256 * 1024
#: A run of more bytes than this is read by itself. Checksums are compared by pages of 32 KiB, so of a shorter one what
#: is read beside it costs more than to take it from a chunk.
_ALONE = CHUNK // 4
#: A span is read as a whole when it is at most this many times what is wanted of it.
_SPARSE = 8


class LogBytes(Protocol):
    """What the cache reads from."""

    def checked(self, offset: int, size: int) -> bytes:
        """Log bytes from ``offset`` on, compared with their checksums: ``size``, fewer at the end of the segment or of
        what is written."""

    def piece_start(self, offset: int, size: int) -> int:
        """Where the ``size``-aligned piece of a segment begins that contains ``offset``."""


class ChunkCache:
    """At most ``budget`` bytes of chunks, least recently used first out."""

    __slots__ = ("_chunks", "_limit", "_log")

    def __init__(self, log: LogBytes, budget: int) -> None:
        self._log = log
        self._limit = max(4, budget // CHUNK)
        self._chunks: dict[int, bytes] = {}

    def clear(self) -> None:
        self._chunks.clear()

    def _chunk(self, offset: int) -> tuple[int, bytes]:
        """The chunk around ``offset``, read again when it ended before it: the log may have grown since."""
        start = self._log.piece_start(offset, CHUNK)
        chunks = self._chunks
        data = chunks.pop(start, b"")
        if len(data) < CHUNK and start + len(data) <= offset:
            data = self._log.checked(start, CHUNK)
            if len(chunks) >= self._limit:
                del chunks[next(iter(chunks))]
        chunks[start] = data
        return start, data

    def read(self, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        """The bytes of each of these runs, ascending. Where bytes are missing they come out short, or not at all: the
        caller compares lengths."""
        wanted = sum(lengths)
        log = self._log
        span = starts[-1] + lengths[-1] - starts[0]
        if wanted > _ALONE * len(starts) or span > wanted * _SPARSE:
            return [_piece(log, start, length) for start, length in zip(starts, lengths, strict=True)]
        parts: list[bytes] = []
        first, data = 0, b""
        for start, length in zip(starts, lengths, strict=True):
            low = start - first
            if not 0 <= low < len(data):
                first, data = self._chunk(start)
                low = start - first
            part = data[low : low + length]
            while 0 < len(part) < length:
                first, data = self._chunk(start + len(part))
                low = start + len(part) - first
                more = data[low : low + length - len(part)]
                if not more:
                    break
                part += more
            parts.append(part)
            if len(part) < length:
                break
        return parts


def runs(offsets: Sequence[int], sizes: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """Start and length of each run of records that touch; they ascend and do not overlap."""
    total = sum(sizes)
    if offsets[-1] + sizes[-1] - offsets[0] == total:
        return (offsets[0],), (total,)
    ends = list(map(add, offsets, sizes))
    breaks = list(compress(count(1), map(ne, ends, offsets[1:])))
    if len(breaks) == len(ends) - 1:
        return offsets, sizes
    starts = [offsets[0], *map(offsets.__getitem__, breaks)]
    lasts = [*(ends[index - 1] for index in breaks), ends[-1]]
    return starts, [end - start for start, end in zip(starts, lasts, strict=True)]


def in_parts(
    parts: Sequence[bytes], starts: Sequence[int], lengths: Sequence[int], places: Sequence[int]
) -> tuple[list[bytes], list[int]]:
    """Of the records at these log offsets the part that each is in, and where it begins there; ``parts`` are the bytes
    of these runs."""
    datas: list[bytes] = []
    bases: list[int] = []
    for part, start, length in zip(parts, starts, lengths, strict=True):
        count = bisect_left(places, start + length, len(datas)) - len(datas)
        datas += [part] * count
        bases += [start] * count
    return datas, list(map(sub, places, bases))


def _piece(log: LogBytes, offset: int, size: int) -> bytes:
    """A run may go on in the next segment."""
    data = log.checked(offset, size)
    while 0 < len(data) < size and (more := log.checked(offset + len(data), size - len(data))):
        data += more
    return data
