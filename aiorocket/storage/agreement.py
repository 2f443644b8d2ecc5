"""Whether units of a queue and records of the log say the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, repeat
from operator import add, le
from struct import Struct
from struct import error as StructError

from aiorocket.errors import ProtocolError
from aiorocket.storage.consume_queue import ConsumeQueue
from aiorocket_protocol import MAX_TOPIC, MIN_RECORD, V4_HEAD, RecordView
from aiorocket_protocol.record_layout import ANY_V6

__all__ = ("belong_each", "belong_even", "plausible", "starts_of", "unpack_head")

# size, queue id, queue offset, physical offset, sysFlag; where the body's length stands when both hosts are IPv4
unpack_head = Struct(">i8xi4xqqi44xi").unpack_from


def plausible(places: Sequence[int], sizes: Sequence[int], start: int, end: int) -> bool:
    """Whether these can be records of a log of ``start`` to ``end``."""
    return (
        start <= places[0]
        and places[-1] + sizes[-1] <= end
        and min(sizes) >= MIN_RECORD
        and all(map(le, map(add, places, sizes), places[1:]))
    )


def starts_of(sizes: Sequence[int]) -> list[int]:
    """Where records that stand back to back begin."""
    starts = list(accumulate(sizes, initial=0))
    del starts[-1]
    return starts


def belong_each(
    datas: Sequence[bytes],
    starts: Sequence[int],
    places: Sequence[int],
    sizes: Sequence[int],
    queue: ConsumeQueue,
    offsets: Sequence[int],
) -> bool:
    """Whether the records that begin at ``starts`` of ``datas`` are those of this queue with these log and queue
    offsets."""
    found_sizes, ids, found_offsets, found_places, flags, bodies = zip(*map(unpack_head, datas, starts), strict=True)
    if not (
        found_sizes == tuple(sizes)
        and found_places == tuple(places)
        and found_offsets == tuple(offsets)
        and ids.count(queue.queue_id) == len(ids)
    ):
        return False
    topic = queue.topic_bytes
    if len(topic) <= MAX_TOPIC and not any(map(ANY_V6.__and__, set(flags))):
        field = bytes((len(topic),)) + topic
        return all(map(bytes.startswith, datas, repeat(field), map(add, map(add, starts, bodies), repeat(V4_HEAD))))
    try:
        return all(
            RecordView(data, start, start + size).topic.encode() == topic
            for data, start, size in zip(datas, starts, sizes, strict=True)
        )
    except (ProtocolError, IndexError, StructError):  # without checksums anything may stand there
        return False


@lru_cache(maxsize=64)
def _iter_even(
    size: int, body: int, field: int
) -> Callable[[bytes], Iterator[tuple[int, int, int, int, int, int, bytes]]]:
    return Struct(f">i8xi4xqqi44xi{body}x{field}s{size - V4_HEAD - body - field}x").iter_unpack


def belong_even(
    data: bytes, places: Sequence[int], sizes: Sequence[int], queue: ConsumeQueue, offsets: Sequence[int]
) -> bool:
    """The same of records of one size, which are all of ``data``, in two thirds of the time. False as well for others,
    and for what is to be looked at with care."""
    size, count = sizes[0], len(sizes)
    if sizes.count(size) != count or len(queue.topic_bytes) > MAX_TOPIC:
        return False
    body = int.from_bytes(data[V4_HEAD - 4 : V4_HEAD], "big", signed=True)
    field = bytes((len(queue.topic_bytes),)) + queue.topic_bytes
    if not 0 <= body <= size - V4_HEAD - len(field):
        return False
    found_sizes, ids, found_offsets, found_places, flags, bodies, fields = zip(
        *_iter_even(size, body, len(field))(data), strict=True
    )
    return (
        found_sizes == tuple(sizes)
        and found_places == tuple(places)
        and found_offsets == tuple(offsets)
        and ids.count(queue.queue_id) == bodies.count(body) == fields.count(field) == count
        and not any(map(ANY_V6.__and__, set(flags)))
    )
