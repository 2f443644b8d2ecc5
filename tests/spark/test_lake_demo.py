"""``aiorocket lake demo``: a log through a broker to tables and pictures, twice, and the parser that it stands on."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from pyspark.sql import functions as F

from aiorocket.cli.lake.made_up_log import made_up_log as made_up
from aiorocket.cli.main import cli
from aiorocket.model import Queue
from aiorocket.spark.steps.demo import Pipeline
from aiorocket.spark.steps.demo.access_log import PATTERN, access_log
from aiorocket.spark.steps.demo.plots import Found, draw_log
from aiorocket.spark.steps.functions import plot_style
from aiorocket.spark.steps.report import StepReport
from tests.spark import pictures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PNG = b"\x89PNG\r\n"


@pytest.mark.spark_long
def test_a_log_goes_through_twice_and_every_count_is_the_one_before(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    log = tmp_path / "shop.log"
    lines = [line for line in made_up(300) if re.match(PATTERN, line.decode("utf-8", "replace"))][:290]
    log.write_bytes(b"\n".join([*lines, b"worker 7 exited", b"", b"\xff\xfe broken"]) + b"\n")
    first = CliRunner().invoke(cli, ["lake", "demo", str(log), "--out", str(out)])
    assert first.exit_code == 0, first.output
    assert (
        "The counts add up: 292 lines = 292 sent = 292 archived = 290 decoded + 2 quarantined; 290 decoded = 290 in "
        "windows.\n"
    ) in first.stdout
    assert "archive complete: 292 rows = sum of end - begin over 4 queues\n" in first.stdout
    assert "empty lines skipped" in first.stdout and "Top paths" in first.stdout
    for name in ("requests", "response_times", "paths"):
        picture = out / "plots" / f"{name}.png"
        assert f"plot: {picture}\n" in first.stdout
        assert picture.read_bytes().startswith(PNG) and picture.stat().st_size > 10_000
    second = CliRunner().invoke(cli, ["lake", "demo", "--lines", "50", "--out", str(out)])
    assert second.exit_code == 0, second.output
    assert "from earlier runs: 292 messages" in second.stdout
    assert "50 lines = 50 sent + 292 of earlier runs = 342 archived" in second.stdout
    decoded = spark.read.parquet(str(out / "log" / "decoded"))
    windows = spark.read.parquet(str(out / "windows" / "requests")).agg(F.sum("rows")).collect()[0][0]
    found = decoded.agg(F.count("time"), F.count_distinct("queueId", "queueOffset")).collect()[0]
    assert found[0] == found[1] == windows


@pytest.mark.spark_long
def test_a_log_of_something_else_is_quarantined_and_drawn_as_nothing(spark: SparkSession, tmp_path: Path) -> None:
    text = tmp_path / "poem.txt"
    text.write_text("a line\nanother\n")
    done = CliRunner().invoke(cli, ["lake", "demo", str(text), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "2 lines = 2 sent = 2 archived = 0 decoded + 2 quarantined; 0 decoded = 0 in windows." in done.stdout
    assert "no plots: there is nothing to draw" in done.stdout


def test_pictures_of_a_minute_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One window has a point, and no name of a path is on another or leaves the picture."""
    made: dict[str, Any] = {}

    def save(figure: Any, path: Path) -> Path:
        made[path.stem] = figure.axes[0]
        return pictures.framed(figure, path)

    monkeypatch.setattr(plot_style, "save", save)
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    paths = [(f"/$a_{n}$/{'x' * 40}/{n}", 9 - n, 0, 0.2) for n in range(2)]
    draw_log(Found("1 minute", [(at, "2xx", 9)], [(at, 9, 0.01, 0.1, 0.5)], paths, (2, 1, 100)), tmp_path)
    assert all(line.get_marker() == "o" for line in made["response_times"].lines)
    assert made["paths"].get_ylim()[0] > 4  # two bars are no wall


def test_counts_that_do_not_add_up_end_with_1(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def losing(*_: object, **__: object) -> Pipeline:
        queue = Queue("access-log", "broker-a", 0)
        archived = StepReport("archive", 20, 20, {queue: (0, 20)}, missing={queue: 1})
        decoded = StepReport("decode", 18, 18, details={"wrote": {"decoded": 17, "quarantine": 0}})
        return Pipeline(20, 19, 17, 0, 16, 1, archived, decoded, {}, {}, (), None)

    monkeypatch.setattr("aiorocket.cli.lake.log_demo.pipeline", losing)
    page = tmp_path / "page.html"
    done = CliRunner().invoke(
        cli, ["lake", "demo", "--lines", "20", "--out", str(tmp_path / "out"), "--html", str(page)]
    )
    assert done.exit_code == 1 and done.stderr.endswith(f"report: {page}\n")
    wrong = '<p class="proof bad">The counts do not add up: 20 messages are stored, 19 archived</p>'
    assert wrong in page.read_text() and page.read_text().count("<h1>") == 3
    said = [line.partition(": ")[2] for line in done.stderr.splitlines() if line.startswith("The counts do not add up")]
    assert said == [
        "20 messages are stored, 19 archived",
        "19 archived, 17 decoded + 0 quarantined",
        "17 decoded, 16 in windows",
        "archive: access-log on broker-a, queue 0 lacks 1 rows",
        "the order check found 1 gaps, repeats or steps back",
    ]


@pytest.mark.spark_long
def test_lines_of_all_kinds_become_columns(spark: SparkSession) -> None:
    when = "03/Mar/2025:13:02:55 +0100"
    lines = [
        f'1.2.3.4 - - [{when}] "GET /a/b?x=1&y HTTP/1.1" 200 512 "https://e.org/" "curl/8" 0.250',
        f'1.2.3.4 - ann [{when}] "POST /a HTTP/2.0" 503 -',
        f'::1 - a b [{when}] "GET /\\"q\\" HTTP/1.1" 404 1 "-" "say \\"hi\\"" 1.5 "more" upstream=x',
        rf'1.2.3.4 - - [{when}] "\x16\x03" 400 157 "-" "-"',
        '1.2.3.4 - - [31/Feb/2025:13:02:55 +0100] "GET / HTTP/1.1" 200 1',
        f'1.2.3.4 - - [{when}] "GET / HTTP/1.1" 200',
        "",
    ]
    rows = [(number, line.encode()) for number, line in enumerate(lines)] + [(7, b'\xff - - [x] "GET" 200 1')]
    done = access_log(spark.createDataFrame(rows, "n INT, body BINARY"))
    found = {row["n"]: row for row in done.rows.collect()}
    values = {n: row["value"].asDict() for n, row in found.items() if row["value"] is not None}
    at = values[0].pop("time")
    assert at.astimezone(UTC) == datetime(2025, 3, 3, 12, 2, 55, tzinfo=UTC)
    assert values[0] == {
        "client": "1.2.3.4", "user": None, "method": "GET", "path": "/a/b", "query": "x=1&y", "protocol": "HTTP/1.1",
        "status": 200, "statusClass": "2xx", "bytes": 512, "referrer": "https://e.org/", "agent": "curl/8",
        "seconds": 0.25,
    }  # fmt: skip
    common = values[1]
    assert (common["user"], common["bytes"], common["agent"], common["seconds"]) == ("ann", 0, None, None)
    assert (values[2]["user"], values[2]["path"], values[2]["agent"], values[2]["seconds"]) == (
        "a b", r"/\"q\"", r"say \"hi\"", 1.5
    )  # fmt: skip
    assert (values[3]["method"], values[3]["path"], values[3]["status"]) == (None, r"\x16\x03", 400)
    assert {n: found[n]["reason"] for n in (4, 5, 6, 7)} == {
        4: "no such time", 5: "not a line of an access log", 6: "not a line of an access log", 7: "not UTF-8"
    }  # fmt: skip
