"""Messages that were worked on, in a table of the application's own database: a repeated delivery changes nothing."""

from __future__ import annotations

from datetime import timedelta
from hashlib import sha256
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from aiorocket import Message

__all__ = ("Processed",)

_LONGEST = 255


def _text(length: int) -> sa.types.TypeEngine[str]:
    """By default MySQL's texts are equal whatever their case."""
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, "mysql", "mariadb")


class Processed:
    """The table ``name`` of ``metadata``::

        processed = Processed(Base.metadata)

        @router.listener("orders")
        async def on_paid(order: OrderPaid, message: Message, state) -> None:
            async with state.sessions.begin() as session:
                if await processed.first(session, message):
                    session.add(Invoice(order.id))

    The id is written in the transaction that has the effect, so either both are there or none. It is the sender's
    (``message.msg_id``) with the topic, the same in every delivery, and when a send was repeated by an outbox.
    """

    def __init__(self, metadata: sa.MetaData, name: str = "aiorocket_processed") -> None:
        self.table = sa.Table(
            name, metadata,
            sa.Column("group", _text(255), primary_key=True),
            sa.Column("topic", _text(127), primary_key=True),
            sa.Column("message_id", _text(_LONGEST), primary_key=True),
            sa.Column("at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now(), index=True),
        )  # fmt: skip

    async def first(self, session: AsyncSession | AsyncConnection, message: Message) -> bool:
        """Is this the first time that this group works on the message? True once for each transaction that commits;
        another one that asks meanwhile waits, and is told when that has ended."""
        message_id = message.msg_id
        if len(message_id) > _LONGEST:  # of somebody's own client; MySQL would cut it
            message_id = sha256(message_id.encode()).hexdigest()
        values = {"group": message.group, "topic": message.topic, "message_id": message_id}
        dialect = (session.get_bind() if isinstance(session, AsyncSession) else session).dialect.name
        insert: Any
        if dialect == "postgresql":
            insert = postgresql.insert(self.table).values(values).on_conflict_do_nothing()
        elif dialect == "sqlite":
            insert = sqlite.insert(self.table).values(values).on_conflict_do_nothing()
        elif dialect in ("mysql", "mariadb"):
            insert = mysql.insert(self.table).values(values).prefix_with("IGNORE")
        else:
            return await self._first_by_savepoint(session, values)
        result: Any = await session.execute(insert)
        return bool(result.rowcount)

    async def _first_by_savepoint(self, session: AsyncSession | AsyncConnection, values: dict[str, str]) -> bool:
        try:
            async with session.begin_nested():
                await session.execute(self.table.insert().values(values))
        except sa.exc.IntegrityError:
            return False
        return True

    async def forget(self, session: AsyncSession | AsyncConnection, older_than: timedelta) -> int:
        """Delete what was written longer ago, by the database's clock, and say how much that was. What is still
        delivered after that has its effect again: keep at least what a topic's retention and retries take."""
        now = (await session.execute(sa.select(sa.func.now()))).scalar_one()
        result: Any = await session.execute(self.table.delete().where(self.table.c.at < now - older_than))
        return int(result.rowcount)
