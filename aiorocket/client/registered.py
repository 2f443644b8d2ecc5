"""Who registers with a ``Session``: what heartbeats say of a group, and what brokers ask of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from aiorocket.client.core.stats import ConsumeStats
from aiorocket.client.message import Message
from aiorocket.client.state import ConsumerState
from aiorocket.config import ConsumerConfig, PullConsumerConfig
from aiorocket.model import Queue
from aiorocket.remoting.connection import Connection
from aiorocket_protocol import CheckTransactionStateRequestHeader, ConsumerData, SubscriptionData

__all__ = ("GroupMember", "GroupProducer")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupMember:
    """A consumer, of whichever kind. Topics and queues are by their names on the wire, but for those in ``state``. A
    value of its own, so that what is said here is no part of what applications see of a consumer."""

    config: ConsumerConfig | PullConsumerConfig
    #: None where no listeners are.
    stats: ConsumeStats | None = None
    #: What it is doing right now.
    state: Callable[[], ConsumerState]
    #: As heartbeats carry it.
    consumer_data: Callable[[], ConsumerData]
    #: Everything it subscribes to, by topic.
    subscriptions: Callable[[], Mapping[str, SubscriptionData]]
    #: Wall clock, milliseconds; 0 before the start.
    started_ms: Callable[[], int]
    is_orderly: Callable[[], bool] = lambda: False
    #: The members of the group changed (40): look at once who gets which queue.
    rebalance_now: Callable[[], None] = lambda: None
    #: Go on at these offsets (220). None when the broker does that.
    reset_offsets: Callable[[str, Mapping[Queue, int]], Coroutine[Any, Any, None]] | None = None
    #: Give the stored message to its listener, outside of all consumption (309). The body of the answer, or UsageError
    #: when no listener is for it; None when there are no listeners here.
    consume_directly: Callable[[bytes, str], Awaitable[dict[str, Any]]] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class GroupProducer:
    """A producer, likewise; and itself, for whoever shares the one of a group."""

    producer: object
    #: The broker asks (39) how the transaction of the half message in a record ended. Answered later by a request of
    #: its own; False when there are no transactions here.
    check: Callable[[Connection, CheckTransactionStateRequestHeader, bytes], bool]
    #: A reply has come (326). False when no request of this producer had that id.
    take_reply: Callable[[str, Message], bool]
