"""In order per key, parallel across keys, without a broker's lock.

Messages with equal keys wait in a lane; workers take lanes, not messages. A message that fails is not sent back,
because the later ones of its key would overtake it: its lane rests for a while and then tries it again here, up to
``max_attempts``, while other lanes flow; after that it goes to the dead letters and its lane goes on. The price: a key
that keeps failing holds back the committed offset of its queue, and pulling stops when the span limit is reached.

Order holds within one consumer. While a queue changes hands nobody waits for anybody: the next member begins at the
committed offset, perhaps while a handler of the last one still runs, so what was not committed runs twice and may
overlap. The member that gives up begins nothing more and commits what its running handlers finish (``revoke``), which
keeps that small. Who needs more wants an orderly listener and its lock. Attempts made here are known here only. There
is no consume timeout (the next of the key could not begin before the late one ends): give the listener a ``timeout``.

Bounded: a lane exists while it has messages, and those are within the flow-control limits.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from aiorocket.client.exits import DeadLetter, Retry, Skip
from aiorocket.client.message import Message, exit_level
from aiorocket.client.push.delivery import Delivery, Slot, Surroundings
from aiorocket.client.push.router import Handler
from aiorocket.config import DELAY_LEVELS
from aiorocket.model import Queue
from aiorocket.runtime.deadlines import DeadlineDriver
from aiorocket.runtime.tasks import TaskScope

__all__ = ("KeyedDelivery",)

#: Messages of one key a worker handles before other keys get a turn.
_RUN = 32
#: Messages a worker handles without a suspension before it lets the loop turn.
_TURN = 128


class _Lane:
    """The waiting messages of one key; the first may be in work. ``key`` is None for a message without order."""

    __slots__ = ("key", "messages")

    def __init__(self, key: Hashable, message: Message) -> None:
        self.key = key
        self.messages = deque((message,))


class KeyedDelivery(Delivery):
    """See the module. ``order_by`` names the key of a message, None for no order; ``suspend`` is how long a key rests
    after a failure that does not say it itself (``Retry(after=...)``). A key that cannot be hashed, or an ``order_by``
    that raises, is a failure of the message, which goes back to the broker like that of any listener."""

    def __init__(
        self,
        handler: Handler,
        *,
        order_by: Callable[[Any], object],
        suspend: float,
        limit: int,
        surroundings: Surroundings,
        **options: Any,
    ) -> None:
        super().__init__(handler, surroundings=surroundings, **options)
        self._order_by = order_by
        self._suspend = suspend
        self._limit = limit
        self._lanes: dict[Hashable, _Lane] = {}
        self._runnable: deque[_Lane] = deque()
        self._resting: list[tuple[float, int, _Lane]] = []
        self._rested = 0
        self._unkeyed: dict[Message, Exception] = {}
        self._revoked: set[Queue] = set()
        self._ended: list[asyncio.Future[None]] = []

    def start(self, scope: TaskScope) -> None:
        super().start(scope)
        self._driver = DeadlineDriver(self._loop, self._next_rested, self._on_rested)

    def put(self, messages: Sequence[Message]) -> None:
        if self._draining:
            return
        if self._revoked and messages:
            # The queue came back, and with it a new assignment.
            self._revoked.discard(messages[0].source.queue)
        lanes, runnable = self._lanes, self._runnable
        before = len(runnable)
        for message in messages:
            key: Hashable = None
            try:
                key = self._order_by(message)
                lane = None if key is None else lanes.get(key)
            except Exception as error:  # noqa: BLE001 - the application's function
                self._unkeyed[message] = error
                key = lane = None
            if lane is not None:
                lane.messages.append(message)
                continue
            lane = _Lane(key, message)
            if key is not None:
                lanes[key] = lane
            runnable.append(lane)
        self._wake(len(runnable) - before)

    @property
    def waiting(self) -> int:
        lanes = {id(lane): lane for lane in (*self._lanes.values(), *self._runnable)}
        return sum(len(lane.messages) for lane in lanes.values()) - self.in_work

    @property
    def keys(self) -> int:
        """Keys that have messages now."""
        return len(self._lanes)

    async def revoke(self, queue: Queue, timeout: float) -> bool:
        """Begin nothing more of ``queue``; wait for its running handlers, so that what they finish is committed."""
        self._revoked.add(queue)
        deadline = self._loop.time() + timeout
        while self._runs(queue):
            left = deadline - self._loop.time()
            if left <= 0:
                return False
            ended = self._loop.create_future()
            self._ended.append(ended)
            await asyncio.wait([ended], timeout=left)
        return True

    async def drain(self, timeout: float) -> bool:
        self._driver.close()
        self._runnable.clear()
        self._resting.clear()
        self._lanes.clear()
        self._unkeyed.clear()
        return await super().drain(timeout)

    async def sweep(self, now: float, limit: float) -> None:
        """No consume timeout by key: see the module."""

    # -- workers --

    async def _run(self, slot: Slot) -> None:
        try:
            await self._work_by_key(slot)
        finally:
            self._slots.remove(slot)
            if self._runnable and not self._draining:
                self._wake(1)

    async def _work_by_key(self, slot: Slot) -> None:
        runnable = self._runnable
        while not slot.stop:
            if not runnable:
                await self._idle_wait()
                continue
            lane = runnable.popleft()
            rest = await self._run_lane(slot, lane)
            if rest is not None:
                self._rested += 1
                heapq.heappush(self._resting, (self._loop.time() + rest, self._rested, lane))
                self._driver.update()
            elif lane.messages:
                runnable.append(lane)
                if slot.stop:
                    break
            elif lane.key is not None and self._lanes.get(lane.key) is lane:
                del self._lanes[lane.key]
            if slot.left <= 0:
                # Handlers that never wait must not keep the loop.
                slot.left = _TURN
                await asyncio.sleep(0)

    async def _run_lane(self, slot: Slot, lane: _Lane) -> float | None:
        """Handle what waits in a lane, up to a fair share. Seconds the lane must rest, None when it need not."""
        messages = lane.messages
        for _ in range(_RUN):
            if not messages or slot.stop:
                return None
            slot.left -= 1
            message = messages[0]
            if message.settled or (self._revoked and message.source.queue in self._revoked):
                self._counters.dropped += 1
                self._unkeyed.pop(message, None)
            else:
                rest = await self._handle(slot, message)
                self._tell_ended()
                if rest is not None:
                    return rest
            messages.popleft()
        return None

    async def _handle(self, slot: Slot, message: Message) -> float | None:
        """One attempt. None when the message is finished, else how long to rest before the next."""
        broken = self._unkeyed.pop(message, None) if self._unkeyed else None
        if broken is not None:
            await self._fail(slot, message, broken)
            return None
        failures = await self._call(slot, [message])
        if not failures:
            holder = message.holder
            if holder is None or not holder.done(message):
                self._counters.late += 1
            return None
        error = failures[0][1]
        if isinstance(error, Skip):
            await self._fail(slot, message, error)
            return None
        if self._cancelling or message.settled:
            return None
        return await self._failed(message, error)

    async def _failed(self, message: Message, error: Exception) -> float | None:
        attempt = message.attempt
        if isinstance(error, DeadLetter) or attempt >= self._limit or exit_level(error) < 0:
            self._around.failure.note(message, error)
            if await self._around.failure.give_up(message, self._max_attempts):
                return None
        elif not isinstance(error, Retry):
            self._around.failure.note(message, error)
        message.local_attempts += 1
        self._counters.suspended += 1
        if isinstance(error, Retry):
            if error.after is not None:
                return error.after
            if error.delay_level:
                return DELAY_LEVELS[min(error.delay_level, len(DELAY_LEVELS)) - 1]
        return self._suspend

    # -- lanes that rest --

    def _next_rested(self) -> float | None:
        return self._resting[0][0] if self._resting else None

    def _on_rested(self, now: float) -> None:
        resting = self._resting
        woken = 0
        while resting and resting[0][0] <= now:
            self._runnable.append(heapq.heappop(resting)[2])
            woken += 1
        self._wake(woken)

    # -- revocation --

    def _runs(self, queue: Queue) -> bool:
        return any(type(slot.work) is list and slot.work[0].source.queue == queue for slot in self._slots)

    def _tell_ended(self) -> None:
        if self._ended:
            for ended in self._ended:
                if not ended.done():
                    ended.set_result(None)
            self._ended.clear()
