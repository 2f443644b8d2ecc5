"""Avro for ``decode``: from an Avro schema to Spark's types, and from bytes to values of them. fastavro reads."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

from pyspark.sql import types as T

from aiorocket.errors import UsageError
from aiorocket.spark.steps.functions.registry import HEADER, SchemaRegistry, number_of

__all__ = ("AvroReader", "fitted", "spark_type")

_CONTAINER = b"Obj\x01"
_PLAIN: dict[str, T.DataType] = {
    "boolean": T.BooleanType(),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "bytes": T.BinaryType(),
    "string": T.StringType(),
}
#: Logical types that fastavro turns into Python's; all others stay what they are based on.
_LOGICAL: dict[tuple[str, str], T.DataType] = {
    ("int", "date"): T.DateType(),
    ("int", "time-millis"): T.StringType(),
    ("long", "time-micros"): T.StringType(),
    ("long", "timestamp-millis"): T.TimestampType(),
    ("long", "timestamp-micros"): T.TimestampType(),
    ("long", "local-timestamp-millis"): T.TimestampNTZType(),
    ("long", "local-timestamp-micros"): T.TimestampNTZType(),
    ("string", "uuid"): T.StringType(),
}
#: Bits of a number behind its sign. Of one that has more, Spark makes another number or null.
_BITS: dict[type[T.DataType], int] = {T.IntegerType: 31, T.LongType: 63}
_Schema = str | Mapping[str, Any] | Sequence[Any]


class AvroReader:
    """A function from a body to a value that fits ``spark_type(schema)``. It is pickled with the parsed schema and
    finds fastavro where it runs. With a ``registry`` a body begins with the number of the schema it was written with,
    which is asked for there. UsageError for a schema that is none."""

    def __init__(self, schema: _Schema, header_bytes: int = 0, registry: SchemaRegistry | None = None) -> None:
        fastavro = _fastavro()
        if header_bytes < 0:
            raise UsageError(f"decode: header_bytes={header_bytes}: 0 or more")
        try:
            read = json.loads(schema) if isinstance(schema, str) and schema.lstrip()[:1] in '{["' else schema
            self.schema: Any = fastavro.parse_schema(read)
        except Exception as error:
            raise UsageError(f"decode: not an Avro schema: {type(error).__name__}: {error}") from error
        self._registry = registry
        self._header_bytes = HEADER if registry is not None else header_bytes
        self._type = spark_type(self.schema)

    def __call__(self, body: bytes) -> Any:
        fastavro = _fastavro()
        data = io.BytesIO(body)
        data.seek(self._header_bytes)
        writer = None if self._registry is None else self._registry.schema(number_of(body))
        if writer is None and body[self._header_bytes :].startswith(_CONTAINER):
            records = list(fastavro.reader(data, self.schema))
            if len(records) != 1:
                raise ValueError(f"a container of {len(records)} Avro records: one expected")
            value = records[0]
        else:
            try:
                if writer is None:
                    value = fastavro.schemaless_reader(data, self.schema, None)
                else:
                    value = fastavro.schemaless_reader(data, writer, self.schema)
            except EOFError:
                raise ValueError(f"{len(body)} bytes are fewer than the Avro schema asks for") from None
            left = len(body) - data.tell()
            if left:
                raise ValueError(f"{left} bytes are left behind the Avro datum")
        return fitted(value, self._type)


def spark_type(schema: Any) -> T.DataType:
    """The Spark type for a parsed Avro schema. A union with null is its other branch; a union of several others and
    times of day are text. UsageError for a type that contains itself, which Spark has no type for."""
    return _type(schema, {}, ())


def _type(schema: Any, named: dict[str, Any], inside: tuple[str, ...]) -> T.DataType:
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        if len(branches) == 1:
            return _type(branches[0], named, inside)
        for branch in branches:
            _type(branch, named, inside)  # it may define names that are used later
        return T.StringType()
    if isinstance(schema, str):
        if schema in _PLAIN:
            return _PLAIN[schema]
        if schema == "null":
            return T.StringType()
        if schema in inside:
            raise UsageError(f"decode: the Avro type {schema} contains itself; Spark has no type for that")
        return _type(named[schema], named, inside)
    kind = schema["type"]
    if isinstance(kind, (dict, list)):
        return _type(kind, named, inside)
    if kind in ("record", "error", "enum", "fixed"):
        named[schema["name"]] = schema
    logical = schema.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return T.DecimalType(schema["precision"], schema.get("scale", 0))
    if kind in ("record", "error"):
        within = (*inside, schema["name"])
        fields = schema["fields"]
        return T.StructType([T.StructField(field["name"], _type(field["type"], named, within)) for field in fields])
    if kind == "enum":
        return T.StringType()
    if kind == "fixed":
        return T.BinaryType()
    if kind == "array":
        return T.ArrayType(_type(schema["items"], named, inside))
    if kind == "map":
        return T.MapType(T.StringType(), _type(schema["values"], named, inside))
    return _LOGICAL.get((kind, logical or "")) or _type(kind, named, inside)


def fitted(value: Any, made: T.DataType) -> Any:
    """``value`` as pyspark takes it for the type ``made``. ValueError or OverflowError for one beyond the type: behind
    this function it would fail the task, or be there as null."""
    if value is None:
        return None
    if isinstance(value, int) and (bits := _BITS.get(type(made))) and not -1 << bits <= value < 1 << bits:
        raise ValueError(f"{value:.6e} is no {made.simpleString()}")
    if isinstance(value, Decimal) and isinstance(made, T.DecimalType):
        return _decimal(value, made)
    if isinstance(value, datetime) and value.tzinfo is not None and isinstance(made, T.TimestampType):
        return value.astimezone(UTC)
    if isinstance(made, T.StructType):
        return tuple(fitted(value.get(field.name), field.dataType) for field in made.fields)
    if isinstance(made, T.ArrayType):
        return [fitted(item, made.elementType) for item in value]
    if isinstance(made, T.MapType):
        return {name: fitted(item, made.valueType) for name, item in value.items()}
    if isinstance(made, T.StringType) and not isinstance(value, str):
        return json.dumps(value, default=str) if isinstance(value, (dict, list, bool)) else str(value)
    if isinstance(made, T.BinaryType):
        return bytearray(value)
    return value


def _decimal(value: Decimal, made: T.DecimalType) -> Decimal:
    try:
        found = value.quantize(Decimal((0, (1,), -made.scale)), ROUND_HALF_UP, Context(prec=made.precision))
    except InvalidOperation:
        found = None
    if found is None or not found.is_finite():
        raise ValueError(f"{value:.6e} is no {made.simpleString()}")
    return found


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise UsageError(
            "decoding Avro needs fastavro, on the executors too: pip install fastavro (or 'aiorocketmq[spark]')"
        ) from error
    return fastavro
