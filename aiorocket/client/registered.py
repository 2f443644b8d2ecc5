"""Who registers with a ``Session``: what heartbeats say of a group, and what brokers ask of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from aiorocket.client.core.stats import ConsumeStats
from aiorocket.client.message import Message
from aiorocket.client.state import ConsumerState
from aiorocket.config import ConsumerConfig, PullConsumerConfig
from aiorocket.model import Queue
from aiorocket.remoting.connection import Connection
from aiorocket_protocol import CheckTransactionStateRequestHeader, ConsumerData, SubscriptionData

__all__ = ("GroupMember", "GroupProducer")


class GroupMember(Protocol):
    """A consumer, of whichever kind. Topics and queues are by their names on the wire, but for those in ``state``."""

    @property
    def config(self) -> ConsumerConfig | PullConsumerConfig: ...
    @property
    def started_ms(self) -> int: ...
    @property
    def is_orderly(self) -> bool: ...
    @property
    def stats(self) -> ConsumeStats | None: ...

    def consumer_data(self) -> ConsumerData:
        """As heartbeats carry it."""

    def topics(self) -> list[str]:
        """Every topic subscribed to."""

    def subscription(self, topic: str) -> SubscriptionData: ...

    def state(self) -> ConsumerState:
        """What it is doing right now."""

    def rebalance_now(self) -> None:
        """The members of the group changed (40): look at once who gets which queue."""

    async def reset_offsets(self, topic: str, offsets: Mapping[Queue, int]) -> None:
        """Go on at these offsets (220)."""

    async def consume_directly(self, record: bytes, broker_name: str) -> dict[str, Any] | None:
        """Give the stored message to its listener, outside of all consumption (309). The body of the answer; None when
        there are no listeners here, UsageError when none is for its topic."""


class GroupProducer(Protocol):
    """A producer."""

    def check(self, connection: Connection, header: CheckTransactionStateRequestHeader, record: bytes) -> bool:
        """The broker asks (39) how the transaction of the half message in ``record`` ended. Answered later by a request
        of its own; False when there are no transactions here."""

    def take_reply(self, correlation_id: str, reply: Message) -> bool:
        """A reply has come (326). False when no request of this producer had that id."""
