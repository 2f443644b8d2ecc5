"""Single messages: ``admin.messages``. Looking joins no group and moves no offset."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, NamedTuple

from aiorocket.client.admin.asking import Answers, Asking, Broker, Missing
from aiorocket.client.admin.lines import from_row
from aiorocket.client.admin.moments import Moment, millis
from aiorocket.client.core.subscriptions import check_filter, subscription_data
from aiorocket.client.queue_scan import QueueScan
from aiorocket.client.topic_admin import master_of
from aiorocket.errors import NotConnectedError, RemoteError, RocketError, TopicNotFoundError, UsageError
from aiorocket.model import LegibleRecord, OutgoingMessage, Queue
from aiorocket_protocol import (
    ALL_TAGS,
    EXT_UNIQUE_KEY_QUERY,
    TOOLS_GROUP,
    TRACE_TOPIC,
    ConsumeMessageDirectlyResultRequestHeader,
    ProtocolError,
    QueryMessageRequestHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SubscriptionData,
    ViewMessageRequestHeader,
    parse_offset_msg_id,
    split_records,
)
from aiorocket_protocol.message_trace import TRACE_ORDER, TraceRecord, read_trace
from aiorocket_protocol.names import CONSUME_RESULTS

__all__ = ("ConsumedDirectly", "Messages", "StoredMessage")

_NONE = (int(ResponseCode.QUERY_NOT_FOUND),)
_FOREVER = (1 << 63) - 1
#: Bytes of a message of the trace topic that are read; clients write 128,000 at most.
_TRACE = 256 * 1024


class StoredMessage(LegibleRecord):
    """A message as a broker has it, with ``body``, ``keys``, ``tag``, ``properties``, ``msg_id`` ..."""

    __slots__ = ("queue",)

    #: Where it lies.
    queue: Queue

    def row(self) -> dict[str, Any]:
        """All of it for JSON, as `aiorocket message dump` writes it a line; a body that is not UTF-8 is
        ``body_base64`` (``LegibleRecord.body_row``). ``Messages.to_send`` makes a message of it."""
        return {
            "msg_id": self.msg_id, "offset_msg_id": self.offset_msg_id, "topic": self.queue.topic,
            "broker": self.queue.broker_name, "queue": self.queue.queue_id, "offset": self.queue_offset,
            "stored_ms": self.store_timestamp, "tag": self.tag, "keys": self.keys, "properties": self.properties,
            **self.body_row(),
        }  # fmt: skip


class ConsumedDirectly(NamedTuple):
    """What came of it: CR_SUCCESS, CR_LATER, CR_THROW_EXCEPTION ...; ``spent_ms`` as the member says."""

    result: str
    remark: str
    spent_ms: int


class Messages:
    """See ``Admin``."""

    def __init__(self, asking: Asking) -> None:
        self._ask = asking

    @staticmethod
    def to_send(row: dict[str, Any]) -> OutgoingMessage:
        """The message of a row of ``StoredMessage.row`` or `dlq list --json`, for ``Producer.send_many``: body, tag,
        keys, properties and sharding key, without what RocketMQ reserves. UsageError for what is no such row."""
        try:
            return from_row(row)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(f"no row of a message: {error!r:.200}") from None

    async def by_id(self, offset_msg_id: str) -> StoredMessage | None:
        """The message with this offset id (32 hexadecimal digits, 56 for IPv6), which says where it lies; None when it
        is gone. UsageError for another id: those of senders are looked up ``by_unique_key``."""
        try:
            host, port, offset = parse_offset_msg_id(offset_msg_id.strip())
            if not 0 < port < 1 << 16:  # where a sender's id of as many digits has its process
                raise ProtocolError(f"names port {port}", where="offset message id")
        except ProtocolError as error:
            raise UsageError(
                f"{offset_msg_id!r} is no offset id ({error}): a sender's is looked up in its topic (by_unique_key, "
                "--topic)"
            ) from None
        address = f"{host}:{port}"
        brokers = await self._ask.brokers()
        found = [each for each in brokers if each.address == address]
        if not found:  # registered by a host's name, or asked by another address than clients are told
            found = brokers if self._ask.given else [Broker(await self._ask.name_of(address), address)]
        away: Exception | None = None
        for at in found:
            try:
                answer = await self._ask.call(
                    at.address, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset)
                )
            except (RocketError, ProtocolError) as error:
                # What brokers say of an offset where nothing begins is no reason to doubt the answer.
                if not (isinstance(error, RemoteError) and error.code == ResponseCode.SYSTEM_ERROR):
                    away = away or error
                continue
            for message in self._seen(answer.body, at.name):
                if message.offset_msg_id == offset_msg_id.strip().upper():  # another broker has another one there
                    return message
        if away is not None:  # it may be there
            raise away
        return None

    async def by_offset(self, topic: str, broker: str, queue: int, offset: int) -> StoredMessage | None:
        """The message at ``offset`` of a queue; None when there is none."""
        at = (await self._ask.brokers(broker=broker))[0]
        begin, end = await QueueScan(
            self._ask.client, Queue(self._ask.wire(topic), at.name, queue), at.address
        ).bounds()
        if begin <= offset < end:
            async with aclosing(self._scan(topic, at, queue, offset, offset + 1)) as found:
                async for message in found:
                    return message
        return None

    async def by_offsets(
        self, topic: str, broker: str, queue: int, begin: int, end: int
    ) -> AsyncGenerator[StoredMessage, None]:
        """The messages of a queue from ``begin`` up to ``end``, as far as they are there."""
        at = (await self._ask.brokers(broker=broker))[0]
        scan = QueueScan(self._ask.client, Queue(self._ask.wire(topic), at.name, queue), at.address)
        bounds = await scan.bounds()
        async with aclosing(self._scan(topic, at, queue, max(begin, bounds.begin), min(end, bounds.end))) as found:
            async for message in found:
                yield message

    async def by_key(
        self, topic: str, key: str, *, since: Moment | None = None, until: Moment | None = None, limit: int = 64
    ) -> Answers[StoredMessage]:
        """The newest messages of ``topic`` with ``key``, at most ``limit`` of each broker, the oldest first."""
        return await self._query(topic, key, millis("since", since) or 0, millis("until", until), limit, unique=False)

    async def by_unique_key(self, topic: str, msg_id: str) -> Answers[StoredMessage]:
        """Every copy of the message with a sender's ``msg_id``: one, but in topics of retries."""
        return await self._query(topic, msg_id.strip(), 0, None, 32, unique=True)

    async def trace(self, msg_id: str) -> Answers[TraceRecord]:
        """What the trace topic has of the message with a sender's ``msg_id``, the oldest first: clients that trace
        wrote it. TopicNotFoundError is not raised when nobody ever did: then there is nothing."""
        try:
            found = await self.by_key(TRACE_TOPIC, msg_id)
        except TopicNotFoundError:
            return Answers()
        records = [record for each in found for record in _trace(each) if record.msg_id == msg_id]
        answers = Answers(sorted(records, key=lambda each: (each.timestamp, TRACE_ORDER.index(each.kind))))
        answers.missing = found.missing
        return answers

    async def _query(
        self, topic: str, key: str, since: int, until: int | None, limit: int, *, unique: bool
    ) -> Answers[StoredMessage]:
        wire = self._ask.wire(topic)
        header = QueryMessageRequestHeader(wire, key, limit, since, _FOREVER if until is None else until)
        ext = {EXT_UNIQUE_KEY_QUERY: "true" if unique else "false"}

        behind: list[Missing] = []

        async def ask(broker: Broker) -> list[StoredMessage]:
            connection = await self._ask.client.connection(broker.address)
            command = RemotingCommand.request(RequestCode.QUERY_MESSAGE, header, ext=ext)
            answer = await connection.request(command, self._ask.client.config.remoting.request_timeout)
            if answer.code in _NONE:
                return []
            if answer.code:
                raise RemoteError(answer.code, answer.remark, address=broker.address)
            if answer.remark:  # its index is behind: there may be newer ones
                behind.append(Missing(broker.name, answer.remark))
            found = self._seen(answer.body, broker.name)
            # Apache's brokers look up the hash of a key, and answer with all that have the same.
            return [each for each in found if (key == each.msg_id if unique else key in each.keys)]

        answers = await self._ask.each(ask)
        answers.sort(key=lambda message: message.store_timestamp)
        answers.missing += tuple(behind)
        return answers

    async def by_time(
        self,
        topic: str,
        since: Moment | None = None,
        until: Moment | None = None,
        *,
        where: Callable[[StoredMessage], bool] | None = None,
        limit: int | None = None,
        missing: list[Missing] | None = None,
    ) -> AsyncGenerator[StoredMessage, None]:
        """Messages stored from ``since`` up to ``until``, the oldest first in each queue, one queue after the other.
        What is added meanwhile is not seen. TopicNotFoundError, NotConnectedError.

        A broker that cannot be asked is added to ``missing``, and the others go on; its error is raised when there is
        no such list, and the first one when nobody could be asked."""
        first, last = millis("since", since), millis("until", until)
        left = limit
        if left is not None and left <= 0:
            return
        away: dict[str, Exception] = {}
        asked = False
        queues = await self._queues(topic, None if missing is None else away)
        if missing is not None:
            missing += [Missing(name, str(error)) for name, error in away.items()]
        for broker, queue, scan in queues:
            if broker.name in away:
                continue
            try:
                begin, end = await scan.bounds()
                asked = True
                if first is not None and begin < end:
                    begin = max(begin, await scan.offset_at(first))
                at_once = None if where is not None else left
                async with aclosing(self._scan(topic, broker, queue, begin, end, at_once=at_once)) as found:
                    async for message in found:
                        stored = message.store_timestamp
                        if last is not None and stored >= last:
                            break
                        if (first is None or stored >= first) and (where is None or where(message)):
                            yield message
                            left = None if left is None else left - 1
                            if left == 0:
                                return
            except (RocketError, ProtocolError) as error:
                if missing is None:
                    raise
                away[broker.name] = error
                missing.append(Missing(broker.name, str(error)))
        if away and not asked:
            raise next(iter(away.values()))

    async def tail(
        self,
        topic: str,
        *,
        tags: str = ALL_TAGS,
        sql: str | None = None,
        where: Callable[[StoredMessage], bool] | None = None,
        every: float = 0.5,
        on_missing: Callable[[Missing], object] | None = None,
    ) -> AsyncGenerator[StoredMessage, None]:
        """Messages as they come, for ever, beginning with the next: those with one of ``tags``, or that match ``sql``.
        Looks every ``every`` seconds. RemoteError for an expression that no broker reads.

        A broker that goes away, or that does not read what another one does, is told ``on_missing``, once, and the
        others go on; when it is back, so do its queues, from where they were. Its error is raised when there is no
        ``on_missing``, and the first one when nobody could be asked at the beginning."""
        wanted = subscription_data(self._ask.wire(topic), check_filter(tags, sql), sql, 0)
        queues: dict[Queue, tuple[Broker, int, QueueScan]] = {}
        at: dict[Queue, int] = {}
        reads: set[str] = set()
        away: dict[str, Exception] = {}
        while True:
            gone: dict[str, Exception] = {}
            if away or not queues:  # it may come back at another address
                try:
                    for each in await self._queues(topic, None if on_missing is None else gone):
                        queues[each[2].queue] = each
                except (RocketError, ProtocolError):
                    if not queues:
                        raise
            if sql is not None:
                refused: RemoteError | None = None
                for broker in {broker.name: broker for broker, _, _ in queues.values()}.values():
                    if broker.name in gone or broker.name in reads:
                        continue
                    try:
                        await self._check(broker, wanted)
                        reads.add(broker.name)
                    except (RocketError, ProtocolError) as error:
                        if on_missing is None:
                            raise
                        gone[broker.name] = error
                        refused = error if isinstance(error, RemoteError) else refused
                if refused is not None and not reads:
                    raise refused
            for key, (broker, queue, scan) in queues.items():
                if broker.name in gone:
                    continue
                try:
                    end = (await scan.bounds()).end
                    begin = at.setdefault(key, end)
                    if begin < end:
                        async with aclosing(self._scan(topic, broker, queue, begin, end, wanted)) as found:
                            async for message in found:
                                at[key] = message.queue_offset + 1
                                if where is None or where(message):
                                    yield message
                    at[key] = end
                except (RocketError, ProtocolError) as error:
                    if on_missing is None:
                        raise
                    gone[broker.name] = error
            if gone and not at:
                raise next(iter(gone.values()))
            if on_missing is not None:
                for name in gone.keys() - away.keys():
                    on_missing(Missing(name, str(gone[name])))
            away = gone
            await asyncio.sleep(every)

    async def _check(self, broker: Broker, wanted: SubscriptionData) -> None:
        """RemoteError when it cannot read the expression: Apache's brokers pull everything by such a one."""
        body = {"clientId": self._ask.client.client_id, "group": TOOLS_GROUP, "namespace": "",
                "subscriptionData": wanted.to_plain()}  # fmt: skip
        await self._ask.put(broker.address, RequestCode.CHECK_CLIENT_CONFIG, None, body)

    async def consume_directly(self, group: str, client_id: str, message: StoredMessage) -> ConsumedDirectly:
        """Have one member consume a stored message now, whatever it has consumed; nothing else changes. RemoteError
        when it is not online or does not answer in 10 s."""
        header = ConsumeMessageDirectlyResultRequestHeader(
            self._ask.wire(group), client_id, message.offset_msg_id, message.queue.broker_name, message.topic
        )
        broker = (await self._ask.brokers(broker=message.queue.broker_name))[0]
        plain = await self._ask.of_member(client_id, broker.address, RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
        result = plain.name("consumeResult", CONSUME_RESULTS, "")
        return ConsumedDirectly(result, plain.text_or_none("remark") or "", plain.number("spentTimeMills", 0))

    async def _queues(
        self, topic: str, away: dict[str, Exception] | None = None
    ) -> list[tuple[Broker, int, QueueScan]]:
        """Its queues where they are asked. A broker without a master is put in ``away``; its error is raised when that
        is None."""
        wire = self._ask.wire(topic)
        route = await self._ask.client.route(wire, refresh=True)
        given = {each.name: each.address for each in await self._ask.brokers()} if self._ask.given else {}
        found = []
        for each in sorted({*route.publish, *route.subscribe}):
            try:
                broker = Broker(each.broker_name, given.get(each.broker_name) or master_of(route, each.broker_name))
            except NotConnectedError as error:
                if away is None:
                    raise
                away[each.broker_name] = error
                continue
            found.append((broker, each.queue_id, QueueScan(self._ask.client, each, broker.address)))
        return found

    async def _scan(
        self, topic: str, broker: Broker, queue: int, begin: int, end: int, wanted: SubscriptionData | None = None,
        at_once: int | None = None,
    ) -> AsyncGenerator[StoredMessage, None]:  # fmt: skip
        wire = Queue(self._ask.wire(topic), broker.name, queue)
        scan = QueueScan(self._ask.client, wire, broker.address)
        async with aclosing(scan.messages(begin, end, StoredMessage, wanted=wanted, at_once=at_once)) as found:
            async for message in found:
                message.queue = Queue(topic, broker.name, queue)
                yield message

    def _seen(self, body: bytes, broker: str) -> list[StoredMessage]:
        found = split_records(body, StoredMessage)
        for each in found:
            each.queue = Queue(self._ask.shown(each.topic), broker, each.queue_id)
        return found


def _trace(message: StoredMessage) -> list[TraceRecord]:
    """The records in a message of the trace topic, which anybody may write."""
    try:
        return read_trace(message.body_start(_TRACE))
    except ProtocolError:
        return []
