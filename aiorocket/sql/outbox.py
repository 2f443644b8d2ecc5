"""The outbox: a message is a row of the application's own transaction, and is sent once that is committed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from aiorocket import Body, OutgoingMessage, Producer, Queue, RocketError, SendReceipt, UsageError
from aiorocket.client.pipeline.sending import as_message, property_text
from aiorocket.runtime.entropy import Entropy

__all__ = ("Outbox",)

log = logging.getLogger("aiorocket.sql")

#: Longest pause after a send that failed, in seconds; the first is that of ``relay``.
_LONGEST_PAUSE = 30.0


class Outbox:
    """The table ``name`` of ``metadata``, made with the application's own tables::

        outbox = Outbox(Base.metadata)

        async with sessions.begin() as session:
            session.add(order)
            await outbox.put(session, "orders", OrderPaid(order.id), sharding_key=order.id)

        async with Producer("orders", nameservers=..., config=ProducerConfig(idempotent=True)) as producer:
            await outbox.relay(engine, producer)  # in a task of the service, or in a process of its own

    What was committed is sent, however often relay or database are killed: a row is deleted when its message is stored,
    and has the message's id and, by its number, its queue. So one that is sent again is stored once by our brokers, if
    it is among the last 256 messages of its queue. Apache's store it again, with the same ``msg_id``: that is what
    ``Processed`` is for. Rows with one ``sharding_key`` are sent in the order of their numbers.
    """

    def __init__(self, metadata: sa.MetaData, name: str = "aiorocket_outbox") -> None:
        self.table = sa.Table(
            name, metadata,
            # SQLite numbers rows by itself only in an INTEGER, and without this gives a deleted row's number again.
            sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
            sa.Column("message_id", sa.String(64), nullable=False, unique=True),
            sa.Column("topic", sa.String(127), nullable=False),
            sa.Column("body", sa.LargeBinary, nullable=False),
            sa.Column("tag", sa.Text, nullable=False),
            sa.Column("keys", sa.JSON, nullable=False),
            sa.Column("properties", sa.JSON, nullable=False),
            sa.Column("sharding_key", sa.Text),
            sa.Column("delay_level", sa.Integer, nullable=False),
            sqlite_autoincrement=True,
        )  # fmt: skip
        self._entropy = Entropy()

    async def put(
        self,
        session: AsyncSession | AsyncConnection,
        topic: str,
        body: Body,
        *,
        tag: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        delay_level: int = 0,
    ) -> str:
        """Add a message to the transaction of ``session``; the id it will have. Arguments and UsageError as of
        ``Producer.send``, of which a relay could not get rid later."""
        message = as_message(topic, body, tag, keys, properties, sharding_key, delay_level)
        message_id = self._entropy.token(16).hex().upper()
        property_text(message_id, tag, keys, message.properties, sharding_key, delay_level)
        if not message.body:
            raise UsageError("an empty body: RocketMQ's brokers and clients refuse it, send at least one byte")
        await session.execute(
            self.table.insert().values(
                message_id=message_id, topic=topic, body=message.body, tag=tag, keys=list(keys),
                properties=dict(message.properties), sharding_key=sharding_key, delay_level=delay_level,
            )
        )  # fmt: skip
        return message_id

    async def relay(self, engine: AsyncEngine, producer: Producer, *, batch: int = 256, interval: float = 1.0) -> None:
        """Send rows until cancelled: up to ``batch`` at a time; look for more every ``interval`` seconds, or at once
        after a full batch. What a database or broker refuses is logged and tried again, with pauses up to 30 s. One
        relay is enough; while there are two, what they both send is stored once by our brokers, as above.

        UsageError when ``producer`` is not idempotent."""
        if not producer.config.idempotent:
            raise UsageError("the relay of an outbox needs Producer(..., config=ProducerConfig(idempotent=True))")
        pause = interval
        while True:
            try:
                taken, sent = await self._round(engine, producer, batch)
            except sa.exc.SQLAlchemyError as error:
                log.warning("the outbox %s cannot be read or emptied: %s", self.table.name, error)
                taken, sent = 1, 0
            pause = interval if sent == taken else min(2 * pause, _LONGEST_PAUSE)
            if sent < batch:
                await asyncio.sleep(pause)

    async def drain(self, engine: AsyncEngine, producer: Producer, *, batch: int = 256) -> int:
        """Send what is there now and return how many that were; the errors of ``relay``, and RocketError when a message
        could not be sent."""
        total = 0
        while True:
            taken, sent = await self._round(engine, producer, batch)
            total += sent
            if sent < taken:
                raise RocketError(f"{taken - sent} messages of {self.table.name} could not be sent, see the log")
            if taken < batch:
                return total

    async def _round(self, engine: AsyncEngine, producer: Producer, batch: int) -> tuple[int, int]:
        """How many rows were there, of at most ``batch``, and how many were sent and deleted."""
        async with engine.connect() as connection:
            found = await connection.execute(sa.select(self.table).order_by(self.table.c.id).limit(batch))
            rows = found.mappings().all()
        lanes: dict[object, list[Any]] = {}
        for row in rows:
            key = row["sharding_key"]
            lanes.setdefault(row["id"] if key is None else (row["topic"], key), []).append(row)
        done: list[int] = []
        try:
            async with asyncio.TaskGroup() as group:
                for lane in lanes.values():
                    group.create_task(_send_in_order(producer, lane, done))
        finally:
            if done:  # also when cancelled: what is stored is not to be sent again
                await self._delete(engine, done)
        return len(rows), len(done)

    async def _delete(self, engine: AsyncEngine, done: list[int]) -> None:
        async with engine.begin() as connection:
            await connection.execute(self.table.delete().where(self.table.c.id.in_(done)))


async def _send_in_order(producer: Producer, rows: Sequence[Any], done: list[int]) -> None:
    for row in rows:
        try:
            await _send(producer, row)
        except RocketError as error:
            log.warning(
                "row %d of the outbox, message %s of topic %s: %s", row["id"], row["message_id"], row["topic"], error
            )
            return  # those behind it have to wait
        done.append(row["id"])


async def _send(producer: Producer, row: Any) -> SendReceipt:
    message = OutgoingMessage(
        topic=row["topic"], body=row["body"], tag=row["tag"], keys=row["keys"], properties=row["properties"],
        sharding_key=row["sharding_key"], delay_level=row["delay_level"], msg_id=row["message_id"],
    )  # fmt: skip
    if row["sharding_key"] is not None:
        return await producer.send(message)

    def by_number(queues: Sequence[Queue], message: OutgoingMessage, number: int) -> Queue:
        return sorted(queues)[number % len(queues)]

    return await producer.send(message, select=by_number, arg=row["id"])
