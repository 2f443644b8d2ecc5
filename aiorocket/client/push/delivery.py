"""Messages to listeners: N workers over one deque. Deadlines are swept, see ``sweep``."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from math import inf

from aiorocket.client.message import Message, Source
from aiorocket.client.push.calls import Call, Caller, SingleCall, Surroundings
from aiorocket.client.push.status import Handler
from aiorocket.client.push.workers import TURN, Worker, Workers
from aiorocket.model import Queue

__all__ = ("Delivery",)


class _Run:
    """Messages of one source that a worker handles one after the other, for the statistics. So far there are
    ``before - worker.left`` since the last count, ``failed`` of them failed."""

    __slots__ = ("before", "failed", "since", "source", "worker")

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.source: Source | None = None
        self.before = worker.left
        self.failed = 0
        self.since = 0.0


class Delivery:
    """The workers of one listener; made on the running loop. ``timeout`` cancels a handler that runs longer; the
    sweep's consume timeout does not. ``call`` is how the handler takes its messages; a batch is of one queue with
    ``one_queue``."""

    def __init__(
        self,
        handler: Handler,
        *,
        name: str,
        concurrency: int,
        surroundings: Surroundings,
        batch_size: int = 1,
        timeout: float | None = None,
        rate: float | None = None,
        max_attempts: int | None = None,
        call: Callable[[Handler, list[Message]], Call] = SingleCall,
        one_queue: bool = False,
    ) -> None:
        simple = call is SingleCall and batch_size == 1 and not surroundings.hooks and rate is None
        work = self._work if simple else self._work_by_call
        self.workers = Workers(
            name, concurrency, work, scope=surroundings.scope, counters=surroundings.counters, timeout=timeout,
            rate=rate,
        )  # fmt: skip
        self._handler = handler
        self._around = surroundings
        self._counters = surroundings.counters
        self._batch_size = batch_size
        self._max_attempts = max_attempts
        self._caller = Caller(handler, call, self.workers, surroundings, max_attempts)
        self._one_queue = one_queue
        self._ready: deque[Message] = deque()
        self._runs: list[_Run] = []
        self._loop = asyncio.get_running_loop()
        surroundings.stats.sources.append(self.count)

    def put(self, messages: Sequence[Message]) -> None:
        """Hand over messages. Hot: one call per pull answer."""
        self._ready.extend(messages)
        # It wakes the next if it leaves something: a handler that never waits leaves the others nothing to wake up for.
        self.workers.wake(1)

    @property
    def waiting(self) -> int:
        return len(self._ready)

    @property
    def backlog(self) -> int:
        """Messages that the next free worker could begin."""
        return len(self._ready)

    async def revoke(self, queue: Queue, timeout: float) -> bool:
        """Concurrent handlers of a queue that was given up finish without effect; nobody waits for them."""
        return True

    async def drain(self, timeout: float) -> bool:
        """Begin nothing more and wait for the handlers that run, at most ``timeout`` seconds; then cancel them, see
        ``Workers.drain``. Messages that wait are left unfinished. True when every handler ended by itself."""
        self._ready.clear()
        return await self.workers.drain(timeout)

    async def sweep(self, now: float, limit: float) -> None:
        """Give up on messages whose handler has run for ``limit`` seconds: they go back to the broker, the handler
        runs on and its result counts as late."""
        for worker in list(self.workers.all):
            work = worker.work
            if work is None:
                continue
            messages = list(work) if isinstance(work, list) else [work]
            # By the start of this call: a message that nobody took back may have had others in this worker before.
            if now - messages[0]._begun >= limit:
                for message in messages:
                    if not message.settled:
                        await self._around.settlement.expired(message, self._max_attempts)

    # -- workers --

    async def _work(self, worker: Worker) -> None:
        # Hot: 1.3 us a message, so the statistics are of a run and no call stands between worker and handler.
        ready, handler, counters, moved = self._ready, self._handler, self._counters, self._around.moved
        workers, timeout, now = self.workers, self.workers.timeout, self._loop.time
        left, latest = worker.left, None
        run = _Run(worker)
        self._runs.append(run)
        while not worker.stop:
            while ready:
                message = ready.popleft()
                process_queue = message._process_queue
                if process_queue is None or process_queue.dropped:
                    counters.dropped += 1
                    continue
                if process_queue is not latest:
                    latest = process_queue
                    self._begin_run(run, message._source)
                worker.work = message
                message._begun = now()
                if timeout is not None:
                    workers.arm(worker)
                try:
                    await handler(message)
                except BaseException as error:  # noqa: BLE001 - any failure of a listener is a retry
                    await self._failed(run, message, worker.failure(error))
                else:
                    if not process_queue.done(message):
                        counters.late += 1
                if timeout is not None:
                    workers.disarm(worker)
                left -= 1
                worker.left = left
                if not left:
                    worker.work = None
                    run.before += TURN
                    worker.left = left = TURN
                    paused = now()
                    moved()
                    await asyncio.sleep(0)
                    # The others' turn is not this listener's time.
                    run.since += now() - paused
                if worker.stop:
                    break
            worker.work = latest = None
            self._end_run(run)
            if not worker.stop:
                moved()
                await workers.idle()
                if len(ready) > 1:  # its handler may wait
                    workers.wake(1)
        self._runs.remove(run)

    async def _work_by_call(self, worker: Worker) -> None:
        caller, moved = self._caller, self._around.moved
        while not worker.stop:
            if self.workers.rate is not None and self._ready:
                await self.workers.pace()
                if worker.stop:
                    break
            messages = self._take()
            self.workers.begun(len(messages))
            if not messages:
                moved()
                await self.workers.idle()
                if len(self._ready) > self._batch_size:
                    self.workers.wake(1)
                continue
            await caller.settle(messages, await caller.call(worker, messages))
            worker.left -= 1
            if self._batch_size > 1 or worker.left <= 0:
                # A batch is worth a turn of the loop, and a pull that comes in meanwhile makes the next one fuller.
                worker.left = TURN
                moved()
                await asyncio.sleep(0)

    def _take(self) -> list[Message]:
        """The next batch, empty when there is none to begin with now."""
        ready, size = self._ready, self._batch_size
        batch: list[Message] = []
        while ready and len(batch) < size:
            if self._one_queue and batch and ready[0]._source is not batch[0]._source:
                break
            message = ready.popleft()
            if message.settled:
                self._counters.dropped += 1
            else:
                batch.append(message)
        return batch

    async def _failed(self, run: _Run, message: Message, error: Exception) -> None:
        # Its handler has ended: the way to the broker has no deadline.
        run.worker.deadline = inf
        run.worker.work = None
        began = self._loop.time()
        if await self._caller.failed(message, error):
            run.since += self._loop.time() - began
            run.failed += 1

    # -- statistics --

    def count(self, now: float) -> None:
        """Before a sample: add what workers have done in runs that go on."""
        for run in self._runs:
            if run.source is not None and run.before != run.worker.left:
                self._count(run, run.source, now)

    def _begin_run(self, run: _Run, source: Source) -> None:
        self._end_run(run)
        run.source = source
        run.since = self._loop.time()
        run.before = run.worker.left
        run.failed = 0

    def _end_run(self, run: _Run) -> None:
        if run.source is not None:
            self._count(run, run.source, self._loop.time())
            run.source = None

    def _count(self, run: _Run, source: Source, now: float) -> None:
        left, failed = run.worker.left, run.failed
        handled = run.before - left
        elapsed = 1000 * (now - run.since)
        source.last_consume = now
        self._around.stats.consumed(source.queue.topic, handled - failed, failed, elapsed, handled)
        run.before = left
        run.since = now
        run.failed = 0
