"""Messages to an orderly listener: of each queue one call at a time, in offset order, only under the broker's lock.

Messages wait in a lane per queue. A worker takes a lane, not a message, and stays with it while it has something to
do, so a queue's order and its exclusion cost a flag: no lock is acquired and no task or timer made per message. A lane
that failed rests; one whose lease is lost waits until it is held again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from aiorocket.client.exits import DeadLetter, LeaseLost, Retry, Skip
from aiorocket.client.group.leases import Leases
from aiorocket.client.message import Message
from aiorocket.client.push.calls import Surroundings
from aiorocket.client.push.hooks import ConsumeContext, ConsumeReturnType, run_after, run_before
from aiorocket.client.push.lanes import LaneState, QueueLane, QueueLanes
from aiorocket.client.push.resting import rest_after
from aiorocket.client.push.status import ConsumeOrderlyContext, ConsumeOrderlyStatus, Handler
from aiorocket.client.push.workers import LAST_PATIENCE, TURN, Worker, Workers
from aiorocket.model import Queue

__all__ = ("OrderlyDelivery", "queue_rest")

log = logging.getLogger("aiorocket.client")

#: After this long with one queue a worker lets others have their turn, for a moment, as in Java.
_CONTINUOUS = 60.0
_YIELD = 0.01
#: What a queue may rest after a failure (SuspendCurrentQueueTimeMillis in Java is clamped to the same).
_SHORTEST_REST, _LONGEST_REST = 0.01, 30.0
#: How long a handler that runs on delays the unlock of a queue that was given up (UNLOCK_DELAY_TIME_MILLS).
_UNLOCK_DELAY = 20.0


def queue_rest(error: BaseException | None, default: float) -> float:
    """Seconds a queue rests after ``error``: what Retry asks for, else ``default``; 10 ms at least, 30 s at most."""
    return min(max(rest_after(error, default), _SHORTEST_REST), _LONGEST_REST)


class OrderlyDelivery:
    """The Sink of an orderly listener; made on the running loop. Queues run in parallel, up to ``concurrency``. With
    ``status`` the handler takes ``(messages, context)``. ``suspend`` is how long a queue rests after a failure that
    does not say it itself; with ``max_attempts`` deliveries a message goes to the dead letters, without it never.
    ``leases`` is None where queues need no lock."""

    def __init__(
        self,
        handler: Handler,
        *,
        name: str,
        concurrency: int,
        surroundings: Surroundings,
        leases: Leases | None,
        suspend: float,
        status: bool = False,
        batch_size: int = 1,
        timeout: float | None = None,
        rate: float | None = None,
        max_attempts: int | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.workers = Workers(
            name, concurrency, self._work, scope=surroundings.scope, counters=surroundings.counters, timeout=timeout,
            rate=rate,
        )  # fmt: skip
        self._lanes = QueueLanes(loop, leases, lost=_cancel_lost, wake=self.workers.wake)
        self._leases = leases
        self._handler = handler
        self._around = surroundings
        self._counters = surroundings.counters
        self._status = status
        self._size = batch_size
        self._max_attempts = max_attempts
        self._suspend = suspend
        self._loop = loop
        self._unlocking: set[asyncio.Task[None]] = set()

    def put(self, messages: Sequence[Message]) -> None:
        """Take messages of one queue, ascending. Hot: one call per pull answer."""
        if messages:
            self._lanes.put(messages)

    @property
    def waiting(self) -> int:
        return self._lanes.waiting

    @property
    def backlog(self) -> int:
        """Nothing: what waits here waits for what is before it in its queue."""
        return 0

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
        leases = self._leases
        if leases is not None:
            leases.hold_back(queue)
            name = f"unlock/{queue.topic}/{queue.queue_id}"
            task = self._around.scope.start(self._unlock_later(lane, leases), name=name)
            self._unlocking.add(task)
            task.add_done_callback(self._unlocking.discard)
        return False

    async def _unlock_later(self, lane: QueueLane, leases: Leases) -> None:
        if not await lane.call_ended(_UNLOCK_DELAY):
            if lane.revoked and lane.worker is not None:
                lane.worker.cancel(LeaseLost(f"{lane.queue} was given up {_UNLOCK_DELAY:g} s ago"))
            await lane.call_ended(None)
        await leases.let_go(lane.queue)

    async def drain(self, timeout: float) -> bool:
        """Begin nothing more and wait for the calls that run, at most ``timeout`` seconds; then cancel them. What waits
        or is not committed is left unfinished. True when every call ended by itself. Afterwards the queues may be
        unlocked; one whose call does not even end then is held back."""
        ended = await self.workers.drain(timeout)
        self._lanes.close_all()
        if self._unlocking and not self.workers.all:  # that of a call which runs on does not come
            await asyncio.wait(self._unlocking, timeout=LAST_PATIENCE)
        return ended

    # -- workers --

    async def _work(self, worker: Worker) -> None:
        lanes, runnable = self._lanes, self._lanes.runnable
        workers = self.workers
        slow = workers.timeout is not None or workers.rate is not None
        plain = self._size == 1 and not self._status and not self._around.hooks and not slow
        consume = self._consume_singly if plain else self._consume
        while not worker.stop:
            while runnable and not worker.stop:
                if workers.rate is not None:  # without a lane: who gives up a queue need not wait for this
                    await workers.pace()
                    if not runnable or worker.stop:
                        break
                lane = runnable.popleft()
                if lane.state != LaneState.RUNNABLE:
                    continue
                lane.state = LaneState.BUSY
                lane.worker = worker
                try:
                    await consume(worker, lane)
                except asyncio.CancelledError:
                    worker.work = None
                    lanes.leave(lane)
                    raise
                lanes.leave(lane)
            if not worker.stop:
                await self.workers.idle()

    async def _consume_singly(self, worker: Worker, lane: QueueLane) -> None:
        """Hot: one message a call, no hooks, no timeout, no status."""
        ready, handler, time = lane.ready, self._handler, self._loop.time
        counters, busy = self._counters, LaneState.BUSY
        call: list[Message] = [None]  # type: ignore[list-item]
        began = since = now = time()
        calls, turn = 0, TURN
        while ready and not lane.revoked and not worker.stop:
            if now >= lane.until and not self._lanes.held(lane, now):
                self._lanes.lock_out(lane)
                break
            message = ready.popleft()
            process_queue = message._process_queue
            if process_queue is None or process_queue.dropped:
                counters.dropped += 1
                continue
            call[0] = message
            message._begun = now
            worker.work = call
            error: Exception | None = None
            try:
                await handler(message)
            except BaseException as raised:  # noqa: BLE001 - any failure of a listener is a retry
                error = worker.failure(raised)
            worker.work = None
            before, now = now, time()
            if worker.reason is not None:
                # It ended in its own way although we cancelled it.
                error = worker.take_back() or _lease_lost(lane)
            elif now >= lane.until and not self._lanes.held(lane, now):
                error = _lease_lost(lane)  # and it kept the loop from telling it
            if error is not None:
                self._count(lane, calls, 0, since, before, calls)
                calls = 0
                await self._ended_badly(lane, [message], error, before, now)
                since = now = time()
            elif process_queue.dropped or not process_queue.done(message):
                counters.late += 1
            else:
                calls += 1
            if lane.ended is not None:
                lane.notify_ended()
            if lane.state != busy:
                break
            turn -= 1
            if not turn:
                turn = TURN
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

    async def _consume(self, worker: Worker, lane: QueueLane) -> None:
        """Everything else: lists, contexts and status, hooks, a timeout, a rate."""
        ready, time, size = lane.ready, self._loop.time, self._size
        began = now = time()
        turn = TURN
        while ready and not lane.revoked and not worker.stop:
            if now >= lane.until and not self._lanes.held(lane, now):
                self._lanes.lock_out(lane)
                break
            batch: list[Message] = []
            while ready and len(batch) < size:
                message = ready.popleft()
                process_queue = message._process_queue
                if process_queue is None or process_queue.dropped:
                    self._counters.dropped += 1
                else:
                    message._begun = now
                    batch.append(message)
            self.workers.begun(len(batch))
            if batch:
                await self._call(worker, lane, batch, now)
                lane.notify_ended()
                if lane.state != LaneState.BUSY:
                    break
                turn -= len(batch)
                if turn <= 0:
                    turn = TURN
                    await asyncio.sleep(0)
            if self.workers.rate is not None:
                break
            now = time()
            if now - began >= _CONTINUOUS:
                if self._lanes.runnable:
                    self._lanes.rest(lane, _YIELD)
                    break
                began = now

    # -- one call --

    async def _call(self, worker: Worker, lane: QueueLane, batch: list[Message], began: float) -> None:
        context = ConsumeOrderlyContext(batch[0].queue)
        hooked = self._hooked(lane, batch)
        result: object = ConsumeOrderlyStatus.SUCCESS
        error: Exception | None = None
        worker.work = batch
        self.workers.arm(worker)
        try:
            if self._status:
                result = await self._handler(batch, context)
            else:
                await self._handler(batch if self._size > 1 else batch[0])
        except BaseException as raised:  # noqa: BLE001 - any failure of a listener is a retry
            error = worker.failure(raised)
        worker.work = None
        # Where it ended in its own way although its time was up, its result stands.
        self.workers.disarm(worker)
        ended = self._loop.time()
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
            self._lanes.rest(lane, queue_rest(None, self._suspend if context.suspend is None else context.suspend))
        else:
            lane.uncommitted.extend(batch)

    def _finish(self, lane: QueueLane, batch: Sequence[Message]) -> None:
        """What was consumed is done, ``batch`` last: the position moves behind it."""
        if lane.uncommitted and batch:
            batch = [*lane.uncommitted, *batch]
            lane.uncommitted = []
        for message in batch:
            process_queue = message._process_queue
            if process_queue is None or process_queue.dropped or not process_queue.done(message):
                self._counters.late += 1

    async def _ended_badly(
        self, lane: QueueLane, batch: list[Message], error: Exception | None, began: float, ended: float,
        context: ConsumeOrderlyContext | None = None,
    ) -> None:  # fmt: skip
        """A call did not succeed; ``error`` is None when a status says so."""
        if isinstance(error, LeaseLost):
            log.info("%s; %d messages will be delivered again", error, len(batch))
            self._counters.late += len(batch)
            # What is not committed is lost with the lease as well: it comes again, in order.
            lane.put_back([*lane.uncommitted, *batch])
            lane.uncommitted.clear()
            return
        if batch[0].settled:
            self._counters.late += len(batch)  # the queue was given up: its next owner decides about them
            return
        if self.workers.cancelling:
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
                message._local_attempts += 1
            self._counters.suspended += len(again)
            lane.put_back(again)
            default = context.suspend if context is not None else None
            self._lanes.rest(lane, queue_rest(error, self._suspend if default is None else default))

    async def _exhausted(self, batch: list[Message], error: Exception | None) -> tuple[list[Message], list[Message]]:
        """Those of ``batch`` that are with the dead letters now, and those to try again: one that no broker takes stays
        in front of its queue, and counts as tried once more."""
        over: list[Message] = []
        again: list[Message] = []
        limit = self._max_attempts
        for message in batch:
            dead = isinstance(error, DeadLetter) or (limit is not None and message.attempt >= limit)
            if dead and await self._around.settlement.to_dead_letters(message, limit, error):
                over.append(message)
            else:
                again.append(message)
        return over, again

    def _log_failure(self, lane: QueueLane, batch: list[Message], error: Exception | None) -> None:
        first = batch[0]
        if error is not None and not isinstance(error, Retry | DeadLetter):
            text = "the orderly listener failed on message %s of %s, attempt %d: the queue waits"
            log.warning(text, first.msg_id, lane.queue, first.attempt, exc_info=error)

    def _count(self, lane: QueueLane, ok: int, failed: int, began: float, ended: float, calls: int) -> None:
        if calls:
            lane.source.last_consume = ended
            self._around.stats.consumed(lane.queue.topic, ok, failed, (ended - began) * 1000, calls)

    # -- hooks --

    def _hooked(self, lane: QueueLane, batch: list[Message]) -> ConsumeContext | None:
        around = self._around
        if not around.hooks:
            return None
        context = ConsumeContext(around.namespace, around.group, batch[0].queue, batch, around.clock.wall_ms())
        run_before(around.hooks, context)
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
        elif took >= self._around.consume_timeout:
            kind = ConsumeReturnType.TIME_OUT
        else:
            kind = ConsumeReturnType.FAILED if status is suspended else ConsumeReturnType.SUCCESS
        context.status = status.value
        context.success = status in (ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.COMMIT)
        run_after(self._around.hooks, context, kind)


def _lease_lost(lane: QueueLane) -> LeaseLost:
    return LeaseLost(f"the lock of {lane.queue} was lost while a listener ran")


def _cancel_lost(lane: QueueLane) -> None:
    if lane.worker is not None:
        lane.worker.cancel(_lease_lost(lane))
