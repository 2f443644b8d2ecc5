"""The push consumer: listeners by decorator, messages by async iterator, and the life of both."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar

from aiorocket.client.commits import Commits
from aiorocket.client.core.lifecycle import Lifecycle, State
from aiorocket.client.core.process_queue import Limits
from aiorocket.client.core.start_from import StartFrom, parse_start
from aiorocket.client.core.subscriptions import Subscriptions, check_tags
from aiorocket.client.fetcher import Fetcher
from aiorocket.client.message import Message
from aiorocket.client.rebalancer import Rebalancer
from aiorocket.client.router import Handler, Listener, Router
from aiorocket.client.session import Client
from aiorocket.client.settlement import Settlement
from aiorocket.client.sinks import Sink, make_sink
from aiorocket.client.state import ConsumerState, Counters, QueueState
from aiorocket.client.stream import MessageStream
from aiorocket.config import ConsumerConfig
from aiorocket.errors import NotConnectedError, RequestTimeoutError, TopicNotFoundError, UsageError
from aiorocket.model import Queue, check_group, check_topic
from aiorocket.runtime.env import Env
from aiorocket.runtime.tasks import TaskScope
from aiorocket_protocol import ConsumerData, SubscriptionData

__all__ = ("Consumer",)

log = logging.getLogger("aiorocket.client")

_RETRY_PREFIX = "%RETRY%"
#: Between the rounds of a start that is not settled yet.
_SETTLE_PAUSE = 0.2
_LONGEST_SWEEP = 60.0

#: What a start that failed may raise as it is; anything else becomes RequestTimeoutError with the same text.
_SIMPLE = (TopicNotFoundError, NotConnectedError)

H = TypeVar("H", bound=Handler)
Taker = Sink | MessageStream


class Consumer:
    """One member of a consumer group. The members share the queues of every topic the group subscribes to; a message is
    delivered at least once, to one of them.

    Register listeners before the start (``@consumer.listener(...)``, or a ``Router``), or ``subscribe`` and iterate
    over ``messages()``. ``nameservers`` makes a private ``Client``, ``client`` shares one (one member per group and
    Client). An object is used once: ``async with``, or ``start()`` and ``stop()``.
    """

    def __init__(
        self,
        group: str | None = None,
        *,
        nameservers: str | Sequence[str] | None = None,
        client: Client | None = None,
        config: ConsumerConfig | None = None,
        env: Env | None = None,
        router: Router | None = None,
    ) -> None:
        if client is not None and (nameservers is not None or env is not None):
            raise UsageError("a Consumer takes either client= or nameservers= and env=: the client has them already")
        if group is None:
            group = router.group if router is not None else None
            if group is None:
                raise UsageError("which group? Consumer(group, ...), or a Router with a group")
        self.group = check_group(group)
        self.retry_topic = check_topic(_RETRY_PREFIX + group)
        self.config = config or ConsumerConfig()
        self._own_client = client is None
        self.client = client or Client(nameservers=nameservers, env=env)
        self._lifecycle = Lifecycle(f"consumer {group!r}")
        self._router = Router(group)
        self._subscribed = Subscriptions[Taker]()
        self._start_from: dict[str, StartFrom] = {}
        # What the hot path looks up, derived from the above whenever a topic is added.
        self._data: dict[str, SubscriptionData] = {}
        self._only: dict[str, Taker] = {}
        self._streamed: set[str] = set()
        self._deliveries: list[Sink] = []
        self._fetchers: dict[Queue, Fetcher] = {}
        self._paused: set[str] = set()
        self._retired = 0
        self.counters = Counters()
        self.stream = MessageStream(self._lifecycle.need_running)
        if router is not None:
            self.include(router)

    # -- what to consume --

    def listener(
        self,
        topic: str,
        tags: str = "*",
        *,
        concurrency: int | None = None,
        batch_size: int | None = None,
        max_attempts: int | None = None,
        timeout: float | None = None,
        start_from: str | datetime | int = "last",
    ) -> Callable[[H], H]:
        """Decorate an ``async def`` that takes a message, or a list of them; see ``Router.listener`` for the
        options."""
        self._before_start()
        return self._router.listener(
            topic, tags, concurrency=concurrency, batch_size=batch_size, max_attempts=max_attempts, timeout=timeout,
            start_from=start_from,
        )  # fmt: skip

    def include(self, router: Router) -> None:
        """Run a router's listeners too. UsageError when it is for another group, or after the start."""
        self._before_start()
        if router.group is not None and router.group != self.group:
            raise UsageError(f"the router is for group {router.group!r}, this consumer for {self.group!r}")
        for each in router.listeners:
            self._router.add(each)

    async def subscribe(self, topic: str, tags: str = "*", *, start_from: str | datetime | int = "last") -> None:
        """Take messages of ``topic`` with one of ``tags`` through ``messages()``.

        ``start_from`` matters only in queues the group has no offset for: "last" is what comes from now on, "first"
        all there is, an aware datetime (or milliseconds) what was stored since. On a running consumer this returns
        once the topic's queues are assigned, or raises as ``start`` does; the subscription stays and is tried further.
        """
        check_topic(topic)
        wanted, start = check_tags(tags), parse_start(start_from)
        if self._lifecycle.state not in (State.NEW, State.RUNNING):
            self._lifecycle.need_running()
        self._subscribed.add(topic, wanted, self.stream)
        self._start_from.setdefault(topic, start)
        if self._lifecycle.running:
            self._derive()
            self.client.subscriptions_changed()
            await self._settle()

    def messages(self, buffer: int = 256) -> MessageStream:
        """The messages of subscribed topics as an async iterator, each to be settled (``Message.process``).

        At most about ``buffer`` messages wait; pulling stops until some are taken. The offset of a queue advances
        over its smallest unsettled message. Leaving the loop settles nothing.
        """
        self.stream.set_buffer(buffer)
        return self.stream

    def pause(self, *topics: str) -> None:
        """Pull nothing more of ``topics`` (all, when none is given); what is cached is still delivered."""
        self._paused.update(topics or self.topics() or ("*",))
        for fetcher in self._fetchers.values():
            fetcher.paused = self._is_paused(fetcher.queue.topic)

    def resume(self, *topics: str) -> None:
        """Undo ``pause`` for ``topics`` (all, when none is given)."""
        if topics:
            self._paused.difference_update(topics)
        else:
            self._paused.clear()
        for fetcher in self._fetchers.values():
            fetcher.paused = self._is_paused(fetcher.queue.topic)
            fetcher.wake()

    # -- life --

    async def start(self) -> None:
        """Return once every subscribed topic has a route, the brokers know this member, and its queues are assigned.

        Raises what is missing after the client's ``start_timeout``: TopicNotFoundError, NotConnectedError, or
        RequestTimeoutError with the details. Nothing is left running then.
        """
        self._lifecycle.move("start")
        self._scope = TaskScope(f"consumer-{self.group}", on_crash=self._crashed)
        self._commits = Commits(self)
        self._rebalancer = Rebalancer(self)
        self._unwatch: Callable[[], None] | None = None
        try:
            if self._own_client:
                await self.client.start()
            self.client.need_running()
            self.settlement = Settlement(self, self._again)
            for each in self._router.listeners:
                self._deliver(each)
            self._derive()
            self.client.add_consumer(self.group, self)
            self._unwatch = self.client.watch_routes(self._on_route)
            await self._settle()
            self._scope.start(self._rebalancer.forever(), name="rebalance")
            self._scope.start(self._commits.forever(), name="commit")
            self._scope.start(self._sweep_forever(), name="sweep")
            self._lifecycle.move("started")
        except BaseException:
            self._lifecycle.move("stop")
            await self._leave(drain=False, timeout=0.0)
            raise

    async def stop(self, *, drain: bool = True, timeout: float | None = None) -> None:
        """Leave the group: pull no more, let running listeners finish (for ``timeout`` seconds, default
        ``ConsumerConfig.drain_timeout``; not at all without ``drain``), commit, tell the brokers.

        Messages that were waiting or interrupted are neither finished nor sent back: the next member gets them.
        """
        if not self._lifecycle.running:
            self._lifecycle.move("stop")
            return
        self._lifecycle.move("stop")
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
        fetchers = [self._fetchers[queue] for queue in sorted(self._fetchers)]
        queues = tuple(self._queue_state(fetcher) for fetcher in fetchers)
        finished = sum(each.process_queue.taken - each.process_queue.count for each in fetchers)
        started = self._lifecycle.state is not State.NEW
        return ConsumerState(
            group=self.group,
            client_id=self.client.client_id if self.client.started else "",
            running=self._lifecycle.running,
            members=self._rebalancer.members if started else (),
            queues=queues,
            cached=sum(each.cached for each in queues),
            in_work=sum(each.in_work for each in self._deliveries),
            counters=replace(self.counters, consumed=self._retired + finished),
            last_error=next((each.last_error for each in queues if each.last_error), None),
        )

    # -- what its parts ask --

    def consumer_data(self) -> ConsumerData:
        """As heartbeats carry it."""
        starts = list(self._start_from.values())
        wire = starts[0].wire if starts else StartFrom("last").wire
        return ConsumerData(self.group, consume_from_where=wire, subscriptions=list(self._data.values()))

    def rebalance_now(self) -> None:
        """The group changed: look at once who gets which queue."""
        self._rebalancer.now()

    def topics(self) -> list[str]:
        """Every topic subscribed to, the group's retry topic last."""
        return list(self._data)

    def subscription(self, topic: str) -> SubscriptionData:
        return self._data[topic]

    def start_from(self, topic: str) -> StartFrom:
        return self._start_from.get(topic, StartFrom("last"))

    def held(self) -> list[Queue]:
        """The queues assigned to this member."""
        return list(self._fetchers)

    def fetchers(self) -> list[Fetcher]:
        return list(self._fetchers.values())

    def master_address(self, queue: Queue) -> str | None:
        route = self.client.routes.known(queue.topic)
        return route.master(queue.broker_name) if route is not None else None

    def reader_address(self, queue: Queue, suggested: int) -> str | None:
        route = self.client.routes.known(queue.topic)
        return route.reader(queue.broker_name, suggested) if route is not None else None

    def stream_full(self, topic: str) -> bool:
        return topic in self._streamed and self.stream.full

    def take(self, queue: Queue, offset: int, *, committed: bool) -> None:
        """Begin with a queue."""
        limits = Limits(self.config.max_cached_messages, self.config.max_cached_bytes, self.config.max_span)
        fetcher = self._fetchers[queue] = Fetcher(self, queue, offset, limits)
        self._commits.offsets.begin(queue, offset, committed=committed)
        fetcher.paused = self._is_paused(queue.topic)
        fetcher.start(self._scope.start)

    async def give_up(self, queue: Queue) -> None:
        """End with a queue: commit its position; what its running listeners still do has no effect here."""
        fetcher = self._fetchers.pop(queue)
        await fetcher.stop()
        self._retired += fetcher.process_queue.taken - fetcher.process_queue.count
        await self._commits.give_up(fetcher)

    def repaired(self, queue: Queue, offset: int) -> None:
        """The broker said that the queue's position does not exist: this one counts from now on."""
        self._commits.offsets.repair(queue, offset)

    def dispatch(self, topic: str, messages: list[Message]) -> None:
        """Hot: a run of messages to whoever takes them."""
        sink = self._only.get(topic)
        if sink is not None:
            sink.put(messages)
            return
        parts: dict[Taker, list[Message]] = {}
        for message in messages:
            found = self._subscribed.find(message.topic, message.tag)
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

        if self._lifecycle.running:
            self._scope.start(wait(), name="later")

    # -- inside --

    def _before_start(self) -> None:
        if self._lifecycle.state is not State.NEW:
            raise UsageError(f"consumer {self.group!r} was started: register listeners before that")

    def _deliver(self, listener: Listener) -> None:
        sink = make_sink(listener, self)
        self._subscribed.add(listener.topic, listener.tags, sink)
        self._start_from.setdefault(listener.topic, listener.start_from)
        self._deliveries.append(sink)
        sink.start(self._scope)

    def _derive(self) -> None:
        topics = self._subscribed.topics()
        version = self.client.env.clock.wall_ms()
        for topic in topics:
            data = self._subscribed.data(topic, version)
            known = self._data.get(topic)
            if known is None or known.tags_set != data.tags_set:
                self._data[topic] = data
            sink = self._subscribed.only(topic)
            if sink is not None:
                self._only[topic] = sink
            else:
                self._only.pop(topic, None)
        sinks = self._subscribed.sinks()
        self._streamed = {topic for topic in topics if self._subscribed.only(topic) in (self.stream, None)}
        if topics:
            # Last, so that it is looked up after the heartbeat that makes the broker create it.
            retry = self._data.pop(self.retry_topic, None)
            self._data[self.retry_topic] = retry or SubscriptionData.parse(self.retry_topic, "*", version)
            if len(sinks) == 1:
                self._only[self.retry_topic] = sinks[0]
            else:
                self._only.pop(self.retry_topic, None)
            if self.stream in sinks:
                self._streamed.add(self.retry_topic)

    async def _settle(self) -> None:
        limit = self.client.config.start_timeout
        problems: list[Exception] = []
        try:
            async with asyncio.timeout(limit):
                while True:
                    problems, _ = await self._rebalancer.round()
                    if not problems:
                        return
                    await asyncio.sleep(_SETTLE_PAUSE)
        except TimeoutError:
            what = "; ".join(dict.fromkeys(map(str, problems))) or "the first round of requests is not answered"
            kind = type(problems[0]) if problems and type(problems[0]) in _SIMPLE else RequestTimeoutError
            raise kind(f"consumer {self.group!r} is not ready after {limit:g} s: {what}") from None

    async def _leave(self, *, drain: bool, timeout: float) -> None:
        try:
            if self._unwatch is not None:
                self._unwatch()
            fetchers = self.fetchers()
            await asyncio.gather(*(fetcher.stop() for fetcher in fetchers))
            self.stream.close()
            patience = timeout if drain else 0.0
            await asyncio.gather(*(delivery.drain(patience) for delivery in self._deliveries))
            if fetchers:
                await self._commits.flush(fetchers)
            for fetcher in fetchers:
                fetcher.process_queue.drop()
            await self._scope.close()
            if self.client.started:
                await self.client.remove_consumer(self.group, self)
        finally:
            await self._scope.close()
            if self._own_client:
                await self.client.stop()
            self._lifecycle.move("stopped")

    def _again(self, message: Message) -> None:
        if not message.settled:
            self.dispatch(message.queue.topic, [message])

    def _on_route(self, route: Any) -> None:
        if route.topic in self._data:
            self._rebalancer.now()

    def _is_paused(self, topic: str) -> bool:
        return topic in self._paused or "*" in self._paused

    async def _sweep_forever(self) -> None:
        limit = self.config.consume_timeout
        while True:
            await asyncio.sleep(min(_LONGEST_SWEEP, limit / 10))
            now = asyncio.get_running_loop().time()
            for delivery in self._deliveries:
                await delivery.sweep(now, limit)

    def _crashed(self, task: asyncio.Task[Any], error: BaseException) -> None:
        task.get_loop().call_exception_handler(
            {"message": f"{task.get_name()} crashed: this is a bug in aiorocket", "exception": error, "task": task}
        )

    def _queue_state(self, fetcher: Fetcher) -> QueueState:
        process_queue = fetcher.process_queue
        return QueueState(
            queue=fetcher.queue,
            next_offset=process_queue.next_offset,
            committed=self._commits.offsets.committed(fetcher.queue),
            cached=process_queue.count,
            cached_bytes=process_queue.size,
            blocked=fetcher.blocked,
            last_pull=fetcher.last_pull,
            last_error=fetcher.last_error,
        )

