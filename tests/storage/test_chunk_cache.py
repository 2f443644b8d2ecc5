"""Cold reads: the same bytes whatever the shape of what is wanted, and records that touch in one piece."""

from __future__ import annotations

from itertools import accumulate
from random import Random
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aiorocket.storage.agreement import belong_each, belong_even, starts_of
from aiorocket.storage.chunk_cache import CHUNK, ChunkCache, runs
from aiorocket_protocol.record_writer import encode_record
from aiorocket_protocol.records import ANY_V6, HOST_V6_EXTRA, SYS_FLAG_AT, V4_HEAD
from tests.storage.stores import HOST, HOST_V6

SEGMENT = 3 * CHUNK + 1000


class Log:
    """A log in memory whose pieces end with their segment."""

    def __init__(self, size: int) -> None:
        self.data = Random(7).randbytes(size)
        self.pieces = 0

    def checked(self, offset: int, size: int) -> bytes:
        self.pieces += 1
        end = min(offset + size, offset - offset % SEGMENT + SEGMENT, len(self.data))
        return self.data[offset:end]

    def piece_start(self, offset: int, size: int) -> int:
        base = offset - offset % SEGMENT
        return offset - (offset - base) % size


LOG = Log(2 * SEGMENT + 50_000)


@given(st.lists(st.tuples(st.integers(0, 60_000), st.integers(1, 5_000), st.booleans()), min_size=1, max_size=60))
def test_any_records_are_read_as_they_are(steps: list[tuple[int, int, bool]]) -> None:
    """Gaps (or none, where records touch) and sizes of ascending records."""
    offsets, sizes, place = [], [], 0
    for gap, size, touches in steps:
        place += 0 if touches else gap
        if place + size > len(LOG.data):
            break
        offsets.append(place)
        sizes.append(size)
        place += size
    parts = ChunkCache(LOG, 4 * CHUNK).read(*runs(offsets, sizes))
    assert b"".join(parts) == b"".join(LOG.data[at : at + size] for at, size in zip(offsets, sizes, strict=True))


def test_a_batch_is_one_read_however_far_the_next_one_is() -> None:
    log = Log(2 * SEGMENT)
    starts = [0, 300_000, 600_000]
    sizes = [100] * 32
    offsets = [start + done for start in starts for done in accumulate(sizes[:-1], initial=0)]
    ChunkCache(log, 4 * CHUNK).read(*runs(offsets, sizes * 3))
    assert log.pieces == 3


def test_what_is_missing_comes_out_short() -> None:
    log = Log(1000)
    assert sum(map(len, ChunkCache(log, 4 * CHUNK).read(*runs([900, 950], [50, 200])))) == 100
    assert sum(map(len, ChunkCache(log, 4 * CHUNK).read(*runs([0, 5000], [10, 10])))) == 10


def test_a_record_whose_body_would_end_behind_it_is_nobodys() -> None:
    """Without checksums anything may stand behind an entry of the index."""
    record = bytearray(encode_record(b"T", b"body", b"", 1, 2, 0, 0, 0x10, 3, HOST_V6, 4, HOST))
    queue: Any = SimpleNamespace(queue_id=1, topic="T", topic_bytes=b"T")
    for length in (4, 5, len(record), 1 << 30, -(1 << 30), -1):
        record[V4_HEAD + HOST_V6_EXTRA - 4 : V4_HEAD + HOST_V6_EXTRA] = length.to_bytes(4, "big", signed=True)
        assert belong_each([bytes(record)], [0], [0], [len(record)], queue, [2]) is (length == 4)
    short = bytearray(encode_record(b"T", b"", b"", 1, 2, 0, 0, 0, 3, HOST, 4, HOST))
    short[SYS_FLAG_AT + 3] = ANY_V6
    assert not belong_each([bytes(short)], [0], [0], [len(short)], queue, [2])


@given(st.integers(1, 4), st.integers(0, 9), st.integers(0, 2**16), st.integers(1, 255), st.sampled_from([0, 1, 2]))
def test_records_of_one_size_belong_as_others_do(count: int, body: int, at: int, change: int, kind: int) -> None:
    queue: Any = SimpleNamespace(queue_id=1, topic="T", topic_bytes=b"T")
    records = [
        encode_record(b"T", bytes([n]) * body, b"P\1a\2", 1, 7 + n, 500 + n, 0, 0, 3, HOST, 4, HOST)
        for n in range(count)
    ]
    sizes = list(map(len, records))
    places, offsets, data = list(range(500, 500 + count)), range(7, 7 + count), bytearray(b"".join(records))
    if kind == 1:
        data[at % len(data)] ^= change
    elif kind == 2:
        places[at % count] += change
    each = belong_each([bytes(data)] * count, starts_of(sizes), places, sizes, queue, offsets)
    even = belong_even(bytes(data), places, sizes, queue, offsets)
    assert even <= each
    assert even is each or data[SYS_FLAG_AT + 3 :: sizes[0]].strip(bytes(1))
    assert even or kind
    assert not belong_even(bytes(data), places, sizes, queue, range(8, 8 + count))
    assert not belong_even(
        bytes(data) + bytes(sizes[0] + 1), places * 2, [*sizes, *(size + 1 for size in sizes)], queue, offsets
    )
