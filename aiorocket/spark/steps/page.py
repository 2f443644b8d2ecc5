"""The report of a run as one page of HTML: proof, numbers, pictures, tables, configuration. It is whole by itself: no
script, and nothing is fetched from anywhere."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from aiorocket.spark.steps.report import StepReport
from aiorocket.spark.steps.tables.run import plain

__all__ = ("Run", "caption", "made_rows", "page", "page_of_runs", "simple")

#: Parts of the details that have a place of their own, or that only programs want.
_ELSEWHERE = ("tables", "proof", "plots", "state")
#: Options whose values nobody else should read.
_SECRET = re.compile(r"secret|token|passw|credential|(access|account|api).?key", re.IGNORECASE)
#: The same within a value, as settings of Java's are: ``-Dhttps.proxyPassword=...``.
_SECRET_WITHIN = re.compile(rf"((?:{_SECRET.pattern})[^\s=]*=)\S+", re.IGNORECASE)
_USER = re.compile(r"(?<=://)[^/\s]*@")
_STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --pale: #7b8794; --line: #e4e7eb; --ground: #fff;
  --good: #00724f; --bad: #b3261e }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --pale: #9aa5b1; --line: #3a444e; --ground: #16191d; --good: #4cc79a; --bad: #ff8a80 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground);
  max-width: 1000px; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin: 0 }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
header p, .less { color: var(--pale); margin: .2rem 0 }
.proof { border-left: 4px solid var(--good); padding: .4rem .8rem; margin: 1rem 0; font-variant-numeric: tabular-nums }
.proof.bad { border-color: var(--bad); color: var(--bad) }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums }
th, td { text-align: left; vertical-align: top; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line) }
td { max-width: 32rem; overflow-wrap: anywhere }
td.n { text-align: right }
th { color: var(--pale); font-weight: 600 }
img { width: 100%; height: auto; background: #fff; margin: .5rem 0 }
"""
_NUMBER = ' class="n"'
#: Of tables whose names on the disk say too little between others.
_CAPTIONS = {
    "by_topic": "Latency by topic, ms", "by_queue": "Latency by queue, ms", "over_time": "Latency over time, ms",
    "histogram": "Messages by latency, up to so many ms", "summary": "Findings, counted",
}  # fmt: skip
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


class Run(NamedTuple):
    """``proof`` are the lines that say whether rows are missing, or what else is not ``good``."""

    report: StepReport
    made: datetime
    proof: Sequence[str] = ()
    good: bool = True


def page(report: StepReport, *, made: datetime, configuration: Mapping[str, object], proof: Sequence[str] = ()) -> str:
    """``configuration`` is how the step was called; of values whose names speak of secrets, and of users in addresses,
    nothing is shown."""
    return page_of_runs(report.step, [Run(report, made, proof)], configuration)


def page_of_runs(title: str, runs: Sequence[Run], configuration: Mapping[str, object]) -> str:
    """Several runs as one page, which was made with the newest of them."""
    parts = [part for run in runs for part in _about(run)]
    parts.append("<h2>Configuration</h2>")
    said = {name: value for name, value in configuration.items() if value not in (None, "", (), [], {}, False)}
    parts.append(_table((), [(name, _open(name, value)) for name, value in sorted(said.items())]))
    made = max(run.made for run in runs)
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{escape(_open_text(title))} {made:%Y-%m-%d %H:%M}</title><style>{_STYLE}</style></head><body>\n"
    )
    return head + "\n".join(parts) + "\n</body></html>\n"


def _about(run: Run) -> list[str]:
    report, made, proof, good = run
    parts = [
        f"<header><h1>{escape(report.step.capitalize())}</h1>",
        f"<p>{made:%Y-%m-%d %H:%M:%S} UTC · {report.seconds:.1f} s · {_did(report)}</p></header>",
    ]
    kind = "proof" if good and report.complete else "proof bad"
    parts += [f'<p class="{kind}">{escape(_open_text(line))}</p>' for line in proof]
    plots: Any = report.details.get("plots") or ()
    parts += [_picture(Path(each)) for each in plots]
    tables: Any = report.details.get("tables") or {}
    for name, each in tables.items():
        parts.append(f"<h2>{escape(caption(name))}</h2>")
        parts.append(_table(each.columns, each.rows) if each.rows else '<p class="less">none</p>')
        if each.rows_in_all > len(each.rows):
            parts.append(f'<p class="less">{len(each.rows):,} of {each.rows_in_all:,} rows</p>')
    parts.append("<h2>Counted</h2>")
    counted = {
        name: value for name, value in report.details.items() if name not in _ELSEWHERE and value not in (None, {})
    }
    told = ((name, plain(value)) for name, value in counted.items())
    rows = [(_spoken(name), _open_text(value) if isinstance(value, str) else value) for name, value in told]
    parts.append(_table((), rows))
    if report.ranges:
        parts.append("<h2>Offsets</h2>")
        offsets = [(*queue, *report.ranges[queue], report.missing.get(queue, 0)) for queue in sorted(report.ranges)]
        parts.append(_table(("topic", "broker", "queue", "begin", "end", "missing"), offsets))
    return parts


def _did(report: StepReport) -> str:
    if report.step == "lag":
        return f"{_shown(report.rows_in)} messages behind"
    return f"{_shown(report.rows_in)} rows read · {_shown(report.rows_out)} {made_rows(report)}"


def caption(name: str) -> str:
    """What stands above the table of this part."""
    return _CAPTIONS.get(name) or _spoken(name)


def made_rows(report: StepReport) -> str:
    """What ``rows_out`` are: not all of them are on a disk, or on their way."""
    if report.step in ("restore", "replay"):
        return "rows to send" if report.step == "replay" and report.details.get("dry_run") else "rows sent"
    if "table" in report.details and report.details["table"] is None:
        return "rows found, and not kept"
    return "rows rewritten" if report.step == "compact" else "rows written"


def _picture(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{escape(_spoken(path.stem))}" src="data:image/png;base64,{data}">'


def _table(columns: Iterable[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in columns)
    lines = [f"<thead><tr>{head}</tr></thead>"] if head else []
    for row in rows:
        cells = (f"<td{_NUMBER if _is_number(each) else ''}>{_shown(each)}</td>" for each in row)
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="wide"><table>{"".join(lines)}</table></div>'


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def simple(value: object) -> str | None:
    """A number, a truth or nothing, for people; None for what is none of these."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return None


def _shown(value: object) -> str:
    said = simple(value)
    if said is not None:
        return said
    if isinstance(value, Mapping):
        return "<br>".join(f"{escape(str(name))}: {_shown(each)}" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return "<br>".join(_shown(each) for each in value)
    return escape(str(value))


def _open(name: str, value: object) -> object:
    if _SECRET.search(name):
        return "(not shown)"
    if isinstance(value, Mapping):
        return {each: _open(str(each), inner) for each, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_open(name, each) for each in value]
    return value if _is_number(value) or isinstance(value, bool) else _open_text(str(value))


def _open_text(text: str) -> str:
    return _SECRET_WITHIN.sub(lambda found: f"{found[1]}(not shown)", _USER.sub("", text))


def _spoken(name: str) -> str:
    return name.replace("_", " ").capitalize()
