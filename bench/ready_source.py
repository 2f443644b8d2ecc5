"""The Spark source that no other in Python can outrun: its rows are Arrow record batches that lie ready in memory.

It asks nobody and decodes nothing, so its time is Spark's own for rows that come from a Python worker: Arrow's stream
to the JVM, and rows out of its columns there. ``keep`` takes a source's batches, ``ReadySource`` yields the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from aiorocket.spark.partition import flush_worker
from bench.naive_source import SCHEMA

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ("ReadySource", "keep")


def keep(source: DataSource, path: str) -> int:
    """Reads all of ``source``, a batch read with all columns, into the file ``path``; how many rows."""
    reader, rows = source.reader(source.schema()), 0  # type: ignore[arg-type]  # ours gives a StructType
    with pa.OSFile(path, "wb") as file:
        writer = None
        for partition in reader.partitions():
            for batch in reader.read(partition):
                assert isinstance(batch, pa.RecordBatch)
                writer = writer or pa.ipc.new_file(file, batch.schema)
                writer.write_batch(batch)
                rows += batch.num_rows
        if writer is not None:
            writer.close()
    return rows


class ReadySource(DataSource):
    """Option ``path``: the file that ``keep`` wrote, which the kernel has in memory. One partition."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self.options["path"])


class _Reader(DataSourceReader):
    def __init__(self, path: str) -> None:
        self._path = path

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(self._path) as file:
            reader = pa.ipc.open_file(file)
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
                flush_worker()
