"""The archive step: a topic becomes Parquet files by topic and hour, every row exactly once.

Two ways to the same archive. ``mode="spark"`` is a streaming query of Spark's: its checkpoint says what a batch reads,
its Parquet writer writes, and a batch that is replayed is known by its number. ``mode="direct"`` (``direct.py``)
leaves the JVM out: tasks write what they decode, and the manifest itself is the checkpoint.

A batch becomes visible in one step: files are written to ``_staging``, moved to their places, then named by the
manifest. A crash before that leaves files that nobody reads, a crash after it a batch that the replay finds done.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Literal

from pyspark.errors import StreamingQueryException

from aiorocket.client.pipeline.reading import unwrap, wrap
from aiorocket.errors import RocketError, UsageError
from aiorocket.model import Queue
from aiorocket.spark.failures import explain
from aiorocket.spark.offsets import format_offsets, from_nested
from aiorocket.spark.steps.archives.archive_run import Hook, Run
from aiorocket.spark.steps.archives.direct import Rounds
from aiorocket.spark.steps.files.hours import written_files
from aiorocket.spark.steps.files.manifest import (
    CHECKPOINT,
    Commit,
    Span,
    spans,
)
from aiorocket.spark.steps.report import ProgressCall, StepReport
from aiorocket.spark.steps.rows import parallelism, with_hours, write_hours

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


__all__ = ("archive",)

#: How often a running query looks at ``stop``.
_LOOK_EVERY = 1
#: How long a stopped query may take to end its batch, and how often it is looked at, in seconds.
_PATIENCE, _LOOK_AT_BATCH = 30.0, 0.05


def archive(
    spark: SparkSession,
    path: str,
    name_server: str,
    topic: str | None = None,
    *,
    mode: Literal["spark", "direct"] = "spark",
    format: Literal["parquet", "delta", "iceberg"] = "parquet",
    max_rows: int | None = None,
    follow: bool = False,
    interval: float = 10.0,
    stop: Callable[[], bool] | None = None,
    on_progress: ProgressCall | None = None,
    on_step: Hook | None = None,
    **options: object,
) -> StepReport:
    """Archives ``topic`` (several with commas between) to ``path``, from where the archive ends, or begins.

    Returns when all that the topic held at the start is archived; with ``follow`` when ``stop`` says so, or at Ctrl-C,
    looking for more every ``interval`` seconds. ``max_rows`` bounds one batch (2,000,000 unless given), or the option
    ``maxOffsetsPerTrigger`` does. ``options`` are those of the source:
    ``startingOffsets`` (earliest unless given) is for queues that are not in the archive yet, ``columns`` for the
    columns to keep, ``topicPattern`` or ``assign`` for what to read in place of ``topic``; ``tags`` and ``sqlFilter``
    make an archive of a selection. ``on_step`` is called between the steps of a batch ("written", "moved", "published",
    "done") for tests that crash there.

    The report's ``missing`` counts what retention, or a source with ``failOnDataLoss=false``, did not leave to archive;
    of a selection nothing can be proved, and ``details["proof"]`` says so. ArchiveConflictError when another run writes
    here, ClaimStoppedError when ``stop`` ended the wait for the claim of one that died; DataLossError when messages
    that were not archived are gone; UsageError for options that cannot be.
    """
    if max_rows is not None and max_rows < 1:
        raise UsageError(f"max_rows={max_rows}: 1 or more")
    if mode not in ("spark", "direct") or format not in ("parquet", "delta", "iceberg"):
        raise UsageError(
            f"mode={mode!r} format={format!r}: mode is 'spark' or 'direct', format 'parquet', 'delta' or 'iceberg'"
        )
    text = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    text |= {"nameServer": name_server, **({"topic": topic} if topic else {})}
    run = Run(spark, path, text, format, max_rows, on_progress, on_step)
    way = Rounds(run) if mode == "direct" else _Stream(run)
    with run.alone(stop):
        way.go(follow, interval, stop)
    return run.report(mode)


class _Stream:
    """Archives through a streaming query of Spark's."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._namespace = run.options.connection.namespace
        self._failed: Exception | None = None
        self._done = 0
        self._busy = Lock()

    def go(self, follow: bool, interval: float, stop: Callable[[], bool] | None) -> None:
        run = self._run
        # What the source does with a queue that is new beside a checkpoint is not for the manifest to say.
        run.find_goal(note=not self._checkpoint())
        text = {name: value for name, value in run.text.items() if not name.lower().startswith("starting")}
        # Spelled out, so that what is read and what the manifest says cannot differ. A checkpoint wins over it.
        begins = {queue._replace(topic=self._read(queue.topic)): at for queue, at in run.goal.begins.items()}
        text["startingOffsets"] = format_offsets(begins)
        text["maxOffsetsPerTrigger"] = str(run.max_rows)
        rows = run.spark.readStream.format("rocketmq").options(**parallelism(run.spark) | text).load()
        writer = rows.writeStream.foreachBatch(self._batch)
        writer = writer.option("checkpointLocation", run.archive.folder.uri(CHECKPOINT))
        writer = writer.trigger(processingTime=f"{interval} seconds") if follow else writer.trigger(availableNow=True)
        query = writer.start()
        stopped = False
        try:
            stopped = self._wait(query, stop)
        except KeyboardInterrupt:
            if not follow:
                raise
        finally:
            query.stop()
            with self._busy:  # Spark does not wait for a batch in Python, which may be about to publish
                pass
        if not (follow or stopped):
            self._check_goal()

    def _checkpoint(self) -> bool:
        """Whether there is a checkpoint to go on from. One that reads on before the manifest ends, because direct mode
        went on without it, is removed: it would read again what is archived. So is what a crash left of a removal."""
        folder, archived = self._run.archive.folder, self._run.snapshot.queues
        batches = [int(name) for name in folder.names(f"{CHECKPOINT}/offsets") if name.isdigit()]
        if not batches:
            return False
        whole = folder.exists(f"{CHECKPOINT}/metadata")
        ends = self._reads_on(max(batches)) if whole else {}
        if not whole or any(queue in archived and archived[queue].end > end for queue, end in ends.items()):
            folder.remove_tree(CHECKPOINT)
            return False
        return True

    def _reads_on(self, last: int) -> dict[Queue, int]:
        """From where the query reads on: the end of the ``last`` batch that was planned. One that was cut short Spark
        does again, from the end of the one before; queues that it was the first to have (in the first batch, all) are
        looked up anew or begin where it ends."""
        run, ends = self._run, self._logged(last)
        if run.archive.folder.exists(f"{CHECKPOINT}/commits/{last}") or run.snapshot.done(self._query(), last):
            return ends
        return ends | self._logged(last - 1)

    def _query(self) -> str:
        return str(self._run.archive.folder.json(f"{CHECKPOINT}/metadata")["id"])

    def _wait(self, query: StreamingQuery, stop: Callable[[], bool] | None) -> bool:
        """Until the query ends; True when ``stop`` said so before."""
        try:
            while True:
                done = self._done
                if query.awaitTermination(_LOOK_EVERY):
                    return False
                if stop is not None and stop():
                    self._finish_batch(query, done)
                    return True
        except StreamingQueryException as error:
            if self._failed is not None:
                raise self._failed from error
            raise

    def _finish_batch(self, query: StreamingQuery, done: int) -> None:
        """Until the batch on the way, behind the first ``done``, is archived. With a backlog the next follows at once:
        it is ended when it has just begun, and is undone; so is one that takes longer than ``_PATIENCE``."""
        for _ in range(round(_PATIENCE / _LOOK_AT_BATCH)):
            if self._done != done or not query.status["isTriggerActive"]:
                return
            # Spark takes parts of a second, though its type says int.
            if query.awaitTermination(_LOOK_AT_BATCH):  # type: ignore[arg-type]
                return

    def _check_goal(self) -> None:
        """Spark says it is done: is what the brokers had at the start?"""
        for queue, end in self._run.goal.ends.items():
            snapshot = self._run.snapshot.queues.get(queue)
            reached = self._run.goal.begins[queue] if snapshot is None else snapshot.end
            if reached < end:
                raise RocketError(
                    f"{queue}: the query ended at offset {reached}, and the broker had {end}: its checkpoint "
                    f"{self._run.archive.folder.uri(CHECKPOINT)} is not of this topic, or the source left rows out"
                )

    def _batch(self, df: DataFrame, batch: int) -> None:
        with self._busy:
            try:
                self._archive(df, batch)
                self._done += 1
            except Exception as error:  # noqa: BLE001 - whatever it is, ``_wait`` raises it
                self._failed = error
                # Spark makes text of it. In that of a job that ``stop`` ended it looks for Java's exceptions, with an
                # expression that overflows the stack of its thread when the text has the traces of both.
                raise RocketError(explain(error)) from None

    def _archive(self, df: DataFrame, batch: int) -> None:
        run = self._run
        query = self._query()
        if run.snapshot.done(query, batch):
            return
        staging = run.staging()
        write_hours(with_hours(df), run.archive.folder.uri(staging))
        run.step("written")
        files = written_files(run.archive.folder, staging)
        held = spans(files)
        ends, before = self._logged(batch), self._logged(batch - 1)
        ranges: dict[Queue, Span] = {}
        for queue in ends.keys() | held.keys():
            begin = self._begin(queue, before, ends, held)
            counted = held.get(queue, Span(begin, begin, 0))
            end = max(ends.get(queue, begin), counted.end)
            if end > begin:
                ranges[queue] = Span(begin, end, counted.rows)
        if ranges:
            run.publish(staging, Commit(files, ranges, query, batch))

    def _begin(
        self, queue: Queue, before: Mapping[Queue, int], ends: Mapping[Queue, int], held: Mapping[Queue, Span]
    ) -> int:
        """Where this batch begins in ``queue``: where the last one ended, by the checkpoint; for a queue that is new to
        it, where the archive ends or the run was told to begin."""
        if queue in before:
            return before[queue]
        if queue in self._run.snapshot.queues:
            return self._run.snapshot.queues[queue].end
        # After a crash in the first batch it may begin before what this run looked up.
        first = held[queue].begin if queue in held else ends[queue]
        return min(first, self._run.goal.begins.get(queue, first))

    def _logged(self, batch: int) -> dict[Queue, int]:
        """The offsets that Spark's checkpoint has for the end of a batch; none before the first."""
        try:
            text = self._run.archive.folder.read(f"{CHECKPOINT}/offsets/{batch}").decode()
        except FileNotFoundError:
            return {}
        # A version, the batch's own settings, then one line for each source of the query.
        offsets = from_nested(json.loads(text.splitlines()[2]))
        return {queue._replace(topic=self._stored(queue.topic)): at for queue, at in offsets.items()}

    def _stored(self, topic: str) -> str:
        return wrap(self._namespace, topic)

    def _read(self, topic: str) -> str:
        return unwrap(self._namespace, topic)
