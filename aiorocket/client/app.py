"""A service's messaging in one place: what a Client makes, and the routers included in it, which run together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from aiorocket.client.health import Health, look
from aiorocket.client.push.listener_state import bind_state
from aiorocket.errors import UsageError
from aiorocket.model import OutgoingMessage, SendReceipt

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from aiorocket.client.pull.pull_consumer import PullConsumer
    from aiorocket.client.push.consumer import Consumer
    from aiorocket.client.push.router import Router
    from aiorocket.client.sending.producer import Producer
    from aiorocket.client.sending.transaction import TransactionProducer
    from aiorocket.client.session import Client
    from aiorocket.config import ConsumerConfig

__all__ = ("App", "AppMethods")


class App:
    """What a Client knows of its application: the included routers, their consumers while they run, one producer."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._routers: dict[str, Router] = {}
        self._configs: dict[str, ConsumerConfig] = {}
        self._running = False
        self.consumers: tuple[Consumer, ...] = ()
        self.producer: Producer | None = None
        self._first_send = asyncio.Lock()

    def include(self, router: Router, state: object, config: ConsumerConfig | None) -> None:
        from aiorocket.client.push.router import Router

        group = router.group or self._client.group
        if group is None:
            raise UsageError("which group? Router(group), or Client(group=...)")
        if self._running:
            raise UsageError(f"the consumer of group {group!r} is running: include routers before that")
        bound = [bind_state(each, state) for each in router.listeners]
        if config is not None and self._configs.setdefault(group, config) != config:
            raise UsageError(f"group {group!r} has another config already: its routers share one consumer")
        whole = self._routers.setdefault(group, Router(group))
        for each in bound:
            whole.add(each)

    @asynccontextmanager
    async def running(self, drain_timeout: float | None) -> AsyncIterator[None]:
        self._client.need_running()
        if self._running:
            raise UsageError("the consumers of this Client are running already: running() is entered once at a time")
        self._running = True
        try:
            self.consumers = tuple(
                self._client.consumer(group, config=self._configs.get(group), router=router)
                for group, router in self._routers.items()
            )
            try:
                await _together(each.start for each in self.consumers)
                yield
            finally:
                await self._stop(drain_timeout)
        finally:
            self._running = False

    def waiting(self) -> list[str]:
        """Included groups that were not started yet."""
        return [group for group in self._routers if not any(each.group == group for each in self.consumers)]

    async def start_producer(self) -> Producer:
        async with self._first_send:
            if self.producer is None:
                producer = self._client.producer()
                await producer.start()
                self.producer = producer
        return self.producer

    async def close(self) -> None:
        producer, self.producer = self.producer, None
        try:
            await self._stop(None)
        finally:
            if producer is not None:
                await producer.stop()

    async def _stop(self, drain_timeout: float | None) -> None:
        errors: list[Exception] = []

        def stop(consumer: Consumer) -> Callable[[], Awaitable[None]]:
            async def act() -> None:
                try:
                    await consumer.stop(timeout=drain_timeout)  # nothing happens when it has stopped, or never started
                except Exception as error:  # noqa: BLE001 - the others are to drain all the same
                    errors.append(error)

            return act

        await _together(map(stop, self.consumers))
        if errors:
            raise errors[0]


class AppMethods:
    """The part of ``Client`` that makes producers and consumers, and runs those of a whole application."""

    _app_made: App | None = None

    def producer(self, group: str | None = None, **options: Any) -> Producer:
        """A producer on this client; ``options`` as of ``Producer``."""
        from aiorocket.client.sending.producer import Producer

        return Producer(self._group_for(group), client=cast("Client", self), **options)

    def transaction_producer(self, group: str | None = None, **options: Any) -> TransactionProducer:
        """A transaction producer on this client; ``options`` as of ``TransactionProducer``."""
        from aiorocket.client.sending.transaction import TransactionProducer

        return TransactionProducer(self._group_for(group), client=cast("Client", self), **options)

    def consumer(self, group: str | None = None, **options: Any) -> Consumer:
        """A consumer on this client; ``options`` as of ``Consumer``."""
        from aiorocket.client.push.consumer import Consumer

        return Consumer(self._group_for(group), client=cast("Client", self), **options)

    def pull_consumer(self, group: str | None = None, **options: Any) -> PullConsumer:
        """A pull consumer on this client; ``options`` as of ``PullConsumer``."""
        from aiorocket.client.pull.pull_consumer import PullConsumer

        return PullConsumer(self._group_for(group), client=cast("Client", self), **options)

    def _group_for(self, group: str | None) -> str:
        chosen = group or cast("Client", self).group
        if chosen is None:
            raise UsageError("which group? give one here or as Client(group=...)")
        return chosen

    @property
    def _app(self) -> App:
        if self._app_made is None:
            self._app_made = App(cast("Client", self))
        return self._app_made

    def include(self, router: Router, *, state: object = None, config: ConsumerConfig | None = None) -> None:
        """Have ``running()`` run the router's listeners, in the consumer of the router's group (default: this
        Client's). ``config`` is that consumer's.

        Listeners with a parameter named ``state`` get ``state``. UsageError when one needs it and none is given, when
        there is no group, and while the consumers run.
        """
        self._app.include(router, state, config)

    def running(self, *, drain_timeout: float | None = None) -> AbstractAsyncContextManager[None]:
        """``async with client.running():`` starts the consumers of all included routers and stops them at the end.

        Entering returns when all have started, or raises what ``Consumer.start`` raises, with nothing left running.
        Leaving takes no more messages, waits up to ``drain_timeout`` seconds (default: the consumer's config) for the
        listeners that run, cancels those that still do, and commits; brokers that do not answer add two request
        timeouts. ``send`` works meanwhile, also in listeners that are being waited for.
        """
        return self._app.running(drain_timeout)

    async def send(self, topic: str | OutgoingMessage, body: bytes | None = None, **options: Any) -> SendReceipt:
        """As ``Producer.send``, through a producer of this Client's group that the first call starts."""
        producer = self._app.producer or await self._app.start_producer()
        return await producer.send(topic, body, **options)

    async def send_oneway(self, topic: str | OutgoingMessage, body: bytes | None = None, **options: Any) -> str:
        """As ``Producer.send_oneway``, through the same producer as ``send``."""
        producer = self._app.producer or await self._app.start_producer()
        return await producer.send_oneway(topic, body, **options)

    def health(self) -> Health:
        """Whether this client and its consumers can work, from what is known: asks nobody.

        Counted are those of ``running()``, and any other consumer and pull consumer from its start to its stop.
        """
        client, run = cast("Client", self), self._app.consumers
        others = [each for each in client.consumers.values() if each not in run]
        return look(client, [each.state() for each in (*run, *others)], self._app.waiting())

    async def _close_app(self) -> None:
        if self._app_made is not None:
            await self._app_made.close()


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
