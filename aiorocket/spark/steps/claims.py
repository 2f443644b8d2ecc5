"""One run at a time: what a step holds while it writes to a folder, so that a second run of it is refused.

On local and mounted disks it is a lock of the operating system on ``_claims/NAME.lock``, which ends with its process.
Object stores, and some mounted disks, have none: there each run puts a file of its own below ``_claims/NAME``, then
looks who else has one. Whoever sees another's that is renewed gives way; one that nobody renews for ``_TAKE`` seconds
is of a run that died, and is removed. An owner that could not renew for ``_TRUST`` seconds does not write any more.
Ages are by the store's clock.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from threading import Lock
from time import perf_counter
from typing import Protocol
from urllib.parse import quote

from aiorocket.runtime.entropy import Entropy
from aiorocket.runtime.threads import in_thread
from aiorocket.spark import bridge
from aiorocket.spark.steps.folder import Folder
from aiorocket.spark.steps.manifest import ArchiveConflictError

__all__ = ("Claim", "claim")

_CLAIMS = "_claims"
#: Seconds: between two renewals; how long an owner trusts the last one; from what age on others take a claim away.
_RENEW, _TRUST, _TAKE = 15.0, 60.0, 90.0
#: How often whoever waits looks, in seconds.
_LOOK = 1.0


class Claim(Protocol):
    def check(self) -> None:
        """Before what counts is written. ArchiveConflictError when the claim was lost."""


@contextmanager
def claim(folder: Folder, name: str) -> Iterator[Claim]:
    """Holds ``name`` in ``folder`` for as long as the block runs. ArchiveConflictError when another run, a thread's or
    any process's, holds it: at once on a disk, within ``_RENEW`` seconds in an object store. There it waits, up to
    ``_TAKE`` seconds, when the owner of a claim seems to be dead."""
    name = quote(name, safe="")
    taken: _Locked | _Renewed | None = _Locked.take(folder, name) if folder.local else None
    if taken is None:
        taken = _Renewed(folder, f"{_CLAIMS}/{name}")
        taken.take()
    try:
        yield taken
    finally:
        taken.release()


def _who() -> bytes:
    return f"process {os.getpid()} on {socket.gethostname()}".encode()


def _refused(folder: Folder, name: str, by: str) -> ArchiveConflictError:
    return ArchiveConflictError(
        f"{folder.location}: another run is at work here ({by or 'it does not say who'}; "
        f"{name.rpartition('/')[2]}): nothing was changed. Let it end, or stop it"
    )


class _Locked:
    """A lock on a file, which stays: to remove it would let two runs lock two files of one name."""

    def __init__(self, file: int, unlock: Callable[[], object]) -> None:
        self._file = file
        self._unlock = unlock
        self._pid = os.getpid()

    @classmethod
    def take(cls, folder: Folder, name: str) -> _Locked | None:
        """None where the file system has no locks."""
        try:
            import fcntl
        except ImportError:  # Windows
            return None
        folder.make(_CLAIMS)
        file = os.open(folder.full(f"{_CLAIMS}/{name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            by = os.pread(file, 1000, 0).decode(errors="replace")
            os.close(file)
            raise _refused(folder, name, by) from None
        except OSError:
            os.close(file)
            return None
        with suppress(OSError):  # a full disk: then it does not say who
            os.ftruncate(file, 0)
            os.pwrite(file, _who(), 0)
        return cls(file, partial(fcntl.flock, file, fcntl.LOCK_UN))

    def check(self) -> None:
        """It is held until it is released."""

    def release(self) -> None:
        if self._pid == os.getpid():  # a child of a fork has the same lock: it would keep it, or give it away
            self._unlock()
        os.close(self._file)


class _Renewed:
    def __init__(self, folder: Folder, place: str) -> None:
        self._folder = folder
        self._place = place
        self._own = Entropy().token(8).hex()
        self._file = f"{place}/{self._own}"
        self._busy = Lock()
        self._over = False
        self._renewing: Future[None] | None = None
        #: When the last renewal began.
        self._at = 0.0

    def take(self) -> None:
        self._put()
        began, put_ms = perf_counter(), self._folder.changed_ms(self._file)
        first: dict[str, int] = {}
        try:
            while others := self._others():
                now_ms = put_ms + (perf_counter() - began) * 1000
                for other, at_ms in others.items():
                    if first.setdefault(other, at_ms) != at_ms:
                        raise _refused(self._folder, self._place, self._told(other))
                    if now_ms - at_ms > _TAKE * 1000:
                        self._folder.remove(f"{self._place}/{other}")
                # Of some that wait for each other the first by name shows that it lives, and the others give way.
                if self._own < min(others) or perf_counter() - self._at > _RENEW:
                    self._put()
                bridge.call(asyncio.sleep, _LOOK)
            self.check()
        except BaseException:
            self.release()
            raise
        self._renewing = bridge.begin(self._renew)

    def check(self) -> None:
        if self._over or perf_counter() - self._at > _TRUST or not self._folder.exists(self._file):
            self._over = True
            raise ArchiveConflictError(
                f"{self._folder.uri(self._file)} was not renewed for {_TRUST:g} s or was removed: another run may be "
                "at work here now, and nothing more is written"
            )

    def release(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        with self._busy, suppress(OSError):  # a renewal that is on the way would bring the file back
            self._over = True
            self._folder.remove(self._file)

    def _others(self) -> dict[str, int]:
        """Who else has a claim, and when it was renewed."""
        names = [name for name in self._folder.names(self._place) if name != self._own]
        found = {name: self._folder.changed_ms(f"{self._place}/{name}") for name in names}
        return {name: at_ms for name, at_ms in found.items() if at_ms}

    def _told(self, other: str) -> str:
        try:
            return self._folder.read(f"{self._place}/{other}").decode(errors="replace")
        except FileNotFoundError:
            return ""

    async def _renew(self) -> None:
        while not self._over:
            await asyncio.sleep(_RENEW)
            try:
                await in_thread(self._again)
            except OSError:
                continue  # the store is away: ``check`` knows how long

    def _again(self) -> None:
        with self._busy:
            if self._over or perf_counter() - self._at > _TRUST or not (before := self._folder.changed_ms(self._file)):
                return
            at = perf_counter()
            self._folder.put(self._file, _who())
            # One that took so long may have brought back a file that another run had removed.
            if self._folder.changed_ms(self._file) - before > _TAKE * 1000:
                self._over = True
            self._at = at

    def _put(self) -> None:
        at = perf_counter()
        self._folder.put(self._file, _who())
        self._at = at
