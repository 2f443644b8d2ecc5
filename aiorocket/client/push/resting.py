"""What failed and is tried again in place: for how long it rests, and what rests now."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

from aiorocket.client.core.delays import seconds_of
from aiorocket.client.exits import Retry
from aiorocket.config import DELAY_LEVELS
from aiorocket.runtime.deadlines import DeadlineDriver

__all__ = ("Resting", "rest_after")

L = TypeVar("L")


def rest_after(error: BaseException | None, default: float) -> float:
    """Seconds to rest after ``error``: what Retry asks for, but no longer than the longest level; else ``default``."""
    if isinstance(error, Retry):
        if error.delay_level is not None:
            return seconds_of(error.delay_level) if error.delay_level > 0 else default
        if error.after is not None:
            return min(error.after, DELAY_LEVELS[-1])
    return default


class Resting(Generic[L]):
    """Each for its own time, all by one timer. ``rested`` is called with what has rested, in order of that."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rested: Callable[[L], None]) -> None:
        self._loop = loop
        self._rested = rested
        # The number keeps those of one moment in their order, and two of them from being compared.
        self._heap: list[tuple[float, int, L]] = []
        self._number = 0
        self._driver = DeadlineDriver(loop, self._next, self._on_deadline)

    def add(self, each: L, seconds: float) -> None:
        self._number += 1
        heapq.heappush(self._heap, (self._loop.time() + seconds, self._number, each))
        self._driver.update()

    def close(self) -> None:
        """Forget all, for good."""
        self._heap.clear()
        self._driver.close()

    def _next(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def _on_deadline(self, now: float) -> None:
        while self._heap and self._heap[0][0] <= now:
            self._rested(heapq.heappop(self._heap)[2])
