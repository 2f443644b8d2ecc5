"""The pull consumer, read like its documentation, against the embedded broker."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from aiorocket import Client, ClientConfig, Embedded, Queue, UsageError
from aiorocket.client.group.rebalance_hooks import RebalanceHooks
from aiorocket.client.message import Message
from aiorocket.client.pull.pull_consumer import PullConsumer
from aiorocket.config import PullConsumerConfig
from aiorocket.errors import ConfigError
from aiorocket_protocol import RequestCode, ResetOffsetRequestHeader


async def test_the_story_of_a_pull_consumer(mq: Embedded) -> None:
    await mq.create_topic("orders", queues=4)
    async with mq.producer() as producer:
        for number in range(40):
            await producer.send("orders", b"%d" % number, sharding_key=f"customer-{number % 8}")

    # An ETL job keeps what it has read in buffers, and writes them when they are full, or when it loses the queue.
    warehouse: list[bytes] = []

    class Buffers(RebalanceHooks):
        def __init__(self) -> None:
            self.waiting: list[Message] = []

        async def flush(self) -> None:
            warehouse.extend(message.body for message in self.waiting)
            await consumer.commit(self.waiting)
            self.waiting.clear()

        async def on_revoked(self, queues: list[Queue]) -> None:
            await self.flush()

    buffers = Buffers()
    consumer = PullConsumer("etl", nameservers=mq.nameservers, hooks=buffers)
    async with consumer:
        # Its share of the topic's queues: all of them, as long as it is alone.
        await consumer.subscribe("orders", start_from="first")
        assert consumer.assignment() == await consumer.queues("orders")

        # fetch gives what is there, [] when nothing came in that time, and no exception for either.
        while len(warehouse) + len(buffers.waiting) < 40:
            buffers.waiting += await consumer.fetch(max_messages=15, timeout=30)
            if len(buffers.waiting) >= 20:
                await buffers.flush()
        assert await consumer.fetch(max_messages=15, timeout=0.1) == []

        # One queue again, from an offset or a moment.
        queue = consumer.assignment()[0]
        await consumer.seek(queue, 2)
        (message,) = await consumer.fetch(1)
        assert (message.queue, message.offset) == (queue, 2)
        assert consumer.position(queue) == 3
        await consumer.seek_to_time(queue, datetime.now(UTC))
        assert await consumer.fetch(timeout=0.1) == []
    # Leaving gave the queues up, so what was left in the buffers is written and committed.
    assert sorted(warehouse, key=int) == [b"%d" % number for number in range(40)]

    # Whoever comes next has nothing left to do.
    async with PullConsumer("etl", nameservers=mq.nameservers) as successor:
        await successor.subscribe("orders", start_from="first")
        assert await successor.fetch(timeout=0.3) == []
        await successor.seek_to_begin(queue)
        assert successor.position(queue) == 0
        assert await successor.fetch() != []


async def test_a_message_knows_how_much_its_queue_has(mq: Embedded) -> None:
    await mq.create_topic("orders", queues=1)
    lags: list[int] = []
    async with mq.producer() as producer:
        for _ in range(5):
            await producer.send("orders", b"x")

    def lag(message: Message) -> int:
        assert message.queue_min_offset == 0 and message.queue_max_offset is not None
        return message.queue_max_offset - message.offset - 1

    async with mq.pull_consumer("etl") as pulling:
        await pulling.subscribe("orders", start_from="first")
        assert [lag(message) for message in await pulling.fetch()] == [4, 3, 2, 1, 0]
    done = asyncio.Event()
    consumer = mq.consumer("billing")

    @consumer.listener("orders", start_from="first", order_by=lambda message: "one at a time")
    async def on_order(message: Message) -> None:
        lags.append(lag(message))
        if len(lags) == 5:
            done.set()

    async with consumer, asyncio.timeout(30):
        await done.wait()
    assert lags == [4, 3, 2, 1, 0]


async def test_fixed_queues_without_a_group_to_share_them_with(mq: Embedded) -> None:
    await mq.create_topic("audit", queues=2)
    async with mq.producer() as producer:
        receipts = [await producer.send("audit", b"%d" % number) for number in range(10)]
    async with PullConsumer("audit-reader", nameservers=mq.nameservers) as consumer:
        one, other = await consumer.queues("audit")
        await consumer.assign([one], start_from="first")
        found = await consumer.fetch()
        assert [message.msg_id for message in found] == [each.msg_id for each in receipts if each.queue == one]
        assert await consumer.offset_for_time(other, 0) == 0
        await consumer.commit()
        assert consumer.committed(one) == 5
        await consumer.assign([one, other], start_from="first")
        assert {message.queue for message in await consumer.fetch()} == {other}


async def test_filters_and_namespaces(mq: Embedded) -> None:
    await mq.create_topic("team%orders", queues=1)
    config = ClientConfig(nameservers=mq.nameservers, namespace="team")
    async with Client(config=config) as client, client.producer("p") as producer:
        for tag in "abcab":
            await producer.send("orders", tag.encode(), tag=tag, properties={"size": str(ord(tag))})
        async with PullConsumer("tags", client=client) as consumer:
            await consumer.subscribe("orders", "a || c", start_from="first")
            found = await consumer.fetch()
            assert [message.body for message in found] == [b"a", b"c", b"a"]
            assert {message.topic for message in found} == {"orders"}
            (queue,) = consumer.assignment()
            assert queue.topic == "orders" and found[0].queue == queue
            async with asyncio.timeout(30):
                while consumer.committed(queue) != 5:  # what was filtered out behind the last message is passed too
                    await asyncio.sleep(0.005)
                    await consumer.commit()
        async with PullConsumer("sql", client=client) as consumer:
            await consumer.subscribe("orders", sql="size > 98", start_from="first")
            assert [message.body for message in await consumer.fetch()] == [b"c"]


async def test_an_administrator_resets_the_group(mq: Embedded, caplog: pytest.LogCaptureFixture) -> None:
    await mq.create_topic("t", queues=1)
    async with mq.producer() as producer, PullConsumer("g", nameservers=mq.nameservers) as consumer:
        for number in range(6):
            await producer.send("t", b"%d" % number)
        await consumer.subscribe("t", start_from="first")
        batch = await consumer.fetch()
        await consumer.commit(batch)
        header = ResetOffsetRequestHeader("t", "g", batch[0].store_timestamp, True)
        await consumer.client.call(mq.broker.address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        # The long poll that waits at the broker is answered, and the queue read again from there.
        again = await consumer.fetch(timeout=30)
        assert [message.body for message in again] == [message.body for message in batch]
        await consumer.commit(again[:2])
        assert consumer.committed(batch[0].queue) == 2
    assert "going on at 0" in caplog.text


async def test_what_is_misused_is_said(mq: Embedded) -> None:
    await mq.create_topic("t", queues=1)
    with pytest.raises(UsageError, match="client=, or nameservers="):
        PullConsumer("g", client=Client(), nameservers="127.0.0.1:1")
    with pytest.raises(UsageError, match="either hooks= or"):
        PullConsumer("g", hooks=RebalanceHooks(), on_revoked=RebalanceHooks().on_revoked)
    for wrong in ({"auto_commit_interval": 0.5}, {"hold": 30}, {"pull_batch_size": 0}, {"max_pull_idle": 30}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            PullConsumerConfig(**wrong)
    consumer = PullConsumer("g", nameservers=mq.nameservers)
    with pytest.raises(UsageError, match="is not started"):
        await consumer.fetch()
    async with mq.producer() as producer:
        await producer.send("t", b"x")
    async with consumer, PullConsumer("h", nameservers=mq.nameservers) as other:
        await consumer.subscribe("t", start_from="first")
        (message,) = await consumer.fetch()
        with pytest.raises(UsageError, match="subscribed to topic 't' already"):
            await consumer.subscribe("t")
        with pytest.raises(UsageError, match="uses subscribe, so it cannot assign"):
            await consumer.assign([message.queue])
        with pytest.raises(UsageError, match="was not fetched by this pull consumer"):
            await other.commit([message])
        with pytest.raises(UsageError, match="has no retries: seek back to 0"):
            await message.retry()
        with pytest.raises(UsageError, match="an offset is a number from 0 on"):
            await consumer.seek(message.queue, -1)
        with pytest.raises(UsageError, match="at least 1"):
            await consumer.fetch(0)
        with pytest.raises(UsageError, match="is not read by this member"):
            consumer.pause([Queue("t", "nobody", 0)])
    with pytest.raises(UsageError, match="was stopped"):
        await consumer.start()
    unused = PullConsumer("g", nameservers=mq.nameservers)
    await unused.stop()
    await unused.stop()
    assert not unused.state().running


async def test_a_client_has_one_member_of_a_group(mq: Embedded) -> None:
    await mq.create_topic("t", queues=1)
    async with (
        mq.client() as client,
        PullConsumer("g", client=client) as one,
        PullConsumer("g", client=client) as two,
    ):
        await one.subscribe("t")
        with pytest.raises(UsageError, match="already used by this Client"):
            await two.subscribe("t")
        assert one.assignment() == await one.queues("t") and two.assignment() == []
