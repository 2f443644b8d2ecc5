"""Offsets: of groups (14, 15), of queues (29, 30, 31, 32), and all of them for administrators (43, 45, 308)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from aiorocket.broker.answers import brokers_own, refuse, unknown_topic
from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.tables import Tables
from aiorocket.broker.core.turns import A_TURN
from aiorocket.broker.lower_commits import warn_of_lower
from aiorocket.runtime.turns import in_turns
from aiorocket_protocol import (
    EXT_EPOCH,
    REVIVE_GROUP,
    DataVersion,
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    QueryCorrectionOffsetHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
    encode_body,
    table_body,
)

if TYPE_CHECKING:
    from aiorocket.remoting.connection import Connection
    from aiorocket.remoting.processors import RequestHandler
    from aiorocket.storage.store import MessageStore

__all__ = ("OffsetHandlers",)

#: Java's Long.MAX_VALUE.
NOWHERE = (1 << 63) - 1
#: Offsets of one group in one topic that are written at once.
_WIDE = 64


class OffsetHandlers:
    """Handlers for these. ``stale(connection, group, topic, queue id, epoch)`` refuses the commit
    of somebody who no longer owns the queue."""

    def __init__(
        self, tables: Tables, store: MessageStore, *, stale: Callable[[Connection, str, str, int, str], Refusal | None]
    ) -> None:
        self._topics = tables.topics
        self._configs = tables.configs
        self._offsets = tables.offsets
        self._delays = tables.delays
        self._store = store
        self._stale = stale

    def codes(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search,
            RequestCode.GET_MAX_OFFSET: self.maximum,
            RequestCode.GET_MIN_OFFSET: self.minimum,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest_time,
        }

    def looks(self) -> dict[int, RequestHandler]:
        """Those for administrators, of a whole table."""
        return {
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self.delay_offsets,
            RequestCode.QUERY_CORRECTION_OFFSET: self.correction,
        }

    def query(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 14. A group without an offset starts a young topic at 0: whoever subscribed before the first message
        was sent must not miss it, however late its first query comes. An empty queue is the youngest (4.9 says so too;
        5.x says 22): clients that are told 22 ask where the queue ends, and what comes in between they would miss."""
        header = command.read(QueryConsumerOffsetRequestHeader)
        topic, queue_id = header.topic, header.queue_id
        offset = self._offsets.query(header.consumer_group, topic, queue_id)
        if offset is not None:
            if self._offsets.resets:
                self._offsets.tell_reset(header.consumer_group, topic, queue_id, connection)
            return RemotingCommand.response(header=QueryConsumerOffsetResponseHeader(offset))
        zero = header.set_zero_if_not_found is not False and topic in self._topics
        if zero and self._store.is_young(topic, queue_id):
            return RemotingCommand.response(header=QueryConsumerOffsetResponseHeader(0))
        return RemotingCommand.response(
            ResponseCode.QUERY_NOT_FOUND, remark="Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
        )

    def update(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 15. A lower commit than the stored one is accepted (resets do that) and leaves a warning."""
        header = command.read(UpdateConsumerOffsetRequestHeader)
        group, topic = header.consumer_group, header.topic
        if group == REVIVE_GROUP:
            return refuse(brokers_own(group))
        config = self._configs.get(group) or self._configs.ensure(group, connection.holds)
        if isinstance(config, Refusal):
            return refuse(config)
        known = self._topics.get(topic)
        if known is None:
            return refuse(unknown_topic(topic))
        if not 0 <= header.queue_id < known.max_queues:
            why = f"topic[{topic}] has no queue {header.queue_id}: the offset is not stored"
            return refuse(Refusal(ResponseCode.INVALID_PARAMETER, why))
        if (refusal := self._offsets.refusal(group, topic, header.queue_id, connection.holds)) is not None:
            return refuse(refusal)
        epoch = command.ext_value(EXT_EPOCH)
        if epoch is not None and (refusal := self._stale(connection, group, topic, header.queue_id, epoch)) is not None:
            return refuse(refusal)
        waiting = self._offsets.waiting_reset(group, topic, header.queue_id)
        if waiting is not None and waiting != header.commit_offset:
            return RemotingCommand.response(remark="Offset has been previously reset")
        if self._offsets.commit(group, topic, header.queue_id, header.commit_offset, connection.holds):
            warn_of_lower(self._offsets, connection, group, topic, header.queue_id, header.commit_offset)
        return RemotingCommand.response()

    def search(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 29."""
        header = command.read(SearchOffsetRequestHeader)
        if header.topic not in self._topics:
            return refuse(unknown_topic(header.topic))
        upper = (header.boundary_type or "").upper() == "UPPER"
        offset = self._store.offset_by_time(header.topic, header.queue_id, header.timestamp, upper)
        return RemotingCommand.response(header=SearchOffsetResponseHeader(offset))

    def maximum(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 30; of a topic or queue that does not exist it is 0, as at Apache's."""
        header = command.read(GetMaxOffsetRequestHeader)
        offset = self._store.max_offset(header.topic, header.queue_id)
        return RemotingCommand.response(header=GetMaxOffsetResponseHeader(offset))

    def minimum(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 31, as 30."""
        header = command.read(GetMinOffsetRequestHeader)
        offset = self._store.min_offset(header.topic, header.queue_id)
        return RemotingCommand.response(header=GetMinOffsetResponseHeader(offset))

    def earliest_time(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 32: -1 for an empty queue."""
        header = command.read(GetEarliestMsgStoretimeRequestHeader)
        if header.topic not in self._topics:
            return refuse(unknown_topic(header.topic))
        first = self._store.min_offset(header.topic, header.queue_id)
        stamp = self._store.store_time(header.topic, header.queue_id, first)
        return RemotingCommand.response(header=GetEarliestMsgStoretimeResponseHeader(-1 if stamp is None else stamp))

    # ---- for administrators

    async def all_offsets(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 43: how far every group has come in every queue, as slaves of Apache's read it."""
        head = {"dataVersion": DataVersion(0, self._offsets.version).to_plain()}
        kind = connection.reply_type(command)
        wide: dict[tuple[str, str], bytes] = {}
        for number, (group, topic) in enumerate(self._offsets.pairs(), 1):
            if self._offsets.width(group, topic) > _WIDE:
                queues = self._offsets.queues(group, topic)
                wide[group, topic] = await in_turns(table_body({}, f"{topic}@{group}", queues.items(), _numbered, kind))
            if number % A_TURN == 0:
                await asyncio.sleep(0)

        def entry(pair: tuple[str, str]) -> tuple[str, dict[str, int]] | bytes:
            group, topic = pair
            return wide.get(pair) or (f"{topic}@{group}", dict(map(_numbered, self._offsets.queues(*pair).items())))

        writing = table_body(head, "offsetTable", self._offsets.pairs(), entry, kind)
        return RemotingCommand.response(body=await in_turns(writing))

    def delay_offsets(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 45: up to where each delay level has delivered."""
        version = DataVersion(0, self._delays.version).to_plain()
        plain = {"dataVersion": version, "offsetTable": self._delays.to_dict()["offsetTable"]}
        return RemotingCommand.response(body=encode_body(plain, connection.reply_type(command)))

    async def correction(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 308: for each queue how far the group has come that is least far, of all whose next message is still
        there; 2^63 - 1 where that is further than ``compareGroup``. ``filterGroups`` (separated by commas) do not
        count; Apache's forgets their offsets, this one does not."""
        header = command.read(QueryCorrectionOffsetHeader)
        topic = header.topic
        left_out = (header.filter_groups or "").split(",")
        least: dict[int, int] = {}
        looked = 0
        for group in self._offsets.groups(topic):
            for queue_id, offset in self._offsets.queues(group, topic).items() if group not in left_out else ():
                if offset >= self._store.min_offset(topic, queue_id):
                    least[queue_id] = min(offset, least.get(queue_id, offset))
                looked += 1
                if looked % A_TURN == 0:
                    await asyncio.sleep(0)
        for queue_id, offset in self._offsets.queues(header.compare_group, topic).items():
            if least.get(queue_id, offset) > offset:
                least[queue_id] = NOWHERE
        writing = table_body({}, "correctionOffsets", least.items(), _numbered, connection.reply_type(command))
        return RemotingCommand.response(body=await in_turns(writing))


def _numbered(queue: tuple[int, int]) -> tuple[str, int]:
    """The offset of a queue, as a member of an object."""
    return str(queue[0]), queue[1]
