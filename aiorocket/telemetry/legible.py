"""What a message says of itself, for those who only watch it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from aiorocket import Message, ProtocolError

__all__ = ("Said", "said_by", "topic_of")


class Said(NamedTuple):
    """Of a message whose properties are no UTF-8, as a client of another language may send them, what can be read:
    whether that matters is for its listener to say, so nothing may be raised around it."""

    topic: str
    msg_id: str
    tag: str
    keys: list[str]
    sharding_key: str | None
    properties: Mapping[str, str]


def said_by(message: Message) -> Said:
    def read(name: str, other: Any) -> Any:
        try:
            return getattr(message, name)
        except ProtocolError:
            return other

    return Said(
        topic_of(message), read("msg_id", None) or message.offset_msg_id, read("tag", ""), read("keys", []),
        read("sharding_key", None), read("properties", {}),
    )  # fmt: skip


def topic_of(message: Message) -> str:
    """Its topic; of a retry whose own topic cannot be read, that of the queue."""
    try:
        return message.topic
    except ProtocolError:
        return message.queue.topic
