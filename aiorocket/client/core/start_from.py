"""Where a group begins in a queue it has no offset for, as the one question left to ask."""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import NamedTuple

from aiorocket.errors import UsageError
from aiorocket_protocol import CONSUME_FROM_FIRST_OFFSET, CONSUME_FROM_LAST_OFFSET, CONSUME_FROM_TIMESTAMP

__all__ = ("Ask", "Start", "StartFrom", "parse_start", "question")


class StartFrom(NamedTuple):
    """``kind`` is "first", "last" or "time"; ``millis`` the wall-clock time of the latter."""

    kind: str
    millis: int = 0

    @property
    def wire(self) -> str:
        """RocketMQ's name, as a heartbeat carries it."""
        return _WIRE[self.kind]


_WIRE = {
    "first": CONSUME_FROM_FIRST_OFFSET,
    "last": CONSUME_FROM_LAST_OFFSET,
    "time": CONSUME_FROM_TIMESTAMP,
}


class Start(NamedTuple):
    """Where a member begins in a queue. ``stored`` says whether ``offset`` is what the store has for the group,
    ``at_end`` that it is the queue's end, which is another one as soon as a message comes."""

    offset: int
    stored: bool
    at_end: bool = False


class Ask(Enum):
    """What to ask the broker for."""

    MIN = "smallest offset"
    MAX = "next offset to be written"
    TIME = "first offset stored at or after a time"


def parse_start(value: str | datetime | int) -> StartFrom:
    """ "first", "last", an aware datetime, or milliseconds since 1970 UTC; UsageError for anything else."""
    if value in ("first", "last"):
        return StartFrom(str(value))
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise UsageError(f"start_from={value!r}: the time needs a zone, such as datetime.now(UTC)")
        return StartFrom("time", int(value.timestamp() * 1000))
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return StartFrom("time", value)
    raise UsageError(f"start_from={value!r}: 'first', 'last', an aware datetime or milliseconds since 1970")


def question(start: StartFrom, *, retry_topic: bool) -> Ask:
    """A group's own retry topic is read from its beginning, whatever the group wants of other topics: what lies there
    is its own unfinished work."""
    if retry_topic:
        return Ask.MIN
    return {"first": Ask.MIN, "last": Ask.MAX, "time": Ask.TIME}[start.kind]
