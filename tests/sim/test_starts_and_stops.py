"""Members that are started and stopped at any moment, beside a broker that comes and goes: nothing half-started is
left, a stop ends within its bound, and the group loses nothing."""

from __future__ import annotations

import asyncio

import pytest

from aiorocket.client.message import Message
from aiorocket.config import ClientConfig, ConsumerConfig
from aiorocket.errors import RocketError
from aiorocket.testing import SimCluster, Simulation, check, checkers, simulate

DRAIN = 5.0
#: After the drain: the last commits and unlocks and the farewell to brokers that do not answer.
FAREWELL = 10.0


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
@pytest.mark.seeds(5)
def test_a_supervisor_that_starts_and_stops_at_any_moment(seed: int, orderly: bool) -> None:
    async def scenario(sim: Simulation) -> None:
        draw = sim.loop.random
        config = ConsumerConfig(drain_timeout=DRAIN)

        async def work(message: Message) -> None:
            # Some take longer than a stop waits for.
            await asyncio.sleep(draw.choice((0.01, 0.3, 2 * DRAIN)))

        async with SimCluster(sim, client=ClientConfig(start_timeout=5)) as cluster:
            await cluster.create_topic("t", 4)
            broker = cluster.brokers[0]
            members = [
                await cluster.consumer("g", "t", work, config=config, orderly=orderly, start=False) for _ in range(2)
            ]
            sending = asyncio.ensure_future(_send(cluster, 60))
            for _ in range(12):
                member = draw.choice(members)
                match draw.randrange(4):
                    case 0:
                        cluster.silence(broker.address, member.address)
                    case 1:
                        await broker.restart(power_cut=draw.choice((None, False, True)), pause=draw.uniform(0, 5))
                    case _:
                        cluster.heal()
                if not member.running:
                    starting = asyncio.ensure_future(member.start())
                    # It may not have come far.
                    await asyncio.wait([starting], timeout=draw.choice((0.001, 0.01, 1, 20)))
                    starting.cancel()
                    try:
                        await starting
                    except (asyncio.CancelledError, RocketError):
                        assert not member.running
                else:
                    begun = sim.loop.time()
                    await member.stop()
                    assert sim.loop.time() - begun <= DRAIN + FAREWELL
                await asyncio.sleep(draw.choice((0, 0.01, 5)))
            cluster.heal()
            await sending
            for member in members:
                if member.running:
                    await member.stop()
            # Nobody who gave up on a start is still a member; a silent one was missed after two minutes.
            await asyncio.sleep(130)
            assert [group for group in broker.broker.consumers if group.client_ids()] == []
            await members[0].start()
            await cluster.settled({"g": ["t"]})
        check(cluster.history, checkers.CLUSTER)
        if orderly:
            check(cluster.history, [lambda history: checkers.one_at_a_time(history, "g")])

    simulate(scenario, seed)


async def _send(cluster: SimCluster, count: int) -> None:
    sender = await cluster.producer()
    for number in range(count):
        await sender.send("t", f"m{number}", timeout=10)
        await asyncio.sleep(1)
