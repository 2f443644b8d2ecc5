"""Rows become messages: every column, every refusal with its row and column, and what readers get back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aiorocket.errors import UsageError
from aiorocket.spark import outgoing_rows
from aiorocket.spark.outgoing_rows import COLUMNS, Columns, Labels, RowError
from aiorocket.spark.property_tails import property_tails
from aiorocket_protocol import decode_properties

ARROW: dict[str, pa.DataType] = {
    "body": pa.binary(),
    "topic": pa.string(),
    "keys": pa.list_(pa.string()),
    "tags": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "queueId": pa.int32(),
    "brokerName": pa.string(),
    "shardingKey": pa.string(),
    "delayLevel": pa.int32(),
    "deliverTimestamp": pa.timestamp("us", "UTC"),
}
SPARK = {
    "body": "binary", "topic": "string", "keys": "array<string>", "tags": "string", "properties": "map<string,string>",
    "queueId": "int", "brokerName": "string", "shardingKey": "string", "delayLevel": "int",
    "deliverTimestamp": "timestamp",
}  # fmt: skip


def columns(*names: str, topic: str | None = "T", transactional: bool = False, **types: str) -> Columns:
    kinds = {**SPARK, **types}
    return Columns(names, [kinds[name] for name in names], topic=topic, transactional=transactional)


def frame(rows: list[dict[str, Any]], **types: pa.DataType) -> pa.RecordBatch:
    kinds = {**ARROW, **types}
    names = [name for name in COLUMNS if any(name in row for row in rows)]
    return pa.RecordBatch.from_arrays(
        [pa.array([row.get(name) for row in rows], kinds[name]) for name in names], names=names
    )


def converted(*rows: dict[str, Any], transactional: bool = False, labels: Labels | None = None, **options: Any) -> Any:
    batch = frame(list(rows))
    made = columns(*batch.schema.names, transactional=transactional)
    return made.rows(batch, where="partition 3", first=10, labels=labels, **options)


def test_every_column() -> None:
    when = datetime(2030, 1, 2, 3, 4, 5, 678_999, UTC)
    first, second, third = converted(
        {"body": b"1", "topic": "A", "keys": ["k1", "k2"], "tags": "x", "properties": [("p", "v")], "queueId": 2,
         "brokerName": "b", "shardingKey": "k", "delayLevel": 3},
        {"body": b"2", "shardingKey": "s", "deliverTimestamp": when},
        {"body": b"3", "delayLevel": 0},
    )  # fmt: skip
    assert first[:3] == (10, "A", b"1")
    assert decode_properties(first.tail.encode()) == {
        "KEYS": "k1 k2", "TAGS": "x", "__SHARDINGKEY": "k", "p": "v", "DELAY": "3",
    }  # fmt: skip
    assert (first.queue_id, first.broker_name, first.delay_level, first.alone) == (2, "b", 3, True)
    assert second.topic == "T" and second.tail == "__SHARDINGKEY\x01s\x02" and second.sharding_key == "s"
    assert second.deliver_ms == 1_893_553_445_678 and second.alone
    assert third == (12, "T", b"3", "", None, None, None, 0, None) and not third.alone


def test_other_types_of_the_same_columns() -> None:
    batch = frame(
        [{"body": "ü", "keys": "a  b", "queueId": 1, "deliverTimestamp": 1_700_000_000_123}],
        body=pa.large_string(), keys=pa.string(), queueId=pa.int64(), deliverTimestamp=pa.int64(),
    )  # fmt: skip
    kinds = {"body": "string", "keys": "string", "queueId": "bigint", "deliverTimestamp": "bigint"}
    (row,) = columns(*batch.schema.names, **kinds).rows(batch)
    assert row.body == "ü".encode() and row.tail == "KEYS\x01a b\x02"
    assert row.queue_id == 1 and row.deliver_ms == 1_700_000_000_123
    (row,) = columns("body", "keys", keys="string").rows(frame([{"body": b"1", "keys": " a\tb c "}], keys=pa.string()))
    assert row.tail == "KEYS\x01a\tb c\x02"  # keys are joined by blanks, and by nothing else
    (row,) = columns("body", body="varchar(9)").rows(frame([{"body": "x"}], body=pa.string()))
    assert row.body == b"x"
    assert columns("BODY", BODY="string").index == {"body": 0}


def test_labels_follow_what_the_row_says_and_replace_what_it_was_read_with() -> None:
    labels = Labels("q/7/3/", (("SPARK_ATTEMPT", "a"),))
    first, second = converted(
        {"body": b"1"}, {"body": b"2", "properties": [("SPARK_TXN", "old"), ("x", "y")]}, labels=labels
    )
    assert decode_properties(first.tail.encode()) == {"SPARK_ATTEMPT": "a", "SPARK_TXN": "q/7/3/10"}
    assert decode_properties(second.tail.encode()) == {"x": "y", "SPARK_ATTEMPT": "a", "SPARK_TXN": "q/7/3/11"}
    assert second.tail.count("SPARK_TXN") == 1
    (plain,) = converted({"body": b"2", "properties": [("SPARK_TXN", "old")]})
    assert decode_properties(plain.tail.encode()) == {"SPARK_TXN": "old"}  # a copy of another topic keeps its own


@pytest.mark.parametrize(
    ("row", "column", "words"),
    [
        ({"body": None}, "body", "null"),
        ({"body": b""}, "body", "empty"),
        ({"body": bytes(101)}, "body", "101 bytes, the limit is 100"),
        ({"topic": "no blanks"}, "topic", "allowed"),
        ({"keys": ["a", None]}, "keys", "null"),
        ({"keys": ["a b"]}, "keys", "blanks"),
        ({"keys": [""]}, "keys", "blanks"),
        ({"tags": "a||b"}, "tags", "one tag"),
        ({"tags": "a\x01"}, "tags", "U+0001"),
        ({"properties": [("a", None)]}, "properties", "null"),
        ({"properties": [("a", "")]}, "properties", "empty"),
        ({"properties": [("KEYS", "a")]}, "properties", "goes into the column keys"),
        ({"properties": [("__SHARDINGKEY", "a")]}, "properties", "goes into the column shardingKey"),
        ({"properties": [("DELAY", "3")]}, "properties", "goes into the column delayLevel"),
        ({"properties": [("TIMER_DELIVER_MS", "9")]}, "properties", "goes into the column deliverTimestamp"),
        ({"properties": [("BUYER_ID", "true")]}, "properties", "map_filter(properties"),
        ({"properties": [("RETRY_TOPIC", "x")]}, "properties", "would change what becomes of the message"),
        ({"properties": [("TIMER_DELAY_SEC", "1")]}, "properties", "would change"),
        ({"properties": [("a", "x" * 40_000)]}, "properties", "limit"),
        ({"queueId": -1}, "queueId", "0 or more"),
        ({"queueId": None, "brokerName": "b"}, "brokerName", "without a queueId"),
        ({"shardingKey": ""}, "shardingKey", "empty"),
        ({"delayLevel": 19}, "delayLevel", "1 to 18"),
        ({"delayLevel": -1}, "delayLevel", "1 to 18"),
        ({"delayLevel": 1, "deliverTimestamp": datetime(2030, 1, 1, tzinfo=UTC)}, "deliverTimestamp", "both say when"),
        ({"deliverTimestamp": datetime(1960, 1, 1, tzinfo=UTC)}, "deliverTimestamp", "1970"),
    ],
)
def test_what_is_refused_with_its_row_and_column(row: dict[str, Any], column: str, words: str) -> None:
    good = {"body": b"1"}
    with pytest.raises(RowError) as refused:
        converted(good, {**good, **row}, good, max_body=100)
    assert str(refused.value).startswith(f"partition 3, row 11, column {column}: ")
    assert words in str(refused.value)


def test_what_rocketmq_has_put_into_a_message_is_not_copied() -> None:
    old = [("UNIQ_KEY", "0"), ("CLUSTER", "c"), ("MSG_REGION", "r"), ("TRACE_ON", "true"), ("WAIT", "false"),
           ("PGROUP", "g"), ("CHECK_IMMUNITY_TIME_IN_SECONDS", "60"), ("INSTANCE_ID", "ns"), ("TRAN_MSG", "true"),
           ("DELAY", "3"), ("REAL_TOPIC", "T"), ("REAL_QID", "0")]  # fmt: skip
    said = [("KEYS", "k"), ("TAGS", "t"), ("__SHARDINGKEY", "s")]
    row = {"body": b"1", "keys": ["k2"], "tags": "t2", "shardingKey": "s2", "properties": [*old, ("mine", "x"), *said]}
    expected = {"KEYS": "k2", "TAGS": "t2", "__SHARDINGKEY": "s2", "mine": "x"}
    (sent,) = converted(row)
    assert decode_properties(sent.tail.encode()) == expected and sent.tail.count("\x02") == 4
    # A column that is there counts, also where it is null; and to name a queue is to choose it.
    first, second = converted({**row, "keys": None, "tags": None, "shardingKey": None}, row)
    assert decode_properties(first.tail.encode()) == {"mine": "x"} and second == sent._replace(number=11)
    (pinned,) = converted({"body": b"1", "queueId": 1, "properties": [("__SHARDINGKEY", "s")]})
    assert (pinned.tail, pinned.sharding_key, pinned.queue_id) == ("", None, 1)


def test_what_the_sink_adds_counts_for_the_limit() -> None:
    most = 32_767 - len("UNIQ_KEY\x01") - 33 - len("a\x01\x02")
    (row,) = converted({"body": b"1", "properties": [("a", "ü" * (most // 2) + "x" * (most % 2))]})
    assert len(row.tail.encode()) == most + 3
    for value in ("x" * (most + 1), "x" * (most - 10)):
        labels = Labels("q/1/2/") if len(value) < most else None
        with pytest.raises(RowError, match=r"row 11, column properties: .*32767 is the limit"):
            converted({"body": b"1"}, {"body": b"2", "properties": [("a", value)]}, labels=labels)


def test_text_that_is_not_utf_8_is_refused_with_its_row_and_column() -> None:
    binary = pa.array([b"fine", b"\xff"], pa.binary())
    broken = pa.Array.from_buffers(pa.string(), 2, binary.buffers())
    batch = pa.RecordBatch.from_arrays([binary, broken], names=["body", "tags"])
    with pytest.raises(RowError, match="partition 3, row 11, column tags: not UTF-8"):
        columns("body", "tags").rows(batch, where="partition 3", first=10)
    body = pa.RecordBatch.from_arrays([broken], names=["body"])
    assert [row.body for row in columns("body", body="string").rows(body)] == [b"fine", b"\xff"]


def test_a_time_is_an_instant_whatever_the_zone_of_the_session() -> None:
    hours = [datetime(2024, 10, 27, hour, 30, 0, 5999, UTC) for hour in (0, 1)]  # both are 2:30 in Berlin
    rows = [{"body": b"1", "deliverTimestamp": hour} for hour in hours]
    batch = frame(rows, deliverTimestamp=pa.timestamp("us", "Europe/Berlin"))
    made = columns(*batch.schema.names).rows(batch)
    assert [row.deliver_ms for row in made] == [1_729_989_000_005, 1_729_992_600_005]


@pytest.mark.parametrize("row", [{"delayLevel": 1}, {"deliverTimestamp": datetime(2030, 1, 1, tzinfo=UTC)}])
def test_a_half_message_cannot_wait(row: dict[str, Any]) -> None:
    with pytest.raises(RowError, match=r"row 10, column .*: .*exactlyOnce cannot delay"):
        converted({"body": b"1", **row}, transactional=True)


def test_a_row_without_any_topic() -> None:
    batch = frame([{"body": b"1", "topic": "A"}, {"body": b"2"}])
    with pytest.raises(RowError, match="row 1, column topic: null"):
        columns("body", "topic", topic=None).rows(batch)


@pytest.mark.parametrize(
    ("names", "types", "words"),
    [
        (["body", "queue_id"], ["string", "int"], "'queue_id'.*no such column.*properties"),
        (["topic"], ["string"], "body is missing"),
        (["body", "Body"], ["string", "string"], "twice"),
        (["body"], ["int"], "body is of type int: string or binary"),
        (["body", "properties"], ["string", "map<string,int>"], "properties is of type"),
        (["body", "deliverTimestamp"], ["string", "timestamp_ntz"], "deliverTimestamp is of type"),
        (["body", "brokerName"], ["string", "string"], "needs column queueId"),
    ],
)
def test_columns_that_cannot_be_written(names: list[str], types: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Columns(names, types, topic="T", transactional=False)
    with pytest.raises(UsageError, match="which topic"):
        Columns(["body"], ["string"], topic=None, transactional=False)


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=8)
word = text.filter(lambda each: not any(mark in each for mark in " ") and bool(each.strip()))
row = st.fixed_dictionaries(
    {"body": st.binary(min_size=1, max_size=20)},
    optional={
        "topic": st.none() | st.from_regex(r"[a-zA-Z0-9_-]{1,9}", fullmatch=True),
        "keys": st.none() | st.lists(word, max_size=3),
        "tags": st.none() | word.filter(lambda each: "||" not in each and each == each.strip()),
        "properties": st.none() | st.dictionaries(text.map("p".__add__), text, max_size=3).map(lambda d: [*d.items()]),
        "shardingKey": st.none() | text,
        "delayLevel": st.none() | st.integers(0, 18),
    },
)


@settings(max_examples=3 * settings.default.max_examples // 2, deadline=None)
@given(st.lists(row, min_size=1, max_size=6))
def test_what_is_sent_is_what_the_row_says(rows: list[dict[str, Any]]) -> None:
    batch = frame(rows)
    made = columns(*batch.schema.names).rows(batch, first=5, labels=Labels("q/1/2/"))
    assert len(made) == len(rows)
    for number, (given_row, sent) in enumerate(zip(rows, made, strict=True), 5):
        expected = {"SPARK_TXN": f"q/1/2/{number}", **dict(given_row.get("properties") or [])}
        if given_row.get("keys"):
            expected["KEYS"] = " ".join(given_row["keys"])
        if given_row.get("tags"):
            expected["TAGS"] = given_row["tags"]
        if given_row.get("shardingKey"):
            expected["__SHARDINGKEY"] = given_row["shardingKey"]
        if given_row.get("delayLevel"):
            expected["DELAY"] = str(given_row["delayLevel"])
        assert decode_properties(sent.tail.encode()) == expected
        assert (sent.number, sent.body) == (number, given_row["body"])
        assert sent.topic == (given_row.get("topic") or "T")


_SIGNS = st.text(st.sampled_from("ab |\x01\x02\tü\x1f"), max_size=4)
_NAMES = st.sampled_from(
    ["p", "q", "UNIQ_KEY", "KEYS", "DELAY", "REAL_TOPIC", "SPARK_TXN", "__RMQ.TRANSIENT.x", "ü", ""]
)
_MAPS = st.dictionaries(_NAMES, st.none() | _SIGNS, max_size=4).map(lambda given: list(given.items()))
_GIVEN = st.fixed_dictionaries(
    {"body": st.just(b"1")},
    optional={
        "tags": st.none() | _SIGNS, "keys": st.none() | st.lists(st.none() | _SIGNS, max_size=3),
        "shardingKey": st.none() | _SIGNS, "properties": st.none() | _MAPS,
    },
)  # fmt: skip


@settings(max_examples=3 * settings.default.max_examples // 2)
@given(st.lists(_GIVEN, min_size=1, max_size=4), st.booleans(), st.integers(0, 3), st.booleans())
@example(rows=[{"body": b"1", "keys": ["\x1f"]}], labelled=False, cut=0, text=False)  # a key, although no one sees it
def test_texts_made_at_once_are_those_made_row_by_row(
    rows: list[dict[str, Any]], labelled: bool, cut: int, text: bool
) -> None:
    types: dict[str, pa.DataType] = {}
    if text:
        types = {"keys": pa.string()}
        rows = [{**row, "keys": None if row.get("keys") is None else " ".join(map(str, row["keys"]))} for row in rows]
    batch = frame(rows, **types).slice(min(cut, len(rows) - 1))
    made = columns(*batch.schema.names, **({"keys": "string"} if text else {}))

    def outcome() -> Any:
        try:
            return made.rows(batch, labels=Labels("q/0/") if labelled else None)
        except RowError as error:
            return str(error)

    with pytest.MonkeyPatch.context() as patch:
        at_once = outcome()
        patch.setattr(outgoing_rows, "property_tails", lambda *_: None)
        assert at_once == outcome()


def test_texts_are_made_at_once_for_rows_that_were_read() -> None:
    read = [("UNIQ_KEY", "1"), ("KEYS", "k"), ("p", "v"), ("q", "ü")]
    batch = frame([{"body": b"1", "tags": "t", "keys": ["k", "l"], "properties": read}, {"body": b"2"}])
    found = [batch.column("tags"), batch.column("keys"), None, batch.column("properties")]
    tails = property_tails(2, found, {"UNIQ_KEY", "KEYS"})
    assert tails == ["TAGS\x01t\x02KEYS\x01k l\x02p\x01v\x02q\x01ü\x02", ""]


def test_texts_of_64_bit_offsets_are_taken_as_others_are() -> None:
    row = {"body": b"1", "keys": ["k1", "k2"], "tags": "x", "properties": [("p", "v")], "shardingKey": "s"}
    other = {"body": b"2", "keys": None, "tags": None, "properties": None, "shardingKey": None}
    text, made = pa.large_string(), columns(*row)
    large = frame([row, other], body=pa.large_binary(), keys=pa.list_(text), tags=text, shardingKey=text,
                  properties=pa.map_(text, text))  # fmt: skip
    assert made.rows(large.select(list(row))) == made.rows(frame([row, other]).select(list(row)))
