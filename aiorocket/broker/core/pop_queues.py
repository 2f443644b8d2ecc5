"""What is out of the queues that are popped: pops, and the messages of a queue with the pop that each is out in. How
such queues are found."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from aiorocket.broker.core.pop_records import QueueKey
from aiorocket.broker.core.shares import Holds

__all__ = ("ByQueue", "Pop", "PopQueue")


class Pop:
    """Messages of one queue that went out together. ``offsets`` are all of them; which are still out says the queue."""

    __slots__ = (
        "attempt", "changing", "due", "in_order", "invisible_ms", "key", "left", "logged", "missing", "next", "offsets",
        "olds", "place", "pop_time", "taken", "who",
    )  # fmt: skip

    def __init__(
        self,
        key: QueueKey,
        offsets: Sequence[int],
        pop_time: int,
        invisible_ms: int,
        due: float,
        in_order: bool,
        attempt: str,
        who: Holds | None = None,
    ) -> None:
        self.key = key
        #: The connection it went out on.
        self.who = who
        self.offsets = offsets
        #: Wall clock, ms; what acknowledges a message says in which pop it came by it.
        self.pop_time = pop_time
        self.invisible_ms = invisible_ms
        self.due = due
        #: Which of what is to be due stands for it.
        self.place = 0
        self.in_order = in_order
        #: The name a client gave to what it asked: asked again, it gets the same.
        self.attempt = attempt
        self.left = len(offsets)
        #: Where the group went on behind it.
        self.next = 0
        #: Where its newest record is, None until it is stored.
        self.logged: int | None = None
        #: The store did not take its newest record.
        self.missing = False
        #: Its time is over and it is being dealt with: too late to acknowledge.
        self.taken = False
        #: The pops that it took messages from, until it is on record itself.
        self.olds: list[Pop] = []
        #: How many have it among these: until they are on record its own record is needed.
        self.changing = 0


class PopQueue:
    """One queue as one group pops it."""

    __slots__ = ("next", "out", "times")

    def __init__(self, start: int) -> None:
        self.next = start
        #: Ascending: entries change their pop, never their place.
        self.out: OrderedDict[int, Pop] = OrderedDict()
        #: In order only: how often a message went out before.
        self.times: dict[int, int] = {}


_V = TypeVar("_V")
_NONE: Mapping[Any, Any] = {}


class ByQueue(Generic[_V]):
    """Something of each of many queues, by topic, group and number: who is deleted is not looked for among all."""

    __slots__ = ("_topics",)

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, dict[int, _V]]] = {}

    def get(self, key: QueueKey) -> _V | None:
        queues: Mapping[int, _V] = self._topics.get(key.topic, _NONE).get(key.group, _NONE)
        return queues.get(key.queue_id)

    def put(self, key: QueueKey, value: _V) -> None:
        self._topics.setdefault(key.topic, {}).setdefault(key.group, {})[key.queue_id] = value

    def pop(self, key: QueueKey) -> _V | None:
        queues = self._topics.get(key.topic, _NONE).get(key.group)
        value = None if queues is None else queues.pop(key.queue_id, None)
        if queues is not None and not queues:
            self._pop_group(key.topic, key.group)
        return value

    def pop_all(self, topics: Iterable[str], group: str | None) -> dict[str, Any]:
        """Those of topics, or of a group: dicts of them by number, by group, by topic."""
        found: dict[str, Any] = {topic: self._topics.pop(topic) for topic in topics if topic in self._topics}
        if group is not None:
            for topic in [topic for topic, groups in self._topics.items() if group in groups]:
                found[topic] = {group: self._pop_group(topic, group)}
        return found

    def _pop_group(self, topic: str, group: str) -> dict[int, _V]:
        groups = self._topics[topic]
        queues = groups.pop(group)
        if not groups:
            del self._topics[topic]
        return queues

    def items(self) -> Iterator[tuple[QueueKey, _V]]:
        for topic, groups in self._topics.items():
            for group, queues in groups.items():
                for number, value in queues.items():
                    yield QueueKey(topic, group, number), value
