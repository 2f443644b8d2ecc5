"""The first page: what is wrong now."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from aiorocket.dashboard.site import site_of

__all__ = ("alarms", "dead", "hanging", "lag", "now")

#: Groups that are named.
_FURTHEST = 20


async def now(request: Request) -> Response:
    return site_of(request).render(request, "now.html")


async def alarms(request: Request) -> Response:
    site = site_of(request)
    return site.render(request, "now_alarms.html", found=await site.alarms.get())


async def lag(request: Request) -> Response:
    site = site_of(request)
    lags = await site.lags.get()
    rows = [
        (group, behind, max((each.consumed_ms for each in queues), default=0))
        for group, queues in lags.items()
        if (behind := sum(each.lag for each in queues))
    ]
    rows.sort(key=lambda row: (-row[1], row[0]))
    most = rows[0][1] if rows else 0
    return site.render(
        request, "now_lag.html", rows=rows[:_FURTHEST], more=max(0, len(rows) - _FURTHEST), most=most,
        missing=lags.missing,
    )  # fmt: skip


async def hanging(request: Request) -> Response:
    site = site_of(request)
    return site.render(request, "now_hanging.html", found=await site.hanging.get())


async def dead(request: Request) -> Response:
    site = site_of(request)
    found, missing = await site.dead.get()
    return site.render(request, "now_dead.html", found=found, missing=missing)
