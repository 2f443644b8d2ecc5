"""What an application may write: type checkers say nothing here."""

from __future__ import annotations

from dataclasses import dataclass

import aiorocket
from aiorocket import Batch, Client, Consumer, Message, Router, SendOptions


@dataclass
class Shop:
    paid: int = 0


router = Router("billing")


@router.listener("orders")
async def on_order(message: Message) -> None:
    assert await message.ack() or message.body


@router.listener("orders", tags="plain", timeout=3, start_from="first")
def plain(message: Message) -> None:
    print(message.keys, message.properties["tenant"])


@router.listener("orders", tags="state || more", concurrency=4, missing_topics="create")
async def with_state(message: Message, state: Shop) -> None:
    state.paid += message.attempt


@router.listener("orders", tags="only", order_by=lambda message: message.sharding_key)
async def with_keyword(message: Message, *, state: Shop) -> int:
    return state.paid


@router.listener("many", batch_size=32)
async def many(messages: list[Message]) -> None:
    print(len(messages))


@router.listener("status")
async def concurrently(
    messages: list[Message], context: aiorocket.ConsumeConcurrentlyContext
) -> aiorocket.ConsumeConcurrentlyStatus:
    context.ack_index = len(messages) - 2
    return aiorocket.ConsumeConcurrentlyStatus.CONSUME_SUCCESS


@router.batch("batches", max_messages=100, max_wait=0.5)
async def batch(batch: Batch) -> None:
    batch.fail([0], retry_after=3)


@router.batch("batches", tags="plain")
def plain_batch(batch: Batch, state: Shop) -> None:
    state.paid += len(batch)


orders = Router("orders")


@orders.orderly("steps", suspend=0.5, on_exhausted="suspend")
async def step(message: Message) -> None:
    raise aiorocket.Retry(after=3)


@orders.orderly("steps", tags="many", batch_size=2)
def steps(messages: list[Message]) -> None:
    raise aiorocket.DeadLetter("no")


@orders.orderly("status")
async def orderly(
    messages: list[Message], context: aiorocket.ConsumeOrderlyContext
) -> aiorocket.ConsumeOrderlyStatus | None:
    context.auto_commit = False
    return None


class Handler:
    async def __call__(self, message: Message) -> None:
        print(message.topic)

    async def method(self, message: Message) -> None:
        print(message.tag)


async def main() -> None:
    config = aiorocket.ConsumerConfig(concurrency=8, allocate=lambda queues, ids, me: list(queues)[: len(ids)])
    options: SendOptions = {"tag": "paid", "keys": ["o-1"], "timeout": 3}
    async with Client(nameservers="127.0.0.1:9876", group="shop", ensure_topics=["orders"]) as client:
        client.include(router, state=Shop())
        async with client.running(drain_timeout=3), client.producer("p") as producer:
            receipt = await client.send("orders", b"x", **options)
            print(receipt.queue.broker_name, receipt.offset)
            await producer.send("orders", b"x", sharding_key="k", delay_level=3)
            async for outcome in producer.send_many("orders", [b"x"], sharding_key=lambda item: "k"):
                print(outcome.error)
        consumer: Consumer = client.consumer(config=config)
        consumer.listener("orders")(Handler())
        consumer.listener("orders", tags="b")(Handler().method)
        await consumer.subscribe("others", tags="a || b")
        async with consumer:
            async for message in consumer.messages():
                async with message.process(retry_delay=3):
                    print(message.reconsume_times)
        async with client.pull_consumer("etl") as etl:
            for message in await etl.fetch(100, timeout=1):
                print(message.offset)


aiorocket.run(main())
