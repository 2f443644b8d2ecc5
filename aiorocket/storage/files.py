"""Reading files: open ones, the least recently used of them closed, as a store may have more files than descriptors;
and what can be read of one of which the disk has lost a part."""

from __future__ import annotations

from aiorocket.runtime.disk import Disk, File

__all__ = ("FileCache", "end_of_written", "last_written", "read_pages", "read_whole")

_PAGE = 32 * 1024
#: Bytes that are looked at in one piece for what was written.
_WINDOW = 1 << 20
#: Files that a store has open for reading.
_OPEN_FILES = 128


def read_pages(file: File, position: int, size: int) -> bytes:
    """``pread``, with zeros for the pages that the disk cannot read."""
    try:
        return file.pread(size, position)
    except OSError:
        parts = []
        while size > 0:
            step = min(size, _PAGE - position % _PAGE)
            try:
                part = file.pread(step, position)
            except OSError:
                part = bytes(step)
            parts.append(part)
            if len(part) < step:
                break
            position, size = position + step, size - step
        return b"".join(parts)


def read_whole(disk: Disk, path: str) -> bytes:
    """``read_bytes``, with zeros for the pages that the disk cannot read."""
    try:
        return disk.read_bytes(path)
    except FileNotFoundError:
        raise
    except OSError:
        file = disk.open(path)
        try:
            return read_pages(file, 0, file.size())
        finally:
            file.close()


class FileCache:
    """Used on the loop only. The writer thread opens its own handles, so closing one here never pulls a file from
    under it."""

    __slots__ = ("_disk", "_files")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._files: dict[str, File] = {}

    def open(self, path: str) -> File:
        """The file for reading; OSError (FileNotFoundError) passes."""
        files = self._files
        file = files.pop(path, None)
        if file is None:
            file = self._disk.open(path)
            if len(files) >= _OPEN_FILES:
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


def end_of_written(file: File, size: int) -> int:
    """Where the last byte that is not zero ends, looked for from the end of the file."""
    while size > 0:
        low = max(0, size - _WINDOW)
        if data := read_pages(file, low, size - low).rstrip(b"\0"):
            return low + len(data)
        size = low
    return 0


def last_written(file: File, position: int) -> int:
    """Where the last byte that is not zero ends, at or behind ``position``."""
    last, size = position, file.size()
    zeros = bytes(_WINDOW)
    while position < size:
        data = read_pages(file, position, min(_WINDOW, size - position))
        if not data:
            break
        if data != zeros[: len(data)]:  # a hundred times as fast as to strip what is mostly zeros
            last = position + len(data.rstrip(b"\0"))
        position += len(data)
    return last
