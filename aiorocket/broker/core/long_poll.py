"""Pulls that wait for a message: small entries, no tasks.

A parked pull is found in three ways, each one dict: by its queue (a message arrived), by its connection (it closed), by
its deadline. Deadlines are FIFO per hold time: pulls of one kind of client all ask for the same hold, so the first of
each FIFO is the earliest and adding or removing one costs a dict store. Hold times are rounded up to
100 ms, so that a client that asks for a different one each time cannot make more FIFOs than ``max_hold`` has tenths.
Deadlines are multiples of 100 ms too: ten thousand parked pulls would else wake the broker 700 times a second, for one
of them each, at twice the CPU time.

Where many wait for one queue, a crowd, they are looked at in rounds, some of them in a turn of the loop: messages of
many queues may come together. Whatever arrives during a round makes one more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice
from typing import Any

from aiorocket.broker.core import shares
from aiorocket.broker.core.names import Refusal, full
from aiorocket.config import Limits

__all__ = ("AT_ONCE", "A_TURN", "LongPolls", "ParkedPull")

#: Pulls whose hold ends in one turn of the loop, or that are looked at in it because something arrived: some 5 ms.
A_TURN = 1000
#: Pulls of one queue that are looked at when something arrives there, and not in turns.
AT_ONCE = 32

_INFINITY = float("inf")
#: A time before any.
_PAST = 0.0
_TICK = 0.1


class ParkedPull:
    """One waiting pull. ``scanned`` is the first offset that the group's filter has not seen yet."""

    __slots__ = ("accept", "connection", "deadline", "queue", "request", "scanned", "seq", "ticks", "weight")

    def __init__(
        self,
        queue: tuple[str, Hashable],
        scanned: int,
        accept: Callable[[int], bool] | None,
        connection: Hashable,
        request: Any,
        weight: int = 0,
    ) -> None:
        self.queue = queue
        self.scanned = scanned
        self.accept = accept
        self.connection = connection
        #: Whatever the shell needs to run the pull again; never looked at here.
        self.request = request
        #: Bytes that its own filter takes.
        self.weight = weight
        self.deadline = _INFINITY
        self.seq = 0
        self.ticks = 0


class _Mine(dict[tuple[str, Hashable], list[ParkedPull]]):
    """The pulls of one connection by queue, and the bytes that their filters take."""

    __slots__ = ("weight",)
    weight: int


class LongPolls:
    """The parked pulls of one broker."""

    def __init__(self, max_hold: float, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._weight = 0
        self._little = shares.begins(self._limits.filter_memory)
        self._max_ticks = max(1, round(max_hold / _TICK))
        self._by_queue: dict[tuple[str, Hashable], dict[int, ParkedPull]] = {}
        self._by_connection: dict[Hashable, _Mine] = {}
        self._by_hold: dict[int, OrderedDict[int, ParkedPull]] = {}
        self._seq = 0
        self._armed = _INFINITY
        #: The holds of those that were parked up to here are over.
        self._ended = 0
        self.count = 0
        #: Crowds that have news: up to which offset, and its tags code.
        self._crowds: dict[tuple[str, Hashable], tuple[int, int | None]] = {}
        #: The one whose round it is, with its news, and who is still to be looked at in it.
        self._crowd: tuple[tuple[str, Hashable], int, int | None] | None = None
        self._round: Iterator[ParkedPull] = iter(())
        #: Whether ``of_crowds`` has something to look at.
        self.crowded = False

    def refusal(self, pull: ParkedPull) -> Refusal | None:
        """Why ``pull`` may not be parked."""
        limits = self._limits
        if self.count >= limits.parked_pulls:
            return full("parked_pulls", limits.parked_pulls, "the pull cannot wait")
        mine = self._by_connection.get(pull.connection)
        if self._weight + pull.weight > self._little:
            what, who = "the pull cannot wait with a filter of its own", {"filter_memory": mine.weight if mine else 0}
            most = limits.filter_memory
            refusal = shares.refusal("filter_memory", most, self._weight, what, who, more=pull.weight)
            if refusal is not None:
                return refusal
        most = limits.parked_per_queue
        if mine is not None and len(mine.get(pull.queue, ())) >= most:
            return full("parked_per_queue", most, "the pull cannot wait beside the connection's others of this queue")
        return None

    def is_parked(self, pull: ParkedPull) -> bool:
        return pull.seq in self._by_queue.get(pull.queue, ())

    def park(self, pull: ParkedPull, hold: float, now: float) -> bool:
        """Hold ``pull`` for at most ``hold`` seconds (bounded by ``max_hold``). True when the next deadline came
        closer."""
        self._seq = seq = self._seq + 1
        ticks = min(max(1, int(hold / _TICK + 0.999)), self._max_ticks)
        pull.seq = seq
        pull.ticks = ticks
        pull.deadline = deadline = -(-(now + ticks * _TICK) // _TICK) * _TICK
        parked = self._by_queue.get(pull.queue)
        if parked is None:
            parked = self._by_queue[pull.queue] = {}
        parked[seq] = pull
        mine = self._by_connection.get(pull.connection)
        if mine is None:
            mine = self._by_connection[pull.connection] = _Mine()
            mine.weight = 0
        of_queue = mine.get(pull.queue)
        if of_queue is None:
            of_queue = mine[pull.queue] = []
        of_queue.append(pull)
        held = self._by_hold.get(ticks)
        if held is None:
            held = self._by_hold[ticks] = OrderedDict()
        held[seq] = pull
        self.count += 1
        self._weight += pull.weight
        mine.weight += pull.weight
        if deadline < self._armed:
            self._armed = deadline
            return True
        return False

    def arrived(self, topic: str, queue_id: int, max_offset: int, tags_code: int | None) -> Iterable[ParkedPull]:
        """The pulls to run again because their queue now ends at ``max_offset``. They stay parked, with the deadline
        they have, until ``answered``: what is read may still not match their filter.

        ``tags_code`` is that of the one new message, None when there are several; pulls it cannot match are left out.
        Of a crowd it is none: ``of_crowds`` has them, turn by turn.
        """
        queue = topic, queue_id
        parked = self._by_queue.get(queue)
        if parked is None:
            return ()
        if len(parked) > AT_ONCE:
            self._crowds[queue] = max_offset, None if queue in self._crowds else tags_code
            self.crowded = True
            return ()
        return [
            pull
            for pull in parked.values()
            if pull.scanned < max_offset and (tags_code is None or pull.accept is None or pull.accept(tags_code))
        ]

    def of_crowds(self, most: int) -> list[ParkedPull]:
        """The pulls to run again among the next ``most`` of crowds; some may be parked no more."""
        woken: list[ParkedPull] = []
        while most and self.crowded:
            if self._crowd is None:
                queue = next(iter(self._crowds))
                self._crowd = queue, *self._crowds.pop(queue)
                self._round = iter(self.waiting(queue))
            _, max_offset, code = self._crowd
            for pull in islice(self._round, most):
                most -= 1
                if pull.scanned < max_offset and (code is None or pull.accept is None or pull.accept(code)):
                    woken.append(pull)
            if most:
                self._crowd = None
                self.crowded = bool(self._crowds)
        return woken

    def is_behind(self, queue: tuple[str, Hashable]) -> bool:
        """Whether something arrived there that not all who wait were looked at for."""
        return self.crowded and (queue in self._crowds or (self._crowd is not None and self._crowd[0] == queue))

    def waiting(self, queue: tuple[str, Hashable]) -> list[ParkedPull]:
        """Those of a queue, the longest waiting first. They stay parked until ``answered``."""
        return list(self._by_queue.get(queue, {}).values())

    def is_awaited(self, queue: tuple[str, Hashable]) -> bool:
        """Whether there are any."""
        return queue in self._by_queue

    def answered(self, pull: ParkedPull) -> None:
        """Take a pull out that was found by ``arrived`` or ``waiting``."""
        self._remove(pull)

    def expire(self, now: float) -> list[ParkedPull]:
        """The pulls whose hold is over; they are no longer parked. Of very many it is some, and ``next_deadline`` is
        over still: holds of all lengths may end together, as whoever asked for them meant. At ``inf`` all are."""
        over: list[ParkedPull] = []
        for held in self._by_hold.values():
            while held and len(over) < A_TURN:
                pull = next(iter(held.values()))
                if pull.deadline > now and pull.seq > self._ended:
                    break
                self._remove(pull)
                over.append(pull)
        self._armed = _INFINITY
        for ticks in [ticks for ticks, held in self._by_hold.items() if not held]:
            del self._by_hold[ticks]
        return over

    def end(self) -> None:
        """The holds of all that are parked are over: ``expire`` gives them, some at a time, and their clients ask
        anew."""
        self._ended = self._seq
        if self.count:
            self._armed = _PAST

    def next_deadline(self) -> float | None:
        """The earliest deadline; it may name a pull that has been answered since, never one later than the earliest."""
        if self._armed == _INFINITY:
            for held in self._by_hold.values():
                if held:
                    first = next(iter(held.values()))
                    self._armed = min(self._armed, first.deadline if first.seq > self._ended else _PAST)
        return None if self._armed == _INFINITY else self._armed

    def lost(self, connection: Hashable) -> int:
        """Drop the pulls of a closed connection; says how many."""
        gone = [pull for pulls in self._by_connection.get(connection, {}).values() for pull in pulls]
        for pull in gone:
            self._remove(pull)
        return len(gone)

    def _remove(self, pull: ParkedPull) -> None:
        seq = pull.seq
        parked = self._by_queue[pull.queue]
        del parked[seq]
        if not parked:
            del self._by_queue[pull.queue]
        mine = self._by_connection[pull.connection]
        mine.weight -= pull.weight
        of_queue = mine[pull.queue]
        of_queue.remove(pull)  # it is one of few, and mostly the first
        if not of_queue:
            del mine[pull.queue]
            if not mine:
                del self._by_connection[pull.connection]
        del self._by_hold[pull.ticks][seq]
        self.count -= 1
        self._weight -= pull.weight
