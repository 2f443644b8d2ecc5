"""Compaction of a full segment: messages that are kept stay where they are, what was between them becomes filler.

Nothing is renumbered: queue offsets, places in the log, message ids and the key index stay true. Filler is a record
without a topic, of which only the head is written: the rest of it is never written to the new file, so a file system
gives the space back (in pages; a kept message costs at least one). The checksums are made anew; a segment with a page
that differs from its old ones is left alone.

The new file and its checksums stand beside the old ones, complete and durable, before two renames make them the
segment's. Between these the store reads nothing, and a start that finds one of them done does the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct

from aiorocket.runtime.disk import Buffer, Disk, File
from aiorocket.storage.checksums import PAGE, Checksums, encode_block, encode_head, load, sums_path
from aiorocket.storage.files import read_pages
from aiorocket.storage.segment import Segment
from aiorocket_protocol import BLANK_SIZE, MIN_RECORD, RecordView, check_record, encode_record, parse_blank

__all__ = ("Compaction", "finish_renames", "sums_that_fit")

#: Log bytes of one job of the writer thread, and of one filler.
_SLICE = 1 << 20
_FILLER_HEAD = 88
_HOST = bytes(8)
_ZEROS = memoryview(bytes(_SLICE))
_SUFFIX = ".compact"
_size_of = Struct(">i").unpack_from

Wanted = Mapping[tuple[bytes, int], tuple[int, int]]


class Compaction:
    """Of one full segment. Call ``step`` in the writer thread until it says True, then ``swap`` where nothing reads; or
    ``give_up``. ``wanted`` are the queues (topic, id) of which messages are kept, from an offset and from a log offset
    on: what is in front of that was of a topic that is deleted."""

    def __init__(self, disk: Disk, segment: Segment, wanted: Wanted) -> None:
        self._disk = disk
        self._segment = segment
        self._wanted = wanted
        self._path = segment.path + _SUFFIX
        self._file: File | None = None
        self._old: Checksums | None = None
        self._sums = Checksums()
        self._blocks = [encode_head(segment.base)]
        self._rows: list[int] = []
        #: Up to where the old file is read and the new one made.
        self._at = self._made = 0
        self._hole_stamp = 0

    def step(self) -> bool:
        """Blocking: the next slice; True when all is made. ValueError when the segment cannot be compacted, OSError
        when the disk fails."""
        segment = self._segment
        if self._file is None:
            self._old = load(self._disk, sums_path(segment.path), segment.base)
            if self._old is None:
                raise ValueError("it has no checksums")
            self._file = self._disk.open(self._path, create=True)
            self._file.truncate(0)
        data, low = self._read(_SLICE)
        end, start = len(data), self._at - low
        begun = self._made
        done = False
        while start + MIN_RECORD <= end or (low + end >= self._old_end() and start + BLANK_SIZE <= end):
            blank = parse_blank(data, start)
            if blank is not None:
                if low + start + blank != segment.capacity:
                    raise ValueError(f"a blank of {blank} bytes stands at {low + start}")
                self._fill(low + start)
                self._emit(data[start : start + BLANK_SIZE])
                self._skip(self._old_end() - self._made)
                done = True
                break
            size = _size_of(data, start)[0]
            if size > end - start:
                if start + low > self._at:
                    break
                data, low = self._read(size)
                end, start = len(data), self._at - low
            size = check_record(data, start)
            view = RecordView(data, start, start + size)
            kept = self._wanted.get((view.raw_topic, view.queue_id))
            if kept is not None and view.queue_offset >= kept[0] and segment.base + low + start >= kept[1]:
                self._fill(low + start)
                self._emit(data[start : start + size])
            elif self._made == low + start:
                self._hole_stamp = view.store_timestamp
            start += size
            if low + start == segment.capacity:
                self._fill(low + start)
                done = True
                break
        if not done and low + start == self._at:
            raise ValueError(f"nothing can be read at {self._at}")
        self._at = low + start
        if self._rows:
            self._blocks.append(encode_block(self._rows, segment.base + begun, segment.end, 0))
            self._rows = []
            self._file.fdatasync()
        if done:
            self._blocks.append(self._sums.summary(segment.base, segment.end, 0))
            self._disk.replace(sums_path(self._path), b"".join(self._blocks))
            self._file.close()
            self._file = None
        return done

    def swap(self) -> None:
        """Make the new files the segment's; OSError when the disk fails; the next start ends it then."""
        self._disk.rename(self._path, self._segment.path)
        self._disk.rename(sums_path(self._path), sums_path(self._segment.path))

    def give_up(self) -> None:
        """Blocking: remove what was made; the checksums first, as they alone would say that the swap had begun."""
        if self._file is not None:
            self._file.close()
            self._file = None
        for path in (sums_path(self._path), self._path):
            if self._disk.exists(path):
                self._disk.unlink(path)

    def _old_end(self) -> int:
        assert self._old is not None
        return self._old.last[0]

    def _read(self, size: int) -> tuple[bytes, int]:
        """At least ``size`` bytes from where the next record begins, whole pages; and the position of the first."""
        assert self._old is not None
        low = self._at - self._at % PAGE
        high = min(self._segment.capacity, self._at + size)
        high += -high % PAGE
        file = self._disk.open(self._segment.path)
        try:
            data = read_pages(file, low, high - low)
        finally:
            file.close()
        high = min(high, self._old_end())
        data = data[: high - low] + bytes(max(0, high - low - len(data)))
        if self._old.wrong(data, low, self._old.last):
            raise ValueError(f"bytes {low} to {high} do not fit their checksums")
        return data, low

    def _fill(self, upto: int) -> None:
        """Filler from what is made to ``upto``, in pieces that are records."""
        while (left := upto - self._made) > 0:
            size = left if left <= _SLICE else min(_SLICE, left - _SLICE // 2)
            record = encode_record(
                topic=b"", body=bytes(size - MIN_RECORD), properties=b"", queue_id=0, queue_offset=0,
                physical_offset=self._segment.base + self._made, flag=0, sys_flag=0, born_timestamp=0, born_host=_HOST,
                store_timestamp=self._hole_stamp, store_host=_HOST,
            )  # fmt: skip
            self._emit(record[:_FILLER_HEAD])
            self._skip(size - _FILLER_HEAD)

    def _emit(self, buffer: Buffer) -> None:
        assert self._file is not None
        self._file.pwritev([buffer], self._made)
        self._rows += self._sums.add([buffer])
        self._made += len(buffer)

    def _skip(self, size: int) -> None:
        """Zeros, which need not be written."""
        while size > 0:
            step = min(size, len(_ZEROS))
            self._rows += self._sums.add([_ZEROS[:step]])
            self._made += step
            size -= step


def sums_that_fit(disk: Disk, segment: str) -> str:
    """The checksum file of the segment in this file; the new one where a crash left its name for later."""
    new = sums_path(segment + _SUFFIX)
    return new if disk.exists(new) and not disk.exists(segment + _SUFFIX) else sums_path(segment)


def finish_renames(disk: Disk, directory: str) -> None:
    """Blocking, before anything reads the log: what a crash left of a compaction is ended or removed."""
    names = [name for name in disk.listdir(directory) if _SUFFIX in name]
    for name in reversed(names):  # checksums first
        path = f"{directory}/{name}"
        segment = name.partition(_SUFFIX)[0]
        if name == sums_path(segment + _SUFFIX) and segment + _SUFFIX not in names:
            disk.rename(path, sums_path(f"{directory}/{segment}"))
        else:
            disk.unlink(path)
    if names:
        disk.fsync_dir(directory)
