"""What the measuring commands share: their options, floors, and the file of results."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.processes import ROOT

RESULTS = ROOT / "bench" / "results"


def arguments(
    about: str,
    scenarios: Sequence[str],
    *,
    repeat: int,
    repeated: str,
    java: Sequence[str] = (),
    rows: tuple[int, int] | None = None,
) -> argparse.Namespace:
    """The command line, with ``options.scenarios`` the ones that are wanted; those of ``java`` need its option.
    ``rows`` are how many unless one says it, and how many with ``--smoke``."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(scenarios))
    parser.add_argument("--repeat", type=int, default=repeat, help=repeated)
    parser.add_argument("--smoke", action="store_true", help="tiny counts, each once, nothing recorded, no floors")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a floor is missed")
    parser.add_argument("--data", default=tempfile.gettempdir(), help="directory for stores (a real disk)")
    parser.add_argument("--note", default="", help="recorded with the run, e.g. what else used the machine")
    if java:
        parser.add_argument("--java", action="store_true", help=f"Apache beside it, and {', '.join(java)}")
    if rows is not None:
        parser.add_argument("--rows", type=int, help=f"how many ({rows[0]:,}; with --smoke {rows[1]:,})")
    options = parser.parse_args()
    if rows is not None:
        options.rows = options.rows or rows[options.smoke]
    scenarios = [*scenarios, *(java if java and options.java else ())]
    options.scenarios = options.scenarios or list(scenarios)
    if unknown := set(options.scenarios) - set(scenarios):
        parser.error(f"no scenario {', '.join(sorted(unknown))}; there are {', '.join(scenarios)}")
    return options


class Floor(NamedTuple):
    """One line of the table: ``value`` must be at least (``above``) or at most ``limit``."""

    name: str
    value: float
    limit: float
    above: bool
    unit: str

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.above else self.value <= self.limit


def table_of(floors: list[Floor]) -> Table:
    table = Table(title="Floors", title_justify="left")
    for column in ("figure", "value", "floor", "met"):
        table.add_column(column, justify="right" if column in ("value", "floor") else "left")
    for floor in floors:
        sign = "≥" if floor.above else "≤"
        verdict = "[green]yes[/green]" if floor.met else "[red]no[/red]"
        places = 0 if floor.value >= 1000 else 2
        value = f"{floor.value:,.{places}f} {floor.unit}"
        table.add_row(floor.name, value, f"{sign} {floor.limit:,} {floor.unit}", verdict)
    return table


def append(run: dict[str, Any]) -> Path:
    """Add the run to the day's file; earlier runs stay as they are."""
    path = RESULTS / f"{run['machine']['date'][:10]}.json"
    path.parent.mkdir(exist_ok=True)
    runs = json.loads(path.read_text()) if path.exists() else []
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps([*runs, run], indent=1) + "\n")
    temporary.replace(path)
    return path


def finish(
    options: argparse.Namespace,
    machine: dict[str, Any],
    results: dict[str, Any],
    floors: list[Floor],
    console: Console,
) -> None:
    """Record the run; with ``--check`` exit with 1 when a floor is missed."""
    run = {
        "machine": machine,
        "note": options.note,
        "results": results,
        "floors": [{**floor._asdict(), "met": floor.met} for floor in floors],
    }
    console.print(f"recorded in {append(run).relative_to(ROOT)}", highlight=False)
    if options.check and not all(floor.met for floor in floors):
        sys.exit(1)
