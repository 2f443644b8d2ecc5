"""One topic as a producer writes to it: targets with their addresses, and the choice among them."""

from __future__ import annotations

from typing import Any, NamedTuple

from aiorocket.client.core.queue_choice import QueueChoice
from aiorocket.client.core.routes import TopicRoute
from aiorocket.errors import TopicNotFoundError, UsageError
from aiorocket.model import Queue

__all__ = ("Publish", "Target", "Template")


class Template(NamedTuple):
    """The bytes of requests to one queue around opaque and time, which together are ``width`` bytes, and id, for bodies
    of ``size``."""

    size: int
    width: int
    begin: bytes
    before_time: bytes
    before_id: bytes
    end: bytes


class Target:
    """A writable queue and the address that takes its messages; made once per route, so a send builds nothing."""

    __slots__ = ("address", "broker_name", "queue", "queue_id", "template")

    def __init__(self, queue: Queue, address: str) -> None:
        self.queue = queue
        self.broker_name = queue.broker_name
        self.queue_id = queue.queue_id
        self.address = address
        #: What plain sends to it have in common.
        self.template: Template | None = None


class Publish:
    """``topic`` is what its users call it, ``name`` what it is called on the wire (with the namespace).

    ``slow``: its sends take the way through ``attempts``, because the topic does not exist yet or because something
    looks at each of them (hooks, latencies).
    """

    __slots__ = ("_by_queue", "choice", "name", "next", "routes", "slow", "topic")

    def __init__(self, route: TopicRoute, *, start: int, topic: str | None = None, slow: bool = False) -> None:
        self.name = route.topic
        self.topic = topic = route.topic if topic is None else topic
        self.slow = slow
        #: What plain sends to its queues have in common, where compiled code makes them.
        self.routes: Any = None
        # A queue without an address is one of an order topic whose broker is away: sends to it wait for its return.
        targets = [
            Target(queue._replace(topic=topic), route.master(queue.broker_name) or "") for queue in route.publish
        ]
        if not targets:
            raise TopicNotFoundError(
                f"topic {topic!r} has a route but no queue that can be written: no write permission, or no master. "
                f"`aiorocket topic route {topic}` shows which; `topic update {topic} --permission RW` or "
                "`cluster write BROKER on` gives the permission"
            )
        self.choice = QueueChoice(targets, start)
        self.next = self.choice.next
        self._by_queue = {target.queue: target for target in targets}

    @property
    def queues(self) -> list[Queue]:
        """The queues that can be written to, in the order of Java's TopicPublishInfo: what a selector chooses from."""
        return list(self._by_queue)

    def masters(self) -> set[str]:
        """The addresses of the brokers that take messages of this topic."""
        return {target.address for target in self.choice.queues if target.address}

    def target(self, queue: Queue | None, key: str | None) -> Target:
        """That of the queue that is asked for, else of ``key``, else the next."""
        if queue is not None:
            return self.pinned(queue)
        return self.next() if key is None else self.choice.by_key(key)

    def pinned(self, queue: Queue) -> Target:
        """The target of exactly this queue; UsageError when the topic has no such queue to write to."""
        target = self._by_queue.get(Queue(*queue))
        if target is None:
            have = ", ".join(f"{name}:{number}" for _, name, number in list(self._by_queue)[:16])
            raise UsageError(f"{queue!r} is not a writable queue of topic {self.topic!r}; there are {have}")
        return target
