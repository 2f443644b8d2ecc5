"""Offsets as JSON: the old connector's form, one order, clear refusals."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket.model import Queue
from aiorocket.spark.offsets import (
    EARLIEST,
    LATEST,
    OptionError,
    format_offsets,
    from_nested,
    parse_offsets,
    parse_queues,
    parse_time,
    parse_timestamps,
    time_text,
    to_nested,
)

QUEUES = st.builds(
    Queue,
    st.text("abcXYZ09_-%|", min_size=1, max_size=8),
    st.text(min_size=1, max_size=8),
    st.integers(0, 20),
)
OFFSETS = st.dictionaries(QUEUES, st.integers(EARLIEST, 1 << 62), max_size=12)


@given(OFFSETS)
def test_parse_undoes_format(offsets: dict[Queue, int]) -> None:
    assert parse_offsets(format_offsets(offsets), option="x") == offsets
    assert from_nested(json.loads(json.dumps(to_nested(offsets)))) == offsets


@given(OFFSETS, st.randoms(use_true_random=False))
def test_equal_offsets_are_equal_text(offsets: dict[Queue, int], random: object) -> None:
    shuffled = list(offsets.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert json.dumps(to_nested(dict(shuffled))) == json.dumps(to_nested(offsets))
    assert format_offsets(dict(shuffled)) == format_offsets(offsets)


def test_the_form_is_the_old_connectors() -> None:
    offsets = {Queue("t", "broker-a", 0): 23, Queue("t", "broker-a", 1): EARLIEST}
    assert format_offsets(offsets) == '{"t":{"broker-a":{"0":23,"1":-2}}}'
    assert parse_offsets('{"t":{"broker-a":{"0":23,"1":-2}}}', option="startingOffsets") == offsets
    assert parse_offsets('{"t":{"b":{"0":-1}}}', option="startingOffsets") == {Queue("t", "b", 0): LATEST}


def test_queues_are_in_the_order_of_their_numbers() -> None:
    offsets = {Queue("t", "b", number): number for number in (10, 9, 2)}
    assert list(to_nested(offsets)["t"]["b"]) == ["2", "9", "10"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("earliets", "is not JSON"),
        ("[1]", "no JSON object"),
        ('{"t":5}', "no JSON object"),
        ('{"t":{"b":[0]}}', "no JSON object"),
        ('{"t":{"b":{"0":"5"}}}', "no whole number"),
        ('{"t":{"b":{"0":true}}}', "no whole number"),
        ('{"t":{"b":{"0":1.5}}}', "no whole number"),
        ('{"t":{"b":{"0":-3}}}', "offset -3 of t/b/0"),
        ('{"t":{"b":{"-1":3}}}', "no queue number"),
        ('{"t":{"b":{"0":3,"0":4}}}', "more than once"),
        ('{"t":{"b":{"0":3,"00":4}}}', "more than once"),
        ('{"t opic":{}}', "allowed"),
    ],
)
def test_what_is_wrong_with_offsets_is_said(text: str, says: str) -> None:
    with pytest.raises(OptionError, match=says) as caught:
        parse_offsets(text, option="startingOffsets")
    assert "startingOffsets" in str(caught.value)


def test_timestamps_by_queue_and_by_topic() -> None:
    queues, topics = parse_timestamps('{"t":{"b":{"0":1700}},"u":42}', option="x")
    assert queues == {Queue("t", "b", 0): 1700}
    assert topics == {"u": 42}
    with pytest.raises(OptionError, match="-5 of u is below 0"):
        parse_timestamps('{"u":-5}', option="x")
    iso = '{"t":{"b":{"0":"1970-01-01T00:00:01.700"}},"u":"1970-01-01T01:00:00.042+01:00"}'
    assert parse_timestamps(iso, option="x") == (queues, {"u": 42})


@given(st.datetimes(datetime(1970, 1, 2), datetime(2999, 1, 1), timezones=st.timezones() | st.none()))
def test_a_time_in_iso_8601_is_its_milliseconds(at: datetime) -> None:
    aware = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    assert parse_time(at.isoformat(), option="x") == (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
        milliseconds=1
    )
    assert parse_time(str(parse_time(at.isoformat(), option="x")), option="x") == parse_time(at.isoformat(), option="x")


@pytest.mark.parametrize(
    "text", ["yesterday", "-5", "1969-12-31", "2025-13-01", "12:00", "", "2025-03-01+02:00", "9" * 19]
)
def test_no_time(text: str) -> None:
    with pytest.raises(OptionError, match=r"x=.*milliseconds since 1970 UTC, or a time"):
        parse_time(text, option="x")


def test_digits_that_are_a_date_are_no_milliseconds() -> None:
    with pytest.raises(OptionError, match="x=20250301 may be a date or milliseconds: a date is 2025-03-01"):
        parse_time("20250301", option="x")
    with pytest.raises(OptionError, match="20250301 may be"):
        parse_timestamps('{"t":"20250301"}', option="x")


def test_the_form_of_timestamps_is_not_that_of_offsets() -> None:
    for text in ("2025-03-01", '{"t":1.5}', '{"t":{"b":5}}', '["t"]'):
        with pytest.raises(OptionError, match=r'the form is \{"topic":"2025-03-01T12:00Z"}'):
            parse_timestamps(text, option="x")


@given(st.integers(0, 253_402_300_799_999))
def test_a_time_as_text_is_read_as_the_same(millis: int) -> None:
    assert parse_time(time_text(millis), option="x") == millis


def test_assigned_queues() -> None:
    assert parse_queues('{"t":{"b":[1,0],"a":[3]}}', option="assign") == (
        Queue("t", "a", 3), Queue("t", "b", 0), Queue("t", "b", 1),
    )  # fmt: skip
    for text in ("{}", '{"t":{"b":{"0":1}}}', '{"t":{"b":[-1]}}', '{"t":{"b":[]}}'):
        with pytest.raises(OptionError, match="assign"):
            parse_queues(text, option="assign")
