"""HEART_BEAT (34), UNREGISTER_CLIENT (35), GET_CONSUMER_LIST_BY_GROUP (38), CHECK_CLIENT_CONFIG (46), and the news they
cause.

Who must rebalance is told by NOTIFY_CONSUMER_IDS_CHANGED (40), one-way, once per group and loop turn however many
members came or went in it: a restart of a thousand consumers is then not a million notices. Of larger groups some are
told in each turn, and again when all have been.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any

from aiorocket.broker.answers import plain_body, refuse
from aiorocket.broker.core.groups import ConsumerGroup, GroupTable, Subscription, is_tag_type
from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.pull_checks import check_filter_type
from aiorocket.broker.core.tables import Tables
from aiorocket.broker.core.topics import UNIT_SUB
from aiorocket.broker.core.turns import A_SHORT_TURN, whole
from aiorocket.errors import RocketError
from aiorocket.runtime.deadlines import DeadlineDriver
from aiorocket.runtime.turns import in_turns
from aiorocket_protocol import (
    BROADCASTING,
    MAX_LENIENT,
    ConsumerData,
    ConsumerListBody,
    GetConsumerListByGroupRequestHeader,
    HeartbeatData,
    NotifyConsumerIdsChangedRequestHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SubscriptionData,
    UnregisterClientRequestHeader,
    decode_plain,
    encode_body,
    list_body,
    retry_topic,
)
from aiorocket_protocol.plain import Plain

if TYPE_CHECKING:
    from aiorocket.config import BrokerConfig, Limits
    from aiorocket.remoting.connection import Connection
    from aiorocket.remoting.processors import RequestHandler

__all__ = ("ClientHandlers",)

_log = logging.getLogger("aiorocket.broker")

#: Members that are told of others in one turn of the loop: some 5 ms.
_NOTICES_PER_TURN = 1000
#: Members of a group that are named at once.
_FEW = 500
#: Bytes of a heartbeat that is registered at once, and of filters that have a turn of a longer one: a thousand
#: characters cost one to two milliseconds, and it may hold a megabyte. A subscription costs as much as so many.
_AT_ONCE, _OF_ONE = 16 << 10, 100
#: Tags that take as long to be read as a subscription without any.
_TAGS = 20
#: Lines a minute on what a group's members disagree about, and groups they are counted of: two members could else make
#: one with each heartbeat.
_REPORTS, _MAX_REPORTED = 10, 4096
#: In the data of a connection that a long heartbeat came on: what its heartbeats, and who leaves, take turns by.
_IN_LINE = "heartbeats"


class ClientHandlers:
    """Keeps the group tables. ``topics_changed`` is called when a heartbeat made a retry topic."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: BrokerConfig,
        tables: Tables,
        *,
        topics_changed: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._property_filter = config.property_filter
        self._limits = config.limits
        self._topics = tables.topics
        self._configs = tables.configs
        self._consumers: GroupTable[Connection] = tables.consumers
        self._producers: GroupTable[Connection] = tables.producers
        self._topics_changed = topics_changed
        self._one_long = asyncio.Lock()  # one works in turns of the loop, not each of many
        #: The long list of members that was asked for last: all of them ask for it when one came.
        self._list: tuple[list[str], int, bytes] = [], 0, b""
        self._to_notify: dict[str, None] = {}
        #: Members that are told in the turns to come, and of which group.
        self._notices: deque[tuple[Connection, NotifyConsumerIdsChangedRequestHeader]] = deque()
        #: Group → the end of its minute, and lines of what its members disagree about in it.
        self._reported: dict[str, tuple[float, int]] = {}
        self._consumer_expiry = DeadlineDriver(loop, tables.consumers.next_deadline, self._consumers_expired)
        self._producer_expiry = DeadlineDriver(loop, tables.producers.next_deadline, self._producers_expired)

    def codes(self) -> dict[int, RequestHandler]:
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_client_config,
        }

    def close(self) -> None:
        self._consumer_expiry.close()
        self._producer_expiry.close()

    def heartbeat(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Code 34: (re)register every group of one client. Idempotent. A group that is refused is the answer, and does
        not keep the client's others out."""
        if len(command.body) > _AT_ONCE:
            return self._long(connection.data.setdefault(_IN_LINE, asyncio.Lock()), connection, command)
        if (line := connection.data.get(_IN_LINE)) is not None:
            return _behind(line, lambda: whole(self._register(connection, command, long=False)))
        return whole(self._register(connection, command, long=False))

    async def _long(self, line: asyncio.Lock, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        async with line, self._one_long:
            await asyncio.sleep(0)
            return await in_turns(self._register(connection, command, long=True))

    def _register(
        self, connection: Connection, command: RemotingCommand, long: bool
    ) -> Generator[None, None, RemotingCommand]:
        # When it is its turn: read, a long one takes several times as much as its bytes, which are counted.
        plain = decode_plain(command.body, command.serialize_type, "HeartbeatData", lenient=MAX_LENIENT)
        command.body = b""
        plain = _few(plain, self._limits.groups_per_connection)
        data = (yield from _read(plain, self._limits)) if long else HeartbeatData.from_plain(plain)
        if connection.closed:  # meanwhile, and was told to be lost: nobody would take these out again
            return RemotingCommand.response()
        now = self._loop.time()
        version = self._topics.version
        #: What version 1 is told: always send everything. Version 2 sends subscriptions only when we lack them.
        news = data.fingerprint == 0
        without_sub = data.without_sub and data.fingerprint != 0
        refusal: Refusal | None = None
        size = 0
        try:
            for consumer in data.consumers:
                config = self._consumers.refusal(
                    consumer.group, connection, data.client_id, consumer.subscriptions
                ) or self._configs.ensure(consumer.group, connection.holds)
                if isinstance(config, Refusal):
                    refusal = refusal or config
                    continue
                compiled: dict[str, Subscription] = {}
                for wanted in consumer.subscriptions if long else ():
                    size += (cost := _OF_ONE + len(wanted.sub_string))
                    if size > _AT_ONCE:
                        size = cost
                        yield
                        if connection.closed:
                            return RemotingCommand.response()
                    if self._consumers.is_new(consumer.group, wanted):
                        compiled[wanted.topic] = Subscription(wanted)
                # Made now and registered at once, else retries would show up only with the client's next route poll.
                self._topics.ensure(
                    retry_topic(consumer.group), config.retry_queues, UNIT_SUB if consumer.unit_mode else 0
                )
                changed = self._consumers.register(
                    consumer.group,
                    connection=connection,
                    client_id=data.client_id,
                    now=now,
                    language=command.language,
                    version=command.version,
                    peer=connection.peer,
                    subscriptions=None if without_sub else consumer.subscriptions,
                    compiled=compiled,
                    consume_type=consumer.consume_type,
                    message_model=consumer.message_model,
                    consume_from_where=consumer.consume_from_where,
                )
                if changed:
                    self._notify(consumer.group)
                live = self._consumers.get(consumer.group)
                if live is not None:
                    if data.fingerprint and self._is_news(live, data.fingerprint, without_sub):
                        news = True
                    self._report(live)
            for group in data.producers:
                refused = self._taken(connection, data.client_id) or self._producers.refusal(
                    group, connection, data.client_id
                )
                if refused is not None:
                    refusal = refusal or refused
                    continue
                self._producers.register(
                    group,
                    connection=connection,
                    client_id=data.client_id,
                    now=now,
                    language=command.language,
                    version=command.version,
                    peer=connection.peer,
                )
        finally:
            if self._topics.version != version:
                self._topics_changed()
            self._rearm()
        if refusal is not None:
            return refuse(refusal)
        return RemotingCommand.response(
            ext={"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if news else "false"}
        )

    def _taken(self, connection: Connection, client_id: str) -> Refusal | None:
        """Replies go to the client of an id: nobody takes it from another user's connection."""
        holder = self._producers.find_client(client_id)
        if holder is None or holder.data.get("user") == connection.data.get("user"):
            return None
        return Refusal(ResponseCode.NO_PERMISSION, f"client id {client_id:.100} is another user's, who is connected")

    def unregister(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Code 35."""
        header = command.read(UnregisterClientRequestHeader)
        if (line := connection.data.get(_IN_LINE)) is not None:
            return _behind(line, lambda: self._leave(connection, header))
        return self._leave(connection, header)

    def _leave(self, connection: Connection, header: UnregisterClientRequestHeader) -> RemotingCommand:
        if header.producer_group:
            self._producers.unregister(header.producer_group, connection)
        if header.consumer_group and self._consumers.unregister(header.consumer_group, connection):
            self._notify(header.consumer_group)
        self._rearm()
        return RemotingCommand.response()

    def consumer_list(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Code 38: without members the answer is an error, never an empty list. Those of a large group have turns."""
        group = command.read(GetConsumerListByGroupRequestHeader).consumer_group
        kind = connection.reply_type(command)
        live = self._consumers.get(group)
        if live is not None and len(live.members) > _FEW:
            return self._long_list(group, kind)
        return _nobody(group) if live is None else _listed(encode_body(ConsumerListBody(live.client_ids()), kind))

    async def _long_list(self, group: str, kind: int) -> RemotingCommand:
        async with self._one_long:
            await asyncio.sleep(0)
            if (live := self._consumers.get(group)) is None:
                return _nobody(group)
            ids = live.client_ids()
            if self._list[0] is not ids or self._list[1] != kind:
                self._list = ids, kind, await in_turns(list_body({}, "consumerIdList", ids, kind))
            return _listed(self._list[2])

    def check_client_config(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Code 46: may this subscription be used here, and does it compile?"""
        found = plain_body(command).get("subscriptionData")
        subscription = Plain(found if isinstance(found, dict) else {}, "subscriptionData")
        kind = subscription.text_or_none("expressionType")
        refusal = check_filter_type(kind, self._property_filter)
        if refusal is not None:
            return refuse(refusal)
        return RemotingCommand.response() if is_tag_type(kind) else self._compiles(subscription.text("subString", ""))

    async def _compiles(self, expression: str) -> RemotingCommand:
        from aiorocket.broker.core.sql92 import Sql92Error, parse

        async with self._one_long:
            await asyncio.sleep(0)  # a long one takes 25 ms
            try:
                parse(expression)
            except Sql92Error as error:
                return RemotingCommand.response(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark=str(error))
        return RemotingCommand.response()

    def lost(self, connection: Connection) -> int:
        """A connection ended: its members are gone, the others learn it. How many they were."""
        consumers, producers = self._consumers.lost(connection), self._producers.lost(connection)
        for group in consumers:
            self._notify(group)
        self._rearm()
        return len(consumers) + len(producers)

    # ---- effects

    def _is_news(self, live: ConsumerGroup[Connection], fingerprint: int, without_sub: bool) -> bool:
        """Must a client of version 2 send its subscriptions with the next heartbeat?

        A group whose subscriptions we never saw (a restarted broker), or only from members of version 1, says yes,
        where RocketMQ says no and then refuses every pull of what it does not know.
        """
        known, live.fingerprint = live.fingerprint, fingerprint
        if without_sub and (known is None or not live.subscriptions):
            live.fingerprint = None
            return True
        return known is not None and known != fingerprint

    def _report(self, live: ConsumerGroup[Connection]) -> None:
        now = self._loop.time()
        until, lines = self._reported.get(live.name, (0.0, 0))
        if now < until and lines >= _REPORTS:
            return  # the next heartbeat behind it finds what is new
        difference = live.new_difference()
        if difference:
            if len(self._reported) >= _MAX_REPORTED:
                self._reported.clear()
            self._reported[live.name] = (until, lines + 1) if now < until else (now + 60.0, 1)
            _log.warning(
                "members of group %s subscribe to different things, so messages reach members that do not want them "
                "and are lost: %s",
                live.name,
                difference,
            )

    def _rearm(self) -> None:
        self._consumer_expiry.update()
        self._producer_expiry.update()

    def _consumers_expired(self, now: float) -> None:
        for group in self._consumers.expire(now):
            self._notify(group)

    def _producers_expired(self, now: float) -> None:
        self._producers.expire(now)

    def _notify(self, group: str) -> None:
        if not self._to_notify and not self._notices:
            self._loop.call_soon(self._send_notices)
        self._to_notify[group] = None

    def _send_notices(self) -> None:
        try:
            self._send_some()
        finally:  # one that fails does not keep the others from their news
            if self._notices or self._to_notify:
                self._loop.call_soon(self._send_notices)

    def _send_some(self) -> None:
        notices = self._notices
        if not notices:
            groups, self._to_notify = self._to_notify, {}
            for group in groups:
                live = self._consumers.get(group)
                config = self._configs.get(group)
                if live is None or live.message_model == BROADCASTING:
                    continue
                if config is None or config.notify_changes:
                    header = NotifyConsumerIdsChangedRequestHeader(group)
                    notices.extend((connection, header) for connection in live.members)
        for _ in range(min(_NOTICES_PER_TURN, len(notices))):
            connection, header = notices.popleft()
            try:
                connection.oneway(RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header, oneway=True))
            except RocketError:
                continue  # closed or not reading: it will find out by itself within its 20 s


async def _behind(line: asyncio.Lock, serve: Callable[[], RemotingCommand]) -> RemotingCommand:
    """What came before it on its connection would register again what it leaves, and what it does not want any more."""
    async with line:
        return serve()


def _nobody(group: str) -> RemotingCommand:
    return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, remark=f"no consumer for this group, {group:.255}")


def _listed(body: bytes) -> RemotingCommand:
    return RemotingCommand.response(body=body)


def _read(plain: Any, limits: Limits) -> Generator[None, None, HeartbeatData]:
    """``HeartbeatData.from_plain``, some subscriptions in a turn; of a group, and of its tags, until they are too many
    to be kept."""
    consumers: list[ConsumerData] = []
    read = 0
    for item in Plain(plain, "HeartbeatData").items("consumerDataSet"):
        subscriptions: list[SubscriptionData] = []
        for wanted in Plain(item, "ConsumerData").items("subscriptionDataSet")[: limits.subscriptions + 1]:
            read += (cost := 1 + _shortened(wanted, limits.filter_tags) // _TAGS)
            if read > A_SHORT_TURN:
                read = cost
                yield
            subscriptions.append(SubscriptionData.from_plain(wanted))
        rest = ConsumerData.from_plain({**item, "subscriptionDataSet": []})
        consumers.append(rest._replace(subscriptions=subscriptions))
    return HeartbeatData.from_plain({**plain, "consumerDataSet": []})._replace(consumers=consumers)


def _shortened(subscription: Any, most: int) -> int:
    """How many tags and codes are left. In place of more than a subscription may have there are others, as many as are
    refused: half a million, which fit into a body, take 0.3 s to be read."""
    left = 0
    for name in ("tagsSet", "codeSet") if isinstance(subscription, dict) else ():
        if isinstance(tags := subscription.get(name), list):
            if len(tags) > most:
                subscription[name] = tags = list(range(most + 1))
            left += len(tags)
    return left


def _few(plain: Any, most: int) -> Any:
    """Of more groups than a connection may have the first ones, and one more to be refused: 20,000, which fit into
    a body, take 0.1 s to be read."""
    if isinstance(plain, dict):
        for name in ("consumerDataSet", "producerDataSet"):
            if isinstance(groups := plain.get(name), list):
                plain[name] = groups[: most + 1]
    return plain
