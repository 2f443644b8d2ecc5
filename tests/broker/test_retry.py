"""Send-back, delay levels, dead letters, single messages, and administration over the wire."""

from __future__ import annotations

import asyncio
import json

import pytest

from aiorocket.broker import Broker
from aiorocket_protocol import KVTable, ProtocolError, decode_body, encode_batch, tags_code
from tests.broker.peer import Peer, records, running, send_header


async def test_a_delayed_message_comes_later_under_its_own_name(peer: Peer) -> None:
    answer = await peer.send(b"later", {"DELAY": "2", "TAGS": "A", "UNIQ_KEY": "K"}, queue_id=3)
    assert answer.code == 0 and answer.ext_value("queueId") == "3" and answer.ext_value("transactionId") == "K"
    assert (await peer.pull("T", 3, suspend_timeout_millis=0)).code == 19
    (record,) = records(await peer.pull("T", 3, subscription="A"))
    assert record.body == b"later" and record.topic == "T" and record.queue_id == 3
    kept = {name: record.properties[name] for name in ("DELAY", "REAL_TOPIC", "REAL_QID")}
    assert kept == {"DELAY": "2", "REAL_TOPIC": "T", "REAL_QID": "3"}
    assert record.store_timestamp - record.born_timestamp > 0


async def test_a_level_above_the_highest_is_the_highest(peer: Peer) -> None:
    await peer.send(b"later", {"DELAY": "99"})
    (record,) = records(await peer.pull())
    assert record.body == b"later"


async def test_levels_do_not_wait_for_each_other(peer: Peer) -> None:
    for level in (4, 1, 2, 4, 1):
        await peer.send(str(level).encode(), {"DELAY": str(level)})
    seen: list[bytes] = []
    while len(seen) < 5:
        seen += [record.body for record in records(await peer.pull("T", 0, len(seen)))]
    assert seen == [b"1", b"1", b"2", b"4", b"4"]


async def test_a_message_sent_back_returns_in_the_retry_topic_with_its_history(peer: Peer) -> None:
    await peer.send(b"x", {"TAGS": "A", "UNIQ_KEY": "K", "KEYS": "k"}, queue_id=1, flag=7)
    (first,) = records(await peer.pull("T", 1))
    assert (await peer.send_back(first.physical_offset, 1)).code == 0
    (second,) = records(await peer.pull("%RETRY%g"))
    assert second.body == b"x" and second.flag == 7 and second.reconsume_times == 1
    assert second.born_timestamp == first.born_timestamp and second.born_host == first.born_host
    assert second.properties["RETRY_TOPIC"] == "T" and second.msg_id == "K"
    assert second.properties["ORIGIN_MESSAGE_ID"] == first.offset_msg_id
    assert (await peer.send_back(second.physical_offset, 1)).code == 0
    (third,) = records(await peer.pull("%RETRY%g", 0, 1))
    assert third.reconsume_times == 2 and third.properties["RETRY_TOPIC"] == "T"
    assert third.properties["ORIGIN_MESSAGE_ID"] == first.offset_msg_id


@pytest.mark.parametrize(("level", "limit"), [(-1, 16), (0, 0)])
async def test_dead_letters(peer: Peer, level: int, limit: int) -> None:
    await peer.send(b"x", {"TAGS": "A"})
    (first,) = records(await peer.pull())
    assert (await peer.send_back(first.physical_offset, level, max_reconsume_times=limit)).code == 0
    (dead,) = records(await peer.pull("%DLQ%g"))
    assert dead.body == b"x" and dead.topic == "%DLQ%g" and dead.reconsume_times == 1


async def test_the_brokers_own_limit_holds_when_nobody_sets_one() -> None:
    async with running(retry_max_times=1, delay_levels=(0.01,)) as broker:
        peer = await Peer.connect(broker.port)
        await peer.send(b"x")
        (record,) = records(await peer.pull())
        await peer.send_back(record.physical_offset)
        (record,) = records(await peer.pull("%RETRY%g"))
        await peer.send_back(record.physical_offset)
        assert len(records(await peer.pull("%DLQ%g"))) == 1
        await peer.close()


async def test_a_send_back_that_cannot_be_is_one_clear_answer(peer: Peer) -> None:
    await peer.send()
    answer = await peer.send_back(123_456_789)
    assert answer.code == 1 and "123456789" in (answer.remark or "")
    (record,) = records(await peer.pull())
    answer = await peer.send_back(record.physical_offset + 1)  # physical, and exactly so
    assert answer.code == 1
    assert (await peer.send_back(record.physical_offset, group="bad group")).code == 26


async def test_a_message_whose_properties_are_no_utf_8_can_be_sent_back_too(peer: Peer) -> None:
    """A batch is stored as it comes, whatever its text. The copy is readable, and no longer."""
    text = b"UNIQ_KEY\x01K\x02city\x01\xc4\xe3\xba\xc3\x02a\x01b\x01c\x02TAGS\x01A\x02long\x01" + b"\xff" * 20_000
    batch = encode_batch([(b"x", 0, text)])
    assert (await peer.call(320, send_header(batch=True), batch)).code == 0
    (first,) = records(await peer.pull())
    with pytest.raises(ProtocolError):
        _ = first.properties
    assert (await peer.send_back(first.physical_offset, 1)).code == 0
    (second,) = records(await peer.pull("%RETRY%g"))
    assert (second.msg_id, second.tag, second.reconsume_times) == ("K", "A", 1)
    assert (second.properties["city"], second.properties["a"]) == ("???", "b?c")
    assert (await peer.send_back(first.physical_offset, -1)).code == 0
    (dead,) = records(await peer.pull("%DLQ%g"))
    assert dead.properties["RETRY_TOPIC"] == "T"


@pytest.mark.parametrize(("said", "counted"), [(2**31 - 1, 2**31 - 1), (-1, 1), (-3, 1), (-(2**31), 1)])
async def test_a_count_that_a_sender_made_up_keeps_no_message_in_front_of_its_queue(
    broker: Broker, peer: Peer, said: int, counted: int
) -> None:
    await peer.send(b"x", reconsume_times=said)
    (first,) = records(await peer.pull())
    assert first.reconsume_times == said
    assert (await peer.send_back(first.physical_offset)).code == 0
    retries = said < 0
    (again,) = records(await peer.pull("%RETRY%g" if retries else "%DLQ%g"))
    assert again.reconsume_times == counted and again.properties["DELAY"] == ("3" if retries else "0")


LONG = b"UNIQ_KEY\x01K\x02TAGS\x01%b\x02long\x01%b\x02short\x01z\x02"


@pytest.mark.parametrize("text", [LONG % (b"A", b"y" * 32_700), LONG % (b"t" * 32_700, b"y")])
async def test_a_message_whose_properties_leave_no_room_can_become_a_dead_letter(
    broker: Broker, peer: Peer, text: bytes
) -> None:
    """It was refused for ever. A retry is still: its consumer tries it itself, with all that it has."""
    assert (await peer.call(320, send_header(batch=True), encode_batch([(b"x", 0, text)]))).code == 0
    (first,) = records(await peer.pull())
    answer = await peer.send_back(first.physical_offset, 1)
    assert answer.code == 1 and "can be stored" in (answer.remark or "")
    assert (await peer.send_back(first.physical_offset, -1)).code == 0
    (dead,) = records(await peer.pull("%DLQ%g"))
    assert (dead.body, dead.msg_id, dead.properties["short"]) == (b"x", "K", "z")
    assert dead.properties["RETRY_TOPIC"] == "T" and ("long" in dead.properties) != ("TAGS" in dead.properties)
    ((_, _, code),) = broker.store.entries("%DLQ%g", 0, 0, 1)
    assert code == (tags_code("A") if "TAGS" in dead.properties else 0)


async def test_a_group_that_wants_no_retries_gets_none(peer: Peer) -> None:
    await peer.send()
    (record,) = records(await peer.pull())
    assert (await peer.call(200, body=b'{"groupName":"g","retryQueueNums":0}')).code == 0
    assert (await peer.send_back(record.physical_offset)).code == 0
    assert (await peer.pull("%RETRY%g", suspend_timeout_millis=0)).code == 17


async def test_one_message_by_its_physical_offset(peer: Peer) -> None:
    await peer.send(b"one")
    (record,) = records(await peer.pull())
    (seen,) = records(await peer.call(33, None, offset=str(record.physical_offset)))
    assert seen.body == b"one"
    answer = await peer.call(33, None, offset="99999")
    assert answer.code == 1 and "99999" in (answer.remark or "")


async def test_topics_are_administered(broker: Broker, peer: Peer) -> None:
    assert (await peer.create_topic("T", 6)).code == 0
    answer = await peer.call(351, None, topic="T")
    assert json.loads(answer.body)["writeQueueNums"] == 6
    table = json.loads((await peer.call(21)).body)
    assert table["topicConfigTable"]["T"]["perm"] == 6 and table["dataVersion"]["counter"] == broker.topics.version
    assert (await peer.create_topic("bad name")).code == 29
    assert (await peer.create_topic("TBW102")).code == 29
    assert (await peer.call(351, None, topic="Unknown")).code == 17
    assert (await peer.call(215, None, topic="TBW102")).code == 29
    assert (await peer.call(215, None, topic="T")).code == 0
    assert (await peer.call(215, None, topic="T")).code == 0
    assert (await peer.call(351, None, topic="T")).code == 17


@pytest.mark.parametrize("field", ["attributes", "topicFilterType"])
async def test_a_topic_that_could_be_told_to_nobody_is_not_made(broker: Broker, peer: Peer, field: str) -> None:
    """JSON can have half a surrogate pair: no name server was told of any topic any more, also after a restart."""
    fields = {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
              "topicFilterType": "SINGLE_TAG", "order": "false", field: "+a=\ud800"}  # fmt: skip
    header = json.dumps({"code": 17, "opaque": 1, "extFields": fields}).encode()
    peer.writer._stream.write((len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header)
    answer = await asyncio.wait_for(peer.answer(), 30)
    assert answer.code == 1 and "not Unicode" in (answer.remark or "") and "T" not in broker.topics
    assert (await peer.call(21)).code == 0


async def test_groups_are_administered(peer: Peer) -> None:
    assert (await peer.call(200, body=b'{"groupName":"g","consumeEnable":false}')).code == 0
    await peer.send()
    assert (await peer.pull()).code == 16
    groups = json.loads((await peer.call(201)).body)["subscriptionGroupTable"]
    assert groups["g"]["consumeEnable"] is False and groups["g"]["retryMaxTimes"] == 16
    assert json.loads((await peer.call(352, None, group="g")).body)["groupName"] == "g"
    await peer.call(15, None, consumerGroup="g", topic="T", queueId="0", commitOffset="1")
    assert (await peer.call(207, None, groupName="g", cleanOffset="true")).code == 0
    assert await peer.committed("g", "T") == 0
    assert (await peer.call(200, body=b'{"groupName":"bad group"}')).code == 29
    assert (await peer.call(200, body=b"{}")).code == 29


async def test_what_mqadmin_reads_of_a_broker_is_text(peer: Peer) -> None:
    table = decode_body(KVTable, (await peer.call(28)).body, 0).table
    assert table["brokerVersionDesc"] and len(table["putTps"].split()) == 3
    assert float(table["sendThreadPoolQueueSize"]) == 0


async def test_beyond_loopback_nothing_is_administered_but_messages_flow() -> None:
    async with running(host="0.0.0.0", advertise="127.0.0.1") as broker:
        peer = await Peer.connect(broker.port)
        assert (await peer.send()).code == 0 and len(records(await peer.pull())) == 1
        for code in (17, 21, 28, 200, 201, 203, 204, 207, 215, 351, 352):
            answer = await peer.call(code, None, topic="T")
            assert answer.code == 16 and "127.0.0.1" in (answer.remark or ""), code
        await peer.close()
