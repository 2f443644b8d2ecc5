"""Outbox and processed ids on PostgreSQL, as ``tests/sql`` has them on SQLite: transactions that run at once, and a
server that is killed while a relay works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from aiorocket import Producer, ProducerConfig, UsageError
from aiorocket.sql import Outbox, Processed
from aiorocket.testing import LocalRocketMQ
from tests.harness.postgres import Postgres, postgres

pytestmark = pytest.mark.harness

METADATA = sa.MetaData()
OUTBOX, PROCESSED = Outbox(METADATA), Processed(METADATA)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


@pytest_asyncio.fixture
async def engine(server: Postgres) -> AsyncIterator[AsyncEngine]:
    await server.ready()
    engine = create_async_engine(server.url, pool_pre_ping=True)
    async with engine.begin() as connection:
        await connection.run_sync(METADATA.drop_all)
        await connection.run_sync(METADATA.create_all)
    yield engine
    await engine.dispose()


def producer_of(rocketmq: LocalRocketMQ, group: str = "p") -> Producer:
    return Producer(group, nameservers=rocketmq.nameserver_address, config=ProducerConfig(idempotent=True))


async def left(engine: AsyncEngine) -> int:
    async with engine.connect() as connection:
        return int((await connection.execute(sa.select(sa.func.count()).select_from(OUTBOX.table))).scalar_one())


async def test_what_is_committed_is_sent_in_order_and_nothing_else(
    engine: AsyncEngine, rocketmq: LocalRocketMQ
) -> None:
    await rocketmq.create_topic("t", queues=4)
    async with AsyncSession(engine) as session, session.begin():
        for number in range(60):
            key = str(number % 3) if number % 2 else None
            await OUTBOX.put(session, "t", {"n": number}, keys=["k"], properties={"a": "ü"}, sharding_key=key)
        with pytest.raises(UsageError, match="keys"):
            await OUTBOX.put(session, "t", b"x", keys=["a b"])
    async with AsyncSession(engine) as session:
        await OUTBOX.put(session, "t", b"rolled back")
    async with producer_of(rocketmq) as first, producer_of(rocketmq, "q") as second:
        await asyncio.gather(OUTBOX.drain(engine, first, batch=7), OUTBOX.drain(engine, second))
    assert await left(engine) == 0
    stored = rocketmq.messages("t")
    numbers = [int(each.body[5:-1]) for each in stored]
    assert sorted(numbers) == list(range(60)) and stored[0].properties["a"] == "ü"
    for key in range(3):
        mine = [each for each in numbers if each % 2 and each % 3 == key]
        assert mine == sorted(mine)


async def test_of_two_transactions_one_is_first(engine: AsyncEngine) -> None:
    """The other one waits for its end: a rollback makes that the first, a commit does not."""
    for end in ("commit", "rollback"):
        message: Any = SimpleNamespace(group="g", topic="t", msg_id=end)
        async with AsyncSession(engine) as one, AsyncSession(engine) as other:
            await one.begin()
            assert await PROCESSED.first(one, message)
            asked = asyncio.create_task(PROCESSED.first(other, message))
            done, _ = await asyncio.wait([asked], timeout=0.2)
            assert not done
            await getattr(one, end)()
            assert await asked is (end == "rollback")
            await other.commit()
    async with engine.begin() as connection:
        assert await PROCESSED.forget(connection, timedelta(days=1)) == 0
        assert await PROCESSED.forget(connection, timedelta(days=-1)) == 2


async def test_a_relay_outlives_a_server_that_is_killed(
    server: Postgres, engine: AsyncEngine, rocketmq: LocalRocketMQ
) -> None:
    await rocketmq.create_topic("t", queues=4)
    async with AsyncSession(engine) as session, session.begin():
        for number in range(400):
            await OUTBOX.put(session, "t", b"%d" % number, sharding_key=str(number % 5))
    async with producer_of(rocketmq) as producer:
        relay = asyncio.create_task(OUTBOX.relay(engine, producer, batch=8, interval=0.01))
        for part in (40, 160):
            async with asyncio.timeout(60):
                while len(rocketmq.messages("t")) < part:
                    await asyncio.sleep(0.01)
            server.kill()
            server.start()
            await server.ready()
        async with asyncio.timeout(120):
            while await left(engine):
                await asyncio.sleep(0.05)
        relay.cancel()
        await asyncio.gather(relay, return_exceptions=True)
    numbers = [int(each.body) for each in rocketmq.messages("t")]
    assert sorted(numbers) == list(range(400))
    for key in range(5):
        assert [each for each in numbers if each % 5 == key] == list(range(key, 400, 5))
