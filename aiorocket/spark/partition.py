"""What one task of a batch or stream query reads, and how: ranges are pulled ahead in the background while Spark takes
record batches."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, closing
from types import FrameType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from aiorocket.spark.bridge import client as shared_client
from aiorocket.spark.bridge import iterate
from aiorocket.spark.failures import untraced
from aiorocket.spark.fetch import Chunk, check_rows, fetch

if TYPE_CHECKING:
    from aiorocket.spark.options import SourceOptions
    from aiorocket.spark.planner import QueueRange

__all__ = ("QueuePartition", "cores", "flush_worker", "read_partition")


class QueuePartition(InputPartition):
    """What one task reads."""

    def __init__(self, ranges: Sequence[QueueRange]) -> None:
        super().__init__(tuple(ranges))


def cores(options: SourceOptions) -> int:
    """How many tasks may run at a time: what the driver said of its executors, else the processors that this process
    may use. It plans beside the driver, and Spark tells it nothing of them; long topics are split by rows as well
    (``SPLIT_ROWS``)."""
    if options.parallelism is not None:
        return options.parallelism
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@untraced
def read_partition(partition: InputPartition, options: SourceOptions, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a ``QueuePartition`` with the columns ``names``, in queue order and offset order within a queue.

    Brokers pick tags by their hash, and so tags are compared again here. DataLossError as of ``fetch``; ProtocolError
    for damaged records."""
    ranges = partition.value
    if not ranges:  # what Spark makes up for a plan without partitions
        return
    with closing(iterate(_chunks, ranges, options)) as chunks:
        for chunk in chunks:
            for batch in _batches(chunk, options, names):
                if batch.num_rows:
                    yield batch
                    flush_worker()
                del batch  # not kept in memory while the next one is decoded


def flush_worker() -> None:
    """Hands the rest of the batch that PySpark was given last to the JVM; to be called inside of what it iterates over.

    A worker writes through a buffer of 64 KiB, where the end of a batch waits for the beginning of the next one: the
    JVM, with nearly all of a batch, would stand still while we decode another. (Measured on two cores: 6 ms between
    batches cost a quarter of the rows per second, and nothing with a flush.) PySpark 4.3 flushes for UDFs that it calls
    pipelined, and no version lets a source ask for it. So the stream is taken from where it is written,
    ``dump_stream``; where PySpark has no such thing, nothing is flushed."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "dump_stream":
        frame = frame.f_back
    stream = None if frame is None else frame.f_locals.get("stream")
    if isinstance(stream, io.BufferedIOBase):
        stream.flush()


def _batches(chunk: Chunk, options: SourceOptions, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a chunk: one batch, unless their bodies unfold to more than a worker should hold at a time."""
    from aiorocket.spark.decode import UnfoldedError

    rows, begin, legacy = 0, chunk.begin, options.legacy_schema
    while begin < chunk.end:
        end, batch = chunk.end, None
        try:
            batch = _decoded(chunk, begin, end, options, names, legacy)
        except UnfoldedError as error:
            if error.offset <= begin:  # records that are in no order
                raise
            end = error.offset
        if batch is None:  # not above, where the error keeps what it has unfolded
            batch = _decoded(chunk, begin, end, options, names, legacy)
        rows += batch.num_rows
        if end == chunk.end:
            check_rows(chunk, rows, options)
        if options.tags:
            # The legacy schema has no column of tags.
            tags = batch if "tags" in names else _decoded(chunk, begin, end, options, ("tags",), False)
            batch = batch.filter(_one_of(tags.column("tags"), options.tags))
        yield batch
        del batch
        begin = end


def _decoded(
    chunk: Chunk, begin: int, end: int, options: SourceOptions, names: Sequence[str], legacy: bool
) -> pa.RecordBatch:
    from aiorocket.spark.decode import decode

    return decode(
        chunk.data, chunk.queue.broker_name, names, begin=begin, end=end,
        verify_crc=options.verify_crc, decompress=options.decompress, legacy=legacy,
    )  # fmt: skip


def _one_of(column: Any, values: Sequence[str]) -> Any:
    import pyarrow.compute as pc

    return pc.is_in(column, value_set=pa.array(values, pa.string()))


async def _chunks(ranges: Sequence[QueueRange], options: SourceOptions) -> AsyncGenerator[Chunk, None]:
    async with aclosing(fetch(await shared_client(options.connection), ranges, options)) as chunks:
        async for chunk in chunks:
            yield chunk
