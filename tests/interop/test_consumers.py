"""Our consumers beside the official Java client's and under Apache's own tools: broadcasting, SQL filters,
administration."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from aiorocket import Client, ClientConfig, Consumer, ConsumerConfig, Message, Producer, UsageError
from tests.interop.peers import Command, JavaClient, Server, ask

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

CREATE_TOPIC, GET_ROUTE, QUERY_CONSUMER_OFFSET = 17, 105, 14
LIMIT = 150.0


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, f"not {what} in {LIMIT:g} s"
        await asyncio.sleep(0.05)


async def create(server: Server, topic: str, queues: int = 2) -> None:
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues),
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    assert ask(server.broker, CREATE_TOPIC, fields)[0] == 0
    await until(lambda: ask(server.nameserver, GET_ROUTE, {"topic": topic})[0] == 0, "routable")


async def test_everybody_in_a_broadcasting_group_gets_everything(
    server: Server, java: JavaClient, tmp_path: Path
) -> None:
    """A member of Java's and two of ours; one of ours comes back and goes on where its own file says."""
    await create(server, "news")
    seen: dict[str, list[str]] = {"one": [], "two": []}
    expected = [f"news-{number}" for number in range(20)]

    async def member(name: str, stack: AsyncExitStack) -> Consumer:
        settings = ClientConfig(nameservers=(server.nameserver,), instance=name)
        client = await stack.enter_async_context(Client(config=settings))
        config = ConsumerConfig(message_model="broadcasting", offset_store_dir=str(tmp_path / name))
        consumer = client.consumer("readers", config=config)

        @consumer.listener("news", start_from="first")
        async def read(message: Message) -> None:
            seen[name].append(message.body.decode())

        return await stack.enter_async_context(consumer)

    run = await java.start("broadcast", server.nameserver, "news", "readers", program="Members")
    await run.until("started", limit=LIMIT)
    async with AsyncExitStack() as stack, Producer("editors", nameservers=(server.nameserver,)) as producer:
        await member("one", stack)
        async with AsyncExitStack() as short:
            await member("two", short)
            for body in expected[:10]:
                await producer.send("news", body.encode(), timeout=10)
            await until(lambda: len(seen["one"]) == len(seen["two"]) == 10, "read by ours")
        for body in expected[10:]:
            await producer.send("news", body.encode(), timeout=10)
        await member("two", stack)
        await until(lambda: len(seen["one"]) == len(seen["two"]) == 20, "read by ours")
        for _ in range(20):
            await run.until("message", limit=LIMIT)
    told = await run.leave(limit=30)
    for bodies in (*seen.values(), [fact["body"] for fact in told if fact["event"] == "message"]):
        assert sorted(bodies) == sorted(expected)
    # Nobody keeps offsets for such a group but its members.
    fields = {"consumerGroup": "readers", "topic": "news", "queueId": "0", "setZeroIfNotFound": "false"}
    code, ext, _ = ask(server.broker, QUERY_CONSUMER_OFFSET, fields)
    assert code == 22 or (code, ext["offset"]) == (0, "0")  # which is what 4.9 says of a queue that begins at 0


async def test_our_sql_filters(server: Server) -> None:
    await create(server, "measures", 1)
    seen: list[str] = []
    async with Producer("sensors", nameservers=(server.nameserver,)) as producer:
        for number in range(20):
            properties = {"n": str(number), **({"room": "attic"} if number % 2 else {})}
            await producer.send("measures", b"%d" % number, properties=properties, timeout=10)
        consumer = Consumer("charts", nameservers=(server.nameserver,))

        @consumer.listener("measures", sql="n BETWEEN 5 AND 12 AND NOT (room = 'cellar')", start_from="first")
        async def draw(message: Message) -> None:
            seen.append(message.body.decode())

        async with consumer:
            await until(lambda: len(seen) == 4, "filtered")
            await producer.send("measures", b"late", properties={"n": "8", "room": "x"}, timeout=10)
            await until(lambda: len(seen) == 5, "filtered")
    assert seen == ["5", "7", "9", "11", "late"]

    bad = Consumer("charts", nameservers=(server.nameserver,))
    bad.listener("measures", sql="n > > 5")(_ignore)
    with pytest.raises(UsageError, match="refuses SQL92 'n > > 5' of topic 'measures': code 23"):
        await bad.start()


async def test_apaches_tools_look_at_our_consumer_and_reset_it(server: Server, mqadmin: Command) -> None:
    """On our broker every request of theirs is ours to answer; on Apache's, those it passes on to the client."""
    await create(server, "ledger")
    seen: list[str] = []
    consumer = Consumer("auditors", nameservers=(server.nameserver,), config=ConsumerConfig(offset_illegal_delay=0.5))

    @consumer.listener("ledger", start_from="first")
    async def audit(message: Message) -> None:
        seen.append(message.body.decode())

    async with Producer("bank", nameservers=(server.nameserver,)) as producer, consumer:
        for number in range(10):
            await producer.send("ledger", b"%d" % number, timeout=10)
        await until(lambda: len(seen) == 10, "audited")
        await consumer.commit()

        connections = await mqadmin("consumerConnection", "-g", "auditors")
        assert consumer.client.client_id in connections and "CONSUME_PASSIVELY" in connections, connections
        assert "ledger" in connections and "CLUSTERING" in connections, connections

        status = await mqadmin("consumerStatus", "-g", "auditors", "-i", consumer.client.client_id, "-s")
        for part in ("PROP_CONSUME_TYPE", "ledger", "%RETRY%auditors", "Consumer MQ Detail", "pull/ledger/broker-a/0"):
            assert part in status, (part, status)

        reset = await mqadmin("resetOffsetByTime", "-g", "auditors", "-t", "ledger", "-s", "0")
        await until(lambda: len(seen) == 20, f"audited again: {reset}")
    assert sorted(seen[10:]) == sorted(seen[:10])


async def _ignore(message: Message) -> None:
    """A listener that does nothing."""
