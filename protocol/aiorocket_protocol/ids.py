"""Message ids: the broker's (where a record lies) and the client's (UNIQ_KEY); handles of timer
messages."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import datetime
from itertools import chain, repeat
from struct import Struct, pack
from typing import NamedTuple

from aiorocket_protocol.errors import ProtocolError
from aiorocket_protocol.fast import twin
from aiorocket_protocol.hosts import unpack_ip

__all__ = ("RecallHandle", "UniqueIds", "numbered_ids", "offset_msg_id", "offset_msg_ids", "parse_offset_msg_id")

_LONG = Struct(">q")
_PORT_AND_OFFSET = Struct(">iq")
_HEX = re.compile(r"[0-9A-Fa-f]*", re.ASCII)
_BASE64 = re.compile(rb"[0-9A-Za-z_-]*", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)


def offset_msg_id(host: bytes, physical_offset: int) -> str:
    """Upper-case hex of the broker's packed host (8 or 20 bytes) and the record's place in its commit log."""
    return (host + _LONG.pack(physical_offset)).hex().upper()


@twin
def offset_msg_ids(host: bytes, places: tuple[int, ...]) -> str:
    """The ``offset_msg_id`` of each place, with commas between, as the answer to a batch has them."""
    width = len(host)
    packed = pack(">" + f"{width}sq" * len(places), *chain.from_iterable(zip(repeat(host), places)))
    return packed.hex(",", width + 8).upper()


def parse_offset_msg_id(msg_id: str) -> tuple[str, int, int]:
    """``(ip, port, physical offset)`` of an id of 32 or 56 hex digits, else ProtocolError."""
    if len(msg_id) not in (32, 56) or not _HEX.fullmatch(msg_id):
        raise ProtocolError(f"{msg_id!r:.100} is not 32 or 56 hex digits", where="offset message id")
    data = bytes.fromhex(msg_id)
    port, offset = _PORT_AND_OFFSET.unpack_from(data, len(data) - 12)
    return unpack_ip(data[:-12]), port, offset


class RecallHandle(NamedTuple):
    """Names a timer message to RECALL_MESSAGE: what the answer to its send carried as recallHandle. ``unique`` is its
    UNIQ_KEY. As text these are joined by blanks behind "v1", in URL-safe base64."""

    topic: str
    broker_name: str
    deliver_ms: int
    unique: str

    def __str__(self) -> str:
        text = f"v1 {self.topic} {self.broker_name} {self.deliver_ms} {self.unique}"
        return urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def parse(cls, text: str) -> RecallHandle:
        """ProtocolError when it is none. Java writes the padding and reads it as optional, and so is more behind."""
        try:
            raw = text.rstrip("=").encode("ascii")
            if not _BASE64.fullmatch(raw):
                raise ValueError("not base64")
            parts = urlsafe_b64decode(raw + b"=" * (-len(raw) % 4)).decode().split(" ")
            version, topic, broker_name, deliver_ms, unique = parts[:5]
            if version != "v1" or not _NUMBER.fullmatch(deliver_ms):
                raise ValueError("not v1 topic broker number id")
            return cls(topic, broker_name, int(deliver_ms), unique)
        except ValueError as error:
            raise ProtocolError(f"{text!r:.200} ({error})", where="recall handle") from error


@twin
def numbered_ids(prefix: str, first: int, count: int) -> list[str]:
    """``count`` ids behind ``prefix``: four hex digits that count from ``first`` on."""
    return [prefix + "%04X" % (number & 0xFFFF) for number in range(first, first + count)]


class UniqueIds:
    """UNIQ_KEYs of one process: ip, pid, seed, milliseconds of the month, counter.

    mqadmin derives a time range from the millisecond part, so the layout is RocketMQ's. Ids of one object never repeat
    within a month, even when the clock is set back or 65,536 are drawn in one millisecond: time then runs on inside the
    ids.
    """

    __slots__ = ("_base", "_count", "_end", "_head", "_last", "_prefix", "_stop")

    def __init__(self, ip: bytes, pid: int, seed: int) -> None:
        """``ip`` has 4 or 16 bytes; ``pid`` is taken modulo 2^16, ``seed`` (random, per process) modulo 2^32."""
        if len(ip) not in (4, 16):
            raise ProtocolError(f"{len(ip)} bytes; an IP address has 4 or 16", where="unique id")
        self._prefix = f"{ip.hex()}{pid & 0xFFFF:04x}{seed & 0xFFFFFFFF:08x}".upper()
        #: Ids of the present millisecond begin with ``_head``; there may be some until ``_count`` is ``_stop``.
        self._head = ""
        self._count = self._stop = seed & 0xFFFF
        self._last = -1
        self._base = self._end = 0

    def next(self, now_ms: int) -> str:
        """A new id; ``now_ms`` is the wall clock."""
        if now_ms > self._last:
            self._begin(now_ms)
        elif self._count == self._stop:
            self._begin(self._last + 1)
        self._count = count = self._count + 1
        return "%s%04X" % (self._head, count & 0xFFFF)  # noqa: UP031 - hot: one C call

    def next_many(self, now_ms: int, count: int) -> list[str]:
        """``count`` new ids, as that many calls of ``next`` would give them, in a third of the time."""
        if now_ms > self._last:
            self._begin(now_ms)
        if self._count + count > self._stop:
            return [self.next(now_ms) for _ in range(count)]
        first = self._count + 1
        self._count += count
        return numbered_ids(self._head, first & 0xFFFF, count)

    def _begin(self, now_ms: int) -> None:
        """Another millisecond."""
        if now_ms >= self._end:
            self._begin_month(now_ms)
        self._last = now_ms
        self._stop = self._count + 0x10000
        self._head = f"{self._prefix}{now_ms - self._base & 0xFFFFFFFF:08X}"

    def _begin_month(self, now_ms: int) -> None:
        month = datetime.fromtimestamp(now_ms / 1000).replace(day=1, hour=0, minute=0, second=0, microsecond=0, fold=0)
        following = month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)
        self._base = int(month.timestamp() * 1000)
        self._end = int(following.timestamp() * 1000)
