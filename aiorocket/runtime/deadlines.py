"""Deadlines without a timer each: one armed ``call_at`` stands for any number of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from math import inf
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
    """Deadlines of the futures in ``waiting``, in one FIFO per timeout length, swept by one timer.

    ``waiting`` is the owner's: taking a key out of it settles the entry. The FIFOs hold keys, never futures, because an
    answered future holds its answer: kept here until its deadline, half a megabyte of every pull would stay in memory
    (measured: 257 MiB in a draining consumer, and half of its time in page faults). An answered request costs an append
    and a popleft instead of a timer (0.2 us instead of 2).

    At its deadline an unsettled key is taken out of ``waiting`` and ``expired(future, what, timeout)`` is called; a
    cancelled one is only taken out.
    """

    #: More lengths than this share FIFOs of lengths rounded up to this step, so that odd timeouts cannot make the sweep
    #: long.
    MAX_LENGTHS = 16
    STEP = 0.05

    __slots__ = ("_armed", "_expired", "_fifos", "_handle", "_loop", "_prune_at", "_waiting")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        waiting: dict[int, asyncio.Future[Any]],
        expired: Callable[[asyncio.Future[Any], W, float], None],
    ) -> None:
        self._loop = loop
        self._waiting = waiting
        self._expired = expired
        self._fifos: dict[float, deque[tuple[float, int, W]]] = {}
        self._handle: asyncio.TimerHandle | None = None
        self._armed = inf
        self._prune_at = 1024

    def add(self, timeout: float, key: int, what: W) -> None:
        """Watch ``waiting[key]`` for ``timeout`` seconds (rounded up by at most ``STEP`` when very many lengths are in
        use)."""
        fifo = self._fifos.get(timeout)
        if fifo is None:
            timeout, fifo = self._open(timeout)
        deadline = self._loop.time() + timeout
        fifo.append((deadline, key, what))
        if deadline < self._armed:
            self._arm(deadline)
        elif len(fifo) > self._prune_at:
            # Under load the timer fires rarely and would meet a long queue of answered requests; take them in small
            # bites.
            self._prune(fifo)
            self._prune_at = max(1024, 2 * len(fifo))

    def __len__(self) -> int:
        return sum(map(len, self._fifos.values()))

    def _open(self, timeout: float) -> tuple[float, deque[tuple[float, int, W]]]:
        if len(self._fifos) >= self.MAX_LENGTHS and timeout < inf:
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

    def _prune(self, fifo: deque[tuple[float, int, W]]) -> None:
        """Drop what is settled at the front."""
        waiting = self._waiting
        while fifo:
            key = fifo[0][1]
            future = waiting.get(key)
            if future is not None:
                if not future.done():
                    return
                del waiting[key]  # cancelled: nobody wants the answer
            fifo.popleft()

    def _sweep(self) -> None:
        now = max(self._loop.time(), self._armed)
        self._handle, self._armed = None, inf
        late: list[tuple[asyncio.Future[Any], W, float]] = []
        following = inf
        for timeout, fifo in list(self._fifos.items()):
            self._prune(fifo)
            while fifo and fifo[0][0] <= now:
                _, key, what = fifo.popleft()
                late.append((self._waiting.pop(key), what, timeout))
                self._prune(fifo)
            if not fifo:
                del self._fifos[timeout]
            else:
                following = min(following, fifo[0][0])
        if following < inf:
            self._arm(following)
        for future, what, timeout in late:
            # What the first one's end led to (a connection given up) may have settled the others.
            if not future.done():
                self._expired(future, what, timeout)

    def close(self) -> None:
        """Forget every entry and disarm; the futures are left as they are."""
        self._fifos.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle, self._armed = None, inf
