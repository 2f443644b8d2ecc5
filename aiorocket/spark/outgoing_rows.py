"""Rows of a DataFrame as messages: which columns there may be, what each value must be, and the property text that goes
on the wire.

No network here. A whole record batch is converted before anything of it is sent, so a row that can never be sent is
refused with its number and column while nothing of its batch is on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from aiorocket.client.pipeline.sending import property_text
from aiorocket.config import DELAY_LEVELS
from aiorocket.errors import UsageError
from aiorocket.model import check_topic
from aiorocket.spark.property_tails import property_tails
from aiorocket_protocol import (
    MAX_PROPERTIES,
    PROPERTY_BORN_HOST,
    PROPERTY_BORN_TIMESTAMP,
    PROPERTY_CHECK_IMMUNITY_TIME,
    PROPERTY_CLUSTER,
    PROPERTY_CONSUME_START_TIME,
    PROPERTY_CRC32,
    PROPERTY_DELAY,
    PROPERTY_EXTEND_UNIQ_INFO,
    PROPERTY_INNER_BASE,
    PROPERTY_INNER_NUM,
    PROPERTY_INSTANCE_ID,
    PROPERTY_KEYS,
    PROPERTY_MAX_OFFSET,
    PROPERTY_MIN_OFFSET,
    PROPERTY_MSG_REGION,
    PROPERTY_PGROUP,
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRACE_CONTEXT,
    PROPERTY_TRACE_ON,
    PROPERTY_TRAN_MSG,
    PROPERTY_TRAN_PREPARED_QUEUE_OFFSET,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_TRANSACTION_ID,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
    RESERVED,
)

__all__ = ("ATTEMPT", "COLUMNS", "LEDGER", "TXN", "Columns", "Labels", "OutgoingRow", "RowError")

#: Property ``queryId/batchId/partition/number``: the same row has the same one in every attempt to write it.
TXN = "SPARK_TXN"
#: Property of half messages: the attempt of a task that sent them, and the topic of the ledger that decides on it.
ATTEMPT = "SPARK_ATTEMPT"
LEDGER = "SPARK_LEDGER"
_OURS = (TXN, ATTEMPT, LEDGER)

#: Names of RocketMQ's own among the properties of a message that was read, which only tell of that message: the new one
#: gets its own, or none (those of a transaction mean nothing in a message that is delivered).
_OF_THE_OLD_ONE = frozenset(
    (
        PROPERTY_UNIQ_KEY,
        PROPERTY_EXTEND_UNIQ_INFO,
        PROPERTY_INSTANCE_ID,
        PROPERTY_WAIT,
        PROPERTY_CLUSTER,
        PROPERTY_MSG_REGION,
        PROPERTY_TRACE_ON,
        PROPERTY_TRACE_CONTEXT,
        PROPERTY_CRC32,
        PROPERTY_BORN_HOST,
        PROPERTY_BORN_TIMESTAMP,
        PROPERTY_MIN_OFFSET,
        PROPERTY_MAX_OFFSET,
        PROPERTY_INNER_NUM,
        PROPERTY_INNER_BASE,
        PROPERTY_CONSUME_START_TIME,
        PROPERTY_REAL_TOPIC,
        PROPERTY_REAL_QID,
        PROPERTY_TRAN_MSG,
        PROPERTY_PGROUP,
        PROPERTY_CHECK_IMMUNITY_TIME,
        PROPERTY_TRAN_PREPARED_QUEUE_OFFSET,
        PROPERTY_TRANSACTION_CHECK_TIMES,
        PROPERTY_TRANSACTION_ID,
    )
)
#: What columns say. The first three are left out too where a column says it; the other two would delay the new message.
_COLUMN_OF = {
    PROPERTY_KEYS: "keys",
    PROPERTY_TAGS: "tags",
    PROPERTY_SHARDING_KEY: "shardingKey",
    PROPERTY_DELAY: "delayLevel",
    PROPERTY_TIMER_DELIVER_MS: "deliverTimestamp",
}

_INTEGERS = ("int", "bigint", "smallint", "tinyint")
#: Every column there may be, with Spark's simple names of its types.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "body": ("string", "binary"),
    "topic": ("string",),
    "keys": ("string", "array<string>"),
    "tags": ("string",),
    "properties": ("map<string,string>",),
    "queueId": _INTEGERS,
    "brokerName": ("string",),
    "shardingKey": ("string",),
    "delayLevel": _INTEGERS,
    "deliverTimestamp": ("timestamp", "bigint"),
}
_BY_LOWER = {name.lower(): name for name in COLUMNS}
#: Columns of Spark's Kafka sink that are called otherwise here.
_KAFKAS = ("key", "value", "headers", "partition")

#: Stands for the message id until there is one: property texts begin with it.
_ID = "0" * 32
_CUT = len(f"{PROPERTY_UNIQ_KEY}\x01") + len(_ID) + 1
_MAX_LEVEL = len(DELAY_LEVELS)
#: Property texts of so many characters fit, whatever these are.
_SHORT = (MAX_PROPERTIES - _CUT) // 4


class RowError(UsageError):
    """A row that cannot be sent as it is. The text names the partition, the row (from 0) and the column."""


class OutgoingRow(NamedTuple):
    """One message. ``tail`` is its property text without the id in front; ``queue_id`` chooses the queue, where it is
    None ``sharding_key`` does; ``deliver_ms`` is for a broker with timer messages."""

    number: int
    topic: str
    body: bytes
    tail: str
    queue_id: int | None = None
    broker_name: str | None = None
    sharding_key: str | None = None
    delay_level: int = 0
    deliver_ms: int | None = None

    @property
    def alone(self) -> bool:
        """It cannot be part of a batch."""
        return bool(self.delay_level) or self.deliver_ms is not None


@dataclass(frozen=True, slots=True)
class Labels:
    """Properties that the sink adds. ``prefix`` is that of TXN, without the row's number; None for none."""

    prefix: str | None = None
    fixed: tuple[tuple[str, str], ...] = ()


class Columns:
    """The columns of one DataFrame, checked: ``names`` and ``types`` (Spark's simple names) in their order.

    ``topic`` is for rows without one. UsageError for an unknown column, a type that does not fit, or one that is
    missing."""

    def __init__(self, names: Sequence[str], types: Sequence[str], *, topic: str | None, transactional: bool) -> None:
        self.index: dict[str, int] = {}
        for place, (given, kind) in enumerate(zip(names, types, strict=True)):
            name = _BY_LOWER.get(given.lower())
            if name is None:
                hint = "Put it into properties, or leave it out with select()"
                if given.lower() in _KAFKAS:
                    hint = "Rows made for Kafka's sink: aiorocket.spark.kafka_as_rocketmq(rows)"
                raise UsageError(
                    f"column {given!r:.100}: the sink has no such column; there are {', '.join(COLUMNS)}. {hint}"
                )
            if name in self.index:
                raise UsageError(f"column {name} is there twice")
            if _plain(kind) not in COLUMNS[name]:
                raise UsageError(f"column {name} is of type {kind}: {' or '.join(COLUMNS[name])} is needed, cast it")
            self.index[name] = place
        if "body" not in self.index:
            raise UsageError(f"column body is missing; the DataFrame has {', '.join(names) or 'no columns'}")
        if topic is None and "topic" not in self.index:
            raise UsageError("which topic? Give the option topic, or the DataFrame a column topic")
        if "brokerName" in self.index and "queueId" not in self.index:
            raise UsageError("column brokerName needs column queueId: together they name a queue")
        self.topic = topic
        self.transactional = transactional
        said = {
            name for name in (PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_SHARDING_KEY) if _COLUMN_OF[name] in self.index
        }
        if "queueId" in self.index:
            said.add(PROPERTY_SHARDING_KEY)
        #: Properties that are passed over.
        self.left_out = _OF_THE_OLD_ONE | said

    def rows(
        self,
        batch: pa.RecordBatch,
        *,
        where: str = "this partition",
        first: int = 0,
        labels: Labels | None = None,
        max_body: int = 4 << 20,
    ) -> list[OutgoingRow]:
        """The messages of ``batch``, whose rows count from ``first``. RowError for the first that cannot be sent."""
        labels = labels or Labels()
        size = batch.num_rows
        checks = _Checks(where, self.transactional, max_body, self.left_out)
        take = _Taker(batch, self.index, lambda place, name, text: checks.refuse(first + place, name, text))
        bodies = take.bodies()
        topics, queues, brokers = take.values("topic"), take.values("queueId"), take.values("brokerName")
        sharding, levels, delivers = (
            take.values("shardingKey"),
            take.values("delayLevel"),
            take.millis("deliverTimestamp"),
        )
        texts = keys = tags = properties = None
        if levels is None:
            ours = _OURS if labels.fixed or labels.prefix is not None else ()
            found = [take.column(name) for name in ("tags", "keys", "shardingKey", "properties")]
            texts = property_tails(size, found, self.left_out.union(ours))
        if texts is None:
            keys, tags, properties = take.values("keys"), take.values("tags"), take.values("properties")
        rest = "".join([f"{name}\x01{value}\x02" for name, value in labels.fixed])
        prefix = None if labels.prefix is None else f"{TXN}\x01{labels.prefix}"
        default, known = self.topic, set[str]()
        made: list[OutgoingRow] = []
        for place in range(size):
            number = first + place
            body = bodies[place]
            topic = (topics[place] if topics is not None else None) or default
            if not body or len(body) > max_body or topic not in known:
                checks.body(number, body)
                known.add(checks.topic(number, topic))
            key = sharding[place] if sharding is not None else None
            level = levels[place] if levels is not None else None
            if texts is not None:
                tail = texts[place]
            else:
                tag = tags[place] if tags is not None else None
                names = keys[place] if keys is not None else None
                more = properties[place] if properties is not None else None
                tail = checks.tail(number, tag, names, more, key, level, bool(labels.fixed) or prefix is not None)
            if prefix is not None:
                tail = f"{tail}{rest}{prefix}{number}\x02"
            elif rest:
                tail += rest
            if len(tail) > _SHORT:
                checks.length(number, tail)
            queue = queues[place] if queues is not None else None
            broker = brokers[place] if brokers is not None else None
            deliver = delivers[place] if delivers is not None else None
            if queue is not None or broker is not None or deliver is not None:
                checks.place(number, queue, broker, level, deliver)
            assert topic is not None
            made.append(OutgoingRow(number, topic, body, tail, queue, broker, key, level or 0, deliver))
        return made


class _Taker:
    """Columns as lists; one that is missing, or has nothing but nulls, is None and costs nothing."""

    def __init__(
        self, batch: pa.RecordBatch, index: Mapping[str, int], refuse: Callable[[int, str, object], RowError]
    ) -> None:
        self._batch = batch
        self._index = index
        self._refuse = refuse

    def column(self, name: str) -> Any:
        place = self._index.get(name)
        if place is None:
            return None
        column = self._batch.column(place)
        return None if column.null_count == len(column) else column

    def values(self, name: str) -> list[Any] | None:
        column = self.column(name)
        try:
            return None if column is None else column.to_pylist()
        except UnicodeDecodeError:
            for place, value in enumerate(column):
                try:
                    value.as_py()
                except UnicodeDecodeError as error:
                    raise self._refuse(place, name, f"not UTF-8: {error}") from None
            raise

    def bodies(self) -> list[Any]:
        column = self._batch.column(self._index["body"])
        if pa.types.is_large_string(column.type):
            column = column.cast(pa.large_binary())
        elif not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
            column = column.cast(pa.binary())
        found: list[Any] = column.to_pylist()
        return found

    def millis(self, name: str) -> list[Any] | None:
        """Milliseconds since 1970 UTC, of a number or of a timestamp in any unit (rounded down)."""
        column = self.column(name)
        if column is None:
            return None
        if pa.types.is_timestamp(column.type):
            # The instant counts: in the session's zone, an hour of autumn is there twice.
            column = column.cast(pa.timestamp(column.type.unit, "UTC"))
            import pyarrow.compute as pc

            column = pc.floor_temporal(column, unit="millisecond").cast(pa.timestamp("ms", "UTC"))
        found: list[Any] = column.cast(pa.int64()).to_pylist()
        return found


class _Checks:
    def __init__(self, where: str, transactional: bool, max_body: int, left_out: frozenset[str]) -> None:
        self._where = where
        self._transactional = transactional
        self._max_body = max_body
        self._left_out = left_out

    def refuse(self, number: int, column: str, text: object) -> RowError:
        return RowError(f"{self._where}, row {number}, column {column}: {text}")

    def body(self, number: int, body: bytes | None) -> None:
        if body is None:
            raise self.refuse(number, "body", "null")
        if not body:
            raise self.refuse(number, "body", "empty, which RocketMQ refuses: send at least one byte")
        if len(body) > self._max_body:
            raise self.refuse(number, "body", f"{len(body)} bytes, the limit is {self._max_body}")

    def topic(self, number: int, topic: str | None) -> str:
        if not topic:
            raise self.refuse(number, "topic", "null, and the option topic is not given")
        try:
            return check_topic(topic)
        except UsageError as error:
            raise self.refuse(number, "topic", error) from None

    def tail(
        self, number: int, tag: str | None, keys: Any, properties: Any, key: str | None, level: int | None, ours: bool
    ) -> str:
        """The property text behind the id."""
        if level:
            if not 0 < level <= _MAX_LEVEL:
                raise self.refuse(number, "delayLevel", f"{level}: 1 to {_MAX_LEVEL}, 0 or null for at once")
            if self._transactional:
                raise self.refuse(number, "delayLevel", f"{level}: sinkMode exactlyOnce cannot delay a message")
        if key == "":
            raise self.refuse(number, "shardingKey", "empty: null means none")
        names: Sequence[str] = ()
        if keys is not None:
            names = tuple(filter(None, keys.split(" "))) if isinstance(keys, str) else keys
            if None in names:
                raise self.refuse(number, "keys", "a null among them")
        more: dict[str, str] = {}
        if properties:
            more = dict(properties)
            if ours:
                for name in _OURS:
                    more.pop(name, None)  # of the message this row was read from; the sink's own say where it is now
            if PROPERTY_REAL_TOPIC in more:
                more.pop(PROPERTY_DELAY, None)  # that message has had its delay
            for name in RESERVED & more.keys():
                if name in self._left_out:
                    del more[name]
            if None in more.values():
                raise self.refuse(number, "properties", "a null value: RocketMQ's are text")
            if reserved := sorted(RESERVED & more.keys()):
                raise self.refuse(number, "properties", _reserved(reserved[0]))
        if not (tag or names or more or key or level):
            return ""
        try:
            return property_text(_ID, tag or "", names, more, key, level or 0)[_CUT:]
        except UsageError as error:
            raise self.refuse(number, self._guilty(tag, names, more, key), error) from None

    def length(self, number: int, tail: str) -> None:
        size = _CUT + len(tail.encode())
        if size > MAX_PROPERTIES:
            text = f"{size} bytes with keys, tags and what the sink adds, {MAX_PROPERTIES} is the limit"
            raise self.refuse(number, "properties", text)

    def _guilty(self, tag: str | None, keys: Sequence[str], properties: Mapping[str, str], key: str | None) -> str:
        alone: dict[str, Callable[[], str]] = {
            "tags": lambda: property_text(_ID, tag or "", (), None, None, 0),
            "keys": lambda: property_text(_ID, "", keys, None, None, 0),
            "shardingKey": lambda: property_text(_ID, "", (), None, key, 0),
            "properties": lambda: property_text(_ID, "", (), properties, None, 0),
        }
        for column, make in alone.items():
            try:
                make()
            except UsageError:
                return column
        return "properties, tags and keys together"

    def place(self, number: int, queue: int | None, broker: str | None, level: int | None, deliver: int | None) -> None:
        if queue is not None and queue < 0:
            raise self.refuse(number, "queueId", f"{queue}: 0 or more, null for any queue")
        if broker is not None and queue is None:
            raise self.refuse(number, "brokerName", f"{broker!r:.100} without a queueId")
        if deliver is None:
            return
        if deliver <= 0:
            raise self.refuse(number, "deliverTimestamp", f"{deliver} ms since 1970: it must lie after that")
        if level:
            raise self.refuse(number, "deliverTimestamp", f"given, and delayLevel is {level}: both say when, give one")
        if self._transactional:
            raise self.refuse(number, "deliverTimestamp", "given: sinkMode exactlyOnce cannot delay a message")


def _plain(kind: str) -> str:
    """``varchar(9)`` and ``char(9)`` are strings with a limit."""
    return "string" if kind.startswith(("varchar(", "char(")) else kind.replace(" ", "")


def _reserved(name: str) -> str:
    column = _COLUMN_OF.get(name)
    if column is not None:
        return f"{name!r} is reserved by RocketMQ: it goes into the column {column}"
    return (
        f"{name!r} is reserved by RocketMQ and would change what becomes of the message; leave it out, for instance "
        f"with map_filter(properties, (name, value) -> name <> {name!r})"
    )
