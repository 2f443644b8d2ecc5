"""One run at a time: what a step holds while it writes to a folder, so that a second run of it is refused.

On local and mounted disks it is a lock of the operating system on ``_claims/NAME.lock``, which ends with its process.
Object stores, and some mounted disks, have none: there each run puts a file of its own below ``_claims/NAME``, then
looks who else has one. Whoever sees another's that is renewed gives way; one that nobody renews for ``_TAKE`` seconds
is of a run that died, and is removed. Where this machine knows that it died, ``_SETTLE`` seconds do. An owner that
could not renew for ``_TRUST`` seconds does not write any more. Ages are by the store's clock.
"""

from __future__ import annotations

import asyncio
import os
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
from aiorocket.spark.steps.files import owners
from aiorocket.spark.steps.files.folder import Folder
from aiorocket.spark.steps.files.manifest import ArchiveConflictError

__all__ = ("Claim", "ClaimLostError", "ClaimStoppedError", "Pace", "claim", "leave_nothing", "look")

_CLAIMS = "_claims"
#: Seconds: between two renewals; how long an owner trusts the last one; from what age on others take a claim away.
_RENEW, _TRUST, _TAKE = 15.0, 60.0, 90.0
#: How long ago a process that is known to be dead must have been seen so, in seconds: what it had sent to the store
#: when it died may still arrive.
_SETTLE = 5.0
#: How often whoever waits looks, in seconds.
_LOOK = 1.0


class ClaimStoppedError(ArchiveConflictError):
    """The run was told to end while it waited for another's claim. Nothing was changed."""


class ClaimLostError(ArchiveConflictError):
    """The run could not renew its claim for too long, or another took it away: it writes nothing more, and may begin
    anew."""


class Claim(Protocol):
    def check(self) -> None:
        """Before what counts is written. ClaimLostError when the claim was lost."""


class Pace(Protocol):
    """Time, in seconds."""

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...

    def every(self, seconds: float, work: Callable[[], object]) -> Callable[[], object]:
        """Begins to call ``work`` in a thread, each time ``seconds`` after it has ended; what is returned ends that."""


class _RealPace:
    now = staticmethod(perf_counter)

    def sleep(self, seconds: float) -> None:
        bridge.call(asyncio.sleep, seconds)

    def every(self, seconds: float, work: Callable[[], object]) -> Callable[[], object]:
        async def run() -> None:
            while True:
                await asyncio.sleep(seconds)
                await in_thread(work)

        running: Future[None] = bridge.begin(run)
        return running.cancel


@contextmanager
def claim(
    folder: Folder,
    name: str,
    *,
    stop: Callable[[], bool] = lambda: False,
    told: Callable[[str], object] = lambda text: None,
    pace: Pace | None = None,
) -> Iterator[Claim]:
    """Holds ``name`` in ``folder`` for as long as the block runs. ArchiveConflictError when another run, a thread's or
    any process's, holds it: at once on a disk, within ``_RENEW`` seconds in an object store. There it waits, up to
    ``_TAKE`` seconds, when the owner of a claim seems to be dead: ``told`` gets a line about each claim that is waited
    for, and when ``stop`` says so the wait ends with ClaimStoppedError."""
    name = quote(name, safe="")
    taken: _Locked | _Renewed | None = _Locked.take(folder, name) if folder.local else None
    if taken is None:
        taken = _Renewed(folder, f"{_CLAIMS}/{name}", pace or _RealPace())
        taken.take(stop, told)
    try:
        yield taken
    finally:
        taken.release()


def look(folder: Folder, name: str) -> None:
    """ArchiveConflictError when a run on this machine's disks holds ``name`` in ``folder``; to be asked before what
    takes long, as it takes nothing and leaves nothing. An object store is not asked: it needs up to ``_RENEW`` s."""
    if folder.local:
        _Locked.look(folder, quote(name, safe=""))


def leave_nothing(folder: Folder, name: str) -> None:
    """Removes the file, and the folder if that is all, by which claims of ``name`` lock a disk, and which stay behind
    them. For whoever holds the claim."""
    if folder.local:
        folder.remove(_lock_of(quote(name, safe="")))
        folder.prune(_CLAIMS)


def _lock_of(name: str) -> str:
    return f"{_CLAIMS}/{name}.lock"


def _refused(folder: Folder, name: str, by: str) -> ArchiveConflictError:
    return ArchiveConflictError(
        f"{folder.location}: another run is at work here ({by}; {name.rpartition('/')[2]}): nothing was changed. "
        "Let it end, or stop it"
    )


class _Locked:
    """A lock on a file, which stays."""

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
        path = folder.full(_lock_of(name))
        while True:
            folder.make(_CLAIMS)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                by = owners.named(os.pread(file, 1000, 0))
                os.close(file)
                raise _refused(folder, name, by) from None
            except OSError:
                os.close(file)
                return None
            # One that its owner removed meanwhile: others lock the next of this name.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file), os.stat(path)):
                    break
            os.close(file)
        with suppress(OSError):  # a full disk: then it does not say who
            os.ftruncate(file, os.pwrite(file, owners.own(), 0))  # in this order: who reads now reads something
        return cls(file, partial(fcntl.flock, file, fcntl.LOCK_UN))

    @staticmethod
    def look(folder: Folder, name: str) -> None:
        try:
            import fcntl

            file = os.open(folder.full(_lock_of(name)), os.O_RDONLY | os.O_CLOEXEC)
        except (ImportError, OSError):  # there is none, or it is not for us to see
            return
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # for a moment: others who look have it as well
        except BlockingIOError:
            raise _refused(folder, name, owners.named(os.pread(file, 1000, 0))) from None
        except OSError:
            return
        finally:
            os.close(file)

    def check(self) -> None:
        """It is held until it is released."""

    def release(self) -> None:
        if self._pid == os.getpid():  # a child of a fork has the same lock: it would keep it, or give it away
            self._unlock()
        os.close(self._file)


class _Renewed:
    def __init__(self, folder: Folder, place: str, pace: Pace) -> None:
        self._folder = folder
        self._place = place
        self._pace = pace
        self._pid = os.getpid()
        self._own = Entropy().token(8).hex()
        self._file = f"{place}/{self._own}"
        self._busy = Lock()
        self._over = False
        self._end_renewing: Callable[[], object] = lambda: None
        #: When the last renewal began.
        self._at = 0.0

    def take(self, stop: Callable[[], bool], told: Callable[[str], object]) -> None:
        self._put()
        began, put_ms = self._pace.now(), self._folder.changed_ms(self._file)
        first, texts, dead_at = dict[str, int](), dict[str, bytes](), dict[str, float]()
        try:
            while others := self._others():
                now = self._pace.now()
                for other, at_ms in others.items():
                    text = texts.get(other) or self._read(other)
                    if first.setdefault(other, at_ms) != at_ms:
                        raise _refused(self._folder, self._place, owners.named(text))
                    age = max(0.0, (put_ms - at_ms) / 1000 + now - began)
                    left = _TAKE - age
                    if owners.is_dead(text):
                        left = min(left, dead_at.setdefault(other, now) + _SETTLE - now)
                    if left < 0:
                        self._folder.remove(f"{self._place}/{other}")
                    elif other not in texts:
                        told(self._waits(text, age, left, gone=other in dead_at))
                    texts[other] = text
                if stop():
                    raise ClaimStoppedError(
                        f"{self._folder.location}: told to end while it waited for the claim of "
                        f"{owners.named(texts[next(iter(others))])}: nothing was changed"
                    )
                # Of some that wait for each other the first by name shows that it lives, and the others give way.
                if self._own < min(others) or self._pace.now() - self._at > _RENEW:
                    self._put()
                self._pace.sleep(_LOOK)
            self.check()
        except BaseException:
            self.release()
            raise
        self._end_renewing = self._pace.every(_RENEW, self._renew)

    def check(self) -> None:
        if self._over or self._pace.now() - self._at > _TRUST or not self._folder.exists(self._file):
            self._over = True
            raise ClaimLostError(
                f"{self._folder.uri(self._file)} was not renewed for {_TRUST:g} s or was removed: another run may be "
                "at work here now, and nothing more is written"
            )

    def release(self) -> None:
        if self._pid != os.getpid():  # a child of a fork: the claim is its parent's
            return
        self._end_renewing()
        with self._busy, suppress(OSError):  # a renewal that is on the way would bring the file back
            self._over = True
            self._folder.remove(self._file)

    def _waits(self, text: bytes, age: float, left: float, *, gone: bool) -> str:
        renewed = f"{self._folder.location}: {owners.named(text)} has a claim here that was renewed {age:.0f} s ago"
        if gone:
            return f"{renewed}, and has died: going on in {left:.0f} s"
        return f"{renewed}: waiting {left:.0f} s at most to see whether it lives"

    def _others(self) -> dict[str, int]:
        """Who else has a claim, and when it was renewed."""
        names = [name for name in self._folder.names(self._place) if name != self._own]
        found = {name: self._folder.changed_ms(f"{self._place}/{name}") for name in names}
        return {name: at_ms for name, at_ms in found.items() if at_ms}

    def _read(self, other: str) -> bytes:
        try:
            return self._folder.read(f"{self._place}/{other}")
        except FileNotFoundError:
            return b""

    def _renew(self) -> None:
        with self._busy, suppress(OSError):  # the store is away: ``check`` knows how long
            if self._over or self._pace.now() - self._at > _TRUST:
                return
            if not (before := self._folder.changed_ms(self._file)):
                return
            at = self._pace.now()
            self._folder.put(self._file, owners.own())
            # One that took so long may have brought back a file that another run had removed.
            if self._folder.changed_ms(self._file) - before > _TAKE * 1000:
                self._over = True
            self._at = at

    def _put(self) -> None:
        at = self._pace.now()
        self._folder.put(self._file, owners.own())
        self._at = at
