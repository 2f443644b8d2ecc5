"""A name server and a broker in this process and loop: for demos, tests and applications that need no other machine.

They are the real ones, over real sockets on loopback; only the ports are taken by chance.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from aiorocket.broker.broker import Broker
from aiorocket.client.app import Client
from aiorocket.client.group.rebalance_hooks import QueuesHook, RebalanceHooks
from aiorocket.client.middleware import Middleware
from aiorocket.client.pop.simple_consumer import SimpleConsumer
from aiorocket.client.pull.pull_consumer import PullConsumer
from aiorocket.client.push.consumer import Consumer
from aiorocket.client.push.hooks import ConsumeHook
from aiorocket.client.push.router import Router
from aiorocket.client.sending.producer import Producer
from aiorocket.client.sending.send_hooks import SendHook
from aiorocket.client.sending.transaction import Checker, TransactionProducer
from aiorocket.client.topic_admin import configure
from aiorocket.config import (
    BrokerConfig,
    ClientConfig,
    ConsumerConfig,
    Flush,
    MissingTopics,
    NameServerConfig,
    ProducerConfig,
    PullConsumerConfig,
    TlsConfig,
)
from aiorocket.errors import UsageError
from aiorocket.model import check_topic
from aiorocket.nameserver.server import NameServer
from aiorocket.runtime.env import Env, real_env

__all__ = ("Embedded", "embed")


class Embedded:
    """What ``embed`` gives: addresses, the servers themselves, and clients that are already pointed at them."""

    def __init__(
        self,
        env: Env,
        nameserver: NameServer,
        config: BrokerConfig,
        prepare: Callable[[Broker], object] | None = None,
        client: ClientConfig | None = None,
    ) -> None:
        self.env = env
        self.nameserver = nameserver
        self.config = config
        self._prepare = prepare
        self._client = client
        self.broker = self._new_broker()

    def _new_broker(self) -> Broker:
        broker = Broker(self.env, self.config, accounts=self.nameserver.accounts)
        if self._prepare is not None:
            self._prepare(broker)
        return broker

    @property
    def nameserver_address(self) -> str:
        """``host:port``, for other processes too."""
        return self.nameserver.address

    @property
    def nameservers(self) -> tuple[str, ...]:
        return (self.nameserver.address,)

    def client(
        self, group: str | None = None, *, config: ClientConfig | None = None, env: Env | None = None,
        missing_topics: MissingTopics | None = None, ensure_topics: Iterable[str] = (),
        middleware: Iterable[Middleware] = (),
    ) -> Client:  # fmt: skip
        """A client, to be started by the caller."""
        return Client(
            nameservers=self.nameservers, group=group, config=config or self._client, env=env,
            missing_topics=missing_topics, ensure_topics=ensure_topics, middleware=middleware,
        )  # fmt: skip

    def producer(
        self,
        group: str = "embedded-producer",
        *,
        config: ProducerConfig | None = None,
        env: Env | None = None,
        hooks: Iterable[SendHook] = (),
        middleware: Iterable[Middleware] = (),
    ) -> Producer:
        """A ``Producer`` with a client of its own, to be started by the caller."""
        return Producer(group, nameservers=self.nameservers, config=config, env=env, hooks=hooks, middleware=middleware)

    def transaction_producer(
        self,
        group: str = "embedded-transactions",
        *,
        config: ProducerConfig | None = None,
        env: Env | None = None,
        hooks: Iterable[SendHook] = (),
        middleware: Iterable[Middleware] = (),
        checker: Checker | None = None,
    ) -> TransactionProducer:
        """It needs a checker."""
        return TransactionProducer(
            group, nameservers=self.nameservers, config=config, env=env, hooks=hooks, middleware=middleware,
            checker=checker,
        )  # fmt: skip

    def consumer(
        self,
        group: str | None = None,
        *,
        config: ConsumerConfig | None = None,
        env: Env | None = None,
        router: Router | None = None,
        hooks: Iterable[ConsumeHook] = (),
        middleware: Iterable[Middleware] = (),
        on_assigned: QueuesHook | None = None,
        on_revoked: QueuesHook | None = None,
    ) -> Consumer:
        """A ``Consumer`` with a client of its own, so that several can be members of one group."""
        return Consumer(
            group, nameservers=self.nameservers, config=config, env=env, router=router, hooks=hooks,
            middleware=middleware, on_assigned=on_assigned, on_revoked=on_revoked,
        )  # fmt: skip

    def simple_consumer(self, group: str, *, max_attempts: int = 17, env: Env | None = None) -> SimpleConsumer:
        """As ``consumer``, a ``SimpleConsumer``."""
        return SimpleConsumer(group, nameservers=self.nameservers, max_attempts=max_attempts, env=env)

    def pull_consumer(
        self,
        group: str,
        *,
        config: PullConsumerConfig | None = None,
        env: Env | None = None,
        hooks: RebalanceHooks | None = None,
        on_assigned: QueuesHook | None = None,
        on_revoked: QueuesHook | None = None,
    ) -> PullConsumer:
        """As ``consumer``, a ``PullConsumer``."""
        return PullConsumer(
            group, nameservers=self.nameservers, config=config, env=env, hooks=hooks, on_assigned=on_assigned,
            on_revoked=on_revoked,
        )  # fmt: skip

    async def create_topic(self, topic: str, queues: int = 4) -> None:
        """Create ``topic``, or change its number of queues. It has a route when this returns."""
        async with self.client() as client:
            await configure(client.session, self.broker.address, check_topic(topic), queues)

    async def restart(self, *, kill: bool = False) -> None:
        """End the broker and start one on the same directory and port; the end is an orderly one or, with ``kill``, as
        by a kill -9: connections break, and nothing is saved that was not written at that moment. UsageError for a
        broker that keeps its messages in memory: there would be nothing left to start on."""
        data = self.config.data
        if data is None:
            raise UsageError("this broker keeps its messages in memory: embed(directory) makes one that can restart")
        left = data.rstrip("/") + ".killed"
        if kill:
            self.broker.server.stop_listening()  # who comes back before it has closed would be answered
            for connection in self.broker.server.connections:
                connection.abort("the broker was killed by restart(kill=True)")
            # What the kernel has of the files now is what the next process finds; closing adds to that.
            shutil.copytree(data, left, ignore=shutil.ignore_patterns("*.tmp"))  # the writer takes these away
        self.config = replace(self.config, port=self.broker.port)
        await self.broker.close()
        if kill:
            shutil.rmtree(data)
            os.rename(left, data)
        self.broker = self._new_broker()
        await self.broker.start()


@asynccontextmanager
async def embed(
    data: str | None = None,
    *,
    flush: Flush | None = None,
    broker: BrokerConfig | Mapping[str, Any] | None = None,
    client: ClientConfig | None = None,
    host: str = "127.0.0.1",
    env: Env | None = None,
    prepare: Callable[[Broker], object] | None = None,
) -> AsyncIterator[Embedded]:
    """Start a name server and a broker on free ports of ``host``; both have ended when the block is left.

    ``data`` is the broker's directory (made if missing); None keeps messages in memory. ``flush`` is "sync" (default:
    acknowledge after fdatasync) or "async" (earlier; a power cut may lose the last half second). ``broker`` changes
    other settings: a BrokerConfig, or a mapping of its fields; its ``acl`` and ``tls`` are the name server's too, and
    ``client`` is then the config of ``mq.client()``. ``env`` is closed at the end; ``prepare`` is called with
    each broker before it starts. StoreError and UsageError as of the broker's start.
    """
    config = broker if isinstance(broker, BrokerConfig) else BrokerConfig(**{"port": 0, **(broker or {})})
    if flush is not None:
        config = replace(config, store=replace(config.store, flush=flush))
    env = env or real_env()
    nameserver = NameServer(env, NameServerConfig(host=host, port=0, acl=config.acl, tls=config.tls))
    try:
        await nameserver.start()
        config = replace(config, host=host, data=data, nameservers=(nameserver.address,))
        if config.tls is not None and config.nameserver_tls is False:
            config = replace(config, nameserver_tls=TlsConfig(verify=False))  # to itself
        mq = Embedded(env, nameserver, config, prepare, client)
        try:
            await mq.broker.start()
            yield mq
        finally:
            await mq.broker.close()
    finally:
        await nameserver.close()
        await env.disk.close()
