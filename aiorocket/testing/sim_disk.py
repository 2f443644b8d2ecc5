"""A disk that can fail: what was not synced may be lost, torn or reordered in a crash; space ends; calls fail on
demand."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from aiorocket.runtime.disk import Buffer, File
from aiorocket.runtime.memory_disk import MemoryDisk, MemoryFile

__all__ = ("SimDisk",)

T = TypeVar("T")

#: What a drive writes at once: a crash keeps or loses such pieces independently of each other, most of them as a whole.
SECTOR = 512
#: How many of those kept are torn: their first part is new, the rest old.
_TORN = 0.1
#: A job that a crash meets has made fewer calls than this.
_MOST_CALLS = 6


class _Content:
    """The durable side of one file: its image as of the last sync, and which sectors changed since."""

    __slots__ = ("data", "dirty", "durable")

    def __init__(self, data: bytearray) -> None:
        self.data = data
        self.durable = bytearray()
        self.dirty: dict[int, None] = {}

    def touch(self, start: int, end: int) -> None:
        for sector in range(start // SECTOR, (end + SECTOR - 1) // SECTOR):
            self.dirty[sector] = None

    def sync(self) -> None:
        """What was dropped by a sync that failed is not dirty, and stays what it was on the disk."""
        durable, data = self.durable, self.data
        del durable[len(data) :]
        durable.extend(bytes(len(data) - len(durable)))
        for sector in self.dirty:
            start = sector * SECTOR
            piece = data[start : start + SECTOR]
            durable[start : start + len(piece)] = piece
        self.dirty.clear()

    def after_crash(self, draw: random.Random) -> bytes:
        """The durable image with a drawn subset of the unsynced sectors and one of the two sizes."""
        size = len(self.data) if draw.random() < 0.5 else len(self.durable)
        image = bytearray(self.durable[:size])
        image.extend(bytes(size - len(image)))
        for sector in self.dirty:
            start = sector * SECTOR
            if start < size and draw.random() < 0.5:
                stop = start + SECTOR if draw.random() >= _TORN else draw.randrange(start, start + SECTOR)
                piece = self.data[start : min(stop, size)]
                image[start : start + len(piece)] = piece
        return bytes(image)


class _SimFile(MemoryFile):
    """A handle; after a crash of its disk every call fails, as the process that held it is gone."""

    __slots__ = ("_content", "_era", "_sim")

    def __init__(self, disk: SimDisk, path: str, content: _Content) -> None:
        super().__init__(disk, path, content.data)
        self._sim = disk
        self._content = content
        self._era = disk.era

    def _call(self, what: str) -> None:
        if self._era != self._sim.era:
            raise OSError(errno.EBADF, "this handle is from before the crash", self.path)
        self._sim.call(what, self.path)

    def pread(self, size: int, offset: int) -> bytes:
        self._call("pread")
        return super().pread(size, offset)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        data = b"".join(buffers)
        try:
            self._call("pwritev")
        except OSError as error:
            if error.errno != errno.EBADF:
                self._write(data[: self._sim.part_of(len(data))], offset)
            raise
        room = self._sim.room() + max(0, len(self._data) - offset)
        full = len(data) > room
        if full:
            data = data[:room]
        self._write(data, offset)
        if full:
            raise OSError(errno.ENOSPC, "No space left on device", self.path)

    def _write(self, data: bytes, offset: int) -> None:
        super().pwritev([data], offset)
        self._content.touch(offset, offset + len(data))

    def fdatasync(self) -> None:
        try:
            self._call("fdatasync")
        except OSError:
            # As Linux does: the pages count as clean although they never reached the disk.
            self._content.dirty.clear()
            raise
        self._content.sync()

    def allocate(self, size: int) -> None:
        self._call("allocate")
        if size - len(self._data) > self._sim.room():
            raise OSError(errno.ENOSPC, "No space left on device", self.path)
        if size > len(self._data):
            super().truncate(size)

    def truncate(self, size: int) -> None:
        self._call("truncate")
        if size - len(self._data) > self._sim.room():
            raise OSError(errno.ENOSPC, "No space left on device", self.path)
        cut = len(self._data)
        super().truncate(size)
        self._content.touch(size, cut)  # zeros, should it grow again


class _Died(BaseException):
    """The process ended in the middle of a job; nothing catches it."""


class SimDisk(MemoryDisk):
    """MemoryDisk with faults.

    ``crash()`` is a power cut: each unsynced sector is kept, torn or lost, and so are names that were created, renamed
    or removed without ``fsync_dir`` (in order within a directory). ``process_died()`` is a kill -9: bytes stay, locks
    and handles go. Both strike in the middle of the job that runs: it has made a drawn number of its calls.
    ``fail(after, code)`` makes the call number ``calls + after`` fail, a write with a part of it done; ``capacity``
    bounds the bytes of all files; ``latency`` is what a job given to ``run``, or a ``sync``, takes, (least, most)
    seconds: raise it for a slow disk.
    """

    def __init__(self, seed: int = 0, *, capacity: int = 1 << 40) -> None:
        super().__init__()
        self.capacity = capacity
        self.latency = (0.00005, 0.0005)
        #: Calls made so far, and their names, for scripts that fail each in turn.
        self.calls = 0
        self.era = 0
        self._draw = random.Random(seed)
        self._contents: dict[int, _Content] = {}
        self._names: dict[str, bytearray] = {}  # as they would be found after a crash
        self._unsynced_names: dict[str, list[list[tuple[str, bytearray | None]]]] = {}
        self._failures: dict[int, int] = {}
        self._busy_until = 0.0
        self._calls_left: int | None = None
        self._jobs: deque[tuple[asyncio.Future[Any], Callable[..., Any], tuple[object, ...]]] = deque()

    # -- faults
    # ---------------------------------------------------------------------------------------------------------

    def fail(self, after: int = 1, code: int = errno.EIO) -> None:
        """Fail the ``after``-th call from now (1 is the next) with OSError ``code``."""
        self._failures[self.calls + after] = code

    def clear_failures(self) -> None:
        """Forget those that have not struck."""
        self._failures.clear()

    def crash(self) -> None:
        """Lose power: see the class."""
        self.process_died()
        for operations in self._unsynced_names.values():
            for group in operations[: self._draw.randrange(len(operations) + 1)]:
                self._apply(group)
        self._unsynced_names.clear()
        survivors = {path: self._content(data).after_crash(self._draw) for path, data in self._names.items()}
        self._contents.clear()
        self.files = {}
        for path, image in survivors.items():
            data = self.files[path] = bytearray(image)
            self._content(data).durable = bytearray(image)
        self._names = dict(self.files)

    def process_died(self) -> None:
        """The process that used the disk was killed: its locks and handles are gone, the kernel keeps its writes.

        Call this or ``crash`` whenever the SimHost that uses the disk is killed.
        """
        if self._jobs:
            self._break_off(*self._jobs[0][1:])
        self.era += 1
        self.locks.clear()
        self._jobs.clear()
        self._busy_until = 0.0

    # -- what files call
    # ------------------------------------------------------------------------------------------------

    def _break_off(self, fn: Callable[..., Any], args: tuple[object, ...]) -> None:
        """The first calls of the job that runs, as many as are drawn. What it does after that reaches no disk."""
        self._calls_left = self._draw.randrange(_MOST_CALLS)
        try:
            fn(*args)
        except BaseException as error:
            if not isinstance(error, (_Died, Exception)):
                raise
        finally:
            self._calls_left = None

    def call(self, what: str, path: str) -> None:
        if self._calls_left is not None:
            if not self._calls_left:
                raise _Died
            self._calls_left -= 1
        self.calls += 1
        code = self._failures.pop(self.calls, None)
        if code is not None:
            raise OSError(code, f"{os.strerror(code)} (simulated in {what})", path)

    def part_of(self, size: int) -> int:
        """How much of a write that fails arrives: often nothing, never all."""
        return self._draw.randrange(size) if size and self._draw.random() < 0.75 else 0

    def room(self) -> int:
        return max(0, self.capacity - sum(map(len, self.files.values())))

    def _content(self, data: bytearray) -> _Content:
        content = self._contents.get(id(data))
        if content is None:
            content = self._contents[id(data)] = _Content(data)
        return content

    # -- MemoryDisk
    # -----------------------------------------------------------------------------------------------------

    def _open(self, path: str, data: bytearray) -> File:
        return _SimFile(self, path, self._content(data))

    def open(self, path: str, *, create: bool = False) -> File:
        self.call("open", path)
        new = not self.exists(path)
        file = super().open(path, create=create)
        if new:
            name = self._path(path)
            self._changed(name, [(name, self.files[name])])
        return file

    def rename(self, source: str, target: str) -> None:
        self.call("rename", source)
        if self.is_dir(source):
            super().rename(source, target)
            self._names = dict(self.files)  # whole directories are moved only by maintenance; taken as durable at once
            self._unsynced_names.clear()
            return
        super().rename(source, target)
        source, target = self._path(source), self._path(target)
        self._changed(target, [(source, None), (target, self.files[target])])

    def unlink(self, path: str) -> None:
        self.call("unlink", path)
        super().unlink(path)
        name = self._path(path)
        self._changed(name, [(name, None)])

    def fsync_dir(self, path: str) -> None:
        self.call("fsync_dir", path)
        super().fsync_dir(path)
        for group in self._unsynced_names.pop(self._path(path), []):
            self._apply(group)

    def free_bytes(self, path: str) -> int:
        return min(self.free, self.room())

    def _changed(self, name: str, group: list[tuple[str, bytearray | None]]) -> None:
        self._unsynced_names.setdefault(os.path.dirname(name), []).append(group)

    def _apply(self, group: list[tuple[str, bytearray | None]]) -> None:
        for name, data in group:
            if data is None:
                self._names.pop(name, None)
            else:
                self._names[name] = data

    def run(self, fn: Callable[..., T], *args: object) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._busy_until = max(loop.time(), self._busy_until) + self._draw.uniform(*self.latency)
        # Jobs wait in a queue, not in the timers, which fire in any order when they are due in one instant.
        self._jobs.append((future, fn, args))
        loop.call_at(self._busy_until, self._job, self.era)
        return future

    def sync(self, file: File) -> asyncio.Future[None]:
        # As the kernel does it: begun at once, in no order with the jobs.
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        loop.call_later(self._draw.uniform(*self.latency), self._end, self.era, future, file.fdatasync, ())
        return future

    def _job(self, era: int) -> None:
        if era == self.era:
            self._end(era, *self._jobs.popleft())

    def _end(self, era: int, future: asyncio.Future[T], fn: Callable[..., T], args: tuple[object, ...]) -> None:
        if era != self.era:
            return  # the process died before its job began
        try:
            result = fn(*args)
        except Exception as error:  # noqa: BLE001 - whoever awaits the job gets its error
            if not future.done():
                future.set_exception(error)
            return
        if not future.done():
            future.set_result(result)
