"""Orderly groups through crashes, silent links and restarts: who may consume which queue, from which second on."""

from __future__ import annotations

import asyncio
import random

import pytest

from aiorocket.client.exits import LeaseLost
from aiorocket.client.group import rebalancer
from aiorocket.client.group.commits import OffsetStore
from aiorocket.client.group.member import Member
from aiorocket.client.group.start_offset import Start, start_offset
from aiorocket.client.message import Message
from aiorocket.config import ConsumerConfig
from aiorocket.errors import NotConnectedError
from aiorocket.model import Queue
from aiorocket.testing import HistoryError, SimCluster, SimMember, Simulation, check, checkers, simulate
from aiorocket_protocol import LockBatchBody, MessageQueue, RequestCode, encode_body

#: What a renewal may be late by: retries and round trips, and the rebalance that asks again each second.
SLACK = 2.5


async def fill(cluster: SimCluster, count: int) -> None:
    sender = await cluster.producer()
    for number in range(count):
        await sender.send("t", f"m{number}")


def grants(cluster: SimCluster, member: SimMember) -> list[float]:
    """When this member was granted a lock of topic t."""
    who = member.client.client_id
    return [
        event.time
        for event in cluster.history.of("granted")
        if event.key == who and event.queue is not None and event.queue.topic == "t"
    ]


@pytest.mark.seeds(4)
def test_the_queues_of_a_dead_member_are_taken_over_60_s_after_its_last_renewal(seed: int) -> None:
    async def scenario(sim: Simulation) -> None:
        async def work(message: Message) -> None:
            await asyncio.sleep(0.5)

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 2)
            await fill(cluster, 20)
            dead = await cluster.consumer("g", "t", work, orderly=True)
            await asyncio.sleep(3 + seed % 7 * 9)
            other = await cluster.consumer("g", "t", work, orderly=True, start=False)
            dead.kill()
            last = max(grants(cluster, dead))
            await other.start()
            first: list[float] = []
            while not first:
                await asyncio.sleep(0.1)
                first = grants(cluster, other)
            assert last + 60 <= first[0] <= last + 60 + SLACK
            await cluster.settled({"g": ["t"]})
            await asyncio.sleep(SLACK)
            assert len(other.held("t")) == 2
        check(cluster.history, [*checkers.CLUSTER, lambda history: checkers.one_at_a_time(history, "g")])

    simulate(scenario, seed)


def test_the_queues_of_a_member_that_leaves_are_taken_over_at_once() -> None:
    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 4)
            await fill(cluster, 20)
            leaver = await cluster.consumer("g", "t", orderly=True)
            stays = await cluster.consumer("g", "t", orderly=True)
            await asyncio.sleep(100)
            given_back = set(leaver.held("t"))
            assert len(given_back) == 2
            await leaver.stop()
            left = sim.loop.time()
            while len(stays.held("t")) < 4:
                await asyncio.sleep(0.1)
            await fill(cluster, 20)
            await asyncio.sleep(SLACK)
            granted = [event for event in cluster.history.of("granted") if left <= event.time <= left + SLACK]
            assert given_back <= {event.queue for event in granted if event.key == stays.client.client_id}
            assert sim.loop.time() <= left + 2 * SLACK
        check(cluster.history, checkers.CLUSTER)

    simulate(scenario)


@pytest.mark.seeds(4)
def test_a_silent_link_ends_a_running_call_30_s_after_the_last_renewal(seed: int) -> None:
    async def scenario(sim: Simulation) -> None:
        cancelled: list[float] = []

        async def long_work(message: Message) -> None:
            try:
                await asyncio.sleep(300)
            except asyncio.CancelledError as error:
                if LeaseLost.caused(error):
                    cancelled.append(sim.loop.time())
                raise

        begun: list[float] = []

        async def work(message: Message) -> None:
            begun.append(sim.loop.time())

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 1)
            await fill(cluster, 1)
            cut = await cluster.consumer("g", "t", long_work, orderly=True)
            await asyncio.sleep(25 + seed % 30)
            last = max(grants(cluster, cut))
            cluster.partition([cut.address], [broker.address for broker in cluster.brokers])
            await cluster.consumer("g", "t", work, orderly=True)
            while not cancelled:
                await asyncio.sleep(0.5)
            assert cancelled[0] == pytest.approx(last + 30, abs=0.1)
            assert cut.consumer.state().counters.late == 1
            while not begun:
                await asyncio.sleep(0.5)
            # The other waits for the end at the broker, and for the broker to miss the silent member.
            assert begun[0] >= last + 60
            cluster.heal()
            await asyncio.sleep(60)
            # It comes back to a group that has gone on without it; what it did is finished by the other.
            assert len(begun) == 1
        check(cluster.history, [*checkers.CLUSTER, lambda history: checkers.one_at_a_time(history, "g")])

    simulate(scenario, seed)


def test_a_lock_that_was_granted_for_nothing_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member gets the lock of a queue, cannot find out where to begin, and then the queue is another member's: it
    must not renew that lock for ever (chaos seed 77)."""

    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 2)
            one = await cluster.consumer("g", "t", orderly=True)
            two = await cluster.consumer("g", "t", orderly=True)
            await asyncio.sleep(30)
            stuck, free = (one, two) if one.client.client_id < two.client.client_id else (two, one)

            async def unlucky(member: Member, store: OffsetStore, queue: Queue) -> Start:
                if member is stuck.consumer._member and queue.topic == "t" and queue.queue_id == 1:
                    raise NotConnectedError("planned by a test")
                return await start_offset(member, store, queue)

            monkeypatch.setattr(rebalancer, "start_offset", unlucky)
            await free.stop()
            await asyncio.sleep(30)
            leases = stuck.consumer._member.leases
            assert leases is not None and Queue("t", "broker-1", 1) in leases.table.queues()
            back = await cluster.consumer("g", "t", orderly=True, start=False)
            begun = sim.loop.time()
            await back.start()
            while len(back.held("t")) + len(stuck.held("t")) < 2:
                await asyncio.sleep(0.5)
                assert sim.loop.time() < begun + 10
        check(cluster.history, checkers.CLUSTER)

    simulate(scenario)


@pytest.mark.seeds(6)
def test_members_that_come_and_go_keep_the_order_of_each_key(seed: int) -> None:
    async def scenario(sim: Simulation) -> None:
        draw = random.Random(seed)

        async def work(message: Message) -> None:
            await asyncio.sleep(draw.uniform(0, 0.5))
            if draw.random() < 0.1:
                raise ValueError("now and then")

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 4)
            sender = await cluster.producer()
            members = [
                await cluster.consumer("g", "t", work, orderly=True, suspend=0.2, start=number < 2)
                for number in range(4)
            ]
            for number in range(120):
                await sender.send("t", f"m{number}", sharding_key=f"k{number % 7}")
                if number % 20 == 10:
                    member = draw.choice(members)
                    if not member.running:
                        await member.start()
                    elif draw.random() < 0.6:
                        await member.stop()
                    else:
                        member.kill()
                if number == 60:
                    await cluster.brokers[0].restart()
                await asyncio.sleep(draw.uniform(0, 1))
            if not any(member.running for member in members):
                await members[0].start()
            await asyncio.sleep(90)
            await cluster.settled({"g": ["t"]})
        check(
            cluster.history,
            [
                *checkers.CLUSTER,
                lambda history: checkers.orderly(history, "g"),
                lambda history: checkers.orderly(history, "g", "shard"),
                lambda history: checkers.one_at_a_time(history, "g"),
            ],
        )

    simulate(scenario, seed)


@pytest.mark.seeds(3)
def test_silent_links_and_broken_brokers_never_let_two_work_on_a_queue(seed: int) -> None:
    async def scenario(sim: Simulation) -> None:
        draw = random.Random(seed)

        async def work(message: Message) -> None:
            await asyncio.sleep(draw.choice((0.01, 0.3, 15.0)))
            if draw.random() < 0.1:
                raise ValueError("now and then")

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 3)
            sender = await cluster.producer()
            members = [await cluster.consumer("g", "t", work, orderly=True) for _ in range(3)]
            broker = cluster.brokers[0]
            for number in range(60):
                await sender.send("t", f"m{number}", sharding_key=f"k{number % 5}")
                if number % 12 == 5:
                    member = draw.choice(members)
                    match draw.randrange(4):
                        case 0:
                            cluster.silence(member.address, broker.address)
                        case 1:
                            cluster.silence(broker.address, member.address)
                        case 2:
                            cluster.partition([member.address], [broker.address])
                        case _:
                            await broker.restart(power_cut=draw.random() < 0.5, pause=draw.uniform(0, 40))
                if number % 12 == 11:
                    await asyncio.sleep(draw.uniform(0, 120))
                    cluster.heal()
                await asyncio.sleep(draw.uniform(0, 3))
            cluster.heal()
            await asyncio.sleep(200)
            await cluster.settled({"g": ["t"]})
        check(
            cluster.history,
            [
                *checkers.CLUSTER,
                lambda history: checkers.orderly(history, "g"),
                lambda history: checkers.one_at_a_time(history, "g"),
            ],
        )

    simulate(scenario, seed)


def test_a_lock_that_comes_back_brings_no_old_position_with_it() -> None:
    """The listener does not let itself be cancelled, so the queue is still being given up here when another member has
    taken it, gone on in it and left, and the lock is ours again, under a new epoch."""

    async def scenario(sim: Simulation) -> None:
        async def work(message: Message) -> None:
            until = sim.loop.time() + (200 if message.offset == 3 and message.attempt == 1 else 0)
            while sim.loop.time() < until:
                try:
                    await asyncio.sleep(until - sim.loop.time())
                except asyncio.CancelledError as error:
                    assert LeaseLost.caused(error)

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 1)
            stubborn = ConsumerConfig(revoke_timeout=300.0, offset_flush_interval=30.0)
            slow = await cluster.consumer("g", "t", work, orderly=True, config=stubborn)
            await fill(cluster, 8)
            await asyncio.sleep(5)
            broker = cluster.brokers[0]
            cluster.partition([slow.address], [broker.address])
            other = await cluster.consumer("g", "t", orderly=True, start=False)
            await other.start()
            while broker.broker.offsets.query("g", "t", 0) != 8:
                await asyncio.sleep(1)
            assert sim.loop.time() < 190
            await other.stop()
            cluster.heal()
            queue = Queue("t", "broker-1", 0)
            leases = slow.consumer._member.leases
            assert leases is not None
            while not leases.valid(queue, sim.loop.time()):
                await asyncio.sleep(0.1)
            assert slow.consumer.state().in_work == 1
            await slow.host.run(slow.consumer.commit())
            assert broker.broker.offsets.query("g", "t", 0) == 8

    simulate(scenario)


def test_a_lock_that_is_freed_behind_its_owners_back_is_found() -> None:
    """Nothing here does that: it shows that a broker which took a late unlock for a good one would not go unnoticed."""

    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 1)
            owner = await cluster.consumer("g", "t", orderly=True)
            rogue, address = await cluster.producer(), cluster.brokers[0].endpoint

            async def ask(code: int, client_id: str) -> None:
                connection = await rogue.client.session.connection(address)
                body = LockBatchBody(client_id, "g", [MessageQueue("t", "broker-1", 0)])
                await rogue.client.session.call(address, code, body=encode_body(body, connection.serialize_type))

            await rogue.host.run(ask(RequestCode.UNLOCK_BATCH_MQ, owner.client.client_id))
            await rogue.host.run(ask(RequestCode.LOCK_BATCH_MQ, "taker"))
        check(cluster.history, checkers.CLUSTER)

    with pytest.raises(HistoryError, match="leases_exclusive"):
        simulate(scenario)


@pytest.mark.parametrize("stopped", [20.0, 35.0, 75.0, 120.0])
@pytest.mark.seeds(3)
def test_a_process_that_was_stopped_does_nothing_more_under_a_lease_that_ended(stopped: float, seed: int) -> None:
    """SIGSTOP for longer than the lease: when it goes on, answers and messages from before are still to be read, and
    another has gone on in its queues."""

    async def scenario(sim: Simulation) -> None:
        draw = random.Random(seed)

        async def work(message: Message) -> None:
            await asyncio.sleep(draw.choice((0.0, 0.1, 3.0)))

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 2)
            await fill(cluster, 200)
            member = await cluster.consumer("g", "t", work, orderly=True)
            await asyncio.sleep(draw.uniform(1, 25))
            member.pause()
            begun = sim.loop.time()
            other = await cluster.consumer("g", "t", work, orderly=True, start=False)
            await other.start()
            await asyncio.sleep(max(0.0, begun + stopped - sim.loop.time()))
            sender = await cluster.producer()
            for number in range(20):
                await sender.send("t", f"new{number}")
            member.resume()
            gone_on = sim.loop.time()
            await cluster.settled({"g": ["t"]})
            if stopped > 30:
                again = min((each for each in grants(cluster, member) if each > gone_on), default=float("inf"))
                mine = [each.time for each in cluster.history.of("delivered") if each.host == member.address]
                assert not [when for when in mine if gone_on <= when < again]
            for queue_id in range(2):
                commits = [
                    event.offset
                    for event in cluster.history.of("committed")
                    if event.queue == Queue("t", "broker-1", queue_id)
                ]
                assert commits == sorted(commits)
        check(cluster.history, [*checkers.CLUSTER, lambda history: checkers.orderly(history, "g")])

    simulate(scenario, seed)


@pytest.mark.parametrize("stopped", [20.0, 35.0, 75.0, 120.0])
@pytest.mark.seeds(2)
def test_a_broker_that_was_stopped_makes_no_second_owner(stopped: float, seed: int) -> None:
    """Requests for locks from before it was stopped are still to be answered, and nobody waits for the answers."""

    async def scenario(sim: Simulation) -> None:
        draw = random.Random(seed)

        async def work(message: Message) -> None:
            await asyncio.sleep(draw.choice((0.0, 0.1, 3.0)))

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 3)
            await fill(cluster, 200)
            for _ in range(3):
                await cluster.consumer("g", "t", work, orderly=True)
            for _ in range(3):
                await asyncio.sleep(draw.uniform(1, 45))
                cluster.brokers[0].pause()
                await asyncio.sleep(stopped)
                cluster.brokers[0].resume()
            await cluster.settled({"g": ["t"]})
        check(
            cluster.history,
            [
                *checkers.CLUSTER,
                lambda history: checkers.orderly(history, "g"),
                lambda history: checkers.one_at_a_time(history, "g"),
            ],
        )

    simulate(scenario, seed)
