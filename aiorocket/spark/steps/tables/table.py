"""What an analysing step writes: a folder with Parquet, Delta or Iceberg tables, and a record of which offsets are
in them.

``PATH/<part>/run=NNNNNNNNNN/*.parquet`` is what one run wrote, ``PATH/_runs/NNNNNNNNNN.json`` says that it did, from
which offsets, and whether it stands beside the runs before it or in their place. Files come first, the record last: a
run that was cut short left files that no record names, and the next run removes them. So a plain
``spark.read.parquet(PATH/<part>)`` is right after every run that ended; ``Table.rows`` is right at any time. A
compaction is a run that gives the same rows in fewer files.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from aiorocket.errors import RocketError, UsageError
from aiorocket.model import Queue
from aiorocket.runtime.clock import WallClock
from aiorocket.runtime.entropy import Entropy
from aiorocket.spark.steps.files.claims import Claim
from aiorocket.spark.steps.files.folder import CHECKED, Folder
from aiorocket.spark.steps.files.iceberg_catalog import open_catalog
from aiorocket.spark.steps.files.iceberg_parts import iceberg_part, sync_iceberg_parts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import DataType, StructType

__all__ = ("Table", "TableFile", "TableSnapshot")

_ABOUT, _RUNS, _STAGING = "_table.json", "_runs", "_staging"
_FORMATS = ("parquet", "delta", "iceberg")
#: Each run of this number leaves a record that stands for all before it: a service makes thousands a day.
_WHOLE = 64
#: How long files stay that another schema has replaced, in seconds, as those that a compaction has.
_KEEP = 3600.0
#: Where a Parquet file of Spark's has Spark's types.
_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"


class TableFile(NamedTuple):
    """One Parquet file of a table; ``path`` from the table's folder. ``tail`` and ``crc`` are its ``tail_of``, zeros
    where nobody took it."""

    part: str
    path: str
    rows: int
    bytes: int
    tail: int = 0
    crc: int = 0


@dataclass(frozen=True)
class TableSnapshot:
    """A table at one moment: its newest run (-1: none), what is in it, and the offsets ``[begin, end)`` it is made of.
    ``rows_in`` is how many rows these had, ``missing`` how many they should have had more. ``replaced`` are
    files that a compaction took out of the table and when they go, in milliseconds since 1970 UTC. ``stored`` says of
    queues of a live topic when its broker stored their last row, in the same."""

    last: int = -1
    files: tuple[TableFile, ...] = ()
    ranges: Mapping[Queue, tuple[int, int]] = field(default_factory=dict)
    rows_in: int = 0
    missing: Mapping[Queue, int] = field(default_factory=dict)
    replaced: Mapping[str, int] = field(default_factory=dict)
    stored: Mapping[Queue, int] = field(default_factory=dict)

    def rows(self, part: str) -> int:
        return sum(file.rows for file in self.files if file.part == part)


class Table:
    """The tables of one step with one set of arguments. Nothing is kept in memory but what ``open`` was told."""

    def __init__(self, folder: Folder, about: Mapping[str, Any]) -> None:
        self.folder = folder
        self.id: str = about["id"]
        self.step: str = about["step"]
        self.format: str = about["format"]
        self.settings: Mapping[str, Any] = about["settings"]
        #: What a run holds, so that no other writes here.
        self.claim: Claim | None = None

    @classmethod
    def there(cls, path: str) -> Table | None:
        """The table at ``path``, None where none is."""
        folder = Folder(path)
        try:
            found: Table = folder.json(_ABOUT, lambda about: cls(folder, about))
        except FileNotFoundError:
            return None
        return found

    @classmethod
    def open(
        cls,
        path: str,
        step: str,
        settings: Mapping[str, object],
        format: str = "parquet",
        evolves: Sequence[str] = (),
    ) -> Table:
        """Opens the table at ``path`` or begins one, and removes what runs left that were cut short, so whoever opens
        it holds the claim "table". UsageError when the one there is of another step, other arguments (but for those
        that ``evolves`` names) or another format: their rows would not go together. UsageError too where Iceberg's
        catalogue cannot be had, or is not the one the table is in."""
        if format not in _FORMATS:
            raise UsageError(f"format={format!r}: one of {', '.join(_FORMATS)}")
        plain = json.loads(json.dumps(settings))
        about = {"id": Entropy().token(8).hex(), "step": step, "format": format, "settings": plain}
        folder = Folder(path)
        if format == "iceberg":
            open_catalog(folder).close()  # what is wrong with it is said before the first run, not behind it
        try:
            folder.create(_ABOUT, (json.dumps(about) + "\n").encode())
        except FileExistsError:
            there = folder.json(_ABOUT)
            if {**there, "id": about["id"]} != about and not folder.names(_RUNS):
                # It was begun, and then something was wrong with what was asked for.
                folder.replace(_ABOUT, (json.dumps(about) + "\n").encode())
                there = about
            table = cls(folder, there)
            found: Any
            for name, asked in (("step", step), ("format", format), ("settings", _strict(plain, evolves))):
                found = getattr(table, name)
                if name == "settings":
                    found = _strict(found, evolves)
                if found != asked:
                    raise UsageError(
                        f"the table at {path} was begun with {_difference(name, found, asked)}: use another folder"
                    ) from None
            table._tidy(begins=True)
            return table
        return cls(folder, about)

    def snapshot(self) -> TableSnapshot:
        """The table now."""
        return _together(self._records())

    def _records(self) -> list[dict[str, Any]]:
        """The newest record that stands for all before it, and those behind it, in their order."""
        while True:
            found: list[dict[str, Any]] = []
            names = self.folder.names(_RUNS)
            try:
                for name in reversed(names):
                    found.append(self.folder.json(f"{_RUNS}/{name}"))
                    if found[-1]["kind"] != "append":
                        break
                return found[::-1]
            except FileNotFoundError:
                if self.folder.names(_RUNS) == names:
                    raise
                # A newer record has come to stand for the ones that were listed.

    def rows(self, spark: SparkSession, part: str, at: TableSnapshot | None = None) -> DataFrame | None:
        """The rows of ``part`` that records name, or named ``at`` some moment; None when nothing was written of it."""
        files = [file for file in (at or self.snapshot()).files if file.part == part]
        return self._reader(spark, files).parquet(*self._uris(files)) if files else None

    def iceberg(self, part: str) -> Any:
        """The pyiceberg table of ``part``, of a table with this format; ``.catalog.close()`` when done. KeyError for a
        part without files, UsageError as of ``iceberg_table``."""
        return iceberg_part(self.folder, self.id, part, _paths(self.snapshot())[part])

    def write(
        self,
        parts: Mapping[str, DataFrame],
        ranges: Mapping[Queue, tuple[int, int]],
        rows_in: int,
        missing: Mapping[Queue, int] | None = None,
        stored: Mapping[Queue, int] | None = None,
        *,
        whole: bool = False,
        splits: bool = False,
    ) -> TableSnapshot:
        """Adds what one portion of the input, ``ranges`` with ``rows_in`` rows, gave, or with ``whole`` puts it in the
        place of all that is there; the table then. With ``splits`` the parts have as many rows together: RocketError
        otherwise, and the table is as it was."""
        before = self.snapshot()
        run = before.last + 1
        staged = self._stage(run, parts)
        if splits and sum(file.rows for file in staged) != rows_in:
            wrote = {part: sum(file.rows for file in staged if file.part == part) for part in parts}
            self._drop(staged)
            raise RocketError(f"{self.step}: {rows_in} rows were read and {wrote} written: they must be as many")
        made = TableSnapshot(run, tuple(staged), ranges, rows_in, missing or {}, stored=stored or {})
        return self._publish("replace" if whole else "append", made, staged, before)

    def evolve(self, spark: SparkSession, part: str, column: str, type_: DataType) -> DataType:
        """The type that ``column`` of ``part`` has from now on: its own where rows have come so far, made to hold those
        of ``type_`` as well. Where that makes it another one the part's files are written anew, so that all have it,
        and whatever reads them sees one schema. UsageError when there is no such type."""
        from aiorocket.spark.steps.tables.evolution import (  # Spark's types, which readers do not need
            as_type,
            merged,
            same,
        )

        old = self.type_of(part, column)
        if old is None:
            return type_
        wanted = merged(old, type_, column)
        if not same(old, wanted):
            before = self.snapshot()
            files = [file for file in before.files if file.part == part]
            rows = self._read(spark, files)
            made = rows.withColumn(column, as_type(rows[column], old, wanted))
            self._rewrite(before, {part: files}, {part: made}, _KEEP)
        return wanted

    def type_of(self, part: str, column: str) -> DataType | None:
        """The type of ``column`` in ``part``, None where there is none, as before the first run that wrote any."""
        schema = self.schema_of(part)
        return schema[column].dataType if schema is not None and column in schema.names else None

    def schema_of(self, part: str) -> StructType | None:
        """The columns of ``part``, None before the first run that wrote any."""
        from pyspark.sql.types import StructType

        files = [file for file in self.snapshot().files if file.part == part]
        if not files:
            return None
        self.folder.need(files[-1:])
        with self.folder.filesystem.open_input_file(self.folder.full(files[-1].path)) as stream:
            told = pq.ParquetFile(stream).schema_arrow.metadata[_SCHEMA]
        return StructType.fromJson(json.loads(told))

    def compact(self, spark: SparkSession, target_bytes: int, keep: float) -> TableSnapshot:
        """Writes the files of a part that are below half of ``target_bytes`` anew, where there are two or more: the
        same rows (RocketError otherwise, and nothing has changed) in files of about that size. In a Delta or Iceberg
        table the replaced files stay ``keep`` seconds for readers that began before. The table then."""
        before = self._tidy()
        small: dict[str, list[TableFile]] = {}
        for file in before.files:
            if file.bytes < target_bytes // 2:
                small.setdefault(file.part, []).append(file)
        parts = {part: files for part, files in small.items() if len(files) > 1}
        if not parts:
            return before
        made = {
            part: self._read(spark, files).coalesce(-(-sum(file.bytes for file in files) // target_bytes))
            for part, files in parts.items()
        }
        return self._rewrite(before, parts, made, keep)

    def _read(self, spark: SparkSession, files: Sequence[TableFile]) -> DataFrame:
        # A later release may have written columns that an earlier one had not.
        return self._reader(spark, files).option("mergeSchema", "true").parquet(*self._uris(files))

    def _reader(self, spark: SparkSession, files: Sequence[TableFile]) -> DataFrameReader:
        """What fails where one of ``files`` is gone or damaged."""
        self.folder.need(files)
        return spark.read.options(**CHECKED)

    def _uris(self, files: Sequence[TableFile]) -> list[str]:
        return [self.folder.uri(file.path) for file in files]

    def _rewrite(
        self,
        before: TableSnapshot,
        parts: Mapping[str, Sequence[TableFile]],
        made: Mapping[str, DataFrame],
        keep: float,
    ) -> TableSnapshot:
        """Puts ``made`` in the place of the files of ``parts``: the same rows, or nothing is replaced."""
        run = before.last + 1
        staged = self._stage(run, made)
        new = TableSnapshot(run, tuple(staged))
        for part in parts:
            had, has = sum(file.rows for file in parts[part]), new.rows(part)
            if had != has:
                self._drop(staged)
                raise RocketError(f"{self.folder.uri(part)}: {had} rows before, {has} after: nothing was replaced")
        gone = {file.path for files in parts.values() for file in files}
        now = WallClock().wall_ms()
        replaced = {path: at for path, at in before.replaced.items() if at > now}
        if self.format != "parquet":
            replaced.update(dict.fromkeys(sorted(gone), now + round(keep * 1000)))
        files = (*(file for file in before.files if file.path not in gone), *new.files)
        return self._publish("compact", replace(before, last=run, files=files, replaced=replaced), staged)

    def _stage(self, number: int, parts: Mapping[str, DataFrame]) -> dict[TableFile, str]:
        """Writes the parts of run ``number``: its files, as they are to be named, and where each is."""
        from aiorocket.spark.steps.files.hours import tail_of  # what readers do not need, as Spark's
        from aiorocket.spark.steps.rows import write_parquet

        run = f"{number:010d}"
        staging, staged = f"{_STAGING}/{run}-{Entropy().token(4).hex()}", dict[TableFile, str]()
        for part, df in parts.items():
            write_parquet(df, self.folder.uri(f"{staging}/{part}"))
            for name in self.folder.names(f"{staging}/{part}"):
                if name.endswith(".parquet") and name[0] not in "._":
                    here, path = f"{staging}/{part}/{name}", f"{part}/run={run}/{name}"
                    file = TableFile(part, path, self._count(here), self.folder.size(here), *tail_of(self.folder, here))
                    staged[file] = here
        return staged

    def _drop(self, staged: Mapping[TableFile, str]) -> None:
        for here in staged.values():
            self.folder.remove(here)

    def _publish(
        self, kind: str, made: TableSnapshot, staged: Mapping[TableFile, str], before: TableSnapshot | None = None
    ) -> TableSnapshot:
        """Brings staged files to their places, and ``made`` to the records: what is there now or, with kind "append",
        what comes to ``before``."""
        self.folder.move({here: file.path for file, here in staged.items()})
        entry: dict[str, Any] = {"run": made.last, "kind": kind, "at_ms": WallClock().wall_ms(), **_plain(made)}
        if before is not None and kind == "append" and made.last % _WHOLE == 0:
            entry.update(_plain(_after(before, entry)), kind="replace")
        run = f"{made.last:010d}"
        if self.claim is not None:
            self.claim.check()
        try:
            self.folder.create(f"{_RUNS}/{run}.json", (json.dumps(entry, separators=(",", ":")) + "\n").encode())
        except FileExistsError:
            raise self._raced(run) from None
        if self._records()[0]["run"] > made.last:
            self.folder.remove(f"{_RUNS}/{run}.json")  # the other's of this number was there, and is stood for
            raise self._raced(run)
        return self._tidy()

    def _raced(self, run: str) -> RocketError:
        where = f"{self.folder.uri(_RUNS)}/{run}.json"
        return RocketError(f"{where} was written by another run meanwhile: run one at a time")

    def _count(self, name: str) -> int:
        """How many rows the file says it has: what was written, not what was meant to be."""
        with self.folder.filesystem.open_input_file(self.folder.full(name)) as stream:
            return int(pq.ParquetFile(stream).metadata.num_rows)

    def _tidy(self, *, begins: bool = False) -> TableSnapshot:
        """Brings a Delta log up to date, and removes all files that the records do not name, and records that a newer
        one stands for. The table now. Files of a run whose number is not taken go only where a run of the step
        ``begins``: beside a compaction one may be writing them, and would note that it wrote none."""
        records = self._records()
        snapshot = _together(records)
        last = f"{snapshot.last:010d}"
        for name in self.folder.names(_RUNS):
            if records and name < f"{records[0]['run']:010d}":
                self.folder.remove(f"{_RUNS}/{name}")
        now = WallClock().wall_ms()
        if self.format == "iceberg":
            sync_iceberg_parts(self.folder, self.id, snapshot.last, _paths(snapshot), snapshot.replaced, now)
        if self.format == "delta":
            from aiorocket.spark.steps.files.delta import delta_in_a_line  # Spark's types, which readers do not need

            rewritten = records[-1]["run"] if records and records[-1]["kind"] == "compact" else -1
            with delta_in_a_line(self.folder.location):
                self._sync_delta(snapshot, rewritten)
        for name in self.folder.folders(_STAGING):
            if begins or name[:10] <= last:
                self.folder.remove_tree(f"{_STAGING}/{name}")
        named = {file.path for file in snapshot.files} | {path for path, at in snapshot.replaced.items() if at > now}
        kept = {path.rpartition("/")[0] for path in named}
        for name in self.folder.walk(""):
            where = name.rpartition("/")[0]
            if name in named or name.startswith("_") or "/_" in name or "/run=" not in name:
                continue
            if not begins and name.partition("/run=")[2][:10] > last:
                continue
            if where in kept:
                self.folder.remove(name)
            else:
                self.folder.remove_tree(where)
        return snapshot

    def _sync_delta(self, snapshot: TableSnapshot, rewritten: int) -> None:
        """Each part's Delta table, with the same files; a commit carries the number of the run, so that one that a
        crash left undone is made up for and one that is there is not repeated. Readers of changes pass over one that
        does no more than the compaction of run ``rewritten``."""
        from aiorocket.spark.steps.files.delta import import_deltalake

        deltalake = import_deltalake()
        from deltalake.transaction import AddAction, RemoveAction

        now = WallClock().wall_ms()
        for part in sorted({file.part for file in snapshot.files}):
            own = {file.path.removeprefix(f"{part}/"): file for file in snapshot.files if file.part == part}
            newest = list(own.values())[-1]
            self.folder.need([newest])
            with self.folder.filesystem.open_input_file(self.folder.full(newest.path)) as stream:
                told = pq.ParquetFile(stream).schema_arrow.remove_metadata().append(pa.field("run", pa.string()))
            schema, uri = deltalake.Schema.from_arrow(told), self.folder.uri(part)
            if not deltalake.DeltaTable.is_deltatable(uri):
                deltalake.DeltaTable.create(uri, schema, mode="ignore", partition_by=["run"])
            table = deltalake.DeltaTable(uri)
            known = table.transaction_version(self.id)
            if known is not None and known >= snapshot.last + 1:
                continue
            commit = deltalake.CommitProperties(
                app_transactions=[deltalake.Transaction(self.id, snapshot.last + 1, now)]
            )
            here = {str(path) for path in table.get_add_actions().column("path").to_pylist()}
            # All files are others where types are, and only an overwrite, which removes what is there, tells the table.
            evolved = here.isdisjoint(own) and _types(table.schema()) != _types(schema)
            changed = evolved or known is None or known != rewritten
            actions: list[Any] = []
            if not evolved:
                there = {each.name for each in table.schema().fields}
                if more := [each for each in schema.fields if each.name not in there]:  # of a later release
                    table.alter.add_columns([deltalake.Field(each.name, each.type, nullable=True) for each in more])
                actions += [RemoveAction(path, changed, now) for path in sorted(here - own.keys())]
            for path in sorted(own.keys() - here):
                run, stats = path.partition("/")[0].removeprefix("run="), json.dumps({"numRecords": own[path].rows})
                actions.append(AddAction(path, own[path].bytes, {"run": run}, now, changed, stats))
            table.create_write_transaction(
                actions, "overwrite" if evolved else "append", schema, ["run"], commit_properties=commit
            )


def _paths(snapshot: TableSnapshot) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for file in snapshot.files:
        found.setdefault(file.part, []).append(file.path)
    return found


def _plain(snapshot: TableSnapshot) -> dict[str, Any]:
    """As a record has it."""
    return {
        "rows_in": snapshot.rows_in,
        "ranges": [[*queue, *snapshot.ranges[queue]] for queue in sorted(snapshot.ranges)],
        "missing": [[*queue, snapshot.missing[queue]] for queue in sorted(snapshot.missing)],
        "files": [list(file) for file in snapshot.files],
        "replaced": dict(snapshot.replaced),
        "stored": [[*queue, snapshot.stored[queue]] for queue in sorted(snapshot.stored)],
    }


def _together(records: Sequence[Mapping[str, Any]]) -> TableSnapshot:
    return functools.reduce(_after, records, TableSnapshot())


def _after(snapshot: TableSnapshot, entry: Mapping[str, Any]) -> TableSnapshot:
    """``snapshot`` and the run of the record ``entry``."""
    before = snapshot if entry["kind"] == "append" else TableSnapshot()
    ranges, missing = dict(before.ranges), dict(before.missing)
    for *queue, begin, end in entry["ranges"]:
        ranges[Queue(*queue)] = (ranges.get(Queue(*queue), (begin, end))[0], end)
    for *queue, lost in entry["missing"]:
        missing[Queue(*queue)] = missing.get(Queue(*queue), 0) + lost
    files = before.files + tuple(TableFile(*item) for item in entry["files"])
    replaced = {**before.replaced, **entry.get("replaced", {})}
    stored = dict(before.stored)
    for *queue, at_ms in entry.get("stored", ()):
        stored[Queue(*queue)] = at_ms
    return TableSnapshot(entry["run"], files, ranges, before.rows_in + entry["rows_in"], missing, replaced, stored)


def _types(schema: Any) -> Any:
    """A Delta schema without what may be null: what is read back may be, whatever was written."""
    null = ("nullable", "containsNull", "valueContainsNull")
    return json.loads(
        schema.to_json(), object_hook=lambda each: {name: value for name, value in each.items() if name not in null}
    )


def _strict(settings: Mapping[str, Any], evolves: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in evolves}


def _difference(name: str, found: Any, asked: Any) -> str:
    if not isinstance(found, dict) or not isinstance(asked, dict):
        found, asked = {name: found}, {name: asked}
    different = sorted(key for key in found.keys() | asked.keys() if found.get(key) != asked.get(key))
    return f"{_said(found, different)}, now {_said(asked, different)} is asked for"


def _said(settings: Mapping[str, Any], names: Sequence[str]) -> str:
    """Those of ``names`` that have a value, or all of them where none has."""
    given = [name for name in names if settings.get(name) is not None]
    return ", ".join(f"{name}={settings.get(name)!r}" for name in given or names)
