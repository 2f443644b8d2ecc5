"""The outbox: a message is a row of the application's own transaction, and is sent once that is committed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from aiorocket import (
    Body,
    OutgoingMessage,
    Producer,
    ProtocolError,
    Queue,
    RocketError,
    SendReceipt,
    SendStatus,
    UsageError,
)
from aiorocket.client.pipeline.sending import as_message, property_text
from aiorocket.model import check_topic
from aiorocket.runtime.entropy import Entropy

__all__ = ("Outbox",)

log = logging.getLogger("aiorocket.sql")

#: The broker has the message, and not yet where it survives what the topic's brokers promise to survive. A master whose
#: slaves are away is not among them: it gives no more, and every repetition would be stored again.
_NOT_YET_SAFE = (SendStatus.FLUSH_DISK_TIMEOUT, SendStatus.FLUSH_SLAVE_TIMEOUT)

#: Longest pause after a send that failed, in seconds; the first is that of ``relay``.
_LONGEST_PAUSE = 30.0


class _Walk:
    """A way through the table: the number of the row it is behind, how many were sent and how many were not, and what
    waits behind one of these."""

    def __init__(self) -> None:
        self.after = 0
        self.sent = 0
        self.failed = 0
        self.waiting: set[object] = set()


class Outbox:
    """The table ``name`` of ``metadata``, made with the application's own tables::

        outbox = Outbox(Base.metadata)

        async with sessions.begin() as session:
            session.add(order)
            await outbox.put(session, "orders", OrderPaid(order.id), sharding_key=order.id)

        async with Producer("orders", nameservers=..., config=ProducerConfig(idempotent=True)) as producer:
            await outbox.relay(engine, producer)  # in a task of the service, or in a process of its own

    What was committed is sent, however often relay or database are killed: a row is deleted when its message is stored
    (a broker that did not flush it in time has yet to store it), and has the message's id and, by its number, its
    queue. So one that is sent again is stored once by our brokers, if it is among the last 65,536 that idempotent
    producers sent to its broker. Apache's store it again, with the same ``msg_id``: that is what
    ``Processed`` is for. Rows with one ``sharding_key`` are sent in the order of their numbers.
    """

    def __init__(self, metadata: sa.MetaData, name: str = "aiorocket_outbox") -> None:
        self.table = sa.Table(
            name, metadata,
            # SQLite numbers rows by itself only in an INTEGER, and without this gives a deleted row's number again.
            sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
            sa.Column("message_id", sa.String(64), nullable=False, unique=True),
            sa.Column("topic", sa.String(127), nullable=False),
            # MySQL's BLOB has 65,535 bytes.
            sa.Column("body", sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb"), nullable=False),
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
        message = as_message(check_topic(topic), body, tag, keys, properties, sharding_key, delay_level)
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
        after a full batch. What a database or broker refuses is logged and tried again, with pauses up to 30 s, in
        which other rows are sent. One relay is enough; while there are two, what they both send is stored once by our
        brokers, as above.

        UsageError when ``producer`` is not idempotent, or ``batch`` is below 1."""
        _check_batch(batch)
        if not producer.config.idempotent:
            raise UsageError("the relay of an outbox needs Producer(..., config=ProducerConfig(idempotent=True))")
        time = asyncio.get_running_loop().time
        walk, pause, began = _Walk(), interval, time()
        while True:
            try:
                if await self._step(engine, producer, batch, walk):
                    continue
            except Exception as error:  # noqa: BLE001 - drivers raise their own when they cannot connect
                log.warning("the outbox %s cannot be read or emptied: %r", self.table.name, error)
                await asyncio.sleep(pause)
                # From the beginning: what was sent and is still there must be among the last that brokers know.
                walk, pause, began = _Walk(), min(2 * pause, _LONGEST_PAUSE), time()
                continue
            await asyncio.sleep(interval)
            if not walk.failed:
                walk, pause, began = _Walk(), interval, time()
            elif time() - began >= pause:
                walk, pause, began = _Walk(), min(2 * pause, _LONGEST_PAUSE), time()

    async def drain(self, engine: AsyncEngine, producer: Producer, *, batch: int = 256) -> int:
        """Send what is there now and return how many that were; the errors of ``relay``, and RocketError when a message
        could not be sent, after all others."""
        _check_batch(batch)
        walk = _Walk()
        while await self._step(engine, producer, batch, walk):
            pass
        if walk.failed:
            raise RocketError(f"{walk.failed} messages of {self.table.name} could not be sent, see the log")
        return walk.sent

    async def _step(self, engine: AsyncEngine, producer: Producer, batch: int, walk: _Walk) -> bool:
        """Send the next rows, at most ``batch``, and delete what is stored. Are there perhaps more?"""
        wanted = sa.select(self.table).where(self.table.c.id > walk.after).order_by(self.table.c.id).limit(batch)
        async with engine.connect() as connection:
            rows = (await connection.execute(wanted)).mappings().all()
        lanes: dict[object, list[Any]] = {}
        for row in rows:
            lane = _lane_of(row)
            if lane not in walk.waiting:
                lanes.setdefault(lane, []).append(row)
        done: list[int] = []
        try:
            async with asyncio.TaskGroup() as group:
                for lane in lanes.values():
                    group.create_task(_send_in_order(producer, lane, done))
        except BaseException:
            with suppress(Exception):  # what is stored is not to be sent again; but a cancellation must not get lost
                await self._delete(engine, done)
            raise
        await self._delete(engine, done)
        if rows:
            walk.after = rows[-1]["id"]
        walk.sent += len(done)
        walk.failed += len(rows) - len(done)
        keyed = {lane: taken[-1] for lane, taken in lanes.items() if taken[-1]["sharding_key"] is not None}
        stored = set(done)
        walk.waiting.update(lane for lane, last in keyed.items() if last["id"] not in stored)
        return len(rows) == batch

    async def _delete(self, engine: AsyncEngine, done: list[int]) -> None:
        if not done:
            return
        async with engine.begin() as connection:
            await connection.execute(self.table.delete().where(self.table.c.id.in_(done)))


def _check_batch(batch: int) -> None:
    if batch < 1:
        raise UsageError(f"batch={batch}: at least one row")


def _lane_of(row: Any) -> object:
    """What is sent one after the other."""
    key = row["sharding_key"]
    return row["id"] if key is None else (row["topic"], key)


async def _send_in_order(producer: Producer, rows: Sequence[Any], done: list[int]) -> None:
    for row in rows:
        try:
            receipt = await _send(producer, row)
            if receipt.status in _NOT_YET_SAFE:
                raise RocketError(f"the broker answered {receipt.status.name}, it is sent again")
        except Exception as error:  # noqa: BLE001 - middleware raises its own; what is wrong with one row is no other's
            known = isinstance(error, RocketError | ProtocolError)
            log.warning(
                "row %d of the outbox, message %s of topic %s: %s",
                row["id"], row["message_id"], row["topic"], error if known else repr(error),
            )  # fmt: skip
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
