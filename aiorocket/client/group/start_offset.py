"""Where to begin in a queue: the group's stored offset, else what its ``start_from`` says."""

from __future__ import annotations

from aiorocket.client.core.start_from import Ask, Start, StartFrom, question
from aiorocket.client.group.commits import OffsetStore
from aiorocket.client.group.member import Member
from aiorocket.model import Queue
from aiorocket_protocol import (
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    RequestCode,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
)

__all__ = ("Start", "start_offset")


async def start_offset(member: Member, store: OffsetStore, queue: Queue) -> Start:
    """Ask the offset store, and the broker if that knows nothing. Any error is the caller's: a queue of which nobody
    knows where to begin is left alone until the next round."""
    offset = await store.read(queue)
    if offset >= 0:
        # A 0 may be what brokers tell a group without an offset while the queue is young. It is written down, so that
        # it holds when the queue is old and nothing was processed yet.
        return Start(offset, offset > 0)
    address, call = member.address(queue), member.session.call
    topic, queue_id = queue.topic, queue.queue_id
    start = member.starts.get(topic, StartFrom("last"))
    match question(start, retry_topic=topic == member.retry_topic):
        case Ask.MIN:
            answer = await call(address, RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader(topic, queue_id))
            offset = answer.read(GetMinOffsetResponseHeader).offset
        case Ask.MAX:
            answer = await call(address, RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic, queue_id))
            offset = answer.read(GetMaxOffsetResponseHeader).offset
            # A first message that came between the two questions is not passed over: brokers begin a young queue at 0,
            # but Apache's since 5.0 not an empty one.
            if offset > 0 and (known := await store.read(queue)) >= 0:
                return Start(known, known > 0)
            return Start(max(0, offset), False, at_end=True)
        case Ask.TIME:
            header = SearchOffsetRequestHeader(topic, queue_id, start.millis)
            answer = await call(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
            offset = answer.read(SearchOffsetResponseHeader).offset
    return Start(max(0, offset), False)
