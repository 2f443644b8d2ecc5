"""The compact step: fewer files, the same rows, in order, whatever crashes in between."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow.parquet as pq
import pytest

from aiorocket.errors import RocketError, UsageError
from aiorocket.model import Queue
from aiorocket.spark.steps import Archive, ArchiveConflictError, Progress, archive_rows, compact
from aiorocket.spark.steps import compact as compact_step
from aiorocket.spark.steps.files.delta import sync_delta
from aiorocket.spark.steps.files.file_jobs import Held
from aiorocket.spark.steps.tables.table import Table
from tests.spark.lakes import CrashError, add, crash_at, make

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Q0, Q1, DLQ = Queue("007", "broker-a", 0), Queue("007", "broker-b", 1), Queue("%DLQ%g", "broker-a", 0)


def fill(archive: Archive) -> None:
    """Four commits, each with both queues of a topic (three hours together) and one of a dead-letter topic."""
    for begin in range(0, 80, 20):
        part = range(begin, begin + 20)
        add(archive, {Q0: part, Q1: part, DLQ: part[:5]}, minutes=2)
    # 5 to 20 and so on are gaps of the dead-letter topic: they must stay gaps.


def rows(spark: SparkSession, path: Path) -> list[tuple[object, ...]]:
    found = archive_rows(spark, str(path)).select("topic", "brokerName", "queueId", "queueOffset", "body", "properties")
    return sorted((*row[:4], bytes(row[4]), tuple(row[5].items())) for row in found.collect())


def on_disk(path: Path) -> set[str]:
    return {each.relative_to(path).as_posix() for each in (path / "data").rglob("*.parquet")}


@pytest.mark.spark_long
def test_compaction_survives_a_crash_at_every_step(spark: SparkSession, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    archive = make(tmp_path, format="delta")
    fill(archive)
    sync_delta(archive)
    before, first = rows(spark, tmp_path), archive.snapshot()
    assert len(before) == 180 and len(first.files) == 9

    for name in ("written", "written", "moved"):
        with pytest.raises(CrashError):
            compact(spark, str(tmp_path), on_step=crash_at(name))
        assert archive.snapshot() == first
        assert len(list((tmp_path / "_staging").glob("compact-*"))) == 1  # a service that dies each time fills no disk
    assert len(on_disk(tmp_path)) == 9 + 3
    with pytest.raises(CrashError):  # the manifest has the new files, the Delta table the old ones
        compact(spark, str(tmp_path), on_step=crash_at("published"))
    assert deltalake.DeltaTable(str(tmp_path / "data")).version() == 1
    assert rows(spark, tmp_path) == before

    report = compact(spark, str(tmp_path), keep=3600)
    assert report.rows_in == 0 and report.details["generations"] == 0  # nothing is left to do but to clean
    assert len(on_disk(tmp_path)) == 9 + 3  # the old ones may be in use; what the crashes left is gone
    snapshot = archive.snapshot()
    assert len(snapshot.files) == 6 and snapshot.missing() == {DLQ: 45} == report.missing
    table = deltalake.DeltaTable(str(tmp_path / "data"))
    assert {Path(uri).name for uri in table.file_uris()} == {Path(each.path).name for each in snapshot.files}
    assert table.to_pyarrow_table(columns=["queueOffset"]).num_rows == 180

    assert compact(spark, str(tmp_path), keep=0).details["removed"] == 6
    assert on_disk(tmp_path) == {each.path for each in snapshot.files}
    assert [each.name for each in (tmp_path / "_manifest").iterdir()] == ["compact-0000000001.json"]
    assert not list((tmp_path / "_staging").iterdir())
    assert rows(spark, tmp_path) == before


def test_files_are_sorted_and_near_their_target(spark: SparkSession, tmp_path: Path) -> None:
    archive = make(tmp_path)
    for begin in range(0, 50, 10):
        add(archive, {Q0: range(begin, begin + 10), Q1: range(begin, begin + 10), DLQ: range(begin, begin + 10)})
    size = archive.snapshot().select(["007"])[0].bytes
    said: list[Progress] = []
    report = compact(spark, str(tmp_path), topics=["007"], target_bytes=size * 9 // 4, keep=0, on_progress=said.append)
    assert (report.rows_in, report.rows_out) == (100, 100) and said[-1].done_rows == 100
    snapshot = archive.snapshot()
    noon = snapshot.select(["007"])
    assert len(noon) == 3 and report.details["removed"] == 5
    ends = []
    for each in sorted(noon, key=lambda each: (min(each.queues), each.queues[min(each.queues)].begin)):
        table = pq.ParquetFile(tmp_path / each.path).read(columns=["brokerName", "queueId", "queueOffset"])
        keys = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
        assert keys == sorted(keys)
        ends += [keys[0], keys[-1]]
    assert ends == sorted(ends)  # and they follow each other
    assert len(snapshot.select(["%DLQ%g"])) == 5  # not asked for

    add(archive, {Q0: range(50, 55)})  # the archive goes on after a generation
    assert archive.snapshot().queues[Q0] == (0, 55, 55) and len(rows(spark, tmp_path)) == 155


def test_a_signal_ends_a_compaction_behind_the_round_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a backlog of months takes longer than a service manager waits. Without Spark."""

    def run_tasks(spark: object, work: Callable[[object], Iterable[Held]], tasks: Sequence[object]) -> list[Held]:
        return [held for task in tasks for held in work(task)]

    module = "aiorocket.spark.steps.archives.compact"
    monkeypatch.setattr(f"{module}.run_tasks", run_tasks)
    monkeypatch.setattr(f"{module}._ROUND_FOLDERS", 1)
    archive, nobody = make(tmp_path), cast("SparkSession", None)
    fill(archive)
    told: list[str] = []
    first = compact(nobody, str(tmp_path), stop=lambda: "synced" in told, on_step=told.append)
    assert told.count("synced") == 1 and told[-1] == "cleaned" and first.details["generations"] == 1
    assert first.rows_in == first.rows_out < 180 and first.details["files_after"] == len(archive.snapshot().files)
    rest = compact(nobody, str(tmp_path))
    assert rest.rows_in + first.rows_in <= 180 and len(archive.snapshot().files) == 6
    assert archive.snapshot().rows == 180


def test_nothing_is_replaced_when_a_row_is_lost_or_another_run_was_quicker(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = make(tmp_path)
    for begin in (0, 5):
        add(archive, {Q0: range(begin, begin + 5)})
    before = archive.snapshot()

    def other(at: str) -> None:
        if at == "moved":
            archive.publish_generation(before, [], [])

    with pytest.raises(ArchiveConflictError, match="written by another run"):
        compact(spark, str(tmp_path), on_step=other)
    assert archive.snapshot().files == before.files

    def sweeper(at: str) -> None:
        if at == "written":
            archive.folder.remove_tree("_staging")

    with pytest.raises(ArchiveConflictError, match="was removed while it was written, by another compaction"):
        compact(spark, str(tmp_path), on_step=sweeper)
    assert archive.snapshot().files == before.files

    module = importlib.import_module("aiorocket.spark.steps.archives.compact")
    real = module.run_tasks
    monkeypatch.setattr(module, "run_tasks", lambda *given: real(*given)[1:])
    with pytest.raises(RocketError, match="nothing was replaced"):
        compact(spark, str(tmp_path))
    assert archive.snapshot().files == before.files
    with pytest.raises(UsageError, match="target_bytes=0"):
        compact(spark, str(tmp_path), target_bytes=0)


@pytest.mark.spark_long
def test_a_compaction_leaves_alone_what_another_is_writing(spark: SparkSession, tmp_path: Path) -> None:
    archive = make(tmp_path)
    fill(archive)
    before = rows(spark, tmp_path)

    def other(at: str) -> None:
        with pytest.raises(ArchiveConflictError, match="another run is at work here"):
            compact(spark, str(tmp_path))

    assert compact(spark, str(tmp_path), on_step=other).details["generations"] == 1
    assert rows(spark, tmp_path) == before


def test_what_a_failed_try_wrote_does_not_stay(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service tries again: on a full disk it would leave as much each time."""
    archive = make(tmp_path)
    for begin in (0, 5):
        add(archive, {Q0: range(begin, begin + 5)})
    module = importlib.import_module("aiorocket.spark.steps.archives.compact")
    real = module.run_tasks

    def one_fails(*given: object) -> None:
        assert real(*given)
        raise OSError("no space left on device")

    monkeypatch.setattr(module, "run_tasks", one_fails)
    with pytest.raises(OSError, match="no space"):
        compact(spark, str(tmp_path))
    assert not list((tmp_path / "_staging").glob("compact-*"))
    assert len(archive.snapshot().files) == 2


@pytest.mark.spark_long
def test_the_archive_goes_on_and_readers_read_on_beside_a_compaction(spark: SparkSession, tmp_path: Path) -> None:
    archive = make(tmp_path)
    for begin in (0, 5):
        add(archive, {Q0: range(begin, begin + 5)})
    reader = archive_rows(spark, str(tmp_path))  # read when everything is over
    stale, seen = [archive.snapshot()], []

    def beside(at: str) -> None:
        # The archive step does not read the manifest again between its batches.
        begin = stale[0].queues[Q0].end
        stale[0] = add(archive, {Q0: range(begin, begin + 5)}, snapshot=stale[0])
        seen.append((at, archive.snapshot().rows))

    report = compact(spark, str(tmp_path), on_step=beside)
    assert seen == [("written", 15), ("moved", 20), ("published", 25), ("synced", 30), ("cleaned", 35)]
    assert report.rows_out == 10 and report.details["generations"] == 1
    assert reader.count() == 10 and [row[3] for row in rows(spark, tmp_path)] == list(range(35))


@pytest.mark.spark_long
def test_a_table_of_many_runs_has_few_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta: readers that began before go on, and those of changes hear of none."""
    deltalake = pytest.importorskip("deltalake")
    path, table = str(tmp_path), Table.open(str(tmp_path), "x", {}, "delta")
    for at in range(3):
        both = {"rows": spark.range(at, at + 1).coalesce(1), "more": spark.range(at).coalesce(1)}
        before = table.write(both, {Q0: (at, at + 1)}, 1)
    first = deltalake.DeltaTable(f"{path}/rows")
    with monkeypatch.context() as crashing:  # a record, and no Delta commit yet
        crashing.setattr(Table, "_tidy", lambda self: self.snapshot())
        report = compact(spark, path)
    assert (report.rows_in, report.ranges, report.details["waiting"]) == (6, {Q0: (0, 3)}, 6)
    assert report.details["files_before"] == 6 and report.details["files_after"] == 2
    after = Table.open(path, "x", {}, "delta").snapshot()
    assert (after.rows("rows"), after.rows("more")) == (3, 3) == (before.rows("rows"), before.rows("more"))
    assert (after.ranges, after.rows_in, after.last) == (before.ranges, 3, 3)
    now = deltalake.DeltaTable(f"{path}/rows")
    assert [Path(each).parent.name for each in now.file_uris()] == ["run=0000000003"]
    log = (tmp_path / "rows/_delta_log/00000000000000000004.json").read_text()
    changes = [json.loads(line) for line in log.splitlines()]
    assert [each[kind]["dataChange"] for each in changes for kind in ("add", "remove") if kind in each] == [False] * 4
    assert sorted(first.to_pyarrow_table()["id"].to_pylist()) == [0, 1, 2]

    table.write({"rows": spark.range(3, 4).coalesce(1)}, {Q0: (3, 4)}, 1)
    with pytest.raises(UsageError, match="leave topics out"):
        compact(spark, path, topics=["t"])
    assert compact(spark, path, keep=0).details["waiting"] == 8 and table.snapshot().rows("rows") == 4
    assert compact(spark, path).rows_in == 0  # nothing to do but to clean
    assert len(list(tmp_path.glob("rows/run=*/*.parquet"))) == 1 + 3  # of the first, an hour is not over
    assert sorted(deltalake.DeltaTable(f"{path}/rows").to_pyarrow_table()["id"].to_pylist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_table_gets_the_column_that_a_later_release_writes(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, format: str
) -> None:
    deltalake = pytest.importorskip("deltalake")
    if format == "iceberg":
        request.getfixturevalue("pyiceberg")
    table = Table.open(str(tmp_path), "x", {}, format)
    table.write({"rows": spark.range(2).coalesce(1)}, {Q0: (0, 2)}, 2)
    table.write({"rows": spark.sql("SELECT 2L AS id, 'new' AS more")}, {Q0: (2, 3)}, 1)
    if format == "delta":
        found = deltalake.DeltaTable(f"{tmp_path}/rows").to_pyarrow_table()
    else:
        kept = table.iceberg("rows")
        with closing(kept.catalog):
            found = kept.scan().to_arrow()
    rows = zip(found["id"].to_pylist(), found["more"].to_pylist(), strict=True)
    assert sorted(rows) == [(0, None), (1, None), (2, "new")]


@pytest.mark.spark_long
def test_a_parquet_table_is_never_read_twice(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, table = str(tmp_path), Table.open(str(tmp_path), "x", {})
    table.write({"rows": spark.range(2).coalesce(1)}, {Q0: (0, 2)}, 2)
    table.write({"rows": spark.sql("SELECT 2L AS id, 'new' AS more")}, {Q0: (2, 3)}, 1)  # by a later release
    for step in ("_stage", "_publish"):  # files in staging, and in their places without a record
        real = getattr(Table, step)

        def dies(self: Table, *given: object, real: Callable[..., object] = real) -> None:
            if real.__name__ == "_stage":
                real(self, *given)
            else:
                self.folder.move({here: file.path for file, here in given[2].items()})  # type: ignore[attr-defined]
            raise CrashError

        with monkeypatch.context() as crashing:
            crashing.setattr(Table, step, dies)
            with pytest.raises(CrashError):
                compact(spark, path)
        assert Table.open(path, "x", {}).snapshot().last == 1
        assert sorted(row.id for row in spark.read.parquet(f"{path}/rows").collect()) == [0, 1, 2]
    with monkeypatch.context() as losing:
        losing.setattr(Table, "_count", lambda *_: 1)
        with pytest.raises(RocketError, match="3 rows before, 1 after: nothing was replaced"):
            compact(spark, path)
    assert compact(spark, path).rows_out == 3
    found = spark.read.parquet(f"{path}/rows").collect()
    assert sorted((row.id, row.more) for row in found) == [(0, None), (1, None), (2, "new")]
    assert len(list(tmp_path.rglob("*.parquet"))) == 1 and not list((tmp_path / "_staging").iterdir())


def test_a_step_is_no_module() -> None:
    module = importlib.import_module("aiorocket.spark.steps.archives.compact")
    assert module.compact is compact_step and callable(compact_step)
