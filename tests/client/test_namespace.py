"""Clients with a namespace, side by side on one cluster: names on the wire carry it, listeners never see it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aiorocket.client.core.balance import fixed
from aiorocket.client.message import Message
from aiorocket.client.push.direct import find_listener
from aiorocket.config import ClientConfig, ConsumerConfig
from aiorocket.errors import ConfigError
from aiorocket.model import Queue
from aiorocket.testing import Simulation, simulate
from aiorocket.testing.cluster import SimCluster
from aiorocket_protocol import HeartbeatData, RequestCode, decode_body

Scenario = Callable[[SimCluster], Awaitable[None]]
ONE, TWO = ClientConfig(namespace="one"), ClientConfig(namespace="two")


def run(scenario: Scenario, client: ClientConfig = ONE) -> None:
    async def main(sim: Simulation) -> None:
        async with SimCluster(sim, client=client) as cluster:
            for topic in ("one%t", "two%t", "t"):
                await cluster.create_topic(topic, 2)
            await scenario(cluster)

    simulate(main)


def test_names_are_wrapped_on_the_wire_and_plain_in_listeners() -> None:
    async def scenario(cluster: SimCluster) -> None:
        seen: list[tuple[str, Queue, int]] = []

        async def on_message(message: Message) -> None:
            seen.append((message.topic, message.queue, message.attempt))
            if message.attempt == 1:
                raise ValueError("once")

        told: dict[str, set[str]] = {}

        def watch(connection: object, request: Any) -> None:
            if request.code == RequestCode.HEART_BEAT:
                for each in decode_body(HeartbeatData, request.body, request.serialize_type).consumers:
                    told[each.group] = {subscription.topic for subscription in each.subscriptions}

        cluster.brokers[0].faults.watch(watch)
        sender = await cluster.producer()  # in namespace one
        member = await cluster.consumer("g", "t", on_message)
        await cluster.consumer("g", "t", on_message, client=TWO)  # hears nothing of it
        await sender.send("t", "a")
        await asyncio.sleep(20)
        assert [(topic, queue.topic, attempt) for topic, queue, attempt in seen] == [
            ("t", "t", 1),
            ("t", "%RETRY%g", 2),
        ]
        broker = cluster.brokers[0].broker
        assert told == {"one%g": {"one%t", "%RETRY%one%g"}, "two%g": {"two%t", "%RETRY%two%g"}}
        state = member.consumer.state()
        assert (state.group, {each.queue.topic for each in state.queues}) == ("g", {"t", "%RETRY%g"})
        await asyncio.sleep(10)
        assert sum(broker.offsets.query("one%g", "one%t", number) or 0 for number in range(2)) == 1

    run(scenario)


def test_orderly_too() -> None:
    async def scenario(cluster: SimCluster) -> None:
        seen: list[tuple[str, str]] = []

        async def on_message(message: Message) -> None:
            seen.append((message.topic, message.queue.topic))

        sender = await cluster.producer()
        await cluster.consumer("g", "t", on_message, orderly=True)
        for number in range(4):
            await sender.send("t", str(number))
        await asyncio.sleep(1)
        assert seen == [("t", "t")] * 4

    run(scenario)


def test_pause_names_and_hooks_are_plain() -> None:
    async def scenario(cluster: SimCluster) -> None:
        member = await cluster.consumer("g", "t")
        consumer = member.consumer
        await member.host.run(_call(lambda: consumer.pause("t")))
        assert {each.paused for each in consumer._fetchers() if each.shown.topic == "t"} == {True}
        await member.host.run(_call(lambda: consumer.resume("t")))
        assert {each.paused for each in consumer._fetchers()} == {False}
        assert {queue.topic for queue in consumer._member.shown(consumer.held())} == {"t", "%RETRY%g"}

    run(scenario)


def test_a_fixed_list_names_queues_as_the_program_does() -> None:
    async def scenario(cluster: SimCluster) -> None:
        mine = [Queue("t", "broker-1", 1), Queue("%RETRY%g", "broker-1", 0)]
        member = await cluster.consumer("g", "t", config=ConsumerConfig(allocate=fixed(mine)))
        await asyncio.sleep(2)
        assert member.consumer._member.shown(member.held()) == sorted(mine)

    run(scenario)


def test_a_topic_may_be_named_with_its_namespace() -> None:
    async def scenario(cluster: SimCluster) -> None:
        member, sender = await cluster.consumer("g", "one%t"), await cluster.producer()
        for number in range(3):
            await sender.send("t", str(number))
        await asyncio.sleep(15)
        consumer = member.consumer
        for name in ("t", "one%t"):
            assert consumer.stats.status(name).pull_tps > 0
            consumer.set_concurrency(name, 2)
        listener = find_listener(consumer.listeners, "one", "t", "")  # as a message names its topic
        assert listener is consumer.listeners[0]

    run(scenario)


async def _call(function: Callable[[], Any]) -> None:
    function()


def test_without_a_namespace_names_stay() -> None:
    async def scenario(cluster: SimCluster) -> None:
        sender, member = await cluster.producer(), await cluster.consumer("g", "t")
        await sender.send("t", "a")
        await asyncio.sleep(1)
        assert member.consumer.state().counters.consumed == 1
        assert member.consumer._member.wire_group == "g"

    run(scenario, ClientConfig())


def test_a_namespace_has_rules() -> None:
    with pytest.raises(ConfigError, match="namespace='a%b'"):
        ClientConfig(namespace="a%b")
