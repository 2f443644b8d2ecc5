"""The ledger: what counts is the same for everybody who reads far enough, however many write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorocket.client.core.routes import TopicRoute
from aiorocket.client.sending.producer import Producer
from aiorocket.embedded import embed
from aiorocket.errors import TopicNotFoundError, UsageError
from aiorocket.model import Queue, TxState
from aiorocket.spark import ledger as ledger_module
from aiorocket.spark.ledger import Entry, Fold, Ledger, Mark, Record, decode, encode, search
from aiorocket_protocol import DeleteTopicRequestHeader, RecordView, RequestCode

names = st.text(max_size=12)
entries = st.builds(
    Entry,
    query=names,
    batch=st.integers(0, 1 << 40),
    attempts=st.lists(names, max_size=4).map(tuple),
    rows=st.integers(0, 1 << 40),
    brokers=st.dictionaries(names, names, max_size=3).map(lambda each: tuple(each.items())),
    latest=st.integers(0, 1 << 45),
    immunity=st.integers(0, 10_000),
    read_to=st.integers(0, 1 << 40),
)


@given(entries | st.builds(Mark, query=names, batch=st.integers(0, 1 << 40)))
def test_a_record_comes_back(record: Record) -> None:
    assert decode(encode(record)) == record


@given(st.binary(max_size=30) | st.sampled_from([b"{}", b"[]", b"1", b'{"v":2}', b'{"v":1,"query":"q","batch":0}']))
def test_what_is_no_record_is_none(body: bytes) -> None:
    assert decode(body) is None


def all_of(query: str, batch: int, log: list[Record]) -> Fold:
    fold = Fold(query, batch)
    for record in log:
        fold.add(record)
    return fold


class Log:
    """A queue with ``records``; counts what is read."""

    queue = Queue("ledger", "b", 0)

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.read = 0

    async def messages(self, begin: int, end: int, view: type[RecordView]) -> AsyncIterator[RecordView]:
        for record in self.records[begin:end]:
            self.read += 1
            yield _View(encode(record))  # type: ignore[misc]


class _View:
    def __init__(self, body: bytes) -> None:
        self.body = body
        self.queue_offset = 0


def searched(query: str, batch: int, log: list[Record]) -> tuple[Fold, int]:
    fold, scan = Fold(query, batch), Log(log)
    # Nothing in it waits, so it needs no loop.
    with pytest.raises(StopIteration):
        search(scan, fold, 0, len(log)).send(None)
    return fold, scan.read


#: (driver, query, batch, what): each driver looks and then, some time later, writes if what it saw allows it.
steps = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from("ab"), st.integers(0, 4), st.sampled_from(["look", "write", "mark"])),
    max_size=40,
)


@settings(max_examples=3 * settings.default.max_examples // 2, deadline=None)
@given(steps)
def test_a_bounded_search_finds_what_the_whole_ledger_says_and_no_decision_ever_changes(
    moves: list[tuple[int, str, int, str]],
) -> None:
    page, ledger_module._PAGE = ledger_module._PAGE, 3
    try:
        log: list[Record] = []
        seen: dict[tuple[int, str, int], int] = {}
        decided: dict[tuple[str, int], Entry | None] = {}
        for number, (driver, query, batch, what) in enumerate(moves):
            key = (driver, query, batch)
            if what == "look":
                if not all_of(query, batch, log).decided:
                    seen[key] = len(log)
            elif what == "mark":
                if all_of(query, batch, log).entry is not None:
                    log.append(Mark(query, batch))
            elif key in seen:
                log.append(Entry(query, batch, (f"{driver}-{number}",), 1, read_to=seen.pop(key)))
            for name in "ab":
                for each in range(5):
                    whole = all_of(name, each, log)
                    found, _ = searched(name, each, log)
                    assert (found.entry, found.decided, found.ended) == (whole.entry, whole.decided, whole.ended)
                    if (name, each) in decided:
                        assert decided[name, each] == whole.entry
                    elif whole.decided:
                        decided[name, each] = whole.entry
    finally:
        ledger_module._PAGE = page


def test_only_the_end_is_read_for_a_query_that_goes_on() -> None:
    log: list[Record] = []
    for batch in range(3000):
        log += [Entry("q", batch, (f"a{batch}",), 1, read_to=len(log)), Mark("q", batch)]
    fold, read = searched("q", 3000, log)
    assert not fold.decided and read <= 256
    fold, read = searched("q", 2999, log)
    assert fold.entry is not None and fold.ended and read <= 256


def test_who_is_delivered() -> None:
    log: list[Record] = [Entry("q", 3, ("w",), 2), Entry("q", 3, ("late",), 2), Entry("q", 5, (), 0)]
    three, four, five, six = (all_of("q", batch, log) for batch in (3, 4, 5, 6))
    assert three.state_of("w") is TxState.COMMIT
    assert three.state_of("late") is TxState.ROLLBACK
    assert four.state_of("any") is TxState.ROLLBACK and four.entry is None  # the query is beyond it
    assert six.state_of("any") is TxState.UNKNOWN
    assert not three.ended and five.ended
    assert all_of("q", 3, [*log, Mark("q", 3)]).ended
    assert all_of("other", 3, log).state_of("w") is TxState.UNKNOWN


async def test_drivers_that_race_agree_on_one() -> None:
    async with embed() as mq, mq.client() as first, mq.client() as second:
        ledgers = []
        for client in (first, second):
            producer = Producer("ledger", client=client)
            await producer.start()
            ledgers.append((producer, Ledger(client.session, producer, "L")))
        with pytest.raises(TopicNotFoundError, match="not the query's first batch"):
            await ledgers[0][1].look("q", 7)
        looks = await asyncio.gather(*(ledger.look("q", 0, first=True) for _, ledger in ledgers))
        assert [fold.decided for fold in looks] == [False, False]
        for batch in range(3):
            made = [Entry("q", batch, (f"{number}",), 1) for number in range(2)]
            folds = await asyncio.gather(
                *(ledger.decide(entry, 5.0) for (_, ledger), entry in zip(ledgers, made, strict=True))
            )
            assert folds[0].entry is not None and folds[0].entry == folds[1].entry
        assert (await ledgers[1][1].look("q", 1)).ended is False
        await ledgers[0][1].mark("q", 1, 5.0)
        assert (await ledgers[1][1].look("q", 1)).ended is False  # a decision that is known is not read again
        assert (await ledgers[1][1].refresh("q", 1)).ended is True
        (queue,) = (await first.session.route("L")).publish
        assert queue.queue_id == 0
        for producer, _ in ledgers:
            await producer.stop()


async def test_what_a_stranger_sends_to_the_ledger_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    async with embed() as mq, mq.producer() as producer:
        await mq.create_topic("L", 1)
        client = producer.client
        await producer.send("L", b"hello")
        ledger = Ledger(client.session, producer, "L")
        fold = await ledger.decide(Entry("q", 0, ("a",), 1), 5.0)
        assert fold.state_of("a") is TxState.COMMIT and "is no entry" in caplog.text


async def test_a_ledger_that_cannot_be_made_is_asked_for() -> None:
    async with embed(broker={"auto_create_topics": False}) as mq, mq.producer() as producer:
        with pytest.raises(UsageError, match="create it, with one queue on one broker"):
            await Ledger(producer.client, producer, "L").look("q", 0, first=True)
        await mq.create_topic("L", 1)
        assert not (await Ledger(producer.client, producer, "L").look("q", 0, first=True)).decided


async def test_a_ledger_that_lost_its_end_loses_no_decision() -> None:
    """Its topic was made anew, or its broker lost what it had not synced: it was read beyond where it ends now."""
    async with embed() as mq, mq.producer() as producer:
        client = producer.client
        ledger = Ledger(client, producer, "L")
        await ledger.look("q", 0, first=True)
        await ledger.decide(Entry("q", 0, ("a",), 1), 5.0)
        assert not (await ledger.look("q", 1)).decided  # a broker asks before the batch ends
        route = await client.route("L")
        code, header = RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader("L")
        await client.call(route.addresses["broker-a"][0], code, header)
        await mq.create_topic("L", 1)
        fold = await ledger.decide(Entry("q", 1, ("b",), 1), 5.0)
        assert fold.entry is not None and fold.entry.attempts == ("b",)
        assert (await Ledger(client, producer, "L").look("q", 1)).entry == fold.entry


async def test_a_ledger_on_two_brokers_is_none() -> None:
    queues = [Queue("L", name, 0) for name in ("a", "b")]
    route = TopicRoute("L", queues[:1], queues, {"a": {0: "a:1"}, "b": {0: "b:1"}})

    async def found(name: str) -> TopicRoute:
        return route

    client: Any = SimpleNamespace(config=SimpleNamespace(namespace=""), loop=asyncio.get_running_loop(), route=found)
    nobody: Any = None
    with pytest.raises(UsageError, match="the ledger 'L' is on the brokers a, b"):
        await Ledger(client, nobody, "L").look("q", 0)
