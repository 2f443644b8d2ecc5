"""Repeated messages, found and dropped: a send that was retried, a business event that was sent twice, a batch of a
Spark query that was written twice.

What counts as the same (always within one topic):

========== ============================================================================================
``id``     ``msgId``: the sender's id. One send that was retried by the client has it once, stored twice.
``key``    ``keys``, or the column or SQL expression given as ``key``: one order, one payment.
``spark_txn`` property ``SPARK_TXN`` of rows that our sink wrote with ``sinkMode=idempotent``.
========== ============================================================================================

Rows without a key are never dropped. Of the others the one that was stored first stays.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F

from aiorocket.errors import UsageError
from aiorocket.spark.steps.fields import QUEUE, arrival, business_key, interval, need

__all__ = ("By", "DedupCounts", "count_duplicates", "dedup", "duplicates", "identity")

By = Literal["id", "key", "spark_txn"]

#: Property of messages that the idempotent sink wrote: query, batch, partition and place in it.
_SPARK_TXN = "SPARK_TXN"
_KEY = "_aiorocket_key"
_PLACE = "_aiorocket_place"
_EARLIER = "_aiorocket_earlier"


class DedupCounts(NamedTuple):
    """``rows`` = ``kept`` + ``dropped``; ``without_key`` of the kept ones have no key."""

    rows: int
    kept: int
    dropped: int
    without_key: int


def dedup(
    df: DataFrame,
    by: By = "id",
    *,
    key: str | Column | None = None,
    watermark: str | None = None,
    time: str = "storeTimestamp",
    earlier: DataFrame | None = None,
) -> DataFrame:
    """``df`` without repeated rows, the same columns.

    A batch keeps the row stored first of each key (by ``storeTimestamp``, broker, queue and offset), and none of a key
    that a row of ``earlier`` has; it ignores ``watermark``. A stream needs it: Spark remembers a key until the
    watermark (the latest ``time`` seen, less ``watermark``) has passed it, so repeats that far apart or less are
    dropped, and so is, as with any watermark, a row older than that. A stream keeps the row that its batch holds first.

    UsageError for a stream without a watermark or with ``earlier``, and for columns that are missing.
    """
    same = identity(df, by, key)
    if df.isStreaming:
        if watermark is None:
            raise UsageError(
                "dedup of a stream needs watermark=, the longest time between a row and its repeat (such as "
                "'1 hour'): Spark keeps the keys of that long"
            )
        interval(watermark, "watermark")
        if earlier is not None:
            raise UsageError("dedup of a stream takes no earlier=: its watermark says how far back it compares")
        need(df, "dedup", *QUEUE, "queueOffset", time)
        # A row without a key is its own: its place in the cluster stands for one.
        place = F.concat_ws("\x01", F.lit(""), "brokerName", "queueId", "queueOffset")
        unique = df.withColumn(_KEY, F.coalesce(same, place)).withWatermark(time, watermark)
        return unique.dropDuplicatesWithinWatermark(["topic", _KEY]).drop(_KEY)
    need(df, "dedup", *QUEUE, "queueOffset", "storeTimestamp")
    rows = df.select("*", same.alias(_KEY), F.lit(False).alias(_EARLIER))
    if earlier is not None:
        # Among the rows, the keys in front: rows are moved and sorted once, and no join has to hold the keys in memory.
        known = earlier.select("topic", identity(earlier, by, key).alias(_KEY), F.lit(True).alias(_EARLIER))
        rows = rows.unionByName(known.where(f"{_KEY} IS NOT NULL"), allowMissingColumns=True)
    first = F.row_number().over(_same(F.desc(_EARLIER), *arrival()))
    kept = rows.withColumn(_PLACE, first).where(f"NOT {_EARLIER} AND ({_KEY} IS NULL OR {_PLACE} = 1)")
    return kept.drop(_KEY, _PLACE, _EARLIER)


def duplicates(df: DataFrame, by: By = "id", *, key: str | Column | None = None) -> DataFrame:
    """The rows that ``dedup`` of this batch drops, each with ``duplicateOf``: broker, queue and offset of the row that
    stays instead."""
    _no_stream(df, "duplicates")
    need(df, "dedup", *QUEUE, "queueOffset", "storeTimestamp")
    same = _same(*arrival())
    rows = df.withColumn(_KEY, identity(df, by, key))
    placed = rows.select(
        "*", F.row_number().over(same).alias(_PLACE),
        F.first(F.struct("brokerName", "queueId", "queueOffset")).over(same).alias("duplicateOf"),
    )  # fmt: skip
    return placed.where(f"{_KEY} IS NOT NULL AND {_PLACE} > 1").drop(_KEY, _PLACE)


def count_duplicates(df: DataFrame, by: By = "id", *, key: str | Column | None = None) -> DedupCounts:
    """How many rows ``dedup`` of this batch keeps and drops: one query."""
    _no_stream(df, "count_duplicates")
    keyed = df.select("topic", identity(df, by, key).alias(_KEY))
    found = keyed.groupBy("topic", _KEY).count().agg(
        F.sum("count").alias("rows"),
        F.count(_KEY).alias("keys"),
        F.sum(F.when(F.col(_KEY).isNull(), F.col("count"))).alias("without"),
    ).first()  # fmt: skip
    assert found is not None  # an aggregate without groups has one row
    rows, without = found["rows"] or 0, found["without"] or 0
    kept = found["keys"] + without
    return DedupCounts(rows, kept, rows - kept, without)


def identity(df: DataFrame, by: str, key: str | Column | None = None) -> Column:
    """What is the same for rows that repeat one another; null for a row that repeats none."""
    need(df, "dedup", "topic")
    if key is not None and by != "key":
        raise UsageError(f"dedup: key= goes with by='key', not with by={by!r}")
    if by == "id":
        need(df, "dedup by id", "msgId")
        return F.nullif(F.col("msgId"), F.lit(""))
    if by == "key":
        return business_key(df, key)
    if by == "spark_txn":
        need(df, "dedup by spark_txn", "properties")
        return F.try_element_at("properties", F.lit(_SPARK_TXN))
    raise UsageError(f"dedup by={by!r}: one of 'id', 'key', 'spark_txn'")


def _same(*order: Column) -> WindowSpec:
    # Rows without a key are spread by their offset, else all of them would meet in one task. The hash in front is for
    # the sort: Spark compares 8 bytes first, and topics and ids begin alike.
    spread = F.when(F.col(_KEY).isNull(), F.col("queueOffset"))
    return Window.partitionBy(F.xxhash64("topic", _KEY, spread), "topic", _KEY, spread).orderBy(*order)


def _no_stream(df: DataFrame, what: str) -> None:
    if df.isStreaming:
        raise UsageError(f"{what} takes a batch; a stream counts in its progress (numDroppedDuplicateRows)")
