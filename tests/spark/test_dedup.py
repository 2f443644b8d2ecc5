"""The dedup step: what is the same, which one stays, and that rows without a key all stay."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aiorocket.errors import UsageError
from aiorocket.spark import steps
from aiorocket.spark.steps.functions.dedup import DedupCounts, count_duplicates, dedup, duplicates
from tests.spark.row_frames import SCHEMA, frame, row, shuffled

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession


def _places(rows: list[Row]) -> list[tuple[str, int, int]]:
    return sorted((row["topic"], row["queueId"], row["queueOffset"]) for row in rows)


def test_a_batch_keeps_what_was_stored_first_of_each_id(spark: SparkSession) -> None:
    df = frame(
        spark,
        shuffled(
            [
                row(0, msg_id="a", stored=5),
                row(0, queue=1, msg_id="a", stored=4),  # the first, in another queue
                row(1, msg_id="a", stored=9),
                row(2, msg_id="b", stored=9),
                row(3, msg_id="b", stored=9),  # the same millisecond: the offset decides
                row(4, topic="others", msg_id="a", stored=1),  # another topic: another message
                row(5, msg_id=""),
                row(6, msg_id=""),
            ]
        ),
    )
    kept = dedup(df)
    assert kept.columns == df.columns
    assert _places(kept.collect()) == [
        ("orders", 0, 2), ("orders", 0, 5), ("orders", 0, 6), ("orders", 1, 0), ("others", 0, 4)
    ]  # fmt: skip
    dropped = duplicates(df).collect()
    assert _places(dropped) == [("orders", 0, 0), ("orders", 0, 1), ("orders", 0, 3)]
    assert {(r["queueOffset"], r["duplicateOf"]["queueId"], r["duplicateOf"]["queueOffset"]) for r in dropped} == {
        (0, 1, 0), (1, 1, 0), (3, 0, 2)
    }  # fmt: skip
    assert count_duplicates(df) == DedupCounts(rows=8, kept=5, dropped=3, without_key=2)


@pytest.mark.spark_long
def test_what_repeats_an_earlier_row_goes_whichever_was_stored_first(spark: SparkSession) -> None:
    earlier = frame(spark, [row(9, msg_id="a", stored=90), row(8, msg_id=""), row(7, topic="others", msg_id="b")])
    rows = [row(0, msg_id="a"), row(1, msg_id="b"), row(2, msg_id="b"), row(3, msg_id=""), row(4, msg_id="")]
    kept = dedup(frame(spark, shuffled(rows)), earlier=earlier)
    assert kept.columns == earlier.columns
    assert _places(kept.collect()) == [("orders", 0, 1), ("orders", 0, 3), ("orders", 0, 4)]


@pytest.mark.spark_long
def test_no_join_holds_in_memory_what_is_known(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    df = frame(spark, [row(0)])
    dedup(df, earlier=df).explain()
    plan = capsys.readouterr().out
    assert plan.count("Exchange") == 1 and "Join" not in plan, plan


@pytest.mark.spark_long
def test_keys_expressions_and_transactions(spark: SparkSession) -> None:
    rows = [
        row(0, keys="k1", properties={"SPARK_TXN": "q/0/0/1", "pay": "1"}),
        row(1, keys=" k1 ", properties={"SPARK_TXN": "q/0/0/2", "pay": "2"}),
        row(2, keys="  ", properties={"pay": "2"}),
        row(3, keys=None, properties={"SPARK_TXN": "q/0/0/1"}),
    ]
    df = frame(spark, rows)
    offsets = {
        name: sorted(r["queueOffset"] for r in kept.select("queueOffset").collect())
        for name, kept in {
            "keys": dedup(df, "key"),
            "expression": dedup(df, "key", key="properties['pay']"),
            "txn": dedup(df, "spark_txn"),
            "array": dedup(df.selectExpr("* EXCEPT (keys)", "split(trim(keys), ' ') AS keys"), "key"),
        }.items()
    }
    assert offsets == {"keys": [0, 2, 3], "expression": [0, 1, 3], "txn": [0, 1, 2], "array": [0, 2, 3]}


@pytest.mark.spark_long
def test_a_stream_drops_repeats_within_the_watermark(spark: SparkSession, tmp_path: Path) -> None:
    source = str(tmp_path / "rows")
    frame(spark, [row(0, msg_id="a"), row(1, msg_id="b"), row(2, msg_id="")]).coalesce(1).write.parquet(source)
    stream = spark.readStream.schema(SCHEMA).parquet(source)
    kept = dedup(stream, watermark="10 minutes")
    assert kept.columns == stream.columns

    def run() -> None:
        query = (
            kept.select("queueOffset", "msgId").writeStream.format("parquet")
            .option("path", str(tmp_path / "out")).option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        assert query.awaitTermination(200)

    run()
    again = [row(3, msg_id="b"), row(4, msg_id="c"), row(5, msg_id=""), row(6, msg_id="c")]
    frame(spark, again).coalesce(1).write.mode("append").parquet(source)
    run()
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(r["msgId"] for r in found) == ["", "", "a", "b", "c"]
    assert {r["queueOffset"] for r in found} - {4, 6} == {0, 1, 2, 5}


def test_refusals(spark: SparkSession, tmp_path: Path) -> None:
    df = frame(spark, [row(0)])
    stream = spark.readStream.schema(SCHEMA).parquet(str(tmp_path))
    with pytest.raises(UsageError, match="watermark="):
        dedup(stream)
    with pytest.raises(UsageError, match="watermark='ten'"):
        dedup(stream, watermark="ten")
    with pytest.raises(UsageError, match="takes no earlier="):
        dedup(stream, watermark="1 hour", earlier=df)
    with pytest.raises(UsageError, match="takes a batch"):
        count_duplicates(stream)
    with pytest.raises(UsageError, match="needs the columns msgId"):
        dedup(df.drop("msgId"))
    with pytest.raises(UsageError, match="one of 'id', 'key', 'spark_txn'"):
        dedup(df, "body")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="by='key'"):
        dedup(df, "id", key="keys")


def test_the_steps_have_the_names_of_their_modules() -> None:
    for name in steps.__all__:
        assert callable(getattr(steps, name)), name
    assert {"decode", "dedup", "latency", "order", "replay", "windows"} <= set(steps.__all__)
