"""What the demo's store says: how many messages there are, which ones are pending, which are dead letters.

Everything is derived from queues and committed offsets, so it is as true after a kill -9 as after a clean end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from aiorocket.broker.broker import Broker
from aiorocket_protocol import (
    PROPERTY_ORIGIN_MESSAGE_ID,
    SCHEDULE_TOPIC,
    RecordView,
    dlq_topic,
    retry_topic,
    split_records,
)

__all__ = (
    "DEAD_TOPIC",
    "GROUP",
    "LINE",
    "QUEUES",
    "RETRY_TOPIC",
    "TOPIC",
    "Books",
    "Stock",
    "message_key",
    "read_books",
    "stock",
)

TOPIC = "demo"
GROUP = "demo-readers"
RETRY_TOPIC = retry_topic(GROUP)
DEAD_TOPIC = dlq_topic(GROUP)
QUEUES = 4

#: The property that names a line for good: copies of its message on their way through retries carry it too.
LINE = "demo_line"

_READ_MESSAGES = 1024
_READ_BYTES = 4 << 20


class Stock(NamedTuple):
    """Counts of records at one moment, cheap enough to be asked ten times a second."""

    sent: int
    #: Records not settled: of the topic, waiting for their delay, of the retry topic. After a crash several of them may
    #: be one message.
    unsettled: int
    #: Sent back for a later attempt so far.
    retried: int
    dead_records: int


class Books(NamedTuple):
    """The same by message."""

    stock: Stock
    #: Messages that are neither consumed nor dead as far as the store knows.
    pending: frozenset[str]
    dead: frozenset[str]

    @property
    def consumed(self) -> int:
        return self.stock.sent - len(self.pending) - len(self.dead)


def message_key(record: RecordView) -> str:
    """Names a message through all its deliveries."""
    properties = record.properties
    return properties.get(LINE) or properties.get(PROPERTY_ORIGIN_MESSAGE_ID) or record.msg_id


def stock(broker: Broker) -> Stock:
    store = broker.store
    return Stock(
        sent=sum(store.max_offset(TOPIC, n) for n in range(QUEUES)),
        unsettled=sum(end - begin for _, _, begin, end in _unsettled(broker)),
        retried=sum(store.max_offset(SCHEDULE_TOPIC, level - 1) for level in broker.delays.levels),
        dead_records=store.max_offset(DEAD_TOPIC, 0),
    )


def read_books(broker: Broker) -> Books:
    """Read in one go, without an await in between: nothing moves from one queue to the next meanwhile."""
    dead = frozenset(_keys(broker, DEAD_TOPIC, 0, 0, broker.store.max_offset(DEAD_TOPIC, 0)))
    pending = frozenset(key for part in _unsettled(broker) for key in _keys(broker, *part))
    return Books(stock(broker), pending - dead, dead)


def _unsettled(broker: Broker) -> Iterator[tuple[str, int, int, int]]:
    """(topic, queue, first offset, end) of what is not settled."""
    store, offsets, delays = broker.store, broker.offsets, broker.delays
    for topic, queues in ((TOPIC, QUEUES), (RETRY_TOPIC, 1)):
        for queue_id in range(queues):
            yield topic, queue_id, offsets.query(GROUP, topic, queue_id) or 0, store.max_offset(topic, queue_id)
    for level in delays.levels:
        yield SCHEDULE_TOPIC, level - 1, delays.progress(level), store.max_offset(SCHEDULE_TOPIC, level - 1)


def _keys(broker: Broker, topic: str, queue_id: int, begin: int, end: int) -> Iterator[str]:
    while begin < end:
        found = broker.store.read(topic, queue_id, begin, min(_READ_MESSAGES, end - begin), _READ_BYTES)
        for record in split_records(found.data):
            yield message_key(record)
        if found.next_offset <= begin:
            return  # nothing more to be had here; the counts will say so
        begin = found.next_offset
