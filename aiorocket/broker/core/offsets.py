"""How far each group has come in each queue. A commit is one dict store; what changed since the last snapshot is one
number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ("OffsetTable",)


class OffsetTable:
    """(group, topic) → {queue id: next offset to read}."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, str], dict[int, int]] = {}
        #: Grows with every change; a snapshot is needed when it differs from the one last written.
        self.version = 0

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Store a commit; True when it is lower than the stored one (accepted all the same: resets and repairs do
        that).

        Negative commits (ali-ons sends -1 for queues it never consumed) are ignored.
        """
        if offset < 0:
            return False
        queues = self._offsets.get((group, topic))
        if queues is None:
            queues = self._offsets[group, topic] = {}
        before = queues.get(queue_id, -1)
        queues[queue_id] = offset
        if offset != before:
            self.version += 1
        return offset < before

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        queues = self._offsets.get((group, topic))
        return None if queues is None else queues.get(queue_id)

    def queues(self, group: str, topic: str) -> dict[int, int]:
        return dict(self._offsets.get((group, topic), ()))

    def topics(self, group: str) -> list[str]:
        return [topic for name, topic in self._offsets if name == group]

    def groups(self, topic: str) -> list[str]:
        return [group for group, name in self._offsets if name == topic]

    def delete_topic(self, topic: str) -> None:
        self._delete([key for key in self._offsets if key[1] == topic])

    def delete_group(self, group: str) -> None:
        self._delete([key for key in self._offsets if key[0] == group])

    def _delete(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            del self._offsets[key]
        if keys:
            self.version += 1

    def __iter__(self) -> Iterator[tuple[str, str, int, int]]:
        for (group, topic), queues in self._offsets.items():
            for queue_id, offset in queues.items():
                yield group, topic, queue_id, offset

    def to_dict(self) -> dict[str, Any]:
        """``{"topic@group": {"queue id": offset}}``, the keys of RocketMQ's own offset file (names can hold no
        ``@``)."""
        table = {
            f"{topic}@{group}": {str(q): n for q, n in queues.items()}
            for (group, topic), queues in self._offsets.items()
        }
        return {"offsetTable": table}

    def load(self, data: Mapping[str, Any]) -> None:
        for key, queues in data.get("offsetTable", {}).items():
            topic, _, group = key.partition("@")
            self._offsets[group, topic] = {int(queue_id): int(offset) for queue_id, offset in queues.items()}
