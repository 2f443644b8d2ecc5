"""Files behind one seam: the real disk with its one writer thread, and a disk in memory with the same behaviour.

Blocking calls are plain methods; ``Disk.run(fn, *args)`` moves one of them off the loop. Jobs of one disk run one after
another in the order they were given, so a write that was submitted before a sync is on the disk when the sync returns.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from aiorocket.errors import StoreLockedError

__all__ = ("Buffer", "Disk", "File", "Lock", "MemoryDisk", "MemoryFile", "RealDisk", "RealFile")

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview

#: Messages, offsets and secrets are their owner's: nobody else on the machine reads what this module makes.
PRIVATE_FILE, PRIVATE_DIRECTORY = 0o600, 0o700
# The kernel takes at most IOV_MAX (1024 on Linux and macOS) buffers in one pwritev.
_IOV_MAX = 1024
_F_FULLFSYNC = 51  # macOS: fsync alone leaves the bytes in the drive's cache


class File(Protocol):
    """One open file. Everything may raise OSError; positions and sizes are bytes."""

    def pread(self, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes; shorter only at the end of the file."""

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all buffers back to back. After an OSError any prefix of them may be in the file."""

    def fdatasync(self) -> None:
        """Return when every byte written so far survives a power cut."""

    def allocate(self, size: int) -> None:
        """Reserve space so that the file is at least ``size`` long (zeros) and writes inside cannot fail for lack of
        it."""

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Lock(Protocol):
    def release(self) -> None:
        """Give the lock back; a second call does nothing."""


class Disk(Protocol):
    """A file system. Blocking methods raise OSError; ``run`` moves them off the loop."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; FileNotFoundError unless ``create``."""

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted."""

    def exists(self, path: str) -> bool: ...

    def is_dir(self, path: str) -> bool: ...

    def makedirs(self, path: str) -> None:
        """Create a directory and what is missing above it, durably."""

    def rename(self, source: str, target: str) -> None:
        """Atomic; durable after ``fsync_dir`` of the directory."""

    def unlink(self, path: str) -> None: ...

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""

    def fsync_dir(self, path: str) -> None:
        """Make creations, renames and removals in this directory survive a power cut."""

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int:
        """Size of the file system, as far as this user may fill it."""

    def lock(self, path: str) -> Lock:
        """Exclusive lock on a file that is created when missing; StoreLockedError when somebody holds it."""

    def read_bytes(self, path: str) -> bytes: ...

    def replace(self, path: str, data: bytes) -> None:
        """Atomically and durably make ``data`` the content of ``path`` (temporary file, sync, rename, directory
        sync)."""

    def run(self, fn: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """Run ``fn(*args)`` in the disk's one writer thread, first in first out; await the result on the loop."""

    async def close(self) -> None:
        """Finish the jobs given so far and end the thread. A later ``run`` starts it again."""


def _replace(disk: Disk, path: str, data: bytes) -> None:
    temporary = path + ".tmp"
    file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        file.pwritev([data], 0)
        file.fdatasync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.fsync_dir(os.path.dirname(path) or ".")


def _locked(path: str) -> StoreLockedError:
    return StoreLockedError(f"{path} is locked: another broker uses this directory; stop it or give this one its own")


class RealFile:
    """A file descriptor."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def pread(self, size: int, offset: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        have = len(data)
        while have < size:
            data = os.pread(self._fd, size - have, offset + have)
            if not data:
                break
            parts.append(data)
            have += len(data)
        return b"".join(parts)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        for first in range(0, len(buffers), _IOV_MAX):
            group = buffers[first : first + _IOV_MAX] if len(buffers) > _IOV_MAX else buffers
            wanted = sum(map(len, group))
            written = os.pwritev(self._fd, group, offset)
            if written < wanted:
                # Rare (a full disk, a signal): go on from the middle with one plain buffer; a full disk then raises
                # ENOSPC.
                rest = memoryview(b"".join(group))
                while written < wanted:
                    step = os.pwrite(self._fd, rest[written:], offset + written)
                    if not step:
                        raise OSError(errno.EIO, "the disk takes no more bytes", self.path)
                    written += step
            offset += wanted

    def fdatasync(self) -> None:
        if hasattr(os, "fdatasync"):
            os.fdatasync(self._fd)
        else:  # macOS
            import fcntl

            fcntl.fcntl(self._fd, _F_FULLFSYNC)

    def allocate(self, size: int) -> None:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._fd, 0, size)
        elif self.size() < size:
            os.ftruncate(self._fd, size)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class _FileLock:
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)  # ends the flock with it


class RealDisk:
    """The machine's file system, with one writer thread that starts with the first ``run``."""

    __slots__ = ("_thread",)

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None

    def open(self, path: str, *, create: bool = False) -> File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(path, os.open(path, flags, PRIVATE_FILE))

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def makedirs(self, path: str) -> None:
        path = os.path.abspath(path)
        missing: list[str] = []
        above = path
        while not os.path.isdir(above):
            missing.append(above)
            above = os.path.dirname(above)
        for directory in reversed(missing):
            try:
                os.mkdir(directory, PRIVATE_DIRECTORY)
            except FileExistsError:
                # Somebody else may have made it meanwhile; a file in its place is an error.
                if not os.path.isdir(directory):
                    raise
            self.fsync_dir(os.path.dirname(directory))

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def fsync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, path: str) -> int:
        facts = os.statvfs(path)
        return facts.f_bavail * facts.f_frsize

    def total_bytes(self, path: str) -> int:
        facts = os.statvfs(path)
        return (facts.f_blocks - facts.f_bfree + facts.f_bavail) * facts.f_frsize

    def lock(self, path: str) -> Lock:
        import fcntl

        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise _locked(path) from None
        except BaseException:
            os.close(fd)
            raise
        return _FileLock(fd)

    def read_bytes(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def replace(self, path: str, data: bytes) -> None:
        _replace(self, path, data)

    def run(self, fn: Callable[..., T], *args: object) -> asyncio.Future[T]:
        thread = self._thread
        if thread is None:
            thread = self._thread = ThreadPoolExecutor(1, "aiorocket-disk")
        return asyncio.get_running_loop().run_in_executor(thread, fn, *args)

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            # The last job is ours: once it has run the thread is idle, and joining it does not block the loop. Whoever
            # is cancelled does not wait; the thread does its jobs and ends.
            idle = False
            try:
                await asyncio.get_running_loop().run_in_executor(thread, _nothing)
                idle = True
            finally:
                thread.shutdown(wait=idle)


def _nothing() -> None:
    return None


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
            raise _locked(path)
        self.locks.add(path)
        return _MemoryLock(self, path)

    def read_bytes(self, path: str) -> bytes:
        path = self._path(path)
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        return bytes(self.files[path])

    def replace(self, path: str, data: bytes) -> None:
        _replace(self, path, data)

    def run(self, fn: Callable[..., T], *args: object) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        loop.call_soon(_perform, future, fn, args)
        return future

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
