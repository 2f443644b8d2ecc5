"""A message that was given up, as it lies among the dead letters of its group."""

from __future__ import annotations

from aiorocket.client.core.namespace import unwrap
from aiorocket.model import LegibleRecord, Queue
from aiorocket_protocol import (
    PROPERTY_DLQ_ERROR,
    PROPERTY_DLQ_HOST,
    PROPERTY_DLQ_ORIGIN_TOPIC,
    PROPERTY_DLQ_REASON,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
)

__all__ = ("DeadMessage",)


class DeadMessage(LegibleRecord):
    """A message in ``%DLQ%group``. Body, keys, tag and properties are those it was sent with; ``msg_id`` is the
    sender's; ``store_timestamp`` is when it was given up (ms)."""

    __slots__ = ("namespace", "queue", "replayed")

    namespace: str
    #: Where it lies: the dead-letter topic, its broker, its queue.
    queue: Queue
    #: It has been replayed.
    replayed: bool

    @property
    def origin_topic(self) -> str:
        """The topic it was sent to; empty when that is not known (it was put here by hand)."""
        properties = self.properties
        wire = properties.get(PROPERTY_RETRY_TOPIC) or properties.get(PROPERTY_DLQ_ORIGIN_TOPIC, "")
        return unwrap(self.namespace, wire)

    @property
    def origin_msg_id(self) -> str:
        """Offset message id of its first record, as far as that is known."""
        return self.properties.get(PROPERTY_ORIGIN_MESSAGE_ID, "")

    @property
    def error(self) -> str:
        """The class of the error it was given up for; empty when that is not known."""
        return self.properties.get(PROPERTY_DLQ_ERROR, "")

    @property
    def reason(self) -> str:
        """What that error, or DeadLetter, said."""
        return self.properties.get(PROPERTY_DLQ_REASON, "")

    @property
    def host(self) -> str:
        """The client id of the consumer that gave up."""
        return self.properties.get(PROPERTY_DLQ_HOST, "")

    @property
    def replay_id(self) -> str:
        """Names this dead letter for ever, also when its broker moves: the offset id its record was stored with."""
        return self.offset_msg_id
