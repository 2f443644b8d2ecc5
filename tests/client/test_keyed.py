"""In order per key, parallel across keys: by hand, and against random durations, failures and revocations."""

from __future__ import annotations

import asyncio
import math
import random
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorocket.client.exits import DeadLetter, Retry, Skip
from aiorocket.client.push.calls import StatusCall
from aiorocket.client.push.keyed import KeyedDelivery
from aiorocket.client.push.resting import rest_after
from aiorocket.client.push.status import ConsumeConcurrentlyStatus
from aiorocket.model import Queue
from tests.client.deliveries import Assigned, World, run


def keyed(world: World, handler: Any, *, concurrency: int = 8, limit: int = 5, **options: Any) -> KeyedDelivery:
    options.setdefault("order_by", lambda message: message.key)
    return KeyedDelivery(
        handler, name="keyed", concurrency=concurrency, suspend=1.0, limit=limit, surroundings=world.around, **options
    )


def parity(offset: int) -> object:
    return offset % 2


def test_keys_run_in_parallel_and_each_in_order() -> None:
    async def scenario(world: World) -> None:
        seen: list[tuple[float, str]] = []

        async def handler(message: Any) -> None:
            await asyncio.sleep(1 if message.key else 3)
            seen.append((world.loop.time(), message.body.decode()))

        delivery = keyed(world, handler)
        queue = Assigned()
        delivery.put(queue.pull(range(6), key=parity))
        await asyncio.sleep(0.1)
        assert (delivery.workers.in_work, delivery.waiting, delivery.keys) == (2, 4, 2)
        await asyncio.sleep(20)
        assert [body for _, body in seen if int(body) % 2] == ["1", "3", "5"]
        assert [body for _, body in seen if not int(body) % 2] == ["0", "2", "4"]
        assert max(seen)[0] == 9
        assert (delivery.keys, queue.process_queue.count) == (0, 0)
        await delivery.drain(0)

    run(scenario)


def test_messages_without_a_key_know_no_order() -> None:
    async def scenario(world: World) -> None:
        async def handler(message: Any) -> None:
            await asyncio.sleep(1)

        delivery = keyed(world, handler)
        delivery.put(Assigned().pull(range(5)))
        await asyncio.sleep(0.1)
        assert (delivery.workers.in_work, delivery.keys) == (5, 0)
        await asyncio.sleep(1)
        await delivery.drain(0)

    run(scenario)


def test_a_key_rests_after_a_failure_while_others_flow() -> None:
    async def scenario(world: World) -> None:
        seen: list[tuple[float, str, int]] = []

        async def handler(message: Any) -> None:
            seen.append((world.loop.time(), message.body.decode(), message.attempt))
            if message.body == b"0" and message.attempt < 4:
                raise [ValueError("no"), Retry(after=7), Retry(delay_level=3)][message.attempt - 1]

        delivery = keyed(world, handler)
        queue = Assigned()
        delivery.put(queue.pull(range(4), key=parity))
        await asyncio.sleep(30)
        even = [entry for entry in seen if int(entry[1]) % 2 == 0]
        # suspend is 1 s, then 7 s as it was asked for, then level 3, which is 10 s.
        assert even == [(0, "0", 1), (1, "0", 2), (8, "0", 3), (18, "0", 4), (18, "2", 1)]
        assert [entry for entry in seen if int(entry[1]) % 2] == [(0, "1", 1), (0, "3", 1)]
        assert (world.failures, world.dead, world.counters.suspended) == ([], [], 3)
        assert queue.process_queue.committable() == 4
        await delivery.drain(0)

    run(scenario)


def test_the_last_attempt_and_a_dead_letter_let_the_key_go_on() -> None:
    async def scenario(world: World) -> None:
        seen: list[tuple[str, int]] = []

        async def handler(message: Any) -> None:
            body = message.body.decode()
            seen.append((body, message.attempt))
            if body == "0":
                raise ValueError("never")
            if body == "1":
                raise DeadLetter("at once")
            if body == "2":
                raise Skip

        delivery = keyed(world, handler, limit=3)
        world.refuse = 1
        queue = Assigned()
        delivery.put(queue.pull(range(4), key=lambda offset: "one"))
        await asyncio.sleep(30)
        # The first try to dead-letter 0 found no broker: the key rested and the listener was asked once more.
        assert seen == [("0", 1), ("0", 2), ("0", 3), ("0", 4), ("1", 1), ("2", 1), ("3", 1)]
        assert (world.dead, world.counters.skipped) == (["0", "1"], 1)
        assert queue.process_queue.committable() == 4
        await delivery.drain(0)

    run(scenario)


def test_a_timeout_is_a_failure_of_its_key() -> None:
    async def scenario(world: World) -> None:
        seen: list[str] = []

        async def handler(message: Any) -> None:
            seen.append(message.body.decode())
            if message.attempt == 1 and message.body == b"0":
                await asyncio.sleep(100)

        delivery = keyed(world, handler, timeout=2)
        delivery.put(Assigned().pull(range(2), key=lambda offset: 1))
        await asyncio.sleep(10)
        assert seen == ["0", "0", "1"]
        assert world.counters.timed_out == 1
        await delivery.drain(0)

    run(scenario)


def test_status_mode_by_key() -> None:
    async def scenario(world: World) -> None:
        seen: list[str] = []

        async def handler(messages: Any, context: Any) -> object:
            seen.append(messages[0].body.decode())
            context.delay_level = 2
            first = messages[0].attempt == 1 and messages[0].body == b"0"
            return ConsumeConcurrentlyStatus.RECONSUME_LATER if first else ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        delivery = keyed(world, handler, call=StatusCall)
        delivery.put(Assigned().pull(range(2), key=lambda offset: 1))
        await asyncio.sleep(4.9)
        assert seen == ["0"]
        await asyncio.sleep(0.2)
        assert seen == ["0", "0", "1"]
        await delivery.drain(0)

    run(scenario)


def test_a_message_whose_key_cannot_be_told_goes_back() -> None:
    async def scenario(world: World) -> None:
        seen: list[str] = []

        async def handler(message: Any) -> None:
            seen.append(message.body.decode())

        def order_by(message: Any) -> object:
            if message.body == b"0":
                raise KeyError("no key")
            return [] if message.body == b"1" else "k"

        delivery = keyed(world, handler, order_by=order_by)
        delivery.put(Assigned().pull(range(3)))
        await asyncio.sleep(1)
        assert seen == ["2"]
        assert [type(error) for error in world.errors] == [KeyError, TypeError]
        assert [body for body, _ in world.failures] == ["0", "1"]
        await delivery.drain(0)

    run(scenario)


def test_a_revoked_queue_begins_nothing_and_is_waited_for() -> None:
    async def scenario(world: World) -> None:
        seen: list[str] = []

        async def handler(message: Any) -> None:
            await asyncio.sleep(5)
            seen.append(message.body.decode())

        delivery = keyed(world, handler)
        gone, kept = Assigned(), Assigned(Queue("t", "b", 1))
        delivery.put(gone.pull(range(3), key=lambda offset: "a"))
        delivery.put(kept.pull(range(10, 12), key=lambda offset: "b"))
        await asyncio.sleep(1)
        assert not await delivery.revoke(gone.queue, 1)
        assert await delivery.revoke(gone.queue, 10)
        assert (world.loop.time(), sorted(seen)) == (5.0, ["0", "10"])
        assert gone.process_queue.committable() == 1
        gone.process_queue.drop()
        await asyncio.sleep(10)
        assert seen[2:] == ["11"]
        # It comes back with a new assignment, and is read again.
        again = Assigned()
        delivery.put(again.pull(range(3), key=lambda offset: "a"))
        await asyncio.sleep(20)
        assert seen[2:] == ["11", "0", "1", "2"]
        assert delivery.keys == 0
        await delivery.drain(0)

    run(scenario)


def test_no_key_rests_for_ever() -> None:
    """A loop may know no timer at infinity."""
    assert rest_after(Retry(after=math.inf), 1.0) == rest_after(Retry(delay_level=18), 1.0) == 7200


def test_draining_ends_keys_that_rest() -> None:
    async def scenario(world: World) -> None:
        async def handler(message: Any) -> None:
            raise Retry(after=1000)

        delivery = keyed(world, handler)
        queue = Assigned()
        delivery.put(queue.pull(range(3), key=lambda offset: 1))
        await asyncio.sleep(1)
        assert await delivery.drain(0)
        assert queue.process_queue.committable() == 0

    run(scenario)


@pytest.mark.parametrize("concurrency", [1, 7])
def test_no_key_keeps_the_loop_or_the_others_out(concurrency: int) -> None:
    async def scenario(world: World) -> None:
        order: list[object] = []

        async def handler(message: Any) -> None:
            order.append(message.key)

        delivery = keyed(world, handler, concurrency=concurrency)
        delivery.put(Assigned().pull(range(1000), key=lambda offset: "busy" if offset < 990 else "late"))
        turns = 0
        while delivery.keys:
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 1000 // 128 // concurrency
        assert order.index("late") <= 32
        await delivery.drain(0)

    run(scenario)


@settings(max_examples=3 * settings.default.max_examples // 5, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 6))
def test_order_per_key_under_anything(seed: int, concurrency: int, keys: int) -> None:
    """A key's messages begin in order, one at a time, and none is begun before the one in front is finished; the number
    of workers changes, handlers take random times, fail and time out."""

    async def scenario(world: World) -> None:
        dice = random.Random(seed)
        running: dict[object, int] = defaultdict(int)
        finished: dict[object, list[int]] = defaultdict(list)

        async def handler(message: Any) -> None:
            key, number = message.key, int(message.body)
            running[key] += 1
            try:
                assert running[key] == 1, f"two of key {key} at once"
                assert not finished[key] or finished[key][-1] < number
                pause = dice.choice((None, 0, 0.01, 0.5, 1.5))
                if pause is not None:
                    await asyncio.sleep(pause)
                if dice.random() < 0.3:
                    raise dice.choice((ValueError(), Retry(after=dice.random() * 3), Retry(delay_level=1), Skip()))
            except Skip:
                finished[key].append(number)
                raise
            finally:
                running[key] -= 1
            finished[key].append(number)

        delivery = keyed(world, handler, concurrency=concurrency, limit=10_000, timeout=1.0)
        queue, number = Assigned(), 0
        for _ in range(12):
            count = dice.randint(0, 12)
            delivery.put(queue.pull(range(number, number + count), key=lambda offset: offset * 7919 % keys))
            number += count
            delivery.workers.set_concurrency(dice.randint(1, 6))
            await asyncio.sleep(dice.choice((0, 0.1, 1)))
        await asyncio.sleep(3000)
        assert not [error for error in world.errors if isinstance(error, AssertionError)]
        assert queue.process_queue.committable() == number
        assert sorted(number for numbers in finished.values() for number in numbers) == list(range(number))
        assert all(numbers == sorted(numbers) for numbers in finished.values())
        # Nothing is kept of keys that have no messages.
        assert (delivery.keys, delivery.waiting, delivery.workers.in_work) == (0, 0, 0)
        await delivery.drain(0)

    run(scenario, seed=seed)
