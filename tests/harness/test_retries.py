"""Sixteen retries, which take hours: in virtual time too more work than a plain run has time for."""

from __future__ import annotations

import asyncio
from itertools import accumulate

import pytest

from aiorocket.client.exits import Retry
from aiorocket.client.message import Message
from aiorocket.config import DELAY_LEVELS
from aiorocket.testing import SimCluster, Simulation, check, checkers, simulate

pytestmark = pytest.mark.harness

#: Level 3 after the first failure, one level more after each further one: 16 retries, then the dead letters.
PAUSES = DELAY_LEVELS[2:]
ALL = sum(PAUSES)


async def fail(message: Message) -> None:
    raise Retry


def test_sixteen_retries_take_four_hours_forty_five_and_end_in_the_dead_letters() -> None:
    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 1)
            await cluster.consumer("g", "t", fail)
            sender = await cluster.producer()
            await sender.send("t", "bad")
            await asyncio.sleep(ALL + 10)
            times = [event.time for event in cluster.history.of("delivered")]
            expected = list(accumulate(PAUSES, initial=times[0]))
            assert len(times) == 17
            # Each step may add the milliseconds of a send-back, a flush and a wake-up.
            assert all(0 <= time - due < 0.2 for time, due in zip(times, expected, strict=True))
            assert [event.attempt for event in cluster.history.of("delivered")] == list(range(1, 18))
            letters = cluster.note_dead_letters("g")["g"]
            assert [letter.body for letter in letters] == [b"bad"]
            await asyncio.sleep(DELAY_LEVELS[-1] + 60)
            assert len(cluster.history.of("delivered")) == 17
            assert cluster.brokers[0].lag("g", "%RETRY%g") == 0
        check(cluster.history, [*checkers.CLUSTER, lambda h: checkers.dead_letters_exact(h, "g", 17)])

    simulate(scenario)
