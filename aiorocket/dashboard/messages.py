"""Finding messages and looking at one. Looking joins no group and moves no offset."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from aiorocket.dashboard.body import FORMS, PREVIEWED, Shown, preview, shown
from aiorocket.dashboard.site import moment, number, query, site_of
from aiorocket.errors import ProtocolError, UsageError
from aiorocket.runtime.threads import in_thread

__all__ = ("Row", "message", "message_body", "messages", "row_of")

#: Messages of a list; queues whose ends are looked at; seconds that a search by time may take.
MOST, _QUEUES, _PATIENCE = 64, 64, 15.0


class Row(NamedTuple):
    """A message in a list: what it takes to find it again, and a look at its body, stored in ``size`` bytes."""

    topic: str
    broker: str
    queue: int
    offset: int
    stored_ms: int
    tag: str
    keys: str
    msg_id: str
    size: int
    preview: str


def row_of(message: Any) -> Row:
    try:
        look = preview(message.body_start(PREVIEWED))
    except ProtocolError as error:  # packed in a way that is not known here, or broken
        look = f"({error})"
    topic, broker, queue = message.queue
    return Row(
        topic, broker, queue, message.queue_offset, message.store_timestamp, message.tag, " ".join(message.keys),
        message.msg_id, len(message.raw_body), look,
    )  # fmt: skip


async def messages(request: Request) -> Response:
    """By ``key``, ``id`` or time (``since``, ``until``) when one is given, else the newest."""
    site, topic = site_of(request), query(request, "topic")
    asked = {name: query(request, name) for name in ("key", "id", "since", "until")}
    rows: list[Row] = []
    note = ""
    missing: tuple[Any, ...] = ()
    if asked["id"] and len(asked["id"]) in (32, 56) and not topic:
        by_place = await _by_place(request, asked["id"])
        rows, note = (by_place, "") if by_place is not None else ([], "A search by a sender's id needs a topic.")
    elif topic and asked["id"]:
        answers = await site.admin.messages.by_unique_key(topic, asked["id"])
        rows, missing = [row_of(each) for each in answers], answers.missing
        if not rows and len(asked["id"]) in (32, 56):
            rows = await _by_place(request, asked["id"]) or []
    elif topic and asked["key"]:
        since, until = moment("since", asked["since"]), moment("until", asked["until"])
        answers = await site.admin.messages.by_key(topic, asked["key"], since=since, until=until, limit=MOST)
        rows, missing = [row_of(each) for each in answers], answers.missing
    elif topic and (asked["since"] or asked["until"]):
        since, until = moment("since", asked["since"]), moment("until", asked["until"])
        away: list[Any] = []
        rows, note = await _bounded(site.admin.messages.by_time(topic, since, until, limit=MOST, missing=away))
        missing = tuple(away)
    elif topic:
        rows, missing = await _newest(request, topic)
        note = "the newest of each queue" if rows else ""
    elif any(asked.values()):
        note = "A search by key or time needs a topic."
    return site.render(
        request, "messages.html", topic=topic, asked=asked, rows=rows, note=note, missing=missing, most=MOST,
        searched=bool(topic or asked["id"]),
    )  # fmt: skip


async def _by_place(request: Request, offset_msg_id: str) -> list[Row] | None:
    """The message that lies where the id says, if there is one; None for an id that says no place: a sender's."""
    try:
        found = await site_of(request).admin.messages.by_id(offset_msg_id)
    except UsageError:
        return None
    return [] if found is None else [row_of(found)]


async def message(request: Request) -> Response:
    found = await _found(request)
    body, size, why = await in_thread(_unpacked, found, query(request, "as"))
    return site_of(request).render(
        request, "message.html", message=found, body=body, size=size, why=why, forms=FORMS, keys=found.keys,
        properties=sorted(found.properties.items()),
    )  # fmt: skip


def _unpacked(message: Any, form: str) -> tuple[Shown, int, str]:
    """The body as it is shown, its length, and why it is as stored if it is. For a thread: it may unfold to 64 MiB."""
    try:
        body, why = message.body, ""
    except ProtocolError as error:
        body, why = message.raw_body, str(error)
    return shown(body, form), len(body), why


async def message_body(request: Request) -> Response:
    """The bytes, as a file: a browser shall not take them for a page."""
    found = await _found(request)
    body = await in_thread(lambda: found.body_or_raw)
    headers = {"content-disposition": f'attachment; filename="message-{found.queue_offset}.bin"'}
    return Response(body, media_type="application/octet-stream", headers=headers)


async def _found(request: Request) -> Any:
    where = query(request, "topic"), query(request, "broker"), number(request, "queue", 0), number(request, "offset", 0)
    if not where[0] or not where[1]:
        raise UsageError("which message? topic, broker, queue and offset say it")
    found = await site_of(request).admin.messages.by_offset(*where)
    if found is None:
        raise UsageError(f"there is no message at {where[3]} of {where[0]} {where[1]}:{where[2]} (any more)")
    return found


async def _newest(request: Request, topic: str) -> tuple[list[Row], Any]:
    """Of each queue's end as many as make a list, of the queues that were written last."""
    admin = site_of(request).admin
    status = await admin.topics.status(topic)
    queues = sorted((each for each in status if each.end > each.begin), key=lambda each: -each.stored_ms)[:_QUEUES]
    share = max(4, -(-2 * MOST // max(1, len(queues))))

    async def ask(each: Any) -> list[Row]:
        found = admin.messages.by_offsets(topic, each.broker, each.queue, each.end - share, each.end)
        return [row_of(message) async for message in found]

    rows = [row for part in await asyncio.gather(*map(ask, queues)) for row in part]
    rows.sort(key=lambda row: (-row.stored_ms, row.broker, row.queue, -row.offset))
    return rows[:MOST], status.missing


async def _bounded(found: AsyncIterable[Any]) -> tuple[list[Row], str]:
    """What is found within a time."""
    rows: list[Row] = []
    try:
        async with asyncio.timeout(_PATIENCE):
            async for message in found:
                rows.append(row_of(message))
    except TimeoutError:
        return rows, f"what was found in {_PATIENCE:.0f} s; a shorter time finds all of it"
    return rows, "the first of them: a later beginning shows more" if len(rows) >= MOST else ""
