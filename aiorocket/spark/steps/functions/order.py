"""Is everything there, once, and in order? Per queue by offset and store time, per key by a sequence.

Findings are rows: ``scope`` (``queue`` or ``key``), ``kind``, ``topic``, ``brokerName``, ``queueId``, ``queueOffset``
(where it was found), ``key``, ``expected``, ``found``.

===== ============ ==================================================================================
scope kind         meaning
===== ============ ==================================================================================
queue gap          offsets from ``expected`` up to ``found`` are not there (retention, a filter, or loss)
queue duplicate    the row is there more than once
queue time         stored before the row in front of it (``expected`` and ``found`` in ms): a clock went back
key   missing      sequence numbers from ``expected`` up to ``found`` are nowhere
key   repeated     the sequence number was there before (a redelivery, a send that was retried)
key   backwards    smaller than one stored before, and new (``expected``: the least that would have been in order)
===== ============ ==================================================================================

Rows of a key are taken in the order in which brokers stored them. Across queues of several brokers that is as good as
their clocks; keep a key in one queue (a sharding key does that) and it is the offset.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from aiorocket.errors import UsageError
from aiorocket.spark.steps.fields import QUEUE, arrival, business_key, need

__all__ = ("OrderWatch", "key_order", "order", "queue_order", "summary")

#: Property that a message sent with a sharding key carries.
_SHARDING_KEY = "properties['__SHARDINGKEY']"
_HAS_KEY = "key IS NOT NULL AND key != '' AND sequence IS NOT NULL"
_STATE = (
    "scope STRING, topic STRING, brokerName STRING, queueId INT, queueOffset LONG, key STRING, sequence LONG, "
    "storeTimestamp TIMESTAMP"
)


def queue_order(df: DataFrame) -> DataFrame:
    """Findings per queue of a batch. A queue begins with its first row here: what was before it is not missed."""
    _batch(df, "queue_order")
    need(df, "queue_order", *QUEUE, "queueOffset", "storeTimestamp")
    return _queue_findings(df.select(*QUEUE, "queueOffset", "storeTimestamp", F.lit(False).alias("known")))


def key_order(
    df: DataFrame,
    *,
    sequence: str | Column = "unix_millis(bornTimestamp)",
    key: str | Column = _SHARDING_KEY,
    dense: bool | None = None,
) -> DataFrame:
    """Findings per topic and key of a batch. ``sequence`` is a number, as an expression: a counter of the producer
    (``"CAST(properties['seq'] AS LONG)"``, ``"get_json_object(CAST(body AS STRING), '$.version')"``), or by default
    the time the message was made. ``dense`` says that it counts without gaps, so missing numbers are findings (and a
    time isn't, so by default only a ``sequence`` that was given is). A repeat of a time means nothing and isn't found.

    Rows without a key or without a sequence are passed over.
    """
    _batch(df, "key_order")
    need(df, "key_order", *QUEUE, "queueOffset", "storeTimestamp")
    timed = isinstance(sequence, str) and sequence == "unix_millis(bornTimestamp)"
    dense = not timed if dense is None else dense
    return _key_findings(_placed(df, key, sequence).where(_HAS_KEY), dense, repeats=not timed)


def order(
    df: DataFrame, *, sequence: str | Column | None = None, key: str | Column = _SHARDING_KEY, dense: bool | None = None
) -> DataFrame:
    """``queue_order`` and, when a ``sequence`` is given, ``key_order`` in one DataFrame."""
    found = queue_order(df)
    if sequence is None:
        return found
    return found.unionByName(key_order(df, sequence=sequence, key=key, dense=dense))


def summary(findings: DataFrame) -> DataFrame:
    """``scope``, ``kind``, ``topic``, ``findings``, ``missing`` (offsets or numbers that are not there), ``queues`` and
    ``keys`` concerned."""
    absent = F.col("kind").isin("gap", "missing")
    return findings.groupBy("scope", "kind", "topic").agg(
        F.count(F.lit(1)).alias("findings"),
        F.coalesce(F.sum(F.when(absent, F.col("found") - F.col("expected"))), F.lit(0)).alias("missing"),
        F.count_distinct("brokerName", "queueId").alias("queues"),
        F.count_distinct("key").alias("keys"),
    )


class OrderWatch:
    """The same checks on a stream, as a function for ``foreachBatch``::

        watch = OrderWatch("/lake/orders/order-state", on_findings=lambda found, batch: found.write…, sequence="…")
        stream.writeStream.foreachBatch(watch).option("checkpointLocation", …).start()

    Between batches it keeps the last row of each queue and the highest sequence of each key, as Parquet in ``state``
    (a local or a mounted directory), one subdirectory a batch and the last two of them: a batch that Spark repeats
    after a crash starts from what the batch before it left, and gives the same findings.

    Over the end of a batch less is remembered than within one: a number below the highest of the batches before is
    ``backwards`` even when it was there before, and numbers that come a batch late were ``missing`` first.
    """

    def __init__(
        self,
        state: str | Path,
        on_findings: Callable[[DataFrame, int], object],
        *,
        sequence: str | None = None,
        key: str = _SHARDING_KEY,
        dense: bool = True,
    ) -> None:
        self._state = Path(state)
        self._on_findings = on_findings
        self._sequence = sequence
        self._key = key
        self._dense = dense

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        need(rows, "OrderWatch", *QUEUE, "queueOffset", "storeTimestamp")
        before = self._before(rows.sparkSession, batch_id)
        key, sequence = (F.lit(None), F.lit(None)) if self._sequence is None else (self._key, self._sequence)
        # The little that is needed of the batch is kept: each query on it would read the topic again.
        rows = _placed(rows, key, sequence).persist()
        try:
            self._check(rows, before, batch_id)
        finally:
            rows.unpersist()
        shutil.rmtree(self._state / str(batch_id - 2), ignore_errors=True)

    def _check(self, rows: DataFrame, before: DataFrame, batch_id: int) -> None:
        queues = before.where("scope = 'queue'").select(
            *QUEUE, "queueOffset", "storeTimestamp", F.lit(True).alias("known")
        )
        seen = rows.select(*QUEUE, "queueOffset", "storeTimestamp", "known")
        all_queues = queues.unionByName(seen)
        found = _queue_findings(all_queues)
        last = all_queues.groupBy(*QUEUE).agg(
            F.max("queueOffset").alias("queueOffset"), F.max_by("storeTimestamp", "queueOffset").alias("storeTimestamp")
        )
        kept = last.select(
            F.lit("queue").alias("scope"), *QUEUE, "queueOffset", F.lit(None).cast("string").alias("key"),
            F.lit(None).cast("long").alias("sequence"), "storeTimestamp",
        )  # fmt: skip
        if self._sequence is not None:
            keys = before.where("scope = 'key'").drop("scope").withColumn("known", F.lit(True))
            all_keys = keys.unionByName(rows.where(_HAS_KEY))
            found = found.unionByName(_key_findings(all_keys, self._dense, repeats=True))
            highest = all_keys.groupBy("topic", "key").agg(
                F.max_by(F.struct("brokerName", "queueId", "queueOffset", "storeTimestamp"), "sequence").alias("at"),
                F.max("sequence").alias("sequence"),
            )
            kept = kept.unionByName(highest.select(F.lit("key").alias("scope"), "topic", "key", "sequence", "at.*"))
        found = found.cache()
        try:
            self._on_findings(found, batch_id)
        finally:
            found.unpersist()
        kept.coalesce(1).write.mode("overwrite").parquet(str(self._state / str(batch_id)))

    def _before(self, spark: SparkSession, batch_id: int) -> DataFrame:
        path = self._state / str(batch_id - 1)
        if batch_id == 0:
            return spark.createDataFrame([], _STATE)
        if not (path / "_SUCCESS").exists():
            raise UsageError(
                f"OrderWatch: batch {batch_id} needs the state of the batch before it, and {path} does not hold it. It "
                f"belongs to one checkpoint: keep both, or begin both anew"
            )
        return spark.read.schema(_STATE).parquet(str(path))


def _queue_findings(rows: DataFrame) -> DataFrame:
    """``known`` rows are those of an earlier batch: they are compared with, not judged."""
    queue = Window.partitionBy(*QUEUE).orderBy("queueOffset", F.desc("known"), "storeTimestamp")
    offset, stored = F.col("queueOffset"), F.unix_millis("storeTimestamp")
    last, last_stored = F.lag("queueOffset").over(queue), F.lag(stored).over(queue)
    placed = rows.select("*", last.alias("last"), last_stored.alias("lastStored"), stored.alias("stored"))
    following = offset == F.col("last")
    findings = F.array(
        F.when(offset > F.col("last") + 1, _finding("gap", F.col("last") + 1, offset)),
        F.when(following, _finding("duplicate", offset + 1, offset)),
        F.when(
            ~following & (F.col("stored") < F.col("lastStored")),
            _finding("time", F.col("lastStored"), F.col("stored")),
        ),
    )
    judged = placed.where("NOT known").select(*QUEUE, "queueOffset", F.explode(F.array_compact(findings)).alias("f"))
    return judged.select(
        F.lit("queue").alias("scope"), "f.kind", *QUEUE, "queueOffset", F.lit(None).cast("string").alias("key"),
        "f.expected", "f.found",
    )  # fmt: skip


def _key_findings(rows: DataFrame, dense: bool, *, repeats: bool) -> DataFrame:
    by_arrival = [F.desc("known"), *arrival()]
    arrived = Window.partitionBy("topic", "key").orderBy(*by_arrival)
    before = arrived.rowsBetween(Window.unboundedPreceding, -1)
    same = Window.partitionBy("topic", "key", "sequence").orderBy(*by_arrival)
    placed = rows.select("*", F.row_number().over(same).alias("time"), F.max("sequence").over(before).alias("highest"))
    # Of each number the first row; sorted, neighbours show what is nowhere.
    sorted_ = Window.partitionBy("topic", "key", F.col("time") > 1).orderBy("sequence")
    placed = placed.withColumn("below", F.lag("sequence").over(sorted_))
    floor = F.max(F.when(F.col("known"), F.col("sequence"))).over(Window.partitionBy("topic", "key"))
    placed = placed.withColumn("floor", floor)
    sequence, first = F.col("sequence"), F.col("time") == 1
    cases = [F.when(first & (sequence < F.col("highest")), _finding("backwards", F.col("highest") + 1, sequence))]
    if repeats:
        cases.append(F.when(~first, _finding("repeated", F.col("highest") + 1, sequence)))
    if dense:
        # Below what earlier batches reached nothing is known of the neighbours.
        new = F.col("floor").isNull() | (sequence > F.col("floor"))
        jump = first & new & (sequence > F.col("below") + 1)
        cases.append(F.when(jump, _finding("missing", F.col("below") + 1, sequence)))
    findings = F.explode(F.array_compact(F.array(*cases))).alias("f")
    judged = placed.where("NOT known").select(*QUEUE, "queueOffset", "key", findings)
    return judged.select(F.lit("key").alias("scope"), "f.kind", *QUEUE, "queueOffset", "key", "f.expected", "f.found")


def _placed(df: DataFrame, key: str | Column, sequence: str | Column) -> DataFrame:
    """Place, key and sequence of each row."""
    number = sequence if isinstance(sequence, Column) else F.expr(sequence)
    return df.select(
        *QUEUE, "queueOffset", "storeTimestamp", business_key(df, key).alias("key"),
        number.try_cast("long").alias("sequence"), F.lit(False).alias("known"),
    )  # fmt: skip


def _finding(kind: str, expected: Column, found: Column) -> Column:
    return F.struct(F.lit(kind).alias("kind"), expected.alias("expected"), found.alias("found"))


def _batch(df: DataFrame, what: str) -> None:
    if df.isStreaming:
        raise UsageError(f"{what} takes a batch; for a stream give an OrderWatch to foreachBatch")
