"""Sending over the wire: what is stored, what is answered, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from aiorocket.broker import Broker
from aiorocket_protocol import (
    SendMessageRequestHeader,
    SendMessageResponseHeader,
    encode_batch,
    parse_offset_msg_id,
)
from tests.broker.peer import Peer, records, running, send_header, span


async def test_a_sent_message_is_answered_with_everything_a_java_client_reads(broker: Broker, peer: Peer) -> None:
    answer = await peer.send(properties={"TAGS": "A", "UNIQ_KEY": "K1", "KEYS": "k"}, queue_id=2)
    assert answer.code == 0
    assert answer.ext_value("MSG_REGION") == "DefaultRegion" and answer.ext_value("TRACE_ON") == "true"
    header = answer.read(SendMessageResponseHeader)
    assert (header.queue_id, header.queue_offset, header.transaction_id) == (2, 0, "K1")
    ip, port, offset = parse_offset_msg_id(header.msg_id)  # a real offset id: ali-ons and transactions take it apart
    assert (ip, port) == ("127.0.0.1", broker.port)
    (record,) = records(await peer.pull("T", 2))
    assert record.physical_offset == offset and record.offset_msg_id == header.msg_id
    assert record.body == b"hello" and record.tag == "A" and record.keys == ["k"]
    assert record.born_host.startswith("127.0.0.1:") and record.store_host == f"127.0.0.1:{broker.port}"
    assert record.born_timestamp == 1_700_000_000_000 and record.properties["CLUSTER"] == "DefaultCluster"


@pytest.mark.parametrize("serializer", ["json", "rocketmq", "msgpack"])
async def test_every_serialisation_is_answered_in_kind(broker: Broker, serializer: str) -> None:
    peer = await Peer.connect(broker.port, serializer)
    try:
        sent = await peer.send(properties={"TAGS": "A"})
        pulled = await peer.pull("T", subscription="A")
        assert {sent.serialize_type, pulled.serialize_type} == {{"json": 0, "rocketmq": 1, "msgpack": 0x4D}[serializer]}
        assert sent.code == 0 and len(records(pulled)) == 1 and span(pulled).next_begin_offset == 1
    finally:
        await peer.close()


async def test_code_10_with_long_names_as_go_sends_it(peer: Peer) -> None:
    header = SendMessageRequestHeader("p", "T", "TBW102", 4, 1, 0, 5, 0, "TAGS\x01A", broker_name="broker-a")
    assert (await peer.call(10, header, b"go")).code == 0
    assert records(await peer.pull("T", 1))[0].tag == "A"


async def test_raw_json_types_and_missing_fields_as_ali_ons_sends_them(broker: Broker) -> None:
    peer = await Peer.connect(broker.port)
    try:
        ext = b'"a":"p","b":"T","c":"TBW102","d":4,"e":0,"f":0,"g":1700000000000,"h":0,"i":"TAGS\\u0001A","k":false'
        header = b'{"code":310,"opaque":7,"extFields":{' + ext + b"}}"
        frame = (len(header) + 4 + 3).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + b"ons"
        peer.writer._stream.write(frame)
        answer = await peer.answer()
        assert answer.code == 0 and answer.opaque == 7
        (record,) = records(await peer.pull("T"))
        assert record.body == b"ons" and len(record.properties["UNIQ_KEY"]) == 32  # the broker adds a missing one
    finally:
        await peer.close()


async def test_the_broker_picks_a_queue_when_the_sender_does_not(peer: Peer) -> None:
    chosen = {(await peer.send(queue_id=-1)).read(SendMessageResponseHeader).queue_id for _ in range(40)}
    assert chosen <= {0, 1, 2, 3} and len(chosen) > 1


async def test_a_one_way_send_is_stored_and_not_answered(peer: Peer) -> None:
    await peer.ask(310, send_header(properties="TAGS\x01A\x02"), b"1", oneway=True)
    await peer.ask(310, send_header(topic="bad name"), b"2", oneway=True)
    answer = await peer.send(b"3")
    assert answer.read(SendMessageResponseHeader).queue_offset == 1
    assert [record.body for record in records(await peer.pull())] == [b"1", b"3"]


async def test_a_batch_has_consecutive_offsets_and_each_message_its_own_properties(peer: Peer) -> None:
    await peer.send()
    answer = await peer.send_batch(b"1", b"2", b"3", properties="UNIQ_KEY\x01BATCH\x02WAIT\x01true")
    header = answer.read(SendMessageResponseHeader)
    assert answer.code == 0 and header.queue_offset == 1
    assert header.transaction_id == "BATCH" and header.batch_uniq_id is None  # with one, Java shows it for all of them
    stored = records(await peer.pull())[1:]
    assert [record.offset_msg_id for record in stored] == header.msg_id.split(",")
    assert [record.body for record in stored] == [b"1", b"2", b"3"]
    assert [record.queue_offset for record in stored] == [1, 2, 3]
    assert [record.properties for record in stored] == [{"UNIQ_KEY": f"K{number}"} for number in range(3)]


async def test_what_the_broker_adds_replaces_what_the_sender_says_of_it(peer: Peer) -> None:
    own = {"MSG_REGION": "mine", "TRACE_ON": "false", "CLUSTER": "mine", "POP_CK": "x", "TAGS": "A"}
    for queue_id, more in enumerate(({}, {"DELAY": "1"})):
        assert (await peer.send(properties={**own, **more}, queue_id=queue_id)).code == 0
        (record,) = records(await peer.pull("T", queue_id))
        found = record.properties
        assert (found["MSG_REGION"], found["TRACE_ON"], found["CLUSTER"]) == ("DefaultRegion", "true", "DefaultCluster")
        assert "POP_CK" not in found and found["TAGS"] == "A"


async def test_what_a_sender_says_of_addresses_is_not_believed(peer: Peer) -> None:
    """The system flag's bits for IPv6 addresses are the broker's: a record that lies about its length hides others."""
    for flag in (0x10, 0x20, 0x64):
        assert (await peer.send(b"odd", sys_flag=flag)).code == 0
        assert (await peer.send(b"behind", sys_flag=0)).code == 0
    found = records(await peer.pull("T", 0))
    assert [record.body for record in found] == [b"odd", b"behind"] * 3
    assert {record.store_host for record in found} == {found[0].store_host}


async def test_a_batch_that_is_none_is_13(peer: Peer) -> None:
    for body in (b"", b"garbage", encode_batch([(b"x", 0, b"")])[:-1], encode_batch([(b"x", 0, b"DELAY\x011\x02")])):
        answer = await peer.call(320, send_header(batch=True), body)
        assert answer.code == 13 and answer.remark
    assert span(await peer.pull(suspend_timeout_millis=0)).max_offset == 0


async def test_a_batch_of_retries_is_refused(broker: Broker, peer: Peer) -> None:
    """It would pass by the limit of attempts, and by the delay."""
    await peer.create_topic("%RETRY%g", 1)
    for topic in ("%RETRY%g", "%RETRY%unknown"):
        answer = await peer.send_batch(b"1", b"2", topic=topic, queue_id=0)
        assert answer.code == 13 and topic in (answer.remark or "")
    assert broker.store.max_offset("%RETRY%g", 0) == 0
    assert "%RETRY%unknown" not in broker.topics


async def test_a_timer_inside_a_batch_is_refused_and_not_delivered_at_once(peer: Peer) -> None:
    timed = encode_batch([(b"1", 0, b""), (b"2", 0, b"TIMER_DELIVER_MS\x0199\x02")])
    answer = await peer.call(320, send_header(batch=True), timed)
    assert answer.code == 13 and "timer" in (answer.remark or "")
    answer = await peer.send_batch(b"1", properties="TIMER_DELAY_SEC\x019\x02")
    assert answer.code == 13 and "timer" in (answer.remark or "")
    assert (await peer.send_batch(b"TIMER_DELIVER_MS is only a body")).code == 0
    assert span(await peer.pull(suspend_timeout_millis=0)).max_offset == 1


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"topic": "bad name"}, 29, "illegal characters"),
        ({"topic": "../../etc"}, 29, "illegal characters"),
        ({"topic": "x" * 128}, 29, "illegal characters"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, 16, "forbidden"),
        ({"topic": "Nowhere", "default_topic": "Unknown"}, 17, "not exist"),
        ({"queue_id": 4}, 29, "queueId[4]"),
        ({"topic": "%RETRY%bad group"}, 29, "illegal"),
        ({"properties": "X\x01" + "y" * 33000 + "\x02"}, 13, "properties"),
        ({"properties": "TRAN_MSG\x01true\x02DELAY\x011\x02TIMER_DELAY_SEC\x0110\x02"}, 13, "timer"),
        ({"properties": "TIMER_DELAY_SEC\x01soon\x02"}, 13, "timer"),
    ],
)
async def test_what_is_refused(peer: Peer, changes: dict[str, Any], code: int, words: str) -> None:
    await peer.send()
    answer = await peer.send(**changes)
    assert answer.code == code and words in (answer.remark or "")
    assert (await peer.send()).read(SendMessageResponseHeader).queue_offset == 1  # nothing was stored


async def test_a_body_over_the_limit_is_13_and_the_connection_lives(peer: Peer) -> None:
    answer = await peer.send(bytes((4 << 20) + 1))
    assert answer.code == 13 and "4194304" in (answer.remark or "")
    assert (await peer.send(bytes(4 << 20))).code == 0


async def test_properties_longer_in_bytes_than_in_characters_are_13(peer: Peer) -> None:
    answer = await peer.send(properties="X\x01" + "ü" * 20000 + "\x02")
    assert answer.code == 13


async def test_without_auto_creation_a_send_to_an_unknown_topic_is_17() -> None:
    async with running(auto_create_topics=False) as broker:
        peer = await Peer.connect(broker.port)
        answer = await peer.send()
        assert answer.code == 17 and "auto-creation is off" in (answer.remark or "")
        assert (await peer.create_topic("T", 2)).code == 0
        assert (await peer.send(queue_id=1)).code == 0
        await peer.close()


async def test_a_topic_without_write_permission_refuses(peer: Peer) -> None:
    await peer.create_topic("T", 2, perm=4)
    answer = await peer.send()
    assert answer.code == 16 and "not writable" in (answer.remark or "") and "--permission RW" in (answer.remark or "")


async def test_a_retry_send_over_its_limit_lies_in_the_dead_letters_and_does_not_wait(peer: Peer) -> None:
    answer = await peer.send(b"dead", {"DELAY": "3"}, topic="%RETRY%g", reconsume_times=4, max_reconsume_times=3)
    assert answer.code == 0
    (record,) = records(await peer.pull("%DLQ%g"))
    assert record.body == b"dead" and record.properties["DELAY"] == "-1" and record.reconsume_times == 4


async def test_an_unknown_request_code_is_3_and_a_missing_field_is_named(peer: Peer) -> None:
    answer = await peer.call(9999)
    assert answer.code == 3 and (answer.remark or "").startswith(" request type 9999 not supported")
    answer = await peer.call(310, None, b"x", a="p")
    assert answer.code == 1 and ".b: missing" in (answer.remark or "")
