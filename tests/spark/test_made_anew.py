"""A live topic that was made anew, and is as long as the one of before: steps know it by when the last row of their
table was stored. No Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from aiorocket.errors import UsageError
from aiorocket.model import Queue
from aiorocket.spark.planner import QueueRange
from aiorocket.spark.steps.proof import QueueCount
from aiorocket.spark.steps.report import StepReport
from aiorocket.spark.steps.tables import run
from aiorocket.spark.steps.tables.inputs import Input, _Live
from aiorocket.spark.steps.tables.run import Made, Output
from aiorocket.spark.steps.tables.table import Table
from tests.spark.producing import delete_topic, send

NO_SPARK: Any = None


class Frame:
    """What the drivers ask of a DataFrame."""

    def persist(self) -> Frame:
        return self

    def unpersist(self) -> None:
        pass


@pytest.fixture(autouse=True)
def no_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(rows: _Live, ranges: Sequence[QueueRange], frame: Frame) -> Mapping[Queue, QueueCount]:
        return {queue: QueueCount(end - begin, begin, end - 1, end - begin) for queue, begin, end in ranges}

    def write(frame: Frame, location: str) -> None:
        Path(location).mkdir(parents=True)
        parquet.write_table(pa.table({"id": [1]}), Path(location) / "part-0.parquet")

    monkeypatch.setattr(_Live, "read", lambda rows, ranges: Frame())
    monkeypatch.setattr(_Live, "count", count)
    monkeypatch.setattr("aiorocket.spark.steps.rows.write_parquet", write)


def test_a_table_that_grows_refuses_it(nameserver: str, topic: str, tmp_path: Path) -> None:
    def add() -> StepReport:
        def make(rows: Any, table: Table | None) -> Made:
            return Made(rows, {"rows": rows})

        given, output = Input(topic=topic, name_server=nameserver), Output(str(tmp_path))
        return run.add("decode", NO_SPARK, given, output, {}, make, splits=False)

    send(nameserver, topic, ["a", "b", "c"], queues=1)
    assert [add().rows_in, add().rows_in] == [3, 0]
    send(nameserver, topic, ["d"], queues=1)
    assert add().rows_in == 1
    delete_topic(nameserver, topic)
    send(nameserver, topic, ["e"] * 5, queues=1)
    with pytest.raises(UsageError, match=r"offset 3 is in the table as stored at .* the topic was made anew"):
        add()


def test_a_table_of_before_says_nothing_of_it(nameserver: str, topic: str, tmp_path: Path) -> None:
    """Made by a version that did not note it."""
    send(nameserver, topic, ["a", "b"], queues=1)
    table = Table.open(str(tmp_path), "decode", {**Input(topic=topic, name_server=nameserver).settings()})
    rows: Any = {"rows": Frame()}
    table.write(rows, {Queue(topic, "broker-a", 0): (0, 1)}, 1)
    [record] = (tmp_path / "_runs").iterdir()
    record.write_text(record.read_text().replace(',"stored":[]', ""))
    given, output = Input(topic=topic, name_server=nameserver), Output(str(tmp_path))
    report = run.add("decode", NO_SPARK, given, output, {}, lambda df, _: Made(df, {"rows": df}), splits=False)
    assert report.rows_in == 1


def test_a_table_of_all_rows_is_computed_again(nameserver: str, topic: str, tmp_path: Path) -> None:
    def whole() -> bool:
        given, output = Input(topic=topic, name_server=nameserver), Output(str(tmp_path))
        report = run.whole("windows", NO_SPARK, given, output, {}, lambda rows: {"windows": rows})
        return bool(report.details["up_to_date"])

    send(nameserver, topic, ["a", "b", "c"], queues=1)
    assert [whole(), whole()] == [False, True]
    delete_topic(nameserver, topic)
    send(nameserver, topic, ["d", "e", "f"], queues=1)
    assert [whole(), whole()] == [False, True]
