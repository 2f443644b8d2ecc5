"""Bodies with a schema elsewhere: a registry's Avro, Protobuf, and the types of services' listeners."""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NotRequired, TypedDict

import fastavro
import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from pydantic import BaseModel
from pyspark.sql import SparkSession

from aiorocket.cli.main import cli
from aiorocket.client.core.typed_body import decoder
from aiorocket.errors import BodyError, UsageError
from aiorocket.model import Queue
from aiorocket.spark.failures import explain
from aiorocket.spark.steps.functions.avro import AvroReader
from aiorocket.spark.steps.functions.decode import decode
from aiorocket.spark.steps.functions.protobuf import ProtobufReader
from aiorocket.spark.steps.functions.registry import RegistryError, SchemaRegistry
from aiorocket.spark.steps.functions.typed import TypedReader
from aiorocket.spark.steps.tables.analyses import run_decode
from aiorocket.spark.steps.tables.inputs import Input
from aiorocket.spark.steps.tables.run import Output
from aiorocket.spark.steps.tables.table import Table
from tests.spark import lakes
from tests.spark.row_frames import frame, row

OLD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
NEW = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string", "default": "none"}],
}
LINE = {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}
LINES = {"type": "record", "name": "Lines", "fields": [{"name": "one", "type": "Line"}]}


@contextmanager
def serving(pages: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """A registry of these answers; its address with a user, and the paths that were asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            known = self.path in pages and self.headers["Authorization"] == "Basic bWU6cGFzcw=="
            body = json.dumps(pages.get(self.path, {"error_code": 40403})).encode()
            self.send_response(200 if known else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Not to standard error."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://me:pass@127.0.0.1:{server.server_port}/r", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def wired(number: int, schema: Any, value: Any, named: dict[str, Any] | None = None) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema, named_schemas=named or {}), value)
    return b"\x00" + number.to_bytes(4, "big") + out.getvalue()


def test_the_schema_of_a_body_is_asked_for_once_and_resolved() -> None:
    reference = {"name": "Line", "subject": "li/ne", "version": 2}
    pages = {
        "/r/schemas/ids/7": {"schema": json.dumps(OLD)},
        "/r/schemas/ids/8": {"schema": "message M {}", "schemaType": "PROTOBUF"},
        "/r/schemas/ids/9": {"schema": json.dumps(LINES), "references": [reference]},
        "/r/subjects/li%2Fne/versions/2": {"schema": json.dumps(LINE)},
    }
    with serving(pages) as (url, asked):
        reader: AvroReader = pickle.loads(pickle.dumps(AvroReader(NEW, 0, SchemaRegistry(url))))
        assert [reader(wired(7, OLD, {"id": n})) for n in (1, 2)] == [(1, "none"), (2, "none")]
        for body, said in (
            (wired(8, OLD, {"id": 1}), "schema 8 is PROTOBUF, no Avro"),
            (wired(8, OLD, {"id": 1}), "schema 8 is PROTOBUF, no Avro"),
            (wired(3, OLD, {"id": 1}), "schema 3 is not in the registry"),
            (wired(3, OLD, {"id": 1}), "schema 3 is not in the registry"),
            (b"{}", "no schema's number in front"),
            (wired(7, OLD, {"id": 1}) + b"z", "1 bytes are left behind"),
        ):
            with pytest.raises(ValueError, match=said):
                reader(body)
        assert asked == [f"/r/schemas/ids/{number}" for number in (7, 8, 3)]
        whole = {**LINES, "fields": [{"name": "one", "type": LINE}]}
        nested = AvroReader(whole, 0, SchemaRegistry(url))
        assert nested(wired(9, whole, {"one": {"sku": "s"}})) == (("s",),)
    with pytest.raises(RegistryError, match=r"registry at http://127\.0\.0\.1:.* does not answer"):
        AvroReader(NEW, 0, SchemaRegistry(url))(wired(7, OLD, {"id": 1}))
    for address in ("registry:8081", "ftp://x", "http://user:secret@host:no", "http://user:secret@h\u2100t"):
        with pytest.raises(UsageError, match="its address is meant") as caught:
            SchemaRegistry(address)
        assert "secret" not in str(caught.value)


def test_numbers_without_a_schema_are_not_asked_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiorocket.spark.steps.functions.registry._MOST_UNKNOWN", 3)
    with serving({f"/r/schemas/ids/{number}": {"schema": json.dumps(OLD)} for number in (7, 8)}) as (url, asked):
        reader = AvroReader(NEW, 0, SchemaRegistry(url))
        assert reader(wired(7, OLD, {"id": 1})) == (1, "none")
        for number in (20, 21, 22):
            with pytest.raises(ValueError, match=f"schema {number} is not in the registry"):
                reader(wired(number, OLD, {"id": 1}))
        # What is known goes on; the rest is not said to be missing, for nobody knows.
        assert reader(wired(7, OLD, {"id": 2})) == (2, "none")
        for number in (8, 23):
            with pytest.raises(ValueError, match=f"schema {number} was not asked for: 3 other numbers"):
                reader(wired(number, OLD, {"id": 1}))
        assert len(asked) == 4


def shop() -> descriptor_pb2.FileDescriptorSet:
    """What protoc writes for a file of two messages, with what it imports."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    line = file.message_type.add(name="Line")
    line.field.add(name="sku", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    state = order.enum_type.add(name="State")
    for number, name in enumerate(("OPEN", "PAID")):
        state.value.add(name=name, number=number)
    entry = order.nested_type.add(name="WeightsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_DOUBLE, label=field.LABEL_OPTIONAL)
    for number, (name, kind, label, of) in enumerate(
        (
            ("id", field.TYPE_UINT64, field.LABEL_OPTIONAL, ""),
            ("lines", field.TYPE_MESSAGE, field.LABEL_REPEATED, ".shop.Line"),
            ("state", field.TYPE_ENUM, field.LABEL_OPTIONAL, ".shop.Order.State"),
            ("weights", field.TYPE_MESSAGE, field.LABEL_REPEATED, ".shop.Order.WeightsEntry"),
            ("at", field.TYPE_MESSAGE, field.LABEL_OPTIONAL, ".google.protobuf.Timestamp"),
            ("hash", field.TYPE_BYTES, field.LABEL_OPTIONAL, ""),
        ),
        1,
    ):
        order.field.add(name=name, number=number, type=kind, label=label, type_name=of or None)
    stamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamp)
    return descriptor_pb2.FileDescriptorSet(file=[stamp, file])


class Wide(msgspec.Struct):
    n: int = 0
    price: Decimal = Decimal(0)
    at: datetime | None = None


@pytest.mark.parametrize(
    "body",
    [
        {"n": 2**63}, {"n": -(2**70)}, {"price": "1" * 21}, {"price": "99999999999999999999.9999999999999999999"},
        {"price": "NaN"}, {"price": "-Infinity"}, {"price": "1E+100000"}, {"at": "0001-01-01T00:00:00+14:00"},
    ],
)  # fmt: skip
def test_what_spark_has_no_value_for_is_the_rows_fault_not_the_tasks(body: dict[str, Any]) -> None:
    with pytest.raises((ValueError, OverflowError)):
        TypedReader(Wide)(json.dumps(body).encode())


def test_the_widest_values_are_taken_and_avros_are_looked_at_too() -> None:
    body = {"n": -(2**63), "price": "99999999999999999999.0000000000000000005", "at": "2026-03-01T01:00:00+01:00"}
    n, price, at = TypedReader(Wide)(json.dumps(body).encode())
    assert (n, price, at.isoformat()) == (
        -(2**63),
        Decimal("99999999999999999999.000000000000000001"),
        "2026-03-01T00:00:00+00:00",
    )
    assert TypedReader(Wide)(b'{"price": "0E+50"}')[1] == 0
    price_type = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    assert AvroReader(price_type)(b"\x04\x27\x0f") == Decimal("99.99")
    for schema, datum in ((price_type, b"\x04\x30\x39"), ("int", b"\x80\x80\x80\x80\x10")):  # 123.45, 2**31
        with pytest.raises(ValueError, match="is no "):
            AvroReader(schema)(datum)


def test_the_keys_of_protobufs_maps_are_of_their_type() -> None:
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="m.proto", package="m", syntax="proto3")
    counts = file.message_type.add(name="Counts")
    entry = counts.nested_type.add(name="ByIdEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_UINT64, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    counts.field.add(
        name="by_id", number=1, type=field.TYPE_MESSAGE, label=field.LABEL_REPEATED, type_name=".m.Counts.ByIdEntry"
    )
    data = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    (found,) = ProtobufReader(data, "m.Counts")(b"\x0a\x04\x08\x07\x10\x05")
    # Spark takes a number that is no decimal for null, which no key may be.
    assert found == {7: 5} and all(isinstance(key, Decimal) for key in found)


@pytest.mark.spark_long
def test_protobuf_by_its_descriptors(spark: SparkSession) -> None:
    files = shop()
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    order: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    at = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)
    full = order(id=2**63, lines=[{"sku": "a"}, {"sku": "b"}], state=1, weights={"w": 1.5}, at=at, hash=b"\x00\xff")
    bodies = [full.SerializeToString(), b"", b"\xff", b"\x7a\x01x", None]  # the fourth: field 15 alone
    data = files.SerializeToString()
    decoded = decode(
        frame(spark, [row(n, body=body) for n, body in enumerate(bodies)]), "protobuf", data, message="shop.Order"
    )
    rows = {r["queueOffset"]: r for r in decoded.rows.select("queueOffset", "value", "reason").collect()}
    first, empty = (rows[n]["value"].asDict(recursive=True) for n in (0, 1))
    assert first.pop("at").timestamp() == at.timestamp()
    assert first == {
        "id": Decimal(2**63), "lines": [{"sku": "a"}, {"sku": "b"}], "state": "PAID", "weights": {"w": 1.5},
        "hash": bytearray(b"\x00\xff"),
    }  # fmt: skip
    assert empty == {"id": Decimal(0), "lines": [], "state": "OPEN", "weights": {}, "at": None, "hash": bytearray()}
    reasons = [rows[n]["reason"] for n in range(5)]
    assert reasons[:2] == [None, None] and reasons[2].startswith("DecodeError: ")
    assert reasons[3:] == ["ValueError: 3 bytes without a field of shop.Order", "no body"]
    assert ProtobufReader(data, "shop.Line", 6)(b"\x00\x00\x00\x00\x07\x00\x0a\x01s") == ("s",)
    for given, message, said in (
        (b"\xff", "shop.Order", "not a FileDescriptorSet"),
        (b"xx", "shop.Order", "not a FileDescriptorSet"),
        (b"", "shop.Order", "not a FileDescriptorSet"),
        (data, "shop.Invoice", "no message 'shop.Invoice'; there are .*shop.Line, shop.Order"),
        (descriptor_pb2.FileDescriptorSet(file=[files.file[1]]).SerializeToString(), "shop.Order", "--include_imports"),
    ):
        with pytest.raises(UsageError, match=said):
            ProtobufReader(given, message)


class Line(msgspec.Struct, rename="camel"):
    item_number: int
    note: str | None = None


@dataclass
class Order:
    id: int
    lines: list[Line]
    at: datetime | None = None
    either: int | str = 0
    more: dict[str, float] | None = None


@pytest.mark.spark_long
def test_a_listeners_type_has_the_reason_of_its_dead_letters(spark: SparkSession) -> None:
    reader: TypedReader = pickle.loads(pickle.dumps(TypedReader(Order)))
    assert reader.spark_type.simpleString() == (
        "struct<id:bigint,lines:array<struct<itemNumber:bigint,note:string>>,at:timestamp,either:string,"
        "more:map<string,double>>"
    )
    body = b'{"id":1,"lines":[{"itemNumber":5}],"at":"2026-03-01T00:00:00Z","either":"x","more":{"a":1}}'
    assert reader(body) == (1, [(5, None)], datetime(2026, 3, 1, tzinfo=UTC), "x", {"a": 1.0})
    bad = b'{"id":"1","lines":[]}'
    with pytest.raises(BodyError) as service:
        decoder(Order)(OfAMessage(bad))
    packed = row(2, body=msgspec.msgpack.encode(Order(7, [])), properties={"contentType": "application/msgpack"})
    rows = frame(spark, [row(0, body=body), row(1, body=bad), packed])
    found = {r["queueOffset"]: r for r in decode(rows, Order).rows.select("queueOffset", "value", "reason").collect()}
    assert (found[0]["value"].lines[0].itemNumber, found[1]["reason"]) == (5, str(service.value))
    assert "is no Order" in found[1]["reason"]
    assert (found[2]["value"].id, found[2]["reason"]) == (7, None)


@dataclass
class OfAMessage:
    body: bytes
    content_type: str | None = None


@pytest.mark.spark_long
def test_a_registry_that_is_away_fails_the_task_and_not_its_rows(spark: SparkSession) -> None:
    rows = frame(spark, [row(0, body=wired(7, OLD, {"id": 1}))])
    decoded = decode(rows, "avro", NEW, registry="http://127.0.0.1:1")
    with pytest.raises(Exception, match="RegistryError") as caught:
        decoded.rows.collect()
    assert explain(caught.value).startswith("the schema registry at http://127.0.0.1:1 does not answer")


def test_arguments_that_cannot_be_meant(spark: SparkSession) -> None:
    rows = frame(spark, [])
    for options, said in (
        ({"using": "protobuf", "schema": b""}, "needs message="),
        ({"using": "protobuf", "schema": "text", "message": "M"}, "bytes of a FileDescriptorSet"),
        ({"using": "avro", "schema": NEW, "message": "M"}, "nothing else takes it"),
        ({"using": "text", "registry": "http://x"}, "registry= goes with"),
        ({"using": "avro", "schema": NEW, "registry": "http://x", "header_bytes": 5}, "without header_bytes="),
    ):
        with pytest.raises(UsageError, match=said):
            decode(rows, **options)


class Price(TypedDict):
    id: int
    price: NotRequired[float]


class Model(BaseModel):
    id: int


@pytest.mark.spark_long
def test_a_type_by_its_name_at_the_command_line_and_in_a_pipeline(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers import it, as each executor has to."""
    bodies = [b'{"id":1,"price":2.5}', b'{"id":"x"}', b'{"id":2}']
    monkeypatch.setattr(lakes, "rows_of", with_bodies(bodies))
    lakes.add(lakes.make(tmp_path / "archive"), {Queue("orders", "broker-a", 0): range(3)})
    for using, schema in (("Price", None), ("Model", "id BIGINT")):
        name, out = f"{__name__}:{using}", tmp_path / using
        more = ["--schema", schema] if schema else []
        command = ["lake", "decode", "--archive", str(tmp_path / "archive"), "--out", str(out), "--using", name, *more]
        done = CliRunner().invoke(cli, [*command, "--json"])
        assert done.exit_code == 0, done.output
        with pytest.raises(BodyError) as service:
            decoder(globals()[using])(OfAMessage(bodies[1]))
        table = Table.there(str(out))
        assert table is not None and table.settings["using"] == name
        good, bad = table.rows(spark, "decoded"), table.rows(spark, "quarantine")
        assert good is not None and bad is not None
        assert [row["reason"] for row in bad.collect()] == [str(service.value)]
        assert sorted(row["value"]["id"] for row in good.collect()) == [1, 2]
        # A type is its name to the table; another one makes another table.
        report = run_decode(spark, Input(archive=str(tmp_path / "archive")), Output(str(out)), using=globals()[using],
                            schema=schema)  # fmt: skip
        assert report.details["up_to_date"]
    (tmp_path / "p.toml").write_text(f'topic="t"\npath="{tmp_path}"\n[decode]\nusing="{__name__}:Model"')
    refused = CliRunner().invoke(cli, ["lake", "run", str(tmp_path / "p.toml"), "--check"])
    assert refused.exit_code == 1 and "Model is a model of pydantic: give schema=" in refused.stderr
    # The driver has it, the executors do not.
    (tmp_path / "only_here.py").write_text("from dataclasses import dataclass\n@dataclass\nclass Order:\n    id: int\n")
    with monkeypatch.context() as here, pytest.raises(Exception, match="UsageError") as caught:
        here.syspath_prepend(tmp_path)
        decode(frame(spark, [row(0, body=b"{}")]), "only_here:Order").rows.collect()
    assert explain(caught.value).endswith("name its folder in PYTHONPATH")


def with_bodies(bodies: list[bytes]) -> Any:
    made = lakes.rows_of

    def rows_of(queue: Queue, offsets: Any, *more: Any) -> Any:
        rows = made(queue, offsets, *more)
        return rows.set_column(rows.schema.get_field_index("body"), rows.schema.field("body"), pa.array(bodies))

    return rows_of


@pytest.mark.parametrize(
    ("using", "said"),
    [
        (
            "no_such:Order",
            "using='no_such:Order' cannot be imported: ModuleNotFoundError: No module named 'no_such'. The driver",
        ),
        (f"{__name__}:Order.x", "cannot be imported: AttributeError: .*'x'"),
        (f"{__name__}:OLD", "is {'type': 'record'.*: a type or a function is needed"),
        (":Order", "cannot be imported: ValueError: Empty module name"),
        ("a_program:main", "'a_program:main' cannot be imported: SystemExit: 0. The driver"),
        ("jsn", "'jsn' is not one of json, variant, text, avro, protobuf, and no MODULE:TYPE either"),
    ],
)
def test_a_name_of_no_type_is_told_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, using: str, said: str
) -> None:
    (tmp_path / "a_program.py").write_text("import sys\nsys.exit(0)")
    monkeypatch.syspath_prepend(tmp_path)
    lakes.make(tmp_path / "archive")
    done = CliRunner().invoke(cli, ["lake", "decode", "--archive", str(tmp_path / "archive"), "--using", using])
    assert done.exit_code == (2 if using == "jsn" else 1) and re.search(said, " ".join(done.stderr.split())), (
        done.stderr
    )
    assert "starting Spark" not in done.stderr
    (tmp_path / "p.toml").write_text(f'topic="t"\npath="{tmp_path}"\n[decode]\nusing="{using}"')
    refused = CliRunner().invoke(cli, ["lake", "run", str(tmp_path / "p.toml"), "--check"])
    assert refused.exit_code == 1 and re.search(
        said.replace("MODULE:TYPE", "module:type").replace("not one", "none"), refused.stderr
    )
    assert "starting Spark" not in refused.stderr
