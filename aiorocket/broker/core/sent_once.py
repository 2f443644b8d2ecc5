"""Messages of idempotent producers: which of the last ones of a queue are stored, so that a send that is repeated is
stored once.

A message is known by its UNIQ_KEY, which is its producer (address, process, seed) and its number there (time, counter),
and the same in every attempt. It lies in the record, so what is known of a queue is read from its last records when the
first such send comes, and needs nothing of its own on the disk.

What waits for its time stands in a queue that all topics share. A timer may be due by the time that it is sent again,
and would then be stored in its own queue: it is looked for in both.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from aiorocket_protocol import SCHEDULE_TOPIC, TIMER_TOPIC

__all__ = ("SHARED_WINDOW", "WINDOW", "SentOnce", "window")

#: Messages of a queue, counted from its newest, among which a repetition is found; and of one that all topics share.
WINDOW, SHARED_WINDOW = 256, 2048
#: Queues that are remembered; others are read again.
MAX_QUEUES = 1024


def window(topic: str) -> int:
    return SHARED_WINDOW if topic in (SCHEDULE_TOPIC, TIMER_TOPIC) else WINDOW


R = TypeVar("R")
#: What is answered: told to every attempt of a message when its first one has ended.
Done = Callable[[R], None]
Key = tuple[str, int]


class SentOnce(Generic[R]):
    """``read(topic, queue id)`` gives (UNIQ_KEY, result) of the last ``window(topic)`` messages of a queue, oldest
    first."""

    def __init__(self, read: Callable[[str, int], Iterable[tuple[str, R]]]) -> None:
        self._read = read
        self._stored: OrderedDict[Key, OrderedDict[str, R]] = OrderedDict()
        self._under_way: dict[tuple[str, int, str], list[Done[R]]] = {}

    def begin(
        self, topic: str, queue_id: int, unique: str, done: Done[R], elsewhere: Key | None = None
    ) -> Done[R] | None:
        """None when the message is stored (``done`` was called with its result) or being stored (it will be), there or
        ``elsewhere``; else what to give to the store in place of ``done``. Errors as of ``read``."""
        for key in ((topic, queue_id), elsewhere) if elsewhere else ((topic, queue_id),):
            waiting = self._under_way.get((*key, unique))
            if waiting is not None:
                waiting.append(done)
                return None
            stored = self._queue(key)
            if unique in stored:
                done(stored[unique])
                return None
        place = (topic, queue_id, unique)
        self._under_way[place] = [done]
        return lambda result: self._ended(place, result)

    def failed(self, topic: str, queue_id: int, unique: str) -> None:
        """The store refused it before it began."""
        self._under_way.pop((topic, queue_id, unique), None)

    def keep(self, topic: str, queue_id: int, unique: str, result: R) -> None:
        """It is stored."""
        stored = self._queue((topic, queue_id))
        stored[unique] = result
        while len(stored) > window(topic):
            stored.popitem(last=False)

    def _ended(self, place: tuple[str, int, str], result: R) -> None:
        for done in self._under_way.pop(place, ()):
            done(result)

    def _queue(self, key: Key) -> OrderedDict[str, R]:
        stored = self._stored.get(key)
        if stored is None:
            stored = self._stored[key] = OrderedDict(self._read(*key))
            while len(self._stored) > MAX_QUEUES:
                self._stored.popitem(last=False)
        else:
            self._stored.move_to_end(key)
        return stored
