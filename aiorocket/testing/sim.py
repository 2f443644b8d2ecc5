"""Run a scenario in virtual time: ``simulate(main, seed)``."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from aiorocket.runtime.entropy import Entropy
from aiorocket.runtime.env import Env
from aiorocket.testing.sim_disk import SimDisk
from aiorocket.testing.sim_host import SimHost
from aiorocket.testing.sim_loop import SimLoop
from aiorocket.testing.sim_network import SimNetwork

__all__ = ("SimClock", "Simulation", "simulate")

T = TypeVar("T")

#: Wall time at virtual time 0: 2024-01-01 00:00 UTC.
EPOCH_MS = 1_704_067_200_000


class SimClock:
    """Wall clock of a simulated host: virtual time plus ``skew_ms``, which a test may change (a clock that jumps)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, skew_ms: int = 0) -> None:
        self._loop = loop
        self.skew_ms = skew_ms

    def wall_ms(self) -> int:
        return EPOCH_MS + int(self._loop.time() * 1000) + self.skew_ms


class Simulation:
    """What a scenario gets: hosts, their seams, the network, and the errors nobody caught."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.network: SimNetwork = loop.network
        #: Contexts of errors that reached the loop's exception handler; simulate() fails when any is left here.
        self.errors: list[dict[str, Any]] = []
        self._made = 0

    def host(self, address: str) -> SimHost:
        """A machine of this address. Make another one with the same address for its restart after ``kill()``."""
        return SimHost(self.loop, address)

    def disk(self, *, capacity: int = 1 << 40) -> SimDisk:
        self._made += 1
        return SimDisk(self.loop.seed * 1_000_003 + self._made, capacity=capacity)

    def env(self, *, disk: SimDisk | None = None, skew_ms: int = 0) -> Env:
        """Seams for one host: its own clock and entropy, and ``disk`` or a new one."""
        self._made += 1
        entropy = Entropy(self.loop.seed * 1_000_003 + self._made)
        return Env(SimClock(self.loop, skew_ms), entropy, disk if disk is not None else self.disk())


def simulate(main: Callable[[Simulation], Awaitable[T]], seed: int = 0) -> T:
    """Run ``main(simulation)`` to its end on a new SimLoop and return its result.

    Fails when ``main`` leaves a task of a living host behind or when an error reached the loop's exception handler;
    every failure carries the seed. Garbage collection is off meanwhile, because finalizers would run at unrepeatable
    instants.
    """
    loop = SimLoop(seed)
    simulation = Simulation(loop)
    loop.set_exception_handler(lambda _loop, context: simulation.errors.append(context))
    collecting = gc.isenabled()
    gc.disable()
    try:
        return loop.run_until_complete(_checked(simulation, main))
    except BaseException as error:
        error.add_note(f"in a simulation with seed {seed}, at virtual time {loop.time():.6f}, after {loop.steps} steps")
        raise
    finally:
        try:
            _cancel_rest(loop)
            loop.drop_dead_tasks()
        finally:
            loop.close()
            if collecting:
                gc.enable()


async def _checked(simulation: Simulation, main: Callable[[Simulation], Awaitable[T]]) -> T:
    result = await main(simulation)
    await asyncio.sleep(0)
    me = asyncio.current_task()
    left = [task for task in simulation.loop.living_tasks() if task is not me]
    if left:
        names = ", ".join(sorted(task.get_name() for task in left))
        raise AssertionError(f"the scenario ended and left {len(left)} tasks behind: {names}")
    if simulation.errors:
        first = simulation.errors[0]
        text = f"{len(simulation.errors)} uncaught errors, first: {first['message']}"
        raise AssertionError(text) from first.get("exception")
    return result


def _cancel_rest(loop: SimLoop) -> None:
    rest = loop.living_tasks()
    for task in rest:
        task.cancel()
    if rest:
        loop.run_until_complete(asyncio.wait(rest, timeout=60))
