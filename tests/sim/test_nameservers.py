"""Name servers that go away: who has a route keeps working, who needs one waits or is told."""

from __future__ import annotations

import asyncio

import pytest

from aiorocket.errors import SendError
from aiorocket.testing import SimCluster, Simulation, check, checkers, simulate


@pytest.mark.seeds(4)
def test_known_routes_work_without_any_name_server(seed: int) -> None:
    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim, nameservers=2) as cluster:
            await cluster.create_topic("t", 4)
            members = [await cluster.consumer("g", "t") for _ in range(2)]
            sender = await cluster.producer()
            await sender.send("t", "m")
            for server in cluster.nameservers:
                server.kill(power_cut=bool(seed % 2))
            for number in range(60):
                await sender.send("t", f"m{number}")
                await asyncio.sleep(10)
            assert not cluster.history.of("unknown", "rejected")
            outcome = await sender.send("nobody-knows-it", "lost", timeout=2)
            assert isinstance(outcome, SendError)
            assert not outcome.may_be_stored
            # A member that leaves is replaced without the name servers too.
            members[0].kill()
            await asyncio.sleep(60)
            assert len(members[1].held("t")) == 4
            for server in cluster.nameservers:
                await server.start()
            await asyncio.sleep(60)
            await sender.send("t", "afterwards")
            await members[0].start()
            await cluster.settled({"g": ["t"]})
            await asyncio.sleep(40)
            assert sorted(len(member.held("t")) for member in members) == [2, 2]
        check(cluster.history, checkers.CLUSTER)

    simulate(scenario, seed)


@pytest.mark.seeds(3)
def test_one_of_two_name_servers_is_enough_for_everything(seed: int) -> None:
    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim, nameservers=2) as cluster:
            cluster.nameservers[seed % 2].kill(power_cut=True)
            await cluster.create_topic("t", 4)
            await cluster.consumer("g", "t")
            sender = await cluster.producer()
            for number in range(20):
                await sender.send("t", f"m{number}")
            await cluster.settled({"g": ["t"]})
            assert not cluster.history.of("unknown", "rejected")
        check(cluster.history, checkers.CLUSTER)

    simulate(scenario, seed)


@pytest.mark.seeds(3)
def test_a_start_waits_for_a_name_server_that_comes_up_in_time(seed: int) -> None:
    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 4)
            server = cluster.nameservers[0]
            await server.stop()
            member = await cluster.consumer("g", "t", start=False)
            starting = asyncio.ensure_future(member.start())
            await asyncio.sleep(4)
            assert not starting.done()
            await server.start()
            await starting
            assert len(member.held("t")) == 4

    simulate(scenario, seed)


@pytest.mark.seeds(3)
def test_a_broker_that_joins_is_read_and_written_within_two_route_intervals(seed: int) -> None:
    async def scenario(sim: Simulation) -> None:
        cluster = SimCluster(sim, brokers=2)
        await cluster.nameservers[0].start()
        await cluster.brokers[0].start()
        await cluster.create_topic("t", 4)
        member = await cluster.consumer("g", "t")
        sender = await cluster.producer()
        await sender.send("t", "m")
        await cluster.brokers[1].start()
        await cluster.create_topic("t", 4)
        await asyncio.sleep(2 * 30)
        assert len(member.held("t")) == 8
        for number in range(16):
            await sender.send("t", f"m{number}")
        assert {event.queue.broker_name for event in cluster.history.of("acknowledged")[-16:] if event.queue} == {
            "broker-1", "broker-2"
        }  # fmt: skip
        await cluster.brokers[1].stop()
        for number in range(16, 32):
            await sender.send("t", f"m{number}")
            await asyncio.sleep(2)
        assert not cluster.history.of("rejected")
        await cluster.brokers[1].start()
        await cluster.settled({"g": ["t"]})
        await cluster.close()
        check(cluster.history, checkers.CLUSTER)

    simulate(scenario, seed)
