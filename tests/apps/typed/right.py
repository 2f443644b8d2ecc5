"""What an application may write: type checkers say nothing here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec
from pydantic import BaseModel

import aiorocket
from aiorocket import (
    Batch,
    Client,
    ConsumeNext,
    Consumer,
    Message,
    Middleware,
    OutgoingMessage,
    PublishNext,
    Router,
    SendOptions,
)


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


@dataclass
class Order:
    id: str


class Parcel(msgspec.Struct):
    id: str


class Bill(BaseModel):
    id: str


@router.listener("typed")
async def typed(order: Order) -> None:
    print(order.id)


@router.listener("typed", tags="b", on_bad_body="skip")
def typed_with_message(parcel: Parcel, message: Message, state: Shop) -> None:
    print(parcel.id, message.group, state.paid)


@router.listener("typed", tags="c", batch_size=8)
async def typed_list(bills: list[Bill]) -> None:
    print(bills[0].id)


@router.listener("typed", tags="d")
async def typed_dict(order: dict[str, Any]) -> None:
    print(order["id"])


@router.batch("typed", tags="e")
async def typed_batch(orders: list[Order], batch: Batch) -> None:
    batch.fail([index for index, order in enumerate(orders) if not order.id], dead_letter=True)


class Audit(Middleware):
    async def publish(self, messages: list[OutgoingMessage], call_next: PublishNext) -> Any:
        return await call_next([replace(each, properties={**each.properties, "tenant": "a"}) for each in messages])

    async def consume(self, messages: list[Message], call_next: ConsumeNext) -> None:
        messages[0].body = messages[0].body[::-1]
        await call_next(messages)


orders = Router("orders", middleware=[Audit()])


@orders.orderly("typed")
async def typed_in_order(order: Order) -> None:
    print(order.id)


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
    async with Client(
        nameservers="127.0.0.1:9876", group="shop", ensure_topics=["orders"], middleware=[Audit()]
    ) as client:
        client.include(router, state=Shop())
        async with client.running(drain_timeout=3), client.producer("p") as producer:
            receipt = await client.send("orders", b"x", **options)
            print(receipt.queue.broker_name, receipt.offset)
            await producer.send("orders", b"x", sharding_key="k", delay_level=3)
            for body in (Order("o"), Parcel("o"), Bill(id="o"), {"id": "o"}):
                await client.send("orders", body)
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
