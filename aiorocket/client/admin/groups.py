"""Consumer groups: ``admin.groups``."""

from __future__ import annotations

from typing import Any, NamedTuple

from aiorocket.client.admin.asking import ABSENT, Answers, Asking, Broker, Missing
from aiorocket.client.admin.topics import by_queue, once
from aiorocket.errors import RocketError, UsageError
from aiorocket.model import check_group
from aiorocket_protocol import (
    CLUSTERING,
    ConsumerConnection,
    DeleteSubscriptionGroupRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    QueryTopicsByConsumerRequestHeader,
    RequestCode,
    ResponseCode,
    SubscriptionData,
    TopicListBody,
    decode_body,
)
from aiorocket_protocol.plain import Plain

__all__ = (
    "GroupInfo", "GroupMembers", "Groups", "Lags", "Member", "QueueLag", "RunningInfo", "Subscription", "topics_of",
)  # fmt: skip


class GroupInfo(NamedTuple):
    """A group on one broker; ``retries`` is how often a failed message comes again at most."""

    group: str
    broker: str
    enabled: bool
    broadcasting: bool
    retries: int
    retry_queues: int


class QueueLag(NamedTuple):
    """How far a group is in a queue: it consumes ``offset`` next of the ``end`` there are; ``consumed_ms`` is when the
    last message it consumed was stored, 0 when there is none."""

    topic: str
    broker: str
    queue: int
    offset: int
    end: int
    consumed_ms: int

    @property
    def lag(self) -> int:
        """Messages that wait."""
        return max(0, self.end - self.offset)


class Member(NamedTuple):
    """A client of a group; ``version`` is the ordinal of RocketMQ's MQVersion that it says."""

    client_id: str
    address: str
    language: str
    version: int


class Subscription(NamedTuple):
    """What a group wants of a topic; ``kind`` is TAG or SQL92."""

    topic: str
    expression: str
    kind: str


class GroupMembers(NamedTuple):
    """Who is online and how they consume. Nobody is when ``members`` is empty and nothing ``missing``."""

    members: list[Member]
    subscriptions: list[Subscription]
    model: str = ""
    kind: str = ""
    missing: tuple[Missing, ...] = ()


class RunningInfo(NamedTuple):
    """What a member says of itself: its settings, its queues as they stand, what it did per topic in the last minute,
    what its threads or listeners hang on, and what it subscribes to."""

    client_id: str
    properties: dict[str, str]
    queues: dict[tuple[str, str, int], dict[str, Any]]
    topics: dict[str, dict[str, Any]]
    stacks: str
    subscriptions: tuple[Subscription, ...] = ()


class Lags(dict[str, Answers[QueueLag]]):
    """By group; ``missing`` as of ``Answers``, also when there is no group."""

    missing: tuple[Missing, ...] = ()


class Groups:
    """See ``Admin``."""

    def __init__(self, asking: Asking) -> None:
        self._ask = asking

    async def all(self, *, cluster: str | None = None) -> Answers[GroupInfo]:
        """Every group of the namespace on every master."""

        async def ask(broker: Broker) -> list[GroupInfo]:
            known = (await self._configs(broker)).items()
            return [_info(self._ask.shown(name), broker, row) for name, row in known if self._ask.holds(name)]

        answers = await self._ask.each(ask, cluster=cluster)
        answers.sort()
        return answers

    async def check(self, group: str) -> None:
        """RocketError when every master was asked and none knows the group; many of its questions are answered with
        nothing then, as if nothing waited."""
        every = await self.all()
        if not every.missing and all(each.group != group for each in every):
            raise RocketError(f"no broker knows a group {group!r}: `aiorocket group list` names those there are")

    async def create(
        self, group: str, *, enabled: bool = True, broadcasting: bool = True, retries: int = 16, retry_queues: int = 1,
        cluster: str | None = None,
    ) -> Answers[GroupInfo]:  # fmt: skip
        """Create ``group`` on every master of ``cluster`` or of all, or change it there."""
        changes = {
            "consumeEnable": enabled, "consumeBroadcastEnable": broadcasting, "retryMaxTimes": retries,
            "retryQueueNums": retry_queues,
        }  # fmt: skip
        return await self._put(group, changes, cluster, make=True)

    async def update(
        self, group: str, *, enabled: bool | None = None, broadcasting: bool | None = None, retries: int | None = None,
        retry_queues: int | None = None, cluster: str | None = None,
    ) -> Answers[GroupInfo]:  # fmt: skip
        """Change what is given and nothing else, on every master that has the group. UsageError when none has it."""
        given = {
            "consumeEnable": enabled, "consumeBroadcastEnable": broadcasting, "retryMaxTimes": retries,
            "retryQueueNums": retry_queues,
        }  # fmt: skip
        changes = {name: value for name, value in given.items() if value is not None}
        changed = await self._put(group, changes, cluster, make=False)
        if not changed and not changed.missing:
            raise UsageError(f"no broker has group {group!r}")
        return changed

    async def _put(self, group: str, changes: dict[str, Any], cluster: str | None, *, make: bool) -> Answers[GroupInfo]:
        wire = self._ask.wire(check_group(group))

        async def ask(broker: Broker) -> list[GroupInfo]:
            known = (await self._configs(broker)).get(wire)
            if known is None and not make:
                return []
            body = {"brokerId": 0, **(known or {}), **changes, "groupName": wire}
            await self._ask.put(broker.address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
            return [_info(group, broker, body)]

        return await self._ask.each(ask, cluster=cluster)

    async def delete(self, group: str, *, offsets: bool = True, cluster: str | None = None) -> Answers[str]:
        """Delete ``group``, with ``offsets`` also how far it is. The brokers it is gone from."""
        wire = self._ask.wire(group)

        async def ask(broker: Broker) -> list[str]:
            header = DeleteSubscriptionGroupRequestHeader(wire, clean_offset=offsets, remove_offset=offsets)
            await self._ask.call(broker.address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header, accept=ABSENT)
            return [broker.name]

        return await self._ask.each(ask, cluster=cluster)

    async def lag(self, group: str, topic: str | None = None) -> Answers[QueueLag]:
        """How far the group is in each queue of ``topic``, or of every topic that it has consumed of or that its
        members subscribe to, retries included."""

        async def ask(broker: Broker) -> list[QueueLag]:
            if topic is not None:
                return await self._lag(broker, group, self._ask.wire(topic))
            found = await self._lag(broker, group, None)
            # Apache's brokers know topics with offsets only: who hangs on the first message has none yet.
            known = {each.topic for each in found}
            for online in await self._connected(broker, group):
                for name in online.subscriptions if online.message_model == CLUSTERING else ():
                    if self._ask.shown(name) not in known:
                        found += await self._lag(broker, group, name)
            return found

        answers = await self._ask.each(ask)
        answers.sort()
        return answers

    async def _lag(self, broker: Broker, group: str, wire: str | None) -> list[QueueLag]:
        header = GetConsumeStatsRequestHeader(self._ask.wire(group), wire)
        plain = await self._ask.plain(broker.address, RequestCode.GET_CONSUME_STATS, header, accept=ABSENT)
        return [] if plain is None else self._lags(plain)

    async def lags(self, *, cluster: str | None = None) -> Lags:
        """``lag`` of every group that has consumed, asked of each master at once."""

        async def ask(broker: Broker) -> list[tuple[str, QueueLag]]:
            plain = await self._ask.plain(
                broker.address, RequestCode.GET_BROKER_CONSUME_STATS, GetConsumeStatsInBrokerHeader(False)
            )
            found: list[tuple[str, QueueLag]] = []
            for groups in plain.items("consumeStatsList") if plain is not None else ():
                for name, stats in Plain(groups, "consumeStatsList").members.items():
                    for each in stats if self._ask.holds(str(name)) else ():
                        found += [(self._ask.shown(str(name)), lag) for lag in self._lags(Plain(each, "stats"))]
            return found

        answers = await self._ask.each(ask, cluster=cluster)
        result = Lags()
        result.missing = answers.missing
        for name, lag in sorted(answers):
            result.setdefault(name, Answers()).append(lag)
        for each in result.values():
            each.missing = answers.missing
        return result

    def _lags(self, plain: Plain) -> list[QueueLag]:
        return [
            QueueLag(
                self._ask.shown(queue.topic), queue.broker_name, queue.queue_id, max(0, row.number("consumerOffset")),
                row.number("brokerOffset"), max(0, row.number("lastTimestamp", 0)),
            )
            for queue, row in by_queue(plain, "offsetTable")
        ]  # fmt: skip

    async def members(self, group: str) -> GroupMembers:
        """Who is online, and what they subscribe to: as the first broker that knows says, members of all brokers."""
        members: dict[str, Member] = {}
        subscriptions: dict[str, Subscription] = {}
        model = kind = ""
        answers = await self._ask.each(lambda broker: self._connected(broker, group))
        for known in answers:
            model, kind = known.message_model, known.consume_type
            for each in known.connections:
                members.setdefault(
                    each.client_id,
                    Member(each.client_id, each.client_addr, each.language, each.version),
                )
            for name, data in known.subscriptions.items():
                shown = self._ask.shown(name)
                subscriptions.setdefault(shown, Subscription(shown, data.sub_string, data.expression_type))
        return GroupMembers(sorted(members.values()), sorted(subscriptions.values()), model, kind, answers.missing)

    async def _connected(self, broker: Broker, group: str) -> list[ConsumerConnection]:
        """What one broker says of its members; nothing when there are none."""
        header = GetConsumerConnectionListRequestHeader(self._ask.wire(group))
        answer = await self._ask.call(broker.address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header, accept=ABSENT)
        return [] if answer.code else [decode_body(ConsumerConnection, answer.body, answer.serialize_type)]

    async def running_info(self, group: str, client_id: str, *, stacks: bool = False) -> RunningInfo:
        """What one member says of itself; ``stacks`` asks for what it hangs on. RemoteError when no broker has it, it
        does not answer within 10 s, or says nothing."""
        header = GetConsumerRunningInfoRequestHeader(self._ask.wire(group), client_id, stacks)

        async def ask(broker: Broker) -> list[Plain]:
            code = RequestCode.GET_CONSUMER_RUNNING_INFO
            return [await self._ask.of_member(client_id, broker.address, code, header)]

        plain = (await self._ask.each(ask))[0]
        return RunningInfo(
            client_id,
            plain.text_table("properties"),
            {
                (self._ask.shown(queue.topic), queue.broker_name, queue.queue_id): row.members
                for queue, row in by_queue(plain, "mqTable")
            },
            {self._ask.shown(str(name)): row for name, row in plain.table("statusTable").items()},
            plain.text_or_none("jstack") or "",
            tuple(
                sorted(
                    Subscription(self._ask.shown(each.topic), each.sub_string, each.expression_type)
                    for each in map(SubscriptionData.from_plain, plain.items("subscriptionSet"))
                )
            ),
        )

    async def topics(self, group: str) -> Answers[str]:
        """The topics it has offsets in."""
        wire = self._ask.wire(group)
        return once(await self._ask.each(lambda broker: topics_of(self._ask, broker, wire)), self._ask.shown)

    async def _configs(self, broker: Broker) -> dict[str, dict[str, Any]]:
        plain = await self._ask.plain(broker.address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return {} if plain is None else {str(name): row for name, row in plain.table("subscriptionGroupTable").items()}


async def topics_of(ask: Asking, broker: Broker, wire: str) -> list[str]:
    """The topics in which a group has offsets at one broker; all names as on the wire."""
    code, older = RequestCode.QUERY_TOPICS_BY_CONSUMER, int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    header = QueryTopicsByConsumerRequestHeader(wire)
    answer = await ask.call(broker.address, code, header, accept=(*ABSENT, older))
    if answer.code == older:  # 4.9: of members that are online, what they subscribe to
        code, stats = RequestCode.GET_CONSUME_STATS, GetConsumeStatsRequestHeader(wire)
        plain = await ask.plain(broker.address, code, stats, accept=ABSENT)
        return [] if plain is None else list({queue.topic: None for queue, _ in by_queue(plain, "offsetTable")})
    return [] if answer.code else decode_body(TopicListBody, answer.body, answer.serialize_type).topics


def _info(group: str, broker: Broker, row: dict[str, Any]) -> GroupInfo:
    plain = Plain(row, "SubscriptionGroupConfig")
    return GroupInfo(
        group, broker.name, plain.flag("consumeEnable", True), plain.flag("consumeBroadcastEnable", True),
        plain.number("retryMaxTimes", 16), plain.number("retryQueueNums", 1),
    )  # fmt: skip
