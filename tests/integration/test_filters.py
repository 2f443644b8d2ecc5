"""Filters, as RocketMQ's documentation tells them: tags are one word per message and compared for equality, SQL92
expressions look at all its properties. Both are the broker's work, so what is not wanted does not travel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

import pytest

from aiorocket import Batch, ClientConfig, Consumer, ConsumerConfig, Embedded, Message, Producer, UsageError, embed
from aiorocket.errors import RemoteError
from aiorocket_protocol import PullMessageRequestHeader, RequestCode

Until = Callable[[Callable[[], bool]], Awaitable[None]]

#: A name, a tag, and properties. "end" passes every filter of this file, and comes last.
ORDERS: list[tuple[str, str, dict[str, str]]] = [
    ("small", "paid", {"amount": "5", "region": "eu"}),
    ("large", "paid", {"amount": "500", "region": "eu"}),
    ("abroad", "shipped", {"amount": "50", "region": "asia"}),
    ("nowhere", "cancelled", {"amount": "50"}),
    ("gift", "shipped", {"region": "eu"}),
    ("odd", "paid", {"amount": "a lot", "region": "eu"}),
    ("end", "paid", {"amount": "100", "region": "us"}),
]


async def send_orders(producer: Producer) -> None:
    for name, tag, properties in ORDERS:
        await producer.send("orders", name.encode(), tag=tag, properties=properties)


async def found(mq: Embedded, until: Until, tags: str = "*", *, sql: str | None = None) -> list[str]:
    """What a new group with this filter gets of the orders."""
    seen: list[str] = []
    await mq.create_topic("orders", queues=1)
    consumer = mq.consumer("reports")

    @consumer.listener("orders", tags, sql=sql, concurrency=1, start_from="first")
    async def on_order(message: Message) -> None:
        seen.append(message.body.decode())

    async with mq.producer("shop") as producer, consumer:
        await send_orders(producer)
        await until(lambda: "end" in seen)
    return seen


async def test_one_tag(mq: Embedded, until: Until) -> None:
    assert await found(mq, until, "paid") == ["small", "large", "odd", "end"]


async def test_any_of_several_tags(mq: Embedded, until: Until) -> None:
    assert await found(mq, until, "paid || shipped") == ["small", "large", "abroad", "gift", "odd", "end"]


async def test_a_star_is_everything_with_or_without_a_tag(mq: Embedded, until: Until) -> None:
    await mq.create_topic("orders", queues=1)
    async with mq.producer("shop") as producer:
        await producer.send("orders", b"no tag at all")
    assert await found(mq, until, "*") == ["no tag at all", *(name for name, _, _ in ORDERS)]


async def test_tags_are_told_apart_by_case_and_spaces_around_them_do_not_count(mq: Embedded, until: Until) -> None:
    await mq.create_topic("orders", queues=1)
    async with mq.producer("shop") as producer:
        await producer.send("orders", b"no", tag="PAID")
    assert await found(mq, until, "  paid||shipped ") == ["small", "large", "abroad", "gift", "odd", "end"]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("amount >= 100", ["large", "end"]),
        ("region = 'eu' AND amount < 10 OR region = 'us'", ["small", "end"]),
        ("amount BETWEEN 40 AND 100", ["abroad", "nowhere", "end"]),
        ("region IN ('asia', 'us')", ["abroad", "end"]),
        ("region CONTAINS 's'", ["abroad", "end"]),
        ("TAGS = 'paid' AND amount > 99", ["large", "end"]),
        ("amount IS NOT NULL AND region IS NULL OR region = 'us'", ["nowhere", "end"]),
    ],
)
async def test_sql92_over_properties(mq: Embedded, until: Until, sql: str, expected: list[str]) -> None:
    assert await found(mq, until, sql=sql) == expected


@pytest.mark.parametrize("kind", ["listener", "batch", "orderly"])
@pytest.mark.parametrize("model", ["clustering", "broadcasting"])
async def test_every_kind_of_listener_may_have_an_expression(
    mq: Embedded, until: Until, tmp_path: Path, kind: str, model: Literal["clustering", "broadcasting"]
) -> None:
    await mq.create_topic("orders", queues=1)
    seen: list[str] = []
    config = ConsumerConfig(message_model=model, offset_store_dir=str(tmp_path))

    async def on_order(message: Message | Batch) -> None:
        for each in message if isinstance(message, Batch) else [message]:
            seen.append(each.body.decode())

    async with mq.client(config=ClientConfig(instance="reports-1")) as client, mq.producer("shop") as producer:
        consumer = Consumer("reports", client=client, config=config)
        getattr(consumer, kind)("orders", sql="amount >= 100", start_from="first")(on_order)
        async with consumer:
            await send_orders(producer)
            await until(lambda: "end" in seen)
    assert seen == ["large", "end"]
    with pytest.raises(UsageError, match="filtered by one of them"):
        getattr(mq.consumer("reports"), kind)("orders", "paid", sql="amount > 5")


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        # A property that a message does not have is unknown, and so is its negation: neither lets "nowhere" pass.
        ("region = 'eu' OR region = 'us'", ["small", "large", "gift", "odd", "end"]),
        ("NOT (region = 'eu')", ["abroad", "end"]),
        # Unknown OR true is true: what is known may be enough.
        ("region = 'eu' OR amount > 40", ["small", "large", "abroad", "nowhere", "gift", "odd", "end"]),
        # As a number, "a lot" is as unknown as nothing.
        ("amount < 60 OR region = 'us'", ["small", "abroad", "nowhere", "end"]),
    ],
)
async def test_what_a_message_does_not_have_is_unknown(
    mq: Embedded, until: Until, sql: str, expected: list[str]
) -> None:
    assert await found(mq, until, sql=sql) == expected


async def test_a_bad_expression_fails_the_start_and_says_where(mq: Embedded) -> None:
    """The broker is asked before anything is consumed. (Tags need no broker to be refused.)"""
    await mq.create_topic("orders")
    consumer = mq.consumer("reports")

    @consumer.listener("orders", sql="amount > > 5")
    async def on_order(message: Message) -> None:
        """Never called."""

    with pytest.raises(UsageError, match=r"refuses SQL92 'amount > > 5' of topic 'orders': code 23, .*position 9"):
        await consumer.start()
    assert not consumer.client.started
    with pytest.raises(UsageError, match=r"tags='\|\|'"):
        mq.consumer("reports").listener("orders", "||")
    with pytest.raises(UsageError, match="filtered by one of them"):
        mq.consumer("reports").listener("orders", "paid", sql="amount > 5")


async def test_a_broker_may_serve_no_property_filters() -> None:
    """As Apache's does unless its enablePropertyFilter says otherwise."""
    async with embed(broker={"property_filter": False}) as mq:
        await mq.create_topic("orders")
        consumer = mq.consumer("reports")

        @consumer.listener("orders", sql="amount > 5")
        async def on_order(message: Message) -> None:
            """Never called."""

        with pytest.raises(UsageError, match=r"refuses SQL92 'amount > 5'.*property_filter"):
            await consumer.start()


async def test_class_filters_are_refused(mq: Embedded) -> None:
    """RocketMQ once ran Java classes beside the broker; it does not any more, and this broker says so to whoever asks.
    Ours cannot even ask: a listener has tags or SQL."""
    await mq.create_topic("orders", queues=1)
    class_filter = 1 << 3
    header = PullMessageRequestHeader("reports", "orders", 0, 0, 32, class_filter, 0, 1000, 1, "com.shop.MyFilter")
    async with mq.client() as client:
        with pytest.raises(RemoteError, match="class filter"):
            await client.session.call(mq.broker.address, RequestCode.PULL_MESSAGE, header)


@pytest.mark.parametrize("options", [{"tags": "paid"}, {"sql": "amount > 0 AND TAGS = 'paid'"}], ids=["tags", "sql"])
async def test_retries_pass_the_filter(mq: Embedded, until: Until, options: dict[str, str]) -> None:
    """A retry keeps its tag and its properties. It comes through the group's own retry topic, which nothing filters:
    what the group was given once, it is given again."""
    await mq.create_topic("orders", queues=1)
    seen: list[tuple[str, str, int]] = []
    consumer = mq.consumer("reports")

    @consumer.listener("orders", start_from="first", **options)  # type: ignore[arg-type]
    async def on_order(message: Message) -> None:
        seen.append((message.body.decode(), message.tag, message.attempt))
        if message.body == b"large" and message.attempt < 3:
            raise ValueError("too large for today")

    async with mq.producer("shop") as producer, consumer:
        await send_orders(producer)
        await until(lambda: ("large", "paid", 3) in seen)
    assert sorted(seen)[:4] == [("end", "paid", 1), ("large", "paid", 1), ("large", "paid", 2), ("large", "paid", 3)]


async def test_a_retry_is_delivered_even_when_its_tag_is_no_longer_wanted(mq: Embedded, until: Until) -> None:
    """As in RocketMQ: who changes a group's filter still gets the failures of the time before."""
    await mq.create_topic("orders", queues=1)
    seen: list[tuple[str, str, int]] = []

    def member(tags: str) -> Consumer:
        consumer = mq.consumer("reports")

        @consumer.listener("orders", tags, start_from="first")
        async def on_order(message: Message) -> None:
            seen.append((message.body.decode(), message.tag, message.attempt))
            if message.attempt == 1:
                raise ValueError("not now")

        return consumer

    async with mq.producer("shop") as producer:
        async with member("paid") as consumer:
            await producer.send("orders", b"x", tag="paid")
            await until(lambda: consumer.state().counters.retried == 1)
        async with member("shipped"):
            await until(lambda: ("x", "paid", 2) in seen)


async def test_what_is_filtered_out_does_not_stay_behind_as_lag(mq: Embedded, until: Until) -> None:
    """The offset passes over what the group does not want, so its lag is zero when there is nothing left for it."""
    await mq.create_topic("orders", queues=1)
    consumer = mq.consumer("reports", config=ConsumerConfig(hold=0.2))

    @consumer.listener("orders", "never sent", start_from="first")
    async def on_order(message: Message) -> None:
        raise AssertionError("nothing has this tag")

    async with mq.producer("shop") as producer:
        await send_orders(producer)
        async with consumer:
            await until(lambda: consumer.state().queues[-1].next_offset == len(ORDERS))
    assert mq.broker.offsets.query("reports", "orders", 0) == len(ORDERS)
