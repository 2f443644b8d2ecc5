"""What waits for its time: timer messages and delay levels."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from aiorocket.dashboard.site import paged, query, site_of

__all__ = ("timers",)


async def timers(request: Request) -> Response:
    site, wanted = site_of(request), query(request, "q").lower()
    pending, levels = await asyncio.gather(site.timers.get(), site.admin.timers.levels())
    rows = [
        each for each in pending if wanted in f"{each.topic} {each.tag} {' '.join(each.keys)} {each.msg_id}".lower()
    ]
    return site.render(
        request, "timers.html", page=paged(request, rows), levels=levels, q=query(request, "q"),
        missing=(*pending.missing, *levels.missing),
    )  # fmt: skip
