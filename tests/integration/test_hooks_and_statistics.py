"""Hooks and statistics, as RocketMQ's documentation tells them: a hook sees every send and every call of a listener
(message tracing is made of them), the client counts what it pulls and consumes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from aiorocket import ConsumeContext, ConsumerConfig, Embedded, Message, Retry, SendContext, SendError

Until = Callable[[Callable[[], bool]], Awaitable[None]]


class Trace:
    """The way of messages by their bodies, as a tracing tool would note it; for producers and consumers alike."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, bytes, str]] = []

    def before(self, context: SendContext | ConsumeContext) -> None:
        context.props["trace"] = "seen before"

    def after(self, context: SendContext | ConsumeContext) -> None:
        assert context.props["trace"] == "seen before"
        if isinstance(context, SendContext):
            self.steps.append(("sent", context.body, "refused" if context.error is not None else "stored"))
        else:
            for message in context.messages:
                self.steps.append(("consumed", message.body, context.props["ConsumeContextType"]))


async def test_the_way_of_a_message(mq: Embedded, until: Until) -> None:
    await mq.create_topic("orders", queues=1)
    trace = Trace()
    consumer = mq.consumer("billing", hooks=[trace])

    @consumer.listener("orders", start_from="first")
    async def bill(message: Message) -> None:
        if message.attempt == 1:
            raise Retry

    async with mq.producer("shop", hooks=[trace]) as shop, consumer:
        await shop.send("orders", b"1")
        await until(lambda: consumer.state().counters.consumed == 2)
    # Who waits for a message may be done with it before its sender hears.
    trace.steps.remove(("sent", b"1", "stored"))
    assert trace.steps == [("consumed", b"1", "FAILED"), ("consumed", b"1", "SUCCESS")]


async def test_a_send_has_as_many_steps_as_attempts(mq: Embedded) -> None:
    await mq.create_topic("orders", queues=1)
    trace = Trace()
    async with mq.producer("shop", hooks=[trace]) as shop:
        await shop.send("orders", b"1")
        await mq.broker.close()
        with pytest.raises(SendError):
            await shop.send("orders", b"2", timeout=0.5)
    assert trace.steps[0] == ("sent", b"1", "stored")
    assert set(trace.steps[1:]) == {("sent", b"2", "refused")}


@pytest.mark.parametrize(
    ("what", "kind", "success"),
    [
        ("fine", "SUCCESS", True),
        ("retry", "FAILED", False),
        ("error", "EXCEPTION", False),
        ("slow", "TIME_OUT", True),
    ],
)
async def test_how_a_call_ended(mq: Embedded, until: Until, what: str, kind: str, success: bool) -> None:
    """RocketMQ's ConsumeReturnType; the fifth, RETURNNULL, is a listener in status mode that returns None. A call that
    lasted longer than the consume timeout is late, whatever it says."""
    await mq.create_topic("orders", queues=1)
    ends: list[tuple[str, bool]] = []

    class End:
        def before(self, context: ConsumeContext) -> None:
            assert (context.group, context.queue.topic, context.namespace) == ("billing", "orders", "")

        def after(self, context: ConsumeContext) -> None:
            ends.append((context.props["ConsumeContextType"], context.success))

    config = ConsumerConfig(consume_timeout=0.05 if what == "slow" else 60)
    consumer = mq.consumer("billing", hooks=[End()], config=config)

    @consumer.listener("orders", start_from="first")
    async def bill(message: Message) -> None:
        if what == "retry":
            raise Retry(after=3600)
        if what == "error":
            raise ValueError("no such account")
        if what == "slow":
            await asyncio.sleep(0.06)

    async with mq.producer("shop") as shop, consumer:
        await shop.send("orders", b"1")
        await until(lambda: bool(ends))
        assert ends == [(kind, success)]


async def test_a_hook_that_fails_harms_nobody(mq: Embedded, until: Until, caplog: pytest.LogCaptureFixture) -> None:
    await mq.create_topic("orders", queues=1)

    class Broken:
        def before(self, context: object) -> None:
            raise ValueError("broken before")

        def after(self, context: object) -> None:
            raise ValueError("broken after")

    consumer = mq.consumer("billing", hooks=[Broken()])
    consumer.listener("orders", start_from="first")(_nothing)
    async with mq.producer("shop", hooks=[Broken()]) as shop, consumer:
        await shop.send("orders", b"1")
        await until(lambda: consumer.state().counters.consumed == 1)
    assert caplog.text.count("ValueError: broken before") == caplog.text.count("ValueError: broken after") == 2


async def test_what_a_consumer_counts(mq: Embedded, until: Until) -> None:
    """Per topic, sampled every ten seconds for the minute and more rarely for the hour and the day. Retries count under
    the retry topic. Administrators see the same as statusTable of the running info."""
    await mq.create_topic("orders", queues=1)
    consumer = mq.consumer("billing")

    @consumer.listener("orders", start_from="first")
    async def bill(message: Message) -> None:
        if message.body == b"3" and message.attempt == 1:
            raise Retry

    async with mq.producer("shop") as shop, consumer:
        for number in range(5):
            await shop.send("orders", b"%d" % number)
        await until(lambda: consumer.state().counters.consumed == 6)
        consumer.stats.sample(asyncio.get_running_loop().time())  # the one after ten seconds, now
        orders, retries = consumer.stats.status("orders"), consumer.stats.status("%RETRY%billing")
        assert (orders.consume_ok_tps, orders.consume_failed_tps, orders.consume_failed_msgs) == (0.4, 0.1, 1)
        assert (orders.pull_tps, retries.pull_tps) == (0.5, 0.1)
        assert (retries.consume_ok_tps, retries.consume_failed_msgs) == (0.1, 0)
        windows = consumer.stats.topics["orders"].consume_ok
        assert windows.minute.sum == windows.hour.sum == windows.day.sum == 4


async def _nothing(message: Message) -> None:
    return None
