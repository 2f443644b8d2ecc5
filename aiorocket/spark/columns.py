"""The columns of a row: names, order, Spark and Arrow types.

A row is one stored message. Everything but ``properties`` and the ids is a field of the stored record; all columns are
nullable because Spark's own sources are, and all but the ones that say so always hold a value.

=========================== ============= ===========================================================================
``topic``                   STRING        topic it is stored under (of a retry: ``%RETRY%group``)
``brokerName``              STRING        broker that keeps the queue
``queueId``                 INT           queue within topic and broker
``queueOffset``             BIGINT        place in the queue: dense, from 0
``msgId``                   STRING        the producer's id (property UNIQ_KEY), else ``offsetMsgId``
``offsetMsgId``             STRING        where it lies: hex of ``storeHost`` and ``physicalOffset``
``keys``                    STRING        property KEYS as stored: keys joined by blanks; null without
``tags``                    STRING        property TAGS; null without
``body``                    BINARY        as sent; as stored (perhaps compressed) with ``decompress=false``
``properties``              MAP<STRING,   all properties, RocketMQ's and the sender's, in stored order; of one given
                            STRING>       twice the last value, none without a value; perhaps empty, never null
``bornTimestamp``           TIMESTAMP     the producer's clock, UTC, to the ms; null when 64 bits of µs cannot hold it
``storeTimestamp``          TIMESTAMP     the broker's clock, likewise
``bornHost``                STRING        producer's ``ip:port`` as the broker saw it, IPv6 in brackets
``storeHost``               STRING        broker's ``ip:port``
``reconsumeTimes``          INT           failed deliveries so far
``sysFlag``                 INT           RocketMQ's flags: compression, transaction state, IPv6 hosts
``flag``                    INT           the sender's own number
``bodyCrc``                 INT           CRC-32 of the stored body without its sign bit
``physicalOffset``          BIGINT        place in the broker's commit log
``preparedTransactionOffset`` BIGINT      of a committed transaction: place of its half message; otherwise 0
=========================== ============= ===========================================================================

The legacy schema is that of the Scala connector in rocketmq-externals: nine columns of the same names in its order,
where ``properties`` is a JSON object as text instead of a map.

Text that is not UTF-8 (topic, properties) comes with U+FFFD in place of the bad bytes: a foreign producer's mistake
neither stops a job nor passes unseen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from aiorocket.errors import UsageError

__all__ = (
    "LEGACY_COLUMNS",
    "PROPERTY_COLUMNS",
    "ROW_COLUMNS",
    "ColumnOptions",
    "arrow_schema",
    "check_columns",
    "columns_of",
    "selected_columns",
    "spark_schema",
)

_STRING, _INT, _LONG, _BINARY, _TIME, _MAP = "string", "int", "bigint", "binary", "timestamp", "map<string,string>"

_TYPES = {
    "topic": _STRING,
    "brokerName": _STRING,
    "queueId": _INT,
    "queueOffset": _LONG,
    "msgId": _STRING,
    "offsetMsgId": _STRING,
    "keys": _STRING,
    "tags": _STRING,
    "body": _BINARY,
    "properties": _MAP,
    "bornTimestamp": _TIME,
    "storeTimestamp": _TIME,
    "bornHost": _STRING,
    "storeHost": _STRING,
    "reconsumeTimes": _INT,
    "sysFlag": _INT,
    "flag": _INT,
    "bodyCrc": _INT,
    "physicalOffset": _LONG,
    "preparedTransactionOffset": _LONG,
}

#: All columns in their order.
ROW_COLUMNS: tuple[str, ...] = tuple(_TYPES)
#: Those of the Scala connector, in its order.
LEGACY_COLUMNS: tuple[str, ...] = (
    "topic", "flag", "body", "properties", "brokerName", "queueId", "queueOffset", "bornTimestamp", "storeTimestamp",
)  # fmt: skip
#: Columns that need the property string of a record.
PROPERTY_COLUMNS: frozenset[str] = frozenset(("properties", "keys", "tags", "msgId"))

# What to_arrow_schema makes of the Spark types.
_ARROW: dict[str, pa.DataType] = {
    _STRING: pa.string(),
    _INT: pa.int32(),
    _LONG: pa.int64(),
    _BINARY: pa.binary(),
    _TIME: pa.timestamp("us", tz="UTC"),
    _MAP: pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string(), nullable=True)),
}


class ColumnOptions(Protocol):
    """The options that choose columns, as ``SourceOptions`` has them."""

    @property
    def columns(self) -> Sequence[str] | None: ...
    @property
    def include_properties(self) -> bool: ...
    @property
    def legacy_schema(self) -> bool: ...


class _Choice(NamedTuple):
    names: tuple[str, ...]
    legacy: bool


def check_columns(names: Iterable[str], *, legacy: bool = False) -> tuple[str, ...]:
    """``names`` as a tuple; UsageError for none at all, one twice, or one that does not exist, with the nearest that
    does."""
    asked, known = tuple(names), LEGACY_COLUMNS if legacy else ROW_COLUMNS
    if not asked:
        raise UsageError(f"no columns; choose from {', '.join(known)}")
    for name in asked:
        if name not in known:
            nearest = get_close_matches(name.lower(), [each.lower() for each in known], 1, 0.5)
            hint = next((f"; did you mean {each}?" for each in known if [each.lower()] == nearest), "")
            schema = "the legacy schema" if legacy else "a row"
            raise UsageError(f"{name!r:.100} is not a column of {schema}{hint} (there are: {', '.join(known)})")
        if asked.count(name) > 1:
            raise UsageError(f"column {name} is asked for {asked.count(name)} times; once is enough")
    return asked


def selected_columns(options: ColumnOptions) -> tuple[str, ...]:
    """The columns that options ask for: ``columns``, else all of the schema, without ``properties`` when
    ``includeProperties`` is false."""
    if options.columns:
        return check_columns(options.columns, legacy=options.legacy_schema)
    every = LEGACY_COLUMNS if options.legacy_schema else ROW_COLUMNS
    return tuple(name for name in every if name != "properties" or options.include_properties)


def spark_schema(columns: ColumnOptions | Iterable[str], *, legacy: bool = False) -> StructType:
    """Spark's schema of the columns named, or of those that source options select (``legacy`` is then theirs)."""
    types: dict[str, DataType] = {
        _STRING: StringType(),
        _INT: IntegerType(),
        _LONG: LongType(),
        _BINARY: BinaryType(),
        _TIME: TimestampType(),
        _MAP: MapType(StringType(), StringType(), valueContainsNull=True),
    }
    choice = _chosen(columns, legacy)
    return StructType([StructField(name, types[_type(name, choice.legacy)], True) for name in choice.names])


def arrow_schema(columns: ColumnOptions | Iterable[str], *, legacy: bool = False) -> pa.Schema:
    """The same as Arrow: equal to pyspark's ``to_arrow_schema(spark_schema(columns), timezone="UTC")``, which is what
    Spark compares record batches with."""
    choice = _chosen(columns, legacy)
    return pa.schema([pa.field(name, _ARROW[_type(name, choice.legacy)]) for name in choice.names])


def columns_of(schema: StructType, *, legacy: bool = False) -> tuple[str, ...]:
    """The columns that a schema given by the user (``spark.read.schema(…)``) asks for, which is how Spark lets a reader
    choose. UsageError for a name or type that a row does not have, and for NOT NULL: Spark would refuse every batch."""
    names = check_columns([field.name for field in schema], legacy=legacy)
    for given, right in zip(schema, spark_schema(names, legacy=legacy), strict=True):
        if given.dataType != right.dataType:
            found, wanted = given.dataType.simpleString(), right.dataType.simpleString()
            raise UsageError(f"column {given.name} is {wanted.upper()}, the schema given says {found.upper()}")
        if not given.nullable:
            raise UsageError(f"column {given.name}: leave out NOT NULL, columns of this source are nullable")
    return names


def _chosen(columns: ColumnOptions | Iterable[str], legacy: bool) -> _Choice:
    if isinstance(columns, Iterable):
        return _Choice(check_columns(columns, legacy=legacy), legacy)
    return _Choice(selected_columns(columns), columns.legacy_schema)


def _type(name: str, legacy: bool) -> Any:
    return _STRING if legacy and name == "properties" else _TYPES[name]
