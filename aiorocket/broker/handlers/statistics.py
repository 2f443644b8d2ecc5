"""How far a group is, what a topic holds, who is connected and how the broker is: GET_TOPIC_STATS_INFO (202),
GET_CONSUME_STATS (208) and the same of all groups (317), QUERY_TOPIC_CONSUME_BY_WHO (300), QUERY_CONSUME_TIME_SPAN
(303), the connections of a group (203, 204), GET_BROKER_RUNTIME_INFO (28) and VIEW_BROKER_STATS_DATA (315). mqadmin's
topicStatus, consumerProgress, brokerConsumeStats, consumerConnection, producerConnection, brokerStatus, clusterList and
statsAll ask these, and the pages of RocketMQ's dashboard.

Everything is read from the store, the offsets and the traffic at the moment of asking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from aiorocket.broker.answers import keyed_pair, refuse, unknown_topic
from aiorocket.broker.core.groups import ConsumerGroup, Member, differences
from aiorocket.broker.core.tables import Tables
from aiorocket.broker.core.traffic import GROUP_GET_NUMS, TOPIC_PUT_NUMS, Growth, Key
from aiorocket.broker.traffic import GETS_FOUND, GETS_MISSED, PUTS, TrafficMeter
from aiorocket.runtime.open_files import most_files, open_files
from aiorocket.runtime.turns import in_turns
from aiorocket_protocol import (
    LANGUAGE_NAMES,
    SCHEDULE_TOPIC,
    VERSION,
    VERSION_NAME,
    ClientConnection,
    ConsumerConnection,
    GetConsumerConnectionListRequestHeader,
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    GetProducerConnectionListRequestHeader,
    GetTopicStatsInfoRequestHeader,
    KVTable,
    MessageQueue,
    ProtocolError,
    QueryConsumeTimeSpanRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    ViewBrokerStatsDataRequestHeader,
    encode_body,
    list_body,
    table_body,
    unpack_host,
)
from aiorocket_protocol.limits import MAX_FRAME

if TYPE_CHECKING:
    from aiorocket.remoting.connection import Connection
    from aiorocket.remoting.processors import RequestHandler
    from aiorocket.runtime.clock import Clock
    from aiorocket.storage.store import MessageStore

__all__ = ("StatisticsHandlers",)

#: Queues looked at before others have their turn: each may cost a read of the disk.
TURN = 64


class StatisticsHandlers:
    """Handlers for 28, 202, 203, 204, 208, 300, 303, 315 and 317. ``boot`` is when the broker began, in wall-clock
    milliseconds."""

    def __init__(
        self, clock: Clock, broker: str, tables: Tables, store: MessageStore, traffic: TrafficMeter, *, boot: int
    ) -> None:
        self._clock = clock
        self._broker = broker
        self._topics = tables.topics
        self._configs = tables.configs
        self._consumers = tables.consumers
        self._producers = tables.producers
        self._offsets = tables.offsets
        self._counters = tables.counters
        self._sent = tables.sent
        self._alarms = tables.alarms
        self._delays = tables.delays
        self._traffic = traffic
        self._store = store
        self._boot = boot

    def codes(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.GET_TOPIC_STATS_INFO: self.topic_stats,
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.consumed_by,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_span,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producer_connections,
            RequestCode.GET_BROKER_RUNTIME_INFO: self.runtime_info,
            RequestCode.VIEW_BROKER_STATS_DATA: self.stats_data,
            RequestCode.GET_BROKER_CONSUME_STATS: self.all_consume_stats,
        }

    async def topic_stats(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 202: the bounds of each queue, and when its last message was stored (0 when there is none)."""
        name = command.read(GetTopicStatsInfoRequestHeader).topic
        topic = self._topics.get(name)
        if topic is None:
            return refuse(unknown_topic(name))
        table: dict[MessageQueue, Any] = {}
        pace = _Pace()
        for queue_id in range(topic.max_queues):
            await pace.look()
            low, high = self._store.min_offset(name, queue_id), self._store.max_offset(name, queue_id)
            table[self._queue(name, queue_id)] = {
                "lastUpdateTimestamp": self._stored(name, queue_id, high - 1) if high > low else 0,
                "maxOffset": high,
                "minOffset": low,
            }
        rate = self._per_second((TOPIC_PUT_NUMS, name))
        return await _table(connection, command, {}, table, {"topicPutTps": rate})

    async def consume_stats(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 208: how far the group is in each queue of one topic, of several (``topicList``) or of all it has
        offsets in or subscribes to. A group without any has an empty table. Topics that its members no longer subscribe
        to are left out, unless ``topicList`` names them."""
        header = command.read(GetConsumeStatsRequestHeader)
        group = header.consumer_group
        named = [name for name in (header.topic_list or "").split(";") if name]
        live = self._consumers.get(group)
        topics = named or ([header.topic] if header.topic else self._topics_of(group, live))
        rate = 0.0
        pace = _Pace()
        shown: list[tuple[str, int]] = []
        for name in topics:
            await pace.look()
            topic = self._topics.get(name)
            if topic is not None and (named or _is_wanted(live, name)):
                shown.append((name, topic.read_queues))
                rate += self._per_second((GROUP_GET_NUMS, f"{name}@{group}"))
        kind = connection.reply_type(command)
        # Written as it is looked at: of all topics it may be far more than an answer holds, and is given up then.
        queues = ((name, queue_id) for name, count in dict(shown).items() for queue_id in range(count))

        def entry(queue: tuple[str, int]) -> tuple[Any, Any]:
            return keyed_pair((self._queue(*queue), self._progress(group, *queue)), kind)

        writing = table_body({"consumeTps": rate}, "offsetTable", queues, entry, kind, at_once=TURN)
        return RemotingCommand.response(body=await in_turns(writing))

    async def all_consume_stats(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 317: 208 for every group and topic, or with ``isOrder`` for order topics only, and how many messages
        all of them are behind. What members no longer subscribe to is left out."""
        order_only = command.read(GetConsumeStatsInBrokerHeader).is_order
        kind = connection.reply_type(command)
        groups: list[bytes] = []  # written one by one: one of thousands of topics is long itself
        behind = size = 0
        pace = _Pace()
        for config in list(self._configs):
            group, live = config.name, self._consumers.get(config.name)
            found: list[bytes] = []
            for name in self._topics_of(group, live):
                await pace.look()
                topic = self._topics.get(name)
                if topic is None or (order_only and not topic.order) or not _is_wanted(live, name):
                    continue
                table: dict[MessageQueue, Any] = {}
                for queue_id in range(topic.write_queues):
                    await pace.look()
                    table[self._queue(name, queue_id)] = self._progress(group, name, queue_id)
                behind += sum(each["brokerOffset"] - each["consumerOffset"] for each in table.values())
                rate = self._per_second((GROUP_GET_NUMS, f"{name}@{group}"))
                found.append(await in_turns(_written({"consumeTps": rate}, table, {}, kind)))
                size += len(found[-1])
                if size > MAX_FRAME:  # not when all are written: 3,000 groups of a wide topic are 2 GiB
                    raise ProtocolError(f"the answer would be larger than {MAX_FRAME} bytes", where="body")
            groups.append(await in_turns(list_body({}, group, found, kind)))
            await pace.look()
        address = unpack_host(self._store.store_host)
        writing = list_body({"brokerAddr": address}, "consumeStatsList", groups, kind, {"totalDiff": behind})
        return RemotingCommand.response(body=await in_turns(writing))

    def _topics_of(self, group: str, live: ConsumerGroup[Connection] | None) -> list[str]:
        """Those it has offsets in, and those that its members subscribe to."""
        return [*self._offsets.topics(group), *(live.without_offset(self._offsets) if live is not None else ())]

    def _progress(self, group: str, topic: str, queue_id: int) -> dict[str, int]:
        """How far a group is in a queue."""
        offset = self._offsets.query(group, topic, queue_id) or 0
        return {
            "brokerOffset": self._store.max_offset(topic, queue_id),
            "consumerOffset": offset,
            "lastTimestamp": self._stored(topic, queue_id, offset - 1),
            "pullOffset": offset,
        }

    async def consumed_by(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 300: the groups that subscribe to a topic now or have offsets in it."""
        name = command.read(QueryTopicConsumeByWhoRequestHeader).topic
        groups = {live.name for live in self._consumers if name in live.subscriptions}
        groups.update(self._offsets.groups(name))
        writing = list_body({}, "groupList", sorted(groups), connection.reply_type(command))
        return RemotingCommand.response(body=await in_turns(writing))

    async def time_span(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 303: for each queue when its first and last message and the one the group consumed last were stored (-1
        for none), and for how many milliseconds the next one has been waiting (0 when there is none)."""
        header = command.read(QueryConsumeTimeSpanRequestHeader)
        name = header.topic
        topic = self._topics.get(name)
        if topic is None:
            return refuse(unknown_topic(name))
        spans = []
        pace = _Pace()
        for queue_id in range(topic.write_queues):
            await pace.look()
            low, high = self._store.min_offset(name, queue_id), self._store.max_offset(name, queue_id)
            first = self._stored(name, queue_id, low, -1)
            offset = max(low, self._offsets.query(header.group, name, queue_id) or 0)
            waiting = self._stored(name, queue_id, offset) if offset < high else 0
            spans.append(
                {
                    "consumeTimeStamp": self._stored(name, queue_id, offset - 1, -1) if offset > low else first,
                    "delayTime": max(0, self._clock.wall_ms() - waiting) if waiting else 0,
                    "maxTimeStamp": self._stored(name, queue_id, high - 1, -1),
                    "messageQueue": self._queue(name, queue_id).to_plain(),
                    "minTimeStamp": first,
                }
            )
        writing = list_body({}, "consumeTimeSpanSet", spans, connection.reply_type(command))
        return RemotingCommand.response(body=await in_turns(writing))

    async def consumer_connections(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 203."""
        group = command.read(GetConsumerConnectionListRequestHeader).consumer_group
        live = self._consumers.get(group)
        if live is None:
            return RemotingCommand.response(
                ResponseCode.CONSUMER_NOT_ONLINE, remark=f"the consumer group[{group:.255}] not online"
            )
        rest = ConsumerConnection(
            connections=[],
            subscriptions={topic: known.data for topic, known in live.subscriptions.items()},
            consume_type=live.consume_type,
            message_model=live.message_model,
            consume_from_where=live.consume_from_where,
        ).to_plain()
        del rest["connectionSet"]
        return await _connections(connection, command, rest, live.members.values())

    async def producer_connections(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 204."""
        group = command.read(GetProducerConnectionListRequestHeader).producer_group
        live = self._producers.get(group)
        if live is None:
            return RemotingCommand.response(
                ResponseCode.SYSTEM_ERROR, remark=f"the producer group[{group:.255}] not exist"
            )
        return await _connections(connection, command, {}, live.members.values())

    def stats_data(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 315: what came in or went out in the last minute, hour and day. The average per call (avgpt) is left
        out: nothing counts the calls."""
        header = command.read(ViewBrokerStatsDataRequestHeader)
        grown = self._traffic.grown((header.stats_name, header.stats_key))
        if grown is None:
            return RemotingCommand.response(
                ResponseCode.SYSTEM_ERROR,
                remark=f"The stats <{header.stats_name:.200}> <{header.stats_key:.600}> not exist",
            )
        plain = dict(zip(("statsMinute", "statsHour", "statsDay"), map(_stats, grown), strict=True))
        return RemotingCommand.response(body=encode_body(plain, connection.reply_type(command)))

    def _per_second(self, key: Key) -> float:
        """In the last minute."""
        grown = self._traffic.grown(key)
        return 0.0 if grown is None else grown[0].per_second

    def runtime_info(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """Code 28: what mqadmin's clusterList and brokerStatus read, as text."""
        store = self._store
        now = self._clock.wall_ms()
        traffic, loop_now = self._traffic.now(), self._traffic.time()
        put, got = self._traffic.put, self._traffic.got
        totals, today, yesterday = traffic.totals, traffic.this_morning, traffic.yesterday_morning
        puts, put_bytes = totals.get(PUTS, 0), self._traffic.bytes_stored

        def rates(*keys: Key) -> str:
            each = zip(*(traffic.rates(key, loop_now) for key in keys), strict=True)
            return " ".join(str(round(sum(rate), 3)) for rate in each)

        table = {
            "bootTimestamp": str(self._boot),
            "runtime": f"[ {(now - self._boot) // 1000} seconds ]",
            "brokerActive": "true",
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": VERSION_NAME,
            **_store_facts(store),
            **_file_facts(),
            "startAcceptSendRequestTimeStamp": "0",
            "sendThreadPoolQueueSize": "0",
            "sendThreadPoolQueueCapacity": "0",
            "sendThreadPoolQueueHeadWaitTimeMills": "0",
            "pullThreadPoolQueueSize": "0",
            "pullThreadPoolQueueCapacity": "0",
            "pullThreadPoolQueueHeadWaitTimeMills": "0",
            "pageCacheLockTimeMills": "0",
            "putMessageTimesTotal": str(puts),
            "putMessageSizeTotal": str(put_bytes),
            "putMessageAverageSize": str(round(put_bytes / max(1, puts), 1)),
            "putTps": rates(PUTS),
            "getFoundTps": rates(GETS_FOUND),
            "getMissTps": rates(GETS_MISSED),
            "getTotalTps": rates(GETS_FOUND, GETS_MISSED),
            "getTransferredTps": rates(got),
            "getTransferedTps": rates(got),  # what 4.9 calls it
            "msgPutTotalYesterdayMorning": str(yesterday.get(put, 0)),
            "msgPutTotalTodayMorning": str(today.get(put, 0)),
            "msgPutTotalTodayNow": str(totals.get(put, 0)),
            "msgGetTotalYesterdayMorning": str(yesterday.get(got, 0)),
            "msgGetTotalTodayMorning": str(today.get(got, 0)),
            "msgGetTotalTodayNow": str(totals.get(got, 0)),
            "timerReadBehind": "0",
            "timerOffsetBehind": "0",
            "timerCongestNum": "0",
            "timerEnqueueTps": "0.0",
            "timerDequeueTps": "0.0",
            "consumerGroups": str(sum(1 for _ in self._consumers)),
            **{
                f"scheduleMessageOffset_{level}": f"{self._delays.progress(level)},{end}"
                for level in self._delays.levels
                if (end := store.max_offset(SCHEDULE_TOPIC, level - 1))
            },
            **self._counters.report(),
            **self._sent.report(),
            **self._alarms.report(),
        }
        if differing := sum(live.differs for live in self._consumers):
            table["subscriptionsDiffer"] = str(differing)
            table.update((f"subscriptionsDiffer_{group}", text) for group, text in differences(self._consumers))
        return RemotingCommand.response(body=encode_body(KVTable(table), connection.reply_type(command)))

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._broker, queue_id)

    def _stored(self, topic: str, queue_id: int, offset: int, missing: int = 0) -> int:
        """When the message at ``offset`` was stored; ``missing`` when there is none."""
        stamp = self._store.store_time(topic, queue_id, offset) if offset >= 0 else None
        return missing if stamp is None else stamp


def _stats(grown: Growth) -> dict[str, Any]:
    return {"sum": grown.total, "tps": grown.per_second}


def _file_facts() -> dict[str, str]:
    """Files and sockets that this process has open, and may have."""
    now = open_files()
    return {} if now is None else {"openFiles": str(now), "openFilesMax": str(most_files())}


def _store_facts(store: MessageStore) -> dict[str, str]:
    """What concerns the store and its disk; one file system holds all of it."""
    total, free = store.retention.space()
    used = store.retention.used()
    ratio = "-1.0" if used is None else str(round(used, 4))  # Apache's word for a disk that does not say
    earliest = store.retention.earliest_time()
    return {
        "commitLogMinOffset": str(store.min_physical),
        "commitLogMaxOffset": str(store.max_physical),
        "commitLogDirCapacity": f"Total : {_size(total)}, Free : {_size(free)}.",
        # Ours: damaged ranges of the log that are not served, and the messages they held.
        "damagedRanges": str(len(store.damaged)),
        "damagedMessages": str(sum(damage.messages for damage in store.damaged)),
        # Ours too: why it takes no messages, while it does not.
        **({"writeProblem": store.problem} if store.problem is not None else {}),
        "commitLogDiskRatio": ratio,
        "consumeQueueDiskRatio": ratio,
        "earliestMessageTimeStamp": str(-1 if earliest is None else earliest),
        # Queues are filled with the log, what can be behind is the key index.
        "dispatchBehindBytes": str(store.keys.behind),
    }


def _size(count: float) -> str:
    """Bytes for a person, as RocketMQ writes them."""
    power = 0
    while count >= 1024 and power < 5:
        count /= 1024
        power += 1
    return f"{count:.1f} {' KMGTP'[power]}iB" if power else f"{count:.0f} B"


def _is_wanted(live: ConsumerGroup[Connection] | None, topic: str) -> bool:
    """Unless the group has members that say what they subscribe to, and this is not among it."""
    return live is None or not live.subscriptions or topic in live.subscriptions


class _Pace:
    """Others have their turn after every so many looks."""

    def __init__(self) -> None:
        self._looks = 0

    async def look(self) -> None:
        self._looks += 1
        if self._looks % TURN == 0:
            await asyncio.sleep(0)


async def _table(
    connection: Connection,
    command: RemotingCommand,
    head: dict[str, Any],
    table: dict[MessageQueue, Any],
    tail: dict[str, Any],
) -> RemotingCommand:
    body = await in_turns(_written(head, table, tail, connection.reply_type(command)))
    return RemotingCommand.response(body=body)


def _written(
    head: dict[str, Any], table: dict[MessageQueue, Any], tail: dict[str, Any], kind: int
) -> Generator[None, None, bytes]:
    """What is known of each queue, between ``head`` and ``tail``."""
    return table_body(head, "offsetTable", table.items(), partial(keyed_pair, serialize_type=kind), kind, tail)


async def _connections(
    connection: Connection, command: RemotingCommand, rest: dict[str, Any], members: Iterable[Member[Connection]]
) -> RemotingCommand:
    """The members of a group as they are now, written in turns, and the ``rest`` of the answer."""
    plain = (
        ClientConnection(
            client_addr=member.peer,
            client_id=member.client_id,
            language=LANGUAGE_NAMES.get(member.language, "OTHER"),
            version=member.version,
        ).to_plain()
        for member in list(members)
    )
    writing = list_body({}, "connectionSet", plain, connection.reply_type(command), rest)
    return RemotingCommand.response(body=await in_turns(writing))
