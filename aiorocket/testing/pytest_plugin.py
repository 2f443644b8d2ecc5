"""The pytest plugin: fixtures ``rocketmq`` and ``rocketmq_durable``, for tests on pytest-asyncio.

pytest loads this module wherever aiorocket is installed, so it imports nothing before a fixture is used.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from aiorocket.testing.local import LocalRocketMQ

try:
    from pytest_asyncio import fixture as _fixture
except ImportError:  # whoever uses the fixtures needs it; nobody else must
    _fixture = pytest.fixture  # type: ignore[assignment]

__all__ = ("rocketmq", "rocketmq_durable")


@_fixture
async def rocketmq() -> AsyncIterator[LocalRocketMQ]:
    """A name server and a broker in this test's loop, on free ports; messages are kept in memory."""
    from aiorocket.testing.local import local_rocketmq

    async with local_rocketmq() as started:
        yield started


@_fixture
async def rocketmq_durable(tmp_path: Path) -> AsyncIterator[LocalRocketMQ]:
    """The same with a directory, so that ``restart()`` and ``restart(kill=True)`` find the messages again."""
    from aiorocket.testing.local import local_rocketmq

    async with local_rocketmq(str(tmp_path / "rocketmq")) as started:
        yield started
