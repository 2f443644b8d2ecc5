"""The restore step: what was archived comes back as it was sent, and an interrupted restore goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from aiorocket.errors import BadNameError, UsageError
from aiorocket.model import OutgoingMessage, Queue
from aiorocket.spark import cluster
from aiorocket.spark.bridge import call
from aiorocket.spark.bridge import client as shared_client
from aiorocket.spark.options import SourceOptions
from aiorocket.spark.partition import QueuePartition, read_partition
from aiorocket.spark.planner import QueueRange
from aiorocket.spark.steps import ArchiveConflictError, Progress, StepReport, archive, compact, restore, topic_rows
from aiorocket.spark.steps.files.file_jobs import Held
from tests.spark.lakes import NOON, CrashError, add, crash_at, make
from tests.spark.producing import create_topic, send
from tests.spark.writing import stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Q = Queue("old", "broker-a", 0)


def message(topic: str, number: int) -> OutgoingMessage:
    return OutgoingMessage(
        topic=topic, body=f"body {number}".encode(), tag="AB"[number % 2], keys=(f"k{number}", "all"),
        properties={"number": str(number)}, sharding_key=f"s{number}",
    )  # fmt: skip


@pytest.mark.spark_long
def test_an_interrupted_restore_goes_on_and_tells_repeats(
    spark: SparkSession, nameserver: str, topic: str, tmp_path: Path
) -> None:
    path, target = str(tmp_path), f"{topic}-back"
    send(nameserver, topic, [message(topic, number) for number in range(60)])
    create_topic(nameserver, target, 4)
    archive(spark, path, nameserver, topic, mode="direct")
    said: list[Progress] = []

    def go(**more: Any) -> StepReport:
        return restore(
            spark, path, nameserver, to_topic=target, keep_queues=True, max_rows=20, on_progress=said.append, **more
        )

    planned = go(dry_run=True)
    assert (planned.rows_in, planned.rows_out, planned.complete) == (60, 0, True)
    with pytest.raises(CrashError):
        go(on_step=crash_at("sent", 2))  # 40 are sent, of which 20 are noted
    assert said[-1].done_rows == 20
    report = go()
    assert (report.rows_in, report.rows_out, report.complete) == (40, 40, True)
    assert report.details["sent_in_all"] == 60 and report.details["target_growth"] == 80
    assert report.ranges == {Queue(topic, "broker-a", number): (5, 15) for number in range(4)}
    assert (said[-1].done_rows, said[-1].total_rows) == (60, 60)
    assert go().rows_out == 0  # all of it is there

    found = topic_rows(spark, nameserver, target).orderBy("queueId", "queueOffset").collect()
    assert len(found) == 80
    once = {row.properties["RESTORE_ID"]: row for row in reversed(found)}
    assert len(once) == 60  # those that came twice have the same
    numbers: dict[int, list[int]] = {}
    for row in once.values():
        number = int(row.properties["number"])
        assert (row.queueId, bytes(row.body), row.tags) == (number % 4, f"body {number}".encode(), "AB"[number % 2])
        assert row.keys == f"k{number} all"
        assert row.properties["RESTORE_ID"] == f"{topic}@broker-a@{number % 4}@{number // 4}"
        assert int(row.properties["RESTORE_BORN"]) > 1_600_000_000_000
        assert row.properties["__SHARDINGKEY"] == f"s{number}"  # of most of them it would be another queue
        numbers.setdefault(row.queueId, []).append(number)
    assert all(each == sorted(each, reverse=True) for each in numbers.values())


@pytest.mark.spark_long
def test_a_restore_selects_and_limits(spark: SparkSession, nameserver: str, topic: str, tmp_path: Path) -> None:
    lake = make(tmp_path)
    add(lake, {Q: range(100)})
    add(lake, {Q: range(103, 110)})
    create_topic(nameserver, topic, 2)

    def go(**more: Any) -> StepReport:
        return restore(spark, str(tmp_path), nameserver, to_topic=topic, **more)

    # Stored a minute after the other, from noon on: 90 to 100 by time, of which every second.
    chosen: dict[str, Any] = {
        "since": NOON + timedelta(minutes=90), "until": NOON + timedelta(minutes=100), "where": "queueOffset % 2 = 0",
    }  # fmt: skip
    report = go(**chosen, limit=3, rate=1000.0)
    assert (report.rows_in, report.rows_out) == (3, 3) and "a filter was given" in str(report.details["proof"])
    assert go(**chosen, limit=3, rate=1000.0).rows_out == 0
    found = topic_rows(spark, nameserver, topic).collect()
    came = sorted(row.properties["RESTORE_ID"] for row in found)
    assert came == [f"old@broker-a@0@{number}" for number in (90, 92, 94)]
    assert sorted(row.properties["__SHARDINGKEY"] for row in found) == ["s90", "s92", "s94"]
    assert all(row.msgId not in ("id90", "id92", "id94") for row in found)  # they are messages of their own
    # What the archive lacks is missing in what comes out of it.
    assert go(dry_run=True).missing == {Q: 3}
    with pytest.raises(BadNameError, match="topic 'none' is not in the archive, which has old"):
        go(topics=["none"])


@pytest.mark.spark_long
def test_the_table_is_still_there_as_it_was_restored(
    spark: SparkSession, nameserver: str, topic: str, tmp_path: Path
) -> None:
    """Time travel: more was archived, and the files were replaced."""
    deltalake = pytest.importorskip("deltalake")
    path, target = str(tmp_path), f"{topic}-then"
    create_topic(nameserver, target, 4)

    def ids(version: int | None = None) -> set[str]:
        places = ["topic", "brokerName", "queueId", "queueOffset"]
        rows = deltalake.DeltaTable(f"{path}/data", version=version).to_pyarrow_table(columns=places).to_pylist()
        found = {"@".join(str(row[name]) for name in places) for row in rows}
        assert len(found) == len(rows)
        return found

    def restored() -> set[str]:
        return {view.properties["RESTORE_ID"] for view in stored(nameserver, target)}

    def go_on(count: int) -> None:
        send(nameserver, topic, [message(topic, number) for number in range(count)])
        assert archive(spark, path, nameserver, topic, mode="direct", format="delta").rows_out == count

    go_on(12)
    then = deltalake.DeltaTable(f"{path}/data").version()
    restore(spark, path, nameserver, to_topic=target)
    go_on(8)
    assert compact(spark, path, keep=3600).details["generations"] == 1
    assert ids(then) == restored() and len(ids()) == 20
    assert restore(spark, path, nameserver, to_topic=target).rows_out == 8
    assert ids() == restored() and len(ids(then)) == 12


def test_a_second_run_of_a_restore_is_refused(spark: SparkSession, nameserver: str, topic: str, tmp_path: Path) -> None:
    """Each would note its own offsets over the other's, and send all of it."""
    path, target = str(tmp_path), f"{topic}-alone"
    add(make(tmp_path), {Q: range(6)})
    create_topic(nameserver, target, 1)

    def second(at: str) -> None:
        with pytest.raises(ArchiveConflictError, match="another run is at work here"):
            restore(spark, path, nameserver, to_topic=target)

    assert restore(spark, path, nameserver, to_topic=target, on_step=second).rows_out == 6
    assert topic_rows(spark, nameserver, target).count() == 6


def test_a_rate_is_kept_in_small_portions(
    spark: SparkSession, nameserver: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(make(tmp_path), {Q: range(50)})
    create_topic(nameserver, topic, 1)
    waits: list[float] = []

    async def pause(seconds: float) -> None:
        waits.append(seconds)

    module = import_module("aiorocket.spark.steps.archives.restore")
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=pause))
    monkeypatch.setattr(module, "_RATE_SECONDS", 1000.0)  # longer than anything here takes
    said: list[Progress] = []
    restore(spark, str(tmp_path), nameserver, to_topic=topic, rate=0.02, on_progress=said.append)
    assert [each.done_rows for each in said] == [0, 20, 40, 50]  # not all at once
    # Nobody really waited; after the last portion there is nothing to wait for.
    assert len(waits) == 2 and 0 < waits[0] <= 1000 < waits[1] <= 2000


def test_what_cannot_be_is_refused(spark: SparkSession, nameserver: str, tmp_path: Path) -> None:
    lake = make(tmp_path / "a")
    add(lake, {Q: range(3)})
    with pytest.raises(UsageError, match="limit=-1"):
        restore(spark, str(tmp_path / "a"), nameserver, limit=-1)
    restore(spark, str(tmp_path / "a"), nameserver, limit=0, name="mine")
    with pytest.raises(UsageError, match="other arguments"):
        restore(spark, str(tmp_path / "a"), nameserver, topics=[Q.topic], name="mine")
    make(tmp_path / "b", columns=["topic", "brokerName", "queueId", "queueOffset", "storeTimestamp"])
    with pytest.raises(UsageError, match="has no body"):
        restore(spark, str(tmp_path / "b"), nameserver)


@pytest.mark.spark_long
def test_files_are_sent_by_tasks_and_rows_through_spark_alike(
    spark: SparkSession, nameserver: str, topic: str, tmp_path: Path
) -> None:
    lake = make(tmp_path)
    other = Queue("old", "broker-a", 1)
    add(lake, {Q: range(40), other: range(20)})
    add(lake, {Q: range(40, 90), other: range(20, 25)})
    by_brokers = {"UNIQ_KEY", "MSG_REGION", "TRACE_ON", "CLUSTER"}  # to what is sent alone, not in a batch
    found = []
    for name, more in (("files", {}), ("rows", {"where": "true"})):
        create_topic(nameserver, f"{topic}-{name}", 2)
        report = restore(
            spark, str(tmp_path), nameserver, to_topic=f"{topic}-{name}", keep_queues=True, max_rows=50, **more
        )
        assert (report.rows_in, report.rows_out, report.details["target_growth"]) == (115, 115, 115)
        rows = topic_rows(spark, nameserver, f"{topic}-{name}").orderBy("queueId", "queueOffset").collect()
        found.append([
            (row.queueId, row.queueOffset, bytes(row.body), row.keys, row.tags,
             {key: value for key, value in row.properties.items() if key not in by_brokers}) for row in rows
        ])  # fmt: skip
    assert found[0] == found[1]
    assert [body for queue, _, body, *_ in found[0] if queue == 0] == [f"body {n}".encode() for n in range(90)]
    assert found[0][7][5]["RESTORE_ID"] == "old@broker-a@0@7"


@pytest.mark.parametrize("keep_queues", [True, False])
def test_tasks_send_files_in_order_with_what_messages_had(
    nameserver: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_queues: bool
) -> None:
    def run_here(spark: object, work: Callable[[Any], Iterable[Held]], tasks: Sequence[object]) -> list[Held]:
        return [held for task in tasks for held in work(json.loads(json.dumps(task)))]

    for name in ("archives.restore", "files.file_counts"):
        monkeypatch.setattr(import_module(f"aiorocket.spark.steps.{name}"), "run_tasks", run_here)
    monkeypatch.setattr(import_module("aiorocket.spark.steps.archives.restore_task"), "_ROWS", 16)
    no_spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
    lake, other = make(tmp_path), Queue("old", "broker-a", 1)
    add(lake, {Q: range(40), other: range(20)})
    add(lake, {Q: range(40, 90), other: range(20, 25)})
    create_topic(nameserver, topic, 2)
    given: Any = {"to_topic": topic, "keep_queues": keep_queues, "max_rows": 50}
    report = restore(no_spark, str(tmp_path), nameserver, **given)
    assert (report.rows_in, report.rows_out, report.complete) == (115, 115, True)
    assert report.details["target_growth"] == 115
    assert (
        restore(no_spark, str(tmp_path), nameserver, to_topic=topic, keep_queues=keep_queues, max_rows=50).rows_in == 0
    )

    options = SourceOptions.parse({"nameServer": nameserver, "topic": topic})
    ends = call(_ends, options)
    rows = [
        row
        for queue, end in sorted(ends.items())
        for batch in read_partition(
            QueuePartition([QueueRange(queue, 0, end)]), options, ("queueId", "body", "properties", "keys")
        )
        for row in batch.to_pylist()
    ]
    came = {dict(row["properties"])["RESTORE_ID"]: row for row in rows}
    assert len(came) == len(rows) == 115
    for number in (0, 39, 40, 89):
        row = came[f"old@broker-a@0@{number}"]
        properties = dict(row["properties"])
        assert row["body"] == f"body {number}".encode() and properties["number"] == str(number)
        assert properties["UNIQ_KEY"] != f"id{number}"
        assert properties["RESTORE_BORN"] == str(int(NOON.timestamp() * 1000) + number * 60_000 - 1)
        assert properties["__SHARDINGKEY"] == f"s{number}"
    for queue in (0, 1) if keep_queues else ():
        places = [dict(row["properties"])["RESTORE_ID"] for row in rows if row["queueId"] == queue]
        assert places == [f"old@broker-a@{queue}@{number}" for number in range((90, 25)[queue])]


def test_a_task_makes_messages_of_few_bytes_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, came = import_module("aiorocket.spark.steps.archives.restore_task"), list[list[Any]]()
    monkeypatch.setattr(task, "_BYTES", 8_192)
    monkeypatch.setattr(task, "bridge", SimpleNamespace(call=lambda send, settings, rows, where: came.append(rows)))
    lake, queues = make(tmp_path), [Queue("old", "broker-a", number) for number in range(8)]
    add(lake, {queue: range(40) for queue in queues})
    paths = [file.path for file in lake.snapshot().files]
    told = [[*queue, 0, 40] for queue in queues]
    text = {"nameServer": "127.0.0.1:9876"}
    held = list(task.restore_task((str(tmp_path), paths, told, text, None, True)))
    assert [each.span.rows for each in held] == [40] * 8
    for queue in range(8):
        bodies = [row.body for rows in came for row in rows if row.queue_id == queue]
        assert bodies == [f"body {number}".encode() for number in range(40)]
    assert max(map(len, came)) < 100


@pytest.mark.parametrize(("mode", "plain"), [("atLeastOnce", True), ("idempotent", False), ("exactlyOnce", False)])
def test_only_rows_that_each_count_for_themselves_are_sent_by_files(tmp_path: Path, mode: str, plain: bool) -> None:
    module = import_module("aiorocket.spark.steps.archives.restore")
    selection: Any = SimpleNamespace(archive=make(tmp_path), whole=True)
    text = {"nameServer": "127.0.0.1:9876", "SINKMODE": mode}
    job = module._Restore(selection, text, None, None, False, "name", {}, None)
    assert job._plain is plain


async def _ends(options: SourceOptions) -> dict[Queue, int]:
    client = await shared_client(options.connection)
    return {q: each.end for q, each in (await cluster.bounds(client, await cluster.queues(client, options))).items()}
