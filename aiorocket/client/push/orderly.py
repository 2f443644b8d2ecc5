"""Messages to an orderly listener: of each queue one call at a time, in offset order, only under the broker's lock.

Messages wait in a lane per queue. A worker takes a lane, not a message, and stays with it while it has something to
do, so a queue's order and its exclusion cost a flag: no lock is acquired and no task or timer made per message. A lane
that failed rests; one whose lease is lost waits until it is held again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aiorocket.client.exits import DeadLetter, LeaseLost, Retry, Skip, failure_of
from aiorocket.client.message import Message
from aiorocket.client.push.delivery import LAST_PATIENCE, check_concurrency, end_workers
from aiorocket.client.push.hooks import ConsumeContext, ConsumeReturnType, run_after, run_before
from aiorocket.client.push.lanes import Lane, Lanes, LaneState
from aiorocket.client.push.status import ConsumeOrderlyContext, ConsumeOrderlyStatus
from aiorocket.config import DELAY_LEVELS
from aiorocket.model import Queue
from aiorocket.runtime.tasks import TaskScope

if TYPE_CHECKING:
    from aiorocket.client.group.member import Deliverer
    from aiorocket.client.push.leases import Leases
    from aiorocket.client.push.router import Listener

__all__ = ("OrderlyDelivery", "rest_after")

log = logging.getLogger("aiorocket.client")

#: Calls without a suspension before the loop gets its turn, as in delivery.py.
_TURN = 128
#: After this long with one queue a worker lets others have their turn, for a moment, as in Java.
_CONTINUOUS = 60.0
_YIELD = 0.01
#: What a queue may rest after a failure (SuspendCurrentQueueTimeMillis in Java is clamped to the same).
_SHORTEST_REST, _LONGEST_REST = 0.01, 30.0
#: How long a handler that runs on delays the unlock of a queue that was given up (UNLOCK_DELAY_TIME_MILLS).
_UNLOCK_DELAY = 20.0
_NEVER = float("inf")


class _Slot:
    """One worker. ``work`` is what the handler has; ``reason`` why we cancelled it; ``stop`` asks it to begin nothing
    more and end."""

    __slots__ = ("deadline", "reason", "stop", "task", "work")

    def __init__(self) -> None:
        self.work: Sequence[Message] = ()
        self.stop = False
        self.deadline = _NEVER
        self.reason: Exception | None = None
        self.task: asyncio.Task[None] | None = None

    def cancel(self, reason: Exception) -> None:
        """Cancel the handler, once; it finds ``reason`` as the argument of its CancelledError."""
        if self.work and self.reason is None and self.task is not None:
            self.reason = reason
            self.task.cancel(reason)


def rest_after(error: BaseException | None, default: float) -> float:
    """Seconds a queue rests after ``error``: what Retry asks for, else ``default``; 10 ms at least, 30 s at most."""
    rest = default
    if isinstance(error, Retry):
        if error.delay_level is not None:
            level = min(max(error.delay_level, 1), len(DELAY_LEVELS))
            rest = DELAY_LEVELS[level - 1] if error.delay_level > 0 else default
        elif error.after is not None:
            rest = error.after
    return min(max(rest, _SHORTEST_REST), _LONGEST_REST)


class OrderlyDelivery:
    """The Sink of an orderly listener. Queues run in parallel, up to the listener's concurrency."""

    def __init__(self, listener: Listener, consumer: Deliverer) -> None:
        config = consumer.config
        self.name = f"orderly-{listener.topic}"
        self._consumer = consumer
        self._handler = listener.handler
        self._status = listener.status
        self._size = listener.batch_size or config.batch_size
        self._timeout = listener.timeout
        self._max_attempts = listener.max_attempts if listener.on_exhausted == "dead_letter" else None
        self._rest_default = config.suspend if listener.suspend is None else listener.suspend
        self._counters = consumer.counters
        self._concurrency = listener.concurrency or config.concurrency
        self._slots: list[_Slot] = []
        self._unlocking: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False
        self._cancelling = False

    def start(self, scope: TaskScope) -> None:
        """Start the workers in ``scope``, whose loop is the running one."""
        self._scope = scope
        self._loop = asyncio.get_running_loop()
        self._lanes = Lanes(self._loop, lambda: self._consumer.leases)
        self._lanes.on_lost = _cancel_lost
        self.set_concurrency(self._concurrency)

    def set_concurrency(self, concurrency: int) -> None:
        """So many queues at once from now on. Surplus workers end with what they have in work; their queues go on with
        others."""
        check_concurrency(concurrency)
        if self._stopping:
            return
        working = [slot for slot in self._slots if not slot.stop]
        for slot in working[concurrency:]:
            slot.stop = True
        for _ in range(concurrency - len(working)):
            slot = _Slot()
            self._slots.append(slot)
            slot.task = self._scope.start(self._work(slot), name=f"{self.name}/{len(self._slots)}")
        self._lanes.wake_all()

    def put(self, messages: Sequence[Message]) -> None:
        """Take messages of one queue, ascending. Hot: one call per pull answer."""
        if messages:
            self._lanes.put(messages)

    @property
    def waiting(self) -> int:
        return self._lanes.waiting

    @property
    def backlog(self) -> int:
        return 0

    @property
    def in_work(self) -> int:
        """Messages a handler has now."""
        return sum(len(slot.work) for slot in self._slots)

    async def sweep(self, now: float, limit: float) -> None:
        """An orderly call may take as long as it needs: giving its message to another would break the order."""

    # -- the end of an assignment, the end of all --

    async def revoke(self, queue: Queue, timeout: float) -> bool:
        """Begin no further message of the queue and wait up to ``timeout`` seconds for the call that runs. When it runs
        on, the lease is not released before it has ended, and after 20 s it is cancelled (LeaseLost)."""
        lane = self._lanes.get(queue)
        if lane is None:
            return True
        lane.revoked = True
        lane.ready.clear()
        if lane.state != LaneState.BUSY:
            self._lanes.close(lane)
            return True
        if await lane.call_ended(timeout):
            return True
        leases: Leases | None = self._consumer.leases
        if leases is not None:
            leases.hold_back(queue)
            task = self._scope.start(self._unlock_later(lane, leases), name=f"unlock/{queue.topic}/{queue.queue_id}")
            self._unlocking.add(task)
            task.add_done_callback(self._unlocking.discard)
        return False

    async def _unlock_later(self, lane: Lane, leases: Leases) -> None:
        if not await lane.call_ended(_UNLOCK_DELAY):
            if lane.revoked and lane.call is not None:
                lane.call.cancel(LeaseLost(f"{lane.queue} was given up {_UNLOCK_DELAY:g} s ago"))
            await lane.call_ended(None)
        await leases.let_go(lane.queue)

    async def drain(self, timeout: float) -> bool:
        """Begin nothing more and wait for the calls that run, at most ``timeout`` seconds; then cancel them. What waits
        or is not committed is left unfinished. True when every call ended by itself. Afterwards the queues may be
        unlocked; one whose call does not even end then is held back."""
        self._stopping = True
        for slot in self._slots:
            slot.stop = True
        self._lanes.wake_all()
        tasks = [slot.task for slot in self._slots if slot.task is not None]
        pending: set[asyncio.Task[None]] = set()
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=timeout)
        self._cancelling = bool(pending)
        await end_workers(pending, self.name)
        if self._timer is not None:
            self._timer.cancel()
        self._lanes.close_all()
        if self._unlocking:
            await asyncio.wait(self._unlocking, timeout=LAST_PATIENCE)
        return not pending

    # -- workers --

    async def _work(self, slot: _Slot) -> None:
        lanes, runnable = self._lanes, self._lanes.runnable
        plain = self._size == 1 and not self._status and not self._consumer.hooks and self._timeout is None
        consume = self._consume_singly if plain else self._consume
        while not slot.stop:
            while runnable and not slot.stop:
                lane = runnable.popleft()
                if lane.state != LaneState.RUNNABLE:
                    continue
                lane.state = LaneState.BUSY
                lane.call = slot
                try:
                    await consume(slot, lane)
                except asyncio.CancelledError:
                    slot.work = ()
                    lanes.leave(lane)
                    raise
                lanes.leave(lane)
            if not slot.stop:
                await lanes.wait_for_work()
        self._slots.remove(slot)

    async def _consume_singly(self, slot: _Slot, lane: Lane) -> None:
        """Hot: one message a call, no hooks, no timeout, no status."""
        ready, handler, time = lane.ready, self._handler, self._loop.time
        counters, busy = self._counters, LaneState.BUSY
        call: list[Message] = [None]  # type: ignore[list-item]
        began = since = now = time()
        calls, turn = 0, _TURN
        while ready and not lane.revoked and not slot.stop:
            if now >= lane.until and not self._lanes.held(lane, now):
                self._lanes.lock_out(lane)
                break
            message = ready.popleft()
            holder = message.holder
            if holder is None or holder.dropped:
                counters.dropped += 1
                continue
            call[0] = message
            message.begun = now
            slot.work = call
            error: Exception | None = None
            try:
                await handler(message)
            except BaseException as raised:  # noqa: BLE001 - any failure of a listener is a retry
                error = _failure(slot, raised)
            slot.work = ()
            before, now = now, time()
            if slot.reason is not None:
                # It ended in its own way although we cancelled it.
                error = _took_back(slot) or _lease_lost(lane)
            elif now >= lane.until and not self._lanes.held(lane, now):
                error = _lease_lost(lane)  # and it kept the loop from telling it
            if error is not None:
                self._count(lane, calls, 0, since, before, calls)
                calls = 0
                await self._ended_badly(lane, [message], error, before, now)
                since = now = time()
            elif holder.dropped or not holder.done(message):
                counters.late += 1
            else:
                calls += 1
            if lane.ended is not None:
                lane.tell_ended()
            if lane.state != busy:
                break
            turn -= 1
            if not turn:
                turn = _TURN
                self._count(lane, calls, 0, since, now, calls)
                calls = 0
                await asyncio.sleep(0)
                since = now = time()
            if now - began >= _CONTINUOUS:
                if self._lanes.runnable:
                    self._lanes.rest(lane, _YIELD)
                    break
                began = now
        self._count(lane, calls, 0, since, now, calls)

    async def _consume(self, slot: _Slot, lane: Lane) -> None:
        """Everything else: lists, contexts and status, hooks, a timeout."""
        ready, time, size = lane.ready, self._loop.time, self._size
        began = now = time()
        turn = _TURN
        while ready and not lane.revoked and not slot.stop:
            if now >= lane.until and not self._lanes.held(lane, now):
                self._lanes.lock_out(lane)
                break
            batch: list[Message] = []
            while ready and len(batch) < size:
                message = ready.popleft()
                holder = message.holder
                if holder is None or holder.dropped:
                    self._counters.dropped += 1
                else:
                    message.begun = now
                    batch.append(message)
            if batch:
                await self._call(slot, lane, batch, now)
                lane.tell_ended()
                if lane.state != LaneState.BUSY:
                    break
                turn -= len(batch)
                if turn <= 0:
                    turn = _TURN
                    await asyncio.sleep(0)
            now = time()
            if now - began >= _CONTINUOUS:
                if self._lanes.runnable:
                    self._lanes.rest(lane, _YIELD)
                    break
                began = now

    # -- one call --

    async def _call(self, slot: _Slot, lane: Lane, batch: list[Message], began: float) -> None:
        context = ConsumeOrderlyContext(batch[0].queue)
        hooked = self._hooked(lane, batch)
        result: object = ConsumeOrderlyStatus.SUCCESS
        error: Exception | None = None
        slot.work = batch
        if self._timeout is not None:
            self._arm(slot, self._timeout)
        try:
            if self._status:
                result = await self._handler(batch, context)
            else:
                await self._handler(batch if self._size > 1 else batch[0])
        except BaseException as raised:  # noqa: BLE001 - any failure of a listener is a retry
            error = _failure(slot, raised)
        slot.work = ()
        slot.deadline = _NEVER
        ended = self._loop.time()
        if slot.reason is not None:
            # It ended in its own way although we cancelled it. Where that was a timeout, its result stands.
            _took_back(slot)
        if ended >= lane.until and not self._lanes.held(lane, ended):
            error = _lease_lost(lane)
        if error is None and not isinstance(result, ConsumeOrderlyStatus | None):
            error = TypeError(f"an orderly listener returned {result!r}, which is no ConsumeOrderlyStatus")
        if hooked is not None:
            self._unhook(hooked, result, error, ended - began)
        if error is not None or result in (None, ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT):
            await self._ended_badly(lane, batch, error, began, ended, context)
            return
        self._count(lane, len(batch), 0, began, ended, 1)
        if context.auto_commit or result is ConsumeOrderlyStatus.COMMIT:
            self._finish(lane, batch)
        elif result is ConsumeOrderlyStatus.ROLLBACK:
            lane.uncommitted.extend(batch)
            lane.put_back(lane.uncommitted)
            lane.uncommitted = []
            self._lanes.rest(lane, rest_after(None, self._rest_default if context.suspend is None else context.suspend))
        else:
            lane.uncommitted.extend(batch)

    def _finish(self, lane: Lane, batch: Sequence[Message]) -> None:
        """What was consumed is done, ``batch`` last: the position moves behind it."""
        if lane.uncommitted and batch:
            batch = [*lane.uncommitted, *batch]
            lane.uncommitted = []
        for message in batch:
            holder = message.holder
            if holder is None or holder.dropped or not holder.done(message):
                self._counters.late += 1

    async def _ended_badly(
        self, lane: Lane, batch: list[Message], error: Exception | None, began: float, ended: float,
        context: ConsumeOrderlyContext | None = None,
    ) -> None:  # fmt: skip
        """A call did not succeed; ``error`` is None when a status says so."""
        if isinstance(error, LeaseLost):
            log.warning("%s; %d messages will be delivered again", error, len(batch))
            self._counters.late += len(batch)
            # What is not committed is lost with the lease as well: it comes again, in order.
            lane.put_back([*lane.uncommitted, *batch])
            lane.uncommitted.clear()
            return
        if batch[0].settled:
            self._counters.late += len(batch)  # the queue was given up: its next owner decides about them
            return
        if self._cancelling:
            # What fails because we cancel it at our own end is not the message's fault.
            lane.put_back(batch)
            return
        skipped = isinstance(error, Skip)
        self._count(lane, len(batch) if skipped else 0, 0 if skipped else len(batch), began, ended, 1)
        if skipped:
            self._counters.skipped += len(batch)
            over, again = batch, list[Message]()
        else:
            self._log_failure(lane, batch, error)
            over, again = await self._exhausted(batch, error)
        if context is None or context.auto_commit:
            self._finish(lane, over)
        else:
            lane.uncommitted.extend(over)
        if again:
            for message in again:
                message.local_attempts += 1
            self._counters.suspended += len(again)
            lane.put_back(again)
            default = context.suspend if context is not None else None
            self._lanes.rest(lane, rest_after(error, self._rest_default if default is None else default))

    async def _exhausted(self, batch: list[Message], error: Exception | None) -> tuple[list[Message], list[Message]]:
        """Those of ``batch`` that are with the dead letters now, and those to try again: one that no broker takes stays
        in front of its queue, and counts as tried once more."""
        over: list[Message] = []
        again: list[Message] = []
        limit = self._max_attempts
        for message in batch:
            dead = isinstance(error, DeadLetter) or (limit is not None and message.attempt >= limit)
            if dead and await self._consumer.settlement.to_dead_letters(message, limit):
                over.append(message)
            else:
                again.append(message)
        return over, again

    def _log_failure(self, lane: Lane, batch: list[Message], error: Exception | None) -> None:
        first = batch[0]
        if isinstance(error, DeadLetter):
            log.warning("to the dead letters: message %s of %s: %s", first.msg_id, lane.queue, error)
        elif error is not None and not isinstance(error, Retry):
            text = "the orderly listener failed on message %s of %s, attempt %d: the queue waits"
            log.warning(text, first.msg_id, lane.queue, first.attempt, exc_info=error)

    def _count(self, lane: Lane, ok: int, failed: int, began: float, ended: float, calls: int) -> None:
        if calls:
            lane.source.last_consume = ended
            self._consumer.stats.consumed(lane.queue.topic, ok, failed, (ended - began) * 1000, calls)

    # -- hooks --

    def _hooked(self, lane: Lane, batch: list[Message]) -> ConsumeContext | None:
        consumer = self._consumer
        if not consumer.hooks:
            return None
        started = consumer.client.env.clock.wall_ms()
        namespace = consumer.client.config.namespace
        context = ConsumeContext(namespace, consumer.group, batch[0].queue, batch, started)
        run_before(consumer.hooks, context)
        return context

    def _unhook(self, context: ConsumeContext, result: object, error: Exception | None, took: float) -> None:
        suspended = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        status = result if isinstance(result, ConsumeOrderlyStatus) and error is None else suspended
        if isinstance(error, Skip):
            status = ConsumeOrderlyStatus.SUCCESS
        if error is not None and not isinstance(error, Retry | DeadLetter | Skip):
            kind = ConsumeReturnType.EXCEPTION
        elif result is None:
            kind = ConsumeReturnType.RETURNNULL
        elif took >= self._consumer.config.consume_timeout:
            kind = ConsumeReturnType.TIME_OUT
        else:
            kind = ConsumeReturnType.FAILED if status is suspended else ConsumeReturnType.SUCCESS
        context.status = status.value
        context.success = status in (ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.COMMIT)
        run_after(self._consumer.hooks, context, kind)

    # -- handler timeouts: one timer per listener, as in delivery.py --

    def _arm(self, slot: _Slot, timeout: float) -> None:
        slot.deadline = self._loop.time() + timeout
        if self._timer is None:
            self._timer = self._loop.call_at(slot.deadline, self._on_deadline)

    def _on_deadline(self) -> None:
        self._timer = None
        now = self._loop.time()
        for slot in self._slots:
            if slot.deadline <= now:
                slot.deadline = _NEVER
                if slot.reason is None and slot.task is not None:
                    self._counters.timed_out += 1
                    slot.reason = TimeoutError(f"the handler was cancelled after {self._timeout} s")
                    slot.task.cancel()
        following = min((slot.deadline for slot in self._slots), default=_NEVER)
        if following != _NEVER:
            self._timer = self._loop.call_at(following, self._on_deadline)


def _took_back(slot: _Slot) -> Exception | None:
    """Why we cancelled the call; None when we did not, or somebody else has cancelled the worker too."""
    reason, slot.reason = slot.reason, None
    if reason is None or slot.task is None or slot.task.uncancel() != 0:
        return None
    return reason


def _failure(slot: _Slot, raised: BaseException) -> Exception:
    """Why a call failed. The worker's own cancellation is raised on."""
    taken = _took_back(slot) if isinstance(raised, asyncio.CancelledError) else None
    return taken or failure_of(raised, slot.task)


def _lease_lost(lane: Lane) -> LeaseLost:
    return LeaseLost(f"the lock of {lane.queue} was lost while a listener ran")


def _cancel_lost(lane: Lane) -> None:
    if lane.call is not None:
        lane.call.cancel(_lease_lost(lane))
