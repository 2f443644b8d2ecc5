"""Registrations of thousands of topics: read little by little, in order, and for nobody who has gone."""

from __future__ import annotations

import asyncio

import pytest

from aiorocket.config import NameServerConfig
from aiorocket.nameserver import NameServer
from aiorocket.nameserver.reported import A_TURN, reported
from aiorocket.runtime import memory_env
from aiorocket_protocol import (
    JSON,
    MSGPACK,
    DataVersion,
    GetRouteInfoRequestHeader,
    ProtocolError,
    RegisterBrokerBody,
    RegisterBrokerRequestHeader,
    RemotingCommand,
    TopicConfig,
    TopicRouteData,
    decode_body,
    encode_body,
)
from tests.broker.peer import Peer

MANY = 3_000


def table(version: int, queues: int) -> RegisterBrokerBody:
    return RegisterBrokerBody(DataVersion(1, version), [TopicConfig(f"T{n}", queues, queues) for n in range(MANY)])


def header(**changes: object) -> RegisterBrokerRequestHeader:
    return RegisterBrokerRequestHeader("b", "127.0.0.1:1", "C", "", 0)._replace(**changes)


async def queues_of(peer: Peer, topic: str) -> int | None:
    answer = await peer.call(105, GetRouteInfoRequestHeader(topic))
    return decode_body(TopicRouteData, answer.body, 0).queue_datas[0].read_queue_nums if answer.code == 0 else None


async def test_few_topics_are_read_in_a_turn() -> None:
    command = RemotingCommand.request(103, body=encode_body(table(1, 4), JSON))
    reading = asyncio.ensure_future(reported(command, header(), MANY))
    turns = 0
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)
    topics = reading.result()[1]
    assert topics is not None and len(topics) == MANY and turns >= MANY // A_TURN


async def test_of_too_many_topics_no_more_are_read() -> None:
    command = RemotingCommand.request(103, body=table(1, 4).compressed())
    topics = (await reported(command, header(compressed=True), 10))[1]
    assert topics is not None and len(topics) == 11


@pytest.mark.parametrize("compressed", [False, True])
async def test_registrations_count_in_the_order_in_which_they_came(compressed: bool) -> None:
    server = NameServer(memory_env(), NameServerConfig(port=0))
    await server.start()
    peer = await Peer.connect(server.port)
    for version, queues in ((1, 4), (2, 5)):
        body = table(version, queues)
        data = body.compressed() if compressed else encode_body(body, JSON)
        await peer.ask(103, header(compressed=compressed), data)
    single = RegisterBrokerBody(DataVersion(1, 3), [TopicConfig("T7", 6, 6)])
    await peer.ask(103, header(), encode_body(single, JSON))
    assert [(await peer.answer()).code for _ in range(3)] == [0, 0, 0]
    assert [await queues_of(peer, topic) for topic in ("T0", "T7", f"T{MANY - 1}")] == [5, 6, 5]
    bad = table(4, 7).compressed()[:-9] if compressed else encode_body(table(4, 7), JSON).replace(b"T2999", b"", 1)[:-9]
    assert (await peer.call(103, header(compressed=compressed), bad)).code == 1
    await peer.close()
    await server.close()


async def test_who_has_gone_meanwhile_is_not_registered() -> None:
    server = NameServer(memory_env(), NameServerConfig(port=0))
    await server.start()
    peer, other = await Peer.connect(server.port), await Peer.connect(server.port)
    async with server._reading:
        await peer.ask(103, header(), encode_body(table(1, 4), JSON))
        await other.call(206)
        await peer.close()
        while len(server._server.connections) > 1:
            await asyncio.sleep(0.001)
    for _ in range(100):
        await asyncio.sleep(0)
    assert await queues_of(other, "T0") is None and not server.routes.brokers()
    await other.close()
    await server.close()


def one_by_one(data: bytes, kind: int, *, compressed: bool = False) -> tuple[DataVersion, list[TopicConfig], int]:
    """Version, topics, turns."""
    reading = RegisterBrokerBody.one_by_one(data, compressed=compressed, serialize_type=kind)
    read: list[TopicConfig | None] = []
    while True:
        try:
            read.append(next(reading))
        except StopIteration as end:
            topics = [topic for topic in read if topic is not None]
            return end.value, topics, len(read) - len(topics) + 1


def test_one_by_one_is_the_same() -> None:
    body = table(1, 4)
    for kind in (JSON, MSGPACK):
        assert one_by_one(encode_body(body, kind), kind)[:2] == body[:2]
    assert one_by_one(body.compressed(), JSON, compressed=True)[:2] == body[:2]
    with pytest.raises(ProtocolError):
        one_by_one(b"nonsense", JSON, compressed=True)
