"""What an analysing step reads: an archive, a live topic or what an earlier step kept of one, by offsets, so that a
later run goes on where one ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aiorocket.client.pipeline.reading import unwrap, wrap
from aiorocket.errors import UsageError
from aiorocket.model import Queue
from aiorocket.spark import cluster
from aiorocket.spark.bridge import call
from aiorocket.spark.bridge import client as shared_client
from aiorocket.spark.columns import selected_columns
from aiorocket.spark.offsets import format_offsets
from aiorocket.spark.options import SourceOptions
from aiorocket.spark.planner import QueueRange
from aiorocket.spark.steps.files.file_counts import count_files_by_queue
from aiorocket.spark.steps.files.folder import Folder
from aiorocket.spark.steps.files.last_rows import stored_at
from aiorocket.spark.steps.files.manifest import Archive
from aiorocket.spark.steps.proof import QueueCount, count_by_queue
from aiorocket.spark.steps.rows import in_ranges, overlapping, parallelism, read_files
from aiorocket.spark.steps.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

__all__ = ("KEPT", "Input", "Kept", "Rows", "look", "open_rows", "value_type")

Ranges = Mapping[Queue, tuple[int, int]]

#: The steps whose tables a further step can read, each with the part that has its rows.
KEPT = {"decode": "decoded", "dedup": "rows"}


@dataclass(frozen=True)
class Input:
    """An archive (``archive``, of it ``topics`` when given), or ``topic`` (several with commas between) at
    ``name_server``, or the rows that decode or dedup kept in the folder ``table``, all of them. ``since`` and ``until``
    select by store time, ``options`` are those of the source."""

    archive: str | None = None
    topics: tuple[str, ...] | None = None
    name_server: str | None = None
    topic: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    table: str | None = None

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.archive, self.topic, self.table)) != 1:
            raise UsageError("a step reads an archive, a topic or a table: give one of the three")
        if self.table is not None and (self.topics is not None or self.since is not None or self.until is not None):
            raise UsageError(f"table {self.table}: a step reads all of it, without topics, since and until")
        if self.topic is not None and self.name_server is None:
            raise UsageError(f"topic {self.topic}: reading it needs a name server")
        for name, at in (("since", self.since), ("until", self.until)):
            if at is not None and at.tzinfo is None:
                raise UsageError(f"{name}={at.isoformat()} has no time zone: give it one, for instance tzinfo=UTC")

    def columns(self) -> tuple[str, ...]:
        """Those of its rows, without a session. UsageError where no archive or table is, and for options that the
        source refuses; none of a table that nothing was written to."""
        if self.archive is not None:
            return Archive.open(self.archive).columns
        if self.table is not None:
            schema = _table(self.table).schema_of(_part(self.table))
            return () if schema is None else tuple(schema.names)
        text = {**self.options, "nameServer": self.name_server or "", "topic": self.topic or ""}
        return selected_columns(SourceOptions.parse(text))

    def look(self) -> None:
        """Asks, without a session, for what ``open_rows`` would not find: the topics, and somebody who answers."""
        if self.topic is not None:
            text = {**self.options, "nameServer": self.name_server or "", "topic": self.topic}
            call(look, SourceOptions.parse(text))
        elif self.archive is not None and self.topics is not None:
            Archive.open(self.archive).snapshot().check_topics(self.topics)

    def settings(self) -> dict[str, object]:
        """What a table made of this must not be mixed with: another source or another selection of rows. Of a table
        that was removed and made anew nobody knows whether it kept the same rows."""
        if self.table is not None:
            table = _table(self.table)
            return {"table": f"{table.step} {table.id}"}
        return {
            "archive": None if self.archive is None else Folder(self.archive).location,
            "topics": None if self.topics is None else sorted(self.topics),
            "topic": self.topic, "since": None if self.since is None else self.since.isoformat(),
            "until": None if self.until is None else self.until.isoformat(),
            "filters": {name: self.options[name] for name in sorted(self.options) if name in ("tags", "sqlFilter")},
        }  # fmt: skip


class Kept(NamedTuple):
    """Of which step rows are, how many its records name, and what lacked in each queue when it read."""

    step: str
    rows: int
    missing: Mapping[Queue, int]


class Rows(Protocol):
    """An opened input. ``ranges`` are the offsets that it has now, topics named as the rows name them; ``provable``
    says whether each of these offsets has to be among the rows."""

    ranges: Ranges
    provable: bool
    #: Whether reading twice means asking the brokers twice.
    costly: bool
    #: What an earlier step kept, of some of the offsets.
    kept: Kept | None = None

    def read(self, ranges: Sequence[QueueRange]) -> DataFrame:
        """The rows of these parts of ``ranges``."""

    def count(self, ranges: Sequence[QueueRange], rows: DataFrame) -> Mapping[Queue, QueueCount]:
        """``rows`` (what ``read`` gave, perhaps kept) counted by queue."""

    def stored(self, offsets: Mapping[Queue, int]) -> dict[Queue, int]:
        """When brokers stored the messages at these offsets, in milliseconds since 1970 UTC, where they have them; of
        an archive nothing, which compares that itself."""


def open_rows(spark: SparkSession, given: Input) -> Rows:
    """Looks up what there is to read now. UsageError where no archive or table is, TopicNotFoundError for a topic that
    is not there, and what the options of the source may raise."""
    if given.table is not None:
        return _Kept(spark, given.table)
    return _Archived(spark, given) if given.archive is not None else _Live(spark, given)


class _Archived(Rows):
    costly = False

    def __init__(self, spark: SparkSession, given: Input) -> None:
        assert given.archive is not None
        self._spark = spark
        self._given = given
        self._archive = Archive.open(given.archive)
        snapshot = self._archive.snapshot()
        snapshot.check_topics(given.topics)
        self._files = snapshot.select(given.topics, given.since, given.until)
        self.ranges = snapshot.ranges(given.topics)
        self.provable = not self._archive.filtered and given.since is None and given.until is None

    def read(self, ranges: Sequence[QueueRange]) -> DataFrame:
        files = overlapping(self._files, ranges)
        df = read_files(self._spark, self._archive, files, self._given.since, self._given.until)
        if {each.queue: (each.begin, each.end) for each in ranges} == self.ranges:
            # All of it: nothing to compare. A commit that came since then is in files that were not selected.
            return df if self._given.topics is None else df.where(df["topic"].isin(*self._given.topics))
        return in_ranges(df, ranges).select(*self._archive.columns)

    def count(self, ranges: Sequence[QueueRange], rows: DataFrame) -> Mapping[Queue, QueueCount]:
        counts = None
        if self._given.since is None and self._given.until is None:
            told = {each.queue: (each.begin, each.end) for each in ranges}
            counts = count_files_by_queue(self._spark, self._archive, overlapping(self._files, ranges), told)
        return count_by_queue(rows) if counts is None else counts

    def stored(self, offsets: Mapping[Queue, int]) -> dict[Queue, int]:
        return {}


class _Kept(Rows):
    """As it is now: what comes to the table meanwhile is for the next run. Some offsets of ``ranges`` have no row,
    since the step put them elsewhere, so not each is looked for: all rows together have to be as many as the records
    name."""

    costly = provable = False

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._table, self._part = _table(path), _part(path)
        self._snapshot = self._table.snapshot()
        self.ranges = self._snapshot.ranges
        self.kept = Kept(self._table.step, self._snapshot.rows(self._part), self._snapshot.missing)

    def read(self, ranges: Sequence[QueueRange]) -> DataFrame:
        df = self._table.rows(self._spark, self._part, self._snapshot)
        if df is None:
            raise UsageError(f"{self._table.folder.location}: nothing was written there yet")
        if {each.queue: (each.begin, each.end) for each in ranges} == self.ranges:
            return df
        return in_ranges(df, ranges).select(*df.columns)

    def count(self, ranges: Sequence[QueueRange], rows: DataFrame) -> Mapping[Queue, QueueCount]:
        return count_by_queue(rows)

    def stored(self, offsets: Mapping[Queue, int]) -> dict[Queue, int]:
        return {}  # the step has compared it


def _table(path: str) -> Table:
    """UsageError where none is that a step can read."""
    table = Table.there(path)
    if table is None:
        raise UsageError(f"{path}: there is no table of a step")
    if table.step not in KEPT:
        raise UsageError(f"{path}: the table of {table.step} has no rows of messages; those of {', '.join(KEPT)} have")
    return table


def value_type(given: Input) -> DataType | None:
    """The type of ``value``, where the input is a table of decoded rows."""
    return None if given.table is None else _table(given.table).type_of(_part(given.table), "value")


def _part(path: str) -> str:
    return KEPT[_table(path).step]


class _Live(Rows):
    costly = True

    def __init__(self, spark: SparkSession, given: Input) -> None:
        self._spark = spark
        self._text = {**given.options, "nameServer": given.name_server or "", "topic": given.topic or ""}
        options = SourceOptions.parse(self._text)
        self._options = options
        self._namespace = options.connection.namespace
        self._known = call(_bounds, options, _millis(given.since), _millis(given.until))
        self.ranges = {
            queue._replace(topic=wrap(self._namespace, queue.topic)): each for queue, each in self._known.items()
        }
        self.provable = not (options.tags or options.sql_filter)

    def read(self, ranges: Sequence[QueueRange]) -> DataFrame:
        # The source wants to hear of every queue; one that is not read begins where it ends.
        begins = {queue: end for queue, (_, end) in self._known.items()}
        ends = dict(begins)
        for each in ranges:
            queue = each.queue._replace(topic=unwrap(self._namespace, each.queue.topic))
            begins[queue], ends[queue] = each.begin, each.end
        reader = self._spark.read.format("rocketmq").options(**parallelism(self._spark) | self._text)
        reader = reader.option("startingOffsets", format_offsets(begins)).option("endingOffsets", format_offsets(ends))
        return reader.load()

    def count(self, ranges: Sequence[QueueRange], rows: DataFrame) -> Mapping[Queue, QueueCount]:
        return count_by_queue(rows)

    def stored(self, offsets: Mapping[Queue, int]) -> dict[Queue, int]:
        found = stored_at(self._options, offsets)
        return {queue: at_ms for queue, at_ms in found.items() if at_ms is not None}


async def look(options: SourceOptions) -> None:
    """Asks the name server for the topics. TopicNotFoundError for one that is not there, and errors of connections."""
    await cluster.queues(await shared_client(options.connection), options)


async def _bounds(options: SourceOptions, since: int | None, until: int | None) -> dict[Queue, tuple[int, int]]:
    client = await shared_client(options.connection)
    bounds = await cluster.bounds(client, await cluster.queues(client, options))
    begins = {queue: each.begin for queue, each in bounds.items()}
    ends = {queue: each.end for queue, each in bounds.items()}
    if since is not None:
        begins = await cluster.offsets_at(client, bounds, since)
    if until is not None:
        ends = await cluster.offsets_at(client, bounds, until)
    return {queue: (begins[queue], max(begins[queue], ends[queue])) for queue in bounds}


def _millis(at: datetime | None) -> int | None:
    return None if at is None else round(at.timestamp() * 1000)
