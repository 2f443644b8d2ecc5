"""The life of a pull: what holds it back and in which order, what it carries, what each answer leads to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any, cast

import pytest

from aiorocket.client.core.assignment import share
from aiorocket.client.core.pull_gate import DROPPED, Facts, Hold, gate, pull_flags
from aiorocket.client.core.retry import remote_error
from aiorocket.client.message import Message
from aiorocket.client.push.consumer import Consumer
from aiorocket.config import ConsumerConfig
from aiorocket.errors import ConfigError
from aiorocket.model import Queue
from aiorocket.remoting.connection import Connection
from aiorocket.remoting.processors import ProcessorTable
from aiorocket.testing import Simulation, simulate
from aiorocket.testing.cluster import SimCluster
from aiorocket.testing.machines import SimMember
from aiorocket_protocol import (
    PULL_COMMIT,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    UpdateConsumerOffsetRequestHeader,
)
from tests.client.clusters import run

CLEAR = Facts(False, True, False, None, False, True, True)


class Pulls(ProcessorTable):
    """Stands before a broker's handlers: keeps every pull of topic "t" with its time, answers those it has a script
    for."""

    def __init__(self, cluster: SimCluster, number: int = 0) -> None:
        super().__init__()
        server = cluster.brokers[number].broker.server
        self._inner, server.processors = server.processors, self
        self._time = cluster.sim.loop.time
        self.seen: list[tuple[float, PullMessageRequestHeader]] = []
        self.script: list[RemotingCommand] = []

    def codes(self) -> list[int]:
        return self._inner.codes()

    def dispatch(self, connection: Connection, request: RemotingCommand) -> None:
        if request.code == RequestCode.PULL_MESSAGE:
            header = request.read(PullMessageRequestHeader)
            if header.topic == "t":
                self.seen.append((round(self._time(), 3), header))
                if self.script:
                    connection.reply(request, self.script.pop(0))
                    return
        self._inner.dispatch(connection, request)

    def answer(self, code: int, next_offset: int, suggested: int = 0) -> None:
        header = PullMessageResponseHeader(suggested, next_offset, 0, 1000)
        self.script.append(RemotingCommand.response(code, header))

    def gaps(self) -> list[float]:
        times = [time for time, _ in self.seen]
        return [round(later - earlier, 2) for earlier, later in pairwise(times)]


def fetcher_of(member: SimMember) -> Any:
    return next(each for each in member.consumer._fetchers() if each.queue.topic == "t")


# -- the order of the checks --


def test_the_first_reason_counts() -> None:
    blocked = Facts(True, False, True, "messages", True, False, False)
    reasons = []
    for field, clear in CLEAR._asdict().items():
        hold = gate(blocked, 3.0)
        assert hold is not None
        reasons.append(hold.reason)
        blocked = blocked._replace(**{field: clear})
    assert gate(blocked, 3.0) is None
    assert reasons == ["dropped", "not running", "paused", "messages", "buffer", "lock", "subscription"]


def test_who_looks_again_by_itself() -> None:
    assert gate(CLEAR._replace(dropped=True), 3.0) is DROPPED
    assert gate(CLEAR._replace(running=False), 3.0) == Hold("not running", 3.0)
    assert gate(CLEAR._replace(subscribed=False), 3.0) == Hold("subscription", 3.0)
    assert gate(CLEAR._replace(full="span"), 3.0) == Hold("span", None)
    assert gate(CLEAR._replace(locked=False), 3.0) == Hold("lock", None)


def test_flags() -> None:
    assert pull_flags(commit=True, suspend=True) == PULL_COMMIT | PULL_SUSPEND == 3
    assert pull_flags(commit=False, suspend=False, subscription=True) == PULL_SUBSCRIPTION == 4


@pytest.mark.parametrize(
    ("limit", "topic_limit", "queues", "expected"),
    [(1000, -1, 4, 1000), (1000, 400, 4, 100), (1000, 3, 4, 1), (1000, 10_000, 4, 2500), (7, 8, 0, 8)],
)
def test_a_topics_share(limit: int, topic_limit: int, queues: int, expected: int) -> None:
    assert share(limit, topic_limit, queues) == expected


def test_the_defaults() -> None:
    """Java's, and ours where they differ on purpose."""
    config = ConsumerConfig()
    assert (config.max_cached_messages, config.max_cached_bytes, config.max_span) == (1000, 100 * 1024 * 1024, 2000)
    assert (config.max_cached_messages_per_topic, config.max_cached_bytes_per_topic) == (-1, -1)
    assert (config.hold, config.pull_timeout, config.pull_interval, config.short_poll) == (15.0, 30.0, 0.0, None)
    assert (config.pull_error_delay, config.offset_illegal_delay, config.offset_flush_interval) == (3.0, 10.0, 10.0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"pull_batch_size": 1025}, "pull_batch_size=1025: 1 to 1024"),
        ({"batch_size": 0}, "batch_size=0: 1 to 1024"),
        ({"max_span": 65_536}, "max_span=65536: 1 to 65535"),
        ({"max_cached_messages_per_topic": 0}, "max_cached_messages_per_topic=0: 1 to"),
        ({"max_cached_bytes": 2 << 30}, "max_cached_bytes=2147483648: 1 to"),
        ({"pull_interval": 66.0}, "pull_interval=66.0: 0 to 65.535"),
        ({"hold": 30.0}, "pull_timeout=30.0 must be above hold=30.0"),
        ({"max_pull_idle": 30.0}, "max_pull_idle=30.0 must be above 30"),
        ({"lock_renew_interval": 30.0}, "lock_renew_interval=30.0 must be below lock_validity=30.0"),
        ({"lock_validity": 60.0}, "broker's 60 s"),
        ({"message_model": "neither"}, "'clustering' or 'broadcasting'"),
        ({"allocate": 3}, "allocate=3"),
    ],
)
def test_every_option_is_checked_and_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ConsumerConfig(**options)


# -- what a pull carries --


def test_a_long_poll_carries_the_commit_and_the_version() -> None:
    async def scenario(cluster: SimCluster) -> None:
        pulls = Pulls(cluster)
        sender, member = await cluster.producer(), await cluster.consumer("g", "t")
        await sender.send("t", "a")
        await asyncio.sleep(1)
        first, last = pulls.seen[0][1], pulls.seen[-1][1]
        # The first one asks what there is, the long polls begin after it.
        assert (first.sys_flag, first.commit_offset, first.suspend_timeout_millis) == (0, 0, 15_000)
        assert pulls.seen[1][1].sys_flag == PULL_SUSPEND
        assert (first.subscription, first.expression_type) == (None, "TAG")
        assert last.queue_offset == 1
        await sender.send("t", "b")
        await asyncio.sleep(1)
        last = pulls.seen[-1][1]
        assert (last.sys_flag & PULL_COMMIT, last.commit_offset >= 1) == (PULL_COMMIT, True)
        assert last.sub_version == member.consumer._member.subscriptions["t"].sub_version

    run(scenario)


def test_the_expression_may_ride_along() -> None:
    async def scenario(cluster: SimCluster) -> None:
        pulls = Pulls(cluster)
        await cluster.consumer("g", "t", config=ConsumerConfig(post_subscription=True), tags="b || a")
        await asyncio.sleep(1)
        assert pulls.seen[0][1].sys_flag & PULL_SUBSCRIPTION
        assert pulls.seen[0][1].subscription == "a || b"

    run(scenario)


def test_short_polls_ask_at_intervals() -> None:
    async def scenario(cluster: SimCluster) -> None:
        pulls = Pulls(cluster)
        await cluster.consumer("g", "t", config=ConsumerConfig(short_poll=2.0))
        await asyncio.sleep(9)
        assert {header.sys_flag & PULL_SUSPEND for _, header in pulls.seen} == {0}
        assert pulls.gaps() == [2.0] * 4

    run(scenario)


def test_the_suggested_broker_is_followed_and_left_again() -> None:
    async def scenario(cluster: SimCluster) -> None:
        master, slave = Pulls(cluster, 0), Pulls(cluster, 1)
        sender, member = await cluster.producer(), await cluster.consumer("g", "t")
        await sender.send("t", "a")
        await asyncio.sleep(0.5)
        route = member.client.session.routes.known("t")
        assert route is not None
        # The second broker plays the slave of the first one.
        route.addresses["broker-1"][1] = cluster.brokers[1].endpoint
        master.seen.clear()
        slave.answer(ResponseCode.PULL_RETRY_IMMEDIATELY, 3, suggested=1)
        slave.answer(ResponseCode.PULL_RETRY_IMMEDIATELY, 4, suggested=0)
        master.answer(ResponseCode.PULL_RETRY_IMMEDIATELY, 2, suggested=1)
        await sender.send("t", "b")
        await asyncio.sleep(1)
        # What is committed goes to the master only.
        assert [(header.queue_offset, header.sys_flag) for _, header in slave.seen] == [(2, 2), (3, 2)]
        assert [(header.queue_offset, header.sys_flag) for _, header in master.seen] == [(2, 3), (4, 3)]
        assert [header.commit_offset for _, header in master.seen] == [1, 4]  # the second one was still in work

    async def main(sim: Simulation) -> None:
        async with SimCluster(sim, brokers=2) as cluster:
            host = cluster.brokers[1]
            await host.stop()
            await cluster.create_topic("t", 1)  # on the first broker only
            await host.start()
            await scenario(cluster)

    simulate(main)


def test_a_suggested_broker_that_cannot_be_reached_is_left_for_the_master() -> None:
    """It is up for the name servers, which name it for ever, and the master said once to ask it."""

    async def scenario(cluster: SimCluster) -> None:
        master = Pulls(cluster)
        sender, member = await cluster.producer(), await cluster.consumer("g", "t")
        await sender.send("t", "a")
        await asyncio.sleep(0.5)
        route = member.client.session.routes.known("t")
        assert route is not None
        route.addresses["broker-1"][1] = "10.9.9.8:10911"  # and so it stays, whoever looks
        member.client.session.routes.refresh_soon = lambda topic: asyncio.get_running_loop().create_future()  # type: ignore[method-assign]
        master.answer(ResponseCode.PULL_RETRY_IMMEDIATELY, 2, suggested=1)
        for key in ("b", "c"):
            await sender.send("t", key)
            await asyncio.sleep(10)
        assert [each.key for each in cluster.history.of("finished")] == ["a", "b", "c"]
        # But one that can be reached, and is busy, is still the one to ask: the master may be away.
        (fetcher,) = [each for each in member.consumer._fetchers() if each.queue.topic == "t"]
        fetcher._suggested = 1
        fetcher.note(remote_error(int(ResponseCode.SYSTEM_BUSY), "busy", request="PULL_MESSAGE", address="s"))
        assert fetcher._suggested == 1

    run(scenario)


# -- pauses --


@pytest.mark.parametrize("delay", [3.0, 0.5])
def test_errors_wait_and_flow_control_does_not(delay: float) -> None:
    async def scenario(cluster: SimCluster) -> None:
        pulls = Pulls(cluster)
        pulls.script = [RemotingCommand.response(ResponseCode.SYSTEM_ERROR) for _ in range(3)]
        await cluster.consumer("g", "t", config=ConsumerConfig(pull_error_delay=delay))
        await asyncio.sleep(10)
        assert pulls.gaps()[:3] == [delay] * 3
        pulls.seen.clear()
        pulls.script = [RemotingCommand.response(ResponseCode.FLOW_CONTROL) for _ in range(3)]
        await asyncio.sleep(16)
        assert pulls.gaps()[:3] == [0.02, 0.02, 0.02]

    run(scenario)


def test_an_answer_that_stays_damaged_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: SimCluster) -> None:
        pulls = Pulls(cluster)
        header = PullMessageResponseHeader(0, 1, 0, 1)
        pulls.script = [RemotingCommand.response(ResponseCode.SUCCESS, header, body=b"damaged" * 20) for _ in range(5)]
        member = await cluster.consumer("g", "t")
        await asyncio.sleep(10)
        assert "magic" in fetcher_of(member).last_error
        await asyncio.sleep(20)
        assert not pulls.script and fetcher_of(member).last_error is None

    run(scenario)
    (damaged, over) = [record.getMessage() for record in caplog.records]
    assert "magic" in damaged and over == "broker broker-1 answers again, after 15 s"


def test_nothing_new_and_nothing_matched_pull_at_once() -> None:
    async def scenario(cluster: SimCluster) -> None:
        pulls = Pulls(cluster)
        for _ in range(3):
            pulls.answer(ResponseCode.PULL_NOT_FOUND, 0)
            pulls.answer(ResponseCode.PULL_RETRY_IMMEDIATELY, 0)
        await cluster.consumer("g", "t")
        await asyncio.sleep(1)
        assert max(pulls.gaps()[:6]) < 0.1

    run(scenario)


def test_the_interval_is_for_pulls_that_bring_messages() -> None:
    async def scenario(cluster: SimCluster) -> None:
        pulls = Pulls(cluster)
        sender = await cluster.producer()
        for number in range(3):
            await sender.send("t", str(number))
        config = ConsumerConfig(pull_interval=2.0, pull_batch_size=1)
        await cluster.consumer("g", "t", config=config)
        await asyncio.sleep(10)
        # Behind the last message is the long poll.
        assert pulls.gaps() == [2.0, 2.0, 2.0]
        for code in (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_NOT_FOUND):
            pulls.answer(code, 4)
        await sender.send("t", "3")
        await asyncio.sleep(10)
        assert pulls.gaps()[4:] == [0.0, 0.0]

    run(scenario)


def test_short_polls_do_not_rest_in_what_is_filtered_out() -> None:
    async def scenario(cluster: SimCluster) -> None:
        pulls = Pulls(cluster)
        for number in range(1, 5):
            pulls.answer(ResponseCode.PULL_RETRY_IMMEDIATELY, number)
        pulls.answer(ResponseCode.PULL_NOT_FOUND, 4)
        await cluster.consumer("g", "t", config=ConsumerConfig(short_poll=2.0))
        await asyncio.sleep(1)
        assert [header.queue_offset for _, header in pulls.seen] == [0, 1, 2, 3, 4]

    run(scenario)


def test_resume_wakes_at_once() -> None:
    async def scenario(cluster: SimCluster) -> None:
        seen: list[float] = []

        async def on_message(message: Message) -> None:
            seen.append(cluster.sim.loop.time())

        sender = await cluster.producer()
        member = await cluster.consumer("g", "t", on_message)
        await asyncio.sleep(0.5)
        member.consumer.pause("t")
        await sender.send("t", "a")  # ends the poll that is under way
        await asyncio.sleep(20)
        await sender.send("t", "b")
        await asyncio.sleep(20)
        assert len(seen) == 1
        assert fetcher_of(member).blocked == "paused"
        at = cluster.sim.loop.time()
        await member.host.run(_call(member.consumer.resume))
        await asyncio.sleep(1)
        assert len(seen) == 2
        assert seen[1] - at < 0.1

    run(scenario)


async def _call(function: Callable[[], object]) -> None:
    function()


def test_a_topics_limit_is_shared_out_and_holds() -> None:
    async def scenario(cluster: SimCluster) -> None:
        release = asyncio.Event()
        sender = await cluster.producer()

        async def on_message(message: Message) -> None:
            await release.wait()

        config = ConsumerConfig(max_cached_messages_per_topic=20, pull_batch_size=4, concurrency=1)
        member = await cluster.consumer("g", "many", on_message, config=config, start=False)
        await cluster.create_topic("many", 4)
        await member.start()
        for number in range(200):
            await sender.send("many", str(number))
        await asyncio.sleep(1)
        held = [each for each in member.consumer._fetchers() if each.queue.topic == "many"]
        assert [each.process_queue.limits.messages for each in held] == [5] * 4
        assert {each.blocked for each in held} == {"messages"}
        # Above the limit by less than one pull.
        assert all(5 < each.process_queue.count <= 5 + 4 for each in held)
        release.set()
        await asyncio.sleep(5)
        assert member.consumer.state().counters.consumed == 200

    run(scenario)


# -- answers that lead elsewhere --


def test_a_filtered_tail_is_committed_when_nothing_is_in_process() -> None:
    async def scenario(cluster: SimCluster) -> None:
        sender = await cluster.producer()
        await cluster.consumer("g", "t", tags="wanted")
        await sender.send("t", "a", tag="wanted")
        for number in range(9):
            await sender.send("t", f"x{number}", tag="other")
        await asyncio.sleep(30)
        assert cluster.brokers[0].broker.offsets.query("g", "t", 0) == 10

    run(scenario)


def test_going_backwards_is_reported() -> None:
    async def scenario(cluster: SimCluster) -> None:
        sender = await cluster.producer()
        for number in range(3):
            await sender.send("t", str(number))
        pulls = Pulls(cluster)
        member = await cluster.consumer("g", "t")
        await asyncio.sleep(0.1)
        pulls.answer(ResponseCode.PULL_NOT_FOUND, 1)
        await sender.send("t", "3")
        await asyncio.sleep(1)
        assert member.consumer.state().counters.backwards == 1
        assert pulls.seen[-1][1].queue_offset == 4  # what lay behind 1 came again

    run(scenario)


@pytest.mark.parametrize("code", [ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_RETRY_IMMEDIATELY])
def test_another_offset_drops_at_once_and_begins_anew_later(code: ResponseCode) -> None:
    async def scenario(cluster: SimCluster) -> None:
        bodies: list[bytes] = []
        stuck = asyncio.Event()

        async def on_message(message: Message) -> None:
            bodies.append(message.body)
            if len(bodies) == 5:
                await stuck.wait()

        sender = await cluster.producer()
        pulls = Pulls(cluster)
        member = await cluster.consumer("g", "t", on_message, config=ConsumerConfig(concurrency=1))
        for number in range(6):
            await sender.send("t", str(number))
        await asyncio.sleep(0.5)
        old = fetcher_of(member).process_queue
        pulls.answer(code, 2)
        await sender.send("t", "6")
        await asyncio.sleep(0.5)
        assert old.dropped
        asked = len(pulls.seen)
        stuck.set()
        await asyncio.sleep(9)
        # Ten seconds for running listeners; nothing is pulled meanwhile, and what waited is not delivered.
        assert (len(pulls.seen), len(bodies)) == (asked, 5)
        await asyncio.sleep(1.2)
        assert cluster.brokers[0].broker.offsets.query("g", "t", 0) == 2
        await asyncio.sleep(15)
        assert [int(body) for body in bodies[5:]] == [2, 3, 4, 5, 6]
        assert cluster.brokers[0].broker.offsets.query("g", "t", 0) == 7
        assert member.consumer.state().counters.late == 1

    run(scenario)


def test_without_a_delay_it_begins_anew_at_once_but_does_not_spin() -> None:
    async def scenario(cluster: SimCluster) -> None:
        sender = await cluster.producer()
        await sender.send("t", "a")
        pulls = Pulls(cluster)
        for _ in range(4):
            pulls.answer(ResponseCode.PULL_OFFSET_MOVED, 0)
        member = await cluster.consumer("g", "t", config=ConsumerConfig(offset_illegal_delay=0.0))
        await asyncio.sleep(0.5)
        assert len(pulls.seen) == 2
        await asyncio.sleep(10)
        assert member.consumer.state().counters.consumed == 1

    run(scenario)


def test_a_pull_that_hangs_is_begun_anew() -> None:
    async def scenario(cluster: SimCluster) -> None:
        sender, member = await cluster.producer(), await cluster.consumer("g", "t")
        await asyncio.sleep(0.1)
        before = fetcher_of(member)

        class Deaf:
            """A connection that takes requests and never ends them, as a bug would have it."""

            def request(self, command: RemotingCommand, timeout: float) -> asyncio.Future[RemotingCommand]:
                return asyncio.get_running_loop().create_future()

        real = member.client.session.member_connection

        async def deaf(address: str, timeout: float | None = None) -> Connection:
            return cast(Connection, Deaf()) if "pull/t/" in _task_name() else await real(address, timeout)

        member.client.session.member_connection = deaf  # type: ignore[method-assign]  # a link that fails on demand
        await sender.send("t", "a")
        await asyncio.sleep(100)
        assert fetcher_of(member) is before
        member.client.session.member_connection = real  # type: ignore[method-assign]  # as it was
        await asyncio.sleep(60)
        assert fetcher_of(member) is not before
        await sender.send("t", "b")
        await asyncio.sleep(1)
        assert member.consumer.state().counters.consumed == 2

    run(scenario)


def _task_name() -> str:
    task = asyncio.current_task()
    return task.get_name() if task is not None else ""


def test_a_missing_route_is_asked_for_once_more() -> None:
    async def scenario(cluster: SimCluster) -> None:
        sender, member = await cluster.producer(), await cluster.consumer("g", "t")
        await asyncio.sleep(0.1)
        route = member.client.session.routes.known("t")
        assert route is not None
        route.addresses.clear()
        await sender.send("t", "a")
        await sender.send("t", "b")
        await asyncio.sleep(1)
        assert member.consumer.state().counters.consumed == 2
        assert member.consumer.state().last_error is None

    run(scenario)


def test_a_reset_of_queues_that_are_not_held_does_nothing() -> None:
    async def scenario(cluster: SimCluster) -> None:
        member = await cluster.consumer("g", "t")
        consumer: Consumer = member.consumer
        await member.host.run(consumer._reset_offsets("t", {Queue("t", "elsewhere", 0): 5}))
        await asyncio.sleep(0.1)
        assert not any(each.process_queue.dropped for each in consumer._fetchers())

    run(scenario)


def test_a_reset_goes_back_after_ten_seconds() -> None:
    async def scenario(cluster: SimCluster) -> None:
        bodies: list[bytes] = []

        async def on_message(message: Message) -> None:
            bodies.append(message.body)

        sender = await cluster.producer()
        member = await cluster.consumer("g", "t", on_message)
        for number in range(4):
            await sender.send("t", str(number))
        await asyncio.sleep(1)
        await member.host.run(member.consumer._reset_offsets("t", {Queue("t", "broker-1", 0): 1}))
        await asyncio.sleep(9.5)
        assert len(bodies) == 4
        await asyncio.sleep(1)
        assert [int(body) for body in bodies[4:]] == [1, 2, 3]

    run(scenario)


def test_the_last_of_several_resets_counts() -> None:
    async def scenario(cluster: SimCluster) -> None:
        bodies: list[bytes] = []

        async def on_message(message: Message) -> None:
            bodies.append(message.body)

        sender = await cluster.producer()
        pulls = Pulls(cluster)
        member = await cluster.consumer("g", "t", on_message)
        for number in range(4):
            await sender.send("t", str(number))
        await asyncio.sleep(1)
        pulls.answer(ResponseCode.PULL_OFFSET_MOVED, 0)
        await sender.send("t", "4")
        await asyncio.sleep(1)
        assert fetcher_of(member).process_queue.dropped
        for offset in (1, 3):
            await member.host.run(member.consumer._reset_offsets("t", {Queue("t", "broker-1", 0): offset}))
            await asyncio.sleep(4)
        before = len(bodies)
        await asyncio.sleep(5)
        assert [int(body) for body in bodies[before:]] == [3, 4]

    run(scenario)


def test_the_position_from_before_a_reset_is_not_stored_after_it() -> None:
    async def scenario(cluster: SimCluster) -> None:
        commits: list[int] = []

        def watch(connection: object, request: RemotingCommand) -> None:
            if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
                header = request.read(UpdateConsumerOffsetRequestHeader)
                if header.topic == "t":
                    commits.append(header.commit_offset)

        pulls, sender = Pulls(cluster), await cluster.producer()
        await cluster.consumer("g", "t")
        await asyncio.sleep(11)
        cluster.brokers[0].faults.watch(watch)
        for number in range(3):
            await sender.send("t", str(number))
        await asyncio.sleep(1)
        pulls.answer(ResponseCode.PULL_OFFSET_MOVED, 1)
        await sender.send("t", "3")
        await asyncio.sleep(9.9)
        assert commits == []
        await asyncio.sleep(15)
        assert commits == [1, 4]

    run(scenario)


def test_a_reset_that_cannot_be_stored_is_not_lost() -> None:
    async def scenario(cluster: SimCluster) -> None:
        bodies: list[bytes] = []

        async def on_message(message: Message) -> None:
            bodies.append(message.body)

        sender = await cluster.producer()
        member = await cluster.consumer("g", "t", on_message)
        for number in range(4):
            await sender.send("t", str(number))
        await asyncio.sleep(12)
        cluster.brokers[0].faults.next("UPDATE_CONSUMER_OFFSET", reply="SYSTEM_BUSY", times=3)
        await member.host.run(member.consumer._reset_offsets("t", {Queue("t", "broker-1", 0): 1}))
        await asyncio.sleep(25)
        assert [int(body) for body in bodies[4:]] == [1, 2, 3]

    run(scenario)


def test_an_answer_that_comes_with_a_reset_leads_nowhere() -> None:
    async def scenario(cluster: SimCluster) -> None:
        pulls, sender = Pulls(cluster), await cluster.producer()
        member = await cluster.consumer("g", "t")
        await sender.send("t", "0")
        await asyncio.sleep(1)
        real = member.client.session.member_connection

        class Reset:
            """A connection on which a reset comes just ahead of the answer to a pull."""

            def __init__(self, connection: Connection) -> None:
                self._connection = connection

            def request(self, command: RemotingCommand, timeout: float) -> asyncio.Future[RemotingCommand]:
                answer = self._connection.request(command, timeout)
                answer.add_done_callback(lambda _: member.consumer._begin_anew({Queue("t", "broker-1", 0): 1}))
                return answer

        async def connect(address: str, timeout: float | None = None) -> Connection:
            connection = await real(address, timeout)
            return cast(Connection, Reset(connection)) if "pull/t/" in _task_name() else connection

        member.client.session.member_connection = connect  # type: ignore[method-assign]  # a link that fails on demand
        pulls.answer(ResponseCode.PULL_OFFSET_MOVED, 0)
        await sender.send("t", "1")  # ends the poll that is held
        await asyncio.sleep(1)
        assert fetcher_of(member).process_queue.dropped
        member.client.session.member_connection = real  # type: ignore[method-assign]  # as it was
        await asyncio.sleep(15)
        assert [event.key for event in cluster.history.of("delivered")] == ["0", "1", "1"]

    run(scenario)


def test_a_pull_carries_no_commit_from_before_one_that_led_back() -> None:
    async def scenario(cluster: SimCluster) -> None:
        sender = await cluster.producer()
        for number in range(3):
            await sender.send("t", str(number))
        pulls = Pulls(cluster)
        member = await cluster.consumer("g", "t", config=ConsumerConfig(pull_batch_size=1))
        await asyncio.sleep(0.1)
        pulls.answer(ResponseCode.PULL_NOT_FOUND, 1)
        await sender.send("t", "3")
        await asyncio.sleep(30)
        assert member.consumer.state().counters.backwards == 1
        commits = [header.commit_offset for _, header in pulls.seen if header.sys_flag & PULL_COMMIT]
        assert commits == sorted(commits)
        assert commits[-1] == 4

    run(scenario)


def test_a_tag_added_to_a_running_group_is_wanted_from_then_on() -> None:
    """Also by the pull that the broker holds at that moment, which asked for the other tags."""

    async def scenario(cluster: SimCluster) -> None:
        sender, member = await cluster.producer(), await cluster.consumer("g", "t", tags="a")
        await asyncio.sleep(5)
        member.step_clock(-3600.0)
        await member.host.run(member.consumer.subscribe("t", "b"))
        await sender.send("t", "added", tag="b")
        message = await member.host.run(asyncio.wait_for(anext(member.consumer.messages()), 1.0))
        assert message.body == b"added"
        await member.host.run(message.ack())

    run(scenario)


def test_a_queue_that_is_paused_in_the_line_is_not_pulled() -> None:
    async def scenario(cluster: SimCluster) -> None:
        goes_on = asyncio.Event()

        async def slow(message: Message) -> None:
            await goes_on.wait()

        await cluster.create_topic("t", 4)
        sender = await cluster.producer()
        for number in range(40):
            await sender.send("t", str(number))
        pulls = Pulls(cluster)
        config = ConsumerConfig(max_backlog=2, pull_batch_size=2, concurrency=1)
        member = await cluster.consumer("g", "t", slow, config=config)
        await asyncio.sleep(1)
        asked = len(pulls.seen)
        member.consumer.pause("t")
        goes_on.set()
        await asyncio.sleep(5)
        assert len(pulls.seen) == asked
        await member.host.run(_call(member.consumer.resume))
        await asyncio.sleep(5)
        assert member.consumer.state().counters.consumed == 40

    run(scenario)
