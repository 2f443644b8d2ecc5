"""Messages that are with consumers that popped them: invisible to others until they are acknowledged or their time is
over.

Per queue and group this knows the next offset to give out and every offset that is out, with the pop it went out in.
The group's offset in the queue is the oldest that is out, so whatever reads offsets (statistics, a change to pulling)
needs to know nothing of pops; a queue with nothing out is not here at all.

What happens is written as records, one per pop, acknowledgement and reset, and this table is what the records say:
``replay`` makes it from them. An acknowledgement is answered when its record is durable, so it holds through a crash.
A pop is answered at once: its record lies in front of those of its acknowledgements, and if it is lost with a power
cut its messages only come again sooner. The records needed are those from ``begin`` on, the oldest of a pop that has
something out; that number is saved with the groups' offsets, in the same file at the same moment, for only together
are they true. A pop whose record is far behind the newest one is recorded anew (``outdated``), so a start reads little
and one message that is kept for hours keeps no log.

In a queue that is popped in order nothing goes out while something is out whose time runs. When it is over, the same
messages go out again from there, with their number of times. What was popped in no order is stored once more in a
retry topic, by whoever calls ``take_due``.

Deadlines are in the seconds of the caller's clock that never jumps; records have wall-clock milliseconds.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, takewhile
from typing import Any

from aiorocket.broker.core import shares
from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.pop_queues import ByQueue, Pop, PopQueue
from aiorocket.broker.core.pop_records import QueueKey, encode_record, members_of
from aiorocket.broker.core.shares import Holds
from aiorocket.broker.core.swept_heap import SweptHeap
from aiorocket.broker.core.turns import A_TURN

__all__ = ("MAX_INVISIBLE_MS", "MAX_IN_QUEUE", "Pop", "PopTable", "QueueKey")

#: Messages of one queue that one group may have out (popInflightMessageThreshold); more wait there.
MAX_IN_QUEUE = 10_000
#: The longest time a message may be invisible; Apache's proxy has the same limit.
MAX_INVISIBLE_MS = 12 * 3600 * 1000
#: A record further behind than this many, and than four for each pop that is out, is written anew.
FAR_BEHIND = 10_000
#: Pops that nothing is left of, passed over by a look for what is due: a millisecond.
_PASSED = 1_000
#: When something is due that has been due, and waits for who pops in order.
_WAITS = float("-inf")


class PopTable:
    """All queues that something is out of."""

    def __init__(self) -> None:
        #: Those that something is out of.
        self._queues = ByQueue[PopQueue]()
        #: What is forgotten and not let go yet: dicts of what is out, or of such dicts; the last one first.
        self._gone: list[dict[Any, Any]] = []
        self._due = SweptHeap[tuple[float, int, Pop]](_is_void)
        self._seq = 0
        #: Pops with something out, in the order of their records.
        self._recorded: OrderedDict[int, Pop] = OrderedDict()
        #: The place after the newest record that is stored.
        self.end = 0
        #: Messages that are out, and of each group.
        self.count = 0
        self.of_group: dict[str, int] = {}

    # ---- what may be popped

    def next_offset(self, key: QueueKey, committed: int) -> int:
        """Where the group goes on. A commit from elsewhere may have moved it ahead."""
        queue = self._queues.get(key)
        return committed if queue is None else max(queue.next, committed)

    def first_out(self, key: QueueKey) -> int | None:
        """The group's offset, as far as something is out; else None."""
        queue = self._queues.get(key)
        return None if queue is None else next(iter(queue.out))

    def skip(self, key: QueueKey, next_offset: int) -> None:
        """Nothing up to ``next_offset`` is for the group."""
        queue = self._queues.get(key)
        if queue is not None:
            queue.next = max(queue.next, next_offset)

    def out(self, key: QueueKey) -> int:
        queue = self._queues.get(key)
        return 0 if queue is None else len(queue.out)

    def is_out_in(self, key: QueueKey, offset: int, pop_time: int) -> bool:
        """Whether it is out in that pop and may be acknowledged."""
        queue = self._queues.get(key)
        pop = None if queue is None else queue.out.get(offset)
        return pop is not None and pop.pop_time == pop_time and not pop.taken

    def is_out(self, key: QueueKey, offset: int) -> bool:
        queue = self._queues.get(key)
        return queue is not None and offset in queue.out

    def is_full(self, key: QueueKey) -> bool:
        return self.out(key) >= MAX_IN_QUEUE

    def is_blocked(self, key: QueueKey, attempt: str, now: float) -> bool:
        """In order: something is out, its time runs, and it is not this attempt that got it."""
        queue = self._queues.get(key)
        return queue is not None and any(
            pop.taken or (pop.due > now and not (attempt and pop.attempt == attempt)) for pop in queue.out.values()
        )

    def again(self, key: QueueKey) -> tuple[int, int] | None:
        """In order: the first offset that goes out again, and how many behind one another; None when nothing is out."""
        queue = self._queues.get(key)
        if queue is None or not queue.out:
            return None
        first = next(iter(queue.out))
        last = first
        while last + 1 in queue.out:
            last += 1
        return first, last - first + 1

    def below(self, key: QueueKey, offset: int, most: int) -> dict[Pop, list[int]]:
        """What is out below ``offset``, the first ``most``, by the pops it is out in."""
        queue = self._queues.get(key)
        found: dict[Pop, list[int]] = {}
        entries = islice(queue.out.items() if queue is not None else (), most)
        for at, pop in takewhile(lambda entry: entry[0] < offset, entries):
            found.setdefault(pop, []).append(at)
        return found

    def times(self, key: QueueKey, offset: int) -> int:
        """In order: how often a message that is out went out before."""
        queue = self._queues.get(key)
        return 0 if queue is None else queue.times.get(offset, 0)

    def full(self, most: int, group: str, who: Holds) -> Refusal | None:
        """Why no more may go out to the group on this connection, where ``most`` may be out."""
        if self.count < shares.begins(most):
            return None
        what = f"group {group} gets nothing more for now"
        return shares.refusal("popped", most, self.count, what, who, of_group=self.of_group.get(group, 0))

    # ---- what happens

    def end_order(self, key: QueueKey, now: float) -> bool:
        """The queue is popped in no order: what is out in order comes again as of any pop. Whether there was some."""
        queue = self._queues.get(key)
        if queue is None or not next(iter(queue.out.values())).in_order:
            return False
        for pop in dict.fromkeys(queue.out.values()):
            if pop.taken:
                continue  # it is found the next time
            pop.in_order = False
            if pop.due == _WAITS:
                self._schedule(pop, now)
        return True

    def take(
        self,
        key: QueueKey,
        offsets: Sequence[int],
        next_offset: int,
        *,
        pop_time: int,
        invisible_ms: int,
        now: float,
        in_order: bool = False,
        attempt: str = "",
        who: Holds | None = None,
    ) -> Pop:
        """These went out, and the group goes on at ``next_offset``. Their record is ``encode_pop``."""
        pop = Pop(key, offsets, pop_time, invisible_ms, now + invisible_ms / 1000, in_order, attempt, who)
        queue = self._queues.get(key)
        if in_order and queue is not None:
            for offset in offsets:
                old = queue.out.get(offset)
                if old is not None and not (attempt and old.attempt == attempt):
                    queue.times[offset] = queue.times.get(offset, 0) + 1
                if old is not None:
                    self._replaces(pop, old)
        self._put(pop, next_offset)
        for old in pop.olds[:]:
            # Nothing is left of it, and no record: on a full disk these would become more each time. Not where the
            # group went on since: records of that come before ours, and would pass over what this one had.
            if old.missing and old.logged is None and not old.left and old.changing == 1 and old.next == pop.next:
                pop.olds.remove(old)
                old.changing = 0
                for older in old.olds:
                    self._replaces(pop, older)
                self._end(old)
        return pop

    def acknowledge(self, key: QueueKey, offset: int, pop_time: int) -> int | None:
        """The message is done: the group's offset now; None when it is not out, or not any more in that pop."""
        queue = self._queues.get(key)
        pop = None if queue is None else queue.out.get(offset)
        if queue is None or pop is None or pop.pop_time != pop_time or pop.taken:
            return None
        return self._land(queue, offset, pop)

    def landed(self, pop: Pop, offset: int) -> int | None:
        """As ``acknowledge``, of a pop whose time is over: the message is stored elsewhere."""
        queue = self._queues.get(pop.key)
        if queue is None or queue.out.get(offset) is not pop:
            return None
        return self._land(queue, offset, pop)

    def change(
        self, key: QueueKey, offset: int, pop_time: int, *, wall_ms: int, invisible_ms: int, now: float
    ) -> Pop | None:
        """The message stays out for ``invisible_ms`` from now, in a pop of its own; None as from ``acknowledge``."""
        queue = self._queues.get(key)
        old = None if queue is None else queue.out.get(offset)
        if queue is None or old is None or old.pop_time != pop_time or old.taken:
            return None
        # Later than the old one, so that the old handle means nothing any more.
        later, due = max(wall_ms, pop_time + 1), now + invisible_ms / 1000
        pop = Pop(key, (offset,), later, invisible_ms, due, old.in_order, "", old.who)
        self._replaces(pop, old)
        self._put(pop, queue.next)
        return pop

    def undo(self, pop: Pop) -> None:
        """A change could not be recorded, and whoever asked is told so: the message is out in the pop that it was in,
        whose handle is the one they have; unless something happened to it since."""
        queue, old = self._queues.get(pop.key), next(iter(pop.olds), None)
        offset = pop.offsets[0]
        if queue is None or old is None or queue.out.get(offset) is not pop or pop.taken or old.taken:
            return
        queue.out[offset] = old
        self._count(old, 1)
        old.left += 1
        self._leave(pop)
        if old.left == 1:  # nothing was left of it, and it may be passed over by now
            self._schedule(old, old.due)

    def reset(self, key: QueueKey) -> None:
        """The group begins somewhere else; what is out does not count any more."""
        queue = self._queues.pop(key)
        if queue is not None:
            for pop in list(queue.out.values()):
                self._leave(pop)

    def forget(self, *, topics: Iterable[str] = (), group: str | None = None) -> list[str]:
        """Topics, or a group with its offsets, are deleted: the topics that anything of them was out of. It is not any
        more; that it counts, and that its records are needed, ends with ``let_go``."""
        found = self._queues.pop_all(topics, group)
        gone = list(found)
        if found:
            self._gone.append(found)
        return gone

    def let_go(self) -> bool:
        """Some of what was forgotten goes, a millisecond; whether there is more: 500,000 messages take 0.3 s."""
        gone = self._gone
        for _ in range(A_TURN):
            if not gone:
                return self._due.sweep(A_TURN, self.count)
            if not gone[-1]:
                gone.pop()
                continue
            _, one = gone[-1].popitem()
            if isinstance(one, Pop):
                self._leave(one)
            else:
                gone.append(one.out if isinstance(one, PopQueue) else one)
        return True

    # ---- deadlines

    def next_due(self) -> float | None:
        """When to look for what is due; that may be earlier than anything is where many were acknowledged in time."""
        for _ in range(_PASSED):
            if not self._due or not _is_void(self._due.first()):
                break
            self._due.pop()
        return self._due.first()[0] if self._due else None

    def take_due(self, now: float, most: int) -> list[tuple[Pop, list[int]]]:
        """Up to ``most`` pops whose time is over, with the offsets that are still out. They are ``taken``: ``landed``
        ends that for an offset, ``give_back`` for the rest."""
        found: list[tuple[Pop, list[int]]] = []
        while len(found) < most and (due := self.next_due()) is not None and due <= now:
            if _is_void(self._due.first()):
                break  # the next look passes over more of them
            pop = self._due.pop()[2]
            queue = self._queues.get(pop.key)
            pop.taken = True
            found.append((pop, [at for at in pop.offsets if queue is not None and queue.out.get(at) is pop]))
        return found

    def give_back(self, pop: Pop, due: float | None) -> None:
        """What of ``take_due`` is still out is not to be stored elsewhere; with ``due`` it is given out then again."""
        pop.taken, pop.due = False, _WAITS
        if pop.left and due is not None:
            self._schedule(pop, due)

    # ---- records

    def begin(self) -> int:
        """The first record that is needed to make this table again."""
        return next(iter(self._recorded), self.end)

    def recorded(self, pop: Pop | None, at: int) -> None:
        """A record is stored at ``at``, that of ``pop`` or one that is no pop's. Called in the order of the records."""
        self.end = at + 1
        if pop is not None:
            if pop.logged is not None:
                self._recorded.pop(pop.logged, None)
            pop.logged = at
            if pop.left or pop.changing:
                self._recorded[at] = pop
            olds, pop.olds = pop.olds, []
            for old in olds:
                old.changing -= 1
                self._end(old)

    def outdated(self) -> Pop | None:
        """The pop with the oldest record, when that is so far behind that it should be written anew. Not one that is
        ``taken``: it may be on record already that its messages are stored elsewhere."""
        for at, pop in self._recorded.items():
            far = self.end - at > max(FAR_BEHIND, 4 * len(self._recorded))
            return pop if far and pop.left and not pop.taken else None
        return None

    def encode_pop(self, pop: Pop, *, late: bool = False) -> bytes:
        """The record of what of ``pop`` is still out. A ``late`` one is stored in front of others that were due behind
        it, so it passes over nothing that was popped later, and has what those take from it."""
        queue = self._queues.get(pop.key)
        out, next_offset = list[int](), -1
        if queue is not None:
            ours = {one for one in set(map(queue.out.get, pop.offsets)) if one is pop or (late and pop in _before(one))}
            out = [offset for offset in pop.offsets if queue.out.get(offset) in ours]
            next_offset = pop.next if late else queue.next
        members: dict[str, Any] = {**members_of(pop.key), "ol": out, "nx": next_offset}
        members.update(pt=pop.pop_time, it=pop.invisible_ms)
        if pop.in_order:
            members["od"] = 1
            if queue is not None and (times := [queue.times.get(offset, 0) for offset in out]) and any(times):
                members["rt"] = times
        if pop.attempt:
            members["at"] = pop.attempt
        return encode_record(members)

    def replay(self, record: bytes, at: int, *, now: float, wall_ms: int) -> tuple[QueueKey, int] | None:
        """What a record at ``at`` says; the group's offset in that queue afterwards, None when it says nothing of it.
        ValueError, TypeError or LookupError when it is no such record."""
        members = json.loads(record)
        if "fg" in members:
            self.forget(topics=(members.get("t"),), group=members.get("c"))
            while self._gone:
                self.let_go()
            self.recorded(None, at)
            return None
        key = QueueKey(str(members["t"]), str(members["c"]), int(members["q"]))
        if "rs" in members:
            self.reset(key)
            self.recorded(None, at)
            return key, int(members["rs"])
        pop_time = int(members["pt"])
        if "al" in members:
            committed = None
            queue = self._queues.get(key)
            for offset in members["al"]:
                pop = None if queue is None else queue.out.get(offset)
                if queue is not None and pop is not None and pop.pop_time == pop_time:
                    committed = self._land(queue, offset, pop)
            self.recorded(None, at)
            return None if committed is None else (key, committed)
        invisible = int(members["it"])
        # What is left of its time, however the wall clock was set meanwhile.
        left = min(max(pop_time + invisible - wall_ms, 0), invisible) / 1000
        offsets = [int(offset) for offset in members["ol"]]
        pop = Pop(key, offsets, pop_time, invisible, now + left, bool(members.get("od")), str(members.get("at", "")))
        if offsets:
            queue = self._put(pop, int(members["nx"]))
            times = members.get("rt") or [0] * len(offsets)
            queue.times.update((offset, int(count)) for offset, count in zip(offsets, times, strict=True) if count)
        self.recorded(pop, at)
        queue = self._queues.get(key)
        return None if queue is None else (key, next(iter(queue.out), queue.next))

    def stepped_over(self, record: bytes, committed: Callable[[QueueKey], int | None]) -> tuple[QueueKey, int] | None:
        """Of the record of a pop that is to be replayed next: its queue, and the first offset between where the group
        goes on and where the pop says that it does which is not in it. A filter may not have taken that; or a record
        that is lost did. ``committed`` knows a group's offset. Raises as ``replay``."""
        members = json.loads(record)
        if "nx" not in members:
            return None
        offsets = {int(offset) for offset in members["ol"]}
        key = QueueKey(str(members["t"]), str(members["c"]), int(members["q"]))
        begin = committed(key)
        first = self.next_offset(key, min(offsets, default=0) if begin is None else begin)
        missing = next((offset for offset in range(first, int(members["nx"])) if offset not in offsets), None)
        return None if missing is None else (key, missing)

    def go_back(self, key: QueueKey, offset: int) -> int:
        """What is from ``offset`` on comes again, whether it is out or not; the group's offset afterwards."""
        queue = self._queues.get(key)
        for at, pop in [] if queue is None else list(queue.out.items()):
            if at >= offset and queue is not None:
                self._land(queue, at, pop)
        if queue is None or self._queues.get(key) is None:
            return offset
        queue.next = offset
        return next(iter(queue.out))

    # ---- inside

    def _put(self, pop: Pop, next_offset: int) -> PopQueue:
        queue = self._queues.get(pop.key)
        if queue is None:
            queue = PopQueue(next_offset)
            self._queues.put(pop.key, queue)
        newest = next(reversed(queue.out), -1)
        behind = False
        for offset in pop.offsets:
            old = queue.out.get(offset)
            behind = behind or (old is None and offset < newest)
            queue.out[offset] = pop
            if old is not None:
                self._leave(old)
        self._count(pop, len(pop.offsets))
        if behind:  # from a record that was written anew
            queue.out = OrderedDict(sorted(queue.out.items()))
        queue.next = pop.next = max(queue.next, next_offset)
        self._schedule(pop, pop.due)
        return queue

    def _schedule(self, pop: Pop, due: float) -> None:
        pop.due = due
        self._seq += 1
        pop.place = self._seq
        self._due.push((due, self._seq, pop), self.count)

    def _land(self, queue: PopQueue, offset: int, pop: Pop) -> int:
        del queue.out[offset]
        queue.times.pop(offset, None)
        self._leave(pop)
        if queue.out:
            return next(iter(queue.out))
        self._queues.pop(pop.key)
        return queue.next

    def _count(self, pop: Pop, more: int) -> None:
        """So many messages of a pop are out, or not any more."""
        self.count += more
        shares.take(pop.who, "popped", more)
        group = pop.key.group
        left = self.of_group[group] = self.of_group.get(group, 0) + more
        if not left:
            del self.of_group[group]

    def _leave(self, pop: Pop) -> None:
        self._count(pop, -1)
        pop.left -= 1
        if not pop.left:
            self._end(pop)

    def _replaces(self, pop: Pop, old: Pop) -> None:
        """``pop`` takes messages from ``old``."""
        if old not in pop.olds:
            pop.olds.append(old)
            old.changing += 1

    def _end(self, pop: Pop) -> None:
        """Its record is needed no more, unless something is left of it, or on its way from it to another record."""
        ended = [pop]
        for one in ended:
            if not one.left and not one.changing:
                if one.logged is not None:
                    self._recorded.pop(one.logged, None)
                if one.olds:
                    for old in one.olds:
                        old.changing -= 1
                    ended += one.olds
                    one.olds = []


def _is_void(entry: tuple[float, int, Pop]) -> bool:
    """Whether nothing is left of what was to be due, perhaps long before its time; or it has another place."""
    _, place, pop = entry
    return not pop.left or pop.place != place


def _before(pop: Pop | None) -> dict[Pop, None]:
    """``pop``, and where what is out in it was before, as far as what took it from there is not on record."""
    before = {} if pop is None else {pop: None}
    ones = list(before)
    for one in ones:
        ones += [old for old in one.olds if old not in before]
        before.update(dict.fromkeys(one.olds))
    return before
