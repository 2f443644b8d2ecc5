"""A name server and brokers of a few lines in virtual time, which keep what they are sent and say what a test wants."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from aiorocket import Client, Producer
from aiorocket.config import ClientConfig, RemotingConfig
from aiorocket.remoting.connection import Connection
from aiorocket.remoting.processors import ProcessorTable
from aiorocket.remoting.server import RemotingServer
from aiorocket.testing import SimHost, Simulation, simulate
from aiorocket_protocol import (
    BrokerData,
    EndTransactionRequestHeader,
    GetRouteInfoRequestHeader,
    HeartbeatData,
    QueueData,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
    TopicRouteData,
    decode_body,
    decode_properties,
    encode_body,
    encode_record,
    offset_msg_id,
    pack_host,
)

NAMES = "10.0.0.1:9876"


class Kept:
    """A message as it came."""

    def __init__(self, header: SendMessageRequestHeaderV2, command: RemotingCommand, connection: Connection) -> None:
        self.header = header
        self.body = bytes(command.body)
        self.code = command.code
        self.opaque = command.opaque
        self.connection = connection
        self.properties = decode_properties((header.properties or "").encode())


class FakeBroker:
    """One broker: ``kept`` is what it was sent, ``ends`` every END_TRANSACTION with its remark, ``told`` the producer
    groups of every heartbeat, which is not answered when it is ``silent``. ``on_send`` decides each answer; None is no
    answer."""

    def __init__(self, sim: Simulation, number: int) -> None:
        self.name = f"broker-{chr(ord('a') + number)}"
        self.address = f"10.0.0.{2 + number}:10911"
        self.host: SimHost = sim.host(self.address.partition(":")[0])
        self.kept: list[Kept] = []
        self.ends: list[tuple[EndTransactionRequestHeader, str | None]] = []
        self.told: list[HeartbeatData] = []
        self.silent = False
        self.connections: list[Connection] = []
        self.on_send: Callable[[Kept], RemotingCommand | None] = lambda kept: self.stored()
        self._sim = sim

    async def start(self) -> None:
        processors = ProcessorTable()
        for code in (
            RequestCode.SEND_MESSAGE_V2,
            RequestCode.SEND_BATCH_MESSAGE,
            RequestCode.SEND_REPLY_MESSAGE_V2,
        ):
            processors.add(code, self._send)
        processors.add(RequestCode.HEART_BEAT, self._heartbeat)
        processors.add(RequestCode.UNREGISTER_CLIENT, lambda connection, command: RemotingCommand.response())
        processors.add(RequestCode.END_TRANSACTION, self._end)
        host, _, port = self.address.partition(":")
        self.server = RemotingServer(self._sim.env(), processors, RemotingConfig())
        await self.host.run(self.server.start(host, int(port)))

    async def stop(self) -> None:
        await self.host.run(self.server.close(0.0))

    def stored(self, code: int = 0) -> RemotingCommand:
        """The receipt of the message that came last, at offset = how many there are."""
        number = len(self.kept)
        msg_id = offset_msg_id(pack_host(self.address), 1000 * number)
        return RemotingCommand.response(code, SendMessageResponseHeader(msg_id, self.kept[-1].header.queue_id, number))

    def record(self, kept: Kept, *, queue_offset: int, physical_offset: int) -> bytes:
        """``kept`` as a broker stores it."""
        header = kept.header
        host = pack_host(self.address)
        return encode_record(
            topic=header.topic.encode(), body=kept.body, properties=(header.properties or "").encode(),
            queue_id=header.queue_id, queue_offset=queue_offset, physical_offset=physical_offset, flag=header.flag,
            sys_flag=header.sys_flag, born_timestamp=header.born_timestamp, born_host=host,
            store_timestamp=header.born_timestamp, store_host=host,
        )  # fmt: skip

    def _send(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        kept = Kept(command.read(SendMessageRequestHeaderV2), command, connection)
        self.kept.append(kept)
        return self.on_send(kept)

    def _heartbeat(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        self.told.append(decode_body(HeartbeatData, command.body, command.serialize_type))
        if connection not in self.connections:
            self.connections.append(connection)
        return None if self.silent else RemotingCommand.response()

    def _end(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        self.ends.append((command.read(EndTransactionRequestHeader), command.remark))
        return RemotingCommand.response()


class FakeCluster:
    """``topics`` maps a topic to the brokers that have it, ``queues`` to how many of its queues each of them has where
    that is not two, ``order`` to its orderTopicConf."""

    def __init__(self, sim: Simulation, brokers: int = 1) -> None:
        self.sim = sim
        self.brokers = [FakeBroker(sim, number) for number in range(brokers)]
        self.topics: dict[str, list[FakeBroker]] = {"t": list(self.brokers)}
        self.queues: dict[str, int] = {}
        self.order: dict[str, str] = {}
        self._host = sim.host(NAMES.partition(":")[0])

    async def __aenter__(self) -> FakeCluster:
        processors = ProcessorTable()
        processors.add(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route)
        host, _, port = NAMES.partition(":")
        self._server = RemotingServer(self.sim.env(), processors, RemotingConfig())
        await self._host.run(self._server.start(host, int(port)))
        for broker in self.brokers:
            await broker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for broker in self.brokers:
            await broker.stop()
        await self._host.run(self._server.close(0.0))

    def _route(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        topic = command.read(GetRouteInfoRequestHeader).topic
        brokers = self.topics.get(topic)
        if not brokers:
            return RemotingCommand.response(ResponseCode.TOPIC_NOT_EXIST, remark="no route")
        count = self.queues.get(topic, 2)
        data = TopicRouteData(
            [QueueData(broker.name, count, count, 6) for broker in brokers],
            [BrokerData("c", broker.name, {0: broker.address}) for broker in brokers],
            self.order.get(topic),
        )
        return RemotingCommand.response(body=encode_body(data, connection.reply_type(command)))


def kept_by(cluster: FakeCluster) -> list[tuple[str, int, Any]]:
    """(broker, queue id, body) of everything the brokers were sent, broker by broker."""
    return [(broker.name, kept.header.queue_id, kept.body) for broker in cluster.brokers for kept in broker.kept]


P = TypeVar("P", bound=Producer)


def run_with(
    scenario: Callable[[FakeCluster, P], Awaitable[None]],
    make: Callable[[Client], P],
    brokers: int = 1,
    namespace: str = "",
) -> None:
    """``scenario`` with a cluster and a producer, on a host of its own."""

    async def main(sim: Simulation) -> None:
        host = sim.host("10.0.1.1")
        async with FakeCluster(sim, brokers) as cluster:
            client = Client(config=ClientConfig(nameservers=(NAMES,), namespace=namespace), env=sim.env())
            producer = make(client)

            async def scene() -> None:
                async with client, producer:
                    await scenario(cluster, producer)

            await host.run(scene())

    simulate(main)
