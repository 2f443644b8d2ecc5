"""A name server and one broker in virtual time that answer pulls: with little, late, out of order, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from aiorocket.client.app import Client
from aiorocket.config import ClientConfig, RemotingConfig
from aiorocket.model import Queue
from aiorocket.remoting.connection import Connection
from aiorocket.remoting.processors import ProcessorTable
from aiorocket.remoting.server import RemotingServer
from aiorocket.spark.options import SourceOptions
from aiorocket.testing import Simulation
from aiorocket_protocol import (
    BrokerData,
    GetRouteInfoRequestHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueueData,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    TopicRouteData,
    encode_body,
    encode_record,
    pack_host,
)

NAMES = "10.0.0.1:9876"
ADDRESS = "10.0.0.2:10911"
BROKER = "broker-a"

Fault = Callable[[Connection, RemotingCommand, PullMessageRequestHeader], bool]


def queue(number: int) -> Queue:
    return Queue("t", BROKER, number)


def settings(**options: object) -> SourceOptions:
    return SourceOptions.parse({"nameServer": NAMES, "topic": "t", **{name: str(v) for name, v in options.items()}})


class PullBroker:
    """Topic "t": every queue has the offsets ``low`` up to ``high`` but for ``holes``; ``matches`` says which of them a
    filter lets through. At most ``count`` messages, ``size`` bytes and (with a filter) ``scan`` offsets at a time.
    ``fault`` sees every pull first and returns True when it has dealt with it."""

    def __init__(self, sim: Simulation, *, queues: int = 4, seed: int = 0) -> None:
        self.low, self.high = 0, 1000
        self.holes: set[int] = set()
        self.matches: Callable[[int], bool] = lambda offset: offset % 3 == 0
        self.count, self.size, self.scan = 32, 256 << 10, 800
        self.body = 20
        self.delay = 0.0
        self.fault: Fault = lambda connection, command, header: False
        self.has_topic = True
        self.broker_id = 0
        self.pulls: list[PullMessageRequestHeader] = []
        self.outstanding = self.most_outstanding = self.bytes_sent = 0
        self._random = Random(seed)
        self._queues = queues
        self._sim = sim
        self._names = sim.host(NAMES.partition(":")[0])
        self._host = sim.host(ADDRESS.partition(":")[0])
        self.processors = ProcessorTable()
        self.processors.add(RequestCode.PULL_MESSAGE, self._pull)

    async def __aenter__(self) -> PullBroker:
        names = ProcessorTable()
        names.add(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route)
        self._nameserver = RemotingServer(self._sim.env(), names, RemotingConfig())
        host, _, port = NAMES.partition(":")
        await self._names.run(self._nameserver.start(host, int(port)))
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        await self._names.run(self._nameserver.close(0.0))

    async def start(self) -> None:
        self._server = RemotingServer(self._sim.env(), self.processors, RemotingConfig())
        host, _, port = ADDRESS.partition(":")
        await self._host.run(self._server.start(host, int(port)))

    async def stop(self) -> None:
        await self._host.run(self._server.close(0.0))

    def client(self) -> Client:
        return Client(config=ClientConfig(nameservers=(NAMES,)), env=self._sim.env())

    def record(self, queue_id: int, offset: int) -> bytes:
        host = pack_host(ADDRESS)
        return encode_record(
            topic=b"t", body=bytes([offset % 256]) * (self.body + offset % 7), properties=b"", queue_id=queue_id,
            queue_offset=offset, physical_offset=offset * 1000, flag=0, sys_flag=0, born_timestamp=1, born_host=host,
            store_timestamp=1, store_host=host,
        )  # fmt: skip

    def _route(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        if command.read(GetRouteInfoRequestHeader).topic != "t" or not self.has_topic:
            return RemotingCommand.response(ResponseCode.TOPIC_NOT_EXIST, remark="no route")
        brokers = [BrokerData("c", BROKER, {self.broker_id: ADDRESS})]
        data = TopicRouteData([QueueData(BROKER, self._queues, self._queues, 6)], brokers, None)
        return RemotingCommand.response(body=encode_body(data, connection.reply_type(command)))

    def _pull(self, connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        header = command.read(PullMessageRequestHeader)
        self.pulls.append(header)
        if self.fault(connection, command, header):
            return None
        self.outstanding += 1
        self.most_outstanding = max(self.most_outstanding, self.outstanding)

        def reply() -> None:
            self.outstanding -= 1
            answer = self.answer(header)
            self.bytes_sent += len(answer.body)
            connection.reply(command, answer)

        self._sim.loop.call_later(self._random.uniform(0, self.delay), reply)
        return None

    def answer(self, header: PullMessageRequestHeader) -> RemotingCommand:
        offset = header.queue_offset
        if not self.low <= offset < self.high:
            if offset == self.high:
                return self.nothing(ResponseCode.PULL_NOT_FOUND, offset, "OFFSET_OVERFLOW_ONE")
            low = offset < self.low
            return self.nothing(
                ResponseCode.PULL_OFFSET_MOVED, self.low if low else self.high,
                "OFFSET_TOO_SMALL" if low else "OFFSET_OVERFLOW_BADLY",
            )  # fmt: skip
        filtered = header.subscription != "*"
        most = max(1, min(header.max_msg_nums, self.count))
        parts: list[bytes] = []
        size, stop = 0, min(self.high, offset + max(self.scan, most)) if filtered else self.high
        while offset < stop and len(parts) < most:
            if offset not in self.holes and (not filtered or self.matches(offset)):
                record = self.record(header.queue_id, offset)
                if parts and size + len(record) > self.size:
                    break
                parts.append(record)
                size += len(record)
            offset += 1
        if not parts:
            return self.nothing(ResponseCode.PULL_RETRY_IMMEDIATELY, offset, "NO_MATCHED_MESSAGE")
        found = PullMessageResponseHeader(0, offset, self.low, self.high)
        return RemotingCommand.response(0, found, remark="FOUND", body=b"".join(parts))

    def nothing(self, code: int, following: int, remark: str) -> RemotingCommand:
        header = PullMessageResponseHeader(0, following, self.low, self.high)
        return RemotingCommand.response(int(code), header, remark=remark)
