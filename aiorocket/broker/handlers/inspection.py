"""What administrators look at that is no statistic: GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305), QUERY_CONSUME_QUEUE (321),
GET_ALL_PRODUCER_INFO (328), QUERY_TOPICS_BY_CONSUMER (343), QUERY_SUBSCRIPTION_BY_CONSUMER (345), GET_BROKER_HA_STATUS
(907) and RESET_MASTER_FLUSH_OFFSET (908). mqadmin's exportMetadata, queryCq, producer, haStatus and
resetMasterFlushOffset ask these, and the pages of RocketMQ's dashboard."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from aiorocket.broker.core.tables import Tables
from aiorocket.broker.core.turns import A_SHORT_TURN
from aiorocket.config import BrokerConfig
from aiorocket.runtime.turns import in_turns
from aiorocket_protocol import (
    LANGUAGE_NAMES,
    SYSTEM_TOPICS,
    QueryConsumeQueueRequestHeader,
    QuerySubscriptionByConsumerRequestHeader,
    QueryTopicsByConsumerRequestHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    TopicListBody,
    encode_body,
    list_body,
    reply_topic,
    table_body,
)

if TYPE_CHECKING:
    from aiorocket.remoting.connection import Connection
    from aiorocket.remoting.processors import RequestHandler
    from aiorocket.runtime.clock import Clock
    from aiorocket.storage.store import MessageStore

__all__ = ("InspectionHandlers",)

#: Entries of a consume queue in one answer, whatever was asked for.
MAX_ENTRIES = 1024
#: Of which so many in a turn: each is compared with its record, which may have 4 MiB.
_AT_ONCE = 2


class InspectionHandlers:
    """``address`` is what clients are told."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        config: BrokerConfig,
        tables: Tables,
        store: MessageStore,
        *,
        address: str,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._config = config
        self._topics = tables.topics
        self._consumers = tables.consumers
        self._producers = tables.producers
        self._offsets = tables.offsets
        self._store = store
        self._address = address

    def codes(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.system_topics,
            RequestCode.QUERY_CONSUME_QUEUE: self.consume_queue,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.topics_of_group,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
            RequestCode.GET_BROKER_HA_STATUS: self.replication,
            RequestCode.RESET_MASTER_FLUSH_OFFSET: self.reset_flush_offset,
        }

    def system_topics(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 305: those whose names have a meaning, this broker's and its cluster's too."""
        cluster = self._config.cluster
        names = SYSTEM_TOPICS | {cluster, self._config.name, reply_topic(cluster)}
        return _answer(connection, command, TopicListBody(sorted(names)))

    async def consume_queue(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 321: what a consume queue says of its messages, from an offset on, and with a group that subscribes to
        the topic whether its tags let each through."""
        header = command.read(QueryConsumeQueueRequestHeader)
        name, queue_id = header.topic, header.queue_id
        topic = self._topics.get(name)
        if topic is None or not 0 <= queue_id < topic.max_queues:
            return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, remark=f"{queue_id}@{name:.200} is not exist!")
        low, high = self._store.min_offset(name, queue_id), self._store.max_offset(name, queue_id)
        plain: dict[str, Any] = {"maxQueueIndex": high, "minQueueIndex": low}
        accept = None
        if header.consumer_group:
            live = self._consumers.get(header.consumer_group)
            known = None if live is None else live.subscriptions.get(name)
            if known is None:
                plain["filterData"] = f"{header.consumer_group:.200}@{name} is not online!"
            else:
                plain.update(subscriptionData=known.data.to_plain(), filterData="null")
                accept = known.accept if known.is_tag else None
        count = max(0, min(header.max_count, MAX_ENTRIES))
        start = max(low, header.start_index)
        found: list[dict[str, Any]] = []
        while len(found) < count:
            some = self._store.entries(name, queue_id, start + len(found), min(_AT_ONCE, count - len(found)))
            if not some:
                break
            found += [
                {
                    "eval": accept is None or accept(code),
                    "physicOffset": physical,
                    "physicSize": size,
                    "tagsCode": code,
                }
                for physical, size, code in some
            ]
            await asyncio.sleep(0)
        plain["queueData"] = found
        return _answer(connection, command, plain)

    async def all_producers(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 328."""
        return RemotingCommand.response(body=await in_turns(self._all_producers(connection.reply_type(command))))

    def _all_producers(self, kind: int) -> Generator[None, None, bytes]:
        wall, now = self._clock.wall_ms(), self._loop.time()
        written: list[bytes] = []
        members = 0
        for group in list(self._producers):
            plain = (
                {
                    "clientId": member.client_id,
                    "language": LANGUAGE_NAMES.get(member.language, "OTHER"),
                    "lastUpdateTimestamp": wall - round((now - member.seen) * 1000),
                    "remoteIP": member.peer,
                    "version": member.version,
                }
                for member in list(group.members.values())
            )
            members += 1 + len(group.members)
            written.append((yield from list_body({}, group.name, plain, kind)))
            if members >= A_SHORT_TURN:
                members = 0
                yield
        return (yield from table_body({}, "data", written, lambda group: group, kind))

    async def topics_of_group(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 343: the topics that a group has offsets in."""
        topics = sorted(self._offsets.topics(command.read(QueryTopicsByConsumerRequestHeader).group))
        kind = connection.reply_type(command)
        writing = list_body({}, "topicList", topics, kind, {"brokerAddr": self._address})
        return RemotingCommand.response(body=await in_turns(writing))

    def subscription(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 345: what a group wants of a topic; nothing when it is not online."""
        header = command.read(QuerySubscriptionByConsumerRequestHeader)
        plain: dict[str, Any] = {"group": header.group, "topic": header.topic}
        live = self._consumers.get(header.group)
        known = None if live is None else live.subscriptions.get(header.topic)
        if known is not None:
            plain["subscriptionData"] = known.data.to_plain()
        return _answer(connection, command, plain)

    def replication(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 907: a master without slaves, for messages are not replicated here."""
        plain = {
            "haConnectionInfo": [],
            "inSyncSlaveNums": 0,
            "master": True,
            "masterCommitLogMaxOffset": self._store.max_physical,
        }
        return _answer(connection, command, plain)

    def reset_flush_offset(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 908 is for slaves; a master answers that it is done and does nothing."""
        return RemotingCommand.response()


def _answer(connection: Connection, command: RemotingCommand, body: TopicListBody | dict[str, Any]) -> RemotingCommand:
    return RemotingCommand.response(body=encode_body(body, connection.reply_type(command)))
