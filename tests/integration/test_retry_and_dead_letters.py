"""Retries and dead letters, as RocketMQ's documentation tells them: a message whose consumer failed comes again, later
each time; one that keeps failing is put aside, where people can look at it and send it again.

A broker's levels are 1 s, 5 s, 10 s, 30 s, 1 min ... 2 h; here each is some milliseconds long, and its number is what
counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aiorocket import (
    Client,
    ClientConfig,
    Consumer,
    ConsumerConfig,
    DeadLetter,
    Embedded,
    Message,
    RemotingConfig,
    Retry,
    Skip,
)
from aiorocket.broker.core.counters import SendBack
from aiorocket.client.admin.admin import Admin
from aiorocket.client.admin.dead_letters import DeadMessage
from aiorocket.testing import WireFaults
from aiorocket.testing.stored import stored_messages
from aiorocket_protocol import CreateTopicRequestHeader, RequestCode

Until = Callable[[Callable[[], bool]], Awaitable[None]]


@pytest.fixture
def sent_back(mq: Embedded) -> list[SendBack]:
    """What consumers gave back to the broker, as it tells its send-back hooks."""
    told: list[SendBack] = []
    mq.broker.on_send_back.append(told.append)
    return told


@pytest.fixture
def faults(mq: Embedded) -> WireFaults:
    faults = WireFaults()
    faults.attach(mq.broker.server)
    return faults


def failing(mq: Embedded, error: Callable[[Message], Exception | None], **options: Any) -> tuple[Consumer, list[int]]:
    """A member of group "billing" whose listener ends with ``error(message)``, and the attempts it saw."""
    attempts: list[int] = []
    consumer = mq.consumer("billing", config=options.pop("config", None))

    @consumer.listener("orders", start_from="first", **options)
    async def bill(message: Message) -> None:
        attempts.append(message.attempt)
        found = error(message)
        if found is not None:
            raise found

    return consumer, attempts


async def send(mq: Embedded, *bodies: bytes, **options: Any) -> list[str]:
    """Send these to "orders"; their offset ids."""
    await mq.create_topic("orders", queues=1)
    async with mq.producer("shop") as producer:
        return [(await producer.send("orders", body, **options)).offset_msg_id for body in bodies]


async def buried(mq: Embedded, group: str = "billing") -> list[tuple[bytes, str, int]]:
    """The dead letters of a group: body, where from, failed deliveries."""
    async with Admin(nameservers=mq.nameservers) as admin:
        return [(each.body, each.origin_topic, each.reconsume_times) async for each in admin.dlq(group).messages()]


async def configure(mq: Embedded, **settings: Any) -> None:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP for group "billing", as mqadmin's updateSubGroup sends it."""
    body = json.dumps({"groupName": "billing", **settings}).encode()
    async with mq.client() as client:
        await client.session.call(mq.broker.address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body=body)


# -- again, later --


async def test_each_retry_waits_a_level_longer_and_the_seventeenth_failure_is_the_last(
    mq: Embedded, until: Until, sent_back: list[SendBack]
) -> None:
    """Levels 3 to 18: 10 s, 30 s, 1 min, and at last 2 h; four hours and three quarters in all."""
    (origin,) = await send(mq, b"42 EUR")
    consumer, attempts = failing(mq, lambda message: ValueError("the bank is closed"))
    async with consumer:
        await until(lambda: consumer.state().counters.dead_lettered == 1)
    assert attempts == list(range(1, 18))
    assert [each.delay_level for each in sent_back] == [*range(3, 19), 0]
    assert [each.destination for each in sent_back] == ["%RETRY%billing"] * 16 + ["%DLQ%billing"]
    # Each retry is stored as a new message; all of them know the first one.
    assert {each.origin_message_id for each in sent_back} == {origin}
    assert {each.topic for each in sent_back} == {"orders"}
    assert await buried(mq) == [(b"42 EUR", "orders", 17)]


async def test_a_retry_is_the_same_message(mq: Embedded, until: Until) -> None:
    """Its listener sees the topic it subscribed to, and all that the producer said; which queue it came from is the
    only thing that tells."""
    await mq.create_topic("orders", queues=1)
    seen: list[Message] = []
    consumer = mq.consumer("billing")

    @consumer.listener("orders", start_from="first")
    async def bill(message: Message) -> None:
        seen.append(message)
        if message.attempt == 1:
            raise ValueError("once")

    async with consumer, mq.producer("shop") as producer:
        receipt = await producer.send(
            "orders", b"42 EUR" * 1000, tag="paid", keys=["o-1", "o-2"], properties={"tenant": "acme"}, sharding_key="k"
        )
        await until(lambda: len(seen) == 2)

    def said(message: Message) -> Any:
        return (
            message.topic, message.body, message.tag, message.keys, message.properties["tenant"], message.sharding_key,
            message.msg_id, message.born_timestamp, message.born_host,
        )  # fmt: skip

    first, second = seen
    assert said(first) == said(second) and second.msg_id == receipt.msg_id
    assert (first.queue.topic, second.queue.topic) == ("orders", "%RETRY%billing")
    assert second.properties["ORIGIN_MESSAGE_ID"] == receipt.offset_msg_id
    assert (first.attempt, second.attempt, second.reconsume_times) == (1, 2, 1)


@pytest.mark.parametrize(
    ("exit_", "level"),
    [
        (Retry(), 3),
        (Retry(after=0.5), 1),
        (Retry(after=1), 1),
        (Retry(after=10), 3),
        (Retry(after=11), 4),
        (Retry(after=3600), 17),
        (Retry(after=86_400), 18),
        (Retry(delay_level=7), 7),
    ],
    ids=str,
)
async def test_a_listener_may_say_when(
    mq: Embedded, until: Until, sent_back: list[SendBack], exit_: Retry, level: int
) -> None:
    """In seconds, rounded up to a level (two hours at most), or as a level."""
    await send(mq, b"42 EUR")
    consumer, attempts = failing(mq, lambda message: exit_ if message.attempt == 1 else None)
    async with consumer:
        await until(lambda: attempts == [1, 2])
    assert [each.delay_level for each in sent_back] == [level]


async def test_a_retry_belongs_to_its_group_alone(mq: Embedded, until: Until) -> None:
    await send(mq, b"42 EUR")
    consumer, attempts = failing(mq, lambda message: Retry() if message.attempt < 3 else None)
    others: list[int] = []
    reports = mq.consumer("reports")

    @reports.listener("orders", start_from="first")
    async def report(message: Message) -> None:
        others.append(message.attempt)

    async with consumer, reports:
        await until(lambda: attempts == [1, 2, 3] and bool(others))
    assert others == [1]


async def test_skip_is_neither_success_nor_failure(mq: Embedded, until: Until, sent_back: list[SendBack]) -> None:
    await send(mq, b"not for us")
    consumer, attempts = failing(mq, lambda message: Skip("another country"))
    async with consumer:
        await until(lambda: consumer.state().counters.skipped == 1)
        await until(lambda: consumer.state().cached == 0)
    assert attempts == [1] and sent_back == []
    assert mq.broker.offsets.query("billing", "orders", 0) == 1


# -- who limits --


@pytest.mark.parametrize("limit", [1, 2, 4])
async def test_a_listener_limits_its_attempts(mq: Embedded, until: Until, limit: int) -> None:
    await send(mq, b"42 EUR")
    consumer, attempts = failing(mq, lambda message: ValueError("no"), max_attempts=limit)
    async with consumer:
        await until(lambda: consumer.state().counters.dead_lettered == 1)
    assert attempts == list(range(1, limit + 1))
    assert await buried(mq) == [(b"42 EUR", "orders", limit)]


async def test_the_clients_limit_goes_before_the_groups(mq: Embedded, until: Until) -> None:
    """Clients since 3.4.9 send their limit with every failure, and it is the one that holds: retryMaxTimes of the group
    is for those that do not."""
    await configure(mq, retryMaxTimes=0)
    await send(mq, b"42 EUR")
    consumer, attempts = failing(mq, lambda message: ValueError("no"), max_attempts=3)
    async with consumer:
        await until(lambda: consumer.state().counters.dead_lettered == 1)
    assert attempts == [1, 2, 3]


async def test_a_group_without_retry_queues_gets_no_retries(
    mq: Embedded, until: Until, sent_back: list[SendBack]
) -> None:
    """retryQueueNums 0: the broker thanks for the message and forgets it. Nor is it a dead letter."""
    await configure(mq, retryQueueNums=0)
    await send(mq, b"42 EUR", b"good")
    consumer, attempts = failing(mq, lambda message: ValueError("no") if message.body == b"42 EUR" else None)
    async with consumer:
        await until(lambda: consumer.state().counters.consumed == 2)
    assert (attempts, sent_back, await buried(mq)) == ([1, 1], [], [])
    retries = mq.broker.topics.get("%RETRY%billing")
    assert retries is not None and retries.read_queues == retries.write_queues == 0
    assert mq.broker.offsets.query("billing", "orders", 0) == 2


async def test_a_group_without_retry_queues_comes_to_rest(mq: Embedded, faults: WireFaults) -> None:
    """A retry topic that nobody can read is no reason to look at everything again every second."""
    await configure(mq, retryQueueNums=0)
    await send(mq, b"42 EUR")
    consumer, _ = failing(mq, lambda message: None, config=ConsumerConfig(rebalance_retry=0.01))
    async with consumer:
        looks: list[int] = []
        faults.watch(lambda connection, request: looks.append(request.code))
        async with asyncio.timeout(30):
            while True:
                looks.clear()
                await asyncio.sleep(0.2)
                if RequestCode.GET_CONSUMER_LIST_BY_GROUP not in looks:
                    break


async def test_a_group_may_have_several_retry_queues(mq: Embedded, until: Until) -> None:
    await configure(mq, retryQueueNums=3)
    await send(mq, *(b"%d" % number for number in range(40)))
    queues: set[int] = set()

    def once(message: Message) -> Exception | None:
        if message.attempt == 1:
            return ValueError("once")
        queues.add(message.queue.queue_id)
        return None

    consumer, attempts = failing(mq, once)
    async with consumer:
        await until(lambda: attempts.count(2) == 40)
    assert queues == {0, 1, 2}


# -- when the broker does not take it back --


async def test_a_broker_that_refuses_gets_the_message_as_a_new_one(
    mq: Embedded, until: Until, faults: WireFaults, sent_back: list[SendBack]
) -> None:
    """The message's own broker may be away or ill; any other broker with the group's retry topic will do then."""
    (origin,) = await send(mq, b"42 EUR" * 1000, tag="paid", properties={"tenant": "acme"})
    faults.next("CONSUMER_SEND_MSG_BACK", reply="SYSTEM_ERROR", times=2)
    seen: list[tuple[int, str, str, str, str | None]] = []

    def twice(message: Message) -> Exception | None:
        kept = message.properties
        seen.append((message.attempt, message.topic, message.tag, kept["tenant"], kept.get("ORIGIN_MESSAGE_ID")))
        assert message.body == b"42 EUR" * 1000
        return ValueError("no") if message.attempt < 3 else None

    consumer, attempts = failing(mq, twice)
    async with consumer:
        await until(lambda: attempts == [1, 2, 3])
        counters = consumer.state().counters
    assert [each[:4] for each in seen] == [(attempt, "orders", "paid", "acme") for attempt in (1, 2, 3)]
    # The fall-back knows the message by the id its producer gave it where the broker takes that of its place; both are
    # what Java's client does, and either finds it again.
    assert seen[0][4] is None and seen[1][4] == seen[2][4] and seen[1][4] not in (None, origin)
    assert (counters.retried, counters.send_back_failed, sent_back) == (2, 0, [])


async def test_what_nobody_takes_back_is_tried_again_here(mq: Embedded, until: Until, faults: WireFaults) -> None:
    """After five seconds (``local_retry_delay``), as one more attempt; nothing is lost and nothing passed over."""
    await send(mq, b"42 EUR")
    async with mq.producer("shop") as producer:
        faults.next("CONSUMER_SEND_MSG_BACK", reply="NO_PERMISSION", times=2)
        faults.next("SEND_MESSAGE_V2", reply="NO_PERMISSION", times=2 * 3)  # each of three attempts
        consumer, attempts = failing(
            mq, lambda message: ValueError("no") if message.attempt < 3 else None,
            config=ConsumerConfig(local_retry_delay=0.05),
        )  # fmt: skip
        async with consumer:
            await until(lambda: attempts == [1, 2, 3])
            await until(lambda: consumer.state().cached == 0)
            assert consumer.state().counters.send_back_failed == 2
        await producer.send("orders", b"more")
    assert mq.broker.offsets.query("billing", "orders", 0) == 1


async def test_a_retry_topic_that_may_not_be_written_refuses(mq: Embedded, until: Until, faults: WireFaults) -> None:
    """Permissions hold for retries too; the message then waits here."""
    await send(mq, b"42 EUR")
    refused: list[int] = []
    for request in ("CONSUMER_SEND_MSG_BACK", "SEND_MESSAGE_V2"):
        faults.listen(request, lambda connection, request, answer: refused.append(answer.code))
    async with mq.client() as client:
        readable = CreateTopicRequestHeader("%RETRY%billing", "TBW102", 1, 1, 4, "SINGLE_TAG", False)
        await client.session.call(mq.broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC, readable)
    consumer, attempts = failing(
        mq, lambda message: ValueError("no") if message.attempt == 1 else None,
        config=ConsumerConfig(local_retry_delay=0.05),
    )  # fmt: skip
    async with consumer:
        await until(lambda: attempts == [1, 2])
    assert refused and refused[0] == 16


# -- given up --


async def test_a_listener_may_give_up_at_once(mq: Embedded, until: Until, sent_back: list[SendBack]) -> None:
    await send(mq, b"not a number")
    consumer, attempts = failing(mq, lambda message: DeadLetter("will never parse"))
    async with consumer:
        await until(lambda: consumer.state().counters.dead_lettered == 1)
    assert attempts == [1] and [each.dead for each in sent_back] == [True]
    assert await buried(mq) == [(b"not a number", "orders", 1)]


async def test_dead_letters_are_never_delivered_again(mq: Embedded, until: Until) -> None:
    """Not by a restart of the group, not by a reset of its offsets on the retry topic: they are in a topic of their
    own, which no consumer group reads by itself."""
    await send(mq, b"bad", b"good")
    consumer, attempts = failing(mq, lambda message: DeadLetter() if message.body == b"bad" else None)
    async with consumer:
        await until(lambda: consumer.state().counters.consumed == 2)
    again, attempts = failing(mq, lambda message: None)
    async with again:
        await send(mq, b"later")
        await until(lambda: attempts == [1])
        assert {queue.topic for queue in again.held()} == {"orders", "%RETRY%billing"}
    assert attempts == [1]
    assert await buried(mq) == [(b"bad", "orders", 1)]


async def test_dead_letters_survive_a_restart_of_the_broker(durable: Embedded, until: Until) -> None:
    await send(durable, b"bad")
    consumer, _ = failing(durable, lambda message: DeadLetter("for people to see"))
    async with consumer:
        await until(lambda: consumer.state().counters.dead_lettered == 1)
    await durable.restart()
    assert await buried(durable) == [(b"bad", "orders", 1)]


async def test_people_look_at_them_mend_the_listener_and_send_them_again(mq: Embedded, until: Until) -> None:
    """``aiorocket dlq list|show|replay billing`` on the command line. A replay sends each once, however often it is
    asked for, and marks what it sent; the dead letters stay where they are."""
    await send(mq, b"41 EUR", b"42 EUR", b"1 GBP")
    broken, _ = failing(mq, lambda message: DeadLetter("unknown currency"))
    async with broken:
        await until(lambda: broken.state().counters.dead_lettered == 3)
    billed: list[bytes] = []
    mended = mq.consumer("billing")

    @mended.listener("orders", start_from="first")
    async def bill(message: Message) -> None:
        billed.append(message.body)

    async with Admin(nameservers=mq.nameservers) as admin, mended:
        letters = admin.dlq("billing")

        def in_euro(message: DeadMessage) -> bool:
            return b"EUR" in message.body

        dry = await letters.replay(where=in_euro, dry_run=True)
        assert (dry.selected, dry.sent) == (2, 0)
        report = await letters.replay(where=in_euro, confirm=True)
        assert (report.sent, report.failed, report.skipped) == (2, 0, 0)
        await until(lambda: sorted(billed) == [b"41 EUR", b"42 EUR"])
        rest = await letters.replay(confirm=True)
        assert (rest.sent, rest.skipped) == (1, 2)
        await until(lambda: len(billed) == 3)
        assert [(each.body, each.replayed) async for each in letters.messages()] == [
            (b"41 EUR", True), (b"42 EUR", True), (b"1 GBP", True)
        ]  # fmt: skip


class Unpaid(Exception):
    """An error of the application's."""


def given_up(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "to the dead letters" in each.getMessage()]


@pytest.mark.parametrize("kind", ["listener", "orderly", "keyed"])
@pytest.mark.parametrize("serializer", ["auto", "json"])
async def test_a_dead_letter_says_why_and_who(
    mq: Embedded, until: Until, caplog: pytest.LogCaptureFixture, kind: str, serializer: Any
) -> None:
    """A broker with JSON headers may be Apache's, which copies what it has: there the consumer sends the copy."""
    config = ClientConfig(nameservers=mq.nameservers, remoting=RemotingConfig(serializer=serializer))
    async with Client(config=config, group="billing") as client, Admin(client=client) as admin:
        consumer = client.consumer(config=ConsumerConfig(suspend=0.01))
        await mq.create_topic("elsewhere")
        await mq.create_topic("orders", queues=1)
        options: dict[str, Any] = {"order_by": lambda message: message.sharding_key} if kind == "keyed" else {}
        register = consumer.orderly if kind == "orderly" else consumer.listener

        @register("orders", start_from="first", max_attempts=2, **options)
        async def bill(message: Message) -> None:
            if message.body == b"explicit":
                raise DeadLetter("no such account")
            raise Unpaid("42 EUR\nare missing \x01" + "!" * 600)

        async with consumer:
            ids = await send(mq, b"failing", b"explicit", sharding_key="k", properties={"tenant": "a"})
            await until(lambda: len(stored_messages(mq.broker.store, "%DLQ%billing")) == 2)
            letters = {each.body: [each] async for each in admin.dlq("billing").messages()}
            (unpaid,), (explicit,) = letters[b"failing"], letters[b"explicit"]
            assert unpaid.error == "Unpaid" and unpaid.host == client.client_id
            assert unpaid.reason.startswith("42 EUR are missing  !!!") and len(unpaid.reason) == 500
            assert (explicit.error, explicit.reason) == ("DeadLetter", "no such account")
            assert unpaid.properties["tenant"] == "a" and unpaid.origin_topic == "orders"
            assert {unpaid.origin_msg_id, explicit.origin_msg_id} <= {
                *ids,
                *(each.msg_id for each in (unpaid, explicit)),
            }
            said = given_up(caplog)
            assert len(said) == 2
            first = next(each for each in said if "42 EUR" in each)
            assert f"group billing: message {unpaid.msg_id} of topic orders, after 2 attempts: Unpaid: 42" in first
            # A replay is a new beginning: nothing of the old end is left.
            report = await admin.dlq("billing").replay(to="elsewhere", confirm=True)
            assert report.sent == 2
            for copy in stored_messages(mq.broker.store, "elsewhere"):
                assert not copy.properties.keys() & {"DLQ_ERROR", "DLQ_REASON", "DLQ_HOST"}


async def test_a_reason_can_be_kept_back(mq: Embedded, until: Until, caplog: pytest.LogCaptureFixture) -> None:
    config = ConsumerConfig(dead_letter_reason=False)
    consumer, _ = failing(mq, lambda message: Unpaid("secret"), max_attempts=1, config=config)
    async with consumer:
        await send(mq, b"x")
        await until(lambda: bool(stored_messages(mq.broker.store, "%DLQ%billing")))
    (letter,) = stored_messages(mq.broker.store, "%DLQ%billing")
    assert not {name for name in letter.properties if name.startswith("DLQ_")}
    assert len(given_up(caplog)) == 1


async def test_a_reason_gives_way_to_the_messages_own_properties(mq: Embedded, until: Until) -> None:
    consumer, _ = failing(mq, lambda message: Unpaid("!" * 500), max_attempts=1)
    async with consumer:
        await send(mq, b"x", properties={"large": "x" * 32_300})
        await until(lambda: bool(stored_messages(mq.broker.store, "%DLQ%billing")))
    (letter,) = stored_messages(mq.broker.store, "%DLQ%billing")
    assert len(letter.properties["large"]) == 32_300 and "DLQ_REASON" not in letter.properties
