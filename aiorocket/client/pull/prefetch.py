"""What a pull consumer has pulled and not fetched yet, of all its queues, and who waits for that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from aiorocket.client.core.pull_cursor import PullBuffer, PullCursor
from aiorocket.client.message import Message

__all__ = ("Prefetch",)


class Prefetch:
    """A ``PullBuffer`` for tasks: those that pull wait for room in it, those that fetch for messages."""

    def __init__(self) -> None:
        self._buffer: PullBuffer[Message] = PullBuffer()
        #: Set when there is something to hand out, and at the end.
        self.arrived = asyncio.Event()
        # A dict, not a set: they are woken in the same order in every simulation.
        self._waiting: dict[Callable[[], bool], None] = {}

    @property
    def count(self) -> int:
        """Messages of all queues."""
        return self._buffer.count

    def put(
        self, cursor: PullCursor[Message], generation: int, messages: Sequence[Message], size: int, next_offset: int
    ) -> None:
        """The answer to a pull, see ``PullCursor.put``."""
        if self._buffer.put(cursor, generation, messages, size, next_offset) and cursor.ready:
            self.arrived.set()

    def hand_out(self, most: int) -> list[Message]:
        """Up to ``most`` messages, from all queues in turn."""
        taken = self._buffer.take(most)
        if taken:
            self._made_room()
        return taken

    def seek(self, cursor: PullCursor[Message], offset: int) -> None:
        """Go on at ``offset``: what is cached is dropped, and what is on its way will be."""
        self._buffer.seek(cursor, offset)
        self._made_room()

    def resume(self, cursor: PullCursor[Message]) -> None:
        """What is cached of a queue that was paused may be handed out."""
        self._buffer.line_up(cursor)
        if cursor.ready:
            self.arrived.set()

    def drop(self, cursor: PullCursor[Message]) -> None:
        """The assignment has ended."""
        self._buffer.drop(cursor)
        self._made_room()

    def when_room(self, go_on: Callable[[], bool]) -> None:
        """Call ``go_on`` whenever there may be room, until it has answered True, or was forgotten."""
        self._waiting[go_on] = None

    def forget(self, go_on: Callable[[], bool]) -> None:
        self._waiting.pop(go_on, None)

    def _made_room(self) -> None:
        if self._waiting:
            for go_on in [go_on for go_on in self._waiting if go_on()]:
                del self._waiting[go_on]
