"""Deadlines without a timer each: one armed ``call_at`` stands for any number of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ("DeadlineDriver", "TimeoutQueue")

W = TypeVar("W")


class DeadlineDriver:
    """Arms exactly one timer for an object that knows its next deadline.

    ``next_deadline()`` is in loop time, None for never. ``on_deadline(now)`` runs when it has passed; afterwards the
    timer is armed anew. Call ``update()`` whenever the next deadline may have changed.
    """

    __slots__ = ("_armed", "_closed", "_handle", "_loop", "_next", "_on_deadline")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        next_deadline: Callable[[], float | None],
        on_deadline: Callable[[float], None],
    ) -> None:
        self._loop = loop
        self._next = next_deadline
        self._on_deadline = on_deadline
        self._handle: asyncio.TimerHandle | None = None
        self._armed = 0.0
        self._closed = False

    def update(self) -> None:
        """Bring the timer in line with ``next_deadline()``; cheap when nothing changed."""
        if self._closed:
            return
        deadline = self._next()
        if self._handle is not None:
            if deadline == self._armed:
                return
            self._handle.cancel()
            self._handle = None
        if deadline is not None:
            self._armed = deadline
            self._handle = self._loop.call_at(deadline, self._fire)

    def _fire(self) -> None:
        self._handle = None
        try:
            # A loop may wake a hair before the time it was asked for; what was due at the armed time is due now.
            self._on_deadline(max(self._loop.time(), self._armed))
        finally:
            self.update()

    def close(self) -> None:
        """Disarm for good."""
        self._closed = True
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class TimeoutQueue(Generic[W]):
    """Deadlines of futures, in one FIFO per timeout length, swept by one timer.

    Entries of futures that are done are dropped when they reach the front, so that an answered request costs one append
    and one popleft instead of a timer (0.2 us instead of 2). ``expired(future, what, timeout)`` is called once for each
    future that is not done at its deadline; ``dropped(future, what)`` for those that were cancelled in the meantime, if
    given.
    """

    #: More lengths than this share FIFOs of lengths rounded up to this step, so that odd timeouts cannot make the sweep
    #: long.
    MAX_LENGTHS = 16
    STEP = 0.05

    __slots__ = ("_armed", "_dropped", "_expired", "_fifos", "_handle", "_loop", "_pending", "_prune_at")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        expired: Callable[[asyncio.Future[Any], W, float], None],
        dropped: Callable[[asyncio.Future[Any], W], None] | None = None,
    ) -> None:
        self._loop = loop
        self._expired = expired
        self._dropped = dropped
        self._fifos: dict[float, deque[tuple[float, asyncio.Future[Any], W]]] = {}
        self._handle: asyncio.TimerHandle | None = None
        self._armed = 0.0
        self._prune_at = 1024

    def add(self, timeout: float, future: asyncio.Future[Any], what: W) -> None:
        """Watch ``future`` for ``timeout`` seconds, rounded up by at most ``STEP`` when many lengths are in use."""
        fifo = self._fifos.get(timeout)
        if fifo is None:
            timeout, fifo = self._open(timeout)
        deadline = self._loop.time() + timeout
        fifo.append((deadline, future, what))
        if self._handle is None or deadline < self._armed:
            self._arm(deadline)
        elif len(fifo) > self._prune_at:
            # Under load the timer fires rarely and would meet a long queue of answered requests; take them in small
            # bites.
            self._prune(fifo)
            self._prune_at = max(1024, 2 * len(fifo))

    def __len__(self) -> int:
        return sum(map(len, self._fifos.values()))

    def _open(self, timeout: float) -> tuple[float, deque[tuple[float, asyncio.Future[Any], W]]]:
        if len(self._fifos) >= self.MAX_LENGTHS:
            timeout = (timeout // self.STEP + 1) * self.STEP
        fifo = self._fifos.get(timeout)
        if fifo is None:
            fifo = self._fifos[timeout] = deque()
        return timeout, fifo

    def _arm(self, deadline: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._armed = deadline
        self._handle = self._loop.call_at(deadline, self._sweep)

    def _prune(self, fifo: deque[tuple[float, asyncio.Future[Any], W]]) -> None:
        while fifo and fifo[0][1].done():
            _, future, what = fifo.popleft()
            if self._dropped is not None and future.cancelled():
                self._dropped(future, what)

    def _sweep(self) -> None:
        self._handle = None
        now = max(self._loop.time(), self._armed)
        late: list[tuple[asyncio.Future[Any], W, float]] = []
        following: float | None = None
        for timeout, fifo in list(self._fifos.items()):
            self._prune(fifo)
            while fifo and fifo[0][0] <= now:
                _, future, what = fifo.popleft()
                if not future.done():
                    late.append((future, what, timeout))
                self._prune(fifo)
            if not fifo:
                del self._fifos[timeout]
            elif following is None or fifo[0][0] < following:
                following = fifo[0][0]
        if following is not None:
            self._arm(following)
        for future, what, timeout in late:
            self._expired(future, what, timeout)

    def close(self) -> None:
        """Forget every entry and disarm; the futures are left as they are."""
        self._fifos.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
