"""What stands beside a record in its queue."""

from __future__ import annotations

from collections.abc import Callable

from aiorocket.broker.core.delay import DELAY_OUT_MS, DelaySchedule
from aiorocket.broker.core.timers import LOOKS, may_be_wait_code, wait_code
from aiorocket_protocol import SCHEDULE_TOPIC, TIMER_TOPIC, RecordView, tags_code

__all__ = ("queue_codes",)

_DELAY_OUT_MS = DELAY_OUT_MS.encode()


def queue_codes(delays: DelaySchedule) -> dict[str, Callable[[RecordView, int | None], int]]:
    """By topic what stands beside a record in its queue where that is not the hash of its tag: when it is due. A delay
    was counted by the levels of its time, and from a moment before the store looked at the clock: one that could be
    true is."""

    def level(record: RecordView, said: int | None) -> int:
        if _DELAY_OUT_MS in record.raw_properties and (due := record.properties.get(DELAY_OUT_MS, "")).isdecimal():
            return int(due)
        stored = record.store_timestamp
        if said is not None and stored - LOOKS <= said <= delays.due_at(len(delays.levels), stored):
            return said
        if record.queue_id + 1 in delays.levels:
            return delays.due_at(record.queue_id + 1, stored)
        return tags_code(record.tag) if record.tag else 0

    return {SCHEDULE_TOPIC: level, TIMER_TOPIC: _timer}


def _timer(record: RecordView, said: int | None) -> int:
    values, stored = record.properties, record.store_timestamp
    try:
        return said if said is not None and may_be_wait_code(said, values, stored) else wait_code(values, stored)
    except (KeyError, ValueError):
        return 0  # due at once: whoever tries to deliver it says what is wrong
