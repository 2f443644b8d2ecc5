"""What a message costs in ``bench.inside``: Python calls of each layer, instructions where a tool can count them.

Calls are the same on every run of one version of Python. Instructions are the same within 1 % for one build of it and
of what it has installed, so they are compared only where both are those of the record. The pure code is measured.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import machine
from bench.inside import SCENARIOS
from bench.processes import ROOT, environment

RECORDED = ROOT / "bench" / "results" / "inside.json"
TOLERANCE = 0.03
#: A layer's calls below one per message may move by this much, whatever that is in percent.
SLACK = 0.03
#: Messages of the short run and of the long one, whose difference is the cost.
SHORT, LONG = 3_200, 9_600
SHORT_COUNTED, LONG_COUNTED = 640, 1_920
_COUNT = re.compile(r"I\s+refs:\s+([\d,]+)|^(\d+),.*instructions", re.MULTILINE)
_PERF = ("perf", "stat", "-x,", "-e", "instructions:u")
_VALGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")

Costs = dict[str, dict[str, float]]


def gate(console: Console, *, record: bool) -> None:
    """Measure, show, and end with 1 when a figure is beyond the recorded one; or record."""
    tool = counting_tool()
    found: dict[str, Any] = {"python": platform.python_version_tuple()[:2], "build": build(tool)}
    found["calls"] = {name: per_message(calls, name, SHORT, LONG) for name in SCENARIOS}
    if tool:
        counted = per_message(lambda *run: instructions(tool, *run), "single", SHORT_COUNTED, LONG_COUNTED)
        found["instructions"] = {"single": counted}
    found = json.loads(json.dumps(found))
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    kinds = [
        kind
        for kind, same in (("calls", "python"), ("instructions", "build"))
        if kind in found and found[same] == recorded.get(same)
    ]
    show(console, found, recorded, kinds)
    if record or not recorded:
        RECORDED.write_text(json.dumps(found, indent=1) + "\n")
        console.print(f"recorded in {RECORDED.relative_to(ROOT)}", highlight=False)
    elif worse := [line for kind in kinds for line in beyond(recorded[kind], found[kind])]:
        sys.exit(f"a message costs over {TOLERANCE:.0%} more than recorded:\n  " + "\n  ".join(worse))


def per_message(cost: Callable[[str, int], dict[str, int]], name: str, short: int, long: int) -> dict[str, float]:
    first, second = cost(name, short), cost(name, long)
    return {layer: round((second[layer] - first.get(layer, 0)) / (long - short), 3) for layer in sorted(second)}


def calls(name: str, count: int) -> dict[str, int]:
    found: dict[str, int] = json.loads(run([], name, str(count)).stdout)
    return found


def instructions(tool: tuple[str, ...], name: str, count: int) -> dict[str, int]:
    """Thousands of them, the simulation's included: of batches it is the larger part, so singles are counted only."""
    match = _COUNT.search(run(list(tool), name, str(count), "--plain").stderr)
    if match is None:
        sys.exit(f"{tool[0]} counted no instructions")
    return {"thousands": int((match[1] or match[2]).replace(",", "")) // 1000}


def run(tool: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    # Without a fixed seed the order of sets differs, and with it the length of some searches.
    inherited = {**environment(), "PYTHONHASHSEED": "0", "AIOROCKET_SPEEDUPS": "0"}
    argv = [*tool, sys.executable, "-m", "bench.inside", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=True, env=inherited, cwd=ROOT)


def counting_tool() -> tuple[str, ...] | None:
    """perf where the machine lets it count, else valgrind."""
    if shutil.which("perf"):
        tried = subprocess.run([*_PERF, sys.executable, "-c", ""], capture_output=True, text=True, check=False)
        if tried.returncode == 0 and _COUNT.search(tried.stderr):
            return _PERF
    return _VALGRIND if shutil.which("valgrind") else None


def build(tool: tuple[str, ...] | None) -> dict[str, Any]:
    """What the number of instructions depends on beside the project."""
    packages = {name: machine.version(name) for name in ("msgpack", "msgspec")}
    compiler = [platform.python_version(), platform.python_compiler(), platform.machine()]
    return {"python": compiler, "flags": machine.interpreter(), "packages": packages, "tool": tool and tool[0]}


def beyond(recorded: Costs, found: Costs) -> list[str]:
    return [
        f"{name}, {layer}: {cost:.2f}, {was:.2f} recorded"
        for name, layers in found.items()
        for layer, cost in layers.items()
        if (was := recorded.get(name, {}).get(layer, 0.0)) + max(SLACK, was * TOLERANCE) < cost
    ]


def show(console: Console, found: dict[str, Any], recorded: dict[str, Any], kinds: list[str]) -> None:
    for kind, title in (("calls", "Python calls per message"), ("instructions", "instructions per message")):
        if kind not in found:
            console.print(f"no {kind}: neither perf (with counters) nor valgrind is here", highlight=False)
            continue
        table = Table(title=f"{title}, in one process", title_justify="left")
        for column in ("scenario", "layer", "now", "recorded"):
            table.add_column(column, justify="left" if column in ("scenario", "layer") else "right")
        for name, layers in found[kind].items():
            for layer, cost in layers.items():
                was = recorded.get(kind, {}).get(name, {}).get(layer) if kind in kinds else None
                table.add_row(name, layer, f"{cost:.2f}", "-" if was is None else f"{was:.2f}")
        console.print(table)
        if recorded and kind not in kinds:
            console.print(f"not compared: the recorded {kind} are those of another Python", highlight=False)
