"""The machines of a simulated cluster: name servers, brokers that keep their disks, producers, consumers; each tells
the history what it does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from aiorocket import Client, Consumer, DeadLetter, Message, Producer, Router, Skip
from aiorocket.broker.broker import Broker
from aiorocket.broker.core.offsets import ConsumerOffsets
from aiorocket.broker.core.tables import Tables
from aiorocket.config import BrokerConfig, ClientConfig, ConsumerConfig, NameServerConfig, ProducerConfig
from aiorocket.errors import RocketError, SendError
from aiorocket.model import Queue, SendReceipt
from aiorocket.nameserver.server import NameServer
from aiorocket.remoting.connection import Connection
from aiorocket.runtime.env import Env
from aiorocket.testing.faults import WireFaults
from aiorocket.testing.history import History
from aiorocket.testing.sim import SimClock, Simulation
from aiorocket.testing.sim_disk import SimDisk
from aiorocket.testing.sim_host import SimHost
from aiorocket.testing.stored import lag, stored_messages
from aiorocket_protocol import (
    BROKER_PORT,
    NAMESERVER_PORT,
    LockBatchBody,
    LockBatchResult,
    MessageQueue,
    RecordView,
    RemotingCommand,
    RequestCode,
    decode_body,
)

__all__ = ("Handler", "SimBroker", "SimMember", "SimNameServer", "SimSender", "Site", "body_of", "key_of")

Handler = Callable[[Message], Awaitable[None]]

#: A client takes a lock for valid this long, counted from before its request (``ConsumerConfig.lock_validity``).
_LEASE = 30.0
#: Seconds until a supervisor starts again what did not start.
_START_AGAIN = 5.0


def body_of(key: str, size: int = 0) -> bytes:
    """A body by which a history knows a message, repeated so that it has ``size`` bytes at least and that any part that
    is lost shows."""
    line = f"{key}\n".encode()
    return line * -(-size // len(line)) if size else key.encode()


def key_of(body: bytes) -> str:
    """The key in a body made by ``body_of``; something nobody ever sent when it is damaged."""
    key, _, rest = body.partition(b"\n")
    whole = not rest or body == (key + b"\n") * body.count(b"\n")
    return key.decode("utf-8", "replace") if whole else f"a damaged body of {len(body)} bytes, {key[:40]!r}"


class Site(NamedTuple):
    """What the machines of one cluster share. ``endpoints`` are those of its name servers."""

    sim: Simulation
    history: History
    endpoints: tuple[str, ...]
    clients: list[SimSender | SimMember]

    def fault(self, where: str, what: str) -> None:
        """Note a fault in the history."""
        self.history.add("fault", where, what)


class _Machine:
    """A host of the cluster and the process on it."""

    def __init__(self, site: Site, address: str, skew_ms: int) -> None:
        self.address = address
        self.disk: SimDisk = site.sim.disk()
        self.env: Env = site.sim.env(disk=self.disk, skew_ms=skew_ms)
        self.host: SimHost = site.sim.host(address)
        self.running = False
        self._site = site

    @property
    def clock(self) -> SimClock:
        """The wall clock of this host: change ``skew_ms`` to step it."""
        clock = self.env.clock
        assert isinstance(clock, SimClock)
        return clock

    def step_clock(self, seconds: float) -> None:
        """Set the wall clock forward, or back."""
        self.clock.skew_ms += round(seconds * 1000)
        self._site.fault(self.address, f"its wall clock steps by {seconds:g} s")

    def kill(self, *, power_cut: bool = False) -> None:
        """End the process at once, without any clean-up. After a power cut its peers see silence, and what its disk had
        not synced may be lost."""
        self.host.kill(power_cut=power_cut)
        if power_cut:
            self.disk.crash()
        else:
            self.disk.process_died()
        self.running = False
        self._site.history.add("killed", self.address, "power cut" if power_cut else "kill -9")

    def pause(self) -> None:
        """Stop the process in the middle of whatever it does (SIGSTOP), until ``resume``."""
        self.host.pause()
        self._site.fault(self.address, "is stopped")

    def resume(self) -> None:
        """Let it go on where it was (SIGCONT)."""
        self.host.resume()
        self._site.fault(self.address, "goes on")

    def _reboot(self) -> None:
        """The host for the next process, when the last one was killed."""
        if not self.host.alive:
            self.host = self._site.sim.host(self.address)


class SimNameServer(_Machine):
    """A name server; ``start``, ``stop``, ``kill`` in any order that makes sense."""

    server: NameServer

    @property
    def endpoint(self) -> str:
        return f"{self.address}:{NAMESERVER_PORT}"

    async def start(self) -> None:
        self._reboot()
        # Bound to loopback in the sense of the configuration: administration is served, every host reaches it.
        config = NameServerConfig(host="127.0.0.1", port=NAMESERVER_PORT, data="kv")
        self.server = NameServer(self.env, config)
        await self.host.run(self.server.start())
        self.running = True
        self._site.history.add("joined", self.address, "nameserver")

    async def stop(self) -> None:
        self.running = False
        await self.host.run(self.server.close())
        self._site.history.add("left", self.address, "nameserver")


class SimBroker(_Machine):
    """A broker with its disk. ``faults`` plans what happens to requests; it holds across restarts, as the disk does."""

    def __init__(self, site: Site, number: int, address: str, config: BrokerConfig) -> None:
        super().__init__(site, address, 0)
        self.name = f"broker-{number}"
        self.faults = WireFaults()
        self.broker: Broker
        self._config = replace(
            config, name=self.name, host="127.0.0.1", advertise=address, port=BROKER_PORT, data="store"
        )
        self.faults.listen(RequestCode.LOCK_BATCH_MQ, self._locked)
        self.faults.watch(self._unlocking)

    @property
    def endpoint(self) -> str:
        return f"{self.address}:{BROKER_PORT}"

    async def start(self) -> None:
        """Start a broker on this disk; it has recovered, listens and has tried to register when this returns."""
        self._reboot()
        config = replace(self._config, nameservers=self._site.endpoints)
        self.broker = Broker(self.env, config, Tables.of(config)._replace(offsets=_WatchedOffsets(self)))
        self.faults.attach(self.broker.server)
        await self.host.run(self.broker.start())
        self.running = True
        self._site.history.add("joined", self.address, self.name)

    async def stop(self) -> None:
        """End it as an operator would."""
        self.running = False
        await self.host.run(self.broker.close())
        self._site.history.add("left", self.address, self.name)

    async def restart(self, *, power_cut: bool | None = None, pause: float = 1.0) -> None:
        """Stop (None), kill -9 (False) or cut the power (True), wait ``pause`` seconds, start again."""
        if power_cut is None:
            await self.stop()
        else:
            self.kill(power_cut=power_cut)
        await asyncio.sleep(pause)
        await self.start()

    def messages(self, topic: str) -> list[RecordView]:
        """All stored messages of a topic, queue by queue, read past the protocol."""
        return stored_messages(self.broker.store, topic)

    def lag(self, group: str, topic: str) -> int:
        """Messages of a topic that the group has not committed."""
        return lag(self.broker, group, topic)

    # -- what the history sees of it --

    def committed(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        queue = Queue(topic, self.name, queue_id)
        self._site.history.add("committed", self.address, group=group, queue=queue, offset=offset)

    def _locked(self, connection: Connection, request: RemotingCommand, answer: RemotingCommand) -> None:
        if answer.code != 0:
            return
        asked = decode_body(LockBatchBody, request.body, request.serialize_type)
        got = decode_body(LockBatchResult, answer.body, connection.reply_type(request))
        until = self._site.sim.loop.time() + _LEASE
        for queue in got.queues:
            self._lease("granted", asked, queue, until)

    def _unlocking(self, connection: Connection, request: RemotingCommand) -> None:
        if request.code == RequestCode.UNLOCK_BATCH_MQ:
            asked = decode_body(LockBatchBody, request.body, request.serialize_type)
            for queue in asked.queues:
                if not self._is_trusted(asked, queue):
                    self._lease("released", asked, queue, 0.0)

    def _is_trusted(self, asked: LockBatchBody, queue: MessageQueue) -> bool:
        """Bytes that come late can unlock what their client has locked again since."""
        now = self._site.sim.loop.time()
        return any(
            isinstance(member, SimMember)
            and member.running
            and (member.client.client_id, member.consumer._member.wire_group) == (asked.client_id, asked.consumer_group)
            and member.consumer._member.leases is not None
            and member.consumer._member.leases.valid(Queue(queue.topic, queue.broker_name, queue.queue_id), now)
            for member in self._site.clients
        )

    def _lease(self, what: Any, asked: LockBatchBody, queue: MessageQueue, until: float) -> None:
        self._site.history.add(
            what, self.address, asked.client_id, group=asked.consumer_group, until=until,
            queue=Queue(queue.topic, queue.broker_name, queue.queue_id),
        )  # fmt: skip


class _WatchedOffsets(ConsumerOffsets):
    """Tells the history of each commit that the broker accepted."""

    def __init__(self, broker: SimBroker) -> None:
        super().__init__()
        self._broker = broker

    def commit(self, group: str, topic: str, queue_id: int, offset: int, who: dict[str, int] | None = None) -> bool:
        before = self.query(group, topic, queue_id)
        lower = super().commit(group, topic, queue_id, offset, who)
        if self.query(group, topic, queue_id) != before:
            self._broker.committed(group, topic, queue_id, offset)
        return lower


class SimSender(_Machine):
    """A producer on a host of its own. What it sends and how that ends is in the history."""

    def __init__(
        self, site: Site, group: str, address: str, skew_ms: int, config: ProducerConfig, client: ClientConfig
    ) -> None:
        super().__init__(site, address, skew_ms)
        self.client = Client(nameservers=site.endpoints, config=client, env=self.env)
        self.producer = Producer(group, client=self.client, config=config)

    async def start(self) -> None:
        await self.host.run(self.client.start())
        await self.host.run(self.producer.start())
        self.running = True

    async def stop(self) -> None:
        self.running = False
        await self.host.run(self.producer.stop())
        await self.host.run(self.client.stop())

    async def send(self, topic: str, key: str, *, size: int = 0, **options: Any) -> SendReceipt | SendError:
        """Send a message whose body is ``key`` and which the history knows by it; the receipt or the SendError.
        ``size`` bytes at least, padded; ``options`` as of ``Producer.send``."""
        history, loop = self._site.history, self._site.sim.loop
        timeout = options.setdefault("timeout", self.producer.config.send_timeout)
        shard = options.get("sharding_key") or ""
        history.add("sent", self.address, key, shard=shard, until=loop.time() + timeout)
        outcome = await self.host.run(self._send(topic, body_of(key, size), options))
        if isinstance(outcome, SendError):
            history.add("unknown" if outcome.may_be_stored else "rejected", self.address, key)
        else:
            # One that waits first has another place, which nobody is told of.
            waits = any(options.get(name) for name in ("delay_level", "at", "after"))
            offset = -1 if waits else outcome.offset
            history.add("acknowledged", self.address, key, queue=outcome.queue, offset=offset)
        return outcome

    async def _send(self, topic: str, body: bytes, options: Mapping[str, Any]) -> SendReceipt | SendError:
        try:
            return await self.producer.send(topic, body, **options)
        except SendError as error:
            return error
        except RocketError as error:
            # As TopicNotFoundError: every other class means that nothing was stored.
            return SendError(str(error), may_be_stored=False)


class SimMember(_Machine):
    """A consumer on a host of its own. What its listener is given, and how each call ends, is in the history."""

    def __init__(
        self,
        site: Site,
        group: str,
        topics: Mapping[str, Handler],
        address: str,
        skew_ms: int,
        config: ConsumerConfig,
        client: ClientConfig,
        listener: Mapping[str, Any],
    ) -> None:
        super().__init__(site, address, skew_ms)
        self.group = group
        self.topics = topics
        self._config, self._client_config, self._listener = config, client, listener
        self.client: Client
        self.consumer: Consumer

    async def start(self) -> None:
        """Start it, again if it was stopped or killed. Raises as ``Consumer.start`` does; nothing is left then."""
        self._reboot()
        self.client = Client(nameservers=self._site.endpoints, config=self._client_config, env=self.env)
        self.consumer = Consumer(self.group, client=self.client, config=self._config)
        router, options = Router(self.group), dict(self._listener)
        register: Callable[..., Any] = router.orderly if options.pop("orderly", False) else router.listener
        for topic, handler in self.topics.items():
            register(topic, **options)(self._observed(handler))
        self.consumer.include(router)
        for topic in self.topics:
            self._site.history.add("joined", self.address, topic, group=self.group)
        await self.host.run(self._start())
        self.running = True

    async def start_again(self) -> None:
        """Start it as a supervisor does: until it works."""
        while True:
            try:
                await self.start()
                return
            except RocketError:
                await asyncio.sleep(_START_AGAIN)

    async def _start(self) -> None:
        await self.client.start()
        try:
            await self.consumer.start()
        except BaseException:
            await self.client.stop()
            raise

    async def stop(self) -> None:
        """End it as a program does that leaves its ``async with``."""
        self.running = False
        await self.host.run(self.consumer.stop())
        await self.host.run(self.client.stop())
        self._site.history.add("left", self.address, group=self.group)

    def held(self, topic: str | None = None) -> list[Queue]:
        """The queues assigned to it, of ``topic`` or all."""
        return [queue for queue in self.consumer.held() if topic in (None, queue.topic)]

    def _observed(self, handler: Handler) -> Handler:
        history, host, group = self._site.history, self.address, self.group

        async def observed(message: Message) -> None:
            key, queue, offset, attempt = key_of(message.body), message.queue, message.offset, message.attempt
            shard = message.sharding_key or ""
            place: dict[str, Any] = {"group": group, "queue": queue, "offset": offset, "attempt": attempt}
            history.add("delivered", host, key, shard=shard, **place)
            if queue not in self.consumer.held():
                history.add("stray", host, key, **place)
            outcome = "interrupted"
            try:
                await handler(message)
                outcome = "ok"
            except Skip:
                outcome = "ok"
                raise
            except DeadLetter:
                outcome = "dead"
                raise
            except Exception:
                outcome = "retry"
                raise
            finally:
                # Not for a killed host: its coroutine is closed by the collector long after.
                if self.host.alive or outcome != "interrupted":
                    history.add("finished", host, key, outcome=outcome, **place)

        return observed
