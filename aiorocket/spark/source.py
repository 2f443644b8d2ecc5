"""The data source ``rocketmq``, and its batch reader.

A query is planned in the driver, where starting and ending positions become offsets and offsets become partitions, and
read in tasks (``partition.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from aiorocket.spark.options import SourceOptions
from aiorocket.spark.partition import QueuePartition, cores, read_partition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import (
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
        Filter,
    )
    from pyspark.sql.types import StructType

    from aiorocket.spark.filters import Pushed
    from aiorocket.spark.planner import QueueRange

__all__ = ("BatchReader", "PushingReader", "RocketMQDataSource")

_log = logging.getLogger("aiorocket.spark")


class RocketMQDataSource(DataSource):
    """``format("rocketmq")`` for ``spark.read``, ``spark.readStream``, ``df.write`` and ``df.writeStream``. Options and
    columns are in this folder's README.md; UsageError says which of them cannot be."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> StructType:
        from aiorocket.spark.columns import spark_schema

        return spark_schema(SourceOptions.parse(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.parse(self.options).for_batch()
        # Spark refuses a reader that can take filters while its own switch for that is off, so only who asks gets one.
        return (PushingReader if options.push_down else BatchReader)(options, _names(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from aiorocket.spark.stream import StreamReader

        options = SourceOptions.parse(self.options).for_stream()
        return StreamReader(options, _names(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from aiorocket.spark.sink import batch_writer

        return batch_writer(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from aiorocket.spark.sink import stream_writer

        return stream_writer(schema, self.options, overwrite)


def _names(schema: StructType, options: SourceOptions) -> tuple[str, ...]:
    from aiorocket.spark.columns import columns_of

    return columns_of(schema, legacy=options.legacy_schema)


class BatchReader(DataSourceReader):
    """Reads the columns ``names`` between two positions of every queue, both fixed when the query is planned."""

    def __init__(self, options: SourceOptions, names: tuple[str, ...]) -> None:
        self.options = options
        self.names = names
        self._pushed: Pushed | None = None

    def partitions(self) -> Sequence[InputPartition]:
        from aiorocket.spark.bridge import call
        from aiorocket.spark.planner import plan

        ranges = call(_resolve, self.options, self._pushed)
        return [QueuePartition(part) for part in plan(ranges, cores=cores(), options=self.options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        options = self.options if self._pushed is None else self._pushed.apply(self.options)
        return read_partition(partition, options, self.names)


class PushingReader(BatchReader):
    """The same, leaving out what Spark's filters say nobody wants: option ``pushDown``.

    For one query only: Spark, 4.3 and earlier, keeps what a reader has planned with the relation and not with the
    query, so any other query on the same DataFrame or view gets the rows that these filters left."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        from aiorocket.spark.filters import Pushed, push

        self._pushed, unhandled = push(filters, self.options)
        if self._pushed != Pushed():
            _log.warning(
                "pushDown: this DataFrame or view gives only what the filters of this query leave, to other queries "
                "too (Spark keeps them): load() another one for the next query"
            )
        return unhandled


async def _resolve(options: SourceOptions, pushed: Pushed | None) -> list[QueueRange]:
    from aiorocket.spark.bridge import client as shared_client
    from aiorocket.spark.bridge import holding
    from aiorocket.spark.planner import QueueRange
    from aiorocket.spark.positions import ending_offsets, present, starting_offsets

    client = await shared_client(options.connection)
    with holding(client):
        bounds = await present(client, options)
        begins = await starting_offsets(client, options, bounds)
        ends = await ending_offsets(client, options, bounds)
        ranges = [QueueRange(queue, begins[queue], ends[queue]) for queue in sorted(bounds)]
        if pushed is not None:
            ranges = await pushed.trim_by_time(client, pushed.trim(ranges))
    return [part for part in ranges if part.begin < part.end]
