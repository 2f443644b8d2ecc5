"""How long messages took, from producer to broker and from broker to archive, and how far behind consumer groups are.

``latency_report`` gathers the tables in one reading; ``plots.draw`` turns them into pictures. The time from producer to
broker is taken by two clocks: where the producer's is ahead it comes out negative, and the rows counted as ``negative``
say how far to trust the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from aiorocket.errors import UsageError
from aiorocket.spark.steps.fields import QUEUE, interval, millis_between, need
from aiorocket.spark.steps.functions.plot_style import seconds_of

if TYPE_CHECKING:
    from aiorocket.spark.steps.functions.lag_samples import LagSample

__all__ = (
    "ARCHIVED", "EDGES", "STORED", "Bucket", "LatencyReport", "Percentiles", "lag_table", "latency", "latency_report",
)  # fmt: skip

#: The stages: from the producer's clock to the broker's, from the broker's to the archive's.
STORED, ARCHIVED = "born to stored", "stored to archived"
#: Upper ends of the histogram's buckets in ms: 1, 2, 5, 10 and so on to 20 s, then round minutes and hours to a day;
#: the last bucket is everything above.
EDGES = (
    *(step * 10**power for power in range(4) for step in (1, 2, 5)), 10_000, 20_000, 30_000,
    *(minutes * 60_000 for minutes in (1, 2, 5, 10, 20, 30)), *(hours * 3_600_000 for hours in (1, 2, 5, 10, 24)),
)  # fmt: skip
#: Windows of topics and stages that are collected: more take gigabytes of the driver's Python, and nobody reads them.
MOST_WINDOWS = 250_000
_PERCENTILES = (0.5, 0.95, 0.99)
#: Relative error of approximate percentiles: 1 / this.
_ACCURACY = 10_000
_MS = "_aiorocket_ms"
_ROWS = "_aiorocket_rows"
_LAG = (
    "takenAt TIMESTAMP, consumerGroup STRING, topic STRING, brokerName STRING, queueId INT, committed LONG, "
    "minOffset LONG, maxOffset LONG, lag LONG"
)


class Percentiles(NamedTuple):
    """One row of a table, milliseconds. ``start`` is None but in tables over time; ``broker_name`` and ``queue_id`` are
    None but in those by queue."""

    stage: str
    topic: str
    broker_name: str | None
    queue_id: int | None
    start: datetime | None
    rows: int
    negative: int
    least: float
    p50: float
    p95: float
    p99: float
    most: float


class Bucket(NamedTuple):
    """``rows`` took at most ``up_to`` ms and more than the bucket before (None: more than all)."""

    stage: str
    topic: str
    up_to: int | None
    rows: int


@dataclass(frozen=True)
class LatencyReport:
    """Plain rows, sorted. ``every`` is the length of the windows of ``over_time``."""

    every: str
    by_topic: tuple[Percentiles, ...]
    by_queue: tuple[Percentiles, ...]
    over_time: tuple[Percentiles, ...]
    histogram: tuple[Bucket, ...]

    def as_dict(self) -> dict[str, object]:
        """For ``json.dumps``; times in ISO form."""
        return {
            "every": self.every,
            **{name: [_plain(row) for row in getattr(self, name)] for name in ("by_topic", "by_queue", "over_time")},
            "histogram": [row._asdict() for row in self.histogram],
        }


def latency(
    df: DataFrame,
    *,
    by: Sequence[str] = ("topic",),
    every: str | None = None,
    archived: str | None = None,
    exact: bool = True,
) -> DataFrame:
    """Percentiles per stage and group of a batch: ``stage``, the columns of ``by``, ``windowStart`` (with ``every``,
    the minute or so in which it was stored), ``rows``, ``negative``, and in ms ``least``, ``p50``, ``p95``, ``p99``,
    ``most``.

    ``archived`` is the column with the time of archiving, if there is one: a second stage. Exact percentiles keep each
    different value of a group in memory and interpolate; ``exact=False`` gives a value that occurs, by rank off by at
    most one in 10,000, and needs less memory.
    """
    groups = [F.col(name) for name in by]
    if every is not None:
        interval(every, "every")
        groups.append(F.window("storeTimestamp", every)["start"].alias("windowStart"))
    need(df, "latency", *by)
    return _staged(df, archived).groupBy("stage", *groups).agg(*_measures(exact))


def latency_report(
    df: DataFrame, *, every: str = "1 minute", archived: str | None = None, exact: bool = True
) -> LatencyReport:
    """The tables by topic, by queue and over time, and the histogram, of a batch, in one reading of it (with
    ``exact=False`` two). What it collects grows with the topics' queues and windows: choose ``every`` so that people
    can read it. UsageError when there are more than 250,000 windows."""
    need(df, "the latency report", *QUEUE)
    interval(every, "every")
    start = F.window("storeTimestamp", every)["start"]
    measured = _staged(df, archived).withColumn("windowStart", start)
    whole = [F.col("stage"), F.col("topic")]
    queue = [*whole, F.col("brokerName"), F.col("queueId")]
    time = [*whole, F.col("windowStart")]
    if exact:
        # How often each value is there: so all tables come of one reading, and of few rows.
        measured = measured.groupBy(*queue, F.col("windowStart"), _MS).agg(F.count(F.lit(1)).alias(_ROWS)).persist()
    else:
        measured = measured.withColumn(_ROWS, F.lit(1))
    grouped = measured.groupingSets([whole, queue, time], *queue, F.col("windowStart")).agg(
        *_measures(exact, F.col(_ROWS)), F.grouping_id().alias("level")
    )
    edges = F.array(*[F.lit(edge) for edge in EDGES])
    bucket = F.size(F.filter(edges, lambda edge: edge < F.col(_MS)))
    bars = measured.groupBy("stage", "topic", bucket.alias("bucket")).agg(
        F.sum(_ROWS).alias("count"), F.min("windowStart").alias("first"), F.max("windowStart").alias("last")
    )
    try:
        counted = bars.collect()
        _check_windows(measured, counted, every)
        found = grouped.collect()
    finally:
        if exact:
            measured.unpersist()
    tables: dict[int, list[Percentiles]] = {}
    for row in found:
        line = Percentiles(
            row["stage"], row["topic"], row["brokerName"], row["queueId"], _utc(row["windowStart"]), row["rows"],
            row["negative"], row["least"], row["p50"], row["p95"], row["p99"], row["most"],
        )  # fmt: skip
        tables.setdefault(row["level"], []).append(line)
    # grouping_id has a bit for each column that is not grouped by: broker and queue are 4 and 2 + …, the window is 1.
    by_topic, by_queue, over_time = (sorted(tables.get(level, []), key=_place) for level in (0b111, 0b001, 0b110))
    histogram = [
        Bucket(row["stage"], row["topic"], EDGES[row["bucket"]] if row["bucket"] < len(EDGES) else None, row["count"])
        for row in counted
    ]
    histogram.sort(key=lambda bar: (bar.stage, bar.topic, bar.up_to is None, bar.up_to or 0))
    return LatencyReport(every, tuple(by_topic), tuple(by_queue), tuple(over_time), tuple(histogram))


def lag_table(spark: SparkSession, samples: Sequence[LagSample], rows: DataFrame | None = None) -> DataFrame:
    """Samples of ``sample_lag`` as a DataFrame: ``takenAt``, ``consumerGroup``, ``topic``, ``brokerName``,
    ``queueId``, ``committed``, ``minOffset``, ``maxOffset``, ``lag``.

    With ``rows`` (the topic's, from an archive for instance) also ``behindSeconds``: how long before the sample the
    next message to be consumed was stored; 0 for a group that has everything, null where ``rows`` lack that message.
    """
    table = spark.createDataFrame([sample.row() for sample in samples], _LAG)
    if rows is None:
        return table
    need(rows, "lag_table", *QUEUE, "queueOffset", "storeTimestamp")
    # An archive may have a row twice; a sample must not become two.
    stored = rows.groupBy(*QUEUE, F.col("queueOffset").alias("_next")).agg(F.min("storeTimestamp").alias("_stored"))
    # What retention has removed before it was consumed is not the next one any more.
    following = F.greatest(F.coalesce("committed", F.lit(0)), "minOffset")
    behind = (F.unix_micros("takenAt") - F.unix_micros("_stored")) / F.lit(1e6)
    shown = F.when((F.col("lag") == 0) | (behind < 0), F.lit(0.0)).otherwise(behind)
    joined = table.withColumn("_next", following).join(stored, [*QUEUE, "_next"], "left")
    return joined.select(*table.columns, shown.alias("behindSeconds"))


def _staged(df: DataFrame, archived: str | None) -> DataFrame:
    if df.isStreaming:
        raise UsageError("the latency step takes a batch: percentiles of a stream would need all of its state")
    need(df, "latency", "bornTimestamp", "storeTimestamp", "topic", *([archived] if archived else []))
    stages = [_stage(STORED, millis_between("bornTimestamp", "storeTimestamp"))]
    if archived:
        stages.append(_stage(ARCHIVED, millis_between("storeTimestamp", archived)))
    if len(stages) == 1:
        return df.select("*", F.lit(STORED).alias("stage"), stages[0]["ms"].alias(_MS)).where(F.col(_MS).isNotNull())
    staged = df.withColumn("_stage", F.explode(F.array(*stages)))
    staged = staged.withColumn("stage", F.col("_stage")["stage"]).withColumn(_MS, F.col("_stage")["ms"])
    return staged.where(F.col(_MS).isNotNull()).drop("_stage")


def _stage(name: str, ms: Column) -> Column:
    return F.struct(F.lit(name).alias("stage"), ms.alias("ms"))


def _measures(exact: bool, count: Column | None = None) -> list[Column]:
    """Of rows that stand for ``count`` each (exact percentiles only), or for one."""
    ms, shares = F.col(_MS), F.array(*[F.lit(share) for share in _PERCENTILES])
    count = F.lit(1) if count is None else count
    found = F.percentile(ms, shares, count) if exact else F.percentile_approx(ms, shares, _ACCURACY)
    return [
        F.sum(count).alias("rows"),
        F.coalesce(F.sum(F.when(ms < 0, count)), F.lit(0)).alias("negative"),
        F.min(ms).alias("least"),
        *[found[place].alias(f"p{round(share * 100)}") for place, share in enumerate(_PERCENTILES)],
        F.max(ms).alias("most"),
    ]


def _check_windows(measured: DataFrame, bars: Sequence[Row], every: str) -> None:
    """UsageError for too many windows. They are counted only where the bars' first and last allow for too many."""
    spans: dict[tuple[str, str], tuple[datetime, datetime, int]] = {}
    for row in bars:
        first, last, rows = spans.get((row["stage"], row["topic"]), (row["first"], row["last"], 0))
        spans[row["stage"], row["topic"]] = (min(first, row["first"]), max(last, row["last"]), rows + row["count"])
    step = timedelta(seconds=seconds_of(every))
    if sum(min((last - first) // step + 1, rows) for first, last, rows in spans.values()) <= MOST_WINDOWS:
        return
    found = measured.select("stage", "topic", "windowStart").distinct().count()
    if found > MOST_WINDOWS:
        raise UsageError(
            f"the latency report would have {found:,} windows of {every}, at most {MOST_WINDOWS:,} are collected: "
            "choose a longer `every`, or fewer topics or hours"
        )


def _place(row: Percentiles) -> tuple[object, ...]:
    return (row.stage, row.topic, row.broker_name or "", row.queue_id or 0, row.start.timestamp() if row.start else 0)


def _utc(value: datetime | None) -> datetime | None:
    """Spark gives naive times of this machine's zone."""
    return None if value is None else value.astimezone(UTC)


def _plain(row: Percentiles) -> dict[str, object]:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row._asdict().items()}
