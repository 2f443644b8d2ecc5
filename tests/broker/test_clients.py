"""Heartbeats, members, notices and offsets over the wire."""

from __future__ import annotations

import asyncio

import pytest

from aiorocket.broker import Broker
from aiorocket.remoting import Connection
from aiorocket_protocol import (
    ConsumerConnection,
    GetConsumerConnectionListRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetResponseHeader,
    RemotingCommand,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
    decode_body,
)
from tests.broker.peer import Peer, heartbeat, records

NOTICE = 40


async def test_members_are_listed_and_an_empty_group_is_an_error(peer: Peer) -> None:
    assert await peer.members() is None  # code 1, no empty list
    assert (await peer.call(34, body=heartbeat("c1", "T"))).code == 0
    assert await peer.members() == ["c1"]
    assert (await peer.call(35, None, clientID="c1", consumerGroup="g")).code == 0
    assert await peer.members() is None


async def test_a_heartbeat_says_which_version_answers_and_makes_the_retry_topic(broker: Broker, peer: Peer) -> None:
    answer = await peer.call(34, body=heartbeat("c1", "T"))
    assert answer.version >= 232  # below it a client refuses SQL subscriptions
    topic = broker.topics.get("%RETRY%g")
    assert topic is not None and topic.write_queues == 1


async def test_all_members_hear_of_a_newcomer_a_leaver_and_other_topics_once_each(broker: Broker, peer: Peer) -> None:
    other = await Peer.connect(broker.port, "msgpack")
    try:
        assert (await peer.call(34, body=heartbeat("c1", "T"))).code == 0
        notice = await peer.read()  # the newcomer itself, too
        assert notice.code == NOTICE and notice.is_oneway and notice.ext_fields()["consumerGroup"] == "g"
        await other.call(34, body=_msgpack_heartbeat("c2"))
        assert (await peer.read()).code == NOTICE
        for _ in range(3):  # the same again, and other versions: no news
            await peer.call(34, body=heartbeat("c1", "T", version=9))
        assert await peer.members() == ["c1", "c2"] and not peer.requests
        await peer.call(34, body=heartbeat("c1", "T", "U", version=9))
        assert (await peer.read()).code == NOTICE
        await other.close()
        assert (await peer.read()).code == NOTICE
        assert await peer.members() == ["c1"] and not peer.requests
    finally:
        await other.close()


def _msgpack_heartbeat(client_id: str) -> bytes:
    from aiorocket_protocol import MSGPACK, HeartbeatData, encode_body

    plain = decode_body(HeartbeatData, heartbeat(client_id, "T"), 0)
    return encode_body(plain, MSGPACK)


async def test_broadcasting_groups_are_not_disturbed(peer: Peer) -> None:
    await peer.call(34, body=heartbeat("c1", "T", message_model="BROADCASTING"))
    await peer.call(34, body=heartbeat("c2", "T", message_model="BROADCASTING"))
    await peer.members()
    await peer.members()
    assert not peer.requests


async def test_bad_heartbeats_name_what_is_wrong(peer: Peer) -> None:
    answer = await peer.call(34, body=heartbeat("c1", "T", group="bad group"))
    assert answer.code == 26 and "bad group" in (answer.remark or "")
    for body in (b"", b"{", b"[]", b'{"clientID":[]}'):
        answer = await peer.call(34, body=body)
        assert answer.code == 1 and answer.remark
    assert await peer.members() is None


async def test_consumer_connections(peer: Peer) -> None:
    header = GetConsumerConnectionListRequestHeader("g")
    assert (await peer.call(203, header)).code == 206
    await peer.call(34, body=heartbeat("c1", "T"))
    answer = decode_body(ConsumerConnection, (await peer.call(203, header)).body, 0)
    assert [connection.client_id for connection in answer.connections] == ["c1"]
    assert answer.connections[0].language == "PYTHON" and set(answer.subscriptions) == {"T", "%RETRY%g"}
    assert (await peer.call(204, None, producerGroup="CLIENT_INNER_PRODUCER")).code == 0
    assert (await peer.call(204, None, producerGroup="nobody")).code == 1


async def test_tag_subscriptions_are_always_fine_unknown_types_are_not(peer: Peer) -> None:
    assert (await peer.call(46, body=b'{"clientId":"c","group":"g","subscriptionData":{"topic":"T"}}')).code == 0
    answer = await peer.call(46, body=b'{"clientId":"c","group":"g","subscriptionData":{"expressionType":"GLOB"}}')
    assert answer.code == 1 and "GLOB" in (answer.remark or "")


async def test_a_group_without_offset_starts_a_young_topic_at_0(peer: Peer) -> None:
    await peer.create_topic("T", 1)
    for _ in range(2):
        # Of an empty queue too, or what is sent before the client has asked where it ends would be passed over.
        assert await peer.committed("g", "T") == 0
        assert await peer.committed("g", "T", set_zero_if_not_found=False) is None
        await peer.send()
    assert await peer.committed("g", "Unknown") is None


async def test_commits_are_stored_ignored_or_refused(peer: Peer) -> None:
    await peer.send()
    await peer.send()

    async def commit(offset: int, group: str = "g", topic: str = "T") -> int:
        return (await peer.call(15, UpdateConsumerOffsetRequestHeader(group, topic, 0, offset))).code

    assert await commit(2) == 0 and await peer.committed("g", "T") == 2
    assert await commit(1) == 0 and await peer.committed("g", "T") == 1
    assert await commit(-1) == 0 and await peer.committed("g", "T") == 1  # as ali-ons sends
    assert await commit(1, topic="Unknown") == 17
    assert await commit(1, group="no blanks") == 26
    answer = await peer.call(15, None, consumerGroup="g", topic="T", queueId="0", commitOffset="x")
    assert answer.code == 1 and "commitOffset" in (answer.remark or "")


async def test_bounds_and_times_of_a_queue(peer: Peer) -> None:
    await peer.create_topic("T", 1)
    answer = await peer.call(32, None, topic="T", queueId="0")
    assert answer.read(GetEarliestMsgStoretimeResponseHeader).timestamp == -1
    await peer.send()
    await asyncio.sleep(0.01)
    await peer.send()
    first, second = records(await peer.pull())
    answer = await peer.call(32, None, topic="T", queueId="0")
    assert answer.read(GetEarliestMsgStoretimeResponseHeader).timestamp == first.store_timestamp
    assert (await peer.call(30, None, topic="T", queueId="0")).read(GetMaxOffsetResponseHeader).offset == 2
    assert (await peer.call(31, None, topic="T", queueId="0")).read(GetMaxOffsetResponseHeader).offset == 0

    async def search(ms: int, **boundary: str) -> int:
        answer = await peer.call(29, None, b"", topic="T", queueId="0", timestamp=str(ms), **boundary)
        return answer.read(SearchOffsetResponseHeader).offset

    assert await search(0) == 0
    assert await search(first.store_timestamp + 1) == 1
    assert await search(second.store_timestamp, boundaryType="upper") == 1
    assert await search(second.store_timestamp + 1) == 2
    for code in (30, 31):  # as Apache's 5.5.0
        answer = await peer.call(code, None, topic="Unknown", queueId="0")
        assert answer.code == 0 and answer.ext_value("offset") == "0"
    assert (await peer.call(32, None, topic="Unknown", queueId="0")).code == 17
    assert (await peer.call(29, None, topic="Unknown", queueId="0", timestamp="0")).code == 17


async def test_members_of_a_large_group_are_told_some_in_each_turn(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiorocket.broker.handlers.client._NOTICES_PER_TURN", 4)
    peers = [await Peer.connect(broker.port) for _ in range(20)]
    turns = [0]
    oneway = Connection.oneway

    def counted(self: Connection, command: RemotingCommand) -> None:
        if not turns[-1]:
            asyncio.get_running_loop().call_soon(turns.append, 0)
        turns[-1] += 1
        oneway(self, command)

    monkeypatch.setattr(Connection, "oneway", counted)
    for number, peer in enumerate(peers):
        await peer.call(34, body=heartbeat(f"c{number}", "T"))
    assert broker.parts is not None and max(turns) == 4
    clients = broker.parts.clients
    while clients._notices or clients._to_notify:
        await asyncio.sleep(0)
    told, turns[:] = sum(turns), [0]
    await peers[0].call(34, body=heartbeat("another", "T"))
    while clients._notices or clients._to_notify:
        await asyncio.sleep(0)
    assert sum(turns) == 20 and max(turns) == 4 and told < 20 * 20
    for peer in peers:
        await peer.close()


async def test_one_notice_that_fails_does_not_end_the_others(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    peers = [await Peer.connect(broker.port) for _ in range(3)]
    for number, peer in enumerate(peers):
        await peer.call(34, body=heartbeat(f"c{number}", "T"))
    told, failed = [], []
    oneway = Connection.oneway

    def fails_first(self: Connection, command: RemotingCommand) -> None:
        told.append(self)
        if len(told) == 1:
            raise MemoryError
        oneway(self, command)

    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context["exception"]))
    assert broker.parts is not None
    clients = broker.parts.clients
    while clients._notices or clients._to_notify:
        await asyncio.sleep(0)
    monkeypatch.setattr(Connection, "oneway", fails_first)
    for client in ("another", "one more"):
        await peers[0].call(34, body=heartbeat(client, "T"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not clients._notices and not clients._to_notify
    assert len(told) == 6 and [type(error) for error in failed] == [MemoryError]
    for peer in peers:
        await peer.close()
