"""Brokers, and their rates as plots."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from aiorocket.dashboard.site import site_of

__all__ = ("brokers", "rates")

#: What is shown of all that a broker says of itself, and under which title.
_SHOWN = {
    "putTps": "stored a second (10 s, 1 min, 10 min)", "getTransferredTps": "given out a second",
    "msgPutTotalTodayNow": "stored since its start", "msgGetTotalTodayNow": "given out since its start",
    "commitLogDirCapacity": "disk", "commitLogDiskRatio": "disk used", "runtime": "runs for",
    "dispatchBehindBytes": "key index behind, bytes", "damagedRanges": "damaged ranges",
}  # fmt: skip


async def brokers(request: Request) -> Response:
    site = site_of(request)
    known, runtimes = await site.admin.brokers.all(), await site.admin.brokers.runtime()
    return site.render(
        request, "brokers.html", brokers=known, runtimes=runtimes, shown=_SHOWN, missing=runtimes.missing,
        why=site.rates.why,
    )  # fmt: skip


async def rates(request: Request) -> Response:
    """As uPlot takes it: times in seconds, then each series."""
    samples = site_of(request).rates.samples
    plots = {
        name: {
            "at": [each.at_ms / 1000 for each in ring],
            "put": [each.put for each in ring],
            "got": [each.got for each in ring],
            "disk": [each.disk for each in ring],
        }
        for name, ring in sorted(samples.items())
    }
    return JSONResponse(plots)
