"""N workers over one deque, in virtual time: who works on what, what failures and timeouts do, how the number of
workers changes while they run."""

from __future__ import annotations

import asyncio
import random
import types
from collections.abc import Coroutine, Generator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from aiorocket.client.exits import DeadLetter, Retry, Skip
from aiorocket.client.message import Message
from aiorocket.client.push.batch_listener import BatchDelivery
from aiorocket.client.push.calls import Call, SingleCall, StatusCall
from aiorocket.client.push.delivery import Delivery
from aiorocket.client.push.keyed import KeyedDelivery
from aiorocket.client.push.orderly import OrderlyDelivery
from aiorocket.client.push.sinks import Sink
from aiorocket.client.push.status import ConsumeConcurrentlyStatus
from aiorocket.errors import UsageError
from aiorocket.model import Queue
from aiorocket.runtime.tasks import TaskScope
from aiorocket.testing import SimCluster
from tests.client import clusters
from tests.client.deliveries import Assigned, World, run


def test_every_message_is_handled_once_by_so_many_at_a_time() -> None:
    async def scenario(world: World) -> None:
        seen: list[str] = []
        most = 0

        async def handler(message: Any) -> None:
            nonlocal most
            most = max(most, delivery.workers.in_work)
            await asyncio.sleep(1)
            seen.append(message.body.decode())

        delivery = world.delivery(handler, concurrency=4)
        queue = Assigned()
        delivery.put(queue.pull(range(10)))
        await asyncio.sleep(2.5)
        assert (len(seen), delivery.workers.in_work, delivery.waiting) == (8, 2, 0)
        await asyncio.sleep(1)
        assert sorted(seen) == sorted(map(str, range(10)))
        assert most == 4
        assert queue.process_queue.count == 0
        assert await delivery.drain(0)

    run(scenario)


def test_a_handler_that_never_waits_does_not_wake_all_workers() -> None:
    async def scenario(world: World) -> None:
        seen: list[str] = []

        async def handler(message: Any) -> None:
            seen.append(message.body.decode())

        delivery = world.delivery(handler, concurrency=8)
        await asyncio.sleep(1)
        waits, idle = 0, delivery.workers.idle

        def waiting() -> asyncio.Future[None]:
            nonlocal waits
            waits += 1
            return idle()

        delivery.workers.idle = waiting  # type: ignore[method-assign]
        for _ in range(3):
            delivery.put(Assigned().pull(range(50)))
            await asyncio.sleep(1)
        assert len(seen) == 150 and waits == 6
        assert await delivery.drain(0)

    run(scenario)


@pytest.mark.parametrize(("batch_size", "rate"), [(4, None), (1, 100.0)], ids=["batches", "a rate"])
def test_workers_that_were_idle_work_side_by_side(batch_size: int, rate: float | None) -> None:
    """Each that was woken wakes the next as long as there is more than its own share."""

    async def scenario(world: World) -> None:
        async def handler(messages: Any) -> None:
            await asyncio.sleep(10)

        call = SingleCall if batch_size == 1 else Call
        delivery = world.delivery(handler, call=call, concurrency=3, batch_size=batch_size, rate=rate)
        await asyncio.sleep(1)
        delivery.put(Assigned().pull(range(3 * batch_size)))
        await asyncio.sleep(1)
        assert (delivery.workers.in_work, delivery.waiting) == (3 * batch_size, 0)
        assert not await delivery.drain(0)

    run(scenario)


class AtOnce(TaskScope):
    """Tasks begin while they are made, as with ``asyncio.eager_task_factory`` of Python 3.12."""

    def start(self, coro: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        first = coro.send(None)

        @types.coroutine
        def rest() -> Generator[Any, Any, Any]:
            yield first
            return (yield from coro.__await__())

        async def go_on() -> Any:
            return await rest()

        return super().start(go_on(), name=name)


@pytest.mark.parametrize("kind", ["single", "list", "batch", "keyed", "orderly"])
def test_workers_may_begin_while_their_delivery_is_made(kind: str) -> None:
    async def scenario(world: World) -> None:
        seen: list[Any] = []

        async def handler(messages: Any) -> None:
            seen.append(messages)

        world.around.scope = scope = AtOnce("test")
        options: dict[str, Any] = {"name": kind, "concurrency": 2, "surroundings": world.around}
        delivery: Sink
        match kind:
            case "batch":
                delivery = BatchDelivery(handler, max_wait=0.1, max_bytes=0, batch_size=2, **options)
            case "keyed":
                delivery = KeyedDelivery(handler, order_by=lambda message: 1, suspend=1.0, limit=3, **options)
            case "orderly":
                delivery = OrderlyDelivery(handler, leases=None, suspend=1.0, **options)
            case _:
                delivery = Delivery(handler, call=SingleCall if kind == "single" else Call, **options)
        delivery.put(Assigned().pull(range(2)))
        await asyncio.sleep(1)
        assert seen and await delivery.drain(1)
        await scope.close()

    run(scenario)


def test_exits_of_single_messages() -> None:
    ends = {"0": None, "1": ValueError("no"), "2": Retry(after=60), "3": DeadLetter("bad"), "4": Skip()}

    async def scenario(world: World) -> None:
        async def handler(message: Any) -> None:
            error = ends[message.body.decode()]
            if error is not None:
                raise error

        delivery = world.delivery(handler, concurrency=1)
        queue = Assigned()
        delivery.put(queue.pull(range(5)))
        await asyncio.sleep(1)
        assert world.failures == [("1", 0), ("2", 5), ("3", -1)]
        assert world.counters.skipped == 1
        assert queue.process_queue.count == 0
        world.stats.sample(10)
        status = world.stats.status("t")
        assert (status.consume_ok_tps, status.consume_failed_msgs) == (0.2, 3)
        await delivery.drain(0)

    run(scenario)


def test_statistics_count_what_is_done_in_a_run_that_goes_on() -> None:
    async def scenario(world: World) -> None:
        async def handler(message: Any) -> None:
            await asyncio.sleep(2)

        delivery = world.delivery(handler, concurrency=2)
        one, other = Assigned(), Assigned(Queue("%RETRY%g", "b", 0))
        delivery.put(one.pull(range(40)))
        await asyncio.sleep(11)
        world.stats.sample(world.loop.time())
        # Two workers, five messages of 2 s each; the sixth is under way and its time counts already.
        status = world.stats.status("t")
        assert status.consume_ok_tps == 1.0
        assert status.consume_rt == pytest.approx(2200)
        delivery.put(other.pull(range(4)))
        await asyncio.sleep(60)
        world.stats.sample(world.loop.time())
        assert world.stats.topics["t"].consume_ok.value == 40
        assert world.stats.topics["t"].consume_rt.value == pytest.approx(80_000)
        assert world.stats.topics["%RETRY%g"].consume_ok.value == 4
        assert one.last_consume is not None
        await delivery.drain(0)

    run(scenario)


def test_workers_are_added_and_taken_while_they_run() -> None:
    async def scenario(world: World) -> None:
        seen: list[str] = []

        async def handler(message: Any) -> None:
            await asyncio.sleep(1)
            seen.append(message.body.decode())

        delivery = world.delivery(handler, concurrency=2)
        delivery.put(Assigned().pull(range(100)))
        await asyncio.sleep(0.5)
        delivery.workers.set_concurrency(10)
        await asyncio.sleep(0.1)
        assert (delivery.workers.in_work, delivery.workers.concurrency) == (10, 10)
        delivery.workers.set_concurrency(3)
        # Nothing is interrupted: those above end with what they have.
        assert (delivery.workers.in_work, delivery.workers.concurrency) == (10, 3)
        await asyncio.sleep(2)
        assert (len(seen), delivery.workers.in_work) == (13, 3)
        delivery.workers.set_concurrency(1)
        delivery.workers.set_concurrency(2)
        await asyncio.sleep(3)
        assert delivery.workers.in_work == 2
        delivery.workers.set_concurrency(50)
        await asyncio.sleep(5)
        assert sorted(map(int, seen)) == list(range(100))
        assert await delivery.drain(1)
        for wrong in (0, 1025):
            with pytest.raises(UsageError, match=f"concurrency={wrong}: 1 to 1024"):
                delivery.workers.set_concurrency(wrong)

    run(scenario)


@pytest.mark.seeds(20)
def test_no_message_is_forgotten_whatever_the_number_of_workers_does(seed: int) -> None:
    async def scenario(world: World) -> None:
        dice = random.Random(seed)
        seen: list[int] = []

        async def handler(message: Any) -> None:
            if dice.random() < 0.7:
                await asyncio.sleep(dice.choice((0, 0.01, 0.3)))
            seen.append(int(message.body))

        delivery = world.delivery(handler, concurrency=dice.randint(1, 4), batch_size=1)
        queue, number = Assigned(), 0
        for _ in range(60):
            count = dice.choice((0, 1, 1, 2, 30))
            delivery.put(queue.pull(range(number, number + count)))
            number += count
            delivery.workers.set_concurrency(dice.randint(1, 5))
            await asyncio.sleep(dice.choice((0, 0, 0.01, 0.2)))
        await asyncio.sleep(200)
        assert sorted(seen) == list(range(number))
        assert queue.process_queue.committable() == number
        assert delivery.workers.in_work == delivery.waiting == 0
        assert await delivery.drain(0)

    run(scenario, seed=seed)


def test_a_timeout_cancels_the_handler_and_is_a_failure() -> None:
    async def scenario(world: World) -> None:
        async def handler(message: Any) -> None:
            await asyncio.sleep(100 if message.body == b"1" else 0.1)

        delivery = world.delivery(handler, concurrency=1, timeout=5)
        delivery.put(Assigned().pull(range(3)))
        await asyncio.sleep(5.4)
        assert world.failures == [("1", 0)]
        assert str(world.errors[0]) == "the handler was cancelled after 5 s"
        assert world.counters.timed_out == 1
        assert await delivery.drain(0)

    run(scenario)


def test_the_consume_timeout_sends_back_and_ignores_the_late_result() -> None:
    async def scenario(world: World) -> None:
        ended: list[str] = []

        async def handler(message: Any) -> None:
            await asyncio.sleep(100)
            ended.append(message.body.decode())

        delivery = world.delivery(handler, concurrency=2)
        queue = Assigned()
        delivery.put(queue.pull(range(2)))
        for now in range(0, 90, 10):
            await asyncio.sleep(10)
            await delivery.sweep(float(now), 60)
        assert world.expirations == ["0", "1"]
        assert queue.process_queue.count == 0
        await asyncio.sleep(20)
        assert (sorted(ended), world.counters.late) == (["0", "1"], 2)
        await delivery.drain(0)

    run(scenario)


def test_draining_waits_and_then_cancels_without_sending_back() -> None:
    async def scenario(world: World) -> None:
        async def handler(message: Any) -> None:
            try:
                await asyncio.sleep(float(message.body))
            except asyncio.CancelledError:
                raise ValueError("interrupted") from None

        delivery = world.delivery(handler, concurrency=2)
        queue = Assigned()
        delivery.put(queue.pull((1, 50, 7)))
        await asyncio.sleep(0.1)
        assert not await delivery.drain(3)
        assert world.failures == []
        assert queue.process_queue.committable() == 1

    run(scenario)


def test_messages_of_a_queue_that_was_given_up_are_skipped() -> None:
    async def scenario(world: World) -> None:
        seen: list[str] = []

        async def handler(message: Any) -> None:
            await asyncio.sleep(1)
            seen.append(message.body.decode())

        delivery = world.delivery(handler, concurrency=1)
        gone, kept = Assigned(), Assigned(Queue("t", "b", 1))
        delivery.put(gone.pull(range(3)))
        delivery.put(kept.pull("x"))
        await asyncio.sleep(0.5)
        gone.process_queue.drop()
        await asyncio.sleep(2)
        assert seen == ["0", "x"]
        assert world.counters.dropped == 2
        await delivery.drain(0)

    run(scenario)


def test_a_list_succeeds_or_fails_together() -> None:
    async def scenario(world: World) -> None:
        batches: list[int] = []

        async def handler(messages: Any) -> None:
            batches.append(len(messages))
            await asyncio.sleep(1)
            if any(message.body == b"4" for message in messages):
                raise Retry(delay_level=4)

        delivery = world.delivery(handler, concurrency=1, batch_size=4, call=Call)
        queue = Assigned()
        delivery.put(queue.pull(range(7)))
        await asyncio.sleep(3)
        assert batches == [4, 3]
        assert world.failures == [("4", 4), ("5", 4), ("6", 4)]
        assert queue.process_queue.count == 0
        await delivery.drain(0)

    run(scenario)


def test_status_mode_gets_lists_of_one_queue() -> None:
    async def scenario(world: World) -> None:
        calls: list[tuple[int, list[str]]] = []

        async def handler(messages: Any, context: Any) -> ConsumeConcurrentlyStatus:
            calls.append((context.queue.queue_id, [message.body.decode() for message in messages]))
            context.ack_index = 0
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        delivery = world.delivery(handler, concurrency=1, batch_size=3, call=StatusCall, one_queue=True)
        one, other = Assigned(), Assigned(Queue("t", "b", 1))
        delivery.put(one.pull(range(4)))
        delivery.put(other.pull("ab"))
        await asyncio.sleep(1)
        assert calls == [(0, ["0", "1", "2"]), (0, ["3"]), (1, ["a", "b"])]
        assert world.failures == [("1", 0), ("2", 0), ("b", 0)]
        world.stats.sample(10)
        assert world.stats.topics["t"].consume_ok.value == 3
        await delivery.drain(0)

    run(scenario)


def test_a_listener_that_never_waits_lets_the_loop_turn() -> None:
    async def scenario(world: World) -> None:
        async def handler(message: Any) -> None:
            """Nothing to wait for."""

        delivery = world.delivery(handler, concurrency=1)
        one, other = Assigned(), Assigned(Queue("t", "b", 1))
        # Runs of one message: the turn counts across them.
        for _ in range(500):
            delivery.put(one.pull("x"))
            delivery.put(other.pull("y"))
        turns = 0
        while delivery.waiting:
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 1000 // 128
        world.stats.sample(10)
        assert world.stats.topics["t"].consume_ok.value == 1000
        await delivery.drain(0)

    run(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_a_consumers_own_timer_takes_the_samples(seed: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async def on_message(message: Message) -> None:
            await asyncio.sleep(0.5)
            if message.body == b"bad" and message.attempt == 1:
                raise Retry(after=5)

        sender = await cluster.producer()
        await sender.send("t", "first")
        consumer = (await cluster.consumer("g", "t", on_message)).consumer
        began = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < began + 300:
            await sender.send("t", "good")
            await asyncio.sleep(1)
        status = consumer.stats.status("t")
        assert status.consume_ok_tps == pytest.approx(1, rel=0.1)
        assert status.pull_tps == pytest.approx(1, rel=0.1)
        assert status.consume_rt == pytest.approx(500, rel=0.01)
        assert 0 < status.pull_rt < 15_000
        assert (status.consume_failed_tps, status.consume_failed_msgs) == (0, 0)
        await sender.send("t", "bad")
        await asyncio.sleep(30)
        assert consumer.stats.status("t").consume_failed_tps == pytest.approx(1 / 60, rel=0.1)
        await asyncio.sleep(600)
        status = consumer.stats.status("t")
        assert (status.consume_ok_tps, status.consume_failed_tps, status.consume_failed_msgs) == (0, 0, 1)
        retried = consumer.stats.topics["%RETRY%g"]
        assert (retried.consume_ok.value, retried.consume_failed.value) == (1, 0)

    clusters.run(scenario, seed, queues=4)


@pytest.mark.parametrize("seed", range(3))
def test_a_message_no_broker_takes_back_comes_again_after_five_seconds(seed: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        seen: list[tuple[float, int]] = []
        loop = asyncio.get_running_loop()

        async def on_message(message: Message) -> None:
            seen.append((loop.time(), message.attempt))
            if message.attempt == 1:
                cluster.brokers[0].kill(power_cut=True)
            if message.attempt < 4:
                raise ValueError("no")

        sender = await cluster.producer()
        await sender.send("t", "x")
        consumer = (await cluster.consumer("g", "t", on_message)).consumer
        await asyncio.sleep(60)
        counters = consumer.state().counters
        assert [attempt for _, attempt in seen] == [1, 2, 3, 4]
        assert (counters.send_back_failed, counters.retried) == (3, 0)
        # 5 s, and what both ways to a broker that is gone take: seconds each, within their limits.
        pauses = [later[0] - earlier[0] for earlier, later in pairwise(seen)]
        assert all(5 <= pause <= 5 + 2 * 5 for pause in pauses), pauses
        await cluster.brokers[0].start()
        await asyncio.sleep(60)

    clusters.run(scenario, seed, queues=4)


class Boom(BaseException):
    """What a library may raise that is no Exception."""


@pytest.mark.parametrize("call", [SingleCall, Call, StatusCall])
@pytest.mark.parametrize("error", [asyncio.CancelledError(), Boom(), BaseExceptionGroup("two", [Boom()])])
def test_whatever_a_listener_ends_with_is_a_failure_and_its_worker_goes_on(
    call: type[Call], error: BaseException
) -> None:
    """Java catches Throwable. CancelledError comes from anything cancelled that a listener awaits."""

    async def scenario(world: World) -> None:
        async def handler(*_: Any) -> Any:
            if not world.failures:
                raise error
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        delivery = world.delivery(handler, concurrency=1, call=call, timeout=5.0)
        queue = Assigned()
        delivery.put(queue.pull(range(3)))
        await asyncio.sleep(1)
        assert world.failures == [("0", 0)]
        assert world.errors[0].__cause__ is error
        assert (delivery.workers.concurrency, queue.process_queue.count) == (1, 0)
        assert await delivery.drain(0)

    run(scenario)


def test_a_cancelled_worker_ends_however_its_handler_puts_it() -> None:
    async def scenario(world: World) -> None:
        async def handler(message: Any) -> None:
            try:
                await asyncio.sleep(100)
            finally:
                raise asyncio.CancelledError("in its own words")

        delivery = world.delivery(handler, concurrency=1)
        queue = Assigned()
        delivery.put(queue.pull(range(2)))
        await asyncio.sleep(1)
        assert not await delivery.drain(1)
        assert (world.failures, queue.process_queue.count) == ([], 2)

    run(scenario)


@pytest.mark.parametrize("wrong", [{"after": timedelta(minutes=5)}, {"after": float("nan")}, {"delay_level": "3"}])
def test_a_retry_that_names_no_number_is_refused_where_it_is_made(wrong: Any) -> None:
    """And not later, where it would end the worker."""

    async def scenario(world: World) -> None:
        async def handler(message: Any) -> None:
            if not world.failures:
                raise Retry(**wrong)

        delivery = world.delivery(handler, concurrency=1)
        delivery.put(Assigned().pull(range(2)))
        await asyncio.sleep(1)
        assert world.failures == [("0", 0)]
        assert isinstance(world.errors[0], UsageError)
        assert delivery.workers.concurrency == 1
        assert await delivery.drain(0)

    run(scenario)
