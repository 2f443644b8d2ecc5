"""Pulling over the wire: results, long polling, filters, and whose turn it is to wait."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from aiorocket.broker import Broker
from aiorocket.broker.core.long_poll import LongPolls, ParkedPull
from aiorocket.config import Limits, StoreConfig
from aiorocket.remoting import Connection
from aiorocket_protocol import (
    JSON,
    LANGUAGE_JAVA,
    LANGUAGE_PYTHON,
    MSGPACK,
    PULL_SUBSCRIPTION,
    ConsumerData,
    HeartbeatData,
    RemotingCommand,
    ResetOffsetRequestHeader,
    SubscriptionData,
    encode_body,
    tags_code,
)
from tests.broker.peer import SUSPEND, Peer, heartbeat, pull_header, records, running, span

NO_WAIT = {"suspend_timeout_millis": 0}


async def test_the_result_table(peer: Peer) -> None:
    await peer.create_topic("T", 2)
    empty = await peer.pull(**NO_WAIT)
    assert empty.code == 19 and span(empty)[:4] == (0, 0, 0, 0)
    moved = await peer.pull("T", 0, 7)
    assert moved.code == 21 and span(moved).next_begin_offset == 0  # not 19: the client would wait where nothing is
    for _ in range(3):
        await peer.send()
    found = await peer.pull("T", 0, 1)
    assert found.code == 0 and found.remark == "FOUND" and span(found)[:4] == (0, 3, 0, 3)
    assert [record.queue_offset for record in records(found)] == [1, 2]
    end = await peer.pull("T", 0, 3, **NO_WAIT)
    assert end.code == 19 and end.remark == "OFFSET_OVERFLOW_ONE" and span(end)[:4] == (0, 3, 0, 3)
    beyond = await peer.pull("T", 0, 9)
    assert beyond.code == 21 and span(beyond)[:4] == (0, 3, 0, 3)
    below = await peer.pull("T", 0, -1)
    assert below.code == 21 and span(below).next_begin_offset == 0


async def test_limits_on_one_pull(peer: Peer) -> None:
    for _ in range(40):
        await peer.send(bytes(1000))
    assert len(records(await peer.pull())) == 32
    assert len(records(await peer.pull(max_msg_nums=0))) == 1
    assert len(records(await peer.pull(max_msg_nums=10_000))) == 40
    assert len(records(await peer.pull(max_msg_bytes=5000))) in (3, 4)
    assert len(records(await peer.pull(max_msg_bytes=1))) == 1  # always at least one


async def test_a_parked_pull_is_answered_by_the_next_message(broker: Broker, peer: Peer) -> None:
    await peer.create_topic("T", 1)
    other = await Peer.connect(broker.port, "msgpack")
    try:
        await other.ask(11, pull_header())
        while not broker.parked_pulls:
            await asyncio.sleep(0)
        assert (await peer.send(b"woken")).code == 0
        answer = await other.answer()
        assert answer.code == 0 and records(answer)[0].body == b"woken" and not broker.parked_pulls
    finally:
        await other.close()


async def test_a_hold_ends_with_19_and_the_same_offset(peer: Peer) -> None:
    await peer.send()
    loop = asyncio.get_running_loop()
    start = loop.time()
    answer = await peer.pull("T", 0, 1, suspend_timeout_millis=200)
    assert answer.code == 19 and span(answer)[:4] == (0, 1, 0, 1) and 0.15 < loop.time() - start < 14


async def test_a_pull_is_only_held_when_it_says_so(peer: Peer) -> None:
    await peer.send()
    assert (await peer.pull("T", 0, 1, sys_flag=4)).code == 19


async def test_the_second_pass_does_not_commit_again(broker: Broker, peer: Peer) -> None:
    await peer.send()
    other = await Peer.connect(broker.port)
    await other.ask(11, pull_header("T", 0, 1, sys_flag=7, commit_offset=1))
    while not broker.parked_pulls:
        await asyncio.sleep(0)
    assert await peer.committed("g", "T") == 1
    await peer.call(15, None, consumerGroup="g", topic="T", queueId="0", commitOffset="0")
    await peer.send()
    assert (await other.answer()).code == 0
    assert await peer.committed("g", "T") == 0
    await other.close()


@pytest.mark.parametrize("code", [11, 15], ids=["with a pull", "by itself"])
async def test_a_lower_commit_is_accepted_and_leaves_a_warning(
    peer: Peer, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    await peer.send()
    for offset in (1, 0, -1, 1, 0):  # two of one client id would do this with each pull: one line a minute
        if code == 11:
            await peer.pull("T", 0, 0, sys_flag=5, commit_offset=offset)
        else:
            await peer.call(15, None, consumerGroup="g", topic="T", queueId="0", commitOffset=str(offset))
    assert await peer.committed("g", "T") == 0
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [text.partition(" set ")[2] for text in said] == ["the offset of g, T queue 0 back to 0"]


async def test_a_closed_connection_takes_its_parked_pulls_along(broker: Broker, peer: Peer) -> None:
    await peer.send()
    other = await Peer.connect(broker.port)
    for offset in (1, 1, 1):
        await other.ask(11, pull_header("T", 0, offset))
    while broker.parked_pulls < 3:
        await asyncio.sleep(0)
    await other.close()
    while broker.parked_pulls:
        await asyncio.sleep(0)
    assert (await peer.send()).code == 0


async def test_tags_filter_by_hash_and_offsets_advance_over_what_does_not_match(peer: Peer) -> None:
    for tag in "AABA":
        await peer.send(tag.encode(), {"TAGS": tag})
    found = await peer.pull(subscription="B")
    assert [record.body for record in records(found)] == [b"B"] and span(found).next_begin_offset == 4
    none = await peer.pull(subscription="C")
    assert none.code == 20 and span(none)[:4] == (0, 4, 0, 4)


async def test_news_that_match_among_news_that_do_not(broker: Broker, peer: Peer) -> None:
    await peer.create_topic("T", 1)
    other = await Peer.connect(broker.port)
    await other.ask(11, pull_header(subscription="B"))
    while not broker.parked_pulls:
        await asyncio.sleep(0)
    await peer.send(b"A", {"TAGS": "A"})
    await peer.send(b"B", {"TAGS": "B"})
    answer = await other.answer()
    assert answer.code == 0 and [record.body for record in records(answer)] == [b"B"]
    assert span(answer).next_begin_offset == 2
    await other.close()


async def test_checks_before_a_pull(peer: Peer) -> None:
    assert (await peer.pull("Unknown")).code == 17
    await peer.create_topic("T", 2)
    assert (await peer.pull("T", 2)).code == 29
    assert (await peer.pull("T", -1)).code == 29
    assert (await peer.pull(consumer_group="bad group")).code == 26
    assert (await peer.pull(expression_type="GLOB", subscription="a > 1")).code == 1
    assert (await peer.pull(subscription="||")).code == 23
    await peer.create_topic("Deaf", 1, perm=2)
    assert (await peer.pull("Deaf")).code == 16


async def test_a_push_consumer_needs_its_heartbeat_first(peer: Peer) -> None:
    await peer.send()
    push = {"sys_flag": SUSPEND, "subscription": None, "sub_version": 5}
    assert (await peer.pull(**push)).code == 24
    assert (await peer.call(34, body=heartbeat("c", "T", version=5))).code == 0
    assert (await peer.pull(**push)).code == 0
    assert (await peer.pull("BenchmarkTest", **push)).code == 24


async def test_a_pull_that_is_newer_than_the_last_heartbeat_is_served_by_its_own_expression(peer: Peer) -> None:
    """Java's consumers raise the version with each change of their queues, and their heartbeat may be 30 s late.
    What the old expression leaves out may be what the new one asks for."""
    for tag in "AB":
        await peer.send(tag.encode(), {"TAGS": tag})
    old = HeartbeatData("c", [], [ConsumerData("g", subscriptions=[SubscriptionData.parse("T", "A", 4)])])
    assert (await peer.call(34, body=encode_body(old, 0))).code == 0

    async def pulled(version: int, subscription: str | None, kind: str | None = "TAG") -> list[bytes] | int:
        push = {"sys_flag": SUSPEND, "sub_version": version, "subscription": subscription, "expression_type": kind}
        answer = await peer.pull(**push)
        return answer.code or [record.body for record in records(answer)]

    assert await pulled(4, None) == [b"A"]
    assert await pulled(5, None) == await pulled(5, "") == await pulled(5, None, None) == [b"A", b"B"]
    assert await pulled(5, "B") == [b"B"]
    assert await pulled(5, "TAGS = 'B'", "SQL92") == [b"B"]
    assert await pulled(5, None, "SQL92") == 25  # the broker alone can filter by these


async def test_a_deleted_topic_answers_its_parked_pulls(broker: Broker, peer: Peer) -> None:
    await peer.send()
    other = await Peer.connect(broker.port)
    await other.ask(361, pull_header("T", 0, 1))
    while not broker.parked_pulls:
        await asyncio.sleep(0)
    assert (await peer.call(215, None, topic="T")).code == 0
    assert (await other.answer()).code == 17
    assert (await peer.pull()).code == 17
    assert (await peer.send(b"new")).code == 0  # made again, from the beginning
    assert [record.body for record in records(await peer.pull())] == [b"new"]
    await other.close()


@pytest.mark.parametrize("why", ["deleted", "reset", "over"])
async def test_one_answer_that_fails_does_not_keep_others_waiting(
    why: str, broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await peer.create_topic("T", 1)
    broker.configs.ensure("g")
    await peer.send()
    other = await Peer.connect(broker.port, "msgpack")
    replied, failed = [], []
    reply = Connection.reply

    def fails_first(self: Connection, request: RemotingCommand, *rest: Any) -> None:
        if request.code == 11:
            replied.append(request)
            if len(replied) == 1:
                raise MemoryError
        reply(self, request, *rest)

    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context["exception"]))
    for _ in range(20):
        await other.ask(11, pull_header(offset=1))
    while broker.parked_pulls < 20:
        await asyncio.sleep(0)
    monkeypatch.setattr(Connection, "reply", fails_first)
    if why == "deleted":
        assert (await peer.call(215, None, topic="T")).code == 0
    elif why == "reset":
        assert (await peer.call(222, ResetOffsetRequestHeader("T", "g", 0, True))).code == 0
    else:
        assert broker.parts is not None
        broker.parts.pulls._expired(asyncio.get_running_loop().time() + 60)
    codes = {(await asyncio.wait_for(other.answer(), 30)).code for _ in range(19)}
    assert codes == {{"deleted": 17, "reset": 21, "over": 19}[why]}
    assert [type(error) for error in failed] == [MemoryError]
    await other.close()


async def test_closing_answers_parked_pulls_at_once() -> None:
    async with running() as broker:
        peer = await Peer.connect(broker.port)
        await peer.create_topic("T", 1)
        await peer.ask(11, pull_header())
        while not broker.parked_pulls:
            await asyncio.sleep(0)
        start = asyncio.get_running_loop().time()
        await broker.close()
        assert (await peer.answer()).code == 19
        assert asyncio.get_running_loop().time() - start < 14
        await peer.close()


async def test_many_waiters_of_one_queue_get_the_same_message(broker: Broker, peer: Peer) -> None:
    await peer.create_topic("T", 1)
    others = [await Peer.connect(broker.port, "msgpack") for _ in range(20)]
    for number, other in enumerate(others):
        await other.ask(11, pull_header(consumer_group=f"g{number}"))
    while broker.parked_pulls < 20:
        await asyncio.sleep(0)
    await peer.send(b"for all")
    for other in others:
        assert [record.body for record in records(await other.answer())] == [b"for all"]
        await other.close()


async def test_a_client_that_is_not_ours_gets_32_messages_at_most(peer: Peer) -> None:
    """Apache's maxTransferCountOnMessageInMemory; a Java client may ask for up to 1,024 (pullBatchSize)."""
    await peer.send_batch(*[b"%d" % number for number in range(50)])
    assert len(records(await peer.pull(max_msg_nums=50))) == 50
    request = RemotingCommand.request(11, pull_header(max_msg_nums=50))
    request.language = LANGUAGE_JAVA
    peer.writer.write(request)
    await peer.writer.drain()
    answer = await peer.answer()
    assert len(records(answer)) == 32 and span(answer).next_begin_offset == 32


async def test_an_answer_that_is_full_is_written_at_once(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gets as many as it asked for is behind; to the others the end of the turn is soon enough."""
    for _ in range(40):
        await peer.send()
    waiting: list[bool] = []
    reply = Connection.reply

    def noted(connection: Connection, *rest: Any) -> None:
        reply(connection, *rest)
        waiting.append(bool(connection._out))

    monkeypatch.setattr(Connection, "reply", noted)
    await peer.pull("T", 0, 20, sys_flag=PULL_SUBSCRIPTION)
    await peer.pull("T", 0, 0)
    assert waiting == [True, False]


async def test_who_waits_for_a_message_is_written_to_before_its_sender(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await peer.create_topic("T", 1)
    other = await Peer.connect(broker.port, "msgpack")
    await other.ask(11, pull_header())
    while not broker.parked_pulls:
        await asyncio.sleep(0)
    written: list[int] = []
    flush = Connection._flush

    def noted(connection: Connection) -> None:
        if connection._out:
            written.append(connection.serialize_type)
        flush(connection)

    monkeypatch.setattr(Connection, "_flush", noted)
    await peer.send()
    await other.answer()
    assert written == [MSGPACK, JSON]
    await other.close()


def store(broker: Broker, *bodies: bytes, queue_id: int = 0, tag: str = "A") -> None:
    """Messages of one group commit."""
    for body in bodies:
        broker.store.append(
            "T", queue_id, body, f"TAGS\1{tag}\2".encode(), flag=0, sys_flag=0, born_timestamp=0, born_host=bytes(8),
            tags_code=tags_code(tag), done=lambda _: None,
        )  # fmt: skip


async def visible(broker: Broker, count: int) -> None:
    while broker.store.max_offset("T", 0) < count:
        await asyncio.sleep(0)


@pytest.mark.parametrize("there", [0, 2], ids=["that waited", "that finds some"])
async def test_where_messages_come_in_numbers_a_pull_brings_those_of_some_turns(there: int) -> None:
    """A pull costs its client as much as twenty messages."""
    async with running(store=StoreConfig(flush="async")) as broker:
        peer = await Peer.connect(broker.port, "msgpack")
        await peer.create_topic("T", 1)
        store(broker, *[b"found"] * there)
        await visible(broker, there)
        await peer.ask(11, pull_header())
        while not broker.parked_pulls:
            await asyncio.sleep(0)
        store(broker, b"one", b"two")
        await visible(broker, there + 2)
        store(broker, b"a turn later")
        await visible(broker, there + 3)
        assert broker.parked_pulls == 1
        expected = [*[b"found"] * there, b"one", b"two", b"a turn later"]
        assert [record.body for record in records(await peer.answer())] == expected
        assert not broker.parked_pulls
        await peer.close()


@pytest.mark.parametrize(
    ("count", "language", "changes"),
    [
        (1, LANGUAGE_PYTHON, {}),
        (2, LANGUAGE_JAVA, {}),
        (2, LANGUAGE_PYTHON, {"max_msg_nums": 2}),
        (2, LANGUAGE_PYTHON, {"subscription": "A||B"}),
    ],
    ids=["a single one", "to others", "as many as it asked for", "with a filter"],
)
async def test_whoever_waits_gets_in_the_turn_of_the_commit(count: int, language: int, changes: dict[str, Any]) -> None:
    async with running(store=StoreConfig(flush="async")) as broker:
        peer = await Peer.connect(broker.port)
        await peer.create_topic("T", 1)
        request = RemotingCommand.request(11, pull_header(**changes))
        request.language = language
        peer.writer.write(request)
        await peer.writer.drain()
        while not broker.parked_pulls:
            await asyncio.sleep(0)
        store(broker, *[b"news"] * count)
        await visible(broker, count)
        assert not broker.parked_pulls and len(records(await peer.answer())) == count
        await peer.close()


@pytest.mark.parametrize("turns", range(5))
async def test_a_pull_whose_hold_ends_while_it_gathers_brings_what_there_is(
    broker: Broker, peer: Peer, turns: int
) -> None:
    """It was told to go on at offset 0 when its hold ended in the turn in which it was to be read."""
    await peer.send_batch(b"one", b"two")
    assert broker.parts is not None
    await peer.ask(11, pull_header())
    while not broker.parked_pulls:
        await asyncio.sleep(0)
    for _ in range(turns):
        await asyncio.sleep(0)
    broker.parts.pulls._expired(asyncio.get_running_loop().time() + 60)
    answer = await peer.answer()
    assert answer.code == 0 and [record.body for record in records(answer)] == [b"one", b"two"]


async def test_what_there_is_comes_at_once_where_no_more_pulls_may_wait() -> None:
    async with running(limits=Limits(parked_pulls=1)) as broker:
        peer, other = await Peer.connect(broker.port), await Peer.connect(broker.port)
        await peer.create_topic("T", 2)
        await other.ask(11, pull_header(queue_id=1))
        while not broker.parked_pulls:
            await asyncio.sleep(0)
        await peer.send_batch(b"one", b"two")
        answer = await peer.pull("T", 0, 0)
        assert answer.code == 0 and len(records(answer)) == 2
        await peer.close()
        await other.close()


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often a waiting pull was looked at, with eight pulls a turn."""
    monkeypatch.setattr("aiorocket.broker.core.long_poll.A_TURN", 8)
    monkeypatch.setattr("aiorocket.broker.handlers.pull.A_TURN", 8)
    is_parked, looks = LongPolls.is_parked, [0]

    def counted(self: LongPolls, pull: ParkedPull) -> bool:
        looks[0] += 1
        return is_parked(self, pull)

    monkeypatch.setattr(LongPolls, "is_parked", counted)
    return looks


async def woken(broker: Broker, waiting: int) -> int:
    """The most of those who wait that were answered in a turn."""
    left = [waiting]
    while left[-1]:
        await asyncio.sleep(0)
        left.append(broker.parked_pulls)
    return max(before - after for before, after in itertools.pairwise(left))


@pytest.mark.parametrize("messages", [1, 2])
async def test_those_who_wait_for_one_queue_have_their_turns(
    messages: int, broker: Broker, peer: Peer, looked: list[int]
) -> None:
    """100,000 pulls that waited for one message held the loop for half a second when it came."""
    await peer.create_topic("T")
    for _ in range(100):
        await peer.ask(11, pull_header())
    while broker.parked_pulls < 100:
        await asyncio.sleep(0)
    store(broker, *[b"news"] * messages)
    assert await woken(broker, 100) <= 16
    assert [len(records(await peer.answer())) for _ in range(100)] == [messages] * 100
    assert looked[0] == 100


@pytest.mark.parametrize(("messages", "at_once"), [(2, 32), (1, 3)])
async def test_those_who_wait_for_many_queues_have_their_turns(
    messages: int, at_once: int, broker: Broker, peer: Peer, looked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several messages, which ours gather some turns of, each turn looked at all that were left: at 200,000 some
    twenty million times. What came together for 40 queues with 1,000 pulls each held the loop for half a second."""
    monkeypatch.setattr("aiorocket.broker.core.long_poll.AT_ONCE", at_once)
    await peer.create_topic("T", 25)
    for number in range(100):
        await peer.ask(11, pull_header(queue_id=number % 25))
    while broker.parked_pulls < 100:
        await asyncio.sleep(0)
    for queue_id in range(25):
        store(broker, *[b"news"] * messages, queue_id=queue_id)
    assert await woken(broker, 100) <= 16
    assert [len(records(await peer.answer())) for _ in range(100)] == [messages] * 100
    assert looked[0] == 100


async def test_what_comes_while_a_crowd_is_looked_at_reaches_all_of_it(
    broker: Broker, peer: Peer, looked: list[int]
) -> None:
    await peer.create_topic("T")
    for number in range(100):
        await peer.ask(11, pull_header(subscription="AB"[number % 2]))
    while broker.parked_pulls < 100:
        await asyncio.sleep(0)
    store(broker, b"first")
    await visible(broker, 1)
    for tag in "CCB":
        store(broker, b"later", tag=tag)
        await asyncio.sleep(0)
    await woken(broker, 100)
    answers = [await peer.answer() for _ in range(100)]
    bodies = [[record.body for record in records(answer)] for answer in answers]
    assert bodies.count([b"first"]) == bodies.count([b"later"]) == 50
    assert looked[0] <= 100 + 50 + 50
