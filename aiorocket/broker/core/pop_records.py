"""What happens to popped messages, as records: of an acknowledgement, a reset, what is deleted, and of whatever members
``pops.py`` gives one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

__all__ = (
    "QueueKey",
    "encode_acknowledged",
    "encode_forgotten",
    "encode_record",
    "encode_reset",
    "forgotten_in",
    "members_of",
)


class QueueKey(NamedTuple):
    topic: str
    group: str
    queue_id: int


def encode_acknowledged(key: QueueKey, offsets: Iterable[int], pop_time: int) -> bytes:
    return encode_record({**members_of(key), "al": list(offsets), "pt": pop_time})


def encode_reset(key: QueueKey, offset: int) -> bytes:
    """The group begins at ``offset``, whatever is out."""
    return encode_record({**members_of(key), "rs": offset})


def encode_forgotten(*, topic: str | None = None, group: str | None = None) -> bytes:
    return encode_record({"t": topic, "c": group, "fg": 1})


def forgotten_in(record: bytes) -> tuple[list[str], str | None] | None:
    """The topics and the group that a record says are deleted; None when it is of something else."""
    members = json.loads(record)
    return ([members["t"]] if members["t"] is not None else [], members["c"]) if "fg" in members else None


def members_of(key: QueueKey) -> dict[str, Any]:
    return {"t": key.topic, "c": key.group, "q": key.queue_id}


def encode_record(members: dict[str, Any]) -> bytes:
    # Escaped, for an attempt is any text, also one that is not Unicode.
    return json.dumps(members, separators=(",", ":")).encode()
