"""The windows step: counts by time and group, and late rows counted exactly."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from aiorocket.errors import UsageError
from aiorocket.spark.steps.functions.windows import late_rows, mark_late, rows_dropped, windows
from tests.spark.row_frames import SCHEMA, at, frame, row, shuffled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: (born, stored): the third came late for its minute, and the last was late but its minute was still open.
TIMES = [(5, 6), (130, 131), (30, 131.5), (200, 201), (125, 202), (199, 205)]


def test_tumbling_windows_by_topic_and_tag_with_late_rows(spark: SparkSession) -> None:
    rows = [row(n, born=b, stored=s, tags="paid" if n % 2 else None, body=b"xy") for n, (b, s) in enumerate(TIMES)]
    df = frame(spark, shuffled(rows))
    found = windows(df, by=["topic", "tag"], watermark="30 seconds", aggregates={"least": F.min("queueOffset")})
    assert found.columns == ["windowStart", "windowEnd", "topic", "tag", "rows", "bytes", "lateRows", "least"]
    table = found.withColumn("start", F.unix_millis("windowStart") / 1000 - at(0).timestamp()).collect()
    assert sorted((r["start"], r["tag"] or "", r["rows"], r["bytes"], r["lateRows"], r["least"]) for r in table) == [
        (0.0, "", 2, 4, 1, 0),
        (120.0, "", 1, 2, 0, 4),
        (120.0, "paid", 1, 2, 0, 1),
        (180.0, "paid", 2, 4, 0, 3),
    ]
    [counted] = late_rows(df, "30 seconds").collect()
    assert (counted["topic"], counted["rows"], counted["lateRows"], counted["latest"]) == ("orders", 6, 2, 70.0)


@pytest.mark.spark_long
def test_sliding_windows_by_key_and_store_time(spark: SparkSession) -> None:
    df = frame(spark, [row(0, keys="k", stored=10), row(1, keys="k", stored=40), row(2, keys=None, stored=40)])
    found = windows(df, every="1 minute", slide="30 seconds", by=["key"], time="storeTimestamp").collect()
    assert sorted((r["windowStart"].minute, r["windowStart"].second, r["key"] or "", r["rows"]) for r in found) == [
        (0, 0, "", 1), (0, 0, "k", 2), (0, 30, "", 1), (0, 30, "k", 1), (59, 30, "k", 1)
    ]  # fmt: skip
    [(whole,)] = windows(df, by=[], every="1 hour").select("rows").collect()
    assert whole == 3


@pytest.mark.spark_long
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)), min_size=1, max_size=25), st.integers(1, 10))
def test_late_is_what_a_walk_in_order_of_arrival_finds(
    spark: SparkSession, times: list[tuple[int, int]], wait: int
) -> None:
    rows = [row(n, born=born, stored=stored / 2) for n, (born, stored) in enumerate(times)]
    late, latest = set(), None
    for n, (born, _) in sorted(enumerate(times), key=lambda item: (item[1][1], item[0])):
        if latest is not None and born < latest - wait:
            late.add(n)
        latest = born if latest is None else max(born, latest)
    marked = mark_late(frame(spark, rows), f"{wait} seconds")
    found = marked.select("queueOffset", "late").collect()
    assert {r["queueOffset"] for r in found if r["late"]} == late
    assert len(found) == len(rows)


@pytest.mark.spark_long
def test_a_stream_in_update_mode_counts_what_it_drops(spark: SparkSession, tmp_path: Path) -> None:
    source = str(tmp_path / "rows")
    (tmp_path / "rows").mkdir()
    stream = spark.readStream.schema(SCHEMA).parquet(source)
    counts: dict[int, int] = {}

    def keep(batch: object, _batch_id: int) -> None:
        for r in batch.collect():  # type: ignore[attr-defined]
            counts[r["windowStart"].minute] = r["rows"]

    dropped = 0
    for rows in ([row(0, born=5), row(1, born=30)], [row(2, born=600)], [row(3, born=8), row(4, born=610)]):
        frame(spark, rows).coalesce(1).write.mode("append").parquet(source)
        query = (
            windows(stream, by=[], watermark="1 minute").writeStream.outputMode("update").foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        )  # fmt: skip
        assert query.awaitTermination(200)
        dropped += rows_dropped(query)
    assert counts == {0: 2, 10: 2}
    assert dropped == 1


def test_refusals(spark: SparkSession, tmp_path: Path) -> None:
    df = frame(spark, [row(0)])
    with pytest.raises(UsageError, match="every='1 fortnight'"):
        windows(df, every="1 fortnight")
    with pytest.raises(UsageError, match="needs the columns eventTime"):
        windows(df, time="eventTime")
    with pytest.raises(UsageError, match="watermark="):
        windows(spark.readStream.schema(SCHEMA).parquet(str(tmp_path)))
