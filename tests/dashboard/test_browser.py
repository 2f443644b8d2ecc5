"""The page in a real Chromium: what it looks like to a person's browser, with scripts, keys and hostile names."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import pytest

from aiorocket import Admin, DeadLetter, Embedded, Message
from aiorocket.broker.core.topics import Topic
from aiorocket.dashboard.server import serving
from aiorocket.dashboard.settings import DashboardConfig
from aiorocket_protocol import TRACE_TOPIC
from aiorocket_protocol.message_trace import TraceRecord, write_trace

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page

pytestmark = pytest.mark.browser

CHROMIUM = os.environ.get("AIOROCKET_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
#: It asks nobody outside.
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
TOKEN = "a token of 23 characters"
#: What runs if anything of it is taken for a page.
KEY = "<script>window.broken=1</script>\"'&"
HOSTILE = f"<img src=x onerror='window.broken=2'>{KEY}"
TOPICS, GROUPS = 2_000, 500


class Watched:
    """A page, and everything that went wrong on it."""

    def __init__(self, page: Page, base: str) -> None:
        self.page, self.base = page, base
        self.wrong: list[str] = []
        page.on("console", lambda message: self._said(message.type, message.text))
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("dialog", lambda dialog: self.wrong.append(f"dialog {dialog.message}"))

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):  # a violation of the Content-Security-Policy is an error of the console
            self.wrong.append(f"{kind}: {text}")

    async def go(self, path: str) -> Page:
        await self.page.goto(self.base + path)
        return self.page

    async def text(self, selector: str = "main") -> str:
        return await self.page.locator(selector).first.inner_text()

    async def ends_well(self) -> None:
        assert await self.page.evaluate("window.broken") is None
        assert not self.wrong, self.wrong


@asynccontextmanager
async def browsing(
    mq: Embedded, *, width: int = 1280, scheme: Literal["dark", "light"] = "light", **settings: Any
) -> AsyncIterator[Watched]:
    from playwright.async_api import async_playwright

    assert CHROMIUM is not None, "no Chromium here: apt-get install chromium, or AIOROCKET_CHROMIUM=PATH"
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Admin(nameservers=mq.nameservers))
        port = await stack.enter_async_context(serving(admin, DashboardConfig(port=0, sample=0.5, **settings)))
        playwright = await stack.enter_async_context(async_playwright())
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        stack.push_async_callback(browser.close)
        context: BrowserContext = await browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme
        )
        context.set_default_timeout(30_000)
        watched = Watched(await context.new_page(), f"http://127.0.0.1:{port}")
        yield watched
        await watched.ends_well()


@asynccontextmanager
async def a_bad_day(mq: Embedded) -> AsyncIterator[str]:
    """Dead letters, a listener that hangs, a timer, a trace; gives the id of a message that was traced."""
    billing, mailer = mq.consumer("billing"), mq.consumer("mailer")
    began, release, given_up = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @billing.listener("orders", start_from="first")
    async def give_up(message: Message) -> None:
        if message.tag == "bad":
            given_up.set()
            raise DeadLetter(HOSTILE)

    @mailer.listener("orders", start_from="first")
    async def hang(message: Message) -> None:
        began.set()
        await release.wait()

    async with billing, mailer, mq.producer() as producer:
        sent = await producer.send("orders", HOSTILE.encode(), tag="good", keys=[KEY], properties={HOSTILE: HOSTILE})
        for number in range(3):
            await producer.send("orders", b'{"n": %d, "h": "</script><b>"}' % number, tag="bad", keys=[f"o-{number}"])
        await producer.send("orders", b"later", after=timedelta(hours=1), keys=[KEY])
        record = TraceRecord("Pub", sent.msg_id, 900, group=HOSTILE, topic=HOSTILE, keys=HOSTILE, tag=HOSTILE)
        await producer.send(TRACE_TOPIC, write_trace(record).encode(), keys=[sent.msg_id])
        await asyncio.wait_for(given_up.wait(), 60)
        await asyncio.wait_for(began.wait(), 60)
        await billing.commit()
        await mailer.commit()
        try:
            yield sent.msg_id
        finally:
            release.set()


async def test_every_page_shows_what_is_hostile_as_text(mq: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiorocket.dashboard.findings.HANGS", -1)
    async with a_bad_day(mq) as msg_id, browsing(mq) as watched:
        page = await watched.go("/")
        await page.get_by_text("What it hangs on").wait_for()
        await page.locator("#dead article").wait_for()
        await page.locator("#alarms p").wait_for()
        await page.locator("#lag table").wait_for()
        assert "window.broken=2" in await watched.text("#dead") and "mailer" in await watched.text("#hanging")
        await page.get_by_text("What it hangs on").click()
        await page.locator("article.member details[open] pre").wait_for()
        assert "hang(" in await watched.text("article.member pre")
        for path, seen in (
            ("/topics", "orders"), ("/topic?topic=orders", "mailer"), ("/groups", "mailer"),
            ("/group?group=billing", "orders"),
            ("/messages?topic=orders", "window.broken"), ("/dead", "billing"), ("/dead?group=billing", "window.broken"),
            ("/reset?group=billing", "billing"), ("/timers", "window.broken"), (f"/trace?id={msg_id}", "window.broken"),
            (f"/messages?topic=orders&id={msg_id}", "window.broken"),
            (f"/topics?q={HOSTILE.replace('&', '%26')}", "0 topics"),
        ):  # fmt: skip
            await watched.go(path)
            assert seen in await watched.text(), path
        await watched.go(f"/messages?topic=orders&id={msg_id}")
        await page.locator("tbody a").first.click()
        for form in ("Hex", "Text", "JSON"):
            await page.get_by_role("link", name=form, exact=True).click()
        assert HOSTILE in await watched.text("pre.body") and HOSTILE in await watched.text("dl >> nth=1")
        await watched.go("/brokers")
        await page.locator("#plots canvas").wait_for()
        await page.locator("#plots .u-over").hover()
        pointed = page.locator("#plots .u-value").first
        await pointed.filter(has_text=re.compile(r"^\d\d:\d\d:\d\d$")).wait_for()  # as all times of the pages
        assert "broker-a" in await watched.text()
        await watched.ends_well()
        await page.goto(watched.base + "/topic?topic=" + HOSTILE.replace("&", "%26"))
        assert "window.broken" in await watched.text(".note.error") and watched.wrong.pop().count("404") == 1


async def test_a_replay_and_a_reset_by_hand(mq: Embedded) -> None:
    async with a_bad_day(mq), browsing(mq, allow_writes=True) as watched, Admin(nameservers=mq.nameservers) as admin:
        page = await watched.go("/dead?group=billing")
        await page.get_by_label("Choose all").check()
        assert await page.locator("[name=id]:checked").count() == 3
        await page.locator("[name=id]").first.uncheck()
        before = sum(each.end for each in await admin.topics.status("orders"))
        await page.get_by_role("button", name="Replay the chosen").click()
        await page.get_by_role("heading", name="Send 2 again?").wait_for()
        assert sum(each.end for each in await admin.topics.status("orders")) == before
        await page.get_by_role("button", name="Send 2 again").click()
        await page.get_by_role("heading", name="2 were sent again").wait_for()
        assert sum(each.end for each in await admin.topics.status("orders")) == before + 2

        await watched.go("/group?group=billing")
        await page.get_by_role("link", name="Put it somewhere else").click()
        await page.get_by_label("Topic").select_option("orders")
        await page.locator("[name=to]").select_option("first")
        where = {(each.broker, each.queue): each.offset for each in await admin.groups.lag("billing", "orders")}
        await page.get_by_role("button", name="Show what it would do").click()
        await page.get_by_text("nothing is changed yet").wait_for()
        assert where == {(each.broker, each.queue): each.offset for each in await admin.groups.lag("billing", "orders")}
        await page.get_by_role("button", name="Do it").click()
        await page.get_by_text("Done, and looked after").wait_for()


async def test_two_thousand_topics_and_five_hundred_groups(mq: Embedded) -> None:
    for number in range(TOPICS):
        mq.broker.topics.put(Topic(f"topic-{number:04}", 1, 1))
    for number in range(GROUPS):
        mq.broker.configs.ensure(f"group-{number:03}")
    async with browsing(mq, width=390) as watched:
        loop = asyncio.get_running_loop()
        for path, many, rest in (
            ("/topics", "2\u202f001 topics", "topic-1999"),
            ("/groups", "500 groups", "group-499"),
        ):
            began = loop.time()
            page = await watched.go(path)
            assert many in await watched.text() and await page.locator("tbody tr").count() == 50
            assert loop.time() - began < 15, "of this the browser's own part is most"
            await page.keyboard.press("/")  # to the search field, without a mouse
            await page.keyboard.type(rest)
            await page.locator("tbody tr").nth(1).wait_for(state="detached")
            assert rest in await watched.text("tbody")
            await page.keyboard.press("Control+a")
            await page.keyboard.press("Delete")
            await page.get_by_text("page 1 of").wait_for()
            await page.get_by_role("link", name="Next").press("Enter")
            await page.get_by_text("page 2 of").wait_for()
        wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        for path in ("/", "/topics", "/groups", "/messages", "/brokers"):
            await (await watched.go(path)).wait_for_load_state()
            assert not await watched.page.evaluate(wide), f"{path} is wider than a phone"


@pytest.mark.parametrize("scheme", ["dark", "light"])
async def test_every_page_fits_a_phone(mq: Embedded, scheme: Literal["dark", "light"]) -> None:
    """With the longest names there are, and what is hostile besides."""
    topic, group = "t" * 127, "g" * 120
    await mq.create_topic(topic, queues=2)
    async with (
        a_bad_day(mq) as msg_id,
        browsing(mq, width=390, scheme=scheme, allow_writes=True) as watched,
        mq.producer() as producer,
        Admin(nameservers=mq.nameservers) as admin,
    ):
        lies = (await producer.send(topic, b"x" * 5_000, keys=["k" * 200], tag="w" * 100)).queue
        await admin.groups.create(group)
        await admin.offsets.apply(await admin.offsets.plan(group, topic, "first"))
        for path in (
            "/", "/topics", f"/topic?topic={topic}", "/groups", f"/group?group={group}", "/group?group=billing",
            f"/messages?topic={topic}", "/messages?topic=orders", f"/messages?topic=orders&id={msg_id}",
            f"/message?topic={topic}&broker=broker-a&queue={lies.queue_id}&offset=0", f"/tail?topic={topic}", "/dead",
            "/dead?group=billing", f"/reset?group={group}&topic={topic}&to=first", "/timers", f"/trace?id={msg_id}",
            "/brokers", "/nothing",
        ):  # fmt: skip
            page = await watched.go(path)
            await page.wait_for_load_state("networkidle" if path in ("/", "/dead?group=billing") else "load")
            wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert await page.evaluate(wide) <= 0, f"{path} is wider than a phone"
            seen = await page.evaluate("getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g).slice(0, 3)")
            light = sum(map(float, seen)) / 3 > 127
            assert light == (scheme == "light"), (path, seen)
        assert watched.wrong.pop().count("404") == 1


async def test_by_keyboard_alone(mq: Embedded) -> None:
    async with browsing(mq, token=TOKEN) as watched:
        page = await watched.go("/groups")
        assert await page.title() == "Sign in \u00b7 aiorocket"
        await page.keyboard.type(TOKEN)
        await page.keyboard.press("Enter")
        await page.get_by_role("heading", name="Consumer groups").wait_for()
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.textContent") == "Skip to the content"
        await page.keyboard.press("Enter")
        assert await page.evaluate("document.activeElement.id") == "main"
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.name") == "q"
        named = "e => e.textContent.trim() || e.labels?.length || e.getAttribute('aria-label')"
        every = "[...document.querySelectorAll('a, button, input:not([type=hidden]), select')]"
        assert await page.evaluate(f"{every}.every({named})"), "something to press has no name"
        await page.get_by_role("button", name="Sign out").press("Enter")
        await page.get_by_role("heading", name="Sign in").wait_for()


async def test_messages_come_by_themselves_and_wait(mq: Embedded) -> None:
    async with browsing(mq) as watched, mq.producer() as producer:
        page = await watched.go("/tail?topic=orders")
        for number in range(3):
            await producer.send("orders", f"{HOSTILE} {number}".encode())
            await page.get_by_text(f"{number}", exact=False).locator("xpath=ancestor-or-self::td").first.wait_for()
        await page.locator("#rows tr").nth(2).wait_for()
        assert HOSTILE[:20] in await watched.text("#rows")
        await page.get_by_label("pause").check()
        await producer.send("orders", b"held")
        await asyncio.sleep(2.5)  # two looks that are not made, by the browser's clock
        assert "held" not in await watched.text("#rows")
        await page.get_by_label("pause").uncheck()
        await page.get_by_text("held").wait_for()
