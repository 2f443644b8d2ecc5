"""Request body of SEND_BATCH_MESSAGE: messages of one topic behind each other (spec/records.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from struct import Struct
from struct import error as StructError

from aiorocket_protocol.errors import ProtocolError
from aiorocket_protocol.fast import twin
from aiorocket_protocol.limits import MAX_PROPERTIES
from aiorocket_protocol.properties import PROPERTY_UNIQ_KEY

__all__ = ("BATCH_ITEM_OVERHEAD", "BatchItem", "decode_batch", "encode_batch", "encode_bodies")

_pack_short = Struct(">H").pack
#: Bytes of an item beside its body and properties.
BATCH_ITEM_OVERHEAD = 22
_BATCH_HEAD = Struct(">iiiii")  # size magic(0) crc(0) flag body_length
_READ_HEAD = Struct(">i8xii")  # magic and crc are anything
#: The property string of a message that has nothing but its id.
_ID_ONLY = PROPERTY_UNIQ_KEY.encode() + b"\x01%b\x02"


#: One message of a batch body: body, flag, property string.
BatchItem = tuple[bytes, int, bytes]


def encode_batch(items: Iterable[BatchItem]) -> bytes:
    """The request body of SEND_BATCH_MESSAGE from the messages."""
    parts: list[bytes] = []
    # The messages of a batch are often of one size: what stands between their bytes is then packed once.
    last: tuple[int, int, int] | None = None
    head = middle = b""
    for body, flag, properties in items:
        form = (len(body), len(properties), flag)
        if form != last:
            if form[1] > MAX_PROPERTIES:
                raise ProtocolError(f"properties of {form[1]} bytes; at most {MAX_PROPERTIES}", where="batch")
            try:
                head = _BATCH_HEAD.pack(BATCH_ITEM_OVERHEAD + form[0] + form[1], 0, 0, flag, form[0])
            except StructError:
                text = f"flag {flag!r:.100} or the body's length needs over 32 bits"
                raise ProtocolError(text, where="batch") from None
            middle = _pack_short(form[1])
            last = form
        parts += (head, body, middle, properties)
    return b"".join(parts)


@twin
def encode_bodies(bodies: Sequence[bytes], ids: Sequence[str]) -> bytes:
    """``encode_batch`` of messages with nothing but a body and an id (UNIQ_KEY)."""
    return encode_batch([(body, 0, _ID_ONLY % msg_id.encode()) for body, msg_id in zip(bodies, ids, strict=True)])


@twin
def decode_batch(data: bytes, most: int | None = None) -> list[BatchItem]:
    """The messages of a batch body, what ``encode_batch`` was given. ProtocolError unless items fill it exactly and are
    ``most`` at most."""
    start, total = 0, len(data)
    if total >= BATCH_ITEM_OVERHEAD and type(data) is bytes:
        size, _, length = _READ_HEAD.unpack_from(data)
        if BATCH_ITEM_OVERHEAD <= size < total and not total % size and 0 <= length <= size - BATCH_ITEM_OVERHEAD:
            even = _even_items(data, size, length)
            if even is not None and (most is None or len(even) <= most):
                return even
    items: list[BatchItem] = []
    unpack, add = _READ_HEAD.unpack_from, items.append
    while start < total:
        if total - start < BATCH_ITEM_OVERHEAD:
            raise _bad_item(start, f"{total - start} bytes are left; an item has at least {BATCH_ITEM_OVERHEAD}")
        size, flag, length = unpack(data, start)
        body = start + 20
        end = start + size
        if size < BATCH_ITEM_OVERHEAD or end > total or not 0 <= length <= size - BATCH_ITEM_OVERHEAD:
            raise _bad_item(start, f"size {size} with a body of {length}; {total - start} bytes are left")
        at = body + length
        properties_length = data[at] << 8 | data[at + 1]
        if at + 2 + properties_length != end or properties_length > MAX_PROPERTIES:
            raise _bad_item(start, f"properties of {properties_length} bytes, {end - at - 2} are left")
        add((data[body:at], flag, data[at + 2 : end]))
        start = end
        if len(items) == most and start < total:
            raise ProtocolError(f"more than {most} messages", where="batch")
    return items


@lru_cache(maxsize=64)
def _iter_even(length: int, properties: int) -> Callable[[bytes], Iterator[tuple[int, int, int, bytes, int, bytes]]]:
    return Struct(f">i8xii{length}sH{properties}s").iter_unpack


def _even_items(data: bytes, size: int, length: int) -> list[BatchItem] | None:
    """The messages if all are of this size with a body of this length, in half the time of one by one."""
    wanted = size - BATCH_ITEM_OVERHEAD - length
    if wanted > MAX_PROPERTIES:
        return None
    items: list[BatchItem] = []
    add = items.append
    for its_size, flag, its_length, body, own_length, own in _iter_even(length, wanted)(data):
        if its_size != size or its_length != length or own_length != wanted:
            return None
        add((body, flag, own))
    return items


def _bad_item(start: int, what: str) -> ProtocolError:
    return ProtocolError(what, where=f"batch item at {start}")
