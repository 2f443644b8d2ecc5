"""Rows counted in windows of time, by topic, tag or key, and how many of them came late.

Prefer the batch form over the archive: run it again and every window is whole, late rows included. A stream has to say
with a watermark how long it waits, and output mode decides what is seen: ``append`` shows a window only when the
watermark has passed it, and with ``availableNow`` that is in a later run that brings newer rows (nothing is shown
before); ``update`` shows windows as they grow, to be written by key (``foreachBatch`` with a merge).

Late, in a batch: when the row arrived, rows stored before it had already moved the watermark (the latest event time so
far, less ``watermark``) past its event time. In a stream Spark moves the watermark only from one micro-batch to the
next, so it drops at most what the batch counts as too late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from aiorocket.errors import UsageError
from aiorocket.spark.steps.fields import arrival, business_key, check_interval, interval, need

__all__ = ("check_windows", "late_rows", "mark_late", "rows_dropped", "windows")

_SECOND = "_aiorocket_second"
_REACHED = "_aiorocket_reached"
_NEAR = "_aiorocket_near"
_WINDOW = "_aiorocket_window"
_BYTES = "_aiorocket_bytes"
_GROUP = "_aiorocket_group_"


def windows(
    df: DataFrame,
    *,
    every: str = "1 minute",
    slide: str | None = None,
    by: Sequence[str] = ("topic",),
    time: str = "bornTimestamp",
    watermark: str | None = None,
    key: str | Column | None = None,
    aggregates: Mapping[str, Column] | None = None,
) -> DataFrame:
    """One row per window and group: ``windowStart``, ``windowEnd``, the columns of ``by``, ``rows``, ``bytes`` (of the
    bodies) and what ``aggregates`` names (``{"largest": F.max(F.octet_length("body"))}``).

    Windows are ``every`` long (``"30 seconds"``, ``"1 hour"``); with ``slide`` a new one begins that often and they
    overlap. ``by`` takes ``topic``, ``tag``, ``key`` (``keys``, or the expression ``key``) and any other column.
    ``time`` is the event time: when the producer made the message (by its clock), or ``storeTimestamp``.

    A batch counts late rows like all others; with ``watermark`` it adds ``lateRows``: how many of them a stream that
    moves its watermark with every row would have dropped, because their window had ended before it. A stream needs
    ``watermark``. UsageError for a missing column or a length of time that is none.
    """
    need(df, "windows", time)
    length = every
    interval(every, "every")
    if slide is not None:
        interval(slide, "slide")
    if df.isStreaming:
        if watermark is None:
            raise UsageError(
                "windows of a stream need watermark=, how long to wait for rows (such as '10 minutes'); without one "
                "Spark would keep every window for ever"
            )
        interval(watermark, "watermark")
        df = df.withWatermark(time, watermark)
    groups = [_group(df, name, key) for name in by]
    size = F.octet_length("body") if "body" in df.columns else None
    if watermark is not None and not df.isStreaming:
        # Computed in front of the sort that finds late rows, which then moves neither bodies nor maps.
        df, groups = _computed(df, by, key)
        if size is not None:
            df, size = df.withColumn(_BYTES, size), F.col(_BYTES)
        df = _reached(df, time, watermark)
    window = F.window(F.col(time), length, slide)
    if groups and any(name in ("windowStart", "windowEnd", "rows", "bytes", "lateRows") for name in by):
        raise UsageError(f"windows by {', '.join(by)}: the result has columns of these names itself")
    counted = [F.count(F.lit(1)).alias("rows")]
    if size is not None:
        counted.append(F.sum(size).alias("bytes"))
    if watermark is not None and not df.isStreaming:
        df = df.withColumn(_WINDOW, window)
        counted.append(F.count_if(F.col(_WINDOW)["end"] <= F.col(_REACHED)).alias("lateRows"))
        window = F.col(_WINDOW)
    counted += [column.alias(name) for name, column in (aggregates or {}).items()]
    grouped = df.groupBy(window.alias(_WINDOW), *groups).agg(*counted)
    bounds = [F.col(_WINDOW)["start"].alias("windowStart"), F.col(_WINDOW)["end"].alias("windowEnd")]
    return grouped.select(*bounds, *[F.col(f"`{name}`") for name in grouped.columns if name != _WINDOW])


def check_windows(
    columns: Sequence[str], *, every: str = "1 minute", slide: str | None = None, by: Sequence[str] = ("topic",),
    time: str = "bornTimestamp", watermark: str | None = None, key: str | None = None,
) -> None:  # fmt: skip
    """What can be said of the arguments of ``windows`` without a session, of rows that have ``columns``: UsageError for
    lengths of time that are none and for names of no column."""
    check_interval(every, "every", least=1)
    if slide is not None:
        check_interval(slide, "slide", least=1)
    if watermark is not None:
        check_interval(watermark, "watermark")
    # An expression is Spark's to judge.
    read = {"tag": "tags", "key": "keys" if key is None else "topic"}
    for option, name in (("time", time), *(("by", each) for each in by)):
        if name not in columns and (option == "time" or read.get(name) not in columns):
            more = ", tag, key" if option == "by" else ""
            raise UsageError(f"{option}={name!r} is none of {', '.join(columns)}{more}")


def mark_late(df: DataFrame, watermark: str, *, time: str = "bornTimestamp") -> DataFrame:
    """A batch with one more column, ``late``: older than the watermark that the rows stored before it had reached."""
    if "late" in df.columns:
        raise UsageError("mark_late: the DataFrame has a column 'late' already")
    late = F.coalesce(F.col(time) < F.col(_REACHED), F.lit(False))
    return _reached(df, time, watermark).withColumn("late", late).drop(_REACHED)


def late_rows(
    df: DataFrame, watermark: str, *, by: Sequence[str] = ("topic",), time: str = "bornTimestamp",
    key: str | Column | None = None,
) -> DataFrame:  # fmt: skip
    """Of a batch, exactly: ``rows``, ``lateRows``, and ``latest`` (how long the latest was behind, in seconds) per
    group of ``by`` (as in ``windows``)."""
    df, groups = _computed(df, by, key)
    reached = _reached(df, time, watermark)
    behind = (F.unix_micros(_REACHED) - F.unix_micros(time)) / F.lit(1e6)
    return reached.groupBy(*groups).agg(
        F.count(F.lit(1)).alias("rows"),
        F.count_if(behind > 0).alias("lateRows"),
        F.max(F.when(behind > 0, behind)).alias("latest"),
    )


def rows_dropped(query: Any) -> int:
    """How many late rows a streaming query has dropped, by Spark's ``numRowsDroppedByWatermark``.

    From the progress that Spark keeps (the last 100 batches unless ``spark.sql.streaming.numRecentProgressUpdates``
    says more). Spark counts behind its partial aggregation: rows of one window, group and partition that were dropped
    together count as one. ``late_rows`` over the archive is exact.
    """
    dropped = 0
    for progress in query.recentProgress:
        operators = progress["stateOperators"] if isinstance(progress, dict) else progress.stateOperators
        for operator in operators:
            counted = (
                operator["numRowsDroppedByWatermark"]
                if isinstance(operator, dict)
                else operator.numRowsDroppedByWatermark
            )
            dropped += int(counted)
    return dropped


def _group(df: DataFrame, name: str, key: str | Column | None) -> Column:
    if name == "key" and "key" not in df.columns:
        return business_key(df, key).alias("key")
    if name == "tag" and "tag" not in df.columns:
        need(df, "by tag", "tags")
        return F.col("tags").alias("tag")
    need(df, f"by {name}", name)
    return F.col(name)


def _computed(df: DataFrame, by: Sequence[str], key: str | Column | None) -> tuple[DataFrame, list[Column]]:
    """The groups as columns of their own, and what refers to them."""
    named = {f"{_GROUP}{place}": _group(df, name, key) for place, name in enumerate(by)}
    return df.withColumns(named), [F.col(each).alias(name) for each, name in zip(named, by, strict=True)]


def _reached(df: DataFrame, time: str, watermark: str) -> DataFrame:
    """With the watermark that the rows before each row had reached (null for the first).

    In two steps, so that no task has to sort all rows: the latest event time of the seconds before, and within its
    second that of the rows before it.
    """
    if df.isStreaming:
        raise UsageError("late rows are counted in a batch; for a stream see rows_dropped")
    need(df, "late rows", time, "storeTimestamp", "brokerName", "queueId", "queueOffset")
    wait = interval(watermark, "watermark")
    rows = df.withColumn(_SECOND, F.date_trunc("second", F.col("storeTimestamp")))
    seconds = rows.groupBy(_SECOND).agg(F.max(time).alias("_latest"))
    earlier = Window.orderBy(_SECOND).rowsBetween(Window.unboundedPreceding, -1)
    before = seconds.select(_SECOND, F.max("_latest").over(earlier).alias(_REACHED))
    within = Window.partitionBy(_SECOND).orderBy(*arrival()).rowsBetween(Window.unboundedPreceding, -1)
    near = rows.withColumn(_NEAR, F.max(time).over(within)).join(before, _SECOND, "left")
    return near.withColumn(_REACHED, F.greatest(_REACHED, _NEAR) - wait).drop(_SECOND, _NEAR)
