"""Outbox and processed ids on SQLite: what is committed is sent once, in order per key, and has its effect once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiosqlite
import pytest
import pytest_asyncio
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.schema import CreateTable

from aiorocket import (
    Message,
    Middleware,
    OutgoingMessage,
    Producer,
    ProducerConfig,
    PublishNext,
    Queue,
    RocketError,
    Router,
    SendReceipt,
    SendStatus,
    TopicNotFoundError,
    UsageError,
)
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
    async with producer_of(rocketmq) as producer:
        for send in (OUTBOX.relay, OUTBOX.drain):
            with pytest.raises(UsageError, match="batch=0"):  # the table was asked for none of its rows without end
                await asyncio.wait_for(send(engine, producer, batch=0), 5)


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
    message: Any = SimpleNamespace(group="g", topic="t", msg_id="1")
    values = {"group": "g", "topic": "t", "message_id": "1"}
    async with AsyncSession(engine) as session, session.begin():
        first = [await PROCESSED._first_by_savepoint(session, values) for _ in range(2)]
    async with AsyncSession(engine) as session, session.begin():
        assert first == [True, False] and not await PROCESSED.first(session, message)


async def test_what_cannot_be_sent_keeps_nothing_else(engine: AsyncEngine, rocketmq: LocalRocketMQ) -> None:
    """More rows that wait than are read at a time: a key's, and such as have none."""
    await rocketmq.create_topic("t", queues=1)
    async with AsyncSession(engine) as session, session.begin():
        for number in range(4):
            await OUTBOX.put(session, "t", b"x" * 3000 if number == 0 else b"behind", sharding_key="a")
        for _ in range(3):
            await OUTBOX.put(session, "t", b"x" * 3000)
        for number in range(3):
            await OUTBOX.put(session, "t", b"%d" % number, sharding_key="b")
    async with producer_of(rocketmq, max_message_size=2000, compress_over=2000) as producer:
        with pytest.raises(RocketError, match=r"^7 messages of aiorocket_outbox could not be sent"):
            await OUTBOX.drain(engine, producer, batch=2)
    assert [each.body for each in rocketmq.messages("t")] == [b"0", b"1", b"2"]
    assert await rows(engine, OUTBOX.table) == 7


async def test_what_middleware_does_not_take_keeps_nothing_else(engine: AsyncEngine, rocketmq: LocalRocketMQ) -> None:
    class Checked(Middleware):
        async def publish(self, messages: list[OutgoingMessage], call_next: PublishNext) -> Any:
            if messages[0].body == b"wrong":
                raise ValueError("of no schema")
            return await call_next(messages)

    await rocketmq.create_topic("t", queues=1)
    async with AsyncSession(engine) as session, session.begin():
        for body in (b"wrong", b"0", b"1", b"2"):
            await OUTBOX.put(session, "t", body)
    nameservers = rocketmq.nameserver_address
    async with Producer("p", nameservers=nameservers, config=IDEMPOTENT, middleware=[Checked()]) as producer:
        with pytest.raises(RocketError, match=r"^1 messages of aiorocket_outbox could not be sent"):
            await OUTBOX.drain(engine, producer, batch=2)
    assert {each.body for each in rocketmq.messages("t")} == {b"0", b"1", b"2"}
    assert await rows(engine, OUTBOX.table) == 1


class Trying:
    """A producer of an idle broker: all is stored at once but what is of the topic that nobody has."""

    config = IDEMPOTENT

    def __init__(self, *statuses: SendStatus) -> None:
        self.tried: list[str] = []
        self.statuses = list(statuses)

    async def send(self, message: OutgoingMessage, **options: Any) -> SendReceipt:
        self.tried.append(message.topic)
        if message.topic == "nobody":
            raise TopicNotFoundError("nobody has it")
        status = self.statuses.pop(0) if self.statuses else SendStatus.SEND_OK
        return SendReceipt("id", Queue(message.topic, "b", 0), 0, "offset", status)


async def test_a_row_is_kept_until_its_message_is_on_the_disk(engine: AsyncEngine) -> None:
    """A broker that could not flush in time has it in memory: to send it again makes two of it at most."""
    producer: Any = Trying(*list(SendStatus)[1:])
    async with AsyncSession(engine) as session, session.begin():
        await OUTBOX.put(session, "t", b"x")
    for kept in (SendStatus.FLUSH_DISK_TIMEOUT, None, SendStatus.FLUSH_SLAVE_TIMEOUT, None):
        if kept is None:
            assert await OUTBOX.drain(engine, producer) == 1 and await rows(engine, OUTBOX.table) == 0
            async with AsyncSession(engine) as session, session.begin():
                await OUTBOX.put(session, "t", b"x")
        else:
            with pytest.raises(RocketError, match="1 messages"):
                await OUTBOX.drain(engine, producer)
            assert await rows(engine, OUTBOX.table) == 1
    assert len(producer.tried) == 4 and not producer.statuses


async def test_what_is_new_does_not_wait_for_what_failed(engine: AsyncEngine) -> None:
    """That is tried again after longer and longer pauses, in which the relay looks for other rows as before."""
    producer: Any = Trying()
    relay = asyncio.create_task(OUTBOX.relay(engine, producer, interval=0.01))

    async def put_and_wait(topic: str, times: int) -> None:
        async with AsyncSession(engine) as session, session.begin():
            await OUTBOX.put(session, topic, b"x")
        async with asyncio.timeout(30):
            while producer.tried.count(topic) < times:
                await asyncio.sleep(0.01)

    await put_and_wait("nobody", 5)
    for number in range(8):
        await put_and_wait("t", number + 1)
    assert producer.tried.count("nobody") < 5 + 8
    relay.cancel()
    await asyncio.gather(relay, return_exceptions=True)


async def test_a_relay_ends_though_its_database_is_gone(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cancelled while it sends, and what was stored cannot be deleted any more."""
    waits = asyncio.Event()

    class Waiting(Trying):
        async def send(self, message: OutgoingMessage, **options: Any) -> SendReceipt:
            if message.topic == "slow":
                waits.set()
                await asyncio.Event().wait()
            return await super().send(message)

    async def gone(*args: object) -> None:
        raise sa.exc.OperationalError("DELETE", {}, OSError("the database is gone"))

    async with AsyncSession(engine) as session, session.begin():
        for topic in ("t", "slow"):
            await OUTBOX.put(session, topic, b"x")
    monkeypatch.setattr(Outbox, "_delete", gone)
    producer: Any = Waiting()
    relay = asyncio.create_task(OUTBOX.relay(engine, producer))
    async with asyncio.timeout(30):
        await waits.wait()
    relay.cancel()
    ended, running = await asyncio.wait([relay], timeout=30)
    for task in running:
        task.cancel()
    assert ended and relay.cancelled()


async def test_a_relay_outlives_its_database(rocketmq: LocalRocketMQ, tmp_path: Path) -> None:
    """Drivers raise errors of their own, such as OSError, when nobody takes their connection."""
    await rocketmq.create_topic("t", queues=1)
    path, away = tmp_path / "shop.db", [3]

    async def connect() -> Any:
        if away[0]:
            away[0] -= 1
            raise ConnectionRefusedError("the database is restarted")
        return await aiosqlite.connect(path)

    engine = create_async_engine("sqlite+aiosqlite://", async_creator=connect, poolclass=sa.pool.NullPool)
    there = create_async_engine(f"sqlite+aiosqlite:///{path}")
    async with there.begin() as connection:
        await connection.run_sync(METADATA.create_all)
        await OUTBOX.put(connection, "t", b"x")
    async with producer_of(rocketmq) as producer:
        relay = asyncio.create_task(OUTBOX.relay(engine, producer, interval=0.01))
        async with asyncio.timeout(30):
            while await rows(there, OUTBOX.table) and not relay.done():
                await asyncio.sleep(0.01)
        relay.cancel()
        [ended] = await asyncio.gather(relay, return_exceptions=True)
    assert isinstance(ended, asyncio.CancelledError) and len(rocketmq.messages("t")) == 1
    await engine.dispose()
    await there.dispose()


async def test_a_topic_that_cannot_be_is_refused_at_once(engine: AsyncEngine) -> None:
    async with AsyncSession(engine) as session:
        with pytest.raises(UsageError, match="topic 'no topic'"):
            await OUTBOX.put(session, "no topic", b"x")


async def test_messages_of_two_topics_are_two(engine: AsyncEngine) -> None:
    """Whose sender gives them one id of its own; and ids longer than the column, however they begin."""
    ids = [("paid", "order-1"), ("sent", "order-1"), ("paid", "x" * 300 + "1"), ("paid", "x" * 300 + "2")]
    for expected in (True, False):
        async with AsyncSession(engine) as session, session.begin():
            for topic, msg_id in ids:
                message: Any = SimpleNamespace(group="g", topic=topic, msg_id=msg_id)
                assert await PROCESSED.first(session, message) is expected
    async with engine.connect() as connection:
        stored = (await connection.execute(sa.select(PROCESSED.table.c.message_id))).scalars().all()
    assert len(stored) == 4 and max(map(len, stored)) <= 255


def test_mysql_cuts_no_body_and_tells_ids_apart() -> None:
    """Its BLOB ends at 65,535 bytes, and its texts are equal whatever their case."""
    made = [str(CreateTable(each).compile(dialect=mysql.dialect())) for each in (OUTBOX.table, PROCESSED.table)]
    assert "body LONGBLOB" in made[0]
    for column in ("`group`", "topic", "message_id"):
        [line] = [each for each in made[1].splitlines() if each.strip().startswith(f"{column} ")]
        assert "COLLATE utf8mb4_bin" in line
