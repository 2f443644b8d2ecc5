"""The lines of a file or of standard input, one at a time: no file is held in memory, no pipe blocks the loop."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from typing import NamedTuple

from aiorocket.cli.options import BadInputError

__all__ = ("MAX_LINE", "Line", "LineSource")

#: A message body takes 4 MiB at most, on ours and on Apache's brokers unless they are told otherwise.
MAX_LINE = 4 << 20

_CHUNK = 1 << 18


class Line(NamedTuple):
    number: int
    body: bytes


class LineSource:
    """Lines as bytes without their end (``\\n``, ``\\r\\n``); no encoding is assumed. Empty ones are skipped, counted.

    ``path`` is a file's path or ``-`` for standard input. BadInputError names the file, and the line that is too long.
    A regular file is read through once by ``check()`` first, so that nothing has been sent when it cannot be used.
    """

    def __init__(self, path: str, *, limit: int = MAX_LINE) -> None:
        self.name = "standard input" if path == "-" else path
        self.empty = 0
        self._path = path
        self._limit = limit
        self._tail = b""
        self._number = 0

    def check(self) -> int | None:
        """How many lines will come, or None when that is only known at the end (a pipe, a terminal, standard input)."""
        if self._path == "-" or (os.path.exists(self._path) and stat.S_ISFIFO(os.stat(self._path).st_mode)):
            return None  # a FIFO is not even opened: closing it again would end its writer
        fd = self._open()
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            count = 0
            while chunk := self._read(fd):
                count += len(self._split(chunk))
            return count + len(self._last())
        finally:
            self._close(fd)
            self._tail, self._number, self.empty = b"", 0, 0

    async def __aiter__(self) -> AsyncIterator[Line]:
        fd = self._open()
        try:
            mode = os.fstat(fd).st_mode
            waits = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or (stat.S_ISCHR(mode) and os.isatty(fd))
            while True:
                if waits:
                    await _readable(fd)
                chunk = self._read(fd)
                if not chunk:
                    break
                for line in self._split(chunk):
                    yield line
            for line in self._last():
                yield line
        finally:
            self._close(fd)

    def _open(self) -> int:
        if self._path == "-":
            return 0
        try:
            fd = os.open(self._path, os.O_RDONLY)
        except OSError as error:
            raise BadInputError(f"{self.name}: {error.strerror}") from error
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            os.close(fd)
            raise BadInputError(f"{self.name}: is a directory; give a file, or - for standard input")
        return fd

    def _close(self, fd: int) -> None:
        if self._path != "-":
            os.close(fd)

    def _read(self, fd: int) -> bytes:
        try:
            return os.read(fd, _CHUNK)
        except OSError as error:
            raise BadInputError(f"{self.name}: {error.strerror}") from error

    def _split(self, chunk: bytes) -> list[Line]:
        parts = (self._tail + chunk).split(b"\n")
        self._tail = parts.pop()
        lines = [line for part in parts if (line := self._line(part)) is not None]
        if len(self._tail) > self._limit + 1:  # + 1: a \r that may still turn out to be the line's end
            self._number += 1
            self._too_long(len(self._tail))
        return lines

    def _last(self) -> list[Line]:
        """What stands behind the last line end."""
        tail, self._tail = self._tail, b""
        line = self._line(tail) if tail else None
        return [line] if line is not None else []

    def _line(self, part: bytes) -> Line | None:
        self._number += 1
        if part.endswith(b"\r"):
            part = part[:-1]
        if not part:
            self.empty += 1
            return None
        if len(part) > self._limit:
            self._too_long(len(part))
        return Line(self._number, part)

    def _too_long(self, size: int) -> None:
        raise BadInputError(
            f"{self.name}: line {self._number} is longer than {self._limit} bytes ({size} or more), "
            "the largest message body; split it or leave it out"
        )


async def _readable(fd: int) -> None:
    """Wait until a read of ``fd`` returns at once, without touching its flags: another process may share them."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(fd, wake)
    try:
        await ready
    finally:
        loop.remove_reader(fd)
