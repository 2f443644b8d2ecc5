"""Where a group begins, and how it is made to begin elsewhere, as RocketMQ's documentation tells it: ConsumeFromWhere
decides for queues the group has no offset in, ``resetOffsetByTime`` moves a group whose offsets are known."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio

from aiorocket import Consumer, ConsumerConfig, Embedded, Message, Queue, Router, UsageError, embed
from aiorocket_protocol import RequestCode, ResetOffsetRequestHeader

Until = Callable[[Callable[[], bool]], Awaitable[None]]

#: How long a queue that is reset waits for what runs (RocketMQ: ten seconds), and the least between two resets of it.
SOON = ConsumerConfig(offset_illegal_delay=0.02, pull_error_delay=0.02)


@pytest_asyncio.fixture
async def pushing() -> AsyncIterator[Embedded]:
    """A broker that resets as those before 5.0: it tells the clients, and they do it."""
    async with embed(broker={"server_side_reset_offset": False}) as embedded:
        yield embedded


async def send(mq: Embedded, *bodies: str, queue: int | None = None) -> None:
    async with mq.producer("shop") as producer:
        for body in bodies:
            where = None if queue is None else Queue("orders", "broker-a", queue)
            await producer.send("orders", body.encode(), queue=where)


def member(mq: Embedded, seen: list[str], group: str = "billing", **options: Any) -> Consumer:
    consumer = mq.consumer(group, config=SOON)

    @consumer.listener("orders", concurrency=1, **options)
    async def bill(message: Message) -> None:
        seen.append(message.body.decode())

    return consumer


def aged(mq: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the broker take its topics for old ones: with their first messages no longer in memory."""
    monkeypatch.setattr(mq.broker.store, "is_young", lambda *_: False)


async def reset(mq: Embedded, stamp: int, group: str = "billing", **changes: Any) -> None:
    """INVOKE_BROKER_TO_RESET_OFFSET, as mqadmin's resetOffsetByTime sends it. ``stamp`` in milliseconds, -1 is the
    end."""
    header = ResetOffsetRequestHeader("orders", group, stamp, True)._replace(**changes)
    async with mq.client() as client:
        await client.session.call(mq.broker.address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)


async def now_and_later() -> int:
    """A moment, in milliseconds, that no message is stored in."""
    await asyncio.sleep(0.003)
    stamp = time.time_ns() // 1_000_000
    await asyncio.sleep(0.003)
    return stamp


# -- where to begin --


async def test_last_first_and_a_time(mq: Embedded, until: Until, monkeypatch: pytest.MonkeyPatch) -> None:
    """CONSUME_FROM_LAST_OFFSET (the default), _FIRST_OFFSET and _TIMESTAMP, of three groups that are new."""
    await mq.create_topic("orders", queues=1)
    await send(mq, "1", "2")
    moment = await now_and_later()
    await send(mq, "3")
    aged(mq, monkeypatch)
    last: list[str] = []
    first: list[str] = []
    timed: list[str] = []
    async with (
        member(mq, last, "last"),
        member(mq, first, "first", start_from="first"),
        member(mq, timed, "timed", start_from=datetime.fromtimestamp(moment / 1000, UTC)),
    ):
        await send(mq, "4")
        await until(lambda: last[-1:] == first[-1:] == timed[-1:] == ["4"])
    assert (last, first, timed) == (["4"], ["1", "2", "3", "4"], ["3", "4"])


async def test_a_young_topic_is_read_from_its_beginning(mq: Embedded, until: Until) -> None:
    """As long as a broker still has the first messages of a topic in memory, a new group gets all of it: whoever
    subscribes in the moment the topic comes into being must not miss its first message."""
    await mq.create_topic("orders", queues=1)
    await send(mq, "1")
    seen: list[str] = []
    async with member(mq, seen, start_from="last"):
        await until(lambda: seen == ["1"])


async def test_a_known_group_goes_on_where_it_was(mq: Embedded, until: Until, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it says it would like."""
    await mq.create_topic("orders", queues=1)
    await send(mq, "1", "2")
    seen: list[str] = []
    async with member(mq, seen, start_from="first"):
        await until(lambda: seen == ["1", "2"])
    await send(mq, "3")
    aged(mq, monkeypatch)
    for start in ("last", "first", 0):
        async with member(mq, seen, start_from=start):
            await until(lambda: seen[-1] == "3")
            await send(mq, "end")
            await until(lambda: seen[-1] == "end")
        await send(mq, "3")
    assert seen == ["1", "2", *["3", "end"] * 3]


async def test_a_groups_own_retries_are_never_passed_over(until: Until, monkeypatch: pytest.MonkeyPatch) -> None:
    """The retry topic is read from its beginning, whatever the group wants of others: what lies there is its own
    work."""
    async with embed(broker={"delay_levels": (0.3,)}) as mq:
        await mq.create_topic("orders", queues=1)
        failing = mq.consumer("billing")

        @failing.listener("orders")
        async def fail(message: Message) -> None:
            raise ValueError("not today")

        async with failing:
            await send(mq, "1")
            await until(lambda: failing.state().counters.retried == 1)
        # The message comes back while nobody is there.
        await until(lambda: mq.broker.store.max_offset("%RETRY%billing", 0) == 1)
        aged(mq, monkeypatch)
        seen: list[int] = []
        consumer = mq.consumer("billing")

        @consumer.listener("orders", start_from="last")
        async def bill(message: Message) -> None:
            seen.append(message.attempt)

        async with consumer:
            await until(lambda: seen == [2])


def test_a_start_that_means_nothing_is_refused() -> None:
    router = Router("billing")
    for wrong in ("yesterday", -1, datetime(2030, 1, 1), 1.5, True):
        with pytest.raises(UsageError, match="start_from="):
            router.listener("orders", start_from=wrong)  # type: ignore[arg-type]


# -- reset offset --


async def test_back_to_a_moment(mq: Embedded, until: Until) -> None:
    """The running group gets again what was stored since, and nothing of what was before. The broker keeps the reset
    for the group's next pull; a commit of what was consumed before cannot undo it."""
    await mq.create_topic("orders", queues=1)
    await send(mq, "1", "2")
    moment = await now_and_later()
    await send(mq, "3", "4")
    seen: list[str] = []
    async with member(mq, seen, start_from="first") as consumer:
        await until(lambda: seen == ["1", "2", "3", "4"])
        await consumer.commit()
        await reset(mq, moment)
        await until(lambda: seen[4:] == ["3", "4"])
        await send(mq, "5")
        await until(lambda: seen[6:] == ["5"])
    assert mq.broker.offsets.query("billing", "orders", 0) == 5


async def test_forward_over_a_backlog(mq: Embedded, until: Until) -> None:
    """The group is stuck on its first message; it is told to forget what waits and go on with what comes."""
    await mq.create_topic("orders", queues=1)
    await send(mq, *map(str, range(50)))
    stuck = asyncio.Event()
    seen: list[str] = []
    consumer = mq.consumer("billing", config=ConsumerConfig(offset_illegal_delay=0.02, hold=0.1))

    @consumer.listener("orders", concurrency=1, start_from="first")
    async def bill(message: Message) -> None:
        seen.append(message.body.decode())
        if message.body == b"0":
            await stuck.wait()

    async with consumer:
        await until(lambda: seen == ["0"])
        await reset(mq, -1)
        await until(lambda: mq.broker.offsets.query("billing", "orders", 0) == 50)
        # Its late result commits nothing: it is far behind by now.
        await until(lambda: any(each.next_offset == 50 and not each.cached for each in consumer.state().queues))
        stuck.set()
        await send(mq, "new")
        await until(lambda: seen == ["0", "new"])
    assert mq.broker.offsets.query("billing", "orders", 0) == 51


async def test_one_queue_to_an_offset(mq: Embedded, until: Until) -> None:
    await mq.create_topic("orders", queues=2)
    await send(mq, "a0", "a1", "a2", queue=0)
    await send(mq, "b0", "b1", "b2", queue=1)
    seen: list[str] = []
    async with member(mq, seen, start_from="first") as consumer:
        await until(lambda: len(seen) == 6)
        await consumer.commit()
        await reset(mq, 0, queue_id=1, offset=2)
        await until(lambda: seen[6:] == ["b2"])
        await send(mq, "end", queue=0)
        await until(lambda: seen[7:] == ["end"])


async def test_while_nobody_is_there(mq: Embedded, until: Until) -> None:
    """Whoever comes next begins there."""
    await mq.create_topic("orders", queues=1)
    await send(mq, "1", "2", "3")
    seen: list[str] = []
    async with member(mq, seen, start_from="first"):
        await until(lambda: len(seen) == 3)
    await reset(mq, 0, queue_id=0, offset=1)
    async with member(mq, seen):
        await until(lambda: seen[3:] == ["2", "3"])


async def test_other_groups_are_left_alone(mq: Embedded, until: Until) -> None:
    await mq.create_topic("orders", queues=1)
    await send(mq, "1", "2")
    seen: list[str] = []
    other: list[str] = []
    async with member(mq, seen, start_from="first"), member(mq, other, "reports", start_from="first"):
        await until(lambda: len(seen) == len(other) == 2)
        await reset(mq, 0)
        await until(lambda: seen[2:] == ["1", "2"])
        await send(mq, "3")
        await until(lambda: seen[4:] == ["3"] and other[2:] == ["3"])


async def test_an_orderly_group_goes_back_in_order(mq: Embedded, until: Until) -> None:
    await mq.create_topic("orders", queues=1)
    router = Router("billing")
    seen: list[str] = []

    @router.orderly("orders", start_from="first")
    async def bill(message: Message) -> None:
        seen.append(message.body.decode())

    await send(mq, "1", "2", "3")
    async with mq.consumer("billing", router=router, config=SOON) as consumer:
        await until(lambda: len(seen) == 3)
        await consumer.commit()
        await reset(mq, 0, queue_id=0, offset=1)
        await until(lambda: seen[3:] == ["2", "3"])
        await send(mq, "4")
        await until(lambda: seen[5:] == ["4"])
    assert mq.broker.offsets.query("billing", "orders", 0) == 4


async def test_a_reset_that_the_broker_pushes(pushing: Embedded, until: Until) -> None:
    """Brokers of the 4.x line send every client of the group the offsets (code 220), and each moves the queues it
    has. Two members, so each has one."""
    mq = pushing
    await mq.create_topic("orders", queues=2)
    seen: list[str] = []
    async with member(mq, seen, start_from="first") as one, member(mq, seen, start_from="first") as two:
        await until(lambda: all(sum(q.topic == "orders" for q in each.held()) == 1 for each in (one, two)))
        await send(mq, "a0", "a1", queue=0)
        await send(mq, "b0", "b1", queue=1)
        await until(lambda: len(seen) == 4)
        await one.commit()
        await two.commit()
        moment = await now_and_later()
        await send(mq, "a2", queue=0)
        await until(lambda: len(seen) == 5)
        await reset(mq, moment)
        await until(lambda: seen[5:] == ["a2"])
        await reset(mq, 0)
        await until(lambda: sorted(seen[6:]) == ["a0", "a1", "a2", "b0", "b1"])
