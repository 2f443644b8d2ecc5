"""The written part of the log, read: by offset, and compared with the checksums.

What differs from them is narrowed down to what was written together, and never served.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from aiorocket.errors import StoreCorruptedError
from aiorocket.runtime.disk import Disk
from aiorocket.storage.checksums import PAGE, Checksums, load, read_entries, sums_path
from aiorocket.storage.damage import DamagedRanges
from aiorocket.storage.files import FileCache, read_pages
from aiorocket.storage.segment import Segment
from aiorocket.storage.walk import Bad

__all__ = ("WrittenLog",)

_LOG = logging.getLogger("aiorocket.storage")
#: Full segments whose checksums stay in memory, 8 KiB for each 64 MiB.
_LOADED = 512


class WrittenLog:
    """``segments`` hold log offsets up to ``written``; whoever appends keeps both."""

    def __init__(self, disk: Disk, directory: str, files: FileCache) -> None:
        self._disk = disk
        self._directory = directory
        self._files = files
        self.segments: list[Segment] = []
        self.written = 0
        #: What must not be served; reads add to it.
        self.damage = DamagedRanges()
        #: Called with damage that was not known.
        self.on_damage: Callable[[Bad], None] = _no_damage
        #: Segments without checksums: their records are to be checked one by one.
        self.unchecked: dict[Segment, None] = {}
        self._loaded: deque[Segment] = deque()

    @property
    def start_offset(self) -> int:
        """The oldest log offset that is still there."""
        return self.segments[0].base if self.segments else self.written

    def segment_at(self, offset: int) -> Segment | None:
        segments = self.segments
        if segments and segments[-1].base <= offset:
            return segments[-1] if offset < segments[-1].end else None
        low, high = 0, len(segments)
        while low < high:
            middle = (low + high) // 2
            if segments[middle].end <= offset:
                low = middle + 1
            else:
                high = middle
        if low == len(segments) or offset < segments[low].base:
            return None
        return segments[low]

    def file_of(self, offset: int) -> str:
        """The file in which a log offset lies or would lie."""
        segment = self.segment_at(offset)
        return self._directory if segment is None else segment.path

    def piece_start(self, offset: int, size: int) -> int:
        """Where the ``size``-aligned piece of a segment begins that contains ``offset``."""
        segment = self.segment_at(offset)
        return offset if segment is None else offset - (offset - segment.base) % size

    def piece(self, offset: int, size: int) -> bytes:
        """Written log bytes from ``offset`` on: ``size``, fewer at the end of the segment or of what is written.
        StoreCorruptedError when the file has gone, OSError when it cannot be read."""
        segment = self.segment_at(offset)
        if segment is None:
            return b""
        size = min(size, min(segment.end, self.written) - offset)
        if size <= 0:
            return b""
        try:
            return self._files.open(segment.path).pread(size, offset - segment.base)
        except FileNotFoundError:
            raise StoreCorruptedError(
                f"{segment.path} is missing: log offsets {segment.base} to {segment.end} are gone"
            ) from None

    def checked(self, offset: int, size: int) -> bytes:
        """``piece``, compared with the checksums of the segment. What differs is added to ``damage`` and stays in what
        is answered: nothing that touches damage may be served. A segment whose checksums are not there is put into
        ``unchecked``."""
        segment = self.segment_at(offset)
        if segment is None:
            return b""
        position = offset - segment.base
        size = min(size, min(segment.end, self.written) - offset)
        if size <= 0:
            return b""
        sums = segment.sums or self._load_sums(segment)
        # Taken before the bytes are read: the writer's thread may add to both meanwhile.
        last = (0, 0) if sums is None else sums.last
        low = position - position % PAGE
        try:
            file = self._files.open(segment.path)
        except FileNotFoundError:
            self.found_damage(Bad(segment.base, segment.end, f"{segment.path} is missing"))
            return b""
        high = min(position + size - (position + size) % -PAGE, segment.end - segment.base)
        data = read_pages(file, low, high - low)
        if sums is not None:
            missing = min(last[0], high) - low - len(data)
            if missing > 0:
                data += bytes(missing)
            wrong = sums.wrong(data, low, last)
            if wrong:
                self.locate(segment, low, data, wrong, last[0])
        return data[position - low : position - low + size]

    def _load_sums(self, segment: Segment) -> Checksums | None:
        """The checksums of a segment that was full before this start, or has been put out of memory since."""
        if segment in self.unchecked:
            return None
        segment.sums = sums = load(self._disk, sums_path(segment.path), segment.base)
        if sums is None:
            _LOG.warning("%s has no checksums that can be used: its records are checked one by one", segment.path)
            self.unchecked[segment] = None
            return None
        self.keep_sums(segment)
        return sums

    def keep_sums(self, segment: Segment) -> None:
        """The checksums of a full segment stay in memory until those of enough others are."""
        self._loaded.append(segment)
        if len(self._loaded) > _LOADED:
            self._loaded.popleft().sums = None

    def locate(self, segment: Segment, low: int, data: bytes, wrong: list[int], covered: int) -> None:
        """Narrow damaged pages down to what was written together; ``covered`` bytes of the segment have checksums."""
        entries = read_entries(self._disk, sums_path(segment.path), segment.base)
        for at in wrong:
            ranges = [(at, at + PAGE)]
            if entries is not None and entries.end >= min(at + PAGE, covered):
                ranges = entries.wrong(data[at - low : at - low + PAGE], at) or ranges
            for begin, end in ranges:
                begin, end = segment.base + begin, min(segment.base + end, segment.end)
                self.found_damage(Bad(begin, end, "the checksum of the segment differs"))

    def is_checked(self, offset: int) -> bool:
        """Whether ``checked`` has compared the bytes at ``offset`` with anything."""
        return not self.unchecked or self.segment_at(offset) not in self.unchecked

    def found_damage(self, bad: Bad) -> None:
        """Serve nothing of this range from now on, and say so unless it is known."""
        if self.damage.add(bad):
            self.on_damage(bad)


def _no_damage(bad: Bad) -> None:
    return None
