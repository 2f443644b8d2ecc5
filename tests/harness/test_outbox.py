"""Relays of an outbox that are killed at any moment: each committed row is stored once, in the order of its key."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from aiorocket import Embedded, embed
from aiorocket.sql import Outbox
from aiorocket.testing.stored import stored_messages
from tests.harness.postgres import postgres

pytestmark = [pytest.mark.harness, pytest.mark.timeout(900)]

ROWS, KEYS = 600, 7
METADATA = sa.MetaData()
OUTBOX = Outbox(METADATA)


async def relay(url: str, nameserver: str) -> None:
    """What the child does."""
    from aiorocket import Producer, ProducerConfig

    engine = create_async_engine(url)
    async with Producer("p", nameservers=nameserver, config=ProducerConfig(idempotent=True)) as producer:
        await OUTBOX.relay(engine, producer, batch=16, interval=0.01)


async def left(url: str) -> int:
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        count = (await connection.execute(sa.select(sa.func.count()).select_from(OUTBOX.table))).scalar_one()
    await engine.dispose()
    return int(count)


@pytest_asyncio.fixture(params=["sqlite", "postgresql"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "sqlite":
        yield f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}"
    else:
        with postgres() as server:
            await server.ready()
            yield server.url


async def test_killed_relays(url: str, tmp_path: Path) -> None:
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.run_sync(METADATA.create_all)
    async with AsyncSession(engine) as session, session.begin():
        for number in range(ROWS):
            key = number % (KEYS + 1)
            await OUTBOX.put(session, "t", b"%d" % number, sharding_key=str(key) if key < KEYS else None)
    await engine.dispose()
    moments, kills, seen = random.Random(1), 0, ROWS
    async with embed(str(tmp_path / "store")) as mq:
        await mq.create_topic("t", queues=4)
        while await left(url):
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-c",
                "import sys, aiorocket, tests.harness.test_outbox as it; aiorocket.run(it.relay(*sys.argv[1:]))",
                url, mq.nameserver_address, cwd=Path(__file__).parents[2],
            )  # fmt: skip
            async with asyncio.timeout(250):
                while (now := await left(url)) == seen and child.returncode is None:  # until it is at work
                    await asyncio.sleep(0.005)
            seen = now
            await asyncio.sleep(moments.random() * (0.05 if kills < 8 else 5))
            child.kill()
            await child.wait()
            kills += 1
            assert kills < 60
        check(mq)
    assert kills >= 3, "the relay was too fast to be killed"


def check(mq: Embedded) -> None:
    bodies = [int(each.body) for each in stored_messages(mq.broker.store, "t")]
    assert sorted(bodies) == list(range(ROWS))
    for key in range(KEYS):
        mine = [each for each in bodies if each % (KEYS + 1) == key]
        assert mine == sorted(mine), key
