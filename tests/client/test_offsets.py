"""Where a group begins, and what is stored of how far it is."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket.client.app import Client
from aiorocket.client.core.offsets import OffsetTable, read_offset_file, write_offset_file
from aiorocket.client.group.local_offsets import LocalOffsets, offset_path
from aiorocket.client.message import Message
from aiorocket.config import BrokerConfig, ConsumerConfig
from aiorocket.errors import StoreError
from aiorocket.model import Queue
from aiorocket.runtime.memory_disk import MemoryDisk
from aiorocket.testing import SimDisk, Simulation, simulate
from aiorocket.testing.cluster import SMALL_STORE, SimCluster
from aiorocket_protocol import (
    ProtocolError,
    RequestCode,
    ResetOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from tests.client.clusters import run

Q0, Q1 = Queue("t", "b", 0), Queue("t", "b", 1)


# -- the table --


def test_concurrent_positions_grow_orderly_ones_are_set() -> None:
    table = OffsetTable()
    table.begin(Q0, 5, committed=True)
    assert not table.advance(Q0, 4)
    assert table.advance(Q0, 7)
    table.set(Q0, 6)
    assert table.dirty() == [(Q0, 6)]
    table.set(Q1, 3)
    assert table.position(Q1) == -1
    table.repair(Q0, 2)
    assert table.dirty() == [(Q0, 2)]
    table.note_committed(Q0, 2)
    assert table.dirty() == []


# -- the file --

OFFSETS = st.dictionaries(
    st.builds(Queue, st.text(min_size=1, max_size=9), st.text(max_size=9), st.integers(0, 1 << 31)),
    st.integers(-1, 1 << 62),
    max_size=6,
)


@given(OFFSETS)
def test_a_file_reads_as_written(offsets: dict[Queue, int]) -> None:
    assert read_offset_file(write_offset_file(offsets)) == offsets


def test_javas_file_is_read() -> None:
    text = (
        b'{\n\t"offsetTable":{{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":3,\n\t\t\t"topic":"TopicTest"\n\t\t}:23,'
        b'{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":2,\n\t\t\t"topic":"TopicTest"\n\t\t}:22\n\t}\n}'
    )
    assert read_offset_file(text) == {Queue("TopicTest", "broker-a", 3): 23, Queue("TopicTest", "broker-a", 2): 22}
    assert write_offset_file({Q0: 4}) == b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:4}}'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:4',
        b'{"offsetTable":{{"brokerName":"b","topic":"t"}:4}}',
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:"4"}}',
        b'{"offsetTable":{"t":4}}',
    ],
)
def test_what_is_no_offset_file_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_offset_file(data)


def test_the_path_is_javas() -> None:
    assert offset_path("/var/offsets", "10.0.0.1@one", "g") == "/var/offsets/10.0.0.1@one/g/offsets.json"
    assert offset_path(None, "10.0.0.1@one", "g").endswith("/.rocketmq_offsets/10.0.0.1@one/g/offsets.json")
    assert not offset_path(None, "c", "g").startswith("~")


async def test_the_store_keeps_what_it_had_as_a_backup() -> None:
    disk = MemoryDisk()
    store = LocalOffsets(disk, lambda: "d/offsets.json")
    assert await store.read(Q0) == -1
    assert await store.write([(Q0, 1)]) == {}
    assert await store.write([(Q1, 9)]) == {}
    assert await store.write([(Q0, 0)]) == {}  # also backwards
    assert read_offset_file(disk.read_bytes("d/offsets.json")) == {Q0: 0, Q1: 9}
    assert read_offset_file(disk.read_bytes("d/offsets.json.bak")) == {Q0: 1, Q1: 9}
    again = LocalOffsets(disk, lambda: "d/offsets.json")
    assert [await again.read(Q0), await again.read(Q1)] == [0, 9]
    await disk.close()


async def test_a_torn_file_falls_back_and_does_not_replace_the_backup() -> None:
    disk = MemoryDisk()
    store = LocalOffsets(disk, lambda: "d/offsets.json")
    await store.write([(Q0, 1)])
    await store.write([(Q0, 2)])
    disk.replace("d/offsets.json", b'{"offsetTable":{{"brok')
    store = LocalOffsets(disk, lambda: "d/offsets.json")
    assert await store.read(Q0) == 1
    await store.write([(Q0, 3)])
    assert read_offset_file(disk.read_bytes("d/offsets.json.bak")) == {Q0: 1}
    assert read_offset_file(disk.read_bytes("d/offsets.json")) == {Q0: 3}
    disk.unlink("d/offsets.json")
    assert await LocalOffsets(disk, lambda: "d/offsets.json").read(Q0) == 1
    await disk.close()


async def test_two_torn_files_are_an_error_and_not_a_beginning() -> None:
    disk = MemoryDisk()
    disk.makedirs("d")
    disk.replace("d/offsets.json", b"{")
    disk.replace("d/offsets.json.bak", b"")
    store = LocalOffsets(disk, lambda: "d/offsets.json")
    with pytest.raises(StoreError, match=r"neither d/offsets.json nor its .bak"):
        await store.read(Q0)
    assert list(await store.write([(Q0, 3)])) == [Q0]
    await disk.close()


def test_a_power_cut_between_any_two_steps_leaves_an_offset() -> None:
    async def main(sim: Simulation) -> None:
        for seed in range(30):
            disk = SimDisk(seed)
            store = LocalOffsets(disk, lambda: "d/offsets.json")
            await store.write([(Q0, 1)])
            writing = asyncio.ensure_future(store.write([(Q0, 2)]))
            await asyncio.sleep(seed * 0.0003)
            disk.crash()
            writing.cancel()
            await asyncio.wait([writing])
            assert await LocalOffsets(disk, lambda: "d/offsets.json").read(Q0) in (1, 2)

    simulate(main)


# -- where to begin --


async def _bodies(cluster: SimCluster, group: str, **options: Any) -> list[str]:
    seen: list[str] = []

    async def on_message(message: Message) -> None:
        seen.append(message.body.decode())

    member = await cluster.consumer(group, "t", on_message, **options)
    await asyncio.sleep(1)
    await member.stop()
    return seen


def test_a_young_topic_is_read_from_its_beginning_whatever_a_new_group_wants() -> None:
    async def scenario(cluster: SimCluster) -> None:
        sender = await cluster.producer()
        for number in range(3):
            await sender.send("t", str(number))
        # The broker answers 0 to the first query of a group it does not know, on a topic this young.
        assert await _bodies(cluster, "last", start_from="last") == ["0", "1", "2"]
        assert await _bodies(cluster, "first", start_from="first") == ["0", "1", "2"]

    run(scenario)


def test_an_old_topic_is_read_from_where_the_group_says(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: SimCluster) -> None:
        sender = await cluster.producer()
        for number in range(3):
            await sender.send("t", str(number))
        await asyncio.sleep(100)
        moment = datetime.fromtimestamp(cluster.clients[0].clock.wall_ms() / 1000, UTC)
        for number in range(3, 5):
            await sender.send("t", str(number))
        store = cluster.brokers[0].broker.store
        monkeypatch.setattr(store, "is_young", lambda *_: False)
        assert await _bodies(cluster, "last", start_from="last") == []
        assert await _bodies(cluster, "first", start_from="first") == ["0", "1", "2", "3", "4"]
        assert await _bodies(cluster, "time", start_from=moment) == ["3", "4"]
        assert await _bodies(cluster, "later", start_from=int(moment.timestamp() * 1000) + 10**9) == []
        # Known groups go on where they were.
        await sender.send("t", "5")
        for group, options in (("last", "first"), ("first", "last"), ("time", 0)):
            assert await _bodies(cluster, group, start_from=options) == ["5"]

    run(scenario)


def test_a_groups_own_retries_are_read_whatever_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: SimCluster) -> None:
        sender = await cluster.producer()
        tries = 0

        async def fail(message: Message) -> None:
            nonlocal tries
            tries += 1
            raise ValueError("always")

        await sender.send("t", "a")
        member = await cluster.consumer("g", "t", fail, start_from="last")
        await asyncio.sleep(1)
        await member.host.run(member.consumer.commit())
        member.host.kill()
        member.running = False
        assert tries == 1
        await asyncio.sleep(200)
        # The retry came into the retry topic while nobody looked, and the broker has no offset of it.
        offsets = cluster.brokers[0].broker.offsets
        assert offsets.query("g", "%RETRY%g", 0) in (None, 0)
        monkeypatch.setattr(cluster.brokers[0].broker.store, "is_young", lambda *_: False)
        assert await _bodies(cluster, "g", start_from="last") == ["a"]

    run(scenario)


def test_an_error_leaves_the_queue_alone_for_a_round() -> None:
    async def scenario(cluster: SimCluster) -> None:
        seen: list[float] = []

        async def on_message(message: Message) -> None:
            seen.append(cluster.sim.loop.time())

        sender = await cluster.producer()
        await sender.send("t", "a")
        cluster.brokers[0].faults.next("QUERY_CONSUMER_OFFSET", reply="SYSTEM_ERROR", times=3)
        before = cluster.sim.loop.time()
        member = await cluster.consumer("g", "t", on_message)
        await asyncio.sleep(1)
        assert len(seen) == 1
        assert 0.2 < seen[0] - before < 2
        assert len(member.held("t")) == 1

    run(scenario)


# -- what is stored --


def advances(cluster: SimCluster) -> list[int]:
    """By how much each commit from now on, other than by a pull, is ahead of what its broker has just then."""
    found: list[int] = []

    def watch(connection: object, request: Any) -> None:
        if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            header = request.read(UpdateConsumerOffsetRequestHeader)
            before = cluster.brokers[0].broker.offsets.query("g", header.topic, header.queue_id) or 0
            found.append(header.commit_offset - before)

    cluster.brokers[0].faults.watch(watch)
    return found


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_behind_a_slow_first_offset_none_is_what_it_was_before(orderly: bool) -> None:
    """One of a topic's first offsets goes ahead; while it is waited for, pulls commit more."""

    async def scenario(cluster: SimCluster) -> None:
        await cluster.create_topic("t", 4)
        sender = await cluster.producer()
        member = await cluster.consumer("g", "t", orderly=orderly)
        for number in range(12):
            await sender.send("t", str(number))
        await asyncio.sleep(1)
        cluster.brokers[0].faults.next("UPDATE_CONSUMER_OFFSET", delay=2.0)
        committed = advances(cluster)
        flushing = asyncio.ensure_future(member.host.run(member.consumer.commit()))
        for number in range(40):
            await asyncio.sleep(0.04)
            await sender.send("t", str(number))
        assert len(committed) == 1
        await flushing
        assert len(committed) == 1 + 4 + 1, "with that of the retry topic"
        assert min(committed) >= 0

    run(scenario)


def test_a_stop_waits_for_a_silent_broker_as_long_as_is_said() -> None:
    """``Client.running``: brokers that do not answer add two request timeouts. A topic's first offsets, too."""

    async def scenario(cluster: SimCluster) -> None:
        await cluster.create_topic("t", 4)
        sender = await cluster.producer()
        member = await cluster.consumer("g", "t")
        for number in range(12):
            await sender.send("t", str(number))
        await asyncio.sleep(1)
        for request in ("UPDATE_CONSUMER_OFFSET", "UNREGISTER_CLIENT"):
            cluster.brokers[0].faults.next(request, drop=True, times=40)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await member.host.run(member.consumer.stop())
        assert loop.time() - began < 2 * member.consumer.client.config.remoting.request_timeout + 1

    run(scenario)


def test_a_rebalance_does_not_set_back_what_pulls_have_committed() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await cluster.create_topic("t", 4)
        sender = await cluster.producer()
        await cluster.consumer("g", "t")
        for number in range(40):
            await sender.send("t", str(number))
        await asyncio.sleep(1)
        committed = advances(cluster)
        await cluster.consumer("g", "t")
        await asyncio.sleep(30)
        assert committed
        assert min(committed) >= 0

    run(scenario)


def test_offsets_are_stored_every_ten_seconds_when_given_up_and_at_the_end() -> None:
    async def scenario(cluster: SimCluster) -> None:
        config = ConsumerConfig(short_poll=3600.0, max_pull_idle=7200.0)  # so that no pull carries a commit
        sender = await cluster.producer()
        for number in range(5):
            await sender.send("t", str(number))
        member = await cluster.consumer("g", "t", config=config)
        offsets = cluster.brokers[0].broker.offsets
        await asyncio.sleep(9)
        before = offsets.query("g", "t", 0)
        await asyncio.sleep(2)
        assert offsets.query("g", "t", 0) == 5
        assert before in (None, 0, 5)
        await member.stop()
        assert offsets.query("g", "t", 0) == 5

    run(scenario)


def test_a_refused_commit_is_tried_again_and_a_stale_one_is_not() -> None:
    async def scenario(cluster: SimCluster) -> None:
        sender, member = await cluster.producer(), await cluster.consumer("g", "t")
        faults = cluster.brokers[0].faults
        await asyncio.sleep(1)
        await member.host.run(member.consumer.commit())
        faults.next("UPDATE_CONSUMER_OFFSET", reply="NO_PERMISSION", remark="stale epoch 1, it is 2")
        await sender.send("t", "a")
        await asyncio.sleep(0.001)
        member.consumer.pause("t")
        await asyncio.sleep(1)
        await member.host.run(member.consumer.commit())
        struck = faults.struck[RequestCode.UPDATE_CONSUMER_OFFSET]
        assert member.consumer.state().counters.stale_commits == struck == 1

    run(scenario)


# -- resets by an administrator --


def test_a_reset_counts_also_when_the_member_leaves_before_it_is_done() -> None:
    async def scenario(cluster: SimCluster) -> None:
        sender, member = await cluster.producer(), await cluster.consumer("g", "t")
        for number in range(5):
            await sender.send("t", str(number))
        await asyncio.sleep(12)
        assert cluster.brokers[0].broker.offsets.query("g", "t", 0) == 5
        await member.host.run(member.consumer._reset_offsets("t", {Queue("t", "broker-1", 0): 2}))
        await asyncio.sleep(3)
        await member.stop()
        assert cluster.brokers[0].broker.offsets.query("g", "t", 0) == 2

    run(scenario)


@pytest.mark.parametrize("pushed", [False, True], ids=["kept at the broker", "pushed to the members"])
@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_a_reset_leads_back_and_is_stored(pushed: bool, orderly: bool) -> None:
    async def main(sim: Simulation) -> None:
        broker = BrokerConfig(store=SMALL_STORE, server_side_reset_offset=not pushed)
        async with SimCluster(sim, broker=broker) as cluster:
            await cluster.create_topic("t", 1)
            seen: list[int] = []

            async def on_message(message: Message) -> None:
                seen.append(int(message.body))

            sender = await cluster.producer()
            member = await cluster.consumer("g", "t", on_message, orderly=orderly)
            for number in range(5):
                await sender.send("t", str(number))
            await asyncio.sleep(12)
            assert seen == [0, 1, 2, 3, 4]
            before = member.clock.wall_ms() - 3600_000
            header = ResetOffsetRequestHeader("t", "g", before, True)

            async def reset() -> None:
                async with Client(nameservers=cluster.endpoints, env=sim.env()) as client:
                    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
                    await client.session.call(cluster.brokers[0].endpoint, code, header)

            await sim.host("10.8.8.8").run(reset())
            await asyncio.sleep(9.5)
            assert len(seen) == 5
            await asyncio.sleep(15)
            assert sorted(seen[5:]) == [0, 1, 2, 3, 4]
            assert cluster.brokers[0].broker.offsets.query("g", "t", 0) == 5
            assert len(member.held("t")) == 1

    simulate(main)
