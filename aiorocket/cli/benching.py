"""What ``aiorocket bench`` does: runs, progress, tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

import aiorocket
from aiorocket.cli.asked import SCHEMA
from aiorocket.cli.running import run as run_loop
from aiorocket.cli.show import table
from aiorocket.cli.stopping import until_stopped
from aiorocket.cli.terminal import INTERRUPTED
from aiorocket.load import Scenario, compare, html, measure
from aiorocket.load.machine import facts

__all__ = ("run_bench", "tell_difference")

#: The checks of a run of which none may find anything.
_WRONG = ("lost", "duplicates", "out_of_order", "failed_sends")


def run_bench(
    scenario: Scenario, config: aiorocket.ClientConfig, *, runs: int, out: str | None, html: str | None, as_json: bool
) -> int:
    """The exit code."""
    machine = facts()
    found: list[dict[str, Any]] = []

    async def work() -> None:
        for number in range(runs):
            found.append(await measure(scenario, config, _progress(number)))
            if not as_json:
                _tell(found[-1], number)

    async def stopped() -> bool:
        task = await until_stopped(work())
        if not task.cancelled():
            task.result()
        return task.cancelled()

    if run_loop(stopped()):
        return INTERRUPTED
    result = {"schema": SCHEMA, "kind": "bench", "scenario": scenario.to_plain(), "machine": machine, "runs": found}
    text = json.dumps(result, ensure_ascii=False)
    if out is not None:
        Path(out).write_text(text + "\n", encoding="utf-8")
    if html is not None:
        _write_page(result, html)
    if as_json:
        click.echo(text)
    return 1 if any(each["checks"][name] for each in found for name in _WRONG) else 0


def _write_page(result: Mapping[str, Any], path: str) -> None:
    Path(path).write_text(html(result), encoding="utf-8")


def _progress(number: int) -> Any:
    def progress(phase: str, sent: int, received: int) -> None:
        if sys.stderr.isatty():
            click.echo(
                f"\rrun {number + 1}: {phase}: {sent:,} acknowledged, {received:,} received ", err=True, nl=False
            )

    return progress


def _tell(run: Mapping[str, Any], number: int) -> None:
    if sys.stderr.isatty():
        click.echo("", err=True)
    rows = [(name.replace("_", " "), f"{value:,.3f}") for name, value in run["figures"].items() if value is not None]
    table(f"run {number + 1}", ["figure", "value"], rows, pretty=False)
    checks = run["checks"]
    click.echo(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in checks.items() if name != "errors"))
    for error, count in checks["errors"].items():
        click.echo(f"{count} times {error}")
    click.echo(f"limit: {run['verdict']['limit']}: {run['verdict']['why']}")


def tell_difference(first: Mapping[str, Any], second: Mapping[str, Any], as_json: bool) -> None:
    """Print it."""
    found = compare(first, second)
    if as_json:
        rows = [each._asdict() for each in found]
        click.echo(json.dumps({"schema": SCHEMA, "kind": "bench-compared", "rows": rows, "missing": []}))
        return
    cells = [
        (each.figure, f"{each.first:,.3f}", f"{each.second:,.3f}", f"{each.low:+,.3f} to {each.high:+,.3f}", each.word)
        for each in found
    ]
    table("B beside A", ["figure", "A", "B", "B - A, 95 %", ""], cells, pretty=False)
    for name, each in (("A", first), ("B", second)):
        found_wrong = {check: sum(run["checks"].get(check, 0) for run in each["runs"]) for check in _WRONG}
        if any(found_wrong.values()):
            said = ", ".join(f"{check.replace('_', ' ')} {count}" for check, count in found_wrong.items() if count)
            click.echo(f"{name} failed, and its figures are none to go by: {said}")
    if {**first["scenario"], "flush": ""} != {**second["scenario"], "flush": ""}:
        click.echo("these were different scenarios")
    if first["machine"].get("processor") != second["machine"].get("processor"):
        click.echo("these were different machines")
    known = [each["runs"][-1].get("brokers") for each in (first, second)]
    if all(known) and known[0] != known[1]:  # an earlier version's result, or no administrator's, does not say
        click.echo("these were different brokers, or ones that flush otherwise")
