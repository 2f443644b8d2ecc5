"""Writing stored records: one, or those of a batch."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from struct import error as StructError
from zlib import crc32

from aiorocket_protocol.batch import BatchItem
from aiorocket_protocol.errors import ProtocolError
from aiorocket_protocol.fast import twin
from aiorocket_protocol.hosts import HOST_V4, HOST_V6
from aiorocket_protocol.limits import MAX_PROPERTIES, MAX_TOPIC
from aiorocket_protocol.record_layout import (
    ANY_V6,
    HEADS,
    MIN_RECORD,
    RECORD_MAGIC_BLANK,
    RECORD_MAGIC_V1,
    RECORD_MAGIC_V2,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_STORE_HOST_V6,
)

__all__ = ("encode_blank", "encode_record", "encode_records")

_pack_v4 = HEADS[8, 8].pack
_pack_short = Struct(">H").pack
_pack_int = Struct(">i").pack
# The two halves of a head with IPv4 hosts: what is each record's own, and what a batch shares.
_pack_own = Struct(">iiiiiqq").pack
_pack_shared = Struct(">iq8sq8siq").pack
_BYTES = tuple(bytes((value,)) for value in range(MAX_TOPIC + 1))


@twin
def encode_record(
    topic: bytes,
    body: bytes,
    properties: bytes,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    flag: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
    body_crc: int | None = None,
) -> bytes:
    """One record; magic V2 for a topic over 127 bytes. The IPv6 bits of ``sys_flag`` follow the widths of the hosts (8
    or 20).

    ``body`` is stored as given: compressed when ``sys_flag`` says so. ProtocolError when a number or a length does not
    fit.
    """
    try:
        topic_length = len(topic)
        if topic_length <= MAX_TOPIC:
            magic = RECORD_MAGIC_V1
            size = MIN_RECORD + len(body) + topic_length + len(properties)
            topic_head = _BYTES[topic_length]
        else:
            magic = RECORD_MAGIC_V2
            size = MIN_RECORD + 1 + len(body) + topic_length + len(properties)
            topic_head = _pack_short(topic_length)
        if body_crc is None:
            body_crc = crc32(body) & 0x7FFFFFFF
        if len(born_host) == len(store_host) == HOST_V4:
            sys_flag &= ~ANY_V6
            pack = _pack_v4
        else:
            pack = HEADS[len(born_host), len(store_host)].pack
            size += len(born_host) + len(store_host) - 2 * HOST_V4
            sys_flag = (
                sys_flag & ~ANY_V6
                | (SYS_FLAG_BORN_HOST_V6 if len(born_host) == HOST_V6 else 0)
                | (SYS_FLAG_STORE_HOST_V6 if len(store_host) == HOST_V6 else 0)
            )
        if topic_length > 32767 or len(properties) > MAX_PROPERTIES:
            raise ProtocolError(
                f"topic of {topic_length} or properties of {len(properties)} bytes; at most 32767 fit", where="record"
            )
        return b"".join(
            (
                pack(
                    size, magic, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp,
                    born_host, store_timestamp, store_host, reconsume_times, prepared_transaction_offset, len(body),
                ),
                body,
                topic_head,
                topic,
                _pack_short(len(properties)),
                properties,
            )
        )  # fmt: skip
    except StructError as error:
        raise ProtocolError(f"a number does not fit its field: {error}", where="record") from None
    except KeyError:
        raise ProtocolError(
            f"hosts of {len(born_host)} and {len(store_host)} bytes; 8 or 20 are needed", where="record"
        ) from None


@twin
def encode_records(
    items: Iterable[BatchItem],
    extra_properties: bytes,
    topic: bytes,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int = 0,
) -> tuple[bytes, list[int]]:
    """The records of the messages of a batch, one behind the other from ``physical_offset`` on with consecutive queue
    offsets, and their sizes. Each gets ``extra_properties`` behind its own, which must be empty or end with their
    separator. The same bytes and errors as ``encode_record`` for each, in half the time."""
    parts: list[bytes] = []
    sizes: list[int] = []
    if len(topic) > MAX_TOPIC or len(born_host) != HOST_V4 or len(store_host) != HOST_V4:
        for body, flag, properties in items:
            record = encode_record(
                topic=topic, body=body, properties=properties + extra_properties, queue_id=queue_id,
                queue_offset=queue_offset + len(sizes), physical_offset=physical_offset, flag=flag, sys_flag=sys_flag,
                born_timestamp=born_timestamp, born_host=born_host, store_timestamp=store_timestamp,
                store_host=store_host, reconsume_times=reconsume_times,
            )  # fmt: skip
            physical_offset += len(record)
            parts.append(record)
            sizes.append(len(record))
        return b"".join(parts), sizes
    # What is the same in all of them, or in those of one size, is packed once.
    topic_field = _BYTES[len(topic)] + topic
    fixed, extra = MIN_RECORD + len(topic), len(extra_properties)
    length = properties_length = -1
    before_body = after_body = b""
    pack = _pack_own
    try:
        shared = _pack_shared(
            sys_flag & ~ANY_V6, born_timestamp, born_host, store_timestamp, store_host, reconsume_times, 0
        )
        for body, flag, properties in items:
            if len(body) != length:
                length = len(body)
                before_body = shared + _pack_int(length)
            if len(properties) + extra != properties_length:
                properties_length = len(properties) + extra
                if properties_length > MAX_PROPERTIES:
                    raise ProtocolError(
                        f"properties of {properties_length} bytes; at most {MAX_PROPERTIES} fit", where="record"
                    )
                after_body = topic_field + _pack_short(properties_length)
            size = fixed + length + properties_length
            crc = crc32(body) & 0x7FFFFFFF
            own = pack(size, RECORD_MAGIC_V1, crc, queue_id, flag, queue_offset, physical_offset)
            parts += (own, before_body, body, after_body, properties, extra_properties)
            sizes.append(size)
            queue_offset += 1
            physical_offset += size
    except StructError as error:
        raise ProtocolError(f"a number does not fit its field: {error}", where="record") from None
    return b"".join(parts), sizes


def encode_blank(size: int) -> bytes:
    """The first 8 bytes of a blank that fills ``size`` bytes up to the end of a segment."""
    return Struct(">ii").pack(size, RECORD_MAGIC_BLANK)
