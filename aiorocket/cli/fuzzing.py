"""What ``aiorocket fuzz`` does: the runs, what is said meanwhile, the report."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import click

from aiorocket.cli.asked import SCHEMA
from aiorocket.cli.options import BadInputError
from aiorocket.cli.running import run as run_loop
from aiorocket.cli.show import table
from aiorocket.cli.stopping import until_stopped
from aiorocket.cli.terminal import INTERRUPTED
from aiorocket.errors import ConfigError
from aiorocket.fuzz import Compared, Finding, Fuzzing, Report, Rule, Sample, compare, fuzz, replay, role_of
from aiorocket.fuzz.wire import connect
from aiorocket.runtime.clock import WallClock
from aiorocket_protocol import JSON, MSGPACK, ROCKETMQ

__all__ = ("run_compared", "run_fuzz", "run_replay")

#: Frames between two lines of progress.
_EVERY = 5000


def run_fuzz(
    server: str, *, as_json: bool, out: str, role: str | None, seconds: float | None, json_only: bool, **options: Any
) -> int:
    """The exit code."""
    for name in ("against", "known", "state"):
        del options[name]

    async def work() -> Report:
        wanted = Fuzzing(
            server, role or await role_of(server, options["patience"]), WallClock().wall_ms(),
            seconds=float("inf") if seconds is None else seconds,
            kinds=(JSON,) if json_only else (JSON, ROCKETMQ, MSGPACK), **options,
        )  # fmt: skip
        if not as_json:
            click.echo(f"{wanted.role} {server}, seed {wanted.seed}: {wanted.frames:,} requests", err=True)
        return await fuzz(wanted, _progress())

    async def stopped() -> Report | None:
        task = await until_stopped(work())
        with _reached(server):
            return None if task.cancelled() else task.result()  # the former before it has begun

    report = run_loop(stopped())
    if report is None:
        return INTERRUPTED
    names = _write(report.found, Path(out))
    _tell(report, server, options["seed"], names, as_json)
    return 1 if report.found else INTERRUPTED if report.interrupted else 0


@contextmanager
def _reached(*servers: str) -> Iterator[None]:
    """An error of the network says of whom, and what to do."""
    try:
        yield
    except (ConnectionError, TimeoutError) as error:
        where, why = " or ".join(servers), error.strerror or str(error) or "time is up"
        raise click.ClickException(f"{where}: {why}. Does one run there (`aiorocket standalone` starts one)?") from None


def _progress() -> Any:
    shown = 0

    def progress(frames: int, found: int) -> None:
        nonlocal shown
        if frames - shown >= _EVERY and sys.stderr.isatty():
            shown = frames
            click.echo(f"\r{frames:,} requests, {found} findings", err=True, nl=False)

    return progress


def _write(found: Sequence[Sample], out: Path) -> list[str]:
    """A file for each; those without requests (memory, a neighbour) have none."""
    names = []
    for number, sample in enumerate(found, 1):
        name = ""
        if sample.frames:
            out.mkdir(parents=True, exist_ok=True)
            path = out / f"fuzz-{sample.finding.kind}-{sample.finding.code}-{sample.seed}-{number}.json"
            path.write_text(sample.to_text(), encoding="utf-8")
            name = str(path)
        names.append(name)
    return names


def _tell(report: Report, server: str, seed: int, names: Sequence[str], as_json: bool) -> None:
    rows = [{**sample.finding._asdict(), "requests": len(sample.frames), "file": name}
            for sample, name in zip(report.found, names, strict=True)]  # fmt: skip
    coverage = report.coverage.summary()
    if as_json:
        document = {
            "schema": SCHEMA, "kind": "fuzz", "server": server, "seed": seed, "rows": rows, "missing": [],
            "frames": report.frames, "answers": report.answers, "connections": report.connections,
            "seconds": round(report.seconds, 3), "memory_mib": report.memory, "coverage": coverage,
            "neighbour": {"rounds": report.rounds, "slowest_s": round(report.slowest, 4)}, "stalls": report.stalls,
            "interrupted": report.interrupted,
        }  # fmt: skip
        click.echo(json.dumps(document, ensure_ascii=False))
        return
    if sys.stderr.isatty():
        click.echo("", err=True)
    rate = report.frames / max(report.seconds, 0.001)
    click.echo(f"{report.frames:,} requests on {report.connections:,} connections, {report.answers:,} answers, "
               f"{report.seconds:.1f} s ({rate:,.0f}/s)")  # fmt: skip
    (pairs, all_pairs), (fields, all_fields) = coverage["code_and_codec"], coverage["code_codec_and_field"]
    click.echo(
        f"said: {pairs} of {all_pairs} codes x codecs, {fields} of {all_fields} of these x fields, odd and broken"
    )
    click.echo(f"healthy client beside: {report.rounds:,} rounds, the slowest took {report.slowest * 1000:.0f} ms")
    if report.memory is not None:
        click.echo(f"memory: {report.memory[0]:.0f} MiB at a tenth, {report.memory[1]:.0f} MiB at the end")
    if report.stalls:
        click.echo(
            f"{len(report.stalls)} times the server, or its machine, stood still ({report.stalls[0]}), "
            "and not so when the same was sent again"
        )
    for sample, name in zip(report.found, names, strict=True):
        click.echo(f"FOUND {sample.finding}")
        if name:
            click.echo(f"      {len(sample.frames)} requests: aiorocket fuzz replay {name}")
    if not report.found:
        click.echo("nothing found")


def run_replay(sample: Sample, server: str, patience: float) -> int:
    """The exit code. A server that is not there is an error: nothing was tried."""

    async def work() -> list[Finding]:
        with _reached(server):
            (await connect(server, patience)).close()
        return await replay(server, sample.frames, patience)

    found = run_loop(work())
    for finding in found:
        click.echo(str(finding))
    again = any((each.kind, each.code) == (sample.finding.kind, sample.finding.code) for each in found)
    click.echo(f"{'still so' if again else 'not so any more'}: {sample.finding}")
    return 1 if again else 0


def run_compared(
    server: str,
    *,
    against: str,
    known: TextIO | None,
    state: str | None,
    connections: int,
    frames: int,
    seconds: float | None,
    seed: int,
    codes: Sequence[int],
    role: str | None,
    patience: float,
    as_json: bool,
    **_others: Any,
) -> int:
    """The exit code: 1 when something differs that no rule knows."""
    try:
        rules = Rule.read(known.read()) if known is not None else []
    except (ConfigError, UnicodeDecodeError) as error:
        raise BadInputError(f"{getattr(known, 'name', '')}: {error}") from None

    shown = _progress()
    kept = None if state is None else Path(state)

    def keep(compared: Compared) -> None:
        shown(compared.requests, sum(compared.unknown.values()))
        if kept is not None:
            new = kept.with_name(kept.name + ".new")
            new.write_text(compared.to_text(), encoding="utf-8")
            new.replace(kept)

    async def work() -> Compared:
        try:
            return await compare(
                (server, against), role or await role_of(server, patience), now=WallClock().wall_ms(), seed=seed,
                requests=frames, seconds=float("inf") if seconds is None else seconds, codes=codes, rules=rules,
                patience=patience, connections=connections,
                before=kept.read_text(encoding="utf-8") if kept is not None and kept.exists() else None,
                loop_time=asyncio.get_running_loop().time, progress=keep,
            )  # fmt: skip
        except (ConfigError, UnicodeDecodeError) as error:
            raise BadInputError(f"{state}: {error}") from None

    async def stopped() -> Compared | None:
        task = await until_stopped(work())
        with _reached(server, against):
            return None if task.cancelled() else task.result()

    compared = run_loop(stopped())
    if compared is None:
        return INTERRUPTED
    rows = [{"case": case, "what": what, "count": count, "known": known, "example": compared.examples[case, what]}
            for known, tally in ((False, compared.unknown), (True, compared.known))
            for (case, what), count in tally.most_common()]  # fmt: skip
    if as_json:
        click.echo(json.dumps({
            "schema": SCHEMA, "kind": "fuzz-compared", "server": server, "against": against, "seed": seed, "rows": rows,
            "missing": [], "frames": compared.requests, "seconds": round(compared.seconds, 3),
            "coverage": compared.coverage.summary(),
        }, ensure_ascii=False))  # fmt: skip
    else:
        _tell_compared(compared, server, against)
    return 1 if compared.unknown else 0


def _tell_compared(compared: Compared, server: str, against: str) -> None:
    """Cases that differ alike are one row."""
    alike: dict[str, Counter[str]] = {}
    for (case, what), count in compared.unknown.items():
        alike.setdefault(f"{case.split()[0]}: {what}", Counter())[case] += count
    rows = [(of, str(sum(cases.values())), cases.most_common(1)[0][0]) for of, cases in sorted(alike.items())]
    title = f"{len(rows)} differences that no rule knows, of {server} and {against}"
    table(title, ["code: what", "times", "most often"], rows, pretty=False)
    click.echo(f"{compared.requests:,} requests, {sum(compared.known.values()):,} differences on purpose")
