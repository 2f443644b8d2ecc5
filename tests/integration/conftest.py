"""Name server, broker and clients of one test, over real sockets on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from aiorocket import Embedded, embed

#: All 18 levels, as far apart as sorting needs: a test's retries come back at once.
QUICK_LEVELS = tuple(0.02 + 0.001 * level for level in range(18))

Until = Callable[[Callable[[], bool]], Awaitable[None]]


@pytest_asyncio.fixture
async def mq() -> AsyncIterator[Embedded]:
    """In memory, delay levels of some milliseconds."""
    async with embed(broker={"delay_levels": QUICK_LEVELS}) as embedded:
        yield embedded


@pytest_asyncio.fixture
async def durable(tmp_path: Path) -> AsyncIterator[Embedded]:
    """On disk, for tests that restart the broker."""
    settings = {"delay_levels": QUICK_LEVELS, "register_interval": 0.3}
    async with embed(str(tmp_path / "store"), broker=settings) as embedded:
        yield embedded


@pytest.fixture
def until() -> Until:
    """Wait for something that nobody announces; 30 s at most."""

    async def wait(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.005)

    return wait
