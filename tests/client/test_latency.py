"""Latency fault tolerance: the table without a loop, then a producer that leaves a failing broker alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket.client.core.latency import LATENCIES, LatencyTable, pause_for
from aiorocket.client.core.queue_choice import QueueChoice
from aiorocket.client.sending.producer import Producer
from aiorocket.config import ProducerConfig
from aiorocket.errors import SendError
from aiorocket.model import Queue
from aiorocket.testing import Simulation, simulate
from aiorocket_protocol import RemotingCommand, ResponseCode
from tests.client.fake_broker import NAMES, FakeCluster, Kept


@pytest.mark.parametrize(
    ("took", "pause"),
    [(0, 0), (0.05, 0), (0.549, 0), (0.55, 2), (1.8, 5), (2.9, 5), (3, 6), (5, 10), (10, 10), (15, 30), (99, 30)],
)
def test_the_slower_the_longer(took: float, pause: float) -> None:
    assert pause_for(took) == pause


@given(st.floats(0, 100), st.floats(0, 100))
def test_a_longer_latency_never_pauses_less(one: float, other: float) -> None:
    assert (pause_for(min(one, other))) <= pause_for(max(one, other))
    assert pause_for(one) in {0.0, *(pause for _, pause in LATENCIES)}


def test_a_failed_broker_comes_back_by_time_or_by_a_quick_answer() -> None:
    table = LatencyTable()
    assert table.available("a", 0)
    table.note("a", 0.001, 100, failed=True)
    assert not table.available("a", 109.9)
    assert table.available("a", 110)
    table.note("a", 0.001, 105)
    assert table.available("a", 105)


def test_choice_prefers_the_available_then_anybody_else_then_anybody() -> None:
    choice = QueueChoice([Queue("t", name, number) for name in "abc" for number in range(2)])
    table = LatencyTable()
    table.note("a", 0, 0, failed=True)
    assert {table.choose(choice, 1).broker_name for _ in range(12)} == {"b", "c"}
    assert {table.choose(choice, 1, "b").broker_name for _ in range(12)} == {"c"}
    table.note("b", 0, 0, failed=True)
    table.note("c", 0, 0, failed=True)
    assert {table.choose(choice, 1, "b").broker_name for _ in range(12)} == {"a", "c"}
    only = QueueChoice([Queue("t", "a", 0)])
    assert table.choose(only, 1, "a").broker_name == "a"


def run(
    scenario: Callable[[Simulation, FakeCluster, Producer], Awaitable[None]], config: ProducerConfig, brokers: int = 2
) -> None:
    async def main(sim: Simulation) -> None:
        host = sim.host("10.0.1.1")
        async with FakeCluster(sim, brokers) as cluster:
            producer = Producer("p", nameservers=NAMES, env=sim.env(), config=config)
            await host.run(producer.start())
            await host.run(_awaited(scenario(sim, cluster, producer)))
            await host.run(producer.stop())

    simulate(main)


async def _awaited(awaitable: Awaitable[None]) -> None:
    await awaitable


def refuses(kept: Kept) -> RemotingCommand:
    return RemotingCommand.response(ResponseCode.SERVICE_NOT_AVAILABLE, remark="no")


@pytest.mark.parametrize("enabled", [True, False])
def test_a_failing_broker_is_asked_once_and_left_alone(enabled: bool) -> None:
    async def scenario(sim: Simulation, cluster: FakeCluster, producer: Producer) -> None:
        bad, good = cluster.brokers
        bad.on_send = refuses
        for _ in range(20):
            await producer.send("t", b"x")
        assert len(good.kept) == 20
        # Without the table every second message tries the bad one first.
        assert (len(bad.kept) == 1) is enabled
        assert enabled or len(bad.kept) >= 5

    run(scenario, ProducerConfig(send_latency_fault=enabled))


def test_after_its_time_it_is_tried_again() -> None:
    async def scenario(sim: Simulation, cluster: FakeCluster, producer: Producer) -> None:
        bad = cluster.brokers[0]
        bad.on_send = refuses
        for _ in range(4):
            await producer.send("t", b"x")
        bad.on_send = lambda kept: bad.stored()
        await producer.send("t", b"x")
        assert len(bad.kept) == 1
        await asyncio.sleep(10)
        for _ in range(8):
            await producer.send("t", b"x")
        assert len(bad.kept) == 5

    run(scenario, ProducerConfig(send_latency_fault=True))


def test_with_one_broker_there_is_nobody_to_prefer() -> None:
    async def scenario(sim: Simulation, cluster: FakeCluster, producer: Producer) -> None:
        (only,) = cluster.brokers
        only.on_send = refuses
        with pytest.raises(SendError, match="attempt 3"):
            await producer.send("t", b"x")
        only.on_send = lambda kept: only.stored()
        await producer.send("t", b"x")
        assert len(only.kept) == 4

    run(scenario, ProducerConfig(send_latency_fault=True), brokers=1)
