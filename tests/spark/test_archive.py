"""The archive step: each row once, whatever crashes in between; what the manifest does not name is not there."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from importlib import import_module
from pathlib import Path
from shutil import copy
from traceback import format_exception
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError

from aiorocket.client.queue_scan import Bounds
from aiorocket.errors import NotConnectedError, RemoteError, RocketError, UsageError
from aiorocket.model import OutgoingMessage, Queue
from aiorocket.spark import DataLossError, bridge, cluster
from aiorocket.spark.offsets import format_offsets
from aiorocket.spark.options import SourceOptions
from aiorocket.spark.planner import QueueRange
from aiorocket.spark.steps import (
    Archive,
    ArchiveConflictError,
    Progress,
    StepReport,
    archive_rows,
    compact,
    iceberg_table,
    sample_lag,
    verify,
)
from aiorocket.spark.steps import archive as archive_step
from aiorocket.spark.steps.archives import archive_run, direct
from aiorocket.spark.steps.archives.archive_run import Goal
from aiorocket.spark.steps.files.folder import Folder
from aiorocket.spark.steps.files.hours import _hours
from aiorocket.spark.steps.files.iceberg_catalog import open_catalog
from aiorocket.spark.steps.files.last_rows import LastRow, last_rows
from aiorocket.spark.steps.files.manifest import LAST_HOUR, Snapshot, Span, partition_folder
from aiorocket.spark.steps.rows import with_hours
from tests.spark.lakes import NOON, CrashError, add, crash_at, make
from tests.spark.producing import create_topic, send
from tests.spark.test_iceberg import configure, lose_answers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


archive_module: Any = import_module("aiorocket.spark.steps.archives.archive")  # the package has the step by this name
END_OF_9999 = (LAST_HOUR + 1) * 3_600_000_000 - 1


class Lost:
    def check(self) -> None:
        raise ArchiveConflictError("the claim was lost")


class Lake:
    """One topic and the folder it is archived to."""

    def __init__(self, spark: SparkSession, nameserver: str, topic: str, path: Path) -> None:
        self.spark = spark
        self.nameserver = nameserver
        self.topic = topic
        self.path = path
        self.sent = 0

    def send(self, count: int) -> None:
        """Number n of all that is sent goes to queue n % 4."""
        assert count % 4 == 0
        send(self.nameserver, self.topic, [f"row {self.sent + number}" for number in range(count)])
        self.sent += count

    def archive(self, **options: Any) -> StepReport:
        return archive_step(self.spark, str(self.path), self.nameserver, self.topic, **options)

    def manifest_rows(self) -> int:
        return Archive.open(str(self.path)).snapshot().rows

    def check(self) -> None:
        """All that was sent is there, once, by the files themselves."""
        report = verify(self.spark, str(self.path))
        ranges = {Queue(self.topic, "broker-a", number): (0, self.sent // 4) for number in range(4)}
        assert report.complete and report.ranges == ranges and report.rows_out == self.sent

    def files(self) -> int:
        return len(list((self.path / "data").rglob("*.parquet")))

    def forget_newest_commit(self) -> None:
        """As if the process had died after the batch and before Spark noted it."""
        commits = self.path / "_checkpoint" / "commits"
        newest = max((each for each in commits.iterdir() if each.name.isdigit()), key=lambda each: int(each.name))
        newest.unlink()
        (commits / f".{newest.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def lake(spark: SparkSession, nameserver: str, topic: str, tmp_path: Path) -> Lake:
    return Lake(spark, nameserver, topic, tmp_path / "lake")


def test_spark_gets_a_line_of_a_batch_that_fails_and_no_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    options = SimpleNamespace(connection=SimpleNamespace(namespace=""))
    stream = archive_module._Stream(SimpleNamespace(options=options))
    error = Py4JError(
        "An error occurred while calling o1.save.\n: org.apache.spark.SparkException: Job 3 cancelled\n"
        + "\tat java.base/java.lang.Thread.run(Thread.java:840)\n" * 5000
    )

    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(stream, "_archive", fails)
    with pytest.raises(RocketError) as caught:
        stream._batch(None, 3)
    # py4j sends the trace; what stands in it is this function and the one that raises.
    assert "Job 3 cancelled" in str(caught.value)
    assert len("".join(format_exception(caught.value))) < 4000
    assert stream._failed is error


def test_a_stream_with_a_backlog_ends_behind_the_batch_on_the_way() -> None:
    """Its next batch follows at once, so that it is never seen between two."""
    stream: Any = archive_module._Stream(
        SimpleNamespace(options=SimpleNamespace(connection=SimpleNamespace(namespace="")))
    )
    looks: list[float] = []

    def look(seconds: float) -> bool:
        looks.append(seconds)
        stream._done += len(looks) % 4 == 0
        return False

    query = SimpleNamespace(status={"isTriggerActive": True}, awaitTermination=look)
    assert stream._wait(query, lambda: len(looks) == 5) and looks == [1] * 5 + [0.05] * 3
    looks.clear()  # one that ended while nobody looked was the last
    assert stream._wait(query, lambda: len(looks) == 4) and looks == [1] * 4


@pytest.mark.spark_long
def test_a_stream_archives_each_row_once_through_every_crash(lake: Lake) -> None:
    deltalake = pytest.importorskip("deltalake")
    lake.send(40)
    # Files are in their places, the manifest does not name them: they are not there.
    with pytest.raises(CrashError):
        lake.archive(format="delta", on_step=crash_at("moved"))
    assert lake.files() > 0 and lake.manifest_rows() == 0
    assert archive_rows(lake.spark, str(lake.path)).count() == 0

    said: list[Progress] = []
    report = lake.archive(format="delta", on_progress=said.append)
    assert (report.rows_in, report.rows_out, report.complete, report.details["batches"]) == (40, 40, True, 1)
    assert report.files and lake.files() > len(report.files)
    assert [(each.done_rows, each.total_rows) for each in said] == [(40, 40)]

    # The manifest has the batch; neither the Delta table nor Spark's checkpoint does.
    lake.send(20)
    with pytest.raises(CrashError):
        lake.archive(format="delta", on_step=crash_at("published"))
    assert lake.manifest_rows() == 60
    again = lake.archive(format="delta")
    assert (again.rows_in, again.files, again.details["batches"]) == (0, (), 0)

    # Spark forgets that it has done a batch, and does it again.
    table = deltalake.DeltaTable(str(lake.path / "data"))
    version, transaction = table.version(), table.transaction_version(Archive.open(str(lake.path)).id)
    lake.forget_newest_commit()
    files = lake.files()
    lake.archive(format="delta")
    assert lake.files() == files
    table = deltalake.DeltaTable(str(lake.path / "data"))
    assert (table.version(), table.transaction_version(Archive.open(str(lake.path)).id)) == (version, transaction)
    assert transaction == 1 and table.to_pyarrow_table(columns=["queueOffset"]).num_rows == 60
    assert not list((lake.path / "_staging").iterdir())
    lake.check()


@pytest.mark.spark_long
def test_both_modes_go_on_where_the_archive_ends(lake: Lake) -> None:
    lake.send(40)
    first = lake.archive(mode="direct", max_rows=12)
    assert first.complete and first.rows_out == 40 and first.details["batches"] == 4
    lake.send(20)
    second = lake.archive(mode="spark", max_rows=12)  # without a checkpoint: from the manifest's end
    assert second.complete and second.rows_out == 20 and second.details["batches"] == 2
    assert {begin for begin, _ in second.ranges.values()} == {10}
    lake.send(8)
    assert lake.archive(mode="direct").rows_out == 8
    # Spark's checkpoint knows nothing of the last eight and would archive them again: a new one takes its place.
    lake.send(4)
    assert lake.archive(mode="spark", startingOffsets="latest").rows_out == 4
    lake.check()


Q0, Q1 = Queue("t", "a", 0), Queue("t", "a", 1)


def planned(path: Path, ends: Sequence[Mapping[Queue, int]], committed: int, snapshot: Snapshot) -> Any:
    """The step over an archive with a checkpoint of Spark's: the ``ends`` of its batches, up to which it committed."""
    (path / "_checkpoint" / "commits").mkdir(parents=True)
    (path / "_checkpoint" / "offsets").mkdir()
    (path / "_checkpoint" / "metadata").write_text('{"id":"q"}')
    for batch, told in enumerate(ends):
        (path / "_checkpoint" / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{format_offsets(told)}")
        if batch <= committed:
            (path / "_checkpoint" / "commits" / str(batch)).write_text("v1\n{}")
    options = SourceOptions.parse({"nameServer": "127.0.0.1:1", "topic": "t"})
    return archive_module._Stream(cast(Any, SimpleNamespace(options=options, archive=make(path), snapshot=snapshot)))


@pytest.mark.parametrize(
    ("committed", "published", "archived", "goes_on"),
    [
        (0, False, 10, True),
        (0, False, 12, False),
        (0, False, 20, False),
        (0, True, 20, True),
        (1, True, 20, True),
        (1, True, 21, False),
    ],
)
def test_a_checkpoint_that_direct_mode_has_overtaken_is_begun_anew(
    tmp_path: Path, committed: int, published: bool, archived: int, goes_on: bool
) -> None:
    """Also where the last batch, of the offsets 10 to 19, was planned and cut short: Spark does it again."""
    snapshot = Snapshot(queues={Q0: Span(0, archived, archived)}, queries={"q": 1 if published else 0})
    stream = planned(tmp_path, [{Q0: 10}, {Q0: 20}], committed, snapshot)
    assert stream._checkpoint() is goes_on
    assert (tmp_path / "_checkpoint").exists() is goes_on


@pytest.mark.parametrize(
    ("ends", "archived", "goes_on"),
    [
        ([{Q0: 10}], {Q0: 4}, True),  # its start is looked up anew, behind what is archived
        ([{Q0: 10}], {Q0: 11}, False),  # the batch after it would begin at 10
        ([{Q0: 10}, {Q0: 20, Q1: 3}], {Q0: 10, Q1: 3}, True),
        ([{Q0: 10}, {Q0: 20, Q1: 3}], {Q0: 10, Q1: 4}, False),
    ],
)
def test_of_a_queue_that_only_the_batch_cut_short_has_its_end_counts(
    tmp_path: Path, ends: list[dict[Queue, int]], archived: dict[Queue, int], goes_on: bool
) -> None:
    snapshot = Snapshot(queues={queue: Span(0, end, end) for queue, end in archived.items()})
    assert planned(tmp_path, ends, len(ends) - 2, snapshot)._checkpoint() is goes_on


def test_a_checkpoint_of_which_a_part_was_removed_is_begun_anew(tmp_path: Path) -> None:
    """By a run that died while it removed it: each later one would look for what is not there."""
    stream = planned(tmp_path, [{Q0: 10}, {Q0: 20}], -1, Snapshot(queues={Q0: Span(0, 30, 30)}))
    (tmp_path / "_checkpoint" / "metadata").unlink()
    assert not stream._checkpoint() and not (tmp_path / "_checkpoint").exists()


@pytest.mark.parametrize("mode", ["direct", "spark"])
@pytest.mark.parametrize("stored", [3, 5])
def test_a_topic_that_was_made_anew_is_told_by_its_last_message(lake: Lake, mode: str, stored: int) -> None:
    """Also where it is as long as what is archived, or longer."""
    send(lake.nameserver, lake.topic, ["again"] * stored, queues=2, queue_id=1)
    archive = make(lake.path)
    before = add(archive, {Queue(lake.topic, "broker-a", 1): range(3)})
    said = (
        r"queue_id=1.*: offset 2 is archived as stored at 2026-03-01T12:02:00\.000Z, the broker's is of 20.*Z: .*anew"
    )
    with pytest.raises(UsageError, match=said):
        lake.archive(mode=mode)
    assert archive.snapshot() == before


def test_which_rows_can_be_compared_with_the_brokers(tmp_path: Path) -> None:
    """Not what retention has taken, what the broker does not have, or what is in a file that is damaged."""
    archive = make(tmp_path)
    first, second, third = (Queue("t", "b", number) for number in range(3))
    add(archive, {first: range(10), second: range(2, 5)})
    add(archive, {second: range(5, 9), third: range(4)})
    ranges = dict.fromkeys((first, second, third), (0, 20))
    noon = int(NOON.timestamp() * 1000)
    at = {queue: LastRow(end - 1, noon + (end - 1) * 60_000) for queue, end in ((first, 10), (second, 9), (third, 4))}
    assert last_rows(archive, archive.snapshot(), ranges) == at
    outside = {first: (10, 12), second: (8, 9), third: (0, 3)}
    assert last_rows(archive, archive.snapshot(), outside) == {second: at[second]}
    (tmp_path / archive.snapshot().files[-1].path).write_bytes(b"")
    assert last_rows(archive, archive.snapshot(), ranges) == {first: at[first]}


@pytest.mark.spark_long
def test_direct_tasks_leave_nothing_visible_before_the_manifest(lake: Lake) -> None:
    lake.send(40)
    with pytest.raises(CrashError):
        lake.archive(mode="direct", on_step=crash_at("written"))
    staged = list((lake.path / "_staging").rglob("*.parquet"))
    assert staged and lake.files() == 0 and lake.manifest_rows() == 0
    with pytest.raises(CrashError):
        lake.archive(mode="direct", on_step=crash_at("moved"))
    assert lake.files() > 0 and lake.manifest_rows() == 0
    with pytest.raises(CrashError):
        lake.archive(mode="direct", on_step=crash_at("published"))
    assert lake.manifest_rows() == 40
    report = lake.archive(mode="direct")
    assert report.rows_out == 0 and report.complete

    # A task that was tried twice: a file of its own name, which nobody named.
    some = next(iter(Archive.open(str(lake.path)).snapshot().files)).path
    copy(lake.path / some, (lake.path / some).with_name("0000000000-retried-0000.parquet"))
    lake.check()


@pytest.mark.spark_long
@pytest.mark.usefixtures("pyiceberg")
def test_an_iceberg_table_has_each_row_once_through_crashes(lake: Lake) -> None:
    lake.send(20)
    lake.archive(mode="direct", format="iceberg")
    for name in ("moved", "published"):  # the manifest has the second, the table does not
        lake.send(20)
        with pytest.raises(CrashError):
            lake.archive(mode="direct", format="iceberg", max_rows=20, on_step=crash_at(name))
    lake.archive(mode="direct", format="iceberg")
    with pytest.raises(CrashError):
        compact(lake.spark, str(lake.path), on_step=crash_at("published"))
    compact(lake.spark, str(lake.path), keep=3600)
    lake.check()
    table = iceberg_table(Archive.open(str(lake.path)))
    with closing(table.catalog):
        rows = table.scan(selected_fields=("queueId", "queueOffset")).to_arrow().to_pylist()
        assert sorted((row["queueId"], row["queueOffset"]) for row in rows) == [
            (queue, offset) for queue in range(4) for offset in range(15)
        ]
        counts = [table.scan(snapshot_id=each.snapshot_id).count() for each in table.history()]
        assert counts == sorted(counts) and counts[0] == 20 and counts[-1] == 60


@pytest.mark.usefixtures("pyiceberg")
@pytest.mark.parametrize("refused", ["iceberg_tables", "iceberg_namespace_properties"])
@pytest.mark.parametrize("there", [True, False])
def test_an_archive_whose_table_is_refused_leaves_nothing(
    nameserver: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str, there: bool
) -> None:
    create_topic(nameserver, topic)
    path, nobody = tmp_path / "lake", cast(Any, None)  # it does not come to need a session
    configure(monkeypatch, tmp_path / "catalog.db")
    open_catalog(Folder(str(path))).close()
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as catalog:
        catalog.execute(f"CREATE TRIGGER t BEFORE INSERT ON {refused} BEGIN SELECT raise(ABORT, 'not for you'); END")
    if there:
        (path / "data").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RocketError, match=r"catalog\.db: .* Nothing is lost"):
        archive_step(nobody, str(path), nameserver, topic, mode="direct", format="iceberg")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.usefixtures("pyiceberg")
def test_a_table_of_which_the_catalogue_said_nothing_is_the_next_runs(
    nameserver: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It kept the name, and the next run took another."""
    create_topic(nameserver, topic)
    path, nobody = tmp_path / "shop/orders", cast(Any, None)  # it does not come to need a session
    configure(monkeypatch, tmp_path / "catalog.db")
    with monkeypatch.context() as silent, pytest.raises(RocketError, match="no answer"):
        lose_answers(silent, "commit_table", "table_exists")
        archive_step(nobody, str(path), nameserver, topic, mode="direct", format="iceberg")
    table = iceberg_table(Archive.open(str(path)))
    with closing(table.catalog):
        assert table.name() == ("lake", "orders")


@pytest.mark.spark_long
def test_of_two_runs_one_archives(lake: Lake) -> None:
    lake.send(20)

    def other(at: str) -> None:
        with pytest.raises(ArchiveConflictError, match="another run is at work here"):
            lake.archive(mode="direct")

    assert lake.archive(mode="direct", on_step=other).rows_out == 20
    lake.check()


def test_a_run_that_lost_its_claim_archives_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that stood still in an object store, until another took it for dead."""
    lake.send(20)
    with monkeypatch.context() as losing:
        losing.setattr(archive_run, "claim", lambda *_, **__: nullcontext(Lost()))
        with pytest.raises(ArchiveConflictError, match="lost"):
            lake.archive(mode="direct")
    assert lake.manifest_rows() == 0
    assert lake.archive(mode="direct").rows_out == 20
    lake.check()


@pytest.mark.spark_long
def test_a_round_has_tasks_for_all_executors(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the cluster, not the processors of the driver's machine."""
    planned: list[int] = []
    real = direct.plan

    def plan(ranges: Any, *, cores: int, **more: Any) -> Any:
        planned.append(cores)
        return real(ranges, cores=cores, **more)

    monkeypatch.setattr(direct, "plan", plan)
    monkeypatch.setattr(type(lake.spark.sparkContext), "defaultParallelism", property(lambda _: 7))
    lake.send(4)
    assert lake.archive(mode="direct").rows_out == 4 and planned == [7]


@pytest.mark.spark_long
def test_what_comes_after_latest_is_archived(lake: Lake) -> None:
    create_topic(lake.nameserver, lake.topic, 4)
    for number in range(3):  # a cron job, that must not begin at the end again
        report = lake.archive(mode="direct", startingOffsets="latest")
        assert (report.rows_out, report.details["batches"]) == ((8, 1) if number else (0, 0))
        lake.send(8)

    other = Lake(lake.spark, lake.nameserver, lake.topic, lake.path.with_name("following"))

    def more() -> bool:
        if not other.sent:
            other.send(4)
        return other.manifest_rows() >= 4

    report = other.archive(mode="direct", startingOffsets="latest", follow=True, interval=0.1, stop=more)
    assert report.complete and set(report.ranges.values()) == {(6, 7)}


@pytest.mark.parametrize(
    ("option", "said", "begins"),
    [
        ("startingOffsets", '{"t":{"a":{"0":2}},"u":{"a":{"0":1}}}', 4),
        ("startingOffsets", '{"t":{"a":{"0":2,"1":7}},"u":{"a":{"0":1}}}', 7),
        ("startingOffsetsByTimestamp", '{"t":{"a":{"0":2}},"u":{"a":{"0":1}}}', 4),
        ("startingOffsetsByTimestamp", '{"t":{"a":{"0":2,"1":7},"b":{"0":2}}}', 7),
        ("startingOffsetsByTimestamp", '{"t":8,"u":8}', 8),
        ("startingOffsetsByTimestamp", '{"t":8,"v":8}', None),
    ],
)
async def test_a_queue_that_comes_later_begins_where_it_is_told_to_or_with_its_first_message(
    monkeypatch: pytest.MonkeyPatch, option: str, said: str, begins: int | None
) -> None:
    first, new, other, gone = Queue("t", "a", 0), Queue("t", "a", 1), Queue("u", "a", 0), Queue("t", "b", 0)
    there = {first: Bounds(0, 9), new: Bounds(4, 9), other: Bounds(0, 9)}

    async def found(*_: object) -> dict[Queue, Bounds]:
        return there

    async def at(client: object, queues: Iterable[Queue], millis: int) -> dict[Queue, int]:
        return dict.fromkeys(queues, millis)

    monkeypatch.setattr(archive_run, "shared_client", found)
    for name, fake in (("queues", found), ("bounds", found), ("offsets_at", at)):
        monkeypatch.setattr(cluster, name, fake)
    options = SourceOptions.parse({"nameServer": "a:1", "topic": "t,u", option: said})
    with nullcontext() if begins is not None else pytest.raises(UsageError, match="names v, which is not read"):
        found_at, _ = await archive_run._look(options, {first: 5, other: 6, gone: 7})
        assert found_at == {first: 5, other: 6, new: begins}
    if begins == 4:  # an archive that is begun has to be told of every queue
        with pytest.raises(UsageError, match="leaves out t/a/1"):
            await archive_run._look(options, {})


def test_lag_is_told_of_a_topic_with_empty_queues(lake: Lake) -> None:
    send(lake.nameserver, lake.topic, [b"only"])
    report = lake.archive(mode="direct", groupId="archiver", commitOffsets=True)
    assert report.rows_out == 1
    samples = sample_lag(lake.nameserver, "archiver", lake.topic)
    assert {each.queue.queue_id: each.committed for each in samples} == {0: 1, 1: None, 2: None, 3: None}


def test_a_group_that_is_not_told_costs_no_round(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What it is told is for dashboards: a right that lacks would have ended each round behind its first batch."""

    async def refuse(*_: object) -> None:
        raise RemoteError(16, "no right to commit", address="b:1", request="UPDATE_CONSUMER_OFFSET")

    monkeypatch.setattr(cluster, "commit", refuse)
    queue = Queue("t", "a", 0)
    text = {"nameServer": "127.0.0.1:1", "topic": "t", "groupId": "g", "commitOffsets": "true"}
    run: Any = SimpleNamespace(
        text=text, options=SourceOptions.parse(text), goal=Goal({queue: 0}, {queue: 5}),
        snapshot=Snapshot(queues={queue: Span(0, 5, 5)}),
    )  # fmt: skip
    try:
        direct.Rounds(run)._commit_offsets()
    finally:
        bridge.close()
    assert "group g was not told of every offset of this round" in caplog.text


def test_what_retention_took_is_an_error_or_a_gap(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.send(8)
    lake.archive(mode="direct")
    lake.send(32)
    queue = Queue(lake.topic, "broker-a", 1)
    real = cluster.bounds

    async def after_retention(client: Any, queues: Iterable[Queue], **more: Any) -> Mapping[Queue, Bounds]:
        found = await real(client, queues, **more)
        return {**found, queue: Bounds(7, found[queue].end)}

    monkeypatch.setattr(cluster, "bounds", after_retention)
    with pytest.raises(DataLossError, match="offsets 2 to 6 were removed before they were archived"):
        lake.archive(mode="direct")
    report = lake.archive(mode="direct", failOnDataLoss=False)
    assert not report.complete and report.missing == {queue: 5} and report.rows_out == 27
    assert report.details["gaps"] == [[*queue, 2, 7]]
    assert Archive.open(str(lake.path)).snapshot().missing() == {queue: 5}
    assert lake.archive(mode="direct").complete  # of what this run did, nothing is missing


@pytest.mark.parametrize("asked", [{"topic": "t"}, {"topicPattern": "[tu]"}, {"assign": '{"t":{"a":[0],"b":[0]}}'}])
def test_a_broker_that_is_away_has_lost_nothing(monkeypatch: pytest.MonkeyPatch, asked: dict[str, str]) -> None:
    """A pipeline archives the others and waits for it, and gives up where the broker is there without the queue."""
    here, gone, other = Queue("t", "a", 0), Queue("t", "b", 0), Queue("not-asked-for", "b", 0)
    registered, there = {"a"}, {here: Bounds(0, 9)}

    async def brokers(client: object) -> set[str]:
        return registered

    async def found(*_: object) -> dict[Queue, Bounds]:
        return there

    for name, fake in (("brokers", brokers), ("queues", found), ("bounds", found)):
        monkeypatch.setattr(cluster, name, fake)

    def ranges(archived: int = 9, **more: str) -> list[QueueRange]:
        text = {"nameServer": "127.0.0.1:1", **asked, **more}
        snapshot = Snapshot(queues={here: Span(0, archived, archived), gone: Span(0, 5, 5), other: Span(0, 5, 5)})
        run: Any = SimpleNamespace(
            text=text, options=SourceOptions.parse(text), goal=Goal({here: 0}, {here: 9}), max_rows=100,
            bounds={here: Bounds(0, 9)}, snapshot=snapshot,
        )  # fmt: skip
        return direct.Rounds(run)._next()

    try:
        assert ranges(5) == [QueueRange(here, 5, 9)]
        with pytest.raises(
            NotConnectedError, match=r"broker_name='b'.* up to 4, and its broker was not registered just now"
        ):
            ranges()
        assert ranges(failOnDataLoss="false") == []
        registered.add("b")
        with pytest.raises(DataLossError, match="is not at its broker any more"):
            ranges()
        there[gone] = Bounds(0, 9)  # it came back after the look for the goal
        with pytest.raises(NotConnectedError, match="was not registered just now"):
            ranges()
    finally:
        bridge.close()


@pytest.mark.spark_long
def test_a_selection_is_archived_and_proves_nothing(lake: Lake) -> None:
    bodies = [OutgoingMessage(topic=lake.topic, body=b"x", tag="AB"[number % 3 == 0]) for number in range(24)]
    send(lake.nameserver, lake.topic, bodies)
    report = lake.archive(mode="direct", tags="B", columns="topic,brokerName,queueId,queueOffset,storeTimestamp,tags")
    assert report.rows_in == 24 and report.rows_out == 8 and "none" in str(report.details["proof"])
    rows = archive_rows(lake.spark, str(lake.path))
    assert rows.columns == ["topic", "brokerName", "queueId", "queueOffset", "storeTimestamp", "tags"]
    assert [(row.tags, row.topic) for row in rows.collect()] == [("B", lake.topic)] * 8
    with pytest.raises(UsageError, match="was begun with"):
        lake.archive(mode="direct")


@pytest.mark.spark_long
def test_verify_finds_files_that_are_not_what_the_manifest_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue("t", "b", 0)
    archive = make(tmp_path)
    for begin in (0, 10, 20):
        snapshot = add(archive, {queue: range(begin, begin + 10)})
    first, second, _ = (tmp_path / each.path for each in snapshot.files)
    copy(first, second)
    with pytest.raises(RocketError, match=rf"{second.name} cannot be read \(\d+ bytes of \d+\)"):
        verify(spark, str(tmp_path))
    monkeypatch.setattr(Folder, "need", lambda folder, lengths: None)  # others may have the same length
    with pytest.raises(RocketError, match="has rows twice"):
        verify(spark, str(tmp_path))
    add(make(tmp_path / "strange"), {queue: range(100, 110)})  # as many rows, of other offsets
    copy(next((tmp_path / "strange").rglob("*.parquet")), second)
    with pytest.raises(RocketError, match=r"rows from offset 0 to 109 .* range \[0, 30\)"):
        verify(spark, str(tmp_path))
    add(make(tmp_path / "other"), {queue: range(10, 15)})
    copy(next((tmp_path / "other").rglob("*.parquet")), second)
    with pytest.raises(RocketError, match=r"the manifest has 30 rows of .* its files hold 25"):
        verify(spark, str(tmp_path))


@pytest.mark.spark_long
def test_spark_and_tasks_put_a_row_into_the_same_folder(spark: SparkSession) -> None:
    times = [0, -1, 3_599_999_999, 1_700_000_000_123_456, END_OF_9999, END_OF_9999 + 1, 2**63 - 1, -(2**63)]
    stamps = pa.array([None, *times], pa.timestamp("us", "UTC"))
    named = [partition_folder("t", hour) for hour in _hours(stamps).tolist()]
    array = ", ".join(["null", *(f"cast('{each}' AS LONG)" for each in times)])
    rows = spark.sql(f"SELECT timestamp_micros(at) AS storeTimestamp FROM (SELECT explode(array({array})) AS at)")
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        found = with_hours(rows).select("dt", "hour").collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone or "UTC")
    assert [f"topic=t/dt={row.dt}/hour={row.hour}" for row in found] == named


@pytest.mark.spark_long
def test_a_run_that_is_stopped_before_its_goal_says_how_far_it_came(lake: Lake) -> None:
    lake.send(16)
    assert lake.archive(mode="direct", max_rows=4, stop=lambda: True).rows_out == 4
    report = lake.archive(mode="spark", max_rows=4, stop=lambda: True)
    assert report.complete and lake.manifest_rows() == 4 + report.rows_out


@pytest.mark.spark_long
@pytest.mark.parametrize("mode", ["direct", "spark"])
def test_following_goes_on_until_it_is_stopped(lake: Lake, mode: str) -> None:
    lake.send(8)

    def more(at: str) -> None:
        if at == "done" and lake.sent < 24:
            lake.send(8)

    report = lake.archive(mode=mode, follow=True, interval=0.1, stop=lambda: lake.manifest_rows() >= 24, on_step=more)
    assert report.complete and report.rows_out == 24
    lake.check()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"columns": "body,topic"}, "columns without brokerName, queueId, queueOffset, storeTimestamp"),
        ({"legacySchema": True}, "legacySchema=true"),
        ({"decompress": False}, "decompress=false"),
        ({"mode": "fast"}, "mode is 'spark' or 'direct'"),
        ({"format": "orc"}, "format 'parquet', 'delta' or 'iceberg'"),
        ({"max_rows": 0}, "max_rows=0"),
        ({"max_rows": 9, "maxOffsetsPerTrigger": 5}, "max_rows=9 and maxOffsetsPerTrigger=5 both say how large"),
        ({"endingOffsets": "latest", "mode": "direct"}, "a stream has no end"),
        ({"startingOfsets": "earliest"}, "startingOffsets"),
    ],
)
def test_what_cannot_be_is_refused(lake: Lake, options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        lake.archive(**options)


def test_the_sources_own_option_bounds_a_batch_too(tmp_path: Path) -> None:
    """Direct mode passed over it."""
    nobody: Any = None

    def most(max_rows: int | None, **more: str) -> int:
        text = {"nameServer": "none:1", "topic": "t", **more}
        return archive_run.Run(nobody, str(tmp_path), text, "parquet", max_rows, None, None).max_rows

    assert [most(None, maxOffsetsPerTrigger="5"), most(9), most(None)] == [5, 9, 2_000_000]
