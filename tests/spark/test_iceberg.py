"""The Iceberg table over an archive's files: as many rows as the manifest says, whatever crashes. No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from aiorocket.errors import UsageError
from aiorocket.model import Queue
from aiorocket.spark.steps import iceberg, iceberg_table
from aiorocket.spark.steps.hours import HourWriter
from aiorocket.spark.steps.iceberg import sync_iceberg
from aiorocket.spark.steps.manifest import Archive, DataFile, FileOrigin, Snapshot, Span, lasting
from tests.spark.lakes import add, make, rows_of

pytest.importorskip("pyiceberg", reason="the extra iceberg is not installed")

Q0, DLQ = Queue("orders", "broker-a", 0), Queue("%DLQ%|group", "broker-a", 0)


@pytest.fixture(autouse=True)
def no_threads() -> Iterator[None]:
    """pyiceberg's threads wait for more to do as long as the process lives."""
    yield
    from pyiceberg.utils.concurrent import ExecutorFactory

    if ExecutorFactory._instance is not None:
        ExecutorFactory._instance.shutdown()
        ExecutorFactory._instance = None


def names(table: Any) -> set[str]:
    return {Path(task.file.file_path).name for task in table.scan().plan_files()}


def compacted(archive: Archive, snapshot: Snapshot) -> Snapshot:
    """The second hour of Q0, offsets 60 to 109, in one file."""
    old = [each.path for each in snapshot.files if "hour=13" in each.path]
    staging = HourWriter(archive.folder, "_staging/c")
    staging.add(Q0, rows_of(Q0, range(60, 110)))
    placed, moves = lasting(staging.finish(), "_staging/c", FileOrigin(True, 1))
    archive.folder.move(moves)
    return archive.publish_generation(snapshot, old, placed)


def test_the_table_follows_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = make(tmp_path / "orders", format="iceberg")
    assert sync_iceberg(archive) is None  # a table, and nothing in it
    add(archive, {Q0: range(90), DLQ: range(5)})
    first = sync_iceberg(archive)
    assert first is not None and sync_iceberg(archive) is None
    add(archive, {Q0: range(90, 100)})
    snapshot = add(archive, {Q0: range(100, 110)})  # a crash before both: the next call brings them together
    sync_iceberg(archive)
    table = iceberg_table(archive)
    with closing(table.catalog):
        assert table.name() == ("lake", "orders") and names(table) == {Path(each.path).name for each in snapshot.files}
        rows = table.scan().to_arrow()
        assert sorted(rows["topic"].to_pylist()) == [DLQ.topic] * 5 + ["orders"] * 110
        found = table.scan(row_filter="topic == 'orders' and queueOffset >= 103 and queueOffset < 105").to_arrow()
        one, two = sorted(found.to_pylist(), key=lambda row: row["queueOffset"])
        assert (one["body"], dict(one["properties"])["number"], one["hour"]) == (b"body 103", "103", "13")
        assert two["queueOffset"] == 104

        # Archive and compact bring it up to date at once: whoever is second looks again, and adds nothing twice.
        after, real = compacted(archive, snapshot), iceberg._data_file

        def beside(*given: Any) -> Any:
            monkeypatch.setattr(iceberg, "_data_file", real)
            sync_iceberg(archive)
            return real(*given)

        monkeypatch.setattr(iceberg, "_data_file", beside)
        assert sync_iceberg(archive, after) is None
        table.refresh()
        assert names(table) == {Path(each.path).name for each in after.files}
        assert table.scan().to_arrow().num_rows == 115
        # As it was: each of its snapshots says up to which commit.
        seen = [
            (table.snapshot_by_id(each.snapshot_id).summary["aiorocket.commit"],
             table.scan(snapshot_id=each.snapshot_id).to_arrow().num_rows)
            for each in table.history()
        ]  # fmt: skip
        assert seen == [("0", 95), ("2", 115), ("2", 115)] and table.history()[0].snapshot_id == first

    # An archive step that began before the compaction goes on from the snapshot it knows.
    later = add(archive, {Q0: range(110, 112)}, snapshot=snapshot)
    sync_iceberg(archive, later)
    table = iceberg_table(archive)
    with closing(table.catalog):
        assert names(table) == {Path(each.path).name for each in archive.snapshot().files}
        assert table.scan().to_arrow().num_rows == 117


def test_a_table_that_another_tool_rewrote_is_refused(tmp_path: Path) -> None:
    archive = make(tmp_path / "orders", format="iceberg")
    add(archive, {Q0: range(10)})
    snapshot = add(archive, {Q0: range(10, 20)})
    sync_iceberg(archive)
    table = iceberg_table(archive)
    with closing(table.catalog):
        table.delete("queueOffset < 5")
    old = [each.path for each in snapshot.files]
    new = DataFile(f"{old[0].rpartition('/')[0]}/new.parquet", 20, 5, {Q0: Span(0, 20, 20)})
    archive.publish_generation(snapshot, old, [new])
    with pytest.raises(UsageError, match="another tool has rewritten it"):
        sync_iceberg(archive)


def test_a_table_of_another_archive_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a catalogue of one's own, that serves more than one."""
    monkeypatch.setenv("PYICEBERG_CATALOG__AIOROCKET__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__AIOROCKET__URI", f"sqlite:///{tmp_path}/catalog.db")
    first, other = (make(tmp_path / each / "orders", format="iceberg") for each in "ab")
    add(first, {Q0: range(10)})
    assert sync_iceberg(first) is not None and not (tmp_path / "a/orders/_iceberg.db").exists()
    with pytest.raises(UsageError, match=r"has a table lake\.orders already, of another archive"):
        sync_iceberg(other)


def test_a_store_needs_a_catalogue(tmp_path: Path) -> None:
    archive = make(tmp_path, format="iceberg")
    archive.folder._local = False
    with pytest.raises(UsageError, match="PYICEBERG_CATALOG__AIOROCKET__URI"):
        sync_iceberg(archive)


@pytest.mark.parametrize("name", ["a b", "a%20b", "заказы'"])
def test_a_folder_may_have_an_odd_name(tmp_path: Path, name: str) -> None:
    archive = make(tmp_path / name / "orders", format="iceberg")
    add(archive, {Q0: range(3)})
    sync_iceberg(archive)
    table = iceberg_table(archive)
    with closing(table.catalog):
        assert table.scan().to_arrow().num_rows == 3


@pytest.mark.parametrize("name", ["a?b", "a#b"])
def test_what_pyiceberg_would_take_for_the_end_of_a_path_is_refused(tmp_path: Path, name: str) -> None:
    archive = make(tmp_path / name / "orders", format="iceberg")
    add(archive, {Q0: range(3)})
    with pytest.raises(UsageError, match="use another folder"):
        sync_iceberg(archive)
    assert [each.name for each in tmp_path.iterdir()] == [name]  # and nothing beside it


def test_old_metadata_goes(tmp_path: Path) -> None:
    archive = make(tmp_path / "orders", format="iceberg")
    table = iceberg_table(archive)
    with closing(table.catalog), table.transaction() as change:
        change.set_properties({"write.metadata.previous-versions-max": "2"})
    for number in range(5):
        add(archive, {Q0: range(number, number + 1)})
        sync_iceberg(archive)
    assert len(list(tmp_path.glob("orders/data/metadata/*.metadata.json"))) == 3
    table = iceberg_table(archive)
    with closing(table.catalog):
        assert table.scan(snapshot_id=table.history()[1].snapshot_id).to_arrow().num_rows == 2
