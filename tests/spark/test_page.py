"""The page of a run: whole by itself, nothing of a message or an option is markup, and no secret is in it."""

from __future__ import annotations

import re
import struct
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest

from aiorocket.cli.lake.running import HTML, Page
from aiorocket.model import Queue
from aiorocket.spark.steps.functions.plots import WindowCount, draw_windows
from aiorocket.spark.steps.page import Run, page, page_of_runs
from aiorocket.spark.steps.report import StepReport
from aiorocket.spark.steps.tables.run import Shown

MADE = datetime(2026, 3, 1, 12, tzinfo=UTC)
QUEUE = Queue("orders", "broker-a", 0)


class Seen(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "action")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_says_all_and_fetches_nothing(tmp_path: Path) -> None:
    picture = draw_windows([WindowCount(MADE, "<b>", 3)], "1 minute", tmp_path / "one.png")
    evil = "<script>alert(1)</script>"
    tables = {"by_topic": Shown(["topic", "rows"], [[evil, 12_000], [None, 1.5]], 40)}
    report = StepReport(
        "latency", 12_001, 2, {QUEUE: (0, 12_002)}, missing={QUEUE: 1},
        details={"tables": tables, "plots": [str(picture)], "reasons": {evil: 2}, "proof": "count"},
    )  # fmt: skip
    configuration = {
        "registry": "http://me:p@pass@registry:8081", "where": ["http://me:pass@registry:8081"],
        "options": {"secretKey": "hidden", "tags": "a"}, "out": None,
        "conf": {"fs.s3a.secret.key": "hidden", "fs.s3a.access.key": "hidden", "spark.x": "1"}, "every": "1 minute",
    }  # fmt: skip
    text = page(report, made=MADE, configuration=configuration, proof=["INCOMPLETE: 1 row of 12,002"])
    seen = Seen(text)
    assert "script" not in seen.tags and evil in seen.text
    assert [link[:22] for link in seen.links] == ["data:image/png;base64,"]
    assert not re.search(r"https?:(?!//registry:8081)", text) and "hidden" not in text and "pass@" not in text
    for said in (
        "INCOMPLETE: 1 row",
        "12,000",
        "1.5",
        "2 of 40 rows",
        "orders",
        "12,002",
        "http://registry:8081",
        "every",
    ):
        assert said in seen.text, said
    assert 'class="proof bad"' in text
    assert page(StepReport("verify", 0, 0), made=MADE, configuration={}).count("<table>") == 2


def test_a_service_has_a_page_of_the_newest_run_of_each_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "page.html"
    with click.Context(click.Command("run")) as context:
        Page("t to lake", {}).add(StepReport("archive", 1, 1))  # nobody asked for one
        context.meta[HTML] = str(file)
        made = Page("t to lake", {"topic": "t", "options": {"secretKey": "hidden"}})
        for report in (
            StepReport("archive", 11, 11, {QUEUE: (0, 11)}), StepReport("windows", 11, 2),
            StepReport("archive", 12, 12, {QUEUE: (11, 23)}), StepReport("archive", 0, 0),
            StepReport("windows", 23, 3, details={"up_to_date": True}), StepReport("decode", 0, 0),
        ):  # fmt: skip
            made.add(report)
        made.tell()
        assert capsys.readouterr().err == f"report: {file}\n"
        context.meta[HTML] = str(tmp_path / "gone" / "page.html")
        away = Page("t to lake", {})
        with pytest.raises(click.ClickException, match=r"page\.html: No such file"):
            away.add(StepReport("archive", 1, 1))
        away.tell()  # a service that could not write it has none
        assert not capsys.readouterr().err
    text = file.read_text()
    assert re.findall(r"<h1>(\w+)</h1>", text) == ["Archive", "Windows", "Decode"]
    assert re.findall(r"(\d+) rows read", text) == ["12", "11", "0"]
    assert "complete: 12 rows = sum of end - begin over 1 queue" in text and "hidden" not in text
    assert text.count("Configuration") == 1 and "<title>t to lake 20" in text


def test_addresses_and_settings_of_java_keep_their_secrets() -> None:
    lake = "s3://name:hidden@shop/lake"
    runs = [Run(StepReport("decode", 1, 1, details={"table": f"{lake}/decode"}), MADE, [f"{lake} is complete"])]
    java = "-Xmx1g -Dhttps.proxyPassword=hidden -Djavax.net.ssl.trustStorePassword=hidden -Dx=y"
    text = page_of_runs(f"t to {lake}", runs, {"path": lake, "spark": {"spark.driver.extraJavaOptions": java}})
    assert "hidden" not in text and "-Xmx1g -Dhttps.proxyPassword=(not shown) " in text and "-Dx=y" in text
    assert "t to s3://shop/lake 2026" in text and "s3://shop/lake/decode" in text


def test_a_page_says_what_its_tables_are_and_which_are_empty() -> None:
    shown = {"over_time": Shown(["p50"], [[3]], 1), "findings": Shown(["kind"], [], 0)}
    details: dict[str, object] = {"tables": shown, "table": None, "parts": {}, "up_to_date": False}
    seen = Seen(page(StepReport("report", 9, 1, details=details), made=MADE, configuration={}))
    assert "Latency over time, ms" in seen.text and "1 rows found, and not kept" in seen.text
    assert "kind" not in seen.text and "none" in seen.text and "Parts" not in seen.text


@pytest.mark.parametrize("most", [1, 40])
def test_few_windows_that_are_far_above_the_others_are_cut_and_many_are_drawn_together(
    tmp_path: Path, most: int
) -> None:
    """The file is a picture of the size asked for, of a day in minutes with peaks; its looks were judged by eye."""
    counts = [
        WindowCount(MADE + timedelta(minutes=n), f"t{n % 200}", 900_000 if n % 700 == 9 else 5)
        for n in range(36 * most)
    ]
    path = draw_windows(counts, "1 minute", tmp_path / "day.png")
    assert struct.unpack(">II", path.read_bytes()[16:24]) == (2000, 1080)
