"""A service on a fresh broker: topics that nobody has yet, and brokers that are away when a consumer starts."""

from __future__ import annotations

import asyncio
import logging

import pytest

import aiorocket
from aiorocket import Admin, Client, ClientConfig, Embedded, Message, Router, TopicNotFoundError, UsageError, embed
from aiorocket.config import NameServerConfig
from aiorocket.nameserver import NameServer
from aiorocket.runtime.env import memory_env
from aiorocket.testing import Simulation, simulate
from aiorocket.testing.cluster import SimCluster


async def test_a_service_that_sends_and_consumes_one_topic_starts_on_a_fresh_broker(
    mq: Embedded, caplog: pytest.LogCaptureFixture
) -> None:
    """Its first message creates the topic, and is consumed although the group begins with what comes."""
    router, got = Router("billing"), asyncio.Queue[bytes]()

    @router.listener("orders")
    async def on_order(message: Message) -> None:
        got.put_nowait(message.body)

    async with Client(nameservers=mq.nameservers, group="shop") as client:
        client.include(router)
        async with client.running():
            health = client.health()
            assert health.ready and health.consumers[0].missing_topics == ("orders",)
            assert health.as_dict()["consumers"][0]["missing_topics"] == ("orders",)
            await client.send("orders", b"first")
            assert await asyncio.wait_for(got.get(), 30) == b"first"
            assert client.health().consumers[0].missing_topics == ()
    (said, came) = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert "'orders' does not exist" in said and "'billing'" in said and "missing_topics='create'" in said
    assert came == "topic 'orders' exists now: group 'billing' begins with it"


def test_a_topic_that_comes_back_is_not_begun_in_the_past() -> None:
    """That name servers have no route is all a consumer knows: it may be an old topic whose broker is away."""

    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("orders", 1)
            broker = cluster.brokers[0]
            await broker.stop()
            member = await cluster.consumer("billing", "orders", start_from="last")
            begun = sim.env().clock.wall_ms()
            await broker.start()
            await asyncio.sleep(10)
            assert len(member.held("orders")) == 1
            kind, millis = member.consumer._member.starts["orders"]
            assert kind == "time" and begun - 70_000 < millis < begun  # a minute for clocks that differ

    simulate(scenario)


async def test_missing_topics_are_created(mq: Embedded) -> None:
    got = asyncio.Queue[bytes]()
    async with Client(nameservers=mq.nameservers, group="billing", missing_topics="create") as client:
        consumer = client.consumer()

        @consumer.listener("orders")
        async def on_order(message: Message) -> None:
            got.put_nowait(message.body)

        async with consumer:
            topic = mq.broker.topics.get("orders")
            assert topic is not None and topic.read_queues == 4
            await client.send("orders", b"first")
            assert await asyncio.wait_for(got.get(), 30) == b"first"


async def test_each_subscription_decides_for_itself(mq: Embedded) -> None:
    config = ClientConfig(nameservers=mq.nameservers, start_timeout=1)
    async with Client(config=config, group="etl") as client, client.pull_consumer() as etl:
        await etl.subscribe("waited-for")
        await etl.subscribe("created", missing_topics="create")
        assert etl.state().missing == ("waited-for",)
        with pytest.raises(TopicNotFoundError, match="nowhere"):
            await etl.subscribe("nowhere", missing_topics="error")
        assert {queue.topic for queue in etl.assignment()} == {"created"}
    with pytest.raises(UsageError, match="missing_topics='creat': 'wait', 'create' or 'error'"):
        Router().listener("orders", missing_topics="creat")  # type: ignore[arg-type]  # a misspelling


async def test_ensured_topics_are_there_before_anything_starts(mq: Embedded) -> None:
    await mq.create_topic("orders", queues=7)
    config = ClientConfig(nameservers=mq.nameservers, namespace="dev")
    async with Client(nameservers=mq.nameservers, ensure_topics=["orders", "paid"]) as client:
        assert len((await client.session.route("orders")).subscribe) == 7  # one that is there stays as it is
        assert len((await client.session.route("paid")).subscribe) == 4
    async with Client(config=config, ensure_topics=["orders"]) as client:
        assert len((await client.session.route("dev%orders")).subscribe) == 4
    with pytest.raises(UsageError, match=r"ensure_topics='orders': several names"):
        Client(ensure_topics="orders")


async def test_an_administrator_creates_topics(mq: Embedded) -> None:
    async with aiorocket.Admin(nameservers=mq.nameservers) as admin:
        await admin.create_topic("orders", queues=3)
        assert len((await admin.client.route("orders")).publish) == 3
        await admin.create_topic("orders", queues=5, cluster=mq.broker.config.cluster)
        assert len((await admin.client.route("orders", refresh=True)).publish) == 5
        with pytest.raises(UsageError, match="no broker of cluster 'other' is registered; there are"):
            await admin.create_topic("orders", cluster="other")
        for queues in (0, True, 2.0):
            with pytest.raises(UsageError, match="queues="):
                await admin.create_topic("orders", queues=queues)  # type: ignore[arg-type]  # on purpose


async def test_where_no_broker_is_nothing_is_ensured() -> None:
    async with embed() as mq:
        await mq.broker.close()
        config = ClientConfig(nameservers=mq.nameservers, start_timeout=1)
        with pytest.raises(aiorocket.NotConnectedError, match=r"is registered.*`aiorocket broker --nameserver 127"):
            async with Client(config=config, ensure_topics=["orders"]):
                pytest.fail("it started")


async def test_a_name_server_without_brokers_is_not_one_that_is_away() -> None:
    server = NameServer(memory_env(), NameServerConfig(port=0))
    await server.start()
    async with Admin(nameservers=f"127.0.0.1:{server.port}") as admin:
        with pytest.raises(aiorocket.NotConnectedError, match=r"no broker has registered.*`aiorocket cluster list`$"):
            await admin.client.route("orders")
    await server.close()


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_a_consumer_starts_on_the_rest_when_a_broker_of_its_topic_is_away(
    orderly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """As Java's. It reads the other one's queues when that is back."""

    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim, brokers=2) as cluster:
            await cluster.create_topic("orders", 2)
            away = cluster.brokers[1]
            away.kill(power_cut=True)
            member = await cluster.consumer("billing", "orders", orderly=orderly)
            held = {queue.broker_name for queue in member.held("orders")}
            assert held == {cluster.brokers[0].name}
            await away.start()
            await asyncio.sleep(60)
            assert len(member.held("orders")) == 4

    simulate(scenario)
    if not orderly:  # there the lock is what is missing
        assert [each for each in caplog.records if "group billing begins without broker" in each.getMessage()]
