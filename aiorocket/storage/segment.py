"""One preallocated file of the commit log and the checksum file beside it.

Bytes of a segment are written once, front to back; what was never written reads as zeros. A record never spans two
segments: the rest of a full one starts with a blank (int remaining size, int magic), for which the last 8 bytes are
always kept free.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Sequence

from aiorocket.runtime.disk import Buffer, Disk, File
from aiorocket.storage.checksums import Checksums, encode_block, encode_head, sums_path

__all__ = ("AHEAD", "SMALL", "Segment", "segment_path")

#: Bytes of zeros that are written ahead, if that many came in so many groups or more: bench/FINDINGS.md, "Zeros ahead
#: of small groups".
AHEAD = 256 << 10
SMALL = 8


def segment_path(directory: str, base: int) -> str:
    """File of the segment that starts at log offset ``base``."""
    return f"{directory}/{base:020d}"


class Segment:
    """Log offsets ``base`` to ``end``. ``file`` is the writing handle: None until ``prepare`` ran in the writer thread,
    and again when the segment is full and synced.

    ``sums`` are the checksums of what was written here, None when they are not in memory: see ``CommitLog``.
    """

    __slots__ = (
        "_sums_at",
        "_sums_file",
        "base",
        "capacity",
        "decided_to",
        "directory",
        "end",
        "failed",
        "file",
        "groups",
        "path",
        "sums",
        "unsynced_sums",
    )

    def __init__(self, directory: str, base: int, capacity: int) -> None:
        self.directory = directory
        self.path = segment_path(directory, base)
        self.base = base
        self.capacity = capacity
        self.end = base + capacity
        self.file: File | None = None
        self.sums: Checksums | None = None
        #: The error of its first sync that failed: one that succeeds later proves nothing.
        self.failed: OSError | None = None
        #: The checksum file has bytes that no sync covers.
        self.unsynced_sums = False
        self._sums_file: File | None = None
        self._sums_at = 0
        #: Groups since it was last decided about zeros ahead, and up to where it was.
        self.groups = SMALL
        self.decided_to = 0

    def prepare(self, disk: Disk, min_free: int) -> File:
        """Open the files, create and reserve them first if needed. OSError(ENOSPC) when less than ``min_free`` would be
        left."""
        file = self.file
        if file is not None:
            return file
        if disk.exists(self.path):
            file = disk.open(self.path)
            self._open_sums(disk)
            self.file = file
            return file
        free = disk.free_bytes(self.directory)
        if free - self.capacity < min_free:
            raise OSError(
                errno.ENOSPC,
                f"{free} bytes are free, a new segment of {self.capacity} must leave min_free={min_free}",
                self.path,
            )
        file = disk.open(self.path, create=True)
        try:
            file.allocate(self.capacity)
            file.fdatasync()
            self._open_sums(disk)
            disk.fsync_dir(self.directory)
        except OSError:
            file.close()
            disk.unlink(self.path)
            raise
        self.file = file
        return file

    def _open_sums(self, disk: Disk) -> None:
        """Open the checksum file to go on at ``_sums_at``, or make a new one."""
        file = disk.open(sums_path(self.path), create=True)
        if self.sums is None:
            self.sums = Checksums()
            head = encode_head(self.base)
            try:
                file.truncate(0)
                file.pwritev([head], 0)
            except OSError:
                file.close()
                self.sums = None
                raise
            self._sums_at = len(head)
        self._sums_file = file
        self.unsynced_sums = True

    def resume(self, sums: Checksums, position: int) -> None:
        """Recovery: what the checksum file covers, and where it goes on."""
        self.sums, self._sums_at = sums, position

    def write(self, buffers: Sequence[bytes], position: int, durable: int, replay: int, counts: Buffer = b"") -> int:
        """Put ``buffers`` at ``position`` of the prepared file and cover them; the position behind them. After an
        OSError ``cut`` takes back what came of it."""
        assert self.file is not None and self.sums is not None
        self.file.pwritev(buffers, position)
        self.cover(buffers, position, durable, replay, counts)
        return self.sums.last[0]

    def cover(self, buffers: Sequence[bytes], position: int, durable: int, replay: int, counts: Buffer = b"") -> None:
        """Add checksums for ``buffers``, which stand at ``position``, right behind what is covered. ``counts`` say how
        far queues are behind them."""
        sums, file = self.sums, self._sums_file
        assert sums is not None and file is not None and sums.last[0] == position
        before = sums.last
        block = encode_block(sums.add(buffers), self.base + position, durable, replay, counts)
        try:
            file.pwritev([block], self._sums_at)
        except OSError:
            sums.restore(before)
            raise
        self._sums_at += len(block)
        self.unsynced_sums = True

    def zero_ahead(self, end: int) -> None:
        """Zeros behind ``end`` for small groups to come. An error is for whoever writes there."""
        assert self.file is not None
        with contextlib.suppress(OSError):
            self.file.zero(end, min(AHEAD, self.capacity - end))

    def stamp(self, durable: int, replay: int) -> None:
        """Put newer marks into the checksum file, with a block of no entries."""
        if self.sums is not None and self._sums_file is not None:
            block = encode_block((), self.base + self.sums.last[0], durable, replay)
            self._sums_file.pwritev([block], self._sums_at)
            self._sums_at += len(block)
            self.unsynced_sums = True

    def sync(self) -> None:
        """Make everything written so far durable, the checksums too."""
        assert self.file is not None
        if self.failed is not None:
            raise OSError(errno.EIO, "an earlier sync failed", self.path)
        try:
            self.file.fdatasync()
            self.sync_sums()
        except OSError as error:
            self.failed = error
            raise

    def sync_then(self, work: Callable[..., None], args: Sequence[object]) -> None:
        """``work(*args)``, unless what was written so far cannot be made durable."""
        self.sync()
        work(*args)

    def sync_sums(self) -> None:
        if self.unsynced_sums and self._sums_file is not None:
            self.unsynced_sums = False  # before the sync: what is written meanwhile, from the loop, needs another
            try:
                self._sums_file.fdatasync()
            except OSError:
                self.unsynced_sums = True
                raise

    def finish(self, durable: int, replay: int) -> None:
        """The segment is full: close its checksum file with a summary, durably."""
        assert self.sums is not None and self._sums_file is not None
        self._sums_file.pwritev([self.sums.summary(self.base, durable, replay)], self._sums_at)
        self.unsynced_sums = True
        self.sync_sums()

    def cut(self, position: int) -> None:
        """Forget everything from ``position`` (inside the file) on, durably: old bytes must not look like later
        records. The space is reserved again if it can be; a full disk then fails a later write instead of this call.
        ``restore`` comes first."""
        file = self.file
        assert file is not None and self._sums_file is not None
        # First and durably: what it said of the bytes that go would make later ones at their places look torn.
        self._sums_file.truncate(self._sums_at)
        self._sums_file.fdatasync()
        file.truncate(position)
        self.groups, self.decided_to = SMALL, 0
        try:
            file.allocate(self.capacity)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            file.truncate(position)
        file.fdatasync()

    def mark(self) -> tuple[tuple[int, int], int]:
        """What is covered now, for ``restore``."""
        assert self.sums is not None
        return self.sums.last, self._sums_at

    def restore(self, mark: tuple[tuple[int, int], int]) -> None:
        """Take back what was covered since ``mark``; the file follows with ``cut``."""
        assert self.sums is not None
        last, self._sums_at = mark
        self.sums.restore(last)

    def remove(self, disk: Disk) -> None:
        """Delete the files, if there are any."""
        self.close()
        for path in (sums_path(self.path), self.path):
            if disk.exists(path):
                disk.unlink(path)
        disk.fsync_dir(self.directory)

    def close(self) -> None:
        """Close the writing handles; ``prepare`` opens them again."""
        file, self.file = self.file, None
        if file is not None:
            file.close()
        file, self._sums_file = self._sums_file, None
        if file is not None:
            file.close()
