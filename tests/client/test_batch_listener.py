"""The batch listener: when a batch is handed over, and what becomes of its messages."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorocket.client.exits import Retry, Skip
from aiorocket.client.push.batch_listener import Batch, BatchDelivery
from aiorocket.client.push.router import Router
from aiorocket.errors import UsageError
from tests.client.deliveries import Assigned, World, run


def batches(
    world: World,
    handler: Any,
    *,
    size: int = 5,
    max_wait: float = 2.0,
    max_bytes: int = 0,
    concurrency: int = 2,
    **options: Any,
) -> BatchDelivery:
    return BatchDelivery(
        handler, name="batches", concurrency=concurrency, batch_size=size, max_wait=max_wait, max_bytes=max_bytes,
        surroundings=world.around, **options,
    )  # fmt: skip


class Recorder:
    """A handler that writes down when it got what."""

    def __init__(self, world: World, takes: float = 0.0) -> None:
        self.world = world
        self.takes = takes
        self.calls: list[tuple[float, str]] = []

    async def __call__(self, batch: Batch) -> None:
        self.calls.append((self.world.loop.time(), b"".join(batch.bodies()).decode()))
        if self.takes:
            await asyncio.sleep(self.takes)


def test_a_batch_goes_when_it_is_full_or_its_oldest_has_waited() -> None:
    async def scenario(world: World) -> None:
        handler = Recorder(world)
        delivery = batches(world, handler)
        queue = Assigned()
        delivery.put(queue.pull("abc"))
        await asyncio.sleep(1)
        delivery.put(queue.pull("d"))
        assert handler.calls == []
        await asyncio.sleep(0.5)
        delivery.put(queue.pull("efg"))  # full at 1.5; f and g wait from then on
        await asyncio.sleep(0.5)
        delivery.put(queue.pull("h"))
        await asyncio.sleep(3)
        assert handler.calls == [(1.5, "abcde"), (3.5, "fgh")]
        delivery.put(queue.pull("ijklmnopqrstu"))
        await asyncio.sleep(0.1)
        assert handler.calls[2:] == [(5.0, "ijklm"), (5.0, "nopqr")]
        await asyncio.sleep(5)
        assert handler.calls[4:] == [(7.0, "stu")]
        assert queue.process_queue.count == 0
        assert await delivery.drain(0)

    run(scenario)


def test_bytes_make_a_batch_full_too() -> None:
    async def scenario(world: World) -> None:
        handler = Recorder(world)
        delivery = batches(world, handler, size=100, max_bytes=1000, concurrency=1)
        queue = Assigned()
        delivery.put(queue.pull("abc", size=300))
        await asyncio.sleep(0.5)
        delivery.put(queue.pull("d", size=300))
        delivery.put(queue.pull("E", size=5000))
        await asyncio.sleep(0.5)
        # A message that is too large by itself is a batch by itself.
        assert handler.calls == [(0.5, "abc"), (0.5, "d"), (0.5, "E")]
        await delivery.drain(0)

    run(scenario)


def test_without_a_wait_whatever_is_there_goes() -> None:
    async def scenario(world: World) -> None:
        handler = Recorder(world, takes=1)
        delivery = batches(world, handler, max_wait=0, concurrency=1)
        queue = Assigned()
        for letter in "abcdefg":
            delivery.put(queue.pull(letter))
            await asyncio.sleep(0.1)
        await asyncio.sleep(5)
        assert handler.calls == [(0, "a"), (1, "bcdef"), (2, "g")]
        await delivery.drain(0)

    run(scenario)


def test_one_timer_for_all_that_waits() -> None:
    async def scenario(world: World) -> None:
        delivery = batches(world, Recorder(world), size=1000)
        queue = Assigned()
        before = len(world.loop._timers)
        for _ in range(100):
            delivery.put(queue.pull("x"))
        assert len(world.loop._timers) - before == 1
        assert await delivery.drain(0)

    run(scenario)


def test_some_messages_fail_each_in_its_way() -> None:
    async def scenario(world: World) -> None:
        async def handler(batch: Batch) -> None:
            assert (len(batch), batch[1].body, [each.body for each in batch[3:]]) == (5, b"b", [b"d", b"e"])
            batch.fail([0], retry_after=30, reason="later")
            batch.fail([1, 2], delay_level=2)
            batch.fail([2], dead_letter=True, reason="useless")
            batch.fail([3])

        delivery = batches(world, handler)
        queue = Assigned()
        delivery.put(queue.pull("abcde"))
        await asyncio.sleep(1)
        assert world.failures == [("a", 4), ("b", 2), ("c", -1), ("d", 0)]
        assert queue.process_queue.count == 0
        world.stats.sample(10)
        assert world.stats.topics["t"].consume_ok.value == 1
        await delivery.drain(0)

    run(scenario)


def test_an_exception_fails_what_is_not_marked() -> None:
    async def scenario(world: World) -> None:
        async def handler(batch: Batch) -> None:
            batch.done([0])
            batch.fail([1], dead_letter=True)
            assert batch[2]._process_queue is not None
            batch[2]._process_queue.done(batch[2])  # as message.ack() does
            raise Retry(delay_level=7)

        delivery = batches(world, handler)
        queue = Assigned()
        delivery.put(queue.pull("abcde"))
        await asyncio.sleep(1)
        assert world.failures == [("b", -1), ("d", 7), ("e", 7)]
        assert queue.process_queue.count == 0
        await delivery.drain(0)

    run(scenario)


def test_skip_and_timeout() -> None:
    async def scenario(world: World) -> None:
        async def handler(batch: Batch) -> None:
            if batch[0].body == b"a":
                raise Skip
            batch.done([0])
            await asyncio.sleep(100)

        delivery = batches(world, handler, timeout=3, size=2)
        queue = Assigned()
        delivery.put(queue.pull("abcd"))
        await asyncio.sleep(5)
        assert (world.counters.skipped, world.counters.timed_out) == (2, 1)
        assert world.failures == [("d", 0)]
        assert queue.process_queue.count == 0
        await delivery.drain(0)

    run(scenario)


def test_marks_are_checked() -> None:
    async def scenario(world: World) -> None:
        kept: list[Batch] = []

        async def handler(batch: Batch) -> None:
            kept.append(batch)
            with pytest.raises(UsageError, match="index 5 is not in this batch of 5 messages"):
                batch.fail([0, 5])
            with pytest.raises(UsageError, match="index -1"):
                batch.done([-1])
            with pytest.raises(UsageError, match="not several"):
                batch.fail([0], retry_after=1, dead_letter=True)

        delivery = batches(world, handler)
        delivery.put(Assigned().pull("abcde"))
        await asyncio.sleep(1)
        assert world.failures == []
        with pytest.raises(UsageError, match="can no longer be marked"):
            kept[0].fail([0])
        await delivery.drain(0)

    run(scenario)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_messages": 0}, "max_messages=0"), ({"max_wait": -1}, "max_wait=-1"), ({"max_bytes": -1}, "max_bytes=-1"),
        ({"max_wait": float("inf")}, "max_wait=inf"), ({"concurrency": 0}, "concurrency=0"),
        ({"timeout": 0}, "timeout=0"),
    ],
)  # fmt: skip
def test_options_are_checked(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        Router().batch("t", **options)


@settings(max_examples=3 * settings.default.max_examples // 5, deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 7),
    st.sampled_from((0.0, 0.3, 2.0)),
    st.sampled_from((0, 250, 1000)),
    st.integers(1, 4),
)
def test_nothing_is_forgotten_late_or_too_large(
    seed: int, size: int, max_wait: float, max_bytes: int, concurrency: int
) -> None:
    async def scenario(world: World) -> None:
        dice = random.Random(seed)
        put_at: dict[str, float] = {}
        seen: list[str] = []
        late: list[float] = []

        async def handler(batch: Batch) -> None:
            now = world.loop.time()
            assert len(batch) <= size
            assert len(batch) == 1 or not max_bytes or sum(message.size for message in batch) <= max_bytes
            late.extend(now - put_at[message.body.decode()] for message in batch)
            seen.extend(message.body.decode() for message in batch)

        delivery = batches(
            world, handler, size=size, max_wait=max_wait, max_bytes=max_bytes, concurrency=concurrency
        )  # fmt: skip
        queue, number = Assigned(), 0
        for _ in range(40):
            bodies = [str(number + index) for index in range(dice.randint(0, 6))]
            number += len(bodies)
            put_at.update((body, world.loop.time()) for body in bodies)
            delivery.put(queue.pull(bodies, size=dice.choice((10, 200, 400))))
            delivery.workers.set_concurrency(dice.randint(1, 4))
            await asyncio.sleep(dice.choice((0, 0.1, 1)))
        await asyncio.sleep(10)
        assert world.errors == []
        assert sorted(map(int, seen)) == list(range(number))
        # No handler takes time here, so there is always a worker when the oldest has waited.
        assert max(late, default=0.0) <= max_wait + 1e-9
        assert queue.process_queue.count == 0
        await delivery.drain(0)

    run(scenario, seed=seed)
