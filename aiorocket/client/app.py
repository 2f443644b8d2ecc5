"""A service's messaging in one place: what a Client makes, and the routers included in it, which run together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Self, Unpack

from aiorocket.client.core.typed_body import Body
from aiorocket.client.group.rebalance_hooks import QueuesHook, RebalanceHooks
from aiorocket.client.health import Health, look
from aiorocket.client.middleware import Middleware
from aiorocket.client.pop.simple_consumer import SimpleConsumer
from aiorocket.client.pull.pull_consumer import PullConsumer
from aiorocket.client.push.consumer import Consumer
from aiorocket.client.push.hooks import ConsumeHook
from aiorocket.client.push.router import Router
from aiorocket.client.sending.producer import Producer
from aiorocket.client.sending.send_hooks import SendHook
from aiorocket.client.sending.sender import OnewayOptions, SendOptions
from aiorocket.client.sending.transaction import Checker, TransactionProducer
from aiorocket.client.service import Service
from aiorocket.client.session import Session
from aiorocket.client.state import ConsumerState
from aiorocket.client.topic_admin import ensure_topics as have_topics
from aiorocket.config import ClientConfig, ConsumerConfig, MissingTopics, ProducerConfig, PullConsumerConfig
from aiorocket.errors import UsageError
from aiorocket.model import OutgoingMessage, SendReceipt, check_group, check_topic
from aiorocket.runtime.env import Env

__all__ = ("Client",)


class Client:
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
        #: Its connections, routes and heartbeats, for who extends aiorocket: ``Producer(client=...)`` needs no more.
        self.session = Session(nameservers=nameservers, config=config, env=env)
        self.session.middleware = tuple(middleware)
        self.session.ends_first = self._stop_members
        self._service = Service(self.session)
        #: That of ``send``, from the first call on.
        self._app_producer: Producer | None = None
        self._first_send = asyncio.Lock()

    @property
    def config(self) -> ClientConfig:
        return self.session.config

    @property
    def client_id(self) -> str:
        """``ip@instance``; the ip is the one name servers and brokers see, known from the first connection on."""
        return self.session.client_id

    async def start(self) -> None:
        """Begin heartbeats and route refreshes; the first use of a topic is the first request. ConfigError when
        credentials or certificates cannot be read. Then ``ensure_topics``: NotConnectedError, RemoteError and so on of
        these."""
        await self.session.start()
        try:
            await have_topics(self.session, self._ensured)
            for each in self.session.middleware:
                each.attached(self)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End what runs for the application, then close everything; what is still waited for fails. A second ``stop``
        returns with the first."""
        await self.session.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.stop()

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
        self._service.include(router, router.group or self.group, state, config)

    def running(self, *, drain_timeout: float | None = None) -> AbstractAsyncContextManager[None]:
        """``async with client.running():`` starts the consumers of all included routers and stops them at the end.

        Entering returns when all have started, or raises what ``Consumer.start`` raises, with nothing left running.
        Leaving takes no more messages, waits up to ``drain_timeout`` seconds (default: the consumer's config) for the
        listeners that run, cancels those that still do, and commits; brokers that do not answer add two request
        timeouts. ``send`` works meanwhile, also in listeners that are being waited for.
        """
        return self._service.running(drain_timeout)

    async def send(
        self, topic: str | OutgoingMessage, body: Body | None = None, **options: Unpack[SendOptions]
    ) -> SendReceipt:
        """As ``Producer.send``, through a producer of this Client's group that the first call starts."""
        producer = self._app_producer or await self._start_producer()
        return await producer.send(topic, body, **options)

    async def recall(self, handle: str, *, timeout: float | None = None) -> str:
        """As ``Producer.recall``: take back what ``send`` was given ``at`` or ``after``."""
        producer = self._app_producer or await self._start_producer()
        return await producer.recall(handle, timeout=timeout)

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
        return look(self.session, self.consumer_states(), self._service.waiting())

    def consumer_states(self) -> list[ConsumerState]:
        """What those consumers do right now, likewise."""
        return self._service.states()

    async def _start_producer(self) -> Producer:
        async with self._first_send:
            if self._app_producer is None:
                producer = self.producer()
                await producer.start()
                self._app_producer = producer
        return self._app_producer

    async def _stop_members(self) -> None:
        """What runs for the application ends first."""
        producer, self._app_producer = self._app_producer, None
        try:
            await self._service.stop(None)
        finally:
            if producer is not None:
                await producer.stop()
