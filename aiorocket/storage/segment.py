"""One preallocated file of the commit log.

Bytes of a segment are written once, front to back; what was never written reads as zeros. A record never spans two
segments: the rest of a full one starts with a blank (int remaining size, int magic), for which the last 8 bytes are
always kept free.
"""

from __future__ import annotations

import errno

from aiorocket.runtime.disk import Disk, File

__all__ = ("Segment", "segment_path")


def segment_path(directory: str, base: int) -> str:
    """File of the segment that starts at log offset ``base``."""
    return f"{directory}/{base:020d}"


class Segment:
    """Log offsets ``base`` to ``end``. ``file`` is the writing handle: None until ``prepare`` ran in the writer thread,
    and again when the segment is full and synced."""

    __slots__ = ("base", "capacity", "directory", "end", "file", "path")

    def __init__(self, directory: str, base: int, capacity: int) -> None:
        self.directory = directory
        self.path = segment_path(directory, base)
        self.base = base
        self.capacity = capacity
        self.end = base + capacity
        self.file: File | None = None

    def prepare(self, disk: Disk, min_free: int) -> File:
        """Open the file, create and reserve it first if needed. OSError(ENOSPC) when less than ``min_free`` would be
        left."""
        file = self.file
        if file is not None:
            return file
        if disk.exists(self.path):
            file = disk.open(self.path)
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
            disk.fsync_dir(self.directory)
        except OSError:
            file.close()
            disk.unlink(self.path)
            raise
        self.file = file
        return file

    def cut(self, position: int) -> None:
        """Forget everything from ``position`` (inside the file) on, durably: old bytes must not look like later
        records. The space is reserved again if it can be; a full disk then fails a later write instead of this call."""
        file = self.file
        assert file is not None
        file.truncate(position)
        try:
            file.allocate(self.capacity)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            file.truncate(position)
        file.fdatasync()

    def remove(self, disk: Disk) -> None:
        """Delete the file, if there is one."""
        self.close()
        if disk.exists(self.path):
            disk.unlink(self.path)
            disk.fsync_dir(self.directory)

    def close(self) -> None:
        """Close the writing handle; ``prepare`` opens it again."""
        file, self.file = self.file, None
        if file is not None:
            file.close()
