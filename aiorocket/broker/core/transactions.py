"""Transactions whose outcome is not known yet: which half messages are open, and when each must be asked about.

A half message waits in a queue of its own. Each time its producer is asked, a copy of it is stored, so one transaction
may have several half messages; it is named by the queue offset of the first. What ended is written to a second queue,
as text with the offsets it ends. These two queues are the truth; the table is made from them when a broker starts, and
``to_dict`` only remembers how much of them needs no second look.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from enum import Enum
from math import inf
from typing import Any, NamedTuple

from aiorocket.broker.core import shares
from aiorocket.broker.core.shares import Holds
from aiorocket.broker.core.swept_heap import SweptHeap
from aiorocket_protocol import PROPERTY_CHECK_IMMUNITY_TIME, PROPERTY_TRAN_MSG

__all__ = (
    "Half",
    "HalfState",
    "Stored",
    "TransactionTable",
    "decode_op",
    "encode_op",
    "immunity",
    "is_transactional",
)

#: Op records that share one entry of memory.
_BLOCK = 256


class HalfState(Enum):
    """OPEN is to be asked about. COPYING and ENDING wait for the store: for the copy of a check, for the end (an end
    may overtake a copy, never the other way). DELIVERED and DISCARDED stand where they belong and only lack their op
    record."""

    OPEN = 0
    COPYING = 1
    ENDING = 2
    DELIVERED = 3
    DISCARDED = 4


_BUSY = (HalfState.COPYING, HalfState.ENDING)


class Half:
    """One open transaction. ``offset`` and ``physical`` are those of its newest half message."""

    __slots__ = ("checks", "due", "name", "offset", "physical", "state", "who")

    def __init__(
        self, name: int, offset: int, physical: int, checks: int, due: float, who: Holds | None = None
    ) -> None:
        self.name = name
        self.offset = offset
        self.physical = physical
        self.checks = checks
        self.due = due
        self.state = HalfState.OPEN
        #: The connection that opened it.
        self.who = who

    def __repr__(self) -> str:
        return f"Half({self.name}, at {self.offset}, {self.checks} checks, {self.state.name})"


class Stored(NamedTuple):
    """A half message found in its queue. ``immunity`` is None when the sender asked for none."""

    offset: int
    physical: int
    name: int
    checks: int
    stored_ms: int
    immunity: float | None


class TransactionTable:
    """Durations in seconds; ``now`` is the loop's time. ``longest`` is the immunity that counts: what is open keeps all
    that came behind it from retention."""

    def __init__(self, *, timeout: float, interval: float, max_checks: int, longest: float = inf) -> None:
        self.timeout = timeout
        self.interval = interval
        self.max_checks = max_checks
        self.longest = longest
        #: In the order of ``Half.offset``, so that the first one is where a restart has to begin.
        self._open: OrderedDict[int, Half] = OrderedDict()
        #: When to look at which; of what has ended, and may be asked about in years, entries stay for a while.
        self._queue = SweptHeap[tuple[float, int]](self._is_void)
        #: [first op offset, highest half offset ended] of runs of op records, oldest first.
        self._ops: deque[list[int]] = deque()
        self._next_half = 0
        self._next_op = 0
        self._saved: tuple[int, int, int] = (0, 0, 0)
        #: Grows with every change; a snapshot is needed when it differs from the one last written.
        self.version = 0
        self.get = self._open.get

    def __len__(self) -> int:
        return len(self._open)

    # ---- a transaction's life

    def add(self, offset: int, physical: int, now: float, immunity: float | None, who: Holds | None = None) -> bool:
        """A half message is stored. True when it is the next to be asked about."""
        half = Half(offset, offset, physical, 0, now + self._first(immunity), who)
        shares.take(who, "transactions")
        self._open[offset] = half
        self._next_half = max(self._next_half, offset + 1)
        self.version += 1
        return self._schedule(half)

    def begin(self, half: Half, state: HalfState) -> None:
        """Something about it is on its way to the store (COPYING or ENDING): it is not asked about meanwhile."""
        half.state = state

    def reopen(self, half: Half, due: float, state: HalfState = HalfState.OPEN) -> bool:
        """It could not be stored: look again at ``due``. True when that is the next deadline."""
        half.state = state
        half.due = due
        return self._schedule(half)

    def copied(self, half: Half, offset: int, physical: int, now: float) -> bool:
        """A copy for the next check is stored; the answer will name it. The next check comes an interval later, unless
        an end is on its way by now. True when it is the next to be asked about."""
        half.offset = offset
        half.physical = physical
        half.checks += 1
        self._open.move_to_end(half.name)
        self._next_half = max(self._next_half, offset + 1)
        self.version += 1
        return half.state is HalfState.COPYING and self.reopen(half, now + self.interval)

    def ended(self, half: Half, op_offset: int) -> None:
        """Its op record is stored at ``op_offset`` of the op queue."""
        self._leaves(half)
        self._note_op(op_offset, half.offset)
        self.version += 1

    def forget(self, half: Half) -> None:
        """Its half message is gone from the store or cannot be read: there is nothing left to decide."""
        self._leaves(half)
        self.version += 1

    def _leaves(self, half: Half) -> None:
        if self._open.pop(half.name, None) is not None:
            shares.take(half.who, "transactions", -1)

    # ---- when to ask

    def next_due(self) -> float | None:
        """When the next one must be asked about, None when none is open."""
        queue = self._queue
        while queue:
            first = queue.first()
            if not self._is_void(first):
                return first[0]
            queue.pop()
        return None

    def _is_void(self, entry: tuple[float, int]) -> bool:
        due, name = entry
        half = self._open.get(name)
        return half is None or half.due != due or half.state in _BUSY

    def take_due(self, now: float, limit: int) -> list[Half]:
        """Up to ``limit`` transactions that are due; the caller begins something with each or reopens it."""
        taken: list[Half] = []
        while len(taken) < limit and (due := self.next_due()) is not None and due <= now:
            taken.append(self._open[self._queue.pop()[1]])
        return taken

    def _first(self, immunity: float | None) -> float:
        """How long after it was stored a half message is asked about."""
        return self.timeout if immunity is None else min(immunity, self.longest)

    def is_hopeless(self, half: Half) -> bool:
        """Its producer has been asked often enough."""
        return half.checks >= self.max_checks

    def _schedule(self, half: Half) -> bool:
        self._queue.push((half.due, half.name), len(self._open))
        return self._queue.first()[1] == half.name

    # ---- over restarts

    def _note_op(self, op_offset: int, half_offset: int) -> None:
        self._next_op = max(self._next_op, op_offset + 1)
        last = self._ops[-1] if self._ops else None
        if last is not None and op_offset - last[0] < _BLOCK:
            last[1] = max(last[1], half_offset)
        else:
            self._ops.append([op_offset, half_offset])

    def progress(self) -> tuple[int, int]:
        """Everything of the half queue below the first number has ended; no op record below the second is about the
        rest."""
        half = next(iter(self._open.values())).offset if self._open else self._next_half
        while self._ops and self._ops[0][1] < half:
            self._ops.popleft()
        return half, self._ops[0][0] if self._ops else self._next_op

    def first(self) -> int:
        """The lowest half message by which an open transaction may be ended: a producer that was not asked does it by
        the first, although checks have stored it again."""
        return min((half.name for half in self._open.values()), default=self._next_half)

    def to_dict(self) -> dict[str, Any]:
        half, op = self.progress()
        return {"half": half, "op": op, "opEnd": self._next_op}

    def load(self, data: Mapping[str, Any]) -> None:
        self._saved = (int(data.get("half", 0)), int(data.get("op", 0)), int(data.get("opEnd", 0)))

    def starts(self, half: tuple[int, int], op: tuple[int, int]) -> tuple[int, int]:
        """Where to begin reading the two queues, given the (lowest, end) offsets they have. A snapshot that knows more
        than the queues hold (they lost their end in a power cut) is not believed."""
        saved_half, saved_op, op_end = self._saved
        if saved_half > half[1] or op_end > op[1]:
            saved_half = saved_op = 0
        self._next_half, self._next_op = half[1], op[1]
        return max(saved_half, half[0]), max(saved_op, op[0])

    def restore(
        self, halves: Iterable[Stored], ops: Iterable[tuple[int, Iterable[int]]], *, now: float, wall_ms: int
    ) -> None:
        """Take over what the queues hold, both in their order; ``ops`` are (op offset, ended half offsets).

        A deadline that passed while the broker was down is not before ``timeout`` from now: producers have to come
        back first.
        """
        over: set[int] = set()
        for op_offset, ended in ops:
            offsets = list(ended)
            over.update(offsets)
            self._note_op(op_offset, max(offsets, default=-1))
        for found in halves:
            self._open.pop(found.name, None)
            if found.name in over or found.offset in over:
                continue
            delay = self.interval if found.checks else self._first(found.immunity)
            left = min(delay, found.stored_ms / 1000 + delay - wall_ms / 1000)
            due = now + max(left, self.timeout)
            self._open[found.name] = Half(found.name, found.offset, found.physical, found.checks, due)
        for half in self._open.values():
            self._schedule(half)


def is_transactional(values: Mapping[str, str], *, retried: bool) -> bool:
    """Is this message sent within a transaction? Clients before 4.6.1 leave the property on messages that come back for
    a retry; those are ordinary (``retried``)."""
    return values.get(PROPERTY_TRAN_MSG, "").lower() == "true" and not retried


def immunity(values: Mapping[str, str]) -> float | None:
    """Seconds for which a message does not want to be asked about, None when it says nothing that is a number."""
    text = values.get(PROPERTY_CHECK_IMMUNITY_TIME, "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def encode_op(half: Half) -> bytes:
    """Body of the op record that ends a transaction: its name first, then its newest half message."""
    offsets = (half.name,) if half.name == half.offset else (half.name, half.offset)
    return "".join(f"{offset}," for offset in offsets).encode()


def decode_op(body: bytes) -> list[int]:
    """The half offsets in an op record's body (4.9 writes one number, 5.x a list with a comma after each)."""
    return [int(part) for part in body.split(b",") if part.isdigit() and len(part) < 20]
