"""The simple consumer, read like its documentation, against the embedded broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiorocket import (
    Client,
    ClientConfig,
    ConsumerConfig,
    DeadLetter,
    Embedded,
    RemotingConfig,
    Retry,
    SimpleConsumer,
    Skip,
    UsageError,
)
from aiorocket.testing.stored import stored_messages
from aiorocket_protocol import RecordView
from tests.integration.conftest import Until


async def send(mq: Embedded, *bodies: bytes, **options: object) -> None:
    async with mq.producer() as producer:
        for body in bodies:
            await producer.send("orders", body, **options)  # type: ignore[arg-type]  # of send


async def test_the_story_of_a_simple_consumer(mq: Embedded) -> None:
    await mq.create_topic("orders", queues=4)
    done: list[bytes] = []
    async with SimpleConsumer("billing", nameservers=mq.nameservers) as consumer:
        await consumer.subscribe("orders", start_from="first")
        waiting = asyncio.create_task(consumer.receive(timeout=30))
        await send(mq, *(b"%d" % number for number in range(10)))
        for message in await waiting:
            assert message.topic == "orders" and message.attempt == 1 and message.queue.topic == "orders"
            async with message.process():
                done.append(message.body)
        while len(done) < 10:
            for message in await consumer.receive(3, timeout=30):
                assert await message.ack() and message.settled
                done.append(message.body)
        assert await consumer.receive(timeout=0.1) == []
        assert sorted(done) == [b"%d" % number for number in range(10)]
        assert mq.broker.popped == 0
        assert consumer.state().running and consumer.state().queues == ()


async def test_what_becomes_of_a_message(mq: Embedded) -> None:
    await mq.create_topic("orders", queues=1)
    async with Client(nameservers=mq.nameservers, group="billing") as client:
        async with client.simple_consumer() as consumer:
            await consumer.subscribe("orders", start_from="first")
            await send(mq, b"later", b"dead", b"skipped", b"by hand", b"fails")
            later, dead, skipped, by_hand, fails = await consumer.receive()
            async with later.process():
                raise Retry(after=0.2)
            async with dead.process():
                raise DeadLetter("nobody knows how")
            async with skipped.process():
                raise Skip
            async with by_hand.process():
                await by_hand.ack()
            async with fails.process(retry_delay=0):
                raise ValueError("of the application")
            again = await consumer.receive(timeout=30)
            again += await consumer.receive(timeout=30) if len(again) < 2 else []
            assert {(one.body, one.attempt, one.topic) for one in again} == {
                (b"later", 2, "orders"),
                (b"fails", 2, "orders"),
            }
            assert not await later.ack()  # that delivery is over
            for one in again:
                assert await one.dead_letter("enough")
            assert await consumer.receive(timeout=0.1) == []
        reasons = {each.body: why(each) for each in stored_messages(mq.broker.store, "%DLQ%billing")}
        assert reasons == {
            b"dead": ("DeadLetter", "nobody knows how", client.client_id),
            b"later": ("DeadLetter", "enough", client.client_id),
            b"fails": ("DeadLetter", "enough", client.client_id),
        }


def why(letter: RecordView) -> tuple[str | None, str | None, str | None]:
    error, reason, host = (letter.properties.get(f"DLQ_{name}") for name in ("ERROR", "REASON", "HOST"))
    return error, reason, host


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("serializer", ["auto", "json"])
async def test_the_last_attempt_ends_among_the_dead_letters(
    mq: Embedded, until: Until, caplog: pytest.LogCaptureFixture, serializer: Any, kept: bool
) -> None:
    await mq.create_topic("orders", queues=1)
    config = ClientConfig(
        nameservers=mq.nameservers, remoting=RemotingConfig(serializer=serializer),
        consumer=ConsumerConfig(dead_letter_reason=kept),
    )  # fmt: skip
    async with Client(config=config) as client, client.simple_consumer("billing", max_attempts=2) as consumer:
        await consumer.subscribe("orders", start_from="first")
        await send(mq, b"x")
        for attempt in (1, 2):
            (message,) = await consumer.receive(timeout=30)
            assert message.attempt == attempt
            async with message.process(retry_delay=0):
                raise KeyError("amount")
        await until(lambda: mq.broker.store.max_offset("%DLQ%billing", 0) == 1 and mq.broker.popped == 0)
        assert await consumer.receive(timeout=0.1) == []
        (letter,) = stored_messages(mq.broker.store, "%DLQ%billing")
        assert why(letter) == (("KeyError", "'amount'", client.client_id) if kept else (None, None, None))
    said = f"to the dead letters of group billing: message {message.msg_id} of topic orders, after 2 attempts: KeyError"
    assert sum(said in each.getMessage() for each in caplog.records) == 1


async def test_tags_sql_and_members_share(mq: Embedded) -> None:
    await mq.create_topic("orders", queues=2)
    async with (
        SimpleConsumer("tagged", nameservers=mq.nameservers) as one,
        SimpleConsumer("tagged", nameservers=mq.nameservers) as two,
        SimpleConsumer("sql", nameservers=mq.nameservers) as three,
    ):
        for consumer in (one, two):
            await consumer.subscribe("orders", "a || b", start_from="first")
        await three.subscribe("orders", sql="amount > 5", start_from="first")
        await send(mq, b"1", tag="a", properties={"amount": "1"})
        await send(mq, b"2", tag="b", properties={"amount": "6"})
        await send(mq, b"3", tag="c", properties={"amount": "7"})
        got = [await consumer.receive(1, timeout=30) for consumer in (one, two)]
        assert sorted(message.body for (message,) in got) == [b"1", b"2"]
        found = [message.body for message in await three.receive(timeout=30)]
        while len(found) < 2:
            found += [message.body for message in await three.receive(timeout=30)]
        assert sorted(found) == [b"2", b"3"]
        await three.unsubscribe("orders")
        with pytest.raises(UsageError, match="does not subscribe"):
            await three.unsubscribe("orders")
        with pytest.raises(UsageError, match="no topic"):
            await three.receive()


async def test_a_topic_that_comes_later(mq: Embedded) -> None:
    async with SimpleConsumer("early", nameservers=mq.nameservers) as consumer:
        await consumer.subscribe("later", start_from="first")
        assert await consumer.receive(timeout=0.1) == [] and consumer.state().missing == ("later",)
        async with mq.producer() as producer:
            await producer.send("later", b"x")
        messages = await consumer.receive(timeout=30)
        assert [message.body for message in messages] == [b"x"]


async def test_namespaces(mq: Embedded) -> None:
    config = ClientConfig(nameservers=mq.nameservers, namespace="ns")
    async with (
        Client(config=config, group="g") as client,
        client.producer() as producer,
        client.simple_consumer() as consumer,
    ):
        await consumer.subscribe("T", start_from="first")
        await producer.send("T", b"x")
        (message,) = await consumer.receive(timeout=30)
        assert message.topic == "T" and message._wire_topic == "ns%T" and await message.retry(after=0)
        (message,) = await consumer.receive(timeout=30)
        assert message.topic == "T" and message.attempt == 2 and await message.ack()


async def test_what_is_refused(mq: Embedded) -> None:
    with pytest.raises(UsageError, match="client="):
        SimpleConsumer("g", nameservers="a:1", client=Client())
    with pytest.raises(UsageError, match="max_attempts"):
        SimpleConsumer("g", max_attempts=0)
    consumer = SimpleConsumer("g", nameservers=mq.nameservers)
    with pytest.raises(UsageError, match="not started"):
        await consumer.receive()
    with pytest.raises(UsageError, match="first"):
        await consumer.subscribe("orders", start_from="middle")
    async with consumer:
        await consumer.subscribe("orders")
        for wrong in ({"max_messages": 33}, {"invisible": 0.5}, {"invisible": 99_999}):
            with pytest.raises(UsageError, match=next(iter(wrong))):
                await consumer.receive(**wrong)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(UsageError):
        await consumer.start()


async def test_a_cancelled_receive_takes_nothing(mq: Embedded) -> None:
    await mq.create_topic("orders", queues=1)
    async with SimpleConsumer("billing", nameservers=mq.nameservers) as consumer:
        await consumer.subscribe("orders", start_from="first")
        for _ in range(3):
            waiting = asyncio.create_task(consumer.receive(timeout=30))
            await asyncio.sleep(0.05)
            waiting.cancel()
            await asyncio.wait([waiting])
        await send(mq, b"x")
        (message,) = await consumer.receive(timeout=30)
        assert await message.ack()


async def test_a_broker_that_is_away_is_told_of_once(mq: Embedded, caplog: pytest.LogCaptureFixture) -> None:
    await send(mq, b"one")
    async with mq.simple_consumer("g") as consumer:
        await consumer.subscribe("orders", start_from="first")
        assert len(await consumer.receive()) == 1
        await mq.broker.close()
        for _ in range(4):
            assert await consumer.receive(timeout=0.05) == []
        assert len([each for each in caplog.messages if each.startswith("popping ")]) == 1, caplog.messages
