"""What a pull consumer has of each queue between the broker and ``fetch``: cached messages, how far it is, and whose
turn is next."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from aiorocket.client.core.process_queue import Cached

__all__ = ("PullBuffer", "PullCursor")


E = TypeVar("E", bound=Cached)


class PullCursor(Generic[E]):
    """One queue under one assignment. ``done <= position <= next_offset`` at any time."""

    __slots__ = ("_cached", "closing", "done", "dropped", "generation", "next_offset", "paused", "queued", "size")

    def __init__(self, offset: int) -> None:
        self._cached: deque[E] = deque()
        #: The offset to pull from next.
        self.next_offset = offset
        #: What the application said it is done with: the offset to commit.
        self.done = offset
        #: Rises with every seek; the answer to a pull of an older one is not wanted any more.
        self.generation = 0
        self.size = 0
        self.paused = False
        #: The queue is being given up: nothing is handed out, commits still count.
        self.closing = False
        #: The assignment has ended: commits are stale.
        self.dropped = False
        #: It is in its buffer's line.
        self.queued = False

    @property
    def count(self) -> int:
        """Messages cached."""
        return len(self._cached)

    @property
    def ready(self) -> bool:
        """There is something to hand out."""
        return bool(self._cached) and not (self.paused or self.closing)

    @property
    def position(self) -> int:
        """The offset ``fetch`` goes on at: everything before it has been handed out, or was filtered out."""
        return self._cached[0].queue_offset if self._cached else self.next_offset

    def committable(self) -> int:
        return self.done

    def bounds(self) -> tuple[int, int]:
        """The oldest and the newest cached offset; zeros when nothing is cached."""
        cached = self._cached
        return (cached[0].queue_offset, cached[-1].queue_offset) if cached else (0, 0)

    def put(self, generation: int, entries: Sequence[E], size: int, next_offset: int) -> bool:
        """Cache the answer to a pull of ``generation``: ascending offsets, ``size`` bytes. False, and no change, when
        somebody has sought elsewhere since."""
        if generation != self.generation or self.closing:
            return False
        self._cached.extend(entries)
        self.size += size
        self.next_offset = next_offset
        return True

    def take(self, most: int) -> list[E]:
        """Hand out up to ``most`` messages, in order."""
        cached = self._cached
        if len(cached) <= most:
            taken = list(cached)
            cached.clear()
            self.size = 0
            return taken
        popleft = cached.popleft
        taken = [popleft() for _ in range(most)]
        self.size -= sum(entry.end - entry.start for entry in taken)
        return taken

    def seek(self, offset: int) -> int:
        """Go on at ``offset``; how many cached messages that drops."""
        dropped = len(self._cached)
        self._cached.clear()
        self.size = 0
        self.generation += 1
        self.next_offset = offset
        self.done = min(self.done, offset)
        return dropped

    def finish(self, end: int) -> int:
        """The application is done with everything before ``end``, as far as it has been handed out. The offset to
        commit: it moves forward only, unless somebody sought back."""
        self.done = max(self.done, min(end, self.position))
        return self.done


class PullBuffer(Generic[E]):
    """All queues of a consumer. ``take`` serves them in turn, so that a queue with much does not hide the others."""

    __slots__ = ("_line", "count")

    def __init__(self) -> None:
        self._line: deque[PullCursor[E]] = deque()
        #: Messages cached in all of them.
        self.count = 0

    def put(self, cursor: PullCursor[E], generation: int, entries: Sequence[E], size: int, next_offset: int) -> bool:
        """See ``PullCursor.put``."""
        if not cursor.put(generation, entries, size, next_offset):
            return False
        self.count += len(entries)
        self.line_up(cursor)
        return True

    def line_up(self, cursor: PullCursor[E]) -> None:
        """Give it a place in the line, if it has something to hand out."""
        if cursor.ready and not cursor.queued:
            cursor.queued = True
            self._line.append(cursor)

    def take(self, most: int) -> list[E]:
        """Up to ``most`` messages: an equal share of each queue that has some, then what is left of it."""
        taken: list[E] = []
        line, left = self._line, most
        share = max(1, most // max(1, len(line)))
        while left and line:
            cursor = line.popleft()
            cursor.queued = False
            if cursor.ready:
                part = cursor.take(min(share, left))
                left -= len(part)
                taken += part
                self.line_up(cursor)
        self.count -= len(taken)
        return taken

    def seek(self, cursor: PullCursor[E], offset: int) -> None:
        """See ``PullCursor.seek``."""
        self.count -= cursor.seek(offset)

    def drop(self, cursor: PullCursor[E]) -> None:
        """The assignment has ended."""
        cursor.closing = cursor.dropped = True
        self.count -= cursor.seek(cursor.position)
