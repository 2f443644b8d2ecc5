"""Long polls that nobody answers: their renewal, and links on which one direction has gone silent."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from aiorocket.remoting.connection import Connection
from aiorocket.testing import SimCluster, Simulation, check, checkers, simulate
from aiorocket_protocol import HeartbeatData, RemotingCommand, RequestCode, decode_body

HOLD = 15.0
PULL_TIMEOUT = 30.0
EXPIRY = 120.0


@pytest.mark.seeds(3)
def test_a_quiet_queue_is_polled_every_fifteen_seconds_and_no_more(seed: int) -> None:
    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 4)
            pulls: Counter[int] = Counter()
            cluster.brokers[0].faults.watch(lambda _, request: pulls.update([request.code]))
            await cluster.consumer("g", "t")
            await asyncio.sleep(60)
            pulls.clear()
            await asyncio.sleep(600)
            # Four queues and the retry queue; a round takes the hold and the way there and back.
            assert 5 * (600 / (HOLD + 0.1) - 1) <= pulls[RequestCode.PULL_MESSAGE] <= 5 * (600 / HOLD + 1)
            assert pulls[RequestCode.HEART_BEAT] == 20

    simulate(scenario, seed)


@pytest.mark.seeds(3)
def test_a_message_wakes_the_poll_that_waits_for_it(seed: int) -> None:
    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 4)
            await cluster.consumer("g", "t")
            sender = await cluster.producer()
            for number in range(40):
                await asyncio.sleep(3.7)
                await sender.send("t", f"m{number}")
            await asyncio.sleep(1)
            acknowledged = {event.key: event.time for event in cluster.history.of("acknowledged")}
            delivered = {event.key: event.time for event in cluster.history.of("delivered")}
            assert max(delivered[key] - time for key, time in acknowledged.items()) < 0.05
        check(cluster.history, checkers.CLUSTER)

    simulate(scenario, seed)


@pytest.mark.seeds(4)
def test_a_client_that_hears_nothing_notices_within_its_pull_timeout(seed: int) -> None:
    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            broker = cluster.brokers[0]
            await cluster.create_topic("t", 2)
            member = await cluster.consumer("g", "t")
            sender = await cluster.producer()
            await asyncio.sleep(40 + seed * 5)
            cluster.silence(broker.address, member.address)
            begun = sim.loop.time()
            while not any(queue.last_error for queue in member.consumer.state().queues):
                await asyncio.sleep(1)
            assert sim.loop.time() - begun <= PULL_TIMEOUT + 1
            await sender.send("t", "unheard")
            await asyncio.sleep(60)
            assert not cluster.history.of("delivered")
            cluster.heal()
            await asyncio.sleep(10)
            assert [event.key for event in cluster.history.of("finished")] == ["unheard"]
        check(cluster.history, checkers.CLUSTER)

    simulate(scenario, seed)


@pytest.mark.seeds(4)
def test_the_queues_of_a_member_that_says_nothing_are_taken_over_when_it_expires(seed: int) -> None:
    """Its socket stays open at the broker, so only the 120 s without a sign of life end its membership."""

    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            broker = cluster.brokers[0]
            await cluster.create_topic("t", 4)
            mute = await cluster.consumer("g", "t")
            other = await cluster.consumer("g", "t")
            sender = await cluster.producer()
            beats: dict[str, float] = {}

            def watch(connection: Connection, request: RemotingCommand) -> None:
                if request.code == RequestCode.HEART_BEAT:
                    client_id = decode_body(HeartbeatData, request.body, request.serialize_type).client_id
                    beats[client_id] = sim.loop.time()

            broker.faults.watch(watch)
            await asyncio.sleep(60 + seed * 7)
            assert len(other.held("t")) == 2
            cluster.silence(mute.address, broker.address)
            for number in range(8):
                await sender.send("t", f"m{number}")
            while len(other.held("t")) < 4:
                await asyncio.sleep(0.1)
            # The broker tells the others at once, and they rebalance at once.
            missed = beats[mute.client.client_id] + EXPIRY
            assert missed <= sim.loop.time() <= missed + 0.2
            await asyncio.sleep(30)
            assert {event.key for event in cluster.history.of("finished")} == {f"m{n}" for n in range(8)}
            cluster.heal()
            await asyncio.sleep(60)
            assert all(len(owners) == 1 for owners in cluster.owners("g", "t").values())
            assert len(mute.held("t")) == 2
        check(cluster.history, checkers.CLUSTER)

    simulate(scenario, seed)
