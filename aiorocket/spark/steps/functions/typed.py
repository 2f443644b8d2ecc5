"""Types of a service's listeners for ``decode``: the same decoder, so that a body that a service would give up is
quarantined for the same reason."""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass
from datetime import date, datetime
from decimal import Decimal
from importlib import import_module
from typing import Any, is_typeddict

import msgspec
from pyspark.sql import types as T

from aiorocket.client.pipeline.bodies import decoder
from aiorocket.errors import UsageError
from aiorocket.spark.steps.functions.avro import fitted

__all__ = ("TypedReader", "imported", "is_body_type")

_PLAIN: dict[type[msgspec.inspect.Type], T.DataType] = {
    msgspec.inspect.BoolType: T.BooleanType(),
    msgspec.inspect.IntType: T.LongType(),
    msgspec.inspect.FloatType: T.DoubleType(),
    msgspec.inspect.BytesType: T.BinaryType(),
    msgspec.inspect.DateTimeType: T.TimestampType(),
    msgspec.inspect.DateType: T.DateType(),
    msgspec.inspect.DecimalType: T.DecimalType(38, 18),
}
_OBJECTS = (msgspec.inspect.StructType, msgspec.inspect.DataclassType, msgspec.inspect.TypedDictType)
_LISTS = (msgspec.inspect.ListType, msgspec.inspect.VarTupleType, msgspec.inspect.SetType)
#: Python's values that pyspark takes as they are.
_KEPT = (datetime, date, Decimal, bytes)


@dataclass(frozen=True)
class _Body:
    body: bytes
    content_type: str | None


class TypedReader:
    """A function from a body to a value of ``spark_type``: fields by their names in JSON, a union of several types and
    what has no type of its own as text. It is pickled with the type, or with its name where ``wanted`` is one.
    UsageError for a type that bodies are not read as, or that contains itself, and for a model of pydantic without
    ``given``, the Spark type."""

    def __init__(self, wanted: Any, given: T.DataType | None = None) -> None:
        self._wanted = wanted
        if isinstance(wanted, str):
            wanted = imported(wanted)
        self._decode: Any = decoder(wanted)
        if given is None and hasattr(wanted, "model_validate_json"):
            raise UsageError(f"decode: {wanted.__name__} is a model of pydantic: give schema=, its Spark type")
        self.spark_type: T.DataType = given or _spark_type(msgspec.inspect.type_info(wanted), ())

    def __reduce__(self) -> tuple[type[TypedReader], tuple[Any, T.DataType]]:
        return type(self), (self._wanted, self.spark_type)

    def __call__(self, body: bytes, content_type: str | None = None) -> Any:
        value = self._decode(_Body(body, content_type))
        if hasattr(value, "model_dump"):
            return fitted(value.model_dump(by_alias=True), self.spark_type)
        return fitted(msgspec.to_builtins(value, builtin_types=_KEPT, str_keys=True), self.spark_type)


def imported(name: str) -> Any:
    """The type, or the function from a body's bytes, that ``module:attribute`` names. UsageError where it cannot be
    imported or is neither."""
    module, _, attribute = name.partition(":")
    try:
        found: Any = import_module(module)
        for each in attribute.split("."):
            found = getattr(found, each)
    except (Exception, SystemExit) as error:  # whatever a module does while it is imported
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(
            f"decode using={name!r} cannot be imported: {said}. The driver and each executor import it: install its "
            "package in both, or name its folder in PYTHONPATH"
        ) from error
    if not callable(found):
        raise UsageError(f"decode using={name!r} is {found!r:.100}: a type or a function is needed")
    return found


def is_body_type(using: object) -> bool:
    """Whether it is a class that bodies are read as, and no function."""
    return isinstance(using, type) and (
        is_dataclass(using)
        or issubclass(using, msgspec.Struct)
        or is_typeddict(using)
        or hasattr(using, "model_validate_json")
    )


def _spark_type(info: msgspec.inspect.Type, inside: tuple[Any, ...]) -> T.DataType:
    if isinstance(info, msgspec.inspect.Metadata):
        return _spark_type(info.type, inside)
    if isinstance(info, msgspec.inspect.UnionType):
        others = [each for each in info.types if not isinstance(each, msgspec.inspect.NoneType)]
        return _spark_type(others[0], inside) if len(others) == 1 else T.StringType()
    if isinstance(info, _OBJECTS):
        if info.cls in inside:
            raise UsageError(f"decode: {info.cls.__name__} contains itself; Spark has no type for that")
        within = (*inside, info.cls)
        fields = [T.StructField(each.encode_name, _spark_type(each.type, within)) for each in info.fields]
        return T.StructType(fields)
    if isinstance(info, _LISTS):
        return T.ArrayType(_spark_type(info.item_type, inside))
    if isinstance(info, msgspec.inspect.DictType):
        return T.MapType(T.StringType(), _spark_type(info.value_type, inside))
    return _PLAIN.get(type(info), T.StringType())
