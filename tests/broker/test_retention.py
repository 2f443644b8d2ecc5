"""Retention at the broker: what waits is kept, consumers are told, topics have their own hours, clean-up by hand."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace

import pytest

from aiorocket.broker import Broker
from aiorocket.config import BrokerConfig, StoreConfig
from aiorocket.runtime.env import memory_env
from aiorocket.runtime.memory_disk import MemoryDisk
from aiorocket.testing import Simulation, simulate
from aiorocket_protocol import (
    EndTransactionRequestHeader,
    SendMessageResponseHeader,
    UpdateConsumerOffsetRequestHeader,
    encode_configuration,
    encode_properties,
    parse_offset_msg_id,
)
from tests.broker.peer import Peer, pull_header, records, running, span
from tests.broker.test_sim import SimPeer, started

HOUR = 3600.0
FILLER = bytes(20_000)
STORE = StoreConfig(segment_size=64 * 1024, min_free=64 * 1024, file_reserved_time=1, tail_cache=0)


def text(**properties: str) -> str:
    return encode_properties(properties).decode()


@pytest.mark.parametrize("restarts", [False, True])
def test_what_waits_outlives_the_age_of_others(restarts: bool) -> None:
    """Delayed, timed and half messages are delivered long after their neighbours went."""
    config = BrokerConfig(
        host="10.0.0.1", port=10911, data="store", store=STORE, transaction_check_max=10_000, default_topic_queues=1
    )

    async def main(sim: Simulation) -> None:
        env = sim.env()

        host, broker = await started(sim, env, config)
        peer = SimPeer(sim, broker.address)
        await peer.send(b"delayed", topic="D", queue_id=0, properties=text(DELAY="18"))
        due = broker._env.clock.wall_ms() + int(3 * HOUR * 1000)
        await peer.send(b"timed", topic="D", queue_id=0, properties=text(TIMER_DELIVER_MS=str(due)))
        half = await peer.send(
            b"half", topic="D", queue_id=0, sys_flag=4, properties=text(TRAN_MSG="true", PGROUP="p", UNIQ_KEY="U")
        )
        told = half.read(SendMessageResponseHeader)
        _, _, place = parse_offset_msg_id(told.msg_id)
        for _ in range(20):
            await peer.send(FILLER)
        if restarts:
            await host.run(broker.close())
            host, broker = await started(sim, env, config)
        await asyncio.sleep(1.5 * HOUR)
        await peer.send(b"new")
        assert broker.store.min_offset("T", 0) == 20 - 20 % 3
        assert (await peer.pull("T", 0, 1)).code in (20, 21)
        end = EndTransactionRequestHeader("p", told.queue_offset, place, 8, False, "U", "U")
        assert (await peer.call(37, end)).code == 0
        await asyncio.sleep(0.6 * HOUR)
        assert await peer.drain("D") == [b"half", b"delayed"]
        await asyncio.sleep(1 * HOUR)
        assert await peer.drain("D") == [b"half", b"delayed", b"timed"]
        for _ in range(20):
            await peer.send(FILLER)
        await asyncio.sleep(2 * HOUR)
        assert broker.store.min_physical > place, "now nobody waits for it"
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_a_pull_that_waits_gets_the_next_message_whatever_goes_meanwhile() -> None:
    config = BrokerConfig(host="10.0.0.1", port=10911, data="store", store=STORE, default_topic_queues=1, max_hold=100)

    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env(), config)
        peer = SimPeer(sim, broker.address)
        for _ in range(20):
            await peer.send(FILLER)
        await asyncio.sleep(HOUR - 10)
        waiting = asyncio.ensure_future(
            peer.call(11, pull_header("T", 0, 20, suspend_timeout_millis=100_000), timeout=100)
        )
        await asyncio.sleep(1)
        assert (broker.store.min_offset("T", 0), broker.parked_pulls) == (0, 1)
        await asyncio.sleep(90)
        assert broker.store.min_offset("T", 0) >= 18 and broker.parked_pulls == 1
        await peer.send(b"new")
        (record,) = records(await waiting)
        assert (record.queue_offset, record.body) == (20, b"new")
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_hours_and_shares_of_the_disk_change_while_it_runs() -> None:
    """By RocketMQ's names, and over a restart."""
    config = BrokerConfig(
        host="127.0.0.1", advertise="10.0.0.1", port=10911, data="store", default_topic_queues=1,
        store=replace(STORE, file_reserved_time=72, delete_when=(23,)),
    )  # fmt: skip

    async def main(sim: Simulation) -> None:
        env = sim.env()

        host, broker = await started(sim, env, config)
        peer = SimPeer(sim, broker.address)

        async def change(**values: str) -> None:
            assert (await peer.call(25, None, encode_configuration(values))).code == 0

        for _ in range(20):
            await peer.send(FILLER)
        await asyncio.sleep(2 * HOUR)
        await change(fileReservedTime="1")
        await asyncio.sleep(120)
        assert broker.store.min_offset("T", 0) == 0, "not at this hour"
        await change(deleteWhen="")
        await asyncio.sleep(120)
        assert broker.store.min_offset("T", 0) == 20 - 20 % 3
        await change(fileReservedTime="0", diskMaxUsedSpaceRatio="60", cleanFileForciblyEnable="true")
        await host.run(broker.close())
        host, broker = await started(sim, env, config)
        rules = broker.store.retention.rules()
        assert (rules.file_reserved_time, rules.delete_when) == (0, ())
        assert (rules.disk_max_used_space_ratio, rules.clean_file_forcibly) == (60, True)
        await peer.close()
        await host.run(broker.close())

    simulate(main)


async def fill(peer: Peer, count: int, topic: str = "T") -> None:
    for _ in range(count):
        assert (await peer.send(FILLER, topic=topic)).code == 0


async def test_a_consumer_behind_the_beginning_is_sent_to_it() -> None:
    async with running(store=StoreConfig(segment_size=64 * 1024, min_free=0, max_log_bytes=64 * 1024)) as broker:
        peer = await Peer.connect(broker.port)
        await fill(peer, 12)
        assert (await peer.call(329)).code == 0
        low = broker.store.min_offset("T", 0)
        assert low == 9
        answer = await peer.call(11, pull_header("T", 0, 2))
        assert answer.code == 21 and span(answer).next_begin_offset == span(answer).min_offset == low
        (view,) = records(await peer.pull("T", 0, low, max_msg_nums=1))
        assert view.queue_offset == low
        stats = await peer.call(202, None, topic="T")
        assert b'"minOffset":9' in stats.body
        assert (await peer.call(31, None, topic="T", queueId="0")).ext_value("offset") == "9"
        await peer.close()


async def test_the_runtime_information_knows_the_disk() -> None:
    env = memory_env()
    disk = env.disk
    assert isinstance(disk, MemoryDisk)
    async with running(env=env, data="store") as broker:
        peer = await Peer.connect(broker.port)

        async def table() -> dict[str, str]:
            found: dict[str, str] = json.loads((await peer.call(28)).body)["table"]
            return found

        assert (await table())["earliestMessageTimeStamp"] == "-1"
        await fill(peer, 2)
        disk.free = sum(map(len, disk.files.values())) * 3
        told = await table()
        (view, _) = records(await peer.pull())
        assert told["commitLogDiskRatio"] == told["consumeQueueDiskRatio"] == "0.25"
        assert told["earliestMessageTimeStamp"] == str(view.store_timestamp)
        assert told["dispatchBehindBytes"] == told["commitLogMaxOffset"]
        assert re.fullmatch(r"Total : [0-9.]+ KiB, Free : [0-9.]+ KiB\.", told["commitLogDirCapacity"])
        await peer.call(12, None, topic="T", key="k", maxNum="1", beginTimestamp="0", endTimestamp="1")
        assert (await table())["dispatchBehindBytes"] == "0"
        await peer.close()
    await disk.close()


async def test_a_full_disk_refuses_messages_and_nothing_else() -> None:
    """RocketMQ's answer is 14; what is there can be read and committed, and sending goes on when there is room."""
    env = memory_env()
    disk = env.disk
    assert isinstance(disk, MemoryDisk)
    disk.free = 40 << 20
    store = StoreConfig(segment_size=64 * 1024, checkpoint_interval=0.01, retention_interval=1e9)
    async with running(env=env, data="store", store=store) as broker:
        peer = await Peer.connect(broker.port)
        await fill(peer, 1)
        disk.free = 1 << 20  # less than 5 % of what it was
        codes = []
        async with asyncio.timeout(30):
            while 14 not in codes:
                codes.append((answer := await peer.send(FILLER)).code)
        assert set(codes) <= {0, 14} and "the broker's disk is full" in (answer.remark or "")
        assert len(records(await peer.pull())) == 1 + codes.count(0)
        header = UpdateConsumerOffsetRequestHeader("g", "T", 0, 1)
        assert (await peer.call(15, header)).code == 0 and await peer.committed("g", "T") == 1
        disk.free = 40 << 20
        async with asyncio.timeout(30):
            while (await peer.send(b"again")).code:
                await asyncio.sleep(0.05)
        await peer.close()
    await disk.close()


async def test_topics_have_their_own_hours(peer: Peer, broker: Broker) -> None:
    reserved = broker.store.retention.reserved
    fields = {
        "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "order": "false",
    }  # fmt: skip
    for topic, attributes in (("long", "+reserve.time=720"), ("wrong", "+reserve.time=-1"), ("none", "")):
        answer = await peer.call(17, None, topic=topic, attributes=attributes, **fields)
        assert answer.code == 0, answer.remark
    assert [reserved(topic) for topic in ("long", "wrong", "none", "unknown")] == [720, None, None, None]
    assert (await peer.call(17, None, topic="long", **{**fields, "readQueueNums": "2"})).code == 0
    listed = b'{"topicConfigList":[{"topicName":"long","readQueueNums":3,"writeQueueNums":1,"perm":6}]}'
    assert (await peer.call(18, None, listed)).code == 0
    kept = broker.topics.get("long")
    assert kept is not None and kept.read_queues == 3 and reserved("long") == 720, "nobody said otherwise"
    assert (await peer.call(17, None, topic="long", attributes="-reserve.time,+message.type=FIFO", **fields)).code == 0
    kept = broker.topics.get("long")
    assert kept is not None and kept.attributes == {"message.type": "FIFO"} and reserved("long") is None
    for number in range(5):  # what is kept does not grow without end
        answer = await peer.call(17, None, topic="long", attributes=f"+a{number}={'x' * 1000}", **fields)
    assert answer.code and "4096 are allowed" in (answer.remark or "")
    kept = broker.topics.get("long")
    assert kept is not None and len(kept.attributes) == 5


async def test_clean_up_by_hand(peer: Peer, broker: Broker) -> None:
    await fill(peer, 2)
    await fill(peer, 2, "U")
    assert (await peer.call(306)).code == 0 and (await peer.call(316)).code == 0 and (await peer.call(329)).code == 0
    assert {"T", "U"} <= set(broker.store.topics())
    broker.topics.delete("U")
    assert (await peer.call(316)).code == 0
    assert "U" not in broker.store.topics() and broker.store.max_offset("T", 0) == 2
