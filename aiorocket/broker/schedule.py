"""Delivers delayed messages: reads what is due in the schedule topic and stores it again under its own topic and queue.

One deadline is armed for the earliest message of all levels. Due times are wall-clock stamps, the armed timer runs on
the loop's clock, so the wall clock is looked at again every ``MAX_SLEEP`` seconds while something waits: a clock that
is set forward delays nothing by more than that. How far each level has come is saved by the broker with its other
state; after a crash a few messages may be delivered twice, none is lost.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from aiorocket.broker.copies import Copy, store_copy
from aiorocket.broker.core.delay import DelaySchedule
from aiorocket.errors import RocketError, StoreError
from aiorocket.runtime.deadlines import DeadlineDriver
from aiorocket.storage.results import PutResult, PutStatus
from aiorocket_protocol import (
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
    SCHEDULE_TOPIC,
    ProtocolError,
    RecordView,
)

if TYPE_CHECKING:
    from aiorocket.runtime.clock import Clock
    from aiorocket.storage.store import MessageStore

__all__ = ("DelayDelivery",)

_log = logging.getLogger("aiorocket.broker")

MAX_SLEEP = 10.0
#: Messages that may wait for the store at once; more would only make the group behind them longer.
MAX_IN_FLIGHT = 1024
#: Messages of one level read at a time.
BATCH = 256
#: Seconds until a message that the store refused is tried again.
RETRY_AFTER = 1.0
#: Seconds that closing waits for messages on their way.
SETTLE = 2.0


class DelayDelivery:
    """Moves due messages. ``start()`` looks at every level, ``close()`` ends it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, schedule: DelaySchedule, store: MessageStore
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._schedule = schedule
        self._store = store
        self._driver = DeadlineDriver(loop, self._next_deadline, self._due)
        self._retry: asyncio.TimerHandle | None = None
        self._closed = False
        self._settled: asyncio.Future[None] | None = None
        #: Messages delivered since the start.
        self.delivered = 0

    def start(self) -> None:
        for level in self._schedule.levels:
            self._deliver(level)
        self._driver.update()

    def clock_changed(self) -> None:
        """The wall clock was set: look now at what is due."""
        self._due(0.0)
        self._driver.update()

    async def close(self) -> None:
        """Deliver nothing more; wait a moment for what is on its way, so that it is not delivered twice."""
        self._closed = True
        self._driver.close()
        if self._retry is not None:
            self._retry.cancel()
        if self._schedule.in_flight:
            self._settled = self._loop.create_future()
            try:
                async with asyncio.timeout(SETTLE):
                    await self._settled
            except TimeoutError:
                pass  # a store that cannot write: these are delivered after the next start

    def arrived(self, queue_id: int) -> None:
        """Messages were stored in a queue of the schedule topic; only one that had none before can change the
        deadline."""
        level = queue_id + 1
        if level in self._schedule.levels and self._schedule.is_idle(level):
            self._deliver(level)
            self._driver.update()

    def _next_deadline(self) -> float | None:
        due = self._schedule.next_due()
        if due is None or self._schedule.in_flight >= MAX_IN_FLIGHT:
            return None
        return self._loop.time() + min(max(0.0, (due - self._clock.wall_ms()) / 1000), MAX_SLEEP)

    def _due(self, _now: float) -> None:
        for level in self._schedule.levels_due(self._clock.wall_ms()):
            self._deliver(level)

    def _deliver(self, level: int) -> None:
        """Hand out what is due at the head of ``level``, and learn when the next one is."""
        schedule, store = self._schedule, self._store
        queue_id = level - 1
        room = MAX_IN_FLIGHT - schedule.in_flight
        if room <= 0 or self._closed:
            return
        schedule.skip_to(level, store.min_offset(SCHEDULE_TOPIC, queue_id))
        first = schedule.position(level)
        try:
            entries = store.entries(SCHEDULE_TOPIC, queue_id, first, min(room, BATCH))
        except (RocketError, OSError) as error:
            _log.error("delayed messages of level %d cannot be read: %s", level, error)
            schedule.defer(level, self._clock.wall_ms())
            return
        waiting = [(first + index, due) for index, (_, _, due) in enumerate(entries)]
        places = {first + index: physical for index, (physical, _, _) in enumerate(entries)}
        for offset in schedule.take(level, waiting, self._clock.wall_ms()):
            self._move(level, offset, places[offset])

    def _move(self, level: int, offset: int, physical: int) -> None:
        """Store one due message under its own topic."""
        try:
            data = self._store.read_record(physical)
        except OSError as error:
            _log.error("delayed message at level %d offset %d cannot be read: %s", level, offset, error)
            self._failed(level, offset)
            return
        except RocketError as error:
            self._give_up(level, offset, error)
            return
        if data is None:
            self._give_up(level, offset, "it is gone from the log")
            return
        view = RecordView(data, 0, len(data))
        try:
            # Stored again as they are: a consumer sees by them that a message was delayed, and how long.
            properties = view.properties
            topic = properties[PROPERTY_REAL_TOPIC]
            queue_id = int(properties[PROPERTY_REAL_QID])
        except (KeyError, ValueError, ProtocolError) as error:
            self._give_up(level, offset, error)
            return

        def done(result: PutResult) -> None:
            if result.status is PutStatus.OK:
                self.delivered += 1
                full = self._schedule.in_flight >= MAX_IN_FLIGHT
                self._schedule.stored(level, offset)
                if full and not self._closed:
                    self._driver.update()
                if self._settled is not None and not self._settled.done() and not self._schedule.in_flight:
                    self._settled.set_result(None)
            else:
                self._failed(level, offset)

        try:
            store_copy(self._store, Copy(view, topic, queue_id, view.raw_properties), done)
        except StoreError:
            self._failed(level, offset)
        except (RocketError, ProtocolError) as error:
            self._give_up(level, offset, error)

    def _give_up(self, level: int, offset: int, why: object) -> None:
        """One message that can never be delivered must not stop those behind it; it stays in the log."""
        _log.error("delayed message at level %d offset %d cannot be delivered: %s", level, offset, why)
        self._schedule.stored(level, offset)

    def _failed(self, level: int, offset: int) -> None:
        self._schedule.failed(level, offset)
        if self._retry is None and not self._closed:
            self._retry = self._loop.call_later(RETRY_AFTER, self._again)

    def _again(self) -> None:
        self._retry = None
        for level, offset in self._schedule.retry():
            try:
                entries = self._store.entries(SCHEDULE_TOPIC, level - 1, offset, 1)
            except (RocketError, OSError):
                self._failed(level, offset)
                continue
            if entries:
                self._move(level, offset, entries[0][0])
            else:
                self._schedule.stored(level, offset)
        self._driver.update()
