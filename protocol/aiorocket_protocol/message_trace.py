"""Records of RocketMQ's message trace, as its clients write them into the trace topic: fields joined by U+0001, each
record ended by U+0002."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

from aiorocket_protocol.names import DEFAULT_REGION

__all__ = ("TRACE_ORDER", "TraceRecord", "read_trace", "write_trace")

_FIELD, _END = "\x01", "\x02"
#: The fields of each kind in Apache's order; what older clients leave out is at the end.
_FIELDS = {
    "Pub": (
        "timestamp", "region", "group", "topic", "msg_id", "tag", "keys", "store_host", "body_length", "cost",
        "message_type", "offset_msg_id", "success", "client_host",
    ),
    "SubBefore": ("timestamp", "region", "group", "request_id", "msg_id", "retry_times", "keys"),
    "SubAfter": ("request_id", "msg_id", "cost", "success", "keys", "context_code", "timestamp", "group"),
    "EndTransaction": (
        "timestamp", "region", "group", "topic", "msg_id", "tag", "keys", "store_host", "message_type",
        "transaction_id", "transaction_state", "from_check",
    ),
}  # fmt: skip
_NUMBERS = {"timestamp", "body_length", "cost", "message_type", "retry_times", "context_code"}
_TRUTHS = {"success", "from_check"}
#: Of records of one millisecond.
TRACE_ORDER = ("Pub", "EndTransaction", "SubBefore", "SubAfter")
#: Java's ordinals: MessageType of a message, ConsumeReturnType of a call.
_NORMAL, _SUCCESS = 0, 0


class TraceRecord(NamedTuple):
    """``kind`` is Pub (a send), SubBefore and SubAfter (a call of a listener, with one ``request_id``), EndTransaction.
    ``timestamp`` and ``cost`` are in milliseconds. What a kind does not have is as here."""

    kind: str
    msg_id: str
    timestamp: int = 0
    region: str = DEFAULT_REGION
    group: str = ""
    topic: str = ""
    tag: str = ""
    keys: str = ""
    store_host: str = ""
    body_length: int = 0
    cost: int = 0
    message_type: int = _NORMAL
    offset_msg_id: str = ""
    success: bool = True
    client_host: str = ""
    request_id: str = ""
    retry_times: int = 0
    context_code: int = _SUCCESS
    transaction_id: str = ""
    transaction_state: str = ""
    from_check: bool = False


def write_trace(record: TraceRecord) -> str:
    """One record as Apache's clients write it: of empty texts at the end, where Java's reader would miss them, ``null``
    is written, as Java does."""
    said = []
    for name in _FIELDS[record.kind]:
        value = getattr(record, name)
        if name == "client_host" and not value:
            continue
        if name == "keys" and not value:
            value = "null"
        text = str(value).lower() if isinstance(value, bool) else str(value)
        said.append(text.replace(_FIELD, " ").replace(_END, " "))
    return _FIELD.join((record.kind, *said)) + _END


def read_trace(body: bytes) -> list[TraceRecord]:
    """The records of a message of the topic, whichever client wrote them. What cannot be read is left out."""
    found = []
    for text in body.decode("utf-8", "replace").split(_END):
        kind, *values = text.split(_FIELD)
        names = list(_FIELDS.get(kind, ()))
        if kind == "Pub" and len(values) == 12:  # before 4.5: without the id that names the record
            names.remove("offset_msg_id")
        with suppress(ValueError, TypeError):
            said = {name: _value(name, value) for name, value in zip(names, values, strict=False)}
            found.append(TraceRecord(kind=kind, **said))
    return found


def _value(name: str, text: str) -> Any:
    if name in _NUMBERS:
        return int(text)
    if name in _TRUTHS:
        return text.lower() == "true"
    return "" if text == "null" else text
