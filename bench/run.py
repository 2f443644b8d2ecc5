"""Probe and product in turn, in one run on one machine: figures, their ratio, and the floors they must reach.

    python -m bench.run                    every scenario (about five minutes; leave the machine alone meanwhile)
    python -m bench.run single drain       some of them
    python -m bench.run --smoke            tiny counts: does every scenario run and do its counts add up (seconds)
    python -m bench.run --check            exit with 1 when a floor is missed
    python -m bench.run --java             Apache's Java client and broker beside it, and the rows that mix them

The product is the pure code and, where the fast lane is installed, that too.

A run is appended to ``bench/results/<date>.json`` with the machine's facts, a smoke run is not.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from functools import partial
from itertools import product
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import ceiling, consumers, scenarios
from bench.machine import facts
from bench.processes import BenchError
from bench.report import Floor, arguments, finish, table_of
from bench.sides import FULL, SMOKE, SWITCHES, Runner, Sizes, lane, products

SCENARIOS = (
    "single", "single-sync", "batch", "batch-sync", "drain", "orderly", "orderly-single", "latency", "latency-sync",
    "durable", "start", "first", "queues", "fan-out", "parked",
)  # fmt: skip
#: With --java only: Java's clients on our broker, ours beside Go's on Apache's.
MIXED = ("java-on-ours", "java-backlog", "java-drains-ours", "ours-on-apache")
#: What Java's clients reach on our broker of what they reach on Apache's: single sends, a drain.
ON_OURS = {"java on pure": (0.9, 1.0), "java on fast": (1.2, 1.3)}
#: Scenarios that Java runs too.
JAVA = ("single", "single-sync", "batch", "batch-sync", "drain", "orderly")

#: Long runs, at most three pairs of each.
DRAINS = ("drain", "orderly", "orderly-single")


def pairs(sizes: Sizes, data: str) -> dict[str, tuple[Runner, Runner, float | None]]:
    """Scenario -> (probe, product, floor of the pure product / probe)."""
    e2e, probe = scenarios.end_to_end, ceiling.measure
    single, batch, warm = sizes.single, sizes.batch, sizes.warm
    return {
        "single": (
            lambda: probe(single, data=data),
            lambda: e2e(single, warm=warm, data=data),
            0.40,
        ),
        "single-sync": (
            lambda: probe(single, sync=True, data=data),
            lambda: e2e(single, flush="sync", warm=warm, data=data),
            0.40,
        ),
        "batch": (
            lambda: probe(batch, batch=32, in_flight=16, data=data),
            lambda: e2e(batch, batch=32, in_flight=16, warm=warm, data=data),
            0.45,
        ),
        "batch-sync": (
            lambda: probe(batch, batch=32, in_flight=16, sync=True, data=data),
            lambda: e2e(batch, batch=32, in_flight=16, flush="sync", warm=warm, data=data),
            None,
        ),
        "drain": (
            lambda: probe(single, data=data),
            lambda: scenarios.drain(sizes.drain, data=data),
            2.5,
        ),
        # Where the probe makes 120,000: 300,000 with batches of 32, 150,000 with one message a call.
        "orderly": (
            lambda: probe(single, data=data),
            lambda: scenarios.drain(sizes.drain, queues=8, orderly=32, data=data),
            2.5,
        ),
        "orderly-single": (
            lambda: probe(single, data=data),
            lambda: scenarios.drain(sizes.drain, queues=8, orderly=1, data=data),
            1.25,
        ),
    }


def interleaved(name: str, sides: dict[str, Runner], repeat: int, console: Console) -> dict[str, Any]:
    """Each side in turn, and again; medians, and the load seen at each round, for others may use the machine. The
    first side is what the others are divided by."""
    runs: list[dict[str, Any]] = []
    for number in range(repeat):
        console.print(f"{name} {number + 1}/{repeat}:", end="", highlight=False)
        run: dict[str, Any] = {"load": round(os.getloadavg()[0], 2)}
        for side, runner in sides.items():
            run[side] = runner()
            console.print(f" {side} {run[side]['rate']:,}/s", end="", highlight=False)
        console.print(f" (load {run['load']:.1f})", highlight=False)
        runs.append(run)
    rates = {side: median(run[side]["rate"] for run in runs) for side in sides}
    first = next(iter(sides))
    return {
        "rates": rates,
        "ratios": {side: round(rate / rates[first], 3) for side, rate in rates.items() if side != first},
        "sends": {
            side: median(run[side]["acknowledged_rate"] for run in runs)
            for side in sides
            if "acknowledged_rate" in runs[0][side]
        },
        "behind": {side: median(run[side]["behind"] for run in runs) for side in sides if "behind" in runs[0][side]},
        "cpu_us": {side: middle(runs, side) for side in sides},
        "runs": runs,
    }


def middle(runs: list[dict[str, Any]], side: str) -> dict[str, float]:
    return {name: median(run[side]["cpu_us"][name] for run in runs) for name in runs[0][side]["cpu_us"]}


def floors(results: dict[str, Any], ratios: dict[str, float | None]) -> list[Floor]:
    found = []
    for name, result in results.items():
        limit = ratios.get(name)
        if limit is not None:
            found.append(Floor(f"{name}: product / probe", result["ratios"]["pure"], limit, True, "x"))
    for side, (of_sends, of_drain) in ON_OURS.items():
        if side in (sends := results.get("java-on-ours", {}).get("sends", {})):
            found.append(Floor(f"{side}: sends, of those on Apache", sends[side] / sends["java"], of_sends, True, "x"))
        if side in (ratios_of := results.get("java-drains-ours", {}).get("ratios", {})):
            found.append(Floor(f"{side}: drain, of that on Apache", ratios_of[side], of_drain, True, "x"))
        if side in (behind := results.get("java-backlog", {}).get("behind", {})):
            found.append(Floor(f"{side}: its listener is behind", behind[side], 5_000, False, "msg"))
    if "ours-on-apache" in results:
        result = results["ours-on-apache"]
        found.append(Floor("ours-on-apache: single sends", result["rates"]["pure"], 25_000, True, "msg/s"))
        found.append(Floor("ours-on-apache: of Go's", result["ratios"]["pure"], 1.0, True, "x"))
    if "single" in results:
        found.append(Floor("single: the probe itself", results["single"]["rates"]["probe"], 100_000, True, "msg/s"))
    if "latency" in results:
        listener = results["latency"]["listener_ms"]
        found.append(Floor("latency: send to listener p50", listener["p50"], 0.5, False, "ms"))
        found.append(Floor("latency: send to listener p99", listener["p99"], 1.5, False, "ms"))
    if "start" in results:
        found.append(Floor("start: broker answers", results["start"]["ready_ms"], 200, False, "ms"))
        found.append(Floor("start: idle memory", results["start"]["rss_mib"], 60, False, "MiB"))
    if "first" in results:
        found.append(Floor("first: the slowest fresh start", results["first"]["worst_ms"], 100, False, "ms"))
    if "queues" in results:
        found.append(Floor("queues: cost, the worst of them / one", results["queues"]["worst"], 1.3, False, "x"))
    if "fan-out" in results:
        found.append(Floor("fan-out: cost of a delivery, of one group's", results["fan-out"]["worst"], 1.3, False, "x"))
    for name in ("durable", "durable-1024", "durable-fast", "durable-fast-1024"):
        if name in results:
            kept = results[name]["ratios"]["sync"]
            found.append(Floor(f"{name}: single sends, of those that are not", kept, 0.8, True, "x"))
    if "parked" in results:
        parked = results["parked"]
        found.append(Floor("parked: growth of the broker", parked["growth_mib"], 114.4, False, "MiB"))  # 120 MB
        found.append(Floor("parked: one message to one pull p99", parked["wake_ms"]["p99"], 1.0, False, "ms"))
        found.append(Floor("parked: waiting, of a core", parked["idle_cores"], 0.03, False, "cores"))
    return found


def show(results: dict[str, Any], reached: list[Floor], console: Console) -> None:
    title = "msg/s end to end and of sends alone, medians; CPU µs per message: producer + broker + consumer"
    rates = Table(title=title, title_justify="left")
    for column in ("scenario", "side", "msg/s", "sends/s", "of the first", "of Java", "CPU"):
        rates.add_column(column, justify="left" if column in ("scenario", "side") else "right")
    for name, result in results.items():
        for side, rate in result.get("rates", {}).items():
            java = result["rates"].get("java")
            ratio = result["ratios"].get(side)
            cpu = " + ".join(f"{each:.1f}" for each in result["cpu_us"][side].values())
            of = "" if ratio is None else f"{ratio:.2f}"
            sends = f"{result['sends'][side]:,.0f}" if side in result["sends"] else ""
            rates.add_row(name, side, f"{rate:,.0f}", sends, of, f"{rate / java:.2f}" if java else "", cpu)
    if rates.row_count:
        console.print(rates)
    for name, result in results.items():
        if behind := result.get("behind"):
            figures = ", ".join(f"{side} {count:,.0f}" for side, count in behind.items())
            console.print(f"{name}: messages the listener is behind of sends that go on: {figures}", highlight=False)
        elif "listener_ms" in result:
            figures = ", ".join(f"{key} {value} ms" for key, value in result["listener_ms"].items())
            console.print(f"{name}: send to listener {figures}; broker {result['broker_cores']} cores", highlight=False)
        elif "worst_ms" in result:
            text = f"{result['starts']} fresh consumers: first message after {result['first_ms']} ms (median)"
            console.print(f"{name}: {text}, {result['worst_ms']} ms (worst)", highlight=False)
        elif "cpu_us_by_queues" in result:
            costs = ", ".join(f"{number}: {cost}" for number, cost in result["cpu_us_by_queues"].items())
            console.print(f"{name}: CPU µs per message by number of queues: {costs}", highlight=False)
        elif "cpu_us_by_groups" in result:
            costs = ", ".join(f"{number}: {cost}" for number, cost in result["cpu_us_by_groups"].items())
            console.print(f"{name}: CPU µs per delivery by number of groups: {costs}", highlight=False)
        elif "growth_mib" in result:
            waiting = f"+{result['growth_mib']} MiB, {result['idle_cores']} cores"
            text = f"{result['connections']} pulls parked: {waiting}"
            console.print(f"{name}: {text}, a message wakes one in {result['wake_ms']} ms", highlight=False)
        elif "ready_ms" in result:
            console.print(
                f"{name}: broker answers after {result['ready_ms']} ms; idle memory broker {result['rss_mib']} MiB, "
                f"name server {result['nameserver_rss_mib']} MiB",
                highlight=False,
            )
    console.print(table_of(reached))


def main() -> None:
    assert __doc__ is not None
    options = arguments(__doc__, SCENARIOS, repeat=5, repeated="rounds of all sides (5; drain at most 3)", java=MIXED)
    console = Console()
    sizes = SMOKE if options.smoke else FULL
    machine = facts(options.data)
    both = pairs(sizes, options.data)
    results: dict[str, Any] = {}
    try:
        for name in options.scenarios:
            if name in both or name in MIXED:
                repeat = 1 if options.smoke else min(options.repeat, 3) if name in DRAINS else options.repeat
                with ExitStack() as stack:
                    sides: dict[str, Runner] = {}
                    if name in both:
                        sides = {"probe": both[name][0], **products(both[name][1])}
                    if options.java and name in (*JAVA, *MIXED):
                        from bench import beside  # needs what tests/interop has

                        sides |= beside.sides(name, sizes, options.data, stack)
                    results[name] = interleaved(name, sides, repeat, console)
            elif name == "durable":
                send = partial(scenarios.end_to_end, sizes.single, warm=sizes.warm, data=options.data)
                for (side, switch), window in product(SWITCHES.items(), (256, 1024)):
                    each = partial(send, in_flight=window)
                    flushes = {flush: partial(lane, switch, partial(each, flush=flush)) for flush in ("async", "sync")}
                    of = name + ("" if side == "pure" else f"-{side}") + ("" if window == 256 else f"-{window}")
                    results[of] = interleaved(of, flushes, 1 if options.smoke else options.repeat, console)
            elif name == "first":
                results[name] = consumers.first(sizes.firsts, data=options.data)
            elif name == "queues":
                rounds = 1 if options.smoke else 3
                results[name] = consumers.queues(sizes.queued, sizes.queues, rounds=rounds, data=options.data)
            elif name == "fan-out":
                rounds = 1 if options.smoke else 3
                results[name] = consumers.fan_out(sizes.drain, sizes.groups, rounds=rounds, data=options.data)
            elif name == "parked":
                results[name] = consumers.parked(sizes.parked, wakes=sizes.wakes, idle=sizes.idle, data=options.data)
            elif name == "start":
                results[name] = scenarios.start(sizes.starts, data=options.data)
            else:
                flush = "sync" if name == "latency-sync" else "async"
                # Three busy processes on two cores: where the kernel puts them decides over milliseconds, for a whole
                # run. So the middle one of three counts.
                latency = partial(scenarios.latency, seconds=sizes.seconds, flush=flush, data=options.data)
                for side, runner in products(latency).items():
                    runs = [runner() for _ in range(1 if options.smoke else 3)]
                    runs.sort(key=lambda run: run["listener_ms"]["p99"])
                    each = [run["listener_ms"]["p99"] for run in runs]
                    of = name if side == "pure" else f"{name}-{side}"
                    results[of] = {**runs[len(runs) // 2], "p99_of_each_ms": each}
    except BenchError as error:
        sys.exit(f"bench: {error}")
    if options.smoke:
        console.print(f"smoke: {', '.join(options.scenarios)} ran and every count added up")
        return
    reached = floors(results, {name: pair[2] for name, pair in both.items()})
    show(results, reached, console)
    finish(options, machine, results, reached, console)


if __name__ == "__main__":
    main()
