"""Our client's features at Apache's brokers, each on a topic of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from aiorocket import Client, ClientConfig, Consumer, Message, Producer, PullConsumer
from tests.interop.peers import Server
from tests.interop.test_consumers import LIMIT, create, until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


def listener(group: str, topic: str, server: Server, seen: list[Message], *, orderly: bool = False) -> Consumer:
    consumer = Consumer(group, nameservers=(server.nameserver,))
    register = consumer.orderly if orderly else consumer.listener

    @register(topic, start_from="first")
    async def take(message: Message) -> None:
        seen.append(message)

    return consumer


async def batches(server: Server, topic: str) -> None:
    seen: list[Message] = []
    async with Producer("batches", nameservers=(server.nameserver,)) as producer:
        bodies = [b"%d" % number for number in range(20)]
        assert len(await producer.send_batch(topic, bodies, timeout=20)) == 20
        async with listener("batches-group", topic, server, seen):
            await until(lambda: len(seen) == 20, "consumed")
    assert sorted(message.body for message in seen) == sorted(bodies)


async def delay_levels(server: Server, topic: str) -> None:
    seen: list[Message] = []
    consumer = listener("late-group", topic, server, seen)
    async with Producer("late", nameservers=(server.nameserver,)) as producer, consumer:
        began = time.monotonic()
        await producer.send(topic, b"late", delay_level=2, timeout=20)  # 5 s
        await until(lambda: len(seen) == 1, "delivered")
        assert 4.5 < time.monotonic() - began < LIMIT


async def request_and_reply(server: Server, topic: str) -> None:
    async with Client(nameservers=(server.nameserver,)) as client, client.producer("answers") as answers:
        consumer = client.consumer("answers-group")

        @consumer.listener(topic, start_from="first")
        async def answer(message: Message) -> None:
            await answers.reply(message, b"to " + message.body)

        async with consumer, Producer("asks", nameservers=(server.nameserver,)) as asks:
            assert (await asks.request(topic, b"me", timeout=30)).body == b"to me"


async def pull_consumer(server: Server, topic: str) -> None:
    bodies = {b"%d" % number for number in range(20)}
    async with Producer("pulled", nameservers=(server.nameserver,)) as producer:
        for body in bodies:
            await producer.send(topic, body, timeout=20)
    got: set[bytes] = set()
    async with PullConsumer("pulls", nameservers=(server.nameserver,)) as consumer:
        await consumer.subscribe(topic, start_from="first")
        async with asyncio.timeout(LIMIT):
            while got != bodies:
                got.update(message.body for message in await consumer.fetch())
        await consumer.commit()
        committed = {queue: consumer.position(queue) for queue in consumer.assignment()}
    # The next goes on there; what a sender of its own accord had stored twice would be behind it.
    async with PullConsumer("pulls", nameservers=(server.nameserver,)) as consumer:
        await consumer.subscribe(topic, start_from="first")
        assert {queue: consumer.position(queue) for queue in consumer.assignment()} == committed
        later = await consumer.fetch(timeout=2.0)
        assert all(message.queue_offset >= committed[message.queue] for message in later)


async def namespaces(server: Server, topic: str) -> None:
    seen: list[Message] = []
    await create(server, f"ns%{topic}")
    async with Client(config=ClientConfig(nameservers=(server.nameserver,), namespace="ns")) as client:
        consumer = client.consumer("spaced-group")

        @consumer.listener(topic, start_from="first")
        async def take(message: Message) -> None:
            seen.append(message)

        async with consumer, client.producer("spaced") as producer:
            await producer.send(topic, b"here", timeout=20)
            await until(lambda: len(seen) == 1, "consumed")
    assert seen[0].topic == topic


async def orderly(server: Server, topic: str) -> None:
    seen: list[Message] = []
    consumer = listener("steps-group", topic, server, seen, orderly=True)
    async with Producer("steps", nameservers=(server.nameserver,)) as producer, consumer:
        for number in range(40):
            await producer.send(topic, b"%d" % number, sharding_key=f"k{number % 4}", timeout=20)
        await until(lambda: len(seen) == 40, "consumed")
    for key in range(4):
        mine = [int(message.body) for message in seen if int(message.body) % 4 == key]
        assert mine == sorted(mine)


FEATURES: dict[str, Callable[[Server, str], Coroutine[Any, Any, None]]] = {
    "batch": batches,
    "delay": delay_levels,
    "request-reply": request_and_reply,
    "lite pull": pull_consumer,
    "namespace": namespaces,
    "orderly": orderly,
}


@pytest.mark.parametrize("kind", ["apache", "apache_older"])
async def test_ours_at_apaches(kind: str, request: pytest.FixtureRequest) -> None:
    """All at once: most of the time is spent waiting."""
    server: Server = request.getfixturevalue(kind)
    topics = {name: f"feature-{name.replace(' ', '-')}" for name in FEATURES}
    for topic in topics.values():
        await create(server, topic)
    async with asyncio.TaskGroup() as tasks:
        for name, feature in FEATURES.items():
            tasks.create_task(feature(server, topics[name]), name=name)
