"""Keeps an Iceberg table over an archive's files in step with its manifest, in a catalogue of pyiceberg's.

As with Delta the manifest decides, and the table follows it with the same Parquet files. How far it is stands in
properties of the table, which change in the same commit: what a crash left undone is made up for by the next call, and
what was done already is skipped. ``topic``, ``dt`` and ``hour`` are partitions, as their folders are.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from aiorocket.errors import UsageError
from aiorocket.spark.columns import arrow_schema
from aiorocket.spark.steps.files.iceberg_catalog import (
    COMMIT,
    ID,
    MERGING,
    SNAPSHOTS,
    address_of,
    create_table,
    data_file,
    open_table,
    sweep,
    tried,
)
from aiorocket.spark.steps.files.manifest import DATA, FileOrigin, Snapshot, partition_of

if TYPE_CHECKING:
    from aiorocket.spark.steps.files.manifest import Archive

__all__ = ("expire_iceberg", "iceberg_table", "sync_iceberg")

_GENERATION = "aiorocket.generation"
_PARTITIONS = ("topic", "dt", "hour")


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
    before these files go; and of those that are older all but the newest ``SNAPSHOTS``. What only they had of the
    metadata is removed. Snapshots with a tag or a branch of somebody's stay."""
    kept = {old.generation for old in snapshot.superseded if old.at_ms > before_ms}
    # What was replaced by a generation that is in none of the two is gone long since.
    whole = next((number for number in range(snapshot.generation, 0, -1) if number not in kept), -1)

    def expire(table: Any) -> None:
        newest = sorted(table.snapshots(), key=lambda each: -each.sequence_number)
        held = {each.snapshot_id for each in table.refs().values()}
        old = [
            each.snapshot_id
            for number, each in enumerate(newest)
            if each.snapshot_id not in held
            and (_generation(each) < whole or (each.timestamp_ms <= before_ms and number >= SNAPSHOTS))
        ]
        if old:
            table.maintenance.expire_snapshots().by_ids(old).commit()
            table.refresh()
        sweep(archive.folder, f"{DATA}/metadata", table)

    tried(iceberg_table(archive), expire)


def _generation(snapshot: Any) -> int:
    """Of the archive, when this snapshot was made; -1 for one of another tool's, or of an earlier version of ours."""
    found = snapshot.summary.get(_GENERATION) if snapshot.summary else None  # pyiceberg's ``get`` heeds no default
    return -1 if found is None else int(found)


def _commit(archive: Archive, snapshot: Snapshot, table: Any) -> int | None:
    known = Snapshot(last=int(table.properties[COMMIT]), generation=int(table.properties[_GENERATION]))
    # What came and went since the last commit never was in the table.
    stale = {
        address_of(archive.folder, old.path)
        for old in snapshot.superseded
        if old.generation > known.generation and _heard_of(old.path, known)
    }
    new = [file for file in snapshot.files if not _heard_of(file.path, known)]
    if not (stale or new):
        return None
    last, generation = max(known.last, snapshot.last), max(known.generation, snapshot.generation)
    told = {COMMIT: str(last), _GENERATION: str(generation)}
    gone = [task.file for task in table.scan().plan_files() if task.file.file_path in stale] if stale else []
    if len(gone) != len(stale):
        raise UsageError(
            f"the Iceberg table {'.'.join(table.name())} does not have all files any more that compaction is to "
            "replace: another tool has rewritten it. Let one of the two compact it, not both"
        )
    transaction = table.transaction()
    transaction.set_properties({**told, MERGING: "true"})
    update = transaction.update_snapshot(snapshot_properties=told)
    with update.overwrite() if gone else update.merge_append() as change:
        for each in gone:
            change.delete_data_file(each)
        for file in new:
            change.append_data_file(data_file(table, address_of(archive.folder, file.path), partition_of(file.path)))
    transaction.commit_transaction()
    return int(table.current_snapshot().snapshot_id)


def _create(archive: Archive, catalog: Any, name: str) -> Any:
    schema = arrow_schema([column for column in archive.columns if column != "topic"])
    for column in _PARTITIONS:
        schema = schema.append(pa.field(column, pa.string()))
    properties = {ID: archive.id, COMMIT: "-1", _GENERATION: "0"}
    return create_table(catalog, name, schema, address_of(archive.folder, DATA), properties, _PARTITIONS)


def _heard_of(path: str, known: Snapshot) -> bool:
    """Whether the commit or generation that brought a file is in the table."""
    origin = FileOrigin.of(path)
    return origin is not None and origin.decided(known)
