"""The other ways to consume, under the same faults: in order per key, batches that fail in part, pulling by hand."""

from __future__ import annotations

import asyncio

import pytest

from aiorocket.client.exits import Retry
from aiorocket.client.message import Message
from aiorocket.client.pull.pull_consumer import PullConsumer
from aiorocket.client.push.batch_listener import Batch
from aiorocket.client.push.consumer import Consumer
from aiorocket.config import ConsumerConfig
from aiorocket.errors import RocketError
from aiorocket.testing import SimCluster, Simulation, check, checkers, simulate

#: All but the order and the commits of whole queues, which these consumers keep in their own way.
STORED = (checkers.sends_end, checkers.nothing_invented, checkers.offsets_stable)


@pytest.mark.seeds(5)
def test_keys_stay_in_order_through_failures_and_takeovers(seed: int) -> None:
    """Without a lock at the broker two members may work on a key at once for a moment, but none is given a message
    whose predecessor nobody has finished."""

    async def scenario(sim: Simulation) -> None:
        draw = sim.loop.random
        config = ConsumerConfig(concurrency=8, suspend=0.5)

        async def work(message: Message) -> None:
            await asyncio.sleep(draw.uniform(0, 1))
            if draw.random() < 0.1:
                raise Retry

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 3)
            sender = await cluster.producer()
            members = [
                await cluster.consumer(
                    "g", "t", work, config=config, order_by=lambda message: message.sharding_key, start=number < 2
                )
                for number in range(3)
            ]
            for number in range(150):
                await sender.send("t", f"m{number}", sharding_key=f"k{number % 11}", timeout=10)
                if number % 25 == 12:
                    member = draw.choice(members)
                    if not member.running:
                        await member.start()
                    elif draw.random() < 0.5:
                        await member.stop()
                    else:
                        member.kill()
                if number == 75:
                    await cluster.brokers[0].restart(power_cut=bool(seed % 2))
                await asyncio.sleep(draw.uniform(0, 0.6))
            if not any(member.running for member in members):
                await members[0].start()
            await cluster.settled({"g": ["t"]})
            assert cluster.note_dead_letters("g")["g"] == []
        check(
            cluster.history,
            [
                *STORED,
                checkers.no_message_lost,
                checkers.commits_never_ahead,
                lambda history: checkers.orderly(history, "g", "shard"),
            ],
        )

    simulate(scenario, seed)


@pytest.mark.seeds(4)
def test_batches_that_fail_in_part_lose_nothing_over_broker_restarts(seed: int) -> None:
    async def scenario(sim: Simulation) -> None:
        draw = sim.loop.random
        done: set[str] = set()
        again: set[str] = set()

        async def load(batch: Batch) -> None:
            await asyncio.sleep(draw.uniform(0, 2))
            failed = [index for index, message in enumerate(batch) if message.attempt == 1 and draw.random() < 0.1]
            batch.fail(failed, retry_after=1)
            for index, message in enumerate(batch):
                (again if index in failed else done).add(message.body.decode())

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 3)
            sender = await cluster.producer()
            host = sim.host("10.2.0.1")
            consumer = Consumer("g", nameservers=cluster.endpoints, env=sim.env())
            consumer.batch("t", max_messages=16, max_wait=0.5, start_from="first")(load)
            await host.run(consumer.start())
            for number in range(200):
                await sender.send("t", f"m{number}", timeout=10)
                if number % 60 == 30:
                    await cluster.brokers[0].restart(power_cut=draw.choice((None, False, True)))
                await asyncio.sleep(draw.uniform(0, 0.3))
            await cluster.settled({"g": ["t"]})
            await host.run(consumer.stop())
        check(cluster.history, STORED)
        assert cluster.history.keys("acknowledged") <= done
        assert again and again <= done

    simulate(scenario, seed)


@pytest.mark.seeds(4)
def test_what_was_fetched_and_not_committed_is_fetched_again(seed: int) -> None:
    """A program that fetches, works, commits. It dies somewhere on that way, the broker loses power; the next one goes
    on with all that was not committed, and nothing that was comes once more."""

    async def scenario(sim: Simulation) -> None:
        draw = sim.loop.random
        worked: list[str] = []
        committed: set[str] = set()
        again: set[str] = set()

        async def program(consumer: PullConsumer, life: float) -> None:
            end = sim.loop.time() + life
            await consumer.start()
            await consumer.subscribe("t", start_from="first")
            while sim.loop.time() < end:
                keys = [message.body.decode() for message in await consumer.fetch(10, timeout=1)]
                again.update(committed.intersection(keys))
                await asyncio.sleep(draw.uniform(0, 1))
                worked.extend(keys)
                try:
                    await consumer.commit()
                except RocketError:
                    continue  # whether it is stored nobody knows; the next commit covers it
                committed.update(keys)

        def member() -> PullConsumer:
            return PullConsumer("g", nameservers=cluster.endpoints, env=sim.env())

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 2)
            sender = await cluster.producer()
            doomed = sim.host("10.2.0.1")
            doomed.start(program(member(), 1000))
            for number in range(100):
                await sender.send("t", f"m{number}", timeout=10)
                if number == 30:
                    await cluster.brokers[0].restart(power_cut=True)
                await asyncio.sleep(draw.uniform(0, 0.5))
            doomed.kill(power_cut=bool(seed % 2))
            assert committed
            host, heir = sim.host("10.2.0.2"), member()
            await host.run(program(heir, 200))
            await host.run(heir.stop())
            assert cluster.brokers[0].lag("g", "t") == 0
        check(cluster.history, STORED)
        assert cluster.history.keys("acknowledged") <= set(worked)
        assert not again

    simulate(scenario, seed)
