"""Who reads what: routes, heartbeat, members of the group, queues to take and to give up, offsets to begin at.

A round is the whole of it and can be repeated at any time; it does nothing when nothing has changed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from aiorocket.client.core.assignment import TopicView, diff, wanted_queues
from aiorocket.client.core.routes import TopicRoute
from aiorocket.client.core.start_from import Ask, question
from aiorocket.errors import NotConnectedError, RocketError
from aiorocket_protocol import (
    ConsumerListBody,
    GetConsumerListByGroupRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    ProtocolError,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    RequestCode,
    ResponseCode,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    decode_body,
)

if TYPE_CHECKING:
    from aiorocket.client.consumer import Consumer
    from aiorocket.model import Queue

__all__ = ("Rebalancer",)

log = logging.getLogger("aiorocket.client")

_NO_MEMBERS = int(ResponseCode.SYSTEM_ERROR)
_NO_OFFSET = int(ResponseCode.QUERY_NOT_FOUND)

#: After a round that left something open: the first pause, doubled up to the regular interval.
_SOON = 0.5


class Rebalancer:
    """Runs rounds: regularly, when told to, and soon again after one that left something open."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._client = consumer.client
        self._round = asyncio.Lock()
        self._now = asyncio.Event()
        #: Members of the group as of the last round.
        self.members: tuple[str, ...] = ()

    def now(self) -> None:
        self._now.set()

    async def forever(self) -> None:
        interval = self._consumer.config.rebalance_interval
        soon = _SOON
        open_problems = True  # the retry topic may have had no route yet when the start was settled
        while True:
            try:
                async with asyncio.timeout(min(soon, interval) if open_problems else interval):
                    await self._now.wait()
            except TimeoutError:
                pass
            self._now.clear()
            problems, optional = await self.round()
            for problem in problems:
                log.info("rebalance of %s: %s", self._consumer.group, problem)
            open_problems = bool(problems or optional)
            soon = min(2 * soon, interval) if open_problems else _SOON

    async def round(self) -> tuple[list[Exception], list[Exception]]:
        """One round. What is still open, first of the topics asked for, then of the group's own retry topic."""
        async with self._round:
            problems: list[Exception] = []
            optional: list[Exception] = []
            views: dict[str, TopicView | None] = {}
            for topic in self._consumer.topics():
                found = optional if topic == self._consumer.retry_topic else problems
                try:
                    views[topic] = await self._view(topic)
                except (RocketError, ProtocolError) as error:
                    views[topic] = None
                    found.append(error)
            change = diff(
                self._consumer.held(), wanted_queues(views, self._client.client_id, self._consumer.held())
            )
            for queue in change.removed:
                await self._consumer.give_up(queue)
            for queue in change.added:
                found = optional if queue.topic == self._consumer.retry_topic else problems
                try:
                    offset, committed = await self._start_offset(queue)
                except (RocketError, ProtocolError) as error:
                    found.append(error)
                else:
                    self._consumer.take(queue, offset, committed=committed)
            if change.added or change.removed:
                taken, given = len(change.added), len(change.removed)
                log.info("group %s: took %d queues, gave up %d", self._consumer.group, taken, given)
            return problems, optional

    async def _view(self, topic: str) -> TopicView:
        route = await self._client.route(topic)
        if not route.subscribe:
            # Without a single readable queue there is nobody to ask either.
            raise NotConnectedError(f"topic {topic!r} has a route but no queue that can be read")
        return TopicView(route.subscribe, await self._members(route))

    async def _members(self, route: TopicRoute) -> list[str]:
        """The living members of the group, from any broker of the topic; every broker gets to know us on the way."""
        members: list[str] | None = None
        failures: list[Exception] = []
        header = GetConsumerListByGroupRequestHeader(self._consumer.group)
        for address in sorted(route.all_addresses()):
            try:
                connection = await self._client.member_connection(address)
                if members is not None:
                    continue
                answer = await self._client.call(
                    address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header, accept=(0, _NO_MEMBERS)
                )
                listed: list[str] = []
                if answer.code == 0:
                    listed = decode_body(ConsumerListBody, answer.body, answer.serialize_type).consumer_ids
                if self._client.client_id not in listed:
                    # It has forgotten us, or has not noticed us yet.
                    self._client.forget_told(connection)
                    raise NotConnectedError(f"{address} does not list this client in group {self._consumer.group!r}")
                members = listed
                self.members = tuple(sorted(listed))
            except (RocketError, ProtocolError) as error:
                failures.append(error)
        if members is None:
            raise failures[0]
        return members

    async def _start_offset(self, queue: Queue) -> tuple[int, bool]:
        """Where to begin, and whether that is what the broker stores for the group."""
        address = self._consumer.master_address(queue) or self._consumer.reader_address(queue, 0)
        if address is None:
            raise NotConnectedError(f"no route to broker {queue.broker_name!r} for topic {queue.topic!r}")
        stored = await self._client.call(
            address,
            RequestCode.QUERY_CONSUMER_OFFSET,
            QueryConsumerOffsetRequestHeader(self._consumer.group, queue.topic, queue.queue_id),
            accept=(0, _NO_OFFSET),
        )
        if stored.code == 0:
            offset = stored.read(QueryConsumerOffsetResponseHeader).offset
            if offset >= 0:
                return offset, True
        retry_topic = queue.topic == self._consumer.retry_topic
        start = self._consumer.start_from(queue.topic)
        match question(start, retry_topic=retry_topic):
            case Ask.MIN:
                answer = await self._client.call(
                    address, RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader(queue.topic, queue.queue_id)
                )
                return max(0, answer.read(GetMinOffsetResponseHeader).offset), False
            case Ask.MAX:
                answer = await self._client.call(
                    address, RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(queue.topic, queue.queue_id)
                )
                return max(0, answer.read(GetMaxOffsetResponseHeader).offset), False
            case Ask.TIME:
                answer = await self._client.call(
                    address,
                    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                    SearchOffsetRequestHeader(queue.topic, queue.queue_id, start.millis),
                )
                return max(0, answer.read(SearchOffsetResponseHeader).offset), False
