"""Listeners whose queues a broker gives out, to be pulled or popped as an administrator said."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from aiorocket import Consumer, ConsumerConfig, DeadLetter, Embedded, Message, Queue, Retry, UsageError
from aiorocket.errors import ConfigError
from aiorocket.testing.stored import stored_messages
from aiorocket_protocol import RequestCode, encode_body
from tests.integration.conftest import Until

ASKING = ConsumerConfig(rebalance="broker", rebalance_interval=20.0, pop_invisible=5.0)


async def set_mode(mq: Embedded, mode: str, group: str = "billing", share: int = 0) -> None:
    body = {"consumerGroup": group, "mode": mode, "popShareQueueNum": share, "topic": "orders"}
    async with mq.client() as client:
        await client.session.call(mq.broker.address, RequestCode.SET_MESSAGE_REQUEST_MODE, body=encode_body(body, 0))


async def send(mq: Embedded, count: int, first: int = 0) -> None:
    async with mq.producer() as producer:
        for number in range(first, first + count):
            await producer.send("orders", b"%d" % number)


async def test_members_pop_what_they_can_take(mq: Embedded, until: Until) -> None:
    await mq.create_topic("orders", queues=2)
    await set_mode(mq, "POP")
    seen: Counter[str] = Counter()
    attempts: dict[str, list[int]] = {"3": [], "5": []}

    async def bill(message: Message) -> None:
        body = message.body.decode()
        if body in attempts:
            attempts[body].append(message.attempt)
            if body == "5":
                raise DeadLetter("nobody pays it")
            if message.attempt == 1:
                raise Retry(delay_level=1)
        assert message.topic == "orders" and message.queue.queue_id >= 0
        seen[body] += 1

    members = [Consumer("billing", nameservers=mq.nameservers, config=ASKING) for _ in range(3)]
    for member in members:
        member.listener("orders", start_from="first")(bill)
    async with members[0], members[1], members[2]:
        # More members than queues, and all of them have work.
        assert [pulled(member) for member in members] == [[Queue("orders", mq.broker.config.name, -1)]] * 3
        await send(mq, 60)
        await until(lambda: len(seen) == 59 and mq.broker.popped == 0)
        assert sum(member.state().counters.consumed for member in members) >= 59
    assert set(seen.values()) == {1} and attempts == {"3": [1, 2], "5": [1]}
    (letter,) = stored_messages(mq.broker.store, "%DLQ%billing")
    assert (letter.properties["DLQ_ERROR"], letter.properties["DLQ_REASON"]) == ("DeadLetter", "nobody pays it")
    assert letter.properties["DLQ_HOST"] in {member.client.client_id for member in members}
    assert [mq.broker.offsets.query("billing", "orders", number) for number in range(2)] == [
        mq.broker.store.max_offset("orders", number) for number in range(2)
    ]


async def test_a_broker_may_give_out_queues_to_pull_and_change_its_mind(mq: Embedded, until: Until) -> None:
    await mq.create_topic("orders", queues=4)
    seen: list[bytes] = []
    members = [Consumer("billing", nameservers=mq.nameservers, config=ASKING) for _ in range(2)]
    for member in members:

        @member.listener("orders", start_from="first")
        async def bill(message: Message) -> None:
            seen.append(message.body)

    async with members[0], members[1]:
        await until(lambda: [len(pulled(member)) for member in members] == [2, 2])
        assert {queue.queue_id for member in members for queue in pulled(member)} == {0, 1, 2, 3}
        await send(mq, 20)
        await until(lambda: len(seen) == 20)
        for share, mode, expected in ((0, "POP", {-1}), (0, "PULL", {0, 1, 2, 3})):
            await set_mode(mq, mode, share=share)
            for member in members:
                member._rebalance_now()
            await until(lambda: {q.queue_id for member in members for q in pulled(member)} == expected)  # noqa: B023 - in this turn
            before = len(seen)
            await send(mq, 20, before)
            await until(lambda: len(seen) >= before + 20 and mq.broker.popped == 0)  # noqa: B023 - as above
        assert sorted(seen) == sorted(b"%d" % number for number in range(60))


def pulled(member: Consumer) -> list[Queue]:
    return [queue for queue in member.held() if queue.topic == "orders"]


async def test_popped_messages_by_iterator_and_in_batches(mq: Embedded, until: Until) -> None:
    await mq.create_topic("orders", queues=2)
    await set_mode(mq, "POP")
    await set_mode(mq, "POP", "batches")
    batches: list[list[bytes]] = []
    by_batch = Consumer("batches", nameservers=mq.nameservers, config=ASKING)

    @by_batch.listener("orders", start_from="first", batch_size=5)
    async def bill(messages: list[Message]) -> None:
        batches.append([message.body for message in messages])

    consumer = Consumer("billing", nameservers=mq.nameservers, config=ASKING)
    await consumer.subscribe("orders", start_from="first")
    found: list[bytes] = []
    async with by_batch, consumer:
        await send(mq, 20)
        async with asyncio.timeout(30):
            async for message in consumer.messages():
                async with message.process():
                    found.append(message.body)
                if len(found) == 20:
                    break
        await until(lambda: sum(map(len, batches)) == 20 and mq.broker.popped == 0)
    assert sorted(found) == sorted(body for batch in batches for body in batch)


async def test_what_has_an_order_is_not_popped() -> None:
    with pytest.raises(ConfigError, match="allocate"):
        ConsumerConfig(rebalance="broker", allocate="CONSISTENT_HASH")
    with pytest.raises(ConfigError, match="rebalance"):
        ConsumerConfig(rebalance="nobody")  # type: ignore[arg-type]  # wrong on purpose
    consumer = Consumer("g", nameservers="127.0.0.1:1", config=ASKING)

    @consumer.orderly("orders")
    async def listen(message: Message) -> None: ...

    with pytest.raises(UsageError, match="order"):
        await consumer.start()
