"""Values that users and components exchange: plain, immutable, without behaviour that waits."""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import NamedTuple

from aiorocket.errors import BadNameError
from aiorocket_protocol import (
    COMPRESSION_MASK,
    MAX_GROUP,
    MAX_TOPIC,
    NAME_CHARACTER,
    SYS_FLAG_COMPRESSED,
    SYS_FLAG_TRANSACTION_COMMIT,
    SYS_FLAG_TRANSACTION_ROLLBACK,
    ProtocolError,
    RecordView,
    ResponseCode,
    beginning,
    decode_properties,
)

__all__ = (
    "LegibleRecord",
    "Queue",
    "average",
    "average_by_circle",
    "OutgoingMessage",
    "SendReceipt",
    "SendStatus",
    "TxState",
    "body_row",
    "check_topic",
    "check_group",
)

_TOPIC = re.compile(f"{NAME_CHARACTER}{{1,{MAX_TOPIC}}}", re.ASCII)
_GROUP = re.compile(f"{NAME_CHARACTER}{{1,{MAX_GROUP}}}", re.ASCII)


class Queue(NamedTuple):
    """One queue of a topic on one broker (RocketMQ's MessageQueue); sorts by topic, broker name and id, as there."""

    topic: str
    broker_name: str
    queue_id: int


def average(queues: Sequence[Queue], client_ids: Sequence[str], me: str) -> list[Queue]:
    """Contiguous blocks (AVG); the first ``len(queues) % len(client_ids)`` members get one more. Empty when not a
    member."""
    ordered, members = sorted(queues), sorted(set(client_ids))
    return ordered[average_share(len(ordered), members.index(me), len(members))] if me in members else []


def average_share(queues: int, index: int, members: int) -> slice:
    """Which of so many queues AVG gives the member at ``index`` of so many, all of them in order."""
    share, rest = divmod(queues, members)
    start = index * share + min(index, rest)
    return slice(start, start + share + (1 if index < rest else 0))


def average_by_circle(queues: Sequence[Queue], client_ids: Sequence[str], me: str) -> list[Queue]:
    """Every ``len(client_ids)``-th queue (AVG_BY_CIRCLE). Empty when not a member."""
    ordered, members = sorted(queues), sorted(set(client_ids))
    return ordered[circle_share(len(ordered), members.index(me), len(members))] if me in members else []


def circle_share(queues: int, index: int, members: int) -> slice:
    """The same of AVG_BY_CIRCLE."""
    return slice(index, queues, members)


class SendStatus(Enum):
    """What the broker said of a stored message; every status but SEND_OK means stored, with a promise missing."""

    SEND_OK = int(ResponseCode.SUCCESS)
    FLUSH_DISK_TIMEOUT = int(ResponseCode.FLUSH_DISK_TIMEOUT)
    SLAVE_NOT_AVAILABLE = int(ResponseCode.SLAVE_NOT_AVAILABLE)
    FLUSH_SLAVE_TIMEOUT = int(ResponseCode.FLUSH_SLAVE_TIMEOUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingMessage:
    """A message to send. ``keys`` are joined by blanks as RocketMQ stores them; ``delay_level`` 0 means at once, ``at``
    (with its zone) and ``after`` say to the millisecond when. Messages with the same ``sharding_key`` go to the same
    queue, in the order of the sends. ``msg_id`` is an id of your own (UNIQ_KEY, 1 to 64 of ``a-z A-Z 0-9 _ -``): what
    is sent twice with it, to one queue, is stored once with ``ProducerConfig.idempotent``."""

    topic: str
    body: bytes
    tag: str = ""
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    delay_level: int = 0
    sharding_key: str | None = None
    at: datetime | None = None
    after: timedelta | None = None
    msg_id: str | None = None


class TxState(Enum):
    """What became of a local transaction (the numbers are RocketMQ's sysFlag); UNKNOWN leaves it to the checker."""

    UNKNOWN = 0
    COMMIT = SYS_FLAG_TRANSACTION_COMMIT
    ROLLBACK = SYS_FLAG_TRANSACTION_ROLLBACK


class SendReceipt(NamedTuple):
    """The broker's acknowledgement. ``msg_id`` is the client's unique id, ``offset_msg_id`` names the stored record,
    ``recall_handle`` a timer message to ``Producer.recall``, from brokers that recall."""

    msg_id: str
    queue: Queue
    offset: int
    offset_msg_id: str
    status: SendStatus
    recall_handle: str | None = None


def body_row(body: bytes) -> dict[str, str]:
    """A message's body in a row of JSON: as text where it is UTF-8, else in base64."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b2a_base64(body, newline=False).decode()}


class LegibleRecord(RecordView):
    """A stored message for those who look at it: what of one cannot be read hides neither its rest nor others. What of
    its properties is not UTF-8 (a batch brings such) is U+FFFD. Only ``body`` raises ProtocolError, when it cannot be
    unpacked."""

    __slots__ = ()

    @property
    def properties(self) -> dict[str, str]:
        """All of them, RocketMQ's and the sender's. One dict per record; do not change it."""
        if self._properties is None:
            raw = self.raw_properties
            try:
                self._properties = decode_properties(raw)
            except ProtocolError:
                self._properties = decode_properties(raw.decode("utf-8", "replace").encode())
        return self._properties

    def _property(self, name: str, encoded: bytes) -> str | None:
        try:
            return super()._property(name, encoded)
        except ProtocolError:
            return self.properties.get(name)

    @property
    def msg_id(self) -> str:
        """UNIQ_KEY, else the offset id; also where that is no text: nobody could ask for it."""
        found = super().msg_id
        return self.offset_msg_id if "\ufffd" in found else found

    @property
    def body_or_raw(self) -> bytes:
        """The body as sent; as stored when it cannot be unpacked."""
        try:
            return self.body
        except ProtocolError:
            return self.raw_body

    def body_row(self) -> dict[str, str]:
        """The body for a row of JSON: ``body``, or ``body_base64`` when it is not UTF-8. One that cannot be unpacked is
        ``body_base64`` as it is stored, and ``body_problem`` says why."""
        try:
            return body_row(self.body)
        except ProtocolError as error:
            return {"body_base64": b2a_base64(self.raw_body, newline=False).decode(), "body_problem": str(error)}

    def body_start(self, size: int) -> bytes:
        """The first ``size`` bytes of the body, for the work of so many: it may be a thousand times as long as what is
        stored. ProtocolError when it cannot be unpacked."""
        body = self.raw_body
        if self.sys_flag & SYS_FLAG_COMPRESSED:
            body = beginning(body, self.sys_flag & COMPRESSION_MASK, size)
        return body[:size]


def check_topic(topic: str) -> str:
    """``topic`` itself, or BadNameError when it is outside ``[%|a-zA-Z0-9_-]{1,127}`` (it becomes a path in a
    store)."""
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic):
        raise BadNameError(f"topic {topic!r:.200}: 1 to {MAX_TOPIC} of the characters % | a-z A-Z 0-9 _ - are allowed")
    return topic


def check_group(group: str) -> str:
    """``group`` itself, or BadNameError when it is outside ``[%|a-zA-Z0-9_-]{1,255}``."""
    if not isinstance(group, str) or not _GROUP.fullmatch(group):
        raise BadNameError(f"group {group!r:.200}: 1 to {MAX_GROUP} of the characters % | a-z A-Z 0-9 _ - are allowed")
    return group
