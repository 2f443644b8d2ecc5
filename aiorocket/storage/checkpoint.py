"""What a checkpoint says. It makes the next start short, it does not make anything durable: the log does that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aiorocket.errors import StoreCorruptedError
from aiorocket.storage.checksums import FORMAT
from aiorocket.storage.consume_queue import ConsumeQueue
from aiorocket.storage.snapshots import Snapshot
from aiorocket.storage.walk import Bad

__all__ = ("QueueRows", "QueueTable", "begun_state", "checkpoint_state", "load_checkpoint")

QueueTable = dict[tuple[str, int], ConsumeQueue]


class QueueRows:
    """What a checkpoint says of queues, read little by little; one that has changed since is read again."""

    def __init__(self, queues: Iterable[ConsumeQueue] = ()) -> None:
        #: [id, min offset, count] of each queue, by topic.
        self.topics: dict[str, list[list[int]]] = {}
        self._rows: dict[ConsumeQueue, list[int]] = {}
        self.read(queues)

    def read(self, queues: Iterable[ConsumeQueue]) -> None:
        for queue in queues:
            if queue.deleted:
                continue
            row = self._rows.get(queue)
            if row is None:
                row = self._rows[queue] = [queue.queue_id, 0, 0]
                self.topics.setdefault(queue.topic, []).append(row)
            row[1:] = queue.min_offset, queue.max_offset

    def count(self, queue: ConsumeQueue) -> int:
        """As it was read."""
        return self._rows[queue][2]

    def forget(self, topic: str) -> None:
        """The queues that it had are deleted."""
        self.topics.pop(topic, None)


def checkpoint_state(
    queues: QueueRows,
    *,
    start: int,
    replay: int,
    durable: int,
    timestamp: int,
    deleted: dict[str, int],
    damage: list[Bad],
    clean: bool,
) -> dict[str, Any]:
    """What a checkpoint says; damaged ranges are [from, to, reason]."""
    return {
        "format": FORMAT,
        "clean": clean,
        "start": start,
        "replay": replay,
        "durable": durable,
        "timestamp": timestamp,
        "deleted": deleted,
        "damaged": [list(bad) for bad in damage],
        "queues": queues.topics,
    }


def begun_state(
    state: dict[str, Any],
    durable: int,
    found: list[Bad],
    units: Mapping[tuple[str, int], tuple[int, int]],
    *,
    sure: bool,
) -> dict[str, Any]:
    """For a start that is broken off: the checkpoint that was there, and what is known of losses now. Of these the next
    start may find no trace any more: queues are cut and made again. ``sure`` says that it was the newest."""
    given = [[*key, *bounds] for key, bounds in units.items()]
    # The log goes on behind all of it, also where the disk can be read again then: in damage nothing is served.
    durable = max([durable, *(bad.end for bad in found)])
    begun = {"found": [list(bad) for bad in found], "given": given, "sure": sure}
    return {**state, "clean": False, "durable": durable, "begun": begun}


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
