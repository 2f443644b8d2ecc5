"""Where the queues of a topic begin and end, and how far a group has come, asked of the brokers (ours or Apache's)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from aiorocket import Client
from aiorocket.errors import NotConnectedError
from aiorocket.model import Queue
from aiorocket_protocol import (
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)

__all__ = ("Positions",)

T = TypeVar("T")

Offsets = dict[Queue, int]


class Positions:
    """One request per queue and call, all queues at once. Errors are the client's own."""

    def __init__(self, client: Client) -> None:
        self._client = client.session

    async def queues(self, topic: str) -> tuple[Queue, ...]:
        """Readable queues of ``topic``. TopicNotFoundError when nobody has it."""
        return (await self._client.route(topic)).subscribe

    async def begins(self, queues: Iterable[Queue]) -> Offsets:
        async def ask(queue: Queue) -> int:
            header = GetMinOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
            answer = await self._call(queue, RequestCode.GET_MIN_OFFSET, header)
            return answer.read(GetMinOffsetResponseHeader).offset

        return await _each(ask, queues)

    async def ends(self, queues: Iterable[Queue]) -> Offsets:
        async def ask(queue: Queue) -> int:
            header = GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
            answer = await self._call(queue, RequestCode.GET_MAX_OFFSET, header)
            return answer.read(GetMaxOffsetResponseHeader).offset

        return await _each(ask, queues)

    async def at(self, queues: Iterable[Queue], stamp_ms: int) -> Offsets:
        """The first message stored at ``stamp_ms`` (wall clock) or later."""

        async def ask(queue: Queue) -> int:
            header = SearchOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=stamp_ms)
            answer = await self._call(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
            return answer.read(SearchOffsetResponseHeader).offset

        return await _each(ask, queues)

    async def committed(self, group: str, queues: Iterable[Queue]) -> dict[Queue, int | None]:
        """What the group has committed. None where it never did: unless told not to, a broker answers 0 for a young
        queue, which cannot be told from a group that stands at its first message."""

        async def ask(queue: Queue) -> int | None:
            header = QueryConsumerOffsetRequestHeader(
                consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, set_zero_if_not_found=False
            )
            unknown = ResponseCode.QUERY_NOT_FOUND
            answer = await self._call(queue, RequestCode.QUERY_CONSUMER_OFFSET, header, accept=(0, unknown))
            return None if answer.code == unknown else answer.read(QueryConsumerOffsetResponseHeader).offset

        return await _each(ask, queues)

    async def commit(self, group: str, offsets: Mapping[Queue, int]) -> None:
        async def tell(queue: Queue) -> None:
            header = UpdateConsumerOffsetRequestHeader(
                consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offsets[queue]
            )
            await self._call(queue, RequestCode.UPDATE_CONSUMER_OFFSET, header)

        await _each(tell, offsets)

    async def _call(
        self, queue: Queue, code: int, header: tuple[Any, ...], accept: tuple[int, ...] = (0,)
    ) -> RemotingCommand:
        route = await self._client.route(queue.topic)
        address = route.master(queue.broker_name)
        if address is None:
            raise NotConnectedError(
                f"broker {queue.broker_name!r} of topic {queue.topic!r} has no master at the moment"
            )
        return await self._client.call(address, code, header, accept=accept)


async def _each(ask: Callable[[Queue], Coroutine[Any, Any, T]], queues: Iterable[Queue]) -> dict[Queue, T]:
    wanted = tuple(queues)
    return dict(zip(wanted, await asyncio.gather(*map(ask, wanted)), strict=True))
