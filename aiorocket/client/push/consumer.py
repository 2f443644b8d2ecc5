"""The push consumer: listeners by decorator, messages by async iterator, and the life of both."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any

from aiorocket.client.core.balance import find_strategy
from aiorocket.client.core.lifecycle import Lifecycle, State
from aiorocket.client.core.namespace import unwrap, wrap
from aiorocket.client.core.start_from import StartFrom, parse_start
from aiorocket.client.core.stats import ConsumeStats
from aiorocket.client.core.subscriptions import check_filter
from aiorocket.client.group.commits import Commits, RemoteOffsets
from aiorocket.client.group.group_check import check_group_agrees
from aiorocket.client.group.leases import Leases
from aiorocket.client.group.local_offsets import LocalOffsets, offset_path
from aiorocket.client.group.member import OffsetStore
from aiorocket.client.group.rebalance_hooks import QueuesHook
from aiorocket.client.group.rebalancer import Rebalancer
from aiorocket.client.message import Message
from aiorocket.client.push.assigned import Assigned
from aiorocket.client.push.backlog import Backlog
from aiorocket.client.push.calls import Surroundings
from aiorocket.client.push.fetcher import Fetcher
from aiorocket.client.push.hooks import ConsumeHook
from aiorocket.client.push.listening import Listening
from aiorocket.client.push.router import Listener, Router
from aiorocket.client.push.settlement import Settlement
from aiorocket.client.push.sinks import Sink, end_work, make_sink
from aiorocket.client.push.stream import MessageStream
from aiorocket.client.push.topics import Taker, Topics
from aiorocket.client.session import Session
from aiorocket.client.state import ConsumerState, Counters
from aiorocket.config import ConsumerConfig
from aiorocket.errors import UsageError
from aiorocket.model import Queue, check_group, check_topic
from aiorocket.runtime.env import Env
from aiorocket.runtime.tasks import TaskScope, to_the_end
from aiorocket_protocol import ConsumerData, SubscriptionData, retry_topic

__all__ = ("Consumer",)

log = logging.getLogger("aiorocket.client")

_LONGEST_SWEEP = 60.0


class Consumer(Listening):
    """One member of a consumer group. The members share the queues of every topic the group subscribes to; a message is
    delivered at least once, to one of them.

    Register listeners before the start (``@consumer.listener(...)``, or a ``Router``), or ``subscribe`` and iterate
    over ``messages()``. ``nameservers`` makes a private ``Client``, ``client`` shares one (one member per group and
    Client). An object is used once: ``async with``, or ``start()`` and ``stop()``.

    ``on_assigned`` and ``on_revoked`` are awaited with a list of queues, before the first pull of these and before
    somebody else may have those; for ``ConsumerConfig.rebalance_hook_timeout`` seconds at most.
    """

    def __init__(
        self,
        group: str | None = None,
        *,
        nameservers: str | Sequence[str] | None = None,
        client: Session | None = None,
        config: ConsumerConfig | None = None,
        env: Env | None = None,
        router: Router | None = None,
        hooks: Iterable[ConsumeHook] = (),
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
        self.config = config or ConsumerConfig()
        self._own_client = client is None
        self.client = client or Session(nameservers=nameservers, env=env)
        self._namespace = self.client.config.namespace
        #: With the namespace, as brokers know it; so are the names of topics and queues in here.
        self.wire_group = check_group(wrap(self._namespace, group))
        #: Every member has all queues (``ConsumerConfig.message_model``).
        self.broadcasting = self.config.message_model == "broadcasting"
        self.retry_topic = check_topic(retry_topic(self.wire_group))
        self._lifecycle = Lifecycle(f"consumer {group!r}")
        self.stream = MessageStream(self._lifecycle.need_running)
        self._topics = Topics(None if self.broadcasting else self.retry_topic, self.stream)
        self._only = self._topics.only
        self.sinks: list[Sink] = []
        self._sinks: dict[str, list[Sink]] = {}
        self.backlog = Backlog(
            self.config.max_backlog, self.config.pull_batch_size, lambda: sum(sink.backlog for sink in self.sinks)
        )
        self.paused: set[str] = set()
        self.counters = Counters()
        #: The broker's queue locks of an orderly consumer, from its start on.
        self.leases: Leases | None = None
        self.stats = ConsumeStats(self._namespace)
        self.hooks = tuple(hooks)
        self.on_assigned, self.on_revoked = on_assigned, on_revoked
        self._offset_store: OffsetStore | None = None
        self._rebalancing: asyncio.Task[None] | None = None
        self._begun = False
        self._ended = asyncio.Event()
        if router is not None:
            self.include(router)

    # -- what to consume --

    async def subscribe(
        self, topic: str, tags: str = "*", *, sql: str | None = None, start_from: str | datetime | int = "last"
    ) -> None:
        """Take messages of ``topic`` with one of ``tags``, or that match the SQL92 expression ``sql``, through
        ``messages()``.

        ``start_from`` matters only in queues the group has no offset for: "last" is what comes from now on, "first"
        all there is, an aware datetime (or milliseconds) what was stored since. On a running consumer this returns
        once the topic's queues are assigned, or raises as ``start`` does; the subscription stays and is tried further.
        """
        check_topic(topic)
        wanted, start = check_filter(tags, sql), parse_start(start_from)
        if self._lifecycle.state not in (State.NEW, State.RUNNING):
            self._lifecycle.need_running()
        wire = wrap(self._namespace, topic)
        self._topics.add(wire, wanted, self.stream, start, sql)
        if self._lifecycle.running:
            self._derive()
            self.client.subscriptions_changed()
            self._assigned.filter_changed(wire)
            await self._rebalancer.settle(self.client.config.start_timeout)
            self._lifecycle.need_running()

    def messages(self, buffer: int = 256) -> MessageStream:
        """The messages of subscribed topics as an async iterator, each to be settled (``Message.process``).

        At most about ``buffer`` messages wait; pulling stops until some are taken. The offset of a queue advances
        over its smallest unsettled message. Leaving the loop settles nothing.
        """
        self.stream.set_buffer(buffer)
        return self.stream

    def pause(self, *topics: str) -> None:
        """Pull nothing more of ``topics`` (all, when none is given); what is cached is still delivered."""
        names = [wrap(self._namespace, topic) for topic in topics]
        self.paused.update(names or self.topics() or ("*",))
        self._look_at_pauses()

    def resume(self, *topics: str) -> None:
        """Undo ``pause`` for ``topics`` (all, when none is given): they are pulled at once, and shared out anew."""
        if topics:
            self.paused.difference_update(wrap(self._namespace, topic) for topic in topics)
        else:
            self.paused.clear()
        self._look_at_pauses()
        if self._lifecycle.running:
            self.rebalance_now()

    def _look_at_pauses(self) -> None:
        if self._begun:
            self._assigned.look_at_pauses()

    # -- life --

    async def start(self) -> None:
        """Return once every subscribed topic has a route, the brokers know this member, and its queues are assigned.

        Raises what is missing after the client's ``start_timeout``: TopicNotFoundError, NotConnectedError, or
        RequestTimeoutError with the details. Nothing is left running then.
        """
        self._check_options()
        self._lifecycle.move("start")
        self.started_ms = self.client.env.clock.wall_ms()
        self._scope = TaskScope(f"consumer-{self.group}", on_crash=self._crashed)
        self._commits = Commits(self)
        self._assigned = Assigned(self, self._commits, self._scope)
        self._rebalancer = Rebalancer(self, self._assigned)
        self._begun = True
        self._unwatch: Callable[[], None] | None = None
        try:
            if self._own_client:
                await self.client.start()
            self.client.need_running()
            if self.is_orderly and not self.broadcasting:
                self.leases = Leases(self)
                self.leases.watch_lost(self._assigned.lock_lost)
            self.settlement = Settlement(self, self._again)
            surroundings = Surroundings(
                group=self.group, settlement=self.settlement, counters=self.counters, stats=self.stats,
                clock=self.client.env.clock, scope=self._scope, hooks=self.hooks, namespace=self._namespace,
                consume_timeout=self.config.consume_timeout, moved=self.backlog.tell,
            )  # fmt: skip
            for each in self.listeners:
                self._deliver(each, surroundings)
            self._derive()
            await check_group_agrees(self)
            self.client.add_consumer(self.wire_group, self)
            self._unwatch = self.client.watch_routes(self._on_route)
            if self.leases is not None:
                self._scope.start(self.leases.renew_forever(), name="locks")
            await self._rebalancer.settle(self.client.config.start_timeout)
            self._rebalancing = self._scope.start(self._rebalancer.forever(), name="rebalance")
            self._scope.start(self._commits.forever(self.config.offset_flush_interval, self.fetchers), name="commit")
            self._scope.start(self._sweep_forever(), name="sweep")
            self._scope.start(self._sample_forever(), name="statistics")
            self._lifecycle.move("started")
        except BaseException:
            self._lifecycle.move("failed")
            await self._leave(drain=False, timeout=0.0)
            raise

    def _check_options(self) -> None:
        """What needs no network to be refused; the consumer is as it was then."""
        if self._lifecycle.state is State.NEW:
            find_strategy(self.config.allocate)
            _ = self.is_orderly
            if self.broadcasting and self.client.config.instance is None:
                raise UsageError(
                    f"consumer {self.group!r} broadcasts: its offsets lie in a file named after the client id, "
                    "which changes with every start unless ClientConfig.instance gives it a name: "
                    "Consumer(..., client=Client(config=ClientConfig(instance='...')))"
                )

    async def stop(self, *, drain: bool = True, timeout: float | None = None) -> None:
        """Leave the group: pull no more, let running listeners finish (for ``timeout`` seconds, default
        ``ConsumerConfig.drain_timeout``; not at all without ``drain``), commit, tell the brokers.

        Messages that were waiting or interrupted are neither finished nor sent back: the next member gets them. A start
        that is under way is given up: ``start`` raises UsageError, and both return when nothing of it is left. A second
        ``stop`` returns with the first.
        """
        before = self._lifecycle.state
        self._lifecycle.move("stop")
        if before in (State.STARTING, State.RUNNING):
            self._rebalancer.abandon()
        if before in (State.STARTING, State.STOPPING):
            await self._ended.wait()
        elif before is State.RUNNING:
            await self._leave(drain=drain, timeout=self.config.drain_timeout if timeout is None else timeout)

    async def __aenter__(self) -> Consumer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def commit(self) -> None:
        """Commit now what is finished, and wait for the brokers. RocketError of the first queue that could not."""
        self._lifecycle.need_running()
        failures = await self._commits.flush(self.fetchers())
        for error in failures.values():
            raise error

    def state(self) -> ConsumerState:
        """What it is doing right now."""
        started = self._begun
        queues = self._assigned.states() if started else ()
        return ConsumerState(
            group=self.group,
            client_id=self.client.client_id if self.client.started else "",
            running=self._lifecycle.running,
            members=self._rebalancer.members if started else (),
            queues=queues,
            cached=sum(each.cached for each in queues),
            in_work=sum(each.workers.in_work for each in self.sinks),
            counters=replace(self.counters, consumed=self._assigned.finished if started else 0),
            last_error=next((each.last_error for each in queues if each.last_error), None),
        )

    # -- what its parts ask --

    @property
    def is_orderly(self) -> bool:
        """Its listeners are orderly ones. UsageError when there are some of both kinds: a group is one or the other."""
        kinds = {each.mode == "orderly" for each in self.listeners}
        if len(kinds) > 1:
            raise UsageError(f"group {self.group!r} has orderly and concurrent listeners: give each kind its own group")
        return kinds == {True}

    def consumer_data(self) -> ConsumerData:
        """As heartbeats carry it."""
        model, subscriptions = self.config.message_model.upper(), list(self._topics.data.values())
        start = self._topics.wire_start
        return ConsumerData(self.wire_group, message_model=model, consume_from_where=start, subscriptions=subscriptions)

    @property
    def pulling(self) -> bool:
        """Not stopping: fetchers may pull."""
        return self._lifecycle.state in (State.STARTING, State.RUNNING)

    @property
    def offset_store(self) -> OffsetStore:
        """Known once a name server has been asked: the client id names the file of a broadcasting member."""
        if self._offset_store is None:
            if self.broadcasting:
                path = offset_path(self.config.offset_store_dir, self.client.client_id, self.wire_group)
                self._offset_store = LocalOffsets(self.client.env.disk, path)
            else:
                self._offset_store = RemoteOffsets(self)
        return self._offset_store

    def rebalance_now(self) -> None:
        """The group changed: look at once who gets which queue."""
        self._rebalancer.now()

    async def reset_offsets(self, topic: str, offsets: Mapping[Queue, int]) -> None:
        """Go on at ``offsets`` in these queues of ``topic``, those that are held here (code 220). What is cached is
        dropped at once, the rest follows in ``ConsumerConfig.offset_illegal_delay`` seconds."""
        if self.pulling:
            wire = wrap(self._namespace, topic)
            self.begin_anew({queue._replace(topic=wire): offset for queue, offset in offsets.items()})

    def begin_anew(self, positions: Mapping[Queue, int]) -> None:
        """See ``Assigned.begin_anew``."""
        self._assigned.begin_anew(positions, self.config.offset_illegal_delay)

    def topics(self) -> list[str]:
        """Every topic subscribed to, the group's retry topic last."""
        return list(self._topics.data)

    def subscription(self, topic: str) -> SubscriptionData:
        return self._topics.data[topic]

    def subscribed(self, topic: str) -> bool:
        return topic in self._topics.data

    def touch(self, topics: Iterable[str]) -> None:
        """The queues of ``topics`` changed here, so their subscriptions get a new version."""
        self._topics.touch(topics, self.client.env.clock.wall_ms())

    def start_from(self, topic: str) -> StartFrom:
        return self._topics.start_from(topic)

    def held(self) -> list[Queue]:
        """The queues assigned to this member."""
        return [fetcher.queue for fetcher in self.fetchers()]

    def shown(self, queues: Iterable[Queue]) -> list[Queue]:
        """Without the namespace, sorted."""
        return sorted(queue._replace(topic=unwrap(self._namespace, queue.topic)) for queue in queues)

    def fetchers(self) -> list[Fetcher]:
        return list(self._assigned.fetchers.values()) if self._begun else []

    def master_address(self, queue: Queue) -> str | None:
        route = self.client.routes.known(queue.topic)
        return route.master(queue.broker_name) if route is not None else None

    def reader_address(self, queue: Queue, suggested: int) -> str | None:
        route = self.client.routes.known(queue.topic)
        return route.reader(queue.broker_name, suggested) if route is not None else None

    def stream_full(self, topic: str) -> bool:
        return topic in self._topics.streamed and self.stream.full

    def dispatch(self, topic: str, messages: list[Message]) -> None:
        """Hot: a run of messages to whoever takes them."""
        sink = self._only.get(topic)
        if sink is not None:
            sink.put(messages)
            return
        parts: dict[Taker, list[Message]] = {}
        for message in messages:
            found = self._topics.find(wrap(self._namespace, message.wire_topic), message.tag)
            if found is None:
                log.warning("message %s: nobody here takes topic %s any more", message.msg_id, message.topic)
                self._scope.start(self.send_back(message, 0), name="orphan")
            else:
                parts.setdefault(found, []).append(message)
        for sink, part in parts.items():
            sink.put(part)

    async def send_back(self, message: Message, delay_level: int, max_attempts: int | None = None) -> bool:
        """Settler: for messages that are settled by hand."""
        return await self.settlement.send_back(message, delay_level, max_attempts)

    def count_skipped(self) -> None:
        self.counters.skipped += 1

    def later(self, delay: float, action: Callable[[], None]) -> None:
        """Do ``action`` after ``delay`` seconds, unless the consumer has ended by then."""

        async def wait() -> None:
            await asyncio.sleep(delay)
            action()

        if self.pulling:  # listeners run from the first queues on, while the start still waits for others
            self._scope.start(wait(), name="later")

    # -- inside --

    def _deliver(self, listener: Listener, around: Surroundings) -> None:
        sink, topic = make_sink(listener, self.config, around, self.leases), wrap(self._namespace, listener.topic)
        self._topics.add(topic, listener.tags, sink, listener.start_from, listener.sql)
        self.sinks.append(sink)
        self._sinks.setdefault(unwrap(self._namespace, topic), []).append(sink)

    def _derive(self) -> None:
        self._topics.derive(self.client.env.clock.wall_ms())

    async def _leave(self, *, drain: bool, timeout: float) -> None:
        try:
            if self._unwatch is not None:
                self._unwatch()
            if self._rebalancing is not None:
                # Nothing is taken or given up by it any more.
                self._rebalancing.cancel()
                await asyncio.wait([self._rebalancing])
            fetchers = self.fetchers()
            await asyncio.gather(*(fetcher.stop() for fetcher in fetchers))
            self.stream.close()
            patience = timeout if drain else 0.0
            await asyncio.gather(*(sink.drain(patience) for sink in self.sinks))
            await self._assigned.tell(self.on_revoked, self.shown(fetcher.queue for fetcher in fetchers))
            await self._assigned.finish(fetchers, leaving=True)
            if self.client.started:
                await self.client.remove_consumer(self.wire_group, self)
        finally:
            await self._close()

    async def _close(self) -> None:
        """What has to be so at the end, also when the way here was cut short by a cancellation."""
        for fetcher in self.fetchers():
            fetcher.process_queue.drop()
        self.stream.close()
        async with AsyncExitStack() as ends:
            ends.callback(self._ended.set)
            ends.callback(self._lifecycle.move, "stopped")
            if self._own_client:
                ends.push_async_callback(self.client.stop)
            ends.callback(self.client.forget_consumer, self.wire_group, self)
            if self.leases is not None:
                ends.push_async_callback(to_the_end, self.leases.close)
            await to_the_end(lambda: end_work(self.sinks, self._scope))

    def _again(self, message: Message) -> None:
        if not message.settled:
            self.dispatch(message.source.queue.topic, [message])

    def _on_route(self, route: Any) -> None:
        if route.topic in self._topics.data:
            self._rebalancer.now()

    async def _sweep_forever(self) -> None:
        limit = self.config.consume_timeout
        while True:
            await asyncio.sleep(min(_LONGEST_SWEEP, limit / 10))
            now = asyncio.get_running_loop().time()
            for sink in self.sinks:
                await sink.sweep(now, limit)

    def _crashed(self, task: asyncio.Task[Any], error: BaseException) -> None:
        task.get_loop().call_exception_handler(
            {"message": f"{task.get_name()} crashed: this is a bug in aiorocket", "exception": error, "task": task}
        )
