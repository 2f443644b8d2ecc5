"""Dead letters of a group: looking, and sending chosen ones again."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from aiorocket.dashboard.guard import form_of
from aiorocket.dashboard.messages import Row, row_of
from aiorocket.dashboard.site import query, site_of
from aiorocket.errors import UsageError
from aiorocket_protocol import DLQ_PREFIX

__all__ = ("dead_letters", "replay")

#: Dead letters that are shown, the newest of each queue, and that are sent at once.
_SHOWN, _AT_ONCE = 200, 200


class DeadRow(NamedTuple):
    """``message`` as it lies there, and why it does."""

    message: Row
    replay_id: str
    origin: str
    error: str
    reason: str
    host: str
    attempts: int
    replayed: bool


async def dead_letters(request: Request) -> Response:
    site, group = site_of(request), query(request, "group")
    if not group:
        found, missing = await site.dead.get()
        return site.render(request, "dead_groups.html", found=found, missing=missing)
    wanted, everything = query(request, "q").lower(), query(request, "all") == "1"
    await _readable(request, group)
    rows = []
    total = 0
    async for message in site.admin.dlq(group).messages(newest=_SHOWN):
        total += 1
        said = f"{message.error} {message.reason} {message.tag} {' '.join(message.keys)} {message.msg_id}".lower()
        if (everything or not message.replayed) and wanted in said:
            rows.append(
                DeadRow(
                    row_of(message), message.replay_id, message.origin_topic, message.error, message.reason[:300],
                    message.host, message.reconsume_times, message.replayed,
                )
            )  # fmt: skip
    rows.sort(key=lambda row: -row.message.stored_ms)
    return site.render(
        request, "dead_letters.html", group=group, rows=rows[:_SHOWN], q=query(request, "q"), everything=everything,
        total=total, most=_SHOWN,
    )  # fmt: skip


async def replay(request: Request) -> Response:
    """First what would be sent; with ``confirm`` it is, and what became of it."""
    site, group = site_of(request), form_of(request, "group")
    chosen = set(request.state.form.get("id", ()))
    if not group or not chosen:
        raise UsageError("choose dead letters first")
    if len(chosen) > _AT_ONCE:
        raise UsageError(f"{len(chosen)} dead letters were chosen, at most {_AT_ONCE} are sent at once")
    confirm = form_of(request, "confirm") == "yes"
    outcomes: list[Any] = []
    report = await site.admin.dlq(group).replay(
        ids=chosen, confirm=confirm, dry_run=not confirm, on_outcome=outcomes.append
    )
    topics = Counter(each.topic for each in outcomes if each.status in ("selected", "sent"))
    return site.render(
        request, "replay.html", group=group, report=report, topics=sorted(topics.items()), chosen=sorted(chosen),
        gone=len(chosen) - len(outcomes), outcomes=[(row_of(each.message), each) for each in outcomes],
    )  # fmt: skip


async def _readable(request: Request, group: str) -> None:
    """UsageError when a look would change the topic's permission and nothing may be changed."""
    site = site_of(request)
    hidden = [
        each.broker for each in await site.all_topics.get()
        if each.topic == f"{DLQ_PREFIX}{group}" and "R" not in each.permission
    ]  # fmt: skip
    if hidden and not site.config.allow_writes:
        raise UsageError(
            f"{hidden[0]} keeps dead letters of {group} unreadable: with --allow-writes a look makes them readable"
        )
