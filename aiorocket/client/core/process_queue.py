"""Messages of one queue between the pull and the listener: what is cached, and which offset may be committed.

Hot: one ``put`` per pull answer and one ``done`` per message. Offsets arrive ascending, so the smallest unfinished one
needs no tree: an entry carries its process queue while it is unfinished, a deque keeps the order, and finished entries
are dropped when they reach its front. The offset itself is only decoded when somebody asks what to commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

__all__ = ("Cached", "Entry", "Limits", "ProcessQueue")


class Cached(Protocol):
    """A message that was pulled; ``end - start`` is its size."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def queue_offset(self) -> int: ...


class Entry(Cached, Protocol):
    """One that is tracked: ``_process_queue`` is the queue it is unfinished in."""

    _process_queue: ProcessQueue | None


class Limits(NamedTuple):
    """Flow control: above any of them nothing more is pulled."""

    messages: int
    bytes: int
    span: int


class ProcessQueue:
    """Unfinished messages of one queue under one assignment. A new assignment of the same queue is a new object, so
    that results which arrive late find ``dropped`` set and change nothing."""

    __slots__ = ("_order", "count", "dropped", "limits", "next_offset", "on_room", "size", "taken")

    def __init__(self, next_offset: int, limits: Limits) -> None:
        self._order: deque[Entry] = deque()
        self.limits = limits
        #: The offset to pull from next; also what may be committed when nothing is unfinished.
        self.next_offset = next_offset
        self.count = 0
        self.size = 0
        #: Messages ever put.
        self.taken = 0
        self.dropped = False
        #: Called once, then cleared, when a full queue has room again.
        self.on_room: Callable[[], None] | None = None

    def put(self, entries: Sequence[Entry], size: int, next_offset: int) -> None:
        """Take a run of ascending offsets, ``size`` bytes in all; pulling goes on at ``next_offset``."""
        for entry in entries:
            entry._process_queue = self
        self._order.extend(entries)
        added = len(entries)
        self.count += added
        self.taken += added
        self.size += size
        self.next_offset = next_offset

    def done(self, entry: Entry) -> bool:
        """Finish one message. False when it was finished before (its result came too late and does not count)."""
        if entry._process_queue is not self:
            return False
        entry._process_queue = None
        self.count -= 1
        self.size -= entry.end - entry.start
        order = self._order
        if order[0] is entry:
            order.popleft()
            while order and order[0]._process_queue is None:
                order.popleft()
        if self.on_room is not None:
            self._notify_room()
        return True

    def committable(self) -> int:
        """The smallest unfinished offset: everything before it is finished, or was filtered out."""
        order = self._order
        return order[0].queue_offset if order else self.next_offset

    def span(self) -> int:
        """Distance between the smallest unfinished and the newest message."""
        order = self._order
        return order[-1].queue_offset - order[0].queue_offset if order else 0

    def bounds(self) -> tuple[int, int]:
        """The smallest unfinished offset and the newest one; zeros when all is finished."""
        order = self._order
        return (order[0].queue_offset, order[-1].queue_offset) if order else (0, 0)

    def full(self) -> str | None:
        """Which limit is exceeded, or None when the next pull may go out."""
        limits = self.limits
        if self.count > limits.messages:
            return "messages"
        if self.size > limits.bytes:
            return "bytes"
        # A span can only be wide while something old is unfinished.
        if self._order and self.span() > limits.span:
            return "span"
        return None

    def drop(self) -> None:
        """The queue is given up: waiting messages are skipped, running ones finish without effect, as late ones."""
        self.dropped = True
        for entry in self._order:
            entry._process_queue = None
        if self.on_room is not None:
            self._call_room()

    def _notify_room(self) -> None:
        if self.full() is None:
            self._call_room()

    def _call_room(self) -> None:
        callback, self.on_room = self.on_room, None
        if callback is not None:
            callback()
