"""Proof by offset arithmetic: the offsets of a queue are dense, so ``[begin, end)`` holds exactly ``end - begin`` rows.

That is true of every queue of RocketMQ (transactions and delays leave no holes in it) as long as nothing was filtered
out on the way. What is counted are distinct offsets, so that a repeated row can't hide a missing one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F

from aiorocket.errors import UsageError
from aiorocket.model import Queue
from aiorocket.spark.steps.fields import QUEUE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ("QueueCount", "count_by_queue", "prove", "repeated", "total")


class QueueCount(NamedTuple):
    """What was counted of one queue: rows, smallest and largest offset (both are among the rows), distinct offsets."""

    rows: int
    first: int
    last: int
    distinct: int


def count_by_queue(df: DataFrame) -> dict[Queue, QueueCount]:
    """Counts a batch DataFrame in the row schema (topic, brokerName, queueId, queueOffset are read), in one job."""
    offset = F.col("queueOffset")
    # Distinct offsets as bits, 64 to a word: a shuffle moves a word for 64 rows, where count_distinct moves every row.
    words = df.groupBy(*QUEUE, F.shiftright(offset, 6).alias("word")).agg(
        F.count("*").alias("rows"),
        F.min(offset).alias("first"),
        F.max(offset).alias("last"),
        F.bit_or(F.call_function("shiftleft", F.lit(1).cast("long"), offset.bitwiseAND(63).cast("int"))).alias("bits"),
    )
    counted = (
        words.groupBy(*QUEUE)
        .agg(
            F.sum("rows").alias("rows"),
            F.min("first").alias("first"),
            F.max("last").alias("last"),
            F.coalesce(F.sum(F.bit_count("bits")), F.lit(0)).alias("distinct"),
        )
        .collect()
    )
    return {
        Queue(row["topic"], row["brokerName"], row["queueId"]): QueueCount(
            row["rows"], row["first"], row["last"], row["distinct"]
        )
        for row in counted
    }


def prove(
    counts: Mapping[Queue, tuple[int, int, int, int]], ranges: Mapping[Queue, tuple[int, int]]
) -> dict[Queue, int]:
    """How many offsets of each ``[begin, end)`` are not among the rows; queues that lack nothing are left out.

    Queues of ``counts`` without a range are not looked at. UsageError when rows of a queue lie outside its range:
    then the two do not speak of the same thing, and a difference of their sizes would prove nothing.
    """
    missing = {}
    for queue, (begin, end) in ranges.items():
        counted = counts.get(queue)
        if counted is None:
            lost = end - begin
        else:
            _, first, last, distinct = counted
            if distinct and (first < begin or last >= end):
                raise UsageError(
                    f"{queue}: rows from offset {first} to {last} were counted against the range [{begin}, {end}): "
                    "select the rows of the range before counting"
                )
            lost = end - begin - distinct
        if lost:
            missing[queue] = lost
    return missing


def repeated(counts: Mapping[Queue, tuple[int, int, int, int]]) -> dict[Queue, int]:
    """How many rows of each queue are there more than once (rows minus distinct offsets); others are left out."""
    return {queue: rows - distinct for queue, (rows, _, _, distinct) in counts.items() if rows != distinct}


def total(ranges: Iterable[tuple[int, int]]) -> int:
    """How many offsets the ranges hold together."""
    return sum(end - begin for begin, end in ranges)
