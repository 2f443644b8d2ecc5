"""How far each group has come in each queue. A commit is one dict store; what changed since the last snapshot is one
number.

A reset that an administrator asked for waits here until the group pulls the queue from there: until then it is
what the group reads as its offset, and commits of what was consumed before change nothing. To have told somebody is not
enough, for the answer may be lost and its receiver commit its old position; nor is a pull from there, for that may be
where somebody was who has heard of nothing. Both together are.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Set
from itertools import chain
from typing import Any

from aiorocket.broker.core import shares
from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.shares import Holds
from aiorocket.broker.core.turns import A_TURN, whole
from aiorocket.config import Limits
from aiorocket_protocol import REVIVE_GROUP

__all__ = ("ConsumerOffsets",)

_NONE: Mapping[str, dict[int, int]] = {}


class ConsumerOffsets:
    """Group → topic → {queue id: next offset to read}: what is asked of one group looks at nobody else's."""

    def __init__(self, most: int = Limits().offsets) -> None:
        self._most, self._few = most, shares.begins(most)
        self._count = 0
        self._offsets: dict[str, dict[str, dict[int, int]]] = {}
        #: How many each group has.
        self._of_group: dict[str, int] = {}
        #: Resets no pull has begun at yet; empty nearly always, which is all that pulls and commits look at.
        self.resets: dict[tuple[str, str], dict[int, int]] = {}
        #: (group, topic) → until when no more is said of lower commits.
        self.quiet: dict[tuple[str, str], float] = {}
        #: Who has been told of them, by group, topic and queue; a quarter as many as offsets in all.
        self._told: dict[tuple[str, str, int], set[Hashable]] = {}
        #: The same by who it is: an end looks at nobody else's.
        self._told_to: dict[Hashable, set[tuple[str, str, int]]] = {}
        self._tellings = 0
        #: The pair that says from where on others are to be made again: a snapshot has of it no later offset than of
        #: these.
        self.read_first: tuple[str, str] | None = None
        #: Grows with every change; a snapshot is needed when it differs from the one last written.
        self.version = 0

    def commit(self, group: str, topic: str, queue_id: int, offset: int, who: Holds | None = None) -> bool:
        """Store a commit, unless that is refused; True when it is lower than the stored one (accepted all the same:
        resets and repairs do that).

        Negative commits (ali-ons sends -1 for queues it never consumed) are ignored.
        """
        if offset < 0 or (self.resets and queue_id in self.resets.get((group, topic), ())):
            return False
        queues = self._offsets.get(group, _NONE).get(topic)
        before = -1 if queues is None else queues.get(queue_id, -1)
        if before < 0:
            if self.refusal(group, topic, queue_id, who) is not None:
                return False
            self._count += 1
            self._of_group[group] = self._of_group.get(group, 0) + 1
            shares.take(who, "offsets")
            if queues is None:
                queues = self._offsets.setdefault(group, {})[topic] = {}
        assert queues is not None
        queues[queue_id] = offset
        if offset != before:
            self.version += 1
        return offset < before

    def refusal(self, group: str, topic: str, queue_id: int, who: Holds | None = None) -> Refusal | None:
        """Why a commit would be one too many to be kept."""
        if self._count < self._few or self.query(group, topic, queue_id) is not None:
            return None
        what = f"the offset of group {group}, topic {topic}, queue {queue_id} is not kept"
        return shares.refusal("offsets", self._most, self._count, what, who, of_group=self._of_group.get(group, 0))

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        queues = self._offsets.get(group, _NONE).get(topic)
        return None if queues is None else queues.get(queue_id)

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """The group shall go on at ``offset``, wherever it is: stored now, and for its next pulls to learn."""
        self.take_reset(group, topic, queue_id)
        self.commit(group, topic, queue_id, offset)
        self.resets.setdefault((group, topic), {})[queue_id] = offset
        self.version += 1

    def waiting_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Where the group shall go on and has not begun yet; None when no reset waits."""
        return self.resets.get((group, topic), {}).get(queue_id)

    def tell_reset(self, group: str, topic: str, queue_id: int, who: Hashable, asked: int | None = None) -> int | None:
        """``who`` (a connection) pulls from ``asked``, or reads the group's offset: where it is to go on instead. None
        when no reset waits, or when this pull is what it waited for, which ends it."""
        offset = self.waiting_reset(group, topic, queue_id)
        if offset is None:
            return None
        key = group, topic, queue_id
        if who not in self._told.get(key, ()):
            if self._tellings >= max(1, self._most // 4):
                self._untold(next(iter(self._told)))  # who has not gone there yet is told once more
            self._told.setdefault(key, set()).add(who)
            self._told_to.setdefault(who, set()).add(key)
            self._tellings += 1
        elif asked == offset:
            self.take_reset(group, topic, queue_id)
            return None
        return offset

    def lost(self, who: Hashable) -> None:
        """A connection closed: it asks no more."""
        for key in self._told_to.pop(who, ()):
            told = self._told[key]
            told.discard(who)
            self._tellings -= 1
            if not told:
                del self._told[key]

    def _untold(self, key: tuple[str, str, int]) -> None:
        """Its reset waits no more."""
        for who in self._told.pop(key, ()):
            mine = self._told_to[who]
            mine.discard(key)
            self._tellings -= 1
            if not mine:
                del self._told_to[who]

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The group is there, or somewhere else for a new reason: the reset that waited, which does no more."""
        waiting = self.resets.get((group, topic))
        if waiting is None:
            return None
        offset = waiting.pop(queue_id, None)
        if not waiting:
            del self.resets[group, topic]
        if offset is not None:
            self._untold((group, topic, queue_id))
            self.version += 1
        return offset

    def come_back(self, end: Callable[[str, int], int]) -> int:
        """Reset groups that are further than ``end(topic, queue id)``, as what the queue held past it is lost: else
        they pass over what comes there next. How many offsets were."""
        further = [
            (group, topic, queue_id, last)
            for group, topic, queue_id, offset in self
            if offset > (last := end(topic, queue_id))
        ]
        for group, topic, queue_id, last in further:
            # The broker's own group looks where it is to go on; it does not pull from there, which ends a reset.
            (self.commit if group == REVIVE_GROUP else self.reset)(group, topic, queue_id, last)
        return len(further)

    def width(self, group: str, topic: str) -> int:
        """In how many queues it has an offset."""
        return len(self._offsets.get(group, _NONE).get(topic, ()))

    def queues(self, group: str, topic: str) -> dict[int, int]:
        return dict(self._offsets.get(group, _NONE).get(topic, ()))

    def topics(self, group: str) -> list[str]:
        return list(self._offsets.get(group, ()))

    def groups(self, topic: str) -> list[str]:
        return [group for group, topics in self._offsets.items() if topic in topics]

    def pairs(self) -> Iterator[tuple[str, str]]:
        """(group, topic) of all that has an offset, group by group; others may have their turn in between, and what
        comes or goes then may be among them."""
        for group in list(self._offsets):
            for topic in self.topics(group):
                yield group, topic

    def delete_topics(self, topics: Set[str]) -> None:
        few = len(topics) < 5  # to make a set for each of 20,000 groups takes 15 ms
        self._delete(
            [
                (group, topic)
                for group, mine in self._offsets.items()
                for topic in (topics if few else mine.keys() & topics)
                if topic in mine
            ]
        )

    def delete_group(self, group: str) -> None:
        self._delete([(group, topic) for topic in self.topics(group)])

    def _delete(self, keys: list[tuple[str, str]]) -> None:
        offsets, gone = self._offsets, 0
        for group, topic in keys:
            topics = offsets[group]
            less = len(topics.pop(topic))
            gone += less
            self._of_group[group] -= less
            if not topics:
                del offsets[group], self._of_group[group]
        for key in keys if self.resets else ():
            for queue_id in self.resets.pop(key, ()):
                self._untold((*key, queue_id))
        self._count -= gone
        if keys:
            self.version += 1

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[str, str, int, int]]:
        for group, topics in self._offsets.items():
            for topic, queues in topics.items():
                for queue_id, offset in queues.items():
                    yield group, topic, queue_id, offset

    def to_dict(self) -> dict[str, Any]:
        """``{"topic@group": {"queue id": offset}}``, the keys of RocketMQ's own offset file (names can hold no
        ``@``)."""
        return whole(self.in_turns())

    def in_turns(self) -> Generator[None, None, dict[str, Any]]:
        """``to_dict``; each queue's offset is one it had since the beginning."""
        table: dict[str, dict[str, int]] = {}
        first = () if self.read_first is None else (self.read_first,)
        seen = 0
        for group, topic in chain(first, self.pairs()):
            name = f"{topic}@{group}"
            queues = self._offsets.get(group, _NONE).get(topic)
            if queues is None or name in table:
                continue
            table[name] = {str(queue_id): offset for queue_id, offset in queues.items()}
            seen += len(queues)
            if seen >= A_TURN:
                seen = 0
                yield
        plain = {"offsetTable": table}
        if self.resets:
            plain["resetOffsetTable"] = {
                f"{topic}@{group}": {str(queue_id): offset for queue_id, offset in queues.items()}
                for (group, topic), queues in self.resets.items()
            }
        return plain

    def load(self, data: Mapping[str, Any]) -> None:
        for group, topic, queues in _loaded(data, "offsetTable"):
            self._offsets.setdefault(group, {})[topic] = queues
            self._of_group[group] = self._of_group.get(group, 0) + len(queues)
            self._count += len(queues)
        for group, topic, queues in _loaded(data, "resetOffsetTable"):
            self.resets[group, topic] = queues


def _loaded(data: Mapping[str, Any], name: str) -> Iterator[tuple[str, str, dict[int, int]]]:
    for key, queues in data.get(name, {}).items():
        topic, _, group = key.partition("@")
        yield group, topic, {int(queue_id): int(offset) for queue_id, offset in queues.items()}
