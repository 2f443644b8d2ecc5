"""A broker for the applications, applications as processes, and an HTTP client; all of them end with the test."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest
import pytest_asyncio

from aiorocket import Embedded, embed
from aiorocket_protocol import QueryConsumerOffsetRequestHeader, QueryConsumerOffsetResponseHeader, RequestCode

HERE = Path(__file__).parent
Eventually = Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]


class Process(NamedTuple):
    process: asyncio.subprocess.Process
    url: str


class Apps:
    """Starts applications of this folder as processes. What they log goes to ``log``: a pipe that nobody reads would
    make one that has much to say stand still."""

    def __init__(self, log: Path | None = None) -> None:
        self._log = log
        self._processes: list[asyncio.subprocess.Process] = []

    async def start(self, name: str, nameserver: str, *arguments: object) -> Process:
        with ExitStack() as ends:
            log = asyncio.subprocess.PIPE if self._log is None else ends.enter_context(self._log.open("ab")).fileno()
            process = await asyncio.create_subprocess_exec(
                sys.executable, str(HERE / name), nameserver, *map(str, arguments),
                stdout=asyncio.subprocess.PIPE, stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )  # fmt: skip
        self._processes.append(process)
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        return Process(process, line.decode().strip())

    @staticmethod
    async def end_of(process: asyncio.subprocess.Process, timeout: float = 60) -> tuple[int, str]:
        """Exit code and standard error of a process that ends by itself."""
        _, err = await asyncio.wait_for(process.communicate(), timeout)
        assert process.returncode is not None
        return process.returncode, err.decode()

    async def close(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
                await process.communicate()


@pytest_asyncio.fixture
async def mq(tmp_path: Path) -> AsyncIterator[Embedded]:
    """On disk, so that it can restart, with the topics of both applications."""
    async with embed(str(tmp_path / "store"), broker={"register_interval": 0.3}) as embedded:
        for topic in ("orders", "baked", "clicks", "counted"):
            await embedded.create_topic(topic, queues=2)
        yield embedded


@pytest_asyncio.fixture
async def apps() -> AsyncIterator[Apps]:
    processes = Apps()
    yield processes
    await processes.close()


@pytest_asyncio.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session:
        yield session


@pytest.fixture
def eventually() -> Eventually:
    """Ask until the answer is yes; 60 s at most."""

    async def wait(question: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(60):
            while not await question():
                await asyncio.sleep(0.02)

    return wait


async def stored(mq: Embedded, topic: str) -> int:
    """How many messages the topic has."""
    return sum(mq.broker.store.max_offset(topic, queue) for queue in range(2))


async def committed(mq: Embedded, group: str, topic: str) -> int:
    """How far the group has come, all queues together, as the broker tells it."""
    total = 0
    async with mq.client() as client:
        for queue in range(2):
            header = QueryConsumerOffsetRequestHeader(group, topic, queue, set_zero_if_not_found=False)
            answer = await client.session.call(
                mq.broker.address, RequestCode.QUERY_CONSUMER_OFFSET, header, accept=(0, 22)
            )
            total += answer.read(QueryConsumerOffsetResponseHeader).offset if answer.code == 0 else 0
    return total
