"""Committable positions per queue: they only grow, unless a repair says otherwise, and remember what the broker
knows."""

from __future__ import annotations

from aiorocket.model import Queue

__all__ = ("OffsetTable",)


class OffsetTable:
    """Offset to commit and offset last committed, per queue."""

    __slots__ = ("_committed", "_position")

    def __init__(self) -> None:
        self._position: dict[Queue, int] = {}
        self._committed: dict[Queue, int] = {}

    def begin(self, queue: Queue, offset: int, *, committed: bool) -> None:
        """A queue was assigned at ``offset``; ``committed`` says whether the broker already stores exactly that."""
        self._position[queue] = offset
        self._committed[queue] = offset if committed else -1

    def advance(self, queue: Queue, offset: int) -> bool:
        """Move forward only. False, and no change, for a queue that is not held or an offset behind the present one."""
        position = self._position.get(queue)
        if position is None or offset <= position:
            return False
        self._position[queue] = offset
        return True

    def repair(self, queue: Queue, offset: int) -> None:
        """Set, also backwards: the broker said that the position does not exist (OFFSET_ILLEGAL) or it was reset."""
        self._position[queue] = offset
        self._committed[queue] = -1

    def forget(self, queue: Queue) -> None:
        """The queue is not ours any more: later results of it change nothing."""
        self._position.pop(queue, None)
        self._committed.pop(queue, None)

    def position(self, queue: Queue) -> int:
        """The offset to commit, or -1 for a queue that is not held."""
        return self._position.get(queue, -1)

    def committed(self, queue: Queue) -> int:
        """The offset the broker is known to store, or -1."""
        return self._committed.get(queue, -1)

    def dirty(self) -> list[tuple[Queue, int]]:
        """What should be committed now, sorted by queue."""
        committed = self._committed
        return [(queue, offset) for queue, offset in sorted(self._position.items()) if offset != committed[queue]]

    def note_committed(self, queue: Queue, offset: int) -> None:
        """The broker acknowledged ``offset``."""
        if queue in self._position:
            self._committed[queue] = offset
