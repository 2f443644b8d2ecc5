"""Consumer groups, as RocketMQ's documentation tells them: the members of a group share the queues of a topic, every
group gets every message, and all members of a group must want the same."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from aiorocket import (
    Client,
    ClientConfig,
    Consumer,
    ConsumerConfig,
    Embedded,
    Message,
    Queue,
    Router,
    UsageError,
    embed,
)
from aiorocket.errors import RemoteError, RequestTimeoutError
from aiorocket_protocol import ConsumerListBody, GetConsumerListByGroupRequestHeader, RequestCode, decode_body
from tests.broker.peer import Peer, heartbeat

Until = Callable[[Callable[[], bool]], Awaitable[None]]


def member(mq: Embedded, seen: list[str] | None = None, group: str = "billing", **options: Any) -> Consumer:
    consumer = mq.consumer(group, **options)

    @consumer.listener("orders", start_from="first")
    async def bill(message: Message) -> None:
        if seen is not None:
            seen.append(message.body.decode())

    return consumer


def held(consumer: Consumer) -> list[int]:
    """Its queues of "orders"."""
    return [queue.queue_id for queue in sorted(consumer.held()) if queue.topic == "orders"]


async def send(mq: Embedded, *bodies: str) -> None:
    async with mq.producer("shop") as producer:
        for body in bodies:
            await producer.send("orders", body.encode())


async def known_members(mq: Embedded, group: str = "billing") -> list[str]:
    """Whom the broker takes for members of the group."""
    async with mq.client() as client:
        header = GetConsumerListByGroupRequestHeader(group)
        try:
            answer = await client.session.call(mq.broker.address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        except RemoteError:
            return []
        return decode_body(ConsumerListBody, answer.body, answer.serialize_type).consumer_ids


async def test_members_share_the_queues(mq: Embedded, until: Until) -> None:
    """Consecutive queues each, as even as can be (the strategy AVG), and each message goes to one member. Nobody waits
    for the next of the regular looks, 20 s apart: the broker tells the others at once."""
    await mq.create_topic("orders", queues=8)
    seen: dict[int, list[str]] = {0: [], 1: [], 2: []}
    async with AsyncExitStack() as stack:
        members = []
        for number in range(3):
            members.append(await stack.enter_async_context(member(mq, seen[number])))
        await until(lambda: sorted(len(held(each)) for each in members) == [2, 3, 3])
        assert sorted(queue for each in members for queue in held(each)) == list(range(8))
        assert all(held(each) == list(range(held(each)[0], held(each)[-1] + 1)) for each in members)
        bodies = [str(number) for number in range(80)]
        await send(mq, *bodies)
        await until(lambda: sum(map(len, seen.values())) == 80)
        assert sorted(body for each in seen.values() for body in each) == sorted(bodies)
        assert sorted(map(len, seen.values())) == [20, 30, 30]


async def test_who_leaves_hands_over_at_once_and_nothing_comes_twice(mq: Embedded, until: Until) -> None:
    await mq.create_topic("orders", queues=4)
    seen: list[str] = []
    async with member(mq, seen) as stays:
        async with member(mq, seen) as leaves:
            await until(lambda: len(held(stays)) == len(held(leaves)) == 2)
            await send(mq, *map(str, range(40)))
            await until(lambda: len(seen) == 40)
        assert await known_members(mq) == [stays.client.client_id]
        await until(lambda: held(stays) == [0, 1, 2, 3])
        await send(mq, *map(str, range(40, 60)))
        await until(lambda: len(seen) == 60)
    assert sorted(map(int, seen)) == list(range(60))
    assert await known_members(mq) == []


async def test_who_vanishes_is_missed_when_its_connection_ends(mq: Embedded, until: Until) -> None:
    """A crash closes the sockets, and no farewell is needed. (Here somebody who only says that it is a member.)"""
    await mq.create_topic("orders", queues=2)
    seen: list[str] = []
    async with member(mq, seen) as stays:
        vanishing = await Peer.connect(mq.broker.port)
        await vanishing.call(34, body=heartbeat("vanishing", "orders", group="billing"))
        await until(lambda: len(held(stays)) == 1)
        await send(mq, "1", "2")
        await until(lambda: len(seen) == 1)
        await vanishing.close()
        await until(lambda: held(stays) == [0, 1] and sorted(seen) == ["1", "2"])


async def test_more_members_than_queues(mq: Embedded, until: Until) -> None:
    """Who has none waits in reserve."""
    await mq.create_topic("orders", queues=1)
    seen: list[str] = []
    async with member(mq, seen) as one, member(mq, seen) as two:
        await until(lambda: sorted((held(one), held(two))) == [[], [0]])
        owner = one if held(one) else two
        await owner.stop()
        other = two if owner is one else one
        await until(lambda: held(other) == [0])
        await send(mq, "x")
        await until(lambda: seen == ["x"])


async def test_every_group_gets_everything(mq: Embedded, until: Until) -> None:
    await mq.create_topic("orders", queues=4)
    billed: list[str] = []
    reported: list[str] = []
    async with member(mq, billed, "billing"), member(mq, reported, "reports"), member(mq, reported, "reports"):
        await send(mq, *map(str, range(40)))
        await until(lambda: len(billed) == len(reported) == 40)
    assert Counter(billed) == Counter(reported) == Counter(map(str, range(40)))


async def test_two_groups_may_share_a_client_and_one_may_not_be_there_twice(mq: Embedded, until: Until) -> None:
    """One client is one member of a group: brokers know members by the client's id. Groups of different kinds get along
    on it."""
    await mq.create_topic("orders", queues=2)
    async with mq.client() as client:
        billed: list[str] = []
        router = Router("reports")
        reported: list[str] = []

        @router.orderly("orders", start_from="first")
        async def report(message: Message) -> None:
            reported.append(message.body.decode())

        billing = client.consumer("billing")

        @billing.listener("orders", start_from="first")
        async def bill(message: Message) -> None:
            billed.append(message.body.decode())

        async with billing, client.consumer("reports", router=router):
            twice = client.consumer("billing")
            with pytest.raises(UsageError, match=r"'billing' is already used by this Client.*needs its own Client"):
                await twice.start()
            assert held(billing) == [0, 1]  # the first one has noticed nothing
            await send(mq, "1", "2", "3")
            await until(lambda: len(billed) == len(reported) == 3)


async def test_the_same_client_id_twice_is_seen(mq: Embedded) -> None:
    """Two processes with one name (``ClientConfig.instance``) would take the same queues. As in RocketMQ nobody stops
    them, so both get everything; the name is the deployment's to choose, and by default it is unique."""
    await mq.create_topic("orders", queues=2)
    config = ClientConfig(nameservers=mq.nameservers, instance="copied")
    async with Client(config=config) as one, Client(config=config) as two:
        assert one.client_id == two.client_id
        first, second = one.consumer("billing"), two.consumer("billing")
        for consumer in (first, second):
            consumer.listener("orders")(_ignore)
        async with first, second:
            assert held(first) == held(second) == [0, 1]
            assert await known_members(mq) == [one.client_id]
    async with mq.client() as one, mq.client() as two:
        assert one.client_id != two.client_id


async def test_members_that_want_different_things_are_reported(
    mq: Embedded, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    """Queues are shared out as if all members wanted the same; a message whose queue belongs to a member that does not
    want it is lost to the group. RocketMQ is silent about that. The broker logs who wants what, once per change."""
    await mq.create_topic("orders", queues=2)
    caplog.set_level(logging.WARNING, "aiorocket.broker")
    paid, shipped = mq.consumer("billing"), mq.consumer("billing")
    paid.listener("orders", "paid")(_ignore)
    shipped.listener("orders", "shipped")(_ignore)

    def reports() -> list[str]:
        return [record.getMessage() for record in caplog.records if "subscribe to different things" in record.message]

    async with paid:
        assert not reports()
        async with shipped:
            await until(lambda: len(held(paid)) == len(held(shipped)) == 1)
            assert len(reports()) == 1
            (report,) = reports()
    for part in ("group billing", "orders", "paid", "shipped", paid.client.client_id, shipped.client.client_id):
        assert part in report
    caplog.clear()
    async with member(mq), member(mq):
        pass
    assert not reports()


async def test_the_application_is_told_of_its_queues(mq: Embedded, until: Until) -> None:
    """``on_assigned`` ends before the first message of a queue comes, ``on_revoked`` before its lock is given back: in
    an orderly group the place to load and to store what belongs to a queue."""
    await mq.create_topic("orders", queues=2)
    told: list[tuple[str, str, list[int]]] = []
    loaded: dict[str, set[int]] = {"one": set(), "two": set()}
    seen: list[tuple[str, str, bool]] = []

    def named(name: str) -> Consumer:
        router = Router("billing")

        async def on_assigned(queues: list[Queue]) -> None:
            mine = [queue.queue_id for queue in queues if queue.topic == "orders"]
            await asyncio.sleep(0.005)
            loaded[name].update(mine)
            told.append((name, "assigned", mine))

        async def on_revoked(queues: list[Queue]) -> None:
            mine = [queue.queue_id for queue in queues if queue.topic == "orders"]
            loaded[name].difference_update(mine)
            await asyncio.sleep(0.005)
            told.append((name, "revoked", mine))

        @router.orderly("orders", start_from="first")
        async def bill(message: Message) -> None:
            seen.append((name, message.body.decode(), message.queue.queue_id in loaded[name]))

        config = ConsumerConfig(rebalance_retry=0.02)
        return mq.consumer("billing", router=router, config=config, on_assigned=on_assigned, on_revoked=on_revoked)

    await send(mq, "1", "2", "3", "4")
    async with named("one") as one:
        await until(lambda: len(seen) == 4)
        async with named("two") as two:
            await until(lambda: len(held(one)) == len(held(two)) == 1)
            (moved,) = held(two)
            await send(mq, "5", "6", "7", "8")
            await until(lambda: len(seen) == 8)
        await until(lambda: held(one) == [0, 1])
    assert all(there for _, _, there in seen) and sorted(body for _, body, _ in seen) == list("12345678")
    assert [entry for entry in told if entry[2]] == [
        ("one", "assigned", [0, 1]),
        ("one", "revoked", [moved]),
        ("two", "assigned", [moved]),
        ("two", "revoked", [moved]),
        ("one", "assigned", [moved]),
        ("one", "revoked", [0, 1]),
    ]
    assert loaded == {"one": set(), "two": set()}


async def test_a_member_that_joins_may_repeat_what_was_not_committed_yet(mq: Embedded, until: Until) -> None:
    """Without queue locks the newcomer begins where the group has committed, which is every 10 s; nothing is lost, some
    comes twice. That is what "at least once" means, in every RocketMQ client."""
    await mq.create_topic("orders", queues=2)
    seen: list[str] = []
    await send(mq, *map(str, range(20)))
    async with member(mq, seen) as one:
        await until(lambda: len(seen) == 20)
        async with member(mq, seen) as two:
            await until(lambda: len(held(one)) == len(held(two)) == 1)
            await until(lambda: all(not each.cached for each in (*one.state().queues, *two.state().queues)))
        assert set(seen) == set(map(str, range(20))) and max(Counter(seen).values()) <= 2
        # What is committed comes to nobody again.
        await one.commit()
        before = len(seen)
        async with member(mq, seen) as two:
            await until(lambda: len(held(one)) == len(held(two)) == 1)
            await send(mq, "end", "end")
            await until(lambda: seen[before:] == ["end", "end"])


@pytest.mark.parametrize("settled", [False, True])
async def test_a_client_that_is_stopped_too_early_ends_its_consumers_quietly(
    mq: Embedded, until: Until, caplog: pytest.LogCaptureFixture, settled: bool
) -> None:
    """The consumer of a shared client is to be stopped before it. The other way round nothing crashes, and nothing more
    comes."""
    await mq.create_topic("orders", queues=2)
    client = mq.client()
    await client.start()
    consumer = client.consumer("billing", config=ConsumerConfig(pull_error_delay=0.02))
    consumer.listener("orders")(_ignore)
    await consumer.start()
    if settled:
        await until(lambda: mq.broker.parked_pulls == 3)
    await client.stop()
    await until(lambda: all("this client" in (each.last_error or "") for each in consumer.state().queues))
    await consumer.stop()
    assert not [record for record in caplog.records if "crashed" in record.getMessage()]
    assert await known_members(mq) == []


async def test_where_groups_are_made_by_administrators(until: Until) -> None:
    """With autoCreateSubscriptionGroup off nobody consumes in a group the broker does not know, and the start says so.
    It waits a while, so it is enough to create the group meanwhile."""
    async with embed(broker={"auto_create_groups": False}) as mq:
        await mq.create_topic("orders", queues=1)
        await send(mq, "1")
        for patience in (0.3, 10.0):  # what has not been asked by then can't be told
            hasty = Client(config=ClientConfig(nameservers=mq.nameservers, start_timeout=patience))
            async with hasty:
                consumer = hasty.consumer("billing")
                consumer.listener("orders")(_ignore)
                with pytest.raises(RequestTimeoutError) as caught:
                    await consumer.start()
            if "group [billing] does not exist" in str(caught.value):
                break
        assert re.search(r"group \[billing\] does not exist.*create it first", str(caught.value))
        seen: list[str] = []
        patient = member(mq, seen)
        starting = asyncio.ensure_future(patient.start())
        async with mq.client() as client:
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            await client.session.call(mq.broker.address, code, None, body=b'{"groupName":"billing"}')
        await starting
        await until(lambda: seen == ["1"])
        await patient.stop()


async def test_a_group_may_be_switched_off(mq: Embedded, until: Until) -> None:
    """consumeEnable false: the members stay, and get nothing until it is true again."""
    await mq.create_topic("orders", queues=1)
    seen: list[str] = []

    async def enable(value: str) -> None:
        async with mq.client() as client:
            body = b'{"groupName":"billing","consumeEnable":%s}' % value.encode()
            await client.session.call(
                mq.broker.address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body=body
            )

    await enable("false")
    await send(mq, "1")
    async with member(mq, seen, config=ConsumerConfig(pull_error_delay=0.02)) as consumer:
        await until(lambda: consumer.state().last_error is not None)
        assert "code 16" in (consumer.state().last_error or "") and not seen
        await enable("true")
        await until(lambda: seen == ["1"])


async def test_a_strategy_by_name(mq: Embedded, until: Until) -> None:
    """Every member must use the same one."""
    await mq.create_topic("orders", queues=4)
    circle = ConsumerConfig(allocate="AVG_BY_CIRCLE")
    async with member(mq, config=circle) as one, member(mq, config=circle) as two:
        await until(lambda: sorted((held(one), held(two))) == [[0, 2], [1, 3]])


async def test_new_queues_of_a_topic_are_found(mq: Embedded, until: Until) -> None:
    """With the next look at the route (30 s apart, unless configured)."""
    await mq.create_topic("orders", queues=1)
    seen: list[str] = []
    config = ClientConfig(nameservers=mq.nameservers, route_interval=0.05)
    async with Client(config=config) as client:
        consumer = client.consumer("billing")

        @consumer.listener("orders")
        async def bill(message: Message) -> None:
            seen.append(message.body.decode())

        async with consumer, mq.producer("shop") as producer:
            await mq.create_topic("orders", queues=3)
            # A message in a queue that nobody has read yet is not passed over.
            await producer.send("orders", b"x", queue=Queue("orders", "broker-a", 2))
            await until(lambda: seen == ["x"] and held(consumer) == [0, 1, 2])


async def _ignore(message: Message) -> None:
    """A listener that does nothing."""
