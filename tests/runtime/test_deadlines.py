"""One timer for many deadlines, in virtual time."""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import Callable
from itertools import count

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


def watched(
    sim: Simulation, expired: Callable[[str, float], None]
) -> tuple[TimeoutQueue[str], dict[int, asyncio.Future[None]], Callable[[float, str], int]]:
    """A queue, the dict it watches, and a function that adds a fresh future under the next key."""
    waiting: dict[int, asyncio.Future[None]] = {}
    queue: TimeoutQueue[str] = TimeoutQueue(sim.loop, waiting, lambda _, what, __: expired(what, sim.loop.time()))
    keys = count()

    def add(timeout: float, what: str) -> int:
        key = next(keys)
        waiting[key] = sim.loop.create_future()
        queue.add(timeout, key, what)
        return key

    return queue, waiting, add


def test_timeouts_of_different_lengths_expire_in_time() -> None:
    async def main(sim: Simulation) -> None:
        expired: list[tuple[str, float]] = []
        queue, waiting, add = watched(sim, lambda what, at: expired.append((what, at)))
        answered = add(3.0, "answered")
        add(3.0, "three")
        add(1.0, "one")
        add(30.0, "thirty")
        await asyncio.sleep(0.5)
        add(3.0, "later")
        waiting.pop(answered).set_result(None)
        await asyncio.sleep(100)
        assert expired == [("one", 1.0), ("three", 3.0), ("later", 3.5), ("thirty", 30.0)]
        assert len(queue) == 0 and not waiting

    simulate(main)


def test_very_many_lengths_expire_at_most_a_step_late() -> None:
    async def main(sim: Simulation) -> None:
        late: list[float] = []
        _, _, add = watched(sim, lambda due, at: late.append(at - float(due)))
        for n in range(500):
            timeout = 1 + n * 0.00713
            add(timeout, repr(sim.loop.time() + timeout))
        await asyncio.sleep(60)
        assert len(late) == 500
        assert all(-1e-9 <= delay <= TimeoutQueue.STEP + 1e-9 for delay in late)

    simulate(main)


def test_one_that_never_ends_keeps_no_other_waiting() -> None:
    """Rounded up, an infinite length was no number, and the timer was armed for that."""

    async def main(sim: Simulation) -> None:
        expired: list[tuple[str, float]] = []
        queue, waiting, add = watched(sim, lambda what, at: expired.append((what, at)))
        for n in range(TimeoutQueue.MAX_LENGTHS):
            add(0.1 + n / 1024, "before")
        never = add(math.inf, "never")
        await asyncio.sleep(5)
        expired.clear()
        add(1.0, "one")
        await asyncio.sleep(5)
        assert expired == [("one", 6.0)] and list(waiting) == [never]
        queue.close()

    simulate(main)


def test_answered_requests_do_not_pile_up_and_cancelled_ones_leave_the_owner() -> None:
    async def main(sim: Simulation) -> None:
        queue, waiting, add = watched(sim, lambda *_: None)
        for n in range(20_000):
            key = add(30.0, "")
            if n % 1000:
                waiting.pop(key).set_result(None)
            else:
                waiting[key].cancel()
        assert len(queue) < 2048 and len(waiting) < 5
        queue.close()

    simulate(main)


def test_an_answer_is_not_kept_until_its_deadline() -> None:
    async def main(sim: Simulation) -> None:
        _, waiting, add = watched(sim, lambda *_: None)
        answer = weakref.ref(waiting[add(30.0, "")])
        waiting.clear()
        assert answer() is None

    simulate(main)
