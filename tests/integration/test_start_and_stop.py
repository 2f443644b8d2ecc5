"""A consumer's life, from a start that says what is wrong to a stop that leaves nothing: what RocketMQ's documentation
calls start and shutdown, and what a program may rely on in between."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

import pytest

from aiorocket import (
    Client,
    ClientConfig,
    ConfigError,
    Consumer,
    ConsumerConfig,
    Embedded,
    Message,
    RequestTimeoutError,
    TopicNotFoundError,
    UsageError,
)

Until = Callable[[Callable[[], bool]], Awaitable[None]]


def billing(mq: Embedded, paid: list[bytes], takes: float = 0.0, **settings: float) -> Consumer:
    consumer = mq.consumer("billing", config=ConsumerConfig(**settings))  # type: ignore[arg-type]  # floats only here

    @consumer.listener("orders", start_from="first")
    async def bill(message: Message) -> None:
        await asyncio.sleep(takes)
        paid.append(message.body)

    return consumer


async def test_a_life(mq: Embedded, until: Until) -> None:
    await mq.create_topic("orders", queues=1)
    paid: list[bytes] = []
    consumer = billing(mq, paid)
    assert not consumer.state().running
    await consumer.start()
    # Started means: it has its queues, and the first message needs to wait for nothing.
    assert consumer.state().running and len(consumer.held()) == 2  # one of orders, one for retries
    async with mq.producer("shop") as shop:
        await shop.send("orders", b"1")
    await until(lambda: paid == [b"1"])
    await consumer.stop()
    assert not consumer.state().running
    # Everything is stored, and the broker knows of no member any more.
    assert mq.broker.offsets.query("billing", "orders", 0) == 1
    await until(lambda: not any(group.client_ids() for group in mq.broker.consumers))


async def test_it_starts_once(mq: Embedded) -> None:
    await mq.create_topic("orders", queues=1)
    consumer = billing(mq, [])
    async with consumer:
        with pytest.raises(UsageError, match="running"):
            await consumer.start()
    with pytest.raises(UsageError, match="used up"):
        await consumer.start()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"concurrency": 0}, "concurrency=0"),
        ({"suspend": -1}, "suspend=-1"),
        ({"lock_renew_interval": 40}, "lock_renew_interval=40 must be below lock_validity=30"),
        ({"lock_validity": 70}, "below the broker's 60 s"),
    ],
)
def test_options_are_checked_and_named(settings: dict[str, float], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ConsumerConfig(**settings)  # type: ignore[arg-type]  # wrong on purpose


async def test_a_stop_waits_for_what_runs(mq: Embedded, until: Until) -> None:
    """What runs is finished and committed; what only waits is left to the next member."""
    await mq.create_topic("orders", queues=1)
    async with mq.producer("shop") as shop:
        for number in range(50):
            await shop.send("orders", b"%d" % number)
    paid: list[bytes] = []
    consumer = billing(mq, paid, takes=0.05, concurrency=4)
    async with consumer:
        await until(lambda: consumer.state().in_work == 4)
    done = len(paid)
    assert 4 <= done < 50
    assert mq.broker.offsets.query("billing", "orders", 0) == done
    async with billing(mq, paid):
        await until(lambda: len(paid) == 50)
    assert sorted(map(int, paid)) == list(range(50))


async def test_a_stop_does_not_wait_for_ever(mq: Embedded, until: Until) -> None:
    """drain_timeout bounds it. What was interrupted comes again, to whoever is next."""
    await mq.create_topic("orders", queues=1)
    async with mq.producer("shop") as shop:
        await shop.send("orders", b"1")
    paid: list[bytes] = []
    consumer = billing(mq, paid, takes=3600, drain_timeout=0.05)
    async with asyncio.timeout(60):
        async with consumer:
            await until(lambda: consumer.state().in_work == 1)
    assert paid == []
    async with billing(mq, paid):
        await until(lambda: paid == [b"1"])


async def nothing(message: Message) -> None: ...


@pytest.mark.seeds(4)
async def test_many_lives_leave_nothing(mq: Embedded, until: Until, seed: int) -> None:
    """No task, socket or member, here or at the broker, whoever was started and however it ended."""
    await mq.create_topic("orders", queues=1)

    def left() -> tuple[int, int, int]:
        members = [group.client_ids() for table in (mq.broker.consumers, mq.broker.producers) for group in table]
        return len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd")), sum(map(len, members))

    async def life(topic: str) -> None:
        config = ClientConfig(nameservers=mq.nameservers, start_timeout=10 if topic == "orders" else 0.05)
        async with Client(config=config, group="billing") as client:
            consumer, etl = client.consumer(), client.pull_consumer("etl")
            consumer.listener("orders")(nothing)
            await etl.subscribe(topic, missing_topics="error")
            async with client.producer("shop") as shop, etl, consumer:
                await shop.send(topic, b"1")

    await life("orders")
    before = left()
    for number in range(50):
        if number % 20:
            await life("orders")
        else:
            with pytest.raises((TopicNotFoundError, RequestTimeoutError)):  # by how quick this machine is
                await life("nowhere")
    await until(lambda: left() == before)
