"""The analysing steps as drivers: input, output, progress, report. The functions they call take any DataFrame.

``details["tables"]`` of a report are a few rows for people (``run.Shown``), as many of each part as ``Output.show``
says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pyspark.sql import functions as F

from aiorocket.errors import UsageError
from aiorocket.spark.bridge import call
from aiorocket.spark.planner import QueueRange
from aiorocket.spark.steps.fields import QUEUE, need
from aiorocket.spark.steps.functions.dead_letters import CAUSES, make_readable, select, triage
from aiorocket.spark.steps.functions.decode import Decoded, decode
from aiorocket.spark.steps.functions.dedup import count_duplicates, dedup
from aiorocket.spark.steps.functions.lag_samples import sample_lag
from aiorocket.spark.steps.functions.latency import lag_table, latency_report
from aiorocket.spark.steps.functions.order import order, summary
from aiorocket.spark.steps.functions.plots import WindowCount, draw, draw_windows
from aiorocket.spark.steps.functions.replay import replay
from aiorocket.spark.steps.functions.windows import windows
from aiorocket.spark.steps.report import ProgressCall, StepReport
from aiorocket.spark.steps.tables.evolution import as_type, changes
from aiorocket.spark.steps.tables.inputs import Input, open_rows, value_type
from aiorocket.spark.steps.tables.run import PORTION, Made, Output, add, whole
from aiorocket.spark.steps.tables.table import Table
from aiorocket_protocol import DLQ_PREFIX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from aiorocket.spark.steps.functions.lag_samples import LagSample
    from aiorocket.spark.steps.functions.latency import LatencyReport

__all__ = (
    "look_at_letters", "run_decode", "run_dedup", "run_latency", "run_order", "run_replay", "run_report", "run_triage",
    "run_windows",
)  # fmt: skip

#: Groups of a picture that are drawn one by one, and how many windows it may have.
_SHOWN, _DRAWN = 7, 200_000
#: Of bodies a report keeps the length.
_BYTES = "_aiorocket_bytes"
_PERCENTILES = (
    "stage STRING, topic STRING, brokerName STRING, queueId INT, start TIMESTAMP, rows LONG, negative LONG, "
    "least DOUBLE, p50 DOUBLE, p95 DOUBLE, p99 DOUBLE, most DOUBLE"
)


def run_dedup(
    spark: SparkSession,
    given: Input,
    output: Output,
    *,
    by: Literal["id", "key", "spark_txn"] = "id",
    key: str | None = None,
    max_rows: int = PORTION,
    stop: Callable[[], bool] = lambda: False,
    on_progress: ProgressCall | None = None,
) -> StepReport:
    """Part ``rows``: the input without repeated rows. A row that repeats one of an earlier portion or run is dropped
    too, whichever of the two was stored first. ``details["dropped"]`` and ``["kept"]`` are of this run.

    Each portion is compared with all that the table holds, and reads as many rows as the table is made of when that is
    more than ``max_rows``: what is compared grows with the rows, not with their square. Of decoded rows the column
    ``value`` evolves as that table does."""
    types: list[DataType] = []  # what is read, and what the table has

    def opened(table: Table) -> None:
        made = value_type(given)
        if made is not None:
            types.extend((made, table.evolve(spark, "rows", "value", made)))

    def make(df: DataFrame, table: Table | None) -> Made:
        if types:
            df = df.withColumn("value", as_type(F.col("value"), *types))
        earlier = None if table is None else table.rows(spark, "rows")
        return Made(df, {"rows": dedup(df, by, key=key, earlier=earlier)})

    settings = {"by": by, "key": key}
    report = add(
        "dedup", spark, given, output, settings, make, splits=False, grows=True, opened=opened, max_rows=max_rows,
        stop=stop, on_progress=on_progress,
    )  # fmt: skip
    return _with(report, kept=report.rows_out, dropped=report.rows_in - report.rows_out)


def run_decode(
    spark: SparkSession,
    given: Input,
    output: Output,
    *,
    using: str | type = "json",
    schema: str | bytes | None = None,
    required: Sequence[str] = (),
    header_bytes: int = 0,
    message: str | None = None,
    registry: str | None = None,
    max_rows: int = PORTION,
    stop: Callable[[], bool] = lambda: False,
    on_progress: ProgressCall | None = None,
) -> StepReport:
    """Parts ``decoded`` (the row and its ``value``) and ``quarantine`` (the row and the ``reason``); together they are
    all rows. ``using`` as of ``decode``; of a type the table keeps the name, ``"shop.models:Order"``. With another
    ``schema``, ``required`` or type of that name than it was begun with it evolves (``evolution.py``), and
    ``details["evolved"]`` says how, or UsageError why it cannot. ``details["reasons"]``: the quarantined rows of the
    table, or of this run without one, by reason. ``stop`` is asked before each portion; what is left then is the next
    run's."""
    reasons: dict[str, int] = {}
    types: list[DataType] = []  # what is decoded, and what the table has
    evolved: list[str] = []

    def decoded(df: DataFrame) -> Decoded:
        return decode(
            df, using, schema, required=required, header_bytes=header_bytes, message=message, registry=registry
        )

    def opened(table: Table) -> None:
        nothing = spark.createDataFrame([], "body BINARY, properties MAP<STRING, STRING>")
        made, had = decoded(nothing).rows.schema["value"].dataType, table.type_of("decoded", "value")
        if had is not None:
            types.extend((made, table.evolve(spark, "decoded", "value", made)))
            evolved.extend(changes(had, types[1]))

    def make(df: DataFrame, table: Table | None) -> Made:
        done = decoded(df)
        good = done.good
        if types:
            good = good.withColumn("value", as_type(F.col("value"), *types))
        return Made(done.rows, {"decoded": good, "quarantine": done.quarantine})

    settings: dict[str, object] = {
        "using": using if isinstance(using, str) else f"{using.__module__}:{using.__qualname__}",
        "required": list(required), "header_bytes": header_bytes,
        "schema": f"sha256 {sha256(schema).hexdigest()}" if isinstance(schema, bytes) else schema,
    }  # fmt: skip
    if message is not None:
        settings["message"] = message
    if registry is not None:
        settings["registry"] = True  # it may move, and its address may hold a password
    report = add(
        "decode", spark, given, output, settings, make, splits=True, evolves=("schema", "required"), opened=opened,
        max_rows=max_rows, stop=stop, on_progress=on_progress,
    )  # fmt: skip
    wrote: Any = report.details["wrote"]
    table = Table.there(output.path) if output.path is not None else None
    bad = table.rows(spark, "quarantine") if table else None
    if bad is not None and table is not None and table.snapshot().rows("quarantine"):
        reasons = {row["reason"]: row["count"] for row in bad.groupBy("reason").count().collect()}
    return _with(
        report, decoded=wrote.get("decoded", 0), quarantined=wrote.get("quarantine", 0),
        reasons=dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))), evolved="; ".join(evolved) or None,
    )  # fmt: skip


def run_windows(
    spark: SparkSession,
    given: Input,
    output: Output,
    *,
    every: str = "1 minute",
    slide: str | None = None,
    by: Sequence[str] = ("topic",),
    time: str = "bornTimestamp",
    watermark: str | None = None,
    key: str | None = None,
    plots: str | None = None,
    stop: Callable[[], bool] = lambda: False,
    on_progress: ProgressCall | None = None,
) -> StepReport:
    """Part ``windows``, sorted by time. Tumbling windows of rows that all have a time have to add up to the rows read,
    and ``details["in_windows"]`` is their sum. A picture of tumbling windows goes to the folder ``plots``;
    ``details["plots"]`` names it. ``stop`` as of ``run.whole``."""
    sums: dict[str, int] = {}
    drawn: list[str] = []

    def make(df: DataFrame) -> Mapping[str, DataFrame]:
        found = windows(df, every=every, slide=slide, by=by, time=time, watermark=watermark, key=key)
        found = _by_time(found, by, sums)
        if watermark is not None:
            sums["late_rows"] = _sum(found, "lateRows")
        if plots is not None and slide is None:
            drawn.extend(_picture(found, by, every, Path(plots)))
        return {"windows": found}

    settings: dict[str, object] = {
        "every": every, "slide": slide, "by": list(by), "time": time, "watermark": watermark, "key": key
    }  # fmt: skip
    report = whole(
        "windows", spark, given, output, settings, make, always=plots is not None, stop=stop, on_progress=on_progress
    )
    return _with(report, plots=_asked(drawn, plots), **sums)


def _by_time(windows: DataFrame, by: Sequence[str], counted: dict[str, int]) -> DataFrame:
    """The windows, sorted and kept, and in ``counted`` how many rows are in them."""
    kept = windows.orderBy("windowStart", *[f"`{name}`" for name in by]).persist()
    counted["in_windows"] = _sum(kept, "rows")
    return kept


def _sum(windows: DataFrame, column: str) -> int:
    total = windows.agg(F.sum(column)).first()
    return int((total[0] if total else 0) or 0)


def _picture(windows: DataFrame, by: Sequence[str], every: str, folder: Path) -> list[str]:
    """The largest groups one by one, the others together: what is collected grows with the windows alone. No picture of
    none, or of so many that nobody would wait for it."""
    label = F.concat_ws(" · ", *[F.coalesce(F.col(f"`{name}`").cast("string"), F.lit("(none)")) for name in by])
    named = windows.select("windowStart", label.alias("label"), "rows")
    largest = named.groupBy("label").agg(F.sum("rows").alias("rows")).orderBy(F.desc("rows"), "label")
    names = [row["label"] for row in largest.limit(_SHOWN).collect()]
    if not 0 < named.select("windowStart").distinct().count() <= _DRAWN:
        return []
    hidden = named.select("label").distinct().count() - len(names)
    others = f"{hidden:,} others"
    shown = F.when(F.col("label").isin(names), F.col("label")).otherwise(others).alias("label")
    rows = named.groupBy("windowStart", shown).agg(F.sum("rows").alias("rows")).collect()
    counts = [WindowCount(row["windowStart"].astimezone(UTC), row["label"], row["rows"]) for row in rows]
    folder.mkdir(parents=True, exist_ok=True)
    title = f"Messages by {', '.join(by)}" if by else "Messages"
    return [str(draw_windows(counts, every, folder / "windows.png", title=title, others=others if hidden else None))]


def run_order(
    spark: SparkSession,
    given: Input,
    output: Output,
    *,
    sequence: str | None = None,
    key: str | None = None,
    dense: bool | None = None,
    on_progress: ProgressCall | None = None,
) -> StepReport:
    """Parts ``findings`` and ``summary``; ``details["findings"]`` is how many there are. ``sequence`` and ``key`` as of
    ``order.order``."""
    counted: dict[str, int] = {}

    def make(df: DataFrame) -> Mapping[str, DataFrame]:
        more = {} if key is None else {"key": key}
        return _order_parts(order(df, sequence=sequence, dense=dense, **more), counted)

    settings: dict[str, object] = {"sequence": sequence, "key": key, "dense": dense}
    show = {"findings": 20, "summary": 100, **output.show}
    report = whole(
        "order", spark, given, Output(output.path, output.format, show), settings, make, on_progress=on_progress
    )
    return _with(report, **{"findings": _findings(report), **counted})


def _order_parts(findings: DataFrame, counted: dict[str, int]) -> dict[str, DataFrame]:
    kept = findings.persist()
    counted["findings"] = kept.count()
    return {"findings": kept, "summary": summary(kept).orderBy("scope", "kind", "topic")}


def _findings(report: StepReport) -> int:
    """As many as the table has, where they were not counted anew."""
    parts: Any = report.details["parts"]
    return int(parts.get("findings", 0))


def run_latency(
    spark: SparkSession,
    given: Input,
    output: Output,
    *,
    every: str = "1 minute",
    plots: str | None = None,
    group: str | None = None,
    samples: int = 1,
    pause: float = 1.0,
    exact: bool = True,
    on_progress: ProgressCall | None = None,
) -> StepReport:
    """Parts ``by_topic``, ``by_queue``, ``over_time``, ``histogram`` and, with ``group`` (of a live topic), ``lag``:
    ``samples`` of it, ``pause`` seconds apart. Pictures go to the folder ``plots``; ``details["plots"]`` names them."""
    if group is not None and given.topic is None:
        raise UsageError("the lag of a group is asked of brokers: give a topic and a name server, not an archive")
    lag = _lag(given, group, samples, pause)
    drawn: list[str] = []

    def make(df: DataFrame) -> Mapping[str, DataFrame]:
        found = latency_report(df, every=every, exact=exact)
        if plots is not None:
            drawn.extend(str(path) for path in draw(found, Path(plots), lag=lag))
        parts = _latency_parts(spark, found)
        if lag:
            parts["lag"] = lag_table(spark, lag)
        return parts

    settings: dict[str, object] = {"every": every, "exact": exact}
    # Pictures and samples are of now, also when no row has come since.
    always = plots is not None or group is not None
    report = whole("latency", spark, given, output, settings, make, always=always, on_progress=on_progress)
    newest = max((each.at_ms for each in lag), default=0)
    behind = sum(each.lag for each in lag if each.at_ms == newest) if lag else None
    return _with(report, plots=_asked(drawn, plots), lag=behind)


def _latency_parts(spark: SparkSession, found: LatencyReport) -> dict[str, DataFrame]:
    parts = {
        name: spark.createDataFrame([tuple(row) for row in getattr(found, name)], _PERCENTILES)
        for name in ("by_topic", "by_queue", "over_time")
    }
    bars = [tuple(bar) for bar in found.histogram]
    parts["histogram"] = spark.createDataFrame(bars, "stage STRING, topic STRING, up_to_ms LONG, rows LONG")
    return {name: df.coalesce(1) for name, df in parts.items()}  # sorted, so that files are


def run_report(
    spark: SparkSession,
    given: Input,
    output: Output,
    *,
    every: str = "1 minute",
    by: Sequence[str] = ("topic",),
    time: str = "bornTimestamp",
    plots: str | None = None,
    exact: bool = True,
    on_progress: ProgressCall | None = None,
) -> StepReport:
    """What ``run_windows``, ``run_latency``, ``run_order`` (of queues) and ``run_dedup`` (by id) find, in one run:
    parts ``windows``, ``by_topic``, ``by_queue``, ``over_time``, ``histogram``, ``findings`` and their ``summary``, and
    ``repeats``, how many rows there are, and repeat the id of another. ``details`` has ``in_windows``, ``findings`` and
    ``repeated``; pictures go to the folder ``plots``."""
    counted: dict[str, int] = {}
    drawn: list[str] = []
    names = {"tag": "tags", "key": "keys"}

    def few(df: DataFrame) -> DataFrame:
        need(df, "report", *QUEUE, "queueOffset", "storeTimestamp", "bornTimestamp", "msgId", time)
        asked = [name if name in df.columns else names.get(name, name) for name in by]
        need(df, "report", *asked)
        size = [F.octet_length("body").alias(_BYTES)] if "body" in df.columns else []
        kept = dict.fromkeys((*QUEUE, "queueOffset", "storeTimestamp", "bornTimestamp", "msgId", time, *asked))
        return df.select(*[f"`{name}`" for name in kept], *size)

    def make(df: DataFrame) -> Mapping[str, DataFrame]:
        size = {"bytes": F.sum(_BYTES)} if _BYTES in df.columns else {}
        found = _by_time(windows(df, every=every, by=by, time=time, aggregates=size), by, counted)
        measured = latency_report(df, every=every, exact=exact)
        ordered = _order_parts(order(df), counted)
        repeats = count_duplicates(df)
        counted["repeated"] = repeats.dropped
        if plots is not None:
            drawn.extend([*_picture(found, by, every, Path(plots)), *map(str, draw(measured, Path(plots)))])
        return {
            "windows": found,
            **_latency_parts(spark, measured),
            **ordered,
            "repeats": spark.createDataFrame([tuple(repeats)], "rows LONG, kept LONG, repeated LONG, withoutId LONG"),
        }

    settings: dict[str, object] = {"every": every, "by": list(by), "time": time, "exact": exact}
    report = whole(
        "report", spark, given, output, settings, make, few=few, always=plots is not None, on_progress=on_progress
    )
    return _with(report, **{"plots": _asked(drawn, plots), "findings": _findings(report), **counted})


def run_triage(
    spark: SparkSession,
    given: Input,
    output: Output,
    *,
    samples: int = 3,
    causes: Sequence[str] | None = None,
    on_progress: ProgressCall | None = None,
) -> StepReport:
    """Part ``causes``: the dead letters by group, topic, tag and cause, as ``dead_letters.triage`` has them."""
    look_at_letters(given)

    def make(df: DataFrame) -> Mapping[str, DataFrame]:
        return {"causes": triage(df, samples=samples, causes=tuple(causes) if causes else CAUSES)}

    settings: dict[str, object] = {"samples": samples, "causes": list(causes or ())}
    return whole("triage", spark, given, output, settings, make, on_progress=on_progress)


def run_replay(
    spark: SparkSession,
    given: Input,
    name_server: str,
    *,
    where: str | None = None,
    dry_run: bool = False,
    rate: float | None = None,
    limit: int | None = None,
    to: str | None = None,
    on_progress: ProgressCall | None = None,
) -> StepReport:
    """``replay.replay`` of the rows of ``given`` that ``where`` selects, as ``dead_letters.select`` has it."""
    look_at_letters(given)
    rows = open_rows(spark, given)
    df = rows.read([QueueRange(queue, *each) for queue, each in rows.ranges.items()])
    if where is not None:
        df = select(df, where)
    return replay(
        df, name_server, dry_run=dry_run, confirm=not dry_run, rate=rate, limit=limit, to=to, on_progress=on_progress,
        **_loose(given),
    )  # fmt: skip


def _asked(drawn: list[str], plots: str | None) -> list[str] | None:
    """None where nobody wanted pictures; an empty list where there was nothing to draw."""
    return None if plots is None else drawn


def _with(report: StepReport, **details: object) -> StepReport:
    return replace(report, details={**report.details, **details})


def _lag(given: Input, group: str | None, samples: int, pause: float) -> list[LagSample]:
    found: list[LagSample] = []
    for number in range(samples if group is not None else 0):
        if number:
            call(asyncio.sleep, pause)
        topics = [name.strip() for name in (given.topic or "").split(",")]
        found += sample_lag(given.name_server or "", group or "", topics, **_loose(given))
    return found


def look_at_letters(given: Input) -> None:
    """``given.look``, which dead letters of older brokers have to be made readable for."""
    if given.topic is not None and given.topic.startswith(DLQ_PREFIX):
        make_readable(given.name_server or "", given.topic.removeprefix(DLQ_PREFIX), **_loose(given))
    given.look()


def _loose(given: Input) -> dict[str, Any]:
    """The source's options, for functions that take them beside arguments of other types."""
    return dict(given.options)
