"""Which queue the next message goes to: in turn, away from a broker that just failed, or fixed by a sharding key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from aiorocket.errors import UsageError
from aiorocket_protocol import tags_code

__all__ = ("OnBroker", "QueueChoice")


class OnBroker(Protocol):
    """Something that lies on a broker: a queue, a target."""

    @property
    def broker_name(self) -> str: ...


T = TypeVar("T", bound=OnBroker)


class QueueChoice(Generic[T]):
    """Round robin over ``queues``, beginning at ``start`` so that many producers do not all begin at queue 0."""

    __slots__ = ("_cursor", "_last", "queues")

    def __init__(self, queues: Sequence[T], start: int = 0) -> None:
        if not queues:
            raise UsageError("no writable queue to choose from")
        self.queues = tuple(queues)
        self._last = len(self.queues) - 1
        self._cursor = start % len(self.queues)

    def next(self) -> T:
        cursor = self._cursor
        self._cursor = cursor + 1 if cursor < self._last else 0
        return self.queues[cursor]

    def next_avoiding(self, broker_name: str) -> T:
        """In turn, but on another broker when there is one; else another queue of the same."""
        for _ in self.queues:
            queue = self.next()
            if queue.broker_name != broker_name:
                return queue
        return self.next()

    def by_key(self, key: str) -> T:
        """The same queue for the same key as Java's SelectMessageQueueByHash, so mixed producers keep the order of a
        key."""
        return self.queues[abs(tags_code(key)) % len(self.queues)]
