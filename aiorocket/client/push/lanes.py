"""The queues of an orderly listener, each with its waiting messages: which may be worked on now, and what the others
wait for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf

from aiorocket.client.group.leases import Leases
from aiorocket.client.message import Message, Source
from aiorocket.client.push.resting import Resting
from aiorocket.client.push.workers import Worker
from aiorocket.model import Queue

__all__ = ("LaneState", "QueueLane", "QueueLanes")


class LaneState:
    """What a lane does; plain numbers, because they are compared for each message."""

    #: There is nothing to do.
    IDLE = 0
    #: A worker may take it.
    RUNNABLE = 1
    #: A worker has it.
    BUSY = 2
    #: It failed, or gives way, and waits for its time.
    RESTING = 3
    #: Its lease is lost; it waits for its return.
    LOCKED_OUT = 4
    #: Its assignment has ended.
    DEAD = 5


class QueueLane:
    """One queue (by its name on the wire) and the messages of it that wait for their call."""

    __slots__ = ("ended", "on_held", "queue", "ready", "revoked", "source", "state", "uncommitted", "until", "worker")

    #: What the newest messages were pulled by.
    source: Source

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.ready: deque[Message] = deque()
        self.state = LaneState.IDLE
        #: The end of the lease as last looked up; looked up again when that has passed.
        self.until = -inf
        #: Nothing more may be begun.
        self.revoked = False
        #: Manual commit: consumed, in order, and neither committed nor rolled back yet.
        self.uncommitted: list[Message] = []
        #: Who has it while it is BUSY.
        self.worker: Worker | None = None
        #: Somebody waits for the end of the running call.
        self.ended: asyncio.Future[None] | None = None
        self.on_held: Callable[[], None] | None = None

    def put_back(self, messages: Sequence[Message]) -> None:
        """To be delivered again, before anything later."""
        self.ready.extendleft(reversed(messages))

    def notify_ended(self) -> None:
        """The running call has ended and its messages are settled."""
        waiter, self.ended = self.ended, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def call_ended(self, timeout: float | None) -> bool:
        """Wait for the call that runs now, ``timeout`` seconds at most (None: for ever). True when none runs."""
        if self.state != LaneState.BUSY:
            return True
        if self.ended is None:
            self.ended = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait([self.ended], timeout=timeout)
        return bool(done)


class QueueLanes:
    """``leases`` are the consumer's, or None where queues need no lock (broadcasting); ``lost`` is called when that of
    a lane is lost, ``runnable`` lanes are announced by ``wake(1)``."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        leases: Leases | None,
        *,
        lost: Callable[[QueueLane], None],
        wake: Callable[[int], None],
    ) -> None:
        self._leases = leases
        self._lost = lost
        self._wake = wake
        self._lanes: dict[Queue, QueueLane] = {}
        self.runnable: deque[QueueLane] = deque()
        self._resting = Resting(loop, self._rested)
        if leases is not None:
            leases.watch_lost(self._on_lease_lost)

    def put(self, messages: Sequence[Message]) -> None:
        """Messages of one queue, ascending. Hot: one call per pull answer."""
        source = messages[0]._source
        lane = self._lanes.get(source.queue)
        if lane is None:
            lane = self._open(source.queue)
        lane.source = source
        # Nothing is put while a queue is being given up, so this is a new assignment of it.
        lane.revoked = False
        lane.ready.extend(messages)
        if lane.state == LaneState.IDLE:
            self.offer(lane)

    def get(self, queue: Queue) -> QueueLane | None:
        return self._lanes.get(queue)

    @property
    def waiting(self) -> int:
        """Messages no handler has yet."""
        return sum(len(lane.ready) for lane in self._lanes.values())

    def _open(self, queue: Queue) -> QueueLane:
        lane = self._lanes[queue] = QueueLane(queue)
        lane.on_held = partial(self._on_held, lane)
        return lane

    # -- between the worker and its lane --

    def offer(self, lane: QueueLane) -> None:
        """No worker has the lane; one may, if there is anything to do."""
        if not lane.ready:
            lane.state = LaneState.IDLE
            return
        lane.state = LaneState.RUNNABLE
        self.runnable.append(lane)
        self._wake(1)

    def leave(self, lane: QueueLane) -> None:
        """The worker is done with the lane for now."""
        lane.worker = None
        lane.notify_ended()
        if lane.state == LaneState.BUSY:
            lane.state = LaneState.IDLE
        if lane.revoked:
            self.close(lane)
        elif lane.state == LaneState.IDLE:
            self.offer(lane)

    def close(self, lane: QueueLane) -> None:
        """The assignment has ended and no call runs."""
        lane.state = LaneState.DEAD
        lane.ready.clear()
        lane.uncommitted.clear()
        if self._lanes.get(lane.queue) is lane:
            del self._lanes[lane.queue]

    def close_all(self) -> None:
        """The end. What is still worked on is not to be unlocked."""
        self._resting.close()
        for lane in list(self._lanes.values()):
            if lane.state == LaneState.BUSY and self._leases is not None:
                self._leases.hold_back(lane.queue)
            self.close(lane)

    # -- rest --

    def rest(self, lane: QueueLane, seconds: float) -> None:
        """Nothing of the lane for so long."""
        lane.state = LaneState.RESTING
        self._resting.add(lane, seconds)

    def _rested(self, lane: QueueLane) -> None:
        if lane.state == LaneState.RESTING:
            self.offer(lane)

    # -- leases --

    def held(self, lane: QueueLane, now: float) -> bool:
        """Is the queue ours at ``now``? To be asked when ``lane.until`` has passed."""
        leases = self._leases
        lane.until = inf if leases is None else leases.until(lane.queue)
        return now < lane.until

    def lock_out(self, lane: QueueLane) -> None:
        """The queue is not ours: the lane waits until it is again."""
        lane.state = LaneState.LOCKED_OUT
        leases = self._leases
        if leases is not None and lane.on_held is not None:
            leases.when_valid(lane.queue, lane.on_held)

    def _on_held(self, lane: QueueLane) -> None:
        if lane.state == LaneState.LOCKED_OUT:
            self.offer(lane)

    def _on_lease_lost(self, queue: Queue) -> None:
        lane = self._lanes.get(queue)
        if lane is not None:
            lane.until = -inf
            self._lost(lane)
