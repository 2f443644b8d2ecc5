"""The latency step: percentiles, histogram and lag against plain arithmetic, and the pictures."""

from __future__ import annotations

import statistics
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import functions as F

from aiorocket.client.app import Client
from aiorocket.errors import UsageError
from aiorocket.model import Queue
from aiorocket.runtime import run
from aiorocket.spark import cluster
from aiorocket.spark.steps.functions import latency as latency_module
from aiorocket.spark.steps.functions import plot_style, plots
from aiorocket.spark.steps.functions.lag_samples import LagSample, sample_lag
from aiorocket.spark.steps.functions.latency import (
    ARCHIVED,
    EDGES,
    STORED,
    Bucket,
    LatencyReport,
    Percentiles,
    lag_table,
    latency,
    latency_report,
)
from aiorocket.spark.steps.functions.plots import WindowCount, draw, draw_windows
from tests.spark import pictures
from tests.spark.producing import send
from tests.spark.row_frames import BEGAN, at, frame, row, shuffled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOOK = [n * n % 97 + 0.0 for n in range(50)]


def _of(values: list[float]) -> tuple[float, ...]:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return (cuts[49], cuts[94], cuts[98])


def test_the_report_is_plain_arithmetic(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(n, queue=n % 2, stored=3.0 * n, born=3.0 * n - ms / 1000) for n, ms in enumerate(TOOK)]
    rows += [row(n, topic="others", stored=1.0, born=1.5) for n in range(2)]
    df = frame(spark, shuffled(rows)).withColumn("archivedAt", F.col("storeTimestamp") + F.expr("INTERVAL 2 seconds"))
    found = latency_report(df, archived="archivedAt")
    stored = [each for each in found.by_topic if each.stage == STORED]
    assert [(each.topic, each.rows, each.negative, each.least, each.most) for each in stored] == [
        ("orders", 50, 0, min(TOOK), max(TOOK)), ("others", 2, 2, -500.0, -500.0)
    ]  # fmt: skip
    assert (stored[0].p50, stored[0].p95, stored[0].p99) == pytest.approx(_of(TOOK))
    assert {each.p50 for each in found.by_topic if each.stage == ARCHIVED} == {2000.0}
    queues = {each.queue_id: each for each in found.by_queue if each.stage == STORED and each.topic == "orders"}
    assert queues[1].broker_name == "broker-a"
    assert (queues[1].p50, queues[1].p95, queues[1].p99) == pytest.approx(_of(TOOK[1::2]))
    minutes = [each for each in found.over_time if each.stage == STORED and each.topic == "orders"]
    assert [(each.start, each.rows) for each in minutes] == [
        (BEGAN, 20), (BEGAN + timedelta(minutes=1), 20), (BEGAN + timedelta(minutes=2), 10)
    ]  # fmt: skip
    assert (minutes[1].p50, minutes[1].p95, minutes[1].p99) == pytest.approx(_of(TOOK[20:40]))
    bars = {bar.up_to: bar.rows for bar in found.histogram if bar.stage == STORED and bar.topic == "orders"}
    below = [None, *EDGES]
    for edge, low in zip(EDGES, below, strict=False):
        assert bars.get(edge, 0) == sum((low is None or ms > low) and ms <= edge for ms in TOOK)
    assert [bar for bar in found.histogram if bar.stage == ARCHIVED] == [
        Bucket(ARCHIVED, "orders", 2000, 50), Bucket(ARCHIVED, "others", 2000, 2)
    ]  # fmt: skip
    plain = found.as_dict()
    assert plain["by_topic"][0]["start"] is None  # type: ignore[index]
    monkeypatch.setattr(plots, "save", lambda figure, path: path)  # what they look like is the next tests' matter
    assert [path.name for path in draw(found, tmp_path)] == [
        "latency_over_time.png", "latency_histogram.png", "latency_over_time_stored_to_archived.png",
        "latency_histogram_stored_to_archived.png", "throughput.png",
    ]  # fmt: skip


def test_no_more_windows_are_collected_than_anybody_reads(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    df = frame(spark, [row(n, stored=stored) for n, stored in enumerate((0.0, 1.0, 6000.0, 6001.0))])
    monkeypatch.setattr(latency_module, "MOST_WINDOWS", 3)  # four rows within 101 minutes: could be more
    assert len(latency_report(df).over_time) == 2
    monkeypatch.setattr(latency_module, "MOST_WINDOWS", 1)
    with pytest.raises(UsageError, match="2 windows of 1 minute, at most 1 are collected: choose a longer `every`"):
        latency_report(df)


@pytest.mark.spark_long
def test_as_a_table_approximate_and_by_tag(spark: SparkSession) -> None:
    rows = [row(n, tags="t" if n % 5 else None, stored=1.0, born=1.0 - ms / 1000) for n, ms in enumerate(TOOK)]
    found = latency(frame(spark, rows), by=["tags"], every="1 hour", exact=False).collect()
    assert {(r["tags"], r["rows"]) for r in found} == {(None, 10), ("t", 40)}
    for r in found:
        values = sorted(ms for n, ms in enumerate(TOOK) if bool(n % 5) == bool(r["tags"]))
        assert {r["p50"], r["p95"], r["p99"], r["most"]} <= set(values)
        assert r["most"] == values[-1]
    with pytest.raises(UsageError, match="needs the columns archivedAt"):
        latency_report(frame(spark, rows), archived="archivedAt")


async def _commit(nameserver: str, group: str, queue: Queue, offset: int) -> None:
    async with Client(nameservers=nameserver) as client:
        await cluster.commit(client.session, group, {queue: offset})


def test_lag_of_a_group_over_time(spark: SparkSession, nameserver: str, topic: str) -> None:
    send(nameserver, topic, ["a", "b", "c"], queues=2)
    first = sample_lag(nameserver, "nobody", topic)
    assert [(each.queue.queue_id, each.begin, each.end, each.lag) for each in first] == [(0, 0, 2, 2), (1, 0, 1, 1)]
    run(_commit(nameserver, "readers", first[0].queue, 2))
    assert [(each.committed, each.lag) for each in sample_lag(nameserver, "readers", [topic])] == [(2, 0), (None, 1)]
    retained = first[0]._replace(committed=None, begin=1)
    assert (retained.lag, retained.row()[-1]) == (1, 1)
    queue = Queue("orders", "broker-a", 0)
    start = int(BEGAN.timestamp() * 1000)
    samples = [
        LagSample(start + 60_000, "g", queue, 4, 0, 10), LagSample(start + 90_000, "g", queue, 10, 0, 10),
        LagSample(start + 90_000, "g", queue._replace(queue_id=1), 3, 5, 9),
        LagSample(start + 95_000, "g", queue, None, 7, 10), LagSample(start, "g", queue, 9, 7, 10),
    ]  # fmt: skip
    rows = frame(spark, [*(row(n) for n in range(10)), row(4)])
    found = lag_table(spark, samples, rows).orderBy("takenAt", "queueId").collect()
    assert [(r["consumerGroup"], r["queueId"], r["lag"], r["behindSeconds"]) for r in found] == [
        ("g", 0, 1, 0.0), ("g", 0, 6, 56.0), ("g", 0, 0, 0.0), ("g", 1, 4, None), ("g", 0, 3, 88.0)
    ]  # fmt: skip
    assert lag_table(spark, first).columns[-1] == "lag"


def _size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


@pytest.mark.spark_long
def test_pictures_of_little_and_of_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "save", pictures.framed)

    def line(topic: str, start: datetime | None, p50: float, p99: float) -> Percentiles:
        return Percentiles(STORED, topic, None, None, start, 5, 1 if p50 < 0 else 0, p50, p50, p99, p99, p99)

    whole, start, bar = line("t", None, 0, 0), line("t", at(0), 0, 0), Bucket(STORED, "t", 1, 5)
    one = LatencyReport("5 minutes", (whole,), (), (start,), (bar,))
    made = draw(one, tmp_path / "one", lag=[LagSample(1000, "g", Queue("t", "b", 0), 0, 0, 0)])
    assert [path.name for path in made] == [
        "latency_over_time.png", "latency_histogram.png", "throughput.png", "consumer_lag.png"
    ]  # fmt: skip
    assert {_size(path) for path in made} == {(2000, 1080)}
    topics = [f"a-very-long-name-of-a-topic-{'x' * 60}-{n}" for n in range(12)]
    many = LatencyReport(
        "1 minute",
        tuple(line(name, None, -3, 5_000_000) for name in topics),
        (),
        tuple(line(name, at(60 * n), -3, 5_000_000) for n in (0, 1, 7) for name in topics),
        tuple(Bucket(STORED, name, edge, 2) for name in topics for edge in (1, 200, None)),
    )
    lag = [LagSample(n, "g", Queue("t", f"b{q % 2}", q), 0, 0, n * q) for n in (0, 60_000) for q in range(20)]
    high = [_size(path)[1] for path in draw(many, tmp_path / "many", lag=lag)]
    assert high[0] == high[1] > 1500 > high[2] == high[3]
    assert draw(LatencyReport("1 minute", (), (), (), ()), tmp_path / "none") == []
    year = [WindowCount(datetime(2026 + n, 1, 1, tzinfo=UTC), "ab"[n], 1) for n in range(2)]
    assert _size(draw_windows(year, "1 second", tmp_path / "year.png")) == (2000, 1080)
    with pytest.raises(UsageError, match="no window"):
        draw_windows([], "1 minute", tmp_path / "no.png")


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.0, 0.0, ["0 ms", "0.2 ms", "0.4 ms", "0.6 ms", "0.8 ms", "1 ms"]),
        (100e3, 250e3, ["0 ms", "1 min", "2 min", "3 min", "4 min"]),
        (90 * 3.6e6, 150 * 3.6e6, ["0 ms", "2 d", "4 d", "6 d"]),
        (3.0, 200e3, ["10 ms", "100 ms", "1 s", "10 s", "1 min"]),
        (2000.0, 400e3, ["2 s", "5 s", "10 s", "15 s", "30 s", "1 min", "2 min", "5 min"]),
        (-20.0, 5e6, ["-10 ms", "-1 ms", "0 ms", "1 ms", "10 ms", "100 ms", "1 s", "10 s", "1 min", "10 min", "1 h"]),
        (-40.0, -10.0, ["-40 ms", "-30 ms", "-20 ms", "-10 ms"]),
    ],
)
def test_an_axis_of_durations_has_round_numbers(low: float, high: float, said: list[str]) -> None:
    _, [axes] = plot_style.new_figure("", "")
    axes.plot([0, 1], [low, high])
    plot_style.duration_scale(axes, low, high)
    bottom, top = axes.get_ylim()
    ticks = [each for each in axes.get_yticks() if bottom <= each <= top]
    assert [plot_style.duration(each) for each in ticks] == said


def test_an_axis_of_any_length_has_its_ticks() -> None:
    """No warning, which matplotlib has for spans that it has no steps for."""
    days = (2, 3, 5, 9, 20, 50, 99, 400, 730, 1800)
    for span in (*range(1, 60, 9), *range(60, 1500, 17), *(1440 * each for each in days)):
        _, [axes] = plot_style.new_figure("", "")
        plot_style.time_axis(axes, [at(0), at(0) + timedelta(minutes=span)])
        assert 2 <= len(axes.get_xticks()) <= 13, span


@given(st.floats(-12, 18).map(lambda power: 10**power), st.sampled_from([-1, 1]))
@example(999.5, 1)
@example(999_600.0, 1)
@example(59_999.0, 1)
@example(1e9, 1)
@example(1.39e11, 1)
def test_a_number_is_three_digits_and_a_unit(size: float, sign: int) -> None:
    for text, units in (
        (plot_style.amount(size * sign), {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}),
        (plot_style.duration(size * sign), {"ms": 1.0, "s": 1e3, "min": 6e4, "h": 3.6e6, "d": 8.64e7}),
    ):
        number, _, unit = text.partition(" ")
        assert float(number.replace(",", "")) * units[unit] == pytest.approx(size * sign, rel=0.0051)
        assert "e" not in number or size < 1e-3, text
        assert len(number.lstrip("-").replace(".", "").lstrip("0")) <= 3 or "," in number or size < 1e-3, text
        assert abs(float(number.replace(",", ""))) < 1000 or unit in "Gd", text


def _drawn(report: LatencyReport, folder: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> dict[str, Any]:
    """The figures that are drawn, by the name of the file."""
    found: dict[str, Any] = {}

    def save(figure: Any, path: Path) -> Path:
        found[path.stem] = figure
        return path

    monkeypatch.setattr(plots, "save", save)
    draw(report, folder, **more)
    return found


def _report(windows: list[tuple[float, float, float]], others: int = 0) -> LatencyReport:
    """A topic with p50, p95 and p99 in each minute, and smaller ones."""
    whole = Percentiles(STORED, "t", None, None, None, 5 * len(windows), 0, 1, 1, 1, 1, 1)
    small = [whole._replace(topic=f"t{n}", rows=1) for n in range(others)]
    minutes = [
        Percentiles(STORED, "t", None, None, at(60 * n), 5, 0, p50, p50, p95, p99, p99)
        for n, (p50, p95, p99) in enumerate(windows)
    ]
    minutes += [each._replace(start=at(0)) for each in small]
    return LatencyReport("1 minute", (whole, *small), (), tuple(minutes), (Bucket(STORED, "t", 1, 5),))


def test_of_many_windows_means_are_drawn_and_what_was_least_and_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = [(10.0, 20.0, 30.0)] * 7200
    windows[3333], windows[5000] = (10.0, 20.0, 9000.0), (0.5, 20.0, 30.0)
    figure = _drawn(_report(windows, others=200), tmp_path, monkeypatch)["latency_over_time"]
    pictures.framed(figure, tmp_path / "days.png")
    axes = figure.axes[0]
    lines = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
    assert {len(values) for values in lines.values()} == {240}
    assert lines["p95"] == pytest.approx([20.0] * 240)
    assert max(lines["p99"]) == pytest.approx(30 + 8970 / 30)
    [band] = axes.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (min(heights), max(heights)) == (0.5, 9000.0)
    assert "means of 30 minutes" in figure.texts[1].get_text()


def test_what_is_drawn_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Percentiles that are the same, and queues of which there is one sample: each, the others and the sum."""
    lag = [LagSample(1000, "g", Queue("t", "b", n), 0, 0, 24 - 2 * n if n else 90) for n in range(12)]
    figures = _drawn(_report([(7.0, 7.0, 7.0)] * 100), tmp_path, monkeypatch, lag=lag)
    for name in ("latency_over_time", "consumer_lag"):
        figure = figures[name]
        figure.canvas.draw()
        [axes] = figure.axes
        box = axes.get_window_extent()
        pixels = np.asarray(figure.canvas.buffer_rgba())[::-1][int(box.y0) : int(box.y1), int(box.x0) : int(box.x1), :3]
        seen = {tuple(each) for each in np.unique(pixels.reshape(-1, 3), axis=0).tolist()}
        for line in axes.get_lines():
            colour = line.get_color()
            assert tuple(bytes.fromhex(colour[1:])) in seen, f"{line.get_label()} of {name}"
    assert "all 12 queues" in {line.get_label() for line in axes.get_lines()}
    [others] = axes.collections
    assert others.get_linewidth()[0] > 0


def test_names_are_drawn_as_they_are() -> None:
    _, [axes] = plot_style.new_figure("", "")
    names = ["$x_1$ a", "_x", "a\nb", "\ue000", "\ue001", "é"]
    for name in names:
        axes.plot([0], [0], label=plot_style.shortened(name))
    plot_style.legend(axes, whole=True)
    drawn = [each.get_text() for each in axes.figure.legends[0].get_texts()] if axes.figure.legends else []
    drawn = drawn or [each.get_text() for each in axes.get_legend().get_texts()]
    assert drawn == [r"\$x_1\$ a", " _x", r"a\nb", r"\ue000", r"\ue001", "é"]


def test_rates_have_a_unit_in_which_they_are_numbers() -> None:
    assert [plot_style.per(each) for each in (7, 1 / 60, 1 / 3600, 1 / 86400)] == [
        ("a second", 1.0), ("a minute", 60.0), ("an hour", 3600.0), ("a day", 86400.0)
    ]  # fmt: skip
