"""What administrators look at and change besides: 18, 43, 45, 225, 305, 308, 314, 321, 328, 343, 345, 353, 907, 908."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from aiorocket.broker import Broker
from aiorocket.runtime.env import memory_env
from aiorocket_protocol import (
    REVIVE_GROUP,
    CloneGroupOffsetRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    RemotingCommand,
    revive_topic,
    tags_code,
)
from tests.broker.peer import Peer, heartbeat, records, running
from tests.broker.test_pop import pop_header


async def asked(peer: Peer, code: int, **ext: Any) -> Any:
    answer = await peer.call(code, None, **ext)
    assert answer.code == 0, answer.remark
    return json.loads(answer.body)


async def put(peer: Peer, code: int, body: Any) -> RemotingCommand:
    return await peer.call(code, None, json.dumps(body).encode())


async def test_system_topics(peer: Peer) -> None:
    found = await asked(peer, 305)
    for name in ("TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRACE_TOPIC", "DefaultCluster", "broker-a"):
        assert name in found["topicList"]


async def test_a_consume_queue_as_it_is(peer: Peer) -> None:
    for tag in ("a", "b", "a"):
        await peer.send(tag.encode(), {"TAGS": tag})
    found = await asked(peer, 321, topic="T", queueId="0", index="1", count="5")
    assert (found["minQueueIndex"], found["maxQueueIndex"]) == (0, 3)
    assert [each["tagsCode"] for each in found["queueData"]] == [tags_code("b"), tags_code("a")]
    first, second = found["queueData"]
    assert first["physicOffset"] + first["physicSize"] == second["physicOffset"] and first["eval"] is True
    assert (await asked(peer, 321, topic="T", queueId="0", index="3", count="5"))["queueData"] == []
    offline = await asked(peer, 321, topic="T", queueId="0", index="0", count="-1", consumerGroup="g")
    assert offline["filterData"] == "g@T is not online!" and offline["queueData"] == []
    for ext in ({"topic": "Unknown", "queueId": "0"}, {"topic": "T", "queueId": "99"}):
        answer = await peer.call(321, None, index="0", count="1", **ext)
        assert answer.code == 1 and "is not exist!" in (answer.remark or "")


async def test_few_records_of_a_consume_queue_are_read_in_a_turn(
    peer: Peer, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 4 MiB twelve took 120 ms."""
    for number in range(20):
        await peer.send(b"%d" % number)
    read, entries = [0], broker.store.entries

    def counted(topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        if not read[-1]:
            asyncio.get_running_loop().call_soon(read.append, 0)
        read[-1] += count
        return entries(topic, queue_id, offset, count)

    monkeypatch.setattr(broker.store, "entries", counted)
    found = await asked(peer, 321, topic="T", queueId="0", index="1", count="15")
    places = [each["physicOffset"] for each in found["queueData"]]
    assert places == [place for place, _, _ in entries("T", 0, 1, 15)] and len(places) == 15
    assert sum(read) == 15 and max(read) == 2


async def test_a_consume_queue_as_a_group_sees_it(peer: Peer) -> None:
    await peer.send(b"1", {"TAGS": "a"})
    await peer.send(b"2", {"TAGS": "b"})
    body = json.loads(heartbeat("c1", "T"))
    for subscription in body["consumerDataSet"][0]["subscriptionDataSet"]:
        if subscription["topic"] == "T":
            subscription.update(subString="b", tagsSet=["b"], codeSet=[tags_code("b")])
    assert (await put(peer, 34, body)).code == 0
    found = await asked(peer, 321, topic="T", queueId="0", index="0", count="2", consumerGroup="g")
    assert found["subscriptionData"]["subString"] == "b"
    assert [each["eval"] for each in found["queueData"]] == [False, True]
    wanted = await asked(peer, 345, group="g", topic="T")
    assert wanted["subscriptionData"]["subString"] == "b" and wanted["group"] == "g"
    assert await asked(peer, 345, group="g", topic="Other") == {"group": "g", "topic": "Other"}


async def test_producers_of_all_groups(peer: Peer, broker: Broker) -> None:
    await put(peer, 34, {"clientID": "c1", "producerDataSet": [{"groupName": "p"}], "consumerDataSet": []})
    (member,) = (await asked(peer, 328))["data"]["p"]
    assert member["clientId"] == "c1" and member["remoteIP"].startswith("127.0.0.1:")
    assert abs(member["lastUpdateTimestamp"] - broker._env.clock.wall_ms()) < 60_000


async def test_topics_of_a_group_and_its_offsets_for_another(peer: Peer) -> None:
    for topic, offset in (("T", 3), ("U", 5)):
        await peer.create_topic(topic)
        await peer.call(15, None, consumerGroup="g", topic=topic, queueId="1", commitOffset=str(offset))
    found = await asked(peer, 343, group="g")
    assert found["topicList"] == ["T", "U"] and found["brokerAddr"].startswith("127.0.0.1:")
    assert (await peer.call(314, CloneGroupOffsetRequestHeader("g", "one", "U", True))).code == 0
    assert await peer.committed("one", "U", 1) == 5 and (await asked(peer, 343, group="one"))["topicList"] == ["U"]
    assert (await peer.call(314, CloneGroupOffsetRequestHeader("g", "both"))).code == 0
    assert await peer.committed("both", "T", 1) == 3 and await peer.committed("both", "U", 1) == 5


async def test_a_clone_of_an_online_group_leaves_out_what_it_no_longer_wants(peer: Peer) -> None:
    for topic in ("T", "U"):
        await peer.create_topic(topic)
        await peer.call(15, None, consumerGroup="g", topic=topic, queueId="0", commitOffset="4")
    await peer.call(34, None, heartbeat("c1", "T"))
    await peer.call(314, CloneGroupOffsetRequestHeader("g", "new"))
    assert (await asked(peer, 343, group="new"))["topicList"] == ["T"]


async def test_lists_of_topics_are_made_together_or_not_at_all(peer: Peer, broker: Broker) -> None:
    good = {"topicName": "A", "readQueueNums": 2, "writeQueueNums": 3, "perm": 6}
    bad = {"topicName": "TBW102", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
    refused = await put(peer, 18, {"topicConfigList": [good, bad]})
    assert refused.code == 29 and "TBW102" in (refused.remark or "") and "A" not in broker.topics
    assert (await put(peer, 18, {"topicConfigList": [good, {**good, "topicName": "B"}]})).code == 0
    made = [broker.topics.get(name) for name in ("A", "B")]
    assert [(topic.read_queues, topic.write_queues) for topic in made if topic is not None] == [(2, 3), (2, 3)]


async def test_lists_of_groups(peer: Peer, broker: Broker) -> None:
    body = {"groupConfigList": [{"groupName": "a", "retryMaxTimes": 3}, {"groupName": "b", "consumeEnable": False}]}
    assert (await put(peer, 225, body)).code == 0
    found = {config.name: config for config in broker.configs}
    assert found["a"].retry_max_times == 3 and not found["b"].consume_enable
    assert (await put(peer, 225, {"groupConfigList": [{"groupName": "c"}, {}]})).code == 29
    assert "c" not in {config.name for config in broker.configs}


async def test_the_offsets_of_a_group_that_was_deleted_without_them_may_go_later(peer: Peer, broker: Broker) -> None:
    await peer.create_topic("T")
    await commit(peer, "g", 1, 5)
    for clean, left in ((False, 5), (True, None), (True, None)):
        assert (await peer.call(207, DeleteSubscriptionGroupRequestHeader("g", clean_offset=clean))).code == 0
        assert broker.configs.get("g") is None and broker.offsets.query("g", "T", 1) == left
    # Not those by which the broker itself begins.
    await peer.send()
    assert (await peer.call(200050, pop_header())).code == 0
    assert broker.offsets.query(REVIVE_GROUP, revive_topic("DefaultCluster"), 0) is not None
    assert (await peer.call(207, DeleteSubscriptionGroupRequestHeader(REVIVE_GROUP, clean_offset=True))).code == 0
    assert broker.offsets.query(REVIVE_GROUP, revive_topic("DefaultCluster"), 0) is not None


async def test_a_master_without_slaves(peer: Peer) -> None:
    await peer.send()
    status = await asked(peer, 907)
    assert status["master"] is True and status["masterCommitLogMaxOffset"] > 0 and status["haConnectionInfo"] == []
    assert (await peer.call(908, None, masterFlushOffset="0")).code == 0


async def commit(peer: Peer, group: str, queue_id: int, offset: int) -> None:
    answer = await peer.call(15, None, consumerGroup=group, topic="T", queueId=str(queue_id), commitOffset=str(offset))
    assert answer.code == 0


async def test_all_offsets(peer: Peer) -> None:
    await peer.create_topic("T")
    await commit(peer, "g", 1, 5)
    found = await asked(peer, 43)
    assert found["offsetTable"]["T@g"] == {"1": 5} and found["dataVersion"]["counter"] > 0


async def test_how_far_delay_levels_are(peer: Peer) -> None:
    assert (await asked(peer, 45))["offsetTable"] == {}
    await peer.send(properties={"DELAY": "2"})
    assert records(await peer.pull("T", 0))
    assert (await asked(peer, 45))["offsetTable"] == {"2": 1}


async def test_how_far_the_slowest_group_is(peer: Peer) -> None:
    await peer.create_topic("T")
    for group, queue_id, offset in (("slow", 0, 3), ("fast", 0, 9), ("fast", 1, 4), ("odd", 1, 1)):
        await commit(peer, group, queue_id, offset)

    async def found(**ext: str) -> Any:
        return (await asked(peer, 308, topic="T", **ext))["correctionOffsets"]

    assert await found(compareGroup="fast") == await found(compareGroup="new") == {"0": 3, "1": 1}
    assert await found(compareGroup="fast", filterGroups="odd,other") == {"0": 3, "1": 4}
    assert await found(compareGroup="slow", filterGroups="odd,slow") == {"0": 2**63 - 1, "1": 4}
    assert await peer.committed("odd", "T", 1) == 1


async def test_a_group_that_may_not_read_a_topic() -> None:
    may = {"group": "g", "topic": "T"}
    env = memory_env()
    async with running(env=env, data="store") as broker:
        peer = await Peer.connect(broker.port)
        await peer.send()
        assert await asked(peer, 353, **may) == {**may, "readable": True}
        assert await asked(peer, 353, **may, readable="false") == {**may, "readable": False}
        refused = await peer.pull("T", 0)
        assert refused.code == 16 and refused.remark == "the consumer group[g] is forbidden for topic[T]"
        assert records(await peer.pull("T", 0, consumer_group="other"))
        assert (await asked(peer, 201))["forbiddenTable"] == {"g": {"T": 4}}
        for wrong in ({"group": "no good", "topic": "T"}, {"group": "g", "topic": ""}):
            assert (await peer.call(353, None, **wrong, readable="false")).code in (1, 29)
        await peer.close()
    async with running(env=env, data="store") as broker:
        peer = await Peer.connect(broker.port)
        assert (await peer.pull("T", 0)).code == 16
        assert await asked(peer, 353, **may, readable="true") == {**may, "readable": True}
        assert records(await peer.pull("T", 0))
        await asked(peer, 353, **may, readable="false")
        assert (await peer.call(207, None, groupName="g")).code == 0
        assert (await asked(peer, 201))["forbiddenTable"] == {}
        await peer.close()
    await env.disk.close()
