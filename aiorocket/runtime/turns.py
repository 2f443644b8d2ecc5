"""Work in turns of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeVar

__all__ = ("in_turns",)

_T = TypeVar("_T")


async def in_turns(work: Generator[None, None, _T]) -> _T:
    """What ``work`` returns; everybody else is served wherever it yields."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: _T = end.value
            return result
        await asyncio.sleep(0)
