"""Drives the sink without Spark: tasks as Spark would run them, and what a topic holds afterwards."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from aiorocket.client.app import Client
from aiorocket.client.queue_scan import QueueScan
from aiorocket.errors import TopicNotFoundError
from aiorocket.runtime import run
from aiorocket.spark.sink import BatchWriter, StreamWriter, Written, batch_writer, stream_writer
from aiorocket_protocol import RecordView
from tests.spark.producing import PATIENT


@contextmanager
def task(partition: int = 0, *, query: str | None = None, batch: int | None = None) -> Iterator[None]:
    """A task of a batch write, or of a stream's batch."""
    before = TaskContext.get()  # the constructor sets it too
    context = TaskContext()
    context._stageId, context._partitionId, context._attemptNumber = 0, partition, 0
    context._taskAttemptId = partition
    context._localProperties = {}
    if query is not None:
        context._localProperties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}
    TaskContext._setTaskContext(context)
    try:
        yield
    finally:
        TaskContext._setTaskContext(before)


def bodies(*values: str | bytes) -> pa.RecordBatch:
    """A frame of bodies alone."""
    data = [value.encode() if isinstance(value, str) else value for value in values]
    return pa.RecordBatch.from_arrays([pa.array(data, pa.binary())], names=["body"])


_TYPES = {
    each.simpleString(): each
    for each in (
        BinaryType(), StringType(), IntegerType(), LongType(), TimestampType(), ArrayType(StringType()),
        MapType(StringType(), StringType()),
    )
}  # fmt: skip


def schema(**types: str) -> StructType:
    """By Spark's simple names of types; DDL would need a JVM."""
    return StructType([StructField(name, _TYPES[kind]) for name, kind in types.items()])


BODY = schema(body="binary")


class Stream:
    """A streaming query ``query`` that writes bodies to ``topic``."""

    def __init__(self, nameserver: str, topic: str, query: str, **options: str) -> None:
        self.query = query
        self.options = {"nameServer": nameserver, "topic": topic, "sinkMode": "exactlyOnce", **options}

    def writer(self) -> StreamWriter:
        return stream_writer(BODY, self.options, False)

    def write(self, batch: int, partition: int, *values: str) -> Written:
        """One task, as far as its commit message, which has travelled to the driver."""
        with task(partition, query=self.query, batch=batch):
            written = pickle.loads(pickle.dumps(self.writer())).write(iter([bodies(*values)]))
        message: Written = pickle.loads(pickle.dumps(written))
        return message

    def run(self, batch: int, *partitions: Sequence[str]) -> None:
        """A whole batch."""
        messages = [self.write(batch, number, *values) for number, values in enumerate(partitions)]
        self.writer().commit(messages, batch)


def write_batch(nameserver: str, frame: pa.RecordBatch, columns: StructType, **options: str) -> BatchWriter:
    """A batch write of one task, committed."""
    writer = batch_writer(columns, {"nameServer": nameserver, **options}, False)
    with task():
        written = writer.write(iter([frame]))
    writer.commit([written])
    return writer


def stored(nameserver: str, topic: str) -> list[RecordView]:
    """Every message of a topic that readers can see, queue by queue; [] for a topic that is not there."""
    return run(_stored(nameserver, topic))


def values(nameserver: str, topic: str) -> list[str]:
    """Their bodies, sorted."""
    return sorted(view.body.decode() for view in stored(nameserver, topic))


async def _stored(nameserver: str, topic: str) -> list[RecordView]:
    found: list[RecordView] = []
    async with Client(nameservers=nameserver, config=PATIENT) as client:
        try:
            route = await client.session.route(topic)
        except TopicNotFoundError:
            return []
        for queue in route.subscribe:
            scan = QueueScan(client.session, queue, route.reader(queue.broker_name) or "")
            begin, end = await scan.bounds()
            found += [view async for view in scan.messages(begin, end, RecordView)]
    return found
