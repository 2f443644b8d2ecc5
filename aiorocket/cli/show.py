"""What the demo shows: moving bars and tables on a terminal (only then rich is imported), plain lines elsewhere; tables
of commands that ask."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import click

from aiorocket.cli import terminal

__all__ = ("Row", "body_for_reader", "fitting_table", "progress", "say_json", "table", "visible", "when")

#: Label, then one value for each column.
Row = tuple[str, ...]

#: Called with what is done and what there is to do, or None while that is unknown (standard input is still open).
Update = Callable[[str, int, int | None], None]


@contextmanager
def progress(*, pretty: bool) -> Iterator[Update]:
    if not pretty:
        yield lambda stage, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    # No refresh thread: the demo's own task calls update ten times a second.
    bars = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=Console(), auto_refresh=False,
    )  # fmt: skip
    stages: dict[str, TaskID] = {}

    def update(stage: str, done: int, total: int | None) -> None:
        if stage not in stages:
            stages[stage] = bars.add_task(stage, total=None)
        bars.update(stages[stage], completed=done, total=total)
        bars.refresh()

    with bars:
        yield update


def visible(text: str) -> str:
    """``text`` in one line, without what would steer a terminal: names and bodies are other people's."""
    return text if text.isprintable() else "".join(each if each.isprintable() else _escaped(each) for each in text)


def body_for_reader(body: bytes) -> bytes:
    """A message's body as standard output gets it: the very bytes, but for a terminal without what would steer it."""
    if not sys.stdout.isatty():
        return body
    lines = body.decode("utf-8", "replace").split("\n")
    text = "\n".join("\t".join(map(visible, line.split("\t"))) for line in lines)
    return text.encode(sys.stdout.encoding, "backslashreplace")


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def when(millis: int) -> str:
    """A time as people here read it; the number itself when no calendar has it."""
    try:
        return datetime.fromtimestamp(millis / 1000, UTC).astimezone().isoformat(" ", "seconds")
    except (ValueError, OverflowError, OSError):
        return str(millis)


def say_json(document: object) -> None:
    """A line of UTF-8, whatever the terminal's encoding; halves of characters stay as JSON writes them."""
    import json  # needed by no table and no help

    click.echo(json.dumps(document, ensure_ascii=False).encode(errors="backslashreplace"))


def table(title: str, columns: Sequence[str], rows: Sequence[Row], *, pretty: bool, width: int | None = None) -> None:
    """A table with right-aligned values. Rows may have fewer values than there are columns. What does not fit into
    ``width`` characters is shown a value a line: nothing is cut, so that ids can be copied."""
    if pretty:
        from rich.console import Console
        from rich.table import Table

        shown = Table(title=title, title_justify="left", title_style="bold")
        for number, column in enumerate(columns):
            shown.add_column(column, justify="right" if number else "left")
        for row in rows:
            shown.add_row(*row)
        Console().print(shown)
        return
    rows = [tuple(map(visible, row)) for row in rows]
    cells = [tuple(columns), *rows]
    widths = [max(len(row[n]) for row in cells if len(row) > n) for n in range(len(columns))]
    click.echo(f"\n{visible(title)}")
    if width is not None and sum(widths) + 2 * len(widths) > width:
        broad = max(map(len, columns))
        for row in rows:
            click.echo()
            for column, cell in zip(columns, row, strict=False):
                click.echo(f"  {column.ljust(broad)}  {cell}".rstrip())
        return
    for row in cells:
        line = "  ".join(
            cell.rjust(width) if n else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=False))
        )
        click.echo(f"  {line}".rstrip())


def fitting_table(title: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """As wide as the terminal at most; elsewhere as wide as it is."""
    table(title, columns, rows, pretty=False, width=terminal.columns() if sys.stdout.isatty() else None)
