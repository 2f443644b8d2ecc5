"""Manifest, files and Delta table of an archive, and the proof by offsets: no Spark here."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiorocket.errors import RocketError, UsageError
from aiorocket.model import Queue
from aiorocket.spark.steps import Archive, ArchiveConflictError, StepReport, prove
from aiorocket.spark.steps.files import folder as folder_module
from aiorocket.spark.steps.files import hours
from aiorocket.spark.steps.files.delta import check_delta, sync_delta
from aiorocket.spark.steps.files.folder import Folder
from aiorocket.spark.steps.files.hours import HourWriter, count_files, lasting
from aiorocket.spark.steps.files.manifest import (
    Commit,
    DataFile,
    FileOrigin,
    Snapshot,
    Span,
    partition_folder,
    partition_of,
)
from aiorocket.spark.steps.proof import count_by_queue, repeated
from tests.spark.lakes import add, make, rows_of
from tests.spark.row_frames import frame, row, shuffled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Q0, Q1 = Queue("orders", "broker-a", 0), Queue("orders", "broker-a", 1)
DLQ = Queue("%DLQ%|group", "broker-a", 0)


def file(name: str, queue: Queue, begin: int, end: int, rows: int | None = None) -> DataFile:
    path = f"{partition_folder(queue.topic, 0)}/{name}.parquet"
    return DataFile(path, rows or end - begin, 100, {queue: Span(begin, end, rows or end - begin)})


def commit(queue: Queue, begin: int, end: int, rows: int | None = None, **more: object) -> Commit:
    rows = end - begin if rows is None else rows
    files = [file(f"{queue.queue_id}-{begin}", queue, begin, end, rows)] if rows else []
    return Commit(files, {queue: Span(begin, end, rows)}, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["_archive.json", "_manifest/0000000000.json"])
def test_a_damaged_file_of_the_manifest_is_named(tmp_path: Path, name: str) -> None:
    archive = make(tmp_path)
    archive.publish(archive.snapshot(), commit(Q0, 0, 5))
    damaged = tmp_path / name
    damaged.write_bytes(damaged.read_bytes()[:-9])
    with pytest.raises(RocketError, match=f"{name} cannot be read .*: put it back from a copy"):
        Archive.open(str(tmp_path)).snapshot()


@pytest.mark.parametrize("name", ["_archive.json", "_manifest/0000000000.json", "_manifest/compact-0000000001.json"])
@pytest.mark.parametrize("text", ["{}", "[1, 2]", "null"])
def test_json_of_something_else_is_no_manifest(tmp_path: Path, name: str, text: str) -> None:
    archive = make(tmp_path)
    archive.publish(archive.snapshot(), commit(Q0, 0, 5))
    (tmp_path / name).write_text(text)
    with pytest.raises(RocketError, match=f"{name} cannot be read .*: put it back from a copy"):
        Archive.open(str(tmp_path)).snapshot()


def test_an_address_of_no_file_system_is_one_line() -> None:
    with pytest.raises(UsageError, match="xyz://bucket/lake: Unrecognized filesystem"):
        Archive.open("xyz://bucket/lake")


def test_googles_store_is_not_asked_for_a_quarter_of_an_hour() -> None:
    pytest.importorskip("pyarrow._gcsfs")
    folder = Folder("gs://bucket/lake")
    assert "retry_time_limit': datetime.timedelta(seconds=15)" in str(folder.filesystem.__reduce__())
    assert (folder.uri("a"), folder.full("a")) == ("gs://bucket/lake/a", "bucket/lake/a")


def test_azure_without_credentials_is_one_line(tmp_path: Path) -> None:
    """pyarrow ended the process."""
    pytest.importorskip("pyarrow._azurefs")
    address = "abfss://box@account.dfs.core.windows.net/lake"
    reads = f"from aiorocket.spark.steps.files.folder import Folder\nFolder({address!r}).read('a')"
    nobody = {name: value for name, value in os.environ.items() if not name.startswith(("AZURE_", "IDENTITY_", "MSI_"))}
    # No az, and nothing where an identity would be asked for.
    nobody |= {"PATH": str(tmp_path), "AZURE_POD_IDENTITY_AUTHORITY_HOST": "http://127.0.0.1:1"}
    ended = subprocess.run([sys.executable, "-c", reads], env=nobody, capture_output=True, text=True, timeout=140)
    said = f"UsageError: {address}: nothing gives Azure's library a token. Set AZURE_TENANT_ID"
    assert (ended.returncode, said in ended.stderr.splitlines()[-1]) == (1, True), ended


@pytest.mark.parametrize(
    "told",
    [
        {"IDENTITY_ENDPOINT": "http://host:port/", "IDENTITY_HEADER": "x"},
        {"AZURE_AUTHORITY_HOST": "::::", "AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "c", "AZURE_CLIENT_SECRET": "s"},
        {"AZURE_CLIENT_CERTIFICATE_PATH": "/none.pem", "AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "c"},
    ],
    ids=lambda told: next(iter(told)),
)
def test_what_azure_takes_from_the_environment_is_wrong_in_one_line(told: dict[str, str]) -> None:
    """pyarrow ended the process."""
    pytest.importorskip("pyarrow._azurefs")
    address = "abfss://box@account.dfs.core.windows.net/lake"
    opens = f"from aiorocket.spark.steps.files.folder import Folder\nFolder({address!r})"
    other = {name: value for name, value in os.environ.items() if not name.startswith(("AZURE_", "IDENTITY_", "MSI_"))}
    ended = subprocess.run([sys.executable, "-c", opens], env=other | told, capture_output=True, text=True, timeout=140)
    name, value = next(iter(told.items()))
    said = f"UsageError: {address}: Azure's library cannot begin with {name}={value} in the environment ("
    assert (ended.returncode, said in ended.stderr.splitlines()[-1]) == (1, True), ended


def test_commits_follow_each_other(tmp_path: Path) -> None:
    archive = make(tmp_path)
    snapshot = archive.publish(archive.snapshot(), commit(Q0, 5, 10, query="q", batch=3))
    snapshot = archive.publish(snapshot, commit(Q1, 0, 4))
    assert archive.snapshot() == snapshot and Archive.open(str(tmp_path)).snapshot() == snapshot
    assert (snapshot.queues[Q0], snapshot.rows, snapshot.missing()) == ((5, 10, 5), 9, {})
    assert snapshot.done("q", 3) and snapshot.done("q", 2) and not snapshot.done("q", 4) and not snapshot.done("r", 0)
    assert [name.name for name in sorted((tmp_path / "_manifest").iterdir())] == ["0000000000.json", "0000000001.json"]


def test_of_two_writers_one_fails_and_changes_nothing(tmp_path: Path) -> None:
    archive = make(tmp_path)
    snapshot = archive.snapshot()
    first = archive.publish(snapshot, commit(Q0, 0, 10))
    with pytest.raises(ArchiveConflictError, match="written by another run"):
        archive.publish(snapshot, commit(Q0, 0, 20))
    assert archive.snapshot() == first
    archive.publish_generation(first, [], [])
    with pytest.raises(ArchiveConflictError, match="written by another run"):
        archive.publish_generation(first, [], [])


def test_a_writer_that_compaction_overtook_fails_too(tmp_path: Path) -> None:
    # Its number is free again: the file of it is gone, and a generation stands for what it held.
    archive = make(tmp_path)
    old = archive.snapshot()
    snapshot = archive.publish(old, commit(Q0, 0, 10))
    archive.forget_replaced(archive.publish_generation(snapshot, [], []))
    with pytest.raises(ArchiveConflictError, match="by another run"):
        archive.publish(old, Commit([file("mine", Q0, 0, 20)], {Q0: Span(0, 20, 20)}))
    assert archive.snapshot().queues[Q0] == (0, 10, 10)
    later = archive.publish(snapshot, commit(Q0, 10, 20))  # as the archive step beside a compaction
    assert archive.snapshot().queues == later.queues
    for _ in range(2):
        archive.forget_replaced(archive.publish_generation(archive.snapshot(), [], []))
    names = sorted(each.name for each in (tmp_path / "_manifest").iterdir())
    with pytest.raises(ArchiveConflictError, match="by another run"):
        archive.publish_generation(replace(later, generation=1), [], [])
    assert sorted(each.name for each in (tmp_path / "_manifest").iterdir()) == names == ["compact-0000000003.json"]


def test_offsets_that_are_there_do_not_come_again() -> None:
    snapshot = Snapshot().plus(commit(Q0, 0, 10))
    with pytest.raises(ArchiveConflictError, match="offsets 9 to 9 are archived already"):
        snapshot.plus(commit(Q0, 9, 12))
    with pytest.raises(UsageError, match="8 rows in files, 9 said"):
        snapshot.plus(Commit([file("x", Q0, 10, 20, 8)], {Q0: Span(10, 20, 9)}))
    with pytest.raises(UsageError, match="the batch says"):
        snapshot.plus(Commit([file("x", Q0, 10, 21)], {Q0: Span(10, 20, 10)}))


def test_gaps_and_lost_rows_are_missing_not_hidden(tmp_path: Path) -> None:
    archive = make(tmp_path)
    snapshot = archive.publish(archive.snapshot(), commit(Q0, 0, 10))
    snapshot = archive.publish(snapshot, commit(Q0, 13, 20))  # 10 to 12 were gone at the broker
    snapshot = archive.publish(snapshot, commit(Q0, 20, 30, rows=4))
    assert archive.snapshot().gaps == ((Q0, 10, 13),)
    assert snapshot.missing() == {Q0: 9}
    snapshot = archive.publish_generation(snapshot, [], [])
    assert archive.snapshot().gaps == ((Q0, 10, 13),) and archive.snapshot().missing() == {Q0: 9}


def test_a_generation_replaces_files_and_nothing_else(tmp_path: Path) -> None:
    archive = make(tmp_path)
    snapshot = add(archive, {Q0: range(10)})
    snapshot = add(archive, {Q0: range(10, 20)})
    old = [each.path for each in snapshot.files]
    with pytest.raises(RocketError, match="nothing was replaced"):
        archive.publish_generation(snapshot, old, [file("data/new", Q0, 0, 20, 19)])
    with pytest.raises(UsageError, match="is no file of this archive"):
        archive.publish_generation(snapshot, ["data/else"], [])
    new = file("x", Q0, 0, 20)
    new = DataFile(f"{old[0].rpartition('/')[0]}/new.parquet", 20, 5, new.queues)
    after = archive.publish_generation(snapshot, old, [new])
    assert [each.path for each in after.files] == [new.path] and after.rows == 20 and after.generation == 1
    assert [(each.path, each.generation) for each in after.superseded] == [(old[0], 1), (old[1], 1)]
    later = archive.publish(after, commit(Q0, 20, 21))
    archive.forget_replaced(archive.snapshot())
    assert archive.snapshot() == later
    names = sorted(each.name for each in (tmp_path / "_manifest").iterdir())
    assert names == ["0000000002.json", "compact-0000000001.json"]


def test_a_lost_commit_is_an_error_not_a_gap(tmp_path: Path) -> None:
    archive = make(tmp_path)
    for begin in (0, 10, 20):
        archive.publish(archive.snapshot(), commit(Q0, begin, begin + 10))
    (tmp_path / "_manifest" / "0000000001.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"0000000001\.json is not there, 0000000002\.json is"):
        archive.snapshot()


def test_an_archive_is_opened_as_it_was_begun(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no archive at"):
        Archive.open(str(tmp_path))
    first = make(tmp_path)
    assert make(tmp_path).id == first.id
    with pytest.raises(UsageError, match="was begun with format='parquet'"):
        make(tmp_path, format="delta")
    with pytest.raises(UsageError, match="was begun with filtered=False"):
        make(tmp_path, filtered=True)
    about = json.loads((tmp_path / "_archive.json").read_text())
    (tmp_path / "_archive.json").write_text(json.dumps({**about, "version": 9}))
    with pytest.raises(UsageError, match="format 9, this release knows 1"):
        Archive.open(str(tmp_path))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ccccgf"), st.integers(0, 3), st.integers(0, 5)), max_size=12))
def test_what_is_read_back_is_what_was_written(steps: list[tuple[str, int, int]]) -> None:
    with TemporaryDirectory() as path:
        archive, snapshot, ends = make(path), Snapshot(), {Q0: 0, Q1: 0}
        for kind, skip, size in steps:
            before = snapshot
            if kind == "c":
                queue = (Q0, Q1)[size % 2]
                begin = ends[queue] + skip
                ends[queue] = begin + size
                snapshot = archive.publish(snapshot, commit(queue, begin, begin + size))
            elif kind == "g":
                snapshot = archive.publish_generation(snapshot, [each.path for each in snapshot.files[:0]], [])
            else:
                archive.forget_replaced(snapshot)
                continue
            assert snapshot.version == before.version + 1
            assert archive.snapshot() == snapshot


@given(st.from_regex(r"[%|a-zA-Z0-9_-]{1,40}", fullmatch=True), st.integers(0, 600_000))
def test_a_folder_tells_topic_and_hour(topic: str, number: int) -> None:
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=number)
    found = partition_of(f"data/{partition_folder(topic, number)}/x.parquet")
    assert found == (topic, f"{at:%Y-%m-%d}", f"{at:%H}")


def test_files_are_chosen_by_topic_and_hour(tmp_path: Path) -> None:
    archive = make(tmp_path)
    snapshot = add(archive, {Q0: range(180), DLQ: range(5)})  # three hours from noon on
    assert len(snapshot.files) == 4 and len(snapshot.select(["orders"])) == 3 and len(snapshot.select([DLQ.topic])) == 1
    one = datetime(2026, 3, 1, 13, 30, tzinfo=UTC)
    assert [partition_of(each.path)[2] for each in snapshot.select(["orders"], since=one)] == ["13", "14"]
    assert [partition_of(each.path)[2] for each in snapshot.select(["orders"], until=one)] == ["12", "13"]
    with pytest.raises(UsageError, match="has no time zone"):
        snapshot.select(since=datetime(2026, 3, 1))


def test_hours_are_written_and_counted_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hours, "_OPEN_FILES", 2)
    monkeypatch.setattr(hours, "_GROUP_ROWS", 50)
    folder = Folder(str(tmp_path))
    writer = HourWriter(folder, "_staging/a")
    for begin in range(0, 300, 40):
        for queue in (Q0, DLQ):
            writer.add(queue, rows_of(queue, range(begin, min(begin + 40, 300))))
    files = writer.finish()
    assert len(files) > 10  # five hours of two topics, and files closed early
    assert sum(each.rows for each in files) == 600
    counted = count_files(folder, "_staging/a", [each.path for each in files])
    assert counted == files
    twice = [files[0].path, files[0].path]
    with pytest.raises(RocketError, match="rows were written, of only"):
        count_files(folder, "_staging/a", twice)


@pytest.mark.parametrize(
    ("micros", "where"),
    [
        (None, "dt=1970-01-01/hour=00"),
        (-1, "dt=1970-01-01/hour=00"),
        (253_402_300_799_999_999, "dt=9999-12-31/hour=23"),
        (253_402_300_800_000_000, "dt=1970-01-01/hour=00"),
        (2**63 - 1, "dt=1970-01-01/hour=00"),
    ],
)
def test_times_that_no_folder_can_name_go_to_the_first_hour(tmp_path: Path, micros: int | None, where: str) -> None:
    batch = rows_of(Q0, range(1))
    place = batch.schema.get_field_index("storeTimestamp")
    field = batch.schema.field(place)
    writer = HourWriter(Folder(str(tmp_path)), "_staging/a")
    writer.add(Q0, batch.set_column(place, field, pa.array([micros], field.type)))
    assert [where in each.path for each in writer.finish()] == [True]


@pytest.mark.parametrize("again", [range(5, 15), range(3), [12, 11]])
def test_an_offset_that_comes_again_is_refused(tmp_path: Path, again: range) -> None:
    writer = HourWriter(Folder(str(tmp_path)), "_staging/a")
    writer.add(Q0, rows_of(Q0, range(10)))
    with pytest.raises(RocketError, match="came out of order or again"):
        writer.add(Q0, rows_of(Q0, again))
    writer.abandon()


def test_delta_follows_the_manifest(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    archive = make(tmp_path, format="delta")
    assert sync_delta(archive) is None  # nothing there yet
    snapshot = add(archive, {Q0: range(90), DLQ: range(5)})
    sync_delta(archive)
    assert sync_delta(archive) is None  # a replay: the application transaction is there
    add(archive, {Q0: range(90, 100)})
    snapshot = add(archive, {Q0: range(100, 110)})  # a crash before both: the next call brings them together
    table_path = str(tmp_path / "data")
    assert deltalake.DeltaTable(table_path).to_pyarrow_table().num_rows == 95
    sync_delta(archive)
    table = deltalake.DeltaTable(table_path)
    assert table.transaction_version(archive.id) == snapshot.last == 2
    rows = table.to_pyarrow_table()
    assert sorted(rows["topic"].to_pylist()) == [DLQ.topic] * 5 + ["orders"] * 110
    assert {Path(uri).name for uri in table.file_uris()} == {Path(each.path).name for each in snapshot.files}

    before = snapshot.files
    old = [each for each in before if "hour=13" in each.path]
    staging = HourWriter(archive.folder, "_staging/c")
    staging.add(Q0, rows_of(Q0, range(60, 110)))
    placed, moves = lasting(archive.folder, staging.finish(), "_staging/c", FileOrigin(True, 1))
    archive.folder.move(moves)
    snapshot = archive.publish_generation(snapshot, [each.path for each in old], placed)
    sync_delta(archive)
    table = deltalake.DeltaTable(table_path)
    assert {Path(uri).name for uri in table.file_uris()} == {Path(each.path).name for each in snapshot.files}
    assert table.to_pyarrow_table().num_rows == 115
    log = sorted((tmp_path / "data" / "_delta_log").glob("*.json"))[-1].read_text()
    assert '"dataChange":true' not in log  # those who follow changes see no row again

    # An archive step that began before the compaction goes on from the snapshot it knows.
    stale = add(archive, {Q0: range(110, 112)})
    stale = Snapshot(last=stale.last, files=(*before, stale.files[-1]), queues=stale.queues)
    sync_delta(archive, stale)
    table = deltalake.DeltaTable(table_path)
    assert {Path(uri).name for uri in table.file_uris()} == {Path(each.path).name for each in archive.snapshot().files}


def test_delta_that_another_tool_rewrote_is_refused(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    archive = make(tmp_path, format="delta")
    add(archive, {Q0: range(10)})
    snapshot = add(archive, {Q0: range(10, 20)})
    sync_delta(archive)
    deltalake.DeltaTable(str(tmp_path / "data")).optimize.compact()
    old = [each.path for each in snapshot.files]
    new = DataFile(f"{old[0].rpartition('/')[0]}/new.parquet", 20, 5, {Q0: Span(0, 20, 20)})
    with pytest.raises(UsageError, match="another tool has rewritten it"):
        check_delta(archive, old)
    archive.publish_generation(snapshot, old, [new])
    with pytest.raises(UsageError, match="another tool has rewritten it"):
        sync_delta(archive)


def test_delta_that_fails_is_told_in_a_line(tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    archive, log = make(tmp_path, format="delta"), tmp_path / "data/_delta_log"
    add(archive, {Q0: range(3)})
    log.write_text("no folder")
    with pytest.raises(RocketError, match=rf"^Delta table {tmp_path}/data: .+: Not a directory .+\. Nothing is"):
        sync_delta(archive)
    log.unlink()
    sync_delta(archive)
    (newest,) = log.glob("*1.json")
    newest.write_text("no JSON")  # of this it has a stack to show
    add(archive, {Q0: range(3, 5)})
    with pytest.raises(RocketError, match=r"data: Kernel error: Json error: [^:]+\. Nothing is lost: .+$"):
        sync_delta(archive)


def test_a_created_file_is_whole_or_not_there(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    folder.create("a/b.json", b"one")
    with pytest.raises(FileExistsError):
        folder.create("a/b.json", b"two")
    assert folder.read("a/b.json") == b"one" and folder.names("a") == ["b.json"]
    folder.replace("a/b.json", b"three")
    assert folder.read("a/b.json") == b"three" and folder.names("a") == ["b.json"]
    (tmp_path / "a" / ".c.json.0123").write_bytes(b"ha")  # of a process that was killed while it created
    assert folder.names("a") == ["b.json"]
    assert folder.names("none") == [] and folder.walk("none") == [] and not folder.remove("none")
    assert Folder(f"file://{tmp_path}").read("a/b.json") == b"three"


def test_a_file_that_the_disk_does_not_take_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    folder, writer = Folder(str(tmp_path)), HourWriter(Folder(str(tmp_path)), "_staging/a")
    rows = rows_of(Q0, range(50))  # of one hour
    bodies = pa.array([os.urandom(4096) for _ in range(50)], rows.schema.field("body").type)
    writer.add(Q0, rows.set_column(rows.schema.get_field_index("body"), "body", bodies))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            folder.create("a/b.json", bytes(128 << 10))
        with pytest.raises(OSError, match="File too large") as written:
            writer.finish()
        writer.abandon()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.filename == str(tmp_path / "a/b.json") and os.listdir(tmp_path / "a") == []
    assert Path(written.value.filename) in tmp_path.rglob("*.parquet")


def test_what_was_created_or_moved_is_known_to_every_folder_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(folder_module, "_sync", synced.append)
    root = tmp_path / "lake"
    folder = Folder(str(root))
    folder.create("_manifest/0.json", b"{}")
    # A new folder is lost with the power when its parent was not told of it.
    assert {str(root / "_manifest"), str(root), str(tmp_path)} <= {path.rstrip("/") for path in synced}
    synced.clear()
    folder.create("a", b"x")
    folder.move({"a": "b/c/d"})
    assert {f"{root}/a", f"{root}/b/c", f"{root}/b", str(root)} <= {path.rstrip("/") for path in synced}


@given(st.sets(st.integers(0, 30)), st.integers(0, 5))
def test_the_proof_counts_exactly_what_is_missing(offsets: set[int], repeats: int) -> None:
    counts = {Q0: (len(offsets) + repeats, min(offsets), max(offsets), len(offsets))} if offsets else {}
    missing = prove(counts, {Q0: (0, 31), Q1: (7, 7)})
    assert missing.get(Q0, 0) == 31 - len(offsets) and Q1 not in missing
    assert repeated(counts) == ({Q0: repeats} if offsets and repeats else {})


@pytest.mark.spark_long
def test_offsets_are_counted_once_each_wherever_they_lie(spark: SparkSession) -> None:
    offsets = {0: [0, 63, 64, 64, 127, 128, 2**62, 2**62 + 1], 1: [5, 5, 5], 2: [62, 63, 63, 4095, 4096]}
    rows = [row(offset, queue=queue, stored=0) for queue, some in offsets.items() for offset in some]
    by_file = frame(spark, shuffled(rows)).repartition(3)
    assert count_by_queue(by_file) == {
        Queue("orders", "broker-a", queue): (len(some), min(some), max(some), len(set(some)))
        for queue, some in offsets.items()
    }
    assert count_by_queue(frame(spark, [])) == {}


def test_a_proof_needs_rows_and_range_of_one_thing() -> None:
    with pytest.raises(UsageError, match=r"rows from offset 0 to 9 .* range \[0, 9\)"):
        prove({Q0: (10, 0, 9, 10)}, {Q0: (0, 9)})


def test_a_report_becomes_json() -> None:
    report = StepReport("archive", 10, 9, {Q0: (0, 10)}, ("a",), 1.23456, {Q0: 1}, {"mode": "direct"})
    assert not report.complete and StepReport("archive", 1, 1).complete
    assert json.loads(json.dumps(report.as_dict())) == {
        "step": "archive", "rows_in": 10, "rows_out": 9, "seconds": 1.235, "complete": False, "files": ["a"],
        "ranges": [["orders", "broker-a", 0, 0, 10]], "missing": [["orders", "broker-a", 0, 1]],
        "details": {"mode": "direct"},
    }  # fmt: skip
