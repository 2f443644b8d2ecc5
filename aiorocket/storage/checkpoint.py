"""What a checkpoint says. It makes the next start short, it does not make anything durable: the log does that."""

from __future__ import annotations

from typing import Any

from aiorocket.errors import StoreCorruptedError
from aiorocket.storage.checksums import FORMAT
from aiorocket.storage.consume_queue import ConsumeQueue
from aiorocket.storage.snapshots import Snapshot
from aiorocket.storage.walk import Bad

__all__ = ("QueueTable", "checkpoint_state", "load_checkpoint")

QueueTable = dict[tuple[str, int], ConsumeQueue]


def checkpoint_state(
    queues: QueueTable,
    *,
    start: int,
    replay: int,
    durable: int,
    timestamp: int,
    deleted: dict[str, int],
    damage: list[Bad],
    clean: bool,
) -> dict[str, Any]:
    """What a checkpoint says; queues are [id, min offset, count] by topic, damaged ranges [from, to, reason]."""
    topics: dict[str, list[list[int]]] = {}
    for (topic, queue_id), queue in queues.items():
        topics.setdefault(topic, []).append([queue_id, queue.min_offset, queue.max_offset])
    return {
        "format": FORMAT,
        "clean": clean,
        "start": start,
        "replay": replay,
        "durable": durable,
        "timestamp": timestamp,
        "deleted": deleted,
        "damaged": [list(bad) for bad in damage],
        "queues": topics,
    }


def load_checkpoint(snapshot: Snapshot) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest checkpoint, None without one, and what is wrong with its files."""
    try:
        state = snapshot.load()
    except StoreCorruptedError:
        return None, snapshot.problems
    if state is not None and state.get("format", 0) > FORMAT:
        raise StoreCorruptedError(
            f"{snapshot.path}: the store has format {state['format']}, this program knows up to {FORMAT}:"
            " use a newer one"
        )
    return state, snapshot.problems
