"""How the plots of this folder look, and how their axes speak: colours, figures, legends, short numbers.

matplotlib is imported where it is used; it comes with ``pip install 'aiorocketmq[report]'``. Times are UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from aiorocket.errors import UsageError

__all__ = (
    "COLOURS",
    "GREY",
    "GRID",
    "INK",
    "PALE",
    "all_starts",
    "amount",
    "duration",
    "duration_scale",
    "legend",
    "need_matplotlib",
    "new_figure",
    "per",
    "plural",
    "save",
    "seconds_of",
    "shortened",
    "spelled",
    "time_axis",
    "together",
)

INK, GREY, GRID = "#1f2933", "#7b8794", "#e4e7eb"
#: Told apart also by people who do not see all colours (after Okabe and Ito).
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6d31", "#5f4b8b")
PALE = "#a9cfe8"
#: In inches, and dots of each: sharp on a screen with twice the dots at 1,000 wide.
_SIZE, _DPI = (10.0, 5.4), 200
#: Windows that are drawn as one.
_TOGETHER = (1, 2, 5, 10, 15, 30, 60, 120, 240, 360, 720, 1440, 10_080, 43_200, 525_600)
_SECOND, _MINUTE, _HOUR, _DAY = 1e3, 6e4, 3.6e6, 8.64e7
#: Milliseconds that people have a number for, to count by.
_ROUND = (
    *(digit * 10.0**power for power in range(-3, 3) for digit in (1, 2, 5)),
    *(number * _SECOND for number in (1, 2, 5, 10, 15, 30)), *(number * _MINUTE for number in (1, 2, 5, 10, 15, 30)),
    *(number * _HOUR for number in (1, 2, 3, 6, 12)), *(number * _DAY for number in (1, 2, 5, 10, 20, 50, 100)),
)  # fmt: skip
#: By factors of about ten.
_FACTORS = (
    *(10.0**power for power in range(-3, 5)),
    *(_MINUTE, 10 * _MINUTE, _HOUR, 10 * _HOUR, 5 * _DAY, 50 * _DAY),
)
#: Fonts for what DejaVu Sans has no letters for, in keys and tags, where one of them is installed.
_WIDE = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei",
    "PingFang SC", "Hiragino Sans GB", "Microsoft YaHei", "SimHei", "Arial Unicode MS",
)  # fmt: skip
_UNITS = {
    "microsecond": 1e-6, "millisecond": 1e-3, "second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0,
    "week": 604800.0,
}  # fmt: skip


def need_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise UsageError("plots need matplotlib: pip install 'aiorocketmq[report]'") from error


def new_figure(title: str, subtitle: str, rows: int = 1) -> tuple[Any, list[Any]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width, height = _SIZE
    figure = Figure(figsize=(width, height + (rows - 1) * 2.7), dpi=_DPI, facecolor="white")
    FigureCanvasAgg(figure)
    # The two lines above the panels are as high in a tall figure as in a low one.
    total = height + (rows - 1) * 2.7
    figure.text(0.012, 1 - 0.30 / total, title, fontsize=15, fontweight="bold", color=INK, va="center")
    figure.text(0.012, 1 - 0.60 / total, subtitle, fontsize=10, color=GREY, va="center")
    panels = [figure.add_subplot(rows, 1, number + 1) for number in range(rows)]
    for axes in panels:
        axes.set_axisbelow(True)
        axes.grid(color=GRID, linewidth=0.8)
        axes.tick_params(colors=INK, labelsize=9, length=0)
        axes.tick_params(axis="x", pad=6)  # clear of the zero of the other axis
        axes.yaxis.label.set_color(GREY)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.spines["bottom"].set_color(GREY)
    figure.set_layout_engine("tight", rect=(0, 0, 1, 1 - 0.72 / total), h_pad=1.6)
    return figure, panels


def save(figure: Any, path: Path) -> Path:
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        if not text.get_text().isascii():
            text.set_fontfamily(_fonts()[0])
    figure.savefig(path, dpi=_DPI)
    return path


def legend(axes: Any, *, whole: bool) -> None:
    """Beside the title of the picture when it goes for the ``whole`` of it and is short, else beside its panel."""
    lines, names = axes.get_legend_handles_labels()
    looks = {"frameon": False, "fontsize": 9, "handlelength": 1.6}
    if whole and len(names) <= 4 and sum(map(len, names)) <= 60:
        axes.figure.legend(lines, names, loc="upper right", bbox_to_anchor=(0.992, 0.992), ncols=len(names), **looks)
    else:
        axes.legend(lines, names, loc="upper left", bbox_to_anchor=(1.005, 1.02), **looks)


def time_axis(axes: Any, moments: Sequence[datetime]) -> None:
    from matplotlib import dates

    untyped: Any = dates  # the two in it
    locator = untyped.AutoDateLocator(tz=UTC, maxticks=9)
    # With its own steps it finds none for some spans, and says so on stderr.
    locator.intervald[untyped.MINUTELY] = [1, 5, 10, 15, 30, 60]
    locator.intervald[untyped.MONTHLY] = [1, 2, 3, 4, 6, 12]
    axes.xaxis.set_major_locator(locator)
    shown = untyped.ConciseDateFormatter(locator, tz=UTC)
    # Seconds say their minute, and at the axis' end is the day alone.
    shown.formats[5] = shown.zero_formats[5] = "%H:%M:%S"
    shown.offset_formats[4] = shown.offset_formats[5] = "%Y-%b-%d"
    axes.xaxis.set_major_formatter(shown)
    around = timedelta(seconds=30) if len(moments) == 1 else timedelta()
    axes.set_xlim(moments[0] - around, moments[-1] + around)
    axes.set_xlabel("time (UTC)", color=GREY, fontsize=9)


def duration_scale(axes: Any, low: float, high: float, *, least: float = 1.0) -> None:
    """The axis of durations between ``low`` and ``high`` ms, which go through it: by factors when these are large ones,
    of ``least`` ms at least; around zero it has to be a straight one. Its numbers are round ones of their unit."""
    from matplotlib.ticker import FixedLocator

    ticks: Sequence[float]
    if high > 30 * max(low, least):
        if low < least:
            axes.set_yscale("symlog", linthresh=least, subs=[])
            factors = [each for each in _FACTORS if each >= least]
            ticks = [*(-each for each in reversed(factors)), 0.0, *factors]
        else:
            axes.set_yscale("log")
            ticks = _ROUND if high < 1000 * low else _FACTORS
        axes.yaxis.minorticks_off()
    else:
        bottom, top = min(low, 0.0), max(high, 0.0)
        if top == bottom:
            top = 1.0
        step = next((each for each in _ROUND if 6 * each >= top - bottom), _ROUND[-1])
        ticks = [step * number for number in range(int(bottom // step), int(1.1 * top // step) + 1)]
        if low >= 0:
            axes.set_ylim(0, top * 1.1)
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_formatter(lambda value, _: duration(value))


def duration(ms: float) -> str:
    """``12 ms``, ``3.4 s``, ``5 min``, ``2.5 h``, ``3 d``."""
    return _short(ms, ((" d", _DAY), (" h", _HOUR), (" min", _MINUTE), (" s", _SECOND), (" ms", 1.0)))


def amount(value: float) -> str:
    """``12``, ``3.4 k``, ``5 M``, ``2.5 G``."""
    return _short(value, ((" G", 1e9), (" M", 1e6), (" k", 1e3), ("", 1.0)))


def _short(value: float, units: Sequence[tuple[str, float]]) -> str:
    """Three digits of it, in the first unit of which these are one at least."""
    unit, size = next((each for each in units if float(f"{abs(value) / each[1]:.3g}") >= 1), units[-1])
    number = value / size
    return (f"{number:.3g}" if abs(number) < 999.5 else f"{number:,.0f}") + unit


def plural(number: int, noun: str) -> str:
    return f"{amount(number)} {noun}" if number == 1 else f"{amount(number)} {noun}s"


def per(most: float) -> tuple[str, float]:
    """In which unit of time (``a minute``) rates up to ``most`` a second are numbers that people read, and how many
    seconds it has."""
    for unit, seconds in (("a second", 1.0), ("a minute", 60.0), ("an hour", 3600.0)):
        if most * seconds >= 1:
            return unit, seconds
    return "a day", 86400.0


def together(windows: Iterable[datetime], seconds: float, most: int = 400) -> tuple[float, dict[datetime, datetime]]:
    """Windows of ``seconds`` of which several are drawn as one, so that no more than ``most`` are drawn: more than that
    are narrower than the dots of a screen. How many seconds such a one has, and of each window in which it is."""
    starts = sorted(set(windows))
    first = starts[0]
    whole = (starts[-1] - first) / timedelta(seconds=seconds) + 1
    step = seconds * next(each for each in _TOGETHER if whole / each <= most or each == _TOGETHER[-1])
    return step, {start: first + timedelta(seconds=(start - first).total_seconds() // step * step) for start in starts}


def spelled(seconds: float) -> str:
    """A length of time: ``90 seconds``, ``5 minutes``, ``2 hours``, ``1 day``."""
    for unit, size in (("day", 86400.0), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= size and seconds % size == 0:
            return plural(round(seconds / size), unit)
    return f"{seconds:g} seconds"


def shortened(name: str) -> str:
    """A name as it is drawn: long ones differ at their ends as often as at their beginnings. Letters that no font here
    has are their escapes, so that two names stay two; nothing in it is markup, and nothing keeps it out of a legend."""
    short = name if len(name) <= 32 else f"{name[:18]}…{name[-13:]}"
    if not (short.isascii() and short.isprintable()):
        known = _fonts()[1]
        short = "".join(each if ord(each) in known and each.isprintable() else ascii(each)[1:-1] for each in short)
    return (" " if short.startswith("_") else "") + short.replace("$", r"\$")


@cache
def _fonts() -> tuple[list[str], frozenset[int]]:
    """Families in the order in which they are asked for a letter, and the letters that they have."""
    from matplotlib import font_manager

    installed = {each.name for each in font_manager.fontManager.ttflist}
    names = ["DejaVu Sans", *(each for each in _WIDE if each in installed)]
    letters = (font_manager.get_font(font_manager.findfont(each)).get_charmap() for each in names)
    return names, frozenset().union(*letters)


def seconds_of(every: str) -> float:
    number, unit = every.split()
    return int(number) * _UNITS[unit.lower().removesuffix("s")]


def all_starts(found: Iterable[datetime], seconds: float) -> list[datetime]:
    """Every window from the first to the last, also those that had no rows; when these were very many, only those."""
    starts = sorted({start.astimezone(UTC) for start in found})
    step = timedelta(seconds=seconds)
    span = (starts[-1] - starts[0]) / step
    if span > 20_000:
        return starts
    there = set(starts)
    return sorted(there | {starts[0] + number * step for number in range(int(span) + 1)})
