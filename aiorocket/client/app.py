"""A service's messaging in one place: what a Client makes, and the routers included in it, which run together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Unpack

from aiorocket.client.core.typed_body import Body
from aiorocket.client.group.rebalance_hooks import QueuesHook, RebalanceHooks
from aiorocket.client.health import Health, look
from aiorocket.client.middleware import Middleware
from aiorocket.client.pop.simple_consumer import SimpleConsumer
from aiorocket.client.pull.pull_consumer import PullConsumer
from aiorocket.client.push.consumer import Consumer
from aiorocket.client.push.hooks import ConsumeHook
from aiorocket.client.push.listener_state import bind_state
from aiorocket.client.push.router import Router
from aiorocket.client.sending.producer import Producer
from aiorocket.client.sending.send_hooks import SendHook
from aiorocket.client.sending.sender import OnewayOptions, SendOptions
from aiorocket.client.sending.transaction import Checker, TransactionProducer
from aiorocket.client.session import Session
from aiorocket.client.state import ConsumerState
from aiorocket.client.topic_admin import ensure_topics as have_topics
from aiorocket.config import ClientConfig, ConsumerConfig, MissingTopics, ProducerConfig, PullConsumerConfig
from aiorocket.errors import UsageError
from aiorocket.model import OutgoingMessage, SendReceipt, check_group, check_topic
from aiorocket.runtime.env import Env

__all__ = ("Client",)


class Client(Session):
    """Connections, routes and heartbeats for any number of producers and consumers.

    ``nameservers`` is ``"host:port[;host:port]"`` or a sequence of them and wins over the one in ``config``.
    ``group`` is the default of ``producer()``, ``consumer()`` and so on. Nothing is opened before ``start()`` or
    ``async with``; an object is used once.

    ``missing_topics`` wins over the one in ``config``. The start creates those of ``ensure_topics`` that nobody has,
    with 4 queues on every broker; it raises what prevents that. ``middleware`` is for all that this makes.
    """

    def __init__(
        self,
        *,
        nameservers: str | Sequence[str] | None = None,
        group: str | None = None,
        config: ClientConfig | None = None,
        env: Env | None = None,
        missing_topics: MissingTopics | None = None,
        ensure_topics: Iterable[str] = (),
        middleware: Iterable[Middleware] = (),
    ) -> None:
        if isinstance(ensure_topics, str):
            raise UsageError(f"ensure_topics={ensure_topics!r}: several names, such as [{ensure_topics!r}]")
        self._ensured = tuple(check_topic(topic) for topic in ensure_topics)
        if missing_topics is not None:
            config = replace(config or ClientConfig(), missing_topics=missing_topics)
        self.group = None if group is None else check_group(group)
        super().__init__(nameservers=nameservers, config=config, env=env)
        self.middleware = tuple(middleware)
        self._routers: dict[str, Router] = {}
        self._configs: dict[str, ConsumerConfig] = {}
        self._entered = False
        #: Those of ``running()``, from its begin on.
        self._app_consumers: tuple[Consumer, ...] = ()
        #: That of ``send``, from the first call on.
        self._app_producer: Producer | None = None
        self._first_send = asyncio.Lock()

    async def start(self) -> None:
        """As ``Session.start``; then ``ensure_topics``: NotConnectedError, RemoteError and so on of these."""
        await super().start()
        try:
            await have_topics(self, self._ensured)
            for each in self.middleware:
                each.attached(self)
        except BaseException:
            await self.stop()
            raise

    # -- what it makes --

    def producer(
        self,
        group: str | None = None,
        *,
        config: ProducerConfig | None = None,
        hooks: Iterable[SendHook] = (),
        middleware: Iterable[Middleware] = (),
    ) -> Producer:
        """A ``Producer`` on this client."""
        return Producer(self._group_for(group), client=self, config=config, hooks=hooks, middleware=middleware)

    def transaction_producer(
        self,
        group: str | None = None,
        *,
        config: ProducerConfig | None = None,
        hooks: Iterable[SendHook] = (),
        middleware: Iterable[Middleware] = (),
        checker: Checker | None = None,
    ) -> TransactionProducer:
        """A ``TransactionProducer`` on this client."""
        return TransactionProducer(
            self._group_for(group), client=self, config=config, hooks=hooks, middleware=middleware, checker=checker
        )

    def consumer(
        self,
        group: str | None = None,
        *,
        config: ConsumerConfig | None = None,
        router: Router | None = None,
        hooks: Iterable[ConsumeHook] = (),
        middleware: Iterable[Middleware] = (),
        on_assigned: QueuesHook | None = None,
        on_revoked: QueuesHook | None = None,
    ) -> Consumer:
        """A ``Consumer`` on this client."""
        return Consumer(
            self._group_for(group), client=self, config=config, router=router, hooks=hooks, middleware=middleware,
            on_assigned=on_assigned, on_revoked=on_revoked,
        )  # fmt: skip

    def pull_consumer(
        self,
        group: str | None = None,
        *,
        config: PullConsumerConfig | None = None,
        hooks: RebalanceHooks | None = None,
        on_assigned: QueuesHook | None = None,
        on_revoked: QueuesHook | None = None,
    ) -> PullConsumer:
        """A ``PullConsumer`` on this client."""
        return PullConsumer(
            self._group_for(group), client=self, config=config, hooks=hooks, on_assigned=on_assigned,
            on_revoked=on_revoked,
        )  # fmt: skip

    def simple_consumer(self, group: str | None = None, *, max_attempts: int = 17) -> SimpleConsumer:
        """A ``SimpleConsumer`` on this client."""
        return SimpleConsumer(self._group_for(group), client=self, max_attempts=max_attempts)

    def _group_for(self, group: str | None) -> str:
        chosen = group or self.group
        if chosen is None:
            raise UsageError("which group? give one here or as Client(group=...)")
        return chosen

    # -- a whole application --

    def include(self, router: Router, *, state: object = None, config: ConsumerConfig | None = None) -> None:
        """Have ``running()`` run the router's listeners, in the consumer of the router's group (default: this
        Client's). ``config`` is that consumer's.

        Listeners with a parameter named ``state`` get ``state``. UsageError when one needs it and none is given, when
        there is no group or no listener, and while the consumers run.
        """
        group = router.group or self.group
        if group is None:
            raise UsageError("which group? Router(group), or Client(group=...)")
        if self._entered:
            raise UsageError(f"the consumer of group {group!r} is running: include routers before that")
        if not router.listeners:
            raise UsageError(f"the router for group {group!r} has no listeners yet: import what declares them first")
        bound = [bind_state(each, state) for each in router.listeners]
        if config is not None and self._configs.setdefault(group, config) != config:
            raise UsageError(f"group {group!r} has another config already: its routers share one consumer")
        whole = self._routers.setdefault(group, Router(group))
        for each in bound:
            whole._add(each)

    def running(self, *, drain_timeout: float | None = None) -> AbstractAsyncContextManager[None]:
        """``async with client.running():`` starts the consumers of all included routers and stops them at the end.

        Entering returns when all have started, or raises what ``Consumer.start`` raises, with nothing left running.
        Leaving takes no more messages, waits up to ``drain_timeout`` seconds (default: the consumer's config) for the
        listeners that run, cancels those that still do, and commits; brokers that do not answer add two request
        timeouts. ``send`` works meanwhile, also in listeners that are being waited for.
        """
        return self._running(drain_timeout)

    @asynccontextmanager
    async def _running(self, drain_timeout: float | None) -> AsyncIterator[None]:
        self.need_running()
        if self._entered:
            raise UsageError("the consumers of this Client are running already: running() is entered once at a time")
        self._entered = True
        try:
            self._app_consumers = tuple(
                self.consumer(group, config=self._configs.get(group), router=router)
                for group, router in self._routers.items()
            )
            try:
                await _together(each.start for each in self._app_consumers)
                yield
            finally:
                await self._stop_consumers(drain_timeout)
        finally:
            self._entered = False

    async def send(
        self, topic: str | OutgoingMessage, body: Body | None = None, **options: Unpack[SendOptions]
    ) -> SendReceipt:
        """As ``Producer.send``, through a producer of this Client's group that the first call starts."""
        producer = self._app_producer or await self._start_producer()
        return await producer.send(topic, body, **options)

    async def send_oneway(
        self, topic: str | OutgoingMessage, body: Body | None = None, **options: Unpack[OnewayOptions]
    ) -> str:
        """As ``Producer.send_oneway``, with its options, through the same producer as ``send``."""
        producer = self._app_producer or await self._start_producer()
        return await producer.send_oneway(topic, body, **options)

    def health(self) -> Health:
        """Whether this client and its consumers can work, from what is known: asks nobody.

        Counted are those of ``running()``, and any other consumer and pull consumer from its start to its stop.
        """
        waiting = [group for group in self._routers if not any(each.group == group for each in self._app_consumers)]
        return look(self, self.consumer_states(), waiting)

    def consumer_states(self) -> list[ConsumerState]:
        """What those consumers do right now, likewise."""
        own = [each._registered for each in self._app_consumers]
        return [each.state() for each in (*own, *(each for each in self.consumers.values() if each not in own))]

    async def _start_producer(self) -> Producer:
        async with self._first_send:
            if self._app_producer is None:
                producer = self.producer()
                await producer.start()
                self._app_producer = producer
        return self._app_producer

    async def _stop_members(self) -> None:
        """``stop`` ends what runs for the application first."""
        producer, self._app_producer = self._app_producer, None
        try:
            await self._stop_consumers(None)
        finally:
            if producer is not None:
                await producer.stop()

    async def _stop_consumers(self, drain_timeout: float | None) -> None:
        errors: list[Exception] = []

        def stop(consumer: Consumer) -> Callable[[], Awaitable[None]]:
            async def act() -> None:
                try:
                    await consumer.stop(timeout=drain_timeout)  # nothing happens when it has stopped, or never started
                except Exception as error:  # noqa: BLE001 - the others are to drain all the same
                    errors.append(error)

            return act

        await _together(map(stop, self._app_consumers))
        if errors:
            raise errors[0]


async def _together(calls: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """All calls at once; the first error when one fails, after the others were cancelled and have ended."""

    async def one(call: Callable[[], Awaitable[None]]) -> None:
        await call()

    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(one(call))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
