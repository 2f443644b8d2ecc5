"""The full way: send, listen, fail, retry, dead letters; the async iterator; who gets what, and where a group goes
on."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

import pytest

from aiorocket import (
    Client,
    ClientConfig,
    Consumer,
    ConsumerConfig,
    DeadLetter,
    Embedded,
    Message,
    NotConnectedError,
    RemotingConfig,
    Retry,
    Router,
    Skip,
    TopicNotFoundError,
    UsageError,
)
from aiorocket.client.push.settlement import Settlement
from aiorocket.testing import SimCluster, Simulation, simulate

Until = Callable[[Callable[[], bool]], Awaitable[None]]


async def nothing(message: Message) -> None:
    """A listener that does nothing."""


async def test_a_failing_message_is_retried_and_then_dead_lettered(mq: Embedded, until: Until) -> None:
    await mq.create_topic("orders", queues=2)
    seen: list[tuple[bytes, int, str]] = []
    dead: list[Message] = []
    consumer = mq.consumer("billing")

    @consumer.listener("orders", max_attempts=3, start_from="first")
    async def on_order(message: Message) -> None:
        seen.append((message.body, message.attempt, message.topic))
        if message.body == b"bad":
            raise ValueError("cannot bill that")

    async with consumer, mq.producer() as producer:
        await producer.send("orders", b"good", keys=["o-1"])
        receipt = await producer.send("orders", b"bad", keys=["o-2"], properties={"tenant": "x"})
        await until(lambda: consumer.state().counters.dead_lettered == 1)
        state = consumer.state()
        assert (state.counters.retried, state.counters.consumed) == (2, 4)

        undertaker = mq.consumer("undertaker")

        @undertaker.listener("%DLQ%billing", start_from="first")
        async def bury(message: Message) -> None:
            dead.append(message)

        async with undertaker:
            await until(lambda: bool(dead))
    assert Counter(seen) == {(b"good", 1, "orders"): 1, **{(b"bad", attempt, "orders"): 1 for attempt in (1, 2, 3)}}
    (message,) = dead
    assert (message.body, message.keys, message.properties["tenant"]) == (b"bad", ["o-2"], "x")
    assert message.properties["RETRY_TOPIC"] == "orders"
    # UNIQ_KEY goes along, so the sender's receipt finds the message again.
    assert message.msg_id == receipt.msg_id


async def test_explicit_exits(mq: Embedded, until: Until) -> None:
    await mq.create_topic("t")
    seen: list[tuple[bytes, int]] = []
    consumer = mq.consumer("g")

    @consumer.listener("t", start_from="first")
    async def on_message(message: Message) -> None:
        seen.append((message.body, message.attempt))
        if message.attempt == 1:
            raise {b"retry": Retry(after=1), b"dead": DeadLetter("no use"), b"skip": Skip("not mine")}[message.body]

    async with consumer, mq.producer() as producer:
        for body in (b"retry", b"dead", b"skip"):
            await producer.send("t", body)
        await until(lambda: (b"retry", 2) in seen)
        await until(lambda: consumer.state().cached == 0)
        counters = consumer.state().counters
    assert (counters.retried, counters.dead_lettered, counters.skipped, counters.consumed) == (1, 1, 1, 4)
    assert sorted(seen) == [(b"dead", 1), (b"retry", 1), (b"retry", 2), (b"skip", 1)]


async def test_async_iterator_with_every_settlement(mq: Embedded, until: Until) -> None:
    await mq.create_topic("t", queues=1)
    seen: list[tuple[bytes, int]] = []
    async with mq.consumer("g") as consumer, mq.producer() as producer:
        await consumer.subscribe("t", start_from="first")
        for body in (b"ack", b"fail", b"retry", b"dead", b"plain"):
            await producer.send("t", body)
        async for message in consumer.messages(buffer=16):
            seen.append((message.body, message.attempt))
            match message.body, message.attempt:
                case b"ack", _:
                    assert await message.ack()
                    assert not await message.ack()
                case b"retry", 1:
                    assert await message.retry(after=0.5)
                case b"dead", _:
                    assert await message.dead_letter("why not")
                case _:
                    async with message.process():
                        if message.body == b"fail" and message.attempt == 1:
                            raise ValueError("once")
            if {(b"fail", 2), (b"retry", 2), (b"plain", 1)} <= set(seen):
                break
        await until(lambda: consumer.state().cached == 0)
        counters = consumer.state().counters
    assert (counters.retried, counters.dead_lettered) == (2, 1)


async def test_leaving_the_loop_settles_nothing(mq: Embedded) -> None:
    await mq.create_topic("t", queues=1)
    async with mq.producer() as producer:
        for number in range(10):
            await producer.send("t", b"%d" % number)
    async with mq.consumer("g") as consumer:
        await consumer.subscribe("t", start_from="first")
        async for message in consumer.messages():
            if message.body == b"4":
                break
            await message.ack()
    async with mq.consumer("g") as consumer:
        await consumer.subscribe("t")
        taken = [await anext(consumer.messages()) for _ in range(6)]
        assert [message.body for message in taken] == [b"4", b"5", b"6", b"7", b"8", b"9"]
        assert [message.attempt for message in taken] == [1] * 6


async def test_the_iterators_buffer_holds_back_the_pulling(mq: Embedded, until: Until) -> None:
    await mq.create_topic("t", queues=1)
    async with mq.producer() as producer:
        await producer.send_batch("t", [b"x"] * 100)
    async with mq.consumer("g", config=ConsumerConfig(pull_batch_size=8)) as consumer:
        messages = consumer.messages(buffer=10)
        await consumer.subscribe("t", start_from="first")
        await until(lambda: any(queue.blocked == "buffer" for queue in consumer.state().queues))
        assert consumer.state().cached <= 10 + 8
        for _ in range(100):
            await (await anext(messages)).ack()


async def test_pause_and_resume(mq: Embedded, until: Until) -> None:
    await mq.create_topic("t", queues=1)
    seen: list[bytes] = []
    consumer = mq.consumer("g", config=ConsumerConfig(hold=0.2))

    @consumer.listener("t", start_from="first")
    async def on_message(message: Message) -> None:
        seen.append(message.body)

    async with consumer, mq.producer() as producer:
        await producer.send("t", b"1")
        await until(lambda: seen == [b"1"])
        consumer.pause("t")
        # The pull that was parked at the broker when we paused may still bring something; afterwards nothing comes.
        await until(lambda: any(queue.blocked == "paused" for queue in consumer.state().queues))
        await producer.send("t", b"2")
        await asyncio.sleep(0.3)
        assert seen == [b"1"]
        consumer.resume()
        await until(lambda: seen == [b"1", b"2"])


async def test_a_group_goes_on_where_it_committed(mq: Embedded, until: Until) -> None:
    await mq.create_topic("t", queues=4)
    seen: list[bytes] = []

    def member() -> Consumer:
        consumer = mq.consumer("g")

        @consumer.listener("t", start_from="first")
        async def on_message(message: Message) -> None:
            seen.append(message.body)

        return consumer

    async with mq.producer() as producer:
        for number in range(40):
            await producer.send("t", b"%d" % number)
        async with member() as consumer:
            await until(lambda: len(seen) == 40)
            await consumer.commit()
            committed = {state.queue: state.committed for state in consumer.state().queues if state.queue.topic == "t"}
            assert sorted(committed.values()) == [10, 10, 10, 10]
        await producer.send("t", b"later")
        async with member():
            await until(lambda: len(seen) == 41)
    assert seen[-1] == b"later"


async def test_an_unfinished_message_holds_back_the_offset(mq: Embedded, until: Until) -> None:
    await mq.create_topic("t", queues=1)
    hold = asyncio.Event()
    seen: list[bytes] = []
    consumer = mq.consumer("g")

    @consumer.listener("t", start_from="first")
    async def on_message(message: Message) -> None:
        if message.body == b"3":
            await hold.wait()
        seen.append(message.body)

    async with mq.producer() as producer:
        for number in range(6):
            await producer.send("t", b"%d" % number)
        await consumer.start()
        await until(lambda: len(seen) == 5)
        await consumer.commit()
        state = next(state for state in consumer.state().queues if state.queue.topic == "t")
        assert (state.committed, state.cached) == (3, 1)
        hold.set()
        await consumer.stop()
    assert len(seen) == 6


async def test_stopping_never_sends_back_what_it_interrupts(mq: Embedded, until: Until) -> None:
    await mq.create_topic("t", queues=1)
    attempts: list[int] = []

    def member(stuck: bool) -> Consumer:
        consumer = mq.consumer("g")

        @consumer.listener("t", start_from="first")
        async def on_message(message: Message) -> None:
            attempts.append(message.attempt)
            if stuck:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    # What libraries do to a cancellation must not look like the message's own failure.
                    raise RuntimeError("connection closed") from None

        return consumer

    async with mq.producer() as producer:
        await producer.send("t", b"x")
        first = member(stuck=True)
        await first.start()
        await until(lambda: attempts == [1])
        await first.stop(timeout=0.05)
        assert first.state().counters.retried == 0
        async with member(stuck=False):
            await until(lambda: attempts == [1, 1])


async def test_two_members_share_the_queues_and_one_inherits(mq: Embedded, until: Until) -> None:
    await mq.create_topic("t", queues=4)

    def member() -> Consumer:
        consumer = mq.consumer("g")
        consumer.listener("t", start_from="first")(nothing)
        return consumer

    def held(consumer: Consumer) -> int:
        return sum(queue.topic == "t" for queue in consumer.held())

    async with member() as first:
        assert held(first) == 4
        async with member() as second:
            assert held(second) == 2
            await until(lambda: held(first) == 2)
            assert set(first.held()).isdisjoint(second.held())
            assert len(first.state().members) == 2
        await until(lambda: held(first) == 4)


async def test_tags_are_filtered_exactly(mq: Embedded, until: Until) -> None:
    await mq.create_topic("t", queues=1)
    seen: list[tuple[str, str]] = []
    # A parked pull is woken by messages that match; what does not is only passed over when it ends.
    consumer = mq.consumer("g", config=ConsumerConfig(hold=0.2))
    for tags in ("Aa", "x || y"):

        @consumer.listener("t", tags, start_from="first")
        async def on_message(message: Message, tags: str = tags) -> None:
            seen.append((tags, message.tag))

    async with consumer, mq.producer() as producer:
        # "Aa" and "BB" have one Java hash, so the broker lets both through.
        for tag in ("Aa", "BB", "y", "z", ""):
            await producer.send("t", b"x", tag=tag)
        await until(lambda: len(seen) == 2 and consumer.state().queues[-1].next_offset == 5)
        await consumer.commit()
        assert consumer.state().queues[-1].committed == 5
    assert sorted(seen) == [("Aa", "Aa"), ("x || y", "y")]


async def test_batches_succeed_and_fail_together(mq: Embedded, until: Until) -> None:
    await mq.create_topic("t", queues=1)
    batches: list[list[tuple[bytes, int]]] = []
    consumer = mq.consumer("g")

    @consumer.listener("t", batch_size=8, concurrency=1, start_from="first")
    async def on_batch(messages: list[Message]) -> None:
        batches.append([(message.body, message.attempt) for message in messages])
        if messages[0].attempt == 1:
            raise ValueError("all of them again")

    async with mq.producer() as producer:
        await producer.send_batch("t", [b"%d" % number for number in range(20)])
    # On a slow machine retries would come early enough to share a batch with first deliveries.
    consumer.pause("%RETRY%g")
    async with consumer:
        await until(lambda: sum(map(len, batches)) == 20)
        consumer.resume()
        await until(lambda: sum(map(len, batches)) == 40)
    assert max(map(len, batches)) == 8
    assert Counter(entry for batch in batches for entry in batch) == {
        (b"%d" % number, attempt): 1 for number in range(20) for attempt in (1, 2)
    }


async def test_a_handlers_timeout_cancels_it_and_retries(mq: Embedded, until: Until) -> None:
    await mq.create_topic("t", queues=1)
    seen: list[int] = []
    consumer = mq.consumer("g")

    @consumer.listener("t", timeout=0.05, start_from="first")
    async def on_message(message: Message) -> None:
        seen.append(message.attempt)
        if message.attempt == 1:
            await asyncio.Event().wait()

    async with consumer, mq.producer() as producer:
        await producer.send("t", b"slow")
        await until(lambda: seen == [1, 2])
        assert consumer.state().counters.timed_out == 1


async def test_the_consume_timeout_gives_a_message_back_and_ignores_the_late_result(mq: Embedded, until: Until) -> None:
    await mq.create_topic("t", queues=1)
    seen: list[int] = []
    release = asyncio.Event()
    consumer = mq.consumer("g", config=ConsumerConfig(consume_timeout=0.2))

    @consumer.listener("t", start_from="first")
    async def on_message(message: Message) -> None:
        seen.append(message.attempt)
        if message.attempt == 1:
            await release.wait()

    async with consumer, mq.producer() as producer:
        await producer.send("t", b"slow")
        await until(lambda: seen == [1, 2])
        release.set()
        await until(lambda: consumer.state().counters.late == 1)
        assert consumer.state().counters.retried == 1


async def test_plain_functions_run_in_a_thread(mq: Embedded, until: Until) -> None:
    await mq.create_topic("t")
    names: list[str] = []
    router = Router("g")

    @router.listener("t", start_from="first")
    def on_message(message: Message) -> None:
        names.append(threading.current_thread().name)

    async with mq.consumer(router=router), mq.producer() as producer:
        await producer.send("t", b"x")
        await until(lambda: bool(names))
    assert names[0].startswith("aiorocket-g-t")


async def test_plain_functions_run_as_many_at_a_time_as_they_may(mq: Embedded, until: Until) -> None:
    """In threads of their own: neither fewer because the loop's pool is small or busy, nor more."""
    await mq.create_topic("t", queues=8)
    router, lock, running, most = Router("g"), threading.Lock(), 0, 0
    everybody = threading.Barrier(24)

    @router.listener("t", start_from="first", concurrency=24)
    def on_message(message: Message, state: object) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        everybody.wait(10)  # only if 24 run at once
        with lock:
            running -= 1

    blocked = threading.Event()
    loop = asyncio.get_running_loop()
    busy = [loop.run_in_executor(None, blocked.wait, 10) for _ in range(40)]
    try:
        async with mq.client() as client, mq.producer() as producer:
            client.include(router, state=client)
            async with client.running():
                for _ in range(48):
                    await producer.send("t", b"x")
                await until(lambda: client.health().consumers[0].consumed == 48)
    finally:
        blocked.set()
        await asyncio.gather(*busy)
    assert most == 24


@pytest.mark.parametrize("serializer", ["json", "rocketmq", "msgpack"])
async def test_the_full_way_in_every_serialisation(mq: Embedded, until: Until, serializer: str) -> None:
    await mq.create_topic("t", queues=1)
    config = ClientConfig(nameservers=mq.nameservers, remoting=RemotingConfig(serializer=serializer))  # type: ignore[arg-type]
    seen: list[tuple[bytes, str, int]] = []
    async with Client(config=config, group="g") as client:
        consumer = client.consumer()

        @consumer.listener("t", start_from="first")
        async def on_message(message: Message) -> None:
            seen.append((message.body, message.properties["größe"], message.attempt))
            if message.attempt == 1:
                raise Retry()

        async with consumer, client.producer() as producer:
            await producer.send("t", b"\x00\xff" * 5000, properties={"größe": "ü"})
            await until(lambda: len(seen) == 2)
    assert seen == [(b"\x00\xff" * 5000, "ü", 1), (b"\x00\xff" * 5000, "ü", 2)]


@pytest.mark.parametrize("last", [None, DeadLetter("enough")])
async def test_what_cannot_be_sent_back_goes_through_the_retry_topic(
    mq: Embedded, until: Until, monkeypatch: pytest.MonkeyPatch, last: DeadLetter | None
) -> None:
    async def refuse(*_: object) -> None:
        raise NotConnectedError("the broker of this message is away")

    monkeypatch.setattr(Settlement, "_by_broker", refuse)
    await mq.create_topic("t", queues=1)
    seen: list[tuple[int, bytes, str, dict[str, str]]] = []
    consumer = mq.consumer("g")

    @consumer.listener("t", max_attempts=3, start_from="first")
    async def on_message(message: Message) -> None:
        seen.append((message.attempt, message.body, message.tag, message.properties))
        raise last if last is not None and message.attempt == 2 else Retry()

    dead: list[Message] = []
    undertaker = mq.consumer("undertaker")

    @undertaker.listener("%DLQ%g", start_from="first")
    async def bury(message: Message) -> None:
        dead.append(message)

    async with consumer, mq.producer() as producer:
        await producer.send("t", b"x" * 5000, tag="a", properties={"tenant": "y"})
        await until(lambda: consumer.state().counters.dead_lettered == 1)
        async with undertaker:
            await until(lambda: bool(dead))
    assert [entry[0] for entry in seen] == ([1, 2] if last else [1, 2, 3])
    assert all((body, tag, kept["tenant"]) == (b"x" * 5000, "a", "y") for _, body, tag, kept in seen)
    assert dead[0].body == b"x" * 5000


async def test_a_group_is_used_once_per_client(mq: Embedded) -> None:
    await mq.create_topic("t")
    async with mq.client(group="g") as client, client.consumer(), client.producer():
        second = client.consumer()
        with pytest.raises(UsageError, match="needs its own Client"):
            await second.start()
        with pytest.raises(UsageError, match="share the Producer"):
            await client.producer().start()
        with pytest.raises(UsageError, match="used up"):
            await second.start()


def test_a_start_that_cannot_settle_says_what_is_missing() -> None:
    async def start(sim: Simulation, nameservers: Iterable[str]) -> None:
        config = ClientConfig(nameservers=tuple(nameservers), start_timeout=2)
        async with Client(config=config, env=sim.env()) as client:
            consumer = client.consumer("g")
            consumer.listener("nowhere", missing_topics="error")(nothing)
            await consumer.start()

    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            host = sim.host("10.2.0.1")
            with pytest.raises(TopicNotFoundError, match=r"after 2 s.*'nowhere'.*create topics at the first send"):
                await host.run(start(sim, cluster.endpoints))
            with pytest.raises(NotConnectedError, match="no name server answers"):
                await host.run(start(sim, ["10.0.0.99:1"]))

    simulate(scenario)


async def test_many_starts_and_stops_leave_nothing(mq: Embedded, until: Until) -> None:
    await mq.create_topic("t")
    tasks = len(asyncio.all_tasks())
    for _ in range(40):
        consumer = mq.consumer("g")
        consumer.listener("t")(nothing)
        async with consumer, mq.producer() as producer:
            await producer.send("t", b"x")
    await until(lambda: len(asyncio.all_tasks()) == tasks)
