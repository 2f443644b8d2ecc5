"""Listeners that are plain functions: called in threads, so that they cannot stop the loop."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial, update_wrapper
from typing import Any

from aiorocket.client.push.status import Handler
from aiorocket.client.push.typed import TypedHandler
from aiorocket.runtime.threads import Executor

__all__ = ("PlainHandler", "in_pool")


class PlainHandler:
    """``function`` as a handler; ``in_thread`` is how it is called there (``runtime/threads.py``). It looks like the
    function, so that its parameters can still be looked at."""

    def __init__(
        self, function: Callable[..., Any], in_thread: Callable[..., Awaitable[object]], pool: Executor | None = None
    ) -> None:
        self._function = function
        self._in_thread = in_thread
        self._pool = pool
        update_wrapper(self, function)

    async def __call__(self, *messages: Any, **state: Any) -> object:
        function = partial(self._function, **state) if state else self._function
        result = await self._in_thread(function, *messages, pool=self._pool)
        # Whatever calls an `async def` for us (a lambda, a wrapper) gave its coroutine back unawaited.
        return await result if inspect.isawaitable(result) else result

    def inside(self, pool: Executor) -> PlainHandler:
        return PlainHandler(self._function, self._in_thread, pool)


def in_pool(handler: Handler, make: Callable[[], Executor]) -> Handler:
    """``handler`` with its plain function, if it is one, in a pool that is made for it."""
    if isinstance(handler, partial):  # it was given its state
        return partial(in_pool(handler.func, make), *handler.args, **handler.keywords)
    if isinstance(handler, TypedHandler):
        return handler.calling(lambda inner: in_pool(inner, make))
    return handler.inside(make()) if isinstance(handler, PlainHandler) else handler
