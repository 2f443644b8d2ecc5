"""Reads queues as an administrator does: by offset, up to their end, without membership in a group, commits or
waiting."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, NamedTuple, TypeVar

from aiorocket.client.core.retry import remote_error
from aiorocket.client.session import Session
from aiorocket.model import Queue
from aiorocket_protocol import (
    ALL_TAGS,
    TOOLS_GROUP,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    PullMessageResponseHeader,
    RecordView,
    RequestCode,
    ResponseCode,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    SubscriptionData,
    pull_header,
    split_records,
)

__all__ = ("Bounds", "QueueScan")

#: Apache's brokers answer with 32 messages at most unless they are configured otherwise.
_AT_ONCE = 256

_FOUND = int(ResponseCode.SUCCESS)
_END = int(ResponseCode.PULL_NOT_FOUND)
_GO_ON = (int(ResponseCode.PULL_RETRY_IMMEDIATELY), int(ResponseCode.PULL_OFFSET_MOVED))
_UNKNOWN = int(ResponseCode.TOPIC_NOT_EXIST)

V = TypeVar("V", bound=RecordView)


class Bounds(NamedTuple):
    """The offsets a queue has: ``begin`` up to ``end``, which is not one of them."""

    begin: int
    end: int


class QueueScan:
    """One queue at the broker with ``address``. RemoteError and connection errors are the client's own."""

    def __init__(self, client: Session, queue: Queue, address: str) -> None:
        self.queue = queue
        self._client = client
        self._address = address

    async def bounds(self) -> Bounds:
        """Where it begins and ends; ``Bounds(0, 0)`` for a topic the broker does not know."""
        topic, number = self.queue.topic, self.queue.queue_id
        last = await self._call(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic, number), _UNKNOWN)
        if last.code:
            return Bounds(0, 0)
        first = await self._call(RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader(topic, number), _UNKNOWN)
        if first.code:
            return Bounds(0, 0)
        return Bounds(
            max(0, first.read(GetMinOffsetResponseHeader).offset), last.read(GetMaxOffsetResponseHeader).offset
        )

    async def offset_at(self, millis: int) -> int:
        """The first message stored at ``millis`` (wall clock) or later."""
        header = SearchOffsetRequestHeader(self.queue.topic, self.queue.queue_id, millis)
        answer = await self._call(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        return int(answer.read(SearchOffsetResponseHeader).offset)

    async def messages(
        self, begin: int, end: int, view: type[V], *, wanted: SubscriptionData | None = None, at_once: int | None = None
    ) -> AsyncGenerator[V, None]:
        """The messages from ``begin`` up to ``end``, of which the broker picks those ``wanted``; what retention has
        removed meanwhile is passed over. ``at_once`` are the most that are asked for at a time."""
        most = min(_AT_ONCE, at_once or _AT_ONCE)
        wanted = wanted or SubscriptionData(self.queue.topic, ALL_TAGS)
        offset = begin
        while offset < end:
            header = pull_header(
                TOOLS_GROUP, self.queue.topic, self.queue.queue_id, offset, min(most, end - offset),
                expression=wanted.sub_string, expression_type=wanted.expression_type,
            )  # fmt: skip
            answer = await self._call(RequestCode.PULL_MESSAGE, header, _END, *_GO_ON)
            following = answer.read(PullMessageResponseHeader).next_begin_offset
            if answer.code == _END and following <= offset:
                return
            if following <= offset:
                # A broker that sends us back would make this loop spin.
                text = f"{answer.remark or 'pull'}: next offset {following} after {offset} of {self.queue}"
                raise remote_error(answer.code, text, request="PULL_MESSAGE", address=self._address)
            offset = following
            if answer.code == _FOUND:
                for message in split_records(answer.body, view):
                    if message.queue_offset < end and wanted.matches_tag(message.tag):
                        yield message

    async def _call(self, code: int, header: tuple[Any, ...], *accept: int) -> Any:
        return await self._client.call(self._address, code, header, accept=(_FOUND, *accept))
