"""Sends under way: so many at a time, of one sharding key one after the other, and who waits for them to end."""

from __future__ import annotations

import asyncio
from collections import deque

from aiorocket.errors import SendError

__all__ = ("InFlight",)


class InFlight:
    """``count`` sends are under way; ``most`` may be. Who sends adds itself to ``count``, and calls ``ended``."""

    __slots__ = ("_idle", "_room", "_turns", "count", "most", "opening", "waited_for")

    def __init__(self, most: int) -> None:
        self.count = 0
        self.most = most
        #: Sends that have begun and look for their topic, or for room.
        self.opening = 0
        #: Somebody waits for the end of a send.
        self.waited_for = False
        self._room: deque[asyncio.Future[None]] = deque()
        self._idle: list[asyncio.Future[None]] = []
        #: By topic and key of which a message has its turn: whose is next.
        self._turns: dict[tuple[str, str], deque[asyncio.Future[None]]] = {}

    # -- room --

    async def room(self) -> None:
        """Return when there is room for one more; first come, first served. The caller begins its send at once."""
        if self.count < self.most:
            return
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._room.append(waiter)
        self.waited_for = True
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                self.count -= 1  # the place was ours and we cannot take it
                self.ended()
            raise
        self.count -= 1  # the caller counts itself, before anybody else can
        loop.call_soon(self.ended)  # unless what it sends is refused

    def ended(self) -> None:
        """After the end of a send somebody waits for: the next one may begin, or all are done."""
        while self._room and self.count < self.most:
            waiter = self._room.popleft()
            if not waiter.done():
                # Its place is taken from now on, or who sends without a pause would be there first, again and again.
                self.count += 1
                waiter.set_result(None)
        if not self._busy:
            for waiter in self._idle:
                if not waiter.done():
                    waiter.set_result(None)
            self._idle.clear()
        self.waited_for = bool(self._room or self._idle)

    def __enter__(self) -> None:
        """A send under way, when the caller has seen to it that there is room."""
        self.count += 1

    def __exit__(self, *_: object) -> None:
        self.count -= 1
        if self.waited_for:
            self.ended()

    async def idle(self) -> None:
        """Return when no send is under way, and none waits for its turn or its topic."""
        if self._busy:
            waiter = asyncio.get_running_loop().create_future()
            self._idle.append(waiter)
            self.waited_for = True
            await waiter

    @property
    def _busy(self) -> bool:
        return bool(self.count or self.opening or self._turns)

    # -- turns --

    async def turn(self, topic: str, key: str, deadline: float) -> None:
        """Return when it is our turn among the messages of a key; what comes later waits for ``pass_turn``. The place
        in the line counts from the call. SendError at the deadline."""
        line = self._turns.get((topic, key))
        if line is None:
            self._turns[topic, key] = deque()
            return
        turn = asyncio.get_running_loop().create_future()
        line.append(turn)
        try:
            async with asyncio.timeout_at(deadline):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.pass_turn(topic, key)
            if isinstance(error, TimeoutError):
                raise SendError(
                    f"topic {topic!r}: earlier messages of key {key!r} are still unresolved at the timeout",
                    may_be_stored=False,
                ) from None
            raise

    def pass_turn(self, topic: str, key: str) -> None:
        """The turn is over: the next one's begins."""
        line = self._turns[topic, key]
        while line:
            turn = line.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._turns[topic, key]
        if self.waited_for:
            self.ended()
