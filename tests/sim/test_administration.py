"""What administrators ask of running groups while links and brokers fail: calls that end, resets that hold."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from aiorocket.client.admin.admin import Admin
from aiorocket.client.app import Client
from aiorocket.client.message import Message
from aiorocket.client.pull.pull_consumer import PullConsumer
from aiorocket.config import ClientConfig, ConsumerConfig, MissingTopics
from aiorocket.errors import RemoteError
from aiorocket.testing import SimBroker, SimCluster, Simulation, check, checkers, simulate
from aiorocket_protocol import (
    GetConsumerRunningInfoRequestHeader,
    RemotingCommand,
    RequestCode,
    ResetOffsetRequestHeader,
    ResponseCode,
)


async def ask(cluster: SimCluster, code: int, header: Any) -> RemotingCommand:
    """One request of an administrator to the first broker."""
    broker: SimBroker = cluster.brokers[0]

    async def call() -> RemotingCommand:
        async with Client(nameservers=cluster.endpoints, env=cluster.sim.env()) as client:
            return await client.session.call(broker.endpoint, code, header, timeout=30.0)

    return await cluster.sim.host("10.9.9.8").run(call())


@pytest.mark.seeds(4)
def test_a_member_behind_a_silent_link_costs_ten_seconds_and_answers_when_it_is_back(seed: int) -> None:
    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 2)
            member = await cluster.consumer("g", "t")
            await asyncio.sleep(sim.loop.random.uniform(0, 30))
            header = GetConsumerRunningInfoRequestHeader("g", member.client.client_id, True)
            assert b"properties" in (await ask(cluster, RequestCode.GET_CONSUMER_RUNNING_INFO, header)).body
            broker = cluster.brokers[0].address
            pair = (broker, member.address) if seed % 2 else (member.address, broker)
            cluster.silence(*pair)
            begun = sim.loop.time()
            with pytest.raises(RemoteError) as caught:
                await ask(cluster, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
            waited = sim.loop.time() - begun
            if caught.value.code != ResponseCode.CONSUME_MSG_TIMEOUT:
                # A member that hears nothing gives its connection up by itself.
                assert seed % 2 and caught.value.code == ResponseCode.SYSTEM_ERROR and waited <= 10.5
            else:
                assert 10 <= waited <= 10.5
            cluster.heal()
            await asyncio.sleep(60)
            assert b"properties" in (await ask(cluster, RequestCode.GET_CONSUMER_RUNNING_INFO, header)).body

    simulate(scenario, seed)


@pytest.mark.seeds(4)
@pytest.mark.parametrize("orderly", [False, True])
def test_a_group_that_is_sent_back_to_the_beginning_sees_everything_again(seed: int, orderly: bool) -> None:
    """Whatever ends the broker right after it has said yes, and whoever leaves the group then."""

    async def scenario(sim: Simulation) -> None:
        async def work(message: Message) -> None:
            await asyncio.sleep(sim.loop.random.uniform(0, 0.5))

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 3)
            # After a restart of the broker, members without locks may overlap for a moment, and the one that has heard
            # of nothing commits where it was: with two of them this is promised to orderly groups only.
            count = 2 if orderly or seed % 2 else 1
            members = [await cluster.consumer("g", "t", work, orderly=orderly) for _ in range(count)]
            sender = await cluster.producer()
            for number in range(60):
                await sender.send("t", f"m{number}")
            if seed % 4 < 2:
                await cluster.settled({"g": ["t"]})  # else while it works
            broker = cluster.brokers[0]
            cluster.fault(broker.address, "the offsets of g are reset to the beginning")
            reset_at = sim.loop.time()
            await ask(
                cluster, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetRequestHeader("t", "g", 0, is_force=True)
            )
            match seed % 4:
                case 0 | 2:
                    await broker.restart(power_cut=True, pause=1)
                case 1:
                    members[0].kill()
                case 3:
                    await members[0].stop()
            await cluster.settled({"g": ["t"]}, within=900)
        history = cluster.history
        again = {event.key for event in history.of("finished") if event.time > reset_at and event.outcome == "ok"}
        missing = set(history.keys("acknowledged")) - again
        assert not missing, f"{sorted(missing)} did not come again"
        check(history, [checkers.no_message_lost, checkers.offsets_stable, checkers.leases_exclusive])
        if orderly:
            check(history, [lambda history: checkers.one_at_a_time(history, "g")])

    simulate(scenario, seed)


MODES: dict[str, dict[str, Any]] = {
    "concurrent": {},
    "orderly": {"orderly": True},
    "broadcasting": {
        "config": ConsumerConfig(message_model="broadcasting", offset_store_dir="offsets"),
        "client": ClientConfig(instance="reader"),
    },
}


@pytest.mark.parametrize(
    ("mode", "gone"), [("concurrent", 0), ("concurrent", 100), ("orderly", 0), ("broadcasting", 0)]
)
def test_a_topic_that_is_made_anew_is_read_from_its_beginning(mode: str, gone: float) -> None:
    """Also by members that had come further in the one before than this one reaches."""

    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 2)
            await cluster.consumer("g", "t", **MODES[mode])
            await anew(cluster, gone)
        check(cluster.history, [checkers.no_message_lost])

    simulate(scenario)


def test_so_does_a_pull_consumer() -> None:
    async def scenario(sim: Simulation) -> None:
        fetched: list[str] = []

        async def program() -> None:
            async with PullConsumer("g", nameservers=cluster.endpoints, env=sim.env()) as consumer:
                await consumer.subscribe("t", start_from="first")
                while True:
                    fetched.extend(message.body.decode() for message in await consumer.fetch(10))
                    await consumer.commit()

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 2)
            reading = sim.host("10.2.0.1").start(program())
            await anew(cluster, 0)
            reading.cancel()
            await asyncio.wait([reading])
        assert cluster.history.keys("acknowledged") == set(fetched)

    simulate(scenario)


def test_a_topic_that_gets_fewer_queues_costs_no_send() -> None:
    """Producers do not know of it for half a minute."""

    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 8)
            sender = await cluster.producer()
            for queues in (8, 2):
                await cluster.create_topic("t", queues)
                for number in range(16):
                    await sender.send("t", f"m{number}, {queues} queues")
        assert len(cluster.history.keys("acknowledged")) == 32

    simulate(scenario)


@pytest.mark.parametrize("missing", ["error", "wait", "create"])
def test_a_topic_that_is_gone_is_left_until_it_is_back(
    missing: MissingTopics, caplog: pytest.LogCaptureFixture
) -> None:
    """By the route that was known its queues were taken and dropped every 10 s."""
    caplog.set_level(logging.INFO, "aiorocket.client")
    took: list[int] = []

    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 2)
            member = await cluster.consumer("g", "t", client=ClientConfig(missing_topics=missing))
            await anew(cluster, 300, lambda: took.append(caplog.text.count("group g: took")))
            took.append(caplog.text.count("group g: took"))
            assert len(member.held("t")) == 2

    simulate(scenario)
    assert took == [1, 2]


async def anew(cluster: SimCluster, gone: float, before: Callable[[], object] = lambda: None) -> None:
    """Send 20 messages, delete their topic, make it again ``gone`` seconds later and send 4."""

    async def delete() -> None:
        async with Admin(nameservers=cluster.endpoints, env=cluster.sim.env()) as admin:
            await admin.topics.delete("t")

    sender = await cluster.producer()
    for number in range(20):
        await sender.send("t", f"old{number}")
    await asyncio.sleep(15)
    await cluster.sim.host("10.9.9.8").run(delete())
    await asyncio.sleep(gone)
    before()
    await cluster.create_topic("t", 2)
    for number in range(4):
        await sender.send("t", f"new{number}", timeout=60)
    await asyncio.sleep(60)
