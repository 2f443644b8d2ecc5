"""The tasks that call a listener, each with what its handler has; one timer for all of their deadlines.

No task, timer or timeout scope per message (4 to 25 times the cost of a worker that takes the next one). A worker that
finds nothing waits on a future of its own; whoever brings work wakes as many as there is work for, or one who wakes
the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from math import inf
from typing import Any

from aiorocket.client.exits import failure_of
from aiorocket.client.message import Message
from aiorocket.client.state import Counters
from aiorocket.errors import UsageError
from aiorocket.runtime.tasks import TaskScope

__all__ = ("LAST_PATIENCE", "TURN", "Worker", "Workers")

log = logging.getLogger("aiorocket.client")

#: Messages a worker handles without a suspension before it lets the loop turn: a listener that never waits must not
#: keep heartbeats and pull answers away.
TURN = 128

#: Seconds that a listener with a rate may be behind it and still catch up.
_CATCH_UP = 0.1

#: How long a cancelled handler may take to end before the end of its consumer goes on without it.
LAST_PATIENCE = 5.0


class Worker:
    """One task. ``work`` is what its handler has now, ``reason`` why we cancelled that call; ``stop`` asks it to begin
    nothing more and end, ``left`` counts down to the end of its turn."""

    __slots__ = ("deadline", "left", "reason", "stop", "task", "work")

    def __init__(self) -> None:
        self.work: Message | list[Message] | None = None
        self.task: asyncio.Task[None] | None = None
        self.stop = False
        self.deadline = inf
        self.reason: Exception | None = None
        self.left = TURN

    def cancel(self, reason: Exception) -> bool:
        """Cancel the handler; it finds ``reason`` as the argument of its CancelledError. False when none runs, or it
        has been cancelled before."""
        if self.work is None or self.reason is not None or self.task is None:
            return False
        self.reason = reason
        self.task.cancel(reason)
        return True

    def take_back(self) -> Exception | None:
        """The call has ended: why we cancelled it. None when we did not, or when somebody else has cancelled the worker
        too."""
        reason, self.reason = self.reason, None
        if reason is None or self.task is None or self.task.uncancel() != 0:
            return None
        return reason

    def failure(self, error: BaseException) -> Exception:
        """Why a call failed that raised ``error``. The worker's own cancellation is raised on."""
        reason = self.take_back() if isinstance(error, asyncio.CancelledError) else None
        return reason or failure_of(error, self.task)


class Workers:
    """``concurrency`` tasks of ``scope`` that run ``work``, each with its Worker; they begin at the loop's next turn.
    Calls that take longer than ``timeout`` seconds between ``arm`` and ``disarm`` are cancelled, and counted as timed
    out. ``rate`` is how many messages a second they begin together, where they ask ``pace``."""

    def __init__(
        self,
        name: str,
        concurrency: int,
        work: Callable[[Worker], Coroutine[Any, Any, None]],
        *,
        scope: TaskScope,
        counters: Counters,
        timeout: float | None = None,
        rate: float | None = None,
    ) -> None:
        self.all: list[Worker] = []
        self.timeout = timeout
        #: ``drain`` was called: nothing more is to be begun.
        self.draining = False
        #: What fails now fails because ``drain`` cancels it.
        self.cancelling = False
        self.rate = rate
        #: When the next message may begin; one worker waits for that, the others for their turn to.
        self._next = -inf
        self._pacing = asyncio.Lock()
        self._ending = asyncio.Event()
        self._name = name
        self._work = work
        self._scope = scope
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._idle: list[asyncio.Future[None]] = []
        self._numbered = 0
        self._timer: asyncio.TimerHandle | None = None
        for _ in range(concurrency):
            self._start()

    # -- how many --

    def _start(self) -> None:
        worker = Worker()
        self.all.append(worker)
        worker.task = self._scope.start(self._run(worker), name=f"{self._name}/{self._numbered}")
        self._numbered += 1

    async def _run(self, worker: Worker) -> None:
        try:
            # A loop may begin tasks while they are made (asyncio.eager_task_factory): what they work for is not whole.
            await asyncio.sleep(0)
            await self._work(worker)
        finally:
            self.all.remove(worker)
            if not self._loop.is_closed():  # as it is when the worker is collected with its loop
                # A wake-up that was meant for this one must not get lost.
                self.wake(1)

    def set_concurrency(self, concurrency: int) -> None:
        """So many handlers (1 to 1024) at once from now on. Nothing that runs is interrupted; surplus workers end with
        what they have in work."""
        if not 1 <= concurrency <= 1024:
            raise UsageError(f"concurrency={concurrency}: 1 to 1024")
        if self.draining:
            return
        working = [worker for worker in self.all if not worker.stop]
        for worker in working[concurrency:]:
            worker.stop = True
        missing = concurrency - len(working)
        for worker in self.all if missing > 0 else ():
            if worker.stop and missing > 0:
                worker.stop = False
                missing -= 1
        for _ in range(missing):
            self._start()
        # Those that shall end have to notice; the others go back to sleep.
        self.wake(len(self._idle))

    @property
    def concurrency(self) -> int:
        """How many handlers may run at once."""
        return sum(not worker.stop for worker in self.all)

    @property
    def in_work(self) -> int:
        """Messages a handler has now."""
        return sum(len(each.work) if type(each.work) is list else each.work is not None for each in self.all)

    # -- work or none --

    def idle(self) -> asyncio.Future[None]:
        """For a worker that has nothing to do: done when there may be something."""
        waiter = self._loop.create_future()
        self._idle.append(waiter)
        return waiter

    def wake(self, wanted: int) -> None:
        """Let so many idle workers look again."""
        idle = self._idle
        while wanted > 0 and idle:
            waiter = idle.pop()
            if not waiter.done():
                waiter.set_result(None)
                wanted -= 1

    # -- how fast --

    async def pace(self) -> None:
        """Wait until ``rate`` lets the next message begin, or nothing is to begin any more. Who comes back says with
        ``begun`` how many it takes, before it awaits anything."""
        if self.rate is None:
            return
        async with self._pacing:
            if not self.draining and self._next > self._loop.time():
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(self._next):
                        await self._ending.wait()

    def begun(self, messages: int) -> None:
        """What a slow loop missed is caught up, but for more than a tenth of a second."""
        if self.rate is not None:
            self._next = max(self._next, self._loop.time() - _CATCH_UP) + messages / self.rate

    # -- the end --

    async def drain(self, timeout: float) -> bool:
        """Begin nothing more and wait for the handlers that run, at most ``timeout`` seconds; then cancel them, and
        wait for ``LAST_PATIENCE``: a plain function runs on in its thread, and what has been done must be stored before
        a service manager loses its patience. True when every handler ended by itself."""
        self.draining = True
        self._ending.set()
        for worker in self.all:
            worker.stop = True
        self.wake(len(self._idle))
        tasks = [worker.task for worker in self.all if worker.task is not None]
        pending: set[asyncio.Task[None]] = set()
        if tasks:
            _, pending = await asyncio.wait(tasks, timeout=timeout)
        self.cancelling = bool(pending)
        for task in pending:
            task.cancel()
        if pending:
            _, resisting = await asyncio.wait(pending, timeout=LAST_PATIENCE)
            if resisting:
                log.warning("%s: %d handlers run on although they were cancelled", self._name, len(resisting))
        if self._timer is not None:
            self._timer.cancel()
        return not pending

    # -- deadlines --

    def arm(self, worker: Worker) -> None:
        """A call begins."""
        if self.timeout is None:
            return
        worker.deadline = self._loop.time() + self.timeout
        if self._timer is None:
            self._timer = self._loop.call_at(worker.deadline, self._on_deadline)

    def disarm(self, worker: Worker) -> None:
        """The call has ended."""
        worker.deadline = inf
        if worker.reason is not None:
            # It ended before the cancellation reached it, or swallowed it.
            worker.take_back()

    def _on_deadline(self) -> None:
        # All deadlines have the same length, so the armed one is never later than any that was set after it.
        self._timer = None
        now, following = self._loop.time(), inf
        for worker in self.all:
            if worker.deadline <= now:
                worker.deadline = inf
                if worker.cancel(TimeoutError(f"the handler was cancelled after {self.timeout} s")):
                    self._counters.timed_out += 1
            elif worker.deadline < following:
                following = worker.deadline
        if following != inf:
            self._timer = self._loop.call_at(following, self._on_deadline)
