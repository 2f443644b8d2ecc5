"""Hooks around listeners: what they see, and that they change nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiorocket.client.exits import DeadLetter, Retry, Skip
from aiorocket.client.push.batch_listener import BatchCall
from aiorocket.client.push.calls import Call, SingleCall, StatusCall
from aiorocket.client.push.hooks import ConsumeContext
from aiorocket.client.push.status import ConsumeConcurrentlyStatus
from tests.client.deliveries import Assigned, T, World, run


class Recorder:
    def __init__(self) -> None:
        self.before_calls: list[tuple[str, str, Any, int, int]] = []
        self.after_calls: list[tuple[bool, str, str]] = []

    def before(self, context: ConsumeContext) -> None:
        assert (context.success, context.status, context.props) == (False, "", {})
        count = len(context.messages)
        self.before_calls.append((context.namespace, context.group, context.queue, count, context.started_ms))

    def after(self, context: ConsumeContext) -> None:
        # Its messages are not settled yet.
        assert all(message._process_queue is not None for message in context.messages)
        self.after_calls.append((context.success, context.status, context.props["ConsumeContextType"]))


OK, LATER = "CONSUME_SUCCESS", "RECONSUME_LATER"
GOOD, AGAIN = ConsumeConcurrentlyStatus.CONSUME_SUCCESS, ConsumeConcurrentlyStatus.RECONSUME_LATER


@pytest.mark.parametrize(
    ("call", "end", "seen"),
    [
        (SingleCall, None, (True, OK, "SUCCESS")),
        (SingleCall, Skip(), (True, OK, "SUCCESS")),
        (SingleCall, ValueError(), (False, LATER, "EXCEPTION")),
        (SingleCall, Retry(), (False, LATER, "FAILED")),
        (SingleCall, DeadLetter(), (False, LATER, "FAILED")),
        (Call, None, (True, OK, "SUCCESS")),
        (StatusCall, GOOD, (True, OK, "SUCCESS")),
        (StatusCall, AGAIN, (False, LATER, "FAILED")),
        (StatusCall, None, (False, LATER, "RETURNNULL")),
        (StatusCall, ValueError(), (False, LATER, "EXCEPTION")),
        (BatchCall, None, (True, OK, "SUCCESS")),
        (BatchCall, ValueError(), (False, LATER, "EXCEPTION")),
    ],
)
def test_what_a_hook_sees(call: type[Call], end: Any, seen: tuple[bool, str, str]) -> None:
    recorder = Recorder()

    async def scenario(world: World) -> None:
        async def handler(*arguments: Any) -> Any:
            if isinstance(end, Exception):
                raise end
            return end

        delivery = world.delivery(handler, call=call, concurrency=1)
        await asyncio.sleep(5)
        delivery.put(Assigned().pull("x"))
        await asyncio.sleep(1)
        await delivery.drain(0)
        (namespace, group, queue, count, started) = recorder.before_calls[0]
        assert (namespace, group, queue, count) == ("", "g", T, 1)
        assert started == world.around.clock.wall_ms() - 1000

    run(scenario, [recorder])
    assert recorder.after_calls == [seen]


@pytest.mark.parametrize(("error", "kind"), [(None, "TIME_OUT"), (Retry(), "TIME_OUT"), (ValueError(), "EXCEPTION")])
def test_a_call_as_long_as_the_consume_timeout_is_one(error: Exception | None, kind: str) -> None:
    recorder = Recorder()

    async def scenario(world: World) -> None:
        async def handler(message: Any) -> None:
            await asyncio.sleep(10)
            if error is not None:
                raise error

        delivery = world.delivery(handler)
        delivery.put(Assigned().pull("x"))
        await asyncio.sleep(11)
        await delivery.drain(0)

    run(scenario, [recorder], consume_timeout=10)
    assert [each[2] for each in recorder.after_calls] == [kind]


def test_a_hook_that_fails_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def before(self, context: ConsumeContext) -> None:
            raise RuntimeError("before")

        def after(self, context: ConsumeContext) -> None:
            raise RuntimeError("after")

    recorder = Recorder()

    async def scenario(world: World) -> None:
        async def handler(message: Any) -> None:
            if message.body == b"1":
                raise ValueError

        delivery = world.delivery(handler, concurrency=1)
        queue = Assigned()
        delivery.put(queue.pull(range(3)))
        await asyncio.sleep(1)
        assert queue.process_queue.count == 0
        assert world.failures == [("1", 0)]
        await delivery.drain(0)

    run(scenario, [Broken(), recorder])
    assert [each[2] for each in recorder.after_calls] == ["SUCCESS", "EXCEPTION", "SUCCESS"]
    assert caplog.text.count("a consume hook failed before the listener") == 3
    assert caplog.text.count("a consume hook failed after the listener") == 3


def test_statistics_are_the_same_with_hooks() -> None:
    async def scenario(world: World) -> None:
        async def handler(message: Any) -> None:
            await asyncio.sleep(0.5)
            if message.body == b"1":
                raise ValueError

        delivery = world.delivery(handler, concurrency=1)
        delivery.put(Assigned().pull(range(4)))
        await asyncio.sleep(5)
        world.stats.sample(10)
        status = world.stats.status("t")
        assert (status.consume_rt, status.consume_ok_tps, status.consume_failed_msgs) == (500, 0.3, 1)
        await delivery.drain(0)

    run(scenario, [Recorder()])
