"""Keeps an Iceberg table over an archive's files in step with its manifest, in a catalogue of pyiceberg's.

As with Delta the manifest decides, and the table follows it with the same Parquet files. How far it is stands in
properties of the table, which change in the same commit: what a crash left undone is made up for by the next call, and
what was done already is skipped. ``topic``, ``dt`` and ``hour`` are partitions, as their folders are.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from aiorocket.errors import UsageError
from aiorocket.spark.steps.files.hours import table_schema
from aiorocket.spark.steps.files.iceberg_catalog import (
    COMMIT,
    ID,
    address_of,
    change_files,
    create_table,
    forget,
    open_table,
    sweep,
    tried,
)
from aiorocket.spark.steps.files.manifest import DATA, PARTITIONS, Snapshot, partition_of

if TYPE_CHECKING:
    from aiorocket.spark.steps.files.manifest import Archive

__all__ = ("METADATA", "expire_iceberg", "iceberg_table", "sync_iceberg")

_GENERATION = "aiorocket.generation"
#: Where pyiceberg, or the catalogue, writes what the table is; before the table is there.
METADATA = f"{DATA}/metadata"


def iceberg_table(archive: Archive) -> Any:
    """The pyiceberg table of an archive, made when it is not there yet; ``table.catalog.close()`` when done. UsageError
    where pyiceberg is not installed, no catalogue is configured, or the archive has its table in another one."""
    return open_table(archive.folder, archive.id, address_of(archive.folder, DATA), partial(_create, archive))


def sync_iceberg(archive: Archive, snapshot: Snapshot | None = None) -> int | None:
    """Brings the table to ``snapshot`` (the archive as it is now); its new Iceberg snapshot, None when it was there
    already. A snapshot that is behind the table is no harm."""
    known = archive.snapshot() if snapshot is None else snapshot
    return tried(iceberg_table(archive), lambda table: _commit(archive, known, table))


def expire_iceberg(archive: Archive, snapshot: Snapshot, before_ms: int) -> None:
    """Has the table forget the snapshots that name files which were replaced at ``before_ms`` or earlier, to be called
    before these files go; and of those that are older all but the newest. What only they had of the metadata is
    removed. Snapshots with a tag or a branch of somebody's stay."""
    kept = {old.generation for old in snapshot.superseded if old.at_ms > before_ms}
    # What was replaced by a generation that is in none of the two is gone long since.
    whole = next((number for number in range(snapshot.generation, 0, -1) if number not in kept), -1)

    def expire(table: Any) -> None:
        forget(table, before_ms, lambda each: _generation(each) < whole)
        sweep(archive.folder, METADATA, table)

    tried(iceberg_table(archive), expire)


def _generation(snapshot: Any) -> int:
    """Of the archive, when this snapshot was made; -1 for one of another tool's, or of an earlier version of ours."""
    found = snapshot.summary.get(_GENERATION) if snapshot.summary else None  # pyiceberg's ``get`` heeds no default
    return -1 if found is None else int(found)


def _commit(archive: Archive, snapshot: Snapshot, table: Any) -> int | None:
    known = Snapshot(last=int(table.properties[COMMIT]), generation=int(table.properties[_GENERATION]))
    paths, new = snapshot.since(known)
    if not (paths or new):
        return None
    stale = {address_of(archive.folder, path) for path in paths}
    last, generation = max(known.last, snapshot.last), max(known.generation, snapshot.generation)
    told = {COMMIT: str(last), _GENERATION: str(generation)}
    gone = [task.file for task in table.scan().plan_files() if task.file.file_path in stale] if stale else []
    if len(gone) != len(stale):
        raise UsageError(
            f"the Iceberg table {'.'.join(table.name())} does not have all files any more that compaction is to "
            "replace: another tool has rewritten it. Let one of the two compact it, not both"
        )
    files = ((address_of(archive.folder, file.path), partition_of(file.path)) for file in new)
    change_files(table, told, gone, files)
    return int(table.current_snapshot().snapshot_id)


def _create(archive: Archive, catalog: Any, name: str) -> Any:
    properties = {ID: archive.id, COMMIT: "-1", _GENERATION: "0"}
    location, schema = address_of(archive.folder, DATA), table_schema(archive.columns)
    bare = not archive.folder.exists(METADATA)
    try:
        return create_table(catalog, name, schema, location, properties, PARTITIONS)
    except Exception:
        if bare and not catalog.table_exists(name):  # pyiceberg writes, then tells the catalogue
            archive.folder.remove_tree(METADATA)
        raise
