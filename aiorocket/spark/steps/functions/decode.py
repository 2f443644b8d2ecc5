"""Bodies to columns. What cannot be decoded goes to a quarantine table with the reason; it never fails the job.

``decode`` adds two columns to each row, the value and the reason why there is none, so good and bad rows together are
always all rows. JSON is read by Spark itself; Avro, Protobuf, types and functions of yours run in Python workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from aiorocket.client.pipeline.bodies import CONTENT_TYPE
from aiorocket.errors import BodyError, UsageError
from aiorocket.spark.failures import explain
from aiorocket.spark.steps.fields import need
from aiorocket.spark.steps.functions.avro import AvroReader, spark_type
from aiorocket.spark.steps.functions.protobuf import ProtobufReader
from aiorocket.spark.steps.functions.registry import RegistryError, SchemaRegistry
from aiorocket.spark.steps.functions.typed import TypedReader, imported, is_body_type

__all__ = ("FORMATS", "Decoded", "decode")

#: What bodies can be, but for types and functions.
FORMATS = ("json", "variant", "text", "avro", "protobuf")

_CORRUPT = "_aiorocket_corrupt"
#: Spark takes {'id':1} as well, which is no JSON, and the string "NaN" for a number.
_STRICTLY = {"columnNameOfCorruptRecord": _CORRUPT, "allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
_NO_VARIANT = "no variant: two fields of one name, or too large"
#: A reason is for people; what an exception says can be a whole body.
_REASON_CHARS = 300


@dataclass(frozen=True)
class Decoded:
    """``rows`` are all input rows with the columns ``into`` (the value) and ``reason`` (null when it was decoded). Of a
    stream write ``rows`` in ``foreachBatch`` and split there; ``good`` and ``quarantine`` as two queries read the
    source twice. The same goes for a batch, unless ``rows`` is cached."""

    rows: DataFrame
    into: str = "value"
    reason: str = "reason"

    @property
    def good(self) -> DataFrame:
        """What was decoded: the input columns and the value."""
        return self.rows.where(F.col(self.reason).isNull()).drop(self.reason)

    @property
    def quarantine(self) -> DataFrame:
        """What was not: the input columns as they came, and the reason."""
        return self.rows.where(F.col(self.reason).isNotNull()).drop(self.into)


def decode(
    df: DataFrame,
    using: str | type | Callable[[bytes], Any] = "json",
    schema: str | bytes | StructType | DataType | Mapping[str, Any] | Sequence[Any] | None = None,
    *,
    required: Sequence[str] = (),
    message: str | None = None,
    registry: str | None = None,
    column: str = "body",
    into: str = "value",
    reason: str = "reason",
    header_bytes: int = 0,
) -> Decoded:
    """Decode ``column`` (binary, or text for JSON) into the column ``into``.

    ``using`` is

    * ``"json"``: one JSON object to a struct. ``schema`` is a StructType or DDL (``"id LONG NOT NULL, price DOUBLE"``).
      Fields that are NOT NULL and those of ``required`` (``"customer.id"`` for a nested one) must be there, and not
      null.
      Reasons name the field: ``missing required field: id``, ``wrong type: price: DOUBLE expected, STRING found``.
    * ``"variant"``: any one JSON value, without a schema. Two fields of the same name are refused.
    * ``"text"``: UTF-8.
    * ``"avro"``: ``schema`` is the Avro schema, as JSON text or what ``json.loads`` made of it. A body is one datum, or
      a container file with one record, whose own schema is then resolved against ``schema``. ``header_bytes`` are
      skipped before. With ``registry``, the address of a schema registry (``http://registry:8081``), a body is in its
      wire format: read with the schema that it names, and resolved against ``schema``. Needs fastavro, also where the
      executors are.
    * ``"protobuf"``: ``schema`` is the FileDescriptorSet (bytes) that has ``message`` (``"shop.Order"``).
      ``header_bytes`` are skipped before (6 in the wire format of Confluent's registry, for a file's first message).
      Needs protobuf, also where the executors are.
    * a dataclass, a msgspec Struct, a TypedDict or a model of pydantic, as a listener of a service takes it: what a
      service would give up has the reason that is in its dead letter. A model needs ``schema``, the Spark type (DDL or
      DataType). Executors import it, and aiorocket, by the names of their modules.
    * a function from the body's bytes to a value of the Spark type ``schema`` (DDL or DataType); what it raises becomes
      the reason. It is pickled: imports belong inside of it.
    * ``"module:name"`` of such a type or function: ``"shop.models:Order"``.

    Works on batches and streams. UsageError for arguments that cannot be meant; a registry that does not answer fails
    the task.
    """
    said = using
    if isinstance(using, str) and ":" in using:
        using = imported(using)
    need(df, "decode", column)
    for name in (into, reason):
        if name in df.columns:
            raise UsageError(f"decode: the DataFrame has a column {name!r} already; choose another: into=, reason=")
    if required and using != "json":
        raise UsageError("decode: required= goes with using='json'")
    if header_bytes and using not in ("avro", "protobuf"):
        raise UsageError("decode: header_bytes= goes with using='avro' or 'protobuf'")
    if registry is not None and (using != "avro" or header_bytes):
        raise UsageError("decode: registry= goes with using='avro', and without header_bytes=")
    if (message is None) == (using == "protobuf"):
        raise UsageError("decode: using='protobuf' needs message=, the name of one; nothing else takes it")
    if using == "json":
        return _json(df, _struct(schema), required, column, into, reason)
    if using in ("variant", "text"):
        if schema is not None:
            raise UsageError(f"decode using={using!r} takes no schema")
        return _variant(df, column, into, reason) if using == "variant" else _text(df, column, into, reason)
    if using == "avro":
        if schema is None or isinstance(schema, DataType):
            raise UsageError("decode using='avro' needs the Avro schema: JSON text, or what json.loads made of it")
        reader = AvroReader(schema, header_bytes, None if registry is None else SchemaRegistry(registry))
        return _python(df, reader, spark_type(reader.schema), column, into, reason)
    if using == "protobuf":
        if not isinstance(schema, bytes):
            raise UsageError("decode using='protobuf' needs schema=, the bytes of a FileDescriptorSet")
        proto = ProtobufReader(schema, message or "", header_bytes)
        return _python(df, proto, proto.spark_type, column, into, reason)
    if is_body_type(using):
        given = _parsed(schema) if isinstance(schema, str) else schema
        typed = TypedReader(said, given if isinstance(given, DataType) else None)
        # Where it is there, a listener goes by it as well.
        kind = F.try_element_at("properties", F.lit(CONTENT_TYPE)) if "properties" in df.columns else F.lit(None)
        return _python(df, typed, typed.spark_type, column, into, reason, kind.cast("string"))
    if callable(using):
        if not isinstance(schema, (str, DataType)):
            raise UsageError("decode with a function needs schema=, the Spark type of what it returns")
        made = _parsed(schema) if isinstance(schema, str) else schema
        return _python(df, using, made, column, into, reason)
    raise UsageError(f"decode using={using!r}: 'json', 'variant', 'text', 'avro', 'protobuf', a type or a function")


# -- JSON --


def _text_of(df: DataFrame, column: str) -> tuple[Column, Column]:
    """The column as text, and why it is none."""
    body = F.col(column)
    text = body.cast("string")
    return text, F.when(body.isNull(), "no body").when(~F.is_valid_utf8(text), "not UTF-8")


def _shape(text: Column, bad: Column) -> Column:
    """Why ``text`` is not exactly one JSON value. Spark's own parser ignores what follows the first value; as the only
    element of a list nothing can follow, unless a bracket of the text's own ends that list. In an object it ends
    nothing."""
    values = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))
    inside = F.json_object_keys(F.concat(F.lit('{"":'), text, F.lit("}")))
    return (
        bad.when(values.isNull(), "malformed JSON")
        .when((values <= 1) & text.contains("]") & inside.isNull(), "malformed JSON")
        .when(values == 0, "empty body")
        .when(values > 1, F.format_string("%d JSON values: one expected", values))
    )


def _unless_malformed(text: Column, otherwise: Column | str) -> Column:
    """Of a row that was refused: whether its JSON is to blame. ``_shape`` takes single quotes for double ones."""
    values = F.from_json(F.concat(F.lit("["), text, F.lit("]")), "array<string>", _STRICTLY)
    return F.when(values.isNull(), "malformed JSON").otherwise(otherwise)


def _json(df: DataFrame, schema: StructType, required: Sequence[str], column: str, into: str, reason: str) -> Decoded:
    text, bad = _text_of(df, column)
    wanted = StructType([*_nullable(schema).fields, StructField(_CORRUPT, StringType())])
    parsed = F.from_json(text, wanted, _STRICTLY)
    bare = F.trim(F.translate(text, "\t\r\n", "   "))
    bad = _shape(text, bad).when(~(bare.startswith("{") & bare.endswith("}")), "not a JSON object")
    value = F.col(into)
    wrong = _wrong_types(text, schema)
    unnamed = F.lit("a field of another type than the schema's")
    misfit = F.coalesce(F.nullif(F.concat_ws("; ", *wrong), F.lit("")), unnamed)
    misfit = _unless_malformed(text, F.concat(F.lit("wrong type: "), misfit))
    bad = bad.when(value[_CORRUPT].isNotNull(), misfit)
    if infinite := [F.when(_infinite(at, leaf), said) for at, leaf, said in _floats(value, schema)]:
        names = F.concat_ws("; ", *infinite)
        bad = bad.when(names != "", F.concat(F.lit("wrong type: "), names))
    paths = dict.fromkeys((*required, *_not_null(schema)))
    if paths:
        absent = [F.when(_at(value, path, schema).isNull(), path) for path in paths]
        names = F.concat_ws(", ", *absent)
        bad = bad.when(names != "", F.concat(F.lit("missing required field: "), names))
    rows = df.withColumn(into, parsed).withColumn(reason, bad)
    fields = [value[field.name].alias(field.name) for field in schema.fields]
    whole = F.when(F.col(reason).isNull(), F.struct(*fields))
    return Decoded(rows.withColumn(into, whole), into, reason)


def _variant(df: DataFrame, column: str, into: str, reason: str) -> Decoded:
    text, bad = _text_of(df, column)
    parsed = F.try_parse_json(text)
    bad = _shape(text, bad).when(F.col(into).isNull(), _unless_malformed(text, _NO_VARIANT))
    # Infinity in a variant cannot be told from the text. Two replacements, since one pattern for both fills the stack.
    bare = F.regexp_replace(F.regexp_replace(text, r"\\.", ""), '"[^"]*"', '""')
    numbers = F.regexp_extract_all(bare, F.lit(r"-?\d[\d.eE+-]*"), F.lit(0))
    infinite = F.exists(numbers, lambda each: _infinite(each.try_cast("double"), DoubleType()))
    bad = bad.when(text.rlike(r"[eE]\+?\d\d|\d{200}") & infinite, "a number that no DOUBLE holds")
    rows = df.withColumn(into, parsed).withColumn(reason, bad)
    # Of two values in a body the parser takes the first.
    return Decoded(rows.withColumn(into, F.when(F.col(reason).isNull(), F.col(into))), into, reason)


def _text(df: DataFrame, column: str, into: str, reason: str) -> Decoded:
    text, bad = _text_of(df, column)
    rows = df.withColumn(reason, bad).withColumn(into, F.when(F.col(reason).isNull(), text))
    return Decoded(rows, into, reason)


def _wrong_types(text: Column, schema: StructType) -> list[Column]:
    """For each leaf field: what is wrong with it, or null. The judge is the parser itself, given only this field; it
    runs for rows that did not fit as a whole."""
    found = []
    for path, leaf in _leaves(schema):
        alone: DataType = leaf
        for name in reversed(path):
            alone = StructType([StructField(name, alone)])
        assert isinstance(alone, StructType)
        probe = StructType([*alone.fields, StructField(_CORRUPT, StringType())])
        refused = F.from_json(text, probe, _STRICTLY)[_CORRUPT].isNotNull()
        said: Column = F.lit(f"{'.'.join(path)}: {leaf.simpleString().upper()} expected")
        if not any(set(name) & set("'\"\\[]") for name in path):
            where = "$" + "".join(f"['{name}']" for name in path)
            there = F.schema_of_variant(F.try_variant_get(F.try_parse_json(text), where, "variant"))
            said = F.concat(said, F.coalesce(F.concat(F.lit(", "), there, F.lit(" found")), F.lit("")))
        found.append(F.when(refused, said))
    return found


def _floats(value: Column, schema: StructType) -> Iterator[tuple[Column, DataType, str]]:
    """The leaf fields with a FLOAT or DOUBLE, and what is wrong where the number in the text is larger: Spark makes it
    Infinity, where an INT that does not fit is refused."""
    for path, leaf in _leaves(schema):
        if "float" in leaf.simpleString() or "double" in leaf.simpleString():
            said = f"{'.'.join(path)}: {leaf.simpleString().upper()} expected, larger number found"
            yield reduce(Column.__getitem__, path, value), leaf, said


def _infinite(value: Column, kind: DataType) -> Column:
    if isinstance(kind, (FloatType, DoubleType)):
        return F.abs(value) == math.inf
    if isinstance(kind, StructType):
        return reduce(Column.__or__, [_infinite(value[each.name], each.dataType) for each in kind.fields], F.lit(False))
    if isinstance(kind, ArrayType):
        return F.exists(value, lambda each: _infinite(each, kind.elementType))
    if isinstance(kind, MapType):
        return F.exists(F.map_values(value), lambda each: _infinite(each, kind.valueType))
    return F.lit(False)


def _leaves(schema: StructType, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], DataType]]:
    for field in schema.fields:
        path = (*above, field.name)
        if isinstance(field.dataType, StructType) and field.dataType.fields:
            yield from _leaves(field.dataType, path)
        else:
            yield path, field.dataType


def _not_null(schema: StructType, above: str = "") -> Iterator[str]:
    """Paths of the fields that must be there. Inside of a struct that may be missing nothing must."""
    for field in schema.fields:
        if not field.nullable:
            yield above + field.name
            if isinstance(field.dataType, StructType):
                yield from _not_null(field.dataType, f"{above}{field.name}.")


def _nullable(schema: StructType) -> StructType:
    """The parser gives null for what is missing, whatever the schema says; so it had better say so."""
    return StructType(
        [
            StructField(
                field.name, _nullable(field.dataType) if isinstance(field.dataType, StructType) else field.dataType
            )
            for field in schema.fields
        ]
    )


def _at(value: Column, path: str, schema: StructType) -> Column:
    if path in schema.names:
        return value[path]
    here: DataType = schema
    for name in path.split("."):
        if not isinstance(here, StructType) or name not in here.names:
            raise UsageError(f"decode: the required field {path!r} is not in the schema {schema.simpleString()}")
        value, here = value[name], here[name].dataType
    return value


def _struct(schema: object) -> StructType:
    if isinstance(schema, str):
        schema = _parsed(schema)
    if not isinstance(schema, StructType) or not schema.fields:
        raise UsageError("decode using='json' needs a schema: a StructType, or DDL such as 'id LONG, price DOUBLE'")
    return schema


def _parsed(ddl: str) -> DataType:
    try:
        return DataType.fromDDL(ddl)
    except PySparkException as error:
        raise UsageError(f"decode: schema {ddl!r:.200} is no DDL: {explain(error)}") from error


# -- Python --


def _python(
    df: DataFrame, function: Callable[..., Any], made: DataType, column: str, into: str, reason: str, *more: Column
) -> Decoded:
    both = StructType([StructField("value", made), StructField("reason", StringType())])

    def attempt(body: bytes | str | None, *rest: Any) -> tuple[Any, str | None]:
        if body is None:
            return None, "no body"
        try:
            return function(body.encode() if isinstance(body, str) else bytes(body), *rest), None
        except RegistryError:
            raise
        except BodyError as error:
            return None, str(error)[:_REASON_CHARS]  # as services have it
        except Exception as error:  # noqa: BLE001 - whatever a body makes it raise is the row's reason
            said = " ".join(f"{type(error).__name__}: {error}".split())
            return None, said[:_REASON_CHARS]

    # Not deterministic, so that Spark does not call it once for the filter and once for the value.
    run = F.udf(attempt, both, useArrow=False).asNondeterministic()
    done = "_aiorocket_decoded"
    rows = df.withColumn(done, run(F.col(column), *more))
    rows = rows.withColumn(into, F.col(done)["value"]).withColumn(reason, F.col(done)["reason"]).drop(done)
    return Decoded(rows, into, reason)
