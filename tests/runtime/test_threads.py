"""Plain functions beside the loop: whatever they end with comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from aiorocket.runtime.loop import new_event_loop
from aiorocket.runtime.threads import in_thread, in_thread_to_end
from aiorocket.testing import Simulation, simulate

Beside = Callable[..., Awaitable[object]]


def exhausted() -> object:
    return next(iter(()))


@pytest.mark.parametrize("beside", [in_thread, in_thread_to_end])
def test_a_function_that_raises_stop_iteration_fails_as_a_coroutine_does(beside: Beside) -> None:
    async def main(sim: Simulation | None = None) -> None:
        with pytest.raises(RuntimeError, match="raised StopIteration") as caught:
            await asyncio.wait_for(beside(exhausted), 30)
        assert isinstance(caught.value.__cause__, StopIteration)

    simulate(main)
    for factory in (asyncio.new_event_loop, new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())
