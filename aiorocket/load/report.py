"""A result as one HTML page: figures, verdict, checks, plots. Nothing is fetched, no script runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, inf, log10
from typing import Any

__all__ = ("html",)

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 720, 240, 64, 28
_MOST_NINES = 5
_COLOURS = ("#2563eb", "#dc2626", "#059669", "#9333ea")
_STYLE = """
:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse}td,th{padding:.2rem .8rem;text-align:right;border-bottom:1px solid #8884}
td:first-child,th:first-child{text-align:left}svg{width:100%;height:auto}svg text{font:11px system-ui,sans-serif;
fill:currentColor}.verdict{padding:.6rem 1rem;border-left:4px solid #2563eb;background:#2563eb18}.bad{color:#dc2626}
"""


def html(result: Mapping[str, Any]) -> str:
    """Of what ``aiorocket bench run --json`` printed."""
    runs = result["runs"]
    last = runs[-1]
    parts = [f"<h1>aiorocket bench</h1><p>{escape(_said(result['scenario']))}</p>"]
    parts.append(
        f'<p class="verdict"><b>Limit: {escape(last["verdict"]["limit"])}.</b> {escape(last["verdict"]["why"])}</p>'
    )
    names = list(last["figures"])
    head = "".join(f"<th>run {number + 1}</th>" for number in range(len(runs)))
    rows = "".join(
        f"<tr><td>{escape(name.replace('_', ' '))}</td>"
        + "".join(f"<td>{_number(run['figures'].get(name))}</td>" for run in runs) + "</tr>"
        for name in names
    )  # fmt: skip
    parts.append(f"<h2>Figures</h2><table><tr><th></th>{head}</tr>{rows}</table>")
    bad = any(run["checks"][name] for run in runs for name in ("lost", "duplicates", "out_of_order", "failed_sends"))
    checks = "<br>".join(
        (f"run {number}: " if len(runs) > 1 else "")
        + escape(
            ", ".join(f"{name.replace('_', ' ')} {found}" for name, found in run["checks"].items() if name != "errors")
        )
        for number, run in enumerate(runs, 1)
    )
    parts.append(f'<h2>Checks</h2><p class="{"bad" if bad else ""}">{checks}</p>')
    for run, title in ((runs[-1], "the last run"),):
        seconds = _whole(run["seconds"], result["scenario"])
        if len(seconds) > 1:
            sent = [(row[0], row[1]) for row in seconds]
            groups = result["scenario"].get("groups", 1)  # each gets every message; a figure is of one of them too
            came = [(row[0], row[2] / groups) for row in seconds]
            of_each = "received" if groups == 1 else "received by a group"
            slow = [(row[0], row[3] / 1000) for row in seconds]
            parts.append(
                f"<h2>Messages a second, {title}</h2>" + _plot({"acknowledged": sent, of_each: came}, "s", "/s")
            )
            parts.append(f"<h2>Slowest send of each second</h2>{_plot({'send': slow}, 's', 'ms')}")
        curves = {name: [(each[0], each[1]) for each in points] for name, points in run["percentiles"].items()
                  if points and name != "lag"}  # fmt: skip
        if curves:
            ordered = {name.replace("_", " "): [(_nines(p), ms) for p, ms in points] for name, points in curves.items()}
            parts.append(f"<h2>Latency by percentile, {title}</h2>{_plot(ordered, 'percentile', 'ms', nines=True)}")
            parts.append(
                "<p>send: from when it was due (open loop) to its acknowledgement; service: from the call; end to end: "
                "from when it was due to the listener.</p>"
            )
    brokers = "".join(
        f"<tr><td>{escape(each['broker'])}</td><td>{escape(each['version'])}</td>"
        f"<td>{escape(each['flush'] or 'unknown')}</td></tr>" for each in last.get("brokers", ())
    )  # fmt: skip
    if brokers:
        parts.append(f"<h2>Brokers</h2><table><tr><th></th><th>version</th><th>flush</th></tr>{brokers}</table>")
    facts = "".join(
        f"<tr><td>{escape(str(k))}</td><td>{escape(str(v))}</td></tr>" for k, v in result["machine"].items()
    )
    parts.append(f"<h2>Machine</h2><table>{facts}</table>")
    body = "\n".join(parts)
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f'content="{policy}"><meta name="viewport" content="width=device-width"><title>aiorocket bench</title>'
        f"<style>{_STYLE}</style>{body}</html>\n"
    )


def _whole(seconds: Sequence[Sequence[int]], scenario: Mapping[str, Any]) -> list[Sequence[int]]:
    """Those that were measured from their beginning to their end: what comes late would look like a fall."""
    begins = scenario.get("warmup", 0)
    ends = begins + scenario.get("seconds", inf)
    return [row for row in seconds if begins <= row[0] <= ends - 1]


def _said(scenario: Mapping[str, Any]) -> str:
    """Yes and no, and no zeros behind a point."""
    said = {name: f"{value:g}" if isinstance(value, float) else value for name, value in scenario.items()}
    said |= {name: "yes" if value else "no" for name, value in scenario.items() if isinstance(value, bool)}
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in said.items() if value != "")


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _nines(percentile: float) -> float:
    """90 is 1, 99 is 2, 99.9 is 3: what is left is a power of ten; 100 is the most."""
    return min(float(_MOST_NINES), -log10(max(1e-5, 1 - percentile / 100)))


def _plot(series: Mapping[str, Sequence[tuple[float, float]]], across: str, up: str, *, nines: bool = False) -> str:
    points = [point for each in series.values() for point in each]
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    top = max(max(y for _, y in points), 1e-9)
    step = 10.0 ** int(log10(top) - (1 if top < 1 else 0))
    step = next(step * n for n in (0.5, 1, 2, 5, 10) if top / (step * n) <= 5)
    ceiling = step * (int(top / step) + 1)

    def place(x: float, y: float) -> str:
        along = (x - low) / ((high - low) or 1)
        return f"{_LEFT + along * (_WIDTH - _LEFT - 10):.1f},{(1 - y / ceiling) * (_HEIGHT - _BOTTOM - 10) + 10:.1f}"

    parts = []
    for number in range(int(ceiling / step) + 1):
        level = place(low, number * step).split(",")[1]
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{level}" y2="{level}" stroke="#8884"/>')
        label = _number(number * step)
        parts.append(f'<text x="{_LEFT - 6}" y="{float(level) + 4}" text-anchor="end">{label}</text>')
    ticks = [(n, f"{100 - 10 ** (2 - n) * (n < _MOST_NINES):g} %") for n in range(int(high) + 1)] if nines else [
        (n, f"{n} {across}") for n in range(int(low), int(high) + 1, max(1, ceil((high - low) / 6)))]  # fmt: skip
    for x, text in ticks:
        anchor = "end" if x == high else "middle"
        parts.append(f'<text x="{place(x, 0).split(",")[0]}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{text}</text>')
    for number, (name, each) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        line = " ".join(place(x, y) for x, y in each)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{_LEFT + 8 + number * 120}" y="22" style="fill:{colour}">{escape(name)} ({up})</text>')
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(parts)}</svg>'
