"""A hand-made client for the broker's tests: one connection, requests by name, answers as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiorocket.broker import Broker
from aiorocket.config import BrokerConfig
from aiorocket.remoting import CommandReader, CommandWriter, open_command_stream
from aiorocket.runtime.env import Env, memory_env
from aiorocket_protocol import (
    JSON,
    ConsumerData,
    ConsumerListBody,
    ConsumerSendMsgBackRequestHeader,
    CreateTopicRequestHeader,
    DataVersion,
    GetConsumerListByGroupRequestHeader,
    HeartbeatData,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    RecordView,
    RegisterBrokerBody,
    RegisterBrokerRequestHeader,
    RemotingCommand,
    SendMessageRequestHeaderV2,
    SubscriptionData,
    TopicConfig,
    decode_body,
    encode_batch,
    encode_body,
    encode_properties,
    split_records,
)

SUSPEND = 2
SUBSCRIPTION = 4


@asynccontextmanager
async def running(config: BrokerConfig | None = None, env: Env | None = None, **changes: Any) -> AsyncIterator[Broker]:
    """A broker on a free port, with its messages in memory unless told otherwise."""
    own = env if env is not None else memory_env()
    broker = Broker(own, config or BrokerConfig(**{"port": 0, **changes}))
    await broker.start()
    try:
        yield broker
    finally:
        await broker.close()
        if env is None:
            await own.disk.close()


@asynccontextmanager
async def away(nameserver: int, cluster: str, *topics: str) -> AsyncIterator[None]:
    """A broker named away is registered with a queue of each topic and of "there", and nobody is at its address."""
    peer = await Peer.connect(nameserver)
    header = RegisterBrokerRequestHeader("away", "127.0.0.1:1", cluster, "", 0)
    body = RegisterBrokerBody(DataVersion(1, 1), [TopicConfig(topic, 1, 1) for topic in ("there", *topics)])
    try:
        registered = await peer.call(103, header, encode_body(body, JSON))
        assert registered.code == 0, registered.remark
        yield  # as long as its connection is open
    finally:
        await peer.close()


def send_header(topic: str = "T", queue_id: int = 0, **changes: Any) -> SendMessageRequestHeaderV2:
    header = SendMessageRequestHeaderV2("p", topic, "TBW102", 4, queue_id, 0, 1_700_000_000_000, 0)
    return header._replace(**changes)


def pull_header(topic: str = "T", queue_id: int = 0, offset: int = 0, **changes: Any) -> PullMessageRequestHeader:
    header = PullMessageRequestHeader(
        "g", topic, queue_id, offset, 32, SUSPEND | SUBSCRIPTION, 0, 15_000, 0, subscription="*"
    )
    return header._replace(**changes)


def heartbeat(client_id: str, *topics: str, group: str = "g", version: int = 1, **changes: Any) -> bytes:
    subscriptions = [SubscriptionData.parse(topic, "*", version) for topic in (*topics, f"%RETRY%{group}")]
    consumer = ConsumerData(group, subscriptions=subscriptions)._replace(**changes)
    return encode_body(HeartbeatData(client_id, ["CLIENT_INNER_PRODUCER"], [consumer]), 0)


def records(answer: RemotingCommand) -> list[RecordView]:
    return split_records(answer.body)


def records_read(broker: Broker) -> list[int]:
    """How many records a broker, which ends with the test, reads from now on in each turn of the loop that reads any;
    and 0 for the one to come."""
    counts, read_record = [0], broker.store.read_record

    def counted(place: int) -> bytes | None:
        if not counts[-1]:
            asyncio.get_running_loop().call_soon(counts.append, 0)
        counts[-1] += 1
        return read_record(place)

    broker.store.read_record = counted  # type: ignore[method-assign]  # it ends with the test
    return counts


class Peer:
    """``call`` for one request and its answer; ``ask`` and ``answer`` when something happens in between."""

    def __init__(self, reader: CommandReader, writer: CommandWriter) -> None:
        self.reader, self.writer = reader, writer
        #: Requests that the broker sent meanwhile.
        self.requests: list[RemotingCommand] = []

    @classmethod
    async def connect(cls, port: int, serializer: str = "json", host: str = "127.0.0.1") -> Peer:
        return cls(*await open_command_stream(host, port, serializer=serializer))

    async def ask(self, code: int, header: Any = None, body: bytes = b"", *, oneway: bool = False, **ext: str) -> int:
        opaque = self.writer.write(RemotingCommand.request(code, header, body=body, oneway=oneway, ext=ext or None))
        await self.writer.drain()
        return opaque

    async def read(self) -> RemotingCommand:
        command = await self.reader.read()
        assert command is not None, "the broker closed the connection"
        return command

    async def answer(self) -> RemotingCommand:
        while not (command := await self.read()).is_response:
            self.requests.append(command)
        return command

    async def call(self, code: int, header: Any = None, body: bytes = b"", **ext: str) -> RemotingCommand:
        await self.ask(code, header, body, oneway=False, **ext)
        return await self.answer()

    async def close(self) -> None:
        await self.writer.close()

    # ---- what tests do most

    async def send(
        self, body: bytes = b"hello", properties: dict[str, str] | str | None = None, **changes: Any
    ) -> RemotingCommand:
        text = properties if isinstance(properties, str) else encode_properties(properties or {}).decode()
        return await self.call(310, send_header(**{"properties": text, **changes}), body)

    async def send_batch(self, *bodies: bytes, properties: str = "", **changes: Any) -> RemotingCommand:
        items = [(body, 0, encode_properties({"UNIQ_KEY": f"K{n}"})) for n, body in enumerate(bodies)]
        return await self.call(320, send_header(batch=True, properties=properties, **changes), encode_batch(items))

    async def send_illegible(self, topic: str, queue_id: int = 0) -> None:
        """Two messages that brokers take from somebody's own client: ``b"one"`` with the tag ``t``, a key and an
        id that are not UTF-8, and a body that says it is packed and is not."""
        items = [(b"one", 0, b"KEYS\x01k\xff\x02UNIQ_KEY\x01\xff\x02TAGS\x01t\x02")]
        header = send_header(topic, queue_id, batch=True)
        assert (await self.call(320, header, encode_batch(items))).code == 0
        assert (await self.send(b"not zlib", topic=topic, queue_id=queue_id, sys_flag=1)).code == 0

    async def pull(self, *args: Any, **changes: Any) -> RemotingCommand:
        return await self.call(11, pull_header(*args, **changes))

    async def send_back(self, offset: int, delay_level: int = 0, **changes: Any) -> RemotingCommand:
        return await self.call(36, ConsumerSendMsgBackRequestHeader(offset, "g", delay_level)._replace(**changes))

    async def committed(self, group: str, topic: str, queue_id: int = 0, **changes: Any) -> int | None:
        header = QueryConsumerOffsetRequestHeader(group, topic, queue_id)._replace(**changes)
        answer = await self.call(14, header)
        if answer.code == 22:
            return None
        return answer.read(QueryConsumerOffsetResponseHeader).offset

    async def members(self, group: str = "g") -> list[str] | None:
        answer = await self.call(38, GetConsumerListByGroupRequestHeader(group))
        if answer.code:
            return None
        return decode_body(ConsumerListBody, answer.body, answer.serialize_type).consumer_ids

    async def create_topic(self, topic: str, queues: int = 4, perm: int = 6) -> RemotingCommand:
        header = CreateTopicRequestHeader(topic, "TBW102", queues, queues, perm, "SINGLE_TAG", False)
        return await self.call(17, header)


def span(answer: RemotingCommand) -> PullMessageResponseHeader:
    """The four offsets, which every pull answer must have: Java reads them without a check."""
    return answer.read(PullMessageResponseHeader)
