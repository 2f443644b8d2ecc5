"""What operators ask about topics, groups and the broker: 28, 202, 208, 300, 303, 315 and 317."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from aiorocket.broker import Broker
from aiorocket.broker.lags import lags
from aiorocket.runtime.memory_disk import MemoryDisk
from aiorocket_protocol import MSGPACK, MessageQueue, UpdateConsumerOffsetRequestHeader, encode_body
from tests.broker.peer import Peer, heartbeat, records, running


def queue(queue_id: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


async def table(peer: Peer, code: int, **ext: Any) -> bytes:
    """The body, without the rates: they are of the moment."""
    answer = await peer.call(code, None, **ext)
    assert answer.code == 0, answer.remark
    return re.sub(rb'"consumeTps":[0-9.e-]+,|,"topicPutTps":[0-9.e-]+', b"", answer.body)


def offsets(rows: dict[Any, Any]) -> bytes:
    return encode_body({"offsetTable": rows}, 0)


async def stamps(peer: Peer, topic: str, queue_id: int) -> list[int]:
    return [view.store_timestamp for view in records(await peer.pull(topic, queue_id))]


async def commit(peer: Peer, offset: int, topic: str = "T", queue_id: int = 0, group: str = "g") -> None:
    header = UpdateConsumerOffsetRequestHeader(group, topic, queue_id, offset)
    assert (await peer.call(15, header)).code == 0


async def filled(peer: Peer) -> list[int]:
    """Topic T of 2 queues, 3 messages in the first of them; when they were stored."""
    await peer.create_topic("T", 2)
    for number in range(3):
        await peer.send(b"%d" % number)
        await asyncio.sleep(0.002)
    return await stamps(peer, "T", 0)


async def test_a_disk_that_does_not_say_how_full_it_is(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks what is wrong is answered."""

    def gone(disk: MemoryDisk, path: str) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(MemoryDisk, "free_bytes", gone)
    told = json.loads((await peer.call(28)).body)["table"]
    assert told["commitLogDiskRatio"] == "-1.0"
    assert told["commitLogDirCapacity"] == "Total : 0 B, Free : 0 B."


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
async def test_open_files_and_how_many_there_may_be(peer: Peer, tmp_path: Path) -> None:
    before = json.loads((await peer.call(28)).body)["table"]
    with ExitStack() as stack:
        for number in range(20):
            stack.enter_context((tmp_path / str(number)).open("w"))
        now = json.loads((await peer.call(28)).body)["table"]
    # What else this process has may come and go meanwhile.
    assert 0 < int(before["openFiles"]) < int(now["openFiles"]) - 10 < int(now["openFilesMax"])


async def test_what_a_topic_holds(peer: Peer) -> None:
    stored = await filled(peer)
    assert await table(peer, 202, topic="T") == offsets(
        {
            queue(0): {"lastUpdateTimestamp": stored[2], "maxOffset": 3, "minOffset": 0},
            queue(1): {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0},
        }
    )
    answer = await peer.call(202, None, topic="Unknown")
    assert answer.code == 17 and "Unknown" in (answer.remark or "")


async def test_every_queue_of_a_wide_topic_is_there(peer: Peer) -> None:
    await peer.create_topic("Wide", 200)
    assert (await table(peer, 202, topic="Wide")).count(b'"maxOffset":0') == 200


async def test_how_far_a_group_is(peer: Peer) -> None:
    stored = await filled(peer)
    await commit(peer, 2)
    rows = {
        queue(0): {"brokerOffset": 3, "consumerOffset": 2, "lastTimestamp": stored[1], "pullOffset": 2},
        queue(1): {"brokerOffset": 0, "consumerOffset": 0, "lastTimestamp": 0, "pullOffset": 0},
    }
    assert await table(peer, 208, consumerGroup="g", topic="T") == offsets(rows)
    assert await table(peer, 208, consumerGroup="g") == offsets(rows)
    assert await table(peer, 208, consumerGroup="g", topicList="T;Unknown;") == offsets(rows)
    assert await table(peer, 208, consumerGroup="g", topic="Unknown") == offsets({})
    assert await table(peer, 208, consumerGroup="stranger") == offsets({})


async def test_a_topic_the_members_no_longer_want_is_shown_when_it_is_named(peer: Peer) -> None:
    await filled(peer)
    await peer.create_topic("Other", 1)
    await commit(peer, 1)
    await commit(peer, 0, "Other")
    both = await table(peer, 208, consumerGroup="g")
    assert b'"T"' in both and b'"Other"' in both  # nobody is online
    assert (await peer.call(34, body=heartbeat("c1", "Other"))).code == 0
    online = await table(peer, 208, consumerGroup="g")
    assert b'"T"' not in online and b'"Other"' in online
    assert await table(peer, 208, consumerGroup="g", topic="T") == offsets({})
    assert b'"T"' in await table(peer, 208, consumerGroup="g", topicList="T")


async def test_how_far_every_group_of_the_broker_is(broker: Broker, peer: Peer) -> None:
    stored = await filled(peer)
    await peer.create_topic("Other", 1)
    await commit(peer, 2)
    await commit(peer, 0, "Other", group="h")
    progress = {
        queue(0): {"brokerOffset": 3, "consumerOffset": 2, "lastTimestamp": stored[1], "pullOffset": 2},
        queue(1): {"brokerOffset": 0, "consumerOffset": 0, "lastTimestamp": 0, "pullOffset": 0},
    }
    other = {queue(0, "Other"): {"brokerOffset": 0, "consumerOffset": 0, "lastTimestamp": 0, "pullOffset": 0}}
    expected: dict[str, Any] = {
        "brokerAddr": broker.address,
        "consumeStatsList": [{"g": [{"offsetTable": progress}]}, {"h": [{"offsetTable": other}]}],
        "totalDiff": 1,
    }
    assert await table(peer, 317, isOrder="false") == encode_body(expected, 0)
    # Topics that are not in order, and those that the members do not subscribe to any more, are left out.
    assert json.loads(await table(peer, 317, isOrder="true")) == {
        "brokerAddr": broker.address, "consumeStatsList": [{"g": []}, {"h": []}], "totalDiff": 0,
    }  # fmt: skip
    assert (await peer.call(34, body=heartbeat("c1", "Other"))).code == 0
    retries = {queue(0, "%RETRY%g"): other[queue(0, "Other")]}
    expected["consumeStatsList"][0]["g"] = [{"offsetTable": other}, {"offsetTable": retries}]
    assert await table(peer, 317, isOrder="false") == encode_body({**expected, "totalDiff": 0}, 0)


async def test_a_group_that_hangs_on_its_first_message_is_behind(broker: Broker, peer: Peer) -> None:
    """It subscribes and has no offset yet; a group whose members keep their offsets has none here."""
    await filled(peer)
    assert (await peer.call(34, body=heartbeat("c1", "T", "Unknown"))).code == 0
    assert (await peer.call(34, body=heartbeat("c1", "T", group="b", message_model="BROADCASTING"))).code == 0
    row = b'"brokerOffset":3,"consumerOffset":0'
    assert row in await table(peer, 208, consumerGroup="g")
    assert await table(peer, 208, consumerGroup="b") == offsets({})
    assert row in await table(peer, 317, isOrder="false")
    assert {pair: lag async for pair, lag in lags(broker, 9)} == {("g", "T"): 3, ("g", "%RETRY%g"): 0}
    await commit(peer, 2)
    assert {pair: lag async for pair, lag in lags(broker, 9)} == {("g", "T"): 1, ("g", "%RETRY%g"): 0}


async def test_who_consumes_a_topic(peer: Peer) -> None:
    await filled(peer)
    await commit(peer, 1, group="was-there")
    assert (await peer.call(34, body=heartbeat("c1", "T", group="is-there"))).code == 0
    assert (await peer.call(34, body=heartbeat("c1", "Other", group="elsewhere"))).code == 0
    assert json.loads(await table(peer, 300, topic="T")) == {"groupList": ["is-there", "was-there"]}
    assert json.loads(await table(peer, 300, topic="Unknown")) == {"groupList": []}


async def test_since_when_messages_wait(peer: Peer) -> None:
    stored = await filled(peer)

    async def span(group: str) -> dict[str, Any]:
        first, second = json.loads(await table(peer, 303, topic="T", group=group))["consumeTimeSpanSet"]
        empty = {"consumeTimeStamp": -1, "delayTime": 0, "maxTimeStamp": -1, "minTimeStamp": -1}
        assert second == {**empty, "messageQueue": queue(1).to_plain()}
        assert first.pop("messageQueue") == queue(0).to_plain()
        assert (first.pop("minTimeStamp"), first.pop("maxTimeStamp")) == (stored[0], stored[2])
        return dict(first)

    await commit(peer, 2)
    begun = await span("g")
    assert begun["consumeTimeStamp"] == stored[1] and 0 <= begun["delayTime"] < 60_000
    await commit(peer, 3)
    assert await span("g") == {"consumeTimeStamp": stored[2], "delayTime": 0}
    fresh = await span("fresh")
    assert fresh["consumeTimeStamp"] == stored[0] and fresh["delayTime"] >= begun["delayTime"]
    assert (await peer.call(303, None, topic="Unknown", group="g")).code == 17


async def test_queues_are_text_in_msgpack(broker: Broker, peer: Peer) -> None:
    import msgpack

    await filled(peer)
    admin = await Peer.connect(broker.port, "msgpack")
    answer = await admin.call(202, None, topic="T")
    assert answer.serialize_type == MSGPACK
    key = encode_body(queue(1), 0).decode()
    assert msgpack.unpackb(answer.body)["offsetTable"][key]["maxOffset"] == 0
    await admin.close()


@pytest.mark.parametrize("code", [202, 208, 300, 303])
async def test_beyond_loopback_nobody_is_told(code: int) -> None:
    async with running(host="0.0.0.0", advertise="127.0.0.1") as broker:
        peer = await Peer.connect(broker.port)
        answer = await peer.call(code, None, topic="T", group="g", consumerGroup="g")
        assert answer.code == 16 and "no administration" in (answer.remark or "")
        await peer.close()


async def runtime(peer: Peer) -> dict[str, str]:
    answer = await peer.call(28)
    found: dict[str, str] = json.loads(answer.body)["table"]
    return found


async def test_what_went_through_the_broker_is_counted(peer: Peer) -> None:
    for number in range(5):
        await peer.send(b"%d" % number)
    await peer.send_batch(b"a", b"b", b"c")
    assert len(records(await peer.pull("T", 0))) == 8
    assert len(records(await peer.pull("T", 0, 6))) == 2
    await peer.pull("T", 0, 8, sys_flag=4)  # finds nothing and does not wait
    table = await runtime(peer)
    assert table["msgPutTotalTodayNow"] == table["putMessageTimesTotal"] == "8"
    assert table["msgGetTotalTodayNow"] == "10"
    assert int(table["putMessageSizeTotal"]) == int(table["commitLogMaxOffset"]) > 8 * 91
    put, found, missed, total, sent = (
        [float(rate) for rate in table[key].split()]
        for key in ("putTps", "getFoundTps", "getMissTps", "getTotalTps", "getTransferredTps")
    )
    assert put[0] > found[0] > missed[0] > 0 and total[0] == pytest.approx(found[0] + missed[0], abs=0.002)
    assert sent[0] > put[0] and table["getTransferredTps"] == table["getTransferedTps"]


async def test_statistics_of_one_topic_and_of_a_group_in_it(peer: Peer) -> None:
    for _ in range(4):
        await peer.send()
    await peer.pull("T", 0)
    for name, key in (("TOPIC_PUT_NUMS", "T"), ("GROUP_GET_NUMS", "T@g"), ("BROKER_PUT_NUMS", "DefaultCluster")):
        stats = json.loads((await peer.call(315, None, statsName=name, statsKey=key)).body)
        assert [stats[span]["sum"] for span in ("statsMinute", "statsHour", "statsDay")] == [4, 4, 4], (name, stats)
        assert stats["statsMinute"]["tps"] > 0
    unknown = await peer.call(315, None, statsName="TOPIC_PUT_NUMS", statsKey="Unknown")
    assert unknown.code == 1 and unknown.remark == "The stats <TOPIC_PUT_NUMS> <Unknown> not exist"
    assert b'"topicPutTps":0.0' not in (await peer.call(202, None, topic="T")).body
    await commit(peer, 4)
    assert b'"consumeTps":0.0' not in (await peer.call(208, None, consumerGroup="g")).body


async def test_what_has_come_since_the_totals_were_made_is_not_unknown(peer: Peer) -> None:
    await peer.send(topic="before")
    await runtime(peer)
    await peer.send()
    await peer.pull("T", 0)
    for name, key in (("TOPIC_PUT_NUMS", "T"), ("GROUP_GET_NUMS", "T@g"), ("BROKER_GET_NUMS", "DefaultCluster")):
        answer = await peer.call(315, None, statsName=name, statsKey=key)
        assert answer.code == 0 and json.loads(answer.body)["statsDay"]["sum"] == 1, (name, answer.remark)


async def test_what_waits_in_delay_levels_is_shown(peer: Peer) -> None:
    await peer.send(properties={"DELAY": "4"})
    before = (await runtime(peer))["scheduleMessageOffset_4"]
    assert before in ("0,1", "1,1")
