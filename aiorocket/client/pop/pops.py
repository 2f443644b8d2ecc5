"""Pops for one group: the requests, and what their answers mean."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Sequence

from aiorocket.client.core.dead_reason import log_line, reason_of
from aiorocket.client.core.process_queue import ProcessQueue
from aiorocket.client.core.retry import remote_error
from aiorocket.client.group.member import Member
from aiorocket.client.message import DEAD_LETTER_LEVEL
from aiorocket.client.pop.popped import PoppedMessage
from aiorocket.client.pop.renewals import Renewals
from aiorocket.errors import ConnectionLostError, NotConnectedError, RequestTimeoutError, UsageError
from aiorocket.model import Queue
from aiorocket_protocol import (
    ANY_QUEUE,
    INIT_MAX,
    INIT_MIN,
    PROPERTY_POP_CK,
    ROCKETMQ,
    AckMessageRequestHeader,
    BatchAck,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    ConsumerSendMsgBackRequestHeader,
    NotificationRequestHeader,
    NotificationResponseHeader,
    PopHandle,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
    RecordView,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SubscriptionData,
    encode_body,
    popped_topic,
    read_offset_lists,
    read_offsets,
    retry_mark,
    set_of_offsets,
    split_records,
)

__all__ = ("Pops",)

log = logging.getLogger("aiorocket.client")

#: Answers of a pop that found nothing.
_NOTHING = (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_FULL)
#: Times a settlement is sent before its failure is the caller's.
_TRIES = 3
#: Seconds between them.
_PAUSE = 1.0
#: Seconds an answer may take beyond the time the broker holds the request.
_MARGIN = 10.0


class Pops:
    """Queues are by their names on the wire, with ANY_QUEUE for all of a broker. Raises RocketError as the connection
    and the broker say; UsageError where the serializer cannot write POP's codes. With ``reason`` a dead letter says why
    it is one, at brokers that keep that: ours."""

    def __init__(self, member: Member, max_attempts: int, *, reason: bool) -> None:
        self.max_attempts = max_attempts
        self._reason = reason
        self._member = member
        self._session = member.session
        self._renewals = Renewals(member.session, member.scope, self._keep)

    async def pop(
        self, place: Queue, subscription: SubscriptionData, count: int, *, invisible: float, hold: float = 0.0
    ) -> list[PoppedMessage]:
        """Up to ``count`` messages; [] when none came for ``hold`` seconds."""
        member, session = self._member, self._session
        start = member.starts.get(place.topic)
        header = PopMessageRequestHeader(
            member.wire_group, place.topic, place.queue_id, count, round(invisible * 1000), round(hold * 1000),
            session.env.clock.wall_ms(), INIT_MIN if start is not None and start.kind == "first" else INIT_MAX,
            subscription.expression_type, subscription.sub_string, False,
        )  # fmt: skip
        begun = session.loop.time()
        answer = await self._call(place, RequestCode.POP_MESSAGE, header, hold)
        if answer.code in _NOTHING:
            return []
        self._check(answer, RequestCode.POP_MESSAGE, place)
        found = answer.read(PopMessageResponseHeader)
        starts, offsets = read_offsets(found.start_offset_info), read_offset_lists(found.msg_offset_info)
        following = {key: deque(some) for key, some in offsets.items()}
        messages = split_records(answer.body, PoppedMessage)
        for message in messages:
            # An older broker's answer, or a retry that Apache's wrote anew, has it ready.
            text = message.properties.get(PROPERTY_POP_CK)
            if text is not None:
                handle = PopHandle.from_text(text)
            else:
                mark, queue = retry_mark(RecordView.topic.fget(message)), str(message.queue_id)  # type: ignore[attr-defined]  # a property's
                rest = following.get((mark, queue))
                offset = rest.popleft() if rest else message.queue_offset
                handle = PopHandle(
                    starts.get((mark, queue), offset), found.pop_time, found.invisible_time, found.revive_qid, mark,
                    place.broker_name, message.queue_id, offset,
                )  # fmt: skip
            until = begun + found.invisible_time / 1000
            message.prepare(self, handle, member.namespace, member.group, place.topic, until)
        return messages

    async def wait(self, place: Queue, hold: float) -> bool:
        """Whether there is something to pop, as soon as there is and at the latest after ``hold`` seconds."""
        header = NotificationRequestHeader(
            self._member.wire_group, place.topic, place.queue_id, round(hold * 1000), self._session.env.clock.wall_ms()
        )
        answer = await self._call(place, RequestCode.NOTIFICATION, header, hold)
        self._check(answer, RequestCode.NOTIFICATION, place)
        found = answer.read(NotificationResponseHeader)
        if found.polling_full:
            raise NotConnectedError(f"broker {place.broker_name!r} lets nobody more wait for topic {place.topic!r}")
        return bool(found.has_msg)

    # -- settling

    async def ack(self, message: PoppedMessage) -> bool:
        await self._renewals.end(message)
        header = AckMessageRequestHeader(*self._named(message))
        answer = await self._tell(message, RequestCode.ACK_MESSAGE, header)
        return answer.code == 0

    async def change_invisible(self, message: PoppedMessage, seconds: float) -> bool:
        await self._renewals.end(message)
        return await self._keep(message, seconds)

    async def _keep(self, message: PoppedMessage, seconds: float) -> bool:
        header = ChangeInvisibleTimeRequestHeader(*self._named(message), round(seconds * 1000))
        begun = self._session.loop.time()
        answer = await self._tell(message, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        if answer.code:
            return False
        changed = answer.read(ChangeInvisibleTimeResponseHeader)
        message.handle = message.handle._replace(
            start_offset=message.handle.offset, pop_time=changed.pop_time, invisible_time=changed.invisible_time,
            revive_qid=changed.revive_qid,
        )  # fmt: skip
        message.invisible, message.invisible_until = seconds, begun + seconds
        return True

    async def dead_letter(self, message: PoppedMessage, error: BaseException | None) -> bool:
        code, place, member = RequestCode.CONSUMER_SEND_MSG_BACK, message._source.queue, self._member
        header = ConsumerSendMsgBackRequestHeader(
            message.physical_offset, member.wire_group, DEAD_LETTER_LEVEL, message.msg_id, message._wire_topic
        )
        reason = reason_of(error, self._session.client_id) if self._reason else {}
        self._check(await self._call(place, code, header, ext=reason), code, place)
        log.warning("%s", log_line(member.group, message.msg_id, message.topic, message.attempt, error))
        return await self.ack(message)

    async def ack_all(self, place: Queue, messages: Sequence[PoppedMessage]) -> None:
        """Messages that were popped from ``place``, in one request. Whether one was too late nobody knows."""
        by_pop: defaultdict[PopHandle, list[int]] = defaultdict(list)
        for message in messages:
            await self._renewals.end(message)
            by_pop[message.handle._replace(offset=0)].append(message.handle.offset)
        group = self._member.wire_group
        acks = [
            BatchAck(
                group, place.topic, handle.retry, handle.start_offset, handle.queue_id, handle.revive_qid,
                handle.pop_time, handle.invisible_time, set_of_offsets(handle.start_offset, offsets),
            ).to_plain()
            for handle, offsets in by_pop.items()
        ]  # fmt: skip
        for tries in range(_TRIES):
            try:
                answer = await self._call(
                    place, RequestCode.BATCH_ACK_MESSAGE, None, body={"acks": acks, "brokerName": place.broker_name}
                )
            except (RequestTimeoutError, NotConnectedError, ConnectionLostError):
                if tries + 1 == _TRIES:
                    raise
                await asyncio.sleep(_PAUSE)
            else:
                break
        self._check(answer, RequestCode.BATCH_ACK_MESSAGE, place)

    def settled(self, message: PoppedMessage) -> None:
        """The broker was told; who waits for its end learns it."""
        queue = message._process_queue
        if queue is not None:
            ProcessQueue.done(queue, message)

    def renew(self, message: PoppedMessage) -> None:
        """Keep it invisible from now on, until ``stop_renewing``."""
        self._renewals.add(message)

    def stop_renewing(self, message: PoppedMessage) -> None:
        self._renewals.stop(message)

    # -- requests

    def _named(self, message: PoppedMessage) -> tuple[str, str, int, str, int]:
        handle, group = message.handle, self._member.wire_group
        topic = popped_topic(handle.retry, group, message._wire_topic)
        return group, topic, handle.queue_id, handle.to_text(), handle.offset

    async def _tell(
        self,
        message: PoppedMessage,
        code: RequestCode,
        header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader,
    ) -> RemotingCommand:
        """As often as makes sense: twice the same does no harm. 208 says that it is too late."""
        place = message._source.queue
        for tries in range(_TRIES):
            try:
                answer = await self._call(place, code, header)
            except (RequestTimeoutError, NotConnectedError, ConnectionLostError) as error:
                left = message.invisible_until - self._session.loop.time()
                if tries + 1 == _TRIES or left <= 0:
                    raise
                log.info("message %s of %s: %s; told once more", message.msg_id, place, error)
                await asyncio.sleep(min(_PAUSE, left))
            else:
                break
        if answer.code != ResponseCode.NO_MESSAGE:
            self._check(answer, code, place)
        return answer

    async def _call(
        self,
        place: Queue,
        code: RequestCode,
        header: tuple[object, ...] | None,
        hold: float = 0.0,
        *,
        body: dict[str, object] | None = None,
        ext: dict[str, str] | None = None,
    ) -> RemotingCommand:
        session = self._session
        address = self._member.address(place)
        limit = session.config.remoting.request_timeout
        connection = await session.member_connection(address, limit)
        if connection.serialize_type == ROCKETMQ:
            raise UsageError("POP's request codes do not fit into serializer='rocketmq': use 'msgpack' or 'json'")
        content = b"" if body is None else encode_body(body, connection.serialize_type)
        request = RemotingCommand.request(code, header, body=content)
        if ext:
            request.ext = dict(ext)
        return await connection.request(request, hold + _MARGIN if hold else limit)

    def _check(self, answer: RemotingCommand, code: RequestCode, place: Queue) -> None:
        if answer.code:
            raise remote_error(answer.code, answer.remark, request=code.name, address=self._member.address(place))


def places(member: Member, topic: str) -> list[Queue]:
    """All of a topic's brokers that can be read, as places to pop from; [] while nobody has the topic."""
    route = member.session.routes.known(topic)
    return [] if route is None else sorted({queue._replace(queue_id=ANY_QUEUE) for queue in route.subscribe})
