"""Open files for reading, the least recently used ones closed: a store may have more files than descriptors."""

from __future__ import annotations

from aiorocket.runtime.disk import Disk, File

__all__ = ("FileCache",)


class FileCache:
    """Used on the loop only. The writer thread opens its own handles, so closing one here never pulls a file from
    under it."""

    __slots__ = ("_disk", "_files", "_limit")

    def __init__(self, disk: Disk, limit: int = 128) -> None:
        self._disk = disk
        self._files: dict[str, File] = {}
        self._limit = limit

    def open(self, path: str) -> File:
        """The file for reading; OSError (FileNotFoundError) passes."""
        files = self._files
        file = files.pop(path, None)
        if file is None:
            file = self._disk.open(path)
            if len(files) >= self._limit:
                files.pop(next(iter(files))).close()
        files[path] = file
        return file

    def forget(self, prefix: str) -> None:
        """Close what lies below ``prefix``: those files are about to go."""
        for path in [path for path in self._files if path.startswith(prefix)]:
            self._files.pop(path).close()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()
