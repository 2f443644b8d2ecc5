"""fdatasync by Linux itself, with no thread: one that syncs waits for the interpreter before and after, and a busy loop
lets it wait longer than the disk does."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import platform
import struct
import sys
from typing import Final, NamedTuple

__all__ = ("KernelSync",)


class _Calls(NamedTuple):
    setup: int
    destroy: int
    getevents: int
    submit: int


#: Numbers of the system calls: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h.
_CALLS: Final = {"x86_64": _Calls(206, 207, 208, 209), "aarch64": _Calls(0, 1, 4, 2)}
#: ``struct iocb`` and ``struct io_event`` of include/uapi/linux/aio_abi.h, which is the same for both.
_BLOCK: Final = struct.Struct("<QIiHhIQQqQII")
_EVENT: Final = struct.Struct("<QQqq")
_FDSYNC: Final = 3  # IOCB_CMD_FDSYNC, since Linux 4.18
_TELL: Final = 1  # IOCB_FLAG_RESFD: the eventfd learns the end
#: Syncs that may be under way at once, at least, and ends that one call tells of. A log has one.
_ROOM: Final = 16


class KernelSync:
    """Syncs of files for ``loop``. OSError where the machine has none (another system, a sandbox, a limit)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        calls = _CALLS.get(platform.machine()) if sys.platform == "linux" and sys.maxsize > 1 << 32 else None
        if calls is None:
            raise OSError(errno.ENOSYS, f"no asynchronous fdatasync on {sys.platform} {platform.machine()}")
        self.loop = loop
        self._calls = calls
        self._system = ctypes.CDLL(None, use_errno=True)["syscall"]
        self._system.argtypes, self._system.restype = (ctypes.c_long,) * 6, ctypes.c_long
        self._block = ctypes.create_string_buffer(_BLOCK.size)
        self._blocks = ctypes.c_void_p(ctypes.addressof(self._block))
        self._events = ctypes.create_string_buffer(_EVENT.size * _ROOM)
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._number = 0
        context = ctypes.c_ulong()
        self._ended = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._call(calls.setup, _ROOM, ctypes.addressof(context))
        except OSError:
            os.close(self._ended)
            raise
        self._context = context.value
        loop.add_reader(self._ended, self._tell)

    def _call(self, number: int, first: int, second: int = 0, *others: int) -> int:
        result: int = self._system(number, first, second, *others, *(0,) * (3 - len(others)))
        if result < 0:
            raise OSError(ctypes.get_errno(), f"{os.strerror(ctypes.get_errno())} (system call {number})")
        return result

    def sync(self, file: int) -> asyncio.Future[None]:
        """Done when the data of the descriptor is durable, or with the OSError that says why not. OSError at once when
        the kernel does not take it, which says nothing about the file."""
        number = self._number = self._number + 1
        future = self._waiting[number] = self.loop.create_future()  # what finds no memory, finds it before
        _BLOCK.pack_into(self._block, 0, number, 0, 0, _FDSYNC, 0, file, 0, 0, 0, 0, _TELL, self._ended)
        try:
            self._call(self._calls.submit, self._context, 1, ctypes.addressof(self._blocks))
        except OSError:
            del self._waiting[number]
            raise
        return future

    def _tell(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._ended)
        count = _ROOM
        while count == _ROOM:  # the eventfd does not tell of the rest again
            try:
                count = self._call(self._calls.getevents, self._context, 0, _ROOM, ctypes.addressof(self._events))
            except (
                InterruptedError
            ):  # a signal, and nothing to tell: what had ended was told before its eventfd said so
                return
            for at in range(0, count * _EVENT.size, _EVENT.size):
                number, _, result, _ = _EVENT.unpack_from(self._events, at)
                future = self._waiting.pop(number)
                if future.done():
                    continue
                if result < 0:
                    future.set_exception(OSError(-result, os.strerror(-result)))
                else:
                    future.set_result(None)

    async def close(self) -> None:
        """Return when the syncs under way have ended."""
        try:
            if self._waiting:
                await asyncio.wait(self._waiting.values())
        finally:
            self.loop.remove_reader(self._ended)
            self._call(self._calls.destroy, self._context)
            os.close(self._ended)
