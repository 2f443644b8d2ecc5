"""Starting, stopping, coming back, and everything that keeps a broker from starting."""

from __future__ import annotations

import asyncio
import shutil
import struct
import threading
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from aiorocket.broker import Broker
from aiorocket.broker.core.delay import DelaySchedule
from aiorocket.broker.core.offsets import ConsumerOffsets
from aiorocket.broker.state import BrokerState
from aiorocket.config import BrokerConfig, NameServerConfig, RemotingConfig
from aiorocket.errors import StoreCorruptedError, StoreError, StoreLockedError, UsageError
from aiorocket.nameserver import NameServer
from aiorocket.nameserver.core.routes import BrokerReport, RouteInfo
from aiorocket.runtime.env import memory_env, real_env
from aiorocket.storage import Snapshot
from aiorocket.testing import SimDisk, Simulation, simulate
from aiorocket_protocol import (
    CreateTopicRequestHeader,
    QueryConsumerOffsetRequestHeader,
    SendMessageResponseHeader,
    TopicRouteData,
    UpdateConsumerOffsetRequestHeader,
    decode_body,
    split_records,
)
from tests.broker.peer import Peer, records, running
from tests.broker.test_pop import pop_header
from tests.broker.test_sim import SMALL, SimPeer, config, kill, started


async def test_everything_that_was_promised_is_there_after_a_restart(tmp_path: Path) -> None:
    env = real_env()
    config = BrokerConfig(port=0, data=str(tmp_path / "store"), delay_levels=(0.3,))
    async with running(config, env) as broker:
        peer = await Peer.connect(broker.port)
        await peer.create_topic("T", 3)
        for number in range(5):
            await peer.send(b"%d" % number, queue_id=2)
        await peer.call(15, None, consumerGroup="g", topic="T", queueId="2", commitOffset="4")
        await peer.call(200, body=b'{"groupName":"g","retryMaxTimes":3}')
        await peer.send(b"later", {"DELAY": "1"})
        await peer.close()
    async with running(config, env) as broker:
        peer = await Peer.connect(broker.port)
        assert broker.recovery is not None and broker.recovery.clean
        topic = broker.topics.get("T")
        assert topic is not None and topic.write_queues == 3
        assert await peer.committed("g", "T", 2) == 4
        assert [record.body for record in records(await peer.pull("T", 2))] == [b"0", b"1", b"2", b"3", b"4"]
        group = broker.configs.get("g")
        assert group is not None and group.retry_max_times == 3
        assert [record.body for record in records(await peer.pull())] == [b"later"]
        await peer.close()
    async with running(config, env) as broker:
        peer = await Peer.connect(broker.port)
        await asyncio.sleep(0.05)
        assert len(records(await peer.pull())) == 1  # delivered once: the schedule's progress was saved
        assert broker.delays.progress(1) == 1
        await peer.close()
    await env.disk.close()


async def test_a_broker_that_was_not_started_says_so_and_can_be_closed() -> None:
    broker = Broker(memory_env(), BrokerConfig(port=0))
    with pytest.raises(UsageError, match="start it first"):
        broker.store  # noqa: B018 - asking is what is tested
    assert broker.parked_pulls == 0 and broker.recovery is None
    broker.clock_changed()
    await asyncio.gather(broker.close(), broker.close())


async def test_a_save_whose_turn_never_came_is_made_up_for(tmp_path: Path) -> None:
    """The broker stops while a save waits behind other work of the disk's thread: it is cancelled with the task that
    waits for it, and the last save must not take it for done."""
    disk = real_env().disk
    offsets, found = ConsumerOffsets(), ConsumerOffsets()
    state = BrokerState(disk, str(tmp_path), {"offsets": offsets})
    await state.load()
    free = threading.Event()
    busy = disk.run(free.wait, 10)
    offsets.commit("g", "T", 0, 5)
    saving = asyncio.ensure_future(state.keep_saving(0.0))
    for _ in range(5):
        await asyncio.sleep(0)
    saving.cancel()
    await asyncio.wait([saving])
    free.set()
    await busy
    await state.save_all()
    await BrokerState(disk, str(tmp_path), {"offsets": found}).load()
    assert found.query("g", "T", 0) == 5
    await disk.close()


async def test_a_save_that_finds_no_memory_is_made_up_for_and_ends_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = real_env().disk
    delays, offsets, found = DelaySchedule([1]), ConsumerOffsets(), ConsumerOffsets()
    state = BrokerState(disk, str(tmp_path), {"delays": delays, "offsets": offsets})
    await state.load()
    delays.take(1, [(0, 1)], 5)
    delays.stored(1, 0)
    offsets.commit("g", "T", 0, 5)
    with monkeypatch.context() as patch:
        patch.setattr(DelaySchedule, "to_dict", Mock(side_effect=MemoryError))
        await state.save_all()
    await state.save_all()
    again = DelaySchedule([1])
    await BrokerState(disk, str(tmp_path), {"delays": again, "offsets": found}).load()
    assert found.query("g", "T", 0) == 5 and again.position(1) == 1
    await disk.close()


async def test_a_topic_whose_own_record_was_lost_is_made_again_from_its_queues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = real_env()
    config = BrokerConfig(port=0, data=str(tmp_path / "store"), auto_create_topics=False)
    async with running(config, env) as broker:
        peer = await Peer.connect(broker.port)
        await peer.create_topic("T", 3)
        await peer.send(queue_id=1)
        await peer.close()
    for path in (tmp_path / "store" / "config").glob("topics*"):
        path.unlink()
    async with running(config, env) as broker:
        topic = broker.topics.get("T")
        assert topic is not None and topic.write_queues == 2
    assert "config is missing" not in caplog.text
    shutil.rmtree(tmp_path / "store" / "config")
    async with running(config, env) as broker:
        assert "T" in broker.topics
    assert "config is missing: what groups had consumed is not on record" in caplog.text
    await env.disk.close()


async def test_a_broker_registers_its_topics_and_is_gone_when_it_stops() -> None:
    env = real_env()
    nameserver = NameServer(env, NameServerConfig(port=0))
    await nameserver.start()
    names = await Peer.connect(nameserver.port)

    async def route(topic: str) -> TopicRouteData | None:
        answer = await names.call(105, None, topic=topic)
        return decode_body(TopicRouteData, answer.body, 0) if answer.code == 0 else None

    async with running(env=env, nameservers=(nameserver.address,)) as broker:
        found = await route("TBW102")
        assert found is not None and found.broker_datas[0].broker_addrs == {0: broker.address}
        peer = await Peer.connect(broker.port)
        assert (await peer.create_topic("T", 5)).code == 0
        found = await route("T")  # an administrator's topic has its route when the answer is there
        assert found is not None and found.queue_datas[0].write_queue_nums == 5
        await peer.send(topic="Auto")
        while await route("Auto") is None:
            await asyncio.sleep(0.001)
        await peer.close()
    assert await route("T") is None
    await names.close()
    await nameserver.close()
    await env.disk.close()


async def test_a_change_is_told_alone_and_many_at_once_together(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[set[str]] = []
    registering = RouteInfo.registering

    def listen(table: RouteInfo, what: BrokerReport, **more: Any) -> Generator[None, None, str | None]:
        told.append(set(what.topics or ()))
        return registering(table, what, **more)

    monkeypatch.setattr(RouteInfo, "registering", listen)
    env = real_env()
    nameserver = NameServer(env, NameServerConfig(port=0))
    await nameserver.start()
    async with running(env=env, nameservers=(nameserver.address,), register_interval=60) as broker:
        peer = await Peer.connect(broker.port)
        whole = told.pop()
        assert "TBW102" in whole and not told
        assert (await peer.create_topic("A", 2)).code == 0
        assert told == [{"A"}]
        for number in range(30):
            header = CreateTopicRequestHeader(f"T{number}", "TBW102", 4, 4, 6, "SINGLE_TAG", False)
            await peer.ask(17, header, oneway=False)
        assert {(await peer.answer()).code for _ in range(30)} == {0}
        assert len(told) <= 4 and set().union(*told[1:]) == {f"T{number}" for number in range(30)}
        assert set(nameserver.routes.topics()) == whole | set().union(*told)
        assert (await peer.call(215, None, topic="A")).code == 0
        assert (await peer.create_topic("A", 2)).code == 0
        assert told[-1] == {"A"}, "made anew"
        # A name server that was told nothing for long may have forgotten the broker: all of it again.
        told.clear()
        long_ago = asyncio.get_running_loop().time() - 120
        assert broker.parts is not None
        registration = broker.parts.registration
        registration._told = {name: (*each[:3], long_ago) for name, each in registration._told.items()}
        assert (await peer.create_topic("B")).code == 0
        assert told == [whole | {"A", "B"} | {f"T{number}" for number in range(30)}]
        await peer.close()
    await nameserver.close()
    await env.disk.close()


async def test_a_name_server_that_may_drop_what_is_not_named_is_told_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apache's does with ``deleteTopicWithBrokerRegistration``, and speaks JSON."""
    registering = RouteInfo.registering

    def drop(table: RouteInfo, what: BrokerReport, **more: Any) -> Generator[None, None, str | None]:
        for topic in set(table.topics()) - set(what.topics or ()):
            table.delete_topic(topic)
        return registering(table, what, **more)

    monkeypatch.setattr(RouteInfo, "registering", drop)
    env = real_env()
    nameserver = NameServer(env, NameServerConfig(port=0, remoting=RemotingConfig(serializer="json")))
    await nameserver.start()
    async with running(env=env, nameservers=(nameserver.address,), register_interval=60) as broker:
        peer = await Peer.connect(broker.port)
        for name in ("A", "B"):
            assert (await peer.create_topic(name, 2)).code == 0
        assert {"TBW102", "A", "B"} <= set(nameserver.routes.topics())
        await peer.close()
    await nameserver.close()
    await env.disk.close()


async def test_a_second_broker_of_the_same_name_is_told_who_holds_it() -> None:
    env = real_env()
    nameserver = NameServer(env, NameServerConfig(port=0))
    await nameserver.start()
    async with running(env=env, nameservers=(nameserver.address,)) as first:
        second = Broker(env, BrokerConfig(port=0, nameservers=(nameserver.address,)))
        with pytest.raises(UsageError, match=f"broker-a with id 0 is held by {first.address}"):
            await second.start()
        third = Broker(env, BrokerConfig(port=0, name="broker-b", nameservers=(nameserver.address,)))
        await third.start()
        await third.close()
        assert nameserver.routes.holder("broker-a", 0) == first.address
    async with running(env=env, nameservers=(nameserver.address,)) as again:
        assert nameserver.routes.holder("broker-a", 0) == again.address
    await nameserver.close()
    await env.disk.close()


async def test_a_name_server_that_comes_later_or_comes_back_learns_of_the_broker() -> None:
    env = real_env()
    first = NameServer(env, NameServerConfig(port=0))
    await first.start()
    port = first.port
    await first.close()
    config = BrokerConfig(
        port=0, nameservers=(f"127.0.0.1:{port}",), remoting=RemotingConfig(backoff_initial=0.02, backoff_max=0.05)
    )
    async with running(config, env) as broker:
        for _ in range(2):
            nameserver = NameServer(env, NameServerConfig(port=port))
            await nameserver.start()
            async with asyncio.timeout(30):
                while nameserver.routes.holder("broker-a", 0) != broker.address:
                    await asyncio.sleep(0.01)
            await nameserver.close()
    await env.disk.close()


async def test_a_name_server_that_hangs_up_is_called_once_a_second() -> None:
    calls: list[int] = []

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.append(len(await reader.read(1)))
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    env = real_env()
    began = asyncio.get_running_loop().time()
    async with running(nameservers=(f"127.0.0.1:{server.sockets[0].getsockname()[1]}",), env=env):
        await asyncio.sleep(0.3)
    seconds = asyncio.get_running_loop().time() - began
    assert 1 <= len(calls) <= 4 + seconds, len(calls)  # without a pause it is hundreds
    server.close()
    await server.wait_closed()
    await env.disk.close()


async def test_a_port_in_use_a_directory_in_use_and_a_directory_that_is_none(tmp_path: Path) -> None:
    env = real_env()
    config = BrokerConfig(port=0, data=str(tmp_path / "store"))
    async with running(config, env) as broker:
        with pytest.raises(UsageError, match=f"port {broker.port} on 127.0.0.1 is in use"):
            await Broker(env, BrokerConfig(port=broker.port)).start()
        other = real_env()
        with pytest.raises(StoreLockedError, match="lock"):
            await Broker(other, config).start()
        await other.disk.close()
        (tmp_path / "file").write_text("x")
        with pytest.raises(StoreError, match="data directory"):
            await Broker(env, BrokerConfig(port=0, data=str(tmp_path / "file" / "below"))).start()
        peer = await Peer.connect(broker.port)
        assert (await peer.send()).code == 0  # the one that runs has not noticed
        await peer.close()
    async with running(config, env) as broker:
        assert broker.recovery is not None and broker.recovery.clean
    await env.disk.close()


async def test_a_wildcard_bind_needs_an_address_for_clients() -> None:
    env = real_env()
    with pytest.raises(UsageError, match="advertise"):
        await Broker(env, BrokerConfig(port=0, host="0.0.0.0")).start()
    await env.disk.close()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff" * 64,
        struct.pack(">I", 17 << 20) + b"\x00" * 60,
        struct.pack(">II", 8, 1 << 20),
        struct.pack(">II", 12, 8) + b"notjson!",
        b"\x00" * 64,
    ],
)
async def test_garbage_ends_its_own_connection_only(broker: Broker, peer: Peer, data: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    writer.write(data)
    try:
        async with asyncio.timeout(30):
            assert await reader.read() == b""
    except ConnectionError:
        pass  # the broker closed with our bytes unread
    writer.close()
    assert (await peer.send()).code == 0


async def test_ipv6_hosts_are_stored_and_shown() -> None:
    try:
        async with running(host="::1") as broker:
            assert broker.address == f"[::1]:{broker.port}"
            peer = await Peer.connect(broker.port, host="::1")
            assert (await peer.send()).code == 0
            (record,) = records(await peer.pull())
            assert record.store_host == f"[::1]:{broker.port}" and record.born_host.startswith("[::1]:")
            batch = (await peer.send_batch(b"one", b"two")).read(SendMessageResponseHeader)
            stored = records(await peer.pull(offset=1))
            assert batch.msg_id == ",".join(record.offset_msg_id for record in stored)
            await peer.close()
    except UsageError as error:
        pytest.skip(f"no IPv6 loopback here: {error}")


async def test_numbers_that_no_route_can_carry_are_refused_and_never_loaded(tmp_path: Path) -> None:
    env = real_env()
    config = BrokerConfig(port=0, data=str(tmp_path / "store"))
    async with running(config, env) as broker:
        peer = await Peer.connect(broker.port)
        for members in ('"retryQueueNums":4611686018427387904', '"retryQueueNums":-1'):
            answer = await peer.call(200, None, body=b'{"groupName":"g",%s}' % members.encode())
            assert answer.code == 29 and "retryQueueNums" in (answer.remark or "")
        await peer.create_topic("kept", 1)
        await peer.send(b"x", topic="kept")
        await peer.close()
    saved = Snapshot(env.disk, str(tmp_path / "store" / "config" / "topics"))
    state = saved.load()
    assert state is not None
    huge = {"topicName": "huge", "readQueueNums": 1 << 62, "writeQueueNums": 1, "perm": 6}
    flagged = {"topicName": "flagged", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicSysFlag": 1 << 40}
    saved.save({**state, "topics": [huge, flagged, *state["topics"], {"nonsense": True}]})
    nameserver = NameServer(env, NameServerConfig(port=0))
    await nameserver.start()
    async with running(replace(config, nameservers=(f"127.0.0.1:{nameserver.port}",)), env) as broker:
        assert "kept" in broker.topics and "huge" not in broker.topics and "flagged" not in broker.topics
    await nameserver.close()
    await env.disk.close()


@pytest.mark.parametrize("name", ["topics", "groups", "settings", "modes", "sent", "offsets", "delays"])
async def test_a_state_file_that_is_damaged_twice(name: str, tmp_path: Path) -> None:
    """What is known from elsewhere begins anew; what would pass over or repeat messages is for people to decide."""
    env = real_env()
    config = BrokerConfig(port=0, data=str(tmp_path / "store"))
    async with running(config, env) as broker:
        peer = await Peer.connect(broker.port)
        await peer.create_topic("T", 4)
        await peer.send(b"x", topic="T", queue_id=1)
        await peer.close()
    for generation in "ab":
        (tmp_path / "store" / "config" / f"{name}.{generation}").write_bytes(b"zeros" + bytes(40))
    if name in ("offsets", "delays"):
        with pytest.raises(StoreCorruptedError, match="aiorocket store repair"):
            await Broker(env, config).start()
    else:
        async with running(config, env) as broker:
            assert "T" in broker.topics and broker.store.max_offset("T", 1) == 1
    await env.disk.close()


@pytest.mark.parametrize("turns", range(1, 60, 4))
def test_a_close_during_the_start_undoes_it(turns: int) -> None:
    async def main(sim: Simulation) -> None:
        env = sim.env()
        broker = Broker(env, BrokerConfig(port=0, data="store"))
        start = asyncio.ensure_future(broker.start())
        for _ in range(turns):
            await asyncio.sleep(0.0005)
        done = start.done()
        await broker.close()
        [error] = await asyncio.gather(start, return_exceptions=True)
        assert error is None if done else isinstance(error, Exception)
        assert not broker.server.connections
        again = Broker(env, BrokerConfig(port=0, data="store"))  # the lock of the store was given back
        await again.start()
        await again.close()

    simulate(main)


async def test_a_damaged_log_is_served_around_and_seen_in_the_runtime_info(tmp_path: Path) -> None:
    env = real_env()
    config = BrokerConfig(port=0, data=str(tmp_path / "store"))
    async with running(config, env) as broker:
        peer = await Peer.connect(broker.port)
        await peer.create_topic("T", 1)
        for number in range(6):
            await peer.send(b"%d" % number * 200, topic="T")
        await peer.close()
    path = tmp_path / "store" / "commitlog" / ("0" * 20)
    log = bytearray(path.read_bytes())
    log[log.index(b"3" * 100)] ^= 1
    path.write_bytes(log)
    async with running(config, env) as broker:
        peer = await Peer.connect(broker.port)
        found = [record.body[:1] for record in records(await peer.pull("T", 0))]
        gap = await peer.pull("T", 0, offset=3)
        assert gap.code == 20 and gap.ext["nextBeginOffset"] == "4"  # PULL_RETRY_IMMEDIATELY
        found += [record.body[:1] for record in records(await peer.pull("T", 0, offset=4))]
        assert found == [b"0", b"1", b"2", b"4", b"5"]
        answer = await peer.call(28)
        assert b'"damagedMessages":"1"' in answer.body.replace(b" ", b"")
        await peer.close()
    await env.disk.close()


@pytest.mark.parametrize("torn", [False, True])
def test_a_group_does_not_pass_over_what_takes_the_place_of_lost_messages(
    torn: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker was killed before a checkpoint knew of them, and the checksum file, which says how far the queue was,
    is damaged too: nothing tells the queue's length but what is left."""

    async def main(sim: Simulation) -> None:
        disk: SimDisk = sim.disk()
        env, settings = sim.env(disk=disk), config(store=replace(SMALL, checkpoint_interval=1000))
        host, broker = await started(sim, env, settings)
        peer = SimPeer(sim, broker.address)
        for number in range(6):
            await peer.send(b"old %d" % number)
        await peer.send(b"behind", topic="U")
        for group, offset in (("g", 6), ("h", 1)):
            await peer.call(15, UpdateConsumerOffsetRequestHeader(group, "T", 0, offset))
        await asyncio.sleep(11)  # saved
        kill(host, disk)
        (log,) = [data for path, data in disk.files.items() if "/commitlog/" in path and path.endswith("0")]
        first = log.index(b"old 2") - 80
        last = len(log) if torn else log.index(b"behind") - 100
        log[first:last] = bytes(last - first)
        (sums,) = [data for path, data in disk.files.items() if path.endswith(".sums")]
        sums[:] = bytes(len(sums))
        await peer.close()
        host, broker = await started(sim, env, settings)
        peer = SimPeer(sim, broker.address)
        for number in range(9):
            await peer.send(b"new %d" % number)
        offsets = [(await peer.call(14, QueryConsumerOffsetRequestHeader(group, "T", 0))).ext for group in "gh"]
        assert [int(ext["offset"]) for ext in offsets] == [2, 1]
        moved = await peer.pull("T", 0, 6)  # who was there all the time
        assert moved.code == 21 and moved.ext["nextBeginOffset"] == "2"
        found = await peer.pull("T", 0, 2, max_msg_nums=32)
        assert [one.body for one in split_records(found.body)] == [b"new %d" % number for number in range(9)]
        assert "1 offsets of groups" in caplog.text
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_a_broker_that_is_closed_while_its_start_waits_for_damaged_units() -> None:
    """It reads nothing more of a store that is closed: nobody would close the files."""

    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        env = sim.env(disk=disk)
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        for _ in range(3):
            assert (await peer.send()).code == 0 and (await peer.call(200050, pop_header(poll_time=0))).code == 0
        await peer.close()
        await host.run(broker.close())
        (units,) = [data for path, data in disk.files.items() if "consumequeue/rmq_sys_REVIVE_LOG" in path]
        units[-33] ^= 0x40  # where the last record but one is
        broker = Broker(env, config())
        start = host.start(broker.start())
        await asyncio.sleep(0.5)
        assert not start.done()
        await host.run(broker.close())
        with pytest.raises(UsageError, match="closed while it started"):
            await start
        assert not broker.store._files._files
        host, broker = await started(sim, env, config())
        assert broker.popped == 3
        await host.run(broker.close())

    simulate(main)
