"""Putting a group somewhere else: a plan is shown, which changes nothing, then carried out as shown, and verified."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from aiorocket.dashboard.guard import form_of
from aiorocket.dashboard.site import moment, number, query, site_of
from aiorocket.errors import UsageError

__all__ = ("apply", "plan")

#: Seconds in which members have to go where they are sent, before the page says which did not.
_WITHIN = 10.0


async def plan(request: Request) -> Response:
    """The form, and with ``to`` what it would do."""
    site, group = site_of(request), query(request, "group")
    topic, to = query(request, "topic"), query(request, "to")
    at, skip = query(request, "at"), query(request, "skip")
    if not group:
        raise UsageError("which group?")
    topics = await site.admin.groups.topics(group)
    made, ticket = None, ""
    if topic and to:
        if to == "skip":
            made = await site.admin.offsets.plan(group, topic, skip=number(request, "skip", 0))
        elif to in ("first", "last"):
            made = await site.admin.offsets.plan(group, topic, "first" if to == "first" else "last")
        else:
            when = moment("at", at)
            if when is None:
                raise UsageError("which time?")
            made = await site.admin.offsets.plan(group, topic, when)
        ticket = site.plans.keep(made)
    return site.render(
        request, "reset.html", group=group, topics=topics, topic=topic, to=to or "last", given_at=at, skip=skip,
        plan=made, ticket=ticket, wrong=None,
    )  # fmt: skip


async def apply(request: Request) -> Response:
    """What was shown, and nothing else, once."""
    site = site_of(request)
    made = site.plans.take(form_of(request, "ticket"))
    if made is None:
        raise UsageError("this plan was carried out, or is too old: make it again")
    await site.admin.offsets.apply(made)
    wrong = await site.admin.offsets.verify(made, within=_WITHIN)
    return site.render(
        request, "reset.html", group=made.group, topics=[made.topic], topic=made.topic, to="last", given_at="", skip="",
        plan=made, ticket="", wrong=wrong,
    )  # fmt: skip
