"""Pipeline steps over topics and archives of them; README.md has the list. Every name is imported when first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorocket.spark.steps.archives.archive import archive as archive
    from aiorocket.spark.steps.archives.compact import compact as compact
    from aiorocket.spark.steps.archives.restore import restore as restore
    from aiorocket.spark.steps.archives.verify import verify as verify
    from aiorocket.spark.steps.files.claims import ClaimStoppedError as ClaimStoppedError
    from aiorocket.spark.steps.files.iceberg import iceberg_table as iceberg_table
    from aiorocket.spark.steps.files.manifest import Archive as Archive
    from aiorocket.spark.steps.files.manifest import ArchiveConflictError as ArchiveConflictError
    from aiorocket.spark.steps.functions.dead_letters import describe as describe
    from aiorocket.spark.steps.functions.dead_letters import make_readable as make_readable
    from aiorocket.spark.steps.functions.dead_letters import top_causes as top_causes
    from aiorocket.spark.steps.functions.dead_letters import triage as triage
    from aiorocket.spark.steps.functions.decode import Decoded as Decoded
    from aiorocket.spark.steps.functions.decode import decode as decode
    from aiorocket.spark.steps.functions.dedup import count_duplicates as count_duplicates
    from aiorocket.spark.steps.functions.dedup import dedup as dedup
    from aiorocket.spark.steps.functions.dedup import duplicates as duplicates
    from aiorocket.spark.steps.functions.lag_samples import LagSample as LagSample
    from aiorocket.spark.steps.functions.lag_samples import sample_lag as sample_lag
    from aiorocket.spark.steps.functions.latency import LatencyReport as LatencyReport
    from aiorocket.spark.steps.functions.latency import lag_table as lag_table
    from aiorocket.spark.steps.functions.latency import latency as latency
    from aiorocket.spark.steps.functions.latency import latency_report as latency_report
    from aiorocket.spark.steps.functions.order import OrderWatch as OrderWatch
    from aiorocket.spark.steps.functions.order import key_order as key_order
    from aiorocket.spark.steps.functions.order import order as order
    from aiorocket.spark.steps.functions.order import queue_order as queue_order
    from aiorocket.spark.steps.functions.plots import draw as draw
    from aiorocket.spark.steps.functions.plots import draw_windows as draw_windows
    from aiorocket.spark.steps.functions.replay import replay as replay
    from aiorocket.spark.steps.functions.windows import late_rows as late_rows
    from aiorocket.spark.steps.functions.windows import mark_late as mark_late
    from aiorocket.spark.steps.functions.windows import rows_dropped as rows_dropped
    from aiorocket.spark.steps.functions.windows import windows as windows
    from aiorocket.spark.steps.proof import count_by_queue as count_by_queue
    from aiorocket.spark.steps.proof import prove as prove
    from aiorocket.spark.steps.report import Progress as Progress
    from aiorocket.spark.steps.report import StepReport as StepReport
    from aiorocket.spark.steps.rows import archive_rows as archive_rows
    from aiorocket.spark.steps.rows import topic_rows as topic_rows
    from aiorocket.spark.steps.tables.analyses import run_decode as run_decode
    from aiorocket.spark.steps.tables.analyses import run_dedup as run_dedup
    from aiorocket.spark.steps.tables.analyses import run_latency as run_latency
    from aiorocket.spark.steps.tables.analyses import run_order as run_order
    from aiorocket.spark.steps.tables.analyses import run_replay as run_replay
    from aiorocket.spark.steps.tables.analyses import run_report as run_report
    from aiorocket.spark.steps.tables.analyses import run_triage as run_triage
    from aiorocket.spark.steps.tables.analyses import run_windows as run_windows
    from aiorocket.spark.steps.tables.inputs import Input as Input
    from aiorocket.spark.steps.tables.run import Output as Output
    from aiorocket.spark.steps.tables.table import Table as Table

_HOMES = {
    "archives.archive": "archive",
    "archives.compact": "compact",
    "archives.restore": "restore",
    "archives.verify": "verify",
    "files.claims": "ClaimStoppedError",
    "files.iceberg": "iceberg_table",
    "files.manifest": "Archive ArchiveConflictError",
    "functions.dead_letters": "describe make_readable top_causes triage",
    "functions.decode": "Decoded decode",
    "functions.dedup": "count_duplicates dedup duplicates",
    "functions.lag_samples": "LagSample sample_lag",
    "functions.latency": "LatencyReport lag_table latency latency_report",
    "functions.order": "OrderWatch key_order order queue_order",
    "functions.plots": "draw draw_windows",
    "functions.replay": "replay",
    "functions.windows": "late_rows mark_late rows_dropped windows",
    "proof": "count_by_queue prove",
    "report": "Progress StepReport",
    "rows": "archive_rows topic_rows",
    "tables.analyses": "run_decode run_dedup run_latency run_order run_replay run_report run_triage run_windows",
    "tables.inputs": "Input",
    "tables.run": "Output",
    "tables.table": "Table",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'aiorocket.spark.steps' has no attribute {name!r}")
    return getattr(import_module(f"aiorocket.spark.steps.{home}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOME_OF]
