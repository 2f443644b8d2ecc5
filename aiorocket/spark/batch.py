"""The batch reader: positions become offsets and offsets become partitions when a query is planned, in the driver;
partitions are read in tasks (``partition.py``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from aiorocket.spark.bridge import call, holding
from aiorocket.spark.bridge import client as shared_client
from aiorocket.spark.failures import untraced
from aiorocket.spark.partition import QueuePartition, cores, read_partition
from aiorocket.spark.planner import QueueRange, plan
from aiorocket.spark.positions import ending_offsets, present, starting_offsets

if TYPE_CHECKING:
    import pyarrow as pa

    from aiorocket.spark.options import SourceOptions

__all__ = ("BatchReader",)


class BatchReader(DataSourceReader):
    """Reads the columns ``names`` between two positions of every queue, both fixed when the query is planned."""

    def __init__(self, options: SourceOptions, names: tuple[str, ...]) -> None:
        self.options = options
        self.names = names

    @untraced
    def partitions(self) -> Sequence[InputPartition]:
        ranges = call(_resolve, self.options)
        return [QueuePartition(part) for part in plan(ranges, cores=cores(self.options), options=self.options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self.options, self.names)


async def _resolve(options: SourceOptions) -> list[QueueRange]:
    client = await shared_client(options.connection)
    with holding(client):
        bounds = await present(client, options)
        begins = await starting_offsets(client, options, bounds)
        ends = await ending_offsets(client, options, bounds)
        ranges = [QueueRange(queue, begins[queue], ends[queue]) for queue in sorted(bounds)]
    return [part for part in ranges if part.begin < part.end]
