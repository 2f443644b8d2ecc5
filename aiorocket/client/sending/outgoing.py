"""From what a user hands over to what goes on the wire: one value, properties text, compressed body, checks with clear
refusals."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from aiorocket.client.core.typed_body import CONTENT_TYPE, JSON, encode_value
from aiorocket.config import DELAY_LEVELS
from aiorocket.errors import BadNameError, UsageError
from aiorocket.model import OutgoingMessage
from aiorocket_protocol import (
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    MAX_PROPERTIES,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_UNIQ_KEY,
    SYS_FLAG_COMPRESSED,
    ProtocolError,
    check_user_properties,
    compress,
)

__all__ = (
    "COMPRESSED_ZLIB", "COMPRESSIONS", "EMPTY_BODY", "EncodedMessage", "ONE_OR_THE_OTHER", "as_bytes", "as_message",
    "property_text", "squeeze", "typed_properties",
)  # fmt: skip

ONE_OR_THE_OTHER = (
    "(topic, body, tag=, keys=, properties=, delay_level=, at=, after=) or (OutgoingMessage(...)), which says all of "
    "these itself"
)
EMPTY_BODY = "an empty body: RocketMQ's brokers and clients refuse it, send at least one byte"

#: sysFlag of a body compressed by zlib, as Java's producers mark it (compressed, type 3).
COMPRESSED_ZLIB = SYS_FLAG_COMPRESSED | COMPRESSION_ZLIB
#: The bits of sysFlag for each ``ProducerConfig.compress_type``. Java's consumers know all three, Go's and Node's
#: zlib only.
COMPRESSIONS = {"zlib": COMPRESSION_ZLIB, "lz4": COMPRESSION_LZ4, "zstd": COMPRESSION_ZSTD}

_LAST_LEVEL = len(DELAY_LEVELS)
_OWN_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)
_NAME_END = "\x01"
_VALUE_END = "\x02"
_UNIQ_KEY = PROPERTY_UNIQ_KEY + _NAME_END
_TAGS = PROPERTY_TAGS + _NAME_END
_KEYS = PROPERTY_KEYS + _NAME_END
_SHARDING_KEY = PROPERTY_SHARDING_KEY + _NAME_END
_DELAY = PROPERTY_DELAY + _NAME_END


class EncodedMessage(NamedTuple):
    """A message as it travels: ``group`` and ``topic`` by their names on the wire, ``properties`` as text, ``born`` in
    milliseconds of the wall clock. ``batch``: the body is in the batch encoding of request 320."""

    group: str
    topic: str
    body: bytes
    properties: str
    msg_id: str
    sys_flag: int
    flag: int
    born: int
    batch: bool = False
    reconsume_times: int = 0
    max_reconsume_times: int | None = None
    #: It is to be stored once, however often it is sent.
    once: bool = False


def as_bytes(body: object) -> bytes:
    return bytes(body) if isinstance(body, bytes | bytearray | memoryview) else encode_value(body)


def typed_properties(body: object, properties: Mapping[str, str] | None) -> Mapping[str, str]:
    """``properties``, and what a body that is written as JSON is."""
    if isinstance(body, bytes | bytearray | memoryview):
        return properties or {}
    return {CONTENT_TYPE: JSON, **(properties or {})}


def as_message(
    topic: str | OutgoingMessage,
    body: object,
    tag: str = "",
    keys: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    sharding_key: str | None = None,
    delay_level: int = 0,
    at: datetime | None = None,
    after: timedelta | None = None,
) -> OutgoingMessage:
    """What was given to a verb, as one value."""
    if isinstance(topic, OutgoingMessage):
        if body is not None or tag or keys or properties or delay_level or at is not None or after is not None:
            raise UsageError(ONE_OR_THE_OTHER)
        if topic.sharding_key is None and sharding_key is not None:
            topic = replace(topic, sharding_key=sharding_key)
        if topic.msg_id is not None and not _OWN_ID.fullmatch(topic.msg_id):
            raise UsageError(f"msg_id={topic.msg_id!r:.100}: 1 to 64 of the characters a-z A-Z 0-9 _ -")
        if type(topic.body) is bytes:
            return topic
        return replace(topic, body=as_bytes(topic.body), properties=typed_properties(topic.body, topic.properties))
    if not isinstance(topic, str):
        raise UsageError(ONE_OR_THE_OTHER)
    return OutgoingMessage(
        topic=topic, body=as_bytes(body), tag=tag, keys=keys, properties=typed_properties(body, properties),
        delay_level=delay_level, sharding_key=sharding_key, at=at, after=after,
    )  # fmt: skip


def property_text(
    msg_id: str,
    tag: str,
    keys: Iterable[str],
    properties: Mapping[str, str] | None,
    sharding_key: str | None,
    delay_level: int,
    system: Mapping[str, str] | None = None,
) -> str:
    """The property string of a message that has more than an id. ``system`` are reserved ones, which we set ourselves.
    UsageError names what cannot be stored."""
    try:
        parts = [_UNIQ_KEY, msg_id, "\x02"]
        if tag:
            if "||" in tag or tag != tag.strip():
                raise BadNameError(f"tag {tag!r}: a message has one tag, without '||' and without blanks at its ends")
            parts += (_TAGS, tag, "\x02")
        if keys:
            if isinstance(keys, str):
                raise UsageError(f"keys={keys!r}: a sequence of keys is needed, such as [{keys!r}]")
            joined = " ".join(keys)
            if any(not key or " " in key for key in keys):
                raise UsageError(f"keys={keys!r}: keys are joined by blanks, so none may be empty or contain one")
            parts += (_KEYS, joined, "\x02")
        if sharding_key:
            parts += (_SHARDING_KEY, sharding_key, "\x02")
        if delay_level:
            if not 0 < delay_level <= _LAST_LEVEL:
                raise UsageError(f"delay_level={delay_level}: 1 to {_LAST_LEVEL}, or 0 for at once")
            parts += (_DELAY, str(delay_level), "\x02")
        if properties:
            try:
                check_user_properties(properties)
            except ProtocolError as error:
                raise UsageError(f"properties: {error}") from None
            for name, value in properties.items():
                parts += (name, _NAME_END, value, _VALUE_END)
        pairs = (
            1 + bool(tag) + bool(keys) + bool(sharding_key) + bool(delay_level) + (len(properties) if properties else 0)
        )
        if system:
            pairs += len(system)
            for name, value in system.items():
                parts += (name, _NAME_END, value, _VALUE_END)
        text = "".join(parts)
        # Each property brings one of either separator; more of them would come back as other properties than were sent.
        if text.count(_NAME_END) != pairs or text.count(_VALUE_END) != pairs:
            raise UsageError("tag, keys, sharding_key and properties must not contain the characters U+0001 and U+0002")
        size = len(text) if text.isascii() else len(text.encode())
        if size > MAX_PROPERTIES:
            raise UsageError(f"the properties take {size} bytes, {MAX_PROPERTIES} is the limit")
        return text
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        given = {"tag": tag, "keys": keys, "sharding_key": sharding_key, "properties": properties}
        wrong = next(name for name, value in given.items() if value and half in _texts(value))
        raise UsageError(f"{wrong}={given[wrong]!r:.200}: half a surrogate pair is no text") from None
    except (TypeError, AttributeError):
        raise UsageError(
            f"tag={tag!r:.100}, keys={keys!r:.100}, properties={properties!r:.200}, sharding_key={sharding_key!r:.100} "
            f"or delay_level={delay_level!r:.100} is of another type: a tag, a key and a sharding key are text, keys a "
            "sequence, properties a mapping of text to text, a delay level is a number"
        ) from None


def _texts(value: Iterable[str]) -> str:
    """All that is in one argument."""
    return "".join([*value, *value.values()] if isinstance(value, Mapping) else value)


def squeeze(body: bytes, level: int, compression: int = COMPRESSION_ZLIB) -> tuple[bytes, int]:
    """The body as it is sent and the sysFlag that says so: compressed when that makes it smaller."""
    packed = compress(body, level, compression)
    return (packed, SYS_FLAG_COMPRESSED | compression) if len(packed) < len(body) else (body, 0)
