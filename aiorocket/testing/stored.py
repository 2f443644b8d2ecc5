"""What a broker has stored, read past the protocol: for tests that look from outside."""

from __future__ import annotations

from aiorocket.broker.broker import Broker
from aiorocket.storage.store import MessageStore
from aiorocket_protocol import RecordView

__all__ = ("lag", "stored_messages")

_READ_AT_ONCE = 64


def stored_messages(store: MessageStore, topic: str) -> list[RecordView]:
    """All visible messages of a topic, queue by queue."""
    found = []
    for queue_id in store.queues(topic):
        offset, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        while offset < end:
            entries = store.entries(topic, queue_id, offset, min(_READ_AT_ONCE, end - offset))
            if not entries:
                break
            for position, _, _ in entries:
                record = store.read_record(position)
                if record is not None:
                    found.append(RecordView(record, 0, len(record)))
            offset += len(entries)
    return found


def lag(broker: Broker, group: str, topic: str) -> int:
    """Messages of ``topic`` that ``group`` has not committed."""
    store, offsets = broker.store, broker.offsets
    return sum(
        store.max_offset(topic, queue_id) - (offsets.query(group, topic, queue_id) or 0)
        for queue_id in store.queues(topic)
    )
