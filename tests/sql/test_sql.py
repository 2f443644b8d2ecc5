"""Outbox and processed ids on SQLite: what is committed is sent once, in order per key, and has its effect once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from aiorocket import Message, Producer, ProducerConfig, RocketError, Router, UsageError
from aiorocket.sql import Outbox, Processed
from aiorocket.testing import LocalRocketMQ

METADATA = sa.MetaData()
OUTBOX, PROCESSED = Outbox(METADATA), Processed(METADATA)
INVOICES = sa.Table("invoices", METADATA, sa.Column("id", sa.Integer, primary_key=True), sa.Column("name", sa.Text))
IDEMPOTENT = ProducerConfig(idempotent=True)


@pytest_asyncio.fixture
async def engine(tmp_path: Path) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shop.db'}")
    async with engine.begin() as connection:
        await connection.run_sync(METADATA.create_all)
    yield engine
    await engine.dispose()


def producer_of(rocketmq: LocalRocketMQ, **options: Any) -> Producer:
    return Producer("p", nameservers=rocketmq.nameserver_address, config=ProducerConfig(idempotent=True, **options))


async def rows(engine: AsyncEngine, table: sa.Table) -> int:
    async with engine.connect() as connection:
        return int((await connection.execute(sa.select(sa.func.count()).select_from(table))).scalar_one())


async def test_what_is_committed_is_sent_and_nothing_else(engine: AsyncEngine, rocketmq: LocalRocketMQ) -> None:
    await rocketmq.create_topic("t", queues=2)
    ids = []
    async with AsyncSession(engine) as session, session.begin():
        for number in range(10):
            ids.append(await OUTBOX.put(session, "t", {"number": number}, tag="a", keys=["k"], sharding_key="one"))
        with pytest.raises(UsageError, match="keys"):
            await OUTBOX.put(session, "t", b"x", keys=["a b"])
        with pytest.raises(UsageError, match="empty body"):
            await OUTBOX.put(session, "t", b"")
    async with AsyncSession(engine) as session:
        await OUTBOX.put(session, "t", b"rolled back")
    async with engine.begin() as connection:
        ids.append(await OUTBOX.put(connection, "t", b"plain", properties={"tenant": "a"}, delay_level=0))
    async with producer_of(rocketmq) as producer:
        assert await OUTBOX.drain(engine, producer, batch=4) == 11
        assert await OUTBOX.drain(engine, producer) == 0
    stored = rocketmq.messages("t")
    assert sorted(each.msg_id for each in stored) == sorted(ids)
    keyed = [each for each in stored if each.tag == "a"]
    assert [each.msg_id for each in keyed] == ids[:10]
    assert [each.body for each in keyed] == [b'{"number":%d}' % number for number in range(10)]
    assert keyed[0].properties["contentType"] == "application/json" and keyed[0].keys == ["k"]


async def test_a_row_that_was_sent_and_is_still_there_is_stored_once(
    engine: AsyncEngine, rocketmq: LocalRocketMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the relay was killed, or the database, before the row was deleted. Two relays at once are no worse."""
    await rocketmq.create_topic("t", queues=4)
    async with AsyncSession(engine) as session, session.begin():
        for number in range(40):
            await OUTBOX.put(session, "t", b"%d" % number, sharding_key=str(number % 3) if number % 2 else None)

    async def killed(self: Outbox, engine: AsyncEngine, done: list[int]) -> None:
        raise sa.exc.OperationalError("DELETE", {}, OSError("the database is gone"))

    async with producer_of(rocketmq) as producer:
        with monkeypatch.context() as patch:
            patch.setattr(Outbox, "_delete", killed)
            with pytest.raises(sa.exc.OperationalError):
                await OUTBOX.drain(engine, producer)
        assert await rows(engine, OUTBOX.table) == 40
    async with (
        producer_of(rocketmq) as first,
        Producer("q", nameservers=rocketmq.nameserver_address, config=IDEMPOTENT) as second,
    ):
        await asyncio.gather(OUTBOX.drain(engine, first), OUTBOX.drain(engine, second))
    assert await rows(engine, OUTBOX.table) == 0
    bodies = [int(each.body) for each in rocketmq.messages("t")]
    assert sorted(bodies) == list(range(40))
    for key in range(3):
        mine = [each for each in bodies if each % 2 and each % 3 == key]
        assert mine == sorted(mine)


async def test_a_row_that_cannot_be_sent_holds_back_its_key_only(engine: AsyncEngine, rocketmq: LocalRocketMQ) -> None:
    await rocketmq.create_topic("t", queues=1)
    async with AsyncSession(engine) as session, session.begin():
        await OUTBOX.put(session, "t", b"x" * 3000, sharding_key="a")
        await OUTBOX.put(session, "t", b"behind", sharding_key="a")
        await OUTBOX.put(session, "t", b"other", sharding_key="b")
    async with producer_of(rocketmq, max_message_size=2000, compress_over=2000) as producer:
        with pytest.raises(RocketError, match=r"2 messages of aiorocket_outbox could not be sent"):
            await OUTBOX.drain(engine, producer)
    assert [each.body for each in rocketmq.messages("t")] == [b"other"] and await rows(engine, OUTBOX.table) == 2
    async with producer_of(rocketmq) as producer:
        relay = asyncio.create_task(OUTBOX.relay(engine, producer, interval=0.02))
        async with asyncio.timeout(30):
            while await rows(engine, OUTBOX.table):
                await asyncio.sleep(0.02)
        relay.cancel()
        await asyncio.gather(relay, return_exceptions=True)
    assert [len(each.body) for each in rocketmq.messages("t")] == [5, 3000, 6]
    async with Producer("p", nameservers=rocketmq.nameserver_address) as producer:
        with pytest.raises(UsageError, match="idempotent=True"):
            await OUTBOX.relay(engine, producer)


async def test_an_effect_happens_once(engine: AsyncEngine, rocketmq: LocalRocketMQ) -> None:
    """However often a message is delivered, and however its first transactions end."""
    await rocketmq.create_topic("t", queues=1)
    sessions, router, calls = async_sessionmaker(engine), Router("g"), list[int]()

    @router.listener("t", start_from="first", concurrency=1)
    async def listener(message: Message) -> None:
        calls.append(message.attempt)
        async with sessions.begin() as session:
            if await PROCESSED.first(session, message):
                await session.execute(INVOICES.insert().values(name=message.msg_id))
            if message.attempt == 1:
                raise ValueError("before the commit")
        if message.attempt == 2:
            raise ValueError("after the commit")

    async with rocketmq.consumer(router):
        receipt = await rocketmq.send("t", b"x")
        await rocketmq.settled()
        await rocketmq.clock.advance(minutes=2)
    assert calls == [1, 2, 3]
    async with engine.begin() as connection:
        assert (await connection.execute(sa.select(INVOICES.c.name))).scalars().all() == [receipt.msg_id]
        assert await PROCESSED.forget(connection, timedelta(days=1)) == 0
        assert await PROCESSED.forget(connection, timedelta(days=-1)) == 1


async def test_another_database_is_asked_by_a_savepoint(engine: AsyncEngine) -> None:
    message: Any = type("M", (), {"group": "g", "msg_id": "1"})()
    async with AsyncSession(engine) as session, session.begin():
        first = [await PROCESSED._first_by_savepoint(session, {"group": "g", "message_id": "1"}) for _ in range(2)]
    async with AsyncSession(engine) as session, session.begin():
        assert first == [True, False] and not await PROCESSED.first(session, message)
