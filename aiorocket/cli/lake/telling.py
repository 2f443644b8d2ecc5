"""What a lake command says: progress on standard error while it works, tables and the proof at its end."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from aiorocket.cli.show import table

if TYPE_CHECKING:
    from aiorocket.model import Queue
    from aiorocket.spark.steps.report import Progress, StepReport

__all__ = ("Teller", "cell", "complete", "plural", "proof", "show_tables", "summary")

#: Queues with something missing that are named one by one.
_NAMED = 10
_WIDEST = 60
#: Parts of the report that the summary says in another place, or that only programs want.
_ELSEWHERE = {
    "tables", "proof", "parts", "table", "up_to_date", "wrote", "plots", "gaps", "failures", "state", "reasons",
}  # fmt: skip


class Teller:
    """A bar on a terminal, else a line for each piece of progress, both on standard error."""

    def __init__(self) -> None:
        self._pretty = sys.stderr.isatty()
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}
        self._last = ""

    def __enter__(self) -> Teller:
        if self._pretty:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            self._bars = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                TextColumn("{task.fields[text]}", style="dim"), console=Console(stderr=True), auto_refresh=False,
            )  # fmt: skip
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def note(self, text: str) -> None:
        """Something that has no rows to count; an empty text ends it."""
        if self._bars is None:
            if text:
                click.echo(text, err=True)
            return
        if "" in self._tasks:
            self._bars.remove_task(self._tasks.pop(""))
        if text:
            self._tasks[""] = self._bars.add_task(text, total=None, text="")
        self._bars.refresh()

    def progress(self, now: Progress) -> None:
        if self._bars is None:
            of = "" if now.total_rows is None else f" of {now.total_rows:,}"
            counted = "" if now.waits else f"{now.done_rows:,}{of} rows; "
            line = f"{now.step}: {counted}{now.text}"
            if line != self._last:
                click.echo(line, err=True)
            self._last = line
            return
        if now.step not in self._tasks:
            self._tasks[now.step] = self._bars.add_task(now.step, total=None, text="")
        self._bars.update(self._tasks[now.step], completed=now.done_rows, total=now.total_rows, text=now.text)
        self._bars.refresh()


def summary(report: StepReport) -> None:
    """The tables that the step has for people, what it counted, and the proof."""
    from aiorocket.spark.steps.page import made_rows

    details = report.details
    show_tables(details)
    rows = [
        ("rows read", f"{report.rows_in:,}"),
        (made_rows(report), f"{report.rows_out:,}"),
    ]
    parts: Any = details.get("parts") or {}
    rows += [(f"{name} in the table", f"{count:,}") for name, count in parts.items()]
    if report.files:
        rows.append(("files written", f"{len(report.files):,}"))
    for name, value in details.items():
        if name not in _ELSEWHERE and value is not None and value != "":
            rows.append((name.replace("_", " "), cell(value)))
    rows.append(("seconds", f"{report.seconds:.1f}"))
    table(f"Summary of {report.step}", ("", ""), rows, pretty=sys.stdout.isatty())
    reasons: Any = details.get("reasons") or {}
    for reason, count in list(reasons.items())[:_NAMED]:
        click.echo(f"  {count:,} quarantined: {reason}")
    plots = details.get("plots")
    for path in _list(plots):
        click.echo(f"plot: {path}")
    if plots == []:
        click.echo("no plots: there is nothing to draw")
    for failure in _list(details.get("failures")):
        click.echo(f"  not sent: {failure}", err=True)
    if details.get("up_to_date"):
        click.echo("nothing was new")
    if report.step == "restore" and not report.rows_in and details.get("sent_in_all"):
        click.echo("all of it was sent by earlier runs; with another --name it is sent again")
    if details.get("table"):
        click.echo(f"written to {details['table']}")
    for line in proof(report):
        click.echo(line)


def proof(report: StepReport) -> list[str]:
    """The line that says that no row is missing, or those that say which are."""
    ranges, said = report.ranges, str(report.details.get("proof", ""))
    if said.startswith("none") or "prove nothing" in said:
        return [f"no proof: {said.removeprefix('none: ')}"]
    if not report.complete:
        return _missing(report.missing, ranges)
    if not ranges:
        nothing = not report.rows_in and not report.details.get("up_to_date")
        return ["no rows: there was nothing to read, or nothing new"] if nothing else []
    expected = sum(end - begin for begin, end in ranges.values())
    if said.startswith("all that"):  # an earlier step kept
        kept = f"{plural(report.rows_in, 'row')}, {said.removesuffix(' these offsets')}"
        return [f"complete: {kept} {plural(expected, 'offset')} in {plural(len(ranges), 'queue')}"]
    return [complete(expected, len(ranges))]


def complete(rows: int, queues: int) -> str:
    """What can be said when every offset is there."""
    return f"complete: {plural(rows, 'row')} = sum of end - begin over {plural(queues, 'queue')}"


def _missing(missing: Mapping[Queue, int], ranges: Mapping[Queue, tuple[int, int]]) -> list[str]:
    lost = sum(missing.values())
    expected = sum(end - begin for begin, end in ranges.values())
    lines = [f"INCOMPLETE: {plural(lost, 'row')} of {expected:,} missing in {plural(len(missing), 'queue')}"]
    for queue in sorted(missing)[:_NAMED]:
        begin, end = ranges.get(queue, (0, 0))
        where = f"{queue.topic} on {queue.broker_name}, queue {queue.queue_id}"
        lines.append(f"  {where}: {missing[queue]:,} of the offsets [{begin}, {end})")
    if len(missing) > _NAMED:
        lines.append(f"  and {len(missing) - _NAMED} more queues")
    return lines


def show_tables(details: Mapping[str, Any]) -> None:
    """The rows for people."""
    from aiorocket.spark.steps.page import caption

    for name, each in (details.get("tables") or {}).items():
        if not each.rows:
            continue
        rows = [tuple(cell(value) for value in row) for row in each.rows]
        table(caption(name), each.columns, rows, pretty=sys.stdout.isatty())
        if each.rows_in_all > len(each.rows):
            click.echo(f"({len(each.rows):,} of {each.rows_in_all:,} rows)")


def cell(value: Any) -> str:
    """A value in a table."""
    from aiorocket.spark.steps.page import simple

    said = simple(value)
    if said is not None:
        return said
    text = value if isinstance(value, str) else _joined(value)
    text = " ".join(text.split())
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"


def plural(number: int, noun: str, nouns: str | None = None) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {nouns or f'{noun}s'}"


def _joined(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {cell(each)}" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return "; ".join(cell(each) for each in value)
    return str(value)


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()
