"""One member of a consumer group, of whichever kind: what brokers know of it, and the ways to them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from aiorocket.client.core.lifecycle import Lifecycle, State
from aiorocket.client.core.namespace import unwrap, wrap
from aiorocket.client.core.start_from import StartFrom
from aiorocket.client.core.subscriptions import Wanted
from aiorocket.client.group.leases import Leases
from aiorocket.client.session import Session
from aiorocket.client.state import Counters
from aiorocket.config import ConsumerConfig, MissingTopics, PullConsumerConfig
from aiorocket.errors import BadNameError, NotConnectedError
from aiorocket.model import Queue, check_group
from aiorocket.runtime.own_loop import need_loop
from aiorocket.runtime.tasks import TaskScope
from aiorocket_protocol import BROADCASTING, MAX_TOPIC, RETRY_PREFIX, ConsumerData, SubscriptionData, retry_topic

__all__ = ("Member",)


class Member:
    """``group`` is as the application says it. Queues, topics and ``wire_group`` have their names on the wire, with the
    client's namespace. ``kind`` is for errors and names of tasks; ``consume_type`` and ``message_model`` are RocketMQ's
    words for heartbeats."""

    def __init__(
        self,
        session: Session,
        group: str,
        config: ConsumerConfig | PullConsumerConfig,
        *,
        kind: str,
        consume_type: str,
        message_model: str,
    ) -> None:
        self.session = session
        self.config = config
        self.namespace = session.config.namespace
        self.group = check_group(group)
        self.wire_group = check_group(wrap(self.namespace, group))
        self.retry_topic = retry_topic(self.wire_group)
        if len(self.retry_topic) > MAX_TOPIC:
            raise BadNameError(
                f"group {self.wire_group!r}: {len(self.wire_group)} characters, with the namespace if there is one. A "
                f"group that consumes has {MAX_TOPIC - len(RETRY_PREFIX)} at most: {RETRY_PREFIX}group is a topic"
            )
        #: Every member has all queues.
        self.broadcasting = message_model == BROADCASTING
        self.lifecycle = Lifecycle(f"{kind} {group!r}")
        self.scope = TaskScope(f"{kind.replace(' ', '-')}-{group}", on_crash=_crashed)
        self.counters = Counters()
        #: As the brokers are to know them, by topic.
        self.subscriptions: dict[str, SubscriptionData] = {}
        #: Where to begin in queues of a topic that the group has no offset for.
        self.starts: dict[str, StartFrom] = {}
        #: What to do about a topic that nobody has, where that is said of the topic; and those that are waited for now.
        self.if_missing: dict[str, MissingTopics] = {}
        self.missing: set[str] = set()
        #: Topics that a broker had no more: the route we know of them may be old.
        self.gone: set[str] = set()
        #: Topics that a broker wants to be popped.
        self.popping: set[str] = set()
        #: The brokers' queue locks, of an orderly consumer from its start on.
        self.leases: Leases | None = None
        self._consume_type = consume_type
        self._message_model = message_model

    def want(self, topic: str, what: Wanted) -> None:
        """Note how to begin with ``topic``; what the first subscription of a topic says counts."""
        self.starts.setdefault(topic, what.start)
        if what.if_missing is not None:
            self.if_missing.setdefault(topic, what.if_missing)

    def need_running(self) -> None:
        """UsageError unless started and not stopped; WrongLoopError in another loop than that of the start."""
        self.lifecycle.need_running()
        need_loop(self.session.loop, self.lifecycle.what)

    @property
    def pulling(self) -> bool:
        """Not stopping: queues may be taken and pulled."""
        return self.lifecycle.state in (State.STARTING, State.RUNNING)

    def consumer_data(self) -> ConsumerData:
        """As heartbeats carry it. RocketMQ knows one consumeFromWhere for a group: that of its first topic."""
        start = next(iter(self.starts.values()), StartFrom("last")).wire
        subscriptions = list(self.subscriptions.values())
        return ConsumerData(self.wire_group, self._consume_type, self._message_model, start, subscriptions)

    def touch(self, topics: Iterable[str], version: int) -> None:
        """The queues of ``topics`` changed here: their subVersion becomes ``version``, as in Java."""
        for topic in topics:
            data = self.subscriptions.get(topic)
            if data is not None:
                self.subscriptions[topic] = data._replace(sub_version=max(version, data.sub_version))

    def shown(self, queues: Iterable[Queue]) -> list[Queue]:
        """Without the namespace, sorted."""
        return sorted(queue._replace(topic=unwrap(self.namespace, queue.topic)) for queue in queues)

    # -- where its queues lie, as far as routes are known --

    def master_address(self, queue: Queue) -> str | None:
        route = self.session.routes.known(queue.topic)
        return route.master(queue.broker_name) if route is not None else None

    def reader_address(self, queue: Queue, suggested: int) -> str | None:
        """Whom to pull from, when the broker's last answer suggested the one with this id."""
        route = self.session.routes.known(queue.topic)
        return route.reader(queue.broker_name, suggested) if route is not None else None

    def address(self, queue: Queue) -> str:
        """The master, or a slave when there is none. NotConnectedError when no route leads to the queue's broker."""
        address = self.master_address(queue) or self.reader_address(queue, 0)
        if address is None:
            raise self.no_route(queue)
        return address

    def no_route(self, queue: Queue) -> NotConnectedError:
        return NotConnectedError(f"no route to broker {queue.broker_name!r} for topic {queue.topic!r}")


def _crashed(task: asyncio.Task[Any], error: BaseException) -> None:
    task.get_loop().call_exception_handler(
        {"message": f"{task.get_name()} crashed: this is a bug in aiorocket", "exception": error, "task": task}
    )
