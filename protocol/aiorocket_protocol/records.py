"""The stored message record: commit-log entry and body of a pull answer.

Layout in spec/records.md. A pull answer is stored bytes, so nothing here is decoded before somebody asks for it.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import TypeVar, overload
from zlib import crc32

from aiorocket_protocol.compression import COMPRESSION_MASK, decompress
from aiorocket_protocol.errors import ProtocolError
from aiorocket_protocol.fast import twin
from aiorocket_protocol.hosts import HOST_V4, HOST_V6, unpack_host
from aiorocket_protocol.ids import offset_msg_id
from aiorocket_protocol.limits import MAX_PROPERTIES
from aiorocket_protocol.properties import (
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    decode_properties,
    find_property,
)
from aiorocket_protocol.record_layout import (
    ANY_V6,
    BLANK_SIZE,
    BORN_HOST_AT,
    BORN_TIMESTAMP_AT,
    CRC_AT,
    FLAG_AT,
    HOST_V6_EXTRA,
    MAGIC_AT,
    MIN_RECORD,
    PHYSICAL_OFFSET_AT,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    RECORD_MAGIC_BLANK,
    RECORD_MAGIC_V1,
    RECORD_MAGIC_V2,
    SYS_FLAG_AT,
    SYS_FLAG_BORN_HOST_V6,
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_STORE_HOST_V6,
    V4_HEAD,
)

__all__ = ("RecordView", "check_record", "parse_blank", "split_records")

_INT = Struct(">i")
_LONG = Struct(">q")
_unpack_int = _INT.unpack_from
_unpack_long = _LONG.unpack_from
# Size, magic, sysFlag and, when both hosts are IPv4, the body length: one call checks most of a record.
_unpack_frame = Struct(">ii28xi44xi").unpack_from

_TAGS, _KEYS, _UNIQ_KEY, _DELAY = map(str.encode, (PROPERTY_TAGS, PROPERTY_KEYS, PROPERTY_UNIQ_KEY, PROPERTY_DELAY))

Buffer = bytes | bytearray | memoryview
V = TypeVar("V", bound="RecordView")


def parse_blank(buffer: Buffer, start: int) -> int | None:
    """Bytes covered by the blank at ``start``, or None when something else is there. ProtocolError for an impossible
    size."""
    if len(buffer) - start < BLANK_SIZE or _unpack_int(buffer, start + MAGIC_AT)[0] != RECORD_MAGIC_BLANK:
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
        return int(_unpack_int(self.buffer, self.start + CRC_AT)[0])

    @property
    def queue_id(self) -> int:
        return int(_unpack_int(self.buffer, self.start + QUEUE_ID_AT)[0])

    @property
    def flag(self) -> int:
        """The sender's own flag."""
        return int(_unpack_int(self.buffer, self.start + FLAG_AT)[0])

    @property
    def queue_offset(self) -> int:
        return int(_unpack_long(self.buffer, self.start + QUEUE_OFFSET_AT)[0])

    @property
    def physical_offset(self) -> int:
        return int(_unpack_long(self.buffer, self.start + PHYSICAL_OFFSET_AT)[0])

    @property
    def sys_flag(self) -> int:
        return int(_unpack_int(self.buffer, self.start + SYS_FLAG_AT)[0])

    @property
    def born_timestamp(self) -> int:
        """Sender's wall clock, ms."""
        return int(_unpack_long(self.buffer, self.start + BORN_TIMESTAMP_AT)[0])

    @property
    def born_host_bytes(self) -> bytes:
        """Sender's address as stored, 8 or 20 bytes."""
        at = self.start + BORN_HOST_AT
        return self.buffer[at : at + self._born_width()]

    @property
    def born_host(self) -> str:
        """Sender's address as the broker saw it, ``ip:port``."""
        return unpack_host(self.born_host_bytes)

    @property
    def store_timestamp(self) -> int:
        """Broker's wall clock, ms."""
        return int(_unpack_long(self.buffer, self.start + BORN_HOST_AT + self._born_width())[0])

    @property
    def store_host_bytes(self) -> bytes:
        """The broker's address as stored, 8 or 20 bytes."""
        at = self.start + BORN_HOST_AT + self._born_width() + 8
        return self.buffer[at : at + (HOST_V6 if self.sys_flag & SYS_FLAG_STORE_HOST_V6 else HOST_V4)]

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
        sys_flag = _unpack_int(buffer, start + SYS_FLAG_AT)[0]
        if sys_flag & (ANY_V6 | SYS_FLAG_COMPRESSED):
            body = self.raw_body
            if sys_flag & SYS_FLAG_COMPRESSED:
                body = decompress(body, sys_flag & COMPRESSION_MASK)
        else:
            start += V4_HEAD
            body = buffer[start : start + _unpack_int(buffer, start - 4)[0]]
        self._body = body
        return body

    @body.setter
    def body(self, body: bytes) -> None:
        """For who unpacks what was sent; the record stays as it is."""
        self._body = body

    @property
    def topic(self) -> str:
        """The topic it is stored under (a retry or schedule topic, when on its way)."""
        at, length = self._topic_span()
        try:
            return self.buffer[at : at + length].decode()
        except UnicodeDecodeError as error:
            raise ProtocolError(f"not UTF-8: {error.reason}", where="record topic") from None

    @property
    def raw_topic(self) -> bytes:
        """The topic as stored."""
        at, length = self._topic_span()
        return self.buffer[at : at + length]

    @property
    def raw_properties(self) -> bytes:
        """The property string."""
        buffer, start = self.buffer, self.start
        _, magic, sys_flag, length = _unpack_frame(buffer, start)
        if magic == RECORD_MAGIC_V1 and not sys_flag & ANY_V6:
            at = start + V4_HEAD + length
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
        return self._property(PROPERTY_TAGS, _TAGS) or ""

    @property
    def keys(self) -> list[str]:
        return (self._property(PROPERTY_KEYS, _KEYS) or "").split()

    @property
    def delay_level(self) -> int:
        """The delay level asked for; 0 for none or for text that is no number."""
        text = self._property(PROPERTY_DELAY, _DELAY) or ""
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0

    @property
    def msg_id(self) -> str:
        """UNIQ_KEY, else the offset id; also where that is no text, as a message that came in a batch may have it: no
        log line of it may fail."""
        try:
            return self._property(PROPERTY_UNIQ_KEY, _UNIQ_KEY) or self.offset_msg_id
        except ProtocolError:
            return self.offset_msg_id

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
        return HOST_V6 if self.sys_flag & SYS_FLAG_BORN_HOST_V6 else HOST_V4

    def _body_start(self) -> int:
        sys_flag = self.sys_flag
        if sys_flag & ANY_V6:
            return self.start + _body_offset(sys_flag)
        return self.start + V4_HEAD

    def _topic_span(self) -> tuple[int, int]:
        buffer = self.buffer
        at = self._body_start()
        at += _unpack_int(buffer, at - 4)[0]
        if _unpack_int(buffer, self.start + MAGIC_AT)[0] == RECORD_MAGIC_V1:
            return at + 1, buffer[at]
        return at + 2, buffer[at] << 8 | buffer[at + 1]


def _body_offset(sys_flag: int) -> int:
    """Bytes from the start of a record to its body."""
    wide = bool(sys_flag & SYS_FLAG_BORN_HOST_V6) + bool(sys_flag & SYS_FLAG_STORE_HOST_V6)
    return V4_HEAD + wide * HOST_V6_EXTRA


@overload
def split_records(buffer: bytes) -> list[RecordView]: ...
@overload
def split_records(buffer: bytes, view: type[V]) -> list[V]: ...
@twin
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
            if magic == RECORD_MAGIC_V1 and not sys_flag & ANY_V6 and length >= 0:
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
    if available < MIN_RECORD:
        raise _bad_record(f"{available} bytes are left; a record has at least {MIN_RECORD}", start)
    size, magic, sys_flag, _ = _unpack_frame(buffer, start)
    if magic == RECORD_MAGIC_V1:
        topic_width = 1
    elif magic == RECORD_MAGIC_V2:
        topic_width = 2
    else:
        raise _bad_record(f"magic 0x{magic & 0xFFFFFFFF:08X} is not that of a record", start)
    if not MIN_RECORD <= size <= available:
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
        stored = _unpack_int(buffer, start + CRC_AT)[0]
        found = crc32(memoryview(buffer)[body : body + body_length]) & 0x7FFFFFFF
        if stored != found:
            raise _bad_record(f"body CRC 0x{stored & 0xFFFFFFFF:08X}, computed 0x{found:08X}", start)
    return int(size)


def _bad_record(what: str, start: int) -> ProtocolError:
    return ProtocolError(what, where=f"record at {start}")
