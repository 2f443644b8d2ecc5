"""Delivers messages with a delay level: reads what is due in the schedule topic and stores it again (``due.py``)."""

from __future__ import annotations

import logging

from aiorocket.broker.copies import Copy
from aiorocket.broker.core.delay import DELAY_OUT_MS, DelaySchedule
from aiorocket.broker.due import MAX_IN_FLIGHT, DueDelivery
from aiorocket.errors import RocketError
from aiorocket_protocol import PROPERTY_REAL_QID, PROPERTY_REAL_TOPIC, SCHEDULE_TOPIC, RecordView, encode_properties

__all__ = ("DelayDelivery",)

_log = logging.getLogger("aiorocket.broker")

#: Messages of one level read at a time.
BATCH = 256


class DelayDelivery(DueDelivery[DelaySchedule]):
    """``start()`` looks at every level. A message is named by its level and its offset there."""

    #: Whose turn it was last, of levels that are due together.
    _last = 0

    def start(self) -> None:
        for level in self._schedule.levels:
            self._schedule.cut(level, self._store.max_offset(SCHEDULE_TOPIC, level - 1))
            self._deliver(level)
        self._driver.update()

    def arrived(self, queue_id: int) -> None:
        """Messages were stored in a queue of the schedule topic; only one that had none before can change the
        deadline."""
        level = queue_id + 1
        if level in self._schedule.levels and self._schedule.is_idle(level):
            self._deliver(level)
            self._driver.update()

    def _due(self, _now: float) -> None:
        levels = self._schedule.levels_due(self._clock.wall_ms())
        for level in sorted(levels, key=lambda level: level <= self._last):
            self._deliver(level)

    def _deliver(self, level: int) -> None:
        """Hand out what is due at the head of ``level``, and learn when the next one is."""
        schedule, store = self._schedule, self._store
        queue_id = level - 1
        room = MAX_IN_FLIGHT - schedule.in_flight
        if self._closed:
            return
        if room <= 0:
            schedule.put_by(level, self._clock.wall_ms())
            return
        schedule.skip_to(level, store.min_offset(SCHEDULE_TOPIC, queue_id))
        first = schedule.position(level)
        try:
            entries = store.entries(SCHEDULE_TOPIC, queue_id, first, min(room, BATCH))
        except (RocketError, OSError, MemoryError) as error:
            _log.error("delayed messages of level %d cannot be read: %r", level, error)
            schedule.defer(level, self._clock.wall_ms())
            return
        waiting = [(first + index, due) for index, (_, _, due) in enumerate(entries)]
        places = {first + index: physical for index, (physical, _, _) in enumerate(entries)}
        taken = schedule.take(level, waiting, self._clock.wall_ms())
        if taken:
            self._last = level
        self._move_all((level, offset, places[offset]) for offset in taken)

    def _place(self, level: int, offset: int) -> int | None:
        entries = self._store.entries(SCHEDULE_TOPIC, level - 1, offset, 1)
        return entries[0][0] if entries else None

    def _copy(self, view: RecordView, level: int, offset: int) -> Copy:
        # Stored again as they are: a consumer sees by them that a message was delayed, and how long.
        properties, raw = view.properties, view.raw_properties
        if DELAY_OUT_MS in properties:
            raw = encode_properties({name: value for name, value in properties.items() if name != DELAY_OUT_MS})
        return Copy(view, properties[PROPERTY_REAL_TOPIC], int(properties[PROPERTY_REAL_QID]), raw)

    def _name(self, level: int, offset: int) -> str:
        return f"delayed message at level {level} offset {offset}"
