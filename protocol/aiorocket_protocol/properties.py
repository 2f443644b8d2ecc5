"""Property strings: ``name 0x01 value 0x02`` repeated (spec/records.md), and the names RocketMQ reserves."""

from __future__ import annotations

from collections.abc import Mapping

from aiorocket_protocol.errors import ProtocolError
from aiorocket_protocol.limits import MAX_PROPERTIES

__all__ = (
    "RESERVED",
    "TIMER_PREFIX",
    "TRANSIENT_PREFIX",
    "check_user_properties",
    "decode_properties",
    "encode_properties",
    "find_property",
    "PROPERTY_KEYS",
    "PROPERTY_TAGS",
    "PROPERTY_WAIT",
    "PROPERTY_DELAY",
    "PROPERTY_UNIQ_KEY",
    "PROPERTY_EXTEND_UNIQ_INFO",
    "PROPERTY_BUYER_ID",
    "PROPERTY_CLUSTER",
    "PROPERTY_MSG_TYPE",
    "PROPERTY_MSG_REGION",
    "PROPERTY_TRACE_ON",
    "PROPERTY_TRACE_CONTEXT",
    "PROPERTY_INSTANCE_ID",
    "PROPERTY_SHARDING_KEY",
    "PROPERTY_CORRECTION_FLAG",
    "PROPERTY_TRANSFER_FLAG",
    "PROPERTY_MQ2_FLAG",
    "PROPERTY_CRC32",
    "PROPERTY_RETRY_TOPIC",
    "PROPERTY_ORIGIN_MESSAGE_ID",
    "PROPERTY_RECONSUME_TIME",
    "PROPERTY_MAX_RECONSUME_TIMES",
    "PROPERTY_CONSUME_START_TIME",
    "PROPERTY_DLQ_ORIGIN_TOPIC",
    "PROPERTY_DLQ_ORIGIN_MESSAGE_ID",
    "PROPERTY_DLQ_ERROR",
    "PROPERTY_DLQ_REASON",
    "PROPERTY_DLQ_HOST",
    "MAX_DLQ_REASON",
    "reason_text",
    "PROPERTY_REAL_TOPIC",
    "PROPERTY_REAL_QID",
    "PROPERTY_TRAN_MSG",
    "PROPERTY_PGROUP",
    "PROPERTY_CHECK_IMMUNITY_TIME",
    "PROPERTY_TRAN_PREPARED_QUEUE_OFFSET",
    "PROPERTY_TRANSACTION_CHECK_TIMES",
    "PROPERTY_TRANSACTION_ID",
    "PROPERTY_TIMER_DELAY_SEC",
    "PROPERTY_TIMER_DELAY_MS",
    "PROPERTY_TIMER_DELIVER_MS",
    "PROPERTY_TIMER_OUT_MS",
    "PROPERTY_TIMER_ENQUEUE_MS",
    "PROPERTY_TIMER_DEQUEUE_MS",
    "PROPERTY_TIMER_ROLL_TIMES",
    "PROPERTY_TIMER_DELAY_LEVEL",
    "PROPERTY_TIMER_DEL_UNIQKEY",
    "PROPERTY_CORRELATION_ID",
    "PROPERTY_REPLY_TO_CLIENT",
    "PROPERTY_TTL",
    "PROPERTY_ARRIVE_TIME",
    "PROPERTY_PUSH_REPLY_TIME",
    "PROPERTY_POP_CK",
    "PROPERTY_POP_CK_OFFSET",
    "PROPERTY_FIRST_POP_TIME",
    "PROPERTY_INNER_NUM",
    "PROPERTY_INNER_BASE",
    "PROPERTY_DUP_INFO",
    "PROPERTY_INNER_MULTI_DISPATCH",
    "PROPERTY_INNER_MULTI_QUEUE_OFFSET",
    "PROPERTY_REDIRECT",
    "PROPERTY_MIN_OFFSET",
    "PROPERTY_MAX_OFFSET",
    "PROPERTY_BORN_HOST",
    "PROPERTY_BORN_TIMESTAMP",
)

PROPERTY_KEYS = "KEYS"
PROPERTY_TAGS = "TAGS"
PROPERTY_WAIT = "WAIT"
PROPERTY_DELAY = "DELAY"
PROPERTY_UNIQ_KEY = "UNIQ_KEY"
PROPERTY_EXTEND_UNIQ_INFO = "EXTEND_UNIQ_INFO"
PROPERTY_BUYER_ID = "BUYER_ID"
PROPERTY_CLUSTER = "CLUSTER"
PROPERTY_MSG_TYPE = "MSG_TYPE"
PROPERTY_MSG_REGION = "MSG_REGION"
PROPERTY_TRACE_ON = "TRACE_ON"
PROPERTY_TRACE_CONTEXT = "TRACE_CONTEXT"
PROPERTY_INSTANCE_ID = "INSTANCE_ID"
PROPERTY_SHARDING_KEY = "__SHARDINGKEY"
PROPERTY_CORRECTION_FLAG = "CORRECTION_FLAG"
PROPERTY_TRANSFER_FLAG = "TRANSFER_FLAG"
PROPERTY_MQ2_FLAG = "MQ2_FLAG"
PROPERTY_CRC32 = "__CRC32#"
PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
PROPERTY_ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
PROPERTY_RECONSUME_TIME = "RECONSUME_TIME"
PROPERTY_MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
PROPERTY_CONSUME_START_TIME = "CONSUME_START_TIME"
PROPERTY_DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
PROPERTY_DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
#: Of a dead letter, not RocketMQ's: the error's class and text, and the client id of who gave up. A send-back (36)
#: carries them as further fields, and our broker puts them into the copy.
PROPERTY_DLQ_ERROR = "DLQ_ERROR"
PROPERTY_DLQ_REASON = "DLQ_REASON"
PROPERTY_DLQ_HOST = "DLQ_HOST"
#: Characters of each that are kept.
MAX_DLQ_REASON = 500
PROPERTY_REAL_TOPIC = "REAL_TOPIC"
PROPERTY_REAL_QID = "REAL_QID"
PROPERTY_TRAN_MSG = "TRAN_MSG"
PROPERTY_PGROUP = "PGROUP"
PROPERTY_CHECK_IMMUNITY_TIME = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_TRAN_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
PROPERTY_TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
PROPERTY_TRANSACTION_ID = "__transactionId__"
PROPERTY_TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
PROPERTY_TIMER_DELAY_MS = "TIMER_DELAY_MS"
PROPERTY_TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
PROPERTY_TIMER_OUT_MS = "TIMER_OUT_MS"
PROPERTY_TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
PROPERTY_TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
PROPERTY_TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
PROPERTY_TIMER_DELAY_LEVEL = "TIMER_DELAY_LEVEL"
PROPERTY_TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
PROPERTY_CORRELATION_ID = "CORRELATION_ID"
PROPERTY_REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
PROPERTY_TTL = "TTL"
PROPERTY_ARRIVE_TIME = "ARRIVE_TIME"
PROPERTY_PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
PROPERTY_POP_CK = "POP_CK"
PROPERTY_POP_CK_OFFSET = "POP_CK_OFFSET"
PROPERTY_FIRST_POP_TIME = "1ST_POP_TIME"
PROPERTY_INNER_NUM = "INNER_NUM"
PROPERTY_INNER_BASE = "INNER_BASE"
PROPERTY_DUP_INFO = "DUP_INFO"
PROPERTY_INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
PROPERTY_INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
PROPERTY_REDIRECT = "REDIRECT"
PROPERTY_MIN_OFFSET = "MIN_OFFSET"
PROPERTY_MAX_OFFSET = "MAX_OFFSET"
PROPERTY_BORN_HOST = "__BORNHOST"
PROPERTY_BORN_TIMESTAMP = "BORN_TIMESTAMP"

#: Names that only RocketMQ itself may set.
RESERVED: frozenset[str] = frozenset(value for name, value in list(globals().items()) if name.startswith("PROPERTY_"))
#: Names with this prefix ask for delivery at a time of one's own, or were left by it.
TIMER_PREFIX = "TIMER_"
#: Names with this prefix are for the way through the broker and not stored.
TRANSIENT_PREFIX = "__RMQ.TRANSIENT."

_WHERE = "properties"


def reason_text(text: str) -> str:
    """``text`` as the value of one of those: what cannot stand in one (separators, line ends, text that is not Unicode)
    is a blank, and it is cut after ``MAX_DLQ_REASON`` characters."""
    cut = text[:MAX_DLQ_REASON].encode("utf-8", "replace").decode()
    return "".join(each if each.isprintable() else " " for each in cut).strip()


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """The property string, with the final separator. ProtocolError for what would not come back: an empty name or
    value, a separator inside one, text that is not Unicode, more than MAX_PROPERTIES bytes."""
    if not properties:
        return b""
    joined = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    count = len(properties)
    if joined.count("\x01") != count or joined.count("\x02") != count or not all(properties) or "\x01\x02" in joined:
        _refuse(properties)
    try:
        data = joined.encode()
    except UnicodeEncodeError as error:
        raise ProtocolError(f"text that is not Unicode: {error.reason}", where=_WHERE) from None
    if len(data) > MAX_PROPERTIES:
        raise ProtocolError(f"{len(data)} bytes; at most {MAX_PROPERTIES} can be stored", where=_WHERE)
    return data


def _refuse(properties: Mapping[str, str]) -> None:
    for name, value in properties.items():
        if not name or not value:
            raise ProtocolError(f"{name!r:.100} = {value!r:.100}: an empty name or value would be lost", where=_WHERE)
        if any(separator in text for separator in "\x01\x02" for text in (name, value)):
            raise ProtocolError(f"{name!r:.100} = {value!r:.100}: contains a separator (0x01, 0x02)", where=_WHERE)


def decode_properties(data: bytes) -> dict[str, str]:
    """Read as RocketMQ 5 reads: final separator optional, pairs without a name or a value skipped, last duplicate
    wins."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"not UTF-8 at byte {error.start}: {error.reason}", where=_WHERE) from None
    properties: dict[str, str] = {}
    for pair in text.split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def find_property(data: bytes, name: bytes) -> bytes | None:
    """The value ``decode_properties`` would give for ``name``, found without building the dict."""
    begin = name + b"\x01"
    inner = b"\x02" + begin
    end = len(data)
    while (at := data.rfind(inner, 0, end)) >= 0:
        value = at + len(inner)
        stop = data.find(b"\x02", value)
        if stop < 0:
            stop = len(data)
        if stop > value:
            return data[value:stop]
        end = at + 1
    if data.startswith(begin):
        return data[len(begin) :].partition(b"\x02")[0] or None
    return None


def check_user_properties(properties: Mapping[str, str]) -> None:
    """ProtocolError when an application may not set one of these: reserved name, empty text, separator inside."""
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ProtocolError(f"{name!r:.100} = {value!r:.100}: names and values are text", where=_WHERE)
        if name in RESERVED or name.startswith(TRANSIENT_PREFIX):
            raise ProtocolError(f"{name!r:.100} is reserved by RocketMQ", where=_WHERE)
    _refuse(properties)
