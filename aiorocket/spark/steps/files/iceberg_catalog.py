"""Tables of pyiceberg's over Parquet files that others write: the catalogue, the table's file entries, its metadata.

The catalogue is the one that pyiceberg's own configuration has under the name ``aiorocket``, or SQLite's file
``_iceberg.db`` in the folder.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from aiorocket.errors import RocketError, UsageError
from aiorocket.runtime.clock import WallClock

if TYPE_CHECKING:
    import pyarrow as pa

    from aiorocket.spark.steps.files.folder import Folder

__all__ = (
    "COMMIT",
    "FILE",
    "ID",
    "NOTE",
    "address_of",
    "change_files",
    "create_table",
    "forget",
    "open_catalog",
    "open_table",
    "sweep",
    "tried",
)

#: The catalogue's name in pyiceberg's own configuration; without one it is a file in the folder.
CATALOG = "aiorocket"
FILE = "_iceberg.db"
#: Says which table a folder has.
NOTE = "_iceberg.json"
_NAMESPACE = "lake"
#: Properties of a table: whose it is, and how far.
ID, COMMIT = "aiorocket.archive", "aiorocket.commit"
#: Each snapshot names all manifests: with one for each commit they would fill the disk, too.
_MERGING = "commit.manifest-merge.enabled"
#: So many snapshots stay, however old, if they can be read.
_SNAPSHOTS = 100
#: Metadata that no snapshot names may be of a commit that is on the way, for so long, in seconds.
_ON_THE_WAY = 3600.0
_TRIES = 5
#: What pyiceberg does not take from the environment by itself.
_STORE = {"s3.endpoint": "AWS_ENDPOINT_URL", "s3.region": "AWS_REGION"}
#: Whose errors are a catalogue's, or of the way to it.
_CATALOGUES = {"pyiceberg", "requests", "sqlalchemy"}

T = TypeVar("T")


def open_table(folder: Folder, owner: str, location: str, create: Callable[[Any, str], Any], part: str = "") -> Any:
    """The table of ``folder`` with its files at ``location``, which ``create(catalog, name)`` makes when it is not
    there yet; ``table.catalog.close()`` when done. It is named like the folder and the ``part``; where the catalogue
    has one of that name already, of another ``owner``, the folder above comes in front, or the owner's id behind.

    A folder has one table in one catalogue, which ``_iceberg.json`` notes: of two each would remove files and metadata
    that the other names. UsageError for another one, and where pyiceberg is not installed or no catalogue configured.
    """
    catalog = open_catalog(folder)
    from pyiceberg.exceptions import NoSuchTableError

    note = f"_iceberg_{part}.json" if part else NOTE
    try:
        try:
            noted = folder.json(note)
        except FileNotFoundError:
            with _in_a_line(catalog.properties):
                made = _own_table(catalog, folder, owner, location, create, part)
            about = {"table": ".".join(made.name()), "uuid": str(made.metadata.table_uuid), "location": location}
            with suppress(FileExistsError):  # the archive, where we compact it beside
                folder.create(note, (json.dumps(about) + "\n").encode())
            noted = folder.json(note)
        name, why = noted["table"], "is in another catalogue than this one, or was removed there"
        if noted["location"] == location:
            with suppress(NoSuchTableError), _in_a_line(catalog.properties, NoSuchTableError):
                table = catalog.load_table(name)
                if str(table.metadata.table_uuid) == noted["uuid"]:
                    return table
        else:
            why = f"has its files at {noted['location']}, of which this is a copy, or it was moved"
        raise UsageError(
            f"{folder.location}: its Iceberg table {name} {why}. For a new table of all rows remove {note} and, "
            f"if there is one, {FILE} from the folder"
        )
    except BaseException:
        catalog.close()
        raise


def _own_table(
    catalog: Any, folder: Folder, owner: str, location: str, create: Callable[[Any, str], Any], part: str
) -> Any:
    from pyiceberg.exceptions import NoSuchTableError

    *_, above, last = ["", *folder.location.split("/")]
    for parts in ((last, part), (above, last, part), (last, part, owner)):
        name = f"{_NAMESPACE}.{re.sub('[^0-9A-Za-z_]', '_', '_'.join(each for each in parts if each))}"
        try:
            table = catalog.load_table(name)
        except NoSuchTableError:
            catalog.create_namespace_if_not_exists(_NAMESPACE)
            table = create(catalog, name)
        if table.properties.get(ID) == owner and table.location().rstrip("/") == location:
            return table
    raise UsageError(f"{folder.location}: the catalogue has a table {name} of another place: remove it there")


def tried(table: Any, change: Callable[[Any], T]) -> T:
    """What ``change(table)`` returns; the table is closed then. When another commit came first it looks again: archive
    and compact may run at once."""
    from pyiceberg.exceptions import CommitFailedException

    try:
        with _in_a_line(table.catalog.properties):
            for _ in range(_TRIES - 1):
                try:
                    return change(table)
                except CommitFailedException:
                    table.refresh()
            return change(table)
    finally:
        table.catalog.close()


@contextmanager
def _in_a_line(properties: Mapping[str, str], *expected: type[Exception]) -> Iterator[None]:
    """What the catalogue with these ``properties``, or the way to it, has to say, but for what is ``expected``, as a
    RocketError: the next time it may go well."""
    try:
        yield
    except expected:
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in _CATALOGUES:
            raise
        raise RocketError(
            f"{_told(properties, error)}. Nothing is lost: the table follows in the next run that gets there"
        ) from error


def _told(properties: Mapping[str, str], error: Exception) -> str:
    where = re.sub("//[^/@]*@", "//", properties.get("uri", CATALOG))  # without the password
    return f"Iceberg catalogue {where}: {next(iter(str(error).splitlines()), '') or type(error).__name__}"


def change_files(
    table: Any,
    told: Mapping[str, str],
    gone: Sequence[Any],
    new: Iterable[tuple[str, tuple[str, ...]]],
    properties: Mapping[str, str] | None = None,
) -> None:
    """One commit: without the entries ``gone``, with the files ``new`` (address, partition). ``told`` is in the table's
    properties then and in its new snapshot's, ``properties`` in the table's alone; without files there is no snapshot.
    """
    new = list(new)
    transaction = table.transaction()
    transaction.set_properties({**told, **(properties or {}), _MERGING: "true"})
    if gone or new:
        update = transaction.update_snapshot(snapshot_properties=dict(told))
        with update.overwrite() if gone else update.merge_append() as change:
            for each in gone:
                change.delete_data_file(each)
            for address, partition in new:
                change.append_data_file(_data_file(table, address, partition))
    transaction.commit_transaction()


def forget(table: Any, before_ms: int, unreadable: Callable[[Any], bool]) -> bool:
    """Has the table forget the snapshots that are ``unreadable``, and of those of ``before_ms`` or earlier all but the
    newest ``_SNAPSHOTS``; whether there were any. Snapshots with a tag or a branch of somebody's stay."""
    newest = sorted(table.snapshots(), key=lambda each: -each.sequence_number)
    held = {each.snapshot_id for each in table.refs().values()}
    old = [
        each.snapshot_id
        for number, each in enumerate(newest)
        if each.snapshot_id not in held
        and (unreadable(each) or (each.timestamp_ms <= before_ms and number >= _SNAPSHOTS))
    ]
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()
        table.refresh()
    return bool(old)


def sweep(folder: Folder, metadata: str, table: Any) -> None:
    """Removes manifests, and lists of them, that no snapshot names: of those that are forgotten, and of commits that
    did not come about."""
    named = set[str]()
    for each in table.snapshots():
        named.add(_last(each.manifest_list))
        named.update(_last(manifest.manifest_path) for manifest in each.manifests(table.io))
    oldest = WallClock().wall_ms() - _ON_THE_WAY * 1000
    for name in folder.names(metadata):
        path = f"{metadata}/{name}"
        if name.endswith(".avro") and name not in named and folder.changed_ms(path) < oldest:
            folder.remove(path)


def _last(path: str) -> str:
    return path.rpartition("/")[2]


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


def create_table(
    catalog: Any,
    name: str,
    schema: pa.Schema,
    location: str,
    properties: Mapping[str, str],
    partitions: Sequence[str] = (),
) -> Any:
    """A table of Parquet files whose columns have names and no numbers; the one there where another was quicker, or the
    catalogue's answer was lost."""
    # Each commit writes all of the table's metadata anew: whoever follows a topic would fill the disk with old ones.
    always = {"commit.retry.num-retries": "0", "write.metadata.delete-after-commit.enabled": "true"}
    try:
        transaction = catalog.create_table_transaction(
            name, schema=schema, location=location, properties={**always, **properties}
        )
        with transaction.update_spec() as spec:
            for column in partitions:
                spec.add_identity(column)
        mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
        transaction.set_properties({"schema.name-mapping.default": mapping})
        transaction.commit_transaction()
    except Exception:
        if not catalog.table_exists(name):
            raise
    return catalog.load_table(name)


def open_catalog(folder: Folder) -> Any:
    """The catalogue for tables in ``folder``, to be closed; UsageError where there is none."""
    try:
        from pyiceberg.utils.config import Config
        from sqlalchemy import URL  # what pyiceberg's SQL catalogue needs
    except ImportError as error:
        raise UsageError(f"{error}: format='iceberg' needs pip install 'aiorocketmq[spark,iceberg]'") from error
    if odd := set("?#") & set(folder.location):
        raise UsageError(
            f"format='iceberg' at {folder.location}: pyiceberg writes elsewhere when a folder's name has "
            f"{' or '.join(sorted(odd))} in it: use another folder"
        )
    configured: Any = Config().get_catalog_config(CATALOG)
    if configured is not None:
        # The store's address is where pyarrow and deltalake have it, unless the catalogue's own settings say another.
        store = {name: os.environ[given] for name, given in _STORE.items() if given in os.environ}
        return _loaded({**store, **configured})
    if not folder.local:
        raise UsageError(
            f"format='iceberg' at {folder.location}: a catalogue cannot be a file there. Configure one named "
            f"{CATALOG!r} for pyiceberg: PYICEBERG_CATALOG__{CATALOG.upper()}__URI in the environment, or "
            "~/.pyiceberg.yaml"
        )
    folder.make("")
    uri = URL.create("sqlite", database=folder.full(FILE)).render_as_string()
    return _loaded({"type": "sql", "uri": uri, "warehouse": address_of(folder, "")})


def _loaded(properties: Mapping[str, str]) -> Any:
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NotInstalledError

    try:
        with _in_a_line(properties, NotInstalledError):
            return load_catalog(CATALOG, **properties)
    except (ValueError, NotInstalledError) as error:  # no such kind of catalogue, no driver for it
        raise UsageError(_told(properties, error)) from error


def address_of(folder: Folder, name: str) -> str:
    """A file as the table names it: absolute, and S3 under its own name."""
    if folder.local:
        return f"file://{os.path.abspath(folder.full(name))}"
    scheme, _, path = folder.uri(name).partition("://")
    return f"{'s3' if scheme == 's3a' else scheme}://{path}"
