"""A running broker and a connection to it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from aiorocket.broker import Broker
from tests.broker.peer import Peer, running


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[Broker]:
    async with running(delay_levels=(0.05, 0.1, 0.15, 0.2)) as broker:
        yield broker


@pytest_asyncio.fixture
async def peer(broker: Broker) -> AsyncIterator[Peer]:
    peer = await Peer.connect(broker.port)
    yield peer
    await peer.close()
