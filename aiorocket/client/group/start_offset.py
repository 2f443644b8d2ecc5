"""Where to begin in a queue: the group's stored offset, else what its ``start_from`` says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorocket.client.core.start_from import Ask, Start, question
from aiorocket.errors import NotConnectedError
from aiorocket_protocol import (
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    RequestCode,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
)

if TYPE_CHECKING:
    from aiorocket.client.group.member import Member
    from aiorocket.model import Queue

__all__ = ("Start", "start_offset")


async def start_offset(consumer: Member, queue: Queue) -> Start:
    """Ask the offset store, and the broker if that knows nothing. Any error is the caller's: a queue of which nobody
    knows where to begin is left alone until the next round."""
    offset = await consumer.offset_store.read(queue)
    if offset >= 0:
        return Start(offset, True)
    address = consumer.master_address(queue) or consumer.reader_address(queue, 0)
    if address is None:
        raise NotConnectedError(f"no route to broker {queue.broker_name!r} for topic {queue.topic!r}")
    client = consumer.client
    topic, queue_id = queue.topic, queue.queue_id
    start = consumer.start_from(topic)
    match question(start, retry_topic=topic == consumer.retry_topic):
        case Ask.MIN:
            answer = await client.call(address, RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader(topic, queue_id))
            offset = answer.read(GetMinOffsetResponseHeader).offset
        case Ask.MAX:
            answer = await client.call(address, RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic, queue_id))
            offset = answer.read(GetMaxOffsetResponseHeader).offset
        case Ask.TIME:
            header = SearchOffsetRequestHeader(topic, queue_id, start.millis)
            answer = await client.call(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
            offset = answer.read(SearchOffsetResponseHeader).offset
    return Start(max(0, offset), False)
