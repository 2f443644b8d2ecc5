"""Dead letters, as an operator works with them: look, pick, replay, and know what was done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from aiorocket import (
    Client,
    ClientConfig,
    DeadLetter,
    Embedded,
    Message,
    NotConnectedError,
    Producer,
    Queue,
    RemoteError,
    TopicNotFoundError,
    UsageError,
    embed,
)
from aiorocket.broker import Broker
from aiorocket.client.admin.admin import Admin
from aiorocket.client.admin.dead_letters import DeadMessage
from aiorocket.client.admin.replay import REPLAY_ID, ReplayOutcome, ReplayReport
from aiorocket.client.queue_scan import Bounds, QueueScan
from aiorocket.config import BrokerConfig, NameServerConfig, StoreConfig
from aiorocket.nameserver import NameServer
from aiorocket.testing import Simulation, simulate
from aiorocket_protocol import (
    CreateTopicRequestHeader,
    QueryConsumerOffsetRequestHeader,
    RequestCode,
    SendMessageRequestHeaderV2,
)


@pytest_asyncio.fixture
async def mq(tmp_path: Path) -> AsyncIterator[Embedded]:
    async with embed(str(tmp_path / "store"), broker={"register_interval": 0.3}) as embedded:
        await embedded.create_topic("orders", queues=2)
        yield embedded


async def bury(mq: Embedded, *bodies: bytes, topic: str = "orders", **options: Any) -> None:
    """Send messages and have group "billing" give each of them up."""
    consumer, left, seen = mq.consumer("billing"), asyncio.Event(), list(bodies)

    @consumer.listener(topic, start_from="first")
    async def give_up(message: Message) -> None:
        seen.remove(message.body)
        if not seen:
            left.set()
        raise DeadLetter("not for us")

    async with consumer, mq.producer() as producer:
        for body in bodies:
            await producer.send(topic, body, **options)
        await asyncio.wait_for(left.wait(), 30)


async def bodies(mq: Embedded, topic: str, *, attribute: Callable[[Message], Any] = lambda m: m.body) -> list[Any]:
    """What a new group reads of a topic; the last message has the body "end"."""
    found: list[Any] = []
    end = asyncio.Event()
    async with mq.producer() as producer:
        await producer.send(topic, b"end")
    consumer = mq.consumer(f"reader-{mq.env.entropy.randrange(1 << 30)}")
    expected = sum(mq.broker.store.max_offset(topic, queue) for queue in range(2))

    @consumer.listener(topic, start_from="first")
    async def read(message: Message) -> None:
        found.append((message.body, attribute(message)))
        if len(found) == expected:
            end.set()

    async with consumer:
        await asyncio.wait_for(end.wait(), 30)
    return sorted(value for body, value in found if body != b"end")


async def all_of(admin: Admin, **options: Any) -> list[DeadMessage]:
    return [each async for each in admin.dlq("billing").messages(**options)]


# -- looking --


async def test_dead_letters_tell_what_they_are_and_where_they_come_from(mq: Embedded, admin: Admin) -> None:
    await bury(mq, b"42 EUR", tag="paid", keys=["o-1"], properties={"tenant": "acme"})
    (dead,) = await all_of(admin)
    assert (dead.body, dead.tag, dead.keys, dead.properties["tenant"]) == (b"42 EUR", "paid", ["o-1"], "acme")
    assert (dead.origin_topic, dead.reconsume_times, dead.replayed) == ("orders", 1, False)
    assert dead.queue == ("%DLQ%billing", "broker-a", 0) and dead.queue_offset == 0
    assert len(dead.origin_msg_id) == len(dead.replay_id) == 32 and dead.origin_msg_id != dead.replay_id
    for name in (dead.msg_id, dead.origin_msg_id, dead.replay_id):
        again = await admin.dlq("billing").show(name)
        assert again is not None and again.queue_offset == 0
    assert await admin.dlq("billing").show("nothing like it") is None


async def test_a_group_that_gave_up_nothing_has_no_dead_letters(admin: Admin) -> None:
    assert await all_of(admin) == []
    report = await admin.dlq("billing").replay(confirm=True)
    assert (report.selected, report.sent, report.skipped, report.stopped) == (0, 0, 0, None)


async def test_looking_joins_no_group_and_commits_nothing(mq: Embedded, admin: Admin) -> None:
    await bury(mq, b"a", b"b")
    before = list(mq.broker.offsets)
    assert len(await all_of(admin)) == len(await all_of(admin)) == 2
    await admin.dlq("billing").replay(confirm=True)
    assert [entry for entry in mq.broker.offsets if entry not in before] == []
    header = QueryConsumerOffsetRequestHeader("TOOLS_CONSUMER", "%DLQ%billing", 0, set_zero_if_not_found=False)
    answer = await admin.client.call(mq.broker.address, RequestCode.QUERY_CONSUMER_OFFSET, header, accept=(22,))
    assert answer.code == 22


async def test_what_is_wanted_can_be_said(mq: Embedded, admin: Admin) -> None:
    await bury(mq, *(b"%d" % number for number in range(600)))  # more than one pull
    found = await all_of(admin)
    assert [each.queue_offset for each in found] == list(range(600))
    assert [each.body for each in await all_of(admin, limit=2)] == [each.body for each in found[:2]]
    assert await all_of(admin, limit=0) == []
    assert [each.body for each in await all_of(admin, where=lambda m: m.body == b"99")] == [b"99"]
    last = found[-1].store_timestamp
    assert await all_of(admin, since=last + 1) == []
    late = await all_of(admin, since=last)
    assert late and all(each.store_timestamp >= last for each in late)
    early = await all_of(admin, until=datetime.fromtimestamp(last / 1000, UTC))
    assert len(early) + len(late) == 600
    asked: list[int] = []
    call = admin.client.call

    async def counted(address: str, code: int, *rest: Any, **more: Any) -> Any:
        asked.append(code)
        return await call(address, code, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admin.client, "call", counted)
        chosen = [found[number].replay_id for number in (599, 7)]
        named = await all_of(admin, ids=[*chosen, "7F00000100002A9F00000000FFFFFFFF", found[0].origin_msg_id])
    assert [each.body for each in named] == [b"7", b"599"] and {each.queue for each in named} == {found[0].queue}
    assert RequestCode.PULL_MESSAGE not in asked and len(asked) < 12
    for wrong in ({"since": datetime(2030, 1, 1)}, {"until": -1}, {"limit": -1}, {"ids": ["no id"]}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            await all_of(admin, **wrong)


async def test_dead_letters_that_a_broker_hides_are_made_readable(mq: Embedded, admin: Admin) -> None:
    await bury(mq, b"hidden")
    header = CreateTopicRequestHeader("%DLQ%billing", "TBW102", 1, 1, 2, "SINGLE_TAG", False)  # as old brokers make it
    await admin.client.call(mq.broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    assert not (await admin.client.route("%DLQ%billing", refresh=True)).subscribe
    assert [each.body for each in await all_of(admin)] == [b"hidden"]
    assert (await admin.client.route("%DLQ%billing", refresh=True)).subscribe


# -- replaying --


async def test_a_replay_sends_everything_once_and_removes_nothing(mq: Embedded, admin: Admin) -> None:
    await bury(mq, b"a", b"b", b"c")
    outcomes: list[ReplayOutcome] = []
    report = await admin.dlq("billing").replay(confirm=True, on_outcome=outcomes.append)
    assert (report.selected, report.sent, report.failed, report.skipped) == (3, 3, 0, 0)
    assert [(each.status, each.topic, each.error) for each in outcomes] == [("sent", "orders", None)] * 3
    assert await bodies(mq, "orders") == [b"a", b"a", b"b", b"b", b"c", b"c"]
    again = await admin.dlq("billing").replay(confirm=True)
    assert (again.selected, again.sent, again.skipped) == (0, 0, 3)
    assert [each.replayed for each in await all_of(admin)] == [True] * 3
    # Another operator, on another machine, after a restart of the broker: the marks are there.
    await mq.restart()
    async with Admin(nameservers=mq.nameservers) as other:
        later = await other.dlq("billing").replay(confirm=True)
    assert (later.sent, later.skipped) == (0, 3)


async def test_a_replayed_message_is_what_was_sent_and_says_so(mq: Embedded, admin: Admin) -> None:
    text = b"long " * 2000  # compressed on its way
    await bury(mq, text, tag="paid", keys=["o-1", "o-2"], properties={"tenant": "acme"}, sharding_key="o-1")
    (dead,) = await all_of(admin)
    await admin.dlq("billing").replay(confirm=True)

    def seen(message: Message) -> Any:
        own = (message.msg_id, message.tag, message.keys, message.sharding_key, message.properties["tenant"])
        way = [message.properties.get(name) for name in (REPLAY_ID, "ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_TOPIC")]
        return message.body, own, message.attempt, message.queue.queue_id, [each or "" for each in way]

    first, second = await bodies(mq, "orders", attribute=lambda m: m.body == b"end" or seen(m))
    assert first[:4] == second[:4] == (text, (dead.msg_id, "paid", ["o-1", "o-2"], "o-1", "acme"), 1, first[3])
    assert first[4] == ["", "", ""]
    assert second[4] == [dead.replay_id, dead.origin_msg_id, "orders"]


async def test_what_fails_again_is_a_new_dead_letter(mq: Embedded, admin: Admin) -> None:
    await bury(mq, b"x")
    (first,) = await all_of(admin)
    assert (await admin.dlq("billing").replay(confirm=True)).sent == 1
    await bury(mq, b"x", b"y")  # the copy, and one more
    assert sorted((each.body, each.replayed) for each in await all_of(admin)) == [
        (b"x", False), (b"x", True), (b"y", False)
    ]  # fmt: skip
    (copy,) = await all_of(admin, where=lambda m: m.body == b"x" and not m.replayed)
    assert copy.properties[REPLAY_ID] == first.replay_id and copy.origin_topic == "orders"
    report = await admin.dlq("billing").replay(confirm=True)
    assert (report.sent, report.skipped) == (2, 1)


async def test_selection_limit_and_dry_run(mq: Embedded, admin: Admin) -> None:
    await bury(mq, *(b"%d" % number for number in range(6)))
    dlq = admin.dlq("billing")

    def even(message: DeadMessage) -> bool:
        return int(message.body) % 2 == 0

    outcomes: list[ReplayOutcome] = []
    dry = await dlq.replay(where=even, dry_run=True, on_outcome=outcomes.append)
    assert (dry.dry_run, dry.selected, dry.sent) == (True, 3, 0)
    assert [each.status for each in outcomes] == ["selected"] * 3
    assert mq.broker.topics.get("%REPLAYED%billing") is None  # it left nothing at all
    assert (await dlq.replay(where=even, limit=2, confirm=True)).sent == 2
    rest = await dlq.replay(where=even, limit=2, confirm=True)
    assert (rest.selected, rest.sent, rest.skipped) == (1, 1, 2)
    everything = await dlq.replay(confirm=True)
    assert (everything.sent, everything.skipped) == (3, 3)
    assert (await dlq.replay(limit=0, confirm=True)).sent == 0


async def test_a_replay_must_be_meant(admin: Admin) -> None:
    dlq = admin.dlq("billing")
    for wrong in ({}, {"confirm": True, "dry_run": True}):
        with pytest.raises(UsageError, match="confirm=True"):
            await dlq.replay(**wrong)
    for name, value in (("rate", 0), ("limit", -1), ("to", "no/where")):
        with pytest.raises(UsageError, match=str(value)):
            await dlq.replay(confirm=True, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="group"):
        admin.dlq("no group")


async def test_to_the_retry_topic_only_the_group_gets_it(mq: Embedded, admin: Admin) -> None:
    await bury(mq, b"x")
    assert (await admin.dlq("billing").replay(to="%RETRY%billing", confirm=True)).sent == 1
    assert await bodies(mq, "orders") == [b"x"]  # no second copy for the others
    got: asyncio.Future[tuple[str, bytes, int]] = asyncio.get_running_loop().create_future()
    consumer = mq.consumer("billing")

    @consumer.listener("orders")
    async def take(message: Message) -> None:
        if message.body == b"x":
            got.set_result((message.topic, message.body, message.attempt))

    async with consumer:
        assert await asyncio.wait_for(got, 30) == ("orders", b"x", 1)


async def test_in_another_topic_a_copy_belongs_to_that_topic(mq: Embedded, admin: Admin) -> None:
    await mq.create_topic("other", queues=1)
    await bury(mq, b"x")
    assert (await admin.dlq("billing").replay(to="other", confirm=True)).sent == 1
    await bury(mq, b"x", b"more", topic="other")
    found = await all_of(admin, where=lambda m: not m.replayed)
    assert sorted((each.body, each.origin_topic) for each in found) == [(b"more", "other"), (b"x", "other")]


async def test_what_cannot_be_sent_is_reported_and_left_for_the_next_time(mq: Embedded, admin: Admin) -> None:
    await bury(mq, b"good", b"bad", b"huge")
    dlq = admin.dlq("billing")
    async with mq.producer() as producer:  # nobody says where this one came from
        await producer.send("%DLQ%billing", b"by hand")
    report = await dlq.replay(confirm=True)
    assert (report.selected, report.sent, report.failed, report.stopped) == (4, 3, 1, None)
    (failure,) = report.failures
    assert failure.message.body == b"by hand" and failure.error is not None and "RETRY_TOPIC" in failure.error
    again = await dlq.replay(confirm=True, to="orders")
    assert (again.sent, again.skipped) == (1, 3)


async def test_a_topic_that_is_gone_ends_the_replay_after_a_few(mq: Embedded, admin: Admin) -> None:
    await mq.create_topic("short-lived", queues=1)
    await bury(mq, *(b"%d" % number for number in range(15)), topic="short-lived")
    await admin.topics.delete("short-lived")
    report = await admin.dlq("billing").replay(confirm=True)
    assert (report.selected, report.sent, report.failed) == (10, 0, 10)
    assert report.stopped is not None and "short-lived" in report.stopped and "10 messages in a row" in report.stopped
    with pytest.raises(TopicNotFoundError):
        await admin.client.route("short-lived", refresh=True)


async def test_a_topic_that_is_named_is_created(mq: Embedded, admin: Admin) -> None:
    await bury(mq, b"x", b"y")
    report = await admin.dlq("billing").replay(to="a-second-look", confirm=True)
    assert (report.sent, report.failed) == (2, 0)
    found = [message.body async for message in admin.messages.by_time("a-second-look")]
    assert sorted(found) == [b"x", b"y"]


async def test_within_a_namespace(mq: Embedded) -> None:
    inside = ClientConfig(nameservers=mq.nameservers, namespace="acme")
    await mq.create_topic("acme%orders", queues=1)
    left = asyncio.Event()
    async with Client(config=inside) as client:
        consumer = client.consumer("billing")

        @consumer.listener("orders", start_from="first")
        async def give_up(message: Message) -> None:
            left.set()
            raise DeadLetter("not for us")

        async with consumer, client.producer("p") as producer:
            await producer.send("orders", b"x")
            await asyncio.wait_for(left.wait(), 30)
        async with Admin(client=client) as admin:
            (dead,) = await all_of(admin)
            assert (dead.origin_topic, dead.queue.topic) == ("orders", "%DLQ%billing")
            assert (await admin.dlq("billing").replay(confirm=True)).sent == 1
            assert (await admin.dlq("billing").replay(confirm=True, to="orders")).skipped == 1
    assert mq.broker.store.max_offset("acme%orders", 0) == 2
    assert mq.broker.store.max_offset("%REPLAYED%acme%billing", 0) == 1


# -- in virtual time --

NAMES, BROKER = "10.0.0.1:9876", "10.0.0.2:10911"


def scenario(main: Callable[[Simulation], Any], seed: int = 0) -> Any:
    """Run ``main`` beside a broker on another machine, with four dead letters."""

    async def around(sim: Simulation) -> Any:
        names_host, broker_host = sim.host("10.0.0.1"), sim.host("10.0.0.2")
        names = NameServer(sim.env(), NameServerConfig(host="10.0.0.1", open_registration=True))
        await names_host.run(names.start())
        small = StoreConfig(segment_size=64 * 1024, min_free=64 * 1024)
        config = BrokerConfig(host="10.0.0.2", port=10911, data="store", nameservers=(NAMES,), store=small)
        broker = Broker(sim.env(), config)
        await broker_host.run(broker.start())
        await sim.host("10.0.0.3").run(fill(sim))
        result = await main(sim)
        await broker_host.run(broker.close())
        await names_host.run(names.close())
        return result

    async def fill(sim: Simulation) -> None:
        async with Producer("p", nameservers=NAMES, env=sim.env()) as producer:
            await producer.send("orders", b"the topic")
            for number in range(4):
                await producer.send("%DLQ%billing", b"%d" % number)

    return simulate(around, seed)


async def replay(sim: Simulation, **options: Any) -> ReplayReport:
    async with Admin(nameservers=NAMES, env=sim.env()) as admin:
        return await admin.dlq("billing").replay(to="orders", confirm=True, **options)


async def sent(sim: Simulation) -> list[bytes]:
    """The bodies replayed so far."""
    found = []
    async with Admin(nameservers=NAMES, env=sim.env()) as admin:
        for queue in (await admin.client.route("orders")).subscribe:
            scan = QueueScan(admin.client, queue, BROKER)
            found += [each.body async for each in scan.messages(*await scan.bounds(), DeadMessage)]
    return sorted(body for body in found if body != b"the topic")


def test_whenever_a_replay_is_cut_off_at_most_one_message_is_sent_twice() -> None:
    """Cut off after each millisecond of its exchange with the broker: nothing is lost, and one repeats at most."""

    async def cut_off(sim: Simulation, after: float) -> tuple[list[bytes], bool]:
        async def until_then() -> bool:
            try:
                async with asyncio.timeout(after):
                    await replay(sim)
            except TimeoutError:
                return False
            return True

        whole = await sim.host("10.0.0.4").run(until_then())
        await sim.host("10.0.0.5").run(replay(sim))
        return await sim.host("10.0.0.3").run(sent(sim)), whole

    repeated = []
    after, whole = 0.001, False
    while not whole:
        bodies, whole = scenario(lambda sim, after=after: cut_off(sim, after))
        assert set(bodies) == {b"0", b"1", b"2", b"3"}, (after, bodies)
        assert len(bodies) <= 5, (after, bodies)
        repeated.append(len(bodies) - 4)
        after += 0.001
    assert 0 in repeated and 1 in repeated, repeated  # the cuts did hit the one place where it matters


def show_late(patch: pytest.MonkeyPatch, delay: float) -> None:
    """Marks can be read so many seconds after their receipt, as on a busy broker of Apache."""
    shown: dict[Queue, list[tuple[float, Bounds]]] = {}
    bounds = QueueScan.bounds

    async def late(scan: QueueScan) -> Bounds:
        real = await bounds(scan)
        if not scan.queue.topic.startswith("%REPLAYED%"):
            return real
        now = asyncio.get_running_loop().time()
        history = shown.setdefault(scan.queue, [(-delay, Bounds(0, 0))])
        if real != history[-1][1]:
            history.append((now, real))
        return [each for at, each in history if at + delay <= now][-1]

    patch.setattr(QueueScan, "bounds", late)


def test_a_replay_ends_when_its_marks_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    show_late(monkeypatch, 0.3)

    async def main(sim: Simulation) -> None:
        first, second = await replay(sim, limit=2), await replay(sim)
        assert (first.sent, first.stopped) == (2, None)
        assert (second.sent, second.skipped, second.stopped) == (2, 2, None)
        assert await sent(sim) == [b"0", b"1", b"2", b"3"]

    scenario(main)


def test_marks_that_stay_unreadable_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    show_late(monkeypatch, 60.0)
    report = scenario(replay)
    assert report.sent == 4
    assert report.stopped is not None and "cannot be read yet" in report.stopped


def test_each_broker_keeps_the_marks_of_its_own_dead_letters() -> None:
    """With one of two brokers away nothing is replayed: what it has would be missing without a word."""

    async def two(sim: Simulation) -> list[bytes]:
        small = StoreConfig(segment_size=64 * 1024, min_free=64 * 1024)
        config = BrokerConfig(
            name="broker-b", host="10.0.0.9", port=10911, data="store", nameservers=(NAMES,), store=small
        )
        host, disk = sim.host("10.0.0.9"), sim.disk()
        second = Broker(sim.env(disk=disk), config)
        await host.run(second.start())

        async def fill() -> None:
            # The topic is on the first broker only; the second one makes it when it is sent something.
            async with Admin(nameservers=NAMES, env=sim.env()) as admin:
                for number in range(4, 6):
                    header = SendMessageRequestHeaderV2(
                        "p", "%DLQ%billing", "TBW102", 4, 0, 0, 0, 0, "", 0, False, None, False, "broker-b"
                    )
                    code = RequestCode.SEND_MESSAGE_V2
                    await admin.client.call("10.0.0.9:10911", code, header, body=b"%d" % number)

        operator = sim.host("10.0.0.4")
        await operator.run(fill())
        report = await operator.run(replay(sim, limit=5))
        assert (report.sent, report.skipped) == (5, 0)
        host.kill(power_cut=True)
        disk.crash()
        with pytest.raises(NotConnectedError):
            await operator.run(replay(sim))
        host = sim.host("10.0.0.9")
        second = Broker(sim.env(disk=disk), config)
        await host.run(second.start())
        report = await operator.run(replay(sim))
        assert (report.sent, report.skipped) == (1, 5)
        found: list[bytes] = await operator.run(sent(sim))
        await host.run(second.close())
        return found

    assert scenario(two) == [b"%d" % number for number in range(6)]


def test_the_rate_is_kept() -> None:
    async def timed(sim: Simulation) -> float:
        began = sim.loop.time()
        report = await sim.host("10.0.0.4").run(replay(sim, rate=0.5))
        assert report.sent == 4
        return sim.loop.time() - began

    assert 6.0 <= scenario(timed) < 6.5


def test_a_broker_that_makes_no_topics_for_us_refuses_before_anything_is_sent() -> None:
    """It is reachable from other machines and serves no administration; with auto-creation off there is no other way
    to a topic for the marks."""

    async def refused(sim: Simulation) -> list[bytes]:
        async with Admin(nameservers=NAMES, env=sim.env()) as admin:
            letters = admin.dlq("billing")
            letters.marks.topic = "no way"  # a name that cannot be created
            with pytest.raises(RemoteError, match="administration"):
                await letters.replay(to="orders", confirm=True)
        return await sent(sim)

    async def main(sim: Simulation) -> list[bytes]:
        result: list[bytes] = await sim.host("10.0.0.4").run(refused(sim))
        return result

    assert scenario(main) == []
