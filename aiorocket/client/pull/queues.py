"""The queues a pull consumer holds: taken, handed out from, sought in, given up."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from aiorocket.client.core.pull_cursor import PullBuffer
from aiorocket.client.group.rebalance_hooks import QueuesHook, tell
from aiorocket.client.pull.fetcher import Fetching, PullFetcher
from aiorocket.client.state import QueueState

if TYPE_CHECKING:
    from aiorocket.client.core.start_from import Start
    from aiorocket.client.group.commits import Commits
    from aiorocket.client.message import Message
    from aiorocket.model import Queue
    from aiorocket.runtime.tasks import TaskScope

__all__ = ("PullQueues",)


class _Holder(Fetching, Protocol):
    """Whose the queues are."""

    @property
    def on_assigned(self) -> QueuesHook | None: ...
    @property
    def on_revoked(self) -> QueuesHook | None: ...

    def shown(self, queues: Iterable[Queue]) -> list[Queue]: ...
    def need_pulling(self) -> None: ...
    def note_served(self) -> None: ...


class PullQueues:
    """Made by the consumer's start. A queue is in ``fetchers`` from just before ``on_assigned`` until its end is
    stored."""

    def __init__(self, consumer: _Holder, commits: Commits, scope: TaskScope) -> None:
        self._consumer = consumer
        self._commits = commits
        self._scope = scope
        self.fetchers: dict[Queue, PullFetcher] = {}
        self.buffer: PullBuffer[Message] = PullBuffer()
        #: Fetchers whose next pull waits for room. A dict: they are woken in the same order in every simulation.
        self.waiting: dict[PullFetcher, None] = {}
        #: Set when there is something to hand out, and at the end.
        self.arrived = asyncio.Event()
        #: In whose course a hook of the application runs.
        self.hooking: asyncio.Task[object] | None = None

    # -- messages --

    def put(
        self, fetcher: PullFetcher, generation: int, messages: Sequence[Message], size: int, next_offset: int
    ) -> None:
        """The answer to a pull."""
        if self.buffer.put(fetcher.cursor, generation, messages, size, next_offset) and fetcher.cursor.ready:
            self.arrived.set()

    def hand_out(self, most: int) -> list[Message]:
        """Up to ``most`` messages, from all queues in turn."""
        taken = self.buffer.take(most)
        if self.waiting and taken:
            self.wake_waiting()
        return taken

    def wake_waiting(self) -> None:
        """There may be room for some."""
        for fetcher in [fetcher for fetcher in self.waiting if fetcher.why_not() is None]:
            del self.waiting[fetcher]
            fetcher.wake()

    def seek(self, fetcher: PullFetcher, offset: int) -> None:
        """Go on at ``offset``. What is cached, and what is on its way, is dropped."""
        self.buffer.seek(fetcher.cursor, offset)
        fetcher.restart()
        self.wake_waiting()

    def repair(self, fetcher: PullFetcher, offset: int) -> None:
        """As ``seek``, from inside its own pull; and the offset to commit is this one from now on."""
        self.buffer.seek(fetcher.cursor, offset)
        fetcher.cursor.done = offset
        self._commits.offsets.repair(fetcher.queue, offset)
        self.wake_waiting()

    def reset(self, fetcher: PullFetcher, offset: int) -> None:
        """As ``repair``, from outside: what is on its way is dropped too."""
        self.repair(fetcher, offset)
        fetcher.restart()

    def pause(self, fetcher: PullFetcher, paused: bool) -> None:
        """Neither pull nor hand out, or go on with both."""
        fetcher.cursor.paused = paused
        if not paused:
            self.buffer.line_up(fetcher.cursor)
            fetcher.wake()
            if fetcher.cursor.ready:
                self.arrived.set()

    def finish(self, fetcher: PullFetcher, end: int) -> None:
        """The application is done with everything before ``end``."""
        self._commits.offsets.set(fetcher.queue, fetcher.cursor.finish(end))

    # -- assignments --

    async def prepare(self, starts: Mapping[Queue, Start]) -> None:
        """Hold these queues, not pulling yet, and tell the application, which may seek in them."""
        self.hold(starts)
        try:
            await self.tell(self._consumer.on_assigned, self._consumer.shown(starts))
        except BaseException:
            for queue in starts:
                self._drop(self.fetchers[queue])
            raise

    def hold(self, starts: Mapping[Queue, Start]) -> None:
        """Have these queues, not pulling yet. UsageError for a consumer that stops."""
        self._consumer.need_pulling()
        for queue, start in starts.items():
            self.fetchers[queue] = PullFetcher(self._consumer, self, queue, start.offset)
            self._commits.offsets.begin(queue, start.offset, committed=start.stored)

    def take(self, queue: Queue, start: Start) -> None:
        """Begin to pull a queue that is prepared."""
        fetcher = self.fetchers.get(queue)
        if fetcher is None:
            # Stopped while the application was being told.
            self._consumer.need_pulling()
            return
        fetcher.start(self._scope)

    def spread_limits(self) -> None:
        """A pull consumer's limits are per queue and for all of them, not per topic: there is nothing to share out."""

    async def give_up(self, queues: Collection[Queue]) -> None:
        """End with ``queues``: nothing more is pulled or handed out, the application may commit, that is stored. What
        is committed of them later is stale."""
        await self.end([self.fetchers[queue] for queue in sorted(queues)], self._consumer.on_revoked)

    async def end(self, fetchers: Collection[PullFetcher], hook: QueuesHook | None) -> None:
        """``give_up``, with this hook."""
        if fetchers:
            try:
                await asyncio.gather(*(fetcher.stop() for fetcher in fetchers))
                self._consumer.note_served()
                await self.tell(hook, self._consumer.shown(fetcher.queue for fetcher in fetchers))
                await self._commits.store({fetcher.queue for fetcher in fetchers})
            finally:
                # Also when it is cancelled: a queue that is half given up would never be read again.
                self.drop(fetchers)

    def drop(self, fetchers: Iterable[PullFetcher]) -> None:
        """Forget these: what comes of them later has no effect."""
        for fetcher in fetchers:
            self._drop(fetcher)
        self.wake_waiting()

    def _drop(self, fetcher: PullFetcher) -> None:
        self.buffer.drop(fetcher.cursor)
        self.waiting.pop(fetcher, None)
        if self.fetchers.get(fetcher.queue) is fetcher:
            del self.fetchers[fetcher.queue]
            self._commits.forget(fetcher.queue)

    async def tell(self, hook: QueuesHook | None, queues: list[Queue]) -> None:
        """Await a hook of the application for so long; what it raises is logged."""
        self.hooking = asyncio.current_task()
        try:
            await tell(hook, queues, self._consumer.config.rebalance_hook_timeout)
        finally:
            self.hooking = None

    def states(self) -> tuple[QueueState, ...]:
        """What each queue is doing, by queue."""
        return tuple(self._state(self.fetchers[queue]) for queue in sorted(self.fetchers))

    def _state(self, fetcher: PullFetcher) -> QueueState:
        cursor = fetcher.cursor
        return QueueState(
            queue=fetcher.shown,
            next_offset=cursor.next_offset,
            done=cursor.done,
            committed=self._commits.offsets.committed(fetcher.queue),
            cached=cursor.count,
            cached_bytes=cursor.size,
            first_cached=cursor.position if cursor.count else 0,
            last_cached=cursor.position + cursor.span() if cursor.count else 0,
            dropped=cursor.dropped,
            blocked=fetcher.blocked,
            locked=False,
            last_lock=None,
            last_pull=fetcher.last_pull,
            last_consume=fetcher.last_consume,
            last_error=fetcher.last_error,
        )
