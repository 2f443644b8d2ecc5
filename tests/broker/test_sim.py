"""Broker and name server in virtual time: hours of delays, expiries, power cuts and full disks in milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aiorocket.broker import Broker, due, schedule
from aiorocket.broker.core.topics import Topic
from aiorocket.broker.registration import Registration
from aiorocket.config import BrokerConfig, NameServerConfig, RemotingConfig, StoreConfig
from aiorocket.nameserver import NameServer
from aiorocket.remoting import RemotingClient
from aiorocket.runtime.env import Env
from aiorocket.testing import SimDisk, Simulation, simulate
from aiorocket_protocol import (
    CloneGroupOffsetRequestHeader,
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicRequestHeader,
    RemotingCommand,
    UpdateConsumerOffsetRequestHeader,
    UpdateGroupForbiddenRequestHeader,
    encode_batch,
    encode_configuration,
    split_records,
)
from tests.broker.peer import heartbeat, pull_header, send_header, span

SMALL = StoreConfig(segment_size=64 * 1024, min_free=64 * 1024)


class SimPeer:
    """A client on a host of its own, through the real Connection."""

    def __init__(self, sim: Simulation, address: str, host: str = "10.0.0.9") -> None:
        self.address = address
        self.client = RemotingClient(sim.env(), RemotingConfig(serializer="json"))
        self.host = sim.host(host)

    async def call(self, code: int, header: Any = None, body: bytes = b"", timeout: float = 60.0) -> RemotingCommand:
        command = RemotingCommand.request(code, header, body=body)
        return await self.host.run(self.client.request(self.address, command, timeout))

    async def send(self, body: bytes = b"x", **changes: Any) -> RemotingCommand:
        return await self.call(310, send_header(**changes), body)

    async def pull(self, *args: Any, **changes: Any) -> RemotingCommand:
        return await self.call(11, pull_header(*args, **changes))

    async def drain(self, topic: str = "T") -> list[bytes]:
        """Everything in queue 0; one pull may end where memory begins."""
        found: list[bytes] = []
        while True:
            answer = await self.pull(topic, 0, len(found), max_msg_nums=1024, suspend_timeout_millis=0)
            if answer.code != 0:
                return found
            found += [record.body for record in split_records(answer.body)]

    async def close(self) -> None:
        await self.host.run(self.client.close())


def config(**changes: Any) -> BrokerConfig:
    return BrokerConfig(**{"host": "10.0.0.1", "port": 10911, "data": "store", "store": SMALL, **changes})


async def started(sim: Simulation, env: Env, settings: BrokerConfig) -> tuple[Any, Broker]:
    host = sim.host(settings.advertise or settings.host)
    broker = Broker(env, settings)
    await host.run(broker.start())
    return host, broker


def kill(host: Any, disk: SimDisk, *, power: bool = False) -> None:
    """End the broker's process, or with ``power`` its machine."""
    host.kill(power_cut=power)
    disk.crash() if power else disk.process_died()


@pytest.mark.parametrize("subscription", ["*", "a"])
def test_many_holds_that_end_together_all_end(subscription: str) -> None:
    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env(), config())
        peer = SimPeer(sim, broker.address)
        await peer.send()
        start = sim.loop.time()
        answers = await asyncio.gather(*(peer.pull("T", 0, 1, subscription=subscription) for _ in range(50)))
        assert {answer.code for answer in answers} == {19}
        assert sim.loop.time() - start <= 15.2
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_a_hold_is_not_ended_by_what_the_filter_drops_and_tells_how_far_it_has_looked() -> None:
    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env(), config())
        peer, other = SimPeer(sim, broker.address), SimPeer(sim, broker.address, "10.0.0.8")
        await peer.send(properties="TAGS\x01A")
        held = asyncio.ensure_future(other.pull("T", 0, 1, subscription="B"))
        await asyncio.sleep(1)
        await peer.send(properties="TAGS\x01A")
        batch = encode_batch([(b"1", 0, b""), (b"2", 0, b"")])
        assert (await peer.call(320, send_header(batch=True), batch)).code == 0
        await asyncio.sleep(1)
        assert broker.parked_pulls == 1
        answer = await held
        assert answer.code in (19, 20) and span(answer).next_begin_offset == 4
        await peer.close()
        await other.close()
        await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize("seed", range(5))
def test_a_hold_lasts_as_long_as_asked_and_never_longer_than_the_broker_allows(seed: int) -> None:
    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env(), config())
        peer = SimPeer(sim, broker.address)
        await peer.send()
        for asked, held in ((15_000, 15.0), (3_210, 3.3), (3_600_000, 30.0)):
            start = sim.loop.time()
            answer = await peer.pull("T", 0, 1, suspend_timeout_millis=asked)
            assert answer.code == 19
            assert held - 0.2 <= sim.loop.time() - start <= held + 0.2
        await peer.close()
        await host.run(broker.close())

    simulate(main, seed)


def test_a_silent_client_is_forgotten_after_two_minutes_and_the_others_are_told() -> None:
    async def main(sim: Simulation) -> None:
        # The connection may live on (NAT, a frozen process): only heartbeats count here.
        host, broker = await started(sim, sim.env(), config(remoting=RemotingConfig(idle_timeout=10_000)))
        silent, loud = SimPeer(sim, broker.address, "10.0.0.8"), SimPeer(sim, broker.address)
        assert (await silent.call(34, body=heartbeat("silent", "T"))).code == 0
        for _ in range(5):
            assert (await loud.call(34, body=heartbeat("loud", "T"))).code == 0
            await asyncio.sleep(30)
        live = broker.consumers.get("g")
        assert live is not None and live.client_ids() == ["loud"]
        await silent.close()
        await loud.close()
        await host.run(broker.close())

    simulate(main)


def test_a_broker_that_falls_silent_loses_its_routes_after_two_minutes_and_gets_them_back() -> None:
    async def main(sim: Simulation) -> None:
        names_host = sim.host("10.0.0.5")
        nameserver = NameServer(sim.env(), NameServerConfig(host="10.0.0.5", port=9876, open_registration=True))
        await names_host.run(nameserver.start())
        host, broker = await started(sim, sim.env(), config(nameservers=("10.0.0.5:9876",)))
        assert nameserver.routes.topic_route("TBW102") is not None
        sim.network.partition(["10.0.0.1"], ["10.0.0.5"])
        await asyncio.sleep(80)
        assert nameserver.routes.topic_route("TBW102") is not None
        await asyncio.sleep(80)
        assert nameserver.routes.topic_route("TBW102") is None
        sim.network.heal()
        await asyncio.sleep(60)
        assert nameserver.routes.holder("broker-a", 0) == broker.address
        await host.run(broker.close())
        await asyncio.sleep(1)
        assert nameserver.routes.holder("broker-a", 0) is None
        await names_host.run(nameserver.close())

    simulate(main)


def test_a_name_server_that_is_away_keeps_no_news_from_the_other() -> None:
    async def main(sim: Simulation) -> None:
        names_host = sim.host("10.0.0.5")
        nameserver = NameServer(sim.env(), NameServerConfig(host="10.0.0.5", port=9876, open_registration=True))
        await names_host.run(nameserver.start())
        sim.network.partition(["10.0.0.1"], ["10.0.0.6"])
        host, broker = await started(sim, sim.env(), config(nameservers=("10.0.0.5:9876", "10.0.0.6:9876")))
        assert broker.parts is not None
        for number in range(30):
            broker.topics.put(Topic(f"T{number}", 4, 4))
            telling = host.start(broker.parts.registration.register())
            await asyncio.sleep(0.1)
            assert nameserver.routes.topic_route(f"T{number}") is not None
            await telling
            await asyncio.sleep(0.37)
        await host.run(broker.close())
        await names_host.run(nameserver.close())

    simulate(main)


def test_nobody_waits_for_a_name_server_that_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    register = Registration._register

    async def recorded(self: Registration, nameserver: str) -> None:
        told.append(nameserver)
        await register(self, nameserver)

    async def main(sim: Simulation) -> None:
        there, comes = [
            NameServer(sim.env(), NameServerConfig(host=host, port=9876, open_registration=True))
            for host in ("10.0.0.5", "10.0.0.6")
        ]
        await (names_host := sim.host("10.0.0.5")).run(there.start())
        late = sim.host("10.0.0.6")
        servers = ("10.0.0.5:9876", "10.0.0.6:9876")
        host, broker = await started(sim, sim.env(), config(host="127.0.0.1", nameservers=servers))
        peer = SimPeer(sim, broker.address, "127.0.0.1")
        await asyncio.sleep(20)
        for number in range(10):
            header = CreateTopicRequestHeader(f"T{number}", "TBW102", 4, 4, 6, "SINGLE_TAG", False)
            began = sim.loop.time()
            assert (await peer.call(17, header)).code == 0
            assert sim.loop.time() - began < 0.1, number
            assert there.routes.topic_route(f"T{number}") is not None
            await asyncio.sleep(0.3)
        await asyncio.sleep(5)
        assert told.count(servers[0]) == 11  # nothing is told again because another one is away
        assert sum("not registered" in record.getMessage() for record in caplog.records) == 1, caplog.text
        await late.run(comes.start())
        await asyncio.sleep(10)
        assert comes.routes.topic_route("T0") is not None and comes.routes.topic_route("T9") is not None
        await peer.close()
        await host.run(broker.close())
        await names_host.run(there.close())
        await late.run(comes.close())

    monkeypatch.setattr(Registration, "_register", recorded)
    simulate(main)


def test_a_broker_that_died_is_replaced_at_once_by_one_of_its_name() -> None:
    async def main(sim: Simulation) -> None:
        names_host = sim.host("10.0.0.5")
        nameserver = NameServer(sim.env(), NameServerConfig(host="10.0.0.5", port=9876, open_registration=True))
        await names_host.run(nameserver.start())
        host, _ = await started(sim, sim.env(), config(nameservers=("10.0.0.5:9876",)))
        host.kill()
        await asyncio.sleep(0.1)
        other = config(host="10.0.0.2", nameservers=("10.0.0.5:9876",))
        host, broker = await started(sim, sim.env(), other)
        assert nameserver.routes.holder("broker-a", 0) == "10.0.0.2:10911"
        await host.run(broker.close())
        await names_host.run(nameserver.close())

    simulate(main)


@pytest.mark.parametrize("seed", range(3))
def test_two_hours_of_delay_pass_over_a_restart_and_a_clock_that_jumps(seed: int) -> None:
    async def main(sim: Simulation) -> None:
        env = sim.env()
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        for level in (18, 1, 5):
            await peer.send(b"%d" % level, properties=f"DELAY\x01{level}\x02")
        await asyncio.sleep(2)
        assert await peer.drain() == [b"1"]
        await asyncio.sleep(60)
        assert await peer.drain() == [b"1", b"5"]
        await host.run(broker.close())
        await asyncio.sleep(3600)
        host, broker = await started(sim, env, config())
        assert await peer.drain() == [b"1", b"5"]
        await asyncio.sleep(1800)
        assert len(await peer.drain()) == 2
        env.clock.skew_ms += 3600_000  # type: ignore[attr-defined]  # the simulation's
        await asyncio.sleep(61)  # the wall clock is looked at once a minute while something waits
        assert await peer.drain() == [b"1", b"5", b"18"]
        await peer.close()
        await host.run(broker.close())

    simulate(main, seed)


def test_a_clock_set_back_a_year_does_not_hold_a_message_for_a_year() -> None:
    async def main(sim: Simulation) -> None:
        env = sim.env()
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        await peer.send(b"late", properties="DELAY\x012\x02")
        env.clock.skew_ms -= 365 * 86_400_000  # type: ignore[attr-defined]  # the simulation's
        await asyncio.sleep(61)
        assert await peer.drain() == [b"late"]
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_what_waits_since_the_clock_was_set_back_is_no_damage(caplog: pytest.LogCaptureFixture) -> None:
    """Stamps of the store never go back, so what stands beside such a message does not follow from its stamp."""

    async def main(sim: Simulation) -> None:
        env = sim.env(disk=sim.disk())
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        await peer.send(b"now")
        env.clock.skew_ms -= 3600_000  # type: ignore[attr-defined]  # the simulation's
        at = env.clock.wall_ms() + 30 * 86_400_000
        await peer.send(b"level", properties="DELAY\x013\x02KEYS\x01k\x02")
        await peer.send(b"far", properties=f"TIMER_DELIVER_MS\x01{at}\x02")
        for _ in range(2):
            await host.run(broker.close())
            host, broker = await started(sim, env, config())
        assert "contradicted" not in caplog.text and not broker.store.damaged
        await asyncio.sleep(8)
        assert await peer.drain() == [b"now"]
        await asyncio.sleep(3)
        assert await peer.drain() == [b"now", b"level"]
        view = split_records((await peer.pull("T", 0, 1)).body)[0]
        assert view.properties["KEYS"] == "k" and "DELAY_OUT_MS" not in view.properties
        env.clock.skew_ms += 30 * 86_400_000  # type: ignore[attr-defined]  # the simulation's
        await asyncio.sleep(30)
        assert await peer.drain() == [b"now", b"level", b"far"]
        assert "contradicted" not in caplog.text
        await peer.close()
        await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.seeds(6)
def test_what_was_acknowledged_survives_a_killed_process_and_a_power_cut(seed: int, power: bool) -> None:
    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        env = sim.env(disk=disk)
        host, broker = await started(sim, env, config())
        acknowledged: dict[bytes, int] = {}
        unknown = 0

        async def sender(number: int) -> None:
            nonlocal unknown
            peer = SimPeer(sim, broker.address, f"10.0.1.{number}")
            for count in range(200):
                body = b"%d-%d" % (number, count)
                try:
                    answer = await peer.host.run(
                        peer.client.request(
                            broker.address,
                            RemotingCommand.request(310, send_header(topic=f"T{count % 3}"), body=body),
                            2.0,
                        )
                    )
                except Exception:  # noqa: BLE001 - whatever the outcome, it is not an acknowledgement
                    unknown += 1
                    break
                assert answer.code == 0
                acknowledged[body] = 1
                if count % 20 == 7:
                    delayed = await peer.send(b"later-" + body, properties="DELAY\x013\x02")
                    if delayed.code == 0:
                        acknowledged[b"later-" + body] = 1
            await peer.close()

        tasks = [asyncio.create_task(sender(number)) for number in range(4)]
        await asyncio.sleep(0.02 + sim.loop.random.random() * 0.3)
        kill(host, disk, power=power)
        await asyncio.wait(tasks)
        for task in tasks:
            if (error := task.exception()) is not None:  # a delayed send cut off in the middle
                unknown += 1
                assert "10911" in str(error)
        assert acknowledged and unknown
        host, broker = await started(sim, env, config())
        assert broker.recovery is not None and not broker.recovery.clean
        await asyncio.sleep(20)
        peer = SimPeer(sim, broker.address)
        found: set[bytes] = set()
        for topic in ("T", "T0", "T1", "T2"):
            found.update(await peer.drain(topic))
        assert set(acknowledged) <= found
        await peer.close()
        await host.run(broker.close())

    simulate(main, seed)


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_costs_no_commit_that_the_timer_has_saved(power: bool) -> None:
    """Offsets, group settings and delay progress are written every ``offset_flush_interval`` (5 s)."""

    async def main(sim: Simulation) -> None:
        disk: SimDisk = sim.disk()
        env = sim.env(disk=disk)
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        await peer.send(b"now")
        await peer.send(b"later", properties="DELAY\x011\x02")
        assert (await peer.call(15, UpdateConsumerOffsetRequestHeader("g", "T", 0, 1))).code == 0
        await asyncio.sleep(5.5)
        assert (await peer.call(15, UpdateConsumerOffsetRequestHeader("g", "T", 0, 2))).code == 0
        kill(host, disk, power=power)
        host, broker = await started(sim, env, config())
        assert broker.offsets.query("g", "T", 0) == 1  # and 2 was younger than the last save
        assert broker.configs.get("g") is not None
        assert broker.delays.progress(1) == 1
        again = SimPeer(sim, broker.address, "10.0.0.8")
        assert await again.drain() == [b"now", b"later"]
        await peer.close()
        await again.close()
        await host.run(broker.close())

    simulate(main)


def test_a_full_disk_refuses_messages_and_nothing_else_until_there_is_room() -> None:
    async def main(sim: Simulation) -> None:
        disk: SimDisk = sim.disk(capacity=400_000)
        env = sim.env(disk=disk)
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        stored = 0
        while (answer := await peer.send(bytes(10_000))).code == 0:
            stored += 1
            assert stored < 100
        assert answer.code == 14 and "stor" in (answer.remark or "")
        assert len(await peer.drain()) == stored
        assert (await peer.call(34, body=heartbeat("c", "T"))).code == 0
        disk.capacity += 10_000_000
        await asyncio.sleep(5)
        codes = [(await peer.send(bytes(10_000))).code for _ in range(3)]
        assert codes[-1] == 0
        count = len(await peer.drain())
        assert count == stored + codes.count(0)
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_news_that_never_match_do_not_make_a_hold_longer() -> None:
    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env(), config())
        peer, other = SimPeer(sim, broker.address), SimPeer(sim, broker.address, "10.0.0.8")
        await peer.send(properties="TAGS\x01A\x02")
        start = sim.loop.time()
        waiting = asyncio.create_task(other.pull("T", 0, 1, subscription="B", suspend_timeout_millis=5000))
        await asyncio.sleep(0.1)  # it is parked now
        while not waiting.done():
            await peer.send(properties="TAGS\x01A\x02")
            await peer.call(310, send_header(properties="TAGS\x01C\x02", queue_id=0))
            await asyncio.sleep(0.03)
        answer = await waiting
        assert answer.code in (19, 20) and 4.9 < sim.loop.time() - start < 5.3
        await peer.close()
        await other.close()
        await host.run(broker.close())

    simulate(main)


def test_a_message_that_can_never_be_delivered_stops_nothing_behind_it(caplog: pytest.LogCaptureFixture) -> None:
    async def main(sim: Simulation) -> None:
        host, broker = await started(sim, sim.env(), config())
        peer = SimPeer(sim, broker.address)
        await peer.send(b"good")
        for properties in (b"", b"REAL_TOPIC\x01../x\x02REAL_QID\x010\x02", b"REAL_TOPIC\x01T\x02REAL_QID\x01-5\x02"):
            broker.store.append(
                "SCHEDULE_TOPIC_XXXX", 0, b"bad", properties, flag=0, sys_flag=0, born_timestamp=0,
                born_host=bytes(8), tags_code=1, done=lambda result: None,
            )  # fmt: skip
        await peer.send(b"later", properties="DELAY\x011\x02")
        await asyncio.sleep(3)
        assert await peer.drain() == [b"good", b"later"]
        assert broker.delays.progress(1) == 4 and broker.delays.in_flight == 0
        await peer.close()
        await host.run(broker.close())

    simulate(main)
    assert caplog.text.count("cannot be delivered") == 3


@pytest.mark.parametrize("timer", [False, True], ids=["level", "timer"])
@pytest.mark.parametrize("seed", range(3))
def test_progress_of_delays_never_outlives_their_copies(seed: int, timer: bool) -> None:
    """``flush="async"``: a power cut may take what came last. A message that was durable for long and became due just
    before is none of that, although its copy is gone and its progress had been saved."""
    lazy = StoreConfig(
        segment_size=64 * 1024, min_free=64 * 1024, flush="async", flush_interval=100, checkpoint_interval=600
    )

    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        env = sim.env(disk=disk)
        settings = config(store=lazy, offset_flush_interval=1.0)
        host, broker = await started(sim, env, settings)
        peer = SimPeer(sim, broker.address)
        due = "TIMER_DELAY_SEC\x01300\x02" if timer else "DELAY\x019\x02"
        assert (await peer.send(b"waits", properties=due)).code == 0
        await asyncio.sleep(306)  # due, and progress saved
        assert await peer.drain() == [b"waits"]
        for number in range(3):
            assert (await peer.send(b"%d" % number, properties="DELAY\x011\x02")).code == 0
            await asyncio.sleep(2.5)
        assert broker.store._log.synced < broker.store._log.written
        kill(host, disk, power=True)
        host, broker = await started(sim, env, settings)
        await peer.close()
        peer = SimPeer(sim, broker.address, "10.0.0.8")
        await asyncio.sleep(2)
        assert b"waits" in await peer.drain()
        # Offsets that are given again are waited for again.
        assert (await peer.send(b"new", properties="DELAY\x011\x02")).code == 0
        await asyncio.sleep(2)
        assert b"new" in await peer.drain()
        await peer.close()
        await host.run(broker.close())

    simulate(main, seed)


def test_delayed_messages_wait_for_room_on_a_full_disk() -> None:
    async def main(sim: Simulation) -> None:
        disk: SimDisk = sim.disk(capacity=1_000_000)
        host, broker = await started(sim, sim.env(disk=disk), config())
        peer = SimPeer(sim, broker.address)
        await peer.send(b"later", properties="DELAY\x015\x02")
        while (await peer.send(bytes(10_000), queue_id=1)).code == 0:
            pass
        refused = 0
        while refused < 5:  # to the last byte: space is looked for again now and then, and small ones still fit
            refused = refused + 1 if (await peer.send(b"", queue_id=1)).code else 0
            await asyncio.sleep(0.3 if refused else 0)
        await asyncio.sleep(70)
        assert await peer.drain() == [] and broker.delays.in_flight == 1
        disk.capacity += 10_000_000
        await asyncio.sleep(5)
        assert await peer.drain() == [b"later"]
        await peer.close()
        await host.run(broker.close())

    simulate(main)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_level_whose_messages_found_no_room_is_delivered_when_there_is(
    restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many of the levels before it were due with them, at a start, or when they came."""
    for module in due, schedule:
        monkeypatch.setattr(module, "MAX_IN_FLIGHT", 2)

    async def main(sim: Simulation) -> None:
        env = sim.env()
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        await asyncio.gather(*[peer.send(properties="DELAY\x011\x02") for _ in range(5)])
        if restarted:
            await peer.send(properties="DELAY\x012\x02")
            await host.run(broker.close())
            await asyncio.sleep(60)
            host, broker = await started(sim, env, config())
        else:
            assert broker.parts is not None
            broker.parts.delivery._refused = True  # the store takes none of the first level
            await asyncio.sleep(1)
            assert broker.delays.in_flight == 2 and broker.delays.is_idle(2)
            await peer.send(properties="DELAY\x012\x02")
        await asyncio.sleep(60)
        assert len(await peer.drain()) == 6
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_levels_of_which_more_is_due_than_may_be_in_flight_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a short delay had much to deliver, longer ones waited for the last of it."""
    for module in due, schedule:
        monkeypatch.setattr(module, "MAX_IN_FLIGHT", 2)

    async def main(sim: Simulation) -> None:
        env = sim.env()
        host, broker = await started(sim, env, config())
        peer = SimPeer(sim, broker.address)
        for level in (1, 2, 3):
            await asyncio.gather(*[peer.send(b"%d" % level, properties=f"DELAY\x01{level}\x02") for _ in range(20)])
        await host.run(broker.close())
        await asyncio.sleep(60)
        host, broker = await started(sim, env, config())
        await asyncio.sleep(10)
        found = await peer.drain()
        assert [found.count(body) for body in (b"1", b"2", b"3")] == [20, 20, 20]
        assert max(found[:30].count(body) for body in (b"1", b"2", b"3")) <= 12
        await peer.close()
        await host.run(broker.close())

    simulate(main)


def test_nothing_is_stored_in_a_topic_and_then_deleted_with_it() -> None:
    """Whoever deletes it waits for name servers, one of which may not answer; others do not know that."""

    async def main(sim: Simulation) -> None:
        names_host = sim.host("10.0.0.5")
        nameserver = NameServer(sim.env(), NameServerConfig(host="10.0.0.5", port=9876, open_registration=True))
        await names_host.run(nameserver.start())
        host, broker = await started(sim, sim.env(), config(host="127.0.0.1", nameservers=("10.0.0.5:9876",)))
        peer, other = SimPeer(sim, broker.address, "127.0.0.1"), SimPeer(sim, broker.address, "127.0.0.1")
        assert (await peer.send(b"deleted")).code == 0
        sim.network.partition(["127.0.0.1"], ["10.0.0.5"])
        deleting = asyncio.ensure_future(peer.call(215, DeleteTopicRequestHeader("T")))
        await asyncio.sleep(0.1)
        assert not deleting.done(), deleting.result()
        assert (await other.send(b"kept")).code == 0
        assert (await deleting).code == 0
        assert await other.drain() == [b"kept"]
        await peer.close()
        await other.close()
        await host.run(broker.close())
        await names_host.run(nameserver.close())

    simulate(main)


@pytest.mark.parametrize(
    ("code", "header", "body", "is_so"),
    [
        (17, CreateTopicRequestHeader("Made", "TBW102", 3, 3, 6, "SINGLE_TAG", order=False), b"",
         lambda broker: "Made" in broker.topics),
        (207, DeleteSubscriptionGroupRequestHeader("g", clean_offset=True), b"",
         lambda broker: broker.configs.get("g") is None and broker.offsets.query("g", "T", 0) is None),
        (353, UpdateGroupForbiddenRequestHeader("g", "T", readable=False), b"",
         lambda broker: ("g", "T") in broker.configs.forbidden),
        (25, None, encode_configuration({"transactionCheckMax": "3"}),
         lambda broker: broker.transactions.max_checks == 3),
        (314, CloneGroupOffsetRequestHeader("g", "h", "T", offline=True), b"",
         lambda broker: broker.offsets.query("h", "T", 0) == 1 and broker.configs.get("h") is not None),
    ],
    ids=["topic", "group", "forbidden", "settings", "clone"],
)  # fmt: skip
def test_a_change_asked_for_again_is_durable_when_it_is_answered(
    code: int, header: Any, body: bytes, is_so: Callable[[Broker], bool]
) -> None:
    """Though the first request, which changed it, could not be recorded."""

    async def main(sim: Simulation) -> None:
        disk: SimDisk = sim.disk()
        env = sim.env(disk=disk)
        host, broker = await started(sim, env, config(host="127.0.0.1"))
        peer = SimPeer(sim, broker.address, "127.0.0.1")
        await peer.send()
        assert (await peer.call(15, UpdateConsumerOffsetRequestHeader("g", "T", 0, 1))).code == 0
        await asyncio.sleep(6.0)
        disk.fail()
        assert (await peer.call(code, header, body)).code != 0
        assert (await peer.call(code, header, body)).code == 0
        kill(host, disk, power=True)
        host, broker = await started(sim, env, config(host="127.0.0.1"))
        assert is_so(broker)
        await peer.close()
        await host.run(broker.close())

    simulate(main)
