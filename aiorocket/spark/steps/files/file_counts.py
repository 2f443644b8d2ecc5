"""The rows of an archive's files by queue, counted by tasks that read three columns with pyarrow, a fraction of what
Spark's own count of them takes, or here where they are few: a job has Python processes to start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aiorocket.model import Queue
from aiorocket.spark.steps.files.file_jobs import Held, run_tasks
from aiorocket.spark.steps.files.folder import Folder, unreadable
from aiorocket.spark.steps.files.hours import by_queue
from aiorocket.spark.steps.files.manifest import Archive, DataFile, Span, partition_of
from aiorocket.spark.steps.proof import QueueCount

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ("count_files_by_queue",)

#: A task is worth its start with so many rows, which it counts in 20 ms.
_TASK_ROWS = 1_000_000
#: For each core at most, so that many rows do not become many starts.
_TASKS = 4
#: So many rows at most, on a disk, are counted without a job: in less time than its processes take to start.
_HERE_ROWS = 10_000_000


def count_files_by_queue(
    spark: SparkSession,
    archive: Archive,
    files: Sequence[DataFile],
    ranges: Mapping[Queue, tuple[int, int]] | None = None,
) -> dict[Queue, QueueCount] | None:
    """Counts the rows of ``ranges``, or all, as ``count_by_queue`` does. None when that cannot be told from what each
    file holds: a row is there twice, or files of a queue reach into each other. RocketError names a file that cannot be
    read."""
    archive.folder.need(files)
    told = None if ranges is None else [[*queue, *each] for queue, each in ranges.items()]
    cores = spark.sparkContext.defaultParallelism
    rows = sum(file.rows for file in files)
    most = max(_TASK_ROWS, rows // (_TASKS * cores))
    all_held: Iterable[Held]
    if archive.folder.local and rows <= _HERE_ROWS:
        all_held = _spans((archive.folder.location, [file.path for file in files], told))
    else:
        tasks = [[archive.folder.location, part, told] for part in _parts(files, most)]
        all_held = run_tasks(spark, _spans, tasks)
    found: dict[Queue, list[Span]] = {}
    for held in all_held:
        found.setdefault(held.queue, []).append(held.span)
    counts = {}
    for queue, spans in found.items():
        spans.sort()
        if any(following.begin < span.end for span, following in pairwise(spans)):
            return None
        rows = sum(span.rows for span in spans)
        counts[queue] = QueueCount(rows, spans[0].begin, spans[-1].end - 1, rows)
    return counts


def _parts(files: Sequence[DataFile], most: int) -> list[list[str]]:
    parts, rows = list[list[str]](), most
    for file in files:
        if rows >= most:
            parts.append([])
            rows = 0
        parts[-1].append(file.path)
        rows += file.rows
    return parts


def _spans(task: tuple[str, Sequence[str], Sequence[Sequence[Any]] | None]) -> Iterator[Held]:
    """Mostly in a task. A queue of which a file has an offset twice comes twice."""
    location, paths, told = task
    folder, ranges = Folder(location), {Queue(*each[:3]): each[3:] for each in told or ()}
    for path in paths:
        try:
            with folder.filesystem.open_input_file(folder.full(path)) as stream:
                file = pq.ParquetFile(stream, read_dictionary=["brokerName"], page_checksum_verification=True)
                table = file.read(columns=["brokerName", "queueId", "queueOffset"])
        except (OSError, pa.ArrowException) as error:
            raise unreadable(folder.uri(path), error) from error
        offsets = table.column("queueOffset").to_numpy()
        for queue, places in by_queue(partition_of(path)[0], table):
            own = offsets[places]
            if told is not None:
                begin, end = ranges.get(queue, (0, 0))
                if own.min() < begin or own.max() >= end:
                    own = own[(own >= begin) & (own < end)]
            if not _rises(own):
                own = np.sort(own)
            if len(own):
                span = Span(int(own[0]), int(own[-1]) + 1, len(own))
                yield from [Held(path, 0, queue, span)] * (1 if _rises(own) else 2)


def _rises(offsets: np.ndarray[Any, np.dtype[np.int64]]) -> bool:
    return bool((offsets[1:] > offsets[:-1]).all())
