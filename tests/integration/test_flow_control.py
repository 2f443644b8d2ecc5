"""Flow control and long polling, as RocketMQ's documentation tells them: a consumer takes no more than it can hold, and
asks for more when it has room; an empty queue is asked for once, and the broker answers when there is something."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aiorocket import Consumer, ConsumerConfig, Embedded, Message
from aiorocket.testing import Simulation, simulate
from aiorocket.testing.cluster import SimCluster
from aiorocket_protocol import RequestCode

Until = Callable[[Callable[[], bool]], Awaitable[None]]


class Gate:
    """A listener that holds what it gets until the gate opens, for bodies that it is told to hold."""

    def __init__(self, *held: bytes) -> None:
        self.seen: list[bytes] = []
        self.open = asyncio.Event()
        self._held = held

    async def __call__(self, message: Message) -> None:
        self.seen.append(message.body)
        if not self._held or message.body in self._held:
            await self.open.wait()


def member(mq: Embedded, gate: Gate, **settings: Any) -> Consumer:
    consumer = mq.consumer("billing", config=ConsumerConfig(pull_batch_size=8, **settings))

    @consumer.listener("orders", start_from="first")
    async def bill(message: Message) -> None:
        await gate(message)

    return consumer


def blocked(consumer: Consumer) -> set[str | None]:
    return {each.blocked for each in consumer.state().queues if each.queue.topic == "orders"}


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"max_cached_messages": 20}, "messages"),  # pullThresholdForQueue
        ({"max_cached_bytes": 20_000}, "bytes"),  # pullThresholdSizeForQueue
        ({"max_cached_messages_per_topic": 20}, "messages"),  # pullThresholdForTopic
        ({"max_cached_bytes_per_topic": 20_000}, "bytes"),  # pullThresholdSizeForTopic
    ],
)
async def test_a_slow_listener_holds_back_the_pulls(
    mq: Embedded, until: Until, settings: dict[str, int], limit: str
) -> None:
    await mq.create_topic("orders", queues=1)
    gate = Gate()
    async with mq.producer("shop") as shop:
        for number in range(100):
            await shop.send("orders", b"%-1000d" % number)
    async with member(mq, gate, **settings) as consumer:
        await until(lambda: blocked(consumer) == {limit})
        # One pull may go out at the limit.
        assert 16 <= consumer.state().cached <= 20 + 8
        gate.open.set()
        await until(lambda: len(gate.seen) == 100)


async def test_one_message_that_hangs_holds_back_its_queue_by_the_span(mq: Embedded, until: Until) -> None:
    """consumeConcurrentlyMaxSpan: the others go on until so many offsets lie between it and the newest. The committed
    offset stays behind it."""
    await mq.create_topic("orders", queues=1)
    gate = Gate(b"0")
    async with mq.producer("shop") as shop:
        for number in range(100):
            await shop.send("orders", b"%d" % number)
    async with member(mq, gate, max_span=30) as consumer:
        await until(lambda: blocked(consumer) == {"span"})
        await until(lambda: consumer.state().in_work == 1)
        assert 30 <= len(gate.seen) <= 30 + 2 * 8
        await consumer.commit()
        assert mq.broker.offsets.query("billing", "orders", 0) in (None, 0)
        gate.open.set()
        await until(lambda: len(gate.seen) == 100)


def test_an_empty_queue_costs_one_request() -> None:
    """After a first one that is answered at once. It waits at the broker, 15 s at most, and is answered as soon as a
    message is stored."""

    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("orders", 1)
            broker, pulls = cluster.brokers[0], Counter[int]()
            broker.faults.watch(lambda _, request: pulls.update([request.code]))
            gate = Gate(b"nothing")
            member = await cluster.consumer("billing", "orders", gate)
            sender = await cluster.producer()
            await asyncio.sleep(3)
            # two for orders, two for the retry topic
            assert (pulls[RequestCode.PULL_MESSAGE], broker.broker.parked_pulls) == (4, 2)
            await asyncio.sleep(10)
            assert (pulls[RequestCode.PULL_MESSAGE], broker.broker.parked_pulls) == (4, 2)
            await sender.send("orders", "1")
            await asyncio.sleep(1)
            assert len(gate.seen) == member.consumer.state().counters.consumed == 1
            assert (pulls[RequestCode.PULL_MESSAGE], broker.broker.parked_pulls) == (5, 2)
            await asyncio.sleep(30)
            assert pulls[RequestCode.PULL_MESSAGE] == 5 + 2 * 2

    simulate(scenario)


async def test_short_polls_ask_again_and_again(mq: Embedded, until: Until) -> None:
    """For brokers or networks that do not hold requests."""
    await mq.create_topic("orders", queues=1)
    gate = Gate(b"nothing")
    async with member(mq, gate, short_poll=0.01) as consumer, mq.producer("shop") as shop:
        await until(lambda: any(each.last_pull for each in consumer.state().queues))
        await shop.send("orders", b"1")
        await until(lambda: gate.seen == [b"1"])
