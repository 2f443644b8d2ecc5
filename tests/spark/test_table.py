"""The records of a table: few, whatever the number of runs, and the same at every moment. No Spark."""

from __future__ import annotations

import pkgutil
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyarrow import parquet

from aiorocket.errors import RocketError, UsageError
from aiorocket.model import Queue
from aiorocket.spark.steps.files.folder import Folder
from aiorocket.spark.steps.proof import QueueCount
from aiorocket.spark.steps.tables import run
from aiorocket.spark.steps.tables.inputs import Input
from aiorocket.spark.steps.tables.run import Made, Output
from aiorocket.spark.steps.tables.table import Table, TableSnapshot

Q0, Q1 = Queue("orders", "broker-a", 0), Queue("orders", "broker-a", 1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fourth record stands for all, and parts are tables of Arrow."""

    names = count()

    def write(rows: Any, location: str) -> None:
        folder = Path(location.removeprefix("file://"))
        folder.mkdir(parents=True)
        parquet.write_table(rows, folder / f"part-{next(names)}.parquet")

    monkeypatch.setattr("aiorocket.spark.steps.tables.table._WHOLE", 4)
    monkeypatch.setattr("aiorocket.spark.steps.rows.write_parquet", write)


def add(table: Table, begin: int, end: int, queue: Queue = Q0) -> TableSnapshot:
    rows: Any = {"rows": pa.table({"offset": list(range(begin, end))})}
    return table.write(rows, {queue: (begin, end)}, end - begin - 1, {queue: 1})


def records(path: Path) -> list[int]:
    return sorted(int(each.stem) for each in (path / "_runs").iterdir())


def test_records_stay_few_and_say_the_same(tmp_path: Path) -> None:
    table = Table.open(str(tmp_path), "x", {})
    add(table, 0, 5, Q1)
    for number in range(1, 15):
        found = add(table, number * 2, number * 2 + 2)
        assert (found.last, found.rows_in, found.rows("rows")) == (number, 4 + number, 5 + 2 * number)
        assert (found.ranges, found.missing) == ({Q1: (0, 5), Q0: (2, number * 2 + 2)}, {Q1: 1, Q0: number})
        assert records(tmp_path) == list(range(number // 4 * 4, number + 1))
        assert len({each.path for each in found.files if (tmp_path / each.path).is_file()}) == number + 1
    assert Table.open(str(tmp_path), "x", {}).snapshot() == found


def test_a_table_without_rows_takes_other_arguments(tmp_path: Path) -> None:
    """The first ones may have been wrong, which is found out when rows are made."""
    Table.open(str(tmp_path), "windows", {"every": "5 minuts"})
    table = Table.open(str(tmp_path), "windows", {"every": "5 minutes"})
    assert table.settings == {"every": "5 minutes"}
    add(table, 0, 5)
    with pytest.raises(UsageError, match="use another folder"):
        Table.open(str(tmp_path), "windows", {"every": "6 minutes"})


def test_damaged_records_are_named(tmp_path: Path) -> None:
    table = Table.open(str(tmp_path), "x", {})
    add(table, 0, 5)
    record = tmp_path / "_runs" / "0000000000.json"
    record.write_bytes(record.read_bytes()[:20])
    with pytest.raises(RocketError, match=r"_runs/0000000000\.json cannot be read .*: put it back from a copy"):
        table.snapshot()


def test_a_crash_between_a_record_and_those_it_stands_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.open(str(tmp_path), "x", {})
    for number in range(4):
        add(table, number, number + 1)
    removed: list[str] = []

    def remove(folder: Folder, name: str) -> bool:
        if removed:
            raise ConnectionAbortedError
        removed.append(name)
        (tmp_path / name).unlink()
        return True

    with monkeypatch.context() as crashing:
        crashing.setattr(Folder, "remove", remove)
        with pytest.raises(ConnectionAbortedError):
            add(table, 4, 5)
    assert records(tmp_path) == [1, 2, 3, 4]
    assert table.snapshot().ranges == {Q0: (0, 5)} and table.snapshot().rows("rows") == 5
    assert Table.open(str(tmp_path), "x", {}).snapshot() == table.snapshot()
    assert records(tmp_path) == [4]


def test_a_reader_whose_records_go_while_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.open(str(tmp_path), "x", {})
    for number in range(4):
        add(table, number, number + 1)
    read, began = Folder.read, False

    def slowly(folder: Folder, name: str) -> bytes:
        nonlocal began
        if not began and name.startswith("_runs/"):
            began = True
            for number in range(4, 6):
                add(table, number, number + 1)
        return read(folder, name)

    monkeypatch.setattr(Folder, "read", slowly)
    assert Table.open(str(tmp_path), "x", {}).snapshot().ranges == {Q0: (0, 6)}


def test_parts_that_lack_a_row_are_not_written(tmp_path: Path) -> None:
    """The next run reads the portion again: it would go on behind it."""
    table = Table.open(str(tmp_path), "x", {})
    rows: Any = {"good": pa.table({"offset": [0, 1]}), "bad": pa.table({"offset": [2]})}
    with pytest.raises(RocketError, match=r"x: 4 rows were read and {'good': 2, 'bad': 1} written: "):
        table.write(rows, {Q0: (0, 4)}, 4, splits=True)
    assert table.snapshot() == TableSnapshot() and not list(tmp_path.rglob("*.parquet"))
    assert table.write(rows, {Q0: (0, 3)}, 3, splits=True).ranges == {Q0: (0, 3)}


def test_a_step_that_splits_rows_tells_its_table_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: Any = SimpleNamespace(
        ranges={Q0: (0, 4)}, provable=True, costly=False, kept=None, read=lambda part: None, stored=lambda offsets: {},
        count=lambda part, base: {Q0: QueueCount(4, 0, 3, 4)},
    )  # fmt: skip
    monkeypatch.setattr(run, "open_rows", lambda *_: given)
    made: Any = Made(None, {"good": pa.table({"offset": [0, 1, 2]})})
    nobody: Any = None
    with pytest.raises(RocketError, match=r"decode: 4 rows were read and {'good': 3} written"):
        run.add("decode", nobody, Input(archive="a"), Output(str(tmp_path)), {}, lambda *_: made, splits=True)
    assert Table.open(str(tmp_path), "decode", {}).snapshot() == TableSnapshot()


def test_a_run_that_slept_through_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.open(str(tmp_path), "x", {})
    add(table, 0, 1)
    move, slept = Folder.move, False

    def late(folder: Folder, moves: Any) -> None:
        nonlocal slept
        move(folder, moves)
        if not slept:
            slept = True
            for number in range(1, 6):
                add(table, number, number + 1)

    monkeypatch.setattr(Folder, "move", late)
    with pytest.raises(RocketError, match="another run meanwhile"):
        add(table, 1, 3)
    assert records(tmp_path) == [4, 5] and table.snapshot().ranges == {Q0: (0, 6)}


@pytest.mark.parametrize(
    "moment", ["aiorocket.spark.steps.rows.write_parquet", "aiorocket.spark.steps.tables.table.Folder.move"]
)
def test_a_compaction_that_begins_beside_a_run_takes_nothing_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The run would note the offsets, and none of their rows."""
    table = Table.open(str(tmp_path), "x", {})
    add(table, 0, 2)
    real = pkgutil.resolve_name(moment)

    def and_a_compaction(*given: Any) -> None:
        real(*given)
        other, spark = Table.there(str(tmp_path)), cast(Any, None)
        assert other is not None and other.compact(spark, 1 << 20, 0).last == 0  # one file: there is nothing to do

    monkeypatch.setattr(moment, and_a_compaction)
    found = add(table, 2, 5)
    assert (found.ranges, found.rows("rows")) == ({Q0: (0, 5)}, 5)
    assert all((tmp_path / each.path).is_file() for each in found.files)
    assert not list((tmp_path / "_staging").iterdir())
