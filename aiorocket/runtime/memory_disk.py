"""A disk in the memory of this process, with the same behaviour as the machine's."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

from aiorocket.runtime.disk import Buffer, File, Lock, locked, replace

__all__ = ("MemoryDisk", "MemoryFile")

T = TypeVar("T")


class MemoryFile:
    """An open file of a MemoryDisk; several handles of one path share the bytes."""

    __slots__ = ("_data", "_disk", "path")

    def __init__(self, disk: MemoryDisk, path: str, data: bytearray) -> None:
        self._disk = disk
        self.path = path
        self._data = data

    def pread(self, size: int, offset: int) -> bytes:
        return bytes(memoryview(self._data)[offset : offset + size])

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        data = self._data
        for buffer in buffers:
            end = offset + len(buffer)
            if len(data) < offset:
                data.extend(bytes(offset - len(data)))
            data[offset:end] = buffer
            offset = end

    def fdatasync(self) -> None:
        return None

    def allocate(self, size: int) -> None:
        # Nothing can run out here, so nothing is reserved and the file does not grow: a segment would cost its size.
        return None

    def zero(self, offset: int, size: int) -> None:
        return None

    def truncate(self, size: int) -> None:
        data = self._data
        if size < len(data):
            del data[size:]
        else:
            data.extend(bytes(size - len(data)))

    def size(self) -> int:
        return len(self._data)

    def close(self) -> None:
        return None


class _MemoryLock:
    __slots__ = ("_disk", "_path")

    def __init__(self, disk: MemoryDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locks.discard(self._path)


class MemoryDisk:
    """The same interface over bytes of this process; jobs given to ``run`` are done in the next loop turn."""

    #: What free_bytes answers; tests lower it.
    free = 1 << 40

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.directories: dict[str, None] = {"/": None}
        self.locks: set[str] = set()

    @staticmethod
    @lru_cache(4096)
    def _path(path: str) -> str:
        return os.path.normpath("/" + path.lstrip("/"))  # POSIX gives two slashes at the start a meaning of their own

    def _need_directory(self, path: str) -> None:
        if path in self.files:
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        if path not in self.directories:
            above = os.path.dirname(path)
            if above != path and above not in self.directories:
                self._need_directory(above)
            raise FileNotFoundError(errno.ENOENT, "No such directory", path)

    def open(self, path: str, *, create: bool = False) -> File:
        path = self._path(path)
        data = self.files.get(path)
        if data is None:
            if path in self.directories:
                raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
            self._need_directory(os.path.dirname(path))
            if not create:
                raise FileNotFoundError(errno.ENOENT, "No such file", path)
            data = self.files[path] = bytearray()
        return self._open(path, data)

    def _open(self, path: str, data: bytearray) -> File:
        return MemoryFile(self, path, data)

    def listdir(self, path: str) -> list[str]:
        path = self._path(path)
        self._need_directory(path)
        names = (*self.files, *self.directories)
        return sorted(os.path.basename(name) for name in names if os.path.dirname(name) == path and name != path)

    def exists(self, path: str) -> bool:
        path = self._path(path)
        return path in self.files or path in self.directories

    def is_dir(self, path: str) -> bool:
        return self._path(path) in self.directories

    def makedirs(self, path: str) -> None:
        path = self._path(path)
        missing: list[str] = []
        while path not in self.directories:
            if path in self.files:
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
            missing.append(path)
            path = os.path.dirname(path)
        for directory in reversed(missing):
            self.directories[directory] = None

    def rename(self, source: str, target: str) -> None:
        source, target = self._path(source), self._path(target)
        if source in self.files:
            self._need_directory(os.path.dirname(target))
            self.files[target] = self.files.pop(source)
            return
        if source not in self.directories:
            raise FileNotFoundError(errno.ENOENT, "No such file", source)
        if target in self.directories or target in self.files:
            raise FileExistsError(errno.EEXIST, "Exists", target)
        self._need_directory(os.path.dirname(target))
        inside = source + "/"
        for name in [name for name in self.files if name.startswith(inside)]:
            self.files[target + name[len(source) :]] = self.files.pop(name)
        for name in [name for name in self.directories if name == source or name.startswith(inside)]:
            del self.directories[name]
            self.directories[target + name[len(source) :]] = None

    def unlink(self, path: str) -> None:
        path = self._path(path)
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        del self.files[path]

    def rmdir(self, path: str) -> None:
        if self.listdir(path):
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        del self.directories[self._path(path)]

    def fsync_dir(self, path: str) -> None:
        self._need_directory(self._path(path))

    def free_bytes(self, path: str) -> int:
        return self.free

    def total_bytes(self, path: str) -> int:
        return self.free_bytes(path) + sum(map(len, self.files.values()))

    def lock(self, path: str) -> Lock:
        self.open(path, create=True).close()
        path = self._path(path)
        if path in self.locks:
            raise locked(path)
        self.locks.add(path)
        return _MemoryLock(self, path)

    def read_bytes(self, path: str) -> bytes:
        path = self._path(path)
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        return bytes(self.files[path])

    def replace(self, path: str, data: bytes) -> None:
        replace(self, path, data)

    def run(self, fn: Callable[..., T], *args: object) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        loop.call_soon(_perform, future, fn, args)
        return future

    def sync(self, file: File) -> asyncio.Future[None]:
        return self.run(file.fdatasync)

    async def close(self) -> None:
        return None


def _perform(future: asyncio.Future[T], fn: Callable[..., T], args: tuple[object, ...]) -> None:
    """Do the job even if nobody waits any more, as the writer thread would."""
    try:
        result = fn(*args)
    except BaseException as error:  # noqa: BLE001 - whoever awaits the job gets its error, whatever it is
        if not future.done():
            future.set_exception(error)
        return
    if not future.done():
        future.set_result(result)
