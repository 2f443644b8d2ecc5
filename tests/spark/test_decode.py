"""Fast decoding gives what slow decoding gives, for every kind of record, choice of columns and range; damage is an
error."""

from __future__ import annotations

import json
import struct
import zlib
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorocket.errors import UsageError
from aiorocket.model import Queue
from aiorocket.spark import decode_slowly as slowly
from aiorocket.spark import property_columns
from aiorocket.spark.columns import LEGACY_COLUMNS, ROW_COLUMNS, arrow_schema
from aiorocket.spark.decode import UnfoldedError, decode
from aiorocket.spark.decode_slowly import decode_slowly
from aiorocket.spark.fetch import Chunk, DataLossError
from aiorocket.spark.options import SourceOptions
from aiorocket.spark.partition import _batches
from aiorocket_protocol import (
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    SYS_FLAG_COMPRESSED,
    ProtocolError,
    compress,
    encode_blank,
    encode_record,
    fast,
    pack_host,
)

MAGIC = b"\xda\xa3\x20\xa7"
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
V4 = st.binary(min_size=8, max_size=8)
V6 = st.binary(min_size=20, max_size=20)
HOSTS = st.sampled_from([pack_host("10.0.0.1:10911"), pack_host("255.255.255.255:65535")]) | V4 | V6
MILLIS = st.integers(0, 4_000_000_000_000) | INT64
TOPICS = (
    st.sampled_from([b"orders", b"%RETRY%group", b"", "größe".encode(), b"x" * 127, b"x" * 128, b"\xff\xfe"])
    | st.binary(max_size=8)
    | st.binary(min_size=128, max_size=300)
)

# Properties as clients write them; then everything they should not be.
NAMES = st.sampled_from([b"KEYS", b"TAGS", b"UNIQ_KEY", b"WAIT", b"KEY", b"TAGSX", "ключ".encode(), b"a" * 30])
VALUES = st.sampled_from([b"x", b"true", b"a b", b"7F0000010000", "Größe €".encode(), b"\x00\x1f", b'{"a": "\\"}'])
WORDS = NAMES | VALUES | st.binary(min_size=1, max_size=4)
GOOD = st.lists(st.tuples(NAMES, VALUES), max_size=6, unique_by=lambda pair: pair[0]).map(
    lambda pairs: b"".join(name + b"\x01" + value + b"\x02" for name, value in pairs)
)
PARTS = WORDS | st.sampled_from([b"\x01", b"\x02", b"\x01\x02", b"", b"\xff", b"\xe4\x01"])
ODD = st.lists(PARTS, max_size=12).map(b"".join)
PROPERTIES = st.one_of(GOOD, GOOD, GOOD.map(lambda text: text[:-1]), ODD)

COMPRESSIONS = (0, COMPRESSION_ZLIB, COMPRESSION_LZ4, COMPRESSION_ZSTD)
BODIES = st.binary(max_size=60) | st.sampled_from([MAGIC, b"\0\0\0\x5b" + MAGIC * 30, b""])


@st.composite
def records(draw: st.DrawFn) -> bytes:
    body, sys_flag = draw(BODIES), draw(st.sampled_from([0, 0, 0, 2, 4, 8, 0x80]))
    if draw(st.integers(0, 7)) == 0:
        compression = draw(st.sampled_from(COMPRESSIONS))
        body, sys_flag = compress(body, compression=compression), sys_flag | SYS_FLAG_COMPRESSED | compression
    return encode_record(
        topic=draw(TOPICS), body=body, properties=draw(PROPERTIES), queue_id=draw(INT32),
        queue_offset=draw(st.integers(0, 20) | INT64), physical_offset=draw(INT64), flag=draw(INT32), sys_flag=sys_flag,
        born_timestamp=draw(MILLIS), born_host=draw(HOSTS), store_timestamp=draw(MILLIS), store_host=draw(HOSTS),
        reconsume_times=draw(INT32), prepared_transaction_offset=draw(INT64),
    )  # fmt: skip


CHUNKS = st.lists(records(), max_size=12).map(b"".join)
CHOICES = st.tuples(st.just(False), st.lists(st.sampled_from(ROW_COLUMNS), min_size=1, unique=True)) | st.tuples(
    st.just(True), st.lists(st.sampled_from(LEGACY_COLUMNS), min_size=1, unique=True)
)


def record(offset: int = 0, properties: bytes = b"TAGS\x01a\x02", **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "topic": b"orders", "body": b"body", "properties": properties, "queue_id": 3, "queue_offset": offset,
        "physical_offset": 4096, "flag": 7, "sys_flag": 0, "born_timestamp": 1_700_000_000_123,
        "born_host": pack_host("10.0.0.1:50001"), "store_timestamp": 1_700_000_000_456,
        "store_host": pack_host("10.0.0.2:10911"),
    }  # fmt: skip
    return encode_record(**{**fields, **changes})


def column(name: str, *records: bytes, **options: Any) -> list[Any]:
    values: list[Any] = both(b"".join(records), [name], **options).column(0).to_pylist()
    return values


def both(data: bytes, names: Any, **options: Any) -> pa.RecordBatch:
    """The batch, after seeing that both ways give it."""
    fast, slow = decode(data, "broker-a", names, **options), decode_slowly(data, "broker-a", names, **options)
    fast.validate(full=True)
    assert fast.schema.equals(arrow_schema(names, legacy=options.get("legacy", False)), check_metadata=True)
    assert fast.equals(slow), (fast.to_pylist(), slow.to_pylist())
    return fast


@settings(deadline=None)
@given(CHUNKS)
def test_all_columns(data: bytes) -> None:
    both(data, ROW_COLUMNS, begin=-(2**63))


@settings(deadline=None)
@given(CHUNKS)
def test_the_legacy_columns(data: bytes) -> None:
    both(data, LEGACY_COLUMNS, begin=-(2**63), legacy=True)


@settings(max_examples=3 * settings.default.max_examples // 2, deadline=None)
@given(CHUNKS, CHOICES, st.integers(-5, 20), st.integers(-5, 30), st.booleans(), st.booleans())
def test_any_columns_of_any_range(
    data: bytes, choice: tuple[bool, list[str]], begin: int, end: int, crc: bool, decompress: bool
) -> None:
    legacy, names = choice
    both(data, names, begin=begin, end=end, verify_crc=crc, decompress=decompress, legacy=legacy)


@settings(deadline=None)
@given(st.lists(st.tuples(GOOD, st.booleans()), min_size=1, max_size=30))
def test_good_properties_need_no_slow_way(rows: list[tuple[bytes, bool]]) -> None:
    data = b"".join(record(number, text[:-1] if cut else text) for number, (text, cut) in enumerate(rows))
    expected = decode_slowly(data, "b", ROW_COLUMNS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aiorocket.spark.decode.decode_slowly", None)
        assert decode(data, "b", ROW_COLUMNS).equals(expected)


@pytest.mark.skipif(fast.compiled("record_columns") is None, reason="aiorocketmq-speedups is not installed")
@settings(max_examples=3 * settings.default.max_examples, deadline=None)
@given(st.lists(st.tuples(GOOD, BODIES, MILLIS, V4), min_size=1, max_size=30), CHOICES, st.booleans(), st.booleans())
def test_plain_records_are_compiled(
    rows: list[tuple[bytes, bytes, int, bytes]], choice: tuple[bool, list[str]], crc: bool, decompress: bool
) -> None:
    """The others, and what the compiled way gives for them, are in every test of this module."""
    made = []
    for number, (text, body, millis, host) in enumerate(rows):
        stamp = millis % slowly.MAX_MILLIS
        made.append(record(number, text, body=body, born_timestamp=-stamp, store_timestamp=stamp, born_host=host))
    legacy, names = choice
    options: dict[str, Any] = {"verify_crc": crc, "decompress": decompress, "legacy": legacy}
    with pytest.MonkeyPatch.context() as patch:
        if not (legacy and "properties" in names):
            patch.setattr("aiorocket.spark.decode._frame", None)
        both(b"".join(made), names, **options)


@settings(max_examples=3 * settings.default.max_examples // 2, deadline=None)
@given(st.lists(records(), min_size=1, max_size=3).map(b"".join), st.data())
def test_damage_is_an_error_or_makes_no_difference(data: bytes, draw: st.DataObject) -> None:
    damaged = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 4))):
        damaged[draw.draw(st.integers(0, len(damaged) - 1))] = draw.draw(st.integers(0, 255))
    text = bytes(damaged[: draw.draw(st.integers(0, len(damaged)) | st.just(len(damaged)))])
    try:
        slow = decode_slowly(text, "b", ROW_COLUMNS, begin=-(2**63))
    except ProtocolError as error:
        with pytest.raises(ProtocolError) as raised:
            decode(text, "b", ROW_COLUMNS, begin=-(2**63))
        assert raised.value.where == error.where
    else:
        assert decode(text, "b", ROW_COLUMNS, begin=-(2**63)).equals(slow)


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_garbage_is_an_error(data: bytes) -> None:
    with pytest.raises(ProtocolError) if data else pytest.MonkeyPatch.context():
        decode(data, "b", ROW_COLUMNS)


@settings(deadline=None)
@given(st.lists(records(), min_size=1, max_size=2).map(b"".join), st.integers(0, 2**32 - 1), st.integers(0, 3))
def test_lengths_that_lie(data: bytes, value: int, field: int) -> None:
    damaged = bytearray(data)
    struct.pack_into(">I", damaged, (0, 4, 36, 84)[field], value)
    text = bytes(damaged)
    try:
        slow = decode_slowly(text, "b", ["queueOffset", "storeHost", "keys"])
    except ProtocolError:
        with pytest.raises(ProtocolError):
            decode(text, "b", ["queueOffset", "storeHost", "keys"])
    else:
        assert decode(text, "b", ["queueOffset", "storeHost", "keys"]).equals(slow)


def test_what_each_column_holds() -> None:
    data = record(5, b"KEYS\x01k1 k2\x02TAGS\x01red\x02UNIQ_KEY\x01AB12\x02mine\x01\xe2\x82\xac\x02", reconsume_times=2)
    crc = zlib.crc32(b"body") & 0x7FFFFFFF
    offset_id = "0A00000200002A9F0000000000001000"
    assert both(data, ROW_COLUMNS, verify_crc=True).to_pylist() == [
        {
            "topic": "orders", "brokerName": "broker-a", "queueId": 3, "queueOffset": 5, "msgId": "AB12",
            "offsetMsgId": offset_id, "keys": "k1 k2", "tags": "red", "body": b"body",
            "properties": [("KEYS", "k1 k2"), ("TAGS", "red"), ("UNIQ_KEY", "AB12"), ("mine", "€")],
            "bornTimestamp": datetime(2023, 11, 14, 22, 13, 20, 123000, UTC),
            "storeTimestamp": datetime(2023, 11, 14, 22, 13, 20, 456000, UTC),
            "bornHost": "10.0.0.1:50001", "storeHost": "10.0.0.2:10911", "reconsumeTimes": 2, "sysFlag": 0, "flag": 7,
            "bodyCrc": crc, "physicalOffset": 4096, "preparedTransactionOffset": 0,
        }
    ]  # fmt: skip
    assert column("msgId", record(properties=b"")) == [offset_id]


def test_an_empty_chunk() -> None:
    assert both(b"", ROW_COLUMNS).num_rows == 0
    assert both(record(5), ROW_COLUMNS, begin=6).num_rows == 0
    assert both(b"", LEGACY_COLUMNS, legacy=True).num_rows == 0


def test_the_range_is_half_open() -> None:
    data = [record(offset) for offset in range(10)]
    assert column("queueOffset", *data, begin=3, end=6) == [3, 4, 5]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", []),
        (b"a\x01b", [("a", "b")]),
        (b"a\x01b\x01c\x02d\x01e\x02", [("a", "b\x01c"), ("d", "e")]),
        (b"a\x01\x02d\x01e\x02", [("d", "e")]),
        (b"\x01b\x02d\x01e\x02", [("d", "e")]),
        (b"junk\x02d\x01e\x02", [("d", "e")]),
        (b"\x02\x02d\x01e\x02\x02", [("d", "e")]),
        (b"a\x01b\x02c\x01d\x02a\x01z\x02", [("a", "z"), ("c", "d")]),
        (b"a\xff\x01\xe4\x02", [("a\ufffd", "\ufffd")]),
        (b"\xff\x011\x02\xfe\x012\x02", [("\ufffd", "2")]),
        (b"a\x01\x00\x1f\x7f\n\x02", [("a", "\x00\x1f\x7f\n")]),
    ],
)
def test_odd_properties_keep_their_place(text: bytes, expected: list[tuple[str, str]]) -> None:
    rows = [record(0), record(1, text), record(2, b"x\x01y\x02"), record(3, text), record(4, b"")]
    assert column("properties", *rows) == [[("TAGS", "a")], expected, [("x", "y")], expected, []]
    as_json = column("properties", *rows, legacy=True)
    assert [json.loads(each) for each in as_json] == [{"TAGS": "a"}, dict(expected), {"x": "y"}, dict(expected), {}]
    assert column("queueOffset", *rows) == [0, 1, 2, 3, 4]
    assert both(b"".join(rows), ["tags", "queueOffset"]).column(0).to_pylist() == ["a", None, None, None, None]


def test_many_names_given_twice() -> None:
    few = b"".join(b"%d\x01x\x02" % number for number in range(63))
    many = b"".join(b"%d\x01x\x02" % (number % 100) for number in range(200))
    counts = [len(each) for each in column("properties", record(0, few + b"62\x01y\x02"), record(1, many), record(2))]
    assert counts == [63, 100, 1]


def test_a_topic_that_is_not_text() -> None:
    assert column("topic", record(0), record(1, topic=b"a\xff"), record(2, topic=b"b" * 200)) == [
        "orders", "a\ufffd", "b" * 200,
    ]  # fmt: skip


def test_hosts_of_both_kinds() -> None:
    v6, v4 = pack_host("[fe80::1]:10911"), pack_host("10.0.0.9:1")
    rows = [record(0), record(1, store_host=v6), record(2, born_host=v6), record(3, born_host=v6, store_host=v6)]
    rows.append(record(4, born_host=v4, store_host=v4))
    assert column("bornHost", *rows) == ["10.0.0.1:50001"] * 2 + ["[fe80::1]:10911"] * 2 + ["10.0.0.9:1"]
    ids = column("offsetMsgId", *rows)
    assert [len(each) for each in ids] == [32, 56, 32, 56, 32]
    assert column("msgId", *rows) == ids
    both(b"".join(rows), ROW_COLUMNS)


def test_times_that_microseconds_cannot_hold_are_null() -> None:
    edge = (2**63 - 1) // 1000
    rows = [record(born_timestamp=each) for each in (edge, edge + 1, -edge, -edge - 1, 2**63 - 1, -(2**63))]
    times = both(b"".join(rows), ["bornTimestamp"]).column(0).cast(pa.int64()).to_pylist()
    assert times == [edge * 1000, None, -edge * 1000, None, None, None]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_compressed_bodies(compression: int) -> None:
    stored = compress(b"long " * 100, compression=compression)
    rows = [record(0), record(1, body=stored, sys_flag=SYS_FLAG_COMPRESSED | compression), record(2)]
    assert column("body", *rows) == [b"body", b"long " * 100, b"body"]
    assert column("body", *rows, decompress=False) == [b"body", stored, b"body"]


def test_a_body_that_does_not_unfold_names_its_row_and_the_way_out() -> None:
    data = record(8) + record(9, body=b"junk", sys_flag=SYS_FLAG_COMPRESSED)
    for way in (decode, decode_slowly):
        with pytest.raises(ProtocolError, match=r"queue offset 9: not zlib.*decompress=false"):
            way(data, "b", ["body"])
        assert way(data, "b", ["body"], decompress=False).num_rows == 2
        assert way(data, "b", ["queueOffset"]).num_rows == 2
        assert way(data, "b", ["body"], end=9).num_rows == 1


def test_bodies_that_unfold_to_much_are_read_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 MiB as stored can be gigabytes."""
    monkeypatch.setattr(slowly, "_MAX_BODIES", 2500)
    bodies = [bytes([ord("a") + number]) * (3000 if number == 5 else 1000) for number in range(10)]
    data = b"".join(
        record(7 + number, b"TAGS\x01%c\x02" % b"xy"[number % 2], body=compress(body), sys_flag=SYS_FLAG_COMPRESSED)
        for number, body in enumerate(bodies)
    )
    said = "3 of 10 bodies unfold to 3000 bytes, at most 2500 in one call: decode those below offset 9 first"
    for way in (decode, decode_slowly):
        with pytest.raises(UnfoldedError, match=said):
            way(data, "b", ["body"])
    chunk = Chunk(Queue("t", "b", 0), 7, 17, data, 10)
    for more in ({}, {"tags": "y"}, {"tags": "y", "legacySchema": "true"}):
        options = SourceOptions.parse({"nameServer": "a:1", "topic": "t", **more})
        batches = list(_batches(chunk, options, ["queueOffset", "body"]))
        assert [each.column("body").to_pylist() for each in batches] == [
            [body for body in part if not more or bodies.index(body) % 2]
            for part in (bodies[:2], bodies[2:4], bodies[4:5], bodies[5:6], bodies[6:8], bodies[8:])
        ]
    with pytest.raises(DataLossError, match="10 messages from offset 7 up to 17, where there were 11"):
        list(_batches(chunk._replace(rows=11), options, ["body"]))


def test_a_body_that_does_not_match_its_crc() -> None:
    data = record(0) + record(1, body_crc=5) + record(2)
    for way in (decode, decode_slowly):
        assert way(data, "b", ["body"]).num_rows == 3
        with pytest.raises(ProtocolError, match=rf"record at {len(record())}: body CRC 0x00000005, computed"):
            way(data, "b", ["queueId"], verify_crc=True)
        assert way(data, "b", ["queueId"], verify_crc=True, end=1).num_rows == 1


def test_bodies_that_hold_the_magic_word() -> None:
    bodies = [MAGIC, MAGIC * 20, struct.pack(">I", 91) + MAGIC + b"\0" * 83, record(1)]
    rows = [record(number, body=body) for number, body in enumerate(bodies)]
    assert column("body", *rows) == bodies


def test_large_and_small_records_together() -> None:
    large, small = record(0, body=b"x" * 100_000), record(1)
    for rows in ([large, small], [small, large], [large] * 3, [small] * 3):
        assert column("body", *rows) == [b"x" * 100_000 if row is large else b"body" for row in rows]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (record()[:-1], "record at 0: size"),
        (record() + b"\0", "1 bytes are left"),
        (record() + record()[:95], "record at 108: size 108; 95 bytes are left"),
        (b"\0" * 200, "magic 0x00000000"),
        (record() + encode_blank(100) + b"\0" * 92, "record at 108: magic 0xCBD43194"),
        (b"\x80" + record()[1:], "record at 0: size -"),
        (record() + b"\0\0\0\x14" + MAGIC + b"\0" * 12, "record at 108: 20 bytes are left"),
        (record() + b"\0\0\0\0" + MAGIC + record(), "record at 108: size 0"),
        (struct.pack(">i", 109) + record()[4:] + record(), "record at 0: properties of 7 bytes, 8 are left"),
    ],
)
def test_damage_says_where(data: bytes, text: str) -> None:
    for way in (decode, decode_slowly):
        with pytest.raises(ProtocolError, match=text):
            way(data, "b", ["queueOffset"])


def test_too_much_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slowly, "MAX_CHUNK", 200)
    for way in (decode, decode_slowly):
        with pytest.raises(ValueError, match="216 bytes of records in one call, at most 200: decode them in pieces"):
            way(record() + record(1), "b", ["body"])


def test_a_column_that_does_not_exist() -> None:
    for way in (decode, decode_slowly):
        with pytest.raises(UsageError, match="did you mean body"):
            way(record(), "b", ["bodi"])


def test_only_what_is_asked_for_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    data = record(0, b"\xff\x02\x02", topic=b"\xff") * 3
    expected = decode_slowly(data, "b", ["queueId", "body"])
    monkeypatch.setattr("aiorocket.spark.decode.decode_slowly", None)
    monkeypatch.setattr("aiorocket.spark.decode.PropertyTable", None)
    assert decode(data, "b", ["queueId", "body"]).equals(expected)
    assert property_columns.PropertyTable is not None
