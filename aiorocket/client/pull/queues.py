"""The queues a pull consumer holds: taken, handed out from, given up."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping

from aiorocket.client.core.lifecycle import State
from aiorocket.client.core.start_from import Start
from aiorocket.client.group.commits import Commits
from aiorocket.client.group.member import Member
from aiorocket.client.group.rebalance_hooks import QueuesHook, call_hook
from aiorocket.client.pull.fetcher import PullFetcher
from aiorocket.client.pull.prefetch import Prefetch
from aiorocket.config import PullConsumerConfig
from aiorocket.model import Queue

__all__ = ("PullQueues",)


class PullQueues:
    """A queue is in ``fetchers`` from just before ``on_assigned`` until its end is stored."""

    def __init__(
        self,
        member: Member,
        config: PullConsumerConfig,
        commits: Commits,
        on_assigned: QueuesHook | None,
        on_revoked: QueuesHook | None,
    ) -> None:
        self.fetchers: dict[Queue, PullFetcher] = {}
        self.prefetch = Prefetch()
        #: What the latest fetches handed out, which auto-commit takes for done at the next.
        self.served: dict[PullFetcher, None] = {}
        #: In whose course a hook of the application runs.
        self.hooking: asyncio.Task[object] | None = None
        self._member = member
        self._config = config
        self._commits = commits
        self._on_assigned, self._on_revoked = on_assigned, on_revoked

    async def prepare(self, starts: Mapping[Queue, Start]) -> None:
        """Hold these queues, not pulling yet, and tell the application, which may seek in them."""
        self.hold(starts)
        try:
            await self._call_hook(self._on_assigned, starts)
        except BaseException:
            for queue in starts:
                self._drop(self.fetchers[queue])
            raise

    async def dismiss(self, queues: Collection[Queue]) -> None:
        """Of what was prepared, these are not read after all."""
        await self.give_up(queues)

    def hold(self, starts: Mapping[Queue, Start]) -> None:
        """Have these queues, not pulling yet. UsageError for a consumer that stops."""
        self._need_pulling()
        for queue, start in starts.items():
            self.fetchers[queue] = PullFetcher(
                self._member, self._config, self.prefetch, self._commits, queue, start.offset
            )
            self._commits.offsets.begin(queue, start.offset, committed=start.stored)

    def take(self, queue: Queue, start: Start) -> None:
        """Begin to pull a queue that is prepared."""
        fetcher = self.fetchers.get(queue)
        if fetcher is None:
            # Stopped while the application was being told.
            self._need_pulling()
            return
        fetcher.start()

    def _need_pulling(self) -> None:
        if self._member.lifecycle.state is not State.STARTING:
            self._member.need_running()

    def spread_limits(self) -> None:
        """A pull consumer's limits are per queue and for all of them, not per topic: there is nothing to share out."""

    def finish_fetched(self) -> None:
        """Auto-commit: everything fetched is done, except what the application has in hands just now."""
        if self._config.auto_commit:
            for fetcher in self.fetchers.values():
                cursor = fetcher.cursor
                fetcher.finish(cursor.done if fetcher in self.served else cursor.position)

    async def give_up(self, queues: Collection[Queue]) -> None:
        """End with ``queues``: nothing more is pulled or handed out, the application may commit, that is stored. What
        is committed of them later is stale."""
        await self.end([self.fetchers[queue] for queue in sorted(queues)], revoked=True)

    async def end(self, fetchers: Collection[PullFetcher], *, revoked: bool) -> None:
        """``give_up``; the application is only told of what was ``revoked``."""
        if fetchers:
            try:
                await asyncio.gather(*(fetcher.stop() for fetcher in fetchers))
                self.finish_fetched()
                if revoked:
                    await self._call_hook(self._on_revoked, [fetcher.queue for fetcher in fetchers])
                await self._commits.store({fetcher.queue for fetcher in fetchers})
            finally:
                # Also when it is cancelled: a queue that is half given up would never be read again.
                self.drop(fetchers)

    def drop(self, fetchers: Iterable[PullFetcher]) -> None:
        """Forget these: what comes of them later has no effect."""
        for fetcher in fetchers:
            self._drop(fetcher)

    def _drop(self, fetcher: PullFetcher) -> None:
        fetcher.drop()
        if self.fetchers.get(fetcher.queue) is fetcher:
            del self.fetchers[fetcher.queue]
            self._commits.forget(fetcher.queue)

    async def _call_hook(self, hook: QueuesHook | None, queues: Iterable[Queue]) -> None:
        self.hooking = asyncio.current_task()
        try:
            await call_hook(hook, self._member.shown(queues), self._config.rebalance_hook_timeout)
        finally:
            self.hooking = None
