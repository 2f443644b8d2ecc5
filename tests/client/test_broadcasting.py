"""Every member gets everything, keeps its own offsets, and nothing comes back."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from functools import partial
from typing import Any

import pytest

from aiorocket.client.core.offsets import read_offset_file
from aiorocket.client.message import Message
from aiorocket.config import ClientConfig, ConsumerConfig
from aiorocket.errors import UsageError
from aiorocket.testing.cluster import SimCluster
from aiorocket.testing.machines import SimMember
from aiorocket_protocol import ConsumerData, HeartbeatData, RequestCode, decode_body
from tests.client import clusters

CONFIG = ConsumerConfig(message_model="broadcasting", offset_store_dir="offsets")
STABLE = ClientConfig(instance="reader")
run = partial(clusters.run, queues=2, brokers=2)


async def reader(cluster: SimCluster, handler: Any, **options: Any) -> SimMember:
    return await cluster.consumer("g", "t", handler, config=CONFIG, client=STABLE, **options)


def test_every_member_gets_every_message_once() -> None:
    async def scenario(cluster: SimCluster) -> None:
        seen: defaultdict[str, list[str]] = defaultdict(list)
        codes: defaultdict[int, int] = defaultdict(int)

        told: list[ConsumerData] = []

        def watch(connection: object, request: Any) -> None:
            codes[request.code] += 1
            if request.code == RequestCode.HEART_BEAT:
                told.extend(decode_body(HeartbeatData, request.body, request.serialize_type).consumers)

        for broker in cluster.brokers:
            broker.faults.watch(watch)

        def handler(name: str) -> Any:
            async def on_message(message: Message) -> None:
                seen[name].append(message.body.decode())

            return on_message

        sender = await cluster.producer()
        members = [await reader(cluster, handler(name)) for name in "abc"]
        for number in range(20):
            await sender.send("t", str(number))
        await asyncio.sleep(30)
        everything = sorted(map(str, range(20)))
        assert {name: sorted(bodies) for name, bodies in seen.items()} == dict.fromkeys("abc", everything)
        assert all(len(member.held()) == 4 for member in members)  # and no retry topic
        # Nobody asks for the members, the group's offsets or a lock.
        assert codes[RequestCode.GET_CONSUMER_LIST_BY_GROUP] == 0
        assert codes[RequestCode.UPDATE_CONSUMER_OFFSET] == codes[RequestCode.QUERY_CONSUMER_OFFSET] == 0
        assert {each.message_model for each in told} == {"BROADCASTING"}
        assert {subscription.topic for each in told for subscription in each.subscriptions} == {"t"}

    run(scenario)


def test_failures_are_dropped_and_counted() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async def fail(message: Message) -> None:
            raise ValueError("always")

        sender, member = await cluster.producer(), await reader(cluster, fail)
        await sender.send("t", "a")
        await asyncio.sleep(60)
        counters = member.consumer.state().counters
        assert (counters.consumed, counters.retried, counters.broadcast_dropped) == (1, 0, 1)

    run(scenario)


@pytest.mark.parametrize("kill", [False, True])
def test_a_restart_goes_on_from_the_file(kill: bool) -> None:
    async def scenario(cluster: SimCluster) -> None:
        seen: list[str] = []

        async def on_message(message: Message) -> None:
            seen.append(message.body.decode())

        sender, member = await cluster.producer(), await reader(cluster, on_message, address="10.1.0.77")
        for number in range(8):
            await sender.send("t", str(number))
        await asyncio.sleep(11 if kill else 1)  # a crash leaves what the last flush, every 10 s, had
        if kill:
            member.kill(power_cut=True)
        else:
            await member.stop()
        path = "offsets/10.1.0.77@reader/g/offsets.json"
        assert sum(read_offset_file(member.disk.read_bytes(path)).values()) == 8
        await sender.send("t", "while away")
        await member.start()
        await asyncio.sleep(1)
        assert sorted(seen) == sorted([*map(str, range(8)), "while away"])

    run(scenario)


def test_orderly_needs_no_locks() -> None:
    async def scenario(cluster: SimCluster) -> None:
        codes: set[int] = set()
        for broker in cluster.brokers:
            broker.faults.watch(lambda connection, request: codes.add(request.code))
        seen: list[tuple[int, int]] = []

        async def on_message(message: Message) -> None:
            seen.append((message.queue.queue_id, message.offset))

        sender = await cluster.producer()
        members = [await reader(cluster, on_message, orderly=True) for _ in range(2)]
        for number in range(12):
            await sender.send("t", str(number))
        await asyncio.sleep(5)
        assert len(seen) == 24
        assert RequestCode.LOCK_BATCH_MQ not in codes
        assert all(member.consumer._member.leases is None for member in members)

    run(scenario)


def test_a_client_without_a_name_is_refused_with_the_option() -> None:
    async def scenario(cluster: SimCluster) -> None:
        member = await cluster.consumer("g", "t", config=CONFIG, start=False)
        with pytest.raises(UsageError, match=r"ClientConfig\.instance"):
            await member.start()

    run(scenario)


def test_an_old_topic_begins_where_start_from_says() -> None:
    async def scenario(cluster: SimCluster) -> None:
        seen: list[str] = []

        async def on_message(message: Message) -> None:
            seen.append(message.body.decode())

        sender = await cluster.producer()
        await sender.send("t", "old")
        await reader(cluster, on_message, start_from="last")
        await sender.send("t", "new")
        await asyncio.sleep(1)
        assert seen == ["new"]  # its own file knows nothing of how young the topic is

    run(scenario)
