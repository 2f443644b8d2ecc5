"""What the pages share: the Admin, what it said a moment ago, and how a page is made."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from aiorocket import Admin
from aiorocket.config.times import iso_time
from aiorocket.dashboard import findings
from aiorocket.dashboard.kept import Plans
from aiorocket.dashboard.rates import Rates
from aiorocket.dashboard.sessions import Sessions
from aiorocket.dashboard.settings import DashboardConfig
from aiorocket.dashboard.shared import Shared
from aiorocket.errors import UsageError
from aiorocket.runtime.tasks import TaskScope

__all__ = ("FILES", "Site", "moment", "number", "paged", "query", "site_of")

T = TypeVar("T")

#: Rows of a page of a list.
_PAGE = 50
_HERE = os.path.dirname(__file__)
_STATIC = os.path.join(_HERE, "static")


class Page(NamedTuple):
    """Some rows of many. ``number`` begins with 1."""

    rows: Sequence[Any]
    number: int
    pages: int
    total: int


class Site:
    """``start`` and ``close`` it with the Admin, which it does not own. ``pages`` are the paths there are."""

    def __init__(self, admin: Admin, config: DashboardConfig, pages: Collection[str]) -> None:
        self.admin, self.config, self.sessions, self.plans = admin, config, Sessions(), Plans()
        self.tasks = tasks = TaskScope("dashboard")
        self.rates = Rates(admin, config.sample)
        self.topics = Shared(tasks, "topics", admin.topics.all, 3.0)
        self.all_topics = Shared(tasks, "all-topics", lambda: admin.topics.all(system=True), 3.0)
        self.groups = Shared(tasks, "groups", admin.groups.all, 3.0)
        self.lags = Shared(tasks, "lags", admin.groups.lags, 3.0)
        self.timers = Shared(tasks, "timers", admin.timers.pending, 5.0)
        self.alarms = Shared(tasks, "alarms", lambda: findings.alarms(admin), 20.0)
        self.hanging = Shared(tasks, "hanging", lambda: findings.hanging(admin, self.lags), 15.0)
        self.dead = Shared(tasks, "dead", lambda: findings.dead(admin, readable_only=not config.allow_writes), 20.0)
        self._templates = Environment(
            loader=FileSystemLoader(os.path.join(_HERE, "templates")), autoescape=True, undefined=StrictUndefined,
            trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip
        self._templates.filters.update(when=when, ago=self.ago, count=count, size=size)
        self._templates.globals.update(link=link, static=_static_url, pages=pages)

    def start(self) -> None:
        self.tasks.start(self.rates.sample_for_ever(), name="rates")

    async def close(self) -> None:
        await self.tasks.close()

    def now_ms(self) -> int:
        return self.admin.client.env.clock.wall_ms()

    def render(self, request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """The page. ``fragment`` in a template says whether a part was asked for."""
        text = self._templates.get_template(template).render(
            path=request.url.path,
            csrf=self.sessions.csrf(request.state.session),
            writable=self.config.allow_writes,
            may_leave=self.config.token is not None and request.state.session.signed_in,
            fragment="hx-request" in request.headers,
            at=self.now_ms(),
            **values,
        )
        return HTMLResponse(text, status)

    def ago(self, millis: int) -> str:
        """How long since, for a person."""
        seconds = (self.now_ms() - millis) // 1000
        if millis <= 0:
            return "never"
        if seconds < 0:
            return f"in {_span(-seconds)}"
        return "now" if seconds < 2 else f"{_span(seconds)} ago"


def site_of(request: Request) -> Site:
    found: Site = request.app.state.site
    return found


def paged(request: Request, rows: Sequence[Any]) -> Page:
    pages = max(1, -(-len(rows) // _PAGE))
    at = min(max(1, number(request, "page", 1)), pages)
    return Page(rows[(at - 1) * _PAGE : at * _PAGE], at, pages, len(rows))


def query(request: Request, name: str) -> str:
    return request.query_params.get(name, "").strip()


def number(request: Request, name: str, default: int) -> int:
    """Of the query; UsageError when it is none."""
    text = query(request, name)
    if not text:
        return default
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) < 20):
        raise UsageError(f"{name}={text!r:.40} is no number")
    return int(text)


def moment(name: str, text: str) -> datetime | None:
    """A time of UTC as browsers and people write it; UsageError."""
    if not text:
        return None
    try:
        found = iso_time(text)
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    except ValueError:
        raise UsageError(f"{name}={text!r:.40}: a time such as 2030-01-31T12:00") from None


def link(path: str, /, **values: object) -> str:
    """``path`` with a query; what is empty is left out."""
    given = {name: value for name, value in values.items() if value not in ("", None)}
    return f"{path}?{urlencode(given)}" if given else path


def when(millis: int) -> str:
    """UTC, to the second."""
    try:
        return datetime.fromtimestamp(millis / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S") if millis > 0 else ""
    except (ValueError, OverflowError, OSError):
        return str(millis)


def count(value: int) -> str:
    return f"{value:,}".replace(",", "\u202f")


def size(value: float) -> str:
    value = max(0, min(value, 1 << 80))  # of a trace record it is what somebody wrote
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _span(seconds: int) -> str:
    for length, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def read_static() -> Mapping[str, tuple[bytes, str]]:
    """The files that browsers load, with their kinds: a few, so they are kept."""
    kinds = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
    found = {}
    for name in sorted(os.listdir(_STATIC)):
        kind = kinds.get(os.path.splitext(name)[1])
        if kind is not None:
            with open(os.path.join(_STATIC, name), "rb") as file:
                found[name] = (file.read(), kind)
    return found


FILES = read_static()


def _static_url(name: str) -> str:
    """It changes with what is in the file, so that browsers may keep that for ever."""
    return f"/static/{name}?{hashlib.sha256(FILES[name][0]).hexdigest()[:12]}"
