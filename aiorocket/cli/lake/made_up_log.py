"""An access log that nobody's servers wrote: the combined format with the response time at the end of each line.

One day of a shop: quiet nights and a busy evening, few pages that get most of the visits, browsers that have things in
their caches, crawlers, scanners that look for somebody else's software, and for a quarter of an hour a database that
does not answer. One line in a thousand is damaged, as in real logs. The same seed gives the same lines.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import NamedTuple

from aiorocket.runtime.entropy import Entropy

__all__ = ("FIRST_DAY", "made_up_log")

FIRST_DAY = datetime(2025, 3, 3, tzinfo=UTC)

_MINUTES = 24 * 60
#: (hour of the middle, width in hours, height) of the busy times, above a floor of 1.
_BUSY = ((10.5, 2.2, 3.0), (13.2, 1.6, 2.0), (20.4, 2.4, 6.0))
#: A crawler's burst and the outage: first minute, last minute.
_CRAWL, _OUTAGE = (185, 240), (16 * 60 + 42, 16 * 60 + 57)


class _Page(NamedTuple):
    """``busy`` is the median time in ms, ``size`` the median of bytes; {n} in a path is a number."""

    method: str
    path: str
    busy: float
    size: int


_PAGES = (
    _Page("GET", "/", 38, 18_400), _Page("GET", "/static/app.js", 2, 148_000),
    _Page("GET", "/static/app.css", 2, 31_000), _Page("GET", "/api/cart", 24, 640),
    _Page("GET", "/products/{n}", 52, 23_500), _Page("GET", "/search?q={w}", 140, 16_900),
    _Page("GET", "/static/logo.svg", 1, 4_200), _Page("GET", "/category/{c}", 64, 27_800),
    _Page("GET", "/api/prices/{n}", 18, 420), _Page("GET", "/images/{n}.webp", 4, 54_000),
    _Page("POST", "/api/cart", 47, 310), _Page("GET", "/favicon.ico", 1, 1_150),
    _Page("GET", "/api/recommendations", 88, 5_300), _Page("GET", "/login", 31, 6_100),
    _Page("POST", "/login", 120, 240), _Page("GET", "/checkout", 58, 12_700), _Page("POST", "/api/orders", 210, 380),
    _Page("GET", "/account", 44, 9_800), _Page("GET", "/account/orders", 71, 14_200),
    _Page("GET", "/api/stock/{n}", 15, 180), _Page("GET", "/about", 22, 7_400), _Page("GET", "/robots.txt", 1, 320),
    _Page("GET", "/sitemap.xml", 160, 410_000), _Page("GET", "/health", 1, 15),
    _Page("GET", "/products/{n}/reviews", 83, 11_600), _Page("POST", "/api/events", 6, 0),
    _Page("GET", "/help/returns", 20, 5_900),
)  # fmt: skip
_SCANNED = ("/wp-login.php", "/.env", "/phpmyadmin/index.php", "/.git/config", "/xmlrpc.php", "/cgi-bin/luci")
_WORDS = ("lamp", "desk", "oak+table", "chair", "shelf", "rug", "sofa", "mirror", "bed+120x200", "k%C3%BCche")
_CATEGORIES = ("chairs", "tables", "lighting", "storage", "beds", "outdoor", "sale")
_CHROME = "AppleWebKit/537.36 (KHTML, like Gecko) Chrome/133.0.0.0"
_BROWSERS = (
    f"Mozilla/5.0 (Windows NT 10.0; Win64; x64) {_CHROME} Safari/537.36",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_3 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.3 "
    "Mobile/15E148 Safari/604.1",
    f"Mozilla/5.0 (Linux; Android 15; Pixel 9) {_CHROME} Mobile Safari/537.36",
    f"Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) {_CHROME} Safari/537.36",
    "Mozilla/5.0 (X11; Linux x86_64; rv:135.0) Gecko/20100101 Firefox/135.0",
    f"Mozilla/5.0 (Windows NT 10.0; Win64; x64) {_CHROME} Safari/537.36 Edg/133.0.0.0",
)
_BOTS = (
    "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
    "Mozilla/5.0 (compatible; bingbot/2.0; +http://www.bing.com/bingbot.htm)",
    "Mozilla/5.0 (compatible; AhrefsBot/7.0; +http://ahrefs.com/robot/)",
)
_SCANNER, _PROBE = "Mozilla/5.0 zgrab/0.x", "kube-probe/1.31"
_REFERRERS = ("-", "https://www.example.com/", "https://www.google.com/", "https://news.example.org/spring-sale")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def made_up_log(lines: int, *, seed: int = 1, day: int = 0) -> Iterator[bytes]:
    """``lines`` lines of one day, ``day`` days after ``FIRST_DAY``, in the order of their times."""
    yield from _Day(lines, Entropy(seed * 1_000_003 + day), FIRST_DAY + timedelta(days=day)).lines()


class _Day:
    def __init__(self, count: int, entropy: Entropy, start: datetime) -> None:
        self._entropy = entropy
        self._random = entropy.random
        self._start = start
        self._count = count
        self._page_sums = list(accumulate(1 / (rank + 1) ** 1.05 for rank in range(len(_PAGES))))
        self._minute_sums = list(accumulate(_rate(minute) for minute in range(_MINUTES)))

    def lines(self) -> Iterator[bytes]:
        for second in sorted(self._second() for _ in range(self._count)):
            line = self._line(second)
            yield self._damaged(line) if self._random() < 0.001 else line.encode()

    def _second(self) -> float:
        sums = self._minute_sums
        minute = bisect(sums, self._random() * sums[-1])
        return (min(minute, _MINUTES - 1) + self._random()) * 60

    def _line(self, second: float) -> str:
        minute, chance = int(second // 60), self._random()
        crawled = _CRAWL[0] <= minute <= _CRAWL[1]
        if chance < 0.015:
            return self._scan(second)
        if chance < 0.02:
            return self._written(second, "10.0.0.7", "GET /health HTTP/1.1", 200, 15, 0.8, "-", _PROBE)
        if chance < (0.62 if crawled else 0.09):
            return self._crawl(second, minute, _BOTS[1] if crawled else _BOTS[self._entropy.randrange(len(_BOTS))])
        return self._visit(second, minute)

    def _visit(self, second: float, minute: int) -> str:
        page = _PAGES[min(bisect(self._page_sums, self._random() * self._page_sums[-1]), len(_PAGES) - 1)]
        visitor = self._skewed(4_000)
        status, size, ms = self._answer(page, minute)
        protocol = "HTTP/1.1" if visitor % 5 == 0 else "HTTP/2.0"
        referrer = _REFERRERS[visitor % 4 if self._random() < 0.3 else 1]
        agent = _BROWSERS[min(visitor % 9, visitor % 6)]
        return self._written(
            second, _address(visitor), f"{page.method} {self._path(page)} {protocol}", status, size, ms, referrer, agent
        )

    def _answer(self, page: _Page, minute: int) -> tuple[int, int, float]:
        """Status, bytes, milliseconds."""
        static = page.busy < 5
        ms = self._around(page.busy, 0.55) * (0.8 + 0.35 * _rate(minute) / 8)
        size = int(self._around(page.size, 0.25))
        if _OUTAGE[0] <= minute <= _OUTAGE[1] and not static:
            if self._random() < 0.55:
                timed_out = self._random() < 0.6
                return (504, 167, self._around(10_000, 0.02)) if timed_out else (503, 190, self._around(90, 0.5))
            ms *= 22
        chance = self._random()
        if static and chance < 0.38:
            return 304, 0, ms
        if chance < 0.0015:
            return 500, 1_320, ms * 2
        if page.path.startswith("/account") and chance < 0.2:
            return 302, 138, ms / 4
        if page.path == "/login" and page.method == "POST":
            return (401, 96, ms) if chance < 0.12 else (302, 0, ms)
        if page.method == "POST" and page.path != "/api/events":
            return (422, 210, ms / 2) if chance < 0.04 else (201, size, ms)
        if chance < 0.018:
            return 404, 3_100, ms / 3
        return (204, 0, ms) if page.path == "/api/events" else (200, size, ms)

    def _crawl(self, second: float, minute: int, agent: str) -> str:
        page = _PAGES[(0, 4, 7, 24, 21)[self._entropy.randrange(5)]]
        status, size, ms = self._answer(page, minute)
        if _CRAWL[0] + 25 <= minute <= _CRAWL[1] and self._random() < 0.5:
            status, size, ms = 429, 162, 1.2
        number = self._entropy.randrange(24)
        return self._written(
            second, f"198.51.100.{20 + number}", f"GET {self._path(page)} HTTP/1.1", status, size, ms, "-", agent
        )

    def _scan(self, second: float) -> str:
        client = f"203.0.113.{self._entropy.randrange(250) + 1}"
        if self._random() < 0.15:  # TLS spoken to a plain port, as servers write it down
            return self._written(second, client, r"\x16\x03\x01\x02\x00\x01\x00\x01\xFC", 400, 157, 0.4, "-", "-")
        path = _SCANNED[self._entropy.randrange(len(_SCANNED))]
        return self._written(second, client, f"GET {path} HTTP/1.1", 404, 153, self._around(3, 0.4), "-", _SCANNER)

    def _path(self, page: _Page) -> str:
        if "{" not in page.path:
            return page.path
        product = 1000 + self._skewed(600)
        path = page.path.replace("{n}", str(product)).replace("{c}", _CATEGORIES[product % 7])
        return path.replace("{w}", _WORDS[product % 10])

    def _written(
        self, second: float, client: str, request: str, status: int, size: int, ms: float, referrer: str, agent: str
    ) -> str:
        at = self._start + timedelta(seconds=int(second))
        when = f"{at.day:02d}/{_MONTHS[at.month - 1]}/{at.year}:{at:%H:%M:%S} +0000"
        return f'{client} - - [{when}] "{request}" {status} {size} "{referrer}" "{agent}" {ms / 1000:.3f}'

    def _damaged(self, line: str) -> bytes:
        chance = self._random()
        if chance < 0.5:  # the disk was full, or the log was rotated in the middle of it
            return line[: 10 + self._entropy.randrange(60)].encode()
        if chance < 0.8:  # something else writes to the same file
            return b"worker 7 exited on signal 9, restarting"
        return line[:40].encode() + b"\xff\xfe\xc3" + line[40:90].encode()

    def _skewed(self, count: int) -> int:
        """A number below ``count``; small ones are drawn more often (about as 1 / n)."""
        return min(count - 1, int(math.exp(self._random() * math.log(count + 1))) - 1)

    def _around(self, median: float, spread: float) -> float:
        """Log-normal: half of the values are below ``median``, and some are far above."""
        normal = math.sqrt(-2 * math.log(1 - self._random())) * math.cos(2 * math.pi * self._random())
        return float(median * math.exp(spread * normal))


def _rate(minute: int) -> float:
    """How busy a minute of the day is; 1 at its quietest."""
    hour = minute / 60
    rate = 1 + sum(height * math.exp(-(((hour - middle) / width) ** 2)) for middle, width, height in _BUSY)
    return rate + (3.5 if _CRAWL[0] <= minute <= _CRAWL[1] else 0)


def _address(visitor: int) -> str:
    """One in four comes by IPv6; all of them from ranges that are set aside for documentation and tests."""
    if visitor % 4 == 3:
        return f"2001:db8:{visitor % 97:x}:{visitor:x}::{visitor % 13 + 1:x}"
    return f"198.18.{visitor // 250}.{visitor % 250 + 1}" if visitor % 3 else f"192.0.2.{visitor % 250 + 1}"
