"""A thousand queues over fifty consumers."""

from __future__ import annotations

import asyncio

from aiorocket.testing import SimCluster, Simulation, check, checkers, simulate

QUEUES = 1000
MEMBERS = 50


def test_a_thousand_queues_are_shared_evenly_and_survive_a_lost_member() -> None:
    """What it costs is bounded by arithmetic, not by this machine's speed: requests per member and minute."""

    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", QUEUES)
            members = [await cluster.consumer("g", "t", start=False) for _ in range(MEMBERS)]
            await asyncio.gather(*(member.start() for member in members))
            # The last member's start is followed by one round of everybody, at once.
            await asyncio.sleep(5)
            owners = cluster.owners("g", "t")
            assert len(owners) == QUEUES
            assert all(len(each) == 1 for each in owners.values())
            assert {len(member.held("t")) for member in members} == {QUEUES // MEMBERS}
            sender = await cluster.producer()
            await asyncio.gather(*(sender.send("t", f"m{number}") for number in range(QUEUES)))
            await asyncio.sleep(1)
            assert len(cluster.history.of("finished")) == QUEUES
            await asyncio.sleep(20)
            steps = sim.loop.steps
            await asyncio.sleep(30)
            # A poll of each queue every 15 s is nearly all there is: about 8 steps of the loop for each.
            assert sim.loop.steps - steps < (QUEUES + 1) * 2 * 12
            members[7].kill()
            await asyncio.sleep(5)
            assert all(len(each) == 1 for each in cluster.owners("g", "t").values())
            await asyncio.gather(*(sender.send("t", f"n{number}") for number in range(QUEUES)))
            await cluster.settled({"g": ["t"]})
            # As a datacentre does it: half of them at once.
            await asyncio.gather(*(member.stop() for member in members[:7] + members[8:25]))
            await asyncio.sleep(5)
            owners = cluster.owners("g", "t")
            assert len(owners) == QUEUES
            assert all(len(each) == 1 for each in owners.values())
        check(cluster.history, checkers.CLUSTER)

    simulate(scenario)


def test_many_first_sends_at_once_open_the_topic_once() -> None:
    """Each used to build the list of all queues for itself: 2,000 sends to 1,000 queues made 2,000,000 targets."""

    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 8)
            sender = await cluster.producer()

            async def main() -> None:
                opened = await asyncio.gather(*(sender.producer.sender.open_topic("t", 3.0) for _ in range(100)))
                assert len(set(map(id, opened))) == 1

            await sender.host.run(main())

    simulate(scenario)
