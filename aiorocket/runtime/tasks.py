"""Background tasks with an owner: each has a name, none outlives its scope, and a crash is always reported.

Plain asyncio rather than an anyio task group, on purpose: a scope is opened by ``start()`` and ended by ``close()`` of
long-lived objects (broker, client), which lie in different tasks, and one crashed task must not cancel its siblings. It
also saves the broker process the import of anyio (20 ms of its 200 ms to readiness).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Coroutine
from types import TracebackType
from typing import Any, TypeVar

__all__ = ("TaskScope", "to_the_end")

T = TypeVar("T")


class TaskScope:
    """Owns tasks until they end or ``close()`` cancels them. ``on_crash(task, error)`` replaces the loop's exception
    handler."""

    __slots__ = ("_closed", "_on_crash", "_tasks", "name")

    def __init__(self, name: str, on_crash: Callable[[asyncio.Task[Any], BaseException], None] | None = None) -> None:
        self.name = name
        self._on_crash = on_crash
        # A dict, not a set: tasks are cancelled in the order they were started, the same in every run of a simulation.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._closed = False

    def start(self, coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Run ``coro`` as a task named ``scope/name``. RuntimeError after ``close()``."""
        if self._closed:
            coro.close()
            raise RuntimeError(f"task scope {self.name!r} is closed, {name!r} cannot start")
        task = asyncio.get_running_loop().create_task(coro, name=f"{self.name}/{name}")
        self._tasks[task] = None
        task.add_done_callback(self._done)
        return task

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def closed(self) -> bool:
        """``close()`` was called: nothing starts here any more."""
        return self._closed

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        if self._on_crash is not None:
            self._on_crash(task, error)
        else:
            task.get_loop().call_exception_handler(
                {"message": f"background task {task.get_name()} crashed", "exception": error, "task": task}
            )

    async def close(self, besides: Container[asyncio.Task[Any]] = ()) -> None:
        """Cancel every task and wait until all have ended, ``besides`` those that nobody waits for any more. A task of
        the scope that calls this is left to end by itself."""
        self._closed = True
        me = asyncio.current_task()
        ending = [task for task in self._tasks if task is not me]
        for task in ending:
            task.cancel()
        if waiting := [task for task in ending if task not in besides]:
            await asyncio.wait(waiting)

    async def __aenter__(self) -> TaskScope:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def to_the_end(close: Callable[[], Awaitable[object]]) -> None:
    """Await ``close()``, which may be called again while it is half done. Being cancelled in its middle leaves nothing
    open: it is then done once more before the cancellation goes on its way."""
    try:
        await close()
    except asyncio.CancelledError:
        await close()
        raise
