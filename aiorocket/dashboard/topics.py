"""Topics, and one of them."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from aiorocket.dashboard.site import paged, query, site_of
from aiorocket.errors import ProtocolError, RocketError

__all__ = ("topic", "topics")


class TopicRow(NamedTuple):
    """A topic on all brokers that have it."""

    name: str
    brokers: tuple[str, ...]
    read_queues: int
    write_queues: int
    permission: str
    order: bool


async def topics(request: Request) -> Response:
    site = site_of(request)
    wanted, system = query(request, "q").lower(), query(request, "system") == "1"
    known = await (site.all_topics if system else site.topics).get()
    by_name: dict[str, list[Any]] = {}
    for each in known:
        if wanted in each.topic.lower():
            by_name.setdefault(each.topic, []).append(each)
    page = paged(request, sorted(by_name))
    rows = [_row(name, by_name[name]) for name in page.rows]
    counts = await asyncio.gather(*(_messages(request, row.name) for row in rows))
    return site.render(
        request, "topics.html", page=page, rows=list(zip(rows, counts, strict=True)), q=query(request, "q"),
        system=system, missing=known.missing,
    )  # fmt: skip


async def topic(request: Request) -> Response:
    site, name = site_of(request), query(request, "topic")
    queues = await site.admin.topics.status(name)
    groups = await site.admin.topics.groups(name)
    configs = [each for each in await site.all_topics.get() if each.topic == name]
    try:
        route, no_route = await site.admin.topics.route(name), ""
    except (RocketError, ProtocolError) as error:
        route, no_route = [], str(error)
    return site.render(
        request, "topic.html", topic=name, queues=queues, groups=groups, configs=configs, route=route,
        no_route=no_route, total=sum(each.end - each.begin for each in queues),
        newest=max((each.stored_ms for each in queues), default=0),
    )  # fmt: skip


def _row(name: str, configs: list[Any]) -> TopicRow:
    return TopicRow(
        name, tuple(each.broker for each in configs), sum(each.read_queues for each in configs),
        sum(each.write_queues for each in configs), configs[0].permission, configs[0].order,
    )  # fmt: skip


async def _messages(request: Request, name: str) -> tuple[int, int] | None:
    """How many it holds and when the last came; None when nobody says."""
    try:
        queues = await site_of(request).admin.topics.status(name)
    except (RocketError, ProtocolError):
        return None
    return sum(each.end - each.begin for each in queues), max((each.stored_ms for each in queues), default=0)
