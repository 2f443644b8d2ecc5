"""Rebalance storms: members that come and go faster than the group settles."""

from __future__ import annotations

import asyncio
import random

import pytest

from aiorocket.client.message import Message
from aiorocket.testing import SimCluster, SimMember, Simulation, check, checkers, simulate

REBALANCE = 20.0


@pytest.mark.seeds(10)
def test_every_queue_has_one_owner_two_rebalances_after_a_storm(seed: int) -> None:
    async def scenario(sim: Simulation) -> None:
        draw = random.Random(seed)

        async def work(message: Message) -> None:
            await asyncio.sleep(draw.uniform(0, 0.2))

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 8)
            sender = await cluster.producer()
            members = [await cluster.consumer("g", "t", work, start=number < 2) for number in range(6)]

            async def come_or_go(member: SimMember) -> None:
                if not member.running:
                    await member.start()
                elif draw.random() < 0.5:
                    await member.stop()
                else:
                    member.kill()

            for number in range(60):
                await sender.send("t", f"m{number}")
                if number % 3 == 0:
                    await come_or_go(draw.choice(members))
                await asyncio.sleep(draw.uniform(0, 2))
            if not any(member.running for member in members):
                await members[0].start()
            await asyncio.sleep(2 * REBALANCE)
            owners = cluster.owners("g", "t")
            assert len(owners) == 8
            assert all(len(each) == 1 for each in owners.values()), owners
            shares = [len(member.held("t")) for member in members if member.running]
            assert max(shares) - min(shares) <= 1
            await cluster.settled({"g": ["t"]})
        check(cluster.history, checkers.CLUSTER)

    simulate(scenario, seed)


@pytest.mark.seeds(4)
def test_a_planned_handover_repeats_only_what_was_running(seed: int) -> None:
    """A member that leaves in order commits first: each message has one successful call, but for those that were with
    a listener at that moment."""

    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 4)
            sender = await cluster.producer()
            first = await cluster.consumer("g", "t")
            await cluster.consumer("g", "t")
            await asyncio.sleep(30)
            for number in range(100):
                await sender.send("t", f"m{number}")
            await asyncio.sleep(0.5)
            await first.stop()
            for number in range(100, 200):
                await sender.send("t", f"m{number}")
            await asyncio.sleep(30)
            keys = [event.key for event in cluster.history.of("finished")]
            assert len(keys) == len(set(keys)) == 200
        check(cluster.history, checkers.CLUSTER)

    simulate(scenario, seed)
