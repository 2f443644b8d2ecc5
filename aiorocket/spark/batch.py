"""The batch reader: positions become offsets and offsets become partitions when a query is planned, in the driver;
partitions are read in tasks (``partition.py``)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from aiorocket.spark.bridge import call, holding
from aiorocket.spark.bridge import client as shared_client
from aiorocket.spark.filters import Pushed, push
from aiorocket.spark.partition import QueuePartition, cores, read_partition
from aiorocket.spark.planner import QueueRange, plan
from aiorocket.spark.positions import ending_offsets, present, starting_offsets

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from aiorocket.spark.options import SourceOptions

__all__ = ("BatchReader", "PushingReader")

_log = logging.getLogger("aiorocket.spark")


class BatchReader(DataSourceReader):
    """Reads the columns ``names`` between two positions of every queue, both fixed when the query is planned."""

    def __init__(self, options: SourceOptions, names: tuple[str, ...]) -> None:
        self.options = options
        self.names = names
        self._pushed: Pushed | None = None

    def partitions(self) -> Sequence[InputPartition]:
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
        self._pushed, unhandled = push(filters, self.options)
        if self._pushed != Pushed():
            _log.warning(
                "pushDown: this DataFrame or view gives only what the filters of this query leave, to other queries "
                "too (Spark keeps them): load() another one for the next query"
            )
        return unhandled


async def _resolve(options: SourceOptions, pushed: Pushed | None) -> list[QueueRange]:
    client = await shared_client(options.connection)
    with holding(client):
        bounds = await present(client, options)
        begins = await starting_offsets(client, options, bounds)
        ends = await ending_offsets(client, options, bounds)
        ranges = [QueueRange(queue, begins[queue], ends[queue]) for queue in sorted(bounds)]
        if pushed is not None:
            ranges = await pushed.trim_by_time(client, pushed.trim(ranges))
    return [part for part in ranges if part.begin < part.end]
