"""Removing now what retention would remove sometime: mqadmin's cleanExpiredCQ (306), cleanUnusedTopic (316) and
deleteExpiredCommitLog (329)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorocket.broker.core.names import is_system_topic
from aiorocket.broker.core.tables import Tables
from aiorocket_protocol import RemotingCommand, RequestCode

if TYPE_CHECKING:
    from aiorocket.remoting.connection import Connection
    from aiorocket.remoting.processors import RequestHandler
    from aiorocket.storage.store import MessageStore

__all__ = ("CleaningHandlers",)


class CleaningHandlers:
    """Handlers for 306, 316 and 329; answered when it is done."""

    def __init__(self, tables: Tables, store: MessageStore) -> None:
        self._topics = tables.topics
        self._store = store

    def codes(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_queues,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_topics,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.delete_expired,
        }

    async def clean_queues(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 306: the files of queues that point only at messages that are gone. Unlike Apache's, a queue without a
        message goes on counting, so that no offset is given twice."""
        await self._store.retention.clean_queues()
        return RemotingCommand.response()

    async def clean_topics(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 316: the queues of topics that the broker no longer has."""
        for name in self._store.topics():
            if name not in self._topics and not is_system_topic(name):
                await self._store.delete_topics(name)
        return RemotingCommand.response()

    async def delete_expired(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 329: the messages that are old, at any hour."""
        await self._store.retention.sweep()
        return RemotingCommand.response()
