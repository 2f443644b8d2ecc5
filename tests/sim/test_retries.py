"""Retries over hours: when each comes is arithmetic, also across a restart and a wall clock that steps."""

from __future__ import annotations

import asyncio

import pytest

from aiorocket.client.exits import Retry
from aiorocket.client.message import Message
from aiorocket.testing import SimCluster, Simulation, check, checkers, simulate


@pytest.mark.seeds(6)
def test_a_retry_that_waits_survives_a_power_cut_and_is_no_earlier_and_no_second_time(seed: int) -> None:
    async def scenario(sim: Simulation) -> None:
        async def fail_twice(message: Message) -> None:
            if message.attempt < 3:
                raise Retry(after=600)

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 2)
            await cluster.consumer("g", "t", fail_twice)
            sender = await cluster.producer()
            for number in range(20):
                await sender.send("t", f"m{number}")
            await asyncio.sleep(300)
            await cluster.brokers[0].restart(power_cut=True, pause=20 + seed)
            # The positions of the delay queues are saved every few seconds: cut again where some are out already.
            await asyncio.sleep(279.9 - seed)
            await cluster.brokers[0].restart(power_cut=bool(seed % 2), pause=5)
            await asyncio.sleep(700)
            await cluster.settled({"g": ["t"]})
            deliveries = cluster.history.of("delivered")
            first = {event.key: event.time for event in deliveries if event.attempt == 1}
            for attempt in (2, 3):
                times = {event.key: event.time for event in deliveries if event.attempt == attempt}
                assert times.keys() == first.keys()
                assert all(time - first[key] >= 600 * (attempt - 1) for key, time in times.items())
            assert cluster.note_dead_letters("g")["g"] == []
        check(cluster.history, checkers.CLUSTER)

    simulate(scenario, seed)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (3600.0, 200.0),  # the stamp has passed
        (100.0, 500.0),
        (-100.0, 700.0),  # late by the step
        # Further away than the whole delay: RocketMQ takes such a stamp for due, or it would hold for an hour more.
        (-3600.0, 200.0),
    ],
)
def test_a_stepped_wall_clock_shifts_a_delay_by_at_most_the_step(step: float, expected: float) -> None:
    """Delays are stored as wall-clock stamps, and the clock is looked at again every 10 s at least."""

    async def scenario(sim: Simulation) -> None:
        async def fail_once(message: Message) -> None:
            if message.attempt == 1:
                raise Retry(after=600)

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 1)
            await cluster.consumer("g", "t", fail_once)
            sender = await cluster.producer()
            await sender.send("t", "m")
            await asyncio.sleep(200)
            cluster.brokers[0].step_clock(step)
            await asyncio.sleep(1000)
            first, second = [event.time for event in cluster.history.of("delivered")]
            assert expected - 0.1 <= second - first <= expected + 10.1
        check(cluster.history, checkers.CLUSTER)

    simulate(scenario)


@pytest.mark.seeds(4)
def test_an_answer_to_a_send_back_that_is_lost_costs_a_second_try_never_the_message(seed: int) -> None:
    async def scenario(sim: Simulation) -> None:
        async def fail_once(message: Message) -> None:
            if message.attempt == 1:
                raise Retry

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 2)
            await cluster.consumer("g", "t", fail_once)
            sender = await cluster.producer()
            cluster.fault("10.0.1.1", "send-backs")
            faults = cluster.brokers[0].faults
            faults.next("CONSUMER_SEND_MSG_BACK", times=2, lose_answer=True)
            faults.next("CONSUMER_SEND_MSG_BACK", times=3, reply="SYSTEM_ERROR")
            faults.next("CONSUMER_SEND_MSG_BACK", times=2, drop=True)
            for number in range(10):
                await sender.send("t", f"m{number}")
            await cluster.settled({"g": ["t"]})
        check(cluster.history, checkers.CLUSTER)

    simulate(scenario, seed)
