"""A whole cluster in virtual time, with a history of what it did: name servers, brokers that keep their disks, and any
number of clients on hosts of their own. All of it is the product's own code; only loop, network and disks are
simulated."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiorocket import Client, Message
from aiorocket.config import BrokerConfig, ClientConfig, ConsumerConfig, ProducerConfig, StoreConfig
from aiorocket.model import Queue
from aiorocket.testing.history import History
from aiorocket.testing.machines import Handler, SimBroker, SimMember, SimNameServer, SimSender, Site, key_of
from aiorocket.testing.sim import Simulation
from aiorocket_protocol import (
    AUTO_CREATE_TOPIC,
    NAMESERVER_PORT,
    PERM_READ_WRITE,
    SINGLE_TAG,
    CreateTopicRequestHeader,
    RecordView,
    RequestCode,
    dlq_topic,
    retry_topic,
)

__all__ = ("SimCluster",)

#: Stores of simulations are small: a whole file is copied at each of its syncs.
SMALL_STORE = StoreConfig(segment_size=256 * 1024, min_free=256 * 1024, tail_cache=1 << 20)


class SimCluster:
    """Name servers at 10.0.0.1 and up, brokers at 10.0.1.1 and up, clients at 10.1.0.1 and up.

    ``broker`` and ``client`` are the configurations they share; stores are small unless ``broker`` says otherwise.
    ``async with SimCluster(sim) as cluster`` starts the servers and at the end stops what still runs, the clients
    first.
    """

    def __init__(
        self,
        sim: Simulation,
        *,
        brokers: int = 1,
        nameservers: int = 1,
        broker: BrokerConfig | None = None,
        client: ClientConfig | None = None,
    ) -> None:
        self.sim = sim
        self.history = History(sim.loop.time)
        config = broker or BrokerConfig(store=SMALL_STORE)
        self.client_config = client or ClientConfig()
        self.clients: list[SimSender | SimMember] = []
        addresses = [f"10.0.0.{n}" for n in range(1, nameservers + 1)]
        endpoints = tuple(f"{address}:{NAMESERVER_PORT}" for address in addresses)
        self._site = Site(sim, self.history, endpoints, self.clients)
        self.nameservers = [SimNameServer(self._site, address, 0) for address in addresses]
        self.brokers = [SimBroker(self._site, n, f"10.0.1.{n}", config) for n in range(1, brokers + 1)]

    @property
    def endpoints(self) -> list[str]:
        """``host:port`` of the name servers."""
        return list(self._site.endpoints)

    @property
    def members(self) -> list[SimMember]:
        """The consumers, also those that do not run."""
        return [each for each in self.clients if isinstance(each, SimMember)]

    async def start(self) -> None:
        for nameserver in self.nameservers:
            await nameserver.start()
        for broker in self.brokers:
            await broker.start()

    async def close(self) -> None:
        """Stop what runs: clients, brokers, name servers."""
        for client in reversed(self.clients):
            if client.running:
                await client.stop()
        for broker in self.brokers:
            if broker.running:
                await broker.stop()
        for nameserver in self.nameservers:
            if nameserver.running:
                await nameserver.stop()

    async def __aenter__(self) -> SimCluster:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            await self.close()

    # -- topics and clients --

    async def create_topic(self, topic: str, queues: int = 4) -> None:
        """Create ``topic`` on every broker that runs; it has a route when this returns."""
        header = CreateTopicRequestHeader(topic, AUTO_CREATE_TOPIC, queues, queues, PERM_READ_WRITE, SINGLE_TAG, False)
        host = self.sim.host("10.9.9.9")

        async def create() -> None:
            async with Client(nameservers=self.endpoints, env=self.sim.env()) as client:
                for broker in self.brokers:
                    if broker.running:
                        # The broker answers when every name server has, or has been waited for.
                        code = RequestCode.UPDATE_AND_CREATE_TOPIC
                        await client.session.call(broker.endpoint, code, header, timeout=15.0)

        await host.run(create())

    async def producer(
        self, group: str = "senders", *, skew_ms: int = 0, config: ProducerConfig | None = None
    ) -> SimSender:
        """A started producer on a host of its own."""
        address = self._next_address()
        sender = SimSender(self._site, group, address, skew_ms, config or ProducerConfig(), self.client_config)
        self.clients.append(sender)
        await sender.start()
        return sender

    async def consumer(
        self,
        group: str,
        topics: str | Mapping[str, Handler],
        handler: Handler | None = None,
        *,
        skew_ms: int = 0,
        config: ConsumerConfig | None = None,
        client: ClientConfig | None = None,
        address: str | None = None,
        start: bool = True,
        **listener: Any,
    ) -> SimMember:
        """A started consumer on a host of its own. ``topics`` is one topic with ``handler`` (None: every message
        succeeds at once), or several with theirs; ``listener`` are options of ``Router.listener``, or with
        ``orderly=True`` of ``Router.orderly``, which start at the first message here. ``start=False`` leaves starting
        to the caller."""
        handlers = {topics: handler or _succeed} if isinstance(topics, str) else dict(topics)
        options = {"start_from": "first", **listener}
        member = SimMember(
            self._site, group, handlers, address or self._next_address(), skew_ms, config or ConsumerConfig(),
            client or self.client_config, options,
        )  # fmt: skip
        self.clients.append(member)
        if start:
            await member.start()
        return member

    def _next_address(self) -> str:
        number = len(self.clients)
        return f"10.1.{number // 250}.{number % 250 + 1}"

    # -- faults between hosts --

    def fault(self, where: str, what: str) -> None:
        """Note a fault in the history; those of this class note themselves."""
        self._site.fault(where, what)

    def partition(self, some: Iterable[str], others: Iterable[str]) -> None:
        """Hold everything between two sets of addresses until ``heal``. Connections stay, silently."""
        some, others = list(some), list(others)
        self.fault(",".join(some), f"partition from {','.join(others)}")
        self.sim.network.partition(some, others)

    def silence(self, source: str, target: str) -> None:
        """Hold everything in one direction until ``heal``: a half-open connection."""
        self.fault(source, f"nothing reaches {target}")
        self.sim.network.block(source, target)

    def heal(self) -> None:
        """End partitions, silences and latencies of single links."""
        self.history.add("healed", "network")
        self.sim.network.links.clear()
        self.sim.network.heal()

    def reset(self, a: str, b: str) -> None:
        """Break every connection between two addresses."""
        self.fault(a, f"connections with {b} are reset")
        self.sim.network.reset(a, b)

    def stall(self, a: str, b: str) -> None:
        """Hold the bytes of the connections that two addresses have now, until ``heal``; new ones work."""
        self.fault(a, f"its connections with {b} hang")
        self.sim.network.stall(a, b)

    def slow_link(self, a: str, b: str, least: float, most: float) -> None:
        """Let each delivery between two addresses take ``least`` to ``most`` seconds until ``heal``."""
        self.fault(a, f"link with {b} takes {least:g} to {most:g} s")
        self.sim.network.links[a, b] = self.sim.network.links[b, a] = (least, most)

    async def flap(self, a: str, b: str, *, duration: float, period: float = 0.1) -> None:
        """Hold and release everything between two addresses in turn, ``period`` seconds each, for ``duration``."""
        self.fault(a, f"link with {b} flaps for {duration:g} s")
        network = self.sim.network
        end = self.sim.loop.time() + duration
        while self.sim.loop.time() < end:
            network.partition([a], [b])
            await asyncio.sleep(period)
            for source, target in ((a, b), (b, a)):
                network.unblock(source, target)
            await asyncio.sleep(period)
        self.history.add("healed", a)

    # -- how it stands --

    def note_dead_letters(self, *groups: str) -> dict[str, list[RecordView]]:
        """Look for dead letters of ``groups``, add them to the history, and return them."""
        found: dict[str, list[RecordView]] = {}
        for group in groups:
            letters = found.setdefault(group, [])
            for broker in self.brokers:
                if broker.running:
                    for record in broker.messages(dlq_topic(group)):
                        letters.append(record)
                        self.history.add(
                            "dead", broker.address, key_of(record.body), group=group, attempt=record.reconsume_times
                        )
        return found

    def unfinished(self, groups: Mapping[str, Sequence[str]]) -> int:
        """What ``groups`` (with their topics) have not committed, and what waits for its delay, over all brokers."""
        left = 0
        for each in self.brokers:
            if not each.running:
                return -1
            for group, topics in groups.items():
                left += sum(each.lag(group, topic) for topic in (*topics, retry_topic(group)))
            left += each.broker.delays.next_due() is not None
            left += each.broker.delays.in_flight + len(each.broker.timers)
        return left

    async def settled(
        self, groups: Mapping[str, Sequence[str]], *, within: float = 4 * 3600.0, step: float = 15.0
    ) -> float:
        """Wait until ``groups`` have consumed all there is, retries and dead letters included, and return how many
        seconds that took. AssertionError when it takes longer than ``within``."""
        began = self.sim.loop.time()
        while (left := self.unfinished(groups)) != 0:
            waited = self.sim.loop.time() - began
            if waited > within:
                raise AssertionError(f"after {waited:g} s of quiet {left} messages are not consumed")
            await asyncio.sleep(step)
        return self.sim.loop.time() - began

    def owners(self, group: str, topic: str) -> dict[Queue, list[str]]:
        """Who of the running members of a group holds which queue of a topic; empty lists for queues nobody holds."""
        owners: dict[Queue, list[str]] = {
            Queue(topic, broker.name, queue_id): []
            for broker in self.brokers
            if broker.running and (found := broker.broker.topics.get(topic)) is not None
            for queue_id in range(found.read_queues)
        }
        for member in self.members:
            if member.running and member.group == group:
                for queue in member.held(topic):
                    owners.setdefault(queue, []).append(member.address)
        return owners


async def _succeed(message: Message) -> None:
    return None
