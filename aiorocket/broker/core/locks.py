"""Who may consume a queue in order: leases of 60 s, each under an epoch that rises with every change of owner.

RocketMQ keeps this table in memory only, so a restarted broker forgets its owners and grants their queues to others
while they still work on them. Here a change of owner is first a *claim*; the caller saves the table and says
``recorded``, and only then is the claim a lock. After a restart every recorded owner has a fresh lease, and
where the record was lost nobody is granted anything for ``grace`` seconds: by then no client trusts an older lock.

Renewals and answers write nothing. A release is saved with the next save: losing it only delays the next owner. Times
are seconds of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from aiorocket.broker.core import shares
from aiorocket.broker.core.shares import Holds
from aiorocket.broker.core.turns import A_TURN, whole
from aiorocket.config import Limits

__all__ = ("LockTable", "QueueKey", "QueueLock")

#: Entries nobody has held for this long are forgotten. Their epochs are not used again: one counter serves all queues.
FORGET_AFTER = 600.0
#: How often, at most, forgotten entries are looked for, and how often while there is no room; only new claims look.
SWEEP_EVERY, SWEEP_FULL_EVERY = 60.0, 1.0
#: Entries that are forgotten at once; the others of very many are a second later.
SWEPT = 20_000


class QueueKey(NamedTuple):
    """One queue as lock requests name it."""

    topic: str
    broker: str
    queue_id: int


class QueueLock(NamedTuple):
    """A queue that is held, and the epoch it is held under."""

    queue: QueueKey
    epoch: int


class _Held:
    """Of a group: how many of its entries have an owner, and when the newest lease of one ends."""

    __slots__ = ("owned", "until")

    def __init__(self) -> None:
        self.owned, self.until = 0, float("-inf")


class _Entry:
    """``owner`` "" is nobody; ``until`` is when the lease ends or, without an owner, when it was given back."""

    __slots__ = ("claim", "claimant", "epoch", "held", "owner", "until", "who")

    def __init__(self, held: _Held, owner: str, epoch: int, until: float, who: Holds | None = None) -> None:
        self.held = held
        #: The connection that it takes of the limit for, until it is forgotten.
        self.who = who
        self.owner = ""
        self.give(owner)
        self.epoch = epoch
        self.until = until
        #: Epoch of the change of owner that waits to be recorded, 0 for none.
        self.claim = 0
        self.claimant = ""

    def give(self, owner: str) -> None:
        self.held.owned += bool(owner) - bool(self.owner)
        self.owner = owner

    def renew(self, until: float) -> None:
        self.until = self.held.until = until


class LockTable:
    """(group, queue) → owner. A table of BrokerState: ``version`` differs from the saved one when there is news."""

    def __init__(self, lease: float, grace: float, most: int = Limits().locks) -> None:
        #: Entries that there may be.
        self.most = most
        self.version = 0
        #: The epoch given last; never given twice, also not after a restart.
        self.counter = 0
        #: How long a lock lasts after its last request.
        self.lease = lease
        self._grace = grace
        self._opens = float("-inf")
        #: Owners may be missing from this table, and clients may still trust their locks: saved with it, so that a
        #: restart within ``grace`` waits as well.
        self._incomplete = False
        self._groups: dict[str, dict[QueueKey, _Entry]] = {}
        self._held: dict[str, _Held] = {}
        self._count = 0
        #: Claims that wait to be recorded, by epoch and so in the order they were made.
        self._claims: dict[int, _Entry] = {}
        self._swept = self._next_sweep = float("-inf")
        #: Why the last ``lock`` left some out that nobody has; "" when it did not.
        self.too_many = ""

    def __len__(self) -> int:
        return self._count

    def start(self, now: float, *, lost: bool, floor: int) -> None:
        """Begin to serve at ``now``, after ``load``.

        ``lost`` says that owners may be missing from what was loaded, or be older ones: it is dropped, nothing is
        granted for ``grace`` seconds, and epochs go on above ``floor``, higher than any that was given before.
        """
        if lost or self._incomplete:
            self._groups, self._held, self._count = {}, {}, 0
            self._incomplete = True
            self._opens = now + self._grace
            self.counter = max(self.counter, floor)
        self.version += 1  # an empty record is a record: without one the next start would wait
        for entries in self._groups.values():
            for entry in entries.values():
                if entry.owner:
                    entry.renew(now + self.lease)
                else:
                    entry.until = now

    def closed_for(self, now: float) -> float:
        """Seconds until anything is granted, 0.0 when it is now."""
        return max(0.0, self._opens - now)

    def lock(self, group: str, client: str, queues: Iterable[QueueKey], now: float, who: Holds | None = None) -> bool:
        """Renew what ``client``, on the connection ``who``, holds of ``queues`` and claim what is free or expired.

        True when a claim of this client waits to be recorded: save the table, say ``recorded`` or ``failed`` with the
        ``counter`` at the moment of saving, then ask ``held``.
        """
        self.too_many = ""
        if now < self._opens:
            return False
        if self._incomplete:
            self._incomplete = False
            self.version += 1
        waits = False
        entries = self._groups.get(group)
        for queue in queues:
            entry = entries.get(queue) if entries is not None else None
            if entry is None:
                entry = self._add(group, queue, now, who)
                if entry is None:
                    continue
                entries = self._groups[group]
            if entry.claim:
                waits = waits or entry.claimant == client
            elif entry.owner == client:
                entry.renew(now + self.lease)  # also when it had run out: nobody else was the owner since
            elif not entry.owner or entry.until <= now:
                self.counter += 1
                self.version += 1
                entry.claim, entry.claimant = self.counter, client
                # Whatever becomes of this claim, the disk may have it: the old owner must be recorded anew as well.
                entry.give("")
                self._claims[self.counter] = entry
                waits = True
        return waits

    def recorded(self, counter: int, now: float) -> None:
        """The table as it was when its counter stood at ``counter`` is durable: these claims are locks from ``now``."""
        for entry in self._settled(counter):
            entry.give(entry.claimant)
            entry.epoch = entry.claim
            entry.renew(now + self.lease)
            entry.claim, entry.claimant = 0, ""

    def failed(self, counter: int) -> None:
        """It could not be saved: these claims never were. (The disk may have them all the same; that only delays.)"""
        for entry in self._settled(counter):
            entry.claim, entry.claimant = 0, ""
            self.version += 1

    def held(self, group: str, client: str, queues: Iterable[QueueKey], now: float) -> list[QueueLock]:
        """What of ``queues`` the client owns now, in their order."""
        entries = self._groups.get(group)
        if entries is None or now < self._opens:
            return []
        found = []
        for queue in queues:
            entry = entries.get(queue)
            if entry is not None and entry.owner == client and entry.until > now:
                found.append(QueueLock(queue, entry.epoch))
        return found

    def unlock(self, group: str, client: str, queues: Iterable[QueueKey], now: float) -> int:
        """Give back what the client owns or has claimed of ``queues``; says how many."""
        entries = self._groups.get(group)
        count = 0
        for queue in queues if entries is not None else ():
            entry = entries.get(queue) if entries is not None else None
            if entry is None:
                continue
            if entry.claim and entry.claimant == client:
                entry.claim, entry.claimant = 0, ""
            elif entry.owner == client and not entry.claim:
                entry.give("")
                entry.until = now
            else:
                continue
            count += 1
        if count:
            self.version += 1
        return count

    def has_locks(self, group: str, now: float) -> bool:
        """Does anybody hold a queue of this group, that is: does it consume in order? One that ended by itself counts
        while the newest lease lasts: this is asked for each message that is to be consumed again."""
        held = self._held.get(group)
        return held is not None and held.owned > 0 and held.until > now

    def is_stale(self, group: str, queue: QueueKey, epoch: int) -> bool:
        """Is this the epoch of somebody who is not the queue's last owner? Nothing is known of a queue never locked."""
        entries = self._groups.get(group)
        entry = entries.get(queue) if entries is not None else None
        return entry is not None and 0 < entry.epoch != epoch

    def owner(self, group: str, queue: QueueKey) -> str:
        """The client id of its last owner, "" when nobody was, or it was given back."""
        entries = self._groups.get(group)
        entry = entries.get(queue) if entries is not None else None
        return entry.owner if entry is not None else ""

    def holders(self, now: float) -> Iterator[tuple[str, QueueKey, str, int]]:
        """(group, queue, client id, epoch) of every lock in force."""
        for group, entries in self._groups.items():
            for queue, entry in entries.items():
                if entry.owner and entry.until > now:
                    yield group, queue, entry.owner, entry.epoch

    def _add(self, group: str, queue: QueueKey, now: float, who: Holds | None) -> _Entry | None:
        few = shares.begins(self.most)
        if now >= self._next_sweep or (self._count >= few and now >= self._swept + SWEEP_FULL_EVERY):
            self._sweep(now)
        if self.too_many:
            return None
        if self._count >= few:
            what = f"a lock of topic {queue.topic}, queue {queue.queue_id} for group {group} is not given"
            of_group = len(self._groups.get(group, ()))
            refusal = shares.refusal("locks", self.most, self._count, what, who, of_group=of_group)
            if refusal is not None:
                self.too_many = refusal.remark
                return None
        held = self._held.setdefault(group, _Held())
        entry = self._groups.setdefault(group, {})[queue] = _Entry(held, "", 0, now, who)
        shares.take(who, "locks")
        self._count += 1
        return entry

    def _sweep(self, now: float) -> None:
        self._swept, self._next_sweep = now, now + SWEEP_EVERY
        left = SWEPT
        for group, entries in list(self._groups.items()):
            old = [queue for queue, entry in entries.items() if not entry.claim and entry.until + FORGET_AFTER <= now]
            del old[left:]
            left -= len(old)
            for queue in old:
                entry = entries.pop(queue)
                entry.give("")
                shares.take(entry.who, "locks", -1)
            self._count -= len(old)
            if not entries:
                del self._groups[group], self._held[group]
            if not left:
                self._next_sweep = now + SWEEP_FULL_EVERY
                break

    def _settled(self, counter: int) -> list[_Entry]:
        """Take out the claims up to ``counter``; those withdrawn meanwhile are left out."""
        epochs = []
        for epoch in self._claims:
            if epoch > counter:
                break
            epochs.append(epoch)
        found = [(epoch, self._claims.pop(epoch)) for epoch in epochs]
        return [entry for epoch, entry in found if entry.claim == epoch]

    # ---- as a table of BrokerState

    def to_dict(self) -> dict[str, Any]:
        """Every entry as ``[group, topic, broker, queue id, owner, epoch]``, claims as if they were granted."""
        return whole(self.in_turns())

    def in_turns(self) -> Generator[None, None, dict[str, Any]]:
        """``to_dict``: it has every claim made before it began. Later ones it may have."""
        incomplete = self._incomplete
        locks: list[list[Any]] = []
        left = A_TURN
        for group, queues in list(self._groups.items()):
            entries = list(queues.items())
            for at in range(0, len(entries), A_TURN):
                if left <= 0:
                    left = A_TURN
                    yield
                some = entries[at : at + A_TURN]
                left -= len(some)
                locks += [
                    [group, *queue, entry.claimant if entry.claim else entry.owner, entry.claim or entry.epoch]
                    for queue, entry in some
                ]
        return {"counter": self.counter, "incomplete": incomplete, "locks": locks}

    def load(self, data: Mapping[str, Any]) -> None:
        """Take over a snapshot; ``start`` must follow. Raises ValueError, TypeError or KeyError when it is not one."""
        groups: dict[str, dict[QueueKey, _Entry]] = {}
        held: dict[str, _Held] = {}
        counter = int(data["counter"])
        count = 0
        for group, topic, broker, queue_id, owner, epoch in data["locks"]:
            key = QueueKey(str(topic), str(broker), int(queue_id))
            entry = _Entry(held.setdefault(str(group), _Held()), str(owner), int(epoch), 0.0)
            groups.setdefault(str(group), {})[key] = entry
            counter = max(counter, int(epoch))
            count += 1
        self._groups, self._held, self._count, self.counter = groups, held, count, max(self.counter, counter)
        self._incomplete = data["incomplete"] is not False
