"""The message trace of one message as a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from aiorocket.dashboard.site import query, site_of
from aiorocket_protocol.message_trace import TraceRecord

__all__ = ("trace",)

_TITLES = {
    "Pub": "sent", "SubBefore": "a listener began", "SubAfter": "a listener ended",
    "EndTransaction": "transaction ended",
}  # fmt: skip


class Step(NamedTuple):
    """``after`` is milliseconds since the first one."""

    title: str
    after: int
    record: TraceRecord


async def trace(request: Request) -> Response:
    site, msg_id = site_of(request), query(request, "id")
    found = await site.admin.messages.trace(msg_id) if msg_id else None
    records: Sequence[TraceRecord] = found or ()
    # A call's end says neither its group nor its topic in old clients: its beginning does.
    began = {each.request_id: each for each in records if each.kind == "SubBefore"}
    first = records[0].timestamp if records else 0
    steps = []
    for each in records:
        record, known = each, began.get(each.request_id) if each.kind == "SubAfter" else None
        if known is not None:
            when = each.timestamp or known.timestamp
            record = each._replace(group=each.group or known.group, retry_times=known.retry_times, timestamp=when)
        after = max(0, min(record.timestamp - first, 1 << 63))  # of what somebody wrote: a page takes 4,300 digits
        steps.append(Step(_TITLES[each.kind], after, record))
    return site.render(request, "trace.html", id=msg_id, steps=steps, missing=() if found is None else found.missing)
