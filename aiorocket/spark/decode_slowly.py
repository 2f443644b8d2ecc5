"""Stored records to rows one by one: what ``decode`` must give, and what it does with the rare rows it cannot cut
fast."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence

import pyarrow as pa

from aiorocket.spark.columns import arrow_schema
from aiorocket_protocol import (
    COMPRESSION_MASK,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    SYS_FLAG_COMPRESSED,
    ProtocolError,
    RecordView,
    decode_properties,
    decompress,
    split_records,
)

__all__ = ("MAX_CHUNK", "MAX_OFFSET", "UnfoldedError", "check_body", "check_size", "decode_slowly", "json_text")

#: Bytes of records that one call takes. An Arrow column holds 2 GiB; this is safely below it even for text whose every
#: byte becomes a replacement character or a JSON escape. Readers gather a thirtieth of it.
MAX_CHUNK = 256 * 1024 * 1024
#: Above every queue offset.
MAX_OFFSET = 2**63 - 1
#: Bytes to which bodies may unfold in one call, if there are several: a worker has them three times for a moment.
_MAX_BODIES = 128 << 20
#: Milliseconds on either side of 1970 that 64 bits of microseconds can hold.
MAX_MILLIS = (2**63 - 1) // 1000


class UnfoldedError(ValueError):
    """Bodies unfold to too many bytes for one call: decode those below ``offset`` first."""

    def __init__(self, bodies: int, rows: int, size: int, offset: int) -> None:
        self.offset = offset
        super().__init__(
            f"{bodies} of {rows} bodies unfold to {size} bytes, at most {_MAX_BODIES} in one call: decode those below "
            f"offset {offset} first"
        )


def decode_slowly(
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
    """As ``decode``, which see; some ten times slower."""
    schema = arrow_schema(names, legacy=legacy)
    check_size(data)
    rows = [_Row(view, broker_name, decompress) for view in split_records(data) if begin <= view.queue_offset < end]
    if verify_crc:
        for row in rows:
            check_body(row.view.raw_body, row.view.body_crc, row.view.start)
    columns = []
    for field in schema:
        if field.name == "body":
            values = _bodies(rows)
        else:
            getter = _GETTERS["propertiesJson" if legacy and field.name == "properties" else field.name]
            values = [getter(row) for row in rows]
        columns.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _bodies(rows: list[_Row]) -> list[object]:
    bodies: list[object] = []
    total = 0
    for row in rows:
        body = row.body()
        bodies.append(body)
        total += len(body)
        if total > _MAX_BODIES and len(bodies) > 1:
            raise UnfoldedError(len(bodies), len(rows), total, row.view.queue_offset)
    return bodies


def check_size(data: bytes) -> None:
    """ValueError for more than MAX_CHUNK bytes."""
    if len(data) > MAX_CHUNK:
        raise ValueError(f"{len(data)} bytes of records in one call, at most {MAX_CHUNK}: decode them in pieces")


def check_body(stored: bytes | memoryview, crc: int, start: int) -> None:
    """ProtocolError when a stored body does not match the record's CRC."""
    found = zlib.crc32(stored) & 0x7FFFFFFF
    if found != crc:
        what = f"body CRC 0x{crc & 0xFFFFFFFF:08X}, computed 0x{found:08X}"
        raise ProtocolError(what, where=f"record at {start}")


def json_text(properties: dict[str, str]) -> str:
    """Properties as the Scala connector shows them: a compact JSON object."""
    return json.dumps(properties, ensure_ascii=False, separators=(",", ":"))


class _Row:
    """A record with text that never fails."""

    __slots__ = ("broker_name", "decompress", "properties", "view")

    def __init__(self, view: RecordView, broker_name: str, decompress: bool) -> None:
        self.view = view
        self.broker_name = broker_name
        self.decompress = decompress
        self.properties = decode_properties(view.raw_properties.decode(errors="replace").encode())

    def topic(self) -> str:
        return self.view.raw_topic.decode(errors="replace")

    def body(self) -> bytes:
        view = self.view
        if not self.decompress or not view.sys_flag & SYS_FLAG_COMPRESSED:
            return view.raw_body
        try:
            return decompress(view.raw_body, view.sys_flag & COMPRESSION_MASK)
        except ProtocolError as error:
            raise ProtocolError(
                f"{error.what} (decompress=false gives bodies as they are stored)",
                where=f"body of queue offset {view.queue_offset}",
            ) from None


def _micros(millis: int) -> int | None:
    return millis * 1000 if -MAX_MILLIS <= millis <= MAX_MILLIS else None


_GETTERS: dict[str, Callable[[_Row], object]] = {
    "topic": _Row.topic,
    "brokerName": lambda row: row.broker_name,
    "queueId": lambda row: row.view.queue_id,
    "queueOffset": lambda row: row.view.queue_offset,
    "msgId": lambda row: row.properties.get(PROPERTY_UNIQ_KEY) or row.view.offset_msg_id,
    "offsetMsgId": lambda row: row.view.offset_msg_id,
    "keys": lambda row: row.properties.get(PROPERTY_KEYS),
    "tags": lambda row: row.properties.get(PROPERTY_TAGS),
    "properties": lambda row: list(row.properties.items()),
    "propertiesJson": lambda row: json_text(row.properties),
    "bornTimestamp": lambda row: _micros(row.view.born_timestamp),
    "storeTimestamp": lambda row: _micros(row.view.store_timestamp),
    "bornHost": lambda row: row.view.born_host,
    "storeHost": lambda row: row.view.store_host,
    "reconsumeTimes": lambda row: row.view.reconsume_times,
    "sysFlag": lambda row: row.view.sys_flag,
    "flag": lambda row: row.view.flag,
    "bodyCrc": lambda row: row.view.body_crc,
    "physicalOffset": lambda row: row.view.physical_offset,
    "preparedTransactionOffset": lambda row: row.view.prepared_transaction_offset,
}
