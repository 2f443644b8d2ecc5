"""What clients saw of a broker that was killed under load (``crash.py``), and whether it breaks a promise."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, TextIO

__all__ = ("GROUPS", "VALIDITY", "History", "check", "taken_over")

GROUPS = ("concurrent", "in-order", "popping")
#: Seconds for which an orderly member relies on the lock of a queue.
VALIDITY = 2.0


class History:
    """Lines of what happened in a round. One that was ended in the middle begins anew, with another topic: nobody knows
    what it had on its way."""

    def __init__(self, path: Path) -> None:
        self.rows: list[list[Any]] = []
        self._file: TextIO = path.open("w")
        self._acknowledged: set[str] = set()
        self._delivered: dict[str, set[str]] = {group: set() for group in GROUPS}
        #: Acknowledged and due at once, and not delivered so far, by group.
        self.waiting: dict[str, set[str]] = {group: set() for group in GROUPS}

    def add(self, *row: Any) -> None:
        self.rows.append(list(row))
        self._file.write(json.dumps(row) + "\n")
        if row[0] == "ok":
            self._acknowledged.add(row[1])
            for group, waiting in self.waiting.items():
                if row[2] is not None and row[1] not in self._delivered[group]:
                    waiting.add(row[1])
        elif row[0] == "got":
            self._delivered[row[2]].add(row[1])
            self.waiting[row[2]].discard(row[1])

    def missing(self) -> int:
        """How often a message that was acknowledged has not reached a group."""
        return sum(len(self._acknowledged - delivered) for delivered in self._delivered.values())

    async def arrived(self, patience: float) -> None:
        """Return when nothing is missing any more, or nothing has come for ``patience`` seconds."""
        left, until = self.missing(), time.monotonic() + patience
        while left and time.monotonic() < until:
            await asyncio.sleep(0.5)
            if (now := self.missing()) < left:
                left, until = now, time.monotonic() + patience

    def close(self) -> None:
        self._file.close()


def check(rows: list[list[Any]]) -> list[str]:
    """What a history breaks:

    * what was acknowledged, or whose local transaction was committed, reaches every group;
    * what surely was not stored, or was rolled back, reaches nobody, and so does what was never sent;
    * a queue offset is one message, whoever gets it and how often;
    * what an idempotent producer sent is stored once;
    * the orderly group gets the messages of a queue for the first time in the order of their offsets, of each queue one
      at a time, whichever process has it (a call in which its process stood still for longer than the lock is the one
      that may outlast it), and its position never goes back while a broker lives;
    * what was acknowledged in the time of its first pop is not popped again, unless a clock was set, which ends that
      time for a broker that starts (but delays, timers and transactions may be stored twice, and so may the copy of a
      message whose pop was over, when the broker dies before the record of it);
    * a timer message does not come early, unless a clock was set.

    Rows are [what, body, ...]: ok and got with the place, due, once, acked, clock; unknown and fail. An orderly call is
    told when it has ended (as cut, when it was cancelled), with when its lease was looked at, and when it began and
    ended. A position is told with a number of the broker's life."""
    broken: list[str] = []
    acked = {body for what, body, *_ in rows if what == "ok"}
    never = {body for what, body, *_ in rows if what == "fail"}
    sent = {body for what, body, *_ in rows if what in ("ok", "fail", "unknown")}
    once = {body for what, body, *_ in rows if what == "once"}
    single = {body for what, body, *rest in rows if what == "ok" and rest[0] is not None}
    due = {body: rest[0] for what, body, *rest in rows if what == "due"}
    if any(what == "clock" for what, *_ in rows):
        due.clear()
        single.clear()
    places: dict[tuple[int, int], str] = {}
    stored: dict[str, tuple[int, int]] = {}
    delivered: dict[str, set[str]] = {group: set() for group in GROUPS}
    calls: dict[int, list[_Call]] = {}
    popped: Counter[str] = Counter()
    done: set[str] = set()
    for what, body, *rest in rows:
        if what == "ok" and rest[0] is not None:
            queue, offset = rest[:2]
        elif what in ("got", "cut"):
            group, queue, offset, at, *call = rest
            if call[1:]:
                calls.setdefault(queue, []).append(_Call(*call[1:], call[0], offset))
            if what == "cut":
                continue
            delivered[group].add(body)
            if body not in sent:
                broken.append(f"{body} was delivered and never sent")
            if at < due.get(body, 0):
                broken.append(f"{body} came {due[body] - at} ms before its time")
            if group == "popping":
                popped[body] += 1
                if body in done:
                    broken.append(f"{body} was popped again after it had been acknowledged")
                continue  # its retries have places of their own
        else:
            if what == "acked" and body in single and popped[body] == 1:
                done.add(body)
            continue
        if places.setdefault((queue, offset), body) != body:
            broken.append(f"queue {queue} offset {offset} is {places[queue, offset]} and {body}")
        first = stored.setdefault(body, (queue, offset))
        if body in once and first != (queue, offset):
            broken.append(f"{body} is stored at {first} and at {(queue, offset)}")
    for group, bodies in delivered.items():
        broken += _named(acked - bodies, f"was acknowledged and never reached {group}")
        broken += _named(never & bodies, f"was refused and reached {group}")
    for queue, of_queue in calls.items():
        broken += _out_of_turn(queue, of_queue)
    return broken + _gone_back([row for row in rows if row[0] == "position"])


class _Call(NamedTuple):
    """Of an orderly listener; the times are of one clock for all processes."""

    looked: float
    began: float
    ended: float
    owner: str
    offset: int

    @property
    def stood_still(self) -> bool:
        return self.ended - self.looked >= VALIDITY


def _out_of_turn(queue: int, calls: list[_Call]) -> list[str]:
    broken: list[str] = []
    last: int | None = None
    before: _Call | None = None
    for call in sorted(calls, key=lambda call: call.began):
        if last is not None and call.offset > last + 1:
            broken.append(f"queue {queue}: offset {call.offset} came first after {last}")
        last = call.offset if last is None else max(last, call.offset)
        if call.stood_still:
            continue
        if before is not None and call.began < before.ended:
            text = f"{before.owner} had offset {before.offset} still when {call.owner} got {call.offset}"
            broken.append(f"queue {queue}: {text}")
        if before is None or call.ended > before.ended:
            before = call
    return broken


def _gone_back(positions: list[list[Any]]) -> list[str]:
    broken: list[str] = []
    furthest: dict[tuple[int, int], int] = {}
    for _, _, life, queue, offset in positions:
        before = furthest.get((life, queue), -1)
        if offset < before:
            broken.append(f"queue {queue}: the position of the orderly group went from {before} back to {offset}")
        furthest[life, queue] = offset
    return broken


def taken_over(rows: list[list[Any]]) -> int:
    """How many queues of the orderly group another process went on with while the member that had them stood still."""
    calls = sorted((row[7], row[3], row[6]) for row in rows if row[0] in ("got", "cut") and row[2] == "in-order")
    taken = 0
    for began, ended in [row[2:] for row in rows if row[0] == "stopped"]:
        before = {queue: owner for at, queue, owner in calls if at < began}
        others = {queue for at, queue, owner in calls if began < at < ended and owner != "member"}
        taken += sum(before.get(queue) == "member" for queue in others)
    return taken


def _named(bodies: set[str], what: str) -> list[str]:
    more = [f"and so it is with {len(bodies) - 20} more"] if len(bodies) > 20 else []
    return [f"{body} {what}" for body in sorted(bodies)[:20]] + more
