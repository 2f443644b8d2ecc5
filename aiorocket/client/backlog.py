"""How many messages may be on their way to the workers, over all queues of a consumer.

Every queue has limits of its own (1,000 messages, 100 MiB), but a thousand queues with a backlog would fill the memory
with half a million messages that no worker gets to for seconds; what each costs then doubles with the caches it misses
(`python -m bench.run queues`). So pulls that will bring messages take turns; a long poll on an empty queue does not.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

__all__ = ("Backlog",)


class Backlog:
    """``acquire`` before a pull that will be answered at once, ``release`` after it, ``tell`` when messages left the
    line. ``waiting`` counts the messages that no worker has begun."""

    def __init__(self, limit: int, pull_size: int, waiting: Callable[[], int]) -> None:
        self._limit = limit
        self._pull_size = pull_size
        self._waiting = waiting
        self._pulls = 0
        self._line: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> None:
        """Wait for room, first come first served."""
        if not self._line and self._room():
            self._pulls += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()
            raise

    def release(self) -> None:
        self._pulls -= 1
        self.tell()

    def tell(self) -> None:
        """Let as many go on as there is room for."""
        while self._line and self._room():
            turn = self._line.popleft()
            if not turn.done():
                self._pulls += 1
                turn.set_result(None)

    def _room(self) -> bool:
        used = self._pulls * self._pull_size + self._waiting()
        # The first one always, or a limit below one pull would stop everything.
        return not used or used + self._pull_size <= self._limit
