"""A pull consumer as its client, the rebalance and the offsets see it: names, subscriptions, routes."""

from __future__ import annotations

from collections.abc import Iterable

from aiorocket.client.core.lifecycle import Lifecycle, State
from aiorocket.client.core.namespace import unwrap, wrap
from aiorocket.client.core.start_from import StartFrom
from aiorocket.client.message import Message
from aiorocket.client.session import Session
from aiorocket.client.state import Counters
from aiorocket.errors import UsageError
from aiorocket.model import Queue, check_group, check_topic
from aiorocket_protocol import (
    ALL_TAGS,
    CLUSTERING,
    CONSUME_ACTIVELY,
    SQL92,
    ConsumerData,
    SubscriptionData,
    retry_topic,
)

__all__ = ("PullMember",)


class PullMember:
    """Half a ``Member`` and ``GroupMember``, and the ``Settler`` of its messages; ``PullConsumer`` is the rest."""

    #: A pull consumer has no listeners: nothing is sent back or locked for it, and its offsets lie at the brokers.
    broadcasting = False
    leases = None
    is_orderly = False
    stats = None

    def __init__(self, group: str, client: Session) -> None:
        self.client: Session = client
        self.group = check_group(group)
        self._namespace = client.config.namespace
        #: With the namespace, as brokers know it.
        self.wire_group = check_group(wrap(self._namespace, group))
        self.retry_topic = check_topic(retry_topic(self.wire_group))
        self.counters = Counters()
        self._lifecycle = Lifecycle(f"pull consumer {group!r}")
        #: "subscribe" or "assign", once one of them was called.
        self._mode: str | None = None
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._starts: dict[str, StartFrom] = {}

    def consumer_data(self) -> ConsumerData:
        """As heartbeats carry it. In RocketMQ an assigned consumer names its group and no topics."""
        subscriptions = list(self._subscriptions.values()) if self._mode == "subscribe" else []
        start = next(iter(self._starts.values()), StartFrom("last")).wire
        return ConsumerData(self.wire_group, CONSUME_ACTIVELY, CLUSTERING, start, subscriptions)

    def topics(self) -> list[str]:
        return list(self._subscriptions)

    def subscription(self, topic: str) -> SubscriptionData:
        return self._subscriptions[topic]

    def start_from(self, topic: str) -> StartFrom:
        return self._starts[topic]

    def touch(self, topics: Iterable[str]) -> None:
        """The queues of ``topics`` changed here, so their subscriptions get a new version."""
        version = self.client.env.clock.wall_ms()
        for topic in topics:
            data = self._subscriptions[topic]
            self._subscriptions[topic] = data._replace(sub_version=max(version, data.sub_version))

    def shown(self, queues: Iterable[Queue]) -> list[Queue]:
        """Without the namespace, sorted."""
        return sorted(queue._replace(topic=unwrap(self._namespace, queue.topic)) for queue in queues)

    def master_address(self, queue: Queue) -> str | None:
        route = self.client.routes.known(queue.topic)
        return route.master(queue.broker_name) if route is not None else None

    def reader_address(self, queue: Queue, suggested: int) -> str | None:
        route = self.client.routes.known(queue.topic)
        return route.reader(queue.broker_name, suggested) if route is not None else None

    async def send_back(self, message: Message, delay_level: int, max_attempts: int | None = None) -> bool:
        """Settler: there is no way back to the broker for a pulled message."""
        raise UsageError(
            f"message {message.msg_id} was fetched by a PullConsumer, which has no retries: seek back to "
            f"{message.queue_offset} in {message.queue}, or commit past it"
        )

    async def consume_directly(self, record: bytes, broker_name: str) -> None:
        """There are no listeners here (309)."""

    def count_skipped(self) -> None:
        self.counters.skipped += 1

    def _choose(self, mode: str) -> None:
        if self._lifecycle.state not in (State.NEW, State.RUNNING):
            self._lifecycle.need_running()
        if self._mode not in (None, mode):
            raise UsageError(
                f"pull consumer {self.group!r} uses {self._mode}, so it cannot {mode}: make another one for that"
            )
        self._mode = mode

    def _subscription(self, topic: str, tags: Iterable[str], sql: str | None) -> SubscriptionData:
        version = self.client.env.clock.wall_ms()
        if sql is not None:
            return SubscriptionData(topic, sql, sub_version=version, expression_type=SQL92)
        return SubscriptionData.parse(topic, " || ".join(sorted(tags)) or ALL_TAGS, version)

    def _wire(self, queue: Queue) -> Queue:
        topic, broker_name, queue_id = queue
        return Queue(wrap(self._namespace, check_topic(topic)), broker_name, queue_id)
