"""Plain functions beside the loop, and a loop beside plain functions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

from aiorocket.runtime.loop import new_event_loop

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

__all__ = ("Executor", "in_thread", "in_thread_to_end", "loop_in_thread", "pool", "portal")

T = TypeVar("T")


def pool(most: int, name: str) -> Executor:
    """At most ``most`` threads of its own, made when they are needed; ``shutdown(wait=False)`` ends it."""
    return ThreadPoolExecutor(most, thread_name_prefix=name)


async def in_thread(function: Callable[..., T], *args: object, pool: Executor | None = None) -> T:
    """``function(*args)`` in a thread of ``pool``, or of the loop's own, with the context variables of here; a
    simulated loop runs it inline. Being cancelled leaves the function running to its end, its result is then lost."""
    return await asyncio.get_running_loop().run_in_executor(pool, copy_context().run, _call, function, args)


async def in_thread_to_end(function: Callable[..., T], *args: object, pool: Executor | None = None) -> T:
    """As ``in_thread``, for what must not run twice at once: being cancelled waits until the function has ended and is
    then passed on."""
    running = asyncio.get_running_loop().run_in_executor(pool, copy_context().run, _call, function, args)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        running.exception()
        raise cancelled
    return running.result()


def _call(function: Callable[..., T], args: tuple[object, ...]) -> T:
    try:
        return function(*args)
    except StopIteration as error:
        # A future refuses it, and who waits for that would wait for ever. A coroutine that raises it ends like this.
        raise RuntimeError("the function raised StopIteration") from error


@contextmanager
def portal() -> Iterator[BlockingPortal]:
    """A loop in a thread of its own, and the way to call into it; both have ended when the block is left."""
    from anyio.from_thread import start_blocking_portal  # for tests only, and not quick to import

    with start_blocking_portal("asyncio", {"loop_factory": new_event_loop}) as opened:
        yield opened


@contextmanager
def loop_in_thread(entered: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Enter an async context manager in a loop in a thread of its own, leave it at the end of the block. What it raises
    is raised here; loop and thread have ended then, too."""
    with portal() as opened, opened.wrap_async_context_manager(entered) as value:
        yield value
