"""Where the rows of a step come from: an archive or a topic, both as a DataFrame in the row schema."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from aiorocket.spark.columns import spark_schema
from aiorocket.spark.steps.files.folder import CHECKED
from aiorocket.spark.steps.files.manifest import DATA, LAST_HOUR, PARTITIONS, Archive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from aiorocket.spark.planner import QueueRange
    from aiorocket.spark.steps.files.manifest import Archive, DataFile

__all__ = (
    "archive_rows", "in_ranges", "overlapping", "parallelism", "read_files", "topic_rows", "with_hours",
    "write_hours", "write_parquet",
)  # fmt: skip


def archive_rows(
    spark: SparkSession,
    path: str,
    *,
    topics: Sequence[str] | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """The rows of the archive at ``path``, of ``topics`` if given, stored at ``since`` or later and before ``until``.

    Reads the files that the manifest names when this is called, no others, and of those only the hours asked for; it
    does not see what is archived later. Columns and their order are those of the source. UsageError where no archive
    is, and for a ``since`` or ``until`` without time zone; RocketError names a file that is gone or has another length
    or footer (on a disk), Spark one that is damaged elsewhere.
    """
    archive = Archive.open(path)
    return read_files(spark, archive, archive.snapshot().select(topics, since, until), since, until)


def topic_rows(spark: SparkSession, name_server: str, topic: str, **options: object) -> DataFrame:
    """The rows of ``topic`` (several with commas between) as a batch read, in as many tasks as the session's executors
    can run at a time, when there are rows for them; ``options`` are those of the source."""
    reader = spark.read.format("rocketmq").option("nameServer", name_server).option("topic", topic)
    return reader.options(**parallelism(spark) | {name: str(value) for name, value in options.items()}).load()


def parallelism(spark: SparkSession) -> dict[str, str]:
    """The option of the source that says how many tasks the executors there are now run at a time: Spark has the source
    planned by a process that it tells nothing of them. Nothing with Spark Connect, whose client knows no executors."""
    from pyspark.sql import SparkSession

    if not isinstance(spark, SparkSession):
        return {}
    return {"parallelism": str(spark.sparkContext.defaultParallelism)}


def read_files(
    spark: SparkSession,
    archive: Archive,
    files: Sequence[DataFile],
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """The rows of these files of an archive, those stored in ``[since, until)``, in the archive's columns."""
    if not files:
        return spark.createDataFrame([], spark_schema(archive.columns))
    archive.folder.need(files)
    # Told, not guessed from folder names: a topic may be called 007.
    reader = spark.read.schema(spark_schema(archive.columns)).option("basePath", archive.folder.uri(DATA))
    df = reader.options(**CHECKED).parquet(*(archive.folder.uri(file.path) for file in files)).select(*archive.columns)
    if since is not None:
        df = df.where(F.col("storeTimestamp") >= F.lit(since))
    if until is not None:
        df = df.where(F.col("storeTimestamp") < F.lit(until))
    return df


def overlapping(files: Iterable[DataFile], ranges: Iterable[QueueRange]) -> list[DataFile]:
    """The files that hold offsets of ``ranges``."""
    wanted = {each.queue: each for each in ranges}
    return [
        file
        for file in files
        if any(
            span.begin < wanted[queue].end and wanted[queue].begin < span.end
            for queue, span in file.queues.items()
            if queue in wanted
        )
    ]


def in_ranges(df: DataFrame, ranges: Iterable[QueueRange]) -> DataFrame:
    """The rows of ``df`` whose offsets lie in ``ranges``."""
    told = [(*each.queue, each.begin, each.end) for each in ranges]
    # Parquet knows the offsets of its row groups, and skips those that lie outside; a join does not tell it.
    least, most = min((each[3] for each in told), default=0), max((each[4] for each in told), default=0)
    df = df.where((F.col("queueOffset") >= least) & (F.col("queueOffset") < most))
    schema = "topic STRING, brokerName STRING, queueId INT, _begin LONG, _end LONG"
    bounds = df.sparkSession.createDataFrame(told, schema)
    df = df.join(F.broadcast(bounds), ["topic", "brokerName", "queueId"])
    return df.where("queueOffset >= _begin AND queueOffset < _end").drop("_begin", "_end")


def with_hours(df: DataFrame) -> DataFrame:
    """Adds ``dt`` and ``hour``, from ``storeTimestamp`` in UTC; rows without one, or with one that no folder can be
    named after, belong to hour 0 of 1970."""
    # Computed from the instant, so that the session's time zone has no say.
    times = f"unix_micros(storeTimestamp) BETWEEN 0 AND {(LAST_HOUR + 1) * 3_600_000_000 - 1}"
    df = df.withColumn("hour", F.expr(f"IF({times}, unix_micros(storeTimestamp) DIV 3600000000, 0)"))
    df = df.withColumn("dt", F.expr("cast(date_from_unix_date(cast(floor(hour / 24) as int)) as string)"))
    return df.withColumn("hour", F.expr("lpad(cast(pmod(hour, 24) as string), 2, '0')"))


def write_hours(df: DataFrame, location: str) -> None:
    """Writes rows that have ``dt`` and ``hour`` as Parquet files of an archive, in folders of topic and hour."""
    write_parquet(df, location, PARTITIONS)


def write_parquet(df: DataFrame, location: str, partitions: Sequence[str] = ()) -> None:
    """Writes rows to a folder as what a Delta or an Iceberg table can take over."""
    # INT96, Spark's default, is a type of timestamp that Delta does not have.
    name, spark = "spark.sql.parquet.outputTimestampType", df.sparkSession
    before = spark.conf.get(name) or "INT96"
    spark.conf.set(name, "TIMESTAMP_MICROS")
    try:
        df.write.option("compression", "zstd").parquet(location, partitionBy=list(partitions) or None)
    finally:
        spark.conf.set(name, before)
