"""What stands before every page: safe headers, who may look, and who may write."""

from __future__ import annotations

import asyncio
import re
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from aiorocket.dashboard.sessions import SESSION, Session, Sessions, same
from aiorocket.dashboard.settings import DashboardConfig

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ("Guard", "form_of", "here")

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
#: Bytes and fields of a form.
MOST_BYTES, MOST_FIELDS = 256 * 1024, 4000
#: Seconds in which a form has to have come.
_PATIENCE = 30.0
#: Seconds that a wrong token costs whoever tries it.
_WRONG = 1.0
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::(?P<port>[0-9]{1,5}))?", re.ASCII)
#: Paths whose POST changes nothing in the cluster.
_OPEN = ("/login", "/logout")


class Guard:
    """An ASGI application around another. It gives requests ``state.session``, and those that post ``state.form``."""

    def __init__(self, app: ASGIApp, config: DashboardConfig, sessions: Sessions) -> None:
        self._app, self._config, self._sessions = app, config, sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # neither WebSockets nor a lifespan are spoken here

        async def safe(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                message["headers"] += [
                    (name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in given
                ]
            await send(message)

        request = Request(scope, receive)
        # The path that is routed. ``request.url`` is made of what the browser says of its host too, and cleaned.
        path: str = scope["path"]
        if path.startswith("/static/"):
            request.state.session = self._sessions.new(signed_in=False)
            await self._app(scope, receive, safe)
            return
        now = asyncio.get_running_loop().time()
        session = self._sessions.read(request.cookies.get(_cookie(request), ""), now)
        fresh = session is None
        if session is None:
            session = self._sessions.new(signed_in=False)
        answer = self._stranger(request, session) or await self._check_form(request, session)
        if answer is None and path == "/login" and request.method == "POST":
            answer, session = await self._login(request, session)
            fresh = True
        if answer is None and path == "/logout" and request.method == "POST":
            answer, session, fresh = RedirectResponse("/login", 303), self._sessions.new(signed_in=False), True
        cookie = Response()
        if fresh:
            cookie.set_cookie(
                _cookie(request), self._sessions.cookie(session, now), max_age=int(SESSION), httponly=True,
                samesite="strict", secure=request.url.scheme == "https",
            )  # fmt: skip
        kept = [pair for pair in cookie.raw_headers if pair[0] == b"set-cookie"]

        async def with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *kept]
            await safe(message)

        request.state.session = session
        await (answer or self._app)(scope, receive, with_cookie)

    def _stranger(self, request: Request, session: Session) -> Response | None:
        """The answer to who may not look."""
        if self._config.token is None:
            # A site of somebody else may have its name lead to this machine: the browser then asks for that name.
            if not _asks_for_loopback(request):
                return PlainTextResponse("ask for localhost, or start the dashboard with a token\n", 421)
            # What it loads by a page of its own would have us connect to where it says, and ask brokers for it.
            said = request.headers
            if said.get("sec-fetch-site") == "cross-site" and said.get("sec-fetch-dest") != "document":
                return PlainTextResponse("another site may lead here, and load nothing from here\n", 403)
            return None
        if session.signed_in or request.scope["path"] == "/login":
            return None
        if request.headers.get("hx-request"):
            return Response(status_code=200, headers={"hx-redirect": "/login"})
        wanted = request.scope["path"] + ("?" + request.url.query if request.url.query else "")
        return RedirectResponse("/login" if wanted == "/" else f"/login?next={quote(wanted)}", 303)

    async def _check_form(self, request: Request, session: Session) -> Response | None:
        """Reads what is posted; the answer when it may not be."""
        request.state.form = {}
        if request.method != "POST":
            return None
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return PlainTextResponse("this form is of another site\n", 403)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            return PlainTextResponse("a form, application/x-www-form-urlencoded\n", 415)
        body = b""
        try:
            async with asyncio.timeout(_PATIENCE):
                async for part in request.stream():
                    body += part
                    if len(body) > MOST_BYTES:
                        return PlainTextResponse(f"a form has at most {MOST_BYTES} bytes\n", 413)
        except TimeoutError:
            return PlainTextResponse(f"the form did not come in {_PATIENCE:g} s\n", 408)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody gets it
        try:
            form = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
        except ValueError:
            return PlainTextResponse(f"UTF-8 and at most {MOST_FIELDS} fields\n", 400)
        if not same(form.get("csrf", [""])[0], self._sessions.csrf(session)):
            return PlainTextResponse("this form is too old or of another site: load the page again\n", 403)
        if request.scope["path"] not in _OPEN and not self._config.allow_writes:
            return PlainTextResponse("read-only: start the dashboard with --allow-writes\n", 403)
        request.state.form = form
        return None

    async def _login(self, request: Request, session: Session) -> tuple[Response | None, Session]:
        known = self._config.token
        if known is None:
            return RedirectResponse("/", 303), session
        if same(form_of(request, "token").strip(), known):
            return RedirectResponse(here(form_of(request, "next")), 303), self._sessions.new(signed_in=True)
        await asyncio.sleep(_WRONG)
        request.state.wrong = True
        return None, session  # the login page again


def form_of(request: Request, name: str) -> str:
    """A field of what was posted; empty when it is not there."""
    form: dict[str, list[str]] = request.state.form
    return form.get(name, [""])[0]


def here(path: str) -> str:
    """``path`` if it is one of this site, else its first page."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() else "/"


def _cookie(request: Request) -> str:
    """Browsers give the cookies of a host to all its ports: several dashboards must not sign each other out."""
    asked = _HOST.fullmatch(request.headers.get("host", ""))
    return f"aiorocket_dashboard{'_' + asked['port'] if asked and asked['port'] else ''}"


def _asks_for_loopback(request: Request) -> bool:
    """By an address, or the one name that no site can have."""
    asked = _HOST.fullmatch(request.headers.get("host", ""))
    if asked is None:
        return False
    try:
        return asked["name"] == "localhost" or ip_address(asked["name"].strip("[]")).is_loopback
    except ValueError:
        return False
