"""The life of a member: it starts, joins its group, is rebalanced, leaves, and is used up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from aiorocket.client.core.lifecycle import State
from aiorocket.client.core.namespace import unwrap
from aiorocket.client.core.routes import TopicRoute
from aiorocket.client.group.commits import Commits
from aiorocket.client.group.member import Member
from aiorocket.client.group.rebalancer import Assignment, Rebalancer
from aiorocket.client.registered import GroupMember
from aiorocket.client.state import ConsumerState, Counters
from aiorocket.runtime.tasks import to_the_end

__all__ = ("Membership",)


class Membership:
    """``consumer`` is who registers with the session for ``member``, whose queues are in ``assignment``. With
    ``own_session`` the session is started and stopped with it."""

    def __init__(
        self, member: Member, consumer: GroupMember, assignment: Assignment, commits: Commits, *, own_session: bool
    ) -> None:
        #: Wall clock, milliseconds; 0 before the start.
        self.started_ms = 0
        self.rebalancer = Rebalancer(member, assignment, commits)
        self._member = member
        self._session = member.session
        self._consumer = consumer
        self._assignment = assignment
        self._commits = commits
        self._own_session = own_session
        self._rebalancing: asyncio.Task[None] | None = None
        self._unwatch: Callable[[], None] | None = None
        self._ended = asyncio.Event()

    async def start(self, begin: Callable[[], Awaitable[None]], leave: Callable[[], Awaitable[None]]) -> None:
        """Start the session if it is ours, and ``begin``; ``leave`` again when that fails. UsageError after a stop."""
        lifecycle = self._member.lifecycle
        lifecycle.move("start")
        self.started_ms = self._session.env.clock.wall_ms()
        try:
            if self._own_session:
                await self._session.start()
            self._session.need_running()
            await begin()
            lifecycle.move("started")
        except BaseException:
            lifecycle.move("failed")
            await leave()
            raise

    async def stop(self, leave: Callable[[], Awaitable[None]]) -> None:
        """``leave``. A start that is under way fails by this, and this returns when it has ended; as with a stop that
        is under way."""
        before = self._member.lifecycle.state
        self._member.lifecycle.move("stop")
        if before in (State.STARTING, State.RUNNING):
            self.rebalancer.abandon()
        if before in (State.STARTING, State.STOPPING):
            await self._ended.wait()
        elif before is State.RUNNING:
            await leave()

    # -- in the group --

    def join(self) -> None:
        """From here on brokers are told of it; nothing happens when they are already."""
        if self._unwatch is None:
            self._session.add_consumer(self._member.wire_group, self._consumer)
            self._unwatch = self._session.watch_routes(self._on_route)

    async def settle(self) -> None:
        """See ``Rebalancer.settle``; within the client's ``start_timeout``."""
        await self.rebalancer.settle(self._session.config.start_timeout)

    def rebalance_from_now_on(self) -> None:
        if self._rebalancing is None:
            self._rebalancing = self._member.scope.start(self.rebalancer.forever(), name="rebalance")

    async def end_rebalancing(self) -> None:
        """Nothing is taken or given up by it any more."""
        if self._unwatch is not None:
            self._unwatch()
        if self._rebalancing is not None:
            self._rebalancing.cancel()
            await asyncio.wait([self._rebalancing])

    async def leave(self) -> None:
        """Tell the brokers, as far as they answer."""
        if self._session.started:
            await self._session.remove_consumer(self._member.wire_group, self._consumer)

    async def close(self, end_work: Callable[[], Awaitable[None]]) -> None:
        """What has to be so at the end, also when the way here was cut short by a cancellation."""
        member = self._member
        async with AsyncExitStack() as ends:
            ends.callback(self._ended.set)
            ends.callback(member.lifecycle.move, "stopped")
            if self._own_session:
                ends.push_async_callback(self._session.stop)
            ends.callback(self._session.forget_consumer, member.wire_group, self._consumer)
            if member.leases is not None:
                ends.push_async_callback(to_the_end, member.leases.close)
            await to_the_end(end_work)

    def _on_route(self, route: TopicRoute) -> None:
        if route.topic in self._member.subscriptions:
            self.rebalancer.now()

    def state(self, in_work: int, counters: Counters) -> ConsumerState:
        """What it is doing right now."""
        fetchers, offsets = self._assignment.fetchers, self._commits.offsets
        queues = tuple(fetchers[queue].state(offsets.committed(queue)) for queue in sorted(fetchers))
        return ConsumerState(
            group=self._member.group,
            client_id=self._session.client_id if self._session.started else "",
            running=self._member.lifecycle.running,
            members=self.rebalancer.members,
            queues=queues,
            cached=sum(each.cached for each in queues),
            in_work=in_work,
            counters=counters,
            missing=tuple(sorted(unwrap(self._member.namespace, topic) for topic in self._member.missing)),
            last_error=next((each.last_error for each in queues if each.last_error), None),
        )
