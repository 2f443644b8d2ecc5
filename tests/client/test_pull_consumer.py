"""The pull consumer against whole clusters in virtual time: timeouts, rebalances, stale commits, seeks under way."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from copy import copy
from functools import partial
from typing import Any

import pytest

from aiorocket.client.group.rebalance_hooks import RebalanceHooks
from aiorocket.client.message import Message
from aiorocket.client.pull.pull_consumer import PullConsumer
from aiorocket.config import ClientConfig, PullConsumerConfig
from aiorocket.errors import NotConnectedError, RemoteError, TopicNotFoundError, UsageError
from aiorocket.model import Queue
from aiorocket.remoting.connection import Connection
from aiorocket.remoting.processors import ProcessorTable
from aiorocket.testing import SimCluster, SimHost
from aiorocket_protocol import (
    HeartbeatData,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    decode_body,
)
from tests.client import clusters

run = partial(clusters.run, queues=2, client=ClientConfig(start_timeout=5))


def pull(cluster: SimCluster, number: int = 1, **options: Any) -> tuple[SimHost, PullConsumer]:
    """A consumer of group g on its own host."""
    host = cluster.sim.host(f"10.2.0.{number}")
    return host, PullConsumer("g", nameservers=cluster.endpoints, env=cluster.sim.env(), **options)


async def send(cluster: SimCluster, keys: Iterable[str], **options: Any) -> None:
    sender = await cluster.producer()
    for key in keys:
        await sender.send("t", key, **options)
    await sender.stop()


def bodies(messages: Iterable[Message]) -> list[str]:
    return [message.body.decode() for message in messages]


def numbered(begin: int, end: int) -> list[str]:
    return [f"m{number}" for number in range(begin, end)]


def requests(cluster: SimCluster, *codes: RequestCode) -> list[RemotingCommand]:
    """Collects the requests of these kinds that the first broker gets from now on."""
    seen: list[RemotingCommand] = []
    # A copy: a broker lets go of what it does not need while a pull is parked.
    cluster.brokers[0].faults.watch(lambda _, request: seen.append(copy(request)) if request.code in codes else None)
    return seen


# -- fetch


def test_fetch_gives_nothing_after_its_timeout_and_a_message_at_once() -> None:
    async def scenario(cluster: SimCluster) -> None:
        host, consumer = pull(cluster)

        async def body() -> None:
            loop = asyncio.get_running_loop()
            async with consumer:
                await consumer.subscribe("t")
                for timeout in (1.0, 0.25, 0.0):
                    before = loop.time()
                    assert await consumer.fetch(timeout=timeout) == []
                    assert loop.time() - before == pytest.approx(timeout, abs=0.01)
                waiting = asyncio.ensure_future(consumer.fetch(timeout=60))
                await asyncio.sleep(30)  # longer than one long poll
                sending = asyncio.ensure_future(send(cluster, ["hello"]))
                assert bodies(await waiting) == ["hello"]
                assert loop.time() - before < 31
                await sending

        await host.run(body())

    run(scenario)


@pytest.mark.parametrize("seed", range(5))
def test_fetches_that_time_out_or_are_cancelled_lose_nothing(seed: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        host, consumer = pull(cluster)
        seen: list[str] = []

        async def body() -> None:
            async with consumer:
                await consumer.subscribe("t", start_from="first")
                sending = asyncio.ensure_future(send(cluster, numbered(0, 100), sharding_key="one queue"))
                step = 0
                while len(seen) < 100:
                    step += 1
                    fetching = asyncio.ensure_future(consumer.fetch(3, timeout=0.0005 * (step % 7)))
                    if step % 2:
                        await asyncio.sleep(0.0003 * (step % 11))
                        fetching.cancel()
                    try:
                        seen.extend(bodies(await fetching))
                    except asyncio.CancelledError:
                        pass
                await sending

        await host.run(body())
        assert seen == numbered(0, 100)

    run(scenario, seed)


def test_a_broker_that_is_away_is_no_error_of_fetch(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: SimCluster) -> None:
        host, consumer = pull(cluster)

        async def body() -> None:
            async with consumer:
                await consumer.subscribe("t", start_from="first")
                cluster.brokers[0].kill(power_cut=True)
                for _ in range(40):
                    assert await consumer.fetch() == []
                assert consumer.state().last_error is not None
                await cluster.brokers[0].start()
                await send(cluster, ["back"])
                found = await consumer.fetch(timeout=60)
                assert bodies(found) == ["back"]
                await consumer.commit(found)

        with caplog.at_level(logging.WARNING, "aiorocket.client"):
            await host.run(body())
        assert any("pulling Queue" in record.message for record in caplog.records)

    run(scenario)


def test_queues_are_served_in_turn_and_flow_control_bounds_the_cache() -> None:
    async def scenario(cluster: SimCluster) -> None:
        config = PullConsumerConfig(pull_batch_size=10, max_cached_messages=25, max_cached_messages_total=60)
        host, consumer = pull(cluster, config=config)
        await send(cluster, numbered(0, 400))

        async def body() -> None:
            async with consumer:
                await consumer.subscribe("t", start_from="first")
                await asyncio.sleep(1)
                blocked = Counter(each.blocked for each in consumer.state().queues)
                assert set(blocked) <= {"messages", "total"} and consumer.state().cached <= 60 + 4 * 10
                assert all(each.cached <= 25 + 10 for each in consumer.state().queues)
                first = await consumer.fetch(40)
                assert Counter(message.queue.queue_id for message in first) == {0: 10, 1: 10, 2: 10, 3: 10}
                seen = Counter(bodies(first))
                while batch := await consumer.fetch(33, timeout=1):
                    seen.update(bodies(batch))
                assert seen == Counter(numbered(0, 400))

        await host.run(body())

    run(scenario, queues=4)


def test_a_paused_queue_is_neither_pulled_nor_handed_out() -> None:
    async def scenario(cluster: SimCluster) -> None:
        host, consumer = pull(cluster)
        await send(cluster, numbered(0, 10))

        async def body() -> None:
            async with consumer:
                await consumer.subscribe("t", start_from="first")
                one, other = consumer.assignment()
                await asyncio.sleep(0.5)  # it is cached by now
                consumer.pause([one])
                assert {message.queue for message in await consumer.fetch()} == {other}
                await send(cluster, numbered(10, 20))
                await asyncio.sleep(30)
                assert {message.queue for message in await consumer.fetch()} == {other}
                waiting = asyncio.ensure_future(consumer.fetch(timeout=5))
                await asyncio.sleep(0.1)
                consumer.resume([one])
                found = await waiting
                found += await consumer.fetch()
                assert {message.queue for message in found} == {one} and len(found) == 10

        await host.run(body())

    run(scenario)


# -- commit


def test_the_next_member_goes_on_where_the_last_one_committed() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await send(cluster, numbered(0, 10), sharding_key="one queue")

        async def read(number: int, commit: bool) -> list[str]:
            host, consumer = pull(cluster, number)

            async def body() -> list[str]:
                async with consumer:
                    await consumer.subscribe("t", start_from="first")
                    batch = await consumer.fetch(4)
                    assert consumer.position(batch[0].queue) == batch[-1].offset + 1
                    if commit:
                        await consumer.commit(batch)
                        assert consumer.committed(batch[0].queue) == batch[-1].offset + 1
                    return bodies(batch)

            return await host.run(body())

        assert await read(1, True) == numbered(0, 4)
        assert await read(2, False) == numbered(4, 8)
        assert await read(3, True) == numbered(4, 8)
        assert await read(4, False) == numbered(8, 10)

    run(scenario)


def test_auto_commit_takes_for_done_what_was_fetched_before_the_latest_fetch() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await send(cluster, numbered(0, 10), sharding_key="one queue")
        config = PullConsumerConfig(auto_commit=True)
        host, consumer = pull(cluster, config=config)

        async def body() -> None:
            async with consumer:
                await consumer.subscribe("t", start_from="first")
                first = await consumer.fetch(4)
                queue = first[0].queue
                await asyncio.sleep(6)
                assert consumer.committed(queue) == 0, "the application still has them in hands"
                await consumer.fetch(4)
                await asyncio.sleep(6)
                assert consumer.committed(queue) == 4
                assert bodies(await consumer.fetch(4)) == numbered(8, 10)
            # What the last fetch gave is not done: nobody came back for more.

        await host.run(body())
        assert cluster.brokers[0].lag("g", "t") == 2

    run(scenario)


def test_a_failed_commit_is_an_error_and_the_next_one_tries_again() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await send(cluster, numbered(0, 3), sharding_key="one queue")
        host, consumer = pull(cluster)

        async def body() -> None:
            async with consumer:
                await consumer.subscribe("t", start_from="first")
                batch = await consumer.fetch()
                await consumer.commit([])  # nothing to say, nothing to fail
                cluster.brokers[0].faults.next("UPDATE_CONSUMER_OFFSET", reply="SYSTEM_ERROR")
                with pytest.raises(RemoteError, match="planned by a test"):
                    await consumer.commit(batch)
                assert consumer.committed(batch[0].queue) in (-1, 0)
                await consumer.commit(batch)
                assert consumer.committed(batch[0].queue) == 3

        await host.run(body())

    run(scenario)


@pytest.mark.parametrize("fault", [{"delay": 1.0}, {"reply": "SYSTEM_ERROR"}], ids=["slow", "refused"])
def test_of_a_topics_first_offsets_one_goes_ahead(fault: dict[str, Any]) -> None:
    """Apache's broker may lose all but one of several that come at once, and acknowledges them."""

    async def scenario(cluster: SimCluster) -> None:
        host, consumer = pull(cluster)
        faults, asked = cluster.brokers[0].faults, requests(cluster, RequestCode.UPDATE_CONSUMER_OFFSET)

        async def fetched(position: int) -> None:
            await send(cluster, numbered(0, 40))
            while min(map(consumer.position, consumer.assignment())) < position:
                await consumer.fetch(8)
            faults.next("UPDATE_CONSUMER_OFFSET", **fault)

        async def body() -> None:
            async with consumer:
                await consumer.subscribe("t", start_from="first")
                await fetched(10)
                committing = asyncio.ensure_future(consumer.commit())
                await asyncio.sleep(0.5)
                if "delay" in fault:
                    assert len(asked) == 1
                    await committing
                    assert len(asked) == 1 + 4
                else:
                    with pytest.raises(RemoteError, match="planned by a test"):
                        await committing
                    assert len(asked) == 1 + 3, "what went ahead stays due, the others are stored"
                asked.clear()
                await fetched(20)
                committing = asyncio.ensure_future(consumer.commit())
                await asyncio.sleep(0.5)
                assert len(asked) == 4, "the table is there"
                await asyncio.wait([committing])

        await host.run(body())

    run(scenario, queues=4)


# -- rebalance


def test_a_commit_of_a_queue_that_was_given_up_is_counted_and_ignored() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await send(cluster, numbered(0, 20))
        (host, first), (other_host, second) = pull(cluster, 1), pull(cluster, 2)

        async def body() -> None:
            async with first:
                await first.subscribe("t", start_from="first")
                batch: list[Message] = []
                while len(batch) < 20:
                    batch += await first.fetch()
                await other_host.run(second.start())
                await other_host.run(second.subscribe("t", start_from="first"))
                while len(first.assignment()) > 1:
                    await asyncio.sleep(0.1)
                lost = next(queue for queue in await first.queues("t") if queue not in first.assignment())
                while lost not in second.assignment():
                    await asyncio.sleep(0.1)
                theirs = await other_host.run(second.fetch(3, timeout=5))
                await other_host.run(second.commit(theirs))
                await first.commit(batch)
                assert first._member.counters.stale_commits == 1
                assert first.committed(first.assignment()[0]) == 10
                with pytest.raises(UsageError, match="is not read by this member"):
                    first.position(lost)
                offsets = cluster.brokers[0].broker.offsets
                assert offsets.query("g", "t", lost.queue_id) == 3, "what its owner committed"
                await other_host.run(second.stop())

        await host.run(body())

    run(scenario)


@pytest.mark.seeds(5)
def test_members_that_come_and_go_lose_nothing_and_leave_nothing_uncommitted(seed: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        seen: Counter[str] = Counter()
        done = asyncio.Event()

        class Commits(RebalanceHooks):
            """Everything that was fetched has been dealt with when a rebalance comes: commit it."""

            consumer: PullConsumer

            async def on_revoked(self, queues: list[Queue]) -> None:
                await self.consumer.commit()

        async def member(number: int, life: float) -> None:
            hooks = Commits()
            host, consumer = pull(cluster, number, hooks=hooks)
            hooks.consumer = consumer

            async def body() -> None:
                loop = asyncio.get_running_loop()
                end = loop.time() + life
                async with consumer:
                    await consumer.subscribe("t", start_from="first")
                    while loop.time() < end and not done.is_set():
                        for message in await consumer.fetch(20, timeout=0.5):
                            seen[message.body.decode()] += 1
                            done.set() if len(seen) == 600 else None

            await host.run(body())

        async def sending() -> None:
            for part in range(6):
                await send(cluster, numbered(100 * part, 100 * part + 100))
                await asyncio.sleep(5)

        async def later(delay: float, number: int, life: float) -> None:
            await asyncio.sleep(delay)
            await member(number, life)

        await asyncio.gather(sending(), member(1, 300), later(4 + seed / 7, 2, 12), later(9 + seed / 3, 3, 14))
        assert set(seen) == set(numbered(0, 600))
        # RocketMQ does not wait for the old owner of a queue: who joins may get what that one has not committed yet.
        assert max(seen.values()) <= 5 and sum(seen.values()) < 2 * 600
        assert cluster.brokers[0].lag("g", "t") == 0

    run(scenario, seed, queues=4)


def test_fetch_goes_on_while_a_hook_hangs_and_the_hook_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: SimCluster) -> None:
        revoked: list[Queue] = []

        async def hang(queues: list[Queue]) -> None:
            revoked.extend(queues)
            await asyncio.sleep(3600)

        host, consumer = pull(cluster, 1, on_revoked=hang)
        other_host, other = pull(cluster, 2)

        async def body() -> None:
            async with consumer:
                await consumer.subscribe("t")
                await other_host.run(other.start())
                joining = other_host.start(other.subscribe("t"))
                while not revoked:
                    await asyncio.sleep(0.1)
                began = asyncio.get_running_loop().time()
                (kept,) = consumer.assignment()
                await send(cluster, ["for us", "for them"])
                (message,) = await consumer.fetch(timeout=2)
                assert message.queue == kept, "the queue that is being given up is not handed out any more"
                assert asyncio.get_running_loop().time() - began < 2
                await joining
                await other_host.run(other.stop())

        await host.run(body())

    run(scenario)
    assert "hang was not done with 1 queues after 5 s" in caplog.text


def test_a_hook_may_seek_and_may_not_wait_for_the_rebalance() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await send(cluster, numbered(0, 10), sharding_key="one queue")
        refused: list[UsageError] = []

        async def own_offsets(queues: list[Queue]) -> None:
            for queue in queues:
                await consumer.seek(queue, 7)
            for forbidden in (consumer.stop(), consumer.subscribe("other")):
                with pytest.raises(UsageError, match="from inside on_assigned") as info:
                    await forbidden
                refused.append(info.value)

        host, consumer = pull(cluster, on_assigned=own_offsets)

        async def body() -> None:
            await consumer.subscribe("t", start_from="first")
            async with consumer:
                assert bodies(await consumer.fetch()) == numbered(7, 10)

        await host.run(body())
        assert len(refused) == 2

    run(scenario, queues=1)


# -- seek


@pytest.mark.parametrize("delay", [0.0, 0.5, 30.0])
def test_a_seek_does_not_wait_for_the_pull_that_is_under_way(delay: float) -> None:
    async def scenario(cluster: SimCluster) -> None:
        await send(cluster, numbered(0, 6))
        host, consumer = pull(cluster)

        async def body() -> None:
            loop = asyncio.get_running_loop()
            async with consumer:
                await consumer.subscribe("t", start_from="first")
                assert bodies(await consumer.fetch()) == numbered(0, 6)
                (queue,) = consumer.assignment()
                if delay:
                    # The pull at the end is answered late, with what comes meanwhile.
                    await consumer.seek(queue, 5)
                    cluster.brokers[0].faults.next("LITE_PULL_MESSAGE", delay=delay)
                    await consumer.seek(queue, 4)
                    await asyncio.sleep(0.1)
                before = loop.time()
                await consumer.seek_to_begin(queue)
                assert consumer.position(queue) == 0
                assert bodies(await consumer.fetch(3)) == numbered(0, 3)
                assert loop.time() - before < 0.1
                await asyncio.sleep(delay + 1)
                assert bodies(await consumer.fetch()) == numbered(3, 6)
                assert await consumer.fetch() == []

        await host.run(body())

    run(scenario, queues=1)


def test_seeking_back_to_what_failed_and_committing_what_did_not() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await send(cluster, numbered(0, 6))
        host, consumer = pull(cluster)

        async def body() -> None:
            async with consumer:
                await consumer.subscribe("t", start_from="first")
                batch = await consumer.fetch()
                failed = batch[4]
                await consumer.seek(failed.queue, failed.offset)
                await consumer.commit(batch[:4])
                assert consumer.committed(failed.queue) == 4
                assert bodies(await consumer.fetch()) == numbered(4, 6)
                await consumer.seek_to_end(failed.queue)
                assert await consumer.fetch(timeout=0.5) == []
                await consumer.commit()
                assert consumer.committed(failed.queue) == 6

        await host.run(body())

    run(scenario, queues=1)


@pytest.mark.parametrize("wrong", [77, 10**9])
def test_an_offset_that_does_not_exist_is_put_right(wrong: int, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: SimCluster) -> None:
        await send(cluster, numbered(0, 6))
        host, consumer = pull(cluster)

        async def body() -> None:
            async with consumer:
                await consumer.subscribe("t", start_from="first")
                (queue,) = consumer.assignment()
                await consumer.seek(queue, wrong)
                assert await consumer.fetch() == []
                assert consumer.position(queue) == 6
                await send(cluster, ["m6"])
                assert bodies(await consumer.fetch(timeout=30)) == ["m6"]
                await consumer.commit()
                assert consumer.committed(queue) == 7

        await host.run(body())

    run(scenario, queues=1)
    assert f"offset {wrong} does not exist at the broker, going on at 6" in caplog.text


class NeverThere(ProcessorTable):
    """In front of a broker's handlers: every pull is told to go on at offset 5, wherever it asks."""

    def __init__(self, inner: ProcessorTable) -> None:
        super().__init__()
        self.inner = inner
        self.pulls = 0
        self.code, self.body = ResponseCode.PULL_OFFSET_MOVED, b""

    def codes(self) -> list[int]:
        return self.inner.codes()

    def dispatch(self, connection: Connection, request: RemotingCommand) -> None:
        if request.code == RequestCode.LITE_PULL_MESSAGE:
            self.pulls += 1
            header = PullMessageResponseHeader(0, 5, 0, 9)
            connection.reply(request, RemotingCommand.response(self.code, header, body=self.body))
        else:
            self.inner.dispatch(connection, request)


def test_a_broker_that_contradicts_itself_does_not_make_it_spin() -> None:
    async def scenario(cluster: SimCluster) -> None:
        server = cluster.brokers[0].broker.server
        server.processors = processors = NeverThere(server.processors)
        host, consumer = pull(cluster)

        async def body() -> None:
            async with consumer:
                await consumer.subscribe("t")
                assert await consumer.fetch(timeout=60) == []

        await host.run(body())
        assert 15 <= processors.pulls <= 25

    run(scenario, queues=1)


def test_an_answer_that_stays_damaged_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: SimCluster) -> None:
        server = cluster.brokers[0].broker.server
        server.processors = processors = NeverThere(server.processors)
        processors.code, processors.body = ResponseCode.SUCCESS, b"damaged" * 20
        host, consumer = pull(cluster)

        async def body() -> None:
            async with consumer:
                await consumer.subscribe("t")
                assert await consumer.fetch(timeout=20) == []

        await host.run(body())
        assert processors.pulls > 5

    run(scenario, queues=1)
    assert ["magic" in record.getMessage() for record in caplog.records] == [True]


# -- assign, and what goes over the wire


def test_assigned_queues_are_read_without_the_group() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await send(cluster, numbered(0, 20))
        asked = requests(cluster, RequestCode.GET_CONSUMER_LIST_BY_GROUP)
        host, consumer = pull(cluster)
        _, other = pull(cluster, 2)

        async def body() -> None:
            async with consumer, other:
                queues = await consumer.queues("t")
                await consumer.assign(queues[:1], start_from="first")
                await other.assign(queues[:2], start_from="first")
                assert len(await consumer.fetch()) == 10
                assert consumer.assignment() == queues[:1] and other.assignment() == queues[:2]
                await consumer.assign(queues[1:], start_from="first")
                assert {message.queue for message in await consumer.fetch()} == {queues[1]}
                await consumer.assign(queues)
                assert consumer.position(queues[1]) == 10, "it goes on as it is"
                for wrong in (Queue("t", queues[0].broker_name, 9), Queue("t", "nobody", 0)):
                    with pytest.raises(UsageError, match="does not exist or cannot be read"):
                        await consumer.assign([wrong])
                assert consumer.assignment() == queues
                with pytest.raises(UsageError, match="uses assign, so it cannot subscribe"):
                    await consumer.subscribe("t")
                await consumer.assign([])
                assert consumer.assignment() == [] and await consumer.fetch() == []

        await host.run(body())
        assert not asked

    run(scenario)


def test_another_filter_of_an_assigned_queue_counts_at_once() -> None:
    """A pull under way has the one from before: it was waited for, and passed over what came meanwhile."""

    async def scenario(cluster: SimCluster) -> None:
        host, consumer = pull(cluster)

        async def app() -> None:
            async with consumer:
                queues = await consumer.queues("t")
                await consumer.assign(queues, "a", start_from="first")
                assert await consumer.fetch(timeout=3) == []
                await consumer.assign(queues, "b")
                await send(cluster, ["new"], tag="b")
                assert bodies(await consumer.fetch(timeout=60)) == ["new"]

        await host.run(app())

    run(scenario, queues=1)


def test_what_the_brokers_see_of_it() -> None:
    async def scenario(cluster: SimCluster) -> None:
        pulls = requests(cluster, RequestCode.LITE_PULL_MESSAGE)
        beats = requests(cluster, RequestCode.HEART_BEAT)
        host, consumer = pull(cluster)

        async def body() -> None:
            async with consumer:
                assert not beats, "who reads nothing would still be counted in the group"
                await consumer.subscribe("t", "a || b")
                await asyncio.sleep(1)

        await host.run(body())
        told = decode_body(HeartbeatData, beats[-1].body, beats[-1].serialize_type)
        (group,) = told.consumers
        assert (group.group, group.consume_type) == ("g", "CONSUME_ACTIVELY")
        assert [each.topic for each in group.subscriptions] == ["t"]
        header = pulls[0].read(PullMessageRequestHeader)
        assert (header.sys_flag, header.sub_version, header.subscription) == (22, 0, "a || b")
        assert cluster.brokers[0].broker.consumers.get("g") is None, "it has unregistered"

    run(scenario)


def test_a_broker_from_before_lite_pulls_is_asked_under_the_old_code() -> None:
    async def scenario(cluster: SimCluster) -> None:
        await send(cluster, numbered(0, 3))
        lite = requests(cluster, RequestCode.LITE_PULL_MESSAGE)
        cluster.brokers[0].faults.next("LITE_PULL_MESSAGE", times=50, reply=ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        host, consumer = pull(cluster)

        async def body() -> None:
            async with consumer:
                await consumer.subscribe("t", start_from="first")
                assert bodies(await consumer.fetch(timeout=1)) == numbered(0, 3)
                await asyncio.sleep(60)

        await host.run(body())
        assert len(lite) == 1

    run(scenario, queues=1)


# -- life


def test_a_start_that_fails_says_why_and_leaves_nothing() -> None:
    async def scenario(cluster: SimCluster) -> None:
        host, consumer = pull(cluster)
        await consumer.subscribe("nowhere", missing_topics="error")
        with pytest.raises(TopicNotFoundError, match="'nowhere'"):
            await host.run(consumer.start())
        with pytest.raises(UsageError, match="was stopped"):
            await host.run(consumer.fetch())
        host, consumer = pull(cluster, 2)
        await consumer.assign([Queue("t", "broker-1", 0)])
        cluster.brokers[0].kill()
        with pytest.raises((NotConnectedError, TopicNotFoundError)):
            await host.run(consumer.start())
        await host.run(consumer.stop())

    run(scenario)


def test_a_stop_ends_a_fetch_that_waits() -> None:
    async def scenario(cluster: SimCluster) -> None:
        host, consumer = pull(cluster)

        async def body() -> None:
            async with consumer:
                await consumer.subscribe("t")
                waiting = [asyncio.ensure_future(consumer.fetch(timeout=60)) for _ in range(2)]
                await asyncio.sleep(1)
            for each in waiting:
                with pytest.raises(UsageError, match="stop"):
                    await each
            with pytest.raises(UsageError, match="was stopped"):
                await consumer.commit()

        await host.run(body())

    run(scenario)


@pytest.mark.parametrize("step", range(0, 120, 4))
def test_a_life_that_is_cancelled_anywhere_leaves_nothing(step: int) -> None:
    async def scenario(cluster: SimCluster) -> None:
        await send(cluster, numbered(0, 6))
        host, consumer = pull(cluster, config=PullConsumerConfig(auto_commit=True))

        async def body() -> None:
            async with consumer:
                await consumer.subscribe("t", start_from="first")
                batch = await consumer.fetch()
                await consumer.commit(batch)
                await consumer.seek_to_begin(batch[0].queue)
                await consumer.fetch()

        life = host.start(body())
        await asyncio.sleep(step * 0.0005)
        life.cancel()
        await asyncio.wait([life])
        await asyncio.sleep(5)
        assert cluster.brokers[0].broker.consumers.get("g") is None
        # simulate() fails when a task is left.

    run(scenario, step)
