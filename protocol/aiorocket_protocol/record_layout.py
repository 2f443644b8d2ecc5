"""Magics, flags and the fixed head of a stored record (spec/records.md): what writing and reading it share."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

from aiorocket_protocol.hosts import HOST_V4, HOST_V6

__all__ = (
    "BLANK_SIZE",
    "BORN_HOST_AT",
    "BORN_TIMESTAMP_AT",
    "CRC_AT",
    "FLAG_AT",
    "HOST_V6_EXTRA",
    "MAGIC_AT",
    "MIN_RECORD",
    "PHYSICAL_OFFSET_AT",
    "QUEUE_ID_AT",
    "QUEUE_OFFSET_AT",
    "RECORD_MAGIC_BLANK",
    "RECORD_MAGIC_V1",
    "RECORD_MAGIC_V2",
    "SYS_FLAG_AT",
    "SYS_FLAG_BORN_HOST_V6",
    "SYS_FLAG_COMPRESSED",
    "SYS_FLAG_INNER_BATCH",
    "SYS_FLAG_MULTI_TAGS",
    "SYS_FLAG_NEED_UNWRAP",
    "SYS_FLAG_STORE_HOST_V6",
    "SYS_FLAG_TRANSACTION_COMMIT",
    "SYS_FLAG_TRANSACTION_MASK",
    "SYS_FLAG_TRANSACTION_PREPARED",
    "SYS_FLAG_TRANSACTION_ROLLBACK",
    "V4_HEAD",
    "tags_code",
)

RECORD_MAGIC_V1 = 0xDAA320A7 - (1 << 32)
RECORD_MAGIC_V2 = 0xDAA320AB - (1 << 32)
RECORD_MAGIC_BLANK = 0xCBD43194 - (1 << 32)
#: A blank is a size and a magic; what follows up to its size is filler.
BLANK_SIZE = 8

SYS_FLAG_COMPRESSED = 0x001
SYS_FLAG_MULTI_TAGS = 0x002
SYS_FLAG_TRANSACTION_PREPARED = 0x004
SYS_FLAG_TRANSACTION_COMMIT = 0x008
SYS_FLAG_TRANSACTION_ROLLBACK = 0x00C
SYS_FLAG_TRANSACTION_MASK = 0x00C
SYS_FLAG_BORN_HOST_V6 = 0x010
SYS_FLAG_STORE_HOST_V6 = 0x020
SYS_FLAG_NEED_UNWRAP = 0x040
SYS_FLAG_INNER_BATCH = 0x080
ANY_V6 = 0x030

# Where its fields begin, in bytes from the start of a record; the size is the first. What stands behind a host is
# HOST_V6_EXTRA bytes further when that is IPv6.
MAGIC_AT, CRC_AT, QUEUE_ID_AT, FLAG_AT, QUEUE_OFFSET_AT, PHYSICAL_OFFSET_AT = 4, 8, 12, 16, 20, 28
SYS_FLAG_AT, BORN_TIMESTAMP_AT, BORN_HOST_AT = 36, 40, 48
HOST_V6_EXTRA = HOST_V6 - HOST_V4

# size magic crc queue_id flag queue_offset physical_offset sys_flag born_timestamp born_host store_timestamp store_host
# reconsume_times prepared_transaction_offset body_length, for each width of the two hosts
HEADS = {
    (born, store): Struct(f">iiiiiqqiq{born}sq{store}siqi")
    for born in (HOST_V4, HOST_V6)
    for store in (HOST_V4, HOST_V6)
}
#: Bytes before the body when both hosts are IPv4.
V4_HEAD = 88
#: A record without body, topic and properties.
MIN_RECORD = V4_HEAD + 3


@lru_cache(maxsize=1024)  # of 32 KiB at most
def tags_code(tag: str) -> int:
    """Java's ``String.hashCode`` of a tag (signed 32 bits, over UTF-16 units); 0 for no tag. ``TagA`` gives 2598919."""
    code = 0
    if tag.isascii():
        for unit in tag.encode():
            code = (31 * code + unit) & 0xFFFFFFFF
    else:
        units = tag.encode("utf-16-be", "surrogatepass")
        for high, low in zip(units[::2], units[1::2], strict=True):
            code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return code - (1 << 32) if code & 0x80000000 else code
