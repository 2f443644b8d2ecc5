"""Sending to a real broker: every verb, every refusal, order by key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from aiorocket import (
    Embedded,
    Message,
    OutgoingMessage,
    ProducerConfig,
    Queue,
    SendReceipt,
    SendStatus,
    TopicNotFoundError,
    UsageError,
    embed,
)

Until = Callable[[Callable[[], bool]], Awaitable[None]]


async def test_a_receipt_says_where_the_message_is(mq: Embedded) -> None:
    await mq.create_topic("t", queues=1)
    async with mq.producer() as producer:
        first = await producer.send("t", b"a", tag="x", keys=["k"])
        second = await producer.send(OutgoingMessage(topic="t", body=b"b", keys=("k1", "k2"), flag=7))
    assert (first.queue, first.offset, first.status) == (Queue("t", "broker-a", 0), 0, SendStatus.SEND_OK)
    assert second.offset == 1
    assert len({first.msg_id, second.msg_id, first.offset_msg_id, second.offset_msg_id}) == 4


async def test_an_unknown_topic_is_created_by_the_first_send(mq: Embedded) -> None:
    async with mq.producer() as producer:
        receipts = [await producer.send("new", b"x") for _ in range(8)]
    assert {receipt.queue.queue_id for receipt in receipts} == {0, 1, 2, 3}


async def test_without_auto_creation_an_unknown_topic_is_an_error_that_says_so() -> None:
    async with embed(broker={"auto_create_topics": False}) as mq, mq.producer() as producer:
        with pytest.raises(TopicNotFoundError, match=r"'nowhere'.*no broker creates topics by itself: create it first"):
            await producer.send("nowhere", b"x")
        await mq.create_topic("somewhere")
        assert (await producer.send("somewhere", b"x")).offset == 0


@pytest.mark.parametrize(
    ("arguments", "options", "why"),
    [
        (("t", b""), {}, "empty body"),
        (("t", "text"), {}, "must be bytes"),
        (("t", b"x" * (4 << 20) + b"y"), {}, "4194305 bytes, max_message_size is 4194304"),
        (("no blanks", b"x"), {}, "topic 'no blanks'"),
        (("", b"x"), {}, "topic ''"),
        (("t" * 128, b"x"), {}, "1 to 127"),
        (("t", b"x"), {"tag": "a||b"}, "one tag"),
        (("t", b"x"), {"properties": {"DELAY": "3"}}, "reserved"),
        (("t", b"x"), {"queue": Queue("t", "broker-a", 99)}, "not a writable queue"),
        (("t", b"x"), {"delay_level": 19}, "1 to 18"),
        ((5,), {}, "OutgoingMessage"),
    ],
)
async def test_what_can_never_be_sent_is_refused_before_it_is(
    mq: Embedded, arguments: tuple[object, ...], options: dict[str, object], why: str
) -> None:
    await mq.create_topic("t")
    async with mq.producer() as producer:
        with pytest.raises(UsageError, match=why):
            await producer.send(*arguments, **options)  # type: ignore[arg-type]
        assert producer.in_flight == 0
        assert (await producer.send("t", b"fine")).offset == 0


async def test_group_names_are_checked() -> None:
    from aiorocket import Consumer, Producer

    for wrong in ("", "a b", "g" * 256, "é"):
        with pytest.raises(UsageError, match="group"):
            Producer(wrong)
        with pytest.raises(UsageError, match="group"):
            Consumer(wrong)


async def test_used_before_the_start_and_after_the_end(mq: Embedded) -> None:
    await mq.create_topic("t")
    producer = mq.producer()
    with pytest.raises(UsageError, match="not started"):
        await producer.send("t", b"x")
    async with producer:
        await producer.send("t", b"x")
    with pytest.raises(UsageError, match="make a new one"):
        await producer.send("t", b"x")
    with pytest.raises(UsageError, match="make a new one"):
        await producer.start()


async def test_one_key_one_queue_in_the_order_of_calls(mq: Embedded) -> None:
    await mq.create_topic("t", queues=4)
    async with mq.producer() as producer:
        sends = [producer.send("t", b"%d" % number, sharding_key=f"k{number % 3}") for number in range(60)]
        receipts: list[SendReceipt] = await asyncio.gather(*sends)
        for key in range(3):
            mine = receipts[key::3]
            assert len({receipt.queue for receipt in mine}) == 1
            assert [receipt.offset for receipt in mine] == sorted(receipt.offset for receipt in mine)


async def test_pinned_delayed_and_oneway(mq: Embedded, until: Until) -> None:
    await mq.create_topic("t", queues=4)
    seen: list[tuple[bytes, int]] = []
    consumer = mq.consumer("g")

    @consumer.listener("t", start_from="first")
    async def on_message(message: Message) -> None:
        seen.append((message.body, message.queue.queue_id))

    async with consumer, mq.producer() as producer:
        receipt = await producer.send("t", b"pinned", queue=Queue("t", "broker-a", 3))
        assert receipt.queue.queue_id == 3
        await producer.send("t", b"delayed", delay_level=5, queue=Queue("t", "broker-a", 1))
        assert await producer.send_oneway("t", b"oneway", queue=Queue("t", "broker-a", 2))
        await until(lambda: len(seen) == 3)
    assert sorted(seen) == [(b"delayed", 1), (b"oneway", 2), (b"pinned", 3)]


async def test_large_bodies_travel_compressed(mq: Embedded, until: Until) -> None:
    await mq.create_topic("t")
    seen: list[tuple[int, int, bytes]] = []
    consumer = mq.consumer("g")

    @consumer.listener("t", start_from="first")
    async def on_message(message: Message) -> None:
        seen.append((message.sys_flag, len(message.raw_body), message.body))

    body = b"0123456789" * 50_000
    async with consumer, mq.producer() as producer:
        await producer.send("t", body)
        await until(lambda: bool(seen))
    ((flag, size, arrived),) = seen
    assert (flag, arrived) == (0x301, body)
    assert size < 10_000


async def test_a_batch_has_consecutive_offsets(mq: Embedded, until: Until) -> None:
    await mq.create_topic("t", queues=2)
    seen: dict[str, tuple[bytes, str, int]] = {}
    consumer = mq.consumer("g")

    @consumer.listener("t", start_from="first")
    async def on_message(message: Message) -> None:
        seen[message.msg_id] = (message.body, message.tag, message.queue_offset)

    async with consumer, mq.producer() as producer:
        receipts = await producer.send_batch("t", [b"a", OutgoingMessage(topic="t", body=b"b", tag="x"), b"c"])
        assert await producer.send_batch("t", []) == []
        with pytest.raises(UsageError, match="send fewer"):
            await producer.send_batch("t", [b"x" * 3_000_000] * 2)
        with pytest.raises(UsageError, match="message 1 of the batch"):
            await producer.send_batch("t", [b"x", OutgoingMessage(topic="other", body=b"x")])
        await until(lambda: len(seen) == 3)
    assert len({receipt.queue for receipt in receipts}) == 1
    found = [seen[receipt.msg_id] for receipt in receipts]
    assert found == [(b"a", "", receipts[0].offset), (b"b", "x", receipts[1].offset), (b"c", "", receipts[2].offset)]
    assert [receipt.offset for receipt in receipts] == [0, 1, 2]


@pytest.mark.parametrize("ordered", [True, False])
async def test_send_many_reports_every_message(mq: Embedded, ordered: bool) -> None:
    await mq.create_topic("t")
    taken = 0

    async def source() -> AsyncIterator[bytes]:
        nonlocal taken
        for number in range(500):
            taken += 1
            yield b"" if number % 100 == 7 else b"%d" % number

    async with mq.producer() as producer:
        outcomes = []
        async for outcome in producer.send_many("t", source(), ordered=ordered, in_flight=16):
            outcomes.append(outcome)
            assert taken - len(outcomes) <= 3 * 16
    numbers = [outcome.number for outcome in outcomes]
    assert sorted(numbers) == list(range(500))
    assert not ordered or numbers == list(range(500))
    assert {outcome.number for outcome in outcomes if outcome.error} == {7, 107, 207, 307, 407}
    assert all((outcome.receipt is None) != (outcome.error is None) for outcome in outcomes)


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_source_that_fails_takes_no_outcome_with_it(mq: Embedded, asynchronous: bool) -> None:
    """They were cancelled with it, and whether they had been stored nobody heard."""

    def source() -> Iterator[bytes]:
        yield from (b"%d" % number for number in range(10))
        raise ValueError("line 11")

    async def one_by_one() -> AsyncIterator[bytes]:
        for body in source():
            yield body

    await mq.create_topic("t", queues=1)
    came: list[int] = []
    async with mq.producer("p") as producer:
        with pytest.raises(ValueError, match="line 11"):
            async for outcome in producer.send_many("t", one_by_one() if asynchronous else source(), in_flight=4):
                assert outcome.receipt is not None
                came.append(outcome.number)
    assert sorted(came) == list(range(10))


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_source_that_awaits_what_was_cancelled_is_no_end(mq: Embedded, asynchronous: bool) -> None:
    """Its CancelledError ended one of the senders, and the stream as if all had been sent."""

    def source() -> Iterator[bytes]:
        yield from (b"%d" % number for number in range(10))
        raise asyncio.CancelledError

    async def one_by_one() -> AsyncIterator[bytes]:
        for number in range(10):
            yield b"%d" % number
        away = asyncio.ensure_future(asyncio.Event().wait())
        away.cancel()
        await away

    await mq.create_topic("t", queues=1)
    came: list[int] = []
    async with mq.producer("p") as producer:
        with pytest.raises(RuntimeError, match="CancelledError"):
            async for outcome in producer.send_many("t", one_by_one() if asynchronous else source(), in_flight=4):
                assert outcome.receipt is not None
                came.append(outcome.number)
    assert sorted(came) == list(range(10))


async def test_leaving_send_many_early_ends_its_senders(mq: Embedded) -> None:
    await mq.create_topic("t")
    async with mq.producer() as producer:
        outcomes = producer.send_many("t", (b"x" for _ in range(10_000)), in_flight=8)
        async for outcome in outcomes:
            if outcome.number > 20:
                break
        await outcomes.aclose()  # type: ignore[attr-defined]
        assert producer.in_flight == 0


async def test_more_senders_than_max_in_flight_wait_their_turn(mq: Embedded) -> None:
    await mq.create_topic("t")
    async with mq.producer(config=ProducerConfig(max_in_flight=4)) as producer:
        receipts = await asyncio.gather(*(producer.send("t", b"x") for _ in range(50)))
    assert len({receipt.msg_id for receipt in receipts}) == 50
