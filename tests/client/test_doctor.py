"""``admin.doctor()``: each thing it looks at, wrong and well; what it says is what clients say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from aiorocket import Admin, Client, ClientConfig, DeadLetter, Message, RocketError, embed
from aiorocket.client.admin.brokers import BrokerRuntime
from aiorocket.client.admin.doctor import Finding, _of_runtime
from aiorocket.embedded import Embedded
from aiorocket_protocol import (
    JSON,
    DataVersion,
    RegisterBrokerBody,
    RegisterBrokerRequestHeader,
    TopicConfig,
    encode_body,
)
from tests.broker.peer import Peer

NOW = 1_700_000_000_000
WELL = {
    "commitLogDiskRatio": "0.2", "bootTimestamp": str(NOW - 93_784_000), "damagedRanges": "0",
    "runtime": "[ 1 days, 2 hours, 3 minutes, 4 seconds ]",
}  # fmt: skip


@pytest.mark.parametrize(
    ("values", "check", "level", "said", "advised"),
    [
        ({"commitLogDiskRatio": "0.80"}, "disk", "warning", "80%", "fileReservedTime"),
        ({"commitLogDiskRatio": "0.9"}, "disk", "error", "90%", "make room"),
        ({"bootTimestamp": str(NOW - 93_684_000)}, "clock", "warning", "+100 s", "NTP"),
        ({"damagedRanges": "2", "damagedMessages": "7"}, "store", "error", "2 ranges of its log are damaged", "verify"),
        ({"writeProblem": "the disk is full"}, "store", "error", "the disk is full", "make room"),
        ({"subscriptionsDiffer_g": "a: T, b: U"}, "subscriptions", "error", "a: T, b: U", "the same topics and tags"),
        ({"alarm_flush_slow": "syncs take 2 s -> look at the disk"}, "alarm flush_slow", "warning", "2 s", "look at"),
    ],
)  # fmt: skip
def test_what_a_broker_says_of_itself(values: dict[str, str], check: str, level: str, said: str, advised: str) -> None:
    def wrong(of: dict[str, str]) -> list[Finding]:
        found = _of_runtime(BrokerRuntime("broker-a", "127.0.0.1:1", "V5_5_0", of), NOW)
        assert {"disk", "clock"} <= {each.check for each in found}
        return [each for each in found if each.level != "ok"]

    assert wrong(WELL) == []
    (found,) = wrong({**WELL, **values})
    assert (found.check, found.level) == (check, level)
    assert said in found.finding and advised in found.advice


@pytest_asyncio.fixture
async def mq() -> AsyncIterator[Embedded]:
    async with embed(broker={"register_interval": 0.3}) as embedded:
        await embedded.create_topic("orders", queues=2)
        yield embedded


async def wrong(mq: Embedded) -> dict[str, Finding]:
    async with Admin(nameservers=mq.nameservers) as admin:
        return {each.check: each async for each in admin.doctor() if each.level != "ok"}


async def test_lag_dead_letters_and_routes(mq: Embedded) -> None:
    assert await wrong(mq) == {}
    consumer, done = mq.consumer("billing"), asyncio.Event()

    @consumer.listener("orders", start_from="first")
    async def on_order(message: Message) -> None:
        done.set()
        raise DeadLetter("not for us")

    async with mq.producer("shop") as producer, Admin(nameservers=mq.nameservers) as admin:
        async with consumer, asyncio.timeout(60):
            await producer.send("orders", b"1")
            await done.wait()
        await producer.send("orders", b"2")
        await admin.topics.create("closed", 1, permission="R")
        found = await wrong(mq)
        assert found.keys() == {"lag", "dead letters", "route"}
        assert (found["lag"].about, found["dead letters"].about, found["route"].about) == (
            "billing",
            "billing",
            "closed",
        )
        assert "nobody is online" in found["lag"].finding and "dlq replay billing" in found["dead letters"].advice
        assert found["route"].finding == "no broker lets it be written"


async def test_what_cannot_be_reached_is_said_in_the_words_of_the_errors_that_clients_raise(mq: Embedded) -> None:
    """A broker is registered under an address where nobody listens, and there are no name servers elsewhere."""
    peer = await Peer.connect(mq.nameserver.port)
    body = encode_body(
        RegisterBrokerBody(DataVersion(1, 1), [TopicConfig("far", 1, 1), TopicConfig("farther", 1, 1)]), JSON
    )
    header = RegisterBrokerRequestHeader("far-away", "127.0.0.1:1", mq.config.cluster, "", 0)
    assert (await peer.call(103, header, body)).code == 0
    try:
        found = (await wrong(mq))["advertised address"]
        assert found.level == "error" and found.about == "far-away 127.0.0.1:1" and "--advertise" in found.advice
        async with mq.producer("shop") as producer:
            with pytest.raises(RocketError) as raised:
                await producer.send("far", b"x", timeout=2)
        assert found.finding in str(raised.value)
    finally:
        await peer.close()
    async with Admin(nameservers="127.0.0.1:1") as admin:
        findings = [each async for each in admin.doctor()]
    assert [each.check for each in findings] == ["name server", "brokers"] and "resolve" in findings[0].advice
    nobody = ClientConfig(nameservers=("127.0.0.1:1",), start_timeout=1)
    with pytest.raises(RocketError) as raised:
        async with Client(config=nobody) as client, client.producer("shop") as producer:
            await producer.send("orders", b"x", timeout=2)
    assert findings[0].finding in str(raised.value)
