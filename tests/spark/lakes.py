"""Archives made by hand, without Spark or a broker: rows of chosen queues, offsets and hours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

import pyarrow as pa

from aiorocket.model import Queue
from aiorocket.spark.columns import ROW_COLUMNS, arrow_schema
from aiorocket.spark.steps.files.hours import HourWriter, lasting
from aiorocket.spark.steps.files.manifest import Archive, Commit, FileOrigin, Snapshot, Span, spans

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
_NAMES = [name for name in ROW_COLUMNS if name != "topic"]


def rows_of(queue: Queue, offsets: Iterable[int], minutes: int = 1, columns: Iterable[str] = _NAMES) -> pa.RecordBatch:
    """Rows of ``queue``; offset n was stored n times ``minutes`` after NOON."""
    numbers = list(offsets)
    begin = int(NOON.timestamp() * 1_000_000)
    schema = arrow_schema([name for name in columns if name != "topic"])
    values: Mapping[str, list[object]] = {
        "brokerName": [queue.broker_name] * len(numbers),
        "queueId": [queue.queue_id] * len(numbers),
        "queueOffset": list(numbers),
        "msgId": [f"{queue.queue_id}-{number}" for number in numbers],
        "body": [f"body {number}".encode() for number in numbers],
        "properties": [
            [("number", str(each)), ("__SHARDINGKEY", f"s{each}"), ("UNIQ_KEY", f"id{each}")] for each in numbers
        ],
        "bornTimestamp": [begin + number * minutes * 60_000_000 - 1000 for number in numbers],
        "storeTimestamp": [begin + number * minutes * 60_000_000 for number in numbers],
    }
    arrays = [pa.array(values.get(field.name, [None] * len(numbers)), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def make(path: object, *, format: str = "parquet", columns: Iterable[str] = ROW_COLUMNS, **more: bool) -> Archive:
    return Archive.create(str(path), format=format, columns=list(columns), **more)


class CrashError(Exception):
    """The process is gone here."""


def crash_at(name: str, time: int = 1) -> Callable[[str], None]:
    """The ``on_step`` of a process that dies when it comes to ``name``, or comes there for the ``time``th time."""
    seen: list[str] = []

    def step(at: str) -> None:
        seen.append(at)
        if seen.count(name) == time:
            raise CrashError(name)

    return step


def add(
    archive: Archive, ranges: Mapping[Queue, Iterable[int]], minutes: int = 1, snapshot: Snapshot | None = None
) -> Snapshot:
    """Archives these offsets as one commit, as direct mode does; each range counts from its first to its last.
    ``snapshot`` is what the writer knows of the archive, if that is not all."""
    snapshot = archive.snapshot() if snapshot is None else snapshot
    staging = f"_staging/{snapshot.last + 1:010d}-hand"
    writer = HourWriter(archive.folder, staging)
    for queue, offsets in ranges.items():
        writer.add(queue, rows_of(queue, offsets, minutes, archive.columns))
    placed, moves = lasting(archive.folder, writer.finish(), staging, FileOrigin(False, snapshot.last + 1))
    archive.folder.move(moves)
    archive.folder.remove_tree(staging)
    counted = spans(placed)
    return archive.publish(snapshot, Commit(placed, {queue: Span(*counted[queue]) for queue in counted}))
