"""A pipeline that runs for good: round after round a topic is archived, what is new is decoded, deduplicated and
counted in windows, and what grew is compacted. Every step goes on where its own record ends, so a round that failed,
or a process that was killed, is made up for by the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from aiorocket.errors import ConfigError, UsageError
from aiorocket.runtime.clock import WallClock
from aiorocket.spark import bridge
from aiorocket.spark.columns import selected_columns, spark_schema
from aiorocket.spark.failures import explain, raised
from aiorocket.spark.fetch import DataLossError
from aiorocket.spark.options import SourceOptions
from aiorocket.spark.steps.archives.archive import archive
from aiorocket.spark.steps.archives.compact import compact
from aiorocket.spark.steps.behind import behind
from aiorocket.spark.steps.files.claims import ClaimLostError, ClaimStoppedError
from aiorocket.spark.steps.files.manifest import ArchiveConflictError
from aiorocket.spark.steps.functions.decode import FORMATS, decode
from aiorocket.spark.steps.functions.dedup import dedup
from aiorocket.spark.steps.functions.typed import imported
from aiorocket.spark.steps.functions.windows import check_windows, windows
from aiorocket.spark.steps.report import Progress, StepReport
from aiorocket.spark.steps.tables.analyses import run_decode, run_dedup, run_windows
from aiorocket.spark.steps.tables.inputs import Input
from aiorocket.spark.steps.tables.run import PORTION, Output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ("ARCHIVE", "Continuous", "Health", "Plan")

#: Folders below ``Plan.path``; a step's table has the step's name.
ARCHIVE = "archive"
#: Seconds to wait behind a round that failed, doubled with each that follows it, up to the second.
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0
#: How long a signal may go unseen in a pause, in seconds.
_LOOK = 0.25
#: What a further try does not mend, but for a claim that was lost while the store was away or the machine slept.
_FINAL = (UsageError, ConfigError, DataLossError, ArchiveConflictError)


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``pause`` is how long, in seconds, the step is left out behind a run of it."""

    pause: float = 0.0


class Compact(_Table, frozen=True, kw_only=True):
    """Of the archive and the tables of decode and dedup, to which each round adds files: ``compact`` with a target of
    ``target_mb`` MiB. Replaced files stay ``keep`` seconds, for readers that began before (of a table: not in plain
    Parquet)."""

    pause: float = 3600.0
    target_mb: int = 256
    keep: float = 3600.0


class Decode(_Table, frozen=True, kw_only=True):
    """Arguments of ``decode``; ``schema_file`` (beside the pipeline's file) in place of ``schema``."""

    reads: Literal["archive", "dedup"] = msgspec.field(default="archive", name="from")
    using: str = "json"
    schema: str | None = None
    schema_file: str | None = None
    required: tuple[str, ...] = ()
    header_bytes: int = 0
    message: str | None = None
    registry: str | None = None


class Dedup(_Table, frozen=True, kw_only=True):
    """Arguments of ``dedup``."""

    reads: Literal["archive", "decode"] = msgspec.field(default="archive", name="from")
    by: Literal["id", "key", "spark_txn"] = "id"
    key: str | None = None


class Windows(_Table, frozen=True, kw_only=True):
    """Arguments of ``windows``. They are made anew over all that it reads: give a long ``pause``."""

    reads: Literal["archive", "decode", "dedup"] = msgspec.field(default="archive", name="from")
    every: str = "1 minute"
    slide: str | None = None
    by: tuple[str, ...] = ("topic",)
    time: str = "bornTimestamp"
    watermark: str | None = None
    key: str | None = None


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The file. ``topic`` goes to ``path``/archive; a step that has a table in the file goes to ``path`` and its name,
    and reads the archive, or with ``from`` what the step of that name kept.
    ``pause`` seconds lie between rounds, ``attempts`` rounds may fail in a row (0: any number), ``stalled`` seconds
    without a round that ended well are unhealthy. ``options`` are the source's, ``spark`` the session's."""

    topic: str
    path: str
    nameserver: str | None = None
    format: Literal["parquet", "delta", "iceberg"] = "parquet"
    pause: float = 10.0
    max_rows: int = PORTION
    attempts: int = 0
    stalled: float = 900.0
    master: str = "local[*]"
    options: dict[str, str] = {}
    spark: dict[str, str] = {}
    compact: Compact | None = None
    decode: Decode | None = None
    dedup: Dedup | None = None
    windows: Windows | None = None

    @classmethod
    def read(cls, path: str) -> Plan:
        """ConfigError for what is no file, no TOML, or no pipeline, with the name of what is wrong."""
        try:
            found = msgspec.toml.decode(Path(path).read_bytes())
            _check_names(found, cls, "")
            plan = msgspec.convert(found, cls)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
        if not plan.path:
            raise ConfigError(f"{path}: path = '': the folder below which archive and tables are to be")
        for name, least in (("pause", 0.0), ("max_rows", 1), ("attempts", 0), ("stalled", 1.0)):
            if not getattr(plan, name) >= least:
                raise ConfigError(f"{path}: {name} = {getattr(plan, name)}: {least:g} or more")
        if (kept := plan.compact) is not None and not (kept.target_mb >= 1 and kept.keep >= 0):
            raise ConfigError(
                f"{path}: compact: target_mb = {kept.target_mb}: 1 or more; keep = {kept.keep:g}: 0 or more"
            )
        step = plan.decode
        if step is not None and ":" not in step.using and step.using not in FORMATS:
            raise ConfigError(
                f"{path}: decode.using = {step.using!r} is none of {', '.join(FORMATS)}, and no module:type either"
            )
        try:
            plan.sources()
        except ValueError as error:
            raise ConfigError(f"{path}: {error}") from None
        if step is not None and step.schema_file is not None:
            if step.schema is not None:
                raise ConfigError(f"{path}: decode: schema and schema_file: give one")
            beside = Path(path).parent / step.schema_file
            if not beside.is_file():
                raise ConfigError(f"{path}: decode.schema_file: there is no file {beside}")
            plan = msgspec.structs.replace(plan, decode=msgspec.structs.replace(step, schema_file=str(beside)))
        return plan

    def sources(self) -> dict[str, str]:
        """What each step of the file reads, in the order in which they run: a step behind the one it reads. ValueError
        where there is no such step, or where two read one another."""
        steps = {name: step for name in ("decode", "dedup", "windows") if (step := getattr(self, name)) is not None}
        found: dict[str, str] = {}
        while left := {name: step.reads for name, step in steps.items() if name not in found}:
            ready = [name for name, reads in left.items() if reads == ARCHIVE or reads in found]
            for name, reads in left.items():
                if reads != ARCHIVE and reads not in steps:
                    raise ValueError(f"{name}.from = {reads!r}: there is no [{reads}] in the file")
            if not ready:
                circle = [name for name, reads in left.items() if left.get(reads) == name]
                raise ValueError(f"{' and '.join(circle)} read one another: one of them needs from = {ARCHIVE!r}")
            found[ready[0]] = left[ready[0]]
        return found

    def check(self, name_server: str, options: Mapping[str, str] | None = None) -> None:
        """UsageError for options that the source would refuse, for lengths of time that are none, for names of no
        column and for a type that cannot be imported; ``options`` are those of ``Continuous``."""
        text = {**(options or {}), **self.options, "nameServer": name_server, "topic": self.topic}
        source = SourceOptions.parse(text)
        source.for_stream()
        if source.max_offsets_per_trigger is not None:
            raise UsageError(f"options.maxOffsetsPerTrigger: max_rows = {self.max_rows} says how large a batch may be")
        if self.decode is not None and ":" in self.decode.using:
            imported(self.decode.using)
        if self.windows is not None:
            columns = selected_columns(source)
            if self._decoded("windows"):
                columns = (*columns, "value")
            try:
                check_windows(columns, **_arguments(self.windows))
            except UsageError as error:
                raise UsageError(f"windows.{error}") from None

    def check_steps(self, spark: SparkSession, options: Mapping[str, str] | None = None) -> None:
        """What only Spark can tell: each step is made of no rows. UsageError, or Spark's own, for a schema, an
        expression or a column that cannot be."""
        text = {**(options or {}), **self.options, "nameServer": "none:1", "topic": self.topic}
        made = {ARCHIVE: spark.createDataFrame([], spark_schema(SourceOptions.parse(text)))}
        for name, reads in self.sources().items():
            rows = made[reads]
            if name == "decode" and self.decode is not None:
                made[name] = decode(rows, **_decoding(self.decode)).good
            elif name == "dedup" and self.dedup is not None:
                made[name] = dedup(rows, **_arguments(self.dedup))
            elif self.windows is not None:
                windows(rows, **_arguments(self.windows))

    def _decoded(self, name: str) -> bool:
        """Whether the rows that this step reads have been through decode."""
        sources = self.sources()
        while name in sources:
            name = sources[name]
            if name == "decode":
                return True
        return False


@dataclass
class Health:
    """What a round leaves for those who watch. Times are the wall clock's, in milliseconds; counts are of this process.
    ``problem`` is why the last round failed, ``lost`` how many rows were gone before they were archived."""

    began_ms: int
    rounds: int = 0
    failures: int = 0
    good_ms: int | None = None
    problem: str | None = "no round has ended yet"
    lag: int | None = None
    rows: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    quarantined: int = 0


#: Called behind each step that ran.
Told = Callable[[StepReport], object]


class Continuous:
    """``run`` until ``stop`` says so. ``name_server`` is asked where the plan names none, ``options`` are used under
    those of the plan; ``told`` gets the report of each step, ``say`` a line for each round that fails and for each
    claim of a run that died, which a step waits for."""

    def __init__(
        self,
        spark: SparkSession,
        plan: Plan,
        name_server: str,
        options: Mapping[str, str] | None = None,
        *,
        stop: Callable[[], bool],
        told: Told = lambda report: None,
        say: Callable[[str], object] = lambda text: None,
    ) -> None:
        self.health = Health(WallClock().wall_ms())
        self._spark = spark
        self._plan = plan
        self._name_server = plan.nameserver or name_server
        self._options = {**(options or {}), **plan.options}
        self._stop = stop
        self._told = told
        self._say = say
        self._ended: dict[str, float] = {}

    def run(self, *, once: bool = False) -> None:
        """What no further round would mend is raised: UsageError, DataLossError, ArchiveConflictError, a session that
        has ended, and the failure behind ``attempts`` of them; with ``once`` the first."""
        failures = 0
        while not self._stop():
            try:
                self.round()
                failures = 0
                if once:
                    return
                wait = self._plan.pause
            except ClaimStoppedError:
                return
            except Exception as error:
                failures += 1
                self.health.failures += 1
                self.health.problem = explain(error)
                kind = raised(error)
                final = issubclass(kind, _FINAL) and not issubclass(kind, ClaimLostError)
                if once or final or failures == self._plan.attempts or not self._lives():
                    raise
                wait = min(_LONGEST_WAIT, _FIRST_WAIT * 2 ** min(failures - 1, 16))
                self._say(f"round failed ({failures} in a row), the next in {wait:g} s: {self.health.problem}")
            self._pause(wait)

    def round(self) -> None:
        """Each step once, unless it pauses. ``stop`` ends the round between two of them, the archive behind the batch
        and decode and dedup behind the portion that is on the way, compact behind some hours; windows are computed to
        their end."""
        for name, step in self._steps():
            pause = 0.0 if name == ARCHIVE else getattr(self._plan, name).pause
            if pause and perf_counter() - self._ended.get(name, -pause) < pause:
                continue
            report = step()
            self._ended[name] = perf_counter()
            self._note(name, report)
            self._told(report)
            if self._stop():
                return
        waiting = behind(self._name_server, f"{self._plan.path}/{ARCHIVE}", self._plan.topic, **_loose(self._options))
        self.health.lag = sum(each.lag for each in waiting)
        self.health.rounds += 1
        self.health.good_ms = WallClock().wall_ms()
        self.health.problem = None

    def _steps(self) -> Iterator[tuple[str, Callable[[], StepReport]]]:
        plan, spark = self._plan, self._spark
        sources = plan.sources()

        def given(name: str) -> Input:
            reads = sources[name]
            path = f"{plan.path}/{reads}"
            return Input(archive=path) if reads == ARCHIVE else Input(table=path)

        def output(name: str) -> Output:
            return Output(f"{plan.path}/{name}", plan.format)

        yield (
            ARCHIVE,
            lambda: archive(
                spark, f"{plan.path}/{ARCHIVE}", self._name_server, plan.topic, mode="direct", format=plan.format,
                max_rows=plan.max_rows, stop=self._stop, on_progress=self._waits, **_loose(self._options),
            ),
        )  # fmt: skip
        for name in sources:
            if name == "decode" and (decode := plan.decode) is not None:
                yield (
                    name,
                    lambda: run_decode(
                        spark, given("decode"), output("decode"), max_rows=plan.max_rows, stop=self._stop,
                        on_progress=self._waits, **_decoding(decode),
                    ),
                )  # fmt: skip
            elif name == "dedup" and (dedup := plan.dedup) is not None:
                yield (
                    name,
                    lambda: run_dedup(
                        spark, given("dedup"), output("dedup"), max_rows=plan.max_rows, stop=self._stop,
                        on_progress=self._waits, **_arguments(dedup),
                    ),
                )  # fmt: skip
            elif (windows := plan.windows) is not None:
                yield (
                    name,
                    lambda: run_windows(
                        spark, given("windows"), output("windows"), stop=self._stop, on_progress=self._waits,
                        **_arguments(windows),
                    ),
                )  # fmt: skip
        # Last: where it fails, for want of disk say, the others have gone on.
        if (compacting := plan.compact) is not None:
            yield "compact", lambda: self._compact(compacting)

    def _compact(self, how: Compact) -> StepReport:
        """The archive and the tables that each round adds to, together. ``stop`` is asked before each."""
        plan = self._plan

        def one(name: str) -> StepReport:
            return compact(
                self._spark, f"{plan.path}/{name}", target_bytes=how.target_mb << 20, keep=how.keep, stop=self._stop,
                on_progress=self._waits,
            )  # fmt: skip

        report = one(ARCHIVE)
        for name, given in (("decode", plan.decode), ("dedup", plan.dedup)):
            if given is None or self._stop():
                continue
            table = one(name)
            report = replace(
                report,
                rows_in=report.rows_in + table.rows_in,
                rows_out=report.rows_out + table.rows_out,
                files=(*report.files, *(f"{name}/{file}" for file in table.files)),
                seconds=report.seconds + table.seconds,
            )
        return report

    def _note(self, name: str, report: StepReport) -> None:
        health = self.health
        # A table that needed no new rows has those of an earlier round.
        health.rows[name] = health.rows.get(name, 0) + (0 if report.details.get("up_to_date") else report.rows_out)
        health.seconds[name] = health.seconds.get(name, 0.0) + report.seconds
        health.missing[name] = sum(report.missing.values())
        if name == ARCHIVE:  # the other steps lack what it lacks, some in each round from then on
            health.lost += health.missing[name]
        if name == "decode":
            quarantined: Any = report.details.get("quarantined", 0)
            health.quarantined += quarantined

    def _waits(self, now: Progress) -> None:
        if now.waits:
            self._say(f"{now.step}: {now.text}")

    def _lives(self) -> bool:
        try:
            self._spark.range(1).count()
            return True
        except Exception:  # noqa: BLE001 - a JVM that is gone shows itself in many ways
            return False

    def _pause(self, seconds: float) -> None:
        until = perf_counter() + seconds
        while not self._stop() and (left := until - perf_counter()) > 0:
            bridge.call(asyncio.sleep, min(_LOOK, left))


def _check_names(found: Mapping[str, Any], kind: type[msgspec.Struct], table: str) -> None:
    """ValueError for a name or a word that is none of those there are, and all of them, as msgspec does not."""
    typed = get_type_hints(kind)
    hints = {each.encode_name: typed[each.name] for each in msgspec.structs.fields(kind)}
    for name, value in found.items():
        if name not in hints:
            raise ValueError(f"{table}{name} is none of {', '.join(sorted(hints))}")
        for each in (hints[name], *get_args(hints[name])):
            if get_origin(each) is Literal and value not in get_args(each):
                raise ValueError(f"{table}{name} = {value!r} is none of {', '.join(get_args(each))}")
            if isinstance(each, type) and issubclass(each, msgspec.Struct) and isinstance(value, Mapping):
                _check_names(value, each, f"{table}{name}.")


def _arguments(step: _Table, *without: str) -> dict[str, Any]:
    found = msgspec.structs.asdict(step)
    return {name: value for name, value in found.items() if name not in ("pause", "reads", *without)}


def _decoding(step: Decode) -> dict[str, Any]:
    text = _arguments(step, "schema_file")
    if step.schema_file is not None:
        data = Path(step.schema_file).read_bytes()
        text["schema"] = data if step.using == "protobuf" else data.decode()
    return text


def _loose(options: Mapping[str, str]) -> dict[str, Any]:
    return dict(options)
