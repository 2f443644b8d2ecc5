"""``aiorocket bench``: a short run whose counts add up, a comparison, a page, and words for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aiorocket.cli.main import cli
from aiorocket.testing.server import RocketMQServer


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["bench", *arguments])


def test_a_run_a_comparison_and_a_page(server: RocketMQServer, tmp_path: Path) -> None:
    file, page = tmp_path / "a.json", tmp_path / "a.html"
    (tmp_path / "scenario.toml").write_text("rate = 200\nseconds = 0.5\nqueues = 2\n")
    found = call("run", "--nameserver", server.embedded.nameserver_address, "--scenario", f"{tmp_path}/scenario.toml",
                 "--warmup", "0", "--tags", "2", "--idle", "2", "--processes", "2",
                 "--out", str(file), "--html", str(page))  # fmt: skip
    assert found.exit_code == 0, found.output
    assert "lost 0, duplicates 0, out of order 0" in found.output and "limit: " in found.output
    result = json.loads(file.read_text())
    checks = result["runs"][0]["checks"]
    assert checks["acknowledged"] == checks["received"] == 100
    assert result["machine"]["cores"] and result["runs"][0]["figures"]["send_p99_ms"] > 0
    assert [each["flush"] for each in result["runs"][0]["brokers"]] == ["sync"]
    assert "<svg" in page.read_text() and "<td>sync</td>" in page.read_text()
    compared = call("compare", str(file), str(file))
    assert compared.exit_code == 0 and "one run" in compared.output
    for brokers, different in (([], False), (None, False), ([{"broker": "b", "version": "", "flush": "async"}], True)):
        result["runs"][0]["brokers"] = brokers
        (tmp_path / "b.json").write_text(json.dumps(result))
        compared = call("compare", str(file), str(tmp_path / "b.json"))
        assert ("different brokers" in compared.output) == different, compared.output
    assert "failed" not in compared.output
    result["runs"][0]["checks"] |= {"lost": 3, "failed_sends": 1}
    (tmp_path / "b.json").write_text(json.dumps(result))
    compared = call("compare", str(file), str(tmp_path / "b.json"))
    assert "B failed, and its figures are none to go by: lost 3, failed sends 1\n" in compared.output
    assert "A failed" not in compared.output
    assert call("report", str(file), str(tmp_path / "b.html")).exit_code == 0
    full = call("report", str(file), "/dev/full")
    assert full.exit_code == 1 and full.output.startswith("Error: ") and isinstance(full.exception, SystemExit)
    topics = CliRunner().invoke(cli, ["topic", "list", "--nameserver", server.embedded.nameserver_address])
    assert "bench-" not in topics.output  # nothing is left behind


def test_brokers_that_flush_otherwise_are_not_measured(server: RocketMQServer) -> None:
    found = call("run", "--nameserver", server.embedded.nameserver_address, "--flush", "async")
    assert found.exit_code == 1 and "flushes sync, not async" in found.output, found.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--size", "3"], "size=3: at least 24"),
        (["run", "--rate", "nan"], "rate=nan: at least 0 is needed"),
        (["run", "--seconds", "inf"], "a finite number"),
        (["run", "--out", "/no/such/folder/a.json"], "there is no folder /no/such/folder"),
        (["compare", "none.json", "none.json"], "not a result"),
    ],
)
def test_what_cannot_be(arguments: list[str], said: str) -> None:
    found = call(*arguments)
    assert found.exit_code == 2 and said in found.output


WHOLE = {"figures": {}, "checks": {"lost": 0, "duplicates": 0, "out_of_order": 0, "failed_sends": 0},
         "verdict": {"limit": "none", "why": ""}, "percentiles": {}, "seconds": []}  # fmt: skip


def with_a_run(**changes: object) -> str:
    return json.dumps({"kind": "bench", "runs": [{**WHOLE, **changes}], "scenario": {}, "machine": {}})


@pytest.mark.parametrize(
    "text",
    [
        "[]", "{}", '{"kind": "bench", "runs": [{}], "scenario": {}, "machine": {}}', "\xff", "[" * 100_000,
        with_a_run(figures=None), with_a_run(checks={}), with_a_run(verdict={}), with_a_run(percentiles=[]),
    ],
    ids=["list", "nothing", "empty run", "no text", "deep", "figures", "checks", "verdict", "percentiles"],
)  # fmt: skip
def test_a_file_that_is_no_result(text: str, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(text, encoding="latin-1")
    for found in (call("report", str(file), str(tmp_path / "a.html")), call("compare", str(file), str(file))):
        assert found.exit_code == 2 and "not a result of aiorocket bench" in found.output, found.output
