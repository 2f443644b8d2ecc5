"""Transactions: the official Java client's (with a SQL filter and request-reply) at both brokers, where Apache's proves
the program and ours is judged by it; and ours at both."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from aiorocket import Consumer, Message
from aiorocket.client.sending.transaction import TransactionProducer
from aiorocket.model import TxState
from tests.interop.peers import BRIEF, JVM_OPTIONS, TIED, Server, ask, class_path, inside

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

CREATE_TOPIC, GET_ROUTE = 17, 105


async def create(server: Server, topic: str) -> None:
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    assert ask(server.broker, CREATE_TOPIC, fields)[0] == 0
    deadline = time.monotonic() + 150
    while ask(server.nameserver, GET_ROUTE, {"topic": topic})[0] != 0:
        assert time.monotonic() < deadline, f"{topic} got no route"
        await asyncio.sleep(0.2)


async def facts(server: Server, place: Path, topic: str) -> list[dict[str, Any]]:
    with (place / "java.log").open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *TIED, "java", *JVM_OPTIONS, "-Xmx256m", *BRIEF, *inside(place), "-cp", class_path(),
            "Transactions", server.nameserver, topic, f"{topic}-requests",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, cwd=place,
        )  # fmt: skip
        try:
            out, _ = await asyncio.wait_for(process.communicate(), 240)
        except TimeoutError:
            process.kill()
            out, _ = await process.communicate()
    return [json.loads(line) for line in out.splitlines() if line.startswith(b"{")]


@pytest.mark.parametrize("kind", ["apache", "ours"])
async def test_transactions_filters_and_replies(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    server: Server = request.getfixturevalue(kind)
    topic = f"transactions-{kind}"
    for name in (topic, f"{topic}-requests"):
        await create(server, name)
    told = await facts(server, tmp_path, topic)

    def values(event: str, name: str) -> dict[str, int]:
        return {fact["body"]: fact[name] for fact in told if fact["event"] == event}

    assert values("half", "ok") == dict.fromkeys(("rollback", "later-rollback", "commit", "later-commit"), 0), told
    assert values("check", "isRealTopic") == {"later-rollback": 1, "later-commit": 1}
    assert values("got", "sysFlag") == {"commit": 8, "later-commit": 8, "plain-0": 0, "plain-2": 0}
    assert values("replied", "ok") == {"question": 0} and values("answer", "ok") == {"re question": 0}
    assert not [fact for fact in told if fact["event"] in ("again", "failed")]
    assert told[-1]["event"] == "done"


@pytest.mark.parametrize("kind", ["apache", "ours"])
async def test_our_transactions(request: pytest.FixtureRequest, kind: str) -> None:
    """Committed, rolled back, and left open: then the broker asks, until it knows. (Ours asks every 30 s; that it goes
    on asking is shown in tests/integration, here at Apache's only.)"""
    server: Server = request.getfixturevalue(kind)
    topic = f"our-transactions-{kind}"
    await create(server, topic)
    left_open = ["later-commit", "later-rollback", *(["later-still"] if kind == "apache" else [])]
    asked: list[str] = []
    got: dict[str, int] = {}
    shop = TransactionProducer("our-shop", nameservers=(server.nameserver,))

    @shop.checker
    async def check(message: Message) -> TxState:
        body = message.body.decode()
        assert message.topic == topic, message.topic
        asked.append(body)
        if asked.count(body) == 1 and body == "later-still":
            return TxState.UNKNOWN
        return TxState.ROLLBACK if "rollback" in body else TxState.COMMIT

    consumer = Consumer("our-shipping", nameservers=(server.nameserver,))

    @consumer.listener(topic, start_from="first")
    async def ship(message: Message) -> None:
        assert message.body.decode() not in got and message.keys == ["k"]
        got[message.body.decode()] = message.sys_flag & 0x0C

    async with shop, consumer:
        async with shop.transaction(topic, b"commit", keys=["k"], timeout=10):
            pass
        with pytest.raises(ValueError, match="no money"):
            async with shop.transaction(topic, b"rollback", keys=["k"], timeout=10):
                raise ValueError("no money")
        for body in left_open:
            async with shop.transaction(topic, body.encode(), keys=["k"], timeout=10) as open_one:
                open_one.leave_unknown()
        deadline = time.monotonic() + 120
        while len(got) < len(left_open) or "later-rollback" not in asked:
            assert time.monotonic() < deadline, (got, asked)
            await asyncio.sleep(0.1)
    assert got == {body: 8 for body in ("commit", *left_open) if body != "later-rollback"}
    assert {body: asked.count(body) for body in asked} == {body: 1 + (body == "later-still") for body in left_open}
