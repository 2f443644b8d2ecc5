"""The order step finds what was planted, and nothing else."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aiorocket.errors import UsageError
from aiorocket.spark.steps.functions.order import OrderWatch, key_order, order, queue_order, summary
from tests.spark.row_frames import SCHEMA, frame, row, shuffled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEQ = "properties['seq']"


def _keyed(offset: int, key: str, seq: int | None, *, queue: int = 0) -> tuple[Any, ...]:
    properties = {"__SHARDINGKEY": key}
    if seq is not None:
        properties["seq"] = str(seq)
    return row(offset, queue=queue, properties=properties)


def _found(findings: DataFrame) -> list[tuple[Any, ...]]:
    rows = findings.collect()
    return sorted(
        (r["scope"], r["kind"], r["key"] or "", r["queueId"], r["queueOffset"], r["expected"], r["found"]) for r in rows
    )


def test_queues(spark: SparkSession) -> None:
    rows = [row(n) for n in (5, 6, 9, 10, 10)]
    rows += [row(0, queue=1, stored=1.5), row(1, queue=1, stored=1.2), row(2, queue=1, stored=1.2)]
    rows += [row(n, queue=2) for n in range(5)]
    findings = order(frame(spark, shuffled(rows))).cache()
    start = int(row(0)[11].timestamp() * 1000)
    assert _found(findings) == [
        ("queue", "duplicate", "", 0, 10, 11, 10),
        ("queue", "gap", "", 0, 9, 7, 9),
        ("queue", "time", "", 1, 1, start + 1500, start + 1200),
    ]
    totals = {r["kind"]: (r["findings"], r["missing"], r["queues"]) for r in summary(findings).collect()}
    assert totals == {"duplicate": (1, 0, 1), "gap": (1, 2, 1), "time": (1, 0, 1)}
    findings.unpersist()


@pytest.mark.spark_long
def test_a_planted_redelivery_and_a_planted_swap(spark: SparkSession) -> None:
    good = [_keyed(n, "calm", n + 1) for n in range(4)]
    swap = [_keyed(10 + n, "swapped", seq) for n, seq in enumerate([1, 3, 2, 4])]
    again = [_keyed(20 + n, "repeated", seq) for n, seq in enumerate([1, 2, 1, 3])]
    hole = [_keyed(30 + n, "hole", seq) for n, seq in enumerate([1, 2, 6, 7])]
    none = [row(40), _keyed(41, "calm", None), _keyed(42, "", 9)]
    df = frame(spark, shuffled([*good, *swap, *again, *hole, *none]))
    assert _found(key_order(df, sequence=SEQ)) == [
        ("key", "backwards", "swapped", 0, 12, 4, 2),
        ("key", "missing", "hole", 0, 32, 3, 6),
        ("key", "repeated", "repeated", 0, 22, 3, 1),
    ]


@pytest.mark.spark_long
def test_by_the_time_of_making(spark: SparkSession) -> None:
    rows = [row(0, born=1, keys="k"), row(1, born=3, keys="k"), row(2, born=3, keys="k"), row(3, born=2, keys="k")]
    findings = _found(key_order(frame(spark, rows), key="keys"))
    assert [(kind, offset) for _, kind, _, _, offset, _, _ in findings] == [("backwards", 3)]


@pytest.mark.spark_long
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(0, 12), min_size=1, max_size=20), st.lists(st.integers(0, 20), min_size=1, max_size=15))
def test_findings_are_those_of_a_walk(spark: SparkSession, sequences: list[int], offsets: list[int]) -> None:
    keyed = frame(spark, [_keyed(n, "k", seq) for n, seq in enumerate(sequences)])
    expected: list[tuple[str, int]] = []
    highest, seen = -1, set[int]()
    for n, seq in enumerate(sequences):
        if seq in seen:
            expected.append(("repeated", n))
        elif seq < highest:
            expected.append(("backwards", n))
        seen.add(seq)
        highest = max(highest, seq)
    there = sorted(seen)
    for low, high in pairwise(there):
        if high > low + 1:
            expected.append(("missing", sequences.index(high)))
    found = [(kind, offset) for _, kind, _, _, offset, _, _ in _found(key_order(keyed, sequence=SEQ))]
    assert sorted(found) == sorted(expected)
    plain = frame(spark, [row(offset) for offset in offsets])
    counted: dict[str, int] = {}
    for _, kind, _, _, _, low, high in _found(queue_order(plain)):
        counted[kind] = counted.get(kind, 0) + (high - low if kind == "gap" else 1)
    distinct = set(offsets)
    holes = max(distinct) - min(distinct) + 1 - len(distinct)
    repeats = len(offsets) - len(distinct)
    assert counted == {kind: n for kind, n in (("gap", holes), ("duplicate", repeats)) if n}


@pytest.mark.spark_long
def test_a_stream_is_watched_from_batch_to_batch(spark: SparkSession, tmp_path: Path) -> None:
    source = str(tmp_path / "rows")
    (tmp_path / "rows").mkdir()
    found: dict[int, list[tuple[Any, ...]]] = {}
    watch = OrderWatch(tmp_path / "state", lambda df, batch: found.update({batch: _found(df)}), sequence=SEQ)
    stream = spark.readStream.schema(SCHEMA).parquet(source)
    for rows in (
        [_keyed(0, "a", 1), _keyed(1, "a", 2), _keyed(2, "b", 1)],
        [_keyed(3, "a", 4), _keyed(4, "a", 3), _keyed(6, "b", 1)],
        [_keyed(7, "a", 2), _keyed(8, "a", 6)],
    ):
        frame(spark, rows).coalesce(1).write.mode("append").parquet(source)
        query = (
            stream.writeStream.foreachBatch(watch).option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        assert query.awaitTermination(200)
    assert found == {
        0: [],
        1: [
            ("key", "backwards", "a", 0, 4, 5, 3),
            ("key", "repeated", "b", 0, 6, 2, 1),
            ("queue", "gap", "", 0, 6, 5, 6),
        ],
        2: [("key", "backwards", "a", 0, 7, 5, 2), ("key", "missing", "a", 0, 8, 5, 6)],
    }
    first = dict(found)
    watch(frame(spark, [_keyed(7, "a", 2), _keyed(8, "a", 6)]), 2)  # Spark repeats a batch after a crash
    assert found == first
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["1", "2"]
    plain = OrderWatch(tmp_path / "plain", lambda df, batch: found.update({batch: _found(df)}))
    plain(frame(spark, [row(4), row(6)]).drop("properties", "body"), 0)
    assert found[0] == [("queue", "gap", "", 0, 6, 5, 6)]
    with pytest.raises(UsageError, match="batch 9 needs the state"):
        watch(frame(spark, [row(0)]), 9)
    with pytest.raises(UsageError, match="OrderWatch"):
        order(stream)
