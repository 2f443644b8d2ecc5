"""Delayed messages: when the next one is due, over all levels, and how far each level has come.

A level is a queue whose entries are in order of their due time, because all its messages wait equally long. So only the
head of each level matters, and one deadline serves all of them. Due times are wall-clock stamps in milliseconds (they
survive restarts).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aiorocket_protocol import PROPERTY_DELAY, PROPERTY_REAL_QID, PROPERTY_REAL_TOPIC

__all__ = ("DELAY_OUT_MS", "DelaySchedule")

#: Property of a message that waits and was stored while the wall clock was behind the newest stamp of the store: when
#: it is due, which the level and its own stamp do not tell then.
DELAY_OUT_MS = "DELAY_OUT_MS"


class _Level:
    __slots__ = ("delay_ms", "due", "in_flight", "next")

    def __init__(self, delay_ms: int) -> None:
        self.delay_ms = delay_ms
        #: Next logical offset to hand out; due stamp of the message there, None when there was none at the last look.
        self.next = 0
        self.due: int | None = None
        #: Offsets handed out and not yet known to be stored under their own topic.
        self.in_flight: set[int] = set()


class DelaySchedule:
    """Levels are counted from 1, as messages name them; level n is queue n - 1 of the schedule topic."""

    def __init__(self, delays: Sequence[float]) -> None:
        self._levels = [_Level(round(delay * 1000)) for delay in delays]
        self._again: list[tuple[int, int]] = []
        #: Grows with every step of progress; a snapshot is needed when it differs from the one last written.
        self.version = 0

    @property
    def levels(self) -> range:
        return range(1, len(self._levels) + 1)

    @property
    def in_flight(self) -> int:
        return sum(len(entry.in_flight) for entry in self._levels)

    def clamp(self, level: int) -> int:
        """Levels above the highest mean the highest."""
        return min(level, len(self._levels))

    def due_at(self, level: int, now_ms: int) -> int:
        return now_ms + self._levels[level - 1].delay_ms

    def put_off(
        self, values: dict[str, str], level: int, topic: str, queue_id: int, now_ms: int, newest_ms: int
    ) -> int:
        """Make these the properties of a message that waits for ``topic``; when it is due. ``newest_ms`` is the newest
        stamp of the store."""
        due = self.due_at(level, now_ms)
        values.pop(DELAY_OUT_MS, None)
        if now_ms < newest_ms:
            values[DELAY_OUT_MS] = str(due)
        values.update({PROPERTY_DELAY: str(level), PROPERTY_REAL_TOPIC: topic, PROPERTY_REAL_QID: str(queue_id)})
        return due

    def position(self, level: int) -> int:
        return self._levels[level - 1].next

    def is_idle(self, level: int) -> bool:
        """Nothing was waiting there at the last look, so news about this level is worth another look."""
        return self._levels[level - 1].due is None

    def next_due(self) -> int | None:
        """The earliest due stamp over all levels, in wall-clock milliseconds."""
        return min((entry.due for entry in self._levels if entry.due is not None), default=None)

    def levels_due(self, now_ms: int) -> list[int]:
        return [
            level
            for level, entry in enumerate(self._levels, 1)
            if entry.due is not None and _is_due(entry.due, now_ms, entry.delay_ms)
        ]

    def take(self, level: int, waiting: Sequence[tuple[int, int]], now_ms: int) -> list[int]:
        """Hand out what is due of ``waiting``: (logical offset, due stamp) pairs from the level's position on, in
        order.

        The due stamp of the first that stays becomes the level's; with none left the level is due at once when it was
        cut short by the caller's limit, so an empty ``waiting`` is what ends it.
        """
        entry = self._levels[level - 1]
        if not waiting:
            entry.due = None
            return []
        taken: list[int] = []
        for offset, due in waiting:
            if not _is_due(due, now_ms, entry.delay_ms):
                entry.due = due
                return taken
            taken.append(offset)
            entry.in_flight.add(offset)
            entry.next = offset + 1
        entry.due = now_ms
        return taken

    def skip_to(self, level: int, first: int) -> None:
        """Messages below ``first`` have been deleted from the queue."""
        entry = self._levels[level - 1]
        entry.next = max(entry.next, first)

    def cut(self, level: int, end: int) -> None:
        """The queue ends at ``end``: what was delivered behind it is lost, and its offsets will be others'."""
        entry = self._levels[level - 1]
        entry.next = min(entry.next, end)

    def defer(self, level: int, now_ms: int) -> None:
        """The head of ``level`` could not be read: look again in a second, or after its delay if that is less."""
        entry = self._levels[level - 1]
        entry.due = now_ms + min(1000, max(1, entry.delay_ms))

    def put_by(self, level: int, now_ms: int) -> None:
        """Nothing more may be in flight: what may have come to ``level`` is looked at when there is room."""
        entry = self._levels[level - 1]
        if entry.due is None:
            entry.due = now_ms

    def stored(self, level: int, offset: int) -> None:
        """The message at ``offset`` is stored under its own topic (or can never be): progress may pass it."""
        self._levels[level - 1].in_flight.discard(offset)
        self.version += 1

    def failed(self, level: int, offset: int) -> None:
        """It was not stored: progress stays below it until ``retry`` handed it out again and it was."""
        self._again.append((level, offset))

    def retry(self) -> list[tuple[int, int]]:
        """(level, offset) of what failed since the last call, to be tried again; they still count as in flight."""
        again, self._again = self._again, []
        return again

    def progress(self, level: int) -> int:
        """Everything below is stored under its own topic."""
        entry = self._levels[level - 1]
        return min(entry.in_flight) if entry.in_flight else entry.next

    def to_dict(self) -> dict[str, Any]:
        """The shape of RocketMQ's delayOffset.json."""
        return {"offsetTable": {str(level): self.progress(level) for level in self.levels if self.progress(level)}}

    def load(self, data: Mapping[str, Any]) -> None:
        for key, offset in data.get("offsetTable", {}).items():
            level = int(key)
            if level in self.levels:
                self._levels[level - 1].next = int(offset)


def _is_due(due_ms: int, now_ms: int, delay_ms: int) -> bool:
    """A stamp further away than the whole delay comes from a clock that was set back since: due now, not in a year."""
    return due_ms <= now_ms or due_ms > now_ms + delay_ms
