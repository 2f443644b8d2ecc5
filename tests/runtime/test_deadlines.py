"""One timer for many deadlines, in virtual time."""

from __future__ import annotations

import asyncio

from aiorocket.runtime import DeadlineDriver, TimeoutQueue
from aiorocket.testing import Simulation, simulate


def test_driver_fires_once_per_deadline_and_follows_changes() -> None:
    async def main(sim: Simulation) -> list[float]:
        due = [5.0, 2.0, 9.0]
        fired: list[float] = []

        def on_deadline(now: float) -> None:
            fired.append(now)
            due.remove(min(due))

        driver = DeadlineDriver(sim.loop, lambda: min(due) if due else None, on_deadline)
        driver.update()
        driver.update()
        await asyncio.sleep(3)
        due.append(4.0)
        driver.update()
        await asyncio.sleep(3)
        driver.close()
        await asyncio.sleep(10)
        return fired

    assert simulate(main) == [2.0, 4.0, 5.0]


def test_timeouts_of_different_lengths_expire_in_time() -> None:
    async def main(sim: Simulation) -> None:
        expired: list[tuple[str, float]] = []
        queue: TimeoutQueue[str] = TimeoutQueue(sim.loop, lambda f, what, _: expired.append((what, sim.loop.time())))
        new = sim.loop.create_future
        answered = new()
        queue.add(3.0, answered, "answered")
        queue.add(3.0, new(), "three")
        queue.add(1.0, new(), "one")
        queue.add(30.0, new(), "thirty")
        await asyncio.sleep(0.5)
        queue.add(3.0, new(), "later")
        answered.set_result(None)
        await asyncio.sleep(100)
        assert expired == [("one", 1.0), ("three", 3.0), ("later", 3.5), ("thirty", 30.0)]
        assert len(queue) == 0

    simulate(main)


def test_very_many_lengths_expire_at_most_a_step_late() -> None:
    async def main(sim: Simulation) -> None:
        late: list[float] = []
        queue: TimeoutQueue[float] = TimeoutQueue(sim.loop, lambda f, due, _: late.append(sim.loop.time() - due))
        for n in range(500):
            timeout = 1 + n * 0.00713
            queue.add(timeout, sim.loop.create_future(), sim.loop.time() + timeout)
        await asyncio.sleep(60)
        assert len(late) == 500
        assert all(-1e-9 <= delay <= TimeoutQueue.STEP + 1e-9 for delay in late)

    simulate(main)


def test_answered_requests_do_not_pile_up() -> None:
    async def main(sim: Simulation) -> None:
        dropped: list[int] = []
        queue: TimeoutQueue[int] = TimeoutQueue(sim.loop, lambda *_: None, lambda future, what: dropped.append(what))
        for n in range(20_000):
            future = sim.loop.create_future()
            queue.add(30.0, future, n)
            if n % 1000:
                future.set_result(None)
            else:
                future.cancel()
        assert len(queue) < 2048
        queue.close()
        assert dropped[:3] == [0, 1000, 2000]

    simulate(main)
