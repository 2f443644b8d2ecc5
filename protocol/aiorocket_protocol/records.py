"""The stored message record: commit-log entry and body of a pull answer.

Layout in spec/records.md. A pull answer is stored bytes, so nothing here is decoded before somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import TypeVar, overload
from zlib import crc32

from aiorocket_protocol.batch import BatchItem
from aiorocket_protocol.compression import COMPRESSION_MASK, decompress
from aiorocket_protocol.errors import ProtocolError
from aiorocket_protocol.hosts import unpack_host
from aiorocket_protocol.ids import offset_msg_id
from aiorocket_protocol.limits import MAX_PROPERTIES
from aiorocket_protocol.properties import decode_properties, find_property

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
    "RecordView",
    "check_record",
    "crc32_31",
    "encode_blank",
    "encode_record",
    "encode_records",
    "parse_blank",
    "split_records",
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
_ANY_V6 = 0x030

# size magic crc queue_id flag queue_offset physical_offset sys_flag born_timestamp born_host store_timestamp store_host
# reconsume_times prepared_transaction_offset body_length, for each width of the two hosts
_HEADS = {
    (born, store): Struct(f">iiiiiqqiq{born}sq{store}siqi") for born in (8, 20) for store in (8, 20)
}
_pack_v4 = _HEADS[8, 8].pack
_V4_HEAD = 88  # bytes before the body when both hosts are IPv4
_SHORT = Struct(">H")
_INT = Struct(">i")
_LONG = Struct(">q")
_pack_short = _SHORT.pack
_unpack_int = _INT.unpack_from
_unpack_long = _LONG.unpack_from
# Size, magic, sysFlag and, when both hosts are IPv4, the body length: one call checks most of a record.
_unpack_frame = Struct(">ii28xi44xi").unpack_from
_BYTES = tuple(bytes((value,)) for value in range(128))
#: Smallest record: no body, no topic, no properties.
_MIN_SIZE = _V4_HEAD + 3

Buffer = bytes | bytearray | memoryview
V = TypeVar("V", bound="RecordView")


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


def crc32_31(body: Buffer) -> int:
    """CRC-32 of the stored body with the sign bit cleared: ``hello`` gives 907060870."""
    return crc32(body) & 0x7FFFFFFF


def encode_record(
    *,
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
        if topic_length < 128:
            magic = RECORD_MAGIC_V1
            size = 91 + len(body) + topic_length + len(properties)
            topic_head = _BYTES[topic_length]
        else:
            magic = RECORD_MAGIC_V2
            size = 92 + len(body) + topic_length + len(properties)
            topic_head = _pack_short(topic_length)
        if body_crc is None:
            body_crc = crc32(body) & 0x7FFFFFFF
        if len(born_host) == 8 and len(store_host) == 8:
            sys_flag &= ~_ANY_V6
            pack = _pack_v4
        else:
            pack = _HEADS[len(born_host), len(store_host)].pack
            size += len(born_host) + len(store_host) - 16
            sys_flag = (
                sys_flag & ~_ANY_V6
                | (SYS_FLAG_BORN_HOST_V6 if len(born_host) == 20 else 0)
                | (SYS_FLAG_STORE_HOST_V6 if len(store_host) == 20 else 0)
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


def encode_records(
    items: Iterable[BatchItem],
    extra_properties: bytes,
    *,
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
) -> list[bytes]:
    """The records of the messages of a batch: consecutive queue offsets, one behind the other from ``physical_offset``
    on. Each gets ``extra_properties`` behind its own, which must be empty or end with their separator. The same bytes
    and errors as ``encode_record`` for each, in half the time."""
    records: list[bytes] = []
    if len(topic) >= 128 or len(born_host) != 8 or len(store_host) != 8:
        for body, flag, properties in items:
            record = encode_record(
                topic=topic, body=body, properties=properties + extra_properties, queue_id=queue_id,
                queue_offset=queue_offset + len(records), physical_offset=physical_offset, flag=flag, sys_flag=sys_flag,
                born_timestamp=born_timestamp, born_host=born_host, store_timestamp=store_timestamp,
                store_host=store_host, reconsume_times=reconsume_times,
            )  # fmt: skip
            physical_offset += len(record)
            records.append(record)
        return records
    sys_flag &= ~_ANY_V6
    topic_field = _BYTES[len(topic)] + topic
    fixed, extra = 91 + len(topic), len(extra_properties)
    join = b"".join
    try:
        for body, flag, properties in items:
            length, properties_length = len(body), len(properties) + extra
            if properties_length > MAX_PROPERTIES:
                raise ProtocolError(f"properties of {properties_length} bytes; at most 32767 fit", where="record")
            size = fixed + length + properties_length
            records.append(
                join(
                    (
                        _pack_v4(
                            size, RECORD_MAGIC_V1, crc32(body) & 0x7FFFFFFF, queue_id, flag, queue_offset,
                            physical_offset, sys_flag, born_timestamp, born_host, store_timestamp, store_host,
                            reconsume_times, 0, length,
                        ),
                        body,
                        topic_field,
                        _pack_short(properties_length),
                        properties,
                        extra_properties,
                    )
                )
            )  # fmt: skip
            queue_offset += 1
            physical_offset += size
    except StructError as error:
        raise ProtocolError(f"a number does not fit its field: {error}", where="record") from None
    return records


def encode_blank(size: int) -> bytes:
    """The first 8 bytes of a blank that fills ``size`` bytes up to the end of a segment."""
    return _INT.pack(size) + _INT.pack(RECORD_MAGIC_BLANK)


def parse_blank(buffer: Buffer, start: int) -> int | None:
    """Bytes covered by the blank at ``start``, or None when something else is there. ProtocolError for an impossible
    size."""
    if len(buffer) - start < BLANK_SIZE or _unpack_int(buffer, start + 4)[0] != RECORD_MAGIC_BLANK:
        return None
    size: int = _unpack_int(buffer, start)[0]
    if size < BLANK_SIZE:
        raise ProtocolError(f"blank of {size} bytes", where=f"record at {start}")
    return size


class RecordView:
    """One record inside a buffer; attributes are decoded when first asked for. Subclasses may add slots, not arguments.

    ``buffer[start:end]`` is the record. Text that is not UTF-8 and bodies that do not decompress raise ProtocolError on
    access.
    """

    __slots__ = ("_body", "_properties", "buffer", "end", "start")

    buffer: bytes
    start: int
    end: int
    _body: bytes | None
    _properties: dict[str, str] | None

    def __init__(self, buffer: bytes, start: int, end: int) -> None:
        self.buffer = buffer
        self.start = start
        self.end = end
        self._body = None
        self._properties = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic}/{self.queue_id}@{self.queue_offset} {self.size} bytes>"

    @property
    def size(self) -> int:
        """Bytes of the whole record (RocketMQ's storeSize)."""
        return self.end - self.start

    @property
    def body_crc(self) -> int:
        return int(_unpack_int(self.buffer, self.start + 8)[0])

    @property
    def queue_id(self) -> int:
        return int(_unpack_int(self.buffer, self.start + 12)[0])

    @property
    def flag(self) -> int:
        """The sender's own flag."""
        return int(_unpack_int(self.buffer, self.start + 16)[0])

    @property
    def queue_offset(self) -> int:
        return int(_unpack_long(self.buffer, self.start + 20)[0])

    @property
    def physical_offset(self) -> int:
        return int(_unpack_long(self.buffer, self.start + 28)[0])

    @property
    def sys_flag(self) -> int:
        return int(_unpack_int(self.buffer, self.start + 36)[0])

    @property
    def born_timestamp(self) -> int:
        """Sender's wall clock, ms."""
        return int(_unpack_long(self.buffer, self.start + 40)[0])

    @property
    def born_host_bytes(self) -> bytes:
        """Sender's address as stored, 8 or 20 bytes."""
        at = self.start + 48
        return self.buffer[at : at + self._born_width()]

    @property
    def born_host(self) -> str:
        """Sender's address as the broker saw it, ``ip:port``."""
        return unpack_host(self.born_host_bytes)

    @property
    def store_timestamp(self) -> int:
        """Broker's wall clock, ms."""
        return int(_unpack_long(self.buffer, self.start + 48 + self._born_width())[0])

    @property
    def store_host_bytes(self) -> bytes:
        """The broker's address as stored, 8 or 20 bytes."""
        at = self.start + 56 + self._born_width()
        return self.buffer[at : at + (20 if self.sys_flag & SYS_FLAG_STORE_HOST_V6 else 8)]

    @property
    def store_host(self) -> str:
        """The broker's address, ``ip:port``."""
        return unpack_host(self.store_host_bytes)

    @property
    def reconsume_times(self) -> int:
        """Failed deliveries before this one."""
        return int(_unpack_int(self.buffer, self._body_start() - 16)[0])

    @property
    def prepared_transaction_offset(self) -> int:
        return int(_unpack_long(self.buffer, self._body_start() - 12)[0])

    @property
    def raw_body(self) -> bytes:
        """The body as stored, perhaps compressed."""
        at = self._body_start()
        return self.buffer[at : at + _unpack_int(self.buffer, at - 4)[0]]

    @property
    def body(self) -> bytes:
        """The body as sent."""
        body = self._body
        if body is not None:
            return body
        buffer, start = self.buffer, self.start
        sys_flag = _unpack_int(buffer, start + 36)[0]
        if sys_flag & (_ANY_V6 | SYS_FLAG_COMPRESSED):
            body = self.raw_body
            if sys_flag & SYS_FLAG_COMPRESSED:
                body = decompress(body, sys_flag & COMPRESSION_MASK)
        else:
            start += _V4_HEAD
            body = buffer[start : start + _unpack_int(buffer, start - 4)[0]]
        self._body = body
        return body

    @property
    def topic(self) -> str:
        """The topic it is stored under (a retry or schedule topic, when on its way)."""
        at, length = self._topic_span()
        try:
            return self.buffer[at : at + length].decode()
        except UnicodeDecodeError as error:
            raise ProtocolError(f"not UTF-8: {error.reason}", where="record topic") from None

    @property
    def raw_properties(self) -> bytes:
        """The property string."""
        buffer, start = self.buffer, self.start
        _, magic, sys_flag, length = _unpack_frame(buffer, start)
        if magic == RECORD_MAGIC_V1 and not sys_flag & _ANY_V6:
            at = start + _V4_HEAD + length
            return buffer[at + buffer[at] + 3 : self.end]
        at, length = self._topic_span()
        return buffer[at + length + 2 : self.end]

    @property
    def properties(self) -> dict[str, str]:
        """All properties, RocketMQ's and the sender's. One dict per record; do not change it."""
        properties = self._properties
        if properties is None:
            properties = self._properties = decode_properties(self.raw_properties)
        return properties

    @property
    def tag(self) -> str:
        return self._property("TAGS", b"TAGS") or ""

    @property
    def keys(self) -> list[str]:
        return (self._property("KEYS", b"KEYS") or "").split()

    @property
    def delay_level(self) -> int:
        """The delay level asked for; 0 for none or for text that is no number."""
        text = self._property("DELAY", b"DELAY") or ""
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0

    @property
    def msg_id(self) -> str:
        """UNIQ_KEY, else the offset id."""
        return self._property("UNIQ_KEY", b"UNIQ_KEY") or self.offset_msg_id

    @property
    def offset_msg_id(self) -> str:
        """Where the record lies: broker address and physical offset."""
        return offset_msg_id(self.store_host_bytes, self.physical_offset)

    def _property(self, name: str, encoded: bytes) -> str | None:
        """One property: from the dict if it exists, else by scanning, five times cheaper than making it."""
        if self._properties is not None:
            return self._properties.get(name)
        value = find_property(self.raw_properties, encoded)
        if value is None:
            return None
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise ProtocolError(f"{name} is not UTF-8: {error.reason}", where="properties") from None

    def _born_width(self) -> int:
        return 20 if self.sys_flag & SYS_FLAG_BORN_HOST_V6 else 8

    def _body_start(self) -> int:
        sys_flag = self.sys_flag
        if sys_flag & _ANY_V6:
            return self.start + _body_offset(sys_flag)
        return self.start + _V4_HEAD

    def _topic_span(self) -> tuple[int, int]:
        buffer = self.buffer
        at = self._body_start()
        at += _unpack_int(buffer, at - 4)[0]
        if _unpack_int(buffer, self.start + 4)[0] == RECORD_MAGIC_V1:
            return at + 1, buffer[at]
        return at + 2, buffer[at] << 8 | buffer[at + 1]


def _body_offset(sys_flag: int) -> int:
    """Bytes from the start of a record to its body."""
    return _V4_HEAD + (12 if sys_flag & SYS_FLAG_BORN_HOST_V6 else 0) + (12 if sys_flag & SYS_FLAG_STORE_HOST_V6 else 0)


@overload
def split_records(buffer: bytes) -> list[RecordView]: ...
@overload
def split_records(buffer: bytes, view: type[V]) -> list[V]: ...
def split_records(buffer: bytes, view: type[RecordView] = RecordView) -> list[RecordView] | list[V]:
    """A view per record of a pull answer. ProtocolError unless records fill ``buffer`` exactly and their inner lengths
    agree."""
    views: list[RecordView] = []
    append = views.append
    start = 0
    total = len(buffer)
    try:
        while start < total:
            size, magic, sys_flag, length = _unpack_frame(buffer, start)
            end = start + size
            if magic == RECORD_MAGIC_V1 and not sys_flag & _ANY_V6 and length >= 0:
                at = start + 88 + length
                at += buffer[at] + 1
                if at + 2 + (buffer[at] << 8 | buffer[at + 1]) == end <= total:
                    append(view(buffer, start, end))
                    start = end
                    continue
            # IPv6, magic V2, or damaged: the careful way.
            start += check_record(buffer, start, check_crc=False)
            append(view(buffer, start - size, start))
    except (StructError, IndexError):
        check_record(buffer, start, check_crc=False)
        raise
    return views


def check_record(buffer: Buffer, start: int, *, check_crc: bool = True) -> int:
    """The size of the record at ``start``. ProtocolError says why none is there: cut off, blank, wrong magic, inner
    lengths that do not add up, body that does not match its CRC."""
    available = len(buffer) - start
    if available < _MIN_SIZE:
        raise _bad_record(f"{available} bytes are left; a record has at least {_MIN_SIZE}", start)
    size, magic, sys_flag, _ = _unpack_frame(buffer, start)
    if magic == RECORD_MAGIC_V1:
        topic_width = 1
    elif magic == RECORD_MAGIC_V2:
        topic_width = 2
    else:
        raise _bad_record(f"magic 0x{magic & 0xFFFFFFFF:08X} is not that of a record", start)
    if not _MIN_SIZE <= size <= available:
        raise _bad_record(f"size {size}; {available} bytes are left", start)
    end = start + size
    body = start + _body_offset(sys_flag)
    if body + topic_width + 2 > end:
        raise _bad_record(f"size {size} is less than its head", start)
    body_length = _unpack_int(buffer, body - 4)[0]
    at = body + body_length
    if body_length < 0 or at + topic_width + 2 > end:
        raise _bad_record(f"body of {body_length} bytes in a record of {size}", start)
    topic_length = buffer[at] if topic_width == 1 else buffer[at] << 8 | buffer[at + 1]
    at += topic_width + topic_length
    if at + 2 > end:
        raise _bad_record(f"topic of {topic_length} bytes in a record of {size}", start)
    properties_length = buffer[at] << 8 | buffer[at + 1]
    if at + 2 + properties_length != end or properties_length > MAX_PROPERTIES:
        raise _bad_record(f"properties of {properties_length} bytes, {end - at - 2} are left", start)
    if check_crc:
        stored = _unpack_int(buffer, start + 8)[0]
        found = crc32(memoryview(buffer)[body : body + body_length]) & 0x7FFFFFFF
        if stored != found:
            raise _bad_record(f"body CRC 0x{stored & 0xFFFFFFFF:08X}, computed 0x{found:08X}", start)
    return int(size)


def _bad_record(what: str, start: int) -> ProtocolError:
    return ProtocolError(what, where=f"record at {start}")
