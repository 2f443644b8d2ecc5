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
from dataclasses import replace
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Literal, NamedTuple

from aiorocket.errors import RocketError, UsageError
from aiorocket.model import Queue
from aiorocket.runtime.entropy import Entropy
from aiorocket.spark.bridge import call
from aiorocket.spark.bridge import client as shared_client
from aiorocket.spark.columns import selected_columns
from aiorocket.spark.offsets import format_offsets, from_nested
from aiorocket.spark.options import SourceOptions
from aiorocket.spark.steps.manifest import (
    CHECKPOINT,
    STAGING,
    Archive,
    ArchiveConflictError,
    Commit,
    Origin,
    Span,
    lasting,
    spans,
)
from aiorocket.spark.steps.proof import total
from aiorocket.spark.steps.report import Progress, ProgressCall, StepReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from aiorocket.client.queue_scan import Bounds

__all__ = ("archive",)

#: What the archive cannot do without: where a row belongs, and what proves that none is missing.
_NEEDED = ("topic", "brokerName", "queueId", "queueOffset", "storeTimestamp")
#: How often a running query looks at ``stop``.
_LOOK_EVERY = 1
#: How long a stopped query may take to end its batch, and how often it is looked at, in seconds.
_PATIENCE, _LOOK_AT_BATCH = 30.0, 0.05

Hook = Callable[[str], object]


def archive(
    spark: SparkSession,
    path: str,
    name_server: str,
    topic: str | None = None,
    *,
    mode: Literal["spark", "direct"] = "spark",
    format: Literal["parquet", "delta"] = "parquet",
    max_rows: int = 2_000_000,
    follow: bool = False,
    interval: float = 10.0,
    stop: Callable[[], bool] | None = None,
    on_progress: ProgressCall | None = None,
    on_step: Hook | None = None,
    **options: object,
) -> StepReport:
    """Archives ``topic`` (several with commas between) to ``path``, from where the archive ends, or begins.

    Returns when all that the topic held at the start is archived; with ``follow`` when ``stop`` says so, or at Ctrl-C,
    looking for more every ``interval`` seconds. ``max_rows`` bounds one batch. ``options`` are those of the source:
    ``startingOffsets`` (earliest unless given) is for queues that are not in the archive yet, ``columns`` for the
    columns to keep, ``topicPattern`` or ``assign`` for what to read in place of ``topic``; ``tags`` and ``sqlFilter``
    make an archive of a selection. ``on_step`` is called between the steps of a batch ("written", "moved", "published",
    "done") for tests that crash there.

    The report's ``missing`` counts what retention, or a source with ``failOnDataLoss=false``, did not leave to archive;
    of a selection nothing can be proved, and ``details["proof"]`` says so. ArchiveConflictError when another run writes
    here; DataLossError when messages that were not archived are gone; UsageError for options that cannot be.
    """
    if max_rows < 1:
        raise UsageError(f"max_rows={max_rows}: 1 or more")
    if mode not in ("spark", "direct") or format not in ("parquet", "delta"):
        raise UsageError(f"mode={mode!r} format={format!r}: mode is 'spark' or 'direct', format 'parquet' or 'delta'")
    text = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    text |= {"nameServer": name_server, **({"topic": topic} if topic else {})}
    run = Run(spark, path, text, format, max_rows, on_progress, on_step)
    if mode == "direct":
        from aiorocket.spark.steps.direct import Rounds

        Rounds(run).go(follow, interval, stop)
    else:
        _Stream(run).go(follow, interval, stop)
    return run.report(mode)


class Goal(NamedTuple):
    """Where each queue begins and ends for this run, in the archive's names of topics."""

    begins: Mapping[Queue, int]
    ends: Mapping[Queue, int]


class Run:
    """One call of the step: what both modes share. Topics are named as brokers store them (with their namespace), as
    the rows name them."""

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        text: Mapping[str, str],
        format: str,
        max_rows: int,
        on_progress: ProgressCall | None,
        on_step: Hook | None,
    ) -> None:
        self.began = perf_counter()
        self.spark = spark
        self.text = dict(text)
        self.options = SourceOptions.parse(text)
        self.max_rows = max_rows
        columns = selected_columns(self.options)
        if self.options.legacy_schema or (lacking := [name for name in _NEEDED if name not in columns]):
            what = "legacySchema=true" if self.options.legacy_schema else f"columns without {', '.join(lacking)}"
            raise UsageError(f"{what}: an archive needs the columns {', '.join(_NEEDED)}")
        if not self.options.decompress:
            raise UsageError("decompress=false: an archive holds bodies as they were sent, leave the option out")
        filtered = bool(self.options.tags or self.options.sql_filter)
        self.archive = Archive.create(path, format=format, columns=columns, filtered=filtered)
        self.before = self.state = self.archive.state()
        self.goal = Goal({}, {})
        self.bounds: Mapping[Queue, Bounds] = {}
        self._looked = False
        self._on_progress = on_progress
        self._on_step = on_step
        self._tidy()
        self.sync()

    def _tidy(self) -> None:
        """Removes what crashed runs left in ``_staging``: of batches that are in the archive, or that come next."""
        for name in {each.split("/")[1] for each in self.archive.folder.walk(STAGING)}:
            origin = Origin.of(name)
            if origin is not None and not origin.compacted and origin.number <= self.state.last + 1:
                self.archive.folder.remove_tree(f"{STAGING}/{name}")

    def step(self, name: str) -> None:
        if self._on_step is not None:
            self._on_step(name)

    def staging(self) -> str:
        """A folder of its own for the files of the next commit."""
        return f"{STAGING}/{Origin(False, self.state.last + 1)}-{Entropy().token(4).hex()}"

    def find_goal(self, *, note: bool) -> None:
        """Looks up what there is to do: from the archive's end, or for a new queue from where the options say, to
        where the queues end now. A queue that turns up later in a run begins with its first message.

        With ``note`` the manifest gets to know where new queues begin: what "latest" is now, or the offset of a group,
        is another one in the next run, and what came in between would be left out."""
        known = {**self.goal.begins, **{queue: each.end for queue, each in self.state.queues.items()}}
        options = replace(self.options, starting=None) if self._looked else self.options
        begins, bounds = call(_look, options, known)
        self.goal = Goal(begins, {queue: max(begins[queue], bounds[queue].end) for queue in begins})
        self.bounds = bounds
        self._looked = True
        new = {queue: Span(at, at, 0) for queue, at in begins.items() if queue not in self.state.queues}
        if note and new and options.starting is not None and options.starting.kind != "earliest":
            self.before = self.state = self.archive.publish(self.state, Commit([], new))

    def publish(self, staging: str, commit: Commit) -> None:
        """Moves the files that a batch wrote below ``staging`` to their places and makes them visible, together."""
        placed, moves = lasting(commit.files, staging, Origin(False, self.state.last + 1))
        try:
            self.archive.folder.move(moves)
        except FileNotFoundError as error:
            raise ArchiveConflictError(
                f"{self.archive.folder.uri(staging)} was removed while it was written, by another run that began "
                "meanwhile: nothing of this batch is in the archive. Run one at a time"
            ) from error
        self.step("moved")
        self.state = self.archive.publish(self.state, replace(commit, files=placed))
        self.archive.folder.remove_tree(staging)
        self.step("published")
        self.sync()
        self.step("done")
        self.tell()

    def sync(self) -> None:
        if self.archive.format == "delta":
            from aiorocket.spark.steps.delta import sync_delta

            sync_delta(self.archive, self.state)

    def tell(self) -> None:
        if self._on_progress is None:
            return
        done = sum(end - begin for begin, end in self._ranges().values())
        goal = {queue: (self.goal.begins[queue], end) for queue, end in self.goal.ends.items()}
        rows = self.state.rows - self.before.rows
        text = f"batch {self.state.last}: {rows:,} rows in {len(self.state.files) - len(self.before.files)} files"
        self._on_progress(Progress("archive", done, max(total(goal.values()), done), text))

    def _ranges(self) -> dict[Queue, tuple[int, int]]:
        """What this run has archived of each queue."""
        ranges = {}
        for queue, after in self.state.queues.items():
            before = self.before.queues.get(queue)
            begin = after.begin if before is None else before.end
            if after.end > begin:
                ranges[queue] = (begin, after.end)
        return ranges

    def report(self, mode: str) -> StepReport:
        ranges = self._ranges()
        rows, missing = 0, {}
        for queue, after in self.state.queues.items():
            before = self.before.queues.get(queue)
            came = after.rows - (before.rows if before else 0)
            rows += came
            if queue in ranges and (lost := ranges[queue][1] - ranges[queue][0] - came):
                missing[queue] = lost
        details: dict[str, object] = {
            "mode": mode,
            "format": self.archive.format,
            "batches": self.state.last - self.before.last,
            "archive_rows": self.state.rows,
            "gaps": [[*queue, begin, end] for queue, begin, end in self.state.gaps[len(self.before.gaps) :]],
            "proof": "count = end - begin for every queue",
        }
        if self.archive.filtered:
            missing = {}
            details["proof"] = "none: a filter was given, and what it left out cannot be told from what is missing"
        new = self.state.files[len(self.before.files) :]
        return StepReport(
            "archive", total(ranges.values()), rows, ranges, tuple(file.path for file in new),
            perf_counter() - self.began, missing, details,
        )  # fmt: skip


async def _look(options: SourceOptions, known: Mapping[Queue, int]) -> tuple[dict[Queue, int], dict[Queue, Bounds]]:
    from aiorocket.client.core.namespace import wrap
    from aiorocket.spark import cluster
    from aiorocket.spark.options import Position
    from aiorocket.spark.positions import starting_offsets

    client = await shared_client(options.connection)
    bounds = await cluster.bounds(client, await cluster.queues(client, options))
    stored = {queue: queue._replace(topic=wrap(options.connection.namespace, queue.topic)) for queue in bounds}
    begins = {name: known[name] for name in stored.values() if name in known}
    new = {queue: each for queue, each in bounds.items() if stored[queue] not in known}
    starting = options.starting or Position(kind="earliest")
    if starting.kind == "offsets":
        given = {queue: offset for queue, offset in starting.offsets.items() if queue in new}
        starting = replace(starting, offsets=given)
    if new:
        found = await starting_offsets(client, replace(options, starting=starting), new)
        begins.update({stored[queue]: offset for queue, offset in found.items()})
    return begins, {stored[queue]: each for queue, each in bounds.items()}


class _Stream:
    """Archives through a streaming query of Spark's."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._namespace = run.options.connection.namespace
        self._failed: Exception | None = None
        self._busy = Lock()

    def go(self, follow: bool, interval: float, stop: Callable[[], bool] | None) -> None:
        run = self._run
        # What the source does with a queue that is new beside a checkpoint is not for the manifest to say.
        run.find_goal(note=not self._checkpoint())
        text = {name: value for name, value in run.text.items() if not name.lower().startswith("starting")}
        # Spelled out, so that what is read and what the manifest says cannot differ. A checkpoint wins over it.
        begins = {queue._replace(topic=self._read(queue.topic)): at for queue, at in run.goal.begins.items()}
        text["startingOffsets"] = format_offsets(begins)
        if run.options.max_offsets_per_trigger is None:
            text["maxOffsetsPerTrigger"] = str(run.max_rows)
        rows = run.spark.readStream.format("rocketmq").options(**text).load()
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
        """Whether there is a checkpoint to go on from. One that ends before the manifest, because direct mode went on
        without it, is removed: it would read again what is archived."""
        folder, archived = self._run.archive.folder, self._run.state.queues
        batches = [int(name) for name in folder.names(f"{CHECKPOINT}/offsets") if name.isdigit()]
        ends = self._logged(max(batches)) if batches else {}
        if any(queue in archived and archived[queue].end > end for queue, end in ends.items()):
            folder.remove_tree(CHECKPOINT)
            return False
        return bool(batches)

    def _wait(self, query: StreamingQuery, stop: Callable[[], bool] | None) -> bool:
        """Until the query ends; True when ``stop`` said so before."""
        from pyspark.errors import StreamingQueryException

        try:
            while not query.awaitTermination(_LOOK_EVERY):
                if stop is not None and stop():
                    self._finish_batch(query)
                    return True
            return False
        except StreamingQueryException as error:
            if self._failed is not None:
                raise self._failed from error
            raise

    def _finish_batch(self, query: StreamingQuery) -> None:
        """Between two batches a query ends quietly; one that never pauses is ended in a batch, which is then undone."""
        for _ in range(round(_PATIENCE / _LOOK_AT_BATCH)):
            # Parts of a second are taken, though the type says int.
            if not query.status["isTriggerActive"] or query.awaitTermination(_LOOK_AT_BATCH):  # type: ignore[arg-type]
                return

    def _check_goal(self) -> None:
        """Spark says it is done: is what the brokers had at the start?"""
        for queue, end in self._run.goal.ends.items():
            state = self._run.state.queues.get(queue)
            reached = self._run.goal.begins[queue] if state is None else state.end
            if reached < end:
                raise RocketError(
                    f"{queue}: the query ended at offset {reached}, and the broker had {end}: its checkpoint "
                    f"{self._run.archive.folder.uri(CHECKPOINT)} is not of this topic, or the source left rows out"
                )

    def _batch(self, df: DataFrame, batch: int) -> None:
        with self._busy:
            try:
                self._archive(df, batch)
            except Exception as error:
                self._failed = error  # Spark makes text of it
                raise

    def _archive(self, df: DataFrame, batch: int) -> None:
        from aiorocket.spark.steps.hours import written_files
        from aiorocket.spark.steps.rows import with_hours, write_hours

        run = self._run
        query = json.loads(run.archive.folder.read(f"{CHECKPOINT}/metadata"))["id"]
        if run.state.done(query, batch):
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
        if queue in self._run.state.queues:
            return self._run.state.queues[queue].end
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
        from aiorocket.client.core.namespace import wrap

        return wrap(self._namespace, topic)

    def _read(self, topic: str) -> str:
        from aiorocket.client.core.namespace import unwrap

        return unwrap(self._namespace, topic)
