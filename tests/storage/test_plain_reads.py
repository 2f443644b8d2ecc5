"""The compiled half of a cold read says what the pure one says, of index entries and records in any state."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket.storage import agreement
from aiorocket.storage.chunk_cache import runs
from aiorocket.storage.consume_queue import GAP, UNIT
from aiorocket_protocol import MIN_RECORD, fast, pack_host
from aiorocket_protocol.record_writer import encode_record

if fast.SPEEDUPS is None:
    pytest.skip("aiorocketmq-speedups is not installed (pip install ./protocol/speedups)", allow_module_level=True)

cut_units, are_records = fast.compiled("cut_units"), fast.compiled("are_records")
HOST = pack_host("127.0.0.1:10911")
HOST_V6 = pack_host("[::1]:10911")
OFFSET, QUEUE_ID = 40, 3


@st.composite
def stored(draw: st.DrawFn) -> tuple[bytes, list[int], list[int], list[bytes]]:
    """Topic, places, sizes and records of a queue's messages, some of them in runs; where they lie in the log."""
    topic = draw(st.sampled_from([b"t", b"topic", "тема".encode()]))
    place = draw(st.integers(0, 1 << 40))
    places, sizes, records = [], [], []
    bodies = st.tuples(st.binary(max_size=30), st.sampled_from([0, 0, 7]), st.sampled_from([HOST] * 9 + [HOST_V6]))
    for index, (body, gap, host) in enumerate(draw(st.lists(bodies, min_size=1, max_size=12))):
        place += gap
        flags = 0x10 if host is HOST_V6 else 0
        record = encode_record(
            topic, body, b"TAGS\1a\2", QUEUE_ID, OFFSET + index, place, 0, flags, 1, host, 2, HOST
        )  # fmt: skip
        places.append(place)
        sizes.append(len(record))
        records.append(record)
        place += len(record)
    return topic, places, sizes, records


def packed(places: list[int], sizes: list[int]) -> bytes:
    return b"".join(UNIT.pack(place, size, 5) for place, size in zip(places, sizes, strict=True))


@given(stored(), st.integers(0, 2000), st.integers(0, 11), st.sampled_from([None, GAP, 0, -1, MIN_RECORD, 2**31 - 1]),
       st.sampled_from([0, 0, 1, -1, -(1 << 62), 1 << 62]), st.sampled_from([0, 0, -1]))  # fmt: skip
def test_entries_are_cut_as_the_pure_way_cuts_them(
    found: tuple[Any, ...], most: int, at: int, size: int | None, shift: int, end: int
) -> None:
    _, places, sizes, _ = found
    low, high = places[0], places[-1] + sizes[-1] + end
    at %= len(places)
    places[at] += shift
    if size is not None:
        sizes[at] = size
    got = cut_units(packed(places, sizes), most, low, high)
    if GAP in sizes or min(sizes) < MIN_RECORD:
        taken = next(index for index, each in enumerate(sizes) if each < MIN_RECORD)
        assert got is None or got[0] <= taken
        return
    taken = max(1, bisect_right(list(accumulate(sizes)), most))
    places, sizes = places[:taken], sizes[:taken]
    if not agreement.plausible(places, sizes, low, high):
        assert got is None
        return
    # It looks at the entry behind the last that fits as well, and may leave all to the pure way for its sake.
    if got is not None:
        starts, lengths = runs(places, sizes)
        assert got == (taken, sum(sizes), list(starts), list(lengths))
    else:
        assert taken < len(found[1])


@given(
    stored(), st.integers(0, 2**16), st.integers(0, 255), st.sampled_from(["unit", "record", "nothing", "cut", "more"])
)
def test_records_belong_where_the_pure_way_says_so(found: tuple[Any, ...], at: int, byte: int, kind: str) -> None:
    topic, places, sizes, records = found
    units, data = bytearray(packed(places, sizes)), bytearray(b"".join(records))
    if kind == "unit":
        units[at % len(units)] = byte
    elif kind == "record":
        data[at % len(data)] = byte
    elif kind == "cut":
        del data[at % len(data) :]
    elif kind == "more":
        data += bytes(1 + at % 200)
    rows = list(UNIT.iter_unpack(bytes(units)))
    places, sizes = [row[0] for row in rows], [row[1] for row in rows]
    queue: Any = SimpleNamespace(queue_id=QUEUE_ID, topic_bytes=topic, topic=topic.decode())
    offsets = range(OFFSET, OFFSET + len(rows))
    pure = len(data) == sum(sizes) and min(sizes) >= MIN_RECORD and agreement.belong_each(
        [bytes(data)] * len(rows), agreement.starts_of(sizes), places, sizes, queue, offsets
    )  # fmt: skip
    got = are_records([bytes(data)], bytes(units), len(rows), OFFSET, QUEUE_ID, topic)
    assert not (got and not pure)
    if pure and not any(record[39] & 0x30 for record in records) and kind in ("nothing", "unit"):
        assert got


@given(stored(), st.integers(0, 2**16))
def test_parts_hold_whole_records(found: tuple[Any, ...], at: int) -> None:
    topic, places, sizes, records = found
    units, data = packed(places, sizes), b"".join(records)
    whole = are_records([data], units, len(records), OFFSET, QUEUE_ID, topic)
    assert are_records(records, units, len(records), OFFSET, QUEUE_ID, topic) is whole
    assert whole is not any(record[39] & 0x30 for record in records)
    at = 1 + at % (len(records[0]) - 1)
    assert not are_records([data[:at], data[at:]], units, len(records), OFFSET, QUEUE_ID, topic)
    assert not are_records([data, data], units, len(records), OFFSET, QUEUE_ID, topic)
    assert not are_records([], units, len(records), OFFSET, QUEUE_ID, topic)
