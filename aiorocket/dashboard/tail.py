"""Messages as they come: the page asks again and again, and says how far it has seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from aiorocket.dashboard.messages import Row, row_of
from aiorocket.dashboard.site import query, site_of
from aiorocket.errors import UsageError

__all__ = ("tail", "tail_rows")

#: Rows that one look brings at most, rows that stay on the page, and queues of a topic that can be watched.
_AT_ONCE, _KEPT, _QUEUES = 50, 200, 512
_FIELDS = 3

Cursor = dict[tuple[str, int], int]


async def tail(request: Request) -> Response:
    topic, tag = query(request, "topic"), query(request, "tag")
    cursor = ""
    missing: Sequence[Any] = ()
    if topic:
        status = await site_of(request).admin.topics.status(topic)
        cursor, missing = written(_ends(status)), status.missing
    return site_of(request).render(
        request, "tail.html", topic=topic, tag=tag, cursor=cursor, kept=_KEPT, missing=missing
    )


async def tail_rows(request: Request) -> Response:
    """What came since ``after``, the newest first, and where to go on."""
    site, topic, tag = site_of(request), query(request, "topic"), query(request, "tag")
    seen = read(query(request, "after"))
    status = await site.admin.topics.status(topic)
    ends = _ends(status)
    rows: list[Row] = []
    passed = 0
    for queue, end in ends.items():
        begin = seen.get(queue, 0)
        if begin >= end:
            continue
        first = max(begin, end - _AT_ONCE)
        passed += first - begin
        async for message in site.admin.messages.by_offsets(topic, *queue, first, end):
            if not tag or message.tag == tag:
                rows.append(row_of(message))
    rows.sort(key=lambda row: (-row.stored_ms, row.broker, row.queue, -row.offset))
    passed += max(0, len(rows) - _AT_ONCE)
    return site.render(
        request, "tail_rows.html", topic=topic, tag=tag, cursor=written(seen | ends), rows=rows[:_AT_ONCE],
        passed=passed, missing=status.missing,
    )  # fmt: skip


def _ends(status: Sequence[Any]) -> Cursor:
    if len(status) > _QUEUES:
        raise UsageError(f"the topic has {len(status)} queues, at most {_QUEUES} can be watched")
    return {(each.broker, each.queue): each.end for each in status}


def written(cursor: Cursor) -> str:
    """As text that ``read`` takes."""
    return "\n".join(f"{queue} {end} {broker}" for (broker, queue), end in cursor.items())


def read(text: str) -> Cursor:
    """UsageError for what ``written`` did not write."""
    found: Cursor = {}
    for line in text.split("\n") if text else ():
        fields = line.split(" ", _FIELDS - 1)
        if len(fields) != _FIELDS or not all(
            each.isascii() and each.isdigit() and len(each) < 20 for each in fields[:2]
        ):
            raise UsageError(f"after={line!r:.60}: where a look before this one came to is needed")
        found[fields[2], int(fields[0])] = int(fields[1])
    return found
