"""Looking messages up with Apache's mqadmin, at its broker and at ours: by key, by client id, by offset id, by time;
its clean-up commands."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aiorocket import Admin, Consumer, Message, Producer, Retry
from aiorocket.telemetry.message_trace import MessageTrace, trace_of
from tests.interop.peers import NEWEST, OLDER, Command, Server, ask
from tests.interop.peers import Admin as Mqadmin
from tests.interop.test_consumers import create, until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

SEARCH, QUERY = 29, 12


@pytest.fixture(params=[NEWEST, OLDER])
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def mqadmin_of(version: str, server: Server, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mqadmin]:
    """mqadmin of one version."""
    with Mqadmin(tmp_path / "mqadmin", server.nameserver, version) as started:
        yield started


async def test_mqadmin_finds_messages(server: Server, version: str, mqadmin_of: Mqadmin) -> None:
    topic = f"orders-{version.replace('.', '-')}"
    await create(server, topic, 1)
    sent: list[Any] = []
    async with Producer("shop", nameservers=(server.nameserver,)) as producer:
        for number in range(5):
            sent.append(
                await producer.send(topic, b"%d" % number, tag="paid", keys=[f"order-{number}", "all"], timeout=10)
            )
            await asyncio.sleep(0.02)

    def indexed() -> bool:
        fields = {
            "topic": topic, "key": "all", "maxNum": "64", "beginTimestamp": "0",
            "endTimestamp": str((1 << 63) - 1), "_UNIQUE_KEY_QUERY": "false",
        }  # fmt: skip
        code, ext, body = ask(server.broker, QUERY, fields)
        return code == 0 and len(re.findall(rb"order-\d", body)) == 5 and int(ext["indexLastUpdateTimestamp"]) > 0

    await until(indexed, "indexed")
    listed = mqadmin_of("queryMsgByKey", "-t", topic, "-k", "all")
    assert all(result.msg_id in listed for result in sent), listed
    assert len(re.findall(r"^\S{32,}", listed, re.MULTILINE)) == 5, listed
    one = mqadmin_of("queryMsgByKey", "-t", topic, "-k", "order-3")
    assert sent[3].msg_id in one and sent[2].msg_id not in one, one
    told = mqadmin_of("queryMsgByUniqueKey", "-t", topic, "-i", sent[2].msg_id)
    assert re.search(r"Queue Offset: +2\b", told) and "[order-2 all]" in told, told
    by_topic = ("-t", topic) if version == NEWEST else ()
    told = mqadmin_of("queryMsgById", *by_topic, "-i", sent[4].offset_msg_id)
    assert re.search(r"OffsetID: +" + sent[4].offset_msg_id, told) and re.search(r"Queue Offset: +4\b", told), told
    told = mqadmin_of("queryMsgByOffset", "-t", topic, "-b", "broker-a", "-i", "0", "-o", "1")
    assert sent[1].msg_id in told or sent[1].offset_msg_id in told, told

    def at(ms: int, **more: str) -> int:
        code, ext, _ = ask(server.broker, SEARCH, {"topic": topic, "queueId": "0", "timestamp": str(ms), **more})
        assert code == 0
        return int(ext["offset"])

    later = int(time.time() * 1000) + 60_000
    assert (at(1), at(later)) == (0, 5)
    assert (at(1, boundaryType="lower"), at(later, boundaryType="lower")) == (0, 5)
    assert (at(1, boundaryType="upper"), at(later, boundaryType="upper")) == (0, 4)


async def test_mqadmin_cleans_up(server: Server, mqadmin_of: Mqadmin) -> None:
    for command in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        told = mqadmin_of(command, "-b", server.broker)
        assert "success" in told and "Exception" not in told, told


async def test_mqadmin_reads_our_message_trace(server: Server, mqadmin: Command) -> None:
    """Of a send, a failed call of a listener and a good one; and ours reads it, too."""
    topic, done = "traced", asyncio.Event()
    await create(server, topic, 1)
    names = (server.nameserver,)

    async def listener(message: Message) -> None:
        if message.attempt == 1:
            raise Retry(delay_level=1)
        done.set()

    async with (
        Producer("tracing", nameservers=names) as sender,
        MessageTrace(sender, group="shop", interval=0.1) as trace,
        Producer("shop", nameservers=names, middleware=[trace]) as producer,
    ):
        sent = await producer.send(topic, b"1", tag="paid", keys=["order-1"], timeout=10)
        consumer = Consumer("billing", nameservers=names, middleware=[trace])
        consumer.listener(topic, start_from="first")(listener)
        async with consumer, asyncio.timeout(60):
            await done.wait()
    assert trace.dropped == 0
    told = ""
    async with asyncio.timeout(100):
        while len(re.findall(r"^Sub", told, re.MULTILINE)) < 2:  # until it is indexed
            await asyncio.sleep(0.2)
            told = await mqadmin("queryMsgTraceById", "-i", sent.msg_id)
    assert re.search(r"^Pub +shop .*success", told, re.MULTILINE), told
    assert sorted(re.findall(r"^Sub +billing .*(success|failed)", told, re.MULTILINE)) == ["failed", "success"], told
    async with Admin(nameservers=names) as admin:
        kinds = [each.kind for each in await trace_of(admin, sent.msg_id)]
    assert kinds == ["Pub", *["SubBefore", "SubAfter"] * 2]
