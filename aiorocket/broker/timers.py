"""Delivers timer messages: what is due in the timer topic is stored again under its own topic (``due.py``), unless it
was recalled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from aiorocket.broker.copies import Copy
from aiorocket.broker.core.timers import TimerSchedule, deletes, is_rolled, wait_code
from aiorocket.broker.due import MAX_IN_FLIGHT, DueDelivery, when_whole
from aiorocket.storage.results import PutResult, PutStatus
from aiorocket_protocol import (
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DEL_UNIQKEY,
    PROPERTY_TIMER_DEQUEUE_MS,
    PROPERTY_TIMER_ENQUEUE_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_TIMER_ROLL_TIMES,
    TIMER_TOPIC,
    RecordView,
    encode_properties,
)

if TYPE_CHECKING:
    from aiorocket.remoting.connection import Connection

__all__ = ("TimerDelivery", "counted")

#: Entries of the queue read at a time.
BATCH = 4096


def counted(
    timers: TimerSchedule, connection: Connection, done: Callable[[PutResult], None]
) -> Callable[[PutResult], None]:
    """``done`` of a timer message that its connection has then."""

    def counts(result: PutResult) -> None:
        if result.status is PutStatus.OK and not connection.closed:
            timers.waits(connection.peer_host, connection.holds)
        done(result)

    return counts


class TimerDelivery(DueDelivery[TimerSchedule]):
    """``start()`` learns from the timer topic's queue what waits. A message is named by its wait code and its place in
    the log."""

    async def start(self) -> None:
        """OSError, StoreCorruptedError or StoreBusyError when the queue cannot be read."""
        store = self._store
        self._schedule.start(store.min_offset(TIMER_TOPIC, 0), store.max_offset(TIMER_TOPIC, 0))
        await when_whole(self.arrived, lambda: self._closed)

    def arrived(self) -> None:
        """Messages were stored in the timer topic."""
        schedule = self._schedule
        while entries := self._store.entries(TIMER_TOPIC, 0, schedule.next, BATCH):
            schedule.add(entries)
        self._driver.update()

    def lost(self, connection: Connection) -> int:
        """It closed; nothing waits for that."""
        self._schedule.lost(connection.peer_host, connection.holds)
        return 0

    def _due(self, _now: float) -> None:
        room = MAX_IN_FLIGHT - self._schedule.in_flight
        if room > 0 and not self._closed:
            taken = self._schedule.take(self._clock.wall_ms(), room)
            self._move_all((code, place, place) for code, place in taken)

    def _place(self, code: int, place: int) -> int:
        return place

    def _copy(self, view: RecordView, code: int, place: int) -> Copy | None:
        now = self._clock.wall_ms()
        values = dict(view.properties)
        values[PROPERTY_TIMER_ENQUEUE_MS] = str(view.store_timestamp)
        values[PROPERTY_TIMER_DEQUEUE_MS] = str(now)
        if is_rolled(code):
            values[PROPERTY_TIMER_ROLL_TIMES] = str(int(values.get(PROPERTY_TIMER_ROLL_TIMES, "0")) + 1)
            code = wait_code(values, max(now, self._store.timestamp))
            return Copy(view, TIMER_TOPIC, 0, encode_properties(values), code)
        self._schedule.waits_no_more(view.born_host_bytes)
        if PROPERTY_TIMER_DEL_UNIQKEY in values:
            name = values[PROPERTY_TIMER_DEL_UNIQKEY]
            # Whoever may send to one topic recalls nothing of another.
            if name.startswith(deletes(values[PROPERTY_REAL_TOPIC], "")):
                self._schedule.recall(name, int(values[PROPERTY_TIMER_OUT_MS]))
            return None
        topic = values[PROPERTY_REAL_TOPIC]
        if self._schedule.is_recalled(values, topic):
            return None
        return Copy(view, topic, int(values[PROPERTY_REAL_QID]), encode_properties(values))

    def _name(self, code: int, place: int) -> str:
        return f"timer message at {place} of the log, due at {code >> 2}"
