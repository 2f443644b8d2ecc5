"""Listeners slower than the stream: flow control, and the consume timeout."""

from __future__ import annotations

import asyncio

import pytest

from aiorocket.client.message import Message
from aiorocket.config import ConsumerConfig
from aiorocket.testing import SimCluster, Simulation, check, checkers, simulate


@pytest.mark.seeds(4)
def test_a_slow_listener_bounds_what_is_cached_and_stays_a_member(seed: int) -> None:
    config = ConsumerConfig(concurrency=1, max_cached_messages=20, pull_batch_size=8)

    async def scenario(sim: Simulation) -> None:
        async def slow(message: Message) -> None:
            await asyncio.sleep(2)

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 1)
            member = await cluster.consumer("g", "t", slow, config=config)
            sender = await cluster.producer()
            for number in range(200):
                await sender.send("t", f"m{number}")
            blocked = 0
            for _ in range(150):
                await asyncio.sleep(2)
                [queue] = [each for each in member.consumer.state().queues if each.queue.topic == "t"]
                # One pull may go out at the limit.
                assert queue.cached <= 20 + 8
                blocked += queue.blocked == "messages"
                assert len(member.held("t")) == 1
            assert blocked > 100
            await cluster.settled({"g": ["t"]})
            times = [event.time for event in cluster.history.of("delivered")]
            assert len(times) == 200
            # Flow control never leaves the listener without work.
            assert times[-1] - times[0] == pytest.approx(2 * 199, abs=2)
        check(cluster.history, checkers.CLUSTER)

    simulate(scenario, seed)


@pytest.mark.seeds(3)
def test_a_message_that_hangs_blocks_its_queue_only_by_the_span(seed: int) -> None:
    """All others go on until 50 offsets lie between it and the newest; the commit stays behind it. After the consume
    timeout it is sent back, and what its listener returns later counts for nothing."""
    config = ConsumerConfig(concurrency=4, max_span=50, pull_batch_size=8, consume_timeout=300.0)

    async def scenario(sim: Simulation) -> None:
        async def listen(message: Message) -> None:
            if message.body == b"m5" and message.attempt == 1:
                await asyncio.sleep(700)

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 1)
            member = await cluster.consumer("g", "t", listen, config=config)
            sender = await cluster.producer()
            for number in range(200):
                await sender.send("t", f"m{number}")
            await asyncio.sleep(240)
            broker = cluster.brokers[0]
            assert broker.broker.offsets.query("g", "t", 0) == 5
            [queue] = [each for each in member.consumer.state().queues if each.queue.topic == "t"]
            assert queue.blocked == "span"
            done = {event.offset for event in cluster.history.of("finished")}
            assert 50 <= len(done) <= 50 + 2 * 8
            await asyncio.sleep(200)
            retried = [event for event in cluster.history.of("delivered") if event.attempt == 2]
            assert [event.key for event in retried] == ["m5"]
            # Swept every 60 s, delivered again at level 3.
            assert 300 <= retried[0].time <= 300 + 60 + 60 + 11
            assert broker.lag("g", "t") == 0
            await asyncio.sleep(700)
            assert member.consumer.state().counters.timed_out == 1
            assert member.consumer.state().counters.late == 1
        # The first call ends with a success that nobody waits for any more.
        late = [each for each in cluster.history.of("finished") if each.key == "m5" and each.attempt == 1]
        assert [each.outcome for each in late] == ["ok"]
        ignored = (checkers.commits_never_ahead,)
        check(cluster.history, [each for each in checkers.CLUSTER if each not in ignored])

    simulate(scenario, seed)
