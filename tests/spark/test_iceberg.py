"""The Iceberg table over an archive's files: as many rows as the manifest says, whatever crashes. No Spark."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from aiorocket.errors import RocketError, UsageError
from aiorocket.model import Queue
from aiorocket.runtime.clock import WallClock
from aiorocket.spark.steps import Table, iceberg_table
from aiorocket.spark.steps.files import iceberg, iceberg_catalog
from aiorocket.spark.steps.files.folder import Folder
from aiorocket.spark.steps.files.hours import HourWriter, lasting
from aiorocket.spark.steps.files.iceberg import expire_iceberg, sync_iceberg
from aiorocket.spark.steps.files.manifest import Archive, DataFile, FileOrigin, Snapshot, Span
from tests.spark.kills import s3_environment
from tests.spark.lakes import add, make, rows_of
from tests.spark.test_object_store import s3

pytestmark = pytest.mark.usefixtures("pyiceberg")

Q0, DLQ = Queue("orders", "broker-a", 0), Queue("%DLQ%|group", "broker-a", 0)


def names(table: Any) -> set[str]:
    return {Path(task.file.file_path).name for task in table.scan().plan_files()}


def compacted(archive: Archive, snapshot: Snapshot) -> Snapshot:
    """The second hour of Q0, offsets 60 to 109, in one file."""
    old = [each.path for each in snapshot.files if "hour=13" in each.path]
    staging = HourWriter(archive.folder, "_staging/c")
    staging.add(Q0, rows_of(Q0, range(60, 110)))
    placed, moves = lasting(archive.folder, staging.finish(), "_staging/c", FileOrigin(True, 1))
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
        after, real = compacted(archive, snapshot), iceberg_catalog._data_file

        def beside(*given: Any) -> Any:
            monkeypatch.setattr(iceberg_catalog, "_data_file", real)
            sync_iceberg(archive)
            return real(*given)

        monkeypatch.setattr(iceberg_catalog, "_data_file", beside)
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


def configure(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """A catalogue of one's own, that serves more than one folder."""
    monkeypatch.setenv("PYICEBERG_CATALOG__AIOROCKET__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__AIOROCKET__URI", f"sqlite:///{file}")


def lose_answers(monkeypatch: pytest.MonkeyPatch, *calls: str) -> None:
    """The catalogue does what it is told to, and nobody hears of it."""
    sql = pytest.importorskip("pyiceberg.catalog.sql")

    def lost(call: Any) -> Any:
        def made(*given: Any) -> None:
            call(*given)
            raise RESTError("no answer")

        return made

    from pyiceberg.exceptions import RESTError

    for name in calls:
        monkeypatch.setattr(sql.SqlCatalog, name, lost(getattr(sql.SqlCatalog, name)))


def test_a_table_whose_making_had_no_answer_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = make(tmp_path / "orders", format="iceberg")
    with monkeypatch.context() as silent:
        lose_answers(silent, "commit_table")
        table = iceberg_table(archive)
    with closing(table.catalog):
        assert table.name() == ("lake", "orders")


def rows_in(table: Any) -> tuple[str, int]:
    with closing(table.catalog):
        return ".".join(table.name()), table.scan().to_arrow().num_rows


@pytest.mark.spark_long
def test_archives_of_one_name_share_a_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, tmp_path / "catalog.db")
    paths = ["a/orders", "b/orders", "c/b/orders", "a_orders", "a/orders_"]
    archives = [make(tmp_path / each, format="iceberg") for each in paths]
    for _ in range(2):
        for count, each in enumerate(archives, start=1):
            add(each, {Q0: range(each.snapshot().rows, each.snapshot().rows + count)})
            sync_iceberg(each)
    found = [rows_in(iceberg_table(each)) for each in archives]
    assert found == [
        ("lake.orders", 2), ("lake.b_orders", 4), (f"lake.orders_{archives[2].id}", 6), ("lake.a_orders", 8),
        ("lake.orders_", 10),
    ]  # fmt: skip
    assert not (tmp_path / "a/orders/_iceberg.db").exists()


@pytest.mark.spark_long
@pytest.mark.usefixtures("arrow_parts")
def test_pipelines_share_a_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their folders have the same names."""
    configure(monkeypatch, tmp_path / "catalog.db")
    for count, pipeline in enumerate(["shop", "bank"], start=1):
        own = Table.open(str(tmp_path / pipeline / "dedup"), "x", {}, "iceberg")
        own.write(part(range(count)), {Q0: (0, count)}, count)
        other = make(tmp_path / pipeline / "dedup_rows", format="iceberg")  # as the first one's table is called
        sync_iceberg(other)
    found = [
        rows_in(Table.open(str(tmp_path / each / "dedup"), "x", {}, "iceberg").iceberg("rows"))
        for each in ("shop", "bank")
    ]
    assert found == [("lake.dedup_rows", 1), ("lake.bank_dedup_rows", 2)]


@pytest.mark.spark_long
@pytest.mark.usefixtures("arrow_parts")
def test_a_second_catalogue_over_the_same_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = make(tmp_path / "orders", format="iceberg")
    add(archive, {Q0: range(60, 80)})
    snapshot = add(archive, {Q0: range(80, 110)})
    sync_iceberg(archive)
    own = Table.open(str(tmp_path / "decoded"), "x", {}, "iceberg")
    own.write(part(range(5)), {Q0: (0, 5)}, 5)
    monkeypatch.setattr(iceberg_catalog, "_ON_THE_WAY", -60.0)
    with monkeypatch.context() as elsewhere:
        configure(elsewhere, tmp_path / "catalog.db")
        before = {each for each in tmp_path.rglob("*") if each.is_file()}
        with pytest.raises(
            UsageError, match=r"orders: its Iceberg table lake\.orders is in another catalogue than this"
        ):
            expire_iceberg(archive, snapshot, 1 << 60)
        with pytest.raises(UsageError, match=r"decoded: its Iceberg table lake\.decoded_rows is in another catalogue"):
            Table.open(str(tmp_path / "decoded"), "x", {}, "iceberg")
        assert {each for each in tmp_path.rglob("*") if each.is_file()} - before == {tmp_path / "catalog.db"}
    table = iceberg_table(archive)
    assert readable(table) == [50] and rows_in(table) == ("lake.orders", 50)
    # Whoever means it says so.
    (tmp_path / "orders/_iceberg.json").unlink()
    (tmp_path / "orders/_iceberg.db").unlink()
    configure(monkeypatch, tmp_path / "catalog.db")
    sync_iceberg(archive)
    assert rows_in(iceberg_table(archive)) == ("lake.orders", 50)


@pytest.mark.spark_long
@pytest.mark.parametrize("noted", [True, False])
def test_a_copy_leaves_the_table_of_the_original_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted: bool
) -> None:
    configure(monkeypatch, tmp_path / "catalog.db")
    archive = make(tmp_path / "orders", format="iceberg")
    add(archive, {Q0: range(10)})
    sync_iceberg(archive)
    shutil.copytree(tmp_path / "orders", tmp_path / "b/orders")
    copy = Archive.open(str(tmp_path / "b/orders"))
    if noted:
        with pytest.raises(UsageError, match="of which this is a copy, or it was moved"):
            sync_iceberg(copy)
    (tmp_path / "b/orders/_iceberg.json").unlink()  # as one that an earlier version has made
    sync_iceberg(copy)
    add(copy, {Q0: range(10, 30)})
    sync_iceberg(copy)
    assert rows_in(iceberg_table(copy)) == ("lake.b_orders", 30)
    assert rows_in(iceberg_table(archive)) == ("lake.orders", 10)


@pytest.mark.usefixtures("arrow_parts")
def test_a_step_without_a_catalogue_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Folder, "local", False)
    with pytest.raises(UsageError, match="PYICEBERG_CATALOG__AIOROCKET__URI"):
        Table.open(str(tmp_path / "decoded"), "x", {}, "iceberg")
    assert list(tmp_path.iterdir()) == []


def test_a_store_needs_a_catalogue(tmp_path: Path) -> None:
    archive = make(tmp_path, format="iceberg")
    archive.folder._local = False
    with pytest.raises(UsageError, match="PYICEBERG_CATALOG__AIOROCKET__URI"):
        sync_iceberg(archive)


def test_a_catalogue_that_fails_is_told_in_a_line(tmp_path: Path) -> None:
    archive = make(tmp_path / "orders", format="iceberg")
    add(archive, {Q0: range(3)})
    sync_iceberg(archive)
    add(archive, {Q0: range(3, 5)})
    file = tmp_path / "orders/_iceberg.db"
    with closing(sqlite3.connect(file)) as catalog:
        catalog.execute("CREATE TRIGGER t BEFORE UPDATE ON iceberg_tables BEGIN SELECT raise(ABORT, 'not today'); END")
        with pytest.raises(
            RocketError, match=rf"^Iceberg catalogue sqlite:///{file}: .* not today\. Nothing is lost: .+$"
        ):
            sync_iceberg(archive)
        catalog.execute("DROP TRIGGER t")
    sync_iceberg(archive)
    assert rows_in(iceberg_table(archive)) == ("lake.orders", 5)
    file.write_bytes(b"something else")
    with pytest.raises(RocketError, match=r"_iceberg\.db: .* file is not a database\. Nothing is lost: .+$"):
        sync_iceberg(archive)


@pytest.mark.parametrize(
    ("kind", "uri", "error", "told"),
    [
        ("nonsense", "sqlite:///:memory:", UsageError, "sqlite:///:memory:: 'nonsense' is not a valid CatalogType"),
        ("sql", "sqlite:////no/such/folder/x.db", RocketError, "sqlite:////no/such/folder/x.db: .*unable to open"),
        ("rest", "http://user:secret@127.0.0.1:1/", RocketError, "http://127.0.0.1:1/: .*Connection refused"),
    ],
)
def test_a_catalogue_that_cannot_be_opened_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, uri: str, error: type[RocketError], told: str
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__AIOROCKET__TYPE", kind)
    monkeypatch.setenv("PYICEBERG_CATALOG__AIOROCKET__URI", uri)
    archive = make(tmp_path / "orders", format="iceberg")
    with pytest.raises(error, match=f"^Iceberg catalogue {told}.*$") as caught:
        sync_iceberg(archive)
    assert "secret" not in str(caught.value)


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


@pytest.mark.spark_long
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


def readable(table: Any) -> list[int]:
    """How many rows each snapshot has, the oldest first; each has to have all of its files."""
    found = sorted(table.snapshots(), key=lambda each: each.sequence_number)
    return [table.scan(snapshot_id=each.snapshot_id).to_arrow().num_rows for each in found]


def avro(folder: Path) -> set[str]:
    return {each.name for each in folder.glob("*.avro")}


def aged(folder: Path) -> None:
    """As if nothing were on the way any more."""
    for each in folder.glob("*.avro"):
        os.utime(each, (0, 1e9))


@pytest.mark.spark_long
def test_snapshots_go_when_their_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive, metadata = make(tmp_path / "orders", format="iceberg"), tmp_path / "orders/data/metadata"
    for number in range(6):
        snapshot = add(archive, {Q0: range(number * 20, number * 20 + 20)})
        sync_iceberg(archive)
    table = iceberg_table(archive)
    with closing(table.catalog):
        every = [20, 40, 60, 80, 100, 120]
        expire_iceberg(archive, snapshot, 1 << 60)
        table.refresh()
        assert readable(table) == every  # they are old and few
        monkeypatch.setattr(iceberg_catalog, "_SNAPSHOTS", 3)
        expire_iceberg(archive, snapshot, 0)
        table.refresh()
        assert readable(table) == every  # they are many and new

        # A process that dies behind the commit leaves metadata that nobody names; the next one removes it.
        aged(metadata)
        before, real = avro(metadata), iceberg.sweep
        monkeypatch.setattr(iceberg, "sweep", died)
        with pytest.raises(ConnectionAbortedError):
            expire_iceberg(archive, snapshot, 1 << 60)
        table.refresh()
        assert readable(table) == every[3:] and avro(metadata) == before
        monkeypatch.setattr(iceberg, "sweep", real)
        (metadata / "on-the-way.avro").touch()
        expire_iceberg(archive, snapshot, 1 << 60)
        left = avro(metadata)
        assert left < before | {"on-the-way.avro"} and "on-the-way.avro" in left
        table.refresh()
        assert readable(table) == every[3:]
        add(archive, {Q0: range(120, 130)})
        sync_iceberg(archive)
        table.refresh()
        assert readable(table) == [*every[3:], 130]


def died(*_: object) -> None:
    raise ConnectionAbortedError


@pytest.mark.spark_long
def test_a_snapshot_goes_before_its_files_and_no_sooner(tmp_path: Path) -> None:
    archive = make(tmp_path / "orders", format="iceberg")
    add(archive, {Q0: range(90)})
    snapshot = add(archive, {Q0: range(90, 110)})
    sync_iceberg(archive)
    table = iceberg_table(archive)
    with closing(table.catalog):
        table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "mine").commit()
        after = compacted(archive, snapshot)
        sync_iceberg(archive)
        [at_ms] = {old.at_ms for old in after.superseded}
        expire_iceberg(archive, after, at_ms - 1)
        table.refresh()
        assert readable(table) == [110, 110]
        expire_iceberg(archive, after, at_ms)
        table.refresh()
        assert readable(table) == [110, 110]  # somebody wants it
        table.manage_snapshots().remove_tag("mine").commit()
        expire_iceberg(archive, after, at_ms)
        table.refresh()
        assert readable(table) == [110] and names(table) == {Path(each.path).name for each in after.files}
        # Files that went earlier are named by nothing any more: the archive has forgotten them.
        for old in after.superseded:
            archive.folder.remove(old.path)
        expire_iceberg(archive, archive.snapshot(), 0)
        table.refresh()
        assert readable(table) == [110]


@pytest.mark.spark_long
def test_snapshots_that_do_not_say_their_generation_stay_while_nothing_was_replaced(tmp_path: Path) -> None:
    archive = make(tmp_path / "orders", format="iceberg")
    snapshot = add(archive, {Q0: range(20)})
    sync_iceberg(archive)
    table = iceberg_table(archive)
    with closing(table.catalog):
        for _ in range(2):  # another tool's, as of a version that did not say it
            table.append(table.scan().to_arrow().slice(0, 0))
        expire_iceberg(archive, snapshot, 0)
        table.refresh()
        assert readable(table) == [20, 20, 20]


@pytest.mark.spark_long
def test_manifests_stay_few(tmp_path: Path) -> None:
    archive = make(tmp_path / "orders", format="iceberg")
    table = iceberg_table(archive)
    with closing(table.catalog):
        with table.transaction() as change:
            change.set_properties({"commit.manifest.min-count-to-merge": "3"})
        for number in range(7):
            add(archive, {Q0: range(number, number + 1)})
            sync_iceberg(archive)
        table.refresh()
        assert len(table.current_snapshot().manifests(table.io)) <= 2 and readable(table) == list(range(1, 8))


@pytest.fixture
def arrow_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a step's table are tables of Arrow, no DataFrames."""

    def write(rows: Any, location: str) -> None:
        folder = Path(location.removeprefix("file://"))
        folder.mkdir(parents=True)
        parquet.write_table(rows, folder / "part-0.parquet")

    monkeypatch.setattr("aiorocket.spark.steps.rows.write_parquet", write)


def part(numbers: range, **more: list[Any]) -> dict[str, Any]:
    return {"rows": pa.table({"number": pa.array(numbers, pa.int32()), **more})}


@pytest.mark.usefixtures("arrow_parts")
def test_the_table_of_a_step_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Table.open(str(tmp_path / "decoded"), "x", {}, "iceberg")
    metadata = tmp_path / "decoded/_iceberg/rows"
    with pytest.raises(KeyError):
        own.iceberg("rows")
    own.write(part(range(5)), {Q0: (0, 5)}, 5)
    with monkeypatch.context() as dying, pytest.raises(ConnectionAbortedError):
        dying.setattr("aiorocket.spark.steps.tables.table.sync_iceberg_parts", died)
        own.write(part(range(5, 9)), {Q0: (5, 9)}, 4)
    table = own.iceberg("rows")
    with closing(table.catalog):
        assert table.name() == ("lake", "decoded_rows") and readable(table) == [5]
        own = Table.open(str(tmp_path / "decoded"), "x", {}, "iceberg")  # it is made up for, once
        Table.open(str(tmp_path / "decoded"), "x", {}, "iceberg")
        own.write(part(range(9, 10)), {Q0: (9, 10)}, 1)
        table.refresh()
        assert readable(table) == [5, 9, 10]

        # Rewritten, with another type and a column more: as it was can be read for as long as the files are kept.
        def rewrite(keep: float, **more: list[Any]) -> None:
            before = own.snapshot()
            rows = {"rows": pa.table({"number": pa.array(range(10), pa.int64()), **more})}
            own._rewrite(before, {"rows": list(before.files)}, rows, keep)

        rewrite(3600, note=[None] * 9 + ["n"])
        table.refresh()
        assert readable(table) == [5, 9, 10, 10]
        rows = table.scan().to_arrow()
        assert (rows["number"].to_pylist(), rows["note"].to_pylist()[-1]) == (list(range(10)), "n")
        assert rows["number"].type == pa.int64()
        rewrite(0, note=["m"] * 10)
        own._tidy()
        table.refresh()
        assert readable(table) == [10] and len(list(tmp_path.glob("decoded/rows/run=*/*"))) == 1 + 3
        aged(metadata)
        for _ in range(2):
            own.write(part(range(3)), {Q0: (0, 10)}, 10, whole=True)
        table.refresh()
        assert readable(table) == [3] and len(avro(metadata)) < 12
        assert own.folder.names("rows") == [] and parquet.read_table(tmp_path / "decoded/rows").num_rows == 3


@pytest.mark.spark_long
@pytest.mark.timeout(180)
def test_an_archive_and_a_steps_table_in_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrow_parts: None) -> None:
    pytest.importorskip("moto", reason="the extra dev is not installed")
    with s3("lake", tmp_path / "moto") as address:
        for name, value in s3_environment(address).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PYICEBERG_CATALOG__AIOROCKET__TYPE", "sql")
        monkeypatch.setenv("PYICEBERG_CATALOG__AIOROCKET__URI", f"sqlite:///{tmp_path}/catalog.db")
        archive = make("s3a://lake/orders", format="iceberg")
        add(archive, {Q0: range(90)})
        sync_iceberg(archive)
        snapshot = add(archive, {Q0: range(90, 110)})
        sync_iceberg(archive)
        after = compacted(archive, snapshot)
        sync_iceberg(archive)
        table = iceberg_table(archive)
        with closing(table.catalog):
            assert readable(table) == [90, 110, 110]
            assert all(task.file.file_path.startswith("s3://lake/orders/data/") for task in table.scan().plan_files())
            monkeypatch.setattr(iceberg_catalog, "_ON_THE_WAY", -60.0)
            before = archive.folder.names("data/metadata")
            expire_iceberg(archive, after, 1 << 60)
            table.refresh()
            assert readable(table) == [110] and len(archive.folder.names("data/metadata")) < len(before)
        monkeypatch.setattr("aiorocket.spark.steps.rows.write_parquet", in_store)
        own = Table.open("s3a://lake/decoded", "x", {}, "iceberg")
        for number in range(2):
            own.write(part(range(number, number + 1)), {Q0: (number, number + 1)}, 1)
        table = own.iceberg("rows")
        with closing(table.catalog):
            assert readable(table) == [1, 2]


def in_store(rows: Any, location: str) -> None:
    folder = Folder(location)
    with folder.filesystem.open_output_stream(folder.full("part-0.parquet")) as stream:
        parquet.write_table(rows, stream)


@pytest.mark.spark_long
@pytest.mark.usefixtures("arrow_parts")
def test_files_whose_time_comes_during_a_run_go_behind_their_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Table.open(str(tmp_path / "decoded"), "x", {}, "iceberg")
    own.write(part(range(5)), {Q0: (0, 5)}, 5)
    before, now = own.snapshot(), WallClock().wall_ms()
    monkeypatch.setattr(WallClock, "wall_ms", lambda _: now)
    own._rewrite(before, {"rows": list(before.files)}, part(range(5)), 60)
    table = own.iceberg("rows")
    with closing(table.catalog):
        assert readable(table) == [5, 5]
        monkeypatch.setattr(WallClock, "wall_ms", lambda _: now + 60_000)
        own.write(part(range(5, 9)), {Q0: (5, 9)}, 4)
        assert not own.folder.exists(before.files[0].path)
        table.refresh()
        assert readable(table) == [5, 9]
