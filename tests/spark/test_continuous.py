"""Pipelines as services: rounds that go on where the last one ended, failures that pass, and the end at a signal."""

from __future__ import annotations

import errno
import fcntl
import re
import signal
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from aiorocket.cli.lake.run import pages
from aiorocket.cli.main import cli
from aiorocket.errors import ConfigError, NotConnectedError, UsageError
from aiorocket.model import Queue
from aiorocket.runtime.clock import WallClock
from aiorocket.spark.fetch import DataLossError
from aiorocket.spark.steps.continuous import Continuous, Health, Plan
from aiorocket.spark.steps.files.claims import ClaimLostError
from aiorocket.spark.steps.files.folder import Folder
from aiorocket.spark.steps.files.manifest import ArchiveConflictError
from aiorocket.spark.steps.report import StepReport
from aiorocket.spark.steps.tables.table import Table
from tests.spark.day import live_through
from tests.spark.lakes import make
from tests.spark.producing import delete_topic, send

FILE = """
topic = "{topic}"
path = "{path}"
pause = 0.0
attempts = 2
[options]
pullTimeout = "5s"
[decode]
using = "json"
schema_file = "order.ddl"
required = ["id"]
[dedup]
by = "key"
[windows]
every = "1 hour"
by = ["topic"]
pause = 3600
"""


def plan_of(folder: Path, topic: str, text: str = FILE) -> Plan:
    (folder / "order.ddl").write_text("id LONG")
    (folder / "pipeline.toml").write_text(text.format(topic=topic, path=folder / "lake"))
    return Plan.read(str(folder / "pipeline.toml"))


@pytest.mark.spark_long
def test_rounds_take_what_is_new_and_a_signal_ends_them(
    spark: SparkSession, nameserver: str, topic: str, tmp_path: Path
) -> None:
    plan = plan_of(tmp_path, topic)
    send(nameserver, topic, ['{"id": 1}', '{"id": 2}', "{"], queues=1)
    seen: list[tuple[str, int]] = []

    def told(report: StepReport) -> None:
        assert report.complete
        seen.append((report.step, report.rows_in))
        if len(seen) == 4:  # the end of the first round; in the second SIGTERM comes behind the archive's batch
            send(nameserver, topic, ['{"id": 3}'])

    pipeline = Continuous(spark, plan, nameserver, stop=lambda: len(seen) == 5, told=told)
    pipeline.run()
    assert seen == [("archive", 3), ("decode", 3), ("dedup", 3), ("windows", 3), ("archive", 1)]
    health = pipeline.health
    assert (health.rounds, health.failures, health.quarantined, health.lag, health.problem) == (1, 0, 1, 1, None)
    # The next process makes up for what the signal left, and its windows are due.
    again = Continuous(spark, plan, nameserver, stop=lambda: False, told=told)
    again.run(once=True)
    assert seen[5:] == [("archive", 0), ("decode", 1), ("dedup", 1), ("windows", 4)]
    table = Table.there(str(tmp_path / "lake" / "decode"))
    assert table is not None and (table.snapshot().rows("decoded"), table.snapshot().rows("quarantine")) == (3, 1)
    # A topic of that name that is as long: no further round would mend it.
    delete_topic(nameserver, topic)
    send(nameserver, topic, ['{"id": 1}'] * 4, queues=1)
    with pytest.raises(UsageError, match=r"offset 3 is archived as stored at .* the topic was made anew"):
        Continuous(spark, plan, nameserver, stop=lambda: False).run()


class Failing(Continuous):
    """Rounds that end as they are told."""

    def __init__(self, plan: Plan, *ends: Exception | None, lives: bool = True) -> None:
        self.ends, self.lives, self.failed = list(ends), lives, list[str]()
        self.pauses: list[float] = []
        nobody: Any = None  # its rounds need no session
        super().__init__(nobody, plan, "127.0.0.1:1", stop=lambda: not self.ends, say=self.failed.append)

    def round(self) -> None:
        end = self.ends.pop(0)
        if end is not None:
            raise end
        self.health.problem = None

    def _lives(self) -> bool:
        return self.lives

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


def test_a_round_that_fails_is_tried_again_later_and_later(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "t")
    away = NotConnectedError("broker-a is away")
    for_ever = plan_of(tmp_path, "t", FILE.replace("attempts = 2", "attempts = 0"))
    pipeline = Failing(for_ever, *[away] * 9, None, away)
    pipeline.run()
    assert pipeline.pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60, 0, 1]
    assert (pipeline.health.failures, pipeline.health.problem) == (10, "broker-a is away")
    assert pipeline.failed[1] == "round failed (2 in a row), the next in 2 s: broker-a is away"
    for ends, lives in (((away, away), True), ((away,), False), ((UsageError("no such column"),), True)):
        pipeline = Failing(plan, *ends, None, lives=lives)
        with pytest.raises(type(ends[-1])):
            pipeline.run()
        assert pipeline.ends == [None]
    # A task's, as Spark tells it.
    for told, final in ((f"{DataLossError.__module__}.DataLossError: 3 are gone", True), (str(away), False)):
        failure = PythonException(f'Job aborted: Traceback (most recent call last):\n  File "x"\n{told}\n\n\tat java')
        pipeline = Failing(for_ever, failure, None)
        with pytest.raises(PythonException) if final else nullcontext():
            pipeline.run()
        assert pipeline.ends == ([None] if final else [])
    with pytest.raises(NotConnectedError):
        Failing(for_ever, away, None).run(once=True)
    # The store was away: the next round takes a new claim, or hears who has one, which is for good.
    pipeline = Failing(for_ever, ClaimLostError("not renewed"), ArchiveConflictError("another run is at work"), None)
    with pytest.raises(ArchiveConflictError, match="another run"):
        pipeline.run()
    assert pipeline.pauses == [1]


def test_a_claim_that_is_waited_for_is_told_and_the_wait_ends_at_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever step it is that waits: each asks ``stop`` and tells."""
    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setattr("aiorocket.spark.steps.continuous.behind", lambda *_, **__: [])
    nobody: Any = None  # no step comes so far as to need a session
    text = FILE.replace("[decode]", "[compact]\n[decode]")
    archive = make(tmp_path / "lake" / "archive")
    waits = {
        "archive": ("archive", "archive"), "decode": ("decode", "table"), "dedup": ("dedup", "table"),
        "windows": ("windows", "table"), "compact": ("archive", "compact"),
    }  # fmt: skip
    for step, (folder, name) in waits.items():
        Folder(f"{tmp_path}/lake/{folder}").put(f"_claims/{name}/0123", b"process 7 on elsewhere\n")
        said: list[str] = []
        pipeline = Continuous(
            nobody, plan_of(tmp_path, "t", text), "127.0.0.1:1", stop=lambda said=said: bool(said), say=said.append
        )  # fmt: skip
        one = dict(pipeline._steps())[step]
        monkeypatch.setattr(pipeline, "_steps", lambda step=step, one=one: iter([(step, one)]))
        pipeline.run()
        assert len(said) == 1 and re.fullmatch(
            f"{step}: .*{folder}: process 7 on elsewhere has a claim here that was renewed .* s ago: waiting .* s at "
            "most to see whether it lives", said[0]
        ), said  # fmt: skip
        assert (pipeline.health.rounds, pipeline.health.failures) == (0, 0)
    assert archive.snapshot().last == -1


def no_locks(*_: object) -> None:
    raise OSError(errno.EOPNOTSUPP, "no locks here")


def test_what_grows_is_compacted_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []

    def step(name: str) -> Callable[..., StepReport]:
        def run(_: object, path: str, *__: object, **more: object) -> StepReport:
            how = {each: more.get(each) for each in ("target_bytes", "keep")}
            called.append((name, path, how) if name == "compact" else name)
            return StepReport(name, 0, 0)

        return run

    for name in ("archive", "run_decode", "compact"):
        monkeypatch.setattr(f"aiorocket.spark.steps.continuous.{name}", step(name))
    monkeypatch.setattr("aiorocket.spark.steps.continuous.behind", lambda *_, **__: [])
    text = 'topic = "{topic}"\npath = "{path}"\n[decode]\nusing = "text"\n[compact]\ntarget_mb = 2\nkeep = 5.0\n'
    nobody: Any = None
    pipeline = Continuous(nobody, plan_of(tmp_path, "t", text), "127.0.0.1:1", stop=lambda: False)
    pipeline.round()
    pipeline.round()
    where = f"{tmp_path}/lake/archive"
    how = {"target_bytes": 2 << 20, "keep": 5.0}
    compacted = [("compact", where, how), ("compact", f"{tmp_path}/lake/decode", how)]
    # Last: a failure stops no other step.
    assert called == ["archive", "run_decode", *compacted, "archive", "run_decode"]


def test_rows_of_a_round_before_are_not_counted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = [StepReport("windows", 6, 2), StepReport("windows", 6, 2, details={"up_to_date": True})]
    monkeypatch.setattr("aiorocket.spark.steps.continuous.archive", lambda *_, **__: StepReport("archive", 0, 0))
    monkeypatch.setattr("aiorocket.spark.steps.continuous.run_windows", lambda *_, **__: reports.pop(0))
    monkeypatch.setattr("aiorocket.spark.steps.continuous.behind", lambda *_, **__: [])
    nobody: Any = None
    plan = plan_of(tmp_path, "t", 'topic = "{topic}"\npath = "{path}"\n[windows]\n')
    pipeline = Continuous(nobody, plan, "127.0.0.1:1", stop=lambda: False)
    pipeline.round()
    pipeline.round()
    assert (pipeline.health.rows["windows"], reports) == (2, [])


def test_a_round_that_went_on_without_lost_rows_does_not_end_as_if_nothing_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue("t", "broker-a", 0)
    whole, lacking = StepReport("archive", 3, 3), StepReport("archive", 3, 3, {queue: (0, 5)}, missing={queue: 2})
    table = StepReport("windows", 3, 1, {queue: (0, 5)}, missing={queue: 2})  # of all that was ever archived
    monkeypatch.setattr("aiorocket.spark.quiet_session.session_for", lambda *_, **__: nullcontext())
    monkeypatch.setattr("aiorocket.spark.steps.continuous.run_windows", lambda *_, **__: table)
    monkeypatch.setattr("aiorocket.spark.steps.continuous.behind", lambda *_, **__: [])
    plan_of(tmp_path, "t", 'topic = "{topic}"\npath = "{path}"\n[windows]\n[options]\nfailOnDataLoss = "false"')
    for report, code, end in ((lacking, 1, "; INCOMPLETE: 2 rows gone before they were archived"), (whole, 0, "")):
        monkeypatch.setattr("aiorocket.spark.steps.continuous.archive", lambda *_, report=report, **__: report)
        ran = CliRunner().invoke(cli, ["lake", "run", str(tmp_path / "pipeline.toml"), "--once"])
        *lines, last = ran.stderr.splitlines()
        assert (ran.exit_code, last) == (code, f"ended after 1 round; rows: archive 3, windows 1{end}"), ran.stderr
        told = [line for line in lines if line.startswith("archive: ")]
        assert told and ("INCOMPLETE" in told[0]) == bool(code)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("[windows]", "[window]"), "window is none of attempts, compact, "),
        (lambda text: text.replace('by = "key"', 'bye = "key"'), "dedup.bye is none of by, from, key, pause$"),
        (lambda text: text.replace('by = "key"', 'by = "keys"'), "dedup.by = 'keys' is none of id, key, spark_txn$"),
        (lambda text: text.replace("pause = 0.0", "pause = -1"), r"pause = -1\.0: 0 or more"),
        (lambda text: text.replace("order.ddl", "none.ddl"), "there is no file .*none.ddl"),
        (lambda text: text.replace("[decode]", '[decode]\nschema = "id INT"'), "schema and schema_file"),
        (lambda text: text + "[compact]\ntarget_mb = 0", "target_mb = 0: 1 or more"),
        (lambda text: text + "=", "pipeline.toml"),
        (lambda text: text.replace('"{path}"', '""'), "path = '': the folder"),
    ],
)
def test_a_file_that_is_wrong_says_where(tmp_path: Path, change: Callable[[str], str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plan_of(tmp_path, "t", change(FILE))


def test_a_file_that_is_not_there_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^[^']*/none.toml: No such file or directory$"):
        Plan.read(str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("1 hour", "0 hours"), "windows.every='0 hours': a number and a unit, .*; 1 or more"),
        (lambda text: text.replace('["topic"]', '["topics"]'), "windows.by='topics' is none of topic, "),
        (lambda text: text.replace('["topic"]', '["topic"]\ntime = "born"'), "windows.time='born' is none of"),
        (
            lambda text: text.replace("[options]", "[options]\nMaxOffsetsPerTrigger = '5'"),
            "options.maxOffsetsPerTrigger: max_rows = 500000 says",
        ),
        (lambda text: text.replace('["topic"]', '["tag", "key"]'), None),
        (lambda text: text.replace('["topic"]', '["key"]\nkey = "upper(tags)"'), None),
    ],
)
def test_names_are_checked_without_a_session(tmp_path: Path, change: Callable[[str], str], said: str | None) -> None:
    plan = plan_of(tmp_path, "t", change(FILE))
    with pytest.raises(UsageError, match=said) if said else nullcontext():
        plan.check("127.0.0.1:9876")


def test_the_file_of_the_page_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    [text] = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "p.toml").write_text(text)
    plan = Plan.read(str(tmp_path / "p.toml"))
    assert plan.compact and plan.decode and plan.dedup and plan.windows and plan.windows.pause == 3600


@pytest.mark.usefixtures("spark")  # or the command would start one of its own
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace('schema_file = "order.ddl"', 'schema = "id LONGISH"'), "'id LONGISH' is no DDL"),
        (lambda text: text.replace('["id"]', '["ids"]'), "the required field 'ids' is not in the schema"),
        (lambda text: text.replace('using = "json"', 'using = "avro"').replace("required", "#"), "not an Avro schema"),
        (lambda text: text.replace('by = "key"', 'by = "key"\nkey = "upper("'), "Syntax error"),
        (lambda text: text.replace('["topic"]', '["topics"]'), "topics"),
        (
            lambda text: text.replace("[options]", '[options]\ncolumns = "topic,body,bornTimestamp"'),
            "needs the columns",
        ),
    ],
)
def test_the_command_checks_what_spark_makes_of_a_step(tmp_path: Path, change: Callable[[str], str], said: str) -> None:
    plan_of(tmp_path, "t", change(FILE))
    wrong = CliRunner().invoke(cli, ["lake", "run", str(tmp_path / "pipeline.toml"), "--check"])
    *before, told = wrong.stderr.splitlines()
    assert wrong.exit_code == 1 and said in told, wrong.stderr
    assert all(line.startswith("starting Spark") for line in before) and len(before) < 2


@pytest.mark.usefixtures("spark")
def test_the_command_checks_a_file(tmp_path: Path) -> None:
    plan_of(tmp_path, "t")
    file = str(tmp_path / "pipeline.toml")
    checked = CliRunner().invoke(cli, ["lake", "run", file, "--check"])
    assert (checked.exit_code, checked.stdout) == (0, f"{file}: nothing is wrong\n")
    assert checked.stderr.startswith("starting Spark")  # which takes 20 s
    plan_of(tmp_path, "t", FILE.replace("pullTimeout", "pulTimeout"))
    wrong = CliRunner().invoke(cli, ["lake", "run", file, "--check"])
    assert wrong.exit_code == 1 and "did you mean pullTimeout?" in wrong.stderr
    plan_of(tmp_path, "t", FILE.replace("1 hour", "1 hours long"))
    wrong = CliRunner().invoke(cli, ["lake", "run", file, "--check"])
    assert wrong.exit_code == 1 and "windows.every='1 hours long': a number and a unit" in wrong.stderr


def test_a_signal_before_there_is_a_session_ends_it_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process of a container never hears of one that it has no handler for."""
    before = signal.getsignal(signal.SIGTERM)

    def check(*_: object) -> None:
        handler = signal.getsignal(signal.SIGTERM)
        assert callable(handler) and handler is not before
        handler(signal.SIGTERM, None)

    monkeypatch.setattr(Plan, "check", check)
    plan_of(tmp_path, "t")
    ended = CliRunner().invoke(cli, ["lake", "run", str(tmp_path / "pipeline.toml")])
    assert (ended.exit_code, ended.stderr) == (0, "ended before it began\n")
    assert signal.getsignal(signal.SIGTERM) is before


def test_keys_of_the_file_win_over_those_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = dict[str, str]()

    def run(plan: Plan, name_server: str, options: dict[str, str], *rest: object) -> None:
        taken.update({**options, **plan.options})

    monkeypatch.setattr(import_module("aiorocket.cli.lake.run"), "_run", run)
    monkeypatch.setenv("AIOROCKET_CREDENTIALS_FILE", "/keys")
    plan_of(tmp_path, "t", FILE.replace('pullTimeout = "5s"', 'accessKey = "a"\nsecretKey = "s"'))
    file = str(tmp_path / "pipeline.toml")
    assert CliRunner().invoke(cli, ["lake", "run", file]).exit_code == 0
    assert taken == {"accessKey": "a", "secretKey": "s"}
    plan_of(tmp_path, "t", FILE)
    monkeypatch.delenv("AIOROCKET_CREDENTIALS_FILE")
    monkeypatch.setenv("AIOROCKET_ACCESS_KEY", "a")  # and no secret
    assert "secretKey" in CliRunner().invoke(cli, ["lake", "run", file, "--check"]).stderr


def get(url: str) -> tuple[int, str]:
    try:
        with urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_what_it_answers_to_prometheus_and_probes(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "t")
    health = Health(0, rounds=2, rows={"archive": 7}, seconds={"archive": 1.5}, missing={"archive": 0}, lag=3)
    pipeline: Any = SimpleNamespace(health=health)
    with pages(pipeline, plan, ("127.0.0.1", 0)) as said:
        address = re.findall(r"http://[^/]+", said)[0]
        assert get(f"{address}/readyz") == (503, "no round has ended yet\n")
        status, text = get(f"{address}/healthz")  # it began in 1970
        assert status == 503 and text.startswith("no round has ended well for")
        health.problem, health.good_ms = None, WallClock().wall_ms()
        assert get(f"{address}/readyz")[0] == get(f"{address}/healthz")[0] == 200
        samples = get(f"{address}/metrics")[1].splitlines()
    assert {
        "aiorocket_lake_rounds_total 2.0", 'aiorocket_lake_rows_total{step="archive"} 7.0',
        'aiorocket_lake_step_seconds_total{step="archive"} 1.5', "aiorocket_lake_lag_messages 3.0",
        "aiorocket_lake_ready 1.0", 'aiorocket_lake_missing_rows{step="archive"} 0.0',
    } <= set(samples)  # fmt: skip


@pytest.mark.spark_long
@pytest.mark.timeout(1500)  # two sessions that start
def test_a_day_with_a_crash_of_the_machine_is_accounted_for(tmp_path: Path) -> None:
    """And the last driver is told to end. More of it, and more kinds of ends: ``python -m tests.spark.day``."""
    found = live_through(tmp_path, 40, [(6, "machine killed")], rate=40)
    assert found["lost"] == found["twice"] == 0 and found["messages"] >= found["orders"] > 0
