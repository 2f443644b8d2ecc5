"""Groups with filters through broker restarts: each gets what it asked for, all of it, and stays behind nothing."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from aiorocket.testing import SimCluster, Simulation, check, checkers, simulate

_TAGS = ("red", "green", "blue", None)


@pytest.mark.seeds(5)
def test_a_group_gets_what_matches_and_has_no_lag_of_what_does_not(seed: int) -> None:
    async def scenario(sim: Simulation) -> None:
        wanted: dict[str, set[str]] = {"tags": set(), "sql": set()}
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 2)
            await cluster.consumer("tags", "t", tags="red || blue")
            await cluster.consumer("sql", "t", sql="price BETWEEN 10 AND 19 AND TAGS IS NOT NULL")
            sender = await cluster.producer()
            for number in range(120):
                tag, price, key = _TAGS[number % 4], number % 30, f"m{number}"
                await sender.send("t", key, tag=tag, properties={"price": str(price)})
                if tag in ("red", "blue"):
                    wanted["tags"].add(key)
                if tag is not None and 10 <= price <= 19:
                    wanted["sql"].add(key)
                if number % 40 == 25:
                    how = sim.loop.random.choice((None, False, True))
                    await cluster.brokers[0].restart(power_cut=how, pause=sim.loop.random.uniform(0.1, 20))
                await asyncio.sleep(sim.loop.random.uniform(0, 1))
            await cluster.settled({group: ["t"] for group in wanted}, within=120)
        history = cluster.history
        stored = set(history.keys("acknowledged"))
        maybe = stored | set(history.keys("unknown"))
        for group, keys in wanted.items():
            got = {event.key for event in history.of("finished") if event.group == group and event.outcome == "ok"}
            assert keys & stored <= got <= keys & maybe
        check(history, [checkers.sends_end, checkers.offsets_stable, checkers.order_per_queue])
        check(history, [checkers.nothing_invented, partial(checkers.duplicates_explained, grace=5)])

    simulate(scenario, seed)
