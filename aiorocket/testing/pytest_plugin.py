"""The pytest plugin: fixtures ``rocketmq`` and ``rocketmq_durable`` for tests on pytest-asyncio or anyio, and
``rocketmq_server`` for all tests of a session, synchronous ones too.

pytest loads this module wherever aiorocket is installed, so it imports nothing before a fixture is used.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from aiorocket.testing.local import LocalRocketMQ
    from aiorocket.testing.server import RocketMQServer

try:
    from pytest_asyncio import fixture as _fixture
except ImportError:  # whoever tests with it needs it; nobody else must
    _fixture = pytest.fixture  # type: ignore[assignment]

__all__ = ("rocketmq", "rocketmq_durable", "rocketmq_server")


@pytest.fixture
def rocketmq(request: pytest.FixtureRequest) -> LocalRocketMQ:
    """A name server and a broker in this test's loop, on free ports; messages are kept in memory."""
    return _in_loop_of(request, "_rocketmq")


@pytest.fixture
def rocketmq_durable(request: pytest.FixtureRequest) -> LocalRocketMQ:
    """The same with a directory, so that ``restart()`` and ``restart(kill=True)`` find the messages again."""
    return _in_loop_of(request, "_rocketmq_durable")


@pytest.fixture(scope="session")
def rocketmq_server() -> Iterator[RocketMQServer]:
    """One name server and broker for all tests, in a thread of their own: for synchronous tests (a TestClient), and for
    whoever does not mind what other tests left behind."""
    from aiorocket.testing.server import broker_thread

    with broker_thread() as server:
        yield server


def _in_loop_of(request: pytest.FixtureRequest, name: str) -> LocalRocketMQ:
    """Whose loop a test runs in is known by the fixtures it asks for: a test marked ``anyio`` has anyio's."""
    suffix = "_anyio" if "anyio_backend" in request.fixturenames else "_asyncio"
    made: LocalRocketMQ = request.getfixturevalue(name + suffix)
    return made


@_fixture
async def _rocketmq_asyncio() -> AsyncIterator[LocalRocketMQ]:
    from aiorocket.testing.local import local_rocketmq

    async with local_rocketmq() as started:
        yield started


@_fixture
async def _rocketmq_durable_asyncio(tmp_path: Path) -> AsyncIterator[LocalRocketMQ]:
    from aiorocket.testing.local import local_rocketmq

    async with local_rocketmq(str(tmp_path / "rocketmq")) as started:
        yield started


@pytest.fixture
async def _rocketmq_anyio(anyio_backend_name: str) -> AsyncIterator[LocalRocketMQ]:
    from aiorocket.testing.local import local_rocketmq

    _need_asyncio(anyio_backend_name)
    async with local_rocketmq() as started:
        yield started


@pytest.fixture
async def _rocketmq_durable_anyio(anyio_backend_name: str, tmp_path: Path) -> AsyncIterator[LocalRocketMQ]:
    from aiorocket.testing.local import local_rocketmq

    _need_asyncio(anyio_backend_name)
    async with local_rocketmq(str(tmp_path / "rocketmq")) as started:
        yield started


def _need_asyncio(backend: str) -> None:
    if backend != "asyncio":
        pytest.skip(f"aiorocket runs on asyncio, not on {backend}")
