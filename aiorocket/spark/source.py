"""The data source ``rocketmq``: what Spark asks for a schema, a reader or a writer.

Spark does so in a process of its own for each query, and again for each plan: a reader or a writer is imported when it
is asked for (README, "Imports").
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import __version__
from pyspark.sql.datasource import DataSource

from aiorocket.spark.columns import columns_of, spark_schema
from aiorocket.spark.failures import untraced
from aiorocket.spark.options import SourceOptions
from aiorocket.spark.versions import check_version

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ("RocketMQDataSource",)


class RocketMQDataSource(DataSource):
    """``format("rocketmq")`` for ``spark.read``, ``spark.readStream``, ``df.write`` and ``df.writeStream``. Options and
    columns are in this folder's README.md; UsageError says which of them cannot be."""

    @untraced
    def __init__(self, options: dict[str, str]) -> None:
        check_version(__version__)
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    @untraced
    def schema(self) -> StructType:
        return spark_schema(SourceOptions.parse(self.options))

    @untraced
    def reader(self, schema: StructType) -> DataSourceReader:
        from aiorocket.spark.batch import BatchReader

        options = SourceOptions.parse(self.options).for_batch()
        return BatchReader(options, _names(schema, options))

    @untraced
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from aiorocket.spark.stream import StreamReader

        options = SourceOptions.parse(self.options).for_stream()
        return StreamReader(options, _names(schema, options))

    @untraced
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from aiorocket.spark.sink import batch_writer

        return batch_writer(schema, self.options, overwrite)

    @untraced
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from aiorocket.spark.sink import stream_writer

        return stream_writer(schema, self.options, overwrite)


def _names(schema: StructType, options: SourceOptions) -> tuple[str, ...]:
    return columns_of(schema, legacy=options.legacy_schema)
