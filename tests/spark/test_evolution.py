"""A decoded table when its schema changes: rows of before and after read as one table, or the run says why not."""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import deltalake
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from aiorocket.errors import UsageError
from aiorocket.spark.steps import Input, Output, Table, run_decode
from aiorocket.spark.steps.tables.evolution import changes, merged
from tests.spark.producing import send

pytestmark = pytest.mark.usefixtures("spark")  # DDL is read by Spark

OLD = "id INT, gone STRING, line STRUCT<sku: STRING, count: INT>, sizes ARRAY<INT>, by MAP<STRING, INT>, part FLOAT"
NEW = (
    "price DOUBLE, id BIGINT NOT NULL, line STRUCT<count: BIGINT, note: STRING, sku: STRING>, sizes ARRAY<BIGINT>, "
    "by MAP<STRING, BIGINT>, part DOUBLE"
)
BOTH = (
    "struct<id:bigint,gone:string,line:struct<sku:string,count:bigint,note:string>,sizes:array<bigint>,"
    "by:map<string,bigint>,part:double,price:double>"
)


def ddl(text: str) -> T.DataType:
    return T.DataType.fromDDL(text)


@pytest.mark.parametrize(
    ("old", "new", "both"),
    [
        (OLD, NEW, BOTH),
        (NEW, NEW, None),
        ("a BIGINT, b INT", "a INT", "struct<a:bigint,b:int>"),  # narrower, and gone
        ("a TINYINT", "a SMALLINT", "struct<a:smallint>"),
        ("a DECIMAL(10, 2)", "a DECIMAL(12, 2)", "struct<a:decimal(12,2)>"),
        ("a ARRAY<STRUCT<x: INT>>", "a ARRAY<STRUCT<x: INT, y: DATE>>", "struct<a:array<struct<x:int,y:date>>>"),
        ("VARIANT", "VARIANT", "variant"),
    ],
)
def test_a_type_for_both(old: str, new: str, both: str | None) -> None:
    found = merged(ddl(old), ddl(new), "value")
    assert found.simpleString() == (both or ddl(new).simpleString())
    assert merged(found, ddl(old), "value").simpleString() == found.simpleString()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("id STRING", "id INT", "field value.id: the table has STRING, the schema now says INT,"),
        ("id INT", "id DOUBLE", "field value.id: the table has INT, the schema now says DOUBLE,"),
        ("a STRUCT<b: ARRAY<DATE>>", "a STRUCT<b: ARRAY<STRING>>", r"field value\.a\.b\[\]: the table has DATE"),
        ("a STRUCT<b: INT>", "a INT", "field value.a: the table has struct<b:int>, the schema now says INT,"),
        ("a DECIMAL(10, 2)", "a DECIMAL(10, 3)", r"the table has DECIMAL\(10,2\), the schema now says DECIMAL\(10,3\)"),
        ("a MAP<INT, INT>", "a MAP<BIGINT, INT>", "field value.a.key: the table has INT"),
        ("id INT", "Id INT", "field value.Id: the table has value.id, and Spark takes the two for one"),
        ("a TIMESTAMP", "a DATE", "the table has TIMESTAMP, the schema now says DATE"),
    ],
)
def test_what_does_not_go_together_is_named(old: str, new: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        merged(ddl(old), ddl(new), "value")


def test_what_changed_is_told() -> None:
    assert list(changes(ddl(OLD), merged(ddl(OLD), ddl(NEW), "value"))) == [
        "id INT is BIGINT now", "line.count INT is BIGINT now", "line.note STRING is new",
        "sizes[] INT is BIGINT now", "by.value INT is BIGINT now", "part FLOAT is DOUBLE now", "price DOUBLE is new",
    ]  # fmt: skip
    assert not list(changes(ddl(NEW), ddl(NEW)))


def body(number: int, **more: Any) -> str:
    return json.dumps(
        {"id": number, "line": {"sku": "s", "count": 1}, "sizes": [1], "by": {"k": 1}, "part": 0.5, **more}
    )


def dies(out: Path, real: Any, *, before: int) -> Callable[..., Any]:
    """In place of ``real``: a process that dies there when ``before`` runs have followed the first."""

    def die(*given: Any, **more: Any) -> Any:
        table = Table.there(str(out))
        if table is not None and table.snapshot().last >= before:
            raise DiedError
        return real(*given, **more)

    return die


class DiedError(Exception):
    """The process is gone here."""


#: Where a process dies on the way to the new type, and how many runs there are then.
DEATHS = [("tables.table.Table._stage", 0), ("tables.table.Table._publish", 0)]
SYNCS = {"delta": [("tables.table.Table._sync_delta", 1)], "iceberg": [("tables.table.sync_iceberg_parts", 1)]}


@pytest.mark.spark_long
@pytest.mark.timeout(900)  # fifteen runs
@pytest.mark.parametrize("format", ["parquet", "delta", "iceberg"])
def test_a_table_takes_the_schema_that_comes(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    nameserver: str,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format: str,
) -> None:
    if format == "iceberg":
        request.getfixturevalue("pyiceberg")
    out = tmp_path / "out"

    def run(schema: str, required: tuple[str, ...] = ()) -> Any:
        given, output = Input(topic=topic, name_server=nameserver), Output(str(out), format)
        report = run_decode(spark, given, output, schema=schema, required=required)
        assert report.complete
        return report.details

    def ways() -> list[list[dict[str, Any]]]:
        """The values, by id, in each way that a table can be read."""
        table = Table.there(str(out))
        assert table is not None
        named = table.rows(spark, "decoded")
        assert named is not None
        plain = [spark.read.parquet(f"{out}/decoded")] if format == "parquet" else []
        found = [
            [row["value"].asDict(recursive=True) for row in df.orderBy("value.id").collect()] for df in (named, *plain)
        ]
        if format == "delta":
            values = deltalake.DeltaTable(str(out / "decoded")).to_pyarrow_table()["value"].to_pylist()
            found.append(sorted([{**each, "by": dict(each["by"])} for each in values], key=lambda each: each["id"]))
        if format == "iceberg":
            kept = table.iceberg("decoded")
            with closing(kept.catalog):
                values = kept.scan().to_arrow()["value"].to_pylist()
            found.append(sorted([{**each, "by": dict(each["by"])} for each in values], key=lambda each: each["id"]))
        assert all(each == found[0] for each in found)
        return found

    send(nameserver, topic, [body(1, gone="g"), body(2)], queues=1)
    assert run(OLD)["evolved"] is None
    send(nameserver, topic, [body(3_000_000_000, price=1.5, line={"note": "n"}), '{"price": 2}'])
    # The table is of the new type, whatever died on the way to it.
    for name, last in DEATHS + SYNCS.get(format, []):
        place = f"aiorocket.spark.steps.{name}"
        with monkeypatch.context() as dying, pytest.raises(DiedError):
            dying.setattr(place, dies(out, pkgutil.resolve_name(place), before=last))
            run(NEW)
        table = Table.there(str(out))
        assert table is not None and table.snapshot().last == last and table.snapshot().rows("decoded") == 2
    details = run(NEW)
    assert (details["decoded"], details["reasons"]) == (1, {"missing required field: id": 1})
    if format == "parquet":
        assert details["evolved"].endswith("part FLOAT is DOUBLE now; price DOUBLE is new")
    line = {"sku": "s", "count": 1, "note": None}
    rest = {"sizes": [1], "by": {"k": 1}, "part": 0.5}
    wanted: list[dict[str, Any]] = [
        {"id": 1, "gone": "g", "line": line, **rest, "price": None},
        {"id": 2, "gone": None, "line": line, **rest, "price": None},
        {"id": 3_000_000_000, "gone": None, "line": {"sku": None, "count": None, "note": "n"}, **rest, "price": 1.5},
    ]
    assert ways()[0] == wanted
    # Back to the old one: what it has no room for is quarantined, and the table stays as wide.
    send(nameserver, topic, [body(4_000_000_000), body(3, gone="h")])
    details = run(OLD, ("id",))
    assert (details["evolved"], details["quarantined"], details["decoded"]) == (None, 1, 1)
    wanted.insert(2, {"id": 3, "gone": "h", "line": line, **rest, "price": None})
    assert ways()[0] == wanted

    table = Table.there(str(out))
    assert table is not None
    before = table.snapshot()
    send(nameserver, topic, [body(6)])
    for _ in range(2):  # at each restart the same
        with pytest.raises(
            UsageError, match=r"field value\.id: the table has BIGINT, the schema now says STRING, and no type"
        ):
            run("id STRING")
    assert table.snapshot() == before
    run(NEW)
    assert [each["id"] for each in ways()[0]] == [1, 2, 3, 6, 3_000_000_000]
