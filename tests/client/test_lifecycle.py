"""Starts, stops and cancellations of consumers: whatever happens, nothing half-started is left."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from functools import partial
from itertools import groupby
from typing import Any

import pytest

from aiorocket.client.app import Client
from aiorocket.client.core.group_check import differences
from aiorocket.client.exits import Retry
from aiorocket.client.message import Message
from aiorocket.client.pull.pull_consumer import PullConsumer
from aiorocket.client.push.consumer import Consumer
from aiorocket.client.sending.producer import Producer
from aiorocket.config import ClientConfig, ConsumerConfig, ProducerConfig, PullConsumerConfig, RemotingConfig
from aiorocket.errors import ConfigError, RequestTimeoutError, RocketError, TopicNotFoundError, UsageError
from aiorocket.model import Queue
from aiorocket.testing import SimHost
from aiorocket.testing.cluster import SimCluster
from aiorocket_protocol import (
    ConsumerConnection,
    ConsumerData,
    ConsumerListBody,
    GetConsumerListByGroupRequestHeader,
    RequestCode,
    SubscriptionData,
    decode_body,
)
from tests.client import clusters

run = partial(clusters.run, queues=2)


async def ok(message: Message) -> None:
    pass


async def members(cluster: SimCluster, group: str) -> list[str]:
    """Who the broker thinks is in the group."""
    sim = cluster.sim
    found: list[str] = []

    async def ask() -> None:
        async with Client(nameservers=cluster.endpoints, env=sim.env()) as client:
            header = GetConsumerListByGroupRequestHeader(group)
            address = cluster.brokers[0].endpoint
            answer = await client.session.call(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header, accept=(0, 1))
            if answer.code == 0:
                found.extend(decode_body(ConsumerListBody, answer.body, answer.serialize_type).consumer_ids)

    await sim.host("10.8.8.8").run(ask())
    return found


# -- refusals name the state and leave it alone --


def test_a_second_start_is_refused_with_the_state() -> None:
    async def scenario(cluster: SimCluster) -> None:
        member = await cluster.consumer("g", "t")
        for _ in range(2):
            with pytest.raises(UsageError, match="consumer 'g' is already running"):
                await member.host.run(member.consumer.start())
        assert member.consumer.state().running
        await member.host.run(member.consumer.stop())
        with pytest.raises(UsageError, match="was stopped and is used up"):
            await member.host.run(member.consumer.start())
        await member.host.run(member.consumer.stop())

    run(scenario)


@pytest.mark.parametrize("topic", ["t", "nowhere"], ids=["soon ready", "never ready"])
@pytest.mark.parametrize("kind", ["push", "pull", "assigned"])
def test_a_stop_during_the_start_ends_both_and_leaves_nothing(kind: str, topic: str) -> None:
    async def scenario(cluster: SimCluster) -> None:
        sim = cluster.sim
        host = sim.host("10.5.5.5")

        async def script() -> None:
            consumer: Consumer | PullConsumer
            if kind == "push":
                consumer = Consumer("g", nameservers=cluster.endpoints, env=sim.env())
                consumer.listener(topic, start_from="first")(ok)
            else:
                consumer = PullConsumer("g", nameservers=cluster.endpoints, env=sim.env())
                if kind == "pull":
                    await consumer.subscribe(topic)
                else:
                    await consumer.assign([Queue(topic, "broker-1", 0)])
            starting = asyncio.ensure_future(consumer.start())
            await asyncio.sleep(0.001)
            await asyncio.wait_for(consumer.stop(), 5)
            with pytest.raises((UsageError, TopicNotFoundError)):
                await asyncio.wait_for(starting, 0.1)
            with pytest.raises(UsageError, match="was stopped and is used up"):
                await consumer.start()
            await consumer.stop()

        await host.run(script())
        await asyncio.sleep(1)
        assert await members(cluster, "g") == []

    run(scenario)


async def test_what_never_started_can_be_looked_at_paused_and_stopped() -> None:
    consumer = Consumer("g")
    consumer.pause()
    for _ in range(2):
        state = consumer.state()
        assert (state.running, state.queues, state.counters.consumed) == (False, (), 0)
        assert (consumer._fetchers(), consumer.held()) == ([], [])
        await consumer.stop()
    consumer.resume()


def test_a_group_is_once_on_a_client() -> None:
    async def scenario(cluster: SimCluster) -> None:
        member = await cluster.consumer("g", "t")
        second = member.client.consumer("g")
        second.listener("t")(ok)
        before, held = len(cluster.sim.loop.living_tasks()), dict(member.client.session.consumers)
        with pytest.raises(UsageError, match="'g' is already used by this Client"):
            await member.host.run(second.start())
        assert len(cluster.sim.loop.living_tasks()) <= before
        assert member.client.session.consumers == held and list(held) == ["g"]
        assert await members(cluster, "g") == [member.client.client_id]

    run(scenario)


def test_a_client_that_is_not_started_is_named() -> None:
    async def scenario(cluster: SimCluster) -> None:
        client = Client(nameservers=cluster.endpoints, env=cluster.sim.env())
        consumer = client.consumer("g")
        consumer.listener("t")(ok)
        with pytest.raises(UsageError, match="this Client is not started"):
            await consumer.start()
        assert client.session.consumers == {}

    run(scenario)


def test_both_kinds_of_listeners_in_a_group_are_refused_before_the_start() -> None:
    async def scenario(cluster: SimCluster) -> None:
        consumer = Consumer("g", nameservers=cluster.endpoints, env=cluster.sim.env())
        consumer.listener("t")(ok)
        consumer.orderly("u")(ok)
        with pytest.raises(UsageError, match="orderly and concurrent"):
            await consumer.start()
        assert not consumer.client.started

    run(scenario)


def test_a_start_that_fails_leaves_nothing() -> None:
    async def scenario(cluster: SimCluster) -> None:
        config = ClientConfig(start_timeout=2.0)
        before = len(cluster.sim.loop.living_tasks())
        member = await cluster.consumer("g", "nowhere", client=config, start=False, missing_topics="error")
        with pytest.raises(TopicNotFoundError, match=r"not ready after 2 s: topic 'nowhere'"):
            await member.start()
        await asyncio.sleep(1)
        assert len(cluster.sim.loop.living_tasks()) == before
        assert await members(cluster, "g") == []

    run(scenario)


def test_a_broker_that_does_not_answer_fails_the_start_in_time() -> None:
    async def scenario(cluster: SimCluster) -> None:
        cluster.brokers[0].faults.next("HEART_BEAT", drop=True, times=100)
        member = await cluster.consumer("g", "t", client=ClientConfig(start_timeout=4.0), start=False)
        with pytest.raises((RequestTimeoutError, RocketError), match="not ready after 4 s"):
            await member.start()
        assert cluster.sim.loop.time() < 12

    run(scenario)


# -- ends --


@pytest.mark.parametrize("kind", ["client", "producer", "pull consumer", "consumer"])
def test_a_stop_from_two_places_ends_with_the_first(kind: str) -> None:
    """As when a signal's handler stops what is in an ``async with``."""

    async def scenario(cluster: SimCluster) -> None:
        env, loop = cluster.sim.env(), cluster.sim.loop
        at: dict[str, float] = {}

        async def slow(message: Message) -> None:
            await asyncio.sleep(3)

        async def on_signal(member: Any) -> None:
            await member.stop()
            at["signal"] = loop.time()

        async def script() -> None:
            makers: dict[str, Any] = {
                "client": lambda: Client(nameservers=cluster.endpoints, env=env),
                "producer": lambda: Producer("g", nameservers=cluster.endpoints, env=env),
                "pull consumer": lambda: PullConsumer("g", nameservers=cluster.endpoints, env=env),
                "consumer": lambda: Consumer("g", nameservers=cluster.endpoints, env=env),
            }
            member = makers[kind]()
            if kind == "consumer":
                member.listener("t", start_from="first")(slow)
            async with member:
                if kind == "pull consumer":
                    await member.subscribe("t")
                elif kind == "producer":
                    await member.send("t", b"x")
                elif kind == "client":
                    await member.session.route("t")
                else:
                    await asyncio.sleep(1)
                with pytest.raises(UsageError, match="is already running"):
                    await member.start()
                stopping = asyncio.ensure_future(on_signal(member))
                await asyncio.sleep(0)
            at["block"] = loop.time()
            await stopping
            with pytest.raises(UsageError, match="was stopped and is used up"):
                await member.start()

        await (await cluster.producer()).send("t", "a")
        await cluster.sim.host("10.5.5.5").run(script())
        assert abs(at["block"] - at["signal"]) < 0.001
        assert await members(cluster, "g") == []

    run(scenario)


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_a_stop_stores_then_unlocks_then_leaves(orderly: bool) -> None:
    async def scenario(cluster: SimCluster) -> None:
        member = await cluster.consumer("g", "t", orderly=orderly)
        await (await cluster.producer()).send("t", "a")
        await asyncio.sleep(1)
        order: list[int] = []
        cluster.brokers[0].faults.watch(lambda connection, request: order.append(request.code))
        await member.stop()
        steps = [RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.UNLOCK_BATCH_MQ, RequestCode.UNREGISTER_CLIENT]
        if not orderly:
            del steps[1]
        # Each after the whole of the one before.
        assert [code for code, _ in groupby(code for code in order if code in steps)] == steps

    run(scenario)


def test_a_heartbeat_under_way_brings_back_no_member_that_has_left() -> None:
    """Apache's brokers work the two side by side, and had the member for two more minutes."""

    async def scenario(cluster: SimCluster) -> None:
        async def script() -> None:
            loop, faults = asyncio.get_running_loop(), cluster.brokers[0].faults
            async with Client(nameservers=cluster.endpoints, env=cluster.sim.env()) as client:
                faulty: list[dict[str, Any]] = [{"delay": 0.5}, {"drop": True}]
                for late in faulty:
                    member = Consumer("g", client=client)
                    member.listener("t")(ok)
                    await member.start()
                    await asyncio.sleep(1)
                    faults.next("HEART_BEAT", **late)
                    client.session.subscriptions_changed()
                    await asyncio.sleep(0.1)
                    assert not faults.pending("HEART_BEAT")
                    began = loop.time()
                    await member.stop()
                    assert loop.time() - began < 3.1  # as long as it waits for any answer
                    await asyncio.sleep(1)
                    assert await members(cluster, "g") == []

        await cluster.sim.host("10.5.5.5").run(script())

    run(scenario)


# -- members that want different things --


def test_what_members_do_not_agree_about() -> None:
    a, b = SubscriptionData.parse("t", "x || y", 1), SubscriptionData.parse("u", "*", 2)
    retry = SubscriptionData.parse("%RETRY%g", "*")
    mine = ConsumerData("g", subscriptions=[a, b, retry])

    def there(*subscriptions: SubscriptionData, model: str = "CLUSTERING") -> ConsumerConnection:
        table = {each.topic: each for each in subscriptions}
        return ConsumerConnection([], table, "CONSUME_PASSIVELY", model, "CONSUME_FROM_LAST_OFFSET")

    assert differences(mine, there(b, SubscriptionData.parse("t", "y||x", 9)), "%RETRY%g") == []
    assert differences(mine, there(a, b, retry, model="BROADCASTING"), "%RETRY%g") == [
        "they are BROADCASTING, this member is CLUSTERING"
    ]
    assert differences(mine, there(SubscriptionData.parse("t", "x"), SubscriptionData.parse("v")), "%RETRY%g") == [
        "of 't' they take TAG 'x', this member TAG 'x || y'",
        "this member subscribes to 'u', they do not",
        "they subscribe to 'v', this member does not",
    ]


def test_a_subscription_that_differs_within_the_group_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: SimCluster) -> None:
        await cluster.consumer("g", "t", tags="a")
        await cluster.consumer("g", "t", tags="a")
        assert "do not agree" not in caplog.text
        await cluster.consumer("g", "t", tags="b")
        assert "of 't' they take TAG 'a', this member TAG 'b'" in caplog.text
        strict = ConsumerConfig(subscription_check="error")
        member = await cluster.consumer("g", "t", tags="c", config=strict, start=False)
        with pytest.raises(UsageError, match="group 'g' do not agree"):
            await member.start()
        caplog.clear()
        await cluster.consumer("g", "t", tags="d", config=ConsumerConfig(subscription_check="off"))
        assert "do not agree" not in caplog.text

    run(scenario)


def test_pull_consumers_of_a_group_have_to_agree_too(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: SimCluster) -> None:
        started: list[tuple[SimHost, PullConsumer]] = []

        async def start(tags: str, **options: Any) -> None:
            host, config = cluster.sim.host(f"10.5.5.{len(started)}"), PullConsumerConfig(**options)
            consumer = PullConsumer("g", nameservers=cluster.endpoints, env=cluster.sim.env(), config=config)
            await consumer.subscribe("t", tags)
            await host.run(consumer.start())
            started.append((host, consumer))

        await start("a")
        await start("a")
        assert "do not agree" not in caplog.text
        await start("b")
        assert "of 't' they take TAG 'a', this member TAG 'b'" in caplog.text
        with pytest.raises(UsageError, match="group 'g' do not agree"):
            await start("c", subscription_check="error")
        assert len(await members(cluster, "g")) == 3
        for host, consumer in started:
            await host.run(consumer.stop())

    run(scenario)


# -- sql --


def test_filters_are_checked_by_the_broker_at_the_start() -> None:
    async def scenario(cluster: SimCluster) -> None:
        asked: list[int] = []
        cluster.brokers[0].faults.watch(lambda connection, request: asked.append(request.code))
        cluster.brokers[0].faults.next("CHECK_CLIENT_CONFIG", reply="SUBSCRIPTION_PARSE_FAILED", remark="no such thing")
        member = await cluster.consumer("g", "t", sql="a >", start=False)
        before = cluster.sim.loop.time()
        with pytest.raises(UsageError, match=r"refuses SQL92 'a >' of topic 't': code 23, no such thing"):
            await member.start()
        assert cluster.sim.loop.time() - before < 1
        assert RequestCode.CHECK_CLIENT_CONFIG in asked
        asked.clear()
        await cluster.consumer("tags", "t", tags="a || b")
        assert RequestCode.CHECK_CLIENT_CONFIG not in asked

    run(scenario)


def test_brokers_that_are_too_old_for_sql_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(cluster: SimCluster) -> None:
        monkeypatch.setattr("aiorocket.client.group.filter_check.VERSION_WITH_SQL92", 10_000)
        member = await cluster.consumer("g", "t", sql="a > 1", start=False)
        with pytest.raises(UsageError, match=r"is older than 4\.1\.0"):
            await member.start()

    run(scenario)


def test_sql_is_filtered_by_the_broker_and_the_rest_is_passed_over() -> None:
    async def scenario(cluster: SimCluster) -> None:
        seen: list[tuple[str, int]] = []

        async def on_message(message: Message) -> None:
            seen.append((message.body.decode(), message.attempt))
            if message.attempt == 1:
                raise ValueError("once")

        sender = await cluster.producer()
        await cluster.consumer("g", "t", on_message, sql="amount > 5 AND region IS NOT NULL")
        await sender.send("t", "small", properties={"amount": "5", "region": "eu"})
        await sender.send("t", "nowhere", properties={"amount": "50"})
        await sender.send("t", "wanted", properties={"amount": "50", "region": "eu"})
        await asyncio.sleep(30)
        assert seen == [("wanted", 1), ("wanted", 2)]
        offsets = cluster.brokers[0].broker.offsets
        assert sum(offsets.query("g", "t", number) or 0 for number in range(2)) == 3

    run(scenario)


def test_a_subscription_that_a_broker_refuses_is_raised_where_it_was_made() -> None:
    async def scenario(cluster: SimCluster) -> None:
        member = await cluster.consumer("g", "t")
        await cluster.create_topic("u", 1)
        with pytest.raises(UsageError, match="refuses SQL92 'a LIKE' of topic 'u'"):
            await member.host.run(member.consumer.subscribe("u", sql="a LIKE"))
        # The rest of its life goes on.
        await cluster.consumer("g", "t")
        await asyncio.sleep(1)
        assert [len(each.held("t")) for each in cluster.members] == [1, 1]

    run(scenario)


def test_one_way_to_filter_a_topic() -> None:
    consumer = Consumer("g")
    with pytest.raises(UsageError, match="filtered by one of them"):
        consumer.listener("t", tags="a", sql="b > 1")
    with pytest.raises(UsageError, match="sql=' '"):
        consumer.listener("t", sql=" ")


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_a_handler_that_cannot_be_cancelled_keeps_nothing_from_being_stored(orderly: bool) -> None:
    """Such as a plain function in its thread. A service manager kills what does not end: by then everything else is
    done, and of an orderly queue only the lock is still there, until the broker ends it."""

    async def scenario(cluster: SimCluster) -> None:
        release = asyncio.Event()
        seen: list[str] = []

        async def handler(message: Message) -> None:
            seen.append(message.body.decode())
            while message.body == b"stuck" and not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    pass

        sender = await cluster.producer()
        first, other = (Queue("t", "broker-1", number) for number in range(2))
        for queue, body in ((first, "a"), (first, "stuck"), (other, "b")):
            await sender.send("t", body, queue=queue)
        member = await cluster.consumer("g", "t", handler, config=ConsumerConfig(drain_timeout=1.0), orderly=orderly)
        await asyncio.sleep(1)
        assert sorted(seen) == ["a", "b", "stuck"]
        stopping = asyncio.ensure_future(member.stop())
        await asyncio.sleep(10)
        broker = cluster.brokers[0].broker
        assert [broker.offsets.query("g", "t", number) for number in range(2)] == [1, 1]
        assert await members(cluster, "g") == []
        assert not stopping.done()
        again: list[tuple[str, float]] = []
        now = cluster.sim.loop.time()

        async def next_handler(message: Message) -> None:
            again.append((message.body.decode(), cluster.sim.loop.time() - now))

        await cluster.consumer("g", "t", next_handler, orderly=orderly)
        await asyncio.sleep(70)
        [(body, after)] = again
        assert body == "stuck"
        assert (after > 40) is orderly
        release.set()
        await asyncio.wait_for(stopping, 1)

    run(scenario)


async def stubborn(began: asyncio.Event, release: asyncio.Event) -> None:
    """Lets itself be cancelled by nobody until it is released."""
    began.set()
    while not release.is_set():
        try:
            await release.wait()
        except asyncio.CancelledError:
            pass


@pytest.mark.parametrize("end", ["returns", "raises", "retries"])
@pytest.mark.parametrize("kind", ["concurrent", "several", "orderly", "keyed", "batch"])
def test_a_handler_that_never_ends_does_not_keep_its_consumer_from_stopping(
    kind: str, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    """However often it is cancelled. What it ends with later counts for nothing, and who got its message has it."""

    async def scenario(cluster: SimCluster) -> None:
        release, began, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def handler(_: object) -> None:
            await stubborn(began, release)
            ended.set()
            if end != "returns":
                raise Retry() if end == "retries" else ValueError("late")

        consumer = Consumer(
            "g", nameservers=cluster.endpoints, env=cluster.sim.env(), config=ConsumerConfig(drain_timeout=1.0)
        )
        if kind == "orderly":
            consumer.orderly("t", start_from="first")(handler)
        elif kind == "batch":
            consumer.batch("t", start_from="first", max_messages=2, max_wait=0.01)(handler)
        else:
            order_by = (lambda message: "key") if kind == "keyed" else None
            size = 4 if kind == "several" else None
            consumer.listener("t", start_from="first", order_by=order_by, batch_size=size)(handler)
        sender = await cluster.producer()
        queue = Queue("t", "broker-1", 0)
        await sender.send("t", "stuck", queue=queue)
        host = cluster.sim.host("10.5.5.5")
        await host.run(consumer.start())
        await began.wait()
        stopping = asyncio.ensure_future(host.run(consumer.stop()))
        _, late = await asyncio.wait([stopping], timeout=13.0)
        release.set()
        await ended.wait()
        assert not late and await members(cluster, "g") == [] and not consumer.state().running
        await asyncio.sleep(5)
        store, offsets = cluster.brokers[0].broker.store, cluster.brokers[0].broker.offsets
        assert not offsets.query("g", "t", 0) and not store.max_offset("%RETRY%g", 0)
        again: list[bytes] = []

        async def next_handler(message: Message) -> None:
            again.append(message.body)

        await cluster.consumer("g", "t", next_handler, orderly=kind == "orderly")
        await asyncio.sleep(70)  # of an orderly queue the broker ends the lock
        assert again == [b"stuck"]

    run(scenario)
    assert caplog.text.count("do not let themselves be cancelled") == 1


def test_nor_does_one_whose_queue_is_to_go_to_another_member() -> None:
    """Its lock was waited for besides, twice: nobody gives it back while the call runs."""

    async def scenario(cluster: SimCluster) -> None:
        release, began = asyncio.Event(), asyncio.Event()

        async def handler(_: Message) -> None:
            await stubborn(began, release)

        async def other(_: Message) -> None:
            pass

        sender = await cluster.producer()
        for number in range(2):
            await sender.send("t", "stuck", queue=Queue("t", "broker-1", number))
        config = ConsumerConfig(drain_timeout=1.0, revoke_timeout=0.5)
        member = await cluster.consumer("g", "t", handler, config=config, orderly=True)
        await began.wait()
        await cluster.consumer("g", "t", other, orderly=True)
        await asyncio.sleep(3)
        assert len(member.held("t")) == 1
        stopping = asyncio.ensure_future(member.stop())
        _, late = await asyncio.wait([stopping], timeout=12.0)
        release.set()
        assert not late

    run(scenario)


# -- options --

NUMBERS = ("int", "float", "float | None")
CONFIGS = (ClientConfig, ProducerConfig, ConsumerConfig, PullConsumerConfig, RemotingConfig)


@pytest.mark.parametrize(
    ("config", "name"), [(config, each.name) for config in CONFIGS for each in fields(config) if each.type in NUMBERS]
)
def test_a_number_that_is_none_or_out_of_range_is_named(config: Any, name: str) -> None:
    for wrong in ("5", -2, float("nan"), True):
        with pytest.raises(ConfigError, match=name):
            config(**{name: wrong})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"nameservers": "a:1;b:2"}, "nameservers='a:1;b:2': a tuple"),
        ({"nameservers": ()}, "at least one HOST:PORT"),
        ({"nameservers": ("foo",)}, "'foo': HOST:PORT is needed"),
        ({"nameservers": "foo:1"}, "a tuple of HOST:PORT"),
        # Not another one at each start, for a broadcasting member's file is named after it; nor another directory.
        ({"instance": ""}, "instance='': a name"),
        ({"instance": "../x"}, "instance='../x': a name"),
        ({"instance": "a b"}, "instance='a b': a name"),
    ],
)
def test_names_of_a_client_are_checked(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ClientConfig(**options)


@pytest.mark.parametrize("address", ["localhost", "h:99999", "h:x", "::1:9876"])
def test_an_address_that_is_none_is_refused_at_once(address: str) -> None:
    for make in (Consumer, PullConsumer, Producer):
        with pytest.raises(UsageError, match=f"address '{address}'"):
            make("g", nameservers=address)


def test_compression_levels_are_those_of_the_type() -> None:
    for kind, most in (("zlib", 9), ("lz4", 22), ("zstd", 22)):
        options: Any = {"compress_type": kind}
        ProducerConfig(compress_level=most, **options)
        with pytest.raises(ConfigError, match=rf"compress_level={most + 1}: -\d+ to {most} with {kind}"):
            ProducerConfig(compress_level=most + 1, **options)


@pytest.mark.parametrize(
    ("register", "options", "says"),
    [
        ("listener", {"concurrency": "4"}, "concurrency='4': 1 to 1024"),
        ("listener", {"timeout": float("nan")}, "timeout=nan: above 0 seconds"),
        ("batch", {"max_messages": 0}, "max_messages=0: 1 to 65536"),
        ("batch", {"max_wait": "1"}, "max_wait='1': 0 seconds or more"),
        ("batch", {"max_bytes": 0.5}, "max_bytes=0.5: 0"),
        ("orderly", {"batch_size": 1.5}, "batch_size=1.5: 1 to 1024"),
        ("orderly", {"suspend": float("inf")}, "suspend=inf: above 0 seconds"),
    ],
)
def test_options_of_listeners_are_checked(register: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        getattr(Consumer("g"), register)("t", **options)
