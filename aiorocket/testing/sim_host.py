"""The hosts of a simulation: processes that can be killed, stopped, and started again at the same address."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any, TypeVar

from aiorocket.testing.sim_loop import SimLoop
from aiorocket.testing.sim_network import SimProcess

__all__ = ("SimHost",)

T = TypeVar("T")


class SimHost(SimProcess):
    """A simulated machine's process: tasks started on it die with it, its address stays usable by its successor."""

    def __init__(self, loop: SimLoop, address: str) -> None:
        super().__init__(address)
        self._loop = loop
        self._context = contextvars.copy_context()
        self._context.run(SimProcess.current.set, self)
        loop.network.hosts[address] = self

    def start(self, coro: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Run ``coro`` as a task of this host."""
        return self._loop.create_task(coro, name=name, context=self._context)

    async def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run ``coro`` on this host and wait for its result."""
        return await self.start(coro)

    def kill(self, *, power_cut: bool = False) -> None:
        """Nothing of this host runs ever again, without clean-up. Peers see a reset, after a power cut only silence."""
        self.alive = self.awake = False
        self.missed.clear()
        for task in asyncio.all_tasks(self._loop):
            if self._loop.host_of(task) is self:
                # asyncio.Task has it, its stubs do not.
                task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._loop.network.host_died(self, power_cut)

    def pause(self) -> None:
        """Nothing of this host runs until ``resume``, as after SIGSTOP: its kernel goes on taking bytes."""
        self.awake = False

    def resume(self) -> None:
        """Go on. As after SIGCONT it first finishes what it was at and reads what has arrived, and then finds that its
        timers are long overdue."""
        if self.alive and not self.awake:
            self.awake = True
            missed, self.missed = self.missed, []
            self._loop.run_soon(sorted(missed, key=lambda each: isinstance(each, asyncio.TimerHandle)))
