"""One run of the archive step: what both of its modes share. From where to where it goes, how a batch becomes visible,
what is said of it in the end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from aiorocket.client.pipeline.reading import unwrap, wrap
from aiorocket.errors import UsageError
from aiorocket.model import Queue
from aiorocket.runtime.entropy import Entropy
from aiorocket.spark import cluster
from aiorocket.spark.bridge import call
from aiorocket.spark.bridge import client as shared_client
from aiorocket.spark.columns import selected_columns
from aiorocket.spark.options import OffsetSpec, SourceOptions
from aiorocket.spark.positions import starting_offsets
from aiorocket.spark.steps.files.claims import Claim, claim, leave_nothing
from aiorocket.spark.steps.files.delta import sync_delta
from aiorocket.spark.steps.files.folder import Folder
from aiorocket.spark.steps.files.hours import lasting
from aiorocket.spark.steps.files.iceberg import METADATA, sync_iceberg
from aiorocket.spark.steps.files.iceberg_catalog import FILE, NOTE
from aiorocket.spark.steps.files.last_rows import last_rows, stored_at
from aiorocket.spark.steps.files.manifest import (
    ABOUT,
    DATA,
    STAGING,
    Archive,
    ArchiveConflictError,
    Commit,
    FileOrigin,
    Snapshot,
    Span,
)
from aiorocket.spark.steps.proof import total
from aiorocket.spark.steps.report import Progress, ProgressCall, StepReport, waiting
from aiorocket.spark.steps.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from aiorocket.client.pipeline.reading import Bounds

__all__ = ("Goal", "Hook", "Run", "sync")

#: What the archive cannot do without: where a row belongs, and what proves that none is missing.
_NEEDED = ("topic", "brokerName", "queueId", "queueOffset", "storeTimestamp")

#: Rows of a batch, unless told otherwise.
_BATCH = 2_000_000

Hook = Callable[[str], object]


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
        max_rows: int | None,
        on_progress: ProgressCall | None,
        on_step: Hook | None,
    ) -> None:
        self.began = perf_counter()
        self.spark = spark
        self.text = dict(text)
        self.options = SourceOptions.parse(text)
        most = self.options.max_offsets_per_trigger
        if max_rows is not None and most is not None:
            raise UsageError(
                f"max_rows={max_rows} and maxOffsetsPerTrigger={most} both say how large a batch may be: give one"
            )
        self.max_rows = max_rows or most or _BATCH
        columns = selected_columns(self.options)
        if self.options.legacy_schema or (lacking := [name for name in _NEEDED if name not in columns]):
            what = "legacySchema=true" if self.options.legacy_schema else f"columns without {', '.join(lacking)}"
            raise UsageError(f"{what}: an archive needs the columns {', '.join(_NEEDED)}")
        if not self.options.decompress:
            raise UsageError("decompress=false: an archive holds bodies as they were sent, leave the option out")
        filtered = bool(self.options.tags or self.options.sql_filter)
        self._path = path
        self._create = partial(Archive.create, path, format=format, columns=columns, filtered=filtered)
        self._folder = Folder(path)
        self.archive: Archive
        self.before = self.snapshot = Snapshot()
        self.goal = Goal({}, {})
        self.bounds: Mapping[Queue, Bounds] = {}
        self._looked = False
        self._on_progress = on_progress
        self._on_step = on_step
        self._claim: Claim

    @contextmanager
    def alone(self, stop: Callable[[], bool] | None) -> Iterator[None]:
        """Within it no other run writes commits here, and what those that crashed left is cleared away."""
        if not Archive.there(self._path):
            if Table.there(self._path) is not None:
                raise UsageError(f"{self._path} is the table of a step: an archive needs a folder of its own")
            call(_look, self.options, {})  # what cannot be read begins no archive
        there = {name for name in (FILE, DATA, "") if self._folder.exists(name)}
        told = waiting("archive", self._on_progress)
        with claim(self._folder, "archive", stop=stop or (lambda: False), told=told) as self._claim:
            begins = not Archive.there(self._path)
            try:
                self.archive = self._create()
                self.before = self.snapshot = self.archive.snapshot()
                self._tidy()
                self.sync()
            except Exception:
                if begins:
                    self._undo(there)
                raise
            yield

    def _undo(self, there: Collection[str]) -> None:
        """Of an archive whose table could not be made nothing stays but what was ``there``: it would be one of this
        format for good. One that was made, or of which the catalogue told nothing, is the next run's."""
        if self._folder.exists(NOTE) or self._folder.exists(METADATA):
            return
        for name in {ABOUT, FILE}.difference(there):
            self._folder.remove(name)
        leave_nothing(self._folder, "archive")
        self._folder.prune(*(name for name in (DATA, "") if name not in there))

    def _tidy(self) -> None:
        """Removes what crashed runs left in ``_staging``: of batches that are in the archive, or that come next."""
        for name in self.archive.folder.folders(STAGING):
            origin = FileOrigin.of(name)
            if origin is not None and not origin.compacted and origin.number <= self.snapshot.last + 1:
                self.archive.folder.remove_tree(f"{STAGING}/{name}")

    def step(self, name: str) -> None:
        if self._on_step is not None:
            self._on_step(name)

    def staging(self) -> str:
        """A folder of its own for the files of the next commit."""
        return f"{STAGING}/{FileOrigin(False, self.snapshot.last + 1)}-{Entropy().token(4).hex()}"

    def find_goal(self, *, note: bool) -> None:
        """Looks up what there is to do: from the archive's end, or for a new queue from where the options say, to
        where the queues end now. A queue that turns up later in a run begins with its first message.

        With ``note`` the manifest gets to know where new queues begin: what "latest" is now, or the offset of a group,
        is another one in the next run, and what came in between would be left out."""
        known = {**self.goal.begins, **{queue: each.end for queue, each in self.snapshot.queues.items()}}
        options = replace(self.options, starting=None) if self._looked else self.options
        begins, bounds = call(_look, options, known)
        self._compare(bounds)
        self.goal = Goal(begins, {queue: max(begins[queue], bounds[queue].end) for queue in begins})
        self.bounds = bounds
        self._looked = True
        new = {queue: Span(at, at, 0) for queue, at in begins.items() if queue not in self.snapshot.queues}
        if note and new and options.starting is not None and options.starting.kind != "earliest":
            self._claim.check()
            self.before = self.snapshot = self.archive.publish(self.snapshot, Commit([], new))

    def _compare(self, bounds: Mapping[Queue, Bounds]) -> None:
        """Offsets alone do not tell a topic that was made anew from the archived one, once it is as long."""
        archived = last_rows(self.archive, self.snapshot, bounds)
        there = stored_at(self.options, {queue: row.offset for queue, row in archived.items()})
        for queue, row in archived.items():
            if (stored := there[queue]) not in (row.stored_ms, None):
                raise UsageError(
                    f"{queue}: offset {row.offset} is archived as stored at {np.datetime64(row.stored_ms, 'ms')}Z, the "
                    f"broker's is of {np.datetime64(stored, 'ms')}Z: the topic was made anew, another broker has this "
                    "name, or it lost its last messages. Archive it to another folder"
                )

    def publish(self, staging: str, commit: Commit) -> None:
        """Moves the files that a batch wrote below ``staging`` to their places and makes them visible, together."""
        folder, origin = self.archive.folder, FileOrigin(False, self.snapshot.last + 1)
        try:
            placed, moves = lasting(folder, commit.files, staging, origin)
            folder.move(moves)
        except FileNotFoundError as error:
            raise ArchiveConflictError(
                f"{folder.uri(staging)} was removed while it was written, by another run that began "
                "meanwhile: nothing of this batch is in the archive. Run one at a time"
            ) from error
        self.step("moved")
        self._claim.check()
        self.snapshot = self.archive.publish(self.snapshot, replace(commit, files=placed))
        folder.remove_tree(staging)
        self.step("published")
        self.sync()
        self.step("done")
        self.tell()

    def sync(self) -> None:
        sync(self.archive, self.snapshot)

    def tell(self) -> None:
        if self._on_progress is None:
            return
        done = sum(end - begin for begin, end in self._ranges().values())
        goal = {queue: (self.goal.begins[queue], end) for queue, end in self.goal.ends.items()}
        rows = self.snapshot.rows - self.before.rows
        text = f"batch {self.snapshot.last}: {rows:,} rows in {len(self.snapshot.files) - len(self.before.files)} files"
        self._on_progress(Progress("archive", done, max(total(goal.values()), done), text))

    def _ranges(self) -> dict[Queue, tuple[int, int]]:
        """What this run has archived of each queue."""
        ranges = {}
        for queue, after in self.snapshot.queues.items():
            before = self.before.queues.get(queue)
            begin = after.begin if before is None else before.end
            if after.end > begin:
                ranges[queue] = (begin, after.end)
        return ranges

    def report(self, mode: str) -> StepReport:
        ranges = self._ranges()
        rows, missing = 0, {}
        for queue, after in self.snapshot.queues.items():
            before = self.before.queues.get(queue)
            came = after.rows - (before.rows if before else 0)
            rows += came
            if queue in ranges and (lost := ranges[queue][1] - ranges[queue][0] - came):
                missing[queue] = lost
        details: dict[str, object] = {
            "mode": mode,
            "format": self.archive.format,
            "batches": self.snapshot.last - self.before.last,
            "archive_rows": self.snapshot.rows,
            "gaps": [[*queue, begin, end] for queue, begin, end in self.snapshot.gaps[len(self.before.gaps) :]],
            "proof": "count = end - begin for every queue",
        }
        if self.archive.filtered:
            missing = {}
            details["proof"] = "none: a filter was given, and what it left out cannot be told from what is missing"
        new = self.snapshot.files[len(self.before.files) :]
        return StepReport(
            "archive", total(ranges.values()), rows, ranges, tuple(file.path for file in new),
            perf_counter() - self.began, missing, details,
        )  # fmt: skip


def sync(archive: Archive, snapshot: Snapshot) -> None:
    """Brings the table over an archive's files, if it has one, to what the manifest says."""
    if archive.format == "delta":
        sync_delta(archive, snapshot)
    elif archive.format == "iceberg":
        sync_iceberg(archive, snapshot)


async def _look(options: SourceOptions, known: Mapping[Queue, int]) -> tuple[dict[Queue, int], dict[Queue, Bounds]]:
    client = await shared_client(options.connection)
    namespace = options.connection.namespace
    read = {queue._replace(topic=unwrap(namespace, queue.topic)): end for queue, end in known.items()}
    bounds = await cluster.bounds(client, await cluster.queues(client, options, read))
    stored = {queue: queue._replace(topic=wrap(namespace, queue.topic)) for queue in bounds}
    begins = {name: known[name] for name in stored.values() if name in known}
    new = {queue: each for queue, each in bounds.items() if stored[queue] not in known}
    starting = options.starting or OffsetSpec(kind="earliest")
    if starting.kind in ("offsets", "timestamps"):
        # What it says of queues that are archived, or were, is over, and nobody knew of those that have come since.
        said = {queue for queue in new if queue in starting.offsets or starting.millis_for(queue) is not None}
        if known:
            begins.update({stored[queue]: new[queue].begin for queue in new.keys() - said})
            new = {queue: new[queue] for queue in said}
        over = (bounds.keys() | read.keys()) - new.keys()
        topics = {queue.topic for queue in over} - {queue.topic for queue in new}
        starting = replace(
            starting,
            offsets={queue: offset for queue, offset in starting.offsets.items() if queue in new},
            by_queue={queue: millis for queue, millis in starting.by_queue.items() if queue not in over},
            by_topic={topic: millis for topic, millis in starting.by_topic.items() if topic not in topics},
        )
    if new:
        found = await starting_offsets(client, replace(options, starting=starting), new)
        begins.update({stored[queue]: offset for queue, offset in found.items()})
    return begins, {stored[queue]: each for queue, each in bounds.items()}
