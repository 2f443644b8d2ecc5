"""Messages to listeners: N workers over one deque.

No task, timer or timeout scope per message (4 to 25 times the cost of a worker that takes the next one). A worker
that finds nothing waits on a future of its own; a put wakes as many as there are messages. Deadlines are swept, see
``sweep``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from aiorocket.client.exits import Skip
from aiorocket.client.message import Message
from aiorocket.client.router import Handler
from aiorocket.client.state import Counters
from aiorocket.model import Queue
from aiorocket.runtime.tasks import TaskScope

__all__ = ("Delivery", "Failure")

log = logging.getLogger("aiorocket.client")

#: Messages a worker handles without a suspension before it lets the loop turn: a listener that never waits must not
#: keep heartbeats and pull answers away.
_TURN = 128

_NEVER = float("inf")


class Failure(Protocol):
    """What a consumer does with messages whose listener failed."""

    async def failed(self, message: Message, error: Exception, max_attempts: int | None) -> None: ...

    async def expired(self, message: Message, max_attempts: int | None) -> None: ...


class _Slot:
    """One worker: what it works on, and since when."""

    __slots__ = ("deadline", "expired", "seen", "seen_at", "task", "work")

    def __init__(self) -> None:
        self.work: Message | list[Message] | None = None
        self.deadline = _NEVER
        self.expired = False
        # Of the sweep: what was in work then, and when it was first seen there.
        self.seen: object = None
        self.seen_at = 0.0
        self.task: asyncio.Task[None] | None = None


class Delivery:
    """The workers of one listener. ``timeout`` cancels a handler that runs longer; the sweep's consume timeout does
    not."""

    def __init__(
        self,
        handler: Handler,
        *,
        name: str,
        concurrency: int,
        batch_size: int,
        timeout: float | None,
        max_attempts: int | None,
        failure: Failure,
        counters: Counters,
    ) -> None:
        self.name = name
        self._handler = handler
        self._concurrency = concurrency
        self._batch_size = batch_size
        self._timeout = timeout
        self._max_attempts = max_attempts
        self._failure = failure
        self._counters = counters
        self._ready: deque[Message] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._slots = [_Slot() for _ in range(concurrency)]
        self._stopping = False
        self._cancelling = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self, scope: TaskScope) -> None:
        """Start the workers in ``scope``, whose loop is the running one."""
        self._loop = asyncio.get_running_loop()
        worker = self._work_in_batches if self._batch_size > 1 else self._work
        for number, slot in enumerate(self._slots):
            slot.task = scope.start(worker(slot), name=f"{self.name}/{number}")

    def put(self, messages: Sequence[Message]) -> None:
        """Hand over messages. Hot: one call per pull answer."""
        self._ready.extend(messages)
        idle = self._idle
        if idle:
            wanted = (len(messages) + self._batch_size - 1) // self._batch_size
            for _ in range(min(wanted, len(idle))):
                waiter = idle.pop()
                if not waiter.done():
                    waiter.set_result(None)

    @property
    def waiting(self) -> int:
        return len(self._ready)

    @property
    def in_work(self) -> int:
        """Messages a handler has now."""
        return sum(len(slot.work) if type(slot.work) is list else slot.work is not None for slot in self._slots)

    async def revoke(self, queue: Queue, timeout: float) -> bool:
        """Concurrent handlers of a queue that was given up finish without effect; nobody waits for them."""
        return True

    async def drain(self, timeout: float) -> bool:
        """Begin nothing more and wait for the handlers that run, at most ``timeout`` seconds; then cancel them.
        Messages that wait are left unfinished. True when every handler ended by itself."""
        self._stopping = True
        self._ready.clear()
        for waiter in self._idle:
            if not waiter.done():
                waiter.set_result(None)
        self._idle.clear()
        tasks = [slot.task for slot in self._slots if slot.task is not None]
        if not tasks:
            return True
        _, pending = await asyncio.wait(tasks, timeout=timeout)
        self._cancelling = bool(pending)
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)
        if self._timer is not None:
            self._timer.cancel()
        return not pending

    async def sweep(self, now: float, limit: float) -> None:
        """Give up on messages whose handler has run for ``limit`` seconds: they go back to the broker, the handler
        runs on and its result counts as late."""
        for slot in self._slots:
            work = slot.work
            if work is None or work is not slot.seen:
                slot.seen, slot.seen_at = work, now
            elif now - slot.seen_at >= limit:
                slot.seen_at = now
                for message in list(work) if type(work) is list else [work]:
                    await self._failure.expired(message, self._max_attempts)  # type: ignore[arg-type]

    # -- workers --

    async def _work(self, slot: _Slot) -> None:
        ready, handler, counters = self._ready, self._handler, self._counters
        timeout = self._timeout
        turn = _TURN
        while not self._stopping:
            while ready:
                message = ready.popleft()
                holder = message.holder
                if holder is None or holder.dropped:
                    counters.dropped += 1
                    continue
                slot.work = message
                if timeout is not None:
                    self._arm(slot, timeout)
                try:
                    await handler(message)
                except asyncio.CancelledError:
                    if not self._took_back(slot):
                        raise
                    await self._fail(slot, message, TimeoutError(f"the handler was cancelled after {timeout} s"))
                except Exception as error:  # noqa: BLE001 - any failure of a listener is a retry
                    await self._fail(slot, message, error)
                else:
                    if not holder.done(message):
                        counters.late += 1
                if timeout is not None:
                    self._disarm(slot)
                turn -= 1
                if not turn:
                    turn = _TURN
                    slot.work = None
                    await asyncio.sleep(0)
                if self._stopping:
                    break
            slot.work = None
            if not self._stopping:
                await self._idle_wait()

    async def _work_in_batches(self, slot: _Slot) -> None:
        ready, handler, counters = self._ready, self._handler, self._counters
        timeout, size = self._timeout, self._batch_size
        while not self._stopping:
            while ready:
                batch: list[Message] = []
                while ready and len(batch) < size:
                    message = ready.popleft()
                    if message.settled:
                        counters.dropped += 1
                    else:
                        batch.append(message)
                if not batch:
                    break
                slot.work = batch
                if timeout is not None:
                    self._arm(slot, timeout)
                try:
                    await handler(batch)
                except asyncio.CancelledError:
                    if not self._took_back(slot):
                        raise
                    await self._fail_all(slot, batch, TimeoutError(f"the handler was cancelled after {timeout} s"))
                except Exception as error:  # noqa: BLE001 - any failure of a listener is a retry
                    await self._fail_all(slot, batch, error)
                else:
                    for message in batch:
                        holder = message.holder
                        if holder is None or not holder.done(message):
                            counters.late += 1
                if timeout is not None:
                    self._disarm(slot)
                slot.work = None
                # A batch is worth a turn of the loop, and a pull that comes in meanwhile makes the next one fuller.
                await asyncio.sleep(0)
                if self._stopping:
                    break
            if not self._stopping:
                await self._idle_wait()

    async def _idle_wait(self) -> None:
        waiter = self._loop.create_future()
        self._idle.append(waiter)
        await waiter

    async def _fail(self, slot: _Slot, message: Message, error: Exception) -> None:
        slot.deadline = _NEVER
        slot.work = None
        if isinstance(error, Skip):
            self._counters.skipped += 1
            holder = message.holder
            if holder is not None:
                holder.done(message)
        elif not self._cancelling:
            # What fails because we cancel it at our own end is not the message's fault: it is left as it is, never
            # sent back.
            await self._failure.failed(message, error, self._max_attempts)

    async def _fail_all(self, slot: _Slot, batch: list[Message], error: Exception) -> None:
        for message in batch:
            await self._fail(slot, message, error)

    # -- handler timeouts: one timer per listener --

    def _arm(self, slot: _Slot, timeout: float) -> None:
        slot.deadline = self._loop.time() + timeout
        if self._timer is None:
            self._timer = self._loop.call_at(slot.deadline, self._on_deadline)

    def _disarm(self, slot: _Slot) -> None:
        slot.deadline = _NEVER
        if slot.expired:
            # The handler ended before the cancellation reached it, or swallowed it.
            self._took_back(slot)

    def _on_deadline(self) -> None:
        # All deadlines have the same length, so the armed one is never later than any that was set after it.
        self._timer = None
        now = self._loop.time()
        following = _NEVER
        for slot in self._slots:
            if slot.deadline <= now:
                slot.deadline = _NEVER
                slot.expired = True
                if slot.task is not None:
                    slot.task.cancel()
            elif slot.deadline < following:
                following = slot.deadline
        if following != _NEVER:
            self._timer = self._loop.call_at(following, self._on_deadline)

    def _took_back(self, slot: _Slot) -> bool:
        """Was this cancellation the timeout's own, and only that?"""
        if not slot.expired:
            return False
        slot.expired = False
        self._counters.timed_out += 1
        return slot.task is None or slot.task.uncancel() == 0
