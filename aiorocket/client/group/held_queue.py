"""One queue that a member holds: the task that pulls it, what that has found, and what comes of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from math import inf

from aiorocket.client.core.process_queue import ProcessQueue
from aiorocket.client.core.pull_cursor import PullCursor
from aiorocket.client.group.member import Member
from aiorocket.client.message import Message, Settler
from aiorocket.client.state import QueueState
from aiorocket.errors import NotConnectedError, RemoteError, RocketError
from aiorocket.model import Queue
from aiorocket_protocol import ProtocolError, PullMessageResponseHeader, RemotingCommand, ResponseCode

__all__ = ("HeldQueue",)

log = logging.getLogger("aiorocket.client")

_FLOW_CONTROL = int(ResponseCode.FLOW_CONTROL)
_FLOW_CONTROL_DELAY = 0.02


class HeldQueue:
    """From its assignment to its end; the ``source`` of its messages. A later assignment of the same queue is another
    one, which is how what comes too late is known.

    ``cache`` is what was pulled. From ``start`` to ``stop`` ``pull`` is awaited again and again: it waits for its turn,
    says in ``pulling_since`` when that has come, and returns after how many seconds the next pull may follow, or None
    when there is none to come. RocketError and ProtocolError of it are logged, and it is called again.
    """

    #: Its messages are popped: the broker knows of each, and there is no offset to commit.
    pops = False

    def __init__(
        self,
        member: Member,
        queue: Queue,
        cache: ProcessQueue | PullCursor[Message],
        settler: Settler,
        pull: Callable[[], Awaitable[float | None]],
    ) -> None:
        self.member = member
        self.queue = queue
        self.namespace = member.namespace
        self.group = member.group
        #: The queue as the application knows it, without the namespace.
        (self.shown,) = member.shown([queue])
        self.cache = cache
        self.settler = settler
        #: What holds the next pull back.
        self.blocked: str | None = None
        #: When the pull that is under way began, and when the latest one went out, in loop time.
        self.pulling_since: float | None = None
        self.last_pull: float | None = None
        self.last_error: str | None = None
        #: When a listener last ended with a message of it.
        self.last_consume: float | None = None
        #: Which offsets the queue has, as the latest answer says.
        self.min_offset: int | None = None
        self.max_offset: int | None = None
        #: For ``pull`` to wait on; ``wake`` sets it.
        self.woken = asyncio.Event()
        self._pull_next = pull
        self._suggested = 0
        self._task: asyncio.Task[None] | None = None
        self.stopped = False

    # -- life --

    def start(self) -> None:
        name = f"pull/{self.queue.topic}/{self.queue.broker_name}/{self.queue.queue_id}"
        self._task = self.member.scope.start(self._run(self._task), name=name)

    def restart(self) -> None:
        """Pull anew: the answer that is being waited for is not wanted any more. Nothing happens before ``start`` and
        after ``stop``."""
        if self._task is not None and not self.stopped:
            self._task.cancel()
            self.start()

    async def stop(self) -> None:
        """Pull no more."""
        self.stopped = True
        task = self._task
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])

    def wake(self) -> None:
        """Look again whether the next pull may go out."""
        self.woken.set()

    def idle_since(self, now: float) -> float:
        """For how many seconds the present pull has been under way; 0 when none is. Infinitely long when it was stopped
        and the queue is neither given up nor begun anew: whoever was at that has been cancelled half-way."""
        if self.stopped and not self.cache.dropped:
            return inf
        return 0.0 if self.pulling_since is None else now - self.pulling_since

    def wall_ms(self, then: float) -> int:
        """The wall clock at ``then``, a moment in loop time."""
        session = self.member.session
        return session.env.clock.wall_ms() - round(1000 * (session.loop.time() - then))

    async def _run(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        pause: float | None = 0.0
        while pause is not None:
            try:
                pause = await self._pull_next()
            except (RocketError, ProtocolError) as error:
                pause = self.note(error)
            finally:
                self.pulling_since = None
            if pause:
                await asyncio.sleep(pause)

    # -- for one pull --

    async def reader(self) -> str:
        """Whom to pull from: whom the latest answer suggested, else the master, else a slave. NotConnectedError when
        the name servers know none."""
        member, queue = self.member, self.queue
        address = member.reader_address(queue, self._suggested)
        if address is None:
            await member.session.route(queue.topic, refresh=True)
            address = member.reader_address(queue, self._suggested)
            if address is None:
                raise member.no_route(queue)
        return address

    def found(self, answer: RemotingCommand) -> PullMessageResponseHeader:
        """The broker has the offset: take over what its answer says of the queue. ``last_error`` stays until the
        messages are known to be whole."""
        header = answer.read(PullMessageResponseHeader)
        self._suggested = header.suggest_which_broker_id
        self.min_offset, self.max_offset = header.min_offset, header.max_offset
        return header

    def well(self) -> None:
        """A pull succeeded while some broker fails: its messages, if any, are whole."""
        self.member.session.outages.answered(self.queue.broker_name, everything=self.last_error is not None)

    def note(self, error: Exception) -> float:
        """A pull failed: after how many seconds the next may follow."""
        self.last_error = str(error)
        if not isinstance(error, RemoteError):
            self._suggested = 0  # who was suggested may be up for others only, and the master says anew
        self.member.session.outages.failed(self.queue.broker_name, f"pulling {self.queue}", error)
        if isinstance(error, NotConnectedError):
            # The broker may have moved.
            self.member.session.routes.refresh_soon(self.queue.topic)
        if isinstance(error, RemoteError) and error.code == _FLOW_CONTROL:
            return _FLOW_CONTROL_DELAY
        return self.member.config.pull_error_delay

    # -- what it is doing --

    def state(self, committed: int) -> QueueState:
        """``committed`` is the offset that is stored, -1 for none."""
        cache, leases = self.cache, self.member.leases
        first, last = cache.bounds()
        done = cache.committable()
        return QueueState(
            queue=self.shown,
            next_offset=cache.next_offset,
            done=done,
            committed=committed,
            behind=None if self.max_offset is None else max(0, self.max_offset - done),
            cached=cache.count,
            cached_bytes=cache.size,
            first_cached=first,
            last_cached=last,
            dropped=cache.dropped,
            blocked=self.blocked,
            locked=leases is not None and leases.valid(self.queue, self.member.session.loop.time()),
            last_lock=leases.last_lock(self.queue) if leases is not None else None,
            last_pull=self.last_pull,
            last_consume=self.last_consume,
            last_error=self.last_error,
        )
