"""How many messages may be on their way to the workers, over all queues of a consumer.

Every queue has limits of its own (1,000 messages, 100 MiB), but a thousand queues with a backlog would fill the memory
with half a million messages that no worker gets to for seconds; what each costs then doubles with the caches it misses
(`python -m bench.run queues`). So pulls that will bring messages take turns; a long poll on an empty queue does not.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable

__all__ = ("Backlog",)


class _Line:
    """The pulls of one topic to one broker: those under way, and those that wait for their turn."""

    __slots__ = ("pulls", "topic", "turns")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.pulls = 0
        self.turns: deque[asyncio.Future[None]] = deque()


class _Broker:
    """Its lines by topic; ``waiting`` are those in which somebody waits, who released last comes last."""

    __slots__ = ("lines", "pulls", "waiting")

    def __init__(self) -> None:
        self.pulls = 0
        self.lines: dict[str, _Line] = {}
        self.waiting: dict[str, _Line] = {}


class Backlog:
    """``acquire`` before a pull that will be answered at once, ``release`` after it, ``notify`` when messages left the
    line. ``waiting`` counts the messages that no worker has begun; ``idle`` says whether none of them is for those who
    take messages of a topic.

    The pulls to each broker are counted apart: those to one that does not answer keep their places until they time out,
    and must not hold up the others'. Nor must a listener that is slow, or hangs: one that has nothing to do gets a pull
    at a time, however much waits for others.
    """

    def __init__(self, limit: int, pull_size: int, waiting: Callable[[], int], idle: Callable[[str], bool]) -> None:
        self._limit = limit
        self._pull_size = pull_size
        self._waiting = waiting
        self._idle = idle
        self._brokers: defaultdict[str, _Broker] = defaultdict(_Broker)

    async def acquire(self, broker: str, topic: str) -> None:
        """Wait for room, first come first served within a topic."""
        at = self._brokers[broker]
        line = at.lines.get(topic)
        if line is None:
            line = at.lines[topic] = _Line(topic)
        if not line.turns and self._room(line, at.pulls, self._waiting()):
            line.pulls += 1
            at.pulls += 1
            return
        turn = asyncio.get_running_loop().create_future()
        line.turns.append(turn)
        at.waiting[topic] = line
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(broker, topic)
            raise

    def release(self, broker: str, topic: str) -> None:
        at = self._brokers[broker]
        at.lines[topic].pulls -= 1
        at.pulls -= 1
        if topic in at.waiting:
            at.waiting[topic] = at.waiting.pop(topic)
        self._go_on(at)

    def notify(self) -> None:
        """Let as many go on as there is room for."""
        for at in self._brokers.values():
            self._go_on(at)

    def _go_on(self, at: _Broker) -> None:
        if not at.waiting:
            return
        messages, served = self._waiting(), []
        for line in at.waiting.values():
            while line.turns and self._room(line, at.pulls, messages):
                turn = line.turns.popleft()
                if not turn.done():
                    line.pulls += 1
                    at.pulls += 1
                    turn.set_result(None)
            if not line.turns:
                served.append(line.topic)
        for topic in served:
            del at.waiting[topic]

    def _room(self, line: _Line, pulls: int, messages: int) -> bool:
        used = pulls * self._pull_size + messages
        # The first one always, or a limit below one pull would stop everything.
        return not used or used + self._pull_size <= self._limit or (not line.pulls and self._idle(line.topic))
