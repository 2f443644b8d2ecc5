"""The application: which path is which page, and what is said when one cannot be made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from aiorocket.dashboard import brokers, dead_letters, groups, messages, offsets, overview, tail, timers, topics, trace
from aiorocket.dashboard.guard import Guard, here
from aiorocket.dashboard.site import FILES, Site, query, site_of
from aiorocket.errors import NotConnectedError, ProtocolError, RocketError, TopicNotFoundError, UsageError

__all__ = ("PAGES", "application")

Handler = Callable[[Request], Awaitable[Response]]


async def login(request: Request) -> Response:
    if site_of(request).config.token is None:
        return RedirectResponse("/", 303)
    wrong = getattr(request.state, "wrong", False)
    wanted = request.state.form.get("next", [query(request, "next")])[0]
    return site_of(request).render(request, "login.html", 403 if wrong else 200, wrong=wrong, next=here(wanted))


async def static(request: Request) -> Response:
    found = FILES.get(request.path_params["name"])
    if found is None:
        return PlainTextResponse("not here\n", 404)
    body, kind = found
    return Response(body, media_type=kind, headers={"cache-control": "public, max-age=31536000, immutable"})


async def failed(request: Request, error: Exception) -> Response:
    """What a broker or a name server did not do, said on a page."""
    status = 502
    if isinstance(error, HTTPException):
        status = error.status_code
    elif isinstance(error, TopicNotFoundError):
        status = 404
    elif isinstance(error, UsageError):
        status = 400
    elif isinstance(error, NotConnectedError):
        status = 503
    text = error.detail if isinstance(error, HTTPException) else str(error)
    # A part of a page that is asked for again and again is no failed page.
    status = 200 if "hx-request" in request.headers else status
    return site_of(request).render(request, "error.html", status, text=text)


#: Path -> the page.
PAGES: dict[str, Handler] = {
    "/": overview.now,
    "/now/alarms": overview.alarms,
    "/now/lag": overview.lag,
    "/now/hanging": overview.hanging,
    "/now/dead": overview.dead,
    "/topics": topics.topics,
    "/topic": topics.topic,
    "/groups": groups.groups,
    "/group": groups.group,
    "/group/members": groups.group_members,
    "/messages": messages.messages,
    "/message": messages.message,
    "/message/body": messages.message_body,
    "/dead": dead_letters.dead_letters,
    "/reset": offsets.plan,
    "/tail": tail.tail,
    "/tail/rows": tail.tail_rows,
    "/trace": trace.trace,
    "/timers": timers.timers,
    "/brokers": brokers.brokers,
    "/brokers/rates": brokers.rates,
}
#: The same of what is posted; the guard has looked at it before.
WRITES: dict[str, Handler] = {
    "/login": login,
    "/dead/replay": dead_letters.replay,
    "/reset": offsets.apply,
}


def application(site: Site) -> Guard:
    """An ASGI application; ``site`` is started and closed by who serves it."""
    app = Starlette(
        routes=[
            Route("/static/{name}", static),
            Route("/login", login),
            *(Route(path, page) for path, page in PAGES.items()),
            *(Route(path, page, methods=["POST"]) for path, page in WRITES.items()),
        ],
        exception_handlers={RocketError: failed, ProtocolError: failed, HTTPException: failed},
    )
    app.state.site = site
    return Guard(app, site.config, site.sessions)
