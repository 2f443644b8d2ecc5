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


class _Line:
    """The pulls to one broker: those under way, and those that wait for their turn."""

    __slots__ = ("pulls", "turns")

    def __init__(self) -> None:
        self.pulls = 0
        self.turns: deque[asyncio.Future[None]] = deque()


class Backlog:
    """``acquire`` before a pull that will be answered at once, ``release`` after it, ``notify`` when messages left the
    line. ``waiting`` counts the messages that no worker has begun.

    The pulls to each broker have a line of their own: those to one that does not answer keep their places until they
    time out, and must not hold up the others'.
    """

    def __init__(self, limit: int, pull_size: int, waiting: Callable[[], int]) -> None:
        self._limit = limit
        self._pull_size = pull_size
        self._waiting = waiting
        self._lines: dict[str, _Line] = {}

    async def acquire(self, broker: str) -> None:
        """Wait for room, first come first served."""
        line = self._lines.get(broker)
        if line is None:
            line = self._lines[broker] = _Line()
        if not line.turns and self._room(line):
            line.pulls += 1
            return
        turn = asyncio.get_running_loop().create_future()
        line.turns.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(broker)
            raise

    def release(self, broker: str) -> None:
        line = self._lines[broker]
        line.pulls -= 1
        self._go_on(line)

    def notify(self) -> None:
        """Let as many go on as there is room for."""
        for line in self._lines.values():
            if line.turns:
                self._go_on(line)

    def _go_on(self, line: _Line) -> None:
        while line.turns and self._room(line):
            turn = line.turns.popleft()
            if not turn.done():
                line.pulls += 1
                turn.set_result(None)

    def _room(self, line: _Line) -> bool:
        used = line.pulls * self._pull_size + self._waiting()
        # The first one always, or a limit below one pull would stop everything.
        return not used or used + self._pull_size <= self._limit
