"""Stored records, batches and compressed bodies: round trips, damage at every byte, laziness."""

from __future__ import annotations

import builtins
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from aiorocket_protocol import (
    BLANK_SIZE,
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    MAX_DECOMPRESSED,
    RECORD_MAGIC_V1,
    RECORD_MAGIC_V2,
    SYS_FLAG_COMPRESSED,
    ProtocolError,
    RecordView,
    beginning,
    check_record,
    compress,
    decode_batch,
    decompress,
    encode_batch,
    encode_blank,
    encode_properties,
    encode_record,
    encode_records,
    pack_host,
    parse_blank,
    split_records,
    tags_code,
)

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=12)
HOSTS = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)
records = st.fixed_dictionaries(
    {
        "topic": st.text("abcXYZ%_-|09", max_size=200).map(str.encode),
        "body": st.binary(max_size=200),
        "properties": st.dictionaries(TEXT, TEXT, max_size=5).map(encode_properties),
        "queue_id": INT32,
        "queue_offset": INT64,
        "physical_offset": INT64,
        "flag": INT32,
        "sys_flag": st.sampled_from([0, 2, 4, 8, 12, 0x10, 0x20, 0x30, 0x80]),
        "born_timestamp": INT64,
        "born_host": HOSTS,
        "store_timestamp": INT64,
        "store_host": HOSTS,
        "reconsume_times": INT32,
        "prepared_transaction_offset": INT64,
    }
)


def record(**changes: Any) -> bytes:
    given: dict[str, Any] = {
        "topic": b"T", "body": b"body", "properties": b"TAGS\x01x\x02", "queue_id": 0, "queue_offset": 0,
        "physical_offset": 0, "flag": 0, "sys_flag": 0, "born_timestamp": 0, "born_host": pack_host("10.0.0.1:1"),
        "store_timestamp": 0, "store_host": pack_host("10.0.0.2:10911"),
    }  # fmt: skip
    return encode_record(**{**given, **changes})


BATCH = st.lists(st.tuples(st.binary(max_size=50), INT32, st.binary(max_size=30)), max_size=6)


@given(records, BATCH, st.binary(max_size=9))
def test_the_records_of_a_batch_are_what_each_would_be(fields: dict[str, Any], items: list[Any], extra: bytes) -> None:
    fields.pop("prepared_transaction_offset")
    fields.update(queue_offset=fields["queue_offset"] >> 1, physical_offset=fields["physical_offset"] >> 1)
    one_by_one, place = [], fields["physical_offset"]
    for number, (body, flag, properties) in enumerate(items):
        own = {"body": body, "flag": flag, "properties": properties + extra, "physical_offset": place}
        one_by_one.append(encode_record(**{**fields, **own, "queue_offset": fields["queue_offset"] + number}))
        place += len(one_by_one[-1])
    shared = {key: value for key, value in fields.items() if key not in ("body", "flag", "properties")}
    assert encode_records(items, extra, **shared) == (b"".join(one_by_one), list(map(len, one_by_one)))


@given(st.lists(records, max_size=5))
def test_round_trip(stored: list[dict[str, Any]]) -> None:
    run = b"".join(encode_record(**fields) for fields in stored)
    views = split_records(run)
    assert len(views) == len(stored)
    for view, fields in zip(views, stored, strict=True):
        for name in ("queue_id", "queue_offset", "physical_offset", "flag", "born_timestamp", "store_timestamp",
                     "reconsume_times", "prepared_transaction_offset", "body"):  # fmt: skip
            assert getattr(view, name) == fields[name], name
        assert view.topic.encode() == view.raw_topic == fields["topic"]
        assert view.raw_properties == fields["properties"]
        assert encode_properties(view.properties) == fields["properties"]
        assert (view.born_host_bytes, view.store_host_bytes) == (fields["born_host"], fields["store_host"])
        assert view.sys_flag & ~0x30 == fields["sys_flag"] & ~0x30
        assert run[view.start : view.end] == encode_record(**fields)


@given(records)
def test_every_shortening_is_refused(fields: dict[str, Any]) -> None:
    data = encode_record(**fields)
    for length in range(len(data)):
        with pytest.raises(ProtocolError):
            check_record(data[:length], 0)
        if length:
            with pytest.raises(ProtocolError):
                split_records(data[:length])


@given(records, st.integers(0, 1 << 30), st.integers(1, 255))
def test_a_changed_byte_gives_a_record_or_one_error(fields: dict[str, Any], at: int, flip: int) -> None:
    data = bytearray(encode_record(**fields))
    data[at % len(data)] ^= flip
    try:
        views = split_records(bytes(data))
    except ProtocolError:
        with pytest.raises(ProtocolError):
            check_record(bytes(data), 0, check_crc=False)
        return
    assert sum(view.size for view in views) == len(data)
    for name in dir(RecordView):
        if not name.startswith("_"):
            try:
                getattr(views[0], name)
            except ProtocolError:
                continue


@given(st.binary(max_size=300))
def test_any_bytes_end_in_records_or_one_error(data: bytes) -> None:
    try:
        views = split_records(data)
    except ProtocolError:
        return
    assert sum(view.size for view in views) == len(data)


def test_crc_covers_the_body() -> None:
    data = bytearray(record(body=b"hello"))
    assert check_record(data, 0) == len(data)
    data[88] ^= 1
    with pytest.raises(ProtocolError, match="body CRC"):
        check_record(data, 0)
    assert check_record(memoryview(data), 0, check_crc=False) == len(data)


def test_magic_follows_the_topic_length() -> None:
    for length, magic in ((127, RECORD_MAGIC_V1), (128, RECORD_MAGIC_V2), (255, RECORD_MAGIC_V2)):
        data = record(topic=b"t" * length)
        assert int.from_bytes(data[4:8], "big", signed=True) == magic
        assert split_records(data)[0].topic == "t" * length


def test_what_does_not_fit_is_refused() -> None:
    for change in (
        {"queue_id": 2**31}, {"queue_offset": 2**63}, {"properties": b"x" * 32768}, {"topic": b"t" * 32768},
        {"born_host": b"1234"},
    ):  # fmt: skip
        with pytest.raises(ProtocolError):
            record(**change)


def test_blanks() -> None:
    blank = encode_blank(200)
    assert len(blank) == BLANK_SIZE
    assert parse_blank(b"xx" + blank, 2) == 200
    assert parse_blank(record(), 0) is None
    assert parse_blank(blank[:7], 0) is None
    with pytest.raises(ProtocolError):
        parse_blank(encode_blank(7), 0)


class Tagged(RecordView):
    __slots__ = ("queue",)

    queue: str


def test_subclass_with_more_slots() -> None:
    views = split_records(record() * 2, Tagged)
    views[0].queue = "q"
    assert (type(views[1]), views[0].queue, views[0].tag) == (Tagged, "q", "x")
    assert not hasattr(views[0], "__dict__")
    assert "T/0@0" in repr(views[0])


def test_views_decode_once_and_only_when_asked() -> None:
    view = split_records(record(properties=b"TAGS\x01\xff\x02"))[0]
    assert view.body is view.body
    with pytest.raises(ProtocolError, match="not UTF-8"):
        _ = view.tag
    with pytest.raises(ProtocolError, match="not UTF-8"):
        _ = view.properties
    other = split_records(record(properties=b"TAGS\x01x\x02DELAY\x013\x02KEYS\x01a  b\x02"))[0]
    assert (other.tag, other.delay_level, other.keys) == ("x", 3, ["a", "b"])
    assert other.properties is other.properties
    assert (other.tag, other.delay_level) == ("x", 3)
    assert split_records(record(properties=b"DELAY\x01-1\x02"))[0].delay_level == 0


# ---- compression ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [COMPRESSION_ZLIB, COMPRESSION_LZ4, COMPRESSION_ZSTD])
@given(body=st.binary(max_size=300).map(lambda piece: piece * 5))
def test_compressed_bodies(kind: int, body: bytes) -> None:
    data = compress(body, 3, kind)
    assert decompress(data, kind) == body
    view = split_records(record(body=data, sys_flag=SYS_FLAG_COMPRESSED | kind))[0]
    assert (view.raw_body, view.body) == (data, body)
    for cut in range(0, len(data), 1 + len(data) // 10):
        with pytest.raises(ProtocolError):
            decompress(data[:cut], kind)


@pytest.mark.parametrize("kind", [COMPRESSION_ZLIB, COMPRESSION_LZ4, COMPRESSION_ZSTD])
def test_a_body_that_unfolds_beyond_the_limit_is_refused(kind: int) -> None:
    data = compress(bytes(1_000_000), 9, kind)
    with pytest.raises(ProtocolError, match="999999"):
        decompress(data, kind, 999_999)
    assert len(decompress(data, kind, 1_000_000)) == 1_000_000
    assert MAX_DECOMPRESSED < 1 << 30


@pytest.mark.parametrize("kind", [COMPRESSION_ZLIB, COMPRESSION_LZ4, COMPRESSION_ZSTD])
def test_the_body_of_a_record_unfolds_to_the_limit_and_no_further(kind: int) -> None:
    """Nobody who reads a message says a limit."""
    limit = MAX_DECOMPRESSED

    def read(size: int) -> int:
        data = compress(bytes(size), 1, kind)
        return len(split_records(record(body=data, sys_flag=SYS_FLAG_COMPRESSED | kind))[0].body)

    assert read(limit) == limit
    with pytest.raises(ProtocolError, match=f"{limit}"):
        read(limit + 1)


def streamed_zstd(body: bytes) -> bytes:
    """A frame that does not say how large it is."""
    stream = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return bytes(stream.compress(body) + stream.flush())


PACKERS = pytest.mark.parametrize(
    ("kind", "pack"),
    [
        (COMPRESSION_ZLIB, zlib.compress),
        (COMPRESSION_LZ4, lz4.frame.compress),
        (COMPRESSION_ZSTD, zstandard.compress),
        (COMPRESSION_ZSTD, streamed_zstd),
    ],
    ids=["zlib", "lz4", "zstd", "zstd-streamed"],
)


@PACKERS
def test_a_bomb_takes_no_memory(kind: int, pack: Callable[[bytes], bytes]) -> None:
    bomb = pack(bytes(32 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="1000"):
            decompress(bomb, kind, 1000)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@PACKERS
def test_the_beginning_of_a_body_takes_the_work_of_the_beginning(kind: int, pack: Callable[[bytes], bytes]) -> None:
    body = bytes(range(256)) * 40
    assert beginning(pack(body), kind, 1000) == body[:1000] and beginning(pack(body), kind, 99_999) == body
    assert beginning(pack(body), kind, 0) == b""  # and not all of it, as zlib takes that
    bomb = pack(bytes(32 << 20))
    tracemalloc.start()
    try:
        assert beginning(bomb, kind, 1000) == bytes(1000)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    with pytest.raises(ProtocolError):
        beginning(b"not packed", kind, 1000)
    with pytest.raises(ProtocolError, match="unknown"):
        beginning(b"", 0x400, 1000)


def test_zstd_of_unknown_size() -> None:
    data = streamed_zstd(b"a" * 500_000)
    assert decompress(data, COMPRESSION_ZSTD) == b"a" * 500_000
    with pytest.raises(ProtocolError, match="more than 400000"):
        decompress(data, COMPRESSION_ZSTD, 400_000)
    with pytest.raises(ProtocolError):
        decompress(data[:-3], COMPRESSION_ZSTD)


def test_legacy_zlib_has_no_type_bits() -> None:
    assert decompress(zlib.compress(b"x" * 99), 0) == b"x" * 99


@pytest.mark.parametrize(("kind", "extra"), [(COMPRESSION_LZ4, "lz4"), (COMPRESSION_ZSTD, "zstd")])
def test_a_missing_library_names_its_extra(kind: int, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name in ("lz4.frame", "zstandard"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ProtocolError, match=rf"aiorocketmq\[{extra}\]"):
        decompress(b"", kind)
    with pytest.raises(ProtocolError, match=rf"aiorocketmq\[{extra}\]"):
        compress(b"", 1, kind)


# ---- batches and tags ----------------------------------------------------------------------------------------------


@given(BATCH)
def test_batch_round_trip(items: list[tuple[bytes, int, bytes]]) -> None:
    assert decode_batch(encode_batch(items)) == items


@given(
    st.integers(2, 4),
    st.integers(0, 9),
    st.integers(0, 9),
    st.lists(st.tuples(st.integers(0, 159), st.binary(max_size=3))),
)
def test_messages_of_one_size_are_read_as_others_are(
    count: int, body: int, properties: int, changes: list[tuple[int, bytes]]
) -> None:
    encoded = bytearray(encode_batch([(bytes([at]) * body, at, b"p" * properties) for at in range(count)]))
    for at, changed in changes:
        at %= len(encoded)
        encoded[at : at + len(changed)] = changed

    def read(data: Any, most: int | None) -> Any:
        try:
            return decode_batch(data, most)
        except ProtocolError as error:
            return str(error)

    for most in (None, 0, 1, 2, 3, 4):
        # What is no ``bytes`` is read one by one.
        assert read(bytes(encoded), most) == read(memoryview(encoded), most)


@given(st.lists(st.tuples(st.binary(max_size=20), INT32, st.binary(max_size=9)), min_size=1, max_size=3), st.data())
def test_damaged_batches(items: list[tuple[bytes, int, bytes]], data: st.DataObject) -> None:
    encoded = bytearray(encode_batch(items))
    cut = data.draw(st.integers(1, len(encoded)))
    edges, at = set(), 0
    for body, _, properties in items:
        at += 22 + len(body) + len(properties)
        edges.add(at)
    if cut not in edges:
        with pytest.raises(ProtocolError):
            decode_batch(bytes(encoded[:cut]))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        decode_batch(bytes(encoded))
    except ProtocolError as error:
        assert error.where.startswith("batch item at ")


def test_batch_items_that_do_not_fit() -> None:
    with pytest.raises(ProtocolError):
        encode_batch([(b"", 2**31, b"")])
    with pytest.raises(ProtocolError):
        encode_batch([(b"", 0, b"x" * 32768)])


@given(st.text(max_size=30))
def test_tags_code_is_javas_hash(tag: str) -> None:
    units = tag.encode("utf-16-be", "surrogatepass")
    expected = 0
    for at in range(0, len(units), 2):
        expected = (expected * 31 + int.from_bytes(units[at : at + 2], "big")) % 2**32
    assert tags_code(tag) == expected - (2**32 if expected >= 2**31 else 0)
