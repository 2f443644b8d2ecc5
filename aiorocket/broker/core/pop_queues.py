"""What is out of the queues that are popped: pops, and the messages of a queue with the pop that each is out in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from aiorocket.broker.core.pop_records import QueueKey

__all__ = ("Pop", "PopQueue")


class Pop:
    """Messages of one queue that went out together. ``offsets`` are all of them; which are still out says the queue."""

    __slots__ = (
        "attempt", "changing", "due", "in_order", "invisible_ms", "key", "left", "logged", "missing", "next", "offsets",
        "olds", "place", "pop_time", "taken",
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
    ) -> None:
        self.key = key
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
