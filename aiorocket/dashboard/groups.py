"""Consumer groups, and one of them: how far it is, who its members are, and what they hang on."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from aiorocket.dashboard.findings import members_now
from aiorocket.dashboard.site import paged, query, site_of
from aiorocket.errors import ProtocolError, RocketError, UsageError
from aiorocket_protocol import DLQ_PREFIX, RETRY_PREFIX

__all__ = ("group", "group_members", "groups")


class GroupRow(NamedTuple):
    """A group on all brokers; ``consumed_ms`` is when the newest message it consumed was stored."""

    name: str
    enabled: bool
    topics: tuple[str, ...]
    lag: int
    consumed_ms: int


async def groups(request: Request) -> Response:
    site = site_of(request)
    known, lags = await asyncio.gather(site.groups.get(), site.lags.get())
    wanted, by_name = query(request, "q").lower(), query(request, "sort") == "name"
    enabled: dict[str, bool] = {}
    for each in known:
        enabled[each.group] = enabled.get(each.group, True) and each.enabled
    rows = []
    for name in enabled.keys() | lags.keys():
        if wanted in name.lower():
            queues = lags.get(name) or ()
            seen = sorted({each.topic for each in queues if not each.topic.startswith((RETRY_PREFIX, DLQ_PREFIX))})
            behind, last = sum(each.lag for each in queues), max((each.consumed_ms for each in queues), default=0)
            rows.append(GroupRow(name, enabled.get(name, True), tuple(seen), behind, last))
    rows.sort(key=lambda row: (0 if by_name else -row.lag, row.name))
    page = paged(request, rows)
    online = await asyncio.gather(*(_online(request, row.name) for row in page.rows))
    return site.render(
        request, "groups.html", page=page, rows=list(zip(page.rows, online, strict=True)), q=query(request, "q"),
        sort="name" if by_name else "lag", missing=(*known.missing, *lags.missing),
    )  # fmt: skip


async def group(request: Request) -> Response:
    site, name = site_of(request), query(request, "group")
    if not name:
        raise UsageError("which group?")
    queues, members, known = await asyncio.gather(
        site.admin.groups.lag(name), site.admin.groups.members(name), site.groups.get()
    )
    configs = [each for each in known if each.group == name]
    return site.render(
        request, "group.html", group=name, queues=queues, members=members, configs=configs,
        total=sum(each.lag for each in queues), topics=sorted({each.topic for each in queues}),
        most=max((each.lag for each in queues), default=0),
    )  # fmt: skip


async def group_members(request: Request) -> Response:
    """What each says of itself: asked by the page once it is there, for a member may take seconds."""
    site, name = site_of(request), query(request, "group")
    members, more = await members_now(site.admin, name, stacks=True)
    return site.render(request, "group_members.html", group=name, members=members, more=more)


async def _online(request: Request, name: str) -> int | None:
    try:
        return len((await site_of(request).admin.groups.members(name)).members)
    except (RocketError, ProtocolError):
        return None
