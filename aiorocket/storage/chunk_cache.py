"""Cold reads of the log: larger pieces of segments, shared by all queues.

Queues interleave in one log, so the records of one pull lie spread between those of the others. Reading 256 KiB once
and slicing the records of every queue out of it costs about 0.2 us per record; a pread for each of them 1.5 us.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

__all__ = ("CHUNK", "ChunkCache", "LogBytes")

CHUNK = 256 * 1024
#: A span is read as a whole when it is at most this many times what is wanted of it.
_SPARSE = 8


class LogBytes(Protocol):
    """What the cache reads from."""

    def piece(self, offset: int, size: int) -> bytes:
        """Log bytes from ``offset`` on: ``size``, fewer at the end of the segment or of what is written."""

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

    def _chunk(self, offset: int, size: int) -> tuple[int, bytes]:
        """The chunk around ``offset``, read again when it ends too early for ``size`` bytes though the log has grown
        since."""
        start = self._log.piece_start(offset, CHUNK)
        chunks = self._chunks
        data = chunks.pop(start, b"")
        if len(data) < CHUNK and start + len(data) < offset + size:
            data = self._log.piece(start, CHUNK)
            if len(chunks) >= self._limit:
                del chunks[next(iter(chunks))]
        chunks[start] = data
        return start, data

    def read(self, offsets: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """The records at ascending log ``offsets``, as slices whose join is the answer (fewer slices where records
        touch).

        Where bytes are missing slices come out short: the caller compares lengths.
        """
        count = len(offsets)
        wanted = sum(sizes)
        log = self._log
        span = offsets[-1] + sizes[-1] - offsets[0]
        if wanted > CHUNK * count // 8 or span > wanted * _SPARSE:
            return [log.piece(offset, size) for offset, size in zip(offsets, sizes, strict=True)]
        parts: list[bytes] = []
        index = 0
        while index < count:
            offset = offsets[index]
            start, data = self._chunk(offset, sizes[index])
            limit = start + len(data)
            stop = bisect_left(offsets, limit, index)
            if stop > index and offsets[stop - 1] + sizes[stop - 1] > limit:
                stop -= 1
            if stop == index:  # crosses into the next chunk (or is not there at all)
                parts.append(log.piece(offset, sizes[index]))
                index += 1
                continue
            low = offset - start
            high = offsets[stop - 1] + sizes[stop - 1] - start
            if high - low == sum(sizes[index:stop]):
                parts.append(data[low:high])
            elif stop - index == 1:
                parts.append(data[low : low + sizes[index]])
            else:
                parts += [
                    data[place - start : place - start + size]
                    for place, size in zip(offsets[index:stop], sizes[index:stop], strict=True)
                ]
            index = stop
        return parts
