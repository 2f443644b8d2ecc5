"""The push consumer: listeners by decorator, messages by async iterator, and the life of both."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from aiorocket.client.core.lifecycle import State
from aiorocket.client.core.namespace import unwrap, wrap
from aiorocket.client.core.stats import ConsumeStats
from aiorocket.client.core.subscriptions import wanted
from aiorocket.client.group.commits import Commits, RemoteOffsets
from aiorocket.client.group.group_check import check_group_agrees
from aiorocket.client.group.leases import Leases
from aiorocket.client.group.local_offsets import LocalOffsets, offset_path
from aiorocket.client.group.member import Member
from aiorocket.client.group.membership import Membership
from aiorocket.client.group.rebalance_hooks import QueuesHook
from aiorocket.client.middleware import Middleware
from aiorocket.client.push.assigned import Assigned
from aiorocket.client.push.backlog import Backlog
from aiorocket.client.push.calls import Surroundings
from aiorocket.client.push.direct import consume_directly
from aiorocket.client.push.fetcher import Fetcher, Pulling
from aiorocket.client.push.hooks import ConsumeHook
from aiorocket.client.push.listener_state import bind_state
from aiorocket.client.push.router import Listener, Router
from aiorocket.client.push.settlement import Settlement
from aiorocket.client.push.sinks import Sink, end_work, make_sink, sample_forever, sweep_forever
from aiorocket.client.push.stream import MessageStream
from aiorocket.client.push.topics import Topics
from aiorocket.client.registered import GroupMember
from aiorocket.client.session import HasSession, Session
from aiorocket.client.state import ConsumerState
from aiorocket.config import ConsumerConfig, MissingTopics
from aiorocket.errors import UsageError
from aiorocket.model import Queue
from aiorocket.runtime.clock import WallClock
from aiorocket.runtime.env import Env
from aiorocket.runtime.threads import Executor
from aiorocket.runtime.watchdog import watch_loop
from aiorocket_protocol import CONSUME_PASSIVELY

__all__ = ("Consumer",)

log = logging.getLogger("aiorocket.client")

#: Where listeners are called from.
_CLIENT = os.path.dirname(os.path.dirname(__file__))


class Consumer(Router):
    """One member of a consumer group. The members share the queues of every topic the group subscribes to; a message is
    delivered at least once, to one of them.

    Register listeners before the start (``@consumer.listener(...)``, or a ``Router``), or ``subscribe`` and iterate
    over ``messages()``. ``nameservers`` opens connections of its own, ``client`` shares those of a ``Client`` (one
    member per group and Client). An object is used once: ``async with``, or ``start()`` and ``stop()``.

    ``on_assigned`` and ``on_revoked`` are awaited with a list of queues, before the first pull of these and before
    somebody else may have those; for ``ConsumerConfig.rebalance_hook_timeout`` seconds at most.
    """

    group: str

    def __init__(
        self,
        group: str | None = None,
        *,
        nameservers: str | Sequence[str] | None = None,
        client: HasSession | None = None,
        config: ConsumerConfig | None = None,
        env: Env | None = None,
        router: Router | None = None,
        hooks: Iterable[ConsumeHook] = (),
        middleware: Iterable[Middleware] = (),
        on_assigned: QueuesHook | None = None,
        on_revoked: QueuesHook | None = None,
    ) -> None:
        if client is not None and (nameservers is not None or env is not None):
            raise UsageError("a Consumer takes either client= or nameservers= and env=: the client has them already")
        if group is None:
            group = router.group if router is not None else None
            if group is None:
                raise UsageError("which group? Consumer(group, ...), or a Router with a group")
        super().__init__(group)
        self.client = client.session if client is not None else Session(nameservers=nameservers, env=env)
        self.config = config or self.client.config.consumer
        self._around = (*self.client.middleware, *middleware)
        model = self.config.message_model.upper()
        self._member = member = Member(
            self.client, group, self.config, kind="consumer", consume_type=CONSUME_PASSIVELY, message_model=model
        )
        self.stats = ConsumeStats(member.namespace)
        self._stream = MessageStream(self._need_subscription)
        self._hooks = tuple(hooks)
        self._sinks: list[Sink] = []
        self._pools: list[Executor] = []
        self._topics = Topics(member, self._stream)
        self._settlement = Settlement(member, self.config, self._topics.dispatch_again)
        self._backlog = Backlog(
            self.config.max_backlog, self.config.pull_batch_size, lambda: sum(sink.backlog for sink in self._sinks),
            self._topics.idle,
        )  # fmt: skip
        local = LocalOffsets(self.client.env.disk, self._offset_path) if member.broadcasting else None
        self._commits = Commits(member, local or RemoteOffsets(member))
        pulling = Pulling(
            member=member, config=self.config, topics=self._topics, backlog=self._backlog, stats=self.stats,
            settler=self._settlement, begin_anew=self._begin_anew,
        )  # fmt: skip
        self._assigned = Assigned(
            pulling, self._commits, self._sinks, orderly=self._is_orderly, rebalance=self._rebalance_now,
            on_assigned=on_assigned, on_revoked=on_revoked,
        )  # fmt: skip
        self._registered = GroupMember(
            config=self.config, stats=self.stats, state=self.state, consumer_data=member.consumer_data,
            subscriptions=lambda: member.subscriptions, started_ms=lambda: self._membership.started_ms,
            is_orderly=self._is_orderly, rebalance_now=self._rebalance_now, reset_offsets=self._reset_offsets,
            consume_directly=self._consume_directly,
        )  # fmt: skip
        self._membership = Membership(
            member, self._registered, self._assigned, self._commits, own_session=client is None
        )
        if router is not None:
            self.include(router)

    # -- listeners --

    def _add(self, listener: Listener) -> None:
        """UsageError after the start."""
        self._before_start()
        super()._add(listener)

    def include(self, router: Router, *, state: object = None) -> None:
        """Run a router's listeners too; those with a parameter named ``state`` get it. UsageError when it is for
        another group, or after the start."""
        self._before_start()
        if router.group is not None and router.group != self.group:
            raise UsageError(f"the router is for group {router.group!r}, this consumer for {self.group!r}")
        for each in router.listeners:
            self._add(bind_state(each, state) if state is not None else each)

    def set_concurrency(self, topic: str, concurrency: int) -> None:
        """Let so many handlers (1 to 1024) of each of the topic's listeners run at once from now on (a plain function
        keeps its threads). Nothing is interrupted. UsageError when no listener of the topic runs."""
        running = list(zip(self.listeners, self._sinks, strict=False))
        sinks = [sink for each, sink in running if self._wire(each.topic) == self._wire(topic)]
        if not sinks:
            topics = sorted({unwrap(self._member.namespace, each.topic) for each, _ in running})
            known = ", ".join(topics) or "none, or it is not started"
            raise UsageError(f"consumer {self.group!r} runs no listener of topic {topic!r} (topics: {known})")
        for sink in sinks:
            sink.workers.set_concurrency(concurrency)

    # -- what to consume --

    async def subscribe(
        self,
        topic: str,
        tags: str = "*",
        *,
        sql: str | None = None,
        start_from: str | datetime | int = "last",
        missing_topics: MissingTopics | None = None,
    ) -> None:
        """Take messages of ``topic`` with one of ``tags``, or that match the SQL92 expression ``sql``, through
        ``messages()``.

        ``start_from`` matters only in queues the group has no offset for: "last" is what comes from now on, "first"
        all there is, an aware datetime (or milliseconds) what was stored since. ``missing_topics`` is as of
        ``listener``. On a running consumer this returns once the topic's queues are assigned, or raises as ``start``
        does; the subscription stays and is tried further.
        """
        what = wanted(topic, tags, sql, start_from, missing_topics)
        lifecycle = self._member.lifecycle
        if lifecycle.state is not State.NEW:
            self._member.need_running()
        wire = self._wire(topic)
        self._topics.add(wire, what, self._stream)
        if lifecycle.running:
            self._topics.derive(self.client.env.clock.wall_ms())
            self.client.subscriptions_changed()
            self._assigned.filter_changed(wire)
            await self._membership.settle()
            lifecycle.need_running()

    def messages(self, buffer: int = 256) -> MessageStream:
        """The messages of subscribed topics as an async iterator, each to be settled (``Message.process``).

        At most about ``buffer`` messages wait; pulling stops until some are taken. The offset of a queue advances
        over its smallest unsettled message. Leaving the loop settles nothing.
        """
        self._stream.set_buffer(buffer)
        return self._stream

    def pause(self, *topics: str) -> None:
        """Pull nothing more of ``topics`` (all, when none is given); what is cached is still delivered."""
        self._assigned.pause([self._wire(topic) for topic in topics] or list(self._member.subscriptions))

    def resume(self, *topics: str) -> None:
        """Undo ``pause`` for ``topics`` (all, when none is given): they are pulled at once, and shared out anew."""
        self._assigned.resume([self._wire(topic) for topic in topics])
        if self._member.lifecycle.running:
            self._rebalance_now()

    # -- life --

    async def start(self) -> None:
        """Return once the brokers know this member and its queues are assigned, of every subscribed topic but those
        that nobody has yet (``ClientConfig.missing_topics``), and of every broker but those that are away.

        Raises what is missing after the client's ``start_timeout``: TopicNotFoundError with "error", NotConnectedError
        when no broker of a topic can be reached, or RequestTimeoutError with the details. Nothing is left running then.
        """
        if self._member.lifecycle.state is State.NEW:
            self._check_options()  # needs no network to be refused: the consumer is as it was then
        await self._membership.start(self._begin, lambda: self._leave(0.0))

    def _check_options(self) -> None:
        orderly = self._is_orderly()
        if self.config.rebalance == "broker" and (orderly or any(each.order_by for each in self.listeners)):
            raise UsageError(f"consumer {self.group!r}: what a broker gives out has no order; use rebalance='client'")
        if not self.listeners and not self._topics:
            log.warning("consumer %r has no listener and no subscription: it takes nothing before one", self.group)
        if self._member.broadcasting and self.client.config.instance is None:
            raise UsageError(
                f"consumer {self.group!r} broadcasts: its offsets lie in a file named after the client id, "
                "which changes with every start unless ClientConfig.instance gives it a name: "
                "Consumer(..., client=Client(config=ClientConfig(instance='...')))"
            )

    async def _begin(self) -> None:
        member, config, scope = self._member, self.config, self._member.scope
        if self._is_orderly() and not member.broadcasting:
            member.leases = Leases(self.client, member.wire_group, config, member.master_address)
            member.leases.watch_lost(self._assigned.lock_lost)
        surroundings = Surroundings(
            group=self.group, settlement=self._settlement, counters=member.counters, stats=self.stats,
            clock=self.client.env.clock, scope=scope, hooks=self._hooks, middleware=self._around,
            namespace=member.namespace, consume_timeout=config.consume_timeout, moved=self._backlog.notify,
            pools=self._pools,
        )  # fmt: skip
        for each in self.listeners:
            sink = make_sink(each, config, surroundings, member.leases)
            self._topics.add(self._wire(each.topic), each.wanted, sink)
            self._sinks.append(sink)
        self._topics.derive(self.client.env.clock.wall_ms())
        await check_group_agrees(member)
        self._membership.join()
        if member.leases is not None:
            scope.start(member.leases.renew_forever(), name="locks")
        await self._membership.settle()
        self._membership.rebalance_from_now_on()
        scope.start(self._commits.forever(config.offset_flush_interval, self._fetchers), name="commit")
        scope.start(sweep_forever(self._sinks, config.consume_timeout), name="sweep")
        scope.start(sample_forever(self.stats), name="statistics")
        if self.listeners and config.loop_block_warning and isinstance(self.client.env.clock, WallClock):
            scope.start(watch_loop(_CLIENT, config.loop_block_warning), name="watchdog")

    async def stop(self, *, drain: bool = True, timeout: float | None = None) -> None:
        """Leave the group: pull no more, let running listeners finish (for ``timeout`` seconds, default
        ``ConsumerConfig.drain_timeout``; not at all without ``drain``), cancel those that run on, commit, tell the
        brokers. A listener that has not ended 10 s after it was cancelled is named in the log and left to itself.

        Messages that were waiting or interrupted are neither finished nor sent back: the next member gets them. A start
        that is under way is given up: ``start`` raises UsageError, and both return when nothing of it is left. A second
        ``stop`` returns with the first.
        """
        patience = self.config.drain_timeout if timeout is None else timeout
        await self._membership.stop(lambda: self._leave(patience if drain else 0.0))

    async def __aenter__(self) -> Consumer:
        await self.start()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.stop()

    async def _leave(self, patience: float) -> None:
        try:
            await self._membership.end_rebalancing()
            fetchers = self._fetchers()
            await asyncio.gather(*(fetcher.stop() for fetcher in fetchers))
            self._stream.close()
            await asyncio.gather(*(sink.drain(patience) for sink in self._sinks))
            await self._assigned.finish(fetchers, leaving=True)
            await self._membership.leave()
        finally:
            for fetcher in self._fetchers():
                fetcher.process_queue.drop()
            self._stream.close()
            await self._membership.close(lambda: end_work(self._sinks, self._member.scope, self._pools))

    async def commit(self) -> None:
        """Commit now what is finished, and wait for the brokers. RocketError of the first queue that could not."""
        self._member.need_running()
        failures = await self._commits.flush(self._fetchers())
        for error in failures.values():
            raise error

    def state(self) -> ConsumerState:
        """What it is doing right now."""
        in_work = sum(sink.workers.in_work for sink in self._sinks)
        return self._membership.state(in_work, replace(self._member.counters, consumed=self._assigned.finished))

    def held(self) -> list[Queue]:
        """The queues assigned to this member, by their names on the wire."""
        return list(self._assigned.fetchers)

    # -- inside --

    def _fetchers(self) -> list[Fetcher]:
        return list(self._assigned.fetchers.values())

    def _is_orderly(self) -> bool:
        """Its listeners are orderly ones. UsageError when there are some of both kinds: a group is one or the other."""
        kinds = {each.mode == "orderly" for each in self.listeners}
        if len(kinds) > 1:
            raise UsageError(f"group {self.group!r} has orderly and concurrent listeners: give each kind its own group")
        return kinds == {True}

    def _rebalance_now(self) -> None:
        self._membership.rebalancer.now()

    async def _reset_offsets(self, topic: str, offsets: Mapping[Queue, int]) -> None:
        """What is cached is dropped at once, the rest follows in ``ConsumerConfig.offset_illegal_delay`` seconds."""
        if self._member.pulling:
            wire = self._wire(topic)
            self._begin_anew({queue._replace(topic=wire): offset for queue, offset in offsets.items()})

    async def _consume_directly(self, record: bytes, broker_name: str) -> dict[str, Any]:
        return await consume_directly(
            self._member, self.listeners, self._around, self.config.batch_size, record, broker_name
        )

    def _need_subscription(self) -> None:
        self._member.need_running()
        if not self._topics.streams:
            raise UsageError(f"consumer {self.group!r} has no subscription for messages() to give: subscribe() first")

    def _wire(self, topic: str) -> str:
        return wrap(self._member.namespace, topic)

    def _before_start(self) -> None:
        if self._member.lifecycle.state is not State.NEW:
            raise UsageError(f"consumer {self.group!r} was started: register listeners before that")

    def _offset_path(self) -> str:
        return offset_path(self.config.offset_store_dir, self.client.client_id, self._member.wire_group)

    def _begin_anew(self, positions: Mapping[Queue, int | None]) -> None:
        self._assigned.begin_anew(positions, self.config.offset_illegal_delay)
