"""The line of pulls that will bring messages."""

from __future__ import annotations

import asyncio
import contextlib
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket.client.message import Message
from aiorocket.client.push.backlog import Backlog
from aiorocket.client.push.batch_listener import Batch
from aiorocket.client.push.consumer import Consumer
from aiorocket.config import ConsumerConfig
from aiorocket.testing import SimCluster, Simulation, simulate


@given(st.integers(0, 1 << 30), st.integers(1, 40), st.integers(1, 12))
def test_the_limit_holds_and_everybody_has_a_turn(seed: int, limit: int, pull_size: int) -> None:
    chance, waiting, most, turns = Random(seed), 0, 0, 0

    async def main(sim: Simulation) -> None:
        nonlocal waiting, most, turns
        backlog = Backlog(limit, pull_size, lambda: waiting, lambda _: not waiting)

        async def fetcher() -> None:
            nonlocal waiting, most, turns
            for _ in range(5):
                await backlog.acquire("b", "t")
                await asyncio.sleep(chance.random())
                waiting += chance.randrange(pull_size + 1)
                most = max(most, waiting)
                backlog.release("b", "t")
                turns += 1

        async def worker() -> None:
            nonlocal waiting
            while turns < 50:
                waiting = max(0, waiting - chance.randrange(10))
                backlog.notify()
                await asyncio.sleep(0.1)

        async with asyncio.TaskGroup() as group:
            for _ in range(10):
                group.create_task(fetcher())
            group.create_task(worker())

    simulate(main, seed)
    assert turns == 50
    assert most <= max(limit, pull_size)


def test_who_is_cancelled_in_the_line_leaves_its_place() -> None:
    async def main(sim: Simulation) -> None:
        backlog = Backlog(1, 1, lambda: 0, lambda _: True)
        await backlog.acquire("b", "t")
        tasks = [asyncio.ensure_future(backlog.acquire("b", "t")) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        backlog.release("b", "t")  # the second one's turn ...
        tasks[1].cancel()  # ... which it cannot take any more
        for task in tasks[:2]:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await asyncio.wait_for(tasks[2], 1)
        assert [task.cancelled() for task in tasks] == [True, True, False]
        # It has the one place there is: whoever went away has freed none but its own.
        last = asyncio.ensure_future(backlog.acquire("b", "t"))
        await asyncio.sleep(1)
        assert not last.done()
        backlog.release("b", "t")
        await asyncio.wait_for(last, 1)

    simulate(main)


def test_a_broker_that_does_not_answer_holds_up_nobody_else() -> None:
    async def main(sim: Simulation) -> None:
        backlog = Backlog(64, 32, lambda: 0, lambda _: True)
        for _ in range(2):
            await backlog.acquire("silent", "t")
        stuck = asyncio.ensure_future(backlog.acquire("silent", "t"))
        await asyncio.wait_for(backlog.acquire("other", "t"), 1)
        assert not stuck.done()
        stuck.cancel()

    simulate(main)


def test_a_consumer_with_many_queues_takes_no_more_than_its_workers_get_to() -> None:
    async def main(sim: Simulation) -> None:
        most = done = 0

        async def slow(message: Message) -> None:
            nonlocal done
            await asyncio.sleep(0.01)
            done += 1

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 20)
            sender = await cluster.producer()
            for number in range(600):
                await sender.send("t", f"m{number}")
            config = ConsumerConfig(max_backlog=64, pull_batch_size=16, concurrency=2)
            member = await cluster.consumer("g", "t", slow, config=config)
            while done < 600:
                most = max(most, member.consumer.state().cached)
                await asyncio.sleep(0.005)
        # What waits, what the two workers have, and no queue starved.
        assert 32 <= most <= 64 + 2

    simulate(main)


def test_a_listener_that_hangs_holds_up_no_other() -> None:
    """Its messages fill the line; those of another topic had no turn in it, for as long as it hung."""

    async def main(sim: Simulation) -> None:
        quick: list[bytes] = []
        begun = 0

        async def hang(message: Message) -> None:
            nonlocal begun
            begun += 1
            await asyncio.sleep(100_000)

        async def on_message(message: Message) -> None:
            quick.append(message.body)
            if message.attempt == 1:
                raise ValueError("once")

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("slow", 20)
            await cluster.create_topic("quick", 4)
            sender = await cluster.producer()
            for number in range(600):
                await sender.send("slow", f"s{number}")
            config = ConsumerConfig(max_backlog=64, pull_batch_size=16, concurrency=2)
            member = await cluster.consumer("g", {"slow": hang, "quick": on_message}, config=config)
            await asyncio.sleep(10)
            assert begun == 2
            for number in range(300):
                await sender.send("quick", f"q{number}")
            await asyncio.sleep(1)
            assert len(quick) == 300
            assert member.consumer.state().cached <= 64 + 2
            await asyncio.sleep(60)
            assert len(quick) == 600  # and its retries, in the topic of both
            member.kill()

    simulate(main)


@pytest.mark.parametrize("other", ["a listener", "a stream"])
def test_a_topic_is_not_idle_while_one_of_its_takers_hangs(other: str) -> None:
    """Who takes other tags has nothing that waits, and got a pull at a time until the topic was here."""

    async def main(sim: Simulation) -> None:
        async def hang(message: Message) -> None:
            await asyncio.sleep(100_000)

        async def on_message(message: Message) -> None:
            pass

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 40)
            sender = await cluster.producer()
            for number in range(400):
                await sender.send("t", f"m{number}", tag="a")
            config = ConsumerConfig(max_backlog=64, pull_batch_size=16, concurrency=2)
            host = sim.host("10.2.0.1")
            consumer = Consumer("g", nameservers=cluster.endpoints, env=sim.env(), config=config)
            consumer.listener("t", tags="a", start_from="first")(hang)

            async def start() -> None:
                if other == "a listener":
                    consumer.listener("t", tags="b", start_from="first")(on_message)
                else:
                    await consumer.subscribe("t", "b")
                await consumer.start()

            await host.run(start())
            await asyncio.sleep(30)
            assert 2 < consumer.state().cached <= 64 + 2
            host.kill()

    simulate(main)


def test_a_pull_of_one_topic_costs_the_same_beside_hundreds_that_wait() -> None:
    """A start of 400 topics took 24 s: what waits was counted for each of them, at the end of each pull."""

    async def main(sim: Simulation) -> None:
        counted = 0

        def waiting() -> int:
            nonlocal counted
            counted += 1
            return 0

        async def pull(topic: str) -> None:
            await backlog.acquire("b", topic)
            await asyncio.sleep(1)
            backlog.release("b", topic)

        backlog = Backlog(64, 32, waiting, lambda topic: False)
        await asyncio.gather(*[pull(f"t{number}") for number in range(400)])
        assert counted < 3 * 400

    simulate(main)


def test_a_batch_that_is_larger_than_the_backlog_is_filled() -> None:
    async def main(sim: Simulation) -> None:
        sizes: list[int] = []

        async def handler(batch: Batch) -> None:
            sizes.append(len(batch))

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 20)
            sender = await cluster.producer()
            for number in range(600):
                await sender.send("t", f"m{number}")
            host = sim.host("10.2.0.1")
            config = ConsumerConfig(max_backlog=64, pull_batch_size=16)
            consumer = Consumer("g", nameservers=cluster.endpoints, env=sim.env(), config=config)
            consumer.batch("t", max_messages=300, max_wait=3600, start_from="first")(handler)
            await host.run(consumer.start())
            await asyncio.sleep(60)
            await host.run(consumer.stop())
        assert sizes == [300, 300]

    simulate(main)


def test_queues_of_a_silent_broker_do_not_hold_up_those_of_another() -> None:
    async def main(sim: Simulation) -> None:
        seen: dict[str, int] = {}
        goes_on = asyncio.Event()

        async def handler(message: Message) -> None:
            await goes_on.wait()
            broker = message.queue.broker_name
            seen[broker] = seen.get(broker, 0) + 1

        async with SimCluster(sim, brokers=2) as cluster:
            await cluster.create_topic("t", 10)
            sender = await cluster.producer()
            for number in range(800):
                await sender.send("t", f"m{number}")
            config = ConsumerConfig(max_backlog=64, pull_batch_size=16, concurrency=2, pull_timeout=29.0)
            await cluster.consumer("g", "t", handler, config=config)
            silent, live = cluster.brokers
            cluster.partition([silent.address], [each.address for each in cluster.members])
            goes_on.set()
            await asyncio.sleep(2)
            assert seen[live.name] >= 350
            cluster.heal()

    simulate(main)
