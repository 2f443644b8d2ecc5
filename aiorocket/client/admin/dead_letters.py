"""A group's dead letters (``%DLQ%group``), read in place. What ``replay`` does with them is in ``replay.py``."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Collection, Container
from contextlib import aclosing

from aiorocket.client.admin.asking import Asking, side_by_side
from aiorocket.client.admin.dead_message import DeadMessage
from aiorocket.client.admin.marks import Marks
from aiorocket.client.admin.moments import Moment, millis
from aiorocket.client.admin.replay import Replay, ReplayOutcome, ReplayReport
from aiorocket.client.core.namespace import unwrap
from aiorocket.client.core.routes import TopicRoute
from aiorocket.client.queue_scan import QueueScan
from aiorocket.client.topic_admin import configure
from aiorocket.errors import RemoteError, TopicNotFoundError, UsageError
from aiorocket.model import Queue, check_group, check_topic
from aiorocket_protocol import (
    ProtocolError,
    RequestCode,
    ResponseCode,
    ViewMessageRequestHeader,
    parse_offset_msg_id,
    split_records,
)

__all__ = ("DeadLetters", "DeadMessage")

log = logging.getLogger("aiorocket.client")

Where = Callable[[DeadMessage], bool]


class DeadLetters:
    """See ``Admin.dlq``. Reading needs no consumer group and moves no offset.

    NotConnectedError when a broker that has dead letters of the group, as far as name servers know, cannot be asked: an
    answer without its messages would look complete. On brokers that keep dead letters unreadable (old ones give the
    topic write permission only) reading changes that permission first.
    """

    def __init__(self, asking: Asking, group: str) -> None:
        self._ask = asking
        client = asking.client
        self.group = check_group(group)
        self._namespace = client.config.namespace
        #: As brokers know them, with the namespace.
        self.marks = Marks(asking, group)
        self.topic = self.marks.dead_letters_topic
        self._client = client

    async def messages(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        where: Where | None = None,
        limit: int | None = None,
        newest: int | None = None,
        ids: Collection[str] | None = None,
    ) -> AsyncGenerator[DeadMessage, None]:
        """What was given up from ``since`` up to ``until`` (aware datetimes, or ms) and satisfies ``where``: the oldest
        first in each queue, one queue after the other, at most ``limit``; ``newest`` looks at so many of each queue's
        end only, ``ids`` (replay ids) at nothing but these. What is added meanwhile is not seen."""
        first, last = millis("since", since), millis("until", until)
        if limit is not None and limit < 0:
            raise UsageError(f"limit={limit}: 0 or more")
        left = limit
        if left == 0:
            return
        reading = self._all(first, newest) if ids is None else self._named(ids)
        async with aclosing(reading) as found:
            async for message in found:
                stored = message.store_timestamp
                if (first is not None and stored < first) or (last is not None and stored >= last):
                    continue
                if where is None or where(message):
                    yield message
                    if left is not None:
                        left -= 1
                        if left == 0:
                            return

    async def _all(self, first: int | None, newest: int | None) -> AsyncGenerator[DeadMessage, None]:
        for scan in await self._queues():
            begin, end = await scan.bounds()
            if begin >= end:
                continue
            if newest is not None:
                begin = max(begin, end - newest)
            if first is not None:
                begin = max(begin, await scan.offset_at(first))
            broker = scan.queue.broker_name
            marks = await self.marks.on(broker)
            async with aclosing(scan.messages(begin, end, DeadMessage)) as found:
                async for message in found:
                    yield self._seen(message, broker, marks)

    async def _named(self, ids: Collection[str]) -> AsyncGenerator[DeadMessage, None]:
        try:
            places = {each.strip().upper(): parse_offset_msg_id(each.strip()) for each in ids}
        except ProtocolError as error:
            raise UsageError(f"ids: {error}") from None
        masters = await self._masters()

        async def read(replay_id: str) -> tuple[str, DeadMessage] | None:
            host, port, offset = places[replay_id]
            own = [name for name, at in masters.items() if at == f"{host}:{port}"]
            for name in own or masters:  # or one that is registered by another address
                try:
                    header = ViewMessageRequestHeader(offset)
                    answer = await self._ask.call(masters[name], RequestCode.VIEW_MESSAGE_BY_ID, header)
                except RemoteError as error:
                    if error.code == ResponseCode.SYSTEM_ERROR:  # what brokers say where nothing begins
                        continue
                    raise
                for message in split_records(answer.body, DeadMessage):
                    if message.replay_id == replay_id and message.topic == self.topic:
                        return name, message
            return None

        found = [each for each in await side_by_side(read, sorted(places)) if each is not None]
        marks = {name: await self.marks.on(name) for name in sorted({name for name, _ in found})}
        for name, message in sorted(found, key=lambda each: (each[0], each[1].queue_id, each[1].queue_offset)):
            yield self._seen(message, name, marks[name])

    def _seen(self, message: DeadMessage, broker: str, marks: Container[str]) -> DeadMessage:
        message.queue = Queue(unwrap(self._namespace, self.topic), broker, message.queue_id)
        message.namespace = self._namespace
        message.replayed = message.replay_id in marks
        return message

    async def show(self, msg_id: str) -> DeadMessage | None:
        """The newest dead letter with this id: the sender's message id, an offset message id, or a replay id. None when
        there is none."""
        found: DeadMessage | None = None
        wanted = msg_id.strip()
        async for message in self.messages():
            if wanted in (message.msg_id, message.replay_id, message.origin_msg_id) and (
                found is None or message.store_timestamp >= found.store_timestamp
            ):
                found = message
        return found

    async def replay(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        where: Where | None = None,
        limit: int | None = None,
        rate: float | None = None,
        to: str | None = None,
        dry_run: bool = False,
        confirm: bool = False,
        on_outcome: Callable[[ReplayOutcome], object] | None = None,
        ids: Collection[str] | None = None,
    ) -> ReplayReport:
        """Send dead letters to the topic they came from, where every group that subscribes to it gets them, and mark
        them as replayed. One of ``dry_run`` (send nothing) and ``confirm`` must be True.

        Selection as of ``messages``; ``limit`` counts what is to be sent, not what is skipped because it was replayed
        before. ``rate`` is messages a second. ``to`` is another topic instead, which is created when nobody has it;
        ``%RETRY%group`` hands them to this group only (not while the group consumes in order: brokers then take a retry
        for its last). They begin anew, with all attempts: body, tag, keys, the sender's properties and message id are
        kept, ``ORIGIN_MESSAGE_ID`` and ``DLQ_ORIGIN_TOPIC`` tell where they come from, ``REPLAY_ID`` which dead letter
        each is.

        A message that cannot be sent is counted and reported, and stays unmarked. Two replays of one group at a time
        may send a message twice.
        """
        if dry_run == confirm:
            raise UsageError("replay sends messages: confirm=True does it, dry_run=True only counts (one of them)")
        if rate is not None and not rate > 0:
            raise UsageError(f"rate={rate}: above 0 messages a second")
        if limit is not None and limit < 0:
            raise UsageError(f"limit={limit}: 0 or more")
        if to is not None:
            check_topic(to)
        work = Replay(self.marks, self._client, to, rate, dry_run, on_outcome)
        async with aclosing(self.messages(since=since, until=until, where=where, ids=ids)) as found:
            async for message in found:
                if message.replayed:
                    work.skip(message)
                elif (limit is not None and work.selected >= limit) or not await work.take(message):
                    break
        await work.end()
        return work.report()

    async def _queues(self) -> list[QueueScan]:
        try:
            route = await self._client.route(self.topic, refresh=True)
        except TopicNotFoundError:
            return []  # nothing was ever given up
        hidden = set(route.publish).difference(route.subscribe)
        for name in sorted({queue.broker_name for queue in hidden}):
            count = sum(queue.broker_name == name for queue in route.publish)
            log.info("%s on %s cannot be read: giving it read permission", self.topic, name)
            await configure(self._client, await self._ask.master(route, name), self.topic, count)
        queues = sorted({*route.publish, *route.subscribe})
        at = await self._addresses(route)
        return [QueueScan(self._client, queue, at[queue.broker_name]) for queue in queues]

    async def _masters(self) -> dict[str, str]:
        """Brokers that have dead letters of the group, and where they are asked."""
        try:
            return await self._addresses(await self._client.route(self.topic, refresh=True))
        except TopicNotFoundError:
            return {}

    async def _addresses(self, route: TopicRoute) -> dict[str, str]:
        names = sorted({queue.broker_name for queue in (*route.publish, *route.subscribe)})
        return {name: await self._ask.master(route, name) for name in names}
