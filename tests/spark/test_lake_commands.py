"""``aiorocket lake …`` with the session of the tests: exit codes, what is said, what a second run does."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from aiorocket import Admin
from aiorocket.cli.main import cli
from aiorocket.client.exits import DeadLetter
from aiorocket.client.message import Message
from aiorocket.client.push.consumer import Consumer
from aiorocket.errors import RocketError, UsageError
from aiorocket.model import OutgoingMessage, Queue
from aiorocket.runtime import run
from aiorocket.spark.fetch import DataLossError
from aiorocket.spark.steps import ArchiveConflictError, ClaimStoppedError, compact, rows
from aiorocket.spark.steps.functions.latency import LatencyReport, latency_report
from aiorocket.spark.steps.report import Progress
from aiorocket.spark.steps.tables.analyses import run_decode, run_dedup
from aiorocket.spark.steps.tables.inputs import Input
from aiorocket.spark.steps.tables.run import Output
from aiorocket.spark.steps.tables.table import Table
from tests.spark import lakes
from tests.spark.producing import create_topic, send

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Q0, Q1 = Queue("orders", "broker-a", 0), Queue("orders", "broker-a", 1)


def lake(*arguments: object) -> Result:
    result = CliRunner().invoke(cli, ["lake", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def report(*arguments: object) -> dict[str, Any]:
    """What the command says with ``--json``; it has to have ended with 0."""
    result = lake(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def by_hand(path: Path, ranges: dict[Queue, Iterable[int]]) -> None:
    archive = lakes.make(path)
    lakes.add(archive, ranges)


# -- a topic to an archive, and back --


def test_archive_goes_on_where_it_ended_and_restore_brings_it_back(
    spark: SparkSession, nameserver: str, topic: str, tmp_path: Path
) -> None:
    path, server = tmp_path / "lake", ("--nameserver", nameserver)
    send(nameserver, topic, [f"body {number}" for number in range(30)])
    first = lake("archive", topic, path, *server)
    assert first.exit_code == 0, first.output
    assert "complete: 30 rows = sum of end - begin over 4 queues\n" in first.stdout
    assert "archive: 30 of 30 rows" in first.stderr
    send(nameserver, topic, [f"body {number}" for number in range(30, 40)])
    second = report("archive", topic, path, *server)
    assert (second["rows_out"], second["details"]["archive_rows"], second["complete"]) == (10, 40, True)
    shown = lake("show", path)
    assert (shown.exit_code, "complete: 40 rows" in shown.output) == (0, True)
    assert report("verify", path)["rows_out"] == 40
    packed = report("compact", path, "--keep", 0)
    assert (packed["rows_in"], packed["details"]["files_after"]) == (40, 1)
    copy = f"{topic}-copy"
    create_topic(nameserver, copy)
    back = report("restore", path, copy, *server)
    assert (back["rows_out"], back["missing"]) == (40, [])
    assert report("restore", path, copy, *server)["rows_out"] == 0


@pytest.mark.parametrize("command", [("archive", "nowhere-at-all"), ("dedup", "--topic", "nowhere-at-all", "--out")])
def test_a_topic_that_is_not_there_is_one_line(
    spark: SparkSession, nameserver: str, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """And no folder, which would hold an archive of nothing."""
    result = lake(*command, tmp_path / "lake", "--nameserver", nameserver)
    assert result.exit_code == 1
    assert [line for line in result.stderr.splitlines() if line.startswith("Error: ") and "nowhere-at-all" in line]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_an_archive_whose_table_cannot_be_made_is_not_begun(
    spark: SparkSession, nameserver: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str,
    pyiceberg: None,
) -> None:  # fmt: skip
    """It would be one of this format for good."""
    create_topic(nameserver, topic)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    monkeypatch.setenv("PYICEBERG_CATALOG__AIOROCKET__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__AIOROCKET__URI", f"sqlite:///{tmp_path}/no/such.db")
    result = lake("archive", topic, tmp_path / "lake", "--nameserver", nameserver, "--format", format)
    said = {
        "delta": "pip install 'aiorocketmq[spark]'",
        "iceberg": f"Iceberg catalogue sqlite:///{tmp_path}/no/such.db",
    }
    assert (result.exit_code, said[format] in result.stderr.splitlines()[-1]) == (1, True), result.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command",
    [
        "restore LAKE --nameserver NS --only orders --only nosuch",
        "compact LAKE --only nosuch",
        "dedup --archive LAKE --topic orders,nosuch --out OUT",
    ],
)
def test_a_topic_that_is_not_in_the_archive_is_one_line(
    spark: SparkSession, nameserver: str, tmp_path: Path, command: str
) -> None:
    by_hand(tmp_path / "lake", {Q0: range(3)})
    given = {"LAKE": str(tmp_path / "lake"), "OUT": str(tmp_path / "out"), "NS": nameserver}
    result = lake(*(given.get(word, word) for word in command.split()))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.endswith("Error: topic 'nosuch' is not in the archive, which has orders\n")
    assert not (tmp_path / "out").exists()


def test_an_archive_and_a_table_have_folders_of_their_own(
    spark: SparkSession, nameserver: str, topic: str, tmp_path: Path
) -> None:
    archive, table = tmp_path / "lake", tmp_path / "out"
    by_hand(archive, {Q0: range(3)})
    before = sorted(archive.rglob("*"))
    refused = lake("dedup", "--archive", archive, "--out", archive)
    assert f"Error: {archive} is an archive: the table of dedup needs a folder of its own\n" in refused.stderr
    assert (refused.exit_code, sorted(archive.rglob("*"))) == (1, before)
    report("dedup", "--archive", archive, "--out", table)
    create_topic(nameserver, topic)
    refused = lake("archive", topic, table, "--nameserver", nameserver)
    assert f"Error: {table} is the table of a step: an archive needs a folder of its own\n" in refused.stderr
    assert (refused.exit_code, (table / "_archive.json").exists()) == (1, False)


def test_what_spark_refuses_is_one_line(spark: SparkSession, tmp_path: Path) -> None:
    """pyspark logs it as well, with Java's stack."""
    by_hand(tmp_path / "lake", {Q0: range(3)})
    result = lake("dedup", "--archive", tmp_path / "lake", "--by", "key", "--key", "nix + 1")
    assert (result.exit_code, "`nix` cannot be resolved" in result.stderr) == (1, True), result.stderr
    assert "at org.apache" not in result.stderr and max(map(len, result.stderr.splitlines())) < 600


@pytest.mark.parametrize("ends", [KeyboardInterrupt, ClaimStoppedError])  # the second where it waits for a claim
def test_an_interrupted_run_says_that_the_next_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: type[BaseException]
) -> None:
    by_hand(tmp_path / "lake", {Q0: range(3)})

    def interrupted(*_: object, **__: object) -> None:
        raise ends

    monkeypatch.setattr("aiorocket.spark.steps.tables.analyses.whole", interrupted)
    result = lake("windows", "--archive", tmp_path / "lake")
    assert result.exit_code == 130
    assert "interrupted; the next run begins with what is not written yet" in result.stderr


# -- steps that add what is new --


def test_decode_adds_what_is_new_and_goes_on_after_a_crash(spark: SparkSession, tmp_path: Path) -> None:
    archive = lakes.make(tmp_path / "lake")
    lakes.add(archive, {Q0: range(50), Q1: range(10)})
    given, output = Input(archive=str(tmp_path / "lake")), Output(str(tmp_path / "out"))

    def crash(now: Progress) -> None:
        if now.done_rows:
            raise ConnectionAbortedError("pulled the plug")

    with pytest.raises(ConnectionAbortedError):
        run_decode(spark, given, output, using="text", max_rows=25, on_progress=crash)
    table = Table.there(output.path or "")
    assert table is not None and table.snapshot().rows_in == 25
    # As a run leaves it that ended between its files and its record.
    stray = tmp_path / "out" / "decoded" / "run=0000000001" / "part-0.parquet"
    stray.parent.mkdir()
    stray.write_bytes(b"not even Parquet")
    told: list[Progress] = []
    # A service that is told to end does so between two portions.
    ended = run_decode(
        spark, given, output, using="text", max_rows=20, on_progress=told.append, stop=lambda: told[-1].done_rows > 0
    )
    assert (ended.rows_in, ended.complete, ended.details["up_to_date"]) == (20, True, False)
    again = run_decode(spark, given, output, using="text", max_rows=25, on_progress=told.append)
    assert (again.rows_in, again.complete, again.details["earlier_rows"]) == (15, True, 45)
    assert [now.done_rows for now in told] == [0, 20, 0, 15] and told[-1].total_rows == 15
    lakes.add(archive, {Q1: range(10, 14)})
    third = run_decode(spark, given, output, using="text")
    assert (third.rows_in, third.details["decoded"], third.ranges) == (4, 4, {Q1: (10, 14)})
    assert places(spark.read.parquet(str(tmp_path / "out" / "decoded"))) == [(0, n) for n in range(50)] + [
        (1, n) for n in range(14)
    ]
    nothing = run_decode(spark, given, output, using="text")
    assert (nothing.rows_in, nothing.details["up_to_date"], nothing.details["parts"]) == (
        0, True, {"decoded": 64, "quarantine": 0}
    )  # fmt: skip


@pytest.mark.spark_long
def test_what_is_gone_before_it_was_decoded_stops_the_run_or_counts_as_missing(
    spark: SparkSession, tmp_path: Path
) -> None:
    archive = lakes.make(tmp_path / "lake")
    lakes.add(archive, {Q0: range(5, 9)})
    given, output = Input(archive=str(tmp_path / "lake")), Output(str(tmp_path / "out"))
    settings: dict[str, object] = {"using": "text", "schema": None, "required": [], "header_bytes": 0}
    table = Table.open(str(tmp_path / "out"), "decode", {**given.settings(), **settings})
    table.write({}, {Q0: (0, 2)}, 2)  # an earlier run had more in front of it
    with pytest.raises(DataLossError, match="offsets up to 1, and the input begins at 5 now: 3 messages are gone"):
        run_decode(spark, given, output, using="text")
    found = run_decode(spark, replace(given, options={"failOnDataLoss": "false"}), output, using="text")
    assert (found.rows_in, found.ranges, found.missing, found.complete) == (4, {Q0: (2, 9)}, {Q0: 3}, False)
    assert (table.snapshot().ranges, table.snapshot().missing) == ({Q0: (0, 9)}, {Q0: 3})
    shown = lake("show", tmp_path / "out")
    assert (shown.exit_code, "INCOMPLETE: 3 rows were missing" in shown.output) == (1, True)


@pytest.mark.spark_long
def test_a_second_run_is_refused_and_takes_nothing_from_the_first(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would clear away what the first is writing, which then would note offsets and none of their rows."""
    by_hand(tmp_path / "lake", {Q0: range(20)})
    given, output = Input(archive=str(tmp_path / "lake")), Output(str(tmp_path / "out"))
    real, refused = rows.write_parquet, list[str]()

    def and_others(*written: Any) -> None:
        real(*written)
        for other in (
            lambda: run_decode(spark, given, output, using="text"),
            lambda: compact(spark, output.path or ""),
        ):
            with pytest.raises(ArchiveConflictError, match="another run is at work here") as error:
                other()
            refused.append(str(error.value))

    monkeypatch.setattr(rows, "write_parquet", and_others)
    report = run_decode(spark, given, output, using="text")
    assert (report.rows_in, report.rows_out, report.complete, len(refused)) == (20, 20, True, 4)
    assert places(spark.read.parquet(str(tmp_path / "out" / "decoded"))) == [(0, n) for n in range(20)]


@pytest.mark.spark_long
def test_decode_refuses_a_table_of_other_arguments(spark: SparkSession, tmp_path: Path) -> None:
    by_hand(tmp_path / "lake", {Q0: range(2)})
    given, output = Input(archive=str(tmp_path / "lake")), Output(str(tmp_path / "out"))
    run_decode(spark, given, output, using="text")
    with pytest.raises(UsageError, match="using='text', now using='variant' is asked for"):
        run_decode(spark, given, output, using="variant")
    with pytest.raises(UsageError, match="another folder"):
        run_dedup(spark, given, output)


@pytest.mark.spark_long
def test_bad_bodies_are_quarantined_with_their_reason(
    spark: SparkSession, nameserver: str, topic: str, tmp_path: Path
) -> None:
    bodies: list[str] = [*(f'{{"id": {number}}}' for number in range(8)), "{", '{"id": "x"}']
    send(nameserver, topic, bodies)
    schema = tmp_path / "schema.ddl"
    schema.write_text("id LONG NOT NULL")
    result = lake(
        "decode", "--topic", topic, "--nameserver", nameserver, "--schema", f"@{schema}", "--out", tmp_path / "out"
    )
    assert result.exit_code == 0, result.output
    assert "1 quarantined: malformed JSON" in result.stdout
    assert "complete: 10 rows = sum of end - begin over 4 queues" in result.stdout
    table = Table.there(str(tmp_path / "out"))
    assert table is not None and (table.snapshot().rows("decoded"), table.snapshot().rows("quarantine")) == (8, 2)
    shown = lake("show", tmp_path / "out")
    assert (shown.exit_code, "made of 10 rows in 1 run" in shown.output) == (0, True), shown.output


@pytest.mark.spark_long
def test_dedup_drops_what_an_earlier_run_has_kept(spark: SparkSession, tmp_path: Path) -> None:
    archive = lakes.make(tmp_path / "lake")
    lakes.add(archive, {Q0: range(5)})  # lakes gives msgId "queue-offset"
    options = ("--archive", tmp_path / "lake", "--out", tmp_path / "out", "--by", "key", "--key", "queueOffset % 4")
    first = report("dedup", *options)
    assert (first["details"]["kept"], first["details"]["dropped"]) == (4, 1)
    lakes.add(archive, {Q1: range(3), Q0: range(5, 6)})
    second = report("dedup", *options)
    assert (second["rows_in"], second["details"]["kept"], second["details"]["dropped"]) == (4, 0, 4)
    assert places(spark.read.parquet(str(tmp_path / "out" / "rows"))) == [(0, n) for n in range(4)]


# -- steps that are made anew --


@pytest.mark.spark_long
def test_a_report_of_a_topic_reads_it_once(
    spark: SparkSession, nameserver: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(nameserver, topic, [f"row {number}" for number in range(8)])

    async def delete() -> None:
        async with Admin(nameservers=nameserver) as admin:
            await admin.topics.delete(topic)

    def measure(df: DataFrame, **more: Any) -> LatencyReport:
        run(delete())  # whoever reads a second time finds nothing
        return latency_report(df, **more)

    monkeypatch.setattr("aiorocket.spark.steps.tables.analyses.latency_report", measure)
    found = report("report", "--topic", topic, "--nameserver", nameserver)
    assert (found["rows_in"], found["complete"]) == (8, True)
    assert (found["details"]["in_windows"], found["details"]["findings"], found["details"]["repeated"]) == (8, 0, 0)


@pytest.mark.spark_long
def test_a_report_is_what_the_steps_say(spark: SparkSession, tmp_path: Path) -> None:
    other = Queue("orders", "broker-b", 0)
    archive = lakes.make(tmp_path / "lake")
    lakes.add(archive, {Q0: range(40), other: range(5)})  # the ids of the second are there in the first
    lakes.add(archive, {Q1: range(4)}, minutes=-1)  # a clock that goes back three times
    options = ("--archive", tmp_path / "lake", "--every", "10 minutes", "--show", 100)
    windows = report("windows", *options)["details"]["tables"]["windows"]
    latency = report("latency", *options)["details"]["tables"]

    kept: Any = spark.sparkContext._jsc
    before = set(kept.getPersistentRDDs())
    found = report("report", *options, "--out", tmp_path / "out", "--html", tmp_path / "report.html")
    assert not set(kept.getPersistentRDDs()) - before
    assert (found["rows_in"], found["complete"]) == (49, True)
    details = found["details"]
    assert (details["in_windows"], details["findings"], details["repeated"]) == (49, 3, 5)
    tables = details["tables"]
    assert tables["windows"] == windows and sum(each["bytes"] for each in windows) > 49 * len("body ")
    assert {name: tables[name] for name in ("by_topic", "by_queue", "over_time", "histogram")} == latency
    assert [(each["kind"], each["findings"]) for each in tables["summary"]] == [("time", 3)]
    assert tables["repeats"] == [{"rows": 49, "kept": 44, "repeated": 5, "withoutId": 0}]
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 4 and "complete: 49 rows" in page
    # Without pictures nothing is computed again, and the records say the same.
    again = report("report", *options, "--out", tmp_path / "out")["details"]
    assert (again["up_to_date"], again["findings"], again["tables"]["windows"]) == (True, 3, windows)


@pytest.mark.spark_long
def test_windows_are_made_anew_only_when_there_is_something_new(spark: SparkSession, tmp_path: Path) -> None:
    archive = lakes.make(tmp_path / "lake")
    lakes.add(archive, {Q0: range(8)})  # a minute apart
    options = ("--archive", tmp_path / "lake", "--out", tmp_path / "out", "--every", "5 minutes", "--format", "delta")
    first = report("windows", *options, "--html", tmp_path / "windows.html")
    assert (tmp_path / "windows.html").read_text().count("data:image/png;base64,") == 1
    assert (first["rows_in"], first["details"]["in_windows"], first["complete"]) == (8, 8, True)
    assert sum(row["rows"] for row in first["details"]["tables"]["windows"]) == 8
    again = lake("windows", *options)
    assert "nothing was new\n" in again.stdout and "complete: 8 rows" in again.stdout
    lakes.add(archive, {Q0: range(8, 11)})
    third = report("windows", *options)
    assert (third["rows_in"], third["details"]["up_to_date"]) == (11, False)
    assert first["details"]["tables"]["windows"] != third["details"]["tables"]["windows"]
    from deltalake import DeltaTable

    table = DeltaTable(str(tmp_path / "out" / "windows"))
    assert (table.version(), table.to_pyarrow_table()["rows"].to_pylist()) == (2, [1, 5, 5])  # born a second before
    assert sum(row["rows"] for row in spark.read.parquet(str(tmp_path / "out" / "windows")).collect()) == 11


@pytest.mark.spark_long
def test_order_finds_a_gap_and_ends_with_1(spark: SparkSession, tmp_path: Path) -> None:
    by_hand(tmp_path / "whole", {Q0: range(6), Q1: range(6)})
    good = lake("order", "--archive", tmp_path / "whole")
    assert good.exit_code == 0, good.output
    by_hand(tmp_path / "holes", {Q0: [0, 1, 2, 5], Q1: range(6)})
    bad = lake("order", "--archive", tmp_path / "holes")
    assert bad.exit_code == 1
    assert "INCOMPLETE: 2 rows of 12 missing in 1 queue" in bad.stdout and "[0, 6)" in bad.stdout
    assert "gap" in bad.stdout
    # What is found counts, whether it is shown or not; the second run has nothing to do but to say it again.
    down = ("order", "--archive", tmp_path / "whole", "--sequence", "-queueOffset", "--key", "'k'", "--show", 0)
    for more in ((), ("--out", tmp_path / "kept"), ("--out", tmp_path / "kept")):
        back = lake(*down, *more)
        assert back.exit_code == 1 and "complete: 12 rows" in back.stdout, back.output


@pytest.mark.spark_long
def test_latency_of_a_live_topic_with_lag_and_plots(
    spark: SparkSession, nameserver: str, topic: str, tmp_path: Path
) -> None:
    send(nameserver, topic, [b"x"] * 12)
    plots = tmp_path / "plots"
    page = tmp_path / "latency.html"
    found = report(
        "latency", "--topic", topic, "--nameserver", nameserver, "--group", "readers", "--plots", plots, "--html", page
    )
    assert (found["rows_in"], found["details"]["lag"]) == (12, 12)
    assert {row["rows"] for row in found["details"]["tables"]["by_topic"]} == {12}
    assert {path.name for path in plots.iterdir()} == {Path(name).name for name in found["details"]["plots"]}
    assert "consumer_lag.png" in {path.name for path in plots.iterdir()}
    text = page.read_text()
    assert text.count("data:image/png;base64,") == len(found["details"]["plots"])
    assert "complete: 12 rows" in text and topic in text


@pytest.mark.spark_long
def test_times_select_offsets_of_a_topic(spark: SparkSession, nameserver: str, topic: str) -> None:
    send(nameserver, topic, [b"x"] * 4)
    options = ("--topic", topic, "--nameserver", nameserver)
    assert report("windows", *options, "--from", "2020-01-01")["rows_in"] == 4
    assert report("windows", *options, "--until", "2020-01-01")["rows_in"] == 0


@pytest.mark.spark_long
def test_dead_letters_are_sorted_and_replayed_once(spark: SparkSession, nameserver: str, topic: str) -> None:
    group = f"group-{topic}"
    order = OutgoingMessage(topic="", body=b"order", tag="paid", properties={"error": "no stock"})
    send(nameserver, topic, [order] * 3)
    run(give_up(nameserver, group, topic, 3))
    server = ("--nameserver", nameserver)
    sorted_ = report("triage", group, *server)
    cause = sorted_["details"]["tables"]["causes"][0]
    assert (cause["cause"], cause["letters"], cause["originTopic"]) == ("no stock", 3, topic)
    assert report("replay", group, *server, "--where", "tags = 'paid'", "--dry-run")["rows_out"] == 3
    for_cause = ("replay", group, *server, "--dry-run", "--where")
    assert report(*for_cause, "cause = 'no stock' AND ageSeconds < 3600")["rows_out"] == 3
    assert report(*for_cause, "cause = 'no customer'")["rows_out"] == 0
    assert report("replay", group, *server, "--limit", 2)["rows_out"] == 2
    last = report("replay", group, *server)
    assert (last["rows_out"], last["details"]["skipped"]) == (1, 2)
    assert lake("triage", "no-such-group", *server).exit_code == 1


@pytest.mark.spark_long
def test_a_delta_log_that_a_crash_left_behind_is_made_up_for(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltalake import DeltaTable

    path = str(tmp_path / "out")
    table = Table.open(path, "x", {}, "delta")
    table.write({"rows": spark.range(2)}, {Q0: (0, 2)}, 2)
    with monkeypatch.context() as crashing:
        crashing.setattr(Table, "_sync_delta", lambda *_, **__: (_ for _ in ()).throw(lakes.CrashError()))
        with pytest.raises(lakes.CrashError):
            table.write({"rows": spark.range(2, 5)}, {Q0: (2, 5)}, 3)
    assert DeltaTable(f"{path}/rows").to_pyarrow_table().num_rows == 2
    again = Table.open(path, "x", {}, "delta")
    assert sorted(DeltaTable(f"{path}/rows").to_pyarrow_table()["id"].to_pylist()) == [0, 1, 2, 3, 4]
    assert (again.snapshot().ranges, again.snapshot().rows("rows"), again.snapshot().rows_in) == ({Q0: (0, 5)}, 5, 5)
    assert Table.open(path, "x", {}, "delta").snapshot() == again.snapshot()
    assert DeltaTable(f"{path}/rows").version() == 2
    with pytest.raises(UsageError, match="format='delta', now format='parquet'"):
        Table.open(path, "x", {})


@pytest.mark.spark_long
def test_two_runs_at_once_do_not_both_write(spark: SparkSession, tmp_path: Path) -> None:
    by_hand(tmp_path / "lake", {Q0: range(2)})
    table = Table.open(str(tmp_path / "out"), "x", {})
    df = spark.range(2)
    folder = tmp_path / "out" / "_runs"

    class Racing(dict[str, "DataFrame"]):
        def items(self) -> Any:
            folder.mkdir(exist_ok=True)
            (folder / "0000000000.json").write_text("{}")  # the other run was faster
            return super().items()

    with pytest.raises(RocketError, match="another run"):
        table.write(Racing(rows=df), {Q0: (0, 2)}, 2)


async def give_up(nameserver: str, group: str, topic: str, count: int) -> None:
    """``group`` fails on each message of ``topic`` and gives it up."""
    done = asyncio.Event()
    seen: list[str] = []
    consumer = Consumer(group, nameservers=nameserver)

    @consumer.listener(topic, start_from="first")
    async def on_message(message: Message) -> None:
        seen.append(message.msg_id)
        if len(seen) == count:
            done.set()
        raise DeadLetter("no stock")

    async with consumer:
        await asyncio.wait_for(done.wait(), 30)


def places(df: DataFrame) -> list[tuple[int, int]]:
    return sorted((row["queueId"], row["queueOffset"]) for row in df.select("queueId", "queueOffset").collect())
