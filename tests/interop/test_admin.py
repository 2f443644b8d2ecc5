"""Every method of Admin on Apache's brokers, the newest and 4.9, and on ours: the same calls, the same answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from aiorocket import (
    Admin,
    Client,
    ClientConfig,
    Message,
    PoppedMessage,
    RemoteError,
    RocketError,
    TopicNotFoundError,
    UsageError,
)
from aiorocket.client.admin.timers import PendingTimer
from tests.interop.peers import Server

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

LIMIT = 150.0


@pytest.fixture(params=["apache", "apache_older", "ours"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest_asyncio.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with Client(config=ClientConfig(nameservers=(server.nameserver,))) as client:
        yield client


@pytest_asyncio.fixture
async def admin(client: Client) -> AsyncIterator[Admin]:
    async with Admin(client=client) as admin:
        yield admin


async def until(look: Callable[[], Awaitable[Any]], what: str) -> Any:
    """What ``look`` gives when it is true: Apache's brokers tell name servers, index and count a moment later."""
    deadline = time.monotonic() + LIMIT
    while not (found := await look()):
        assert time.monotonic() < deadline, f"not {what} in {LIMIT:g} s"
        await asyncio.sleep(0.1)
    return found


async def older(admin: Admin) -> bool:
    """The broker is one of 4.9."""
    return (await until(admin.brokers.runtime, "counted"))[0].version.startswith("V4_9")


async def send(client: Client, topic: str, count: int) -> list[str]:
    async with client.producer("operators-shop") as producer:
        return [
            (await producer.send(topic, b"%d" % n, tag="paid", keys=[f"{topic}-{n}"], timeout=10)).msg_id
            for n in range(count)
        ]


async def test_topics(admin: Admin, client: Client) -> None:
    topics = admin.topics
    await topics.create("operated", 2)
    (made,) = [each for each in await topics.all() if each.topic == "operated"]
    assert (made.read_queues, made.write_queues, made.permission) == (2, 2, "RW")
    names = {each.topic for each in await topics.all()}
    assert not any(name.startswith(("%", "rmq_sys", "TBW102", "SCHEDULE")) for name in names), names
    assert "TBW102" in {each.topic for each in await topics.all(system=True)}
    (changed,) = await topics.update("operated", read_queues=3, order=True)
    assert (changed.read_queues, changed.write_queues, changed.order) == (3, 2, True)
    kept = next(each for each in await topics.all() if each.topic == "operated")
    if not await older(admin):  # which leaves order to the name servers' ORDER_TOPIC_CONFIG
        assert kept[:-1] == changed[:-1]

    async def routed() -> bool:
        return (await topics.route("operated"))[0].read_queues == 3

    await until(routed, "routed")
    await send(client, "operated", 4)

    async def counted() -> bool:
        rows = await topics.status("operated")
        return [row.queue for row in rows][:2] == [0, 1] and sum(row.end - row.begin for row in rows) == 4

    await until(counted, "counted")
    assert await topics.delete("operated") == [made.broker]

    async def gone() -> bool:
        try:
            await topics.route("operated")
        except TopicNotFoundError:
            return True
        return False

    await until(gone, "forgotten")
    with pytest.raises(TopicNotFoundError):
        await topics.update("operated", order=False)


async def test_groups_offsets_and_messages(admin: Admin, client: Client) -> None:
    groups, offsets, messages = admin.groups, admin.offsets, admin.messages
    await admin.topics.create("ledger-a", 2)
    (made,) = await groups.create("clerks", retries=5)
    assert made.retries == 5 and made in await groups.all()
    (changed,) = await groups.update("clerks", broadcasting=False)
    assert changed == made._replace(broadcasting=False) and changed in await groups.all()
    ids = await send(client, "ledger-a", 6)
    consumer, seen = client.consumer("clerks"), asyncio.Queue[Message]()

    @consumer.listener("ledger-a", tags="paid", start_from="first")
    async def on_entry(message: Message) -> None:
        seen.put_nowait(message)

    async def settled() -> bool:
        return sum(each.lag for each in await groups.lag("clerks", "ledger-a")) == 0

    async with consumer:
        async with asyncio.timeout(LIMIT):
            assert {(await seen.get()).msg_id for _ in range(6)} == set(ids)
        known = await groups.members("clerks")
        (member,) = known.members
        assert member.client_id == client.client_id and ("ledger-a", "paid", "TAG") in known.subscriptions
        info = await groups.running_info("clerks", member.client_id)
        assert info.properties and ("ledger-a", made.broker, 0) in info.queues
        first = await anext(messages.by_time("ledger-a", limit=1))
        told = await messages.consume_directly("clerks", member.client_id, first)
        assert told.result == "CR_SUCCESS" and (await seen.get()).body == first.body
        await until(settled, "committed")
        plan = await offsets.plan("clerks", "ledger-a", "first")
        assert plan.again == 6
        await offsets.apply(plan)  # running: they come once more
        async with asyncio.timeout(LIMIT):
            assert {(await seen.get()).msg_id for _ in range(6)} == set(ids)
        await until(settled, "committed again")
        if await older(admin):
            with pytest.raises(UsageError, match="stop"):
                await offsets.apply(await offsets.plan("clerks", "ledger-a", skip=-1))
    assert "clerks" in await until(lambda: admin.topics.groups("ledger-a"), "consumed")
    assert "ledger-a" in await groups.topics("clerks")
    assert "ledger-a" in {each.topic for each in (await groups.lags())["clerks"]}

    async def offline() -> bool:
        return not (await groups.members("clerks")).members

    await until(offline, "offline")
    back = await offsets.plan("clerks", "ledger-a", skip=-1)
    await offsets.apply(back)  # stopped: by number on every broker
    assert await offsets.verify(back) == [] and back.again == 2
    one = await offsets.plan("clerks", "ledger-a", {(made.broker, 0): 1})
    assert await offsets.verify(await offsets.apply(one)) == []
    assert [each.then for each in one.moves] == [1, back.moves[1].then]
    stored = [each.store_timestamp async for each in messages.by_time("ledger-a")]
    begun = await offsets.plan("clerks", "ledger-a", min(stored))
    assert await offsets.verify(await offsets.apply(begun)) == []
    assert [each.then for each in begun.moves] == [0, 0]
    await offsets.apply(
        await offsets.plan("clerks", "ledger-a", {(made.broker, each.queue): each.then for each in back.moves})
    )
    await groups.create("auditors-a")
    await offsets.clone("clerks", "auditors-a", "ledger-a")
    where = [each.offset for each in await groups.lag("auditors-a", "ledger-a")]
    assert where == [each.then for each in back.moves]
    with pytest.raises(RemoteError):
        await groups.running_info("clerks", "nobody")
    await groups.delete("clerks")
    assert "clerks" not in {each.group for each in await groups.all()}


async def test_who_hangs_on_the_first_message_is_behind_and_says_where(admin: Admin, client: Client) -> None:
    """It has no offset yet; and a member that wants something else is found."""
    await admin.topics.create("stuck-a", 1)
    ids = await send(client, "stuck-a", 2)
    consumer, begun, never = client.consumer("hangers"), asyncio.Event(), asyncio.Event()

    @consumer.listener("stuck-a", start_from="first")
    async def on_stuck(message: Message) -> None:
        begun.set()
        await never.wait()

    async with consumer:
        async with asyncio.timeout(LIMIT):
            await begun.wait()

        async def behind() -> bool:
            return sum(each.lag for each in await admin.groups.lag("hangers")) == len(ids)

        await until(behind, "behind")
        info = await admin.groups.running_info("hangers", client.client_id, stacks=True)
        assert "on_stuck" in info.stacks and ("stuck-a", "*", "TAG") in info.subscriptions
        async with Client(config=client.config) as other:
            stranger = other.consumer("hangers")

            @stranger.listener("stuck-a", tags="other")
            async def on_other(message: Message) -> None:
                pass

            async with stranger:

                async def found() -> bool:
                    findings = [each async for each in admin.doctor() if each.check == "subscriptions"]
                    return any(each.about == "hangers" and "stuck-a (TAG other)" in each.finding for each in findings)

                await until(found, "found")
        never.set()
    assert await admin.groups.check("hangers") is None
    with pytest.raises(RocketError, match="no broker knows"):
        await admin.groups.check("hangars")


async def test_single_messages(admin: Admin, client: Client) -> None:
    messages = admin.messages
    await admin.topics.create("looked-at", 1)
    ids = await send(client, "looked-at", 3)
    (one,) = await until(lambda: messages.by_key("looked-at", "looked-at-1"), "indexed")
    assert (one.body, one.msg_id, one.tag) == (b"1", ids[1], "paid")
    copy = messages.to_send(one.row())
    assert (copy.topic, copy.body, copy.tag, copy.keys) == ("looked-at", b"1", "paid", ["looked-at-1"])
    assert [each.body for each in await messages.by_unique_key("looked-at", ids[2])] == [b"2"]
    again = await messages.by_id(one.offset_msg_id)
    assert again is not None and again.msg_id == ids[1] and again.queue == one.queue
    at = await messages.by_offset("looked-at", one.queue.broker_name, 0, one.queue_offset)
    assert at is not None and at.body == b"1"
    assert await messages.by_offset("looked-at", one.queue.broker_name, 0, 99) is None
    several = messages.by_offsets("looked-at", one.queue.broker_name, 0, 1, 99)
    assert [each.body async for each in several][:2] == [b"1", b"2"]
    later = [m.body async for m in messages.by_time("looked-at", since=one.store_timestamp)]
    assert later[-1] == b"2"
    async with aclosing(messages.tail("looked-at", every=0.05)) as tail:
        coming, new = asyncio.ensure_future(anext(tail)), set[str]()
        async with asyncio.timeout(LIMIT):
            while not coming.done():  # until it has looked where the queues end
                new.update(await send(client, "looked-at", 1))
                await asyncio.sleep(0.1)
        assert coming.result().msg_id in new


async def test_pops(admin: Admin, client: Client) -> None:
    """4.9 has no POP."""
    pops, topic, group = admin.pops, "popped-c", "poppers-c"
    await admin.topics.create(topic, 1)
    (made,) = await admin.groups.create(group)
    if await older(admin):
        with pytest.raises(RemoteError):
            await pops.set_mode(group, topic, "POP")
        assert await pops.checkpoints(group) == []
        return
    assert await pops.set_mode(group, topic, "POP") == [made.broker]
    await send(client, topic, 3)
    got: list[PoppedMessage] = []

    async def with_us() -> bool:
        found = await pops.checkpoints(group)
        for each in found:
            assert (each.topic, each.group, each.broker, each.queue) == (topic, group, made.broker, 0)
            assert each.due_ms - each.popped_ms == 90_000
        return {offset for each in found for offset in each.offsets} == {message.queue_offset for message in got}

    async with client.simple_consumer(group) as consumer:
        await consumer.subscribe(topic, start_from="first")
        async with asyncio.timeout(LIMIT):
            while len(got) < 3:
                got += await consumer.receive(3 - len(got), invisible=90, timeout=10)
        await until(with_us, "written")
        assert not await pops.checkpoints("nobody-pops")
        while got:
            await got.pop().ack()
            await until(with_us, "settled")


async def test_what_waits_for_its_time(admin: Admin, client: Client) -> None:
    await admin.topics.create("later-a", 1)
    async with client.producer("operators-shop") as producer:
        await producer.send("later-a", b"level", delay_level=16, timeout=10)  # 30 minutes
        if await older(admin):  # it has no timers, and tells of levels only from which it has delivered
            assert await admin.timers.pending() == [] and isinstance(await admin.timers.levels(), list)
            return

        async def waits() -> bool:
            return any(each.level == 16 and each.waiting >= 1 for each in await admin.timers.levels())

        await until(waits, "counted")
        sent = await producer.send("later-a", b"timer", tag="t", keys=["k"], after=timedelta(hours=1), timeout=10)

    async def pending() -> list[PendingTimer]:
        return [each for each in await admin.timers.pending() if each.msg_id == sent.msg_id]

    (timer,) = await until(pending, "written")
    assert (timer.topic, timer.tag, timer.keys, timer.size) == ("later-a", "t", ("k",), 5)
    assert abs(timer.due_ms - timer.stored_ms - 3_600_000) < 60_000


async def test_users_and_rights(admin: Admin, server: Server) -> None:
    """At the newest of Apache's; 4.9 has other requests, and ours refuses them without an access file: with one it does
    them in ``test_commands.py``."""
    users = admin.users
    if server.kind == "ours" or await older(admin):
        with pytest.raises(RemoteError):
            await users.create("clerk-a", "a-password-of-clerks")
        return
    (broker,) = await users.create("clerk-a", "a-password-of-clerks")
    assert await users.all("clerk-a") == [("clerk-a", broker, False, True)]
    await users.update("clerk-a", admin=True, enabled=False)
    assert await users.all("clerk-a") == [("clerk-a", broker, True, False)]
    await users.grant("clerk-a", "Topic:ledger-*", ["Pub", "Sub"])
    await users.grant("clerk-a", "Topic:secret", ["Pub"], decision="Deny", sources=["10.0.0.0/8"])
    rights = {(each.resource, tuple(sorted(each.actions)), each.decision) for each in await users.rights("clerk-a")}
    assert rights == {("Topic:ledger-*", ("Pub", "Sub"), "Allow"), ("Topic:secret", ("Pub",), "Deny")}
    await users.revoke("clerk-a", "Topic:secret")
    assert [each.resource for each in await users.rights("clerk-a")] == ["Topic:ledger-*"]
    await users.revoke("clerk-a")
    assert await users.rights("clerk-a") == []
    await users.delete("clerk-a")
    assert await users.all("clerk-a") == []


async def test_brokers_and_name_servers(admin: Admin, client: Client, server: Server) -> None:
    brokers, names = admin.brokers, admin.nameservers
    (broker,) = await brokers.all()
    assert broker.address == server.broker and await brokers.clusters() == {broker.cluster: [broker.name]}
    (runtime,) = await until(brokers.runtime, "counted")
    assert runtime.version.startswith("V") and float(runtime.values["commitLogDiskRatio"]) > 0
    assert (await brokers.config(broker.name))["brokerName"] == broker.name
    assert await brokers.set_config({"transactionCheckMax": "14"}) == [broker.name]
    assert (await brokers.config(broker.name))["transactionCheckMax"] == "14"
    for what in ("queues", "topics", "messages"):
        assert await brokers.clean(what) == [broker.name]
    assert await brokers.statistics("TOPIC_PUT_NUMS", "no-such-topic") == []
    await admin.topics.create("counted-a", 1)
    await send(client, "counted-a", 3)
    (counted,) = await until(lambda: brokers.statistics("TOPIC_PUT_NUMS", "counted-a"), "counted")
    assert counted.minute.total in (0, 3)  # Apache's takes samples every 10 s
    assert (await brokers.write_permission(broker.name, False))[0] > 0
    assert (await admin.topics.route("counted-a"))[0].permission == "R"
    await brokers.write_permission(broker.name, True)
    assert (await admin.topics.route("counted-a"))[0].permission == "RW"
    async with client.producer("operators-shop") as producer:
        await producer.send("counted-a", b"x", timeout=10)
        await client.session.heartbeat()
        assert client.client_id in {each.client_id for each in await brokers.producers("operators-shop")}
    assert await brokers.producers("nobody-produces") == []
    await names.put("operators", "key", "value")
    assert await names.get("operators", "key") == "value" and await names.values("operators") == {"key": "value"}
    await names.delete("operators", "key")
    assert await names.get("operators", "key") is None
    assert await names.config() and await names.set_config({"orderMessageEnable": "true"}) == [server.nameserver]
    assert await admin.messages.trace("of-nobody") == []
