"""Reads through filters that must see the messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiorocket.broker.core.record_filter import SCAN
from aiorocket.storage.results import ReadResult, ReadStatus

if TYPE_CHECKING:
    from aiorocket.broker.core.record_filter import RecordFilter
    from aiorocket.storage.store import MessageStore

__all__ = ("read_filtered",)


def read_filtered(
    store: MessageStore,
    topic: str,
    queue_id: int,
    offset: int,
    max_messages: int,
    max_bytes: int,
    accept: RecordFilter,
    *,
    work: int,
    scan_bytes: int,
) -> tuple[ReadResult, int]:
    """``store.read``: looks at SCAN messages, or as many as fit into ``work`` and ``scan_bytes`` if they are fewer, but
    at one at least. And how much of ``work`` it took."""
    scan = min(max(SCAN, max_messages), max(1, work // accept.cost))
    found = store.read(topic, queue_id, offset, scan, scan_bytes)
    if found.status is not ReadStatus.FOUND:
        return found, accept.cost
    data, taken, seen, took = accept.select(found.data, max_messages, max_bytes, work)
    status = ReadStatus.FOUND if taken else ReadStatus.NO_MATCHED_MESSAGE
    return ReadResult(status, (data,), offset + seen, found.min_offset, found.max_offset, taken), took
