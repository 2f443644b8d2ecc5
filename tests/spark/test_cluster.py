"""What the driver asks: queues by name and pattern, bounds, times, committed offsets, and waiting for messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import aiorocket
from aiorocket.client.app import Client
from aiorocket.config import ClientConfig
from aiorocket.embedded import Embedded
from aiorocket.errors import NotConnectedError, RemoteError, TopicNotFoundError, UsageError
from aiorocket.model import Queue
from aiorocket.spark import cluster
from aiorocket.spark.cluster import Bounds
from aiorocket.spark.options import SourceOptions
from aiorocket.testing import Simulation, simulate
from aiorocket_protocol import CreateTopicRequestHeader, RemotingCommand, RequestCode, SearchOffsetResponseHeader
from tests.spark.pull_broker import ADDRESS, PullBroker, queue


def options(**given: str) -> SourceOptions:
    return SourceOptions.parse({"nameServer": "unused:1", **given})


@asynccontextmanager
async def started(data: Path | None = None, namespace: str = "") -> AsyncIterator[tuple[Embedded, Client]]:
    async with (
        aiorocket.embed(None if data is None else str(data)) as mq,
        Client(config=ClientConfig(nameservers=mq.nameservers, namespace=namespace)) as client,
    ):
        yield mq, client


async def send(mq: Embedded, to: Queue, *bodies: bytes) -> None:
    async with mq.producer() as producer:
        for body in bodies:
            await producer.send(to.topic, body, queue=to)


def numbered(topic: str, *numbers: int) -> list[Queue]:
    return [Queue(topic, "broker-a", number) for number in numbers]


async def test_queues_by_name_pattern_and_assignment() -> None:
    async with started() as (mq, client):
        await mq.create_topic("orders", 2)
        for topic in ("orders-eu", "%DLQ%billing", "payments", "my_REPLY_TOPIC"):
            await mq.create_topic(topic, 1)
        assert await cluster.queues(client.session, options(topic="payments,orders")) == [
            *numbered("orders", 0, 1), *numbered("payments", 0),
        ]  # fmt: skip
        assert await cluster.queues(client.session, options(topic="%DLQ%billing")) == numbered("%DLQ%billing", 0)
        found = await cluster.queues(client.session, options(topicPattern="orders.*|%DLQ%.*"))
        assert found == [*numbered("%DLQ%billing", 0), *numbered("orders", 0, 1), *numbered("orders-eu", 0)]
        # Whole names, and none of the cluster's own.
        everything = {each.topic for each in await cluster.queues(client.session, options(topicPattern=".*"))}
        assert everything == {"orders", "orders-eu", "%DLQ%billing", "payments", "my_REPLY_TOPIC"}
        assert await cluster.queues(client.session, options(topicPattern="order")) == []
        assigned = options(assign='{"orders":{"broker-a":[1]},"payments":{"broker-b":[7]}}')
        assert await cluster.queues(client.session, assigned) == [
            *numbered("orders", 1),
            Queue("payments", "broker-b", 7),
        ]
        with pytest.raises(TopicNotFoundError, match="nowhere"):
            await cluster.queues(client.session, options(topic="orders,nowhere"))
        missing = dict[str, TopicNotFoundError]()
        assert await cluster.queues(client.session, options(topic="payments,nowhere"), missing=missing) == numbered(
            "payments", 0
        )
        assert list(missing) == ["nowhere"]
        with pytest.raises(TopicNotFoundError, match="nowhere"):
            await cluster.queues(client.session, options(assign='{"nowhere":{"broker-a":[1]}}'))
        with pytest.raises(TopicNotFoundError, match="group 'nobody' has given up no message, or is called otherwise"):
            await cluster.queues(client.session, options(topic="%DLQ%nobody"))


async def test_a_topic_that_may_not_be_read_says_so() -> None:
    async with started() as (mq, client):
        header = CreateTopicRequestHeader("%DLQ%old", "TBW102", 1, 1, 2, "SINGLE_TAG", False)
        await client.session.call(mq.broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        with pytest.raises(UsageError, match=r"'%DLQ%old' may not be read.*updateTopicPerm -t %DLQ%old -p 6"):
            await cluster.queues(client.session, options(topic="%DLQ%old"))
        assert await cluster.queues(client.session, options(topicPattern="%DLQ%.*")) == []


async def test_a_namespace_is_not_seen() -> None:
    async with started(namespace="ns") as (mq, client):
        await mq.create_topic("ns%orders", 1)
        await mq.create_topic("orders", 3)
        (own,) = await cluster.queues(client.session, options(topic="orders"))
        assert own == Queue("orders", "broker-a", 0)
        assert await cluster.queues(client.session, options(topicPattern="or.*")) == [own]
        await send(mq, own._replace(topic="ns%orders"), b"1", b"2")
        assert await cluster.bounds(client.session, [own]) == {own: Bounds(0, 2)}
        assert await cluster.offsets_at(client.session, [own], 0) == {own: 0}
        await cluster.commit(client.session, "g", {own: 1})
        assert mq.broker.offsets.query("ns%g", "ns%orders", 0) == 1
        assert await cluster.committed(client.session, "g", [own]) == {own: 1}


async def test_bounds_leave_out_what_is_gone_and_report_what_cannot_be_asked() -> None:
    async with started() as (mq, client):
        await mq.create_topic("t", 2)
        first, second, gone = numbered("t", 0, 1, 9)
        await send(mq, first, b"1", b"2")
        away = Queue("t", "broker-z", 0)
        assert await cluster.bounds(client.session, [first, second, gone]) == {
            first: Bounds(0, 2),
            second: Bounds(0, 0),
        }
        with pytest.raises(NotConnectedError, match="broker-z"):
            await cluster.bounds(client.session, [first, away])
        failures: dict[Queue, Exception] = {}
        assert await cluster.bounds(client.session, [first, away], failures=failures) == {first: Bounds(0, 2)}
        assert list(failures) == [away]
        failures.clear()
        nowhere = Queue("nowhere", "broker-a", 0)
        assert await cluster.bounds(client.session, [nowhere], failures=failures) == {}
        assert isinstance(failures[nowhere], TopicNotFoundError)


async def test_offsets_at_a_time() -> None:
    async with started() as (mq, client):
        await mq.create_topic("t", 2)
        first, second = numbered("t", 0, 1)
        await send(mq, first, b"1")
        await asyncio.sleep(0.005)
        await send(mq, first, b"2")
        times = [mq.broker.store.store_time("t", 0, offset) for offset in range(2)]
        assert times[0] is not None and times[1] is not None
        ask = cluster.offsets_at
        assert await ask(client.session, [first, second], times[0]) == {first: 0, second: 0}
        assert await ask(client.session, [first], times[0] + 1) == {first: 1}
        assert await ask(client.session, [first], times[1]) == {first: 1}
        assert await ask(client.session, [first], times[1] + 1) == {first: 2}


def test_the_last_message_for_a_later_time_is_put_right() -> None:
    """As RocketMQ 4.9 answers."""

    async def main(sim: Simulation) -> None:
        async with PullBroker(sim) as broker, broker.client() as client:
            broker.high = 50
            broker.processors.add(
                RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                lambda connection, command: RemotingCommand.response(0, SearchOffsetResponseHeader(49)),
            )
            assert await cluster.offsets_at(client.session, [queue(0)], 2) == {queue(0): 50}
            assert await cluster.offsets_at(client.session, [queue(0)], 1) == {queue(0): 49}
            assert await cluster.address_of(client.session, queue(0)) == ADDRESS

    simulate(main)


async def test_offsets_of_a_group() -> None:
    async with started() as (mq, client):
        await mq.create_topic("t", 3)
        queues = numbered("t", 0, 1, 2)
        await cluster.commit(client.session, "g", {queues[0]: 5, queues[1]: 0})
        assert await cluster.committed(client.session, "g", queues) == {queues[0]: 5, queues[1]: 0, queues[2]: None}
        away = Queue("t", "broker-z", 0)
        with pytest.raises(NotConnectedError, match="broker-z"):
            await cluster.commit(client.session, "g", {away: 1, queues[2]: 7})
        assert await cluster.committed(client.session, "g", queues[2:]) == {queues[2]: 7}
        await cluster.commit(client.session, "g", {})


async def test_a_wait_ends_with_the_first_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_LONGEST_WAIT", 30.0)
    async with asyncio.timeout(29), started() as (mq, client):
        await mq.create_topic("t", 2)
        queues = numbered("t", 0, 1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await cluster.wait_for_more(client.session, dict.fromkeys(queues, 0), 0.1)
        assert loop.time() - began >= 0.09
        while mq.broker.parked_pulls:
            await asyncio.sleep(0.001)
        waiting = asyncio.create_task(cluster.wait_for_more(client.session, dict.fromkeys(queues, 0), 30))
        while mq.broker.parked_pulls < 2:
            await asyncio.sleep(0.001)
        await send(mq, queues[1], b"1")
        await waiting
        await cluster.wait_for_more(client.session, {queues[1]: 0}, 30)


def test_a_wait_is_no_longer_than_half_a_second_and_does_not_fail() -> None:
    async def main(sim: Simulation) -> None:
        async with PullBroker(sim) as broker, broker.client() as client:

            async def waited(offsets: dict[Queue, int], timeout: float) -> float:
                began = sim.loop.time()
                await cluster.wait_for_more(client.session, offsets, timeout)
                return sim.loop.time() - began

            assert await waited({queue(0): 1000}, 30) == pytest.approx(0.5)
            assert await waited({queue(0): 2000}, 30) == pytest.approx(0.5)
            assert await waited({}, 0.3) == pytest.approx(0.3)
            assert await waited({queue(0): 5}, 0) == 0
            assert await waited({queue(0): 5}, 0.4) < 0.1
            broker.low = 10  # retention has passed the offset: there is something further on
            assert await waited({queue(0): 5}, 0.4) < 0.1
            await broker.stop()
            assert await waited({queue(0): 5}, 0.4) == pytest.approx(0.4)
            await broker.start()

    simulate(main)


async def test_a_broker_that_moved_is_found(tmp_path: Path) -> None:
    async with started(tmp_path / "data") as (mq, client):
        await mq.create_topic("t", 1)
        (only,) = numbered("t", 0)
        await send(mq, only, b"1")
        assert await cluster.bounds(client.session, [only]) == {only: Bounds(0, 1)}
        await mq.restart()
        assert await cluster.bounds(client.session, [only]) == {only: Bounds(0, 1)}


async def test_errors_of_one_queue_are_raised_after_the_others_ended() -> None:
    async with started() as (mq, client):
        await mq.create_topic("t", 1)
        with pytest.raises(UsageError, match="regular expression"):
            await cluster.queues(
                client.session, SourceOptions(connection=options(topic="t").connection, topic_pattern="(")
            )
        with pytest.raises(RemoteError, match="GET_MAX_OFFSET"):
            await client.session.call(mq.broker.address, RequestCode.GET_MAX_OFFSET)
