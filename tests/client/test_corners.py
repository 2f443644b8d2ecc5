"""Two things at once that are each tested elsewhere: pauses and resets, lists and timeouts, retries of several topics,
cancelled stops, twins."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from aiorocket.client.admin.admin import Admin
from aiorocket.client.app import Client
from aiorocket.client.exits import DeadLetter, Retry
from aiorocket.client.group.rebalance_hooks import call_hook
from aiorocket.client.message import Message
from aiorocket.client.push.consumer import Consumer
from aiorocket.config import ClientConfig, ConsumerConfig
from aiorocket.errors import RocketError
from aiorocket.model import Queue
from aiorocket.testing import SimClock, Simulation, simulate
from aiorocket.testing.cluster import SimCluster
from aiorocket_protocol import RequestCode, SendMessageRequestHeaderV2
from aiorocket_protocol.batch import encode_batch

Scenario = Callable[[SimCluster], Awaitable[None]]
FIRST = Queue("t", "broker-1", 0)


def run(scenario: Scenario) -> None:
    async def main(sim: Simulation) -> None:
        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 2)
            await cluster.create_topic("u", 2)
            await scenario(cluster)

    simulate(main)


async def send(cluster: SimCluster, count: int, queue: Queue = FIRST) -> None:
    sender = await cluster.producer()
    for number in range(count):
        await sender.send(queue.topic, str(number), queue=queue)


def test_a_reset_of_a_paused_topic_counts_when_it_is_resumed() -> None:
    async def scenario(cluster: SimCluster) -> None:
        seen: list[int] = []

        async def on_message(message: Message) -> None:
            seen.append(message.offset)

        await send(cluster, 3)
        member = await cluster.consumer("g", "t", on_message)
        await asyncio.sleep(1)
        member.consumer.pause("t")
        await member.host.run(member.consumer._reset_offsets("t", {FIRST: 1}))
        await asyncio.sleep(30)
        assert seen == [0, 1, 2]
        assert FIRST in member.consumer.held()
        member.consumer.resume("t")
        await asyncio.sleep(1)
        assert seen == [0, 1, 2, 1, 2]

    run(scenario)


class Wordless(Exception):
    """Has no text: its __str__ fails."""

    def __str__(self) -> str:
        raise LookupError("no text")

    __repr__ = __str__


class WordlessBase(BaseException):
    __str__ = __repr__ = Wordless.__str__


class WordlessRetry(Retry):
    __str__ = __repr__ = Wordless.__str__


# A DeadLetter takes a text, and applications give it what they caught.
@pytest.mark.parametrize("error", [Wordless(), WordlessBase(), DeadLetter(Wordless())])  # type: ignore[arg-type]
@pytest.mark.parametrize("options", [{}, {"orderly": True}, {"order_by": lambda message: 1}])
def test_an_exception_without_a_text_costs_no_worker(options: dict[str, Any], error: BaseException) -> None:
    """Its words were asked for when its message was given up: the worker ended, and the message with it."""

    async def scenario(cluster: SimCluster) -> None:
        seen: list[str] = []

        async def on_message(message: Message) -> None:
            seen.append(message.body.decode())
            if message.body == b"0":
                raise error

        await send(cluster, 2)
        await cluster.consumer("g", "t", on_message, concurrency=1, max_attempts=2, **options)
        await cluster.settled({"g": ["t"]})
        assert set(seen) == {"0", "1"}
        (dead,) = cluster.note_dead_letters("g")["g"]
        assert dead.properties["DLQ_ERROR"] in ("Wordless", "RuntimeError", "DeadLetter")
        assert "whose text cannot be had" in dead.properties["DLQ_REASON"]

    run(scenario)


@pytest.mark.parametrize("options", [{}, {"orderly": True}, {"order_by": lambda message: 1}])
def test_a_generator_exit_of_the_applications_own_costs_no_worker(options: dict[str, Any]) -> None:
    """It is what closes a coroutine that waits; raised by a listener that runs it ended the worker, and an orderly
    queue was nobody's any more."""

    async def scenario(cluster: SimCluster) -> None:
        seen: list[str] = []

        async def on_message(message: Message) -> None:
            seen.append(message.body.decode())
            if message.body == b"0":
                raise GeneratorExit

        await send(cluster, 2)
        await cluster.consumer("g", "t", on_message, concurrency=1, max_attempts=2, **options)
        await cluster.settled({"g": ["t"]})
        assert set(seen) == {"0", "1"}
        assert len(cluster.note_dead_letters("g")["g"]) == 1

    run(scenario)


def test_a_generator_exit_is_a_failure_of_who_runs_and_the_end_of_who_waits() -> None:
    async def main(sim: Simulation) -> None:
        async def hook(queues: list[Queue]) -> None:
            raise GeneratorExit

        await call_hook(hook, [FIRST], 1.0)

        async def waits(queues: list[Queue]) -> None:
            await asyncio.Event().wait()

        waiting = call_hook(waits, [FIRST], 1.0)
        task = asyncio.ensure_future(waiting)
        await asyncio.sleep(0.1)
        waiting.close()
        task.cancel()
        await asyncio.wait([task])

    simulate(main)


@pytest.mark.parametrize(
    ("error", "result", "said"),
    [
        (Wordless(), "CR_THROW_EXCEPTION", "Wordless"),
        (WordlessBase(), "CR_THROW_EXCEPTION", "WordlessBase"),
        (GeneratorExit(), "CR_THROW_EXCEPTION", "it ended with GeneratorExit"),
        (ValueError("half a pair: \ud800"), "CR_THROW_EXCEPTION", "half a pair: ?"),
        (WordlessRetry(), "CR_LATER", "WordlessRetry, whose text cannot be had"),
        (DeadLetter("\ud800"), "CR_LATER", "?"),
    ],
)
def test_whatever_a_listener_raises_is_told_who_had_it_called(
    caplog: pytest.LogCaptureFixture, error: BaseException, result: str, said: str
) -> None:
    caplog.set_level(logging.CRITICAL, "aiorocket.client")  # pytest cannot hand on half a pair from process to process

    async def scenario(cluster: SimCluster) -> None:
        async def on_message(message: Message) -> None:
            raise error

        await cluster.consumer("g", "t", on_message)
        await send(cluster, 1)

        async def ask() -> None:
            async with Admin(nameservers=cluster.endpoints, env=cluster.sim.env()) as admin:
                (stored,) = [each async for each in admin.messages.by_time("t")]
                ((member, *_), *_) = (await admin.groups.members("g")).members
                told = await admin.messages.consume_directly("g", member, stored)
                assert told.result == result and said in told.remark

        await cluster.sim.host("10.2.0.1").run(ask())

    run(scenario)


async def send_batch(cluster: SimCluster, properties: bytes) -> None:
    """Two messages, "bad" with these properties and "good"."""

    async def send() -> None:
        async with Client(nameservers=cluster.endpoints, env=cluster.sim.env()) as client:
            header = SendMessageRequestHeaderV2("p", "t", "TBW102", 4, 0, 0, 1, 0, batch=True)
            body = encode_batch([(b"bad", 0, properties), (b"good", 0, b"")])
            await client.session.call(cluster.brokers[0].endpoint, RequestCode.SEND_BATCH_MESSAGE, header, body=body)

    await cluster.sim.host("10.2.0.1").run(send())


@pytest.mark.parametrize("serializer", ["auto", "json"])
def test_a_dead_letter_has_all_properties_that_its_broker_takes(serializer: str) -> None:
    """To Apache's brokers it goes as a message with the reason first, which needs room."""

    async def scenario(cluster: SimCluster) -> None:
        async def on_message(message: Message) -> None:
            raise ValueError("no")

        await send_batch(cluster, b"long\1" + b"x" * 32_400 + b"\2")
        config = cluster.client_config
        config = replace(config, remoting=replace(config.remoting, serializer=serializer))
        await cluster.consumer("g", "t", on_message, max_attempts=1, client=config)
        await cluster.settled({"g": ["t"]})
        dead = {each.body: each for each in cluster.note_dead_letters("g")["g"]}
        assert len(dead[b"bad"].properties["long"]) == 32_400

    run(scenario)


@pytest.mark.parametrize("properties", [b"city\1\xc4\xe3\2", b"UNIQ_KEY\1\xff\2", b"long\1" + b"x" * 32_700 + b"\2"])
@pytest.mark.parametrize("options", [{}, {"orderly": True}])
def test_properties_that_no_copy_can_have_keep_no_message_from_the_dead_letters(
    options: dict[str, Any], properties: bytes
) -> None:
    """A batch is stored as it comes. What was not text, or left no room, kept its queue standing for ever."""

    async def scenario(cluster: SimCluster) -> None:
        seen: list[bytes] = []

        async def on_message(message: Message) -> None:
            seen.append(message.body)
            if message.body == b"bad":
                raise ValueError("no")

        await send_batch(cluster, properties)
        await cluster.consumer("g", "t", on_message, concurrency=1, max_attempts=2, **options)
        await cluster.settled({"g": ["t"]})
        assert Counter(seen) == {b"bad": 2, b"good": 1}
        assert [dead.body for dead in cluster.note_dead_letters("g")["g"]] == [b"bad"]

    run(scenario)


def test_retries_of_two_topics_go_each_to_its_listener() -> None:
    async def scenario(cluster: SimCluster) -> None:
        seen: list[tuple[str, str, int]] = []

        def listener(name: str) -> Callable[[Message], Awaitable[None]]:
            async def on_message(message: Message) -> None:
                seen.append((name, message.topic, message.attempt))
                if message.attempt == 1:
                    raise ValueError("once")

            return on_message

        await send(cluster, 1)
        await send(cluster, 1, FIRST._replace(topic="u"))
        await cluster.consumer("g", {"t": listener("of t"), "u": listener("of u")})
        await asyncio.sleep(15)
        assert sorted(seen) == [("of t", "t", 1), ("of t", "t", 2), ("of u", "u", 1), ("of u", "u", 2)]

    run(scenario)


def test_what_cannot_be_sent_back_while_the_start_still_waits_for_a_topic_comes_again() -> None:
    """Listeners run from the first queues on; what nobody took back then must not stay unfinished for ever."""

    async def scenario(cluster: SimCluster) -> None:
        seen: list[tuple[int, bool]] = []

        async def on_message(message: Message) -> None:
            seen.append((message.attempt, member.consumer.state().running))
            if message.attempt == 1:
                raise ValueError("once")

        async def create() -> None:
            await asyncio.sleep(7)
            await cluster.create_topic("late", 1)

        await send(cluster, 1)
        faults = cluster.brokers[0].faults
        faults.next("CONSUMER_SEND_MSG_BACK", reply="NO_PERMISSION")
        faults.next("SEND_MESSAGE_V2", reply="NO_PERMISSION", times=3)
        member = await cluster.consumer("g", {"t": on_message, "late": on_message}, start=False, missing_topics="error")
        creating = asyncio.ensure_future(create())
        await member.start()
        await creating
        await asyncio.sleep(1)
        assert seen == [(1, False), (2, False)]
        assert member.consumer.state().cached == 0

    run(scenario)


def test_the_start_of_each_call_is_a_property_that_no_copy_of_the_message_keeps() -> None:
    """CONSUME_START_TIME, as Java's listeners find it; the second way back to the broker would store it."""

    async def scenario(cluster: SimCluster) -> None:
        clock = SimClock(cluster.sim.loop)
        told: list[tuple[int, int]] = []
        stored: list[bytes] = []

        async def on_message(message: Message) -> None:
            began = clock.wall_ms()
            stored.append(message.raw_properties)
            start = message.properties["CONSUME_START_TIME"]
            await asyncio.sleep(3)
            assert message.properties["CONSUME_START_TIME"] == start
            assert message.properties["UNIQ_KEY"] == message.msg_id
            told.append((int(start), began))
            if message.attempt < 3:
                raise ValueError("not yet")

        def key(message: Message) -> str:
            # Asked for before the call, there is nothing to tell yet.
            assert "CONSUME_START_TIME" not in message.properties
            return "k"

        await send(cluster, 1)
        faults = cluster.brokers[0].faults
        # The first failure finds neither way, the second one the second.
        faults.next("CONSUMER_SEND_MSG_BACK", reply="NO_PERMISSION", times=2)
        faults.next("SEND_MESSAGE_V2", reply="NO_PERMISSION", times=3)
        await cluster.consumer("g", "t", on_message)
        await cluster.consumer("h", "t", on_message, order_by=key)
        await asyncio.sleep(60)
        assert all(abs(start - began) <= 1 for start, began in told), told
        assert len({start for start, _ in told}) == len(told) == 6
        assert not [each for each in stored if b"CONSUME_START_TIME" in each]

    run(scenario)


@pytest.mark.parametrize("consume_timeout", [120.0, 20.0])
def test_a_message_that_nobody_takes_back_has_one_call_at_a_time_each_with_a_timeout_of_its_own(
    consume_timeout: float,
) -> None:
    """While the broker refuses it is tried again here, perhaps by the same worker. A call that is too long is the
    message's only one until a broker takes it back."""

    async def scenario(cluster: SimCluster) -> None:
        calls: list[float] = []
        refusing = True

        async def on_message(message: Message) -> None:
            calls.append(cluster.sim.loop.time())
            await asyncio.sleep(50 if refusing else 1)
            if refusing:
                raise ValueError("no")

        await send(cluster, 1)
        faults = cluster.brokers[0].faults
        faults.next("CONSUMER_SEND_MSG_BACK", reply="NO_PERMISSION", times=10_000)
        faults.next("SEND_MESSAGE_V2", reply="NO_PERMISSION", times=10_000)
        config = ConsumerConfig(consume_timeout=consume_timeout, local_retry_delay=0.1)
        member = await cluster.consumer("g", "t", on_message, config=config)
        await asyncio.sleep(590)
        assert len(calls) == 12
        assert all(50 < later - earlier < 51 for earlier, later in pairwise(calls))
        assert member.consumer._member.counters.timed_out == 0
        refusing = False
        faults.clear()
        await asyncio.sleep(60)
        # The call that runs at that moment is too long, and delivered again, or it ends well.
        too_long = consume_timeout == 20
        counters = member.consumer._member.counters
        assert (counters.timed_out, counters.retried, counters.late) == (too_long, too_long, too_long)
        assert len(calls) == 12 + too_long
        assert member.consumer.state().cached == 0

    run(scenario)


def test_a_list_that_fails_after_the_consume_timeout_fails_for_nobody() -> None:
    async def scenario(cluster: SimCluster) -> None:
        seen: list[list[int]] = []

        async def on_messages(messages: list[Message]) -> None:
            seen.append([message.attempt for message in messages])
            if len(seen) == 1:
                await asyncio.sleep(2000)
                raise ValueError("too late")

        await send(cluster, 3)
        host = cluster.sim.host("10.5.5.5")
        consumer = Consumer("g", nameservers=cluster.endpoints, env=cluster.sim.env())
        consumer.listener("t", start_from="first", batch_size=3)(on_messages)
        await host.run(consumer.start())
        await asyncio.sleep(3000)
        assert seen[0] == [1, 1, 1]
        assert [attempt for each in seen[1:] for attempt in each] == [2, 2, 2]
        counters = consumer.state().counters
        assert (counters.timed_out, counters.retried, counters.late) == (3, 3, 3)
        await host.run(consumer.stop())

    run(scenario)


def test_a_call_that_outlives_its_queue_commits_nothing_and_the_next_owner_repeats_it_after_it() -> None:
    async def scenario(cluster: SimCluster) -> None:
        calls: list[tuple[str, int, float]] = []

        def handler(name: str) -> Callable[[Message], Awaitable[None]]:
            async def on_message(message: Message) -> None:
                began = cluster.sim.loop.time()
                await asyncio.sleep(4)
                if message.queue == FIRST._replace(queue_id=1):
                    calls.append((name, message.offset, began))

            return on_message

        await send(cluster, 4)
        await send(cluster, 4, FIRST._replace(queue_id=1))
        impatient = ConsumerConfig(revoke_timeout=1.0)
        members = [await cluster.consumer("g", "t", handler("one"), orderly=True, config=impatient)]
        await asyncio.sleep(5)
        members.append(await cluster.consumer("g", "t", handler("two"), orderly=True, config=impatient))
        await asyncio.sleep(60)
        offsets = [offset for _, offset, _ in calls]
        begins = [began for _, _, began in calls]
        assert offsets in ([0, 1, 1, 2, 3], [0, 1, 2, 3])
        assert all(later - earlier > 3.999 for earlier, later in pairwise(begins)), begins
        assert sum(member.consumer._member.counters.late for member in members) == len(offsets) - 4 + (
            len(offsets) == 4
        )

    run(scenario)


@pytest.mark.parametrize("after", [0.0, 0.0005, 0.002, 0.5, 2.0, 3.001])
def test_a_stop_that_is_cancelled_has_stopped_all_the_same(after: float) -> None:
    async def scenario(cluster: SimCluster) -> None:
        async def on_message(message: Message) -> None:
            await asyncio.sleep(10)

        await send(cluster, 2)
        host = cluster.sim.host("10.5.5.5")
        config = ConsumerConfig(drain_timeout=3.0)
        consumer = Consumer("g", nameservers=cluster.endpoints, env=cluster.sim.env(), config=config)
        consumer.listener("t", start_from="first")(on_message)
        await host.run(consumer.start())
        await asyncio.sleep(1)
        stopping = host.start(consumer.stop())
        await asyncio.sleep(after)
        stopping.cancel()
        await asyncio.wait([stopping])
        await asyncio.sleep(1)
        assert not [task for task in cluster.sim.loop.living_tasks() if task.get_name().startswith("consumer-g")]
        assert not consumer.state().running
        again = Counter[str]()

        async def next_member(message: Message) -> None:
            again[message.body.decode()] += 1

        await cluster.consumer("g", "t", next_member)
        await asyncio.sleep(1)
        assert again == {"0": 1, "1": 1}

    run(scenario)


def test_broadcasting_twins_of_one_name_both_get_everything() -> None:
    """They share a file, which is a mistake, but not one that loses messages while they run."""

    async def scenario(cluster: SimCluster) -> None:
        seen: list[tuple[int, str]] = []

        def handler(number: int) -> Callable[[Any], Awaitable[None]]:
            async def on_message(message: Message) -> None:
                seen.append((number, message.body.decode()))

            return on_message

        config, client = ConsumerConfig(message_model="broadcasting"), ClientConfig(instance="twin")
        for number in range(2):
            await cluster.consumer("g", "t", handler(number), config=config, client=client, address="10.5.5.5")
        await send(cluster, 3)
        await asyncio.sleep(30)
        assert sorted(seen) == [(number, body) for number in range(2) for body in "012"]

    run(scenario)


@pytest.mark.parametrize("after", [0.0003, 0.001, 0.002])
def test_a_stop_in_the_middle_of_a_subscription_lets_listeners_end(after: float) -> None:
    """The round of the subscription goes on for a while: it must not give up what the stop is still draining."""

    async def scenario(cluster: SimCluster) -> None:
        done: list[bytes] = []
        revoked: list[int] = []

        async def on_message(message: Message) -> None:
            await asyncio.sleep(8)
            done.append(message.body)

        async def on_revoked(queues: Sequence[Queue]) -> None:
            revoked.append(len(queues))

        await send(cluster, 2)
        host = cluster.sim.host("10.5.5.5")
        consumer = Consumer("g", nameservers=cluster.endpoints, env=cluster.sim.env(), on_revoked=on_revoked)
        consumer.listener("t", start_from="first")(on_message)
        await host.run(consumer.start())
        await asyncio.sleep(1)
        subscription = host.start(consumer.subscribe("nowhere"))
        await asyncio.sleep(after)
        await host.run(consumer.stop())
        with pytest.raises((RocketError, asyncio.CancelledError)):
            await subscription
        assert (len(done), len(revoked), consumer._member.counters.late) == (2, 1, 0)

    run(scenario)
