"""Timer messages: which of them wait, when the next is due, and what of them is delivered for good.

They wait in one queue, in the order in which they came, and leave it in the order of their due times. Beside each entry
of the queue stands its ``wait_code``, so that the queue's entries are all that is needed to know what waits; a pending
one costs 56 bytes here: a single number, its wait code and its place in the log, and in the order of these numbers they
leave. What remains to be remembered is up to which number everything is delivered. A clock that is set back gives
entries that lie before it and are not delivered, so it is kept per part of the queue: one more part begins at the first
such entry, and is joined with the part before it when the clock is as far again. What is kept is exact when nothing is
in flight, as after a clean stop; after a crash it lies a few seconds back.

A message that waits long is stored again in the same queue on its way (``ROLL``), so that everything that waits lies in
the newest part of the log and a start need not read more than that.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from sortedcontainers import SortedList

from aiorocket.broker.core import shares
from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.shares import Holds
from aiorocket_protocol import (
    PROPERTY_TIMER_DEL_UNIQKEY,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TIMER_OUT_MS,
    PROPERTY_UNIQ_KEY,
    ResponseCode,
)

__all__ = (
    "LOOKS",
    "TIMER_PROPERTIES",
    "TimerSchedule",
    "deletes",
    "due_of",
    "is_rolled",
    "may_be_wait_code",
    "wait_code",
)

#: What asks for a timer, in RocketMQ's order of precedence.
TIMER_PROPERTIES = (PROPERTY_TIMER_DELAY_SEC, PROPERTY_TIMER_DELAY_MS, PROPERTY_TIMER_DELIVER_MS)
#: Milliseconds that a message waits in one place (RocketMQ's timerRollWindowSlot: two days).
ROLL = 2 * 86_400_000
#: A message is stored again at least half of ROLL before it is due. What was kept from it for longer (the broker was
#: down) may be due by now, and then has to be back in the queue before anything that is due later is delivered.
LATE = ROLL // 4
#: Milliseconds between two looks at the clock for one message: a moment.
LOOKS = 60_000

# The low bits of a wait code, in the order in which entries of one millisecond must be met.
_ROLLED, _RECALL, _MESSAGE = 0, 1, 2
#: Bits of a place in the log: 8 PiB.
_PLACE = 53
_PLACE_MASK = (1 << _PLACE) - 1
#: Entries of the queue that share one note of where they begin.
_BLOCK = 4096
#: Java's Long.parseLong.
_LONG = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)


def due_of(values: Mapping[str, str], now_ms: int, max_delay_ms: int) -> int | Refusal:
    """When a message with these properties is due, in wall-clock milliseconds; 0 when it is no timer message, or due
    already and so stored at once. Refused as by RocketMQ: MESSAGE_ILLEGAL."""
    if PROPERTY_TIMER_OUT_MS in values:  # it was one, and comes again
        return 0
    name = next((name for name in TIMER_PROPERTIES if name in values), None)
    if name is None:
        return 0
    text = values[name]
    if not _LONG.fullmatch(text):
        return Refusal(ResponseCode.MESSAGE_ILLEGAL, f"timer message illegal, {name}={text!r:.50} is no number")
    due = int(text)
    if name != PROPERTY_TIMER_DELIVER_MS:
        due = now_ms + due * (1000 if name == PROPERTY_TIMER_DELAY_SEC else 1)
    if due > now_ms + max_delay_ms or (due <= now_ms and PROPERTY_TIMER_DEL_UNIQKEY in values):
        return Refusal(
            ResponseCode.MESSAGE_ILLEGAL,
            f"timer message illegal, the delay time should not be bigger than the max delay {max_delay_ms}ms; or if "
            f"set del msg, the delay time should be bigger than the current time ({name}={text}, now {now_ms})",
        )
    return due if due > now_ms else 0


def wait_code(values: Mapping[str, str], stored_ms: int) -> int:
    """What stands beside a message of the timer topic in its queue: when to look at it, and as what. ``stored_ms`` is
    not before the newest stamp of the store. ValueError or KeyError when it has no due time."""
    due = int(values[PROPERTY_TIMER_OUT_MS])
    left = due - stored_ms
    if left > ROLL:
        return (stored_ms + min(ROLL, left // 2)) << 2 | _ROLLED
    return due << 2 | (_RECALL if PROPERTY_TIMER_DEL_UNIQKEY in values else _MESSAGE)


def may_be_wait_code(code: int, values: Mapping[str, str], stored_ms: int) -> bool:
    """Whether a message that is stored by this time may have that wait code. Where a long wait is parted depends on
    when that was asked for, a moment before the store looks at the clock; and its time never goes back."""
    latest = wait_code(values, stored_ms)
    return code == latest or (is_rolled(code) and wait_code(values, stored_ms - LOOKS) <= code <= latest)


def is_rolled(code: int) -> bool:
    """The entry is not due yet: it goes to the end of the queue."""
    return code & 3 == _ROLLED


def deletes(topic: str, unique: str) -> str:
    """TIMER_DEL_UNIQKEY of what recalls a message."""
    return f"{topic}+{unique}"


class TimerSchedule:
    """Entries are named by their wait code and their place in the log."""

    def __init__(self) -> None:
        self._pending: SortedList[int] = SortedList()
        self._in_flight: set[int] = set()
        self._again: list[tuple[int, int]] = []
        #: Entries on their way to the queue's end that may be due by now.
        self._late = 0
        #: The wall clock as ``take`` was last told.
        self._now = 0
        #: (first queue offset, everything up to this key is delivered) of each part of the queue.
        self._parts: list[tuple[int, int]] = [(0, -1)]
        #: (first queue offset, first place in the log, greatest key) of blocks that may hold what waits.
        self._blocks: deque[tuple[int, int, int]] = deque()
        #: Messages not to be delivered: TIMER_DEL_UNIQKEY -> the key that the last of them may have.
        self._recalled: dict[str, int] = {}
        #: What connections have of what waits, by the address their messages were born at.
        self._holders: dict[bytes, Holds] = {}
        #: Queue offset of the next entry to be told of, and of the first that ``load`` knew nothing of.
        self.next = 0
        self._known = 0
        self.version = 0

    def __len__(self) -> int:
        return len(self._pending) + len(self._in_flight)

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def first(self) -> int:
        """A queue offset; no entry below is needed any more."""
        return self._blocks[0][0] if self._blocks and len(self) else self.next

    @property
    def oldest(self) -> int | None:
        """A place in the log; nothing that waits lies below. None when nothing waits."""
        return self._blocks[0][1] if self._blocks and len(self) else None

    # ---- what waits

    def refusal(self, most: int, who: Holds) -> Refusal | None:
        """Why nothing more of this connection may wait, as RocketMQ says it, where ``most`` may."""
        refusal = shares.refusal("timers", most, len(self), "timer message is under flow control", who)
        return None if refusal is None else refusal._replace(code=ResponseCode.SYSTEM_ERROR)

    def waits(self, born_host: bytes, who: Holds) -> None:
        """A message from there is stored, to wait; the connection is open."""
        self._holders[born_host] = who
        shares.take(who, "timers")

    def waits_no_more(self, born_host: bytes) -> None:
        who = self._holders.get(born_host)
        if who is not None and who["timers"] > 0:  # 0: it is of an earlier connection from there
            shares.take(who, "timers", -1)

    def lost(self, born_host: bytes, who: Holds) -> None:
        """The connection closed: what it has there is nobody's."""
        if self._holders.get(born_host) is who:
            del self._holders[born_host]

    def start(self, first: int, end: int) -> None:
        """The queue has entries from ``first`` to ``end``; ``add`` them from ``next`` on."""
        self.next = min(max(self.next, first), end)
        self._known = min(self._known, end)
        self._parts = [part for part in self._parts if part[0] < end] or [(0, -1)]

    def add(self, entries: Sequence[tuple[int, int, int]]) -> None:
        """The queue's entries from ``next`` on: (place in the log, size, wait code)."""
        pending = self._pending
        keys: list[int] = []
        for offset, (place, _, code) in enumerate(entries, self.next):
            key = code << _PLACE | place
            if offset < self._known:
                if key <= next(upto for begin, upto in reversed(self._parts) if begin <= offset):
                    continue
            elif code >> 2 <= self._now or key <= self._parts[-1][1]:
                pending.update(keys)
                keys.clear()
                self._settle()
                if key <= self._parts[-1][1]:
                    self._parts.append((offset, key - 1))
            if not self._blocks or offset >= self._blocks[-1][0] + _BLOCK:
                self._blocks.append((offset, place, key))
            elif key > self._blocks[-1][2]:
                self._blocks[-1] = (*self._blocks[-1][:2], key)
            keys.append(key)
        pending.update(keys)
        self.next += len(entries)
        self.version += 1

    def next_due(self) -> int | None:
        """When to ``take`` next; None when nothing waits, or when it waits for what is in flight."""
        if not self._pending:
            return None
        code = self._pending[0] >> _PLACE
        return None if self._late and not is_rolled(code) else code >> 2

    def take(self, now_ms: int, room: int) -> list[tuple[int, int]]:
        """Hand out at most ``room`` of what is due, earliest first."""
        if now_ms < self._now:  # the clock was set back: what is delivered is delivered
            self._settle()
        self._now = now_ms
        taken: list[tuple[int, int]] = []
        for key in self._pending.islice(0, room):
            code = key >> _PLACE
            if code >> 2 > now_ms:
                break
            if is_rolled(code):
                self._late += code >> 2 < now_ms - LATE
            elif self._late:
                break
            taken.append(_unpacked(key))
            self._in_flight.add(key)
        del self._pending[: len(taken)]
        if self._recalled:
            delivered = self._delivered()
            self._recalled = {name: upto for name, upto in self._recalled.items() if upto > delivered}
        return taken

    def stored(self, code: int, place: int, /) -> None:
        """The message is stored where it goes from here (or can never be)."""
        self._in_flight.discard(code << _PLACE | place)
        if self._late and is_rolled(code):
            self._late = sum(is_rolled(key >> _PLACE) for key in self._in_flight)
        self.version += 1

    def failed(self, code: int, place: int, /) -> None:
        """It was not stored; it counts as in flight until ``retry`` handed it out again and it was."""
        self._again.append((code, place))

    def retry(self) -> list[tuple[int, int]]:
        again, self._again = self._again, []
        return again

    # ---- recall

    def recall(self, name: str, due_ms: int) -> None:
        """A recall was met: the message with this TIMER_DEL_UNIQKEY, which is due then, is not to be delivered."""
        self._recalled[name] = _up_to(due_ms)

    def is_recalled(self, values: Mapping[str, str], topic: str) -> bool:
        return bool(self._recalled) and deletes(topic, values.get(PROPERTY_UNIQ_KEY, "")) in self._recalled

    # ---- progress

    def _delivered(self) -> int:
        """Everything up to this key that was told of is delivered."""
        upto = _up_to(self._now)
        if self._in_flight:
            upto = min(upto, min(self._in_flight) - 1)
        return min(upto, self._pending[0] - 1) if self._pending else upto

    def _settle(self) -> None:
        """Bring the parts up to date, and forget what is behind."""
        delivered = self._delivered()
        parts: list[tuple[int, int]] = []
        for offset, upto in self._parts:
            if not parts or parts[-1][1] != max(upto, delivered):
                parts.append((offset, max(upto, delivered)))
        self._parts = parts
        while self._blocks and self._blocks[0][2] <= delivered:
            self._blocks.popleft()

    def to_dict(self) -> dict[str, Any]:
        self._settle()
        first = self.first
        return {
            "from": first,
            "upto": self.next,
            "delivered": [[offset, *_unpacked(key)] for offset, key in self._parts],
            # Met, and so delivered; what they are about may not be.
            "recalled": dict(self._recalled),
        }

    def load(self, data: Mapping[str, Any]) -> None:
        self.next, self._known = int(data["from"]), int(data["upto"])
        self._parts = [(int(offset), int(code) << _PLACE | int(place)) for offset, code, place in data["delivered"]]
        self._recalled = {str(name): int(upto) for name, upto in data.get("recalled", {}).items()}


def _unpacked(key: int) -> tuple[int, int]:
    return key >> _PLACE, key & _PLACE_MASK


def _up_to(due_ms: int) -> int:
    """The greatest key that is due then."""
    return (due_ms + 1 << 2 + _PLACE) - 1
