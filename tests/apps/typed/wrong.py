"""What every type checker has to refuse: each line that ends with ``# wrong`` is an error, and no other line is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import aiorocket
from aiorocket import Batch, Client, Message, Producer, Router

router = Router("billing")


@dataclass
class Order:
    id: str


async def of_a_number(number: int) -> None:
    print(number)


async def of_an_order(order: Order) -> None:
    print(order)


async def of_orders(orders: list[Order]) -> None:
    print(orders)


async def of_two(message: Message, other: int) -> None:
    print(message, other)


async def of_a_list(messages: list[Message]) -> None:
    print(messages)


async def of_nothing() -> None:
    print()


async def of_a_message(message: Message) -> None:
    print(message)


async def of_a_batch(batch: Batch) -> None:
    print(batch)


async def of_orderly(messages: list[Message], context: aiorocket.ConsumeOrderlyContext) -> Any:
    print(messages, context)


def plain_number(number: int) -> None:
    print(number)


router.listener("t")(of_a_number)  # wrong
router.listener("t")(of_orders)  # wrong
router.listener("t", batch_size=2)(of_an_order)  # wrong
router.batch("t")(of_an_order)  # wrong
router.listener("t", on_bad_body="retry")(of_an_order)  # wrong
router.listener("t")(plain_number)  # wrong
router.listener("t")(of_two)  # wrong
router.listener("t")(of_a_list)  # wrong
router.listener("t")(of_nothing)  # wrong
router.listener("t")(of_a_batch)  # wrong
router.listener("t")(of_orderly)  # wrong
router.listener("t", batch_size=2)(of_a_batch)  # wrong
router.batch("t")(of_a_message)  # wrong
router.orderly("t")(of_a_number)  # wrong
router.listener("t", tag="a")(of_a_message)  # wrong
router.listener("t", concurency=3)(of_a_message)  # wrong
router.listener("t", missing_topics="creat")(of_a_message)  # wrong
router.orderly("t", on_exhausted="skip")(of_a_message)  # wrong


async def main(client: Client, producer: Producer) -> None:
    await client.send("t", b"x", tags="a")  # wrong
    await client.send("t", "text")  # wrong
    await client.send("t", [Order("o")])  # wrong
    await producer.send("t", b"x", tags="a")  # wrong
    await producer.send("t", b"x", tag=3)  # wrong
    await producer.send("t", b"x", timeout="1")  # wrong
    await producer.send("t", b"x", delay="soon")  # wrong
    await client.send_oneway("t", b"x", delay_level=3)  # wrong
    client.producer("g", conig=aiorocket.ProducerConfig())  # wrong
    client.consumer("g", config=aiorocket.ProducerConfig())  # wrong
    aiorocket.embed(datta="store")  # wrong
    aiorocket.ClientConfig(nameserver="x")  # wrong
    receipt = await client.send("t", b"x")
    print(receipt.ofset)  # wrong
    message: Message = (await client.pull_consumer("g").fetch())[0]
    await message.acknowledge()  # wrong
