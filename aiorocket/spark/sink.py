"""The sink: ``df.write.format("rocketmq")`` and ``df.writeStream.format("rocketmq")``.

Option ``sinkMode``:

* ``atLeastOnce`` (default): rows are sent in batches, and a task ends only when a broker has acknowledged every one. A
  task that fails and a batch that is replayed send their rows again.
* ``idempotent``: the same, and each message carries the property SPARK_TXN = query/batch/partition/row, by which
  readers can drop repetitions. Sound when a repetition computes the same rows in the same partitions and order.
* ``exactlyOnce``: see ``exactly_once``. Slower: no batches, two requests a row, and a ledger. The order of rows of one
  queue or sharding key holds as long as nothing has to be asked for by a broker.

A stream is named by its query id, so that of its checkpoint. A batch write is named by the option ``queryId``: a second
one of the same name writes nothing in mode exactlyOnce. Without it each write is a new one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from aiorocket.errors import RocketError, UsageError
from aiorocket.runtime.entropy import Entropy
from aiorocket.spark import bridge
from aiorocket.spark.failures import untraced
from aiorocket.spark.options import SinkOptions
from aiorocket.spark.outgoing_rows import ATTEMPT, LEDGER, Columns, Labels, OutgoingRow

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from aiorocket.spark.exactly_once import Halves

__all__ = ("BatchWriter", "StreamWriter", "Written", "batch_writer", "stream_writer")

_log = logging.getLogger(__name__)

_QUERY_ID = re.compile(r"[!-~]{1,200}", re.ASCII)
#: How long a task that failed tries to roll back what it sent, in seconds.
_ROLLBACK = 10.0


def batch_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> BatchWriter:
    """The writer of a batch write. UsageError for options, columns and modes that cannot work."""
    if overwrite:
        raise UsageError('mode("overwrite"): a topic can only be appended to; say mode("append")')
    settings = SinkOptions.parse(options)
    query = settings.query_id
    if query is not None and not _QUERY_ID.fullmatch(query):
        raise UsageError(f"queryId={query!r:.220}: 1 to 200 visible ASCII characters, no blanks")
    return BatchWriter(_columns(schema, settings), settings, query or f"job-{Entropy().token(12).hex()}")


def stream_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> StreamWriter:
    """The writer of a stream. UsageError for options, columns and modes that cannot work."""
    if overwrite:
        raise UsageError('outputMode("complete") rewrites its output: a topic takes "append" and "update" only')
    settings = SinkOptions.parse(options)
    if settings.query_id is not None:
        raise UsageError("queryId names a batch write; a stream is named by its checkpoint")
    return StreamWriter(_columns(schema, settings), settings)


def _columns(schema: StructType, settings: SinkOptions) -> Columns:
    return Columns(
        [column.name for column in schema.fields],
        [column.dataType.simpleString() for column in schema.fields],
        topic=settings.topic,
        transactional=settings.mode == "exactlyOnce",
    )


@dataclass
class Written(WriterCommitMessage):
    """What one task has written. ``halves`` in mode exactlyOnce; ``skipped``: it found the batch in the ledger, and
    ``rows`` is what it passed over."""

    query: str
    batch: int
    partition: int
    rows: int = 0
    halves: Halves | None = None
    skipped: bool = False


class _Sink:
    """What both writers do. Plain data: it is pickled into tasks."""

    def __init__(self, columns: Columns, settings: SinkOptions) -> None:
        self.columns = columns
        self.settings = settings

    def _write(self, batches: Iterator[pa.RecordBatch], query: str, batch: int, first: bool) -> Written:
        from aiorocket.spark import sink_work

        context = TaskContext.get()
        if context is None:
            raise UsageError("write() belongs into a Spark task")
        written = Written(query, batch, context.partitionId())
        settings = self.settings
        where = f"partition {written.partition}"
        if settings.mode != "exactlyOnce":
            prefix = f"{query}/{batch}/{written.partition}/" if settings.mode == "idempotent" else None
            for rows in self._rows(batches, where, Labels(prefix)):
                bridge.call(sink_work.send, settings, rows, where)
                written.rows += len(rows)
            return written
        if bridge.call(sink_work.decided, settings, query, batch, first):
            _log.info("query %s, batch %d is in the ledger: nothing is written", query, batch)
            written.rows = sum(each.num_rows for each in batches)  # as many as were decided on, or something is wrong
            written.skipped = True
            return written
        attempt = f"{written.partition}-{context.taskAttemptId()}-{Entropy().token(8).hex()}"
        halves = written.halves = sink_work.Halves(attempt)
        labels = Labels(f"{query}/{batch}/{written.partition}/", ((ATTEMPT, attempt), (LEDGER, settings.ledger_topic)))
        try:
            for rows in self._rows(batches, where, labels):
                bridge.call(sink_work.send_halves, settings, rows, where, halves)
                written.rows += len(rows)
        except BaseException:
            # No entry can name an attempt that has not ended well; what this misses is rolled back by check-back.
            if len(halves):
                try:
                    bridge.call(sink_work.abort, settings, query, batch, [halves], timeout=_ROLLBACK)
                except RocketError as error:
                    _log.warning("query %s, batch %d, %s: not rolled back now: %s", query, batch, where, error)
            raise
        return written

    def _rows(self, batches: Iterator[pa.RecordBatch], where: str, labels: Labels) -> Iterator[list[OutgoingRow]]:
        number = 0
        for batch in batches:
            if batch.num_rows:
                yield self.columns.rows(batch, where=where, first=number, labels=labels)
                number += batch.num_rows

    @untraced
    def _commit(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        from aiorocket.spark import sink_work

        written = [each for each in messages if isinstance(each, Written)]
        if self.settings.mode != "exactlyOnce" or not written:
            return
        parts = [each.halves for each in written if each.halves is not None]
        skipped = any(each.skipped for each in written)
        rows = sum(each.rows for each in written)
        bridge.call(sink_work.commit, self.settings, written[0].query, batch, parts, skipped, rows)

    @untraced
    def _abort(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        from aiorocket.spark import sink_work

        written = [each for each in messages if isinstance(each, Written)]
        if self.settings.mode != "exactlyOnce" or not written:
            return
        query = written[0].query
        if len(written) == len(messages):
            # Every task ended well, so perhaps commit has been called, and perhaps the ledger has the entry or will.
            _log.warning("query %s, batch %d: aborted; its half messages are left to check-back", query, batch)
            return
        parts = [each.halves for each in written if each.halves is not None]
        bridge.call(sink_work.abort, self.settings, query, batch, parts)


class BatchWriter(_Sink, DataSourceArrowWriter):
    """Of a batch write, whose name is ``query`` and whose one batch is number 0."""

    def __init__(self, columns: Columns, settings: SinkOptions, query: str) -> None:
        super().__init__(columns, settings)
        self.query = query

    @untraced
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """In a task: returns when every row is acknowledged. RowError and SendError name the row."""
        return self._write(iterator, self.query, 0, True)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._commit(messages, 0)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._abort(messages, 0)


class StreamWriter(_Sink, DataSourceStreamArrowWriter):
    """Of a stream. Its commit runs on another object than its writes: what it knows comes with the messages."""

    @untraced
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """In a task: returns when every row is acknowledged. RowError and SendError name the row."""
        context = TaskContext.get()
        query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
        batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
        if query is None or batch is None:
            raise UsageError("write() of a stream belongs into a task of a streaming query")
        return self._write(iterator, query, int(batch), batch == "0")

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._commit(messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._abort(messages, batchId)
