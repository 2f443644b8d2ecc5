"""Keeps a Delta table over an archive's files (folder ``data``) in step with its manifest.

The manifest decides; the table follows it with the same Parquet files, so no row is written twice and none passes
through the driver. Each Delta commit carries an application transaction (archive id, number of the newest commit): what
a crash left undone is made up for by the next call, and what was done already is skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from aiorocket.errors import RocketError, UsageError
from aiorocket.runtime.clock import WallClock
from aiorocket.spark.steps.files.hours import table_schema
from aiorocket.spark.steps.files.manifest import DATA, PARTITIONS, Snapshot, partition_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiorocket.spark.steps.files.manifest import Archive

__all__ = ("check_delta", "delta_in_a_line", "import_deltalake", "sync_delta")

#: Commits and generations are counted apart, each as an application transaction: they can overtake each other.
_COMPACTED = "/compacted"


def sync_delta(archive: Archive, snapshot: Snapshot | None = None) -> int | None:
    """Brings the table to ``snapshot`` (the archive as it is now); its new Delta version, None when it was there
    already.

    A snapshot that is behind the table is no harm: what the table has heard of is left alone. UsageError where
    deltalake is not installed, or files that have to leave the table are not in it any more.
    """
    known = archive.snapshot() if snapshot is None else snapshot
    with delta_in_a_line(archive.folder.uri(DATA)):
        return _commit(archive, known)


@contextmanager
def delta_in_a_line(uri: str) -> Iterator[None]:
    """What deltalake has to say of the table at ``uri`` as a RocketError: the next time it may go well. UsageError
    where it is not installed."""
    try:
        yield
    except (OSError, import_deltalake().exceptions.DeltaError) as error:
        if getattr(error, "errno", None) is not None:
            raise  # the system's, of a file
        # Its causes are below it, behind arrows in red; or its own stack is.
        lines = [line.strip() for line in re.sub("\x1b\\[[0-9]*m|↳", "", str(error)).splitlines()]
        told = ": ".join(takewhile(lambda line: not re.match("[0-9]+: ", line), filter(None, lines)))
        raise RocketError(
            f"Delta table {uri}: {told}. Nothing is lost: the table follows in the next run that gets there"
        ) from error


def _commit(archive: Archive, snapshot: Snapshot) -> int | None:
    deltalake = import_deltalake()
    schema = deltalake.Schema.from_arrow(table_schema(archive.columns))
    uri = archive.folder.uri(DATA)
    if not deltalake.DeltaTable.is_deltatable(uri):
        if not snapshot.files:
            return None
        deltalake.DeltaTable.create(uri, schema, mode="ignore", partition_by=list(PARTITIONS))
    table = deltalake.DeltaTable(uri)
    known = Snapshot(
        last=_or(table.transaction_version(archive.id), -1),
        generation=_or(table.transaction_version(archive.id + _COMPACTED), 0),
    )
    from deltalake.transaction import AddAction, RemoveAction

    now = WallClock().wall_ms()
    stale, new = snapshot.since(known)
    check_delta(archive, stale, table)
    if not (stale or new):
        return None
    # Readers of changes pass over a rewrite. After a crash it may come together with new rows: then they see it all.
    rewrite = bool(stale) and snapshot.last <= known.last
    actions: list[Any] = [RemoveAction(_in_table(path), not rewrite, now) for path in stale]
    for file in new:
        values = dict(zip(PARTITIONS, partition_of(file.path), strict=True))
        stats = json.dumps({"numRecords": file.rows})
        actions.append(AddAction(_in_table(file.path), file.bytes, values, now, not rewrite, stats))
    reached = {archive.id: max(known.last, snapshot.last)}
    if snapshot.generation > known.generation:
        reached[archive.id + _COMPACTED] = snapshot.generation
    table.create_write_transaction(
        actions, "append", schema, list(PARTITIONS),
        commit_properties=deltalake.CommitProperties(
            app_transactions=[deltalake.Transaction(name, number, now) for name, number in reached.items()],
        ),
    )  # fmt: skip
    table.update_incremental()
    return int(table.version())


def check_delta(archive: Archive, paths: Sequence[str], table: Any = None) -> None:
    """UsageError when one of the archive's files is not in the table any more."""
    if not paths:
        return
    uri = archive.folder.uri(DATA)
    table = import_deltalake().DeltaTable(uri) if table is None else table
    here = {unquote(path) for path in table.get_add_actions().column("path").to_pylist()}
    if not all(_in_table(path) in here for path in paths):
        raise UsageError(
            f"the Delta table {uri} does not have all files any more that compaction is to replace: another tool has "
            "rewritten it. Let one of the two compact it, not both"
        )


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _in_table(path: str) -> str:
    return path.removeprefix(f"{DATA}/")


def import_deltalake() -> Any:
    """UsageError where it is not installed."""
    try:
        import deltalake
    except ImportError as error:
        raise UsageError(f"{error}: format='delta' needs pip install 'aiorocketmq[spark]'") from error
    return deltalake
