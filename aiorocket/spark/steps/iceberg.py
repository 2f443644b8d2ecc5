"""Keeps an Iceberg table over an archive's files in step with its manifest, in a catalogue of pyiceberg's.

As with Delta the manifest decides, and the table follows it with the same Parquet files. How far it is stands in
properties of the table, which change in the same commit: what a crash left undone is made up for by the next call, and
what was done already is skipped. ``topic``, ``dt`` and ``hour`` are partitions, as their folders are.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from aiorocket.errors import UsageError
from aiorocket.spark.columns import arrow_schema
from aiorocket.spark.steps.manifest import FileOrigin, Snapshot, partition_of

if TYPE_CHECKING:
    from aiorocket.spark.steps.manifest import Archive

__all__ = ("iceberg_table", "sync_iceberg")

#: The catalogue's name in pyiceberg's own configuration; without one it is a file in the archive's folder.
CATALOG = "aiorocket"
_FILE = "_iceberg.db"
_NAMESPACE = "lake"
_ID, _COMMIT, _GENERATION = "aiorocket.archive", "aiorocket.commit", "aiorocket.generation"
_PARTITIONS = ("topic", "dt", "hour")
_TRIES = 5


def iceberg_table(archive: Archive) -> Any:
    """The pyiceberg table of an archive, made when it is not there yet; ``table.catalog.close()`` when done. UsageError
    where pyiceberg is not installed, no catalogue is configured, or its table of that name is of another archive."""
    catalog = _catalog(archive)
    from pyiceberg.exceptions import NoSuchTableError

    name = f"{_NAMESPACE}.{re.sub('[^0-9A-Za-z_]', '_', archive.folder.location.rstrip('/').rpartition('/')[2])}"
    try:
        table = catalog.load_table(name)
    except NoSuchTableError:
        catalog.create_namespace_if_not_exists(_NAMESPACE)
        table = _create(catalog, name, archive)
    if table.properties.get(_ID) != archive.id:
        raise UsageError(
            f"the catalogue has a table {name} already, of another archive than {archive.folder.location}: remove it "
            "there, or archive to a folder of another name"
        )
    return table


def sync_iceberg(archive: Archive, snapshot: Snapshot | None = None) -> int | None:
    """Brings the table to ``snapshot`` (the archive as it is now); its new Iceberg snapshot, None when it was there
    already. A snapshot that is behind the table is no harm."""
    snapshot = archive.snapshot() if snapshot is None else snapshot
    table = iceberg_table(archive)
    from pyiceberg.exceptions import CommitFailedException

    try:
        for _ in range(_TRIES - 1):
            try:
                return _commit(archive, snapshot, table)
            except CommitFailedException:  # archive and compact at once: one of the two looks again
                table.refresh()
        return _commit(archive, snapshot, table)
    finally:
        table.catalog.close()


def _commit(archive: Archive, snapshot: Snapshot, table: Any) -> int | None:
    known = Snapshot(last=int(table.properties[_COMMIT]), generation=int(table.properties[_GENERATION]))
    # What came and went since the last commit never was in the table.
    stale = {
        _address(archive, old.path)
        for old in snapshot.superseded
        if old.generation > known.generation and _heard_of(old.path, known)
    }
    new = [file for file in snapshot.files if not _heard_of(file.path, known)]
    if not (stale or new):
        return None
    last, generation = max(known.last, snapshot.last), max(known.generation, snapshot.generation)
    told = {_COMMIT: str(last), _GENERATION: str(generation)}
    gone = [task.file for task in table.scan().plan_files() if task.file.file_path in stale] if stale else []
    if len(gone) != len(stale):
        raise UsageError(
            f"the Iceberg table {'.'.join(table.name())} does not have all files any more that compaction is to "
            "replace: another tool has rewritten it. Let one of the two compact it, not both"
        )
    transaction = table.transaction()
    transaction.set_properties(told)
    update = transaction.update_snapshot(snapshot_properties=told)
    with update.overwrite() if gone else update.fast_append() as change:
        for each in gone:
            change.delete_data_file(each)
        for file in new:
            change.append_data_file(_data_file(table, _address(archive, file.path), partition_of(file.path)))
    transaction.commit_transaction()
    return int(table.current_snapshot().snapshot_id)


def _data_file(table: Any, address: str, partition: tuple[str, ...]) -> Any:
    """As ``add_files`` of pyiceberg has it, but for the partition: that is in no column of the file."""
    import pyarrow.parquet as pq
    from pyiceberg.io import pyarrow as files
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    given, schema = table.io.new_input(address), table.schema()
    with given.open() as stream:
        metadata = pq.read_metadata(stream)
    statistics = files.data_file_statistics_from_parquet_metadata(
        parquet_metadata=metadata,
        stats_columns=files.compute_statistics_plan(schema, table.properties),
        parquet_column_mapping=files.parquet_path_to_id_mapping(schema),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA, file_path=address, file_format=FileFormat.PARQUET, partition=Record(*partition),
        file_size_in_bytes=len(given), sort_order_id=None, spec_id=table.metadata.default_spec_id, equality_ids=None,
        key_metadata=None, **statistics.to_serialized_dict(),
    )  # fmt: skip


def _create(catalog: Any, name: str, archive: Archive) -> Any:
    from pyiceberg.exceptions import TableAlreadyExistsError

    schema = arrow_schema([column for column in archive.columns if column != "topic"])
    for column in _PARTITIONS:
        schema = schema.append(pa.field(column, pa.string()))
    # Each commit writes all of the table's metadata anew: whoever follows a topic would fill the disk with old ones.
    properties = {
        _ID: archive.id, _COMMIT: "-1", _GENERATION: "0", "commit.retry.num-retries": "0",
        "write.metadata.delete-after-commit.enabled": "true",
    }  # fmt: skip
    try:
        transaction = catalog.create_table_transaction(
            name, schema=schema, location=_address(archive, "data"), properties=properties
        )
        with transaction.update_spec() as spec:
            for column in _PARTITIONS:
                spec.add_identity(column)
        mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
        transaction.set_properties({"schema.name-mapping.default": mapping})
        return transaction.commit_transaction()
    except TableAlreadyExistsError:
        return catalog.load_table(name)


def _catalog(archive: Archive) -> Any:
    try:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.utils.config import Config
        from sqlalchemy import URL  # what pyiceberg's SQL catalogue needs
    except ImportError as error:
        raise UsageError(f"{error}: format='iceberg' needs pip install 'aiorocketmq[spark,iceberg]'") from error
    if odd := set("?#") & set(archive.folder.location):
        raise UsageError(
            f"format='iceberg' at {archive.folder.location}: pyiceberg writes elsewhere when a folder's name has "
            f"{' or '.join(sorted(odd))} in it: use another folder"
        )
    configured: Any = Config().get_catalog_config(CATALOG)
    if configured is not None:
        return load_catalog(CATALOG, **configured)
    if not archive.folder.local:
        raise UsageError(
            f"format='iceberg' at {archive.folder.location}: a catalogue cannot be a file there. Configure one named "
            f"{CATALOG!r} for pyiceberg: PYICEBERG_CATALOG__{CATALOG.upper()}__URI in the environment, or "
            "~/.pyiceberg.yaml"
        )
    uri = URL.create("sqlite", database=archive.folder.full(_FILE)).render_as_string()
    return load_catalog(CATALOG, type="sql", uri=uri, warehouse=_address(archive, ""))


def _address(archive: Archive, name: str) -> str:
    """A file as the table names it: absolute, and S3 under its own name."""
    folder = archive.folder
    if folder.local:
        return f"file://{os.path.abspath(folder.full(name))}"
    scheme, _, path = folder.uri(name).partition("://")
    return f"{'s3' if scheme == 's3a' else scheme}://{path}"


def _heard_of(path: str, known: Snapshot) -> bool:
    """Whether the commit or generation that brought a file is in the table."""
    origin = FileOrigin.of(path)
    return origin is not None and origin.decided(known)
