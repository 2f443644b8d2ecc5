"""The analysing steps over an archive or a live topic, to tables on disk or to a few rows for people.

Two kinds. A step whose rows stand for themselves (``decode``, ``dedup``) adds what is new to its table, a portion of
the input at a time; cut short, it goes on with the portion that was on the way. A step whose rows change with what
comes later (``windows``, ``order``, ``latency``, ``triage``) is computed anew over all of the input and takes the place
of what was there, or ends at once when the input has not changed.

Either way the rows that were read are counted by queue, and have to be as many as there are offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from math import isfinite
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from aiorocket.errors import RocketError, UsageError
from aiorocket.model import Queue
from aiorocket.spark.fetch import DataLossError
from aiorocket.spark.planner import QueueRange, admit
from aiorocket.spark.steps.files.claims import claim
from aiorocket.spark.steps.files.folder import Folder
from aiorocket.spark.steps.files.manifest import Archive
from aiorocket.spark.steps.proof import QueueCount, prove, total
from aiorocket.spark.steps.report import Progress, ProgressCall, StepReport, waiting
from aiorocket.spark.steps.tables.inputs import Input, Rows, open_rows
from aiorocket.spark.steps.tables.table import Table, TableSnapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ("Made", "Output", "Shown", "add", "plain", "shown", "told", "whole")

#: How many rows one portion reads: what an interrupted run has to do again at most.
PORTION = 500_000
PROVED = "count = end - begin for every queue"
UNPROVED = "none: a selection was read, and what it left out cannot be told from what is missing"
KEPT = "all that {step} kept of these offsets"
CUT_SHORT = "none: rows of {step} are counted when all are read, which the next run does"


class Shown(NamedTuple):
    """A table for people: columns and plain values. ``rows_in_all`` may be more than are here."""

    columns: list[str]
    rows: list[list[Any]]
    rows_in_all: int


@dataclass(frozen=True)
class Output:
    """Where tables go (None: nowhere, a few rows are shown) and how many rows to show of each part."""

    path: str | None = None
    format: str = "parquet"
    show: Mapping[str, int] = field(default_factory=dict)


class Made(NamedTuple):
    """What a step makes of rows. ``base`` is what is counted, ``parts`` are derived from it."""

    base: DataFrame
    parts: Mapping[str, DataFrame]


def add(
    step: str,
    spark: SparkSession,
    given: Input,
    output: Output,
    settings: Mapping[str, object],
    make: Callable[[DataFrame, Table | None], Made],
    *,
    splits: bool,
    grows: bool = False,
    evolves: Sequence[str] = (),
    opened: Callable[[Table], object] = lambda table: None,
    max_rows: int = PORTION,
    stop: Callable[[], bool] = lambda: False,
    on_progress: ProgressCall | None = None,
) -> StepReport:
    """Makes the new rows of the input into rows of the parts. With ``splits`` every row goes to exactly one part, and
    RocketError is raised when they don't add up. With ``grows`` a portion is as large as all before it together, when
    that is more than ``max_rows``. The settings that ``evolves`` names may be others than the table's; ``opened`` is
    called with it before anything is read, and sees to it that rows of both go together. ``stop`` is asked before each
    portion; the next run goes on with the rest.

    In the report ``rows_in`` and ``ranges`` are what this run read, ``rows_out`` what it wrote, ``details["parts"]``
    the rows of each part in the whole table. Without a path nothing is kept, and all of the input is one portion.
    """
    if max_rows < 1:
        raise UsageError(f"max_rows={max_rows}: 1 or more")
    began = perf_counter()
    with _table(step, spark, given, output, settings, stop, on_progress, evolves) as table:
        if table:
            opened(table)
        rows = open_rows(spark, given)
        snapshot = before = table.snapshot() if table else TableSnapshot()
        begins, gaps = _begins(rows, snapshot, given)
        ends = {queue: end for queue, (_, end) in rows.ranges.items()}
        goal = sum(ends[queue] - begins[queue] for queue in ends)
        first, missing = {queue: begin - gaps.get(queue, 0) for queue, begin in begins.items()}, dict[Queue, int]()
        done = rows_in = 0
        shows: dict[str, Shown] = {}
        made_rows: dict[str, int] = {}
        _tell(on_progress, step, 0, goal, "reading")
        while not stop():
            most = max(max_rows, snapshot.rows_in if grows else 0)
            until = admit(begins, ends, most if table else max(goal, 1))
            part = [QueueRange(queue, begins[queue], until[queue]) for queue in ends if begins[queue] < until[queue]]
            if not part:
                break
            ranges = {each.queue: (each.begin, each.end) for each in part}
            made = make(rows.read(part), table)
            base = made.base
            # Files are read again for the few columns that are counted: cheaper than to keep whole rows.
            keeps = rows.costly or len(made.parts) > 1
            if keeps:
                base = base.persist()
            try:
                counts = rows.count(part, base)
                lost = _lost(rows, counts, ranges, snapshot.missing)
                for queue in gaps.keys() & ranges.keys():
                    lost[queue] = lost.get(queue, 0) + gaps.pop(queue)
                missing.update({queue: missing.get(queue, 0) + count for queue, count in lost.items()})
                read = sum(each.rows for each in counts.values())
                if until == ends:
                    _agree(step, rows, snapshot.rows_in + read)
                if table:
                    stored = rows.stored(_last(ranges))
                    snapshot = table.write(made.parts, ranges, read, lost, stored, splits=splits)
                    wrote = {name: _of_run(snapshot, name) for name in made.parts}
                else:
                    wrote = {name: df.count() for name, df in made.parts.items()}
                    shows = _shows(made.parts, output.show, wrote)
            finally:
                if keeps:
                    base.unpersist()
            if splits and sum(wrote.values()) != read:  # in a table it was refused
                raise RocketError(f"{step}: {read} rows were read and {wrote} made: they must be as many")
            for name, count in wrote.items():
                made_rows[name] = made_rows.get(name, 0) + count
            rows_in += read
            done += total(ranges.values())
            begins.update(until)
            _tell(on_progress, step, done, goal, f"{rows_in:,} rows")
        if table:
            shows = _kept_shows(spark, table, output.show)
        missing.update(gaps)  # of queues that have nothing new
        done_ranges = {queue: (first[queue], begins[queue]) for queue in ends if begins[queue] > first[queue]}
        details: dict[str, object] = {
            "proof": _proof(rows, all_of_it=begins == ends),
            "wrote": made_rows,
            "parts": {name: snapshot.rows(name) for name in sorted({file.part for file in snapshot.files})},
            "tables": shows,
            "table": output.path,
            "up_to_date": not goal,
            "earlier_rows": before.rows_in,
        }
        return StepReport(
            step, rows_in, sum(made_rows.values()), done_ranges, (), perf_counter() - began, missing, details
        )


def whole(
    step: str,
    spark: SparkSession,
    given: Input,
    output: Output,
    settings: Mapping[str, object],
    make: Callable[[DataFrame], Mapping[str, DataFrame]],
    *,
    few: Callable[[DataFrame], DataFrame] | None = None,
    always: bool = False,
    stop: Callable[[], bool] = lambda: False,
    on_progress: ProgressCall | None = None,
) -> StepReport:
    """Computes the parts over all of the input. When the table was made of the same offsets nothing is computed (unless
    ``always``), and ``details["up_to_date"]`` says so; ``rows_in`` is then what was counted when it was made. ``stop``
    is asked while the claim of a run that died is waited for, and ends that with ClaimStoppedError.

    ``few`` makes of each row what ``make`` gets. A topic's rows are kept in memory, and where that is short on disk; an
    archive's are not, as to read the columns of a query again costs less. Parts that ``make`` keeps are let go."""
    began = perf_counter()
    with _table(step, spark, given, output, settings, stop, on_progress) as table:
        rows = open_rows(spark, given)
        ranges = {queue: each for queue, each in rows.ranges.items() if each[0] < each[1]}
        snapshot = table.snapshot() if table else TableSnapshot()
        goal = total(ranges.values())
        fresh = always or table is None or snapshot.last < 0 or dict(snapshot.ranges) != ranges
        # A topic that was made anew may be as long by now as the one before it.
        fresh = fresh or rows.stored(_last(ranges)) != snapshot.stored
        # Of an earlier step that has written nothing yet nobody knows the columns.
        fresh = fresh and (rows.kept is None or bool(ranges))
        missing: dict[Queue, int] = {}
        shows: dict[str, Shown] = {}
        rows_in = snapshot.rows_in
        if fresh:
            _tell(on_progress, step, 0, goal, "reading")
            part = [QueueRange(queue, *each) for queue, each in ranges.items()]
            df = rows.read(part) if few is None else few(rows.read(part))
            keeps = rows.costly
            if keeps:
                df = df.persist()
            parts: Mapping[str, DataFrame] = {}
            try:
                counts = rows.count(part, df)
                rows_in = sum(each.rows for each in counts.values())
                missing = _lost(rows, counts, ranges, {})
                _agree(step, rows, rows_in)
                _tell(on_progress, step, goal, goal, f"{rows_in:,} rows read; computing")
                parts = make(df)
                if table:
                    snapshot = table.write(parts, ranges, rows_in, missing, rows.stored(_last(ranges)), whole=True)
                else:
                    shows = _shows(parts, output.show)
            finally:
                for each in parts.values():
                    each.unpersist()
                if keeps:
                    df.unpersist()
        else:
            missing = dict(snapshot.missing)
        if table:
            shows = _kept_shows(spark, table, output.show)
        wrote = {name: snapshot.rows(name) for name in sorted({file.part for file in snapshot.files})}
        details: dict[str, object] = {
            "proof": _proof(rows),
            "parts": wrote,
            "tables": shows,
            "table": output.path,
            "up_to_date": not fresh,
        }
        made = sum(wrote.values()) if table else sum(each.rows_in_all for each in shows.values())
        return StepReport(step, rows_in, made, ranges, (), perf_counter() - began, missing, details)


def shown(df: DataFrame, limit: int, rows_in_all: int | None = None) -> Shown:
    """The first ``limit`` rows as plain values."""
    found = df.limit(limit).collect()
    count = rows_in_all if rows_in_all is not None else (len(found) if len(found) < limit else df.count())
    return Shown(list(df.columns), [[plain(value) for value in row] for row in found], count)


def plain(value: Any) -> Any:
    """As ``json.dumps`` takes it: times in ISO form, UTC (Spark gives naive ones of this machine's zone), bytes as text
    or hex."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, (bytes, bytearray)):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return f"0x{bytes(value).hex()}"
    if hasattr(value, "asDict"):
        return {name: plain(each) for name, each in value.asDict().items()}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, float):
        return value if isfinite(value) else str(value)  # JSON has no NaN and no infinity
    if value is None or isinstance(value, (str, int)):
        return value
    return str(value)


@contextmanager
def _table(
    step: str,
    spark: SparkSession,
    given: Input,
    output: Output,
    settings: Mapping[str, object],
    stop: Callable[[], bool],
    on_progress: ProgressCall | None,
    evolves: Sequence[str] = (),
) -> Iterator[Table | None]:
    if output.path is None:
        yield None
        return
    if Table.there(output.path) is None:
        if Archive.there(output.path):
            raise UsageError(f"{output.path} is an archive: the table of {step} needs a folder of its own")
        open_rows(spark, given)  # what cannot be read begins no table
    with claim(Folder(output.path), "table", stop=stop, told=waiting(step, on_progress)) as held:
        table = Table.open(output.path, step, {**given.settings(), **settings}, output.format, evolves)
        table.claim = held
        yield table


def _begins(rows: Rows, snapshot: TableSnapshot, given: Input) -> tuple[dict[Queue, int], dict[Queue, int]]:
    """Where each queue goes on: where the table ends, else where the input begins; and how much is gone in between.
    DataLossError, unless the source was told otherwise, when anything is."""
    begins, gaps = {}, dict[Queue, int]()
    lenient = {name.lower(): value for name, value in given.options.items()}.get("failondataloss") == "false"
    for queue, (begin, end) in rows.ranges.items():
        reached = snapshot.ranges[queue][1] if queue in snapshot.ranges else begin
        if reached > end:
            raise UsageError(
                f"{queue}: the table is made of offsets up to {reached - 1}, and the input ends at {end - 1}: it is "
                "another topic of that name, or another archive. Use another folder"
            )
        if reached < begin and not lenient:
            raise DataLossError(
                f"{queue}: the table is made of offsets up to {reached - 1}, and the input begins at {begin} now: "
                f"{begin - reached} messages are gone; failOnDataLoss=false goes on without them"
            )
        begins[queue] = max(begin, reached)
        if reached < begin:
            gaps[queue] = begin - reached
    last = {queue: at - 1 for queue, (_, at) in snapshot.ranges.items() if at == begins.get(queue)}
    for queue, at_ms in rows.stored({queue: at for queue, at in last.items() if queue in snapshot.stored}).items():
        if at_ms != snapshot.stored[queue]:
            was, now = (np.datetime64(each, "ms") for each in (snapshot.stored[queue], at_ms))
            raise UsageError(
                f"{queue}: offset {last[queue]} is in the table as stored at {was}Z, the broker has one of {now}Z: the "
                "topic was made anew, another broker has this name, or it lost its last messages. Use another folder"
            )
    return begins, gaps


def _lost(
    rows: Rows,
    counts: Mapping[Queue, QueueCount],
    ranges: Mapping[Queue, tuple[int, int]],
    before: Mapping[Queue, int],
) -> dict[Queue, int]:
    """What lacks in ``ranges``. Of an earlier step's rows it is what lacked then, but for what is in ``before``."""
    if rows.kept is None:
        return prove(counts, ranges) if rows.provable else {}
    lost = {queue: rows.kept.missing.get(queue, 0) - before.get(queue, 0) for queue in ranges}
    return {queue: count for queue, count in lost.items() if count > 0}


def _agree(step: str, rows: Rows, read: int) -> None:
    """UsageError unless as many rows were read, in all runs together, as the earlier step's records name."""
    if rows.kept is not None and read != rows.kept.rows:
        raise UsageError(
            f"{step}: {read} rows of {rows.kept.step} were read, and its records name {rows.kept.rows}: they must be "
            "as many. Remove the folder of this step, and the next run makes it anew"
        )


def _proof(rows: Rows, *, all_of_it: bool = True) -> str:
    if rows.kept is not None:
        return (KEPT if all_of_it else CUT_SHORT).format(step=rows.kept.step)
    return PROVED if rows.provable else UNPROVED


def _last(ranges: Mapping[Queue, tuple[int, int]]) -> dict[Queue, int]:
    return {queue: end - 1 for queue, (_, end) in ranges.items()}


def _of_run(snapshot: TableSnapshot, part: str) -> int:
    here = f"{part}/run={snapshot.last:010d}/"
    return sum(file.rows for file in snapshot.files if file.path.startswith(here))


def _shows(
    parts: Mapping[str, DataFrame], limits: Mapping[str, int], counts: Mapping[str, int] | None = None
) -> dict[str, Shown]:
    return {
        name: shown(df, limits[name], None if counts is None else counts[name])
        for name, df in parts.items()
        if limits.get(name)
    }


def _kept_shows(spark: SparkSession, table: Table, limits: Mapping[str, int]) -> dict[str, Shown]:
    snapshot, shows = table.snapshot(), dict[str, Shown]()
    for name, limit in limits.items():
        df = table.rows(spark, name) if limit else None
        if df is not None:
            shows[name] = shown(df, limit, snapshot.rows(name))
    return shows


def _tell(on_progress: ProgressCall | None, step: str, done: int, goal: int, text: str) -> None:
    if on_progress is not None:
        on_progress(Progress(step, done, goal, text))


def told(columns: Iterable[str], rows: Sequence[Sequence[Any]]) -> Shown:
    """Rows that are here already, as a table for people."""
    return Shown(list(columns), [[plain(value) for value in row] for row in rows], len(rows))
