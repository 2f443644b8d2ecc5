"""What the pages say, and to whom: without a browser."""

from __future__ import annotations

import asyncio
import re
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx
import pytest

from aiorocket import Admin, ConfigError, DeadLetter, Embedded, Message
from aiorocket.client.admin.asking import Answers
from aiorocket.client.admin.topics import QueueStatus
from aiorocket.dashboard import findings, guard
from aiorocket.dashboard.body import preview, shown
from aiorocket.dashboard.rates import _first
from aiorocket.dashboard.settings import DashboardConfig
from aiorocket.model import Queue
from aiorocket_protocol import TRACE_TOPIC
from aiorocket_protocol.message_trace import TraceRecord, write_trace
from tests.broker.peer import Peer, away
from tests.broker.test_calls import asked, consumer, reply
from tests.dashboard.conftest import Visit

TOKEN = "0123456789abcdef"


def csrf(page: httpx.Response) -> str:
    found = re.search(r'name="csrf" value="([0-9a-f]+)"', page.text)
    assert found is not None, page.text
    return found[1]


async def ok(client: httpx.AsyncClient, path: str, **query: str) -> str:
    answer = await client.get(path, params=query or None)
    assert answer.status_code == 200, (path, answer.text)
    return answer.text


def next_look(page: str) -> str:
    """Where a page of messages as they come goes on."""
    where = re.search(r'hx-get="([^"]*)"', page)
    assert where is not None
    return where[1].replace("&amp;", "&")


@asynccontextmanager
async def buried(mq: Embedded, admin: Admin, *bodies: bytes) -> AsyncIterator[None]:
    """Group billing, online, has given up messages with these bodies."""
    consumer = mq.consumer("billing")

    @consumer.listener("orders", start_from="first")
    async def give_up(message: Message) -> None:
        raise DeadLetter("no such <b>customer</b>")

    async with consumer, mq.producer() as producer:
        for body in bodies:
            await producer.send("orders", body)
        async with asyncio.timeout(30):
            while len([each async for each in admin.dlq("billing").messages()]) < len(bodies):
                await asyncio.sleep(0.02)
            while sum(each.lag for each in await admin.groups.lag("billing", "orders")):
                await consumer.commit()
                await asyncio.sleep(0.02)
        yield


async def test_topics_and_groups_are_found_and_shown_in_parts(mq: Embedded, admin: Admin, visit: Visit) -> None:
    for number in range(60):
        await admin.topics.create(f"topic-{number:02}", 1)
    await admin.groups.create("billing")
    async with mq.producer() as producer:
        for number in range(3):
            await producer.send("orders", b"%d" % number)
    async with visit() as browser:
        first, second = await ok(browser, "/topics"), await ok(browser, "/topics", page="2")
        assert "61 topics" in first and "page 1 of 2" in first and "orders" in first and "topic-59" not in first
        assert "topic-59" in second and "orders" not in second
        found = await ok(browser, "/topics", q="IC-5")
        assert "10 topics" in found and "topic-57" in found and "topic-07" not in found
        assert (
            "%RETRY%" not in first and "schedule_topic" in (await ok(browser, "/topics", system="1", q="sched")).lower()
        )
        orders = await ok(browser, "/topic", topic="orders")
        assert "<strong>3</strong> messages" in orders and "broker-a" in orders
        assert "billing" in await ok(browser, "/groups")
        assert "Nobody is online" in await ok(browser, "/group", group="billing")
        for path, status in (
            ("/topic?topic=nowhere", 404),
            ("/topics?page=x", 400),
            ("/group", 400),
            ("/nothing", 404),
        ):
            answer = await browser.get(path)
            assert answer.status_code == status and "did not work" in answer.text, path
        assert "page 2 of 2" in await ok(browser, "/topics", page="99")


async def test_the_first_page_says_what_is_wrong(mq: Embedded, admin: Admin, visit: Visit) -> None:
    async with buried(mq, admin, b"a", b"b", b"c"), visit() as browser:
        first = await ok(browser, "/")
        for part in ("alarms", "hanging", "lag", "dead"):
            assert f'hx-get="/now/{part}"' in first
        dead = await ok(browser, "/now/dead")
        assert "3\u00d7" in dead and "no such &lt;b&gt;customer&lt;/b&gt;" in dead and "<b>" not in dead
        assert "None: whoever has messages" in await ok(browser, "/now/hanging")
        assert "No group is behind" in await ok(browser, "/now/lag")
        assert "are well" in await ok(browser, "/now/alarms")
        members = await ok(browser, "/group/members", group="billing")
        assert "orders" in members and "PYTHON" in members and "What its tasks" in members


async def test_numbers_of_a_member_in_cpp_are_text(mq: Embedded, admin: Admin) -> None:
    async with consumer(mq.broker, "cpp-1") as peer:
        (member,) = (await admin.groups.members("g")).members
        asking = asyncio.ensure_future(findings.member_now(admin, "g", member, stacks=False))
        row = b'{\n "cachedMsgCount" : 0,\n "commitOffset" : "4",\n "lastConsumeTimestamp" : "1795426759737"\n}'
        queue = b'{\n "brokerName" : "broker-a",\n "queueId" : 0,\n "topic" : "T"\n}'
        await reply(peer, await asked(peer), body=b'{"mqTable":{%s:%s\n},"jstack":"","properties":{}}\n' % (queue, row))
        assert (await asking).queues == (findings.HeldQueue("T", "broker-a", 0, 0, 4, 1795426759737, False, False),)


async def test_a_member_may_say_that_it_holds_any_number_of_queues(
    mq: Embedded, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each that has a message and consumed none a broker was asked: the page of 10,000 never came."""
    asked_for: list[int] = []

    async def stored(admin: Admin, topic: str, broker: str, queue: int, offset: int) -> int:
        asked_for.append(queue)
        return 1

    monkeypatch.setattr(findings, "_stored", stored)
    async with consumer(mq.broker, "wide-1") as peer:
        (member,) = (await admin.groups.members("g")).members
        asking = asyncio.ensure_future(findings.member_now(admin, "g", member, stacks=False))
        rows = ",".join(
            f'{{"brokerName":"broker-a","queueId":{number},"topic":"T"}}:{{"cachedMsgCount":1,"lastConsumeTimestamp":0}}'
            for number in range(2000)
        )
        await reply(peer, await asked(peer), body=f'{{"mqTable":{{{rows}}},"jstack":"","properties":{{}}}}'.encode())
        said = await asking
    assert asked_for == list(range(32)) and len(said.queues) == 500
    assert [each.hangs for each in said.queues] == [True] * 32 + [False] * 468


async def test_a_listener_that_hangs_is_named(mq: Embedded, visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "HANGS", -1)  # who has a message at hand hangs
    consumer, began, stop = mq.consumer("slow"), asyncio.Event(), asyncio.Event()

    @consumer.listener("orders", start_from="first")
    async def slow(message: Message) -> None:
        began.set()
        await stop.wait()

    async with consumer, mq.producer() as producer:
        await producer.send("orders", b"x")
        await asyncio.wait_for(began.wait(), 30)
        await consumer.commit()
        async with visit() as browser:
            assert "1 at hand" in await ok(browser, "/now/hanging")
            assert "slow" in await ok(browser, "/now/lag")
            members = await ok(browser, "/group/members", group="slow")
            assert ">hangs<" in members and "slow(test_pages.py" in members
        stop.set()


async def test_nothing_is_shown_without_the_token_off_loopback(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ({"host": "0.0.0.0"}, {"token": "short"}, {"port": 70_000}, {"sample": 0.0}):
        with pytest.raises(ConfigError):
            DashboardConfig(**wrong)
    monkeypatch.setattr(guard, "_WRONG", 0.0)
    async with visit(host="10.0.0.1", token=TOKEN) as browser:
        turned = await browser.get("/topic?topic=a")
        assert (turned.status_code, turned.headers["location"]) == (303, "/login?next=/topic%3Ftopic%3Da")
        assert (await browser.get("/now/dead", headers={"hx-request": "true"})).headers["hx-redirect"] == "/login"
        page = await browser.get("/login?next=//evil.example")
        assert page.status_code == 200 and 'name="next" value="/"' in page.text
        form = {"csrf": csrf(page), "next": "/groups", "token": "wrong-wrong-wrong"}
        wrong_token = await browser.post("/login", data=form)
        assert wrong_token.status_code == 403 and (await browser.get("/groups")).status_code == 303
        form = {"csrf": csrf(wrong_token), "next": "/groups", "token": TOKEN}
        assert (await browser.post("/login", data={**form, "csrf": "0" * 64})).status_code == 403
        assert (await browser.post("/login", data={**form, "csrf": "\u00e9"})).status_code == 403
        signed_in = await browser.post("/login", data=form)
        assert (signed_in.status_code, signed_in.headers["location"]) == (303, "/groups")
        cookie = signed_in.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie and TOKEN not in cookie
        groups = await browser.get("/groups")
        assert groups.status_code == 200 and "Sign out" in groups.text
        out = await browser.post("/logout", data={"csrf": csrf(groups)})
        assert out.status_code == 303 and (await browser.get("/groups")).status_code == 303
        name, value = next(iter(browser.cookies.items()))
        browser.cookies.set(name, value.replace("Ig", "Ix", 1) + "0")
        assert (await browser.get("/groups")).status_code == 303


async def test_what_the_page_is_called_lets_nobody_past_the_token(visit: Visit) -> None:
    """By path or host: some versions of starlette make ``request.url.path`` of both, others leave characters out."""
    async with visit(host="10.0.0.1", token=TOKEN) as browser:
        for path in ("/log%09in", "/sta%0Atic/x", "/%0D/static/x", "/topics"):
            for host in ("10.0.0.1:8088", "x/static/", "x/login?", "x/login#"):
                turned = await browser.get(path, headers={"host": host})
                assert turned.status_code == 303, (path, host)
                assert turned.headers["location"].startswith("/login?next="), (path, host)


async def test_headers_hosts_and_forms(visit: Visit) -> None:
    async with visit() as browser:
        for path in ("/", "/nothing", "/static/htmx.min.js", "/login"):
            headers = (await browser.get(path)).headers
            policy = headers["content-security-policy"]
            assert "frame-ancestors 'none'" in policy and "script-src 'self';" in policy and "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        for host in (
            "evil.example",
            "127.evil.example",
            "localhost.evil.example",
            "localhost:x",
            "[::1",
            "",
            "a@127.0.0.1",
        ):
            assert (await browser.get("/", headers={"host": host})).status_code == 421, host
        for host in ("localhost", "127.0.0.1:8088", "[::1]:8088", "127.8.8.8"):
            assert (await browser.get("/", headers={"host": host})).status_code == 200, host
        assert (await browser.get("/static/..%2fapp.py")).status_code == 404
        sign = await browser.get("/")
        assert "<script>" not in sign.text and " style=" not in sign.text and "onclick" not in sign.text
        post = browser.post
        assert (await post("/logout", data={"csrf": "x"})).status_code == 403
        assert (await post("/logout", content=b"{}", headers={"content-type": "application/json"})).status_code == 415
        assert (await post("/logout", data={"csrf": "x" * 300_000})).status_code == 413
        other = {"sec-fetch-site": "cross-site"}
        assert (await post("/logout", data={"csrf": "x"}, headers=other)).status_code == 403
        # A page of another site may lead here, and neither load what is here nor frame it: we would ask brokers for it.
        for more, code in (
            ({"sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}, 403),
            ({"sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}, 403),
            ({"sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}, 403),
            ({"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, 200),
        ):
            assert (await browser.get("/messages", headers={**other, **more})).status_code == code, more
        ours = {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}
        assert (await browser.get("/messages", headers=ours)).status_code == 200


async def test_a_form_that_does_not_come_is_not_waited_for(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_PATIENCE", 0.05)

    async def stalling() -> AsyncIterator[bytes]:
        yield b"csrf="
        await asyncio.Event().wait()

    async with visit(token=TOKEN) as browser:
        kind = {"content-type": "application/x-www-form-urlencoded"}
        async with asyncio.timeout(60):
            assert (await browser.post("/login", content=stalling(), headers=kind)).status_code == 408


async def test_messages_are_found_by_key_id_and_time_and_shown(mq: Embedded, visit: Visit) -> None:
    hostile = '<script>alert("x")</script>'
    async with mq.producer() as producer:
        for number in range(3):
            sent = await producer.send("orders", b'{"n": %d}' % number, tag="paid", keys=[f"o-{number}"])
        await producer.send("orders", hostile.encode() + b"\x00", keys=[hostile], properties={hostile: hostile})
    async with visit() as browser:
        found = await ok(browser, "/messages", topic="orders")
        assert "4 messages" in found and "&lt;script&gt;" in found and hostile not in found
        for query in (
            {"topic": "orders", "key": "o-2"}, {"topic": "orders", "id": sent.msg_id}, {"id": sent.offset_msg_id},
            {"topic": "orders", "id": sent.offset_msg_id},
        ):  # fmt: skip
            found = await ok(browser, "/messages", **query)
            assert "1 messages" in found and "{&#34;n&#34;: 2}" in found, query
        assert "4 messages" in await ok(browser, "/messages", topic="orders", since="2020-01-01T00:00")
        assert "0 messages" in await ok(browser, "/messages", topic="orders", since="2099-01-01T00:00:00")
        assert "needs a topic" in await ok(browser, "/messages", key="o-2")
        sender = "7F000001CE287B46F0CF8AD8FB88F0D0"  # as long as an id that says where a message lies
        assert "0 messages" in await ok(browser, "/messages", topic="orders", id=sender)
        assert "sender&#39;s id needs a topic" in await ok(browser, "/messages", id=sender)
        assert (await browser.get("/messages?topic=orders&since=soon")).status_code == 400
        at = {
            "topic": "orders",
            "broker": "broker-a",
            "queue": str(sent.queue.queue_id),
            "offset": str(sent.offset),
        }
        message = await ok(browser, "/message", **at)
        assert "&#34;n&#34;: 2" in message and sent.msg_id in message and sent.offset_msg_id in message
        assert "7b 22 6e" in await ok(browser, "/message", **at, **{"as": "hex"})
        raw = await browser.get("/message/body", params=at)
        assert raw.content == b'{"n": 2}' and raw.headers["content-type"] == "application/octet-stream"
        assert raw.headers["content-disposition"].startswith("attachment")
        assert (await browser.get("/message", params={**at, "offset": "99"})).status_code == 400
        for row in re.findall(r'href="(/message\?[^"]*)"', await ok(browser, "/messages", topic="orders")):
            assert hostile not in await ok(browser, row.replace("&amp;", "&"))


async def test_dead_letters_are_chosen_looked_at_and_sent_again(mq: Embedded, admin: Admin, visit: Visit) -> None:
    async with buried(mq, admin, b"a", b"b", b"c"), visit(allow_writes=True) as browser, visit() as reader:
        assert "3 of the newest 3" in await ok(reader, "/dead", group="billing", q="NO SUCH")
        assert "0 of the newest 3" in await ok(reader, "/dead", group="billing", q="declined")
        assert "billing" in await ok(reader, "/dead")
        listed = await ok(reader, "/dead", group="billing")
        assert "<bdi>DeadLetter</bdi>: <bdi>no such &lt;b&gt;customer&lt;/b&gt;</bdi>" in listed
        hosts = {each.host async for each in admin.dlq("billing").messages()}
        assert all("@" in host and f"at <bdi>{host}</bdi>" in listed for host in hosts)
        page = await browser.get("/dead?group=billing")
        chosen = re.findall(r'name="id" value="(\w+)"', page.text)[:2]
        form: dict[str, object] = {"csrf": csrf(page), "group": "billing", "id": chosen}
        own = {**form, "csrf": csrf(await reader.get("/dead?group=billing"))}
        assert (await reader.post("/dead/replay", data=own)).status_code == 403  # read-only
        assert (await browser.post("/dead/replay", data=own)).status_code == 403  # another browser's sign
        dry = await browser.post("/dead/replay", data=form)
        assert dry.status_code == 200 and "Send 2 again?" in dry.text and "2 to" in dry.text
        assert sum(each.end for each in await admin.topics.status("orders")) == 3
        done = await browser.post("/dead/replay", data={**form, "confirm": "yes"})
        assert "2 were sent again" in done.text and done.text.count("<td>sent</td>") == 2
        assert sum(each.end for each in await admin.topics.status("orders")) == 5
        again = await browser.post("/dead/replay", data={**form, "confirm": "yes"})
        assert "0 were sent again" in again.text and "2 were replayed before" in again.text
        nothing = {**form, "id": []}
        assert (await browser.post("/dead/replay", data=nothing)).status_code == 400


async def test_a_group_is_put_somewhere_else_as_it_was_shown(mq: Embedded, admin: Admin, visit: Visit) -> None:
    async with mq.producer() as producer:
        for number in range(4):
            await producer.send("orders", b"%d" % number)
    await admin.groups.create("billing")
    await admin.offsets.apply(await admin.offsets.plan("billing", "orders", "last"))
    where = {"group": "billing", "topic": "orders"}
    async with visit(allow_writes=True) as browser, visit() as reader:
        assert "<strong>4</strong> messages come once more" in await ok(reader, "/reset", **where, to="first")
        for way in ({"to": "time", "at": "2020-01-01T00:00"}, {"to": "skip", "skip": "-9"}):
            assert "<strong>4</strong> messages come once more" in await ok(reader, "/reset", **where, **way)
        assert (await reader.get("/reset", params={**where, "to": "time"})).status_code == 400
        page = await browser.get("/reset", params={**where, "to": "first"})
        ticket = re.search(r'name="ticket" value="(\w+)"', page.text)
        assert ticket is not None and sum(each.lag for each in await admin.groups.lag("billing")) == 0
        done = await browser.post("/reset", data={"csrf": csrf(page), "ticket": ticket[1]})
        assert "Done, and looked after" in done.text, done.text
        assert sum(each.lag for each in await admin.groups.lag("billing")) == 4
        twice = await browser.post("/reset", data={"csrf": csrf(page), "ticket": ticket[1]})
        assert twice.status_code == 400 and "carried out" in twice.text


async def test_messages_are_seen_as_they_come(mq: Embedded, visit: Visit) -> None:
    async with visit() as browser, mq.producer() as producer:
        await producer.send("orders", b"before")

        page = await ok(browser, "/tail", topic="orders", tag="x&y")
        for number in range(120):
            await producer.send("orders", b"m-%d" % number, tag="x&y" if number % 2 else "other")
        rows = await ok(browser, next_look(page))
        assert "m-119" in rows and "m-118" not in rows and "before" not in rows and "passed over 20" in rows
        rows = await ok(browser, next_look(rows))
        assert "<tr>" not in rows
        assert (await browser.get("/tail/rows?topic=orders&after=1+x")).status_code == 400
        assert (await browser.get("/tail?topic=nowhere")).status_code == 404


async def test_what_waits_for_its_time_and_the_trace_of_a_message(mq: Embedded, admin: Admin, visit: Visit) -> None:
    async with mq.producer() as producer:
        late = await producer.send("orders", b"late", after=timedelta(days=5), keys=["k<1>"])  # waits in two steps
        soon = await producer.send("orders", b"soon", after=timedelta(hours=1))
        gone = await producer.send("orders", b"gone", after=timedelta(hours=2))
        assert gone.recall_handle is not None
        await producer.recall(gone.recall_handle)
        await producer.send("orders", b"level", delay_level=18)
        began = TraceRecord("SubBefore", late.msg_id, 1_000, group="billing", request_id="r", retry_times=2)
        ended = TraceRecord("SubAfter", late.msg_id, 1_250, request_id="r", cost=250, success=False)
        sent = TraceRecord("Pub", late.msg_id, 900, group="shop", topic="orders", keys="<b>")
        await producer.send(TRACE_TOPIC, "".join(map(write_trace, (ended, began, sent))).encode(), keys=[late.msg_id])
    assert [each.msg_id for each in await admin.timers.pending()] == [soon.msg_id, late.msg_id]
    assert [(each.level, each.waiting) for each in await admin.timers.levels()] == [(18, 1)]
    assert await admin.messages.trace("nobody's") == []
    async with visit() as browser:
        timers = await ok(browser, "/timers")
        assert "2 timer messages" in timers and "k&lt;1&gt;" in timers and "level 18" in timers
        assert timers.index(soon.msg_id) < timers.index(late.msg_id) and "1 timer" in await ok(
            browser, "/timers", q="K<"
        )
        (first, *_) = re.findall(r'href="(/message\?topic=rmq[^"]*)"', timers)
        assert soon.msg_id in await ok(browser, first.replace("&amp;", "&"))
        trace = await ok(browser, "/trace", id=late.msg_id)
        steps = re.findall(r"<strong>(.*?)</strong>", trace)
        assert steps == ["sent", "a listener began", "a listener ended"] and "keys <bdi>&lt;b&gt;" in trace
        assert "took 250 ms" in trace and ">failed<" in trace and trace.count("retry 2") == 2
        assert "has nothing of it" in await ok(browser, "/trace", id="nobody's")


async def test_a_search_says_which_brokers_are_missing(mq: Embedded, visit: Visit) -> None:
    async with away(mq.nameserver.port, mq.config.cluster, "orders"), mq.producer() as producer:
        queue = Queue("orders", "broker-a", 0)
        await producer.send("orders", b"here", keys=["k"], queue=queue)
        sent = write_trace(TraceRecord("Pub", "ID-9", 900, group="shop", topic="orders"))
        await producer.send(TRACE_TOPIC, sent.encode(), keys=["ID-9"], queue=Queue(TRACE_TOPIC, "broker-a", 0))
        missing = "What <bdi>away</bdi> has is missing"
        async with visit() as browser:
            for query in ({}, {"key": "k"}, {"since": "2020-01-01"}):
                page = await ok(browser, "/messages", topic="orders", **query)
                assert page.count(missing) == 1 and "1 messages" in page, query
            page = await ok(browser, "/trace", id="ID-9")
            assert missing in page and "<strong>sent</strong>" in page
            assert missing not in await ok(browser, "/trace")
            for path in ("/dead", "/now/dead"):
                assert (await ok(browser, path)).count(missing) == 1, path
            page = await ok(browser, "/tail", topic="orders")
            rows = await ok(browser, next_look(page))
            assert missing in page and missing in rows and "<tr>" not in rows


async def test_a_broker_that_was_away_for_a_look_is_not_shown_from_its_beginning(
    mq: Embedded, admin: Admin, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with visit() as browser, mq.producer() as producer:
        await producer.send("orders", b"old")
        page = await ok(browser, "/tail", topic="orders")

        async def without(topic: str) -> Answers[QueueStatus]:
            return Answers()

        with monkeypatch.context() as patch:
            patch.setattr(admin.topics, "status", without)
            page = await ok(browser, next_look(page))
        await producer.send("orders", b"new")
        rows = await ok(browser, next_look(page))
        assert "new" in rows and "old" not in rows


async def test_a_message_that_cannot_be_read_hides_no_other(mq: Embedded, visit: Visit) -> None:
    await mq.create_topic("foreign", queues=1)
    peer = await Peer.connect(mq.broker.port)
    await peer.send_illegible("foreign")
    bomb = zlib.compress(bytes(48 << 20))
    for _ in range(5):
        await peer.send(bomb, topic="foreign", sys_flag=1)
    await peer.send(b"good", topic="foreign")
    await peer.close()
    at = {"topic": "foreign", "broker": "broker-a", "queue": "0"}
    async with visit() as browser:
        tracemalloc.start()
        try:
            for page in (
                await ok(browser, "/messages", topic="foreign"),
                await ok(browser, "/tail/rows", topic="foreign", after="0 0 broker-a"),
            ):
                assert "good" in page and "one" in page and "k\ufffd" in page and "(compressed body: not zlib" in page
            # A list unpacks what it shows of a body, not the body, which may be a thousand times as long.
            assert tracemalloc.get_traced_memory()[1] < 16 << 20
        finally:
            tracemalloc.stop()
        assert "k\ufffd" in await ok(browser, "/message", **at, offset="0")
        assert "it cannot be unpacked" in await ok(browser, "/message", **at, offset="1")
        assert "48.0 MiB" in await ok(browser, "/message", **at, offset="2")
        assert (await browser.get("/message/body", params={**at, "offset": "1"})).content == b"not zlib"


async def test_figures_that_no_page_can_show_leave_it_whole(mq: Embedded, visit: Visit) -> None:
    async with mq.producer() as producer:
        said = TraceRecord("Pub", "m-1", 10**30, topic="orders", body_length=10**400, cost=10**400)
        await producer.send(TRACE_TOPIC, write_trace(said).encode(), keys=["m-1"])
        for timestamp in (-(10**4299), 10**4300 - 1):  # their difference has a digit more than a number may have
            said = TraceRecord("Pub", "m-2", timestamp, topic="orders", body_length=-(10**400))
            await producer.send(TRACE_TOPIC, write_trace(said).encode(), keys=["m-2"])
    async with visit() as browser:
        for msg_id in ("m-1", "m-2"):
            assert "orders" in await ok(browser, "/trace", id=msg_id)
    # One that is none is in no JSON: all plots would be gone for an hour.
    assert [_first(each) for each in ("1.5 2 3", "NaN NaN", "Infinity", "", "?")] == [1.5, 0.0, 0.0, 0.0, 0.0]


def test_bodies_of_every_kind_are_shown() -> None:
    assert shown(b'{"a": [1]}') == ("json", '{\n  "a": [\n    1\n  ]\n}', 0)
    assert shown(b"{no json")[:2] == ("text", "{no json") and shown(b"[" * 5000).form == "text"
    assert shown(b'{"a": "\\ud800"}').form == "json"
    assert shown("h\u00e9".encode()) == ("text", "h\u00e9", 0) and shown(b"") == ("text", "", 0)
    assert shown(b"\xff\x00").form == "hex" and shown(b"a\x00b").form == "hex" and shown(b"{}", "hex").form == "hex"
    assert shown(b"AB\xff" + bytes(14), "hex").text.splitlines() == [
        "00000000  41 42 ff 00 00 00 00 00  00 00 00 00 00 00 00 00  AB..............",
        "00000010  00                                                ." + "",
    ]
    assert shown(bytes(70_000)).left == 70_000 - 65_536 and shown(b"\xe2\x82", "text").text == "\ufffd"
    # A list in 900 lists: each of its numbers would be indented by 1,800 blanks, 59 million of them.
    deep = shown(b"[" * 900 + b"1," * 31_000 + b"1" + b"]" * 900)
    assert deep.form == "text" and len(deep.text) < 64 * 1024
    half = b"x" * 65_535 + "\u20ac".encode()  # the cut is in the middle of a character
    assert shown(half).form == "text" and preview(b"a\n\n b\x07") == "a b\ufffd" and len(preview(b"x" * 999)) == 160
