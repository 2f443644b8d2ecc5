"""Where a group begins, while brokers fail to say it and members die early: what comes after its beginning is its
own."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial

import pytest

from aiorocket.client.message import Message
from aiorocket.client.pull.pull_consumer import PullConsumer
from aiorocket.client.push.consumer import Consumer
from aiorocket.model import Queue
from aiorocket.storage.store import MessageStore
from aiorocket.testing import SimBroker, SimCluster, Simulation, check, checkers, simulate

#: These hold wherever a group begins.
ANYWHERE = (checkers.sends_end, checkers.nothing_invented, checkers.offsets_stable, checkers.order_per_queue)


def unwilling(broker: SimBroker) -> None:
    """Let the first answers about offsets fail in every way there is: such a queue is asked for again a round later."""
    broker.faults.next("QUERY_CONSUMER_OFFSET", times=3, reply="SYSTEM_ERROR")
    for request in ("GET_MAX_OFFSET", "GET_MIN_OFFSET", "SEARCH_OFFSET_BY_TIMESTAMP"):
        broker.faults.next(request, reply="SYSTEM_ERROR")
        broker.faults.next(request, drop=True)


@pytest.mark.seeds(4)
def test_a_group_that_begins_at_the_end_keeps_what_comes_from_then_on(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its only member dies before it has finished or committed anything. Who comes next must not begin at the end once
    more: the messages of meanwhile are the group's."""

    async def scenario(sim: Simulation) -> None:
        async def hang(message: Message) -> None:
            await asyncio.sleep(1000)

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 4)
            sender = await cluster.producer()
            for number in range(40):
                await sender.send("t", f"old{number}")
            # An old topic: the broker has its first messages on disk only.
            monkeypatch.setattr(MessageStore, "is_young", lambda *_: False)
            unwilling(cluster.brokers[0])
            first = await cluster.consumer("g", "t", hang, start_from="last")
            while len(first.held("t")) < 4:
                await asyncio.sleep(0.1)
            # Its first pulls have said where it begins, before any flush.
            await asyncio.sleep(0.1)
            for number in range(sim.loop.random.randrange(1, 20)):
                await sender.send("t", f"new{number}")
            first.kill(power_cut=bool(seed % 2))
            for number in range(20, 30):
                await sender.send("t", f"new{number}")
            await cluster.consumer("g", "t", start_from="last")
            await cluster.settled({"g": ["t"]})
        new = {key for key in cluster.history.keys("acknowledged") if key.startswith("new")}
        assert {event.key for event in cluster.history.of("finished")} == new
        check(cluster.history, ANYWHERE)

    simulate(scenario, seed)


def test_where_a_group_began_in_a_young_queue_holds_when_the_queue_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its only member died before it had finished anything, so that the group has no other offset."""

    async def scenario(sim: Simulation) -> None:
        async def hang(message: Message) -> None:
            await asyncio.sleep(1000)

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 1)
            sender = await cluster.producer()
            first = await cluster.consumer("g", "t", hang, start_from="last")
            await sender.send("t", "first")
            await asyncio.sleep(11)  # offsets have been flushed
            first.kill(power_cut=True)
            monkeypatch.setattr(MessageStore, "is_young", lambda *_: False)
            await cluster.consumer("g", "t", start_from="last")
            await cluster.settled({"g": ["t"]})
        assert {event.key for event in cluster.history.of("finished")} == {"first"}

    simulate(scenario)


@pytest.mark.seeds(4)
def test_every_beginning_is_found_whatever_fails_at_first(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            broker = cluster.brokers[0]
            await cluster.create_topic("t", 3)
            sender = await cluster.producer()
            for number in range(30):
                await sender.send("t", f"old{number}")
            await asyncio.sleep(10)
            moment = datetime.fromtimestamp(broker.clock.wall_ms() / 1000, UTC)
            await asyncio.sleep(10)
            for number in range(30):
                await sender.send("t", f"young{number}")
            monkeypatch.setattr(MessageStore, "is_young", lambda *_: False)
            for group, start in (("first", "first"), ("timed", moment), ("last", "last")):
                unwilling(broker)
                for _ in range(2):
                    await cluster.consumer(group, "t", start_from=start)
            await asyncio.sleep(seed)
            await broker.restart(power_cut=bool(seed % 2))
            await asyncio.sleep(60)
            for number in range(30):
                await sender.send("t", f"new{number}", timeout=10)
            await cluster.settled({group: ["t"] for group in ("first", "timed", "last")})
        got: dict[str, set[str]] = {group: set() for group in ("first", "timed", "last")}
        for event in cluster.history.of("finished"):
            got[event.group].add(event.key)
        every = cluster.history.keys("acknowledged")
        assert len(every) == 90
        assert got["first"] == every
        assert got["timed"] == {key for key in every if not key.startswith("old")}
        assert got["last"] == {key for key in every if key.startswith("new")}
        check(cluster.history, [*ANYWHERE, partial(checkers.duplicates_explained, grace=5)])

    simulate(scenario, seed)


def test_a_first_message_that_comes_while_a_member_looks_for_the_end_is_not_passed_over() -> None:
    """The queue is empty when it asks for the group's offset, which Apache's brokers since 5.0 answer with 22, and is
    not when it asks for the end."""

    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 1)
            sender = await cluster.producer()
            cluster.brokers[0].faults.next("QUERY_CONSUMER_OFFSET", times=2, reply="QUERY_NOT_FOUND")
            cluster.brokers[0].faults.next("GET_MAX_OFFSET", times=2, delay=1)
            member = await cluster.consumer("g", "t", start_from="last", start=False)
            starting = asyncio.ensure_future(member.start())
            await asyncio.sleep(0.5)
            await sender.send("t", "first")
            await starting
            await cluster.settled({"g": ["t"]})
            assert cluster.brokers[0].faults.struck[30] == 1
        assert {event.key for event in cluster.history.of("finished")} == {"first"}

    simulate(scenario)


@pytest.mark.parametrize("how", ["subscribe", "assign"])
def test_a_pull_consumer_that_dies_before_its_first_commit_has_said_where_it_began(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MessageStore, "is_young", lambda *_: False)

    async def begin(cluster: SimCluster, consumer: PullConsumer) -> None:
        await consumer.start()
        if how == "subscribe":
            await consumer.subscribe("t", start_from="last")
        else:
            await consumer.assign(await consumer.queues("t"), start_from="last")

    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 2)
            sender = await cluster.producer()
            for number in range(4):
                await sender.send("t", f"old{number}")
            hosts = [sim.host(f"10.2.0.{number}") for number in (1, 2)]
            first, second = (PullConsumer("g", nameservers=cluster.endpoints, env=sim.env()) for _ in hosts)
            await hosts[0].run(begin(cluster, first))
            hosts[0].kill()
            for number in range(4):
                await sender.send("t", f"new{number}")
            await hosts[1].run(begin(cluster, second))
            found: list[Message] = []
            while len(found) < 4:
                more = await hosts[1].run(second.fetch(timeout=30))
                assert more
                found += more
            assert {message.body for message in found} == {b"new0", b"new1", b"new2", b"new3"}
            await hosts[1].run(second.stop())

    simulate(scenario)


def test_what_comes_while_a_first_member_is_told_of_its_queues_is_the_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one takes some of them over at that moment, which must not look for their end once more."""
    monkeypatch.setattr(MessageStore, "is_young", lambda *_: False)

    async def scenario(sim: Simulation) -> None:
        seen: set[bytes] = set()

        async def hook(queues: list[Queue]) -> None:
            await asyncio.sleep(3)

        async def listener(message: Message) -> None:
            await asyncio.sleep(0.5)
            seen.add(message.body)

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 4)
            sender = await cluster.producer()
            for number in range(4):
                await sender.send("t", f"old{number}")
            hosts = [sim.host(f"10.2.0.{number}") for number in (1, 2)]
            members, starts = [], []
            for host in hosts:
                member = Consumer("g", nameservers=cluster.endpoints, env=sim.env(), on_assigned=hook)
                member.listener("t", start_from="last", concurrency=1)(listener)
                members.append(member)
                starts.append(asyncio.ensure_future(host.run(member.start())))
                await asyncio.sleep(1)
                for number in range(20):
                    await sender.send("t", f"new{len(members)}-{number}")
            await asyncio.gather(*starts)
            await cluster.settled({"g": ["t"]})
            assert len(seen) == 40
            for host, member in zip(hosts, members, strict=True):
                await host.run(member.stop())

    simulate(scenario)
