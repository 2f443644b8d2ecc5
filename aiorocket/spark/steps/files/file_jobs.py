"""Work on an archive's files in Spark's tasks that no row of leaves: a task answers which offsets of which queue are in
which file, and that is all that passes through the JVM."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from aiorocket.model import Queue
from aiorocket.spark.failures import untraced
from aiorocket.spark.steps.files.manifest import DataFile, Span

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ("ANSWER_SQL", "Held", "answer", "answered", "files_of", "held_by", "run_tasks")

ANSWER_SQL = "path STRING, size LONG, topic STRING, broker STRING, queue INT, begin LONG, end LONG, rows LONG"
_ANSWER = pa.schema(
    [
        ("path", pa.string()), ("size", pa.int64()), ("topic", pa.string()), ("broker", pa.string()),
        ("queue", pa.int32()), ("begin", pa.int64()), ("end", pa.int64()), ("rows", pa.int64()),
    ]
)  # fmt: skip


class Held(NamedTuple):
    """What a file, of ``size`` bytes, holds of one queue."""

    path: str
    size: int
    queue: Queue
    span: Span


def run_tasks(spark: SparkSession, work: Callable[..., Iterable[Held]], tasks: Sequence[object]) -> list[Held]:
    """``work(task)`` for each of ``tasks`` in a task of its own; all they gave. ``work`` is a function of a module, and
    tasks are what JSON can say."""
    if not tasks:
        return []
    spark.dataSource.register(_Job)
    job = spark.read.format(_Job.name()).option("work", f"{work.__module__}:{work.__name__}")
    found = job.option("tasks", json.dumps(tasks)).load().collect()
    return answered(found)


class _Job(DataSource):
    """A job as a data source that the driver makes for itself: reading it does the work."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq_files"

    def schema(self) -> str:
        return ANSWER_SQL

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Tasks(self.options["work"], json.loads(self.options["tasks"]))


class _Tasks(DataSourceReader):
    def __init__(self, work: str, tasks: Sequence[object]) -> None:
        self._work = work
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(task) for task in self._tasks]

    @untraced
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        module, _, name = self._work.partition(":")
        work: Callable[[Any], Iterable[Held]] = getattr(import_module(module), name)
        yield from answer(work(partition.value))


def answer(held: Iterable[Held]) -> Iterator[pa.RecordBatch]:
    """What a task yields."""
    rows = [(each.path, each.size, *each.queue, *each.span) for each in held]
    if rows:
        columns = zip(*rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _ANSWER, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_ANSWER)


def answered(found: Iterable[Sequence[Any]]) -> list[Held]:
    """What all tasks gave, of the rows that were collected."""
    return [Held(row[0], row[1], Queue(*row[2:5]), Span(*row[5:])) for row in found]


def held_by(files: Iterable[DataFile]) -> Iterator[Held]:
    return (Held(file.path, file.bytes, queue, span) for file in files for queue, span in file.queues.items())


def files_of(held: Iterable[Held]) -> list[DataFile]:
    sizes, queues = dict[str, int](), dict[str, dict[Queue, Span]]()
    for path, size, queue, span in held:
        sizes[path] = size
        queues.setdefault(path, {})[queue] = span
    return [
        DataFile(path, sum(span.rows for span in each.values()), sizes[path], each) for path, each in queues.items()
    ]
