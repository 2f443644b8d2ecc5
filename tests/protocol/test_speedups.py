"""The compiled functions give and raise what the pure ones do, for every input.

They need the distribution in protocol/speedups; ``.ci/run speedups`` builds it and runs these, the fuzz target, and all
tests of protocol, storage and broker with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket.broker.core import send_checks
from aiorocket.storage import consume_queue
from aiorocket_protocol import (
    JSON,
    MSGPACK,
    RecordView,
    RemotingCommand,
    SendMessageResponseHeader,
    batch,
    codec,
    encode,
    encode_batch,
    fast,
    frame,
    ids,
    record_writer,
    records,
)
from aiorocket_protocol.compiled import Packed
from aiorocket_protocol.fuzzing import targets

if fast.SPEEDUPS is None:
    pytest.skip("aiorocketmq-speedups is not installed (pip install ./protocol/speedups)", allow_module_level=True)

HOMES: dict[str, Any] = {
    "cut_frames": frame, "decode": codec, "encode_head": codec, "property_value": send_checks, "decode_batch": batch,
    "encode_record": record_writer, "encode_records": record_writer, "split_records": records,
    "encode_bodies": batch, "numbered_ids": ids, "offset_msg_ids": ids, "units_of": consume_queue,
}  # fmt: skip

#: What nobody should pass, and somebody will.
ODD = st.sampled_from([
    None, True, 1.0, -1, 2**31, -(2**31) - 1, 2**63, -(2**63) - 1, "text", b"", b"12345678", bytes(20),
    bytearray(b"1234"),
    memoryview(b"12345678"), (), [], type("Number", (), {"__index__": lambda self: 7})(), "\ud800", bytes(40_000),
])  # fmt: skip
#: Where msgpack changes its form and fields end.
EDGES = [edge + step for edge in (-32, *(sign * 2**bits for bits in (7, 8, 15, 16, 31, 32, 63) for sign in (-1, 1)))
         for step in (-1, 0, 1)]  # fmt: skip
INT32 = st.integers(-(2**31), 2**31 - 1) | st.sampled_from([-(2**31), 2**31 - 1])
INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1])
BYTES = st.binary(max_size=60)
HOST = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)
TEXT = st.text(max_size=40) | st.text(min_size=250, max_size=300)


def same(name: str, *arguments: Any, **named: Any) -> None:
    def bound(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: function(*given, **named)

    compiled, pure = getattr(HOMES[name], name), fast.PURE[name]
    assert compiled is not pure
    assert targets._outcome(bound(compiled), arguments) == targets._outcome(bound(pure), arguments)


def test_every_twin_is_in_use_and_compared_here() -> None:
    assert set(fast.PURE) == set(HOMES)


def damaged(data: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """As it is, cut, with a byte changed, with more behind."""

    def damage(drawn: tuple[bytes, int, int, bytes]) -> bytes:
        whole, kind, at, more = drawn
        at %= len(whole) + 1
        changed = whole[:at] + bytes([more[0] if more else 255]) + whole[at + 1 :]
        return (whole, whole[:at], changed, whole + more)[kind]

    return st.tuples(data, st.integers(0, 3), st.integers(0, 2**16), st.binary(max_size=4)).map(damage)


RECORD = st.tuples(
    st.binary(max_size=130), BYTES, BYTES, INT32, INT64, INT64, INT32, INT32, INT64, HOST, INT64, HOST, INT32, INT64,
    st.none() | INT32,
).map(list)  # fmt: skip


def replaced(arguments: list[Any], at: int | None, odd: Any) -> list[Any]:
    return arguments if at is None else [*arguments[:at], odd, *arguments[at + 1 :]]


@given(RECORD, st.none() | st.integers(0, 14), ODD, st.integers(12, 15))
def test_encode_record(arguments: list[Any], at: int | None, odd: Any, count: int) -> None:
    same("encode_record", *replaced(arguments, at, odd)[:count])


@given(RECORD, ODD)
def test_encode_record_by_name(arguments: list[Any], odd: Any) -> None:
    for name in ("reconsume_times", "prepared_transaction_offset", "body_crc", "nonsense"):
        same("encode_record", *arguments[:12], **{name: odd})


ITEMS = st.lists(st.tuples(BYTES, INT32, BYTES), max_size=5)


@given(ITEMS, st.none() | st.integers(0, 3), ODD, RECORD, st.none() | st.integers(0, 11), ODD)
def test_encode_records(
    items: list[Any], bad: int | None, item: Any, record: list[Any], at: int | None, odd: Any
) -> None:
    if bad is not None:
        items = [*items[:bad], item, *items[bad:]]
    topic, _, extra, queue_id, queue_offset, physical, _, sys_flag, born, host, stored, store_host, times, *_ = record
    arguments = [items, extra, topic, queue_id, queue_offset, physical, sys_flag, born, host, stored, store_host, times]
    same("encode_records", *replaced(arguments, at, odd))


@given(damaged(ITEMS.map(encode_batch)) | ODD, st.none() | st.integers(-1, 5) | ODD)
def test_decode_batch(data: Any, most: Any) -> None:
    same("decode_batch", data)
    same("decode_batch", data, most)
    same("decode_batch", data, most=most)


@given(st.lists(BYTES, max_size=4), st.lists(TEXT, max_size=4), st.none() | st.integers(0, 3), ODD, st.booleans())
def test_encode_bodies(bodies: list[Any], names: list[Any], bad: int | None, odd: Any, of_ids: bool) -> None:
    same("encode_bodies", bodies, names)
    names = [*names, *["id"] * 4][: len(bodies)]
    if bad is not None:
        (names if of_ids else bodies)[bad:] = [odd]
        names = [*names, *["id"] * 4][: len(bodies)]
    same("encode_bodies", bodies, names)
    same("encode_bodies", odd, names)
    same("encode_bodies", bodies, odd)


def test_ids_at_the_limit_of_properties() -> None:
    for length in (32_756, 32_757, 32_758, 70_000):
        same("encode_bodies", [b"body"], ["x" * length])
        same("encode_bodies", [b"body"], ["é" * (length // 2)])


@given(TEXT | ODD, INT64 | st.integers(65_500, 65_600) | ODD, st.integers(-1, 40) | ODD)
def test_numbered_ids(prefix: Any, first: Any, count: Any) -> None:
    if type(count) is not int or count < 1000:
        same("numbered_ids", prefix, first, count)


@given(HOST | BYTES | ODD, st.lists(INT64 | ODD, max_size=4), ODD)
def test_offset_msg_ids(host: Any, places: list[Any], odd: Any) -> None:
    same("offset_msg_ids", host, tuple(places))
    same("offset_msg_ids", host, tuple(place for place in places if type(place) is int))
    same("offset_msg_ids", host, places)
    if odd != bytes(40_000):  # as many places, with a host of that length: gigabytes
        same("offset_msg_ids", host, odd)


@given(INT64 | ODD, st.lists(st.tuples(INT32, INT64), max_size=4), st.none() | st.integers(0, 3), ODD, ODD)
def test_units_of(start: Any, pairs: list[Any], bad: int | None, odd: Any, other: Any) -> None:
    sizes: list[Any] = [size for size, _ in pairs]
    codes: list[Any] = [code for _, code in pairs]
    same("units_of", start, sizes, codes)
    if bad is not None:
        sizes[bad:] = [odd]
        same("units_of", start, sizes, codes)
        codes[bad:] = [other]
    same("units_of", start, sizes, codes)
    same("units_of", start, odd, codes)
    same("units_of", start, sizes, odd)


OWN = st.lists(
    st.sampled_from([b"UNIQ_KEY\1id\2", b"DELAY\0013\2", b"XDELAY\1\2", b"DELAY", b"TAGS\1a\2", b"TAGS", b"\1", b"\2",
                     b"TIMER_", b"TIMER", b"_"]), max_size=3,
).map(b"".join)  # fmt: skip


@given(
    damaged(st.lists(st.tuples(BYTES, INT32, OWN), max_size=4).map(encode_batch)) | ODD,
    st.integers(-1, 5) | ODD, RECORD, st.none() | st.integers(1, 11), ODD,
)  # fmt: skip
def test_a_batch_in_one_piece(data: Any, most: Any, record: list[Any], at: int | None, odd: Any) -> None:
    try:
        items = fast.PURE["decode_batch"](data, most)
        every = b"\2".join(own for _, _, own in items)
        plain = bool(items) and not any(mark in every for mark in (b"DELAY\1", b"TIMER_", b"TAGS\1"))
    except Exception:  # noqa: BLE001 - whatever is no batch
        items, plain = [], False
    whole = fast.compiled("plain_batch")(data, most)
    assert (whole is not None) == (plain and type(data) is bytes and type(most) is int and -(2**63) <= most < 2**63)
    if whole is None:
        return
    assert list(whole) == list(whole) == items
    assert len(whole) == len(items)
    topic, _, extra, queue_id, queue_offset, physical, _, sys_flag, born, host, stored, store_host, times, *_ = record
    arguments = [items, extra, topic, queue_id, queue_offset, physical, sys_flag, born, host, stored, store_host, times]
    _, *others = replaced(arguments, at, odd)
    encode_pure, encode_fast = fast.PURE["encode_records"], record_writer.encode_records
    assert targets._outcome(encode_fast, (whole, *others)) == targets._outcome(encode_pure, (items, *others))


class View(RecordView):
    __slots__ = ()


@given(
    damaged(st.lists(RECORD.map(lambda made: record_writer.encode_record(*made)), max_size=4).map(b"".join)) | ODD,
    st.sampled_from([RecordView, View, None, lambda *given: 1 // 0]),
)
def test_split_records(data: Any, view: Any) -> None:
    same("split_records", data)
    same("split_records", data, view)
    same("split_records", data, view=view)


PAIRS = st.lists(st.sampled_from(["TAGS", "TAG", "S", "a", "é", "\x01", "\x01", "\x02", "\ud800", ""]), max_size=14)


@given(PAIRS.map("".join) | TEXT | ODD, st.sampled_from(["TAGS", "TAG", "a", "", "é", "a\x01a", "a\x02a"]) | ODD)
def test_property_value(properties: Any, name: Any) -> None:
    same("property_value", properties, name)


SCALAR = st.none() | st.booleans() | INT64 | TEXT | ODD
HEADER = st.none() | st.lists(SCALAR, max_size=17).map(tuple)
EXT = st.none() | st.dictionaries(st.text(max_size=3), st.none() | TEXT, max_size=2)
COMMANDS = st.builds(
    RemotingCommand, code=INT32, opaque=INT32, flag=INT32, language=st.integers(0, 255),
    version=st.integers(0, 2**31 - 1), remark=st.none() | TEXT, ext=st.none() | EXT, header=HEADER, body=BYTES,
)  # fmt: skip


@given(COMMANDS, st.sampled_from([MSGPACK, JSON, 9, None]), st.integers(0, 5) | ODD)
def test_encode_head(command: RemotingCommand, kind: Any, more: Any) -> None:
    same("encode_head", command, kind)
    same("encode_head", command, kind, more)
    same("encode_head", command, MSGPACK, more=more)


@given(COMMANDS, ODD, st.sampled_from(["code", "opaque", "flag", "language", "version", "remark", "body", "fields"]))
def test_encode_head_with_odd_values(command: RemotingCommand, odd: Any, name: str) -> None:
    setattr(command, name, odd)
    same("encode_head", command, MSGPACK)


def test_a_frame_that_is_too_large() -> None:
    header = SendMessageResponseHeader("id", 0, 5)
    for more in (2**24 - 200, 2**24 - 4, 2**24, 2**62, 2**63 - 1, 2**70):
        same("encode_head", RemotingCommand.response(0, header), MSGPACK, more)


def packed(command: RemotingCommand) -> bytes:
    try:
        data = encode(command, MSGPACK)
    except Exception:  # noqa: BLE001 - not every value can be packed
        return b""
    return data[8 : 8 + int.from_bytes(data[5:8], "big")]


@given(damaged(COMMANDS.map(packed)) | ODD, st.sampled_from([MSGPACK, JSON, 9, None]), BYTES)
def test_decode(header: Any, kind: Any, body: bytes) -> None:
    same("decode", MSGPACK, header, body)
    same("decode", kind, header, body)


def test_decode_gives_fields_that_msgspec_has_not_read_either() -> None:
    data = packed(RemotingCommand.response(0, SendMessageResponseHeader("id", 0, 5)))
    fields = codec.decode(MSGPACK, data, b"").fields
    assert type(fields) is Packed


@given(st.lists(st.integers(0, 255), max_size=40).map(bytes))
def test_decode_of_any_short_array(data: bytes) -> None:
    same("decode", MSGPACK, b"\x97\x0a\x00\x01\x02\x03\xc0" + data, b"")
    same("decode", MSGPACK, b"\x97" + data, b"")


FRAMES = st.lists(st.tuples(st.integers(0, 255), BYTES, BYTES), max_size=4).map(
    lambda made: b"".join(frame.encode_frame(*each) for each in made)
)


@given(damaged(FRAMES), st.integers(-1, 300) | ODD)
def test_cut_frames(data: bytes, end: Any) -> None:
    for source in (memoryview(data), memoryview(bytearray(data))):
        same("cut_frames", source, len(data))
        if type(end) is int and 0 <= end <= len(data):
            same("cut_frames", source, end)


def test_the_views_of_cut_frames_are_let_go() -> None:
    buffer = bytearray(frame.encode_frame(1, b"header", b"body"))
    assert frame.cut_frames(memoryview(buffer), len(buffer))[0] == [(1, b"header", b"body")]
    buffer.extend(b"more")  # BufferError while anybody holds it


RECORDS = record_writer.encode_record(
    b"topic", b"body", b"A\x01b\x02", 1, 2, 3, 4, 0, 5, bytes(8), 6, bytes(8), 7, 8
) + record_writer.encode_record(b"t", b"", b"", 1, 2, 3, 4, 0, 5, bytes(8), 6, bytes(8))
BATCH = encode_batch([(b"body", 4, b"A\x01b\x02"), (b"", 0, b"")])
NUMBERS = (-1, -(2**31), -33, 127, 128, 300, 70_000, 2**31 - 1)
HEADERS = b"".join(
    frame.encode_frame(
        int(MSGPACK),
        packed(RemotingCommand(-number, number, 1, 9, 400, remark, None, (number, None, True, "id", "x" * 40))),
        b"body",
    )
    for number, remark in zip(NUMBERS, (None, "why", "é", "y" * 300, "", None, None, None), strict=True)
)


@pytest.mark.parametrize("name", ["split_records", "decode_batch", "cut_frames", "decode"])
def test_every_byte_changed_and_every_cut(name: str) -> None:
    def compare(data: bytes) -> None:
        if name == "cut_frames":
            same(name, memoryview(data), len(data))
        elif name == "decode":
            same(name, MSGPACK, data, b"")
        else:
            same(name, data)

    headers = [header for _, header, _ in frame.FrameSplitter().feed(HEADERS)]
    wholes = {"split_records": [RECORDS], "decode_batch": [BATCH], "cut_frames": [HEADERS], "decode": headers}
    for whole in wholes[name]:
        for at, byte in enumerate(whole):
            compare(whole[:at])
            for changed in {0, 1, 0x7F, 0x80, 0xFF, 0xC0, 0xC1, byte + 1 & 0xFF, byte - 1 & 0xFF, byte ^ 0x10}:
                compare(whole[:at] + bytes([changed]) + whole[at + 1 :])


def test_lengths_at_their_limits() -> None:
    limits = (0, 4, 11, frame.MAX_HEADER, frame.MAX_HEADER + 4, frame.MAX_FRAME - 4, 2**24 - 1, 2**31, 2**32 - 1)
    near = [each + step for each in limits for step in (-1, 0, 1)]
    for length in (each for each in near if 0 <= each < 2**32):
        for header in (each for each in near if 0 <= each < 2**24):
            data = length.to_bytes(4, "big") + (0x4D << 24 | header).to_bytes(4, "big") + bytes(8)
            same("cut_frames", memoryview(data), len(data))
    numbers = (1, 2, 3, 4, 0, 5, bytes(8), 6, bytes(8))
    for topic in (127, 128, 32767, 32768):
        for properties in (32766, 32767, 32768, 65536):
            topic_bytes, text = bytes(topic), bytes(properties)
            same("encode_record", topic_bytes, b"body", text, *numbers)
            for extra in (b"", b"A", b"AB"):
                batched = (topic_bytes, 1, 2, 3, 0, 5, bytes(8), 6, bytes(8))
                same("encode_records", [(b"body", 0, text)], extra, *batched)
            same("decode_batch", (26 + properties).to_bytes(4, "big") + bytes(12) + b"\0\0\0\4body"
                 + (properties & 0xFFFF).to_bytes(2, "big") + text)  # fmt: skip


def test_numbers_at_their_limits() -> None:
    for number in EDGES:
        same("encode_head", RemotingCommand.response(0, (number,)), MSGPACK)
        same("decode_batch", BATCH, number)
        for field in ("code", "opaque", "flag", "language", "version"):
            command = RemotingCommand.response(0, (number,))
            setattr(command, field, number)
            same("encode_head", command, MSGPACK)
            same("decode", MSGPACK, packed(command), b"")
        for at in (3, 4, 5, 6, 7, 8, 10):
            arguments = [b"t", b"body", b"", 1, 2, 3, 4, 0, 5, bytes(8), 6, bytes(8)]
            same("encode_record", *replaced(arguments, at, number))
            batched = [[(b"body", 0, b"")] * 2, b"", b"t", 1, 2, 3, 0, 5, bytes(8), 6, bytes(8), 7]
            same("encode_records", *replaced(batched, at, number))
    for length in (0, 1, 31, 32, 33, 255, 256, 257, 65535, 65536):
        command = RemotingCommand.response(0, ("x" * length,), remark="y" * length)
        same("encode_head", command, MSGPACK)
        same("decode", MSGPACK, packed(command), b"")
    for count in (14, 15, 16, 17, 255, 256, 257):
        command = RemotingCommand.response(0, (1,) * count)
        same("encode_head", command, MSGPACK)
        same("decode", MSGPACK, packed(command), b"")
