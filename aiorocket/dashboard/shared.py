"""Answers that several viewers share: however many look, and however often, a cluster is asked once at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from aiorocket.errors import ProtocolError, RocketError
from aiorocket.runtime.tasks import TaskScope

__all__ = ("Shared",)

T = TypeVar("T")


class Shared(Generic[T]):
    """What ``ask`` says, kept for ``seconds``; its errors too."""

    def __init__(self, tasks: TaskScope, name: str, ask: Callable[[], Awaitable[T]], seconds: float) -> None:
        self._tasks, self._name, self._ask, self._seconds = tasks, name, ask, seconds
        self._task: asyncio.Task[T | RocketError | ProtocolError] | None = None
        self._until = 0.0

    async def get(self) -> T:
        now = asyncio.get_running_loop().time()
        if self._task is None or (self._task.done() and now >= self._until):
            self._task = self._tasks.start(self._once(), name=self._name)
        result = await asyncio.shield(self._task)
        if isinstance(result, RocketError | ProtocolError):
            raise result
        return result

    async def _once(self) -> T | RocketError | ProtocolError:
        try:
            return await self._ask()
        except (RocketError, ProtocolError) as error:
            return error.with_traceback(None)
        finally:
            self._until = asyncio.get_running_loop().time() + self._seconds
