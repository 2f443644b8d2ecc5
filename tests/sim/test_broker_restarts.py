"""A broker that ends in the middle of something: a send, a pull, a commit, a send-back, a heartbeat, a rebalance, the
renewal of locks, the start of a member."""

from __future__ import annotations

import asyncio

import pytest

from aiorocket.testing import SimCluster, Simulation, check, checkers, simulate
from tests.sim.restarts import PHASES, nothing_acknowledged_is_lost


@pytest.mark.parametrize("how", [None, False, True], ids=["stop", "kill", "power-cut"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.seeds(1)  # and another in harness/test_broker_restarts.py
def test_nothing_acknowledged_is_lost(phase: str, how: bool | None, seed: int) -> None:
    nothing_acknowledged_is_lost(phase, how, seed)


@pytest.mark.seeds(6)
def test_a_broker_that_is_cut_off_again_and_again_keeps_its_promises(seed: int) -> None:
    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 2)
            await cluster.consumer("g", "t")
            sender = await cluster.producer()
            going = True

            async def send_all() -> None:
                number = 0
                while going:
                    await asyncio.gather(*(sender.send("t", f"m{number + part}", timeout=1) for part in range(3)))
                    number += 3
                    await asyncio.sleep(0.05)

            sending = asyncio.ensure_future(send_all())
            for _ in range(8):
                await asyncio.sleep(sim.loop.random.uniform(0.05, 2))
                await cluster.brokers[0].restart(power_cut=True, pause=sim.loop.random.uniform(0.1, 2))
            going = False
            await sending
            await cluster.settled({"g": ["t"]})
        check(cluster.history, checkers.CLUSTER)

    simulate(scenario, seed)
