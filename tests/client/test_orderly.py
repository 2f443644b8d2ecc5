"""The orderly sink in virtual time: what is called when, what is finished, what is delivered again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorocket.client.core.process_queue import Limits, ProcessQueue
from aiorocket.client.exits import DeadLetter, LeaseLost, Retry, Skip
from aiorocket.client.message import Message
from aiorocket.client.push.hooks import ConsumeContext
from aiorocket.client.push.orderly import OrderlyDelivery, queue_rest
from aiorocket.client.push.router import Router
from aiorocket.client.push.sinks import make_sink
from aiorocket.client.push.status import ConsumeOrderlyContext
from aiorocket.client.push.status import ConsumeOrderlyStatus as Status
from aiorocket.config import ConsumerConfig
from aiorocket.errors import UsageError
from aiorocket.model import Queue
from aiorocket.runtime.tasks import TaskScope
from aiorocket.runtime.threads import in_thread_to_end
from aiorocket.testing import Simulation, simulate
from aiorocket_protocol import encode_record
from tests.client.deliveries import World

SUSPEND = Status.SUSPEND_CURRENT_QUEUE_A_MOMENT.value
A, B, C = (Queue("t", "broker-a", number) for number in range(3))
LIMITS = Limits(1000, 1 << 30, 2000)


class FakeLeases:
    """Held for ever until a test says otherwise."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.ends: dict[Queue, float] = {}
        self.watchers: list[Callable[[Queue], None]] = []
        self.waiting: dict[Queue, Callable[[], None]] = {}
        self.held_back: set[Queue] = set()
        self.let_go_at: dict[Queue, float] = {}

    def until(self, queue: Queue) -> float:
        return self.ends.get(queue, 1e9)

    def watch_lost(self, callback: Callable[[Queue], None]) -> None:
        self.watchers.append(callback)

    def when_valid(self, queue: Queue, callback: Callable[[], None]) -> None:
        self.waiting[queue] = callback

    def lose(self, queue: Queue) -> None:
        self.ends[queue] = float("-inf")
        for watcher in self.watchers:
            watcher(queue)

    def win(self, queue: Queue) -> None:
        self.ends[queue] = self.loop.time() + 30
        callback = self.waiting.pop(queue, None)
        if callback is not None:
            callback()

    def hold_back(self, queue: Queue) -> None:
        self.held_back.add(queue)

    async def let_go(self, queue: Queue) -> None:
        self.let_go_at[queue] = self.loop.time()


class FakeSettlement:
    def __init__(self) -> None:
        self.works = True
        self.dead: list[tuple[int, int]] = []

    async def to_dead_letters(self, message: Message, limit: int | None, error: BaseException | None) -> bool:
        await asyncio.sleep(0.01)
        if self.works:
            self.dead.append((message.offset, message.attempt))
        return self.works


class OrderlyWorld(World):
    """One sink, its consumer made of what it asks for, and a way to put messages."""

    def __init__(
        self, sim: Simulation, handler: Any, *, locks: bool = True, hooks: tuple[Any, ...] = (), **options: Any
    ) -> None:
        self.leases = FakeLeases(sim.loop)
        self.settlement = FakeSettlement()
        super().__init__(sim, hooks, settlement=self.settlement)
        self.queues: dict[Queue, ProcessQueue] = {}
        router = Router("g")
        router.orderly("t", **options)(handler)
        leases = cast("Any", self.leases if locks else None)
        self.sink = cast("OrderlyDelivery", make_sink(router.listeners[0], ConsumerConfig(), self.around, leases))

    def put(self, queue: Queue, *offsets: int, times: int = 0) -> None:
        """Messages of these offsets; the body names queue and offset."""
        process_queue = self.queues.setdefault(queue, ProcessQueue(offsets[0], LIMITS))
        messages = []
        for offset in offsets:
            record = encode_record(
                topic=queue.topic.encode(), body=b"%d:%d" % (queue.queue_id, offset), properties=b"UNIQ_KEY\x01m\x02",
                queue_id=queue.queue_id, queue_offset=offset, physical_offset=offset, flag=0, sys_flag=0,
                born_timestamp=0, born_host=b"\x7f\0\0\1\0\0\0\0", store_timestamp=0,
                store_host=b"\x7f\0\0\1\0\0\0\0", reconsume_times=times,
            )  # fmt: skip
            message = Message(record, 0, len(record))
            message._source = cast("Any", SimpleNamespace(queue=queue, shown=queue, namespace="", last_consume=None))
            messages.append(message)
        process_queue.put(messages, sum(each.size for each in messages), offsets[-1] + 1)
        self.sink.put(messages)

    def committable(self, queue: Queue) -> int:
        return self.queues[queue].committable()

    async def close(self) -> None:
        await self.sink.drain(1.0)
        await self.scope.close()


Seen = list[tuple[float, int, int]]


def run(scenario: Callable[[Simulation], Any], seed: int = 0) -> None:
    async def main(sim: Simulation) -> None:
        world = await scenario(sim)
        await world.close()

    simulate(main, seed)


def recorder(sim: Simulation, seen: Seen) -> Callable[[Message], None]:
    """Notes virtual time, offset and attempt."""
    return lambda message: seen.append((round(sim.loop.time(), 2), message.offset, message.attempt))


@pytest.mark.parametrize("seed", range(5))
def test_one_call_at_a_time_per_queue_and_queues_in_parallel(seed: int) -> None:
    async def scenario(sim: Simulation) -> OrderlyWorld:
        running: list[Queue] = []
        most, seen = 0, []

        async def handler(message: Message) -> None:
            nonlocal most
            assert message.queue not in running
            running.append(message.queue)
            most = max(most, len(running))
            await asyncio.sleep(sim.loop.random.random())
            running.remove(message.queue)
            seen.append((message.queue.queue_id, message.offset))

        world = OrderlyWorld(sim, handler, concurrency=2)
        for queue in (A, B, C):
            world.put(queue, *range(10))
        world.put(A, *range(10, 15))
        await asyncio.sleep(40)
        for number in range(3):
            offsets = [offset for queue_id, offset in seen if queue_id == number]
            assert offsets == list(range(15 if number == 0 else 10))
        assert most == 2
        assert world.committable(A) == 15
        return world

    run(scenario, seed)


def test_a_failure_suspends_the_queue_and_comes_again_before_anything_later() -> None:
    async def scenario(sim: Simulation) -> OrderlyWorld:
        seen: Seen = []
        note = recorder(sim, seen)

        async def handler(message: Message) -> None:
            note(message)
            if message.offset == 1 and message.attempt < 4:
                raise Retry(after=5) if message.attempt == 2 else ValueError("not yet")

        world = OrderlyWorld(sim, handler)
        world.put(A, 0, 1, 2)
        await asyncio.sleep(3)
        world.put(A, 3)
        assert world.committable(A) == 1
        await asyncio.sleep(10)
        assert seen == [(0, 0, 1), (0, 1, 1), (1, 1, 2), (6, 1, 3), (7, 1, 4), (7, 2, 1), (7, 3, 1)]
        assert world.committable(A) == 4
        assert (world.counters.suspended, world.counters.retried) == (3, 0)
        return world

    run(scenario)


def test_retries_are_unlimited_unless_a_maximum_is_set() -> None:
    async def scenario(sim: Simulation) -> OrderlyWorld:
        seen: Seen = []
        note = recorder(sim, seen)

        async def handler(message: Message) -> None:
            note(message)
            raise ValueError("never")

        world = OrderlyWorld(sim, handler, suspend=0.001)
        world.put(A, 0)
        await asyncio.sleep(10)
        assert 900 < len(seen) < 1100  # 10 ms at least
        assert world.settlement.dead == []
        assert world.committable(A) == 0
        return world

    run(scenario)


def test_the_last_attempt_goes_to_the_dead_letters_and_a_failed_send_there_adds_one() -> None:
    async def scenario(sim: Simulation) -> OrderlyWorld:
        seen: Seen = []
        note = recorder(sim, seen)

        async def handler(message: Message) -> None:
            note(message)
            if message.offset == 0:
                raise ValueError("never")

        world = OrderlyWorld(sim, handler, max_attempts=3)
        world.settlement.works = False
        world.put(A, 0, 1, times=1)
        await asyncio.sleep(3.5)
        world.settlement.works = True
        await asyncio.sleep(1)
        assert [(offset, attempt) for _, offset, attempt in seen] == [(0, 2), (0, 3), (0, 4), (0, 5), (0, 6), (1, 2)]
        assert world.settlement.dead == [(0, 6)]
        assert world.committable(A) == 2
        return world

    run(scenario)


def test_on_exhausted_suspend_tries_for_ever() -> None:
    async def scenario(sim: Simulation) -> OrderlyWorld:
        async def handler(message: Message) -> None:
            raise ValueError("never")

        world = OrderlyWorld(sim, handler, max_attempts=2, on_exhausted="suspend")
        world.put(A, 0)
        await asyncio.sleep(20.5)
        assert world.counters.suspended == 21
        assert world.settlement.dead == []
        return world

    run(scenario)


def test_explicit_exits() -> None:
    async def scenario(sim: Simulation) -> OrderlyWorld:
        seen: Seen = []
        note = recorder(sim, seen)

        async def handler(message: Message) -> None:
            note(message)
            if message.offset == 0:
                raise Skip("not for us")
            if message.offset == 1:
                raise DeadLetter("broken")
            if message.offset == 2 and message.attempt == 1:
                raise Retry(delay_level=2)

        world = OrderlyWorld(sim, handler)
        world.put(A, 0, 1, 2, 3)
        await asyncio.sleep(10)
        assert [(offset, attempt) for _, offset, attempt in seen] == [(0, 1), (1, 1), (2, 1), (2, 2), (3, 1)]
        assert seen[3][0] - seen[2][0] == pytest.approx(5, abs=0.02)
        assert world.counters.skipped == 1
        assert world.settlement.dead == [(1, 1)]
        assert world.committable(A) == 4
        return world

    run(scenario)


def test_how_long_a_queue_rests() -> None:
    assert queue_rest(ValueError(), 1.0) == 1.0
    assert queue_rest(None, 0.0) == 0.01
    assert queue_rest(Retry(), 2.0) == 2.0
    assert queue_rest(Retry(after=7), 1.0) == 7
    assert queue_rest(Retry(after=3600), 1.0) == 30.0
    assert queue_rest(Retry(delay_level=1), 5.0) == 1
    assert queue_rest(Retry(delay_level=18), 5.0) == 30.0
    assert queue_rest(Retry(delay_level=0), 5.0) == 5.0


def test_batches_are_of_one_queue_and_come_again_as_a_whole() -> None:
    async def scenario(sim: Simulation) -> OrderlyWorld:
        calls: list[list[tuple[int, int]]] = []

        async def handler(messages: list[Message]) -> None:
            calls.append([(message.offset, message.attempt) for message in messages])
            assert len({message.queue for message in messages}) == 1
            if len(calls) == 2:
                raise ValueError("once")

        world = OrderlyWorld(sim, handler, batch_size=3)
        world.put(A, 0, 1, 2, 3)
        await asyncio.sleep(0.5)
        world.put(A, 4, 5)
        await asyncio.sleep(5)
        assert calls == [[(0, 1), (1, 1), (2, 1)], [(3, 1)], [(3, 2), (4, 1), (5, 1)]]
        assert world.committable(A) == 6
        return world

    run(scenario)


def test_a_lost_lease_cancels_the_call_and_drops_its_result() -> None:
    async def scenario(sim: Simulation) -> OrderlyWorld:
        seen: Seen = []
        note = recorder(sim, seen)
        reasons: list[bool] = []

        async def handler(message: Message) -> None:
            note(message)
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError as error:
                reasons.append(LeaseLost.caused(error))
                if message.queue == B:
                    return  # swallowed: its result counts for nothing all the same
                raise

        world = OrderlyWorld(sim, handler)
        world.put(A, 0, 1)
        world.put(B, 0)
        await asyncio.sleep(5)
        world.leases.lose(A)
        world.leases.lose(B)
        await asyncio.sleep(5)
        assert reasons == [True, True]
        assert (world.counters.late, world.committable(A), world.committable(B)) == (2, 0, 0)
        assert len(seen) == 2
        world.leases.win(A)
        await asyncio.sleep(25)
        # A cancelled call is no failed attempt.
        assert [(when, offset, attempt) for when, offset, attempt in seen[2:]] == [(10, 0, 1), (20, 1, 1)]
        assert world.committable(A) == 2
        assert world.sink.workers.in_work == 0
        return world

    run(scenario)


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("error", [None, ValueError("no"), DeadLetter("bad"), Skip("no")], ids=repr)
def test_a_listener_that_blocks_the_loop_past_its_lease_settles_nothing(
    error: Exception | None, batch_size: int
) -> None:
    """Whatever it ends with: the next owner may be at it already."""

    async def scenario(sim: Simulation) -> OrderlyWorld:
        async def handler(message: object) -> None:
            sim.loop._now += 31  # nothing else can run meanwhile, the expiry neither
            if error is not None:
                raise error

        world = OrderlyWorld(sim, handler, max_attempts=1, batch_size=batch_size)
        world.leases.ends[A] = sim.loop.time() + 30
        world.put(A, 0)
        await asyncio.sleep(1)
        assert (world.counters.late, world.counters.suspended, world.committable(A)) == (1, 0, 0)
        assert (world.settlement.dead, world.counters.skipped) == ([], 0)
        return world

    run(scenario)


def test_nothing_is_begun_without_a_lease() -> None:
    async def scenario(sim: Simulation) -> OrderlyWorld:
        seen: Seen = []
        note = recorder(sim, seen)

        async def handler(message: Message) -> None:
            note(message)

        world = OrderlyWorld(sim, handler)
        world.leases.ends[A] = 0.0
        world.put(A, 0)
        await asyncio.sleep(5)
        assert seen == []
        world.leases.win(A)
        await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        assert seen == [(5, 0, 1)]
        return world

    run(scenario)


def test_broadcasting_needs_no_lease() -> None:
    async def scenario(sim: Simulation) -> OrderlyWorld:
        seen: Seen = []
        note = recorder(sim, seen)

        async def handler(message: Message) -> None:
            note(message)
            await asyncio.sleep(100)

        world = OrderlyWorld(sim, handler, locks=False)
        world.put(A, 0, 1)
        await asyncio.sleep(150)
        assert [when for when, _, _ in seen] == [0, 100]
        return world

    run(scenario)


def test_revocation_waits_for_the_call_that_runs() -> None:
    async def scenario(sim: Simulation) -> OrderlyWorld:
        seen: Seen = []
        note = recorder(sim, seen)

        async def handler(message: Message) -> None:
            note(message)
            await asyncio.sleep(3)

        world = OrderlyWorld(sim, handler)
        world.put(A, 0, 1)
        await asyncio.sleep(1)
        assert await world.sink.revoke(B, 1)
        assert await world.sink.revoke(A, 5)
        assert (sim.loop.time(), world.committable(A)) == (3, 1)
        await asyncio.sleep(5)
        assert len(seen) == 1
        assert world.leases.held_back == set()
        return world

    run(scenario)


@pytest.mark.parametrize("takes", [10.0, 100.0])
def test_a_call_that_runs_on_delays_the_unlock_by_20_s_at_most(takes: float) -> None:
    async def scenario(sim: Simulation) -> OrderlyWorld:
        ended: list[tuple[float, bool]] = []

        async def handler(message: Message) -> None:
            try:
                await asyncio.sleep(takes)
                ended.append((sim.loop.time(), False))
            except asyncio.CancelledError as error:
                await asyncio.sleep(0.5)
                ended.append((sim.loop.time(), LeaseLost.caused(error)))
                raise

        world = OrderlyWorld(sim, handler)
        world.put(A, 0, 1)
        await asyncio.sleep(1)
        assert not await world.sink.revoke(A, 1)
        assert world.leases.held_back == {A}
        world.queues[A].drop()
        await asyncio.sleep(40)
        when = 10.0 if takes == 10 else 22.5
        assert ended == [(when, takes > 20)]
        assert world.leases.let_go_at == {A: when}
        assert world.counters.late == 1
        return world

    run(scenario)


def test_a_queue_that_comes_back_waits_for_the_call_of_its_last_assignment() -> None:
    async def scenario(sim: Simulation) -> OrderlyWorld:
        seen: Seen = []
        note = recorder(sim, seen)

        async def handler(message: Message) -> None:
            note(message)
            await asyncio.sleep(30 if len(seen) == 1 else 0)

        world = OrderlyWorld(sim, handler)
        world.put(A, 0, 1)
        await asyncio.sleep(1)
        assert not await world.sink.revoke(A, 1)
        world.queues.pop(A).drop()
        await asyncio.sleep(3)
        world.put(A, 0, 1)
        await asyncio.sleep(40)
        # In its own right again, so nobody cancels the old call after 20 s.
        assert seen == [(0, 0, 1), (30, 0, 1), (30, 1, 1)]
        assert world.leases.let_go_at == {A: 30}
        return world

    run(scenario)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_busy_queue_gives_way_after_60_s_if_others_wait(batch: int) -> None:
    async def scenario(sim: Simulation) -> OrderlyWorld:
        seen: list[tuple[float, int]] = []

        async def handler(given: Any) -> None:
            message = given if batch == 1 else given[0]
            seen.append((round(sim.loop.time(), 2), message.queue.queue_id))
            await asyncio.sleep(1)

        world = OrderlyWorld(sim, handler, concurrency=1, batch_size=batch)
        world.put(A, *range(300))
        await asyncio.sleep(0.5)
        world.put(B, *range(batch))
        await asyncio.sleep(63)
        assert [number for _, number in seen] == [0] * 60 + [1] + [0] * 3
        return world

    run(scenario)


def test_a_timeout_cancels_the_call_and_counts_as_a_failure() -> None:
    async def scenario(sim: Simulation) -> OrderlyWorld:
        seen: Seen = []
        note = recorder(sim, seen)

        async def handler(message: Message) -> None:
            note(message)
            await asyncio.sleep(3 if message.attempt == 1 else 0)

        world = OrderlyWorld(sim, handler, timeout=2)
        world.put(A, 0, 1)
        await asyncio.sleep(20)
        assert seen == [(0, 0, 1), (3, 0, 2), (3, 1, 1), (6, 1, 2)]
        assert (world.counters.timed_out, world.counters.suspended) == (2, 2)
        assert world.committable(A) == 2
        return world

    run(scenario)


def test_the_end_lets_calls_finish_and_then_cancels_them() -> None:
    async def scenario(sim: Simulation) -> OrderlyWorld:
        async def handler(message: Message) -> None:
            await asyncio.sleep(5 if message.queue == A else 50)

        world = OrderlyWorld(sim, handler)
        world.put(A, 0, 1)
        world.put(B, 0)
        await asyncio.sleep(1)
        assert not await world.sink.drain(10)
        assert sim.loop.time() == 11
        assert (world.committable(A), world.committable(B)) == (1, 0)
        assert world.counters.suspended == 0
        return world

    run(scenario)


def test_concurrency_can_change_while_running() -> None:
    async def scenario(sim: Simulation) -> OrderlyWorld:
        running = 0

        async def handler(message: Message) -> None:
            nonlocal running
            running += 1
            await asyncio.sleep(1)
            running -= 1

        world = OrderlyWorld(sim, handler, concurrency=1)
        for queue in (A, B, C):
            world.put(queue, *range(20))
        await asyncio.sleep(0.5)
        assert running == 1
        world.sink.workers.set_concurrency(3)
        await asyncio.sleep(0.1)
        assert running == 3
        world.sink.workers.set_concurrency(2)
        await asyncio.sleep(1)
        assert running == 2
        with pytest.raises(UsageError, match="1 to 1024"):
            world.sink.workers.set_concurrency(0)
        await asyncio.sleep(60)
        assert [world.committable(queue) for queue in (A, B, C)] == [20, 20, 20]
        return world

    run(scenario)


def test_hooks_and_statistics() -> None:
    class Hook:
        def __init__(self) -> None:
            self.calls: list[tuple[bool, str, str]] = []

        def before(self, context: ConsumeContext) -> None:
            assert context.queue == A and context.started_ms > 0

        def after(self, context: ConsumeContext) -> None:
            self.calls.append((context.success, context.status, context.props["ConsumeContextType"]))

    async def scenario(sim: Simulation) -> OrderlyWorld:
        hook = Hook()

        async def handler(message: Message) -> None:
            if message.offset == 1 and message.attempt == 1:
                raise ValueError("once")
            if message.offset == 1 and message.attempt == 2:
                raise Retry()

        world = OrderlyWorld(sim, handler, hooks=(hook,))
        world.put(A, 0, 1)
        await asyncio.sleep(5)
        suspended = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
        assert hook.calls == [
            (True, "SUCCESS", "SUCCESS"),
            (False, suspended, "EXCEPTION"),
            (False, suspended, "FAILED"),
            (True, "SUCCESS", "SUCCESS"),
        ]
        stats = world.stats.topics["t"]
        assert (stats.consume_ok.value, stats.consume_failed.value, stats.consume_rt.times) == (2, 2, 4)
        return world

    run(scenario)


@pytest.mark.parametrize(
    ("end", "takes", "seen"),
    [
        (Status.SUCCESS, 0, (True, "SUCCESS", "SUCCESS")),
        (Status.COMMIT, 0, (True, "COMMIT", "SUCCESS")),
        (Status.ROLLBACK, 0, (False, "ROLLBACK", "SUCCESS")),
        (Status.SUSPEND_CURRENT_QUEUE_A_MOMENT, 0, (False, SUSPEND, "FAILED")),
        (None, 0, (False, SUSPEND, "RETURNNULL")),
        (Skip(), 0, (True, "SUCCESS", "SUCCESS")),
        (DeadLetter(), 0, (False, SUSPEND, "FAILED")),
        (Retry(), 0, (False, SUSPEND, "FAILED")),
        (ValueError(), 0, (False, SUSPEND, "EXCEPTION")),
        (Status.SUCCESS, 900, (True, "SUCCESS", "TIME_OUT")),
        (Retry(), 900, (False, SUSPEND, "TIME_OUT")),
        (None, 900, (False, SUSPEND, "RETURNNULL")),
        (ValueError(), 900, (False, SUSPEND, "EXCEPTION")),
    ],
    ids=repr,
)
def test_what_a_hook_sees(end: Any, takes: float, seen: tuple[bool, str, str]) -> None:
    """As of concurrent listeners: late is what ended with a result (Java's order of checks)."""
    calls: list[tuple[bool, str, str]] = []
    hook = SimpleNamespace(
        before=lambda context: None,
        after=lambda context: calls.append((context.success, context.status, context.props["ConsumeContextType"])),
    )

    async def scenario(sim: Simulation) -> OrderlyWorld:
        async def handler(messages: list[Message], context: ConsumeOrderlyContext) -> Any:
            await asyncio.sleep(takes)
            if isinstance(end, Exception):
                raise end
            return end

        world = OrderlyWorld(sim, handler, hooks=(hook,))
        world.put(A, 0)
        await asyncio.sleep(takes + 0.5)
        return world

    run(scenario)
    assert calls[0] == seen


def test_statistics_of_the_fast_way() -> None:
    async def scenario(sim: Simulation) -> OrderlyWorld:
        async def handler(message: Message) -> None:
            await asyncio.sleep(0.5)
            if message.offset in (50, 150) and message.attempt == 1:
                raise ValueError("once")

        world = OrderlyWorld(sim, handler)
        world.put(A, *range(200))
        await asyncio.sleep(150)
        stats = world.stats.topics["t"]
        assert (stats.consume_ok.value, stats.consume_failed.value, stats.consume_rt.times) == (200, 2, 202)
        assert stats.consume_rt.value == pytest.approx(101_000, rel=0.001)
        return world

    run(scenario)


# -- status mode --


def test_status_with_auto_commit() -> None:
    async def scenario(sim: Simulation) -> OrderlyWorld:
        seen: Seen = []
        note = recorder(sim, seen)
        script = {0: Status.SUCCESS, 1: Status.COMMIT, 2: Status.ROLLBACK}

        async def handler(messages: list[Message], context: ConsumeOrderlyContext) -> Status | None:
            (message,) = messages
            assert context.queue == message.queue and context.auto_commit
            note(message)
            if message.offset in script:
                return script[message.offset]
            if message.attempt == 1:
                return None
            if message.attempt == 2:
                context.suspend = 4.0
                return Status.SUSPEND_CURRENT_QUEUE_A_MOMENT
            return Status.SUCCESS

        world = OrderlyWorld(sim, handler)
        world.put(A, 0, 1, 2, 3)
        await asyncio.sleep(0.5)
        assert world.committable(A) == 3
        await asyncio.sleep(10)
        assert [each for each in seen if each[1] == 3] == [(0, 3, 1), (1, 3, 2), (5, 3, 3)]
        assert len(seen) == 6 and world.committable(A) == 4
        return world

    run(scenario)


def test_status_with_manual_commit() -> None:
    async def scenario(sim: Simulation) -> OrderlyWorld:
        seen: Seen = []
        note = recorder(sim, seen)
        answers: list[Status | None] = [
            Status.SUCCESS, Status.SUCCESS, Status.ROLLBACK,  # 0 1 2, and all three again
            Status.SUCCESS, Status.SUCCESS, Status.COMMIT,
            Status.SUCCESS, None, Status.SUCCESS,  # 3, then 4 fails once
        ]  # fmt: skip

        async def handler(messages: list[Message], context: ConsumeOrderlyContext) -> Status | None:
            context.auto_commit = False
            note(messages[0])
            return answers.pop(0)

        world = OrderlyWorld(sim, handler)
        world.put(A, 0, 1, 2)
        await asyncio.sleep(0.5)
        assert [offset for _, offset, _ in seen] == [0, 1, 2]
        assert world.committable(A) == 0
        await asyncio.sleep(1)
        # A rollback is no failed attempt.
        assert [(when, attempt) for when, _, attempt in seen[3:]] == [(1, 1)] * 3
        assert world.committable(A) == 3
        world.put(A, 3, 4)
        await asyncio.sleep(5)
        assert [(offset, attempt) for _, offset, attempt in seen[6:]] == [(3, 1), (4, 1), (4, 2)]
        assert world.committable(A) == 3
        return world

    run(scenario)


def test_with_manual_commit_the_maximum_does_not_commit_by_itself() -> None:
    async def scenario(sim: Simulation) -> OrderlyWorld:
        async def handler(messages: list[Message], context: ConsumeOrderlyContext) -> Status | None:
            context.auto_commit = False
            return None if messages[0].offset == 0 else Status.COMMIT

        world = OrderlyWorld(sim, handler, max_attempts=2)
        world.put(A, 0)
        await asyncio.sleep(5)
        assert world.settlement.dead == [(0, 2)]
        assert world.committable(A) == 0
        world.put(A, 1)
        await asyncio.sleep(0.1)
        assert world.committable(A) == 2
        return world

    run(scenario)


def test_a_lost_lease_takes_back_what_was_not_committed() -> None:
    async def scenario(sim: Simulation) -> OrderlyWorld:
        seen: Seen = []
        note = recorder(sim, seen)

        async def handler(messages: list[Message], context: ConsumeOrderlyContext) -> Status:
            context.auto_commit = False
            note(messages[0])
            await asyncio.sleep(1)
            return Status.COMMIT if messages[0].offset == 2 else Status.SUCCESS

        world = OrderlyWorld(sim, handler)
        world.put(A, 0, 1, 2)
        await asyncio.sleep(1.5)
        world.leases.lose(A)
        await asyncio.sleep(1)
        world.leases.win(A)
        await asyncio.sleep(5)
        assert [offset for _, offset, _ in seen] == [0, 1, 0, 1, 2]
        assert world.committable(A) == 3
        return world

    run(scenario)


def test_a_status_that_is_none_is_refused() -> None:
    async def scenario(sim: Simulation) -> OrderlyWorld:
        async def handler(messages: list[Message], context: ConsumeOrderlyContext) -> Any:
            return "SUCCESS" if messages[0].attempt == 1 else Status.SUCCESS

        world = OrderlyWorld(sim, handler)
        world.put(A, 0)
        await asyncio.sleep(3)
        assert (world.counters.suspended, world.committable(A)) == (1, 1)
        return world

    run(scenario)


async def test_what_cancels_a_plain_function_waits_for_its_end() -> None:
    begun, go = threading.Event(), threading.Event()
    ended: list[bool] = []

    def work() -> None:
        begun.set()
        ended.append(go.wait(10))

    scope = TaskScope("thread")
    task = scope.start(in_thread_to_end(work), name="work")
    while not begun.is_set():
        await asyncio.sleep(0.001)
    task.cancel(LeaseLost("gone"))
    task.cancel()
    await asyncio.sleep(0.02)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]
    assert await in_thread_to_end(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await in_thread_to_end(lambda: 1 // 0)


# -- the options --


def test_options_are_checked_when_they_are_given() -> None:
    router = Router("g")
    for options in ({"suspend": 0}, {"timeout": -1}, {"max_attempts": 0}, {"on_exhausted": "explode"}):
        with pytest.raises(UsageError, match=next(iter(options))):
            router.orderly("t", **cast("Any", options))


@settings(max_examples=3 * settings.default.max_examples // 5, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 8)), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(0, 10_000),
)
def test_whatever_happens_the_order_holds_and_nothing_is_lost(
    runs: list[tuple[int, int]], concurrency: int, batch: int, seed: int
) -> None:
    """Random failures, lost and regained leases: of each queue a message is first consumed when everything before it
    is finished, one call at a time, and in the end everything is."""

    async def scenario(sim: Simulation) -> OrderlyWorld:
        random = sim.loop.random
        busy: set[Queue] = set()
        nexts = dict.fromkeys((A, B, C), 0)
        finished = dict(nexts)

        async def handler(given: Any) -> None:
            messages = given if isinstance(given, list) else [given]
            queue = messages[0].queue
            assert queue not in busy
            busy.add(queue)
            try:
                assert [each.offset for each in messages] == list(
                    range(messages[0].offset, messages[0].offset + len(messages))
                )
                assert messages[0].offset == world.committable(queue)
                await asyncio.sleep(random.random())
                if random.random() < 0.3:
                    raise ValueError("now and then")
                finished[queue] = messages[-1].offset + 1
            finally:
                busy.discard(queue)

        world = OrderlyWorld(sim, handler, concurrency=concurrency, batch_size=batch, suspend=0.3)
        for number, count in runs:
            queue = (A, B, C)[number]
            world.put(queue, *range(nexts[queue], nexts[queue] + count))
            nexts[queue] += count
            await asyncio.sleep(random.random())
            if random.random() < 0.3:
                world.leases.lose(queue)
                await asyncio.sleep(random.random())
                world.leases.win(queue)
        world.leases.ends.clear()
        await asyncio.sleep(600)
        assert finished == nexts
        assert all(world.committable(queue) == nexts[queue] for queue in world.queues)
        return world

    run(scenario, seed)


class Boom(BaseException):
    """What a library may raise that is no Exception."""


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("error", [asyncio.CancelledError(), Boom()])
def test_whatever_a_listener_ends_with_is_a_failure_of_its_queue(error: BaseException, batch_size: int) -> None:
    async def scenario(sim: Simulation) -> OrderlyWorld:
        calls: list[list[int]] = []

        async def handler(messages: Any) -> None:
            calls.append([each.offset for each in (messages if batch_size > 1 else [messages])])
            if len(calls) == 1:
                raise error

        world = OrderlyWorld(sim, handler, concurrency=1, batch_size=batch_size)
        world.put(A, 0, 1)
        await asyncio.sleep(3)
        assert calls == ([[0], [0], [1]] if batch_size == 1 else [[0, 1], [0, 1]])
        assert (world.committable(A), world.counters.suspended) == (2, batch_size)
        return world

    run(scenario)


@pytest.mark.parametrize("error", [ValueError("no"), DeadLetter("bad")])
def test_the_late_failure_of_a_queue_that_was_given_up_sends_nothing_to_the_dead_letters(error: Exception) -> None:
    """The next owner delivers the message again and decides about it."""

    async def scenario(sim: Simulation) -> OrderlyWorld:
        async def handler(message: Message) -> None:
            await asyncio.sleep(10)
            raise error

        world = OrderlyWorld(sim, handler, max_attempts=1)
        world.put(A, 0, 1)
        await asyncio.sleep(1)
        assert not await world.sink.revoke(A, 2.0)
        world.queues[A].drop()
        await asyncio.sleep(10)
        assert world.settlement.dead == []
        assert (world.counters.late, world.counters.suspended, world.sink.waiting) == (1, 0, 0)
        assert world.leases.let_go_at == {A: 10}
        return world

    run(scenario)


def test_a_suspend_that_is_no_number_is_the_listeners_failure() -> None:
    async def scenario(sim: Simulation) -> OrderlyWorld:
        calls: list[float] = []

        async def handler(messages: list[Message], context: ConsumeOrderlyContext) -> Status:
            calls.append(sim.loop.time())
            if len(calls) == 1:
                context.suspend = cast("Any", "1 s")
            return Status.SUCCESS

        world = OrderlyWorld(sim, handler)
        world.put(A, 0)
        await asyncio.sleep(5)
        assert (calls, world.committable(A)) == ([0, 1], 1)
        return world

    run(scenario)
