"""Stored records to a record batch, all rows of a column at once.

Nothing here is done per record in Python, but for the walk from size to size through large ones. Fixed fields are
gathered as blocks and read through big-endian numpy types; bodies, topics and properties are cut out by Arrow, which is
told where they begin and end in the buffer they arrived in; properties are taken apart in ``property_columns``. Rows
that this cannot do (a compressed body, text that is not UTF-8, separators out of order) go through ``decode_slowly``
and back to their place.

Where aiorocketmq-speedups is installed, plain records become the same columns in one compiled call.

A call costs some tenths of a millisecond however few rows it has: gather thousands of records first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from aiorocket.spark.columns import PROPERTY_COLUMNS, arrow_schema
from aiorocket.spark.decode_slowly import (
    MAX_MILLIS,
    MAX_OFFSET,
    UnfoldedError,
    check_body,
    check_size,
    decode_slowly,
)
from aiorocket.spark.property_columns import Ints, Mask, PropertyTable, as_text, bad_text, cut, map_of, numbers
from aiorocket_protocol import (
    HOST_V6_EXTRA,
    MAX_PROPERTIES,
    MIN_RECORD,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    RECORD_MAGIC_V1,
    RECORD_MAGIC_V2,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_STORE_HOST_V6,
    ProtocolError,
    offset_msg_id,
    split_records,
    unpack_host,
)
from aiorocket_protocol.fast import compiled

__all__ = ("MAX_OFFSET", "UnfoldedError", "decode")


# A record up to its born host, and the end of its head; between them lie two hosts of 8 or 20 bytes.
_HEAD = np.dtype(
    [
        ("size", ">i4"), ("magic", ">i4"), ("crc", ">i4"), ("queue_id", ">i4"), ("flag", ">i4"),
        ("queue_offset", ">i8"), ("physical_offset", ">i8"), ("sys_flag", ">i4"), ("born", ">i8"),
    ]
)  # fmt: skip
_FOOT = np.dtype([("reconsume_times", ">i4"), ("prepared", ">i8"), ("body_length", ">i4")])
_HEAD_WORDS = np.dtype([("size", ">i4"), ("magic", ">i4")])
#: Smaller records are found sooner by a scan for their magic than by steps from one to the next.
_SCANNED = 1024
_MAGIC_BYTE = RECORD_MAGIC_V1 >> 24 & 0xFF
#: The two hex digits of each byte.
_HEX = np.frombuffer(bytes(range(256)).hex().upper().encode(), np.uint16)
_unpack_size = Struct(">i").unpack_from
_record_columns = compiled("record_columns")


def decode(
    data: bytes,
    broker_name: str,
    names: Sequence[str],
    *,
    begin: int = 0,
    end: int = MAX_OFFSET,
    verify_crc: bool = False,
    decompress: bool = True,
    legacy: bool = False,
) -> pa.RecordBatch:
    """The columns ``names`` of the records in ``data`` (bodies of pull answers of one broker, joined) whose queue
    offset is in [begin, end), in their order. Only what is asked for is decoded. ``legacy`` gives ``properties`` as
    JSON text.

    ProtocolError when ``data`` is not whole records, a body does not decompress, or (with ``verify_crc``) does not
    match its CRC; ValueError for more than MAX_CHUNK bytes; UnfoldedError for bodies that unfold to too many;
    UsageError for a column that does not exist.
    """
    schema = arrow_schema(names, legacy=legacy)
    check_size(data)
    if _record_columns is not None and not (legacy and "properties" in names):
        found = _record_columns(data, names, begin, end, verify_crc, decompress, MAX_MILLIS)
        if found is not None:
            return _assembled(schema, broker_name, *found)
    every = _frame(data, broker_name)
    offsets = every.long("queue_offset")
    inside = (offsets >= begin) & (offsets < end)
    if not inside.all():
        every = every.select(inside)
    if verify_crc:
        every.check_crc()

    # Odd rows are taken out kind by kind: what is looked at next relies on what was looked at before.
    rows, table = every, None
    place = np.arange(len(every.starts))
    for find_odd in _odd_finders(names, decompress):
        odd = find_odd(rows)
        if odd is not None:
            rows, place = rows.select(~odd), place[~odd]
    if not PROPERTY_COLUMNS.isdisjoint(names):
        while True:
            table = PropertyTable(data, rows.properties_at, rows.ends)
            odd = table.find_odd(as_json=legacy and "properties" in names)
            if odd is None:
                break
            rows, place = rows.select(~odd), place[~odd]

    columns = [_column(name, rows, table, legacy) for name in names]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    if len(place) == len(every.starts):
        return batch
    taken_out = np.ones(len(every.starts), bool)
    taken_out[place] = False
    records = b"".join([data[start:end] for start, end in every.select(taken_out).spans()])
    slow = decode_slowly(records, broker_name, names, decompress=decompress, legacy=legacy, begin=-MAX_OFFSET - 1)
    order = np.empty(len(every.starts), np.int64)
    order[place] = np.arange(len(place))
    order[taken_out] = np.arange(len(place), len(order))
    return pa.concat_batches([batch, slow]).take(numbers(order))


def _assembled(schema: pa.Schema, broker_name: str, count: int, columns: list[tuple[Any, ...]]) -> pa.RecordBatch:
    """Of the buffers of each column, as the compiled ``record_columns`` gives them."""
    arrays = []
    for field, buffers in zip(schema, columns, strict=True):
        if field.name == "brokerName":
            arrays.append(pa.repeat(broker_name, count))
        elif field.name in ("bornHost", "storeHost"):
            arrays.append(_host_texts(np.frombuffer(buffers[1], np.uint64)))
        elif field.name == "properties":
            firsts = numbers(np.frombuffer(buffers[0], np.int32))
            arrays.append(map_of(firsts, *(_array(pa.string(), len(each[1]) // 4 - 1, each) for each in buffers[1:])))
        else:
            arrays.append(_array(field.type, count, buffers))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(kind: pa.DataType, count: int, buffers: tuple[bytes | None, ...]) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None if each is None else pa.py_buffer(each) for each in buffers])


@dataclass(slots=True)
class _Rows:
    """Where the parts of records lie in ``data``, one entry a row; checked when it was made, not changed after."""

    data: bytes
    broker_name: str
    starts: Ints
    ends: Ints
    heads: npt.NDArray[np.void]
    feet: npt.NDArray[np.void]
    stored_at: Ints
    body_at: Ints
    body_ends: Ints
    topic_at: Ints
    topic_ends: Ints
    _topics: pa.BinaryArray | None = None

    @property
    def properties_at(self) -> Ints:
        return self.topic_ends + 2

    def select(self, mask: Mask) -> _Rows:
        return _Rows(
            self.data, self.broker_name, self.starts[mask], self.ends[mask], self.heads[mask], self.feet[mask],
            self.stored_at[mask], self.body_at[mask], self.body_ends[mask], self.topic_at[mask], self.topic_ends[mask],
        )  # fmt: skip

    def topics(self) -> pa.BinaryArray:
        if self._topics is None:
            self._topics = cut(self.data, self.topic_at, self.topic_ends)
        return self._topics

    def spans(self) -> list[tuple[int, int]]:
        return list(zip(self.starts.tolist(), self.ends.tolist(), strict=True))

    def long(self, field: str) -> Ints:
        return self.heads[field].astype(np.int64)

    def flagged(self, bit: int) -> Mask:
        found: Mask = (self.heads["sys_flag"] & bit) != 0
        return found

    def check_crc(self) -> None:
        view = memoryview(self.data)
        begins, ends = self.body_at.tolist(), self.body_ends.tolist()
        found = np.array([crc32(view[begin:end]) for begin, end in zip(begins, ends, strict=True)], np.int64)
        for row in np.flatnonzero((found & 0x7FFFFFFF) != self.heads["crc"]):
            check_body(view[begins[row] : ends[row]], int(self.heads["crc"][row]), int(self.starts[row]))


def _frame(data: bytes, broker_name: str) -> _Rows:
    """Finds the parts of every record, and that they fill ``data`` exactly, as ``split_records`` does."""
    small = len(data) >= MIN_RECORD and _unpack_size(data)[0] < _SCANNED
    bounds = _scan(data) if small else None
    if bounds is None:
        bounds = _walk(data)
    starts, ends = bounds[:-1], bounds[1:]

    heads = _gather(data, starts, _HEAD)
    magic, sys_flag = heads["magic"], heads["sys_flag"]
    wide_topic = magic == RECORD_MAGIC_V2
    born_v6 = (sys_flag & SYS_FLAG_BORN_HOST_V6) != 0
    stored_at = starts + (_HEAD.itemsize + 8) + HOST_V6_EXTRA * born_v6
    body_at = stored_at + (16 + _FOOT.itemsize) + HOST_V6_EXTRA * ((sys_flag & SYS_FLAG_STORE_HOST_V6) != 0)
    # Each step may only look at bytes that the one before has found to be there.
    _check(data, ((magic == RECORD_MAGIC_V1) | wide_topic) & (body_at + wide_topic + 3 <= ends))
    feet = _gather(data, body_at - _FOOT.itemsize, _FOOT)
    body_length = feet["body_length"].astype(np.int64)
    body_ends = body_at + body_length
    topic_at = body_ends + 1 + wide_topic
    _check(data, (body_length >= 0) & (topic_at + 2 <= ends))
    view = np.frombuffer(data, np.uint8)
    topic_length = view[body_ends].astype(np.int64)
    if wide_topic.any():
        topic_length = np.where(wide_topic, topic_length << 8 | view[topic_at - 1], topic_length)
    topic_ends = topic_at + topic_length
    _check(data, topic_ends + 2 <= ends)
    properties_length = view[topic_ends].astype(np.int64) << 8 | view[topic_ends + 1]
    fits = properties_length <= MAX_PROPERTIES
    _check(data, fits & (topic_ends + 2 + properties_length == ends))
    return _Rows(
        data, broker_name, starts, ends, heads, feet, stored_at, body_at, body_ends, topic_at, topic_ends
    )  # fmt: skip


def _scan(data: bytes) -> Ints | None:
    """Where records begin and end, by their magic; None when something else looks like one."""
    at = np.flatnonzero(np.frombuffer(data, np.uint8)[4:-4] == _MAGIC_BYTE)  # 4 bytes behind the start of a record
    found = _gather(data, at, _HEAD_WORDS)
    records = (found["magic"] == RECORD_MAGIC_V1) | (found["magic"] == RECORD_MAGIC_V2)
    sizes = found["size"][records]
    bounds = np.append(at[records], len(data))
    whole = bounds[0] == 0 and np.array_equal(bounds[:-1] + sizes, bounds[1:]) and np.all(sizes >= MIN_RECORD)
    return bounds if whole else None


def _walk(data: bytes) -> Ints:
    """The same, from size to size."""
    bounds = [0]
    add, at, total = bounds.append, 0, len(data)
    try:
        while at < total:
            size = _unpack_size(data, at)[0]
            if size < MIN_RECORD:
                break
            at += size
            add(at)
    except StructError:
        pass  # cut off inside a size: split_records says so
    if at != total:
        _refuse(data)
    return np.array(bounds, np.int64)


def _check(data: bytes, good: Mask) -> None:
    if not good.all():
        _refuse(data)


def _refuse(data: bytes) -> None:
    split_records(data)  # says which record is damaged and how
    raise ProtocolError("lengths that do not add up", where="records")


def _gather(data: bytes, at: Ints, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The ``dtype`` found at each of the byte positions ``at``."""
    width = dtype.itemsize
    if not len(at):
        return np.empty(0, dtype)
    # Every place of the buffer as an element of its own; only those asked for are copied.
    places = np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))
    return places[at].view(dtype)


def _odd_finders(names: Sequence[str], decompress: bool) -> list[Callable[[_Rows], Mask | None]]:
    finders: list[Callable[[_Rows], Mask | None]] = []
    if "body" in names and decompress:
        finders.append(_find_compressed)
    if "topic" in names:
        finders.append(_find_bad_topics)
    return finders


def _find_compressed(rows: _Rows) -> Mask | None:
    mask = rows.flagged(SYS_FLAG_COMPRESSED)
    return mask if mask.any() else None


def _find_bad_topics(rows: _Rows) -> Mask | None:
    return bad_text(rows.topics())


def _column(name: str, rows: _Rows, table: PropertyTable | None, legacy: bool) -> pa.Array:
    getter = _GETTERS.get(name)
    if getter is not None:
        return getter(rows)
    assert table is not None
    if name == "properties":
        return table.json() if legacy else table.map()
    if name == "msgId":
        return table.values(PROPERTY_UNIQ_KEY, otherwise=lambda: _offset_msg_ids(rows))
    return table.values(PROPERTY_KEYS if name == "keys" else PROPERTY_TAGS)


def _int(field: str) -> Callable[[_Rows], pa.Array]:
    return lambda rows: numbers(rows.heads[field].astype(np.int32))


def _long(field: str) -> Callable[[_Rows], pa.Array]:
    return lambda rows: numbers(rows.heads[field].astype(np.int64))


def _times(millis: Ints) -> pa.Array:
    fits = (millis <= MAX_MILLIS) & (millis >= -MAX_MILLIS)
    micros = numbers(millis * 1000) if fits.all() else numbers(np.where(fits, millis, 0) * 1000, fits)
    return micros.view(pa.timestamp("us", tz="UTC"))


def _hosts(rows: _Rows, at: Ints, v6: Mask) -> pa.Array:
    """Few hosts send many messages, and one broker stores them: each host is made text once."""
    if v6.any():
        ends = (at + 8 + HOST_V6_EXTRA * v6).tolist()
        stored = pa.array([rows.data[begin:end] for begin, end in zip(at.tolist(), ends, strict=True)], pa.binary())
        found = stored.dictionary_encode()
        packed = found.dictionary.to_pylist()
        return pa.array([unpack_host(each) for each in packed], pa.string()).take(found.indices)
    return _host_texts(_gather(rows.data, at, np.dtype(np.uint64)))


def _host_texts(hosts: npt.NDArray[np.uint64]) -> pa.Array:
    """Of IPv4 hosts as stored."""
    if len(hosts) and (hosts == hosts[0]).all():
        return pa.repeat(unpack_host(hosts[0].tobytes()), len(hosts))
    found = numbers(hosts).dictionary_encode()
    texts = [unpack_host(each.tobytes()) for each in found.dictionary.to_numpy()]
    return pa.array(texts, pa.string()).take(found.indices)


def _offset_msg_ids(rows: _Rows) -> pa.Array:
    at = rows.stored_at + 8
    v6 = rows.flagged(SYS_FLAG_STORE_HOST_V6)
    if v6.any():
        ends = (at + 8 + HOST_V6_EXTRA * v6).tolist()
        hosts = [rows.data[begin:end] for begin, end in zip(at.tolist(), ends, strict=True)]
        return pa.array(map(offset_msg_id, hosts, rows.heads["physical_offset"].tolist()), pa.string())
    count = len(at)
    packed = np.empty(count, [("host", "V8"), ("offset", ">i8")])
    packed["host"], packed["offset"] = _gather(rows.data, at, np.dtype("V8")), rows.heads["physical_offset"]
    digits = _HEX.take(packed.view(np.uint8))
    places = np.arange(count + 1, dtype=np.int32) * 32
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(places), pa.py_buffer(digits)])


_GETTERS: dict[str, Callable[[_Rows], pa.Array]] = {
    "topic": lambda rows: as_text(rows.topics()),
    "brokerName": lambda rows: pa.repeat(rows.broker_name, len(rows.starts)),
    "queueId": _int("queue_id"),
    "queueOffset": _long("queue_offset"),
    "offsetMsgId": _offset_msg_ids,
    "body": lambda rows: cut(rows.data, rows.body_at, rows.body_ends),
    "bornTimestamp": lambda rows: _times(rows.long("born")),
    "storeTimestamp": lambda rows: _times(_gather(rows.data, rows.stored_at, np.dtype(">i8")).astype(np.int64)),
    "bornHost": lambda rows: _hosts(rows, rows.starts + _HEAD.itemsize, rows.flagged(SYS_FLAG_BORN_HOST_V6)),
    "storeHost": lambda rows: _hosts(rows, rows.stored_at + 8, rows.flagged(SYS_FLAG_STORE_HOST_V6)),
    "reconsumeTimes": lambda rows: numbers(rows.feet["reconsume_times"].astype(np.int32)),
    "sysFlag": _int("sys_flag"),
    "flag": _int("flag"),
    "bodyCrc": _int("crc"),
    "physicalOffset": _long("physical_offset"),
    "preparedTransactionOffset": lambda rows: numbers(rows.feet["prepared"].astype(np.int64)),
}
