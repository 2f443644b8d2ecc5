"""Admin on our broker: what an operator asks, and what it changes. On Apache's: tests/interop/test_admin.py."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from aiorocket import (
    Admin,
    Client,
    ClientConfig,
    Embedded,
    Message,
    PoppedMessage,
    RemoteError,
    SimpleConsumer,
    TopicNotFoundError,
    UsageError,
)
from aiorocket.broker import Broker
from aiorocket.cli.conditions import condition
from aiorocket.client.admin.asking import Missing, gathered, side_by_side
from aiorocket.client.admin.brokers import Brokers
from aiorocket.client.admin.dead_letters import DeadLetters
from aiorocket.client.admin.groups import Groups
from aiorocket.client.admin.messages import Messages
from aiorocket.client.admin.names import NameServers
from aiorocket.client.admin.offsets import Offsets
from aiorocket.client.admin.pops import Pops, _replay
from aiorocket.client.admin.timers import Timers
from aiorocket.client.admin.topics import Topics
from aiorocket.client.admin.users import Users
from aiorocket.client.queue_scan import QueueScan
from aiorocket.config import BrokerConfig, ConsumerConfig
from aiorocket.errors import NotConnectedError, RocketError
from aiorocket.model import Queue
from aiorocket.runtime.env import real_env
from aiorocket_protocol import REVIVE_TOPIC_PREFIX, TIMER_TOPIC, TRACE_TOPIC, RequestCode, split_records
from aiorocket_protocol.message_trace import TraceRecord, write_trace
from tests.broker.peer import Peer, away
from tests.broker.test_calls import asked, consumer, reply


async def sent(mq: Embedded, count: int, topic: str = "orders") -> list[str]:
    """The senders' ids of ``count`` messages with the keys o-0, o-1 ..., in one queue after the other."""
    async with mq.producer("shop") as producer:
        return [(await producer.send(topic, b"%d" % n, tag="paid", keys=[f"o-{n}"])).msg_id for n in range(count)]


async def consumed(mq: Embedded, count: int, group: str = "billing") -> None:
    consumer, seen, done = mq.consumer(group), [], asyncio.Event()

    @consumer.listener("orders", start_from="first")
    async def on_order(message: Message) -> None:
        seen.append(message)
        if len(seen) == count:
            done.set()

    async with consumer:
        await asyncio.wait_for(done.wait(), 30)


def test_every_method_is_tried_on_apaches_brokers() -> None:
    interop = Path(__file__).parents[1] / "interop"
    files = ("test_admin.py", "test_dead_letters.py")
    tried = "".join((interop / each).read_text(encoding="utf-8") for each in files)
    for part in (Topics, Groups, Offsets, Messages, Brokers, NameServers, Users, Timers, Pops, DeadLetters):
        for name in (each for each in vars(part) if not each.startswith("_")):
            asks = callable(vars(part)[name])
            assert not asks or re.search(rf"\w\.{name}\b", tried), f"{part.__name__}.{name}"


async def test_topics(mq: Embedded, admin: Admin) -> None:
    topics = admin.topics
    (orders,) = await topics.all()
    assert (orders.topic, orders.read_queues, orders.permission) == ("orders", 2, "RW")
    assert "%RETRY%" not in str(orders) and len(await topics.all(system=True)) > 5
    await topics.create("events", 3, permission="R", attributes={"reserve.time": "1"})
    events = (await topics.all())[0]
    assert events[:1] + events[2:] == ("events", 3, 3, "R", False, {"reserve.time": "1"})
    (changed,) = await topics.update("events", read_queues=4, permission="RW")
    assert (changed.read_queues, changed.write_queues, changed.permission) == (4, 3, "RW")
    assert changed.attributes == {"reserve.time": "1"} and await topics.all() == [changed, orders]
    (entry,) = await topics.route("events")
    assert (entry.read_queues, entry.write_queues, entry.permission) == (4, 3, "RW") and entry.addresses[0]
    await sent(mq, 3)
    assert [row[3:5] for row in await topics.status("orders")] in ([(0, 2), (0, 1)], [(0, 1), (0, 2)])
    await consumed(mq, 3)
    assert await topics.groups("orders") == ["billing"]
    assert await topics.delete("events") == [orders.broker]
    for gone in (topics.status("events"), topics.route("events"), topics.update("events", order=True)):
        with pytest.raises(TopicNotFoundError):
            await gone
    with pytest.raises(UsageError, match="RW, R or W"):
        await topics.update("orders", permission="X")


async def test_groups(mq: Embedded, admin: Admin) -> None:
    groups = admin.groups
    (made,) = await groups.create("billing", retries=3)
    assert (made.group, made.retries, made.enabled) == ("billing", 3, True)
    (changed,) = await groups.update("billing", enabled=True, broadcasting=False)
    assert changed == made._replace(broadcasting=False) and changed in await groups.all()
    assert await groups.lag("nobody", "orders") != [] and await groups.lag("nobody") == []
    await sent(mq, 5)
    behind = await groups.lag("billing", "orders")
    assert [each.offset for each in behind] == [0, 0] and sum(each.lag for each in behind) == 5
    await consumed(mq, 5)
    assert sum(each.lag for each in await groups.lag("billing", "orders")) == 0
    assert (await groups.lags())["billing"] == await groups.lag("billing")
    assert "orders" in await groups.topics("billing")
    assert (await groups.members("billing")).members == []
    async with Client(config=ClientConfig(nameservers=mq.nameservers)) as client:
        consumer = client.consumer("billing")

        @consumer.listener("orders", tags="paid || refused")
        async def on_order(message: Message) -> None:
            pass

        async with consumer:
            known = await groups.members("billing")
            (member,) = known.members
            assert member.client_id == client.client_id and known.model == "CLUSTERING"
            assert ("orders", "paid || refused", "TAG") in known.subscriptions
            info = await groups.running_info("billing", member.client_id)
            assert info.client_id == member.client_id and info.properties
            (newest,) = [m async for m in admin.messages.by_time("orders", where=lambda m: m.keys == ["o-4"])]
            told = await admin.messages.consume_directly("billing", member.client_id, newest)
            assert told.result == "CR_SUCCESS"
    with pytest.raises(RemoteError, match=r"not online.*`aiorocket group members GROUP` names who is"):
        await groups.running_info("billing", "nobody")
    await groups.delete("billing")
    assert "billing" not in {each.group for each in await groups.all()} and await groups.topics("billing") == []
    with pytest.raises(UsageError, match="no broker has group"):
        await groups.update("billing", retries=1)


async def test_a_member_in_go_says_why_it_says_nothing_and_ordinals_for_names(mq: Embedded, admin: Admin) -> None:
    await sent(mq, 1)
    (newest,) = [message async for message in admin.messages.by_time("orders")]
    async with consumer(mq.broker, "go-1") as member:
        asking = asyncio.ensure_future(admin.groups.running_info("g", "go-1"))
        await reply(member, await asked(member), remark="json marshal error: json: unsupported value: NaN")
        with pytest.raises(RemoteError, match="go-1 gave an empty answer: json marshal error"):
            await asking
        stacks = asyncio.ensure_future(admin.groups.running_info("g", "go-1", stacks=True))
        said = b'{"properties":{}, "jstack":"goroutine 90:\n\t/src/main.go:8\n" }'
        await reply(member, await asked(member), body=said)
        assert (await stacks).stacks == "goroutine 90:\n\t/src/main.go:8\n"
        for result, meant in ((b"0", "CR_SUCCESS"), (b"1", "CR_LATER"), (b'"CR_COMMIT"', "CR_COMMIT")):
            consuming = asyncio.ensure_future(admin.messages.consume_directly("g", "go-1", newest))
            body = b'{"order":false,"autoCommit":true,"consumeResult":%s,"remark":"","spentTimeMills":0}' % result
            await reply(member, await asked(member), body=body)
            assert (await consuming).result == meant


async def test_offsets_are_planned_applied_and_verified(mq: Embedded, admin: Admin) -> None:
    offsets = admin.offsets
    await sent(mq, 10)
    await consumed(mq, 10)
    first = await offsets.plan("billing", "orders", "first")
    assert (first.again, first.skipped, first.missing) == (10, 0, ())
    assert [each.lag for each in await admin.groups.lag("billing", "orders")] == [0, 0], "a plan changes nothing"
    assert len(await offsets.verify(first, within=0)) == 2
    await offsets.apply(first)
    assert await offsets.verify(first) == []
    await consumed(mq, 10)  # they come once more
    by_number = await offsets.plan("billing", "orders", {(first.moves[0].broker, 1): 2})
    await offsets.apply(by_number)
    assert [each.offset for each in await admin.groups.lag("billing", "orders")] == [first.moves[0].end, 2]
    skip = await offsets.plan("billing", "orders", skip=-3)
    assert [each.then for each in skip.moves] == [first.moves[0].end - 3, 0], "not before the queue begins"
    assert (await offsets.plan("billing", "orders", "last")).skipped == first.moves[1].end - 2
    times = [message.store_timestamp async for message in admin.messages.by_time("orders")]
    at = await offsets.plan("billing", "orders", min(times))
    assert [each.then for each in at.moves] == [0, 0]
    await offsets.clone("billing", "audit", "orders")
    audit = await admin.groups.lag("audit", "orders")
    assert [each.offset for each in audit] == [each.offset for each in await admin.groups.lag("billing", "orders")]
    assert "%RETRY%billing" in await admin.groups.topics("billing")
    await offsets.clone("billing", "auditors")
    assert await admin.groups.topics("auditors") == ["orders"], "what comes again to one group comes to no other"
    with pytest.raises(RocketError, match="no broker knows a group 'nobody'"):
        await offsets.clone("nobody", "auditors")
    with pytest.raises(TopicNotFoundError):
        await offsets.plan("billing", "nothing", "first")
    with pytest.raises(UsageError, match="one of them"):
        await offsets.plan("billing", "orders", "first", skip=1)
    with pytest.raises(UsageError, match="has no queue"):
        await offsets.plan("billing", "orders", {("elsewhere", 0): 1})


async def test_a_running_group_moves(mq: Embedded, admin: Admin) -> None:
    await sent(mq, 4)
    consumer = mq.consumer("billing", config=ConsumerConfig(offset_illegal_delay=0.1))
    seen = asyncio.Queue[bytes]()

    @consumer.listener("orders", start_from="first")
    async def on_order(message: Message) -> None:
        seen.put_nowait(message.body)

    async with consumer, asyncio.timeout(30):
        assert {await seen.get() for _ in range(4)} == {b"0", b"1", b"2", b"3"}
        broker = (await admin.brokers.all())[0].name
        plan = await admin.offsets.plan("billing", "orders", {(broker, 0): 0, (broker, 1): 0})
        plan = plan._replace(moves=tuple(each._replace(now=each.end) for each in plan.moves))
        applied = await admin.offsets.apply(plan)
        assert {await seen.get() for _ in range(4)} == {b"0", b"1", b"2", b"3"}
    # Its members have committed by now what they consumed again: that it is where it was is no failure.
    assert sum(each.lag for each in await admin.groups.lag("billing", "orders")) == 0
    assert applied.kept == {broker} and await admin.offsets.verify(applied, within=0) == []
    assert len(await admin.offsets.verify(plan, within=0)) == 2, "of what nobody applied that cannot be said"


async def test_of_messages_that_a_key_index_lacks_is_told(
    mq: Embedded, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sent(mq, 2)
    assert (await admin.messages.by_key("orders", "o-1")).missing == ()
    monkeypatch.setattr("aiorocket.storage.key_index._PATIENCE", -1.0)
    await sent(mq, 2)
    found = await admin.messages.by_key("orders", "o-1")
    assert len(found) == 1 and "index of keys is behind" in found.missing[0].why
    with pytest.raises(RemoteError, match=r"index of keys is behind.*ask again"):
        await admin.messages.by_key("orders", "nothing")


async def test_messages(mq: Embedded, admin: Admin) -> None:
    messages = admin.messages
    ids = await sent(mq, 4)
    everything = [message async for message in messages.by_time("orders")]
    assert sorted(message.msg_id for message in everything) == sorted(ids)
    (one,) = await messages.by_key("orders", "o-2")
    assert (one.body, one.queue.topic, one.msg_id) == (b"2", "orders", ids[2])
    assert [each.body for each in await messages.by_unique_key("orders", ids[3])] == [b"3"]
    again = await messages.by_id(one.offset_msg_id)
    assert again is not None and again.body == b"2" and again.queue == one.queue
    at = await messages.by_offset("orders", one.queue.broker_name, one.queue.queue_id, one.queue_offset)
    assert at is not None and at.msg_id == one.msg_id
    assert await messages.by_offset("orders", one.queue.broker_name, 0, 99) is None
    assert await messages.by_id(one.offset_msg_id[:-4] + "FFFF") is None
    assert await messages.by_key("orders", "nothing") == []
    cut = [m async for m in messages.by_time("orders", since=0, until=one.store_timestamp + 60_000, limit=2)]
    assert len(cut) == 2
    line = json.dumps(one.row())
    copy = messages.to_send(json.loads(line))
    assert (copy.topic, copy.body, copy.tag, list(copy.keys)) == ("orders", b"2", one.tag, ["o-2"])
    assert not {"UNIQ_KEY", "TAGS", "KEYS"} & copy.properties.keys() and json.loads(line)["msg_id"] == one.msg_id
    for no_row in ({}, {"topic": "t", "properties": 1}, json.loads(line) | {"body_base64": "?"}):
        with pytest.raises(UsageError, match="no row of a message"):
            messages.to_send(no_row)
    with pytest.raises(UsageError, match="by_unique_key"):
        await messages.by_id("short")
    async with aclosing(messages.tail("orders", every=0.02)) as tail:
        coming, new = asyncio.ensure_future(anext(tail)), set[str]()
        async with asyncio.timeout(30):
            while not coming.done():  # until it has looked where the queues end
                new.update(await sent(mq, 1))
                await asyncio.sleep(0.02)
        assert coming.result().msg_id in new


async def test_a_message_that_cannot_be_read_hides_no_other(mq: Embedded, admin: Admin) -> None:
    peer = await Peer.connect(mq.broker.port)
    await peer.send_illegible("orders")
    await peer.send(b"good", topic="orders")
    bad, packed, good = [each async for each in admin.messages.by_time("orders")]
    assert (bad.tag, bad.keys, bad.properties["KEYS"], bad.body_or_raw) == ("t", ["k\ufffd"], "k\ufffd", b"one")
    assert bad.properties["UNIQ_KEY"] == "\ufffd" and bad.msg_id == bad.offset_msg_id  # which can be asked for
    row = packed.row()
    assert row["body_base64"] == "bm90IHpsaWI=" and "not zlib" in row["body_problem"]
    assert packed.body_or_raw == b"not zlib"
    assert good.row()["body"] == "good" and admin.messages.to_send(bad.row()).keys == ["k\ufffd"]
    with pytest.raises(UsageError, match="could not be unpacked"):  # and passed for what was sent
        admin.messages.to_send(row)
    assert (bad.body_start(2), good.body_start(9)) == (b"on", b"good")
    await admin.topics.create("%DLQ%billing", 1)
    await peer.send_illegible("%DLQ%billing")
    await peer.send(b"dead", topic="%DLQ%billing")
    await peer.close()
    letters = [each async for each in admin.dlq("billing").messages(where=condition("body~dead"))]
    assert [each.body for each in letters] == [b"dead"]
    report = await admin.dlq("billing").replay(to="orders", confirm=True)
    assert (report.sent, report.failed) == (2, 1) and "UTF-8" in (report.failures[0].error or "")
    # A message of the trace topic is anybody's, and may unfold to more than all the others.
    record = write_trace(TraceRecord("Pub", "m-1", 1)).encode()
    async with mq.producer() as producer:
        await producer.send(TRACE_TOPIC, record, keys=["m-1"])
        await producer.send(TRACE_TOPIC, record + b" " * 300_000 + record, keys=["m-1"])
    assert len(await admin.messages.trace("m-1")) == 2


async def test_a_tail_picks_by_tag_or_sql(mq: Embedded, admin: Admin) -> None:
    tails = [admin.messages.tail("orders", every=0.02, tags="b || c"),
             admin.messages.tail("orders", every=0.02, sql="amount > 5")]  # fmt: skip
    coming = [asyncio.ensure_future(anext(each)) for each in tails]
    async with mq.producer() as producer, asyncio.timeout(30):
        while not all(each.done() for each in coming):  # until they have looked where the queues end
            for number, tag in enumerate("aabAC"):
                await producer.send("orders", tag.encode(), tag=tag, properties={"amount": str(number * 2)})
            await asyncio.sleep(0.02)
    assert [each.result().body in want for each, want in zip(coming, (b"b", b"AC"), strict=True)] == [True, True]
    for each in tails:
        await each.aclose()
    for wrong, error in (({"sql": "a > >"}, RemoteError), ({"tags": "a", "sql": "b = 1"}, UsageError)):
        with pytest.raises(error):
            await anext(admin.messages.tail("orders", **wrong))


async def test_brokers_and_name_servers(mq: Embedded, admin: Admin) -> None:
    brokers = admin.brokers
    (broker,) = await brokers.all()
    assert broker.id == 0 and await brokers.clusters() == {broker.cluster: [broker.name]}
    (runtime,) = await brokers.runtime()
    assert runtime.version.startswith("V") and "putTps" in runtime.values
    assert (await brokers.config(broker.name))["brokerName"] == broker.name
    assert await brokers.set_config({"autoCreateTopicEnable": "false"}) == [broker.name]
    assert (await brokers.config(broker.address))["autoCreateTopicEnable"] == "false"
    for what in ("queues", "topics", "messages"):
        assert await brokers.clean(what) == [broker.name]
    await sent(mq, 1)
    for puts in await brokers.statistics("TOPIC_PUT_NUMS", "orders"):  # none before the broker took its totals
        assert puts.minute.total == 1
    assert await brokers.statistics("TOPIC_PUT_NUMS", "nothing") == []
    (changed,) = await brokers.write_permission(broker.name, False)
    assert changed > 0 and (await admin.topics.route("orders"))[0].permission == "R"
    await brokers.write_permission(broker.name, True)
    for allowed in (True, False):
        with pytest.raises(UsageError, match="no broker 'broker-z': there are broker-a"):
            await brokers.write_permission("broker-z", allowed)
    with pytest.raises(RemoteError, match=r"code 3: .* it manages no users: ours do with --acl FILE"):
        await admin.users.all()
    assert (await admin.topics.route("orders"))[0].permission == "RW"
    async with Client(config=ClientConfig(nameservers=mq.nameservers)) as client, client.producer("shop") as producer:
        await producer.send("orders", b"x")
        await client.session.heartbeat()
        assert client.client_id in [each.client_id for each in await brokers.producers("shop")]
    assert await brokers.producers("nobody") == []
    with pytest.raises(UsageError, match="no broker 'elsewhere'"):
        await brokers.runtime("elsewhere")
    with pytest.raises(RemoteError, match="brokerName"):
        await brokers.set_config({"brokerName": "other"})
    names = admin.nameservers
    await names.put("space", "key", "value")
    assert await names.get("space", "key") == "value" and await names.values("space") == {"key": "value"}
    await names.delete("space", "key")
    assert await names.get("space", "key") is None and "listenPort" in await names.config()


async def test_within_a_namespace(mq: Embedded) -> None:
    config = ClientConfig(nameservers=mq.nameservers, namespace="acme")
    async with Client(config=config) as client, Admin(client=client) as admin:
        await admin.topics.create("orders", 1)
        assert "orders" in {each.topic for each in await admin.topics.all()}
        await admin.groups.create("billing")
        assert "billing" in {each.group for each in await admin.groups.all()}
        async with client.producer("p") as producer:
            await producer.send("orders", b"x", keys=["k"])
        assert [each.queue.topic for each in await admin.messages.by_key("orders", "k")] == ["orders"]
        plan = await admin.offsets.plan("billing", "orders", "last")
        await admin.offsets.apply(plan)
        assert [(each.topic, each.lag) for each in await admin.groups.lag("billing", "orders")] == [("orders", 0)]


async def test_what_is_in_no_namespace_or_another_one_is_not_in_this_one(mq: Embedded) -> None:
    """``mq`` has a topic "orders" of no namespace: by that name this namespace has none."""
    async with Admin(nameservers=mq.nameservers) as everywhere:
        await everywhere.topics.create("other%orders", 1)
        for group in ("billing", "other%billing"):
            await everywhere.groups.create(group)
            await everywhere.offsets.apply(await everywhere.offsets.plan(group, "orders", "first"))
        async with mq.producer("p") as producer:
            await producer.send("orders", b"x")
            await producer.send("orders", b"x", after=timedelta(minutes=10))
        assert {each.group for each in await everywhere.groups.all()} >= {"billing", "other%billing"}
        assert {"billing", "other%billing"} <= (await everywhere.groups.lags()).keys()
        assert len(await everywhere.timers.pending()) == 1
        assert [each.about async for each in everywhere.doctor() if each.check == "lag"] == ["billing", "other%billing"]
    config = ClientConfig(nameservers=mq.nameservers, namespace="acme")
    async with Admin(config=config) as admin:
        assert not await admin.topics.all() and "orders" not in {e.topic for e in await admin.topics.all(system=True)}
        assert not await admin.groups.all() and not await admin.groups.lags() and not await admin.timers.pending()
        assert {each.level async for each in admin.doctor() if each.check != "disk"} == {"ok"}
        with pytest.raises(RocketError, match="no broker knows a group 'billing'"):
            await admin.groups.check("billing")
    async with Admin(config=replace(config, namespace="other")) as admin:
        assert [each.topic for each in await admin.topics.all()] == ["orders"]
        assert [each.group for each in await admin.groups.all()] == ["billing"]


async def test_one_broker_by_its_address(mq: Embedded) -> None:
    async with Admin(nameservers="127.0.0.1:1", brokers=[mq.broker.address]) as admin:
        assert [each.topic for each in await admin.topics.all()] == ["orders"]
        assert [each.address for each in await admin.brokers.all()] == [mq.broker.address]
        assert [each[0] for each in await admin.topics.status("orders")] == ["orders", "orders"]


def test_what_is_no_address_is_an_error_of_who_named_it() -> None:
    """What a broker registered is not; a user is not sent to address_map for a port of his own that is missing."""
    with pytest.raises(UsageError, match="'broker-a': HOST:PORT is needed"):
        Admin(nameservers="127.0.0.1:1", brokers=["unix:/a", "[::1]:1", "broker-a"])


async def test_a_broker_that_is_away_is_missing_from_those_asked_by_address(mq: Embedded) -> None:
    async with Admin(nameservers=mq.nameservers, brokers=[mq.broker.address, "127.0.0.1:1"]) as admin:
        topics = await admin.topics.all()
        assert [each.topic for each in topics] == ["orders"]
        assert [each.server for each in topics.missing] == ["127.0.0.1:1"]
        with pytest.raises(NotConnectedError, match=r"127\.0\.0\.1:1"):  # it may be the one
            await admin.brokers.config("broker-b")
        lags = await admin.groups.lags()
        assert not lags and [each.server for each in lags.missing] == ["127.0.0.1:1"]


@asynccontextmanager
async def second(mq: Embedded, **settings: Any) -> AsyncIterator[Broker]:
    """One more broker of the same name server."""
    env = real_env()
    broker = Broker(env, BrokerConfig(**{"port": 0, "name": "broker-b", "nameservers": mq.nameservers, **settings}))
    await broker.start()
    try:
        yield broker
    finally:
        await broker.close()
        await env.disk.close()


async def test_a_tail_goes_on_without_a_broker_that_is_away_and_with_it_when_it_is_back(
    mq: Embedded, admin: Admin, tmp_path: Path
) -> None:
    missing: list[Missing] = []
    seen = asyncio.Queue[bytes]()

    async def tail() -> None:
        async with aclosing(admin.messages.tail("orders", every=0.02, on_missing=missing.append)) as coming:
            async for message in coming:
                seen.put_nowait(message.body)

    async def send(broker: str, body: bytes) -> None:
        async with mq.producer("shop") as producer:
            await producer.send("orders", body, queue=Queue("orders", broker, 0))

    async def until(body: bytes) -> list[bytes]:
        found: list[bytes] = []
        while body not in found:
            found.append(await seen.get())
        return found

    async with asyncio.timeout(60):
        async with second(mq, data=str(tmp_path)) as broker:
            await admin.topics.create("orders", 1, cluster=broker.config.cluster)
            port = broker.server.port
            tailing = asyncio.ensure_future(tail())
            while seen.empty():  # until it has looked where the queues end
                await send("broker-b", b"before")
                await asyncio.sleep(0.02)
            await send("broker-b", b"last")
            await until(b"last")
        while not missing:
            await asyncio.sleep(0.02)
        await send("broker-a", b"meanwhile")
        assert await until(b"meanwhile") == [b"meanwhile"]
        async with second(mq, data=str(tmp_path), port=port):
            await send("broker-b", b"again")
            assert await until(b"again") == [b"again"], "from where it was"
            tailing.cancel()  # before it goes away once more
            await asyncio.wait([tailing])
    assert [each.server for each in missing] == ["broker-b"] and str(port) in missing[0].why
    async with away(mq.nameserver.port, mq.config.cluster, "events"):
        for on_missing in (None, missing.append):
            with pytest.raises(NotConnectedError):  # nobody could be asked
                await anext(admin.messages.tail("there", on_missing=on_missing))


async def test_a_tail_by_sql_goes_on_without_a_broker_that_does_not_read_it(mq: Embedded, admin: Admin) -> None:
    missing: list[Missing] = []
    async with second(mq, name="another", property_filter=False) as broker:  # asked first
        await admin.topics.create("orders", 1, cluster=broker.config.cluster)
        async with aclosing(admin.messages.tail("orders", every=0.02, sql="a = 1", on_missing=missing.append)) as tail:
            coming = asyncio.ensure_future(anext(tail))
            async with mq.producer("shop") as producer, asyncio.timeout(30):
                while not coming.done():
                    await producer.send("orders", b"x", properties={"a": "1"}, queue=Queue("orders", "broker-a", 0))
                    await asyncio.sleep(0.02)
        assert coming.result().body == b"x" and [each.server for each in missing] == ["another"]
        for sql, on_missing in (("a = 1", None), ("a > >", missing.append)):
            with pytest.raises(RemoteError):
                await anext(admin.messages.tail("orders", sql=sql, on_missing=on_missing))


@pytest.mark.parametrize("limit", [0, 3, 5])
async def test_a_limit_is_how_much_is_read(
    mq: Embedded, admin: Admin, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    await sent(mq, 10)
    asked: list[int] = []
    call = admin.client.call

    async def counted(address: str, code: int, header: Any = None, **options: Any) -> Any:
        answer = await call(address, code, header, **options)
        if code == RequestCode.PULL_MESSAGE:
            asked.append(len(split_records(answer.body)))
        return answer

    monkeypatch.setattr(admin.client, "call", counted)
    found = [each async for each in admin.messages.by_time("orders", limit=limit)]
    assert len(found) == limit and asked == ([limit] if limit else [])


async def test_everything_is_asked_at_an_administration_listener(mq: Embedded, tmp_path: Path) -> None:
    path = f"unix:{tmp_path / 'admin'}"
    async with second(mq, host="0.0.0.0", advertise="127.0.0.1", admin_bind=path) as broker:
        async with Admin(nameservers=mq.nameservers, brokers=[broker.address]) as admin:
            with pytest.raises(RemoteError, match="--admin-bind"):
                await admin.topics.create("events")
        async with Admin(nameservers=mq.nameservers, brokers=[path]) as admin:
            await admin.topics.create("events", 1, order=True)
            (made,) = await admin.topics.all()
            assert (made.topic, made.broker, made.order) == ("events", "broker-b", True)
            await sent(mq, 1, "events")
            await admin.topics.create(
                "%DLQ%billing", 1, permission="W"
            )  # as an old broker's: it has to be made readable
            async with Admin(nameservers=mq.nameservers) as stranger:
                with pytest.raises(RemoteError, match="--admin-bind"):
                    await stranger.dlq("billing").show("x")
            assert await admin.dlq("billing").show("x") is None
            (one,) = await admin.messages.by_key("events", "o-0")
            found = await admin.messages.by_id(one.offset_msg_id.lower())
            assert found is not None and found.queue == one.queue
            assert await admin.messages.by_id(f"01{one.offset_msg_id[2:]}") is None, "another broker's"


async def test_a_message_of_a_broker_with_an_ipv6_address_is_found_by_its_id(mq: Embedded, admin: Admin) -> None:
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(second(mq, host="::1", cluster="second"))
        except UsageError as error:
            pytest.skip(f"no IPv6 loopback here: {error}")
        await admin.topics.create("events", 1, cluster="second")
        await sent(mq, 1, "events")
        (one,) = await admin.messages.by_key("events", "o-0")
        found = await admin.messages.by_id(one.offset_msg_id)
        assert found is not None and found.queue == one.queue


async def test_a_message_of_a_broker_that_is_known_by_a_host_name_has_a_place(mq: Embedded, admin: Admin) -> None:
    async with second(mq, advertise="localhost", cluster="second"):
        await admin.topics.create("events", 1, cluster="second")
        await sent(mq, 1, "events")
        (one,) = await admin.messages.by_key("events", "o-0")
        found = await admin.messages.by_id(one.offset_msg_id)
        assert found is not None and found.queue == one.queue


async def test_queues_are_read_at_the_address_that_was_given(mq: Embedded) -> None:
    async with (
        second(mq, advertise="127.0.0.9") as broker,  # where nobody listens, as behind a port that is mapped
        Admin(nameservers=mq.nameservers, brokers=[f"127.0.0.1:{broker.server.port}"]) as admin,
    ):
        await admin.topics.create("events", 1)
        assert [each async for each in admin.messages.by_time("events")] == []


async def test_what_is_for_one_cluster_changes_no_other(mq: Embedded, admin: Admin) -> None:
    async with second(mq, cluster="second"):
        await admin.topics.create("orders", 2, permission="R", cluster="second")
        assert {each.broker: each.permission for each in await admin.topics.all()} == {
            "broker-a": "RW",
            "broker-b": "R",
        }
        with pytest.raises(UsageError, match="no broker of cluster 'third'"):
            await admin.topics.create("orders", cluster="third")


async def test_a_route_is_asked_of_a_name_server_that_is_up(mq: Embedded) -> None:
    async with Admin(nameservers=["127.0.0.1:1", *mq.nameservers]) as admin:
        assert (await admin.nameservers.config())["listenPort"] and await admin.nameservers.values("none") == {}
        assert [each.broker for each in await admin.topics.route("orders")] == ["broker-a"]
        gone = await admin.topics.delete("orders")
        assert gone == ["broker-a"] and [each.server for each in gone.missing] == ["127.0.0.1:1"]


async def test_a_topic_is_gone_from_brokers_though_no_name_server_says_so(mq: Embedded) -> None:
    async with Admin(nameservers="127.0.0.1:1", brokers=[mq.broker.address]) as admin:
        gone = await admin.topics.delete("orders")
        assert gone == ["broker-a"] and "127.0.0.1:1" in gone.missing[0].why
        assert await admin.topics.all() == []


async def test_the_doctor_goes_on_where_it_may_not_look(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(**_: object) -> None:
        raise RemoteError(16, "no right on the group")

    monkeypatch.setattr(admin.groups, "lags", refused)
    found = [each async for each in admin.doctor()]
    assert [each.check for each in found if each.level == "ok"][:2] == ["name server", "advertised address"]
    assert [each.check for each in found if "no right on the group" in each.finding] == ["permission"]


async def test_a_group_that_has_consumed_nothing_is_put_at_the_first_message(mq: Embedded, admin: Admin) -> None:
    await sent(mq, 4)
    await admin.groups.create("auditors")
    one = await admin.offsets.plan("auditors", "orders", {("broker-a", 1): 0})
    assert [each[2:4] for each in one.moves] == [(-1, -1), (-1, 0)], "what is not named stays"
    plan = await admin.offsets.plan("auditors", "orders", "first")
    assert (plan.again, plan.skipped) == (0, 0)
    await admin.offsets.apply(plan)
    assert await admin.offsets.verify(plan) == []
    assert [each.now for each in (await admin.offsets.plan("auditors", "orders", "last")).moves] == [0, 0]
    consumer, seen = mq.consumer("auditors"), asyncio.Queue[bytes]()

    @consumer.listener("orders", start_from="last")
    async def on_order(message: Message) -> None:
        seen.put_nowait(message.body)

    async with consumer, asyncio.timeout(30):
        assert {await seen.get() for _ in range(4)} == {b"0", b"1", b"2", b"3"}


async def test_a_group_that_went_on_from_the_end_has_come_there(mq: Embedded, admin: Admin) -> None:
    await sent(mq, 2)
    plan = await admin.offsets.plan("billing", "orders", "last")
    await sent(mq, 4)
    await consumed(mq, 6)
    assert await admin.offsets.verify(plan, within=0) == []


def test_pops_of_one_moment_are_all_out() -> None:
    out: dict[Any, Any] = {}
    pop = {"t": "orders", "c": "poppers", "q": 0, "nx": 4, "pt": 1000, "it": 60_000}
    _replay({**pop, "ol": [0, 1]}, out)
    _replay({**pop, "ol": [2, 3]}, out)
    _replay({"t": "orders", "c": "poppers", "q": 0, "pt": 1000, "al": [1]}, out)
    _replay({**pop, "ol": [3], "pt": 2000}, out)
    _replay({"t": "orders", "c": "poppers", "q": 0, "pt": 1000, "al": [3]}, out)
    assert out == {("orders", "poppers", 0): {0: (1000, 60_000), 2: (1000, 60_000), 3: (2000, 60_000)}}


async def test_what_is_popped_and_by_whom(mq: Embedded, admin: Admin) -> None:
    assert await admin.pops.set_mode("poppers", "orders", "POP") == ["broker-a"]
    for wrong in ({"mode": "PUSH"}, {"mode": "POP", "share": -1}):
        with pytest.raises(UsageError, match=list(wrong)[-1]):
            await admin.pops.set_mode("poppers", "orders", **wrong)
    assert await admin.pops.checkpoints() == []
    await sent(mq, 4)
    async with SimpleConsumer("poppers", nameservers=mq.nameservers) as consumer:
        await consumer.subscribe("orders", start_from="first")
        got: list[PoppedMessage] = []
        while len(got) < 4:
            got += await consumer.receive(timeout=30)
        found = await admin.pops.checkpoints("poppers")
        assert sorted((each.topic, each.group, each.queue, each.offsets) for each in found) == [
            ("orders", "poppers", 0, (0, 1)), ("orders", "poppers", 1, (0, 1))
        ]  # fmt: skip
        assert all(each.due_ms > each.popped_ms > 0 for each in found)
        assert await admin.pops.checkpoints("others") == []
        first = next(each for each in got if each.queue.queue_id == 0 and each.queue_offset == 0)
        assert await first.ack()
        assert {each.offsets for each in await admin.pops.checkpoints()} == {(1,), (0, 1)}
        for message in got:
            await message.ack()
        assert await admin.pops.checkpoints() == []


async def test_timers_of_ours_are_not_read_for_pops(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only Apache's broker has pops among them, and there may be very many."""
    read: set[str] = set()
    bounds = QueueScan.bounds

    async def noted(self: QueueScan) -> Any:
        read.add(self.queue.topic)
        return await bounds(self)

    monkeypatch.setattr(QueueScan, "bounds", noted)
    assert await admin.pops.checkpoints() == []
    assert TIMER_TOPIC not in read and any(topic.startswith(REVIVE_TOPIC_PREFIX) for topic in read)


def test_what_apaches_records_of_pops_say() -> None:
    out: dict[Any, Any] = {}
    pop = {"so": 10, "n": 3, "bm": 2, "t": "T", "c": "g", "q": 1, "pt": 5, "it": 60_000, "d": [0, 4, 9], "bn": "b"}
    _replay(pop, out)
    taken = out["T", "g", 1]
    assert taken == {10: (5, 60_000), 19: (5, 60_000)}
    _replay({"ao": 19, "so": 10, "t": "T", "c": "g", "q": 1, "pt": 5}, out)
    _replay({**pop, "so": 30, "n": 2, "bm": 0, "d": [], "pt": 6}, out)
    _replay({"aol": [30], "so": 30, "t": "T", "c": "g", "q": 1, "pt": 6}, out)
    assert taken == {10: (5, 60_000), 31: (6, 60_000)}
    _replay({**pop, "pt": 7, "d": None, "n": 1, "bm": 0}, out)
    assert taken == {10: (7, 60_000), 31: (6, 60_000)}, "popped once more"
    _replay({"t": "T", "c": "g", "q": 1, "rs": 4}, out)
    assert out == {}


async def test_many_questions_are_asked_side_by_side_with_a_bound() -> None:
    under_way = most = 0

    async def ask(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        if number == 99:
            raise NotConnectedError("it is away")
        return number

    assert await side_by_side(ask, range(50)) == list(range(50)) and most == 16
    with pytest.raises(NotConnectedError):
        await side_by_side(ask, (99, *range(40)))
    assert under_way == 0


async def test_a_partial_answer_says_what_is_missing_and_why() -> None:
    async def says(value: int | Exception) -> list[int]:
        if isinstance(value, Exception):
            raise value
        return [value]

    answers = await gathered([("a", says(1)), ("b", says(NotConnectedError("it is away"))), ("c", says(3))])
    assert answers == [1, 3] and answers.missing == (Missing("b", "it is away"),)
    with pytest.raises(NotConnectedError, match="first"):
        await gathered([("a", says(NotConnectedError("first"))), ("b", says(NotConnectedError("second")))])
    with pytest.raises(ZeroDivisionError):
        await gathered([("a", says(1)), ("b", says(ZeroDivisionError()))])


async def test_users_and_what_they_may(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text('[users.ops]\nsecret = "ops-s3cret"\nadmin = true\n')
    config = ClientConfig(nameservers=("127.0.0.1:1",), access_key="ops", secret_key="ops-s3cret")
    env = real_env()
    broker = Broker(env, BrokerConfig(port=0, acl=str(file)))
    await broker.start()
    try:
        async with Admin(config=config, brokers=[broker.address]) as admin:
            users = admin.users
            assert await users.create("shop", "shop-s3cret") == ["broker-a"]
            assert [(each.name, each.admin, each.enabled) for each in await users.all()] == [
                ("ops", True, True), ("shop", False, True)
            ]  # fmt: skip
            await users.update("shop", enabled=False)
            assert not (await users.all("shop"))[0].enabled
            await users.grant("shop", "Topic:orders", ["Pub", "Sub"])
            (right,) = await users.rights("shop")
            assert (right.user, right.resource, right.decision) == ("shop", "Topic:orders", "Allow")
            assert set(right.actions) == {"Pub", "Sub"}
            await users.revoke("shop", "Topic:orders")
            assert await users.rights("shop") == []
            await users.delete("shop")
            assert [each.name for each in await users.all()] == ["ops"]
    finally:
        await broker.close()
        await env.disk.close()
