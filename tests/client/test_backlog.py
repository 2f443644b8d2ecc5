"""The line of pulls that will bring messages."""

from __future__ import annotations

import asyncio
import contextlib
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from aiorocket.client.backlog import Backlog
from aiorocket.testing import Simulation, simulate


@given(st.integers(0, 1 << 30), st.integers(1, 40), st.integers(1, 12))
def test_the_limit_holds_and_everybody_has_a_turn(seed: int, limit: int, pull_size: int) -> None:
    chance, waiting, most, turns = Random(seed), 0, 0, 0

    async def main(sim: Simulation) -> None:
        nonlocal waiting, most, turns
        backlog = Backlog(limit, pull_size, lambda: waiting)

        async def fetcher() -> None:
            nonlocal waiting, most, turns
            for _ in range(5):
                await backlog.acquire()
                await asyncio.sleep(chance.random())
                waiting += chance.randrange(pull_size + 1)
                most = max(most, waiting)
                backlog.release()
                turns += 1

        async def worker() -> None:
            nonlocal waiting
            while turns < 50:
                waiting = max(0, waiting - chance.randrange(10))
                backlog.tell()
                await asyncio.sleep(0.1)

        async with asyncio.TaskGroup() as group:
            for _ in range(10):
                group.create_task(fetcher())
            group.create_task(worker())

    simulate(main, seed)
    assert turns == 50
    assert most <= max(limit, pull_size)


def test_who_is_cancelled_in_the_line_leaves_its_place() -> None:
    async def main(sim: Simulation) -> None:
        backlog = Backlog(1, 1, lambda: 0)
        await backlog.acquire()
        tasks = [asyncio.ensure_future(backlog.acquire()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        backlog.release()  # the second one's turn ...
        tasks[1].cancel()  # ... which it cannot take any more
        for task in tasks[:2]:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await asyncio.wait_for(tasks[2], 1)

    simulate(main)
