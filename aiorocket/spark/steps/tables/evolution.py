"""One type for the rows of several schemas: of the table that has been decoded into, and of the schema it is decoded
with now.

Fields that came are null in older rows, fields that went in newer ones; numbers that became wider make the table's
wider, and narrower ones are kept in what the table has. Anything else is refused: a text where a number was is another
field, whatever its name.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from aiorocket.errors import UsageError

__all__ = ("as_type", "changes", "merged", "same")

_WHOLE: tuple[type[T.DataType], ...] = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_BROKEN: tuple[type[T.DataType], ...] = (T.FloatType, T.DoubleType)


def merged(old: T.DataType, new: T.DataType, name: str) -> T.DataType:
    """What holds values of both, with the fields of ``old`` in their order in front. UsageError, with the field below
    ``name``, where nothing does."""
    if isinstance(old, T.StructType) and isinstance(new, T.StructType):
        return T.StructType([*_fields(old, new, name)])
    if isinstance(old, T.ArrayType) and isinstance(new, T.ArrayType):
        return T.ArrayType(merged(old.elementType, new.elementType, f"{name}[]"))
    if isinstance(old, T.MapType) and isinstance(new, T.MapType):
        keys = merged(old.keyType, new.keyType, f"{name}.key")
        if not same(keys, old.keyType) or not same(keys, new.keyType):
            raise _apart(f"{name}.key", old.keyType, new.keyType)  # two keys may be one in a wider type, nowhere else
        return T.MapType(keys, merged(old.valueType, new.valueType, f"{name}.value"))
    for widening in (_WHOLE, _BROKEN):
        if isinstance(old, widening) and isinstance(new, widening):
            return old if widening.index(type(old)) >= widening.index(type(new)) else new
    if isinstance(old, T.DecimalType) and isinstance(new, T.DecimalType) and old.scale == new.scale:
        return old if old.precision >= new.precision else new
    if same(old, new):
        return old
    raise _apart(name, old, new)


def same(one: T.DataType, other: T.DataType) -> bool:
    """Whether they are one type, but for what may be null: in files everything may."""
    return one.simpleString() == other.simpleString()


def as_type(column: Column, given: T.DataType, wanted: T.DataType) -> Column:
    """``column``, of type ``given``, as ``wanted``, which is what ``merged`` made of it and others."""
    if same(given, wanted):
        return column
    if isinstance(given, T.StructType) and isinstance(wanted, T.StructType):
        fields = [
            as_type(column[field.name], given[field.name].dataType, field.dataType).alias(field.name)
            if field.name in given.names
            else F.lit(None).cast(field.dataType).alias(field.name)
            for field in wanted.fields
        ]
        return F.when(column.isNotNull(), F.struct(*fields))
    if isinstance(given, T.ArrayType) and isinstance(wanted, T.ArrayType):
        inner, outer = given.elementType, wanted.elementType
        return F.transform(column, lambda each: as_type(each, inner, outer))
    if isinstance(given, T.MapType) and isinstance(wanted, T.MapType):
        value, into = given.valueType, wanted.valueType
        return F.transform_values(column, lambda _, each: as_type(each, value, into))
    return column.cast(wanted)


def changes(old: T.DataType, new: T.DataType, name: str = "") -> Iterator[str]:
    """What ``new``, that ``merged`` made of ``old`` and another, has more, for people."""
    if isinstance(old, T.StructType) and isinstance(new, T.StructType):
        for field in new.fields:
            path = f"{name}.{field.name}".lstrip(".")
            if field.name in old.names:
                yield from changes(old[field.name].dataType, field.dataType, path)
            else:
                yield f"{path} {_said(field.dataType)} is new"
    elif isinstance(old, T.ArrayType) and isinstance(new, T.ArrayType):
        yield from changes(old.elementType, new.elementType, f"{name}[]")
    elif isinstance(old, T.MapType) and isinstance(new, T.MapType):
        yield from changes(old.valueType, new.valueType, f"{name}.value")
    elif not same(old, new):
        yield f"{name} {_said(old)} is {_said(new)} now"


def _fields(old: T.StructType, new: T.StructType, name: str) -> Iterator[T.StructField]:
    kept = {each.lower(): each for each in old.names}
    for field in old.fields:
        type_ = field.dataType
        if field.name in new.names:
            type_ = merged(type_, new[field.name].dataType, f"{name}.{field.name}")
        yield T.StructField(field.name, type_)
    for field in new.fields:
        if field.name in old.names:
            continue
        if (there := kept.get(field.name.lower())) is not None:
            raise UsageError(
                f"field {name}.{field.name}: the table has {name}.{there}, and Spark takes the two for one. Name it "
                f"{there}, or use another folder"
            )
        yield T.StructField(field.name, field.dataType)


def _apart(name: str, old: T.DataType, new: T.DataType) -> UsageError:
    return UsageError(
        f"field {name}: the table has {_said(old)}, the schema now says {_said(new)}, and no type holds both. Give the "
        "field another name or its old type, or use another folder"
    )


def _said(type_: T.DataType) -> str:
    return type_.simpleString().upper() if not isinstance(type_, T.StructType) else type_.simpleString()
