"""Delayed messages, as RocketMQ's documentation tells them: a message with a delay level is stored at once and becomes
visible when its time has come. The broker's ``messageDelayLevel`` says what the 18 levels mean: 1 s, 5 s, 10 s, 30 s,
1 min ... 10 min, 20 min, 30 min, 1 h, 2 h unless it is configured, as it is here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from aiorocket import ConfigError, Consumer, ConsumerConfig, Embedded, Message, UsageError, embed
from aiorocket.config import DELAY_LEVELS, BrokerConfig
from aiorocket.testing import SimCluster, Simulation, simulate
from aiorocket_protocol import DeleteTopicRequestHeader, RequestCode

Until = Callable[[Callable[[], bool]], Awaitable[None]]

#: Of the brokers in this file.
LEVELS = {"delay_levels": (0.05, 0.1, 0.2, 0.4)}


def listening(mq: Embedded, seen: list[Message], group: str = "kitchen") -> Consumer:
    consumer = mq.consumer(group, config=ConsumerConfig(pull_error_delay=0.05))

    @consumer.listener("reminders", start_from="first")
    async def on_reminder(message: Message) -> None:
        seen.append(message)

    return consumer


def waited(message: Message) -> float:
    """Seconds from the producer's clock to the moment the message became visible (both are this machine's)."""
    return (message.store_timestamp - message.born_timestamp) / 1000


def test_each_level_waits_its_time_and_none_for_another() -> None:
    seen: list[Message] = []

    async def on_reminder(message: Message) -> None:
        seen.append(message)

    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("reminders", 4)
            await cluster.consumer("kitchen", "reminders", on_reminder)
            sender = await cluster.producer("kitchen-clock")
            for level in (4, 3, 2, 1, 0):
                await sender.send("reminders", str(level), delay_level=level)
            await asyncio.sleep(40)

    simulate(scenario)
    assert [message.body for message in seen] == [b"0", b"1", b"2", b"3", b"4"]
    for message, least in zip(seen, (0.0, *DELAY_LEVELS), strict=False):
        assert least <= waited(message) < least + 0.5, message.body


async def test_a_delayed_message_is_the_one_that_was_sent(mq: Embedded, until: Until) -> None:
    """While it waits it lies in the broker's schedule topic, of which nobody sees anything; it comes to the queue it
    was sent to, with all it had."""
    await mq.create_topic("reminders", queues=4)
    seen: list[Message] = []
    async with listening(mq, seen), mq.producer("kitchen-clock") as producer:
        receipt = await producer.send(
            "reminders", b"tea" * 3000, tag="tea", keys=["t-1"], properties={"cup": "blue"}, sharding_key="t",
            delay_level=2,
        )  # fmt: skip
        await until(lambda: len(seen) == 1)
    (message,) = seen
    assert (message.topic, message.body, message.tag, message.keys) == ("reminders", b"tea" * 3000, "tea", ["t-1"])
    assert (message.queue, message.msg_id, message.attempt) == (receipt.queue, receipt.msg_id, 1)
    assert message.properties["cup"] == "blue"


async def test_tags_are_filtered_when_it_comes(mq: Embedded, until: Until) -> None:
    await mq.create_topic("reminders", queues=1)
    seen: list[bytes] = []
    consumer = mq.consumer("kitchen")

    @consumer.listener("reminders", "tea", start_from="first")
    async def on_tea(message: Message) -> None:
        seen.append(message.body)

    async with consumer, mq.producer("kitchen-clock") as producer:
        for body, tag in ((b"coffee", "coffee"), (b"green", "tea"), (b"black", "tea")):
            await producer.send("reminders", body, tag=tag, delay_level=1)
        await until(lambda: len(seen) == 2)
    assert sorted(seen) == [b"black", b"green"]


async def test_a_level_above_the_highest_is_the_highest(until: Until) -> None:
    async with embed(broker={"delay_levels": (0.05, 0.1)}) as mq:
        await mq.create_topic("reminders")
        seen: list[Message] = []
        async with listening(mq, seen), mq.producer("kitchen-clock") as producer:
            await producer.send("reminders", b"x", delay_level=18)
            await until(lambda: len(seen) == 1)
        assert 0.1 <= waited(seen[0]) < 30


@pytest.mark.parametrize("level", [-1, 19])
async def test_there_are_eighteen(mq: Embedded, level: int) -> None:
    await mq.create_topic("reminders")
    async with mq.producer("kitchen-clock") as producer:
        with pytest.raises(UsageError, match=str(level)):
            await producer.send("reminders", b"x", delay_level=level)


def test_the_standard_levels_are_rocketmqs() -> None:
    minutes = [60.0 * each for each in (*range(1, 11), 20, 30, 60, 120)]
    assert BrokerConfig().delay_levels == DELAY_LEVELS == (1.0, 5.0, 10.0, 30.0, *minutes)
    with pytest.raises(ConfigError, match="1 to 18 ascending"):
        BrokerConfig(delay_levels=(5.0, 1.0))


async def test_what_waits_survives_a_restart(tmp_path: Path, until: Until) -> None:
    """Also when its time comes while the broker is away: then it is visible at once, and once."""
    async with embed(str(tmp_path / "store"), broker={**LEVELS, "register_interval": 0.2}) as mq:
        await mq.create_topic("reminders")
        async with mq.producer("kitchen-clock") as producer:
            await producer.send("reminders", b"soon", delay_level=1)
            await producer.send("reminders", b"late", delay_level=4)
        await mq.broker.close()
        await asyncio.sleep(0.1)
        await mq.restart()
        seen: list[Message] = []
        async with listening(mq, seen):
            await until(lambda: len(seen) == 2)
            await mq.restart()
            await until(lambda: mq.broker.parked_pulls > 0)
    assert [message.body for message in seen] == [b"soon", b"late"]
    assert waited(seen[1]) >= 0.4


async def test_a_topic_that_was_deleted_meanwhile_does_not_hold_up_the_others(until: Until) -> None:
    async with embed(broker=LEVELS) as mq:
        await mq.create_topic("reminders", queues=1)
        await mq.create_topic("passing", queues=1)
        seen: list[Message] = []
        async with listening(mq, seen), mq.producer("kitchen-clock") as producer, mq.client() as client:
            await producer.send("passing", b"x", delay_level=1)
            await producer.send("reminders", b"y", delay_level=1)
            header = DeleteTopicRequestHeader("passing")
            await client.session.call(mq.broker.address, RequestCode.DELETE_TOPIC_IN_BROKER, header)
            await until(lambda: len(seen) == 1)
        assert seen[0].body == b"y"
