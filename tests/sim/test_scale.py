"""Many queues over many consumers: a thousand over fifty, and in a plain run a fifth of it."""

from __future__ import annotations

import asyncio

import pytest

from aiorocket.testing import SimCluster, Simulation, check, checkers, simulate

#: Queues and members, by seed.
SIZES = [(200, 20), (1000, 50)]


@pytest.mark.seeds(2)
def test_many_queues_are_shared_evenly_and_survive_a_lost_member(seed: int) -> None:
    """What it costs is bounded by arithmetic, not by this machine's speed: requests per member and minute."""

    queues, many = SIZES[min(seed, 1)]

    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", queues)
            members = [await cluster.consumer("g", "t", start=False) for _ in range(many)]
            await asyncio.gather(*(member.start() for member in members))
            # The last member's start is followed by one round of everybody, at once.
            await asyncio.sleep(5)
            owners = cluster.owners("g", "t")
            assert len(owners) == queues
            assert all(len(each) == 1 for each in owners.values())
            assert {len(member.held("t")) for member in members} == {queues // many}
            sender = await cluster.producer()
            await asyncio.gather(*(sender.send("t", f"m{number}") for number in range(queues)))
            await asyncio.sleep(1)
            assert len(cluster.history.of("finished")) == queues
            await asyncio.sleep(20)
            steps = sim.loop.steps
            await asyncio.sleep(30)
            # A poll of each queue every 15 s is nearly all there is: about 8 steps of the loop for each.
            assert sim.loop.steps - steps < (queues + 1) * 2 * 12
            members[7].kill()
            await asyncio.sleep(5)
            assert all(len(each) == 1 for each in cluster.owners("g", "t").values())
            await asyncio.gather(*(sender.send("t", f"n{number}") for number in range(queues)))
            await cluster.settled({"g": ["t"]})
            # As a datacentre does it: half of them at once.
            await asyncio.gather(*(member.stop() for member in members[:7] + members[8 : many // 2]))
            await asyncio.sleep(5)
            owners = cluster.owners("g", "t")
            assert len(owners) == queues
            assert all(len(each) == 1 for each in owners.values())
        check(cluster.history, checkers.CLUSTER)

    simulate(scenario, seed)


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
