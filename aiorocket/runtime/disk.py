"""Files behind one seam, and the machine's own with one writer thread.

Blocking calls are plain methods; ``Disk.run(fn, *args)`` moves one of them off the loop. Jobs of one disk run one after
another in the order they were given, so a write that was submitted before a sync is on the disk when the sync returns.
``Disk.sync(file)`` is for what was written already, and waits behind none of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, TypeVar

from aiorocket.errors import StoreLockedError

if TYPE_CHECKING:
    from aiorocket.runtime.kernel_sync import KernelSync

__all__ = ("Buffer", "Disk", "File", "Lock", "RealDisk", "RealFile", "locked", "replace")

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

    def zero(self, offset: int, size: int) -> None:
        """Write zeros over those that ``allocate`` reserved: the first write to a reserved place changes the file
        system's records, and its sync takes twice the time of a later one's."""

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

    def sync(self, file: File) -> asyncio.Future[None]:
        """``file.fdatasync()`` while the loop goes on, in no order with what ``run`` was given. One at a time for a
        file that is open: the kernel tells of bytes it could not write once."""

    async def close(self) -> None:
        """Finish what was begun, also meanwhile, and end the thread. A later ``run`` starts it again."""


def replace(disk: Disk, path: str, data: bytes) -> None:
    """``Disk.replace`` by the other methods of ``disk``."""
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


def locked(path: str) -> StoreLockedError:
    return StoreLockedError(f"{path} is locked: another broker uses this directory; stop it or give this one its own")


class RealFile:
    """A file descriptor."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

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

    def zero(self, offset: int, size: int) -> None:
        self.pwritev([bytes(size)], offset)

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

    __slots__ = ("_asked", "_kernel", "_thread")

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        #: What syncs without the thread, if there is one, for which the machine was asked.
        self._kernel: KernelSync | None = None
        self._asked = False

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
            raise locked(path) from None
        except BaseException:
            os.close(fd)
            raise
        return _FileLock(fd)

    def read_bytes(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def replace(self, path: str, data: bytes) -> None:
        replace(self, path, data)

    def run(self, fn: Callable[..., T], *args: object) -> asyncio.Future[T]:
        thread = self._thread
        if thread is None:
            thread = self._thread = ThreadPoolExecutor(1, "aiorocket-disk")
        return asyncio.get_running_loop().run_in_executor(thread, fn, *args)

    def sync(self, file: File) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        if not self._asked:
            from aiorocket.runtime.kernel_sync import KernelSync  # brings ctypes, which clients do without

            self._asked = True
            with contextlib.suppress(OSError):
                self._kernel = KernelSync(loop)
        if self._kernel is not None and self._kernel.loop is loop and isinstance(file, RealFile):
            with contextlib.suppress(OSError):
                return self._kernel.sync(file.fileno())
        return self.run(file.fdatasync)

    async def close(self) -> None:
        while self._kernel is not None or self._thread is not None:  # what begins meanwhile makes them anew
            kernel, self._kernel, self._asked = self._kernel, None, False
            if kernel is not None:
                await kernel.close()
            thread, self._thread = self._thread, None
            if thread is not None:
                # The last job is ours: once it has run the thread is idle, and joining it does not block the loop.
                # Whoever is cancelled does not wait; the thread does its jobs and ends.
                idle = False
                try:
                    await asyncio.get_running_loop().run_in_executor(thread, _nothing)
                    idle = True
                finally:
                    thread.shutdown(wait=idle)
        self._asked = False


def _nothing() -> None:
    return None
