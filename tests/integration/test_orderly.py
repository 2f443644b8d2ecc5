"""Ordered messages, as RocketMQ's documentation tells them: the steps of an order in one queue by its sharding key, a
listener that gets them one after the other, one member at a time per queue, and a failure that holds up its queue and
no other."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from aiorocket import Client, ClientConfig, ConsumerConfig, Embedded, Message, Queue, Retry, Router, UsageError
from aiorocket.broker.core.locks import QueueKey
from aiorocket.client.group.leases import Leases
from aiorocket.client.push.status import ConsumeOrderlyContext, ConsumeOrderlyStatus

Until = Callable[[Callable[[], bool]], Awaitable[None]]

STEPS = ("created", "paid", "shipped", "delivered")


async def place_orders(mq: Embedded, orders: range) -> None:
    """The four steps of these orders, all mixed, each order's in their order."""
    async with mq.producer("shop") as producer:
        for step in STEPS:
            for number in orders:
                await producer.send("orders", step.encode(), keys=[f"o-{number}"], sharding_key=f"o-{number}")


async def test_the_steps_of_an_order_come_in_their_order(mq: Embedded, until: Until) -> None:
    await mq.create_topic("orders", queues=4)
    router = Router("billing")
    steps: defaultdict[str, list[str]] = defaultdict(list)
    busy: set[int] = set()

    @router.orderly("orders", start_from="first")
    async def apply_step(message: Message) -> None:
        assert message.queue.queue_id not in busy
        busy.add(message.queue.queue_id)
        await asyncio.sleep(0.001)
        steps[message.keys[0]].append(message.body.decode())
        busy.discard(message.queue.queue_id)

    async with mq.consumer("billing", router=router):
        await place_orders(mq, range(20))
        await until(lambda: sum(map(len, steps.values())) == 80)
    assert len(steps) == 20
    assert all(tuple(each) == STEPS for each in steps.values())


async def test_a_failure_holds_up_its_queue_and_no_other(mq: Embedded, until: Until) -> None:
    await mq.create_topic("orders", queues=2)
    router = Router("billing")
    seen: list[tuple[int, bytes, int]] = []

    @router.orderly("orders", suspend=0.02, start_from="first")
    async def apply_step(message: Message) -> None:
        seen.append((message.queue.queue_id, message.body, message.attempt))
        if message.body == b"bad" and message.attempt < 4:
            raise ValueError("the database is away")
        if message.body == b"later" and message.attempt < 2:
            raise Retry(after=0.05)

    consumer = mq.consumer("billing", router=router)
    async with consumer, mq.producer("shop") as producer:
        first, second = (Queue("orders", "broker-a", number) for number in range(2))
        for body in (b"bad", b"later", b"good"):
            await producer.send("orders", body, queue=first)
        await producer.send("orders", b"other", queue=second)
        await until(lambda: len(seen) == 8)
        await until(lambda: consumer.state().counters.consumed == 4)
        assert consumer.state().counters.suspended == 4
    own = [(body, attempt) for queue_id, body, attempt in seen if queue_id == 0]
    assert own == [(b"bad", 1), (b"bad", 2), (b"bad", 3), (b"bad", 4), (b"later", 1), (b"later", 2), (b"good", 1)]
    assert seen.index((1, b"other", 1)) < len(seen) - 1


async def test_after_the_last_attempt_the_queue_goes_on_without_the_message(mq: Embedded, until: Until) -> None:
    await mq.create_topic("orders", queues=1)
    router = Router("billing")
    seen: list[tuple[bytes, int]] = []
    dead: list[Message] = []

    @router.orderly("orders", max_attempts=3, suspend=0.01, start_from="first")
    async def apply_step(message: Message) -> None:
        seen.append((message.body, message.attempt))
        if message.body == b"bad":
            raise ValueError("never")

    consumer = mq.consumer("billing", router=router)
    async with consumer, mq.producer("shop") as producer:
        receipt = await producer.send("orders", b"bad", keys=["o-1"], properties={"tenant": "x"})
        await producer.send("orders", b"good")
        await until(lambda: len(seen) == 4)
        assert consumer.state().counters.dead_lettered == 1

        undertaker = mq.consumer("undertaker")

        @undertaker.listener("%DLQ%billing", start_from="first")
        async def bury(message: Message) -> None:
            dead.append(message)

        async with undertaker:
            await until(lambda: bool(dead))
    assert seen == [(b"bad", 1), (b"bad", 2), (b"bad", 3), (b"good", 1)]
    assert (dead[0].body, dead[0].keys, dead[0].properties["tenant"]) == (b"bad", ["o-1"], "x")
    assert (dead[0].properties["RETRY_TOPIC"], dead[0].msg_id) == ("orders", receipt.msg_id)
    assert dead[0].reconsume_times == 3


async def test_a_second_member_takes_over_queues_in_order(mq: Embedded, until: Until) -> None:
    await mq.create_topic("orders", queues=4)
    seen: list[tuple[str, str, str]] = []
    busy: set[int] = set()

    def member(name: str) -> Router:
        router = Router("billing")

        @router.orderly("orders", start_from="first")
        async def apply_step(message: Message) -> None:
            # Both members at once would be caught here.
            assert message.queue.queue_id not in busy
            busy.add(message.queue.queue_id)
            await asyncio.sleep(0.005)
            seen.append((name, message.keys[0], message.body.decode()))
            busy.discard(message.queue.queue_id)

        return router

    async with mq.consumer("billing", router=member("one")) as one:
        await place_orders(mq, range(25))
        await until(lambda: len(seen) > 10)
        async with mq.consumer("billing", router=member("two")) as two:
            await until(lambda: len([queue for queue in two.held() if queue.topic == "orders"]) == 2)
            await place_orders(mq, range(25, 35))  # the first may have done all others meanwhile
            await until(lambda: len(seen) >= 140)
            assert one._member.leases is not None
            assert not set(one.held()) & set(two.held())
        # What the second gave back at its end the first has again.
        await until(lambda: len([queue for queue in one.held() if queue.topic == "orders"]) == 4)
        async with mq.producer("shop") as producer:
            for number in range(4):
                await producer.send("orders", b"more", keys=["o-x"], queue=Queue("orders", "broker-a", number))
        await until(lambda: seen.count(("one", "o-x", "more")) == 4)
    steps: defaultdict[str, list[str]] = defaultdict(list)
    for _, key, step in seen:
        steps[key].append(step)
    del steps["o-x"]
    assert all(tuple(each) == STEPS for each in steps.values())
    assert {name for name, _, _ in seen} == {"one", "two"}


async def test_batches_in_status_mode_commit_by_hand(mq: Embedded, until: Until) -> None:
    """As a MessageListenerOrderly that was ported from Java."""
    await mq.create_topic("orders", queues=1)
    router = Router("billing")
    calls: list[list[bytes]] = []

    @router.orderly("orders", batch_size=2, suspend=0.01, start_from="first")
    async def on_messages(messages: list[Message], context: ConsumeOrderlyContext) -> ConsumeOrderlyStatus:
        context.auto_commit = False
        calls.append([message.body for message in messages])
        if len(calls) == 2:
            return ConsumeOrderlyStatus.ROLLBACK
        if messages[-1].body == b"3":
            return ConsumeOrderlyStatus.COMMIT
        return ConsumeOrderlyStatus.SUCCESS

    async with mq.producer("shop") as producer:
        for number in range(4):
            await producer.send("orders", b"%d" % number)
        async with mq.consumer("billing", router=router) as consumer:
            await until(lambda: consumer.state().counters.consumed == 4)
            await consumer.commit()
            (state,) = [each for each in consumer.state().queues if each.queue.topic == "orders"]
            assert state.committed == 4
    assert calls == [[b"0", b"1"], [b"2", b"3"], [b"0", b"1"], [b"2", b"3"]]


async def test_a_plain_function_runs_in_a_thread_one_at_a_time(mq: Embedded, until: Until) -> None:
    await mq.create_topic("orders", queues=1)
    router = Router("billing")
    seen: list[bytes] = []

    @router.orderly("orders", start_from="first")
    def apply_step(message: Message) -> None:
        seen.append(message.body)

    async with mq.consumer("billing", router=router), mq.producer("shop") as producer:
        for number in range(5):
            await producer.send("orders", b"%d" % number)
        await until(lambda: len(seen) == 5)
    assert seen == [b"0", b"1", b"2", b"3", b"4"]


async def test_the_commit_of_a_lost_queue_is_refused(mq: Embedded, until: Until) -> None:
    """The last line of defence: somebody who has not noticed yet that the queue is another's."""
    await mq.create_topic("orders", queues=1)
    queue = Queue("orders", "broker-a", 0)
    router = Router("billing")
    seen: list[bytes] = []
    go_on = asyncio.Event()

    @router.orderly("orders", start_from="first")
    async def apply_step(message: Message) -> None:
        seen.append(message.body)
        await go_on.wait()

    consumer = mq.consumer("billing", router=router)
    async with consumer, mq.producer("shop") as producer, mq.client() as thief:
        await producer.send("orders", b"one")
        await until(lambda: bool(seen))
        assert consumer._member.leases is not None
        before = consumer._member.leases.epoch(queue)
        key = QueueKey(*queue)
        now = asyncio.get_running_loop().time()
        assert mq.broker.locks.unlock("billing", consumer.client.client_id, [key], now) == 1
        stolen = Leases(thief.session, "billing", ConsumerConfig(), consumer._member.master_address)
        assert await stolen.acquire([queue]) == {queue}
        assert before is not None and (stolen.epoch(queue) or 0) > before
        go_on.set()
        await until(lambda: consumer.state().counters.consumed == 1)
        await consumer.commit()
        assert consumer.state().counters.stale_commits == 1
        await stolen.close()
    assert mq.broker.offsets.query("billing", "orders", 0) is None


async def test_broadcasting_is_in_order_for_each_member(mq: Embedded, until: Until, tmp_path: Path) -> None:
    await mq.create_topic("orders", queues=2)
    seen: dict[str, list[tuple[int, int]]] = {"one": [], "two": []}

    async def member(name: str, stack: AsyncExitStack) -> None:
        router = Router("audit")

        @router.orderly("orders", suspend=0.01, start_from="first")
        async def note(message: Message) -> None:
            if message.offset == 1 and message.attempt == 1:
                raise ValueError("once")
            seen[name].append((message.queue.queue_id, message.offset))

        settings = ClientConfig(nameservers=mq.nameservers, instance=name)
        client = await stack.enter_async_context(Client(config=settings))
        config = ConsumerConfig(message_model="broadcasting", offset_store_dir=str(tmp_path / name))
        consumer = client.consumer("audit", router=router, config=config)
        await stack.enter_async_context(consumer)
        assert consumer._member.leases is None

    async with AsyncExitStack() as stack, mq.producer("shop") as producer:
        for number in range(6):
            await producer.send("orders", b"x", queue=Queue("orders", "broker-a", number % 2))
        await member("one", stack)
        await member("two", stack)
        await until(lambda: all(len(each) == 6 for each in seen.values()))
    for each in seen.values():
        assert [[offset for queue_id, offset in each if queue_id == number] for number in (0, 1)] == [[0, 1, 2]] * 2


async def test_a_group_is_orderly_or_concurrent(mq: Embedded) -> None:
    router = Router("billing")

    @router.orderly("orders")
    async def in_order(message: Message) -> None: ...

    @router.listener("clicks")
    async def in_any_order(message: Message) -> None: ...

    with pytest.raises(UsageError, match="orderly and concurrent"):
        await mq.consumer("billing", router=router).start()
