"""Magics, flags and the fixed head of a stored record (spec/records.md): what writing and reading it share."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

__all__ = (
    "BLANK_SIZE",
    "RECORD_MAGIC_BLANK",
    "RECORD_MAGIC_V1",
    "RECORD_MAGIC_V2",
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

# size magic crc queue_id flag queue_offset physical_offset sys_flag born_timestamp born_host store_timestamp store_host
# reconsume_times prepared_transaction_offset body_length, for each width of the two hosts
HEADS = {(born, store): Struct(f">iiiiiqqiq{born}sq{store}siqi") for born in (8, 20) for store in (8, 20)}
#: Bytes before the body when both hosts are IPv4.
V4_HEAD = 88


@lru_cache(maxsize=4096)
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
