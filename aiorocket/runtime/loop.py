"""The event loop programs run on: uvloop where it is installed, the standard one elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ("new_event_loop", "run")

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A fresh loop that is not yet running."""
    try:
        import uvloop
    except ImportError:  # where it does not exist, such as Windows: the package requires it everywhere else
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` on that loop: runs ``main``, then ends what it left behind."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
