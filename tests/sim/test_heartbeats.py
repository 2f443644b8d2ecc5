"""Heartbeats that are lost, come twice or come late, and a client id that is used twice."""

from __future__ import annotations

import asyncio

import pytest

from aiorocket.config import ClientConfig
from aiorocket.errors import NotConnectedError
from aiorocket.testing import SimCluster, Simulation, check, checkers, simulate


@pytest.mark.seeds(3)
def test_three_lost_heartbeats_change_nothing(seed: int) -> None:
    """30 s apart, three of them lost make 120 s only with the fourth: the member stays, and nobody is told anything."""

    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 4)
            members = [await cluster.consumer("g", "t") for _ in range(2)]
            await asyncio.sleep(60)
            held = [member.held("t") for member in members]
            cluster.brokers[0].faults.next("HEART_BEAT", times=6, reply="SUCCESS")  # three of each
            for _ in range(150):
                await asyncio.sleep(1)
                assert [member.held("t") for member in members] == held
            assert cluster.brokers[0].faults.pending("HEART_BEAT") == 0

    simulate(scenario, seed)


@pytest.mark.seeds(3)
def test_a_member_that_was_forgotten_is_back_with_its_next_heartbeat(seed: int) -> None:
    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 4)
            members = [await cluster.consumer("g", "t") for _ in range(2)]
            sender = await cluster.producer()
            await asyncio.sleep(60)
            cluster.fault("10.0.1.1", "heartbeats are answered and not noted")
            cluster.brokers[0].faults.next("HEART_BEAT", times=60, reply="SUCCESS")
            for number in range(100):
                await sender.send("t", f"m{number}")
                await asyncio.sleep(3)
            cluster.brokers[0].faults.clear()
            cluster.history.add("healed", "10.0.1.1")
            await asyncio.sleep(60)
            assert sorted(len(member.held("t")) for member in members) == [2, 2]
            await cluster.settled({"g": ["t"]})
        check(cluster.history, checkers.CLUSTER)

    simulate(scenario, seed)


@pytest.mark.seeds(3)
def test_heartbeats_that_come_twice_are_no_change_of_the_group(seed: int) -> None:
    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 4)
            members = [await cluster.consumer("g", "t") for _ in range(3)]
            sender = await cluster.producer()
            await asyncio.sleep(60)
            cluster.brokers[0].faults.next("HEART_BEAT", times=1000, duplicate=True)
            held = [member.held("t") for member in members]
            begun = len(cluster.history)
            for number in range(100):
                await sender.send("t", f"m{number}")
                await asyncio.sleep(3)
            assert [member.held("t") for member in members] == held
            keys = [event.key for event in cluster.history.events[begun:] if event.what == "delivered"]
            assert len(keys) == len(set(keys)) == 100
        check(cluster.history, checkers.CLUSTER)

    simulate(scenario, seed)


@pytest.mark.seeds(3)
def test_a_late_heartbeat_of_a_member_that_left_makes_no_ghost_for_ever(seed: int) -> None:
    """It arrives after the UNREGISTER_CLIENT: the others give a share to nobody, for as long as the entry lives."""

    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 4)
            leaver = await cluster.consumer("g", "t")
            stayer = await cluster.consumer("g", "t")
            sender = await cluster.producer()
            await asyncio.sleep(25)
            cluster.brokers[0].faults.next("HEART_BEAT", times=3, delay=8.0)
            await asyncio.sleep(6)
            await leaver.stop()
            for number in range(20):
                await sender.send("t", f"m{number}")
            await asyncio.sleep(120 + 45)
            assert len(stayer.held("t")) == 4
            await cluster.settled({"g": ["t"]})
        check(cluster.history, checkers.CLUSTER)

    simulate(scenario, seed)


@pytest.mark.seeds(4)
def test_one_client_id_used_twice_loses_nothing(seed: int) -> None:
    """Two processes on one machine with the same instance name are one member to the broker, and each reads all: a
    mistake that costs duplicates, never messages. When one of them ends, the other goes on."""

    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 4)
            same = ClientConfig(instance="same")
            first = await cluster.consumer("g", "t", client=same, address="10.7.0.1")
            second = await cluster.consumer("g", "t", client=same, address="10.7.0.1")
            third = await cluster.consumer("g", "t")
            sender = await cluster.producer()
            assert first.consumer.state().client_id == second.consumer.state().client_id
            for number in range(60):
                if number == 20:
                    await second.stop()
                await sender.send("t", f"m{number}")
                await asyncio.sleep(1)
            await asyncio.sleep(60)
            assert sorted((len(first.held("t")), len(third.held("t")))) == [2, 2]
            await cluster.settled({"g": ["t"]})
        check(cluster.history, [checkers.no_message_lost, checkers.offsets_stable, checkers.sends_end])

    simulate(scenario, seed)


def test_a_heartbeat_that_fails_at_once_is_not_waited_for_again() -> None:
    """The second caller comes after the first heartbeat has failed and before its callback has run: it used to wait
    for it without end, and without letting the loop turn."""

    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 1)
            member = await cluster.consumer("g", "t")

            async def main() -> None:
                client = member.client
                connection = await client.session.connection(cluster.brokers[0].endpoint)
                connection.close("by this test")
                first = asyncio.ensure_future(client.session._register(connection))
                await asyncio.sleep(0)
                outcomes = await asyncio.gather(first, client.session._register(connection), return_exceptions=True)
                assert [type(outcome) for outcome in outcomes] == [NotConnectedError, NotConnectedError]

            await member.host.run(main())

    simulate(scenario)
