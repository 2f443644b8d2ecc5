"""Every kind of listener over the full way: status mode, batches, keys, plain functions, hooks; what fails comes back,
or ends with the dead letters."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

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
    Retry,
    Router,
    UsageError,
    embed,
)
from aiorocket.client.push.batch_listener import Batch
from aiorocket.client.push.hooks import ConsumeContext
from aiorocket.client.push.settlement import Settlement
from aiorocket.client.push.status import ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus

Until = Callable[[Callable[[], bool]], Awaitable[None]]
Status = ConsumeConcurrentlyStatus


async def send(mq: Embedded, topic: str, *bodies: bytes, **options: Any) -> None:
    async with mq.producer() as producer:
        for body in bodies:
            await producer.send(topic, body, **options)


async def dead_letters(mq: Embedded, group: str, count: int, until: Until) -> list[Message]:
    """The first so many of the group."""
    found: list[Message] = []
    undertaker = mq.consumer("undertaker")

    @undertaker.listener(f"%DLQ%{group}", start_from="first")
    async def bury(message: Message) -> None:
        found.append(message)

    async with undertaker:
        await until(lambda: len(found) >= count)
    return found


async def test_a_java_listener_ported_line_by_line(mq: Embedded, until: Until) -> None:
    await mq.create_topic("orders", queues=1)
    seen: list[tuple[list[bytes], list[int]]] = []
    consumer = mq.consumer("billing", config=ConsumerConfig(batch_size=4, concurrency=1))

    @consumer.listener("orders", start_from="first", max_attempts=3)
    async def on_orders(messages: list[Message], context: ConsumeConcurrentlyContext) -> object:
        seen.append(([message.body for message in messages], [message.attempt for message in messages]))
        if messages[0].attempt > 1:
            if messages[-1].body == b"dead":
                context.ack_index = len(messages) - 2
                context.delay_level = -1
            return Status.CONSUME_SUCCESS
        if messages[0].body == b"0":
            context.ack_index = 1
            return Status.CONSUME_SUCCESS
        return None

    await send(mq, "orders", *(b"%d" % number for number in range(4)), b"dead")
    async with consumer:
        await until(lambda: consumer.state().counters.consumed == 8 and consumer.state().counters.dead_lettered == 1)
        counters = consumer.state().counters
        assert (counters.retried, counters.skipped) == (3, 0)
    assert seen[:2] == [([b"0", b"1", b"2", b"3"], [1, 1, 1, 1]), ([b"dead"], [1])]
    again = sorted(body for bodies, _ in seen[2:] for body in bodies)
    assert again == [b"2", b"3", b"dead"]
    (dead,) = await dead_letters(mq, "billing", 1, until)
    assert (dead.body, dead.properties["RETRY_TOPIC"]) == (b"dead", "orders")


async def test_a_batch_listener_fails_some_of_its_messages(mq: Embedded, until: Until) -> None:
    await mq.create_topic("metrics", queues=2)
    batches: list[list[tuple[bytes, int]]] = []
    consumer = mq.consumer("store")

    @consumer.batch("metrics", max_messages=50, max_wait=0.1, concurrency=1, start_from="first", max_attempts=2)
    async def insert(batch: Batch) -> None:
        batches.append([(message.body, message.attempt) for message in batch])
        rejected = [index for index, body in enumerate(batch.bodies()) if body.startswith(b"bad")]
        batch.fail(rejected, retry_after=1, reason="rejected by the store")

    await send(mq, "metrics", *(b"good %d" % number for number in range(30)), b"bad 1", b"bad 2")
    async with consumer:
        await until(lambda: consumer.state().counters.dead_lettered == 2)
        assert consumer.state().counters.retried == 2
    seen = [entry for batch in batches for entry in batch]
    assert sorted(entry for entry in seen if entry[1] == 2) == [(b"bad 1", 2), (b"bad 2", 2)]
    assert len(seen) == 34
    assert max(map(len, batches)) > 1
    assert sorted(each.body for each in await dead_letters(mq, "store", 2, until)) == [b"bad 1", b"bad 2"]


async def test_keys_in_order_with_failures(mq: Embedded, until: Until) -> None:
    await mq.create_topic("accounts", queues=2)
    seen: dict[str, list[tuple[int, int]]] = defaultdict(list)
    router = Router("ledger")

    @router.listener(
        "accounts", order_by=lambda message: message.sharding_key, concurrency=8, suspend=0.03, max_attempts=3,
        start_from="first",
    )  # fmt: skip
    async def apply(message: Message) -> None:
        number = int(message.body)
        assert message.sharding_key is not None
        seen[message.sharding_key].append((number, message.attempt))
        await asyncio.sleep(0)
        if message.sharding_key == "a" and number == 2 and message.attempt < 3:
            raise ValueError("not yet")
        if message.sharding_key == "b" and number == 1:
            raise ValueError("never")

    async with mq.producer() as producer:
        for number in range(5):
            for key in "abc":
                await producer.send("accounts", b"%d" % number, sharding_key=key)
    consumer = mq.consumer(router=router)
    async with consumer:
        await until(lambda: consumer.state().counters.consumed == 15)
        counters = consumer.state().counters
        assert (counters.suspended, counters.dead_lettered, counters.retried) == (4, 1, 0)
        await consumer.commit()
        assert sum(each.committed for each in consumer.state().queues if each.queue.topic == "accounts") == 15
    assert seen["a"] == [(0, 1), (1, 1), (2, 1), (2, 2), (2, 3), (3, 1), (4, 1)]
    assert seen["b"] == [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1), (3, 1), (4, 1)]
    assert seen["c"] == [(number, 1) for number in range(5)]
    (dead,) = await dead_letters(mq, "ledger", 1, until)
    assert (dead.body, dead.sharding_key) == (b"1", "b")


async def test_plain_functions_run_beside_the_loop_in_every_mode(mq: Embedded, until: Until) -> None:
    threads: dict[str, set[str]] = defaultdict(set)

    def note(mode: str) -> None:
        threads[mode].add("loop" if threading.current_thread() is threading.main_thread() else "beside")

    def single(message: Message) -> None:
        note("single")

    def several(messages: list[Message]) -> None:
        note("several")

    def status(messages: list[Message], context: ConsumeConcurrentlyContext) -> Status:
        note("status")
        return Status.CONSUME_SUCCESS

    def batch(messages: Batch) -> None:
        note("batch")

    def keyed(message: Message) -> None:
        note("keyed")

    consumer: Any = mq.consumer("threads")
    for mode in ("single", "several", "status", "batch", "keyed"):
        await mq.create_topic(mode, queues=1)
        await send(mq, mode, b"x")
    consumer.listener("single", start_from="first")(single)
    consumer.listener("several", batch_size=2, start_from="first")(several)
    consumer.listener("status", start_from="first")(status)
    consumer.batch("batch", max_wait=0, start_from="first")(batch)
    consumer.listener("keyed", order_by=lambda message: 1, start_from="first")(keyed)
    async with consumer:
        await until(lambda: consumer.state().counters.consumed == 5)
    assert dict(threads) == {mode: {"beside"} for mode in ("single", "several", "status", "batch", "keyed")}


async def test_a_timeout_ends_a_call_in_every_mode(mq: Embedded, until: Until) -> None:
    async def slow(*arguments: Any) -> None:
        await asyncio.sleep(60)

    async def status(messages: list[Message], context: ConsumeConcurrentlyContext) -> object:
        await asyncio.sleep(60)
        return Status.CONSUME_SUCCESS

    modes: dict[str, Callable[[Consumer], Any]] = {
        "single": lambda consumer: consumer.listener("t", timeout=0.05, max_attempts=1, start_from="first")(slow),
        "several": lambda consumer: consumer.listener(
            "t", timeout=0.05, max_attempts=1, batch_size=2, start_from="first"
        )(slow),
        "status": lambda consumer: consumer.listener("t", timeout=0.05, max_attempts=1, start_from="first")(status),
        "batch": lambda consumer: consumer.batch("t", timeout=0.05, max_attempts=1, start_from="first")(slow),
        "keyed": lambda consumer: consumer.listener(
            "t", timeout=0.05, max_attempts=1, order_by=lambda message: 1, start_from="first"
        )(slow),
    }  # fmt: skip
    await mq.create_topic("t", queues=1)
    await send(mq, "t", b"x")
    for name, register in modes.items():
        consumer = mq.consumer(name)
        register(consumer)
        async with consumer:
            await until(lambda consumer=consumer: consumer.state().counters.dead_lettered == 1)  # type: ignore[misc]
            assert consumer.state().counters.timed_out == 1, name


async def test_by_key_a_plain_function_that_is_too_slow_is_not_overtaken(mq: Embedded, until: Until) -> None:
    await mq.create_topic("t", queues=1)
    events: list[tuple[str, bytes, int]] = []
    consumer: Any = mq.consumer("g")

    def slow(message: Message) -> None:
        events.append(("begin", message.body, message.attempt))
        if message.body == b"0" and message.attempt == 1:
            time.sleep(0.2)
        events.append(("end", message.body, message.attempt))

    consumer.listener("t", order_by=lambda message: 1, timeout=0.05, suspend=0.01, start_from="first")(slow)
    await send(mq, "t", b"0", b"1")
    async with consumer:
        await until(lambda: consumer.state().counters.consumed == 2)
        late = consumer.state().counters.timed_out
    # On a machine that has other things to do the second call may be too late as well.
    calls = [*((b"0", attempt) for attempt in range(1, late + 2)), (b"1", 1)]
    assert late >= 1 and events == [(what, *call) for call in calls for what in ("begin", "end")]


async def test_hooks_and_statistics(mq: Embedded, until: Until) -> None:
    await mq.create_topic("t", queues=1)
    contexts: list[tuple[str, int, bool, str]] = []

    class Audit:
        def before(self, context: ConsumeContext) -> None:
            assert context.started_ms > 0

        def after(self, context: ConsumeContext) -> None:
            kind = context.props["ConsumeContextType"]
            contexts.append((context.queue.topic, context.messages[0].attempt, context.success, kind))

    consumer = mq.consumer("g", hooks=[Audit()])

    @consumer.listener("t", start_from="first")
    async def on_message(message: Message) -> None:
        await asyncio.sleep(0.005)
        if message.attempt == 1 and message.body == b"1":
            raise Retry(after=0)

    await send(mq, "t", b"0", b"1")
    async with consumer:
        await until(lambda: consumer.state().counters.consumed == 3)
        loop = asyncio.get_running_loop()
        consumer.stats.sample(loop.time())
        status = consumer.stats.status("t")
        assert (status.consume_ok_tps, status.consume_failed_tps, status.consume_failed_msgs) == (0.1, 0.1, 1)
        assert 4 < status.consume_rt < 30_000
        assert status.pull_tps == pytest.approx(0.2)
        assert consumer.stats.status("%RETRY%g").consume_ok_tps == 0.1
    assert sorted(contexts[:2]) == [("t", 1, False, "FAILED"), ("t", 1, True, "SUCCESS")]
    assert contexts[2:] == [("%RETRY%g", 2, True, "SUCCESS")]


async def test_the_number_of_handlers_changes_while_they_run(mq: Embedded, until: Until) -> None:
    await mq.create_topic("t", queues=2)
    running, most = 0, 0
    consumer = mq.consumer("g")

    @consumer.listener("t", concurrency=1, start_from="first")
    async def on_message(message: Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    await send(mq, "t", *(b"%d" % number for number in range(60)))
    async with consumer:
        await until(lambda: consumer.state().counters.consumed >= 5)
        assert most == 1
        consumer.set_concurrency("t", 6)
        await until(lambda: most == 6)
        consumer.set_concurrency("t", 2)
        await until(lambda: consumer.state().counters.consumed == 60)
        with pytest.raises(UsageError, match="runs no listener of topic 'other'"):
            consumer.set_concurrency("other", 2)
    assert most == 6


async def test_a_failed_send_back_is_tried_again_here_as_one_more_attempt(
    mq: Embedded, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mq.create_topic("t", queues=1)
    attempts: list[int] = []
    refused = 0
    by_broker, by_message = Settlement._by_broker, Settlement._by_message

    def unless_refused(way: Any) -> Any:
        async def go(*arguments: Any) -> None:
            nonlocal refused
            if refused < 4:
                refused += 1
                raise NotConnectedError("no broker")
            await way(*arguments)

        return go

    monkeypatch.setattr(Settlement, "_by_broker", unless_refused(by_broker))
    monkeypatch.setattr(Settlement, "_by_message", unless_refused(by_message))
    consumer = mq.consumer("g", config=ConsumerConfig(local_retry_delay=0.02))

    @consumer.listener("t", start_from="first", max_attempts=3)
    async def on_message(message: Message) -> None:
        attempts.append(message.attempt)
        raise ValueError("no")

    await send(mq, "t", b"x")
    async with consumer:
        await until(lambda: consumer.state().counters.dead_lettered == 1)
        counters = consumer.state().counters
        # Two send-backs failed on both ways; the third attempt was the last, whatever the broker had counted.
        assert (attempts, counters.send_back_failed, counters.retried, counters.consumed) == ([1, 2, 3], 2, 0, 1)
    (dead,) = await dead_letters(mq, "g", 1, until)
    assert dead.body == b"x"


async def test_broadcasting_logs_and_drops_failures(
    mq: Embedded, until: Until, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await mq.create_topic("t", queues=1)
    attempts: list[tuple[bytes, int]] = []
    config = ConsumerConfig(message_model="broadcasting", offset_store_dir=str(tmp_path))
    client = Client(config=ClientConfig(nameservers=mq.nameservers, instance="audit-1"))
    consumer = client.consumer("g", config=config)

    @consumer.listener("t", start_from="first")
    async def on_message(message: Message) -> None:
        attempts.append((message.body, message.attempt))
        if message.body != b"good":
            raise DeadLetter("no") if message.body == b"dead" else ValueError("no")

    await send(mq, "t", b"bad", b"dead", b"good")
    async with client, consumer:
        await until(lambda: consumer.state().counters.consumed == 3)
        counters = consumer.state().counters
        assert (counters.broadcast_dropped, counters.retried, counters.dead_lettered) == (2, 0, 0)
    assert sorted(attempts) == [(b"bad", 1), (b"dead", 1), (b"good", 1)]
    assert caplog.text.count("failed and is dropped: the group broadcasts") == 2


async def test_options_that_do_not_go_together() -> None:
    router = Router()
    with pytest.raises(UsageError, match="come one at a time"):
        router.listener("t", order_by=len, batch_size=2)
    with pytest.raises(UsageError, match="suspend= is for listeners with order_by="):
        router.listener("t", suspend=1)
    with pytest.raises(UsageError, match="suspend=0: above 0 seconds"):
        router.listener("t", order_by=len, suspend=0)


@pytest.mark.parametrize("kind", ["one", "list", "batch", "keyed", "orderly", "orderly list"])
async def test_a_message_knows_when_its_listener_was_called(kind: str, until: Until) -> None:
    started: list[float | None] = []
    stamps: list[int] = []

    async def take(message: Any) -> None:
        messages = [message] if isinstance(message, Message) else list(message)
        started.extend(each.consume_started for each in messages)
        stamps.extend(int(each.properties["CONSUME_START_TIME"]) for each in messages)

    async with embed() as mq:
        await mq.create_topic("t", 1)
        consumer = mq.consumer("g")
        options: dict[str, Any] = {"start_from": "first"}
        match kind:
            case "one":
                consumer.listener("t", **options)(take)
            case "list":
                consumer.listener("t", batch_size=4, **options)(take)
            case "batch":
                consumer.batch("t", **options)(take)
            case "keyed":
                consumer.listener("t", order_by=lambda message: "k", **options)(take)
            case "orderly":
                consumer.orderly("t", **options)(take)
            case _:
                consumer.orderly("t", batch_size=4, **options)(take)
        loop = asyncio.get_running_loop()
        async with mq.producer("p") as producer:
            await producer.send_batch("t", [b"1", b"2"])
        begun, begun_ms = loop.time(), mq.env.clock.wall_ms()
        async with consumer:
            await until(lambda: len(started) == 2)
        assert all(moment is not None and begun <= moment <= loop.time() for moment in started)
        # RocketMQ's property says it by the wall clock.
        assert all(begun_ms - 2 <= stamp <= mq.env.clock.wall_ms() + 2 for stamp in stamps)


async def test_a_listener_that_keeps_the_loop_is_named_while_it_does(
    mq: Embedded, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiorocket.runtime.watchdog._waited_for_core", lambda _thread: 0.0)  # however busy this machine
    said: list[str] = []
    warned = threading.Event()

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())
            warned.set()

    await mq.create_topic("orders", queues=1)
    consumer = mq.consumer("billing", config=ConsumerConfig(loop_block_warning=0.05))
    done = asyncio.Event()

    @consumer.listener("orders", start_from="first")
    async def on_paid(message: Message) -> None:
        assert warned.wait(30)  # that is the mistake
        done.set()

    lines, log = Lines(), logging.getLogger("aiorocket.watchdog")
    log.addHandler(lines)
    try:
        async with consumer:
            await send(mq, "orders", b"paid")
            await done.wait()
            await until(lambda: len(said) == 2)
    finally:
        log.removeHandler(lines)
    assert "on_paid (" in said[0] and __file__ in said[0] and "consumer-billing/listener-orders" in said[0]
    assert said[1].startswith("the event loop turns again")
    quiet = mq.consumer("quiet", config=ConsumerConfig(loop_block_warning=0))
    quiet.listener("orders")(on_paid)
    async with quiet:
        assert not any(each.name == "aiorocket-watchdog" for each in threading.enumerate())
