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
from aiorocket.spark.steps.functions.latency import EDGES
from aiorocket.spark.steps.functions.plot_style import (
    COLOURS,
    GREY,
    GRID,
    INK,
    PALE,
    all_starts,
    amount,
    duration,
    duration_scale,
    legend,
    need_matplotlib,
    new_figure,
    per,
    plural,
    save,
    seconds_of,
    shortened,
    spelled,
    time_axis,
    together,
)

if TYPE_CHECKING:
    from aiorocket.spark.steps.functions.lag_samples import LagSample
    from aiorocket.spark.steps.functions.latency import LatencyReport, Percentiles

__all__ = ("WindowCount", "draw", "draw_windows")

_SHARES = (("p50", "#009e73"), ("p95", "#0072b2"), ("p99", "#d55e00"))
_DASHES = (0, (4, 2))
#: Each above the next and with less of ink, so that one is seen where they are the same.
_LOOKS: dict[str, dict[str, Any]] = {
    "p50": {"zorder": 2.3, "width": 0.5},
    "p95": {"zorder": 2.2, "linestyle": _DASHES},
    "p99": {"zorder": 2.1, "width": 1.4},
}
#: More lines than these nobody can tell apart; the rest is one.
_MOST = len(COLOURS) - 1
#: Windows that are cut and named.
_NAMED = 8
#: Topics that get a panel of their own.
_PANELS = 4


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
    need_matplotlib()
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


def draw_windows(
    counts: Iterable[WindowCount], every: str, path: str | Path, *, title: str = "Messages", others: str | None = None
) -> Path:
    """Rows a second over time, the groups on top of each other, the largest at the bottom. Windows of length ``every``
    that are not there had none. ``others`` is the label of what is many groups together. UsageError without matplotlib
    or without a window."""
    need_matplotlib()
    given = list(counts)
    if not given:
        raise UsageError("draw_windows: there is no window to draw")
    seconds = seconds_of(every)
    totals: dict[str, int] = {}
    windows: dict[datetime, int] = {}
    for count in given:
        start = count.start.astimezone(UTC)
        totals[count.label] = totals.get(count.label, 0) + count.rows
        windows[start] = windows.get(start, 0) + count.rows
    step, drawn = together(windows, seconds)
    starts = all_starts(drawn.values(), step)
    place = {start: index for index, start in enumerate(starts)}
    ranked = sorted(totals.keys() - {others}, key=lambda label: (-totals[label], label))
    shown = ranked if len(ranked) <= len(COLOURS) else ranked[:_MOST]
    rest = others or f"{len(ranked) - len(shown)} others"
    busiest = max(windows, key=lambda start: windows[start])
    unit, length = per(windows[busiest] / seconds)
    series: dict[str, list[float]] = {label: [0.0] * len(starts) for label in shown}
    for count in given:
        name = count.label if count.label in series else rest
        values = series.setdefault(name, [0.0] * len(starts))
        values[place[drawn[count.start.astimezone(UTC)]]] += count.rows * length / step
    subtitle = f"{amount(sum(totals.values()))} in all · windows of {every}"
    if step > seconds:
        subtitle += f", drawn as means of {spelled(step)}"
    if len(windows) > 1:
        subtitle += f" · at most {amount(windows[busiest] * length / seconds)} {unit}, {busiest:%Y-%m-%d %H:%M:%S}"
    figure, [axes] = new_figure(title, subtitle)
    # A window is a step as wide as it is long; the last one needs an end.
    edges = [*starts, starts[-1] + timedelta(seconds=step)]
    heights = [[*values, values[-1]] for values in series.values()]
    colours = [*COLOURS[: len(shown)], GREY]
    names = [shortened(name) for name in series]
    axes.stackplot(edges, *heights, labels=names, colors=colours, step="post", linewidth=0)
    axes.set_ylabel(f"messages {unit}")
    sums = [sum(each) for each in zip(*series.values(), strict=True)]
    _cut(axes, starts, sums, step)
    axes.yaxis.set_major_formatter(lambda value, _: amount(value))
    # One window alone would be a wall of colour.
    around = timedelta(seconds=step) if len(starts) == 1 else timedelta()
    time_axis(axes, [edges[0] - around, edges[-1] + around])
    if len(series) > 1 or ranked != [""]:
        legend(axes, whole=True)
    return save(figure, Path(path))


def _cut(axes: Any, starts: Sequence[datetime], sums: Sequence[float], step: float) -> None:
    """The height of the axis: all of it, unless a few windows are so far above the others that these could not be seen.
    Those are cut, and say how high they are."""
    usual = sorted(sums)[math.ceil(0.98 * len(sums)) - 1]
    high = [place for place, each in enumerate(sums) if each > 2 * usual]
    if not usual or max(sums) <= 5 * usual or len(high) > 0.02 * len(sums) + 1:
        axes.set_ylim(0, max(sums) * 1.08 or 1)
        return
    top = 2 * usual
    axes.set_ylim(0, top)
    near, last = (starts[-1] - starts[0]) / 12, None
    for place in sorted(sorted(high, key=lambda each: -sums[each])[:_NAMED]):
        at = starts[place] + timedelta(seconds=step / 2)
        if last is None or at - last > near:
            axes.text(at, top * 1.005, f"▲ {amount(sums[place])}", fontsize=8, color=INK, ha="center", va="bottom")
            last = at


def _over_time(report: LatencyReport, stage: str, path: Path) -> Path:
    totals = [row for row in report.by_topic if row.stage == stage]
    topics = sorted(totals, key=lambda row: -row.rows)[:_PANELS]
    names = {total.topic for total in topics}
    seconds = seconds_of(report.every)
    windows = [row for row in report.over_time if row.stage == stage and row.topic in names]
    step, drawn = together(map(_start, windows), seconds)
    subtitle = f"percentiles per window of {report.every}"
    if step > seconds:
        subtitle += f", drawn as means of {spelled(step)}; pale: lowest p50 to highest p99"
    subtitle += _others(len(totals), "smaller topic")
    figure, panels = new_figure(f"Time from {_spoken(stage)}", subtitle, rows=len(topics))
    for axes, total in zip(panels, topics, strict=True):
        found: dict[datetime, list[Percentiles]] = {}
        for row in windows:
            if row.topic == total.topic:
                found.setdefault(drawn[_start(row)], []).append(row)
        starts = all_starts(found, step)
        middles = [start + timedelta(seconds=step / 2) for start in starts]
        for name, colour in _SHARES:
            values = [_mean(found.get(start, ()), name) for start in starts]
            axes.plot(middles, values, color=colour, label=name, **_stroke(len(starts), **_LOOKS[name]))
        low = [min((row.p50 for row in found.get(start, ())), default=math.nan) for start in starts]
        high = [max((row.p99 for row in found.get(start, ())), default=math.nan) for start in starts]
        axes.fill_between(middles, low, high, color=PALE, alpha=0.25 if step == seconds else 0.5, linewidth=0)
        duration_scale(axes, min(filter(math.isfinite, low)), max(filter(math.isfinite, high)))
        time_axis(axes, [*starts, starts[-1] + timedelta(seconds=step)])
        axes.set_ylabel("latency")
        axes.set_title(_headline(total), loc="left", fontsize=10, color=INK)
    legend(panels[0], whole=True)
    return save(figure, path)


def _histogram(report: LatencyReport, stage: str, path: Path) -> Path:
    totals = [row for row in report.by_topic if row.stage == stage]
    topics = sorted(totals, key=lambda row: -row.rows)[:_PANELS]
    bars = [bar for bar in report.histogram if bar.stage == stage and bar.topic in {row.topic for row in topics}]
    edges = _between({bar.up_to for bar in bars})
    figure, panels = new_figure(
        f"How long from {_spoken(stage)}", f"share of the messages{_others(len(totals), 'smaller topic')}", len(topics)
    )
    labels = ["more" if edge is None else f"≤ {duration(edge)}" for edge in edges]
    for axes, total in zip(panels, topics, strict=True):
        rows = {bar.up_to: bar.rows for bar in bars if bar.topic == total.topic}
        shares = [100 * rows.get(edge, 0) / total.rows for edge in edges]
        drawn = axes.bar(labels, shares, color=PALE, width=0.86)
        for name, colour in _SHARES:
            ms = getattr(total, name)
            label = f"{name}: {duration(ms)}"
            axes.axvline(_bar_of(ms, edges), color=colour, linewidth=1.6, linestyle=_DASHES, label=label)
        texts = axes.bar_label(drawn, [_share(share) for share in shares], fontsize=8, color=INK, padding=3)
        for text in texts:
            text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85})
        axes.set_ylim(0, max(shares) * 1.18 or 1)
        axes.set_ylabel("messages")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
        axes.set_title(_headline(total), loc="left", fontsize=10, color=INK)
        # One bar alone would be a wall.
        around = 0.6 + max(0, 4 - len(edges)) / 2
        axes.set_xlim(-around, len(edges) - 1 + around)
        if len(edges) > 10:
            axes.set_xticks(range(len(edges)), labels, rotation=35, ha="right", rotation_mode="anchor")
        axes.grid(axis="x", visible=False)
        axes.legend(loc="best", frameon=True, framealpha=0.9, edgecolor=GRID, fontsize=9)
    return save(figure, path)


def _lag(samples: Sequence[LagSample], path: Path) -> Path:
    from matplotlib.ticker import MaxNLocator

    every = sorted({(sample.group, sample.queue.topic) for sample in samples})
    pairs = every[:_PANELS]
    subtitle = f"messages stored and not consumed yet, per queue{_others(len(every), 'other')}"
    figure, panels = new_figure("Consumer lag", subtitle, rows=len(pairs))
    for axes, (group, topic) in zip(panels, pairs, strict=True):
        own = [sample for sample in samples if (sample.group, sample.queue.topic) == (group, topic)]
        times = sorted({sample.at_ms for sample in own})
        moments = [datetime.fromtimestamp(at / 1000, UTC) for at in times]
        lines: dict[Any, dict[int, int]] = {}
        for sample in own:
            lines.setdefault(sample.queue, {})[sample.at_ms] = sample.lag
        ranked = sorted(lines, key=lambda queue: (-max(lines[queue].values()), queue))
        shown = sorted(ranked if len(ranked) <= len(COLOURS) else ranked[:_MOST])
        several = len({queue.broker_name for queue in lines}) > 1
        stroke = _stroke(len(times))
        for queue, colour in zip(shown, COLOURS, strict=False):
            name = f"{shortened(queue.broker_name)} queue {queue.queue_id}" if several else f"queue {queue.queue_id}"
            values = [lines[queue].get(at, math.nan) for at in times]
            axes.plot(moments, values, color=colour, label=name, **stroke)
        if len(shown) < len(lines):
            rest = [lines[queue] for queue in lines if queue not in shown]
            others = [[float(line[at]) for line in rest if at in line] or [math.nan] for at in times]
            low, high = [min(each) for each in others], [max(each) for each in others]
            name = f"{len(lines) - len(shown)} others"
            # Of one sample there is nothing to fill: its edge is seen.
            edge = 3.5 if len(times) == 1 else 0
            axes.fill_between(moments, low, high, color=GREY, alpha=0.25, linewidth=edge, label=name)
        total = [sum(line.get(at, 0) for line in lines.values()) for at in times]
        most = max(max(line.values()) for line in lines.values())
        # Beside the sum of many queues nothing of one could be seen; how high it is stands above the panel.
        summed = len(lines) > 1 and max(total) <= 6 * most
        if summed:
            name = f"all {len(lines)} queues"
            axes.plot(moments, total, color=INK, label=name, **{**stroke, "linestyle": _DASHES})
        axes.set_ylim(0, (max(total) if summed else most) * 1.08 or 1)
        axes.set_ylabel("messages behind")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(lambda value, _: amount(value))
        headline = f"group {shortened(group)} on {shortened(topic)} · {amount(total[-1])} behind at the end"
        if len(shown) < len(lines):
            headline += f" · the {len(shown)} queues with the most"
        axes.set_title(headline, loc="left", fontsize=10, color=INK)
        time_axis(axes, moments)
        legend(axes, whole=len(pairs) == 1)
    return save(figure, path)


def _stroke(points: int, *, width: float = 1.0, **looks: Any) -> dict[str, Any]:
    """How a line of so many points is drawn: few have marks (one alone is nothing else), many a thin line."""
    mark, thick = "o" if points <= 60 else None, 1.8 if points <= 400 else 0.8
    return {"marker": mark, "markersize": 3.5 * width, "linewidth": thick * width, "clip_on": False, **looks}


def _mean(rows: Sequence[Percentiles], name: str) -> float:
    """Of one percentile of windows that are drawn as one, each as heavy as it has rows."""
    whole = sum(row.rows for row in rows)
    return sum(getattr(row, name) * row.rows for row in rows) / whole if whole else math.nan


def _others(number: int, noun: str) -> str:
    """What is beyond the panels that are drawn."""
    return f" · {plural(number - _PANELS, noun)} not shown" if number > _PANELS else ""


def _headline(total: Percentiles) -> str:
    found = f"{shortened(total.topic)} · {plural(total.rows, 'message')} · longest {duration(total.most)}"
    return found + (f" · {amount(total.negative)} negative: clocks differ" if total.negative else "")


def _spoken(stage: str) -> str:
    return {"born to stored": "producer to broker", "stored to archived": "broker to archive"}.get(stage, stage)


def _share(percent: float) -> str:
    if percent == 0:
        return ""
    return "<0.1" if percent < 0.1 else f"{percent:.1f}"


def _between(found: set[int | None]) -> list[int | None]:
    """All edges from the first that occurs to the last."""
    edges: list[int | None] = [*EDGES, None]
    places = sorted(edges.index(edge) for edge in found)
    return edges[places[0] : places[-1] + 1]


def _bar_of(ms: float, edges: Sequence[int | None]) -> float:
    """Where a duration is among the bars: by factors within its own, so that two of one bar are still two lines."""
    for place, edge in enumerate(edges):
        if edge is not None and ms <= edge:
            low = max((each for each in EDGES if each < edge), default=edge / 2)
            within = math.log(max(ms, low) / low) / math.log(edge / low)
            return place - 0.43 + 0.86 * within
    return len(edges) - 1


def _start(row: Percentiles) -> datetime:
    assert row.start is not None  # rows over time have one
    return row.start.astimezone(UTC)
