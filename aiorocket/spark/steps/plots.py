"""The tables of the analysing steps as pictures: PNG files for a wiki page or a ticket.

matplotlib draws, without a display and without its global state; it comes with ``pip install 'aiorocketmq[report]'``.
Times are UTC.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from aiorocket.errors import UsageError

if TYPE_CHECKING:
    from aiorocket.spark.steps.lag_samples import LagSample
    from aiorocket.spark.steps.latency import LatencyReport, Percentiles

__all__ = ("WindowCount", "draw", "draw_windows")

_INK, _GREY, _GRID = "#1f2933", "#7b8794", "#e4e7eb"
#: Told apart also by people who do not see all colours (after Okabe and Ito).
_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6d31", "#5f4b8b")
_SHARES = (("p50", "#009e73"), ("p95", "#0072b2"), ("p99", "#d55e00"))
_PALE = "#a9cfe8"
_STROKE = {"linewidth": 1.8, "markersize": 3.5, "clip_on": False}
_SIZE, _DPI = (10.0, 5.4), 130
#: More lines than these nobody can tell apart; the rest is one.
_MOST = len(_COLOURS) - 1
#: Topics that get a panel of their own.
_PANELS = 4
_UNITS = {
    "microsecond": 1e-6, "millisecond": 1e-3, "second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0,
    "week": 604800.0,
}  # fmt: skip


class WindowCount(NamedTuple):
    """One window of ``windows``: when it began (aware), which group, how many rows."""

    start: datetime
    label: str
    rows: int


def draw(report: LatencyReport, directory: str | Path, *, lag: Sequence[LagSample] = ()) -> list[Path]:
    """Write ``latency_over_time.png``, ``latency_histogram.png``, ``throughput.png`` and, with samples,
    ``consumer_lag.png`` into ``directory`` (made if need be) and say which. What has no rows has no picture.

    UsageError when matplotlib is not installed.
    """
    _matplotlib()
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    made: list[Path] = []
    first = report.by_topic[0].stage if report.by_topic else ""
    for stage in dict.fromkeys(row.stage for row in report.by_topic):
        suffix = "" if stage == first else f"_{stage.replace(' ', '_')}"
        made.append(_over_time(report, stage, folder / f"latency_over_time{suffix}.png"))
        made.append(_histogram(report, stage, folder / f"latency_histogram{suffix}.png"))
    counts = [WindowCount(_start(row), row.topic, row.rows) for row in report.over_time if row.stage == first]
    if counts:
        made.append(draw_windows(counts, report.every, folder / "throughput.png", title="Messages stored, by topic"))
    if lag:
        made.append(_lag(lag, folder / "consumer_lag.png"))
    return made


def draw_windows(counts: Iterable[WindowCount], every: str, path: str | Path, *, title: str = "Messages") -> Path:
    """Rows a second over time, the groups on top of each other, the largest at the bottom. Windows of length ``every``
    that are not there had none. UsageError without matplotlib or without a window."""
    _matplotlib()
    given = list(counts)
    if not given:
        raise UsageError("draw_windows: there is no window to draw")
    seconds = _seconds(every)
    starts = _all_starts((count.start for count in given), seconds)
    place = {start: index for index, start in enumerate(starts)}
    totals: dict[str, int] = {}
    for count in given:
        totals[count.label] = totals.get(count.label, 0) + count.rows
    ranked = sorted(totals, key=lambda label: (-totals[label], label))
    shown = ranked if len(ranked) <= len(_COLOURS) else ranked[:_MOST]
    rest = f"{len(ranked) - len(shown)} others"
    series: dict[str, list[float]] = {label: [0.0] * len(starts) for label in shown}
    for count in given:
        name = count.label if count.label in series else rest
        series.setdefault(name, [0.0] * len(starts))[place[count.start.astimezone(UTC)]] += count.rows / seconds
    figure, [axes] = _figure(title, f"{_count(sum(totals.values()))} in all · windows of {every}")
    # A window is a step as wide as it is long; the last one needs an end.
    edges = [*starts, starts[-1] + timedelta(seconds=seconds)]
    heights = [[*values, values[-1]] for values in series.values()]
    colours = [*_COLOURS[: len(shown)], _GREY]
    names = [_cut(name) for name in series]
    axes.stackplot(edges, *heights, labels=names, colors=colours, step="post", alpha=0.9, linewidth=0)
    axes.set_ylabel("messages a second")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: _count(value))
    _time_axis(axes, edges)
    if len(series) > 1 or ranked != [""]:
        _legend(axes, whole=True)
    return _save(figure, Path(path))


def _over_time(report: LatencyReport, stage: str, path: Path) -> Path:
    totals = [row for row in report.by_topic if row.stage == stage]
    topics = sorted(totals, key=lambda row: -row.rows)[:_PANELS]
    hidden = len(totals) - len(topics)
    subtitle = f"percentiles per window of {report.every}" + (f" · {hidden} smaller topics not shown" if hidden else "")
    figure, panels = _figure(f"Time from {_spoken(stage)}", subtitle, rows=len(topics))
    seconds = _seconds(report.every)
    for axes, total in zip(panels, topics, strict=True):
        rows = [row for row in report.over_time if row.stage == stage and row.topic == total.topic]
        found = {_start(row): row for row in rows}
        starts = _all_starts(found, seconds)
        middles = [start + timedelta(seconds=seconds / 2) for start in starts]
        lines: dict[str, list[float]] = {}
        for name, colour in _SHARES:
            values = [getattr(found[start], name) if start in found else math.nan for start in starts]
            lines[name] = values
            mark = "o" if len(starts) <= 60 else None
            axes.plot(middles, values, color=colour, marker=mark, label=name, **_STROKE)
        axes.fill_between(middles, lines["p50"], lines["p99"], color=_PALE, alpha=0.25, linewidth=0)
        _latency_scale(axes, rows)
        _time_axis(axes, [*starts, starts[-1] + timedelta(seconds=seconds)])
        axes.set_ylabel("latency")
        axes.set_title(_headline(total), loc="left", fontsize=10, color=_INK)
    _legend(panels[0], whole=True)
    return _save(figure, path)


def _histogram(report: LatencyReport, stage: str, path: Path) -> Path:
    totals = [row for row in report.by_topic if row.stage == stage]
    topics = sorted(totals, key=lambda row: -row.rows)[:_PANELS]
    bars = [bar for bar in report.histogram if bar.stage == stage and bar.topic in {row.topic for row in topics}]
    edges = _between({bar.up_to for bar in bars})
    figure, panels = _figure(f"How long from {_spoken(stage)}", "share of the messages", rows=len(topics))
    labels = ["more" if edge is None else f"≤ {_duration(edge)}" for edge in edges]
    for axes, total in zip(panels, topics, strict=True):
        rows = {bar.up_to: bar.rows for bar in bars if bar.topic == total.topic}
        shares = [100 * rows.get(edge, 0) / total.rows for edge in edges]
        drawn = axes.bar(labels, shares, color=_PALE, width=0.86)
        for name, colour in _SHARES:
            ms = getattr(total, name)
            label = f"{name}: {_duration(ms)}"
            axes.axvline(_bar_of(ms, edges), color=colour, linewidth=1.6, linestyle=(0, (4, 2)), label=label)
        texts = axes.bar_label(drawn, [_share(share) for share in shares], fontsize=8, color=_INK, padding=3)
        for text in texts:
            text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85})
        axes.set_ylim(0, max(shares) * 1.18 or 1)
        axes.set_ylabel("messages")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
        axes.set_title(_headline(total), loc="left", fontsize=10, color=_INK)
        axes.tick_params(axis="x", labelrotation=35 if len(edges) > 10 else 0)
        axes.grid(axis="x", visible=False)
        axes.legend(loc="best", frameon=True, framealpha=0.9, edgecolor=_GRID, fontsize=9)
    return _save(figure, path)


def _lag(samples: Sequence[LagSample], path: Path) -> Path:
    pairs = sorted({(sample.group, sample.queue.topic) for sample in samples})[:_PANELS]
    figure, panels = _figure("Consumer lag", "messages stored and not consumed yet, per queue", rows=len(pairs))
    for axes, (group, topic) in zip(panels, pairs, strict=True):
        own = [sample for sample in samples if (sample.group, sample.queue.topic) == (group, topic)]
        times = sorted({sample.at_ms for sample in own})
        moments = [datetime.fromtimestamp(at / 1000, UTC) for at in times]
        lines: dict[Any, dict[int, int]] = {}
        for sample in own:
            lines.setdefault(sample.queue, {})[sample.at_ms] = sample.lag
        ranked = sorted(lines, key=lambda queue: (-max(lines[queue].values()), queue))
        shown = sorted(ranked if len(ranked) <= len(_COLOURS) else ranked[:_MOST])
        several = len({queue.broker_name for queue in lines}) > 1
        mark = "o" if len(times) <= 60 else None
        for queue, colour in zip(shown, _COLOURS, strict=False):
            name = f"{_cut(queue.broker_name)} queue {queue.queue_id}" if several else f"queue {queue.queue_id}"
            values = [lines[queue].get(at, math.nan) for at in times]
            axes.plot(moments, values, color=colour, marker=mark, label=name, **_STROKE)
        total = [sum(line.get(at, 0) for line in lines.values()) for at in times]
        if len(lines) > 1:
            name = f"all {len(lines)} queues"
            axes.plot(moments, total, color=_INK, linewidth=1.4, linestyle=(0, (4, 2)), label=name)
        axes.set_ylim(0, max(total) * 1.08 or 1)
        axes.set_ylabel("messages behind")
        axes.yaxis.set_major_formatter(lambda value, _: _count(value))
        headline = f"group {_cut(group)} on {_cut(topic)} · {_count(total[-1])} behind at the end"
        if len(shown) < len(lines):
            headline += f" · the {len(shown)} queues with the most"
        axes.set_title(headline, loc="left", fontsize=10, color=_INK)
        _time_axis(axes, moments)
        _legend(axes, whole=len(pairs) == 1)
    return _save(figure, path)


# -- how pictures look --


def _matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError("plots need matplotlib: pip install 'aiorocketmq[report]'") from error


def _figure(title: str, subtitle: str, rows: int = 1) -> tuple[Any, list[Any]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width, height = _SIZE
    figure = Figure(figsize=(width, height + (rows - 1) * 2.7), dpi=_DPI, facecolor="white")
    FigureCanvasAgg(figure)
    # The two lines above the panels are as high in a tall figure as in a low one.
    total = height + (rows - 1) * 2.7
    figure.text(0.012, 1 - 0.30 / total, title, fontsize=15, fontweight="bold", color=_INK, va="center")
    figure.text(0.012, 1 - 0.60 / total, subtitle, fontsize=10, color=_GREY, va="center")
    panels = [figure.add_subplot(rows, 1, number + 1) for number in range(rows)]
    for axes in panels:
        axes.set_axisbelow(True)
        axes.grid(color=_GRID, linewidth=0.8)
        axes.tick_params(colors=_INK, labelsize=9, length=0)
        axes.yaxis.label.set_color(_GREY)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.spines["bottom"].set_color(_GREY)
    figure.set_layout_engine("tight", rect=(0, 0, 1, 1 - 0.72 / total), h_pad=1.6)
    return figure, panels


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path, dpi=_DPI)
    return path


def _legend(axes: Any, *, whole: bool) -> None:
    """Beside the title of the picture when it goes for the ``whole`` of it and is short, else beside its panel."""
    lines, names = axes.get_legend_handles_labels()
    looks = {"frameon": False, "fontsize": 9, "handlelength": 1.6}
    if whole and len(names) <= 4 and sum(map(len, names)) <= 60:
        axes.figure.legend(lines, names, loc="upper right", bbox_to_anchor=(0.992, 0.992), ncols=len(names), **looks)
    else:
        axes.legend(lines, names, loc="upper left", bbox_to_anchor=(1.005, 1.02), **looks)


def _time_axis(axes: Any, moments: Sequence[datetime]) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(tz=UTC, maxticks=9)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
    around = timedelta(seconds=30) if len(moments) == 1 else timedelta()
    axes.set_xlim(moments[0] - around, moments[-1] + around)
    axes.set_xlabel("time (UTC)", color=_GREY, fontsize=9)


def _latency_scale(axes: Any, rows: Sequence[Percentiles]) -> None:
    """A scale by factors when the values differ by large ones; around zero it has to be a straight one."""
    from matplotlib.ticker import LogLocator

    low, high = min(row.p50 for row in rows), max(row.p99 for row in rows)
    if high > 30 * max(low, 1.0):
        if low < 1:
            axes.set_yscale("symlog", linthresh=1.0, subs=[])
        else:
            axes.set_yscale("log")
            if high < 1000 * low:
                axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.minorticks_off()
    elif low >= 0:
        axes.set_ylim(0, high * 1.1 or 1)
    axes.yaxis.set_major_formatter(lambda value, _: _duration(value))


def _headline(total: Percentiles) -> str:
    found = f"{_cut(total.topic)} · {_count(total.rows)} messages · longest {_duration(total.most)}"
    return found + (f" · {_count(total.negative)} negative: clocks differ" if total.negative else "")


def _spoken(stage: str) -> str:
    return {"born to stored": "producer to broker", "stored to archived": "broker to archive"}.get(stage, stage)


def _duration(ms: float) -> str:
    """``12 ms``, ``3.4 s``, ``5 min``, ``2.5 h``."""
    for unit, size in (("h", 3_600_000.0), ("min", 60_000.0), ("s", 1000.0)):
        if abs(ms) >= size:
            return f"{ms / size:.3g} {unit}"
    return f"{ms:.3g} ms"


def _count(value: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g}"


def _cut(name: str) -> str:
    """Long names differ at their ends as often as at their beginnings."""
    return name if len(name) <= 32 else f"{name[:18]}…{name[-13:]}"


def _share(percent: float) -> str:
    if percent == 0:
        return ""
    return "<0.1" if percent < 0.1 else f"{percent:.1f}"


def _between(found: set[int | None]) -> list[int | None]:
    """All edges from the first that occurs to the last."""
    from aiorocket.spark.steps.latency import EDGES

    edges: list[int | None] = [*EDGES, None]
    places = sorted(edges.index(edge) for edge in found)
    return edges[places[0] : places[-1] + 1]


def _bar_of(ms: float, edges: Sequence[int | None]) -> float:
    """Where a duration is among the bars: by factors within its own, so that two of one bar are still two lines."""
    from aiorocket.spark.steps.latency import EDGES

    for place, edge in enumerate(edges):
        if edge is not None and ms <= edge:
            low = max((each for each in EDGES if each < edge), default=edge / 2)
            within = math.log(max(ms, low) / low) / math.log(edge / low)
            return place - 0.43 + 0.86 * within
    return len(edges) - 1


def _seconds(every: str) -> float:
    number, unit = every.split()
    return int(number) * _UNITS[unit.lower().removesuffix("s")]


def _start(row: Percentiles) -> datetime:
    assert row.start is not None  # rows over time have one
    return row.start.astimezone(UTC)


def _all_starts(found: Iterable[datetime], seconds: float) -> list[datetime]:
    """Every window from the first to the last, also those that had no rows; when these were very many, only those."""
    starts = sorted({start.astimezone(UTC) for start in found})
    step = timedelta(seconds=seconds)
    span = (starts[-1] - starts[0]) / step
    if span > 20_000:
        return starts
    there = set(starts)
    return sorted(there | {starts[0] + number * step for number in range(int(span) + 1)})
