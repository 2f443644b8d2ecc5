"""Steps that read what an earlier step kept: decoded rows without repeats, counted, and none of them lost or twice
whatever died on the way."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aiorocket.cli.lake.telling import proof
from aiorocket.errors import ConfigError, UsageError
from aiorocket.model import Queue
from aiorocket.spark.steps.archives.compact import compact
from aiorocket.spark.steps.continuous import Continuous, Plan
from aiorocket.spark.steps.files.folder import Folder
from aiorocket.spark.steps.report import StepReport
from aiorocket.spark.steps.tables.analyses import run_decode, run_dedup, run_windows
from aiorocket.spark.steps.tables.inputs import Input
from aiorocket.spark.steps.tables.run import Output
from aiorocket.spark.steps.tables.table import Table
from tests.spark import lakes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Q0, Q1 = Queue("orders", "broker-a", 0), Queue("orders", "broker-a", 1)

CHAIN = """
topic = "orders"
path = "{path}"
format = "{format}"
max_rows = 12
[decode]
using = "json"
schema = "id BIGINT"
[dedup]
from = "decode"
by = "key"
key = "value.id"
[windows]
from = "dedup"
every = "1 hour"
by = ["key"]
key = "value.id"
"""


class DiedError(BaseException):
    """The process is gone here."""


def plan_of(place: Path, text: str = CHAIN, format: str = "parquet") -> Plan:
    (place / "pipeline.toml").write_text(text.format(path=place / "lake", format=format))
    return Plan.read(str(place / "pipeline.toml"))


def body(queue: Queue, offset: int) -> bytes:
    """One of five is no JSON; what is in queue 1 is all in queue 0 as well, and each number twice there."""
    return b"{" if offset % 5 == 4 else json.dumps({"id": offset // 2}).encode()


class Lake:
    """An archive by hand, and rounds over it."""

    def __init__(self, spark: SparkSession, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
        self._spark, self.plan = spark, plan
        self.archive = lakes.make(f"{plan.path}/archive")
        self.reports: list[StepReport] = []
        here = "aiorocket.spark.steps.continuous"
        monkeypatch.setattr(f"{here}.archive", lambda *_, **__: StepReport("archive", 0, 0))
        monkeypatch.setattr(f"{here}.behind", lambda *_, **__: [])
        made = lakes.rows_of

        def rows_of(queue: Queue, offsets: Iterable[int], *more: Any) -> pa.RecordBatch:
            rows = made(queue, offsets, *more)
            bodies = [body(queue, offset) for offset in rows["queueOffset"].to_pylist()]
            return rows.set_column(rows.schema.get_field_index("body"), rows.schema.field("body"), pa.array(bodies))

        monkeypatch.setattr(lakes, "rows_of", rows_of)

    def add(self, rows: int) -> None:
        ends = self.archive.snapshot().ranges()
        lakes.add(self.archive, {queue: range(end, end + rows) for queue in (Q0, Q1) for end in [_end(ends, queue)]})

    def round(self) -> list[StepReport]:
        self.reports = []
        pipeline = Continuous(
            self._spark, self.plan, "127.0.0.1:1", stop=lambda: False, told=self.reports.append
        )  # fmt: skip
        pipeline.round()
        return self.reports[1:]

    def rows(self, step: str, part: str, *columns: str) -> list[dict[str, Any]]:
        table = Table.there(f"{self.plan.path}/{step}")
        files = (
            []
            if table is None
            else [table.folder.full(each.path) for each in table.snapshot().files if each.part == part]
        )
        return [row for file in files for row in pq.ParquetFile(file).read(columns=list(columns)).to_pylist()]

    def check(self, *, whole: bool) -> None:
        """What is there is right, up to where each step has come; with ``whole`` that is the archive's end."""
        reached = {
            step: {} if (table := Table.there(f"{self.plan.path}/{step}")) is None else table.snapshot().ranges
            for step in ("decode", "dedup", "windows")
        }
        ends = self.archive.snapshot().ranges()
        for before, step in (("decode", "dedup"), ("dedup", "windows")):
            assert all(end <= reached[before][queue][1] for queue, (_, end) in reached[step].items())
        if whole:
            assert list(reached.values()) == [ends, ends, ends]
        for part, bad in (("decoded", False), ("quarantine", True)):
            found = Counter(tuple(row.values()) for row in self.rows("decode", part, "queueId", "queueOffset"))
            assert found == Counter(
                (queue.queue_id, offset)
                for queue, (begin, end) in reached["decode"].items()
                for offset in range(begin, end)
                if (offset % 5 == 4) == bad
            )
        kept = Counter(row["value"]["id"] for row in self.rows("dedup", "rows", "value"))
        assert kept == Counter(
            {offset // 2 for begin, end in reached["dedup"].values() for offset in range(begin, end) if offset % 5 != 4}
        )
        if whole:
            assert sum(row["rows"] for row in self.rows("windows", "windows", "rows")) == kept.total()


def _end(ranges: Any, queue: Queue) -> int:
    end: int = ranges.get(queue, (0, 0))[1]
    return end


class Operations:
    """Counts what changes files, so that no two deaths leave the same; this process is gone before number ``last``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.last, self.count, self.names = 1 << 30, 0, Counter[str]()
        for name in ("create", "replace", "put", "move", "remove", "remove_tree"):
            self._counted(monkeypatch, Folder, name)
        self._counted(monkeypatch, Table, "_stage")
        self._counted(monkeypatch, Table, "_sync_delta")

    def _counted(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        real = getattr(owner, name)

        @wraps(real)
        def counted(*given: Any, **more: Any) -> Any:
            if "_table.json" in given:  # is there already
                return real(*given, **more)
            if self.count >= self.last:
                raise DiedError(name)
            self.count += 1
            self.names[name] += 1
            return real(*given, **more)

        monkeypatch.setattr(owner, name, counted)

    def until(self, last: int, work: Callable[[], object]) -> bool:
        """Whether the work came to its end before."""
        self.last, self.count = last, 0
        try:
            work()
        except DiedError:
            return False
        finally:
            self.last = 1 << 30
        return True


@pytest.mark.spark_long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("format", "stride"), [("parquet", 1), ("delta", 6)])
def test_rows_are_complete_whatever_a_round_died_of(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, stride: int
) -> None:
    """Before each thing that it does to files, the first of each step's being what stands between two of them; each
    round has new rows and those that the dead have left."""
    lake = Lake(spark, plan_of(tmp_path, format=format), monkeypatch)
    operations, last = Operations(monkeypatch), 0
    lake.add(3)
    lake.round()
    lake.add(3)
    while not operations.until(last, lake.round):
        lake.check(whole=False)
        lake.add(1)
        last += stride
    lake.check(whole=True)
    assert last >= 14 and all(operations.names[name] for name in ("_stage", "move", "create", "remove_tree"))


@pytest.mark.spark_long
def test_each_step_reads_what_the_one_before_it_kept(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(spark, plan_of(tmp_path), monkeypatch)
    # Nothing is archived yet, so nobody knows what decoded rows will look like.
    assert [(each.step, each.rows_in) for each in lake.round()] == [("decode", 0), ("dedup", 0), ("windows", 0)]
    lake.add(10)
    decode, dedup, windows = lake.round()
    assert (decode.rows_in, decode.details["quarantined"]) == (20, 4)
    assert (dedup.rows_in, dedup.details["kept"], windows.rows_in) == (16, 5, 5)
    assert [proof(each) for each in (decode, dedup, windows)] == [
        ["complete: 20 rows = sum of end - begin over 2 queues"],
        ["complete: 16 rows, all that decode kept of 20 offsets in 2 queues"],
        ["complete: 5 rows, all that dedup kept of 20 offsets in 2 queues"],
    ]
    lake.check(whole=True)
    # What is new alone is read; where all of it is quarantined, no row.
    lakes.add(lake.archive, {Q0: range(10, 14)})
    assert [each.rows_in for each in lake.round()] == [4, 4, 7]
    lakes.add(lake.archive, {Q0: range(14, 15)})
    decode, dedup, windows = lake.round()
    assert (decode.rows_in, dedup.rows_in, dedup.complete, windows.rows_in) == (1, 0, True, 7)
    assert dedup.ranges == {Q0: (14, 15)}
    assert [each.details["up_to_date"] for each in lake.round()] == [True, True, True]
    # The column takes the type that decode gives it.
    wider = lake.plan.decode
    assert wider is not None
    lake.plan = msgspec.structs.replace(
        lake.plan, decode=msgspec.structs.replace(wider, schema="id BIGINT, price DOUBLE")
    )
    lakes.add(lake.archive, {Q0: range(15, 18)})
    assert [each.rows_in for each in lake.round()] == [3, 3, 9]
    lake.check(whole=True)
    rows = Table.there(f"{lake.plan.path}/dedup")
    kept = rows.rows(spark, "rows") if rows else None
    assert kept is not None and kept.select("value.price").count() == 9
    compact(spark, f"{lake.plan.path}/decode", keep=0)
    lake.add(2)
    lake.round()
    lake.check(whole=True)


@pytest.mark.spark_long
def test_a_row_that_came_twice_or_not_at_all_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """As where somebody has put a file of another run in its place."""
    lakes.add(lakes.make(tmp_path / "archive"), {Q0: range(6)})
    decoded, output = str(tmp_path / "decode"), Output(str(tmp_path / "dedup"))
    run_decode(spark, Input(archive=str(tmp_path / "archive")), Output(decoded), using="text")
    table = Table.open(output.path or "", "dedup", {**Input(table=decoded).settings(), "by": "id", "key": None})
    table.write({}, {Q0: (0, 2)}, 3)
    with pytest.raises(UsageError, match="dedup: 7 rows of decode were read, and its records name 6"):
        run_dedup(spark, Input(table=decoded), output)
    assert table.snapshot().ranges == {Q0: (0, 2)}


def test_a_table_of_another_source_is_refused(tmp_path: Path) -> None:
    """Without Spark: nothing is read."""
    archive = Input(archive=str(lakes.make(tmp_path / "archive").folder.location))
    Table.open(str(tmp_path / "decode"), "decode", {})
    Table.open(str(tmp_path / "windows"), "windows", {})
    kept, nobody = Input(table=str(tmp_path / "decode")), cast(Any, None)
    assert kept.columns() == ()
    dedup = Table.open(str(tmp_path / "dedup"), "dedup", {**archive.settings(), "by": "id", "key": None})
    dedup.write({}, {Q0: (0, 0)}, 0)
    with pytest.raises(
        UsageError, match=r"begun with archive='.*/archive', .*now table='decode \w+' is asked for: use"
    ):
        run_dedup(nobody, kept, Output(str(tmp_path / "dedup")))
    for name, said in (("windows", "the table of windows has no rows of messages; "), ("none", "no table of a step")):
        with pytest.raises(UsageError, match=said):
            run_windows(nobody, Input(table=str(tmp_path / name)), Output(str(tmp_path / "new")))
    with pytest.raises(UsageError, match="give one of the three"):
        Input(table="a", archive="b")
    with pytest.raises(UsageError, match="without topics, since and until"):
        Input(table="a", topics=("b",))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"decode"\n', '"dedup"\n', "dedup.from = 'dedup' is none of archive, decode"),
        ('"dedup"\n', '"windows"\n', "windows.from = 'windows' is none of archive, decode, dedup"),
        (
            "[decode]",
            '[decode]\nfrom = "dedup"',
            "decode and dedup read one another: one of them needs from = 'archive'",
        ),
        ("from =", "reads =", "dedup.reads is none of by, from, key, pause"),
        (
            '[decode]\nusing = "json"\nschema = "id BIGINT"',
            "",
            r"dedup.from = 'decode': there is no \[decode\] in the file",
        ),
    ],
)
def test_a_chain_that_is_none_is_told(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in CHAIN
    with pytest.raises(ConfigError, match=said):
        plan_of(tmp_path, CHAIN.replace(old, new))


def test_steps_run_behind_what_they_read(tmp_path: Path) -> None:
    assert list(plan_of(tmp_path).sources().items()) == [
        ("decode", "archive"), ("dedup", "decode"), ("windows", "dedup"),
    ]  # fmt: skip
    other = (
        CHAIN.replace("[decode]", '[decode]\nfrom = "dedup"').replace('from = "decode"', "").replace("value.id", "keys")
    )
    assert list(plan_of(tmp_path, other).sources()) == ["dedup", "decode", "windows"]
    by_value = CHAIN.replace('["key"]', '["value"]')
    plan_of(tmp_path, by_value).check("127.0.0.1:9876")
    with pytest.raises(UsageError, match=r"windows\.by='value' is none of"):
        plan_of(tmp_path, by_value.replace('from = "dedup"', "")).check("127.0.0.1:9876")
