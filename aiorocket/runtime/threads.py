"""Plain functions beside the loop. Listeners that are not ``async def`` run here; nothing of aiorocket itself does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

__all__ = ("in_thread",)

T = TypeVar("T")


async def in_thread(function: Callable[..., T], *args: object) -> T:
    """``function(*args)`` in the loop's thread pool; a simulated loop runs it inline. Being cancelled leaves the
    function running to its end, its result is then lost."""
    return await asyncio.get_running_loop().run_in_executor(None, function, *args)
