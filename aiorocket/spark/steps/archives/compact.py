"""The compact step: many small files of an hour become few large ones, sorted by broker, queue and offset.

Nothing is changed in place. New files are written beside the old ones, counted, and put in their place by one new
generation of the manifest; a reader sees either set. A crash leaves files that the manifest does not name: the next run
removes those in ``_staging`` when it begins, the others when it gets through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from aiorocket.errors import UsageError
from aiorocket.runtime.clock import WallClock
from aiorocket.runtime.entropy import Entropy
from aiorocket.spark.steps.archives.archive_run import sync
from aiorocket.spark.steps.archives.merge import merge_task
from aiorocket.spark.steps.files.claims import Claim, claim
from aiorocket.spark.steps.files.delta import check_delta
from aiorocket.spark.steps.files.file_jobs import files_of, run_tasks
from aiorocket.spark.steps.files.hours import lasting
from aiorocket.spark.steps.files.iceberg import expire_iceberg
from aiorocket.spark.steps.files.manifest import (
    DATA,
    STAGING,
    Archive,
    ArchiveConflictError,
    DataFile,
    FileOrigin,
    Snapshot,
)
from aiorocket.spark.steps.report import Progress, ProgressCall, StepReport, waiting
from aiorocket.spark.steps.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ("compact",)

#: A generation names every file of the archive, so it is not written for each hour; what a crash costs is a round.
_ROUND_FOLDERS, _ROUND_TARGETS = 64, 4


class _FileGroup(NamedTuple):
    """Files of one hour to be written anew, as ``parts`` files."""

    folder: str
    files: list[DataFile]
    parts: int

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def compact(
    spark: SparkSession,
    path: str,
    *,
    target_bytes: int = 256 << 20,
    topics: Sequence[str] | None = None,
    keep: float = 3600.0,
    stop: Callable[[], bool] = lambda: False,
    on_progress: ProgressCall | None = None,
    on_step: Callable[[str], object] | None = None,
) -> StepReport:
    """Rewrites the files of each hour that are below half of ``target_bytes``, where there are two or more of them.

    May run beside the archive step and beside readers, but not beside another ``compact``: the second fails with
    ArchiveConflictError and has changed nothing. Replaced files stay for ``keep`` seconds, for queries that began
    before, and are removed by the next run after that. The rows of each queue and hour are counted in the new files
    and must be the same offsets as before, or nothing is replaced. ``stop`` is asked while the claim of a run that died
    is waited for, and ends that with ClaimStoppedError, and before each round of some hours: the next run has the rest.
    ``on_step`` is called between the steps of a round
    ("written", "moved", "published", "synced", "expired", "cleaned") for tests that crash there.

    At the path of a step's table the small files of each part are rewritten so, not beside a run of that step: the
    second of the two fails. There replaced files stay in a Delta or Iceberg table only: in plain Parquet, where they
    would be read twice, they go at once.

    The report's ``ranges`` and ``missing`` are those of the whole archive: what was missing before is missing still.
    """
    if target_bytes < 2 or keep < 0:
        raise UsageError(f"target_bytes={target_bytes} keep={keep}: sizes and times above 0 are needed")
    began, told = perf_counter(), waiting("compact", on_progress)
    if (table := Table.there(path)) is not None:
        if topics is not None:
            raise UsageError(f"{path} is a table of {table.step}: its files are not by topic, leave topics out")
        with claim(table.folder, "table", stop=stop, told=told) as table.claim:
            return _compact_table(spark, table, target_bytes, keep, began)
    archive, step = Archive.open(path), on_step or (lambda name: None)
    with claim(archive.folder, "compact", stop=stop, told=told) as held:
        return _compact_archive(spark, archive, target_bytes, topics, keep, held, stop, on_progress, step, began)


def _compact_archive(
    spark: SparkSession,
    archive: Archive,
    target_bytes: int,
    topics: Sequence[str] | None,
    keep: float,
    held: Claim,
    stop: Callable[[], bool],
    on_progress: ProgressCall | None,
    step: Callable[[str], object],
    began: float,
) -> StepReport:
    first = snapshot = archive.snapshot()
    first.check_topics(topics)
    _tidy(archive, snapshot)
    sync(archive, snapshot)
    groups = _groups(snapshot, target_bytes, topics)
    rows, done, new, replaced = sum(group.rows for group in groups), 0, list[str](), list[DataFile]()
    for some in _rounds(groups, target_bytes):
        if stop():
            break
        snapshot = archive.snapshot()  # the archive step may have gone on
        snapshot, files = _rewrite(spark, archive, snapshot, some, held, step)
        new += [file.path for file in files]
        replaced += [file for group in some for file in group.files]
        done += sum(file.rows for file in files)
        sync(archive, snapshot)
        step("synced")
        if on_progress is not None:
            on_progress(Progress("compact", done, rows, f"{len(some)} hours in {len(files)} files"))
    oldest = WallClock().wall_ms() - round(keep * 1000)
    if archive.format == "iceberg":
        expire_iceberg(archive, snapshot, oldest)
        step("expired")
    removed = _clean(archive, snapshot, oldest)
    step("cleaned")
    return StepReport(
        "compact", sum(file.rows for file in replaced), done, snapshot.ranges(), tuple(new),
        perf_counter() - began, {} if archive.filtered else snapshot.missing(),
        {
            "files_before": len(first.files), "files_after": len(first.files) - len(replaced) + len(new),
            "bytes_before": sum(file.bytes for file in replaced),
            "bytes_after": sum(file.bytes for file in snapshot.files if file.path in set(new)),
            "generations": snapshot.generation - first.generation, "removed": removed,
            "waiting": len([old for old in snapshot.superseded if archive.folder.exists(old.path)]),
        },
    )  # fmt: skip


def _compact_table(spark: SparkSession, table: Table, target: int, keep: float, began: float) -> StepReport:
    before = table.snapshot()
    after = table.compact(spark, target, keep)
    old, new = set(before.files) - set(after.files), set(after.files) - set(before.files)
    rows = sum(file.rows for file in new)
    return StepReport(
        "compact", rows, rows, after.ranges, tuple(sorted(file.path for file in new)), perf_counter() - began,
        after.missing,
        {
            "files_before": len(before.files), "files_after": len(after.files),
            "bytes_before": sum(file.bytes for file in old), "bytes_after": sum(file.bytes for file in new),
            "generations": after.last - before.last, "removed": len(old) - len(after.replaced.keys() - before.replaced),
            "waiting": len(after.replaced),
        },
    )  # fmt: skip


def _groups(snapshot: Snapshot, target: int, topics: Sequence[str] | None) -> list[_FileGroup]:
    folders: dict[str, list[DataFile]] = {}
    for file in snapshot.select(topics):
        if file.bytes < target // 2:
            folders.setdefault(file.path.rpartition("/")[0], []).append(file)
    return [
        _FileGroup(folder, files, -(-sum(file.bytes for file in files) // target))
        for folder, files in sorted(folders.items())
        if len(files) > 1
    ]


def _rounds(groups: Iterable[_FileGroup], target: int) -> Iterable[list[_FileGroup]]:
    some: list[_FileGroup] = []
    for group in groups:
        some.append(group)
        if len(some) >= _ROUND_FOLDERS or sum(each.bytes for each in some) >= target * _ROUND_TARGETS:
            yield some
            some = []
    if some:
        yield some


def _rewrite(
    spark: SparkSession,
    archive: Archive,
    snapshot: Snapshot,
    groups: list[_FileGroup],
    held: Claim,
    step: Callable[[str], object],
) -> tuple[Snapshot, list[DataFile]]:
    if archive.format == "delta":
        check_delta(archive, [file.path for group in groups for file in group.files])
    for group in groups:
        archive.folder.need(group.files)
    origin = FileOrigin(True, snapshot.generation + 1)
    staging = f"{STAGING}/{origin}-{Entropy().token(4).hex()}"
    place = (archive.folder.location, staging, archive.columns)
    tasks = [(*place, group.parts, [file.path for file in group.files]) for group in groups]
    try:
        written = files_of(run_tasks(spark, merge_task, tasks))
    except Exception:
        with suppress(OSError):  # a full disk would have less room with every try
            archive.folder.remove_tree(staging)
        raise
    step("written")
    try:
        placed, moves = lasting(archive.folder, written, staging, origin)
        archive.folder.move(moves)
    except FileNotFoundError as error:
        raise ArchiveConflictError(
            f"{archive.folder.uri(staging)} was removed while it was written, by another compaction that ended "
            "meanwhile: nothing was replaced. Run one at a time"
        ) from error
    step("moved")
    held.check()
    snapshot = archive.publish_generation(snapshot, [file.path for group in groups for file in group.files], placed)
    archive.folder.remove_tree(staging)
    step("published")
    return snapshot, placed


def _tidy(archive: Archive, snapshot: Snapshot) -> None:
    """Removes what compactions that were killed left in ``_staging``: a service that is killed in each would fill the
    disk."""
    for name in archive.folder.folders(STAGING):
        origin = FileOrigin.of(name)
        if origin is not None and origin.compacted and origin.number <= snapshot.generation + 1:
            archive.folder.remove_tree(f"{STAGING}/{name}")


def _clean(archive: Archive, snapshot: Snapshot, oldest: int) -> int:
    """Removes files that were replaced at ``oldest`` or earlier (wall clock, ms), and what crashed runs left: files
    whose number says that their commit or generation has been decided, and that are not part of it. How many data files
    were removed."""
    archive.forget_replaced(snapshot)
    for name in archive.folder.folders(STAGING):
        if (origin := FileOrigin.of(name)) is not None and origin.decided(snapshot):
            archive.folder.remove_tree(f"{STAGING}/{name}")
    removed = sum(archive.folder.remove(old.path) for old in snapshot.superseded if old.at_ms <= oldest)
    known = {file.path for file in snapshot.files} | {old.path for old in snapshot.superseded}
    for name in archive.folder.walk(DATA):
        if name not in known and (origin := FileOrigin.of(name)) is not None and origin.decided(snapshot):
            removed += archive.folder.remove(name)
    return removed
