"""Rebalancing of whole groups in virtual time: how soon things happen, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from aiorocket.client.core.assignment import TopicView, diff, wanted_queues
from aiorocket.client.core.balance import fixed
from aiorocket.client.core.start_from import StartFrom
from aiorocket.client.core.subscriptions import Wanted
from aiorocket.client.group.member import Member
from aiorocket.client.message import Message
from aiorocket.client.push.consumer import Consumer
from aiorocket.client.push.stream import MessageStream
from aiorocket.client.push.topics import Topics
from aiorocket.client.session import Session
from aiorocket.config import ClientConfig, ConsumerConfig
from aiorocket.errors import ConfigError, UsageError
from aiorocket.model import Queue
from aiorocket.testing.cluster import SimCluster
from aiorocket.testing.machines import SimMember
from aiorocket_protocol import (
    CLUSTERING,
    CONSUME_PASSIVELY,
    LockBatchBody,
    PullMessageRequestHeader,
    QueryConsumerOffsetRequestHeader,
    RequestCode,
    UpdateConsumerOffsetRequestHeader,
    decode_body,
)
from tests.client import clusters

run = partial(clusters.run, queues=4)


def counts(cluster: SimCluster, topic: str = "t") -> list[int]:
    return sorted(len(member.held(topic)) for member in cluster.members if member.running)


# -- decisions --


def test_broadcasting_takes_all_and_a_fixed_list_only_what_exists() -> None:
    queues = [Queue("t", "b", number) for number in range(3)]
    assert wanted_queues({"t": TopicView(queues, [])}, "me", []) == set(queues)
    strategy = fixed([queues[1], Queue("other", "b", 0)])
    assert wanted_queues({"t": TopicView(queues, ["me"])}, "me", [], strategy) == {queues[1]}
    assert diff([queues[0]], [queues[1]]) == ([queues[1]], [queues[0]])


def test_subscription_versions_only_grow() -> None:
    stream = MessageStream(lambda: None)
    session = Session(nameservers="10.0.0.1:9876")
    member = Member(
        session, "g", ConsumerConfig(), kind="consumer", consume_type=CONSUME_PASSIVELY, message_model=CLUSTERING
    )
    topics, data = Topics(member, stream), member.subscriptions
    topics.add("t", Wanted(frozenset("a"), start=StartFrom("first")), stream)
    topics.derive(10)
    topics.derive(20)
    assert {name: each.sub_version for name, each in data.items()} == {"t": 10, "%RETRY%g": 10}
    member.touch(["t", "unknown"], 30)
    member.touch(["t"], 25)
    assert data["t"].sub_version == 30
    topics.derive(40)
    assert data["t"].sub_version == 30
    topics.add("t", Wanted(frozenset("b")), stream)
    topics.derive(50)
    assert (data["t"].sub_version, data["t"].sub_string) == (50, "a || b")
    # Brokers take only what is newer, also when the clock was set back.
    topics.add("t", Wanted(frozenset("c")), stream)
    topics.derive(20)
    assert (data["t"].sub_version, data["t"].sub_string) == (51, "a || b || c")
    assert list(data) == ["t", "%RETRY%g"]
    assert member.consumer_data().consume_from_where == "CONSUME_FROM_FIRST_OFFSET"


# -- how soon --


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("orderly", [False, True])
def test_the_first_message_comes_at_once(seed: int, orderly: bool) -> None:
    async def scenario(cluster: SimCluster) -> None:
        came: list[float] = []

        async def on_message(message: Message) -> None:
            came.append(cluster.sim.loop.time())

        sender = await cluster.producer()
        for number in range(8):
            await sender.send("t", str(number))
        before = cluster.sim.loop.time()
        await cluster.consumer("new", "t", on_message, orderly=orderly)
        await asyncio.sleep(1)
        assert len(came) == 8
        assert came[0] - before < 0.1

    run(scenario, brokers=2, seed=seed)


@pytest.mark.parametrize("seed", range(5))
def test_the_first_retry_of_a_new_group_is_not_late(seed: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        came: dict[str, list[float]] = {}

        async def on_message(message: Message) -> None:
            times = came.setdefault(message.body.decode(), [])
            times.append(cluster.sim.loop.time())
            if len(times) == 1:
                raise ValueError("once")

        sender = await cluster.producer()
        for number in range(8):
            await sender.send("t", str(number))
        await cluster.consumer("new", "t", on_message)
        await asyncio.sleep(20)
        assert len(came) == 8
        for first, second in came.values():
            assert 10 <= second - first < 11  # delay level 3

    run(scenario, brokers=2, seed=seed)


def test_a_notified_member_shares_at_once_and_a_leaver_frees_at_once() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await cluster.consumer("g", "t")
        second = await cluster.consumer("g", "t")
        await asyncio.sleep(1)
        assert counts(cluster) == [2, 2]
        await second.stop()
        await asyncio.sleep(1)
        assert counts(cluster) == [4]

    run(scenario)


def test_a_resume_looks_at_once() -> None:
    async def scenario(cluster: SimCluster) -> None:
        member = await cluster.consumer("g", "t", config=ConsumerConfig(rebalance_interval=1000.0))
        await asyncio.sleep(5)
        asked: list[int] = []

        def watch(connection: object, request: Any) -> None:
            if request.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                asked.append(request.code)

        cluster.brokers[0].faults.watch(watch)
        member.consumer.pause("t")
        await asyncio.sleep(5)
        assert asked == []
        member.consumer.resume("t")
        await asyncio.sleep(0.1)
        assert len(asked) == 2  # for the topic and for its retries

    run(scenario)


def test_new_queues_and_brokers_are_taken_with_the_next_route() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await cluster.consumer("g", "t")
        await cluster.create_topic("t", 6)
        await asyncio.sleep(31)
        assert counts(cluster) == [12]
        await cluster.brokers[1].stop()
        await asyncio.sleep(150)  # the name server drops a silent broker; a stopped one unregisters
        assert counts(cluster) == [6]
        await cluster.brokers[1].start()
        await asyncio.sleep(40)
        assert counts(cluster) == [12]

    run(scenario, brokers=2)


def test_heartbeats_and_versions_do_not_chase_each_other() -> None:
    async def scenario(cluster: SimCluster) -> None:
        beats = 0

        def watch(connection: object, request: Any) -> None:
            nonlocal beats
            beats += request.code == RequestCode.HEART_BEAT

        for _ in range(3):
            await cluster.consumer("g", "t")
        await asyncio.sleep(5)
        cluster.brokers[0].faults.watch(watch)
        await asyncio.sleep(300)
        assert beats <= 3 * 11  # the regular ones, every 30 s

    run(scenario)


def test_the_version_rises_when_queues_change() -> None:
    async def scenario(cluster: SimCluster) -> None:
        first = await cluster.consumer("g", "t")
        await asyncio.sleep(1)
        before = first.consumer._member.subscriptions["t"].sub_version
        await asyncio.sleep(60)
        assert first.consumer._member.subscriptions["t"].sub_version == before
        await cluster.consumer("g", "t")
        await asyncio.sleep(1)
        assert first.consumer._member.subscriptions["t"].sub_version > before

    run(scenario)


# -- who gets what --


@pytest.mark.parametrize("name", ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"])
def test_strategies_by_name(name: str) -> None:
    async def scenario(cluster: SimCluster) -> None:
        config = ConsumerConfig(allocate=name)
        members = [await cluster.consumer("g", "t", config=config) for _ in range(2)]
        await asyncio.sleep(1)
        held = [queue for member in members for queue in member.held("t")]
        assert len(held) == len(set(held)) == 8
        if name == "AVG_BY_CIRCLE":
            # Alternating over both brokers.
            assert {queue.broker_name for queue in members[0].held("t")} == {"broker-1", "broker-2"}

    run(scenario, brokers=2)


class NoText(Exception):
    def __str__(self) -> str:
        raise LookupError

    __repr__ = __str__


def test_a_strategy_of_ones_own_and_one_that_fails() -> None:
    async def scenario(cluster: SimCluster) -> None:
        failing = False

        def first_only(queues: Sequence[Queue], client_ids: Sequence[str], me: str) -> list[Queue]:
            if failing:
                raise NoText
            return sorted(queues)[:1]

        member = await cluster.consumer("g", "t", config=ConsumerConfig(allocate=first_only))
        assert counts(cluster) == [1]
        failing = True
        await asyncio.sleep(60)
        assert counts(cluster) == [1]
        assert member.consumer.state().running

    run(scenario)


def test_an_unknown_strategy_is_refused_before_anything_starts() -> None:
    async def scenario(cluster: SimCluster) -> None:
        config = ConsumerConfig(allocate="CONFIG")
        member = await cluster.consumer("g", "t", config=config, start=False)
        with pytest.raises(ConfigError, match=r"allocate='CONFIG'.*fixed\(queues\)"):
            await member.start()

    run(scenario)


# -- hooks, and the order of an end --


def test_hooks_are_told_and_a_revoked_queue_ends_in_order() -> None:
    async def scenario(cluster: SimCluster) -> None:
        events: list[tuple[str, int]] = []
        sender = await cluster.producer()
        member = await cluster.consumer("g", "t", start=False)

        async def assigned(queues: list[Queue]) -> None:
            mine = [queue for queue in queues if queue.topic == "t"]
            assert not set(mine) & set(member.held())  # nothing is pulled yet
            events.append(("assigned", len(mine)))

        async def revoked(queues: list[Queue]) -> None:
            assert queues == sorted(queues)
            mine = [queue for queue in queues if queue.topic == "t"]
            stored = [cluster.brokers[0].broker.offsets.query("g", *queue[::2]) or 0 for queue in mine]
            events.append(("revoked", len(mine)))
            events.append(("stored before the hook", sum(stored)))

        # SimMember makes its consumer in start(): give it the hooks there.
        await _start_with(member, on_assigned=assigned, on_revoked=revoked)
        for number in range(8):
            await sender.send("t", str(number))
        await asyncio.sleep(1)
        second = await cluster.consumer("g", "t")
        await asyncio.sleep(1)
        assert [event for event in events if event[1]][:2] == [("assigned", 4), ("revoked", 2)]
        moved = [cluster.brokers[0].broker.offsets.query("g", *queue[::2]) for queue in second.held("t")]
        assert moved == [2, 2]
        assert second.consumer.state().counters.consumed == 0
        events.clear()
        await member.stop()
        assert events[0] == ("revoked", 2)

    run(scenario)


async def _start_with(member: SimMember, **options: Any) -> None:
    def make(group: str, **given: Any) -> Consumer:
        return Consumer(group, **given, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{type(member).__module__}.Consumer", make)
        await member.start()


@pytest.mark.parametrize("error", [RuntimeError("no"), asyncio.CancelledError()])
def test_hooks_that_fail_or_hang_stop_nothing(error: BaseException) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async def assigned(queues: list[Queue]) -> None:
            raise error

        async def revoked(queues: list[Queue]) -> None:
            await asyncio.Event().wait()

        member = await cluster.consumer("g", "t", config=ConsumerConfig(rebalance_hook_timeout=2.0), start=False)
        await _start_with(member, on_assigned=assigned, on_revoked=revoked)
        await cluster.consumer("g", "t")
        await asyncio.sleep(1)
        assert counts(cluster) == [2, 4]  # it is still asked
        await asyncio.sleep(2)
        assert counts(cluster) == [2, 2]
        before = cluster.sim.loop.time()
        await member.stop()
        assert 2 <= cluster.sim.loop.time() - before < 3

    run(scenario)


def test_late_results_of_a_given_up_queue_commit_nothing_and_are_counted() -> None:
    async def scenario(cluster: SimCluster) -> None:
        gate = asyncio.Event()
        started: list[bytes] = []

        async def slow(message: Message) -> None:
            started.append(message.body)
            await gate.wait()

        sender = await cluster.producer()
        member = await cluster.consumer("g", "t", slow)
        for number in range(8):
            await sender.send("t", str(number))
        await asyncio.sleep(1)
        assert len(started) == 8
        second = await cluster.consumer("g", "t", slow)
        await asyncio.sleep(1)
        given_up = {queue.queue_id for queue in second.held("t")}
        gate.set()
        await asyncio.sleep(0.001)
        assert member.consumer.state().counters.late == 4
        assert member.consumer.state().counters.consumed == 4
        # The new owner has had them all, too: at least once.
        await asyncio.sleep(1)
        assert len(started) == 12
        assert len(given_up) == 2

    run(scenario)


def test_a_subscription_added_later_is_read_at_once() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await cluster.create_topic("u", 2)
        sender, member = await cluster.producer(), await cluster.consumer("g", "t", client=ClientConfig())
        await sender.send("u", "waiting")
        await member.host.run(member.consumer.subscribe("u", start_from="first"))
        message = await member.host.run(anext(member.consumer.messages()))
        assert message.body == b"waiting"
        await member.host.run(message.ack())

    run(scenario)


def test_an_orderly_queue_changes_hands_without_a_repeat_or_a_gap() -> None:
    async def scenario(cluster: SimCluster) -> None:
        seen: list[tuple[int, int]] = []

        async def on_message(message: Message) -> None:
            await asyncio.sleep(0.02)
            seen.append((message.queue.queue_id, message.offset))

        async def send_all() -> None:
            for number in range(400):
                await sender.send("t", str(number), sharding_key=str(number % 16))
                await asyncio.sleep(0.01)

        sender = await cluster.producer()
        await cluster.consumer("g", "t", on_message, orderly=True)
        sending = asyncio.ensure_future(send_all())
        await asyncio.sleep(1.5)
        second = await cluster.consumer("g", "t", on_message, orderly=True)
        await asyncio.sleep(1.5)
        assert counts(cluster) == [2, 2]
        await second.stop()
        await sending
        await asyncio.sleep(5)
        assert counts(cluster) == [4]
        for queue_id in range(4):
            offsets = [offset for other, offset in seen if other == queue_id]
            assert offsets == list(range(len(offsets)))
        assert len(seen) == 400

    run(scenario)


def test_on_the_wire_a_queue_is_stored_unlocked_and_then_locked_asked_for_told_and_pulled() -> None:
    async def scenario(cluster: SimCluster) -> None:
        steps: dict[str, list[str]] = {}

        def watch(connection: Any, request: Any) -> None:
            name, host = "", connection.peer.partition(":")[0]
            if request.code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
                asked = decode_body(LockBatchBody, request.body, request.serialize_type).queues
                if ("t", 3) in {(queue.topic, queue.queue_id) for queue in asked}:
                    name = "lock" if request.code == RequestCode.LOCK_BATCH_MQ else "unlock"
            elif request.code == RequestCode.HEART_BEAT:
                name = "heartbeat"
            elif request.code in headers:
                name, kind = headers[request.code]
                header = request.read(kind)
                name = name if (header.topic, header.queue_id) == ("t", 3) else ""
            if name and steps.setdefault(host, [""])[-1] != name:
                steps[host].append(name)

        headers: dict[int, tuple[str, Any]] = {
            RequestCode.UPDATE_CONSUMER_OFFSET: ("store", UpdateConsumerOffsetRequestHeader),
            RequestCode.QUERY_CONSUMER_OFFSET: ("ask", QueryConsumerOffsetRequestHeader),
            RequestCode.PULL_MESSAGE: ("pull", PullMessageRequestHeader),
        }
        sender = await cluster.producer()
        first = await cluster.consumer("g", "t", orderly=True)
        for number in range(8):
            await sender.send("t", str(number))
        await asyncio.sleep(1)
        cluster.brokers[0].faults.watch(watch)
        second = await cluster.consumer("g", "t", orderly=True)
        await asyncio.sleep(3)
        assert Queue("t", "broker-1", 3) in second.held()
        assert steps[first.address][:3] == ["", "store", "unlock"]
        begun = steps[second.address]
        taken = len(begun) - begun[::-1].index("lock") - 1  # before that the first member had it
        assert begun[taken : taken + 4] == ["lock", "ask", "heartbeat", "pull"]

    run(scenario)


def test_a_revocation_that_is_cancelled_half_way_leaves_no_queue_behind() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await cluster.create_topic("u", 2)
        seen: list[bytes] = []
        hangs = asyncio.Event()

        async def on_message(message: Message) -> None:
            seen.append(message.body)

        async def revoked(queues: list[Queue]) -> None:
            await hangs.wait()

        config = ConsumerConfig(rebalance_interval=1000.0, rebalance_hook_timeout=100.0)
        member = await cluster.consumer("g", "t", on_message, config=config, start=False)
        await _start_with(member, on_revoked=revoked)
        await asyncio.sleep(5)
        # The notices of the second member are lost, so the next look is that of a subscription, and that is given up.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(member.consumer._membership.rebalancer, "now", lambda: None)
            second = await cluster.consumer("g", "t", on_message)
            subscribing = asyncio.ensure_future(member.host.run(member.consumer.subscribe("u")))
            await asyncio.sleep(1)
            assert counts(cluster) == [2, 4]
            subscribing.cancel()
            await asyncio.wait([subscribing])
            hangs.set()
            await second.stop()
        # The queues that were to go to the second member stay here after all.
        member.consumer._rebalance_now()
        await asyncio.sleep(1)
        assert counts(cluster) == [4]
        sender = await cluster.producer()
        for number in range(8):
            await sender.send("t", str(number))
        await asyncio.sleep(1)
        assert len(seen) == 8

    run(scenario)


@pytest.mark.parametrize("after", [0.0, 0.002, 0.005, 0.01, 0.015, 0.02])
def test_a_stop_ends_a_subscription_that_is_under_way(after: float) -> None:
    async def scenario(cluster: SimCluster) -> None:
        await cluster.create_topic("u", 2)
        member = await cluster.consumer("g", "t")
        consumer, loop = member.consumer, cluster.sim.loop
        subscribing = asyncio.ensure_future(member.host.run(consumer.subscribe("u")))
        await asyncio.sleep(after)
        before = loop.time()
        member.running = False
        await member.host.run(consumer.stop())
        with pytest.raises(UsageError, match=r"was stopped|is stopping"):
            await subscribing
        assert loop.time() - before < 1
        assert consumer._fetchers() == []
        await member.host.run(member.client.stop())

    run(scenario)


def test_a_queue_whose_lock_was_lost_before_its_first_pull_is_looked_up_again() -> None:
    async def scenario(cluster: SimCluster) -> None:
        seen: list[str] = []

        async def on_message(message: Message) -> None:
            seen.append(message.body.decode())

        async def assigned(queues: list[Queue]) -> None:
            await asyncio.sleep(40)

        async def meanwhile() -> None:
            await asyncio.sleep(5)
            cluster.partition([member.address], [cluster.brokers[0].address])
            # By the 35th second the lock is not relied on any more; somebody has it, goes on to 5 and gives it back.
            await asyncio.sleep(30)
            cluster.brokers[0].broker.offsets.commit("g", "t", 0, 5)
            cluster.heal()

        sender = await cluster.producer()
        for number in range(8):
            await sender.send("t", str(number))
        config = ConsumerConfig(rebalance_hook_timeout=100.0)
        member = await cluster.consumer(
            "g", "t", on_message, config=config, client=ClientConfig(start_timeout=200.0), orderly=True, start=False
        )
        fault = asyncio.ensure_future(meanwhile())
        await _start_with(member, on_assigned=assigned)
        await fault
        await asyncio.sleep(200)
        assert seen == ["5", "6", "7"]

    run(scenario, queues=1)


def test_locks_are_renewed_while_a_start_still_waits_for_something_else() -> None:
    async def scenario(cluster: SimCluster) -> None:
        async def ok(message: Message) -> None:
            """Done."""

        # Of two topics one does not exist yet.
        config = ClientConfig(start_timeout=100.0, missing_topics="error")
        member = await cluster.consumer("g", {"t": ok, "late": ok}, orderly=True, client=config, start=False)
        starting = asyncio.ensure_future(member.start())
        await asyncio.sleep(1)
        begun = member.consumer._fetchers()
        await asyncio.sleep(60)
        assert not starting.done()
        assert len(begun) == 5 and member.consumer._fetchers() == begun  # none was lost and begun anew
        await cluster.create_topic("late", 1)
        await starting

    run(scenario)


def test_a_locked_queue_is_tried_again_every_second() -> None:
    async def scenario(cluster: SimCluster) -> None:
        dead = await cluster.consumer("g", "t", orderly=True)
        await asyncio.sleep(1)
        dead.kill()
        asked: list[float] = []

        def watch(connection: object, request: Any) -> None:
            if request.code == RequestCode.LOCK_BATCH_MQ:
                asked.append(cluster.sim.loop.time())

        cluster.brokers[0].faults.watch(watch)
        before = cluster.sim.loop.time()
        living = await cluster.consumer("g", "t", orderly=True)
        assert cluster.sim.loop.time() - before < 1  # a start does not wait for others' locks
        await asyncio.sleep(10)
        gaps = {round(later - earlier) for earlier, later in pairwise(asked)}
        assert gaps <= {0, 1} and len(asked) >= 9
        await asyncio.sleep(60)
        assert len(living.held("t")) == 4

    run(scenario)


def test_after_a_lost_lock_it_goes_on_where_the_group_is_by_then() -> None:
    async def scenario(cluster: SimCluster) -> None:
        seen: list[str] = []

        async def on_message(message: Message) -> None:
            seen.append(message.body.decode())

        sender = await cluster.producer()
        member = await cluster.consumer("g", "t", on_message, orderly=True)
        for number in range(3):
            await sender.send("t", str(number))
        await asyncio.sleep(1)
        queue = member.held("t")[0]
        # Somebody had the queue for a while and went on to 5; our member hears that its lock was lost.
        member.consumer._assigned.lock_lost(queue)
        cluster.brokers[0].broker.offsets.commit("g", "t", 0, 5)
        for number in range(3, 7):
            await sender.send("t", str(number))
        await asyncio.sleep(1)
        # 3 came with the pull that was under way, and may have been begun before the position was looked up.
        assert [body for body in seen if body != "3"] == ["0", "1", "2", "5", "6"]
        await asyncio.sleep(11)
        assert cluster.brokers[0].broker.offsets.query("g", "t", 0) == 7

    run(scenario, queues=1)


def test_what_is_assigned_is_revoked_once_whatever_happens() -> None:
    """Also when its lock is lost, and when a reset begins it anew."""

    async def scenario(cluster: SimCluster) -> None:
        calls: list[tuple[str, Queue]] = []

        async def assigned(queues: list[Queue]) -> None:
            calls.extend(("assigned", queue) for queue in queues)

        async def revoked(queues: list[Queue]) -> None:
            calls.extend(("revoked", queue) for queue in queues)

        def turns(queue: Queue) -> list[str]:
            return [what for what, which in calls if which == queue]

        config = ConsumerConfig(offset_illegal_delay=1.0)
        member = await cluster.consumer("g", "t", orderly=True, config=config, start=False)
        await _start_with(member, on_assigned=assigned, on_revoked=revoked)
        await asyncio.sleep(1)
        queues = member.held("t")
        assert {turns(queue)[0] for queue in queues} == {"assigned"} and len(calls) == len(member.held())
        # A broker that does not answer: the locks run out.
        cluster.silence(cluster.brokers[0].address, member.address)
        await asyncio.sleep(60)
        assert all(turns(queue) == ["assigned", "revoked"] for queue in queues)
        cluster.heal()
        await asyncio.sleep(60)
        assert all(turns(queue) == ["assigned", "revoked", "assigned"] for queue in queues)
        await member.consumer._reset_offsets("t", {queues[0]: 0})
        await asyncio.sleep(60)
        assert turns(queues[0]) == ["assigned", "revoked"] * 2 + ["assigned"]
        await member.stop()
        assert all(turns(queue) == ["assigned", "revoked"] * (len(turns(queue)) // 2) for _, queue in calls)

    run(scenario)
