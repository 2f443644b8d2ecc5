"""Messages to listeners: N workers over one deque.

No task, timer or timeout scope per message (4 to 25 times the cost of a worker that takes the next one). A worker
that finds nothing waits on a future of its own; a put wakes as many as there are messages. Deadlines are swept, see
``sweep``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from aiorocket.client.core.stats import ConsumeStats
from aiorocket.client.exits import Skip, failure_of
from aiorocket.client.message import Message, Source
from aiorocket.client.push.calls import Call, Failures, SingleCall
from aiorocket.client.push.hooks import ConsumeContext, ConsumeHook, ConsumeReturnType, run_after, run_before
from aiorocket.client.push.router import Handler
from aiorocket.client.state import Counters
from aiorocket.errors import UsageError
from aiorocket.model import Queue
from aiorocket.runtime.clock import Clock
from aiorocket.runtime.tasks import TaskScope

__all__ = ("LAST_PATIENCE", "Delivery", "Failure", "Slot", "Surroundings", "check_concurrency", "end_workers")

log = logging.getLogger("aiorocket.client")

#: Messages a worker handles without a suspension before it lets the loop turn: a listener that never waits must not
#: keep heartbeats and pull answers away.
_TURN = 128

#: How long a cancelled handler may take to end before the end of its consumer goes on without it.
LAST_PATIENCE = 5.0

_NEVER = float("inf")


class Failure(Protocol):
    """What a consumer does with messages whose listener failed."""

    async def failed(self, message: Message, error: Exception, max_attempts: int | None) -> None: ...

    async def expired(self, message: Message, max_attempts: int | None) -> None: ...

    async def give_up(self, message: Message, max_attempts: int | None) -> bool: ...

    def note(self, message: Message, error: Exception) -> None: ...


@dataclass(slots=True, kw_only=True)
class Surroundings:
    """What the deliveries of one consumer share."""

    group: str
    failure: Failure
    counters: Counters
    stats: ConsumeStats
    clock: Clock
    hooks: Sequence[ConsumeHook] = ()
    namespace: str = ""
    consume_timeout: float = _NEVER
    #: Called now and then when messages have left the line; see backlog.py.
    moved: Callable[[], None] = lambda: None


class Slot:
    """One worker: what it works on, and since when."""

    __slots__ = ("begun", "deadline", "expired", "failed", "left", "since", "source", "stop", "task", "work")

    def __init__(self) -> None:
        self.work: Message | list[Message] | None = None
        self.task: asyncio.Task[None] | None = None
        #: End with what is in work.
        self.stop = False
        self.deadline = _NEVER
        self.expired = False
        # Of the statistics: a run of messages of one source. `left` counts down to the end of the turn; a run has
        # `begun - left` messages so far, `failed` of them failed.
        self.left = _TURN
        self.begun = _TURN
        self.failed = 0
        self.since = 0.0
        self.source: Source | None = None


class Delivery:
    """The workers of one listener. ``timeout`` cancels a handler that runs longer; the sweep's consume timeout does
    not. ``call`` is how the handler takes its messages; a batch is of one queue with ``one_queue``."""

    def __init__(
        self,
        handler: Handler,
        *,
        name: str,
        concurrency: int,
        surroundings: Surroundings,
        batch_size: int = 1,
        timeout: float | None = None,
        max_attempts: int | None = None,
        call: Callable[[Handler, list[Message]], Call] = SingleCall,
        one_queue: bool = False,
    ) -> None:
        self.name = name
        self._handler = handler
        self._around = surroundings
        self._counters = surroundings.counters
        self._batch_size = batch_size
        self._timeout = timeout
        self._max_attempts = max_attempts
        self._new_call = call
        self._one_queue = one_queue
        self._ready: deque[Message] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._slots = [Slot() for _ in range(concurrency)]
        self._numbered = 0
        self._scope: TaskScope | None = None
        self._draining = False
        self._cancelling = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self, scope: TaskScope) -> None:
        """Start the workers in ``scope``, whose loop is the running one."""
        self._loop = asyncio.get_running_loop()
        self._scope = scope
        self._around.stats.sources.append(self.count)
        for slot in self._slots:
            self._start(slot, scope)

    def _start(self, slot: Slot, scope: TaskScope) -> None:
        slot.task = scope.start(self._run(slot), name=f"{self.name}/{self._numbered}")
        self._numbered += 1

    def set_concurrency(self, concurrency: int) -> None:
        """So many handlers at once from now on. Surplus workers end with what they have in work."""
        check_concurrency(concurrency)
        working = [slot for slot in self._slots if not slot.stop]
        for slot in working[concurrency:]:
            slot.stop = True
        missing = concurrency - len(working)
        for slot in self._slots if missing > 0 else ():
            if slot.stop and missing > 0:
                slot.stop = False
                missing -= 1
        for _ in range(missing):
            slot = Slot()
            self._slots.append(slot)
            if self._scope is not None and not self._draining:
                self._start(slot, self._scope)
        # Those that shall end have to notice; the others go back to sleep.
        self._wake(len(self._idle))

    def put(self, messages: Sequence[Message]) -> None:
        """Hand over messages. Hot: one call per pull answer."""
        self._ready.extend(messages)
        if self._idle:
            self._wake((len(messages) + self._batch_size - 1) // self._batch_size)

    @property
    def waiting(self) -> int:
        return len(self._ready)

    @property
    def backlog(self) -> int:
        """Messages that the next free worker could begin."""
        return len(self._ready)

    @property
    def concurrency(self) -> int:
        """How many handlers may run at once."""
        return sum(not slot.stop for slot in self._slots)

    @property
    def in_work(self) -> int:
        """Messages a handler has now."""
        return sum(len(slot.work) if type(slot.work) is list else slot.work is not None for slot in self._slots)

    async def revoke(self, queue: Queue, timeout: float) -> bool:
        """Concurrent handlers of a queue that was given up finish without effect; nobody waits for them."""
        return True

    async def drain(self, timeout: float) -> bool:
        """Begin nothing more and wait for the handlers that run, at most ``timeout`` seconds; then cancel them, see
        ``end_workers``. Messages that wait are left unfinished. True when every handler ended by itself."""
        self._draining = True
        self._ready.clear()
        tasks = [slot.task for slot in self._slots if slot.task is not None]
        for slot in self._slots:
            slot.stop = True
        self._wake(len(self._idle))
        pending: set[asyncio.Task[None]] = set()
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=timeout)
        self._cancelling = bool(pending)
        await end_workers(pending, self.name)
        if self._timer is not None:
            self._timer.cancel()
        return not pending

    async def sweep(self, now: float, limit: float) -> None:
        """Give up on messages whose handler has run for ``limit`` seconds: they go back to the broker, the handler
        runs on and its result counts as late."""
        for slot in list(self._slots):
            work = slot.work
            if work is None:
                continue
            messages = list(work) if isinstance(work, list) else [work]
            # By the start of this call: a message that nobody took back may have had others in this slot before.
            if now - messages[0].begun >= limit:
                for message in messages:
                    if not message.settled:
                        await self._around.failure.expired(message, self._max_attempts)

    # -- workers --

    async def _run(self, slot: Slot) -> None:
        simple = self._new_call is SingleCall and self._batch_size == 1 and not self._around.hooks
        try:
            await (self._work(slot) if simple else self._work_by_call(slot))
        finally:
            self._slots.remove(slot)
            # A wake-up that was meant for this one must not get lost.
            if self._ready and not self._draining:
                self._wake(1)

    async def _work(self, slot: Slot) -> None:
        # Hot: 1.3 us a message, so the statistics are of a run and no call stands between worker and handler.
        ready, handler, counters = self._ready, self._handler, self._counters
        timeout, now = self._timeout, self._loop.time
        left, run = slot.left, None
        while not slot.stop:
            while ready:
                message = ready.popleft()
                holder = message.holder
                if holder is None or holder.dropped:
                    counters.dropped += 1
                    continue
                if holder is not run:
                    run = holder
                    self._begin_run(slot, message.source)
                slot.work = message
                message.begun = now()
                if timeout is not None:
                    self._arm(slot, timeout)
                try:
                    await handler(message)
                except BaseException as error:  # noqa: BLE001 - any failure of a listener is a retry
                    await self._fail(slot, message, self._failure(slot, error))
                else:
                    if not holder.done(message):
                        counters.late += 1
                if timeout is not None:
                    self._disarm(slot)
                left -= 1
                slot.left = left
                if not left:
                    slot.work = None
                    slot.begun += _TURN
                    slot.left = left = _TURN
                    paused = self._loop.time()
                    self._around.moved()
                    await asyncio.sleep(0)
                    # The others' turn is not this listener's time.
                    slot.since += self._loop.time() - paused
                if slot.stop:
                    break
            slot.work = run = None
            self._end_run(slot)
            if not slot.stop:
                await self._idle_wait()

    async def _work_by_call(self, slot: Slot) -> None:
        while not slot.stop:
            messages = self._take()
            if not messages:
                await self._idle_wait()
                continue
            failures = await self._call(slot, messages)
            await self._settle(slot, messages, failures)
            slot.left -= 1
            if self._batch_size > 1 or slot.left <= 0:
                # A batch is worth a turn of the loop, and a pull that comes in meanwhile makes the next one fuller.
                slot.left = _TURN
                self._around.moved()
                await asyncio.sleep(0)

    def _take(self) -> list[Message]:
        """The next batch, empty when there is none to begin with now."""
        ready, size = self._ready, self._batch_size
        batch: list[Message] = []
        while ready and len(batch) < size:
            if self._one_queue and batch and ready[0].source is not batch[0].source:
                break
            message = ready.popleft()
            if message.settled:
                self._counters.dropped += 1
            else:
                batch.append(message)
        return batch

    async def _call(self, slot: Slot, messages: list[Message]) -> Failures:
        """One call of the handler with its hooks and statistics; what failed of it."""
        around, timeout = self._around, self._timeout
        slot.work = messages
        call = self._new_call(self._handler, messages)
        context: ConsumeContext | None = None
        if around.hooks:
            context = ConsumeContext(
                around.namespace, around.group, messages[0].queue, messages, around.clock.wall_ms()
            )
            run_before(around.hooks, context)
        began = self._loop.time()
        for message in messages:
            message.begun = began
        if timeout is not None:
            self._arm(slot, timeout)
        try:
            failures = await call.run()
        except BaseException as error:  # noqa: BLE001 - any failure of a listener is a retry
            failures = call.failed(self._failure(slot, error))
        if timeout is not None:
            self._disarm(slot)
        slot.work = None
        elapsed = self._loop.time() - began
        failed = sum(not isinstance(error, Skip) for _, error in failures)
        source = messages[0].source
        source.last_consume = began + elapsed
        around.stats.consumed(source.queue.topic, len(messages) - failed, failed, 1000 * elapsed)
        if context is not None:
            kind = call.kind
            if elapsed >= around.consume_timeout and kind in (ConsumeReturnType.SUCCESS, ConsumeReturnType.FAILED):
                kind = ConsumeReturnType.TIME_OUT
            context.status = call.status
            context.success = call.kind is ConsumeReturnType.SUCCESS
            run_after(around.hooks, context, kind)
        return failures

    async def _settle(self, slot: Slot, messages: list[Message], failures: Failures) -> None:
        failed = {message for message, _ in failures}
        for message in messages:
            if message not in failed:
                holder = message.holder
                if holder is None or not holder.done(message):
                    self._counters.late += 1
        for message, error in failures:
            await self._fail(slot, message, error)

    async def _idle_wait(self) -> None:
        waiter = self._loop.create_future()
        self._idle.append(waiter)
        self._around.moved()
        await waiter

    def _wake(self, wanted: int) -> None:
        idle = self._idle
        while wanted > 0 and idle:
            waiter = idle.pop()
            if not waiter.done():
                waiter.set_result(None)
                wanted -= 1

    async def _fail(self, slot: Slot, message: Message, error: Exception) -> None:
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
            began = self._loop.time()
            await self._around.failure.failed(message, error, self._max_attempts)
            slot.since += self._loop.time() - began
            slot.failed += 1

    def _failure(self, slot: Slot, error: BaseException) -> Exception:
        """Why a call failed. The worker's own cancellation is raised on."""
        if isinstance(error, asyncio.CancelledError) and self._took_back(slot):
            return TimeoutError(f"the handler was cancelled after {self._timeout} s")
        return failure_of(error, slot.task)

    # -- statistics --

    def count(self, now: float) -> None:
        """Before a sample: add what workers have done in runs that go on."""
        for slot in self._slots:
            if slot.source is not None and slot.begun != slot.left:
                self._count(slot, slot.source, now)

    def _begin_run(self, slot: Slot, source: Source) -> None:
        self._end_run(slot)
        slot.source = source
        slot.since = self._loop.time()
        slot.begun = slot.left
        slot.failed = 0

    def _end_run(self, slot: Slot) -> None:
        if slot.source is not None:
            self._count(slot, slot.source, self._loop.time())
            slot.source = None

    def _count(self, slot: Slot, source: Source, now: float) -> None:
        handled, failed = slot.begun - slot.left, slot.failed
        elapsed = 1000 * (now - slot.since)
        source.last_consume = now
        self._around.stats.consumed(source.queue.topic, handled - failed, failed, elapsed, handled)
        slot.begun = slot.left
        slot.since = now
        slot.failed = 0

    # -- handler timeouts: one timer per listener --

    def _arm(self, slot: Slot, timeout: float) -> None:
        slot.deadline = self._loop.time() + timeout
        if self._timer is None:
            self._timer = self._loop.call_at(slot.deadline, self._on_deadline)

    def _disarm(self, slot: Slot) -> None:
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

    def _took_back(self, slot: Slot) -> bool:
        """Was this cancellation the timeout's own, and only that?"""
        if not slot.expired:
            return False
        slot.expired = False
        self._counters.timed_out += 1
        return slot.task is None or slot.task.uncancel() == 0


async def end_workers(tasks: Collection[asyncio.Task[None]], name: str) -> None:
    """Cancel workers and wait for them. Not for long: a plain function runs on in its thread, and what has been done
    must be stored before a service manager loses its patience."""
    for task in tasks:
        task.cancel()
    if tasks:
        _, resisting = await asyncio.wait(tasks, timeout=LAST_PATIENCE)
        if resisting:
            log.warning("%s: %d handlers run on although they were cancelled", name, len(resisting))


def check_concurrency(concurrency: int) -> None:
    """UsageError unless 1 to 1024."""
    if not 1 <= concurrency <= 1024:
        raise UsageError(f"concurrency={concurrency}: 1 to 1024")
