"""Iceberg tables over the parts of a step's table: as with Delta its records decide, and each table follows them with
the same Parquet files. The number of the run it has come to is in its properties."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

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

if TYPE_CHECKING:
    from aiorocket.spark.steps.files.folder import Folder

__all__ = ("iceberg_part", "sync_iceberg_parts")

#: A property: up to which snapshot (by its number) files are gone, and from when on (ms): [[number, ms], …].
_READABLE = "aiorocket.readable"
#: How long a snapshot stays that can be read and is not among the newest, in milliseconds.
_KEEP_MS = 3_600_000


def iceberg_part(folder: Folder, owner: str, part: str, paths: Sequence[str]) -> Any:
    """The pyiceberg table of ``part``, which has the files ``paths`` (the newest last), in the folder of a table with
    the id ``owner``; made when it is not there yet. UsageError as of ``open_table``."""

    def create(catalog: Any, name: str) -> Any:
        # Beside the part: whoever reads its folder as Parquet passes over what begins with a line.
        properties = {
            ID: owner, COMMIT: "-1", _READABLE: "[]", "write.metadata.path": address_of(folder, _metadata(part)),
        }  # fmt: skip
        return create_table(catalog, name, _schema(folder, paths[-1]), address_of(folder, part), properties)

    return open_table(folder, owner, address_of(folder, part), create, part)


def sync_iceberg_parts(
    folder: Folder,
    owner: str,
    last: int,
    parts: Mapping[str, Sequence[str]],
    replaced: Mapping[str, int],
    now_ms: int,
) -> None:
    """Brings the tables of all ``parts`` to their files, as they are behind run ``last``. ``replaced`` are files that
    stay for a while and when they go; what names those that go at ``now_ms`` is forgotten before."""
    for part, paths in sorted(parts.items()):
        opened = iceberg_part(folder, owner, part, paths)
        tried(opened, partial(_commit, folder, part, last, paths, replaced, now_ms))


def _metadata(part: str) -> str:
    return f"_iceberg/{part}"


def _schema(folder: Folder, path: str) -> pa.Schema:
    with folder.filesystem.open_input_file(folder.full(path)) as stream:
        told = pq.ParquetFile(stream).schema_arrow.remove_metadata()
    return pa.schema([field.with_nullable(True) for field in told])


def _commit(
    folder: Folder,
    part: str,
    last: int,
    paths: Sequence[str],
    replaced: Mapping[str, int],
    now_ms: int,
    table: Any,
) -> None:
    if int(table.properties[COMMIT]) < last:
        _follow(folder, last, paths, replaced, now_ms, table)
    _expire(folder, part, now_ms, table)


def _follow(
    folder: Folder, last: int, paths: Sequence[str], replaced: Mapping[str, int], now_ms: int, table: Any
) -> None:
    own = {address_of(folder, path) for path in paths}
    here = {task.file.file_path: task.file for task in table.scan().plan_files()}
    if here and not own <= here.keys():  # a later release, or a schema that evolved: all files are new then
        with table.update_schema() as change:
            change.union_by_name(_schema(folder, paths[-1]))
    before = json.loads(table.properties[_READABLE])
    due = [each for each in before if each[1] <= now_ms]  # of these ``_expire`` needs the last
    readable = [*sorted(due)[-1:], *(each for each in before if each[1] > now_ms)]
    gone = [file for path, file in here.items() if path not in own]
    if gone:
        until = {address_of(folder, path): at for path, at in replaced.items()}
        readable.append([table.metadata.last_sequence_number, min(until.get(each.file_path, 0) for each in gone)])
    new = ((path, ()) for path in sorted(own - here.keys()))
    change_files(table, {COMMIT: str(last)}, gone, new, {_READABLE: json.dumps(readable)})


def _expire(folder: Folder, part: str, now_ms: int, table: Any) -> None:
    """Forgets snapshots whose files are gone or go now, and of the others the old ones but for the newest."""
    gone = max((number for number, at in json.loads(table.properties[_READABLE]) if at <= now_ms), default=0)
    if forget(table, now_ms - _KEEP_MS, lambda each: each.sequence_number <= gone):
        sweep(folder, _metadata(part), table)
