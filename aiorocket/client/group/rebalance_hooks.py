"""What an application may do while queues change hands, and how long it may take."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiorocket.client.exits import failure_of
from aiorocket.model import Queue

__all__ = ("QueuesHook", "RebalanceHooks", "call_hook")

log = logging.getLogger("aiorocket.client")

#: ``on_assigned`` and ``on_revoked``: awaited with the queues, sorted.
QueuesHook = Callable[[list[Queue]], Awaitable[object]]


class RebalanceHooks:
    """Derive from it what a ``PullConsumer`` is to do when queues come and go. Each call may take
    ``rebalance_hook_timeout`` seconds; what it raises is logged."""

    async def on_assigned(self, queues: list[Queue]) -> None:
        """These will be read, before the first pull of them."""

    async def on_revoked(self, queues: list[Queue]) -> None:
        """These are given up when this returns: the last moment to commit what was fetched of them."""


async def call_hook(hook: QueuesHook | None, queues: list[Queue], limit: float) -> None:
    """Await a hook of the application for ``limit`` seconds at most; what it raises is logged."""
    if hook is None or not queues:
        return
    name, caller = getattr(hook, "__name__", repr(hook)), asyncio.current_task()
    try:
        async with asyncio.timeout(limit):
            await hook(queues)
    except TimeoutError:
        log.warning("%s was not done with %d queues after %g s, going on without it", name, len(queues), limit)
    except BaseException as error:
        failure = failure_of(error, caller)
        log.error("%s failed for %d queues", name, len(queues), exc_info=failure)
