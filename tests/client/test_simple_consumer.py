"""The simple consumer beside a stop of its own, and brokers that answer oddly, in virtual time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aiorocket import Client, SimpleConsumer
from aiorocket.client.exits import Retry
from aiorocket.client.pop.popped import PoppedMessage
from aiorocket.client.pop.pops import Pops
from aiorocket.errors import ProtocolError, UsageError
from aiorocket.model import Queue
from aiorocket.testing import SimCluster, Simulation, simulate

Scenario = Callable[[SimpleConsumer], Awaitable[None]]


def run(scenario: Scenario, *, shared: bool = False, messages: int = 0) -> None:
    """With a consumer of topic t that is started."""

    async def main(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 1)
            sender = await cluster.producer()
            for number in range(messages):
                await sender.send("t", f"{number}", tag="mine")

            async def scene() -> None:
                async with Client(nameservers=cluster.endpoints, env=sim.env()) as client:
                    if shared:
                        consumer = client.simple_consumer("g")
                    else:
                        consumer = SimpleConsumer("g", nameservers=cluster.endpoints, env=sim.env())
                    await consumer.start()
                    await consumer.subscribe("t", start_from="first")
                    await scenario(consumer)
                    await consumer.stop()

            await sim.host("10.5.5.5").run(scene())

    simulate(main)


@pytest.mark.parametrize("shared", [False, True])
def test_a_receive_ends_with_its_consumer(shared: bool) -> None:
    """It raised a RuntimeError of a task scope."""

    async def scenario(consumer: SimpleConsumer) -> None:
        receiving = asyncio.ensure_future(consumer.receive(timeout=60))
        await asyncio.sleep(2)
        await consumer.stop()
        async with asyncio.timeout(5):
            with pytest.raises(UsageError, match="stop"):
                await receiving

    run(scenario, shared=shared)


def test_a_broker_that_says_yes_and_gives_nothing_is_asked_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    async def yes(self: Pops, place: Queue, hold: float) -> bool:
        nonlocal asked
        asked += 1
        return True

    monkeypatch.setattr(Pops, "wait", yes)

    async def scenario(consumer: SimpleConsumer) -> None:
        begun = asyncio.get_running_loop().time()
        assert await consumer.receive(timeout=10) == []
        assert asyncio.get_running_loop().time() - begun == pytest.approx(10, abs=0.1)
        assert asked < 30

    run(scenario)


def test_a_broker_that_passes_over_what_a_filter_does_not_let_through_is_asked_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It looks at some thousand messages for one pop: a million of them took 400 s."""
    left, real = 200, Pops.pop

    async def pop(self: Pops, *args: Any, **options: Any) -> list[PoppedMessage]:
        nonlocal left
        left -= 1
        return [] if left > 0 else await real(self, *args, **options)

    monkeypatch.setattr(Pops, "pop", pop)

    async def scenario(consumer: SimpleConsumer) -> None:
        await consumer.subscribe("t", "mine", start_from="first")
        begun = asyncio.get_running_loop().time()
        (message,) = await consumer.receive(timeout=10)
        assert asyncio.get_running_loop().time() - begun < 5
        await message.ack()

    run(scenario, messages=1)


@pytest.mark.parametrize("after", [math.inf, 1e300, -math.inf])
def test_a_retry_after_more_than_a_broker_keeps_is_after_the_most(after: float) -> None:
    """It was an OverflowError, which left the block, and the consumer's loop."""

    async def scenario(consumer: SimpleConsumer) -> None:
        received = await consumer.receive()
        assert len(received) == 3
        for message in received:
            begun = asyncio.get_running_loop().time()
            if message.body == b"0":
                async with message.process():
                    raise Retry(after)
            elif message.body == b"1":
                async with message.process(retry_delay=after):
                    raise ValueError("of the application")
            else:
                assert await message.retry(after=after)
            assert message.settled and message.invisible == (43_200 if after > 0 else 0)
            assert message.invisible_until - begun == message.invisible

    run(scenario, messages=3)


def test_what_is_no_number_of_seconds_is_refused() -> None:
    async def scenario(consumer: SimpleConsumer) -> None:
        (message,) = await consumer.receive()
        for seconds in (math.nan, "5"):
            wrong: Any = seconds
            with pytest.raises(UsageError, match=r"retry_delay=.*: a number of seconds"):
                message.process(retry_delay=wrong)
            with pytest.raises(UsageError, match=r"after=.*: a number of seconds"):
                await message.retry(after=wrong)
        for seconds in (math.nan, math.inf, -1, 43_201):
            with pytest.raises(UsageError, match=r"change_invisible\(.*\): 0 to 43200 seconds"):
                await message.change_invisible(seconds)
        assert await message.change_invisible(0)

    run(scenario, messages=1)


def test_an_answer_that_cannot_be_read_leaves_no_block(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unreadable(self: Pops, *_: object) -> bool:
        raise ProtocolError("a header is missing", where="a test")

    async def scenario(consumer: SimpleConsumer) -> None:
        (message,) = await consumer.receive()
        monkeypatch.setattr(Pops, "_keep", unreadable)
        async with message.process(retry_delay=1):
            raise ValueError("of the application")
        assert not message.settled  # it comes again when its time is over

    run(scenario, messages=1)
