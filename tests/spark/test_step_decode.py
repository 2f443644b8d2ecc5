"""The decode step: good and bad rows are all rows, and a bad one says what is wrong with it."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aiorocket.errors import UsageError
from aiorocket.spark.steps.functions.decode import Decoded, decode
from tests.spark.row_frames import frame, row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DDL = "id BIGINT NOT NULL, price DOUBLE, customer STRUCT<name: STRING, age: INT>, items ARRAY<INT>, at TIMESTAMP, "
DDL += "deep ARRAY<STRUCT<f: MAP<STRING, FLOAT>>>"


def _frame(spark: SparkSession, bodies: list[bytes | None]) -> DataFrame:
    return frame(spark, [row(n, body=body) for n, body in enumerate(bodies)])


def _split(decoded: Decoded, bodies: list[Any]) -> tuple[dict[int, Any], dict[int, str]]:
    """Value by offset, reason by offset, and together they are all."""
    good = {r["queueOffset"]: r["value"] for r in decoded.good.select("queueOffset", "value").collect()}
    quarantine = decoded.quarantine.select("queueOffset", "body", "reason").collect()
    bad = {r["queueOffset"]: r["reason"] for r in quarantine}
    assert sorted([*good, *bad]) == list(range(len(bodies)))
    for r in quarantine:
        assert r["body"] == bodies[r["queueOffset"]]
    return good, bad


JSON_CASES: dict[bytes | None, str | None] = {
    b'{"id":1,"price":2.5,"customer":{"name":"A","age":3},"items":[1],"at":"2026-03-01T00:00:00Z"}': None,
    b' {"id":2,"price":3,"more":{"x":[1,2]}}\n': None,
    '{"id":3,"customer":{"name":"Zo\u00eb"}}'.encode(): None,
    b'{"id":4,"id":5}': None,
    b'{"id":1': "malformed JSON",
    b'{"id":1} and more': "malformed JSON",
    b'{"id":1}}': "malformed JSON",
    b'{"id":1}{"id":2}': "malformed JSON",
    b'{"id":1}],{"id":2}': "malformed JSON",
    b'{"id":1}]}': "malformed JSON",
    b"{'id':1}": "malformed JSON",
    b'{"id":1,"more":{\'x\':1}}': "malformed JSON",
    b'{"id":1},{"id":2}': "2 JSON values: one expected",
    b'[{"id":1}]': "not a JSON object",
    b"5": "not a JSON object",
    b"null": "not a JSON object",
    b"": "empty body",
    b" \n": "empty body",
    None: "no body",
    b'{"id":1,"customer":{"name":"caf\xe9"}}': "not UTF-8",
    b"\x00\x01\xff": "not UTF-8",
    b'{"price":1}': "missing required field: id",
    b'{"id":null}': "missing required field: id",
    b'{"id":7,"customer":{}}': None,
    b'{"id":"7"}': "wrong type: id: BIGINT expected, STRING found",
    b'{"id":1.5,"price":"x"}': (
        "wrong type: id: BIGINT expected, DECIMAL(2,1) found; price: DOUBLE expected, STRING found"
    ),
    b'{"id":1,"customer":{"age":"old"}}': "wrong type: customer.age: INT expected, STRING found",
    b'{"id":1,"customer":5}': "wrong type: customer.name: STRING expected; customer.age: INT expected",
    b'{"id":1,"items":["x"]}': "wrong type: items: ARRAY<INT> expected, ARRAY<STRING> found",
    b'{"id":1,"at":"noon"}': "wrong type: at: TIMESTAMP expected, STRING found",
    b'{"id":1,"price":1e308,"more":1e400,"customer":{"name":"1e400]"}}': None,
    b'{"id":1,"price":-1e400}': "wrong type: price: DOUBLE expected, larger number found",
    b'{"id":1,"price":"Infinity"}': "wrong type: price: DOUBLE expected, STRING found",
    b'{"id":1,"price":NaN}': "malformed JSON",
    b'{"id":1,"deep":[{"f":{"x":1e38}}]}': None,
    b'{"id":1,"deep":[null,{"f":null},{"f":{"x":null,"y":1e39}}]}': (
        "wrong type: deep: ARRAY<STRUCT<F:MAP<STRING,FLOAT>>> expected, larger number found"
    ),
}


def test_json_with_a_schema(spark: SparkSession) -> None:
    bodies = list(JSON_CASES)
    df = _frame(spark, bodies)
    decoded = decode(df, "json", DDL)
    assert decoded.good.columns == [*df.columns, "value"]
    assert decoded.quarantine.columns == [*df.columns, "reason"]
    good, bad = _split(decoded, bodies)
    assert {bodies[n]: bad.get(n) for n in range(len(bodies))} == JSON_CASES
    assert good[0].id == 1
    assert (good[0].price, good[0].customer.name, good[0].customer.age, good[0]["items"]) == (2.5, "A", 3, [1])
    assert good[2].customer.name == "Zo\u00eb"
    assert [field.name for field in decoded.rows.schema["value"].dataType.fields] == [  # type: ignore[attr-defined]
        "id", "price", "customer", "items", "at", "deep"
    ]  # fmt: skip


@pytest.mark.spark_long
def test_required_paths_text_and_variant(spark: SparkSession) -> None:
    bodies: list[bytes | None] = [
        b'{"id":1,"customer":{"name":"A"}}', b'{"id":1}', b"[1, 2]", b'"x"', b"{", b"\xff", b'{"a":1,"a":2}',
        b"{'a':1}", b"{} and more", b"1]", b"[1],[2]]", b'[1e308, "1e400]\\"1e400"]', b'{"a":"Infinity","b":[1e400]}',
        b'{"a":"' + b"\\n" * 20_000 + b'","b":1' + b"0" * 309 + b"}",
    ]  # fmt: skip
    df = _frame(spark, bodies)
    required = decode(df, "json", DDL, required=["customer.name"])
    assert _split(required, bodies)[1][1] == "missing required field: customer.name"
    text = decode(df, "text")
    good, bad = _split(text, bodies)
    assert (good[3], bad) == ('"x"', {5: "not UTF-8"})
    variant = decode(df, "variant")
    shown = Decoded(variant.rows.withColumn("value", variant.rows.value.cast("string")))
    good, bad = _split(shown, bodies)
    assert good == {
        0: '{"customer":{"name":"A"},"id":1}',
        1: '{"id":1}',
        2: "[1,2]",
        3: "x",
        11: '[1.0E308,"1e400]\\"1e400"]',
    }
    assert bad == {
        4: "malformed JSON",
        5: "not UTF-8",
        6: "no variant: two fields of one name, or too large",
        7: "malformed JSON",
        8: "malformed JSON",
        9: "malformed JSON",
        10: "2 JSON values: one expected",
        12: "a number that no DOUBLE holds",
        13: "a number that no DOUBLE holds",
    }
    assert variant.rows.where("reason IS NOT NULL AND value IS NOT NULL").isEmpty()


@st.composite
def _documents(draw: st.DrawFn) -> bytes:
    """JSON, and JSON with a few bytes changed, taken out or put in."""
    values = st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.lists(st.integers(), max_size=2)
    text = json.dumps({"id": draw(st.integers(-9, 9)), **draw(st.dictionaries(st.text("idx", max_size=2), values))})
    data = bytearray(text.encode())
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(data)))
        instead = draw(st.sampled_from([b"", b'"', b"{", b"}", b"]", b",", b" ", b"\xff"]))
        data[at : at + draw(st.integers(0, 2))] = instead
    return bytes(data)


@pytest.mark.spark_long
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(_documents() | st.binary(max_size=6), min_size=40, max_size=60))
def test_good_is_what_python_reads_too(spark: SparkSession, bodies: list[bytes]) -> None:
    df = _frame(spark, list(bodies))
    good, bad = _split(decode(df, "json", "id BIGINT NOT NULL"), bodies)
    for n, body in enumerate(bodies):
        try:
            value = json.loads(body.decode())
            fits = isinstance(value, dict) and type(value.get("id")) is int and abs(value["id"]) < 1 << 63
        except ValueError:
            fits = False
        assert (n in good) == fits, (body, bad.get(n))
        if fits:
            assert good[n].id == value["id"]


AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["OPEN", "PAID"]}},
        {"name": "before", "type": "State"},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}}},
        {"name": "attributes", "type": {"type": "map", "values": "double"}},
        {"name": "either", "type": ["int", "string"]},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
    ],
}  # fmt: skip
ORDER: dict[str, Any] = {
    "id": 1, "price": Decimal("12.50"), "note": None, "day": date(2026, 3, 1), "at": datetime(2026, 3, 1, tzinfo=UTC),
    "state": "PAID", "before": "OPEN", "lines": [{"sku": "s1"}, {"sku": "s2"}], "attributes": {"w": 1.5}, "either": 7,
    "hash": b"\x00\xff",
}  # fmt: skip


@pytest.mark.spark_long
def test_avro_datum_and_container(spark: SparkSession) -> None:
    fastavro = pytest.importorskip("fastavro")

    def datum(order: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), order)
        return out.getvalue()

    def container(orders: list[dict[str, Any]]) -> bytes:
        out = io.BytesIO()
        fastavro.writer(out, fastavro.parse_schema(AVRO), orders)
        return out.getvalue()

    one = datum(ORDER)
    bodies: list[bytes | None] = [
        one, container([{**ORDER, "id": 2, "note": "n"}]), one[:5], one + b"zz", container([ORDER] * 3), b"", None,
        b"\xff" * 40,
    ]  # fmt: skip
    good, bad = _split(decode(_frame(spark, bodies), "avro", json.dumps(AVRO)), bodies)
    assert set(good) == {0, 1}
    first = good[0].asDict(recursive=True)
    assert first.pop("at").timestamp() == ORDER["at"].timestamp()
    assert first == {
        **{name: value for name, value in ORDER.items() if name != "at"}, "either": "7", "hash": bytearray(b"\x00\xff")
    }  # fmt: skip
    assert (good[1].id, good[1].note) == (2, "n")
    assert bad[2] == "ValueError: 5 bytes are fewer than the Avro schema asks for"
    assert bad[3] == "ValueError: 2 bytes are left behind the Avro datum"
    assert bad[4] == "ValueError: a container of 3 Avro records: one expected"
    assert bad[6] == "no body"
    assert bad[7]


@pytest.mark.spark_long
def test_a_function_of_ones_own(spark: SparkSession) -> None:
    def halves(body: bytes) -> int:
        return int(body) // 2

    bodies: list[bytes | None] = [b"8", b"eight", None]
    good, bad = _split(decode(_frame(spark, bodies), halves, "INT"), bodies)
    assert good == {0: 4}
    assert bad == {1: "ValueError: invalid literal for int() with base 10: b'eight'", 2: "no body"}


def test_refusals(spark: SparkSession) -> None:
    df = _frame(spark, [b"x"])
    for arguments, said in [
        (("json",), "needs a schema"),
        (("json", "id LNG ((("), "is no DDL"),
        (("text", "id INT"), "takes no schema"),
        (("avro", {"type": "nothing"}), "not an Avro schema"),
        (("avro",), "needs the Avro schema"),
        (("xml",), "a function"),
        ((len,), "needs schema="),
    ]:
        with pytest.raises(UsageError, match=said.replace("(", r"\(")):
            decode(df, *arguments)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"no DDL: .*BIGINTT") as caught:
        decode(df, "json", "id BIGINTT")
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="not in the schema"):
        decode(df, "json", "id INT", required=["name"])
    with pytest.raises(UsageError, match="a column 'topic' already"):
        decode(df, "text", into="topic")
    loop = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    with pytest.raises(UsageError, match="contains itself"):
        decode(df, "avro", loop)
