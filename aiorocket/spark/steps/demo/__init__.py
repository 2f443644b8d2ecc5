"""The pipeline of ``aiorocket lake demo``: a topic of access-log lines to an archive, tables and pictures.

Every stage counts, and each count has to be the one before it. All of them go on where the run before ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from aiorocket.spark.steps.archives.archive import archive
from aiorocket.spark.steps.demo.access_log import access_log
from aiorocket.spark.steps.demo.plots import Found, draw_log
from aiorocket.spark.steps.functions.windows import windows
from aiorocket.spark.steps.report import Progress, ProgressCall, StepReport
from aiorocket.spark.steps.tables.analyses import run_order
from aiorocket.spark.steps.tables.inputs import Input
from aiorocket.spark.steps.tables.run import Made, Output, Shown, add, told
from aiorocket.spark.steps.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ("LINE", "RUN", "Pipeline", "pipeline")

#: Properties of a message: the number of its line, and when the run began that sent it (seconds since 1970).
LINE, RUN = "line", "run"
#: Grows from line to line and from run to run.
_SEQUENCE = f"CAST(properties['{RUN}'] AS LONG) * 1000000000 + CAST(properties['{LINE}'] AS LONG)"
_MINUTE = timedelta(minutes=1)
_PLACE = ("topic", "brokerName", "queueId", "queueOffset", "msgId", "storeTimestamp")
_BOT = "(?i)bot|crawl|spider|probe|zgrab|curl|python-requests"
#: Windows in a picture: fewer are coarse, more are noise.
_DRAWN = 200
_TOP = 12


@dataclass(frozen=True)
class Pipeline:
    """What came of it. Counts are of all runs with this folder, but ``new``: what this one archived."""

    new: int
    archived: int
    decoded: int
    quarantined: int
    in_windows: int
    findings: int
    archive: StepReport
    decode: StepReport
    reasons: Mapping[str, int]
    tables: Mapping[str, Shown]
    plots: Sequence[str]
    span: tuple[datetime, datetime] | None
    seconds: Mapping[str, float] = field(default_factory=dict)

    def disagreements(self, stored: int) -> list[str]:
        """Why the counts do not add up, for a topic of ``stored`` messages; nothing when they do."""
        wrong = []
        if self.archived != stored:
            wrong.append(f"{stored} messages are stored, {self.archived} archived")
        if self.decoded + self.quarantined != self.archived:
            wrong.append(f"{self.archived} archived, {self.decoded} decoded + {self.quarantined} quarantined")
        if self.in_windows != self.decoded:
            wrong.append(f"{self.decoded} decoded, {self.in_windows} in windows")
        for report in (self.archive, self.decode):
            wrong += [
                f"{report.step}: {queue.topic} on {queue.broker_name}, queue {queue.queue_id} lacks {lost} rows"
                for queue, lost in report.missing.items()
            ]
        if self.findings:
            wrong.append(f"the order check found {self.findings} gaps, repeats or steps back")
        return wrong


def pipeline(
    spark: SparkSession, name_server: str, topic: str, out: str, *, on_progress: ProgressCall | None = None
) -> Pipeline:
    """Archive ``topic`` to ``out/archive``, decode what is new to ``out/log``, count windows to ``out/windows``, check
    the order of lines, draw to ``out/plots`` (without matplotlib: nothing)."""
    taken: dict[str, float] = {}
    path = f"{out}/archive"
    if on_progress is not None:
        on_progress(Progress("archive", 0, None, "the first job starts Spark's workers"))
    archived = archive(spark, path, name_server, topic, mode="direct", on_progress=on_progress)
    given = Input(archive=path)
    decoded = _decode(spark, given, f"{out}/log", on_progress)
    # Lines of one client go to one queue, in their order.
    ordered = run_order(
        spark, given, Output(), sequence=_SEQUENCE, key="keys", dense=False,
        on_progress=on_progress,
    )  # fmt: skip
    log = Table.there(f"{out}/log")
    assert log is not None  # it was written just now
    for report in (archived, decoded, ordered):
        taken[report.step] = report.seconds
    began = perf_counter()
    windows, found = _windows(spark, log, f"{out}/windows", on_progress)
    taken["windows"] = perf_counter() - began
    plots = _draw(found, f"{out}/plots")
    taken["plots"] = perf_counter() - began - taken["windows"]
    snapshot = log.snapshot()
    return Pipeline(
        archived.rows_out, int(str(archived.details["archive_rows"])), snapshot.rows("decoded"),
        snapshot.rows("quarantine"), windows, int(str(ordered.details["findings"])), archived, decoded,
        _reasons(spark, log), _tables(found), [str(each) for each in plots], found.span, taken,
    )  # fmt: skip


def _decode(spark: SparkSession, given: Input, path: str, on_progress: ProgressCall | None) -> StepReport:
    def make(df: DataFrame, _: Table | None) -> Made:
        rows = df.withColumn(LINE, F.col("properties")[LINE].try_cast("long"))
        done = access_log(rows)
        bot = F.coalesce(F.col("agent").rlike(_BOT), F.lit(False)).alias("bot")
        good = done.good.select(*_PLACE, LINE, "value.*").select("*", bot)
        bad = done.quarantine.select(*_PLACE, LINE, "body", done.reason)
        return Made(done.rows, {"decoded": good, "quarantine": bad})

    return add("decode", spark, given, Output(path), {}, make, splits=True, on_progress=on_progress)


def _windows(spark: SparkSession, log: Table, path: str, on_progress: ProgressCall | None) -> tuple[int, Found]:
    """The tables of windows, made of all decoded rows, and how many rows are in the windows by minute."""
    snapshot = log.snapshot()
    rows = log.rows(spark, "decoded")
    if rows is None or not snapshot.rows("decoded"):
        return 0, Found()
    count = snapshot.rows("decoded")
    _tell(on_progress, 0, count, "requests by minute and status")
    rows = rows.persist()
    try:
        shares = F.percentile_approx("seconds", F.array(*[F.lit(share) for share in (0.5, 0.95, 0.99)]), F.lit(1_000))
        sizes = {"bytesSent": F.sum("bytes")}
        by_minute = windows(rows, by=("statusClass",), time="time", aggregates=sizes).orderBy("windowStart")
        ends = rows.agg(F.min("time"), F.max("time")).collect()[0]
        every = _length(ends[1] - ends[0])
        _tell(on_progress, count // 3, count, f"response times, windows of {every}")
        times = windows(rows, by=(), every=every, time="time", aggregates={"shares": shares}).select(
            "windowStart", "windowEnd", "rows", *[
                F.col("shares")[place].alias(name) for place, name in enumerate(("p50", "p95", "p99"))
            ],
        )  # fmt: skip
        errors = {"errors": F.count_if(F.col("status") >= 500), "bytesSent": F.sum("bytes")}
        p95 = F.percentile_approx("seconds", F.lit(0.95), F.lit(1_000)).alias("p95")
        paths = rows.groupBy("path").agg(
            F.count(F.lit(1)).alias("rows"), *[column.alias(name) for name, column in errors.items()], p95
        )
        parts = {
            "requests": by_minute, "response_times": times.orderBy("windowStart"),
            "paths": paths.orderBy(F.desc("rows"), "path"),
        }  # fmt: skip
        table = Table.open(path, "lake demo", {"log": log.id})
        table.write({name: df.coalesce(1) for name, df in parts.items()}, snapshot.ranges, snapshot.rows_in, whole=True)
        _tell(on_progress, count * 2 // 3, count, "reading the windows back")
        who = rows.agg(F.count_distinct("client"), F.count_if("bot"), F.sum("bytes")).collect()[0]
    finally:
        rows.unpersist()
    kept = {name: table.rows(spark, name) for name in parts}
    requests, medians, top = (_rows(kept[name]) for name in ("requests", "response_times", "paths"))
    _tell(on_progress, count, count, f"{len(requests):,} windows")
    found = Found(
        every,
        [(_utc(row["windowStart"]), row["statusClass"], row["rows"]) for row in requests],
        [
            (_utc(row["windowStart"]), row["rows"], row["p50"], row["p95"], row["p99"])
            for row in medians
            if row["p50"] is not None
        ],
        [(row["path"], row["rows"], row["errors"], row["p95"]) for row in top],
        (who[0], who[1], who[2]),
    )
    return sum(row["rows"] for row in requests), found


def _rows(df: DataFrame | None) -> list[Any]:
    return [] if df is None else df.collect()


def _utc(value: datetime) -> datetime:
    return value.astimezone(UTC)  # Spark gives naive times of this machine's zone


def _length(span: timedelta) -> str:
    """A length of window with which the span is some ``_DRAWN`` windows."""
    for minutes in (1, 5, 10, 30):
        if span / (_MINUTE * minutes) <= _DRAWN:
            return f"{minutes} minute{'s' if minutes > 1 else ''}"
    for hours in (1, 3, 6, 12):
        if span / (_MINUTE * 60 * hours) <= _DRAWN:
            return f"{hours} hour{'s' if hours > 1 else ''}"
    return "1 day"


def _reasons(spark: SparkSession, log: Table) -> dict[str, int]:
    bad = log.rows(spark, "quarantine")
    if bad is None or not log.snapshot().rows("quarantine"):
        return {}
    found = bad.groupBy("reason").count().collect()
    return {row["reason"]: row["count"] for row in sorted(found, key=lambda row: (-row["count"], row["reason"]))}


def _tables(found: Found) -> dict[str, Shown]:
    total = sum(rows for _, _, rows in found.requests) or 1
    classes: dict[str, int] = {}
    peaks: dict[str, tuple[int, datetime]] = {}
    for start, name, rows in found.requests:
        classes[name] = classes.get(name, 0) + rows
        peaks[name] = max(peaks.get(name, (0, start)), (rows, start))
    return {
        "requests_by_status": told(
            ("status", "requests", "share", "busiest minute", "requests in it"),
            [
                (name, count, f"{100 * count / total:.2f} %", f"{peaks[name][1]:%Y-%m-%d %H:%M}", peaks[name][0])
                for name, count in sorted(classes.items())
            ],
        ),
        "top_paths": told(
            ("path", "requests", "share", "errors", "p95"),
            [
                (path, rows, f"{100 * rows / total:.1f} %", errors, "" if p95 is None else f"{p95 * 1000:,.0f} ms")
                for path, rows, errors, p95 in found.paths[:_TOP]
            ],
        ),
    }


def _draw(found: Found, folder: str) -> list[Path]:
    if find_spec("matplotlib") is None or not found.requests:
        return []
    return draw_log(found, folder)


def _tell(on_progress: ProgressCall | None, done: int, total: int, text: str) -> None:
    if on_progress is not None:
        on_progress(Progress("windows", done, total, text))
