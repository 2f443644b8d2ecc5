"""Topics: ``admin.topics``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from aiorocket.client.admin.asking import ABSENT, Answers, Asking, Broker, Missing
from aiorocket.client.topic_admin import DEFAULT_QUEUES, create_topic
from aiorocket.errors import RocketError, TopicNotFoundError, UsageError
from aiorocket.model import check_topic
from aiorocket_protocol import (
    AUTO_CREATE_TOPIC,
    DLQ_PREFIX,
    PERM_READ,
    PERM_READ_WRITE,
    PERM_WRITE,
    RETRY_PREFIX,
    SINGLE_TAG,
    SYSTEM_TOPIC_PREFIX,
    CreateTopicRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    DeleteTopicRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicStatsInfoRequestHeader,
    MessageQueue,
    ProtocolError,
    QueryTopicConsumeByWhoRequestHeader,
    RequestCode,
    TopicConfig,
    TopicListBody,
    TopicRouteData,
    decode_body,
)
from aiorocket_protocol.plain import Plain

__all__ = ("QueueStatus", "RouteEntry", "TopicInfo", "Topics")

#: Attributes that a 5.x broker refuses to have set again.
_FIXED = ("queue.type", "cleanup.policy")
_PERMISSIONS = {"RW": PERM_READ_WRITE, "R": PERM_READ, "W": PERM_WRITE}
_MOST_QUEUES = 65_536
#: How the names of topics begin that groups and brokers make for themselves.
_MADE = (RETRY_PREFIX, DLQ_PREFIX, "%REPLAYED%", SYSTEM_TOPIC_PREFIX)


class TopicInfo(NamedTuple):
    """A topic on one broker. ``permission`` is "RW", "R", "W" or ""."""

    topic: str
    broker: str
    read_queues: int
    write_queues: int
    permission: str
    order: bool
    attributes: dict[str, str]


class QueueStatus(NamedTuple):
    """A queue has the offsets ``begin`` up to ``end``, which is not one of them; ``stored_ms`` is when its last message
    was stored, 0 when it has none."""

    topic: str
    broker: str
    queue: int
    begin: int
    end: int
    stored_ms: int


class RouteEntry(NamedTuple):
    """What clients are told of a topic on one broker; ``addresses`` by broker id, 0 is the master."""

    broker: str
    cluster: str
    addresses: dict[int, str]
    read_queues: int
    write_queues: int
    permission: str


class Topics:
    """See ``Admin``."""

    def __init__(self, asking: Asking) -> None:
        self._ask = asking

    async def all(self, *, system: bool = False, cluster: str | None = None) -> Answers[TopicInfo]:
        """Every topic of the namespace on every master; with ``system`` also those of brokers and groups themselves."""

        async def ask(broker: Broker) -> list[TopicInfo]:
            hidden: set[str] = set()
            if not system:
                code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
                answer = await self._ask.call(broker.address, code)
                hidden = set(decode_body(TopicListBody, answer.body, answer.serialize_type).topics)
            own = [each for each in await self._configs(broker) if self._ask.holds(each.topic_name)]
            found = [_info(self._ask.shown(each.topic_name), broker, each) for each in own]
            return [each for each in found if system or not (each.topic in hidden or each.topic.startswith(_MADE))]

        answers = await self._ask.each(ask, cluster=cluster)
        answers.sort()
        return answers

    async def create(
        self,
        topic: str,
        queues: int = DEFAULT_QUEUES,
        *,
        permission: str = "RW",
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
    ) -> None:
        """Create ``topic`` on every master of ``cluster``, or of all, or change it. Clients find it when this returns.
        UsageError, and RemoteError when brokers refuse."""
        _in_range(queues)
        wire = self._ask.wire(check_topic(topic))
        masters = {each.name: each.address for each in await self._ask.brokers(cluster=cluster)}
        await create_topic(self._ask.client, wire, queues, masters=masters)
        if permission != "RW" or order or attributes:
            await self.update(topic, permission=permission, order=order, attributes=attributes, cluster=cluster)

    async def update(
        self,
        topic: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: str | None = None,
        order: bool | None = None,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> Answers[TopicInfo]:
        """Change what is given and nothing else, on every master that has the topic, of ``cluster`` or of all, or on
        ``broker``; what it is now. TopicNotFoundError when none has it. To have fewer queues, first take write queues
        away, and read queues when what they hold is consumed."""
        wire = self._ask.wire(topic)
        if permission is not None and permission not in _PERMISSIONS:
            raise UsageError(f"permission={permission!r}: RW, R or W")
        for number in (read_queues, write_queues):
            if number is not None:
                _in_range(number)

        async def ask(at: Broker) -> list[TopicInfo]:
            found = [each for each in await self._configs(at) if each.topic_name == wire]
            if not found:
                return []
            old = found[0]
            kept = {name: value for name, value in old.attributes.items() if name not in _FIXED}
            new = old._replace(
                read_queue_nums=old.read_queue_nums if read_queues is None else read_queues,
                write_queue_nums=old.write_queue_nums if write_queues is None else write_queues,
                perm=old.perm if permission is None else _PERMISSIONS[permission],
                order=old.order if order is None else order,
                attributes={**kept, **(attributes or {})},
            )
            text = ",".join(f"+{name}={value}" for name, value in new.attributes.items())
            header = CreateTopicRequestHeader(
                wire, AUTO_CREATE_TOPIC, new.read_queue_nums, new.write_queue_nums, new.perm, SINGLE_TAG, new.order,
                old.topic_sys_flag, text or None,
            )  # fmt: skip
            await self._ask.call(at.address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
            return [_info(topic, at, new)]

        changed = await self._ask.each(ask, cluster=cluster, broker=broker)
        if not changed and not changed.missing:
            raise TopicNotFoundError(f"no broker has topic {topic!r}: `aiorocket topic list` names those there are")
        return changed

    async def delete(self, topic: str, *, cluster: str | None = None) -> Answers[str]:
        """Delete ``topic`` with its messages on every master, and from the name servers. The brokers it is gone from;
        one that never had it counts. Name servers that do not do it are ``missing``: they go on telling clients of
        it, until it is deleted again."""
        wire = self._ask.wire(topic)

        async def ask(broker: Broker) -> list[str]:
            await self._ask.call(
                broker.address, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(wire), accept=ABSENT
            )
            return [broker.name]

        async def forget(nameserver: str) -> list[str]:
            header = DeleteTopicFromNamesrvRequestHeader(wire, cluster)
            await self._ask.call(nameserver, RequestCode.DELETE_TOPIC_IN_NAMESRV, header)
            return [nameserver]

        gone = await self._ask.each(ask, cluster=cluster)
        try:
            gone.missing += (await self._ask.each_nameserver(forget)).missing
        except (RocketError, ProtocolError) as error:  # the messages are gone all the same
            gone.missing += (Missing("name servers", str(error)),)
        return gone

    async def status(self, topic: str) -> Answers[QueueStatus]:
        """Each queue's bounds. TopicNotFoundError when no broker has the topic."""
        wire = self._ask.wire(topic)

        async def ask(broker: Broker) -> list[QueueStatus]:
            header = GetTopicStatsInfoRequestHeader(wire)
            plain = await self._ask.plain(broker.address, RequestCode.GET_TOPIC_STATS_INFO, header, accept=ABSENT)
            return [] if plain is None else [_status(topic, key, row) for key, row in by_queue(plain, "offsetTable")]

        answers = await self._ask.each(ask)
        if not answers and not answers.missing:
            raise TopicNotFoundError(f"no broker has topic {topic!r}: `aiorocket topic list` names those there are")
        answers.sort()
        return answers

    async def route(self, topic: str) -> list[RouteEntry]:
        """What clients are told: asked of the name server now. TopicNotFoundError, NotConnectedError."""
        wire = self._ask.wire(topic)
        await self._ask.client.route(wire, refresh=True)  # its errors say what each name server said
        header = GetRouteInfoRequestHeader(wire, accept_standard_json_only=True)
        for nameserver in self._ask.client.config.nameservers:
            try:
                answer = await self._ask.call(nameserver, RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
            except (RocketError, ProtocolError):
                continue  # one that is away, or has none: another one had
            data = decode_body(TopicRouteData, answer.body, answer.serialize_type)
            brokers = {each.broker_name: each for each in data.broker_datas}
            return [
                RouteEntry(
                    each.broker_name, at.cluster, at.broker_addrs, each.read_queue_nums, each.write_queue_nums,
                    permission_text(each.perm),
                )
                for each in sorted(data.queue_datas)
                if (at := brokers.get(each.broker_name)) is not None
            ]  # fmt: skip
        raise TopicNotFoundError(f"no name server has a route for topic {topic!r}")

    async def groups(self, topic: str) -> Answers[str]:
        """The groups that subscribe to the topic now or have consumed of it."""

        async def ask(broker: Broker) -> list[str]:
            header = QueryTopicConsumeByWhoRequestHeader(self._ask.wire(topic))
            plain = await self._ask.plain(broker.address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header, accept=ABSENT)
            return [] if plain is None else plain.texts("groupList")

        return once(await self._ask.each(ask), self._ask.shown)

    async def _configs(self, broker: Broker) -> list[TopicConfig]:
        plain = await self._ask.plain(broker.address, RequestCode.GET_ALL_TOPIC_CONFIG)
        rows = plain.table("topicConfigTable").values() if plain is not None else ()
        return [TopicConfig.from_plain(row) for row in rows]


def once(answers: Answers[str], shown: Any) -> Answers[str]:
    """Each name once, sorted, as the application knows it."""
    names: Answers[str] = Answers(sorted({shown(name) for name in answers}))
    names.missing = answers.missing
    return names


def by_queue(plain: Plain, key: str) -> list[tuple[MessageQueue, Plain]]:
    """The rows of a table whose keys are queues."""
    return [(MessageQueue.from_plain(queue), Plain(row, key)) for queue, row in plain.table(key).items()]


def permission_text(perm: int) -> str:
    return ("R" if perm & PERM_READ else "") + ("W" if perm & PERM_WRITE else "")


def _status(topic: str, queue: MessageQueue, row: Plain) -> QueueStatus:
    return QueueStatus(
        topic, queue.broker_name, queue.queue_id, max(0, row.number("minOffset")), row.number("maxOffset"),
        row.number("lastUpdateTimestamp", 0),
    )  # fmt: skip


def _info(name: str, broker: Broker, config: TopicConfig) -> TopicInfo:
    return TopicInfo(
        name, broker.name, config.read_queue_nums, config.write_queue_nums, permission_text(config.perm), config.order,
        config.attributes,
    )  # fmt: skip


def _in_range(queues: int) -> None:
    if isinstance(queues, bool) or not isinstance(queues, int) or not 1 <= queues <= _MOST_QUEUES:
        raise UsageError(f"queues={queues!r}: 1 to {_MOST_QUEUES}")
