"""What happened in a run, in order: the only thing the checkers look at.

Events are plain tuples with the virtual time, so that a history can also be written by hand (the checkers' own tests
do) or stored as JSON lines in the shape Jepsen uses: time, process, operation, key, value, outcome.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from aiorocket.model import Queue

__all__ = ("Event", "History", "What")

What = Literal[
    "sent", "acknowledged", "rejected", "unknown",  # a send: its call, and exactly one of the three ends
    "delivered", "finished",  # a listener's call, and its end
    "stray",  # a listener's call with a message of a queue that its member does not hold
    "committed",  # a group's position at a broker was set
    "granted", "released",  # a queue lock
    "dead",  # a dead letter was found
    "joined", "left", "killed", "fault", "healed",  # what may explain a duplicate
]  # fmt: skip

#: Kinds of events after which messages may be delivered twice.
DISTURBANCES = frozenset(("joined", "left", "killed", "fault", "healed"))


class Event(NamedTuple):
    """One event. Only the fields that mean something for ``what`` are set.

    ``time`` is in virtual seconds; ``host`` is the address of whoever did it. ``key`` identifies a message (of "joined"
    it is a topic, of "fault" a description), ``shard`` is its sharding key. ``until`` is when a send must have ended or
    a lease ends. ``outcome`` of "finished" is "ok", "retry", "dead" or "interrupted".
    """

    time: float
    host: str
    what: What
    key: str = ""
    group: str = ""
    queue: Queue | None = None
    offset: int = -1
    attempt: int = 0
    outcome: str = ""
    shard: str = ""
    until: float = 0.0

    def __str__(self) -> str:
        parts = [f"{self.time:12.3f} {self.host:<10} {self.what:<12}"]
        if self.key:
            parts.append(self.key)
        if self.group:
            parts.append(f"group={self.group}")
        if self.queue is not None:
            at = f"@{self.offset}" if self.offset >= 0 else ""
            parts.append(f"{self.queue.topic}/{self.queue.broker_name}/{self.queue.queue_id}{at}")
        if self.attempt:
            parts.append(f"attempt={self.attempt}")
        if self.shard:
            parts.append(f"shard={self.shard}")
        if self.until:
            parts.append(f"until={self.until:.3f}")
        if self.outcome:
            parts.append(self.outcome)
        return " ".join(parts)

    def line(self) -> str:
        """As one line of JSON: ``{t, proc, op, key, value, outcome}``."""
        value = {
            "group": self.group, "queue": self.queue, "offset": self.offset, "attempt": self.attempt,
            "shard": self.shard, "until": round(self.until, 6),
        }  # fmt: skip
        fields = {
            "t": round(self.time, 6), "proc": self.host, "op": self.what, "key": self.key,
            "value": {name: each for name, each in value.items() if each != _UNSET[name]},
            "outcome": self.outcome or _OUTCOMES.get(self.what, "ok"),
        }  # fmt: skip
        return json.dumps(fields)


_UNSET = {"group": "", "queue": None, "offset": -1, "attempt": 0, "shard": "", "until": 0.0}
_OUTCOMES = {"sent": "invoke", "delivered": "invoke", "rejected": "fail", "unknown": "unknown"}


class History:
    """Events in the order they happened. ``time`` gives the present; a history made by hand needs none."""

    def __init__(self, time: Callable[[], float] | None = None, events: Iterable[Event] = ()) -> None:
        self._time = time or _no_time
        self.events: list[Event] = list(events)

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def add(
        self,
        what: What,
        host: str,
        key: str = "",
        *,
        group: str = "",
        queue: Queue | None = None,
        offset: int = -1,
        attempt: int = 0,
        outcome: str = "",
        shard: str = "",
        until: float = 0.0,
    ) -> None:
        """Record something that happens now."""
        self.events.append(Event(self._time(), host, what, key, group, queue, offset, attempt, outcome, shard, until))

    def of(self, *kinds: What) -> list[Event]:
        """The events of these kinds."""
        return [event for event in self.events if event.what in kinds]

    def keys(self, *kinds: What, group: str | None = None) -> set[str]:
        """The keys of the events of these kinds, of one group if given."""
        return {event.key for event in self.events if event.what in kinds and group in (None, event.group)}

    def excerpt(self, events: Iterable[Event], around: int = 3) -> str:
        """These events as text, each with ``around`` events of disturbance before it: what a reader needs first."""
        wanted = set(map(id, events))
        chosen: dict[int, None] = {}
        disturbed: list[int] = []
        for number, event in enumerate(self.events):
            if id(event) in wanted:
                chosen.update(dict.fromkeys(disturbed[-around:] if around else ()))
                chosen[number] = None
            elif event.what in DISTURBANCES:
                disturbed.append(number)
        return "\n".join(f"  {self.events[number]}" for number in sorted(chosen))

    def lines(self) -> Iterator[str]:
        """The history as JSON lines."""
        return (event.line() for event in self.events)


def _no_time() -> float:
    raise RuntimeError("this history has no clock: give History the loop's time, or complete events")
