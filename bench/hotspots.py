"""Where the time goes: cProfile of producer, broker and consumer while a scenario runs.

    python -m bench.hotspots single --top 25
    python -m bench.hotspots drain --role broker

cProfile makes calls dearer than they are and reads the wall clock: a write that wakes its reader on the same core is
charged with what the reader does. Trust the order and the counts, and ``bench.run`` for microseconds. What it cannot
show (page faults, garbage collection, the kernel's share) needs ``perf`` or py-spy on the running processes.
"""

from __future__ import annotations

import argparse
import os
import pstats
import tempfile
from typing import Any, cast

from rich.console import Console
from rich.table import Table

from bench import scenarios
from bench.processes import ROOT, Child

WARM = 3_200


def record(scenario: str, count: int, directory: str, data: str) -> dict[str, str]:
    """Run the scenario with every role profiled; role -> file."""
    files = {role: os.path.join(directory, role) for role in ("producer", "server", "consumer")}

    def instrument(role: str) -> tuple[str, ...]:
        return ("--instrument", "profile", "--profile", files[role])

    batch, in_flight = (1, 256) if scenario.startswith("single") else (32, 16)
    flush = "sync" if scenario.endswith("sync") else "async"
    load = {"do": "send", "count": count, "in_flight": in_flight, "batch": batch, "size": 1024}
    with scenarios.standalone(flush, data, instrument("server")) as server:
        if scenario == "drain":
            with scenarios.client("producer", server, *instrument("producer")) as sends:
                sends.answer(), sends.ask(**load)
                finish(sends)
            server.child.ask(do="begin")
            with scenarios.client("consumer", server, "--wait", *instrument("consumer")) as takes:
                takes.answer(), takes.ask(do="expect", count=count)
                finish(takes)
        else:
            with (
                scenarios.client("producer", server, *instrument("producer")) as sends,
                scenarios.client("consumer", server, *instrument("consumer")) as takes,
            ):
                sends.answer(), takes.answer()
                takes.tell(do="expect", count=WARM)
                sends.ask(**{**load, "count": WARM}), takes.answer()
                for child in (server.child, sends, takes):
                    child.ask(do="begin")
                takes.tell(do="expect", count=WARM + count)
                sends.ask(**load), takes.answer()
                finish(sends)
                finish(takes)
        finish(server.child)
    return files


def finish(child: Child) -> None:
    """Let the child write its profile: it ends by itself when nobody speaks to it any more."""
    assert child.process.stdin is not None
    child.process.stdin.close()
    child.process.wait(30)


def show(role: str, path: str, count: int, top: int, console: Console) -> None:
    stats = cast(Any, pstats.Stats(path)).stats
    total = sum(row[2] for row in stats.values())
    table = Table(title=f"{role}: {total / count * 1e6:.1f} µs per message under the profiler", title_justify="left")
    for column in ("own µs/msg", "share", "cumulative µs/msg", "calls/msg", "where"):
        table.add_column(column, justify="left" if column == "where" else "right", no_wrap=column == "where")
    for (file, line, name), (_, calls, own, cumulative, _) in sorted(stats.items(), key=lambda item: -item[1][2])[:top]:
        place = f"{os.path.relpath(file, ROOT)}:{line} {name}" if line else name
        micros, under = own / count * 1e6, cumulative / count * 1e6
        table.add_row(f"{micros:.2f}", f"{own / total:.0%}", f"{under:.2f}", f"{calls / count:.2f}", place)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=("single", "single-sync", "batch", "drain"))
    parser.add_argument("--role", choices=("producer", "server", "consumer"), help="only this one")
    parser.add_argument("--count", type=int, default=64_000)
    parser.add_argument("--top", type=int, default=25)
    parser.add_argument("--data", default=tempfile.gettempdir(), help="directory for stores")
    options = parser.parse_args()
    console = Console(width=150)
    with tempfile.TemporaryDirectory(prefix="aiorocket-profile-") as directory:
        for role, path in record(options.scenario, options.count, directory, options.data).items():
            if options.role in (None, role):
                show(role, path, options.count, options.top, console)


if __name__ == "__main__":
    main()
