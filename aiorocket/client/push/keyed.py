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
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from aiorocket.client.exits import DeadLetter, Retry, Skip
from aiorocket.client.message import Message, exit_level
from aiorocket.client.push.calls import Call, Caller, SingleCall, Surroundings
from aiorocket.client.push.resting import Resting, rest_after
from aiorocket.client.push.status import Handler
from aiorocket.client.push.workers import TURN, Worker, Workers
from aiorocket.model import Queue

__all__ = ("KeyedDelivery",)

#: Messages of one key a worker handles before other keys get a turn.
_RUN = 32


class _KeyLane:
    """The waiting messages of one key; the first may be in work. ``key`` is None for a message without order."""

    __slots__ = ("key", "messages")

    def __init__(self, key: Hashable, message: Message) -> None:
        self.key = key
        self.messages = deque((message,))


class KeyedDelivery:
    """See the module; made on the running loop. ``order_by`` names the key of a message, None for no order; ``suspend``
    is how long a key rests after a failure that does not say it itself (``Retry(after=...)``). A key that cannot be
    hashed, or an ``order_by`` that raises, is a failure of the message, which goes back to the broker like that of any
    listener. After ``limit`` deliveries a message goes to the dead letters."""

    def __init__(
        self,
        handler: Handler,
        *,
        order_by: Callable[[Any], object],
        suspend: float,
        limit: int,
        name: str,
        concurrency: int,
        surroundings: Surroundings,
        timeout: float | None = None,
        rate: float | None = None,
        max_attempts: int | None = None,
        call: Callable[[Handler, list[Message]], Call] = SingleCall,
    ) -> None:
        self.workers = Workers(
            name, concurrency, self._work, scope=surroundings.scope, counters=surroundings.counters, timeout=timeout,
            rate=rate,
        )  # fmt: skip
        self._caller = Caller(handler, call, self.workers, surroundings, max_attempts)
        self._around = surroundings
        self._counters = surroundings.counters
        self._max_attempts = max_attempts
        self._order_by = order_by
        self._suspend = suspend
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[Hashable, _KeyLane] = {}
        self._runnable: deque[_KeyLane] = deque()
        self._resting = Resting(self._loop, self._rested)
        self._unkeyed: dict[Message, Exception] = {}
        self._revoked: set[Queue] = set()
        self._ended: list[asyncio.Future[None]] = []

    def put(self, messages: Sequence[Message]) -> None:
        if self.workers.draining:
            return
        if self._revoked and messages:
            # The queue came back, and with it a new assignment.
            self._revoked.discard(messages[0]._source.queue)
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
            lane = _KeyLane(key, message)
            if key is not None:
                lanes[key] = lane
            runnable.append(lane)
        self.workers.wake(len(runnable) - before)

    @property
    def waiting(self) -> int:
        lanes = {id(lane): lane for lane in (*self._lanes.values(), *self._runnable)}
        return sum(len(lane.messages) for lane in lanes.values()) - self.workers.in_work

    @property
    def backlog(self) -> int:
        """Nothing: what waits here may wait for others of its key."""
        return 0

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
        self._runnable.clear()
        self._resting.close()
        self._lanes.clear()
        self._unkeyed.clear()
        return await self.workers.drain(timeout)

    async def sweep(self, now: float, limit: float) -> None:
        """No consume timeout by key: see the module."""

    # -- workers --

    async def _work(self, worker: Worker) -> None:
        runnable, moved = self._runnable, self._around.moved
        while not worker.stop:
            if not runnable:
                moved()
                await self.workers.idle()
                continue
            lane = runnable.popleft()
            rest = await self._run_lane(worker, lane)
            if rest is not None:
                self._resting.add(lane, rest)
            elif lane.messages:
                runnable.append(lane)
                if worker.stop:
                    break
            elif lane.key is not None and self._lanes.get(lane.key) is lane:
                del self._lanes[lane.key]
            if worker.left <= 0:
                # Handlers that never wait must not keep the loop.
                worker.left = TURN
                await asyncio.sleep(0)

    async def _run_lane(self, worker: Worker, lane: _KeyLane) -> float | None:
        """Handle what waits in a lane, up to a fair share. Seconds the lane must rest, None when it need not."""
        messages = lane.messages
        for _ in range(_RUN):
            if not messages or worker.stop:
                return None
            if self.workers.rate is not None:
                await self.workers.pace()
                if worker.stop:
                    return None
                self.workers.begun(1)
            worker.left -= 1
            message = messages[0]
            if message.settled or (self._revoked and message._source.queue in self._revoked):
                self._counters.dropped += 1
                self._unkeyed.pop(message, None)
            else:
                rest = await self._handle(worker, message)
                self._notify_ended()
                if rest is not None:
                    return rest
            messages.popleft()
        return None

    async def _handle(self, worker: Worker, message: Message) -> float | None:
        """One attempt. None when the message is finished, else how long to rest before the next."""
        broken = self._unkeyed.pop(message, None) if self._unkeyed else None
        if broken is not None:
            await self._caller.failed(message, broken)
            return None
        failures = await self._caller.call(worker, [message])
        if not failures or isinstance(failures[0][1], Skip):
            await self._caller.settle([message], failures)
            return None
        if self.workers.cancelling or message.settled:
            return None
        return await self._failed(message, failures[0][1])

    async def _failed(self, message: Message, error: Exception) -> float | None:
        settlement = self._around.settlement
        if isinstance(error, DeadLetter) or message.attempt >= self._limit or exit_level(error) < 0:
            settlement.note(message, error)
            if await settlement.give_up(message, self._max_attempts, error):
                return None
        elif not isinstance(error, Retry):
            settlement.note(message, error)
        message._local_attempts += 1
        self._counters.suspended += 1
        return rest_after(error, self._suspend)

    def _rested(self, lane: _KeyLane) -> None:
        self._runnable.append(lane)
        self.workers.wake(1)

    # -- revocation --

    def _runs(self, queue: Queue) -> bool:
        return any(type(each.work) is list and each.work[0]._source.queue == queue for each in self.workers.all)

    def _notify_ended(self) -> None:
        if self._ended:
            for ended in self._ended:
                if not ended.done():
                    ended.set_result(None)
            self._ended.clear()
