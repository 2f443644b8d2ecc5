"""Wall clocks that are wrong or jump: nothing but stored stamps may depend on them."""

from __future__ import annotations

import asyncio

import pytest

from aiorocket.testing import SimCluster, Simulation, check, checkers, simulate

STEPS = [3600.0, -3600.0, -400_000_000.0, 86_400.0 * 365]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.seeds(2)
def test_a_clock_that_jumps_anywhere_moves_no_queue_and_delays_no_message(step: float, seed: int) -> None:
    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim, nameservers=2) as cluster:
            await cluster.create_topic("t", 4)
            members = [await cluster.consumer("g", "t", skew_ms=skew) for skew in (0, -7_200_000)]
            sender = await cluster.producer(skew_ms=5_000_000)
            await asyncio.sleep(60)
            held = [member.held("t") for member in members]
            machines = [*members, sender, *cluster.nameservers, *cluster.brokers]
            for number in range(60):
                if number % 10 == 5:
                    machines.pop(seed % len(machines)).step_clock(step)
                await sender.send("t", f"m{number}")
                await asyncio.sleep(5)
                assert [member.held("t") for member in members] == held
            acknowledged = {event.key: event.time for event in cluster.history.of("acknowledged")}
            delivered = {event.key: event.time for event in cluster.history.of("delivered")}
            assert len(acknowledged) == 60
            assert max(delivered[key] - time for key, time in acknowledged.items()) < 0.1
            assert len(cluster.history.of("delivered")) == 60
        check(cluster.history, checkers.CLUSTER)

    simulate(scenario, seed)


@pytest.mark.parametrize("step", STEPS)
def test_a_broker_whose_clock_was_set_while_it_was_off_starts_and_goes_on(step: float) -> None:
    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 2)
            await cluster.consumer("g", "t")
            sender = await cluster.producer()
            for number in range(20):
                await sender.send("t", f"m{number}")
            broker = cluster.brokers[0]
            broker.kill(power_cut=True)
            broker.step_clock(step)
            await broker.start()
            for number in range(20, 40):
                await sender.send("t", f"m{number}", timeout=10)
            await cluster.settled({"g": ["t"]})
            stamps = [record.store_timestamp for record in broker.messages("t")]
            assert len(stamps) >= 40
        check(cluster.history, checkers.CLUSTER)

    simulate(scenario)
