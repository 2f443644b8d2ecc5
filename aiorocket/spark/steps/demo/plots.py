"""Pictures of an access log: requests over time by status, response times, and which paths are asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from aiorocket.spark.steps.functions import plot_style as style

__all__ = ("Found", "draw_log")

#: What went well is calm, what did not stands out.
_STATUS = {"1xx": "#cfd8e3", "2xx": "#3b8bc2", "3xx": "#a9cfe8", "4xx": "#f0b545", "5xx": "#c8372d"}
_LINES = (("p50", "#009e73"), ("p95", "#0072b2"), ("p99", "#d55e00"))
_PATHS = 15


@dataclass(frozen=True)
class Found:
    """What the pictures show, collected: (window, status class, rows), (window, p50, p95, p99), (path, rows, errors,
    p95 of its seconds), (clients, bots, bytes), and the length of the windows."""

    every: str = "1 minute"
    requests: Sequence[tuple[datetime, str, int]] = ()
    times: Sequence[tuple[datetime, int, float, float, float]] = ()
    paths: Sequence[tuple[str, int, int, float | None]] = ()
    visitors: tuple[int, int, int] = (0, 0, 0)

    @property
    def span(self) -> tuple[datetime, datetime] | None:
        starts = [start for start, _, _ in self.requests]
        return (min(starts), max(starts)) if starts else None


def draw_log(found: Found, directory: str | Path) -> list[Path]:
    """Writes ``requests.png``, ``response_times.png`` (when lines have times) and ``paths.png`` into ``directory``."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    made = [_requests(found, folder / "requests.png")]
    if found.times:
        made.append(_times(found, folder / "response_times.png"))
    made.append(_paths(found, folder / "paths.png"))
    return made


def _requests(found: Found, path: Path) -> Path:
    step = style.seconds_of(found.every)
    sums: dict[str, dict[datetime, int]] = {}
    for start, name, rows in found.requests:
        own = sums.setdefault(name, {})
        at = _floor(start, step)
        own[at] = own.get(at, 0) + rows
    starts = style.all_starts((at for own in sums.values() for at in own), step)
    edges = [*starts, starts[-1] + timedelta(seconds=step)]
    # Errors at the bottom: there a few of them can be seen.
    names = sorted(sums, reverse=True)
    totals = {name: sum(sums[name].values()) for name in names}
    clients, bots, sent = found.visitors
    everything = sum(totals.values())
    subtitle = (
        f"{style.amount(everything)} requests of {style.amount(clients)} clients · "
        f"{100 * bots / everything:.0f} % by bots · {_size(sent)} sent · windows of {found.every}"
    )
    figure, [axes] = style.new_figure("Requests by status", subtitle)
    heights = [[sums[name].get(at, 0) / (step / 60) for at in starts] for name in names]
    axes.stackplot(
        edges, *[[*values, values[-1]] for values in heights], step="post", linewidth=0,
        labels=[f"{name}  {style.amount(totals[name])}" for name in names],
        colors=[_STATUS.get(name, style.GREY) for name in names],
    )  # fmt: skip
    axes.set_ylabel("requests a minute")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: style.amount(value))
    # One window alone would be a wall of colour.
    around = timedelta(seconds=step) if len(starts) == 1 else timedelta()
    style.time_axis(axes, [edges[0] - around, edges[-1] + around])
    style.legend(axes, whole=True)
    return style.save(figure, path)


def _times(found: Found, path: Path) -> Path:
    step = style.seconds_of(found.every)
    by_start = {row[0]: row for row in found.times}
    starts = style.all_starts(by_start, step)
    middles = [start + timedelta(seconds=step / 2) for start in starts]
    worst = max(found.times, key=lambda row: row[3])
    at_worst = f"p95 at its worst {style.duration(worst[3] * 1000)}, {worst[0]:%H:%M} UTC"
    subtitle = f"percentiles in windows of {found.every} · {at_worst}"
    figure, [axes] = style.new_figure("Response times", subtitle)
    lines = []
    for place, (name, colour) in enumerate(_LINES):
        shares = {start: row[2:][place] for start, row in by_start.items()}
        values = [shares[at] * 1000 if at in shares else math.nan for at in starts]
        lines.append(values)
        mark = "o" if len(starts) <= 60 else None
        axes.plot(middles, values, color=colour, linewidth=1.6, marker=mark, markersize=3.5, label=name)
    axes.fill_between(middles, lines[0], lines[2], color=style.PALE, alpha=0.25, linewidth=0)
    low, high = min(row[2] for row in found.times), max(row[4] for row in found.times)
    style.duration_scale(axes, low * 1000, high * 1000, least=0.001)
    axes.set_ylabel("time of a response")
    style.time_axis(axes, [*starts, starts[-1] + timedelta(seconds=step)])
    style.legend(axes, whole=True)
    return style.save(figure, path)


def _paths(found: Found, path: Path) -> Path:
    top = list(found.paths[:_PATHS])
    everything = sum(rows for _, rows, _, _ in found.paths)
    shown = sum(rows for _, rows, _, _ in top)
    subtitle = style.plural(len(found.paths), "different path")
    if len(top) < len(found.paths):
        subtitle += f" · these {len(top)} have {100 * shown / everything:.0f} % of all requests"
    figure, [axes] = style.new_figure("What is asked for", subtitle)
    names = [style.shortened(name) for name, _, _, _ in top]
    places = list(range(len(top)))
    good = [rows - errors for _, rows, errors, _ in top]
    bad = [errors for _, _, errors, _ in top]
    axes.barh(places, good, color=_STATUS["2xx"], height=0.72, label="answered")
    axes.barh(places, bad, left=good, color=_STATUS["5xx"], height=0.72, label="failed (5xx)")
    axes.set_yticks(places, names)
    axes.set_ylim(max(len(top), 5) - 0.4, -0.6)
    most = max(rows for _, rows, _, _ in top)
    for place, (_, rows, _, p95) in enumerate(top):
        text = style.amount(rows) + ("" if p95 is None else f" · p95 {style.duration(p95 * 1000)}")
        axes.text(rows + most * 0.008, place, text, va="center", fontsize=8, color=style.GREY)
    axes.set_xlim(0, most * 1.16)
    axes.xaxis.set_major_formatter(lambda value, _: style.amount(value))
    axes.set_xlabel("requests", color=style.GREY, fontsize=9)
    axes.grid(axis="y", visible=False)
    style.legend(axes, whole=True)
    return style.save(figure, path)


def _floor(at: datetime, step: float) -> datetime:
    """The start of the window of ``step`` seconds that ``at`` lies in; Spark's begin at 1970, too."""
    seconds = at.timestamp()
    return at - timedelta(seconds=seconds % step)


def _size(count: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"
