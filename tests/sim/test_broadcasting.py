"""Broadcasting through power cuts: each member has its own position, in a file of its own disk."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from aiorocket.client.message import Message
from aiorocket.config import ClientConfig, ConsumerConfig
from aiorocket.testing import History, SimCluster, Simulation, check, checkers, simulate

READER = ConsumerConfig(message_model="broadcasting", offset_store_dir="offsets")
#: The file belongs to the client id, which must be the same after a restart.
STABLE = ClientConfig(instance="reader")


@pytest.mark.seeds(5)
def test_every_member_reads_everything_and_goes_on_from_its_own_file(seed: int) -> None:
    async def scenario(sim: Simulation) -> None:
        draw = sim.loop.random

        async def read(message: Message) -> None:
            await asyncio.sleep(draw.uniform(0, 3))

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 3)
            sender = await cluster.producer()
            members = [await cluster.consumer("g", "t", read, config=READER, client=STABLE) for _ in range(3)]
            for number in range(150):
                await sender.send("t", f"m{number}", timeout=10)
                if number % 20 == 10:
                    member = draw.choice(members)
                    if member.running:
                        # In the middle of anything, also of writing the file.
                        member.kill(power_cut=draw.random() < 0.8)
                    else:
                        await member.start()
                if number == 75:
                    await cluster.brokers[0].restart(power_cut=True)
                await asyncio.sleep(draw.uniform(0, 2))
            for member in members:
                if not member.running:
                    await member.start()
            await asyncio.sleep(60)
            # What is read again lies behind the last flush, ten seconds at most before a member died.
            assert len(cluster.history.of("delivered")) < 3 * 150 * 2
        for member in members:
            own = [each for each in cluster.history if each.what == "acknowledged" or each.host == member.address]
            check(History(events=own), [checkers.no_message_lost, checkers.order_per_queue, checkers.offsets_stable])
            # Of one member: what the others read as well is no repeat. Nobody has to be missed first.
            own += [each for each in cluster.history if each.what == "fault"]
            own.sort(key=lambda each: each.time)
            check(History(events=own), [partial(checkers.duplicates_explained, grace=5)])
        check(cluster.history, [checkers.sends_end, checkers.nothing_invented])

    simulate(scenario, seed)
