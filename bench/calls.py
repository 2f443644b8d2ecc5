"""Python function calls per message in producer, broker and consumer: a cost without noise, compared on every run.

    python -m bench.calls                  compare with bench/results/calls.json; exit 1 when a count grew by over 10 %
    python -m bench.calls --record         make this run's counts the recorded ones
    python -m bench.calls --functions 15   show which functions the calls are
    python -m bench.calls --inside         the gate of .ci/run: ``bench.inside`` instead of processes, exit 1 beyond 3 %

Each of the three processes counts the frames that its loop's thread enters (a resumed coroutine counts again) between
two marks, in cProfile's C code. Work per loop turn or per group commit is shared by more or fewer messages from run to
run, so the median of a few runs is taken.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import inside_cost, scenarios
from bench.processes import ROOT, BenchError

RECORDED = ROOT / "bench" / "results" / "calls.json"
INSTRUMENT = ("--instrument", "calls")
TOLERANCE = 0.10
#: A count below one call per message may move by this much, whatever that is in percent.
SLACK = 0.15
#: Budget of a single acknowledged send.
BUDGET = {"producer": 40, "broker": 45, "consumer": 25}

Counts = dict[str, dict[str, float]]


def per_message(before: dict[str, int], after: dict[str, int], count: int) -> dict[str, float]:
    return {name: (calls - before.get(name, 0)) / count for name, calls in after.items() if calls > before.get(name, 0)}


def sending(count: int, in_flight: int, batch: int, data: str) -> Counts:
    """Calls per message and function of each role while messages are sent and consumed."""
    load = {"do": "send", "in_flight": in_flight, "batch": batch, "size": 1024}
    warm = 3_200
    with (
        scenarios.standalone("async", data, INSTRUMENT) as server,
        scenarios.client("producer", server, *INSTRUMENT) as sends,
        scenarios.client("consumer", server, *INSTRUMENT) as takes,
    ):
        sends.answer(), takes.answer()
        takes.tell(do="expect", count=warm)
        sends.ask(**load, count=warm)
        takes.answer()
        children = {"producer": sends, "broker": server.child, "consumer": takes}
        before = {name: child.ask(do="count")["calls"] for name, child in children.items()}
        takes.tell(do="expect", count=warm + count)
        sent, taken = sends.ask(**load, count=count), takes.answer()
        after = {name: child.ask(do="count")["calls"] for name, child in children.items()}
        scenarios.check(
            server, warm + count, takes,
            sent=warm + sent["sent"], acknowledged=warm + sent["acknowledged"], consumed=taken["consumed"],
        )  # fmt: skip
    return {name: per_message(before[name], after[name], count) for name in children}


def draining(count: int, data: str) -> Counts:
    """The same for messages that wait in the broker."""
    with scenarios.standalone("async", data, INSTRUMENT) as server:
        with scenarios.client("producer", server) as sends:
            sends.answer()
            sends.ask(do="send", count=count, in_flight=16, batch=32, size=1024)
        before = server.child.ask(do="count")["calls"]
        with scenarios.client("consumer", server, "--wait", *INSTRUMENT) as takes:
            takes.answer()
            takes.ask(do="expect", count=count)
            taken = takes.ask(do="count")["calls"]
            after = server.child.ask(do="count")["calls"]
            scenarios.check(server, count, takes)
    return {"broker": per_message(before, after, count), "consumer": per_message({}, taken, count)}


def measure(repeat: int, data: str, scale: int = 1) -> dict[str, Counts]:
    """Scenario -> role -> function -> calls per message, each the run with the median total."""
    runs: dict[str, list[Counts]] = {"single": [], "batch": [], "drain": []}
    for _ in range(repeat):
        runs["single"].append(sending(16_000 // scale, 256, 1, data))
        runs["batch"].append(sending(64_000 // scale, 16, 32, data))
        runs["drain"].append(draining(64_000 // scale, data))
    return {
        scenario: {role: typical([run[role] for run in found]) for role in found[0]} for scenario, found in runs.items()
    }


def typical(runs: list[dict[str, float]]) -> dict[str, float]:
    ordered = sorted(runs, key=lambda run: sum(run.values()))
    return ordered[(len(ordered) - 1) // 2]


def grown(recorded: dict[str, Any], totals: dict[str, dict[str, float]]) -> list[str]:
    found = []
    for scenario, roles in totals.items():
        for role, calls in roles.items():
            was: float | None = recorded.get(scenario, {}).get(role)
            if was is not None and calls > max(was * (1 + TOLERANCE), was + SLACK):
                found.append(f"{scenario} {role}: {calls:.2f} calls per message, {was:.2f} recorded")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write this run's counts to results/calls.json")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--functions", type=int, default=0, metavar="N", help="list the N most called functions")
    parser.add_argument("--data", default=tempfile.gettempdir(), help="directory for stores")
    parser.add_argument("--inside", action="store_true", help="in one process, the same to the last call on every run")
    options = parser.parse_args()
    console = Console()
    if options.inside:
        inside_cost.gate(console, record=options.record)
        return
    try:
        counts = measure(options.repeat, options.data)
    except BenchError as error:
        sys.exit(f"bench: {error}")
    totals = {
        scenario: {role: round(sum(found.values()), 2) for role, found in roles.items()}
        for scenario, roles in counts.items()
    }
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    table = Table(title="Python calls per message", title_justify="left")
    for column in ("scenario", "role", "calls", "recorded", "budget"):
        table.add_column(column, justify="left" if column in ("scenario", "role") else "right")
    for scenario, by_role in totals.items():
        for role, calls in by_role.items():
            was = recorded.get(scenario, {}).get(role)
            budget = str(BUDGET[role]) if scenario == "single" else ""
            table.add_row(scenario, role, f"{calls:.2f}", "-" if was is None else f"{was:.2f}", budget)
    console.print(table)
    if options.functions:
        for scenario, roles in counts.items():
            for role, found in roles.items():
                console.print(f"\n{scenario} {role}", highlight=False)
                for name, calls in sorted(found.items(), key=lambda item: -item[1])[: options.functions]:
                    console.print(f"  {calls:6.2f}  {name}", highlight=False, soft_wrap=True)
    if options.record or not recorded:
        RECORDED.write_text(json.dumps(totals, indent=1) + "\n")
        console.print(f"recorded in {RECORDED.relative_to(ROOT)}", highlight=False)
    elif worse := grown(recorded, totals):
        sys.exit("calls per message grew by more than 10 %:\n  " + "\n  ".join(worse))


if __name__ == "__main__":
    main()
