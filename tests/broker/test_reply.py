"""Request-reply at the broker: the reply is pushed to the producer that asked, and kept as Apache's broker keeps it."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any

import pytest

from aiorocket.broker import Broker
from aiorocket.broker.core.groups import GroupTable
from aiorocket.config import RemotingConfig
from aiorocket.storage.results import PutResult, PutStatus, StoreBusyError
from aiorocket_protocol import (
    JSON,
    HeartbeatData,
    RemotingCommand,
    ReplyMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
    decode_properties,
    encode_body,
    encode_head,
    encode_properties,
    parse_offset_msg_id,
)
from tests.broker.peer import Peer, records, running, send_header

REPLIES = "DefaultCluster_REPLY_TOPIC"


async def asker(broker: Broker, client_id: str = "10.0.0.1@1") -> Peer:
    peer = await Peer.connect(broker.port)
    body = encode_body(HeartbeatData(client_id, ["CLIENT_INNER_PRODUCER"], []), 0)
    assert (await peer.call(34, body=body)).code == 0
    return peer


def reply_header(**changes: Any) -> Any:
    properties = {"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "10.0.0.1@1", "MSG_TYPE": "reply", "TTL": "3000"}
    return send_header(topic=REPLIES, properties=encode_properties(properties).decode(), flag=3)._replace(**changes)


async def pushed(peer: Peer) -> tuple[RemotingCommand, ReplyMessageRequestHeader]:
    command = await peer.read()
    assert command.code == 326 and not command.is_response
    return command, command.read(ReplyMessageRequestHeader)


async def answer(peer: Peer, command: RemotingCommand, code: int = 0) -> None:
    response = RemotingCommand.response(code)
    response.opaque = command.opaque
    peer.writer.write(response)
    await peer.writer.drain()


@pytest.mark.parametrize("code", [324, 325])
async def test_a_reply_makes_no_topic_of_replies(broker: Broker, peer: Peer, code: int) -> None:
    """Any user may reply, and made topics up to the broker's limit."""
    topics = len(broker.topics)
    header = reply_header(topic="other_REPLY_TOPIC")
    if code == 324:
        header = SendMessageRequestHeader("p", header.topic, "TBW102", 4, 0, 0, 1, 0, header.properties)
    refused = await peer.call(code, header, b"42")
    assert refused.code == 17 and "other_REPLY_TOPIC" in (refused.remark or "") and len(broker.topics) == topics
    broker.topics.delete(REPLIES)  # an administrator's mistake
    assert (await peer.call(code, header._replace(topic=REPLIES) if code == 324 else reply_header(), b"42")).code == 1
    assert REPLIES in broker.topics


async def test_a_reply_from_a_namespace_needs_no_topic_of_its_own(broker: Broker, peer: Peer) -> None:
    """Java's clients put theirs before the topic of replies too, and choose a queue of the route of TBW102."""
    waiting, topics = await asker(broker), len(broker.topics)
    await peer.ask(325, reply_header(topic=f"INST_1%{REPLIES}", queue_id=3), b"42")
    command, header = await pushed(waiting)
    assert command.body == b"42" and header.topic == f"INST_1%{REPLIES}"
    await answer(waiting, command)
    replied = await peer.answer()
    assert replied.code == 0 and replied.read(SendMessageResponseHeader).queue_id == 0
    assert len(broker.topics) == topics and broker.store.max_offset(REPLIES, 0) == 1
    await waiting.close()


async def test_a_reply_reaches_who_asked(broker: Broker, peer: Peer) -> None:
    waiting = await asker(broker)
    await peer.ask(325, reply_header(), b"42")
    command, header = await pushed(waiting)
    assert command.body == b"42" and header.topic == REPLIES and header.flag == 3 and header.producer_group == "p"
    assert header.born_host.startswith("127.0.0.1:") and header.store_host == broker.address
    assert header.store_timestamp > 1_700_000_000_000
    properties = decode_properties((header.properties or "").encode())
    assert properties["CORRELATION_ID"] == "c-1" and properties["PUSH_REPLY_TIME"].isdigit()
    await answer(waiting, command)
    done = await peer.answer()
    receipt = done.read(SendMessageResponseHeader)
    assert done.code == 0 and receipt.queue_offset == 0 and done.ext_value("MSG_REGION") == "DefaultRegion"
    (kept,) = records(await peer.pull(REPLIES, 0))
    assert kept.body == b"42" and kept.properties["CLUSTER"] == "DefaultCluster"
    assert kept.physical_offset == parse_offset_msg_id(receipt.msg_id)[2]
    await waiting.close()


async def test_long_names_and_nothing_kept() -> None:
    async with running(store_replies=False) as broker:
        waiting, peer = await asker(broker), await Peer.connect(broker.port)
        header = SendMessageRequestHeader(*reply_header())
        await peer.ask(324, header, b"42")
        command, _ = await pushed(waiting)
        await answer(waiting, command)
        done = await peer.answer()
        assert done.code == 0 and done.read(SendMessageResponseHeader).msg_id == "0"
        assert (await peer.pull(REPLIES, 0, suspend_timeout_millis=0)).code == 19
        await waiting.close()
        await peer.close()


async def test_whoever_is_not_there_cannot_be_answered(broker: Broker, peer: Peer) -> None:
    done = await peer.call(325, reply_header(), b"42")
    assert done.code == 1 and "channel of <10.0.0.1@1> not found" in (done.remark or "")
    assert len(records(await peer.pull(REPLIES, 0))) == 1  # kept all the same, as at Apache's
    done = await peer.call(325, reply_header(properties=None), b"42")
    assert done.code == 1 and "REPLY_TO_CLIENT" in (done.remark or "")
    waiting = await asker(broker)
    await waiting.close()
    while broker.producers.find_client("10.0.0.1@1") is not None:
        await asyncio.sleep(0)
    assert (await peer.call(325, reply_header(), b"42")).code == 1


async def test_an_asker_that_refuses_or_goes_away(broker: Broker, peer: Peer) -> None:
    waiting = await asker(broker)
    await peer.ask(325, reply_header(), b"42")
    command, _ = await pushed(waiting)
    await answer(waiting, command, 1)
    done = await peer.answer()
    assert done.code == 1 and "it answered 1" in (done.remark or "")
    await peer.ask(325, reply_header(), b"42")
    await pushed(waiting)
    await waiting.close()
    done = await peer.answer()
    assert done.code == 1 and "fail" in (done.remark or "")


async def test_an_asker_that_never_answers() -> None:
    async with running(client_call_timeout=0.05) as broker:
        waiting, peer = await asker(broker), await Peer.connect(broker.port)
        done = await peer.call(325, reply_header(), b"42")
        assert done.code == 1 and "fail" in (done.remark or "")
        await waiting.close()
        await peer.close()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "bad name"}, 29),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, 16),
        ({"queue_id": 1}, 29),
        ({"properties": "x\x01" + "y" * 32_740 + "\x02"}, 13),
        ({"properties": "x\x01" + "y" * 32_760 + "\x02"}, 13),
    ],
)
async def test_a_reply_is_checked_like_a_message(peer: Peer, changes: dict[str, Any], code: int) -> None:
    assert (await peer.call(325, reply_header(**changes), b"42")).code == code


async def test_a_reply_that_arrived_and_could_not_be_kept_has_arrived(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: Any, **__: Any) -> None:
        raise StoreBusyError("too much waits")

    waiting = await asker(broker)
    monkeypatch.setattr(broker.store, "append", busy)
    await peer.ask(325, reply_header(), b"42")
    command, _ = await pushed(waiting)
    await answer(waiting, command)
    assert (await peer.answer()).code == 0
    await waiting.close()


async def test_one_way_replies_are_pushed_too(broker: Broker, peer: Peer) -> None:
    waiting = await asker(broker)
    await peer.ask(325, reply_header(), b"42", oneway=True)
    command, _ = await pushed(waiting)
    await answer(waiting, command)
    assert (await peer.pull("Unknown")).code == 17  # nothing else was answered
    await waiting.close()


def test_where_a_client_id_is_found() -> None:
    table = GroupTable(120.0)
    assert table.find_client("c") is None
    table.register("g", connection="one", client_id="c", now=0.0)
    table.register("h", connection="one", client_id="c", now=0.0)
    table.register("g", connection="two", client_id="c", now=1.0)
    assert table.find_client("c") == "two"
    table.register("g", connection="two", client_id="d", now=2.0)  # the same connection under another name
    assert table.find_client("c") == "one" and table.find_client("d") == "two"
    table.unregister("g", "one")
    assert table.find_client("c") == "one"
    table.lost("one")
    assert table.find_client("c") is None
    table.expire(122.0)
    assert table.find_client("d") is None


async def test_replies_that_the_asker_leaves_unanswered_are_bounded() -> None:
    remoting = RemotingConfig(max_in_flight_bytes=400_000)
    async with running(remoting=remoting, client_call_timeout=60) as broker:
        waiting, peer = await asker(broker), await Peer.connect(broker.port)
        for _ in range(4):
            await peer.ask(325, reply_header(), bytes(40_000))
        for _ in range(2):
            refused = await peer.answer()
            assert refused.code == 2 and "max_in_flight_bytes=400000" in (refused.remark or "")
        for _ in range(2):
            await answer(waiting, (await pushed(waiting))[0])
        assert [(await peer.answer()).code for _ in range(2)] == [0, 0]
        assert broker.server.processors.awaited.total == 0
        await waiting.close()
        await peer.close()


async def test_a_reply_that_cannot_be_passed_on_takes_no_room(broker: Broker) -> None:
    waiting = await asker(broker)
    head = encode_head(RemotingCommand.request(325, reply_header(), body=b"42"), JSON)
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    writer.write(head.replace(b"TBW102", b"\\ud800") + b"42")  # half a pair, which JSON can say and UTF-8 cannot
    async with asyncio.timeout(30):
        data = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
    assert b"not Unicode" in data
    assert broker.server.processors.awaited.total == 0
    writer.close()
    await waiting.close()


async def test_of_a_reply_that_waits_for_the_store_nothing_is_held_beside_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of a GiB of them may fail at once, when their asker ends: what the store has of them comes to that."""
    stored = []
    monkeypatch.setattr(broker.store, "append", lambda *_, done, **__: stored.append(done))
    waiting, peer = await asker(broker), await Peer.connect(broker.port)
    properties = encode_properties({"REPLY_TO_CLIENT": "10.0.0.1@1", "x": "y" * 30_000}).decode()
    tracemalloc.start()
    try:
        for _ in range(20):
            await peer.ask(325, reply_header(properties=properties), bytes(60_000))
            await pushed(waiting)
        asked = tracemalloc.get_traced_memory()[0]
        assert broker.server.processors.awaited.total > 20 * 90_000
        assert asked < 20 * 140_000
        await waiting.close()
        while len(stored) < 20:
            await asyncio.sleep(0)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert broker.server.processors.awaited.total == 0
    assert held < 600_000
    for done in stored:
        done(PutResult(PutStatus.FULL, 0, 0, 0))
    assert [(await peer.answer()).code for _ in range(20)] == [1] * 20
    await peer.close()
