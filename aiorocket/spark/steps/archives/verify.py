"""The verify step: reads an archive's files and compares them with its manifest."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from aiorocket.errors import RocketError
from aiorocket.spark.steps.files.file_counts import count_files_by_queue
from aiorocket.spark.steps.files.manifest import Archive
from aiorocket.spark.steps.proof import count_by_queue, prove, repeated, total
from aiorocket.spark.steps.report import StepReport
from aiorocket.spark.steps.rows import read_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ("verify",)


def verify(spark: SparkSession, path: str) -> StepReport:
    """Counts the rows that are in the archive's files, by queue, in one job.

    The report's ``missing`` compares them with the offsets that the archive accounts for. RocketError when a row is
    there twice, or the files hold other rows than the manifest says: files were lost, damaged or changed.
    """
    began = perf_counter()
    archive = Archive.open(path)
    snapshot = archive.snapshot()
    counts = count_files_by_queue(spark, archive, snapshot.files)
    if counts is None:
        counts = count_by_queue(read_files(spark, archive, snapshot.files))
    if twice := repeated(counts):
        raise RocketError(f"{path} has rows twice: {twice}")
    for queue in sorted(snapshot.queues.keys() | counts.keys()):
        said = snapshot.queues[queue].rows if queue in snapshot.queues else 0
        found = counts[queue].rows if queue in counts else 0
        if said != found:
            raise RocketError(f"{path}: the manifest has {said} rows of {queue}, its files hold {found}")
    ranges = snapshot.ranges()
    rows = sum(each.rows for each in counts.values())
    missing = {} if archive.filtered else prove(counts, ranges)
    return StepReport("verify", total(ranges.values()), rows, ranges, (), perf_counter() - began, missing)
