"""POP at Apache's broker and at ours: the official client's push consumer, once an administrator said so, and our
simple consumer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiorocket import Consumer, ConsumerConfig, DeadLetter, Message, PoppedMessage, Producer, Retry, SimpleConsumer
from tests.interop.peers import Command, JavaClient, Server, ask
from tests.interop.test_consumers import LIMIT, QUERY_CONSUMER_OFFSET, create, until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(500)]

GET_MAX_OFFSET = 30
COUNT, QUEUES = 12, 2


async def popping(server: Server, mqadmin: Command, topic: str, group: str) -> None:
    """The topic, the group, and that the group pops the topic."""
    await create(server, topic, QUEUES)
    made = await mqadmin("updateSubGroup", "-b", server.broker, "-g", group)
    assert "success" in made, made
    mode = await mqadmin("setConsumeMode", "-b", server.broker, "-t", topic, "-g", group, "-m", "POP", "-q", "0")
    assert "success" in mode, mode


def committed(server: Server, topic: str, group: str) -> list[int]:
    found = []
    for queue_id in range(QUEUES):
        fields = {"topic": topic, "consumerGroup": group, "queueId": str(queue_id)}
        code, ext, _ = ask(server.broker, QUERY_CONSUMER_OFFSET, fields)
        found.append(int(ext["offset"]) if code == 0 else -1)
    return found


def once(server: Server, attempts: list[int], wanted: int = 1) -> bool:
    """Delivered as often as its group wanted. Apache's broker gives a message once more that was acknowledged, when its
    own timer brings the acknowledgement 2 s late: it promises no more than at least that often, and counts."""
    exact = list(range(1, wanted + 1))
    return attempts == exact or (
        server.kind == "apache" and len(attempts) > wanted and attempts == list(range(1, len(attempts) + 1))
    )


async def test_javas_push_consumer_pops(server: Server, java: JavaClient, mqadmin: Command) -> None:
    topic, group = "popped-by-java", "java-poppers"
    await popping(server, mqadmin, topic, group)
    run = await java.start("consume", server.nameserver, topic, group, str(COUNT), "p-3", "240", "asked")
    await run.until("started", limit=LIMIT)
    sender = await java.start("send", server.nameserver, topic, "p", str(COUNT))
    await sender.finish(limit=LIMIT)
    messages: list[dict[str, Any]] = [one for one in await run.finish(limit=300) if one["event"] == "message"]
    assert {one["body"] for one in messages if not one["failed"]} == {f"p-{number}" for number in range(COUNT)}
    assert all(one["topic"] == topic and "POP_CK" in one["properties"] for one in messages)
    first, again, *_ = (one for one in messages if one["body"] == "p-3")
    assert (first["reconsumeTimes"], again["reconsumeTimes"]) == (0, 1)
    assert again["properties"]["UNIQ_KEY"] == first["properties"]["UNIQ_KEY"] and again["tags"] == first["tags"]
    assert again["properties"]["1ST_POP_TIME"]
    await until(lambda: sum(committed(server, topic, group)) == COUNT, "acknowledged")


async def test_our_simple_consumer(server: Server) -> None:
    """Acknowledged, kept longer than it was invisible, given back, given up, forgotten."""
    topic, group = "received", "receivers"
    await create(server, topic, QUEUES)
    seen: dict[str, list[int]] = {}
    async with (
        Producer("sender", nameservers=(server.nameserver,)) as producer,
        SimpleConsumer(group, nameservers=(server.nameserver,)) as consumer,
    ):
        await consumer.subscribe(topic, "wanted", start_from="first")
        for number in range(COUNT):
            await producer.send(topic, b"%d" % number, tag="wanted" if number else "other", timeout=10)
        kept: list[asyncio.Task[None]] = []

        async def keep(message: PoppedMessage) -> None:
            async with message.process():
                await asyncio.sleep(15)  # longer than it is invisible

        async with asyncio.timeout(150):
            while len(seen) < COUNT - 1 or len(seen["2"]) < 2 or len(seen["4"]) < 2:
                for message in await consumer.receive(4, invisible=10, timeout=5):
                    body = message.body.decode()
                    seen.setdefault(body, []).append(message.attempt)
                    assert message.topic == topic and message.tag == "wanted"
                    if body == "1":
                        kept.append(asyncio.ensure_future(keep(message)))
                        continue
                    if (body, message.attempt) == ("4", 1):
                        continue  # forgotten
                    async with message.process():
                        if (body, message.attempt) == ("2", 1):
                            raise Retry(after=2)
                        if (body, message.attempt) == ("3", 1):
                            raise DeadLetter("as asked")
            await asyncio.gather(*kept)
            while left := await consumer.receive(timeout=15):
                for message in left:
                    seen[message.body.decode()].append(message.attempt)
                    await message.ack()
    wanted = {str(number): 2 if number in (2, 4) else 1 for number in range(1, COUNT)}
    assert seen.keys() == wanted.keys()
    assert all(once(server, attempts, wanted[body]) for body, attempts in seen.items()), seen
    await until(lambda: sum(committed(server, topic, group)) == COUNT, "acknowledged")
    code, ext, _ = ask(server.broker, GET_MAX_OFFSET, {"topic": f"%DLQ%{group}", "queueId": "0"})
    assert (code, ext["offset"]) == (0, "1")


async def test_our_listeners_pop_beside_javas(server: Server, java: JavaClient, mqadmin: Command) -> None:
    topic, group = "popped-by-both", "both"
    await popping(server, mqadmin, topic, group)
    ours: dict[str, list[int]] = {}
    config = ConsumerConfig(rebalance="broker", pop_invisible=10.0)
    consumer = Consumer(group, nameservers=(server.nameserver,), config=config)

    @consumer.listener(topic, start_from="first")
    async def listen(message: Message) -> None:
        ours.setdefault(message.body.decode(), []).append(message.attempt)
        if message.body == b"ours-1" and message.attempt == 1:
            raise Retry(delay_level=1)
        await asyncio.sleep(0.05)

    async with consumer, Producer("sender", nameservers=(server.nameserver,)) as producer:
        assert any(queue.topic == topic and queue.queue_id == -1 for queue in consumer.held())
        for number in range(COUNT):
            await producer.send(topic, b"ours-%d" % number, timeout=10)
        await until(lambda: len(ours) == COUNT and len(ours["ours-1"]) >= 2, "popped")
        await until(lambda: sum(committed(server, topic, group)) == COUNT, "acknowledged")
        # Java's takes what it gets of the next; together they have all of it.
        run = await java.start("consume", server.nameserver, topic, group, str(10 * COUNT), "none", "20", "asked")
        await run.until("started", limit=LIMIT)
        sent = {f"more-{number}" for number in range(60)}
        for body in sorted(sent):
            await producer.send(topic, body.encode(), timeout=10)
        javas = {one["body"] for one in await run.finish(limit=LIMIT) if one["event"] == "message"}
        # What Java's had popped and not worked at its end comes again a minute later.
        await until(lambda: javas | ours.keys() >= sent, "shared")
    assert all(once(server, attempts, 2 if body == "ours-1" else 1) for body, attempts in ours.items()), ours
