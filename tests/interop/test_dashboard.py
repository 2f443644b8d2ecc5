"""What the pages of RocketMQ's dashboard ask of our servers, through Apache's own admin client and over the VIP
channel, as the dashboard does: every question has its true answer. And the pages of ours, of Apache's broker.

The dashboard itself is in no package registry. 2.1.0, built from its source, was run by hand on 2026-11-22 over the
VIP channel, without and with access control: 63 of its 68 endpoints were asked, and each had its answer (login, logout
and two for proxies ask no server, ``/test/runTask.do`` sends for ever). What its controllers ask is here: Ops, Cluster,
Dashboard, Topic, Producer, Consumer and Message; MessageTrace and DlqMessage ask as "message by key", "messages of a
topic" and "message consumed once more" do, of other topics; Acl's is in ``test_access.py``.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from html import unescape
from pathlib import Path

import httpx
import pytest

from aiorocket import Admin, Client, ClientConfig, DeadLetter, Message
from aiorocket.dashboard.app import PAGES, application
from aiorocket.dashboard.settings import DashboardConfig
from aiorocket.dashboard.site import Site
from aiorocket_protocol import DLQ_PREFIX
from tests.interop.peers import JavaClient, Server, ask, online, our_server
from tests.interop.test_mqadmin import ONLINE, fields

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

CREATE_TOPIC = 17
#: 20 messages in two queues, all of them consumed; ``ONLINE`` says who is there.
ANSWERS = {
    "cluster": "{DefaultCluster=[broker-a]}",
    "cluster runtime": "20",
    "cluster config": "broker-a",
    "charts": "20",
    "topics": "true",
    "topics configured": "true",
    "topic status": "20",
    "topic router": "1",
    "topic consumers": "[online-group]",
    "topic config": "2",
    "topic create": "3",
    "topic send": "SEND_OK",
    "topic send in a transaction": "COMMIT_MESSAGE",
    "topic delete": "done",
    "groups": "true",
    "group progress": "0",
    "group progress in a topic": "true",
    "group clients": "1",
    "group client": "2",
    "group client's stacks": "true",
    "group create": "7",
    "group reset with nobody there": "2",
    "group delete": "done",
    "producers": "1",
    "message by key": "1",
    "message by id": "7",
    "message tracks": "CONSUMED",
    "message consumed once more": "CR_SUCCESS",
    "messages by time": "0 true",
    "messages of a topic": "20",
    "group reset": "0",
}


async def test_every_page_has_its_answer(tmp_path: Path) -> None:
    java = JavaClient(tmp_path)
    with our_server(tmp_path / "server") as server:
        assert (
            ask(server.broker, CREATE_TOPIC, {**fields("orders"), "readQueueNums": "2", "writeQueueNums": "2"})[0] == 0
        )
        with online(ONLINE, server.nameserver) as said:
            assert said == "online\n"
            arguments = (server.nameserver, "orders", "online-group", "online-producer", "key-7")
            try:
                run = await java.start(*arguments, program="Dashboard")
                facts = await run.finish(limit=300)
            finally:
                await java.close()
    answers = {fact["page"]: fact["answer"] for fact in facts if fact["event"] == "page"}
    assert answers.pop("ops") == f"[{server.nameserver}]"
    assert answers == ANSWERS


async def test_our_pages_of_apaches_broker(apache: Server) -> None:
    topic, group = "paged", "page-readers"
    async with Client(config=ClientConfig(nameservers=(apache.nameserver,))) as client, Admin(client=client) as admin:
        await admin.topics.create(topic, 2)
        consumer = client.consumer(group)

        @consumer.listener(topic, start_from="first")
        async def read(message: Message) -> None:
            if message.body == b"bad":
                raise DeadLetter("no such <customer>")

        async with client.producer("page-writers") as producer, consumer:
            sent = [await producer.send(topic, body, keys=[f"page-{body.decode()}"], timeout=10) for body in
                    (b"good", b"bad")]  # fmt: skip
            await producer.send(topic, b"later", timeout=10, delay_level=16)
            # What the administrator may not read is made readable here: a page without --allow-writes does not.
            await until(lambda: _length(admin, f"{DLQ_PREFIX}{group}"), "given up")
            assert [each.body async for each in admin.dlq(group).messages()] == [b"bad"]
            await until(lambda: admin.messages.by_key(topic, "page-good"), "indexed")
            at = {"topic": topic, "broker": sent[0].queue.broker_name, "queue": str(sent[0].queue.queue_id),
                  "offset": str(sent[0].offset)}  # fmt: skip
            site = Site(admin, DashboardConfig(), PAGES)
            transport = httpx.ASGITransport(application(site))
            seen: dict[str, str] = {}
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8088", timeout=60) as browser:

                async def page(path: str, **query: str) -> str:
                    answer = await browser.get(path, params=query or None)
                    assert answer.status_code == 200, (path, answer.text)
                    seen[path.partition("?")[0]] = answer.text
                    return answer.text

                try:
                    for path, query, shown in (
                        ("/", {}, "/now/alarms"),
                        ("/now/alarms", {}, "<p"),
                        ("/now/lag", {}, ""),
                        ("/now/hanging", {}, ""),
                        ("/now/dead", {}, group),
                        ("/topics", {}, topic),
                        ("/topic", {"topic": topic}, "<strong>2</strong> messages"),
                        ("/groups", {"q": group}, group),
                        ("/group", {"group": group}, topic),
                        ("/group/members", {"group": group}, "PYTHON"),
                        ("/messages", {"topic": topic, "key": "page-good"}, "1 messages"),
                        ("/message", at, "good"),
                        ("/message/body", at, "good"),
                        ("/dead", {"group": group}, "no such &lt;customer&gt;"),
                        ("/reset", {"group": group, "topic": topic, "to": "first"}, "come once more"),
                        ("/trace", {"id": sent[0].msg_id}, ""),
                        ("/timers", {}, ""),
                        ("/brokers", {}, "broker-a"),
                        ("/brokers/rates", {}, ""),
                    ):  # fmt: skip
                        assert shown in await page(path, **query), (path, seen[path])
                    tail = await page("/tail", topic=topic)
                    await producer.send(topic, b"as it comes", timeout=10)

                    async def came() -> bool:
                        following = re.search(r'hx-get="(/tail/rows[^"]*)"', seen.get("/tail/rows", tail))
                        assert following is not None
                        return "as it comes" in await page(unescape(following[1]))

                    await until(came, "seen as it comes")
                    assert seen.keys() == PAGES.keys()
                finally:
                    await site.close()


async def _length(admin: Admin, topic: str) -> int:
    """How many messages there are in it."""
    if topic not in {each.topic for each in await admin.topics.all(system=True)}:
        return 0
    return sum(each.end - each.begin for each in await admin.topics.status(topic))


async def until(look: Callable[[], Awaitable[object]], what: str) -> None:
    deadline = time.monotonic() + 150
    while not await look():
        assert time.monotonic() < deadline, f"not {what} in 150 s"
        await asyncio.sleep(0.1)
