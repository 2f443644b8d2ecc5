"""What stands beside a record in its queue."""

from __future__ import annotations

from aiorocket.broker.core.delay import DelaySchedule
from aiorocket.broker.core.timers import wait_code
from aiorocket_protocol import SCHEDULE_TOPIC, TIMER_TOPIC, RecordView, tags_code

__all__ = ("queue_code",)


def queue_code(delays: DelaySchedule, record: RecordView) -> int:
    """The hash of its tag, or when it is due in a queue of those that wait."""
    if record.topic == SCHEDULE_TOPIC and record.queue_id + 1 in delays.levels:
        return delays.due_at(record.queue_id + 1, record.store_timestamp)
    if record.topic == TIMER_TOPIC:
        try:
            return wait_code(record.properties, record.store_timestamp)
        except (KeyError, ValueError):
            return 0  # due at once: whoever tries to deliver it says what is wrong
    return tags_code(record.tag) if record.tag else 0
