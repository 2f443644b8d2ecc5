"""``python -m aiorocket.testing``: many seeds of a chaos run, and one command for each that fails."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from aiorocket.runtime.clock import WallClock
from aiorocket.testing.chaos_run import SCENARIOS, ChaosReport, chaos, size_for
from aiorocket.testing.checkers import HistoryError
from aiorocket.testing.coverage import Coverage
from aiorocket.testing.features import features
from aiorocket.testing.history import History
from aiorocket.testing.power_cuts import power_cuts
from aiorocket.testing.shrinking import shrink
from aiorocket.testing.store_days import store_days
from aiorocket.testing.swarm import FAULTS, swarm

__all__ = ("main",)

# Runs of their own kinds, beside the scenarios of ``chaos``.
_SWARM, _POWER_CUTS, _STORE_DAYS, _FEATURES = "swarm", "power-cuts", "store-days", "features"
#: Power cuts of one seed.
_CUTS = 50


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when every seed held, 1 when one did not, 2 for bad options, 130 when interrupted."""
    options = _parser().parse_args(arguments)
    if unknown := set(options.only.split()) - FAULTS.keys():
        print(f"--only {' '.join(sorted(unknown))}: of {' '.join(sorted(FAULTS))}", file=sys.stderr)
        return 2
    if options.seeds < 1 or not options.hours > 0:
        print("--seeds must be at least 1 and --hours above 0", file=sys.stderr)
        return 2
    # Thousands of planned faults are no news; a failing seed shows what matters.
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        return _run(options)
    finally:
        logging.disable(before)


def _run(options: argparse.Namespace) -> int:
    scenarios = [*SCENARIOS] if options.scenario == "all" else [options.scenario]
    seeds = [options.seed] if options.seed is not None else range(options.first, options.first + options.seeds)
    clock = WallClock()
    began = clock.wall_ms()
    held = failed = 0
    hours = 0.0
    coverage = Coverage(FAULTS)
    try:
        for seed in seeds:
            for scenario in scenarios:
                started = clock.wall_ms()
                try:
                    said, history = _once(seed, scenario, options, coverage)
                except Exception as error:  # noqa: BLE001 - whatever ends a run is what we look for
                    failed += 1
                    _show_failure(seed, scenario, options, error)
                    if isinstance(error, HistoryError):
                        _keep(options, error.history)
                    if options.fail_fast:
                        break
                    continue
                held += 1
                hours += options.hours
                print(f"seed {seed} {scenario}: held; {said}, {(clock.wall_ms() - started) / 1000:.1f} s", flush=True)
                _keep(options, history)
            if failed and options.fail_fast:
                break
    except KeyboardInterrupt:
        print(f"interrupted: {held} runs held, {failed} failed so far", file=sys.stderr)
        return 130
    if coverage.runs > 1:
        print(coverage.text())
    elapsed = max(0.001, (clock.wall_ms() - began) / 1000)
    print(
        f"{held} runs held, {failed} failed; {hours:g} cluster-hours in {elapsed:.1f} s "
        f"({hours * 3600 / elapsed:,.0f} times faster than time)"
    )
    return 1 if failed else 0


def _once(seed: int, scenario: str, options: argparse.Namespace, coverage: Coverage) -> tuple[str, History | None]:
    """One run: what it was made of, in words, and its history."""
    if scenario == _POWER_CUTS:
        return f"{_CUTS} power cuts, {power_cuts(seed, _CUTS)} acknowledged", None
    if scenario == _STORE_DAYS:
        return f"{store_days(seed)} acknowledged", None
    if scenario == _FEATURES:
        return f"{features(seed)} messages", None
    if scenario == _SWARM:
        found = swarm(seed, only=options.only, seconds=options.seconds, members=options.members)
        coverage.add(found.history, found.faults)
        faults = ", ".join(f"{count} {name}" for name, count in sorted(found.faults.items()))
        return f"{found.acknowledged} acknowledged, {found.delivered} deliveries, {faults}", found.history
    report = chaos(seed, hours=options.hours, scenario=scenario, **size_for(seed))
    return _text(report), report.history


def _keep(options: argparse.Namespace, history: History | None) -> None:
    if history is not None and options.history is not None and options.seed is not None:
        with open(options.history, "w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in history.lines())


def replay_command(seed: int, scenario: str, hours: float) -> str:
    """What to type to see a seed again."""
    return f"python -m aiorocket.testing --scenario {scenario} --hours {hours:g} --seed {seed}"


def _text(report: ChaosReport) -> str:
    return (
        f"{report.sent} sent, {report.acknowledged} acknowledged, {report.delivered} deliveries, "
        f"{report.dead} dead letters, {report.faults} faults"
    )


def _show_failure(seed: int, scenario: str, options: argparse.Namespace, error: Exception) -> None:
    print(f"seed {seed} {scenario}: FAILED", flush=True)
    if scenario == _SWARM and not (options.only or options.seconds or options.members):
        print(f"  replay: {shrink(seed, error).command}")
    else:
        print(f"  replay: {replay_command(seed, scenario, options.hours)}")
    kind = "" if isinstance(error, HistoryError) else f"{type(error).__name__}: "
    lines = [*f"{kind}{error}".splitlines(), *getattr(error, "__notes__", ())]
    if error.__cause__ is not None:
        lines.append(f"caused by {type(error.__cause__).__name__}: {error.__cause__}")
    for line in lines:
        print(f"  {line}")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m aiorocket.testing",
        description="Run simulated clusters under seeded faults and check their histories.",
    )
    parser.add_argument(
        "--seeds", type=int, default=50, help="how many seeds (default: 50); every tenth is a larger cluster"
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--seed", type=int, help="only this seed")
    parser.add_argument("--hours", type=float, default=1.0, help="simulated hours of each run (default: 1)")
    parser.add_argument(
        "--scenario",
        choices=(*SCENARIOS, "all", _SWARM, _FEATURES, _POWER_CUTS, _STORE_DAYS),
        default="mixed",
        help="which faults (default: mixed); power-cuts, store-days: a store alone",
    )
    small = "of swarm, instead of what the seed draws, as a failure prints it"
    parser.add_argument("--only", default="", metavar="FAULTS", help=f"kinds of faults {small}")
    parser.add_argument("--seconds", type=float, default=0.0, help=f"how long faults go on {small}")
    parser.add_argument("--members", type=int, default=0, help=f"consumers {small}")
    parser.add_argument("--history", metavar="FILE", help="with --seed: write the history as JSON lines")
    parser.add_argument("--fail-fast", action="store_true", help="stop at the first seed that fails")
    return parser


if __name__ == "__main__":
    sys.exit(main())
