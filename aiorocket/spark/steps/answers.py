"""What a task that writes files of an archive answers to the driver: a row for each file and queue, which offsets of
it are where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from aiorocket.model import Queue
from aiorocket.spark.steps.manifest import DataFile, Span

__all__ = ("ANSWER_SQL", "answer", "answered")

ANSWER_SQL = "path STRING, size LONG, topic STRING, broker STRING, queue INT, begin LONG, end LONG, rows LONG"
_ANSWER = pa.schema(
    [
        ("path", pa.string()), ("size", pa.int64()), ("topic", pa.string()), ("broker", pa.string()),
        ("queue", pa.int32()), ("begin", pa.int64()), ("end", pa.int64()), ("rows", pa.int64()),
    ]
)  # fmt: skip


def answer(files: Iterable[DataFile]) -> Iterator[pa.RecordBatch]:
    """What ``read`` of the job's source yields."""
    rows = [(file.path, file.bytes, *queue, *file.queues[queue]) for file in files for queue in file.queues]
    if rows:
        columns = zip(*rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _ANSWER, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_ANSWER)


def answered(found: Iterable[Any]) -> list[DataFile]:
    """The files of the rows that the job has collected."""
    files: dict[str, DataFile] = {}
    for path, size, topic, broker, queue, begin, end, rows in found:
        old = files.get(path)
        held = dict(old.queues) if old else {}
        held[Queue(topic, broker, queue)] = Span(begin, end, rows)
        files[path] = DataFile(path, sum(span.rows for span in held.values()), size, held)
    return list(files.values())
