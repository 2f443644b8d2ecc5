"""What Spark pushes down makes the read shorter, and never drops a row that the filters would keep."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from aiorocket.model import Queue
from aiorocket.spark import cluster
from aiorocket.spark.filters import Pushed, push
from aiorocket.spark.options import ConnectionOptions, SourceOptions
from aiorocket.spark.planner import QueueRange

OPTIONS = SourceOptions(connection=ConnectionOptions(name_servers=("a:1",)), topics=("t",))
QUEUES = [Queue(topic, broker, number) for topic in ("orders", "other") for broker in ("a", "b") for number in (0, 1)]
RANGES = [QueueRange(queue, 10, 20) for queue in QUEUES]

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.sampled_from(["orders", "other", "ord", "r", "zzz", "ö"]),
    "brokerName": st.sampled_from(["a", "b", "c"]),
    "queueId": st.integers(-1, 3),
    "queueOffset": st.integers(5, 25),
}


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    name = draw(st.sampled_from(sorted(VALUES)))
    value = VALUES[name]
    kinds = [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, In, IsNotNull, IsNull]
    if name in ("topic", "brokerName"):
        kinds += [StringStartsWith, StringEndsWith, StringContains]
    kind: Any = draw(st.sampled_from(kinds))
    if kind in (IsNotNull, IsNull):
        made = kind((name,))
    elif kind is In:
        made = In((name,), tuple(draw(st.lists(st.one_of(value, st.none()), max_size=3))))
    else:
        made = kind((name,), draw(value))
    return Not(made) if draw(st.booleans()) else made


def keeps(each: Filter, row: dict[str, Any]) -> bool | None:
    """SQL's answer, written the long way."""
    if isinstance(each, Not):
        inner = keeps(each.child, row)
        return None if inner is None else not inner
    own = row[each.attribute[0]]  # type: ignore[attr-defined]
    value = getattr(each, "value", None)
    match each:
        case IsNotNull():
            return True
        case IsNull():
            return False
        case In():
            return own in each.value or (None if None in each.value else False)
        case EqualTo() | EqualNullSafe():
            return bool(own == value)
        case GreaterThan():
            return bool(own > value)
        case GreaterThanOrEqual():
            return bool(own >= value)
        case LessThan():
            return bool(own < value)
        case LessThanOrEqual():
            return bool(own <= value)
        case StringStartsWith():
            return bool(own.startswith(value))
        case StringEndsWith():
            return bool(own.endswith(value))
    assert isinstance(each, StringContains)
    return bool(value in own)


@given(st.lists(filters(), max_size=4))
def test_pushed_and_checked_again_is_what_sql_says(wanted: list[Filter]) -> None:
    pushed, unhandled = push(wanted, OPTIONS)
    pushed = pickle.loads(pickle.dumps(pushed))
    kept = set()
    for queue, begin, end in pushed.trim(RANGES):
        for offset in range(begin, end):
            row = dict(zip(("topic", "brokerName", "queueId", "queueOffset"), (*queue, offset), strict=True))
            if all(keeps(each, row) for each in unhandled):
                kept.add((queue, offset))
    expected = set()
    for queue, begin, end in RANGES:
        for offset in range(begin, end):
            row = dict(zip(("topic", "brokerName", "queueId", "queueOffset"), (*queue, offset), strict=True))
            if all(keeps(each, row) for each in wanted):
                expected.add((queue, offset))
    assert kept == expected
    assert all(any(each is one for one in wanted) for each in unhandled)


def test_queues_and_offsets_are_answered_exactly() -> None:
    wanted: list[Filter] = [
        IsNotNull(("topic",)), EqualTo(("topic",), "orders"), In(("queueId",), (1, 5)),
        Not(EqualTo(("brokerName",), "a")), GreaterThanOrEqual(("queueOffset",), 12), LessThan(("queueOffset",), 15),
    ]  # fmt: skip
    pushed, unhandled = push(wanted, OPTIONS)
    assert unhandled == []
    assert pushed.trim(RANGES) == [QueueRange(Queue("orders", "b", 1), 12, 15)]


def test_tags_go_to_the_broker_and_are_checked_again() -> None:
    wanted: list[Filter] = [In(("tags",), ("A", "B", None))]
    pushed, unhandled = push(wanted, OPTIONS)
    assert unhandled == wanted
    assert pushed.apply(OPTIONS).expression == ("A || B", "TAG")
    assert pushed.trim(RANGES) == RANGES
    narrow = SourceOptions(connection=OPTIONS.connection, topics=("t",), tags=("B", "C"))
    assert push(wanted, narrow)[0].tags == ("B",)
    both, _ = push([*wanted, EqualTo(("tags",), "C")], OPTIONS)
    assert both.trim(RANGES) == []
    assert push([], OPTIONS)[0].apply(OPTIONS) is OPTIONS


@pytest.mark.parametrize("tag", ["*", "A || B", "", " A", 5, None])
def test_tags_that_mean_something_else_to_a_broker_stay_with_spark(tag: Any) -> None:
    pushed, unhandled = push([EqualTo(("tags",), tag)], OPTIONS)
    assert pushed.tags in (None, ())
    assert (pushed.tags == ()) == (tag is None)
    assert len(unhandled) == 1


def test_a_sql_filter_is_not_replaced_by_tags() -> None:
    sql = SourceOptions(connection=OPTIONS.connection, topics=("t",), sql_filter="a > 5")
    assert push([EqualTo(("tags",), "A")], sql)[0].tags is None


def test_what_is_not_ours_stays_with_spark() -> None:
    wanted: list[Filter] = [
        EqualTo(("body",), b"x"), IsNull(("tags",)), Not(EqualTo(("queueOffset",), 5)), StringContains(("keys",), "x"),
        EqualTo(("queueId",), "1"), IsNotNull(("storeTimestamp",)), EqualTo(("properties", "topic"), "orders"),
        Not(EqualTo(("tags",), "A")),
    ]  # fmt: skip
    pushed, unhandled = push(wanted, OPTIONS)
    assert unhandled == wanted
    assert pushed == Pushed()


def at(millis: int) -> datetime:
    return datetime.fromtimestamp(millis / 1000, UTC)


class Stored:
    """Queues whose message n was stored at the millisecond ``times[n]``; answers like one of three brokers."""

    def __init__(self, times: list[int], kind: str) -> None:
        self.times = times
        self.kind = kind

    async def offsets_at(self, client: object, queues: list[Queue], millis: int) -> dict[Queue, int]:
        exact = [place for place, time in enumerate(self.times) if time == millis]
        later = [place for place, time in enumerate(self.times) if time >= millis]
        first = later[0] if later else len(self.times)
        answer = first
        if self.kind == "any of the same" and exact:
            answer = exact[-1]
        elif self.kind == "nearest" and not exact and first > 0:
            answer = first - 1
        return dict.fromkeys(queues, answer)


@given(
    st.lists(st.integers(100, 130), min_size=1, max_size=12).map(sorted),
    st.integers(98, 132),
    st.sampled_from([EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]),
    st.sampled_from(["first", "any of the same", "nearest"]),
)
def test_a_time_trims_and_keeps_every_row_that_counts(times: list[int], millis: int, kind: Any, broker: str) -> None:
    wanted = [kind(("storeTimestamp",), at(millis))]
    pushed, unhandled = push(wanted, OPTIONS)
    assert unhandled == wanted
    queue = QUEUES[0]
    stored = Stored(times, broker)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "offsets_at", stored.offsets_at)
        trimmed = run(pushed, [QueueRange(queue, 0, len(times))])
    read = {offset for part in trimmed for offset in range(part.begin, part.end)}
    for offset, time in enumerate(times):
        if keeps(kind(("x",), millis), {"x": time}):
            assert offset in read


def run(pushed: Pushed, ranges: list[QueueRange]) -> list[QueueRange]:
    coroutine = pushed.trim_by_time(None, ranges)  # type: ignore[arg-type]
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: list[QueueRange] = done.value
        return result
    raise AssertionError("it waits for something")


def test_a_time_makes_the_read_shorter() -> None:
    stored_at = ("storeTimestamp",)
    pushed, _ = push([GreaterThanOrEqual(stored_at, at(500)), LessThan(stored_at, at(600))], OPTIONS)
    stored = Stored(list(range(1000)), "first")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "offsets_at", stored.offsets_at)
        (part,) = run(pushed, [QueueRange(QUEUES[0], 0, 1000)])
        assert run(push([], OPTIONS)[0], RANGES) == RANGES
    assert 495 <= part.begin <= 500
    assert 600 <= part.end <= 605
