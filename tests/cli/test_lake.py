"""``aiorocket lake``: what can be said without a Spark session. The rest is in ``tests/spark``."""

from __future__ import annotations

import json
import logging
import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from py4j.protocol import Py4JNetworkError

from aiorocket.cli.lake.log_demo import _event_time, _message
from aiorocket.cli.lake.made_up_log import made_up_log
from aiorocket.cli.lake.run import in_a_line
from aiorocket.cli.lake.running import INSTALL, Interrupts
from aiorocket.cli.lake.telling import cell, proof, summary
from aiorocket.cli.lines import Line
from aiorocket.cli.main import cli
from aiorocket.errors import RemoteError, UsageError
from aiorocket.model import Queue
from aiorocket.spark import quiet_session
from aiorocket.spark.failures import explain
from aiorocket.spark.options import SourceOptions
from aiorocket.spark.steps.demo.access_log import PATTERN
from aiorocket.spark.steps.files.claims import claim
from aiorocket.spark.steps.files.folder import Folder
from aiorocket.spark.steps.files.manifest import Archive, Commit, DataFile, Span, partition_folder
from aiorocket.spark.steps.report import Progress, StepReport
from aiorocket.spark.steps.tables.run import plain
from tests.ports import free_port

COMMANDS = [
    "demo", "archive", "compact", "verify", "restore", "show", "lag", "dedup", "decode", "windows", "order", "latency",
    "report", "triage", "replay", "run",
]  # fmt: skip

QUEUE = Queue("orders", "broker-a", 1)


def lake(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["lake", *arguments])


def test_the_group_lists_its_commands_and_each_explains_itself() -> None:
    listed = re.findall(r"^  ([a-z]+)  ", lake("--help").output, re.MULTILINE)
    assert listed == COMMANDS
    for name in COMMANDS:
        result = lake(name, "--help")
        assert result.exit_code == 0 and "Usage:" in result.output


def test_help_loads_no_spark_and_no_arrow(aiorocket: Any) -> None:
    script = (
        "import sys\n"
        "from aiorocket.cli.main import cli\n"
        "try:\n    cli(['lake', 'archive', '--help'], prog_name='aiorocket')\n"
        "except SystemExit as end:\n    assert end.code == 0, end.code\n"
        "heavy = {'pyspark', 'pyarrow', 'numpy', 'matplotlib', 'rich', 'aiorocket.spark', 'aiorocket.broker'}\n"
        "print('loaded:', sorted(heavy & set(sys.modules)))\n"
    )
    assert aiorocket.python(script).endswith("loaded: []\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("windows", "give --archive PATH, or --topic TOPIC"),
        ("windows --archive x --option TAGS=b", "--option tags= is for a live topic"),
        ("windows --topic t --option tagz=b", "'tagz' is unknown; did you mean tags?"),
        ("windows --topic t --option topic=u", "topic= is not for here"),
        ("windows --topic t --option startingOffsets=latest", "--from and --until say which rows"),
        ("archive t x --option Topic=u", "Topic= is not for here"),
        ("archive t x --option path=u", "path= is not for here"),
        ("archive t x --option mode=spark", "option mode does not exist here"),
        ("archive t x --option tags=a --option TAGS=b", "tags= is given twice"),
        ("restore x --option limit=5", "'limit' is unknown"),
        ("windows --archive x --from yesterday", "'yesterday' is no time such as"),
        ("windows --archive x --from 2025-03-01+02:00", "'2025-03-01+02:00' is no time such as"),
        ("windows --archive x --until 9999-12-31T23:00-05:00", "'9999-12-31T23:00-05:00' is no time such as"),
        ("windows --topic t --from 2025-03-02 --until 2025-03-01", "is not after --from"),
        ("windows --topic t --option tags", "'tags' is not NAME=VALUE"),
        ("windows --topic t --nameserver nowhere", "'nowhere' is not HOST:PORT"),
        ("windows --topic t --format csv", "'csv' is not one of"),
        ("decode --topic t", "--using json needs --schema"),
        ("decode --topic t --using text --schema x", "takes no --schema"),
        ("decode --topic t --schema @nowhere.ddl", "--schema @nowhere.ddl: No such file"),
        ("dedup --topic t --key keys", "--key goes with --by key"),
        ("windows --topic t --key keys --by topic", "--key goes with --by key"),
        ("order --topic t --dense", "go with --sequence"),
        ("latency --archive x --group g", "--group asks brokers"),
        ("archive t", "Missing argument 'PATH'"),
        ("windows --topic t --every ten", "--every='ten': a number and a unit"),
        ("windows --topic t --watermark ten", "--watermark='ten': a number and a unit"),
        ("windows --topic t --by topics", "--by='topics' is none of topic, brokerName"),
        (
            "windows --topic t --by tag -o columns=topic,bornTimestamp",
            "--by='tag' is none of topic, bornTimestamp, tag",
        ),
        ("windows --topic t --time tag", "--time='tag' is none of topic"),
        ("report --topic t --by nix", "--by='nix' is none of"),
        ("latency --topic t --every ten", "--every='ten'"),
        ("archive t x --from soon", "'soon' is none of earliest, latest, group"),
        ("archive t x --from 2025-03-01-05:00", "'2025-03-01-05:00' is none of earliest, latest, group"),
        ("archive t x --mode slow", "'slow' is not one of"),
        (
            "archive t x --from latest -o startingoffsets=earliest",
            "--from latest and --option startingOffsets= both say",
        ),
        ("archive t x --from 2025-03-01 -o startingTimestamp=5", "--option startingTimestamp= both say where to begin"),
        (
            "archive t x --mode spark --max-rows 9 -o maxoffsetspertrigger=5",
            "--max-rows 9 and --option maxOffsetsPerTrigger= both say how large a batch may be: give one",
        ),
        ("verify x --html no/such/page.html", "there is no folder "),
        ("verify x --html .", "is a directory"),
        ("windows --topic t --plots /dev/null/x", "--plots='/dev/null/x': /dev/null is no directory"),
        ("demo nowhere.log", "nowhere.log: No such file"),
        ("demo some.log --lines 5", "--lines and --seed are for the log that is made up"),
    ],
)
def test_bad_options_end_with_2_before_spark_starts(arguments: str, said: str) -> None:
    result = lake(*arguments.split())
    assert (result.exit_code, said in result.output) == (2, True), result.output
    assert "starting Spark" not in result.output


@pytest.mark.parametrize(
    "arguments", [("archive", "t", "there"), ("windows", "--archive", "there"), ("show", "there"), ("demo",)]
)
def test_a_missing_extra_is_one_line_that_says_what_to_install(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("aiorocket.cli.lake.running.find_spec", lambda name: None if name == "pyspark" else object())
    result = lake(*arguments)
    assert result.exit_code == 1
    assert result.output == f"Error: aiorocket lake needs pyspark: {INSTALL}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", ["archive t x", "windows --topic t", "replay g", "show x", "demo"])
def test_without_spark_each_command_says_what_to_install(aiorocket: Any, arguments: str) -> None:
    script = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('pyspark', 'pyarrow', 'numpy')))\n"
        "from aiorocket.cli.main import cli\n"
        "sys.stderr = sys.stdout\n"
        f"try:\n    cli(['lake', *{arguments.split()}], prog_name='aiorocket')\n"
        "except SystemExit as end:\n    assert end.code == 1, end.code\n"
    )
    said = aiorocket.python(script)
    assert said == f"Error: aiorocket lake needs pyspark, pyarrow, numpy: {INSTALL}\n"


def test_a_run_without_its_pictures_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    for plots, said in (([], True), (["a.png"], False), (None, False)):
        summary(StepReport("windows", 0, 0, details={"plots": plots}))
        assert ("no plots: there is nothing to draw\n" in capsys.readouterr().out) is said
    result = lake("windows", "--topic", "t", "--slide", "1 second", "--plots", "there")
    assert (result.exit_code, "without --slide" in result.output) == (2, True)


def test_plots_without_matplotlib_name_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiorocket.cli.lake.running.find_spec", lambda name: None if name == "matplotlib" else object())
    result = lake("latency", "--topic", "t", "--plots", "there")
    assert result.output == "Error: --plots needs matplotlib: pip install 'aiorocketmq[report]'\n"
    assert result.exit_code == 1


# -- what the steps are given, and what becomes of their reports --


@contextmanager
def no_session(*_: object, **__: object) -> Iterator[None]:
    yield None


def given_to_archive(monkeypatch: pytest.MonkeyPatch, answer: StepReport | BaseException) -> dict[str, Any]:
    """Puts another function in the step's place: the arguments it gets."""
    got: dict[str, Any] = {}

    def step(spark: object, path: str, name_server: str, topic: str, **more: Any) -> StepReport:
        got.update(more, path=path, name_server=name_server, topic=topic)
        more["on_progress"](Progress("archive", 3, 7, "batch 0"))
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr("aiorocket.spark.quiet_session.session_for", no_session)
    monkeypatch.setattr(import_module("aiorocket.spark.steps.archives.archive"), "archive", step)
    return got


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[SourceOptions]:
    """What commands look for before Spark starts; it is there."""
    found: list[SourceOptions] = []

    async def look(options: SourceOptions) -> None:
        found.append(options)

    monkeypatch.setattr("aiorocket.spark.steps.tables.inputs.look", look)
    return found


def test_a_broker_that_is_not_there_is_told_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Spark takes 15 s to start."""
    monkeypatch.undo()
    archive_with(tmp_path / "lake", 3, 3)
    nobody = f"127.0.0.1:{free_port()}"
    for command in (
        f"archive orders {tmp_path}/new", f"restore {tmp_path}/lake orders", "windows --topic orders",
        "order --topic orders", "triage billing", "replay billing",
    ):  # fmt: skip
        result = lake(*command.split(), "--nameserver", nobody)
        [line] = result.stderr.splitlines()
        assert result.exit_code == 1 and line.startswith("Error: no name server answers"), line
    result = lake("restore", f"{tmp_path}/lake", "--only", "nosuch")
    assert (result.exit_code, result.stderr) == (2, "Error: topic 'nosuch' is not in the archive, which has orders\n")


def test_a_topic_is_asked_for_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch, asked: list[SourceOptions], tmp_path: Path
) -> None:
    """Of an archive that was begun the step does: it can say how far the topic was read."""
    given_to_archive(monkeypatch, StepReport("archive", 0, 0, {}))
    archive_with(tmp_path / "lake", 3, 3)
    assert lake("archive", "orders,bills", f"{tmp_path}/new").exit_code == 0
    assert lake("archive", "orders", f"{tmp_path}/lake").exit_code == 0
    assert [each.topics for each in asked] == [("orders", "bills")]


def test_options_reach_the_step_and_its_progress_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    got = given_to_archive(monkeypatch, StepReport("archive", 7, 7, {QUEUE: (0, 7)}, details={"proof": "count"}))
    result = lake(
        "archive", "orders", "there", "--nameserver", "a:1,b:2", "--from", "2025-03-01T12:00+01:00", "--follow",
        "--option", "tags=paid", "--format", "delta",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert (got["name_server"], got["topic"], got["path"], got["mode"]) == ("a:1;b:2", "orders", "there", "direct")
    assert (got["startingTimestamp"], got["tags"], got["format"]) == ("1740826800000", "paid", "delta")
    assert got["follow"] is True and got["stop"]() is False
    assert "archive: 3 of 7 rows; batch 0\n" in result.stderr
    assert result.stdout.endswith("complete: 7 rows = sum of end - begin over 1 queue\n")


def test_where_to_begin_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    done = StepReport("archive", 0, 0, {})
    got = given_to_archive(monkeypatch, done)
    assert lake("archive", "orders", "there", "-o", "startingtimestamp=5", "-o", "FAILondataloss=false").exit_code == 0
    starting = {name: value for name, value in got.items() if name.startswith("starting")}
    assert starting == {"startingTimestamp": "5"} and got["failOnDataLoss"] == "false"
    strategy = "startingOffsetsByTimestampStrategy=latest"
    assert lake("archive", "orders", "there", "--from", "1969-07-20", "-o", strategy).exit_code == 0
    assert got["startingTimestamp"] == "0"  # brokers know no time before it
    assert lake("archive", "orders", "there", "--from", "latest").exit_code == 0
    assert got["startingOffsets"] == "latest"


def test_another_run_is_told_of_before_spark_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    got = given_to_archive(monkeypatch, StepReport("archive", 0, 0, {}))
    with claim(Folder(str(tmp_path)), "archive"):
        result = lake("archive", "orders", str(tmp_path))
    assert (result.exit_code, got) == (1, {}) and "another run is at work here" in result.stderr
    assert "starting Spark" not in result.stderr
    assert lake("archive", "orders", str(tmp_path)).exit_code == 0


def test_a_page_that_could_not_be_written_is_refused_before_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    got = given_to_archive(monkeypatch, StepReport("archive", 0, 0, {}))
    monkeypatch.setattr("os.access", lambda path, mode: path != str(tmp_path))  # root may write anywhere
    result = lake("archive", "orders", "there", "--html", str(tmp_path / "page.html"))
    assert (result.exit_code, got) == (2, {}) and f"the folder {tmp_path} cannot be written" in result.stderr


def test_missing_rows_end_with_1_and_json_is_all_of_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    given_to_archive(monkeypatch, StepReport("archive", 7, 5, {QUEUE: (0, 7)}, missing={QUEUE: 2}))
    result = lake("archive", "orders", "there", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["missing"] == [[*QUEUE, 2]]


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted; what is in there is complete up to the last batch"),
        (UsageError("no such thing"), 1, "Error: no such thing\n"),
        (PermissionError(13, "Permission denied", "/lake"), 1, "Error: /lake: Permission denied\n"),
        (OSError("Unable to load libjvm\ndlopen failed"), 1, "Error: Unable to load libjvm\n"),  # as pyarrow's are
        (RemoteError(16, "no permission"), 1, "sign in as one who may (AIOROCKET_CREDENTIALS_FILE=FILE)\n"),
    ],
)
def test_what_goes_wrong_is_one_line(
    error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_to_archive(monkeypatch, error)
    result = lake("archive", "orders", "there")
    assert (result.exit_code, said in result.stderr, result.stdout) == (code, True, "")
    assert said.strip() in result.stderr.splitlines()[-1]


def test_the_first_signal_asks_the_second_one_interrupts_and_handlers_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    interrupts = Interrupts(gently=True)
    interrupts.take()
    try:
        interrupts.take()  # after pyspark has put its own there
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.wanted
        signal.raise_signal(signal.SIGTERM)  # as ``timeout`` does: to the process, and to its group
        monkeypatch.setattr("aiorocket.cli.lake.running.ONE_WISH", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        interrupts.give_back()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_second_signal_ends_what_follows_as_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    done = StepReport("archive", 0, 0, {})
    given_to_archive(monkeypatch, done)
    monkeypatch.setattr("aiorocket.cli.lake.running.ONE_WISH", 0.0)

    def step(*_: object, **__: object) -> StepReport:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        return done

    monkeypatch.setattr(import_module("aiorocket.spark.steps.archives.archive"), "archive", step)
    assert lake("archive", "orders", "there", "--follow").exit_code == 130


@pytest.mark.parametrize("follow", [True, False])
def test_the_start_of_spark_is_not_broken_off(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], follow: bool
) -> None:
    got = given_to_archive(monkeypatch, StepReport("archive", 0, 0, {}))
    seen: list[str] = []

    @contextmanager
    def session(*_: object, **__: object) -> Iterator[None]:
        signal.raise_signal(signal.SIGINT)
        seen.append("started")
        try:
            yield None
        except KeyboardInterrupt:
            seen.append("interrupted")
            raise

    monkeypatch.setattr("aiorocket.spark.quiet_session.session_for", session)
    result = lake("archive", "orders", "there", *["--follow"] * follow)
    assert capfd.readouterr().err == "interrupted: it ends when Spark has started\n"
    if follow:  # what goes on until it is told to stop looks at the wish by itself
        assert result.exit_code == 0 and seen == ["started"] and got["stop"]() is True
    else:
        assert result.exit_code == 130 and seen == ["started", "interrupted"] and not got


def test_a_second_signal_breaks_off_the_start_of_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    got = given_to_archive(monkeypatch, StepReport("archive", 0, 0, {}))
    monkeypatch.setattr("aiorocket.cli.lake.running.ONE_WISH", 0.0)

    @contextmanager
    def session(*_: object, **__: object) -> Iterator[None]:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        yield None

    monkeypatch.setattr("aiorocket.spark.quiet_session.session_for", session)
    assert lake("archive", "orders", "there").exit_code == 130 and not got


def test_what_an_interrupted_call_leaves_behind_is_the_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    given_to_archive(monkeypatch, StepReport("archive", 0, 0, {}))
    caplog.set_level(logging.ERROR, "py4j")  # by whoever runs the command in a program

    def step(*_: object, **__: object) -> StepReport:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            logging.getLogger("py4j.clientserver").error("Exception occurred while shutting down connection")
            raise Py4JNetworkError("Answer from Java side is empty")

    monkeypatch.setattr(import_module("aiorocket.spark.steps.archives.archive"), "archive", step)
    with monkeypatch.context() as shown:
        shown.setattr(logging.getLogger("py4j.clientserver"), "handlers", [logging.StreamHandler()])
        result = lake("archive", "orders", "there")
    assert result.exit_code == 130
    assert result.stderr.splitlines()[2:] == [
        "interrupted; what is in there is complete up to the last batch, and the next run goes on there"
    ]
    assert capsys.readouterr().err == ""
    assert logging.getLogger("py4j").level == logging.ERROR


def test_an_interrupted_session_ends_with_the_input_of_its_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    server = SimpleNamespace(handle_error=None)
    process = SimpleNamespace(stdin=SimpleNamespace(close=lambda: done.append("closed")), wait=done.append)
    context = SimpleNamespace(_accumulatorServer=server, _gateway=SimpleNamespace(proc=process), _jsc="there")
    session = SimpleNamespace(sparkContext=context, stop=lambda: done.append("stopped"))
    monkeypatch.setattr(quiet_session.SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(quiet_session, "SparkContext", SimpleNamespace())
    monkeypatch.setattr(quiet_session, "spark_session", lambda **_: session)
    with pytest.raises(KeyboardInterrupt), quiet_session.session_for("t", "local[1]"):
        raise KeyboardInterrupt
    assert done == ["closed", quiet_session._PATIENCE] and context._jsc is None
    server.handle_error()  # says nothing of the end
    with pytest.raises(UsageError), quiet_session.session_for("t", "local[1]"):
        raise UsageError("something else")
    assert done[2:] == ["stopped"]


def test_a_jvm_that_was_ended_by_the_same_signal_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell's job and ``timeout`` send it to all of the group; the work was done in good order."""

    def stop() -> None:
        raise Py4JNetworkError("Error while sending or receiving")

    monkeypatch.setattr(quiet_session.SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(quiet_session, "spark_session", lambda **_: SimpleNamespace(stop=stop))
    with quiet_session.session_for("t", "local[1]"):
        pass


# -- show and the proof --


def archive_with(path: Path, rows: int, end: int) -> None:
    """An archive whose manifest says: one queue, offsets up to ``end``, of them ``rows`` there."""
    columns = ["topic", "brokerName", "queueId", "queueOffset", "storeTimestamp"]
    archive = Archive.create(str(path), format="parquet", columns=columns)
    name = f"data/{partition_folder('orders', 480_000)}/x.parquet"
    (path / name).parent.mkdir(parents=True)
    with (path / name).open("wb") as written:
        written.truncate(2 << 20)
    file = DataFile(name, rows, 2 << 20, {QUEUE: Span(0, end, rows)})
    archive.publish(archive.snapshot(), Commit([file], {QUEUE: Span(0, end, rows)}))


def test_show_proves_an_archive_complete(tmp_path: Path) -> None:
    archive_with(tmp_path / "a", 1500, 1500)
    result = lake("show", str(tmp_path / "a"))
    assert result.exit_code == 0, result.output
    assert "complete: 1,500 rows = sum of end - begin over 1 queue\n" in result.output
    assert "1,500 rows in 1 file, 2.0 MiB, parquet\n" in result.output


def test_show_says_what_is_missing_and_ends_with_1(tmp_path: Path) -> None:
    archive_with(tmp_path / "a", 1490, 1500)
    result = lake("show", str(tmp_path / "a"))
    assert result.exit_code == 1
    assert "INCOMPLETE: 10 rows missing in 1 queue\n" in result.output
    result = lake("show", str(tmp_path / "a"), "--json")
    shown = json.loads(result.output)
    assert (result.exit_code, shown["complete"], shown["missing"]) == (1, False, [["orders", "broker-a", 1, 10]])


@pytest.mark.parametrize("command", ["windows", "dedup", "order", "latency", "report"])
def test_an_archive_that_is_not_there_is_told_before_spark_starts(command: str, tmp_path: Path) -> None:
    result = lake(command, "--archive", str(tmp_path / "a"))
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: no archive at {tmp_path / 'a'}")


@pytest.mark.parametrize("command", ["compact", "restore", "verify"])
def test_an_archive_to_keep_that_is_not_there_is_told_before_spark_starts(command: str, tmp_path: Path) -> None:
    result = lake(command, str(tmp_path / "a"))
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: no archive at {tmp_path / 'a'}")


def test_a_topic_that_cannot_be_is_told_before_spark_starts(tmp_path: Path) -> None:
    result = lake("archive", "no:topic", str(tmp_path / "a"))
    assert result.exit_code == 1 and result.output.startswith("Error: topic: topic 'no:topic': 1 to 127"), result.output


def test_show_of_nothing_says_so(tmp_path: Path) -> None:
    result = lake("show", str(tmp_path / "a"))
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: no archive at {tmp_path / 'a'}")
    (tmp_path / "a").mkdir()
    archive_with(tmp_path / "a" / "archive", 3, 3)  # of a pipeline
    assert lake("show", str(tmp_path / "a")).output.endswith(f"; there is one at {tmp_path / 'a'}/archive\n")


def test_the_proof_names_the_queues_that_lack_rows() -> None:
    queues = {Queue("t", "b", number): (0, 10) for number in range(3)}
    assert proof(StepReport("x", 30, 30, queues)) == ["complete: 30 rows = sum of end - begin over 3 queues"]
    lacking = StepReport("x", 29, 29, queues, missing={Queue("t", "b", 1): 1})
    first, second = proof(lacking)
    assert first == "INCOMPLETE: 1 row of 30 missing in 1 queue"
    assert second == "  t on b, queue 1: 1 of the offsets [0, 10)"
    assert proof(StepReport("x", 3, 3, queues, details={"proof": "none: a filter"})) == ["no proof: a filter"]
    assert proof(StepReport("x", 0, 0)) == ["no rows: there was nothing to read, or nothing new"]
    assert proof(StepReport("x", 0, 0, details={"up_to_date": True})) == []  # which is said already


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (StepReport("replay", 3, 3, {}, details={"dry_run": True, "sent": 0}), "rows to send"),
        (StepReport("replay", 3, 2, {}, details={"dry_run": False, "sent": 2}), "rows sent"),
        (StepReport("restore", 3, 0, {}, details={"dry_run": True}), "rows sent"),
        (StepReport("windows", 3, 2, {}, details={"table": None}), "rows found, and not kept"),
        (StepReport("windows", 3, 2, {}, details={"table": "/lake/windows"}), "rows written"),
        (StepReport("restore", 0, 0, {}, details={"sent_in_all": 3}), "with another --name it is sent again"),
    ],
)
def test_what_was_not_sent_is_not_said_to_be(report: StepReport, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    summary(report)
    out = capsys.readouterr().out
    assert said in out and ("rows to send" in out) == (said == "rows to send"), out


def test_a_round_says_what_could_not_be_decoded() -> None:
    done = StepReport("decode", 6000, 6000, {QUEUE: (0, 6000)}, seconds=2.0, details={"quarantined": 12})
    proved = "complete: 6,000 rows = sum of end - begin over 1 queue"
    assert in_a_line(done) == f"decode: 6,000 rows in 2.0 s; 12 quarantined; {proved}"
    assert in_a_line(replace(done, details={"quarantined": 0})) == f"decode: 6,000 rows in 2.0 s; {proved}"


def test_values_that_json_does_not_have_are_text() -> None:
    assert plain([float("nan"), -float("inf"), 0.5, True, None]) == ["nan", "-inf", 0.5, True, None]


def test_cells_are_short() -> None:
    assert [cell(value) for value in (None, True, 1234567, 0.5, 12.0, {"a": 1}, ["x", 2], "a\n b")] == [
        "", "yes", "1,234,567", "0.5", "12", "a: 1", "x; 2", "a b",
    ]  # fmt: skip
    assert len(cell("x" * 500)) == 60


def test_a_failure_in_a_task_is_told_by_its_cause() -> None:
    trace = (
        "An error occurred while calling o42.collect.\n: org.apache.spark.SparkException: Job aborted\n"
        "Traceback (most recent call last):\n  File x\n"
        "aiorocket.spark.fetch.DataLossError: t broker-a 1: offsets 3 to 9 are gone\n\tat java.lang.Thread\n"
    )
    assert explain(RuntimeError(trace)) == "t broker-a 1: offsets 3 to 9 are gone"
    other = "x\nTraceback (most recent call last):\n  File x\nValueError: odd\n"
    assert explain(RuntimeError(other)) == "ValueError: odd"
    assert explain(RuntimeError("[CODE] no such column\n== SQL ==")) == "[CODE] no such column"


# -- the log of the demo --


def test_the_log_is_the_same_for_the_same_seed_and_has_a_shape() -> None:
    log = list(made_up_log(5000))
    assert log == list(made_up_log(5000))
    assert log != list(made_up_log(5000, day=1)) and log != list(made_up_log(5000, seed=2))
    found = [re.match(PATTERN, line.decode("utf-8", "replace")) for line in log]
    good = [each for each in found if each]
    assert 4980 <= len(good) < 5000, "one in a thousand is damaged"
    hours = Counter(int(each[3][12:14]) for each in good)
    assert hours[20] > 3 * hours[1], "evenings are busy, nights are not"
    statuses = Counter(each[5][0] for each in good)
    assert statuses["2"] > 4 * statuses["3"] > 8 * statuses["5"] > 0
    assert [each[3][12:17] for each in good] == sorted(each[3][12:17] for each in good)
    paths = Counter(each[4].split(" ")[1] for each in good if " " in each[4]).most_common(3)
    assert paths[0][0] == "/" and paths[0][1] > 2 * paths[2][1]
    assert any(":" in each[1] for each in good) and any("bot" in each[8] for each in good)


def test_a_line_becomes_a_message_with_its_client_status_and_time() -> None:
    text = rb'2001:db8::1 - ann [03/Mar/2025:13:02:55 +0100] "GET /a?b=\"c\" HTTP/1.1" 503 12 "-" "curl/8" 0.250'
    place, message = _message(Line(7, text), "1700000000")
    assert (message.tag, message.keys, message.body) == ("5xx", ("2001:db8::1",), text)
    assert message.properties == {"run": "1700000000", "line": "7", "eventTime": "1741003375000"}
    assert place == _message(Line(8, text), "1700000000")[0], "a client's lines go one way"
    _, other = _message(Line(9, b"worker 7 exited"), "1700000000")
    assert (other.tag, other.keys, other.properties) == ("other", (), {"run": "1700000000", "line": "9"})


def test_times_that_cannot_be_are_none() -> None:
    assert _event_time("31/Feb/2025:13:02:55 +0000") is None
    assert _event_time("28/Xxx/2025:13:02:55 +0000") is None
