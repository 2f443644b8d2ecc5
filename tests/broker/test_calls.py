"""What an administrator asks of consumers through the broker, and what heartbeats tell about a group."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aiorocket.broker import Broker, answers
from aiorocket.broker.core.counters import SendBack
from aiorocket.broker.core.group_configs import GroupConfigs
from aiorocket.broker.core.groups import ConsumerGroup, GroupTable, differences
from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.topics import UNIT, UNIT_SUB
from aiorocket.broker.core.turns import A_TURN
from aiorocket.config import NameServerConfig
from aiorocket.nameserver import NameServer
from aiorocket.remoting import Connection
from aiorocket.runtime.env import memory_env
from aiorocket_protocol import (
    MSGPACK,
    HeartbeatData,
    KVTable,
    MessageQueue,
    RemotingCommand,
    SubscriptionData,
    decode_body,
    encode_body,
)
from tests.broker.peer import Peer, heartbeat, records, running
from tests.broker.test_locks import lock_body

QUEUE = MessageQueue("T", "broker-a", 3)
INFO: dict[Any, Any] = {"jstack": "t", "mqTable": {QUEUE: {"commitOffset": 7}}, "properties": {"a": "b"}}


@asynccontextmanager
async def consumer(broker: Broker, client_id: str, kind: str = "json", **changes: Any) -> AsyncIterator[Peer]:
    """A member of group g. With ``language`` and ``version`` as given in its heartbeat's header."""
    peer = await Peer.connect(broker.port, kind)
    beat = heartbeat(client_id, "T")
    if kind == "msgpack":
        beat = encode_body(decode_body(HeartbeatData, beat, 0), MSGPACK)
    command = RemotingCommand.request(34, body=beat)
    command.language = changes.get("language", command.language)
    command.version = changes.get("version", command.version)
    peer.writer.write(command)
    await peer.writer.drain()
    assert (await peer.answer()).code == 0
    try:
        yield peer
    finally:
        await peer.close()


async def asked(peer: Peer) -> RemotingCommand:
    """The next request of the broker that is no notice."""
    while True:
        command = peer.requests.pop(0) if peer.requests else await peer.read()
        if command.code != 40:
            assert not command.is_response
            return command


async def reply(peer: Peer, request: RemotingCommand, code: int = 0, body: bytes = b"", remark: str = "") -> None:
    response = RemotingCommand.response(code, remark=remark or None, body=body)
    response.opaque = request.opaque
    peer.writer.write(response)
    await peer.writer.drain()


# ---- 307


@pytest.mark.parametrize("kind", ["json", "msgpack", "rocketmq"])
@pytest.mark.parametrize("admin", ["json", "msgpack"])
async def test_running_info_is_the_clients_own_in_the_administrators_serialisation(
    broker: Broker, kind: str, admin: str
) -> None:
    number = MSGPACK if kind == "msgpack" else 0
    text = json.dumps(QUEUE.to_plain(), separators=(",", ":"))
    said = {**INFO, "mqTable": {text: {"commitOffset": 7}}} if number == MSGPACK else INFO
    peer = await Peer.connect(broker.port, admin)
    async with consumer(broker, "c1", kind) as member:
        await peer.ask(307, None, consumerGroup="g", clientId="c1", jstackEnable="true")
        request = await asked(member)
        fields = request.ext_fields()
        assert request.code == 307 and fields["clientId"] == "c1" and fields["jstackEnable"] == "true"
        await reply(member, request, body=encode_body(said, number))
        answer = await peer.answer()
        assert answer.code == 0
        if admin == "json":
            # Java reads a queue as a key only when it is an object there.
            assert answer.body == encode_body(INFO, 0)
        else:
            import msgpack

            assert msgpack.unpackb(answer.body)["mqTable"] == {text: {"commitOffset": 7}}
    await peer.close()


@pytest.mark.parametrize(("code", "kind"), [(223, "json"), (307, "msgpack")])
async def test_of_what_a_client_says_little_is_translated_in_a_turn(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch, code: int, kind: str
) -> None:
    """A mebibyte of keys that begin as queues do took 0.5 s, and as much msgpack is not read any more."""
    keys: list[int] = [0]

    def counted(key: Any, serialize_type: int) -> Any:
        if not keys[-1]:
            asyncio.get_running_loop().call_soon(keys.append, 0)
        keys[-1] += 1
        return translated(key, serialize_type)

    translated = answers._key
    monkeypatch.setattr(answers, "_key", counted)
    number = MSGPACK if kind == "msgpack" else 0
    said = {"messageQueueTable": {f"{{{number}": number for number in range(15_000)}}
    async with consumer(broker, "c1", kind) as member:
        await peer.ask(code, None, consumerGroup="g", group="g", topic="T", clientId="c1")
        await reply(member, await asked(member), body=encode_body(said, number))
        answer = await peer.answer()
        assert answer.code == 0 and b'"{14999"' in answer.body
        assert sum(keys) >= 15_000 and max(keys) <= A_TURN
        if number:
            await peer.ask(code, None, consumerGroup="g", clientId="c1")
            await reply(member, await asked(member), body=b"\x91" + b"\x90" * (256 << 10))
            assert "at most 262144 are read" in ((await peer.answer()).remark or "")


async def test_a_client_that_refuses_is_quoted(broker: Broker, peer: Peer) -> None:
    async with consumer(broker, "c1") as member:
        await peer.ask(307, None, consumerGroup="g", clientId="c1")
        await reply(member, await asked(member), 1, remark="I do not know that group")
        answer = await peer.answer()
        assert (answer.code, answer.remark) == (1, "I do not know that group")


@pytest.mark.parametrize("code", [307, 309])
async def test_nobody_a_stranger_and_an_old_client_are_told_apart(broker: Broker, peer: Peer, code: int) -> None:
    await peer.send()
    (record,) = records(await peer.pull())
    ext = {"consumerGroup": "g", "clientId": "c2", "msgId": record.offset_msg_id}
    answer = await peer.call(code, None, b"", **ext)
    assert answer.code == 1 and "<g> not online" in (answer.remark or "")
    async with consumer(broker, "c1"):
        answer = await peer.call(code, None, b"", **ext)
        assert answer.code == 1 and "<c2>" in (answer.remark or "") and "c1" in (answer.remark or "")
    async with consumer(broker, "c2", version=61):
        answer = await peer.call(code, None, b"", **ext)
        assert answer.code == 1 and "does not support" in (answer.remark or "")


async def test_a_client_that_does_not_answer_in_time_is_207() -> None:
    async with running(client_call_timeout=0.05) as broker:
        peer = await Peer.connect(broker.port)
        async with consumer(broker, "c1") as member:
            answer = await peer.call(307, None, consumerGroup="g", clientId="c1")
            assert answer.code == 207 and "0.05 s" in (answer.remark or "")
            await reply(member, await asked(member))  # too late, and nobody minds
            assert await peer.members() == ["c1"]
        await peer.close()


@pytest.mark.parametrize("code", [307, 309, 223])
async def test_a_client_that_leaves_instead_of_answering_is_an_error_at_once(
    broker: Broker, peer: Peer, code: int
) -> None:
    await peer.send()
    (record,) = records(await peer.pull())
    async with consumer(broker, "c1") as member:
        ask = {"consumerGroup": "g", "clientId": "c1", "msgId": record.offset_msg_id, "group": "g", "topic": "T"}
        await peer.ask(code, None, **ask)  # type: ignore[arg-type]
        await asked(member)
    answer = await peer.answer()
    if code == 223:
        assert answer.code == 207 and "no member answered" in (answer.remark or "")
    else:
        assert answer.code == 1 and "could not be asked" in (answer.remark or "")


@pytest.mark.parametrize("code", [307, 309, 223])
async def test_a_client_that_left_is_not_kept_by_who_asked_it(broker: Broker, peer: Peer, code: int) -> None:
    """An error that was raised holds what it passed through: its connection then, and its group, for the collector."""
    await peer.send()
    (record,) = records(await peer.pull())
    ask: dict[str, Any] = {
        "consumerGroup": "g",
        "clientId": "c1",
        "msgId": record.offset_msg_id,
        "group": "g",
        "topic": "T",
    }

    def connections() -> set[Connection]:
        return {each for each in gc.get_objects() if type(each) is Connection}

    gc.collect()
    gc.disable()
    before = connections()
    try:
        async with consumer(broker, "c1") as member:
            await peer.ask(code, None, **ask)
            await asked(member)
        assert (await peer.answer()).code
        async with asyncio.timeout(10):
            while not connections() <= before:
                await asyncio.sleep(0.001)
    finally:
        gc.enable()


async def test_an_answer_that_cannot_be_passed_on_is_an_error_that_says_why(broker: Broker) -> None:
    admin = await Peer.connect(broker.port, "msgpack")
    for body, why in ((b"[" * 100_000, "64 levels"), (b'{"a":%d}' % 10**30, "out of range"), (b"{no", "JSON")):
        async with consumer(broker, "c1") as member:
            await admin.ask(307, None, consumerGroup="g", clientId="c1")
            await reply(member, await asked(member), body=body)
            answer = await admin.answer()
            assert answer.code == 1 and why in (answer.remark or "")
    await admin.close()


# ---- 309


async def test_a_message_is_consumed_directly_as_it_is_stored(broker: Broker, peer: Peer) -> None:
    await peer.send(b"first")
    await peer.send(b"second", {"TAGS": "A"})
    _, record = records(await peer.pull())
    async with consumer(broker, "c1") as member:
        await peer.ask(309, None, consumerGroup="g", clientId="c1", msgId=record.offset_msg_id, topic="T")
        request = await asked(member)
        assert request.code == 309 and request.ext_fields()["brokerName"] == "broker-a"
        (seen,) = records(request)
        assert seen.body == b"second" and seen.tag == "A" and seen.physical_offset == record.physical_offset
        result = {"autoCommit": True, "consumeResult": "CR_SUCCESS", "order": False, "spentTimeMills": 3}
        await reply(member, request, body=encode_body(result, 0))
        assert json.loads((await peer.answer()).body)["consumeResult"] == "CR_SUCCESS"
        for wrong, code in ((record.offset_msg_id[:-1] + "F", 1), ("K1", 29)):
            answer = await peer.call(309, None, consumerGroup="g", clientId="c1", msgId=wrong)
            assert answer.code == code and wrong in (answer.remark or "")


# ---- 223


async def test_the_status_of_a_group_is_that_of_its_members(broker: Broker, peer: Peer) -> None:
    text = json.dumps(QUEUE.to_plain(), separators=(",", ":"))
    async with consumer(broker, "c1") as one, consumer(broker, "c2", "msgpack") as two:
        await peer.ask(223, None, topic="T", group="g")
        await reply(one, await asked(one), body=encode_body({"messageQueueTable": {QUEUE: 5}}, 0))
        request = await asked(two)
        assert request.code == 221 and request.ext_fields()["topic"] == "T"
        await reply(two, request, body=encode_body({"messageQueueTable": {text: 6}}, MSGPACK))
        answer = await peer.answer()
        assert answer.code == 0 and answer.remark is None
        expected = {"c1": {QUEUE: 5}, "c2": {QUEUE: 6}}
        assert answer.body == encode_body({"consumerTable": expected, "messageQueueTable": {}}, 0)
        await peer.ask(223, None, topic="T", group="g", clientAddr="c2")
        await reply(two, await asked(two), body=encode_body({"messageQueueTable": {text: 6}}, MSGPACK))
        answer = await peer.answer()
        assert answer.body == encode_body({"consumerTable": {"c2": {QUEUE: 6}}, "messageQueueTable": {}}, 0)
        await peer.ask(223, None, topic="T", group="g")
        await reply(one, await asked(one), body=encode_body({"messageQueueTable": {QUEUE: 5}}, 0))
        await reply(two, await asked(two), 1, remark="busy")
        answer = await peer.answer()
        assert answer.code == 0 and "c2" in (answer.remark or "") and "busy" in (answer.remark or "")
        await peer.ask(223, None, topic="T", group="g", clientAddr="c1")
        await reply(one, await asked(one), body=b"{")
        assert (await peer.answer()).code == 207
        assert (await peer.call(223, None, topic="T", group="g", clientAddr="c3")).code == 1
    assert (await peer.call(223, None, topic="T", group="unheard")).code == 1


async def test_beyond_loopback_no_consumer_is_asked() -> None:
    async with running(host="0.0.0.0", advertise="127.0.0.1") as broker:
        peer = await Peer.connect(broker.port)
        for code in (222, 223, 307, 309):
            assert (await peer.call(code, None, group="g")).code == 16
        assert (await peer.call(41, body=lock_body("a", 0))).code == 0
        await peer.close()


# ---- heartbeats


def beat(client: str, expression: str = "*", *, fingerprint: int = 0, without: bool = False, **changes: Any) -> bytes:
    data = decode_body(HeartbeatData, heartbeat(client, **changes), 0)
    (member,) = data.consumers
    subscriptions = [] if without else [SubscriptionData.parse("T", expression, 5), *member.subscriptions]
    member = member._replace(subscriptions=subscriptions)
    return encode_body(data._replace(consumers=[member], fingerprint=fingerprint, without_sub=without), 0)


async def test_version_2_heartbeats_leave_out_what_the_broker_has(broker: Broker, peer: Peer) -> None:
    async def news(body: bytes) -> str | None:
        answer = await peer.call(34, body=body)
        assert answer.code == 0 and answer.ext_value("IS_SUPPORT_HEART_BEAT_V2") == "true"
        return answer.ext_value("IS_SUB_CHANGE")

    assert await news(beat("c1")) == "true"  # version 1 is always told to send everything
    assert await news(beat("c1", fingerprint=11)) == "false"
    assert await news(beat("c1", fingerprint=11, without=True)) == "false"
    live = broker.consumers.get("g")
    assert live is not None and set(live.subscriptions) == {"T", "%RETRY%g"}
    assert await news(beat("c1", fingerprint=12, without=True)) == "true"
    assert await news(beat("c1", "A", fingerprint=12)) == "false"
    await peer.call(35, None, clientID="c1", consumerGroup="g")
    # A broker that knows no subscription of the group (it was restarted) asks for them; RocketMQ's forgets to.
    assert await news(beat("c1", fingerprint=12, without=True)) == "true"
    assert await news(beat("c1", fingerprint=12)) == "false"
    assert await news(beat("c1", fingerprint=12, without=True)) == "false"


async def test_a_member_of_version_2_that_nobody_heard_of_is_asked_what_it_wants(broker: Broker, peer: Peer) -> None:
    """The group is known by a member of version 1 only: that says nothing about the newcomer."""
    assert (await peer.call(34, body=beat("c1"))).code == 0
    other = await Peer.connect(broker.port)
    answer = await other.call(34, body=beat("c2", fingerprint=77, without=True))
    assert answer.code == 0 and answer.ext_value("IS_SUB_CHANGE") == "true"
    assert await other.members() == ["c1", "c2"]
    for without in (False, True):
        answer = await other.call(34, body=beat("c2", fingerprint=77, without=without))
        assert answer.ext_value("IS_SUB_CHANGE") == "false"
    await other.close()


async def test_a_group_that_is_refused_does_not_keep_the_others_of_its_client_out(broker: Broker, peer: Peer) -> None:
    data = decode_body(HeartbeatData, heartbeat("c1", "T"), 0)
    (member,) = data.consumers
    names = ("first", "not a name", "last")
    data = data._replace(consumers=[member._replace(group=name) for name in names], producers=["p"])
    answer = await peer.call(34, body=encode_body(data, 0))
    assert answer.code == 26 and "not a name" in (answer.remark or "")
    for name in ("first", "last"):
        assert await peer.members(name) == ["c1"]
        assert f"%RETRY%{name}" in broker.topics
    assert broker.producers.get("p") is not None
    assert broker.consumers.next_deadline() is not None


async def test_members_that_subscribe_to_different_things_are_named_once_per_change(
    broker: Broker, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> list[str]:
        found = [record.getMessage() for record in caplog.records if "subscribe to different" in record.getMessage()]
        caplog.clear()
        return found

    caplog.set_level(logging.WARNING, "aiorocket.broker")
    other = await Peer.connect(broker.port)
    await peer.call(34, body=beat("c1", "A || B"))
    await other.call(34, body=beat("c2", "B||A"))
    assert warnings() == []
    await other.call(34, body=beat("c2", "B"))
    (warning,) = warnings()
    assert all(part in warning for part in ("group g", "c1", "c2", "A || B", "T (TAG B)"))
    for _ in range(2):
        await peer.call(34, body=beat("c1", "A || B"))
        await other.call(34, body=beat("c2", "B"))
    assert warnings() == []
    table = decode_body(KVTable, (await peer.call(28)).body, 0).table
    assert "c1" in table["subscriptionsDiffer_g"]
    await other.call(34, body=beat("c2", "C"))
    assert len(warnings()) == 1
    await other.call(34, body=beat("c2", "A || B"))
    assert "subscriptionsDiffer_g" not in decode_body(KVTable, (await peer.call(28)).body, 0).table
    await other.call(34, body=beat("c2", "C"))
    assert len(warnings()) == 1
    await other.close()
    while await peer.members() != ["c1"]:
        await asyncio.sleep(0)
    live = broker.consumers.get("g")
    assert live is not None and live.difference() == ""


async def test_members_that_change_their_minds_for_ever_do_not_fill_the_log(
    broker: Broker, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "aiorocket.broker")
    other = await Peer.connect(broker.port)
    await peer.call(34, body=beat("c1", "A"))
    for number in range(40):
        await other.call(34, body=beat("c2", f"B{number}"))
    assert len([record for record in caplog.records if "subscribe to different" in record.getMessage()]) == 10
    await other.close()


def test_as_many_opinions_as_members_are_said_shortly() -> None:
    groups = GroupTable(120)
    for number in range(500):
        wanted = [SubscriptionData.parse(f"T{number}-{topic}", "A") for topic in range(20)]
        groups.register("g", connection=number, client_id=f"c{number:03}", now=0, subscriptions=wanted)
    live = groups.get("g")
    assert live is not None
    text = live.difference()
    assert "c000 subscribe to T0-0 (TAG A), T0-1 (TAG A), T0-10 (TAG A) and 17 more" in text
    assert text.endswith("; 496 more subscribe to other things") and len(text) < 1000


async def test_of_many_groups_with_disagreements_few_are_told(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 9,000 the answer took 0.27 s, as did a look for alarms each minute, and no frame held it."""
    said: list[str] = []

    def counted(live: ConsumerGroup[Any]) -> str:
        said.append(live.name)
        return difference(live)

    difference = ConsumerGroup.difference
    monkeypatch.setattr(ConsumerGroup, "difference", counted)
    for number in range(500):
        broker.counters.send_backs[f"g{number}"] = number
        for member in (1, 2):
            wanted = [SubscriptionData.parse("T", f"A{member}")]
            broker.consumers.register(f"g{number}", connection=member, client_id="c", now=0, subscriptions=wanted)  # type: ignore[arg-type]
    table = decode_body(KVTable, (await peer.call(28)).body, 0).table
    assert table["subscriptionsDiffer"] == "500"
    named = [name for name in table if name.startswith("subscriptionsDiffer_")]
    assert len(named) == len(said) == 20 and named[0] == "subscriptionsDiffer_g0"
    assert dict(differences(broker.consumers)).keys() == {f"g{number}" for number in range(20)}
    assert table["sendBacks"] == str(sum(range(500))) and table["sendBacks_g499"] == "499"
    assert sum(name.startswith("sendBacks_") for name in table) == 100
    for member in (1, 2):
        broker.consumers.lost(member)  # type: ignore[arg-type]


def test_a_large_disagreement_is_said_shortly() -> None:
    groups = GroupTable(120)
    for number in range(50):
        subscription = [SubscriptionData.parse("T", "A" if number % 2 else "B")]
        groups.register("g", connection=number, client_id=f"c{number:02}", now=0, subscriptions=subscription)
    live = groups.get("g")
    assert live is not None
    text = live.new_difference()
    assert "c00, c02, c04 and 22 more subscribe to T (TAG B)" in text and live.new_difference() == ""
    for number in range(0, 50, 2):
        groups.lost(number)
    assert live.difference() == "" == live.new_difference()


def test_what_members_disagree_about_is_compared_when_it_is_new() -> None:
    """Each heartbeat compared it: 64 in a group of 16,000 wishes took 150 ms."""

    class Unread(dict[Any, Any]):
        def __iter__(self) -> Any:
            raise AssertionError("compared again")

    groups: GroupTable[int] = GroupTable(120.0)

    def beat(number: int, tag: str) -> ConsumerGroup[int]:
        wanted = [SubscriptionData.parse("T", tag, 1)]
        groups.register("g", connection=number, client_id=f"c{number}", now=0.0, subscriptions=wanted)
        live = groups.get("g")
        assert live is not None
        return live

    for number in range(3):
        live = beat(number, f"tag{number}")
    assert "T (TAG tag2)" in live.new_difference()
    wishes, live._wishes = live._wishes, Unread(live._wishes)
    for number in range(3):
        assert beat(number, f"tag{number}").new_difference() == ""
    live._wishes = wishes
    assert "T (TAG tag3)" in beat(2, "tag3").new_difference()
    groups.lost(2)
    assert "T (TAG tag3)" not in (text := live.new_difference()) and "T (TAG tag1)" in text


# ---- retries


async def test_unit_mode_marks_the_topics_it_makes(broker: Broker, peer: Peer) -> None:
    def flag(topic: str) -> int:
        found = broker.topics.get(topic)
        assert found is not None
        return found.sys_flag

    await peer.call(34, body=heartbeat("c1", "T", group="unit", unit_mode=True))
    await peer.call(34, body=heartbeat("c1", "T", group="plain"))
    assert flag("%RETRY%unit") == UNIT_SUB and flag("%RETRY%plain") == 0
    await peer.send(topic="U", unit_mode=True)
    await peer.send(topic="V")
    await peer.send(topic="%RETRY%sent", unit_mode=True)
    assert flag("U") == UNIT and flag("V") == 0 and flag("%RETRY%sent") == UNIT_SUB
    (record,) = records(await peer.pull("U"))
    assert (await peer.send_back(record.physical_offset, group="back", unit_mode=True)).code == 0
    assert (await peer.send_back(record.physical_offset, -1, group="back", unit_mode=True)).code == 0
    assert flag("%RETRY%back") == UNIT_SUB and flag("%DLQ%back") == 0


async def test_send_backs_are_counted_and_told(broker: Broker, peer: Peer) -> None:
    seen: list[SendBack] = []

    def broken(event: SendBack) -> None:
        raise ValueError("a hook's own trouble")

    broker.on_send_back += [broken, seen.append]
    await peer.send(b"x", {"UNIQ_KEY": "K"})
    (record,) = records(await peer.pull())
    assert (await peer.send_back(record.physical_offset, 1)).code == 0
    (second,) = records(await peer.pull("%RETRY%g"))
    assert (await peer.send_back(second.physical_offset, -1)).code == 0
    assert (await peer.send_back(123_456)).code == 1
    origin = record.offset_msg_id
    assert [event._replace(peer="") for event in seen] == [
        SendBack("g", "", "T", "%RETRY%g", "K", origin, 1, 1, False),
        SendBack("g", "", "T", "%DLQ%g", "K", origin, 2, 0, True),
    ]
    table = decode_body(KVTable, (await peer.call(28)).body, 0).table
    assert table["sendBacks_g"] == "2" and table["deadLetters_g"] == "1" and table["sendBacks"] == "2"
    assert table["staleCommits"] == "0"


async def test_the_limit_of_a_client_counts_from_version_121_on(peer: Peer) -> None:
    await peer.send()
    (record,) = records(await peer.pull())

    async def back(version: int) -> int:
        command = RemotingCommand.request(
            36,
            ext={"offset": str(record.physical_offset), "group": f"g{version}", "delayLevel": "1",
                 "maxReconsumeTimes": "0"},
        )  # fmt: skip
        command.version = version
        peer.writer.write(command)
        await peer.writer.drain()
        return (await peer.answer()).code

    assert await back(120) == 0 and await back(121) == 0
    assert len(records(await peer.pull("%RETRY%g120"))) == 1
    assert len(records(await peer.pull("%DLQ%g121"))) == 1


async def test_a_retry_topic_without_write_permission_takes_no_send_backs(peer: Peer) -> None:
    await peer.send()
    (record,) = records(await peer.pull())
    assert (await peer.create_topic("%RETRY%g", 1, 4)).code == 0
    for level in (0, -1):
        answer = await peer.send_back(record.physical_offset, level)
        assert answer.code == 16 and "%RETRY%g" in (answer.remark or "")


async def test_without_automatic_groups_an_unknown_one_is_26_everywhere() -> None:
    async with running(auto_create_groups=False) as broker:
        peer = await Peer.connect(broker.port)
        await peer.send()
        assert (await peer.pull()).code == 26
        assert (await peer.call(34, body=heartbeat("c1", "T"))).code == 26
        assert (await peer.send_back(0)).code == 26
        assert (await peer.send(topic="%RETRY%g")).code == 26
        answer = await peer.call(15, None, consumerGroup="g", topic="T", queueId="0", commitOffset="1")
        assert answer.code == 26 and "create it first" in (answer.remark or "")
        assert (await peer.call(200, body=b'{"groupName":"g"}')).code == 0
        (record,) = records(await peer.pull())
        assert (await peer.send_back(record.physical_offset)).code == 0
        await peer.close()
    configs = GroupConfigs(16, auto_create=False)
    assert isinstance(configs.ensure("g"), Refusal) and not isinstance(configs.ensure("TOOLS_CONSUMER"), Refusal)


# ---- 361


async def test_a_lite_pull_is_a_pull(peer: Peer) -> None:
    await peer.send(b"a", {"TAGS": "A"})
    await peer.send(b"b", {"TAGS": "B"})
    header = {
        "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "10",
        "sysFlag": str(2 | 4 | 16), "commitOffset": "0", "suspendTimeoutMillis": "20000", "subVersion": "0",
        "subscription": "B", "expressionType": "TAG",
    }  # fmt: skip
    answer = await peer.call(361, None, b"", **header)
    assert [record.body for record in records(answer)] == [b"b"] and answer.ext_value("nextBeginOffset") == "2"
    waiting = asyncio.ensure_future(peer.call(361, None, b"", **{**header, "queueOffset": "2"}))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    other = Peer(peer.reader, peer.writer)
    await other.ask(310, None, a="p", b="T", c="TBW102", d="4", e="0", f="0", g="1", h="0", i="TAGS\x01B\x02", j="0")
    first, second = await waiting, await peer.answer()
    assert {first.code, second.code} == {0}
    assert sum(len(records(answer)) for answer in (first, second) if answer.body) == 1


# ---- order topics


async def test_an_order_configuration_makes_an_order_topic_and_rides_on_its_route() -> None:
    env = memory_env()
    names = NameServer(env, NameServerConfig(port=0))
    await names.start()
    try:
        async with running(nameservers=(names.address,), register_interval=0.05) as broker:
            peer = await Peer.connect(broker.port)
            await peer.create_topic("T", 4)
            topic = broker.topics.get("T")
            assert topic is not None and not topic.order
            client = await Peer.connect(names.port)
            await client.call(100, None, namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4")
            route = json.loads((await client.call(105, None, topic="T")).body)
            assert route["orderTopicConf"] == "broker-a:4"
            async with asyncio.timeout(30):
                while not (topic := broker.topics.get("T")) or not topic.order:
                    await asyncio.sleep(0.01)
            # An administrator's order flag needs no entry at the name server.
            await peer.call(
                17, None, topic="U", defaultTopic="TBW102", readQueueNums="1", writeQueueNums="1", perm="6",
                topicFilterType="SINGLE_TAG", order="true",
            )  # fmt: skip
            assert json.loads((await peer.call(351, None, topic="U")).body)["order"] is True
            assert "orderTopicConf" not in json.loads((await client.call(105, None, topic="U")).body)
            await client.close()
            await peer.close()
    finally:
        await names.close()
        await env.disk.close()
