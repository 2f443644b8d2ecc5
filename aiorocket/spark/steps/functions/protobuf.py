"""Protobuf for ``decode``: from a message's descriptor to Spark's types, and from bytes to values of them. Google's
protobuf reads (extra ``protobuf``); no code has to be generated, and no jar is needed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from pyspark.sql import types as T

from aiorocket.errors import UsageError

__all__ = ("ProtobufReader",)

#: By the name of a field's type in a descriptor (``TYPE_…``).
_PLAIN: dict[str, T.DataType] = {
    "DOUBLE": T.DoubleType(), "FLOAT": T.FloatType(), "BOOL": T.BooleanType(), "STRING": T.StringType(),
    "BYTES": T.BinaryType(), "ENUM": T.StringType(), "INT32": T.IntegerType(), "SINT32": T.IntegerType(),
    "SFIXED32": T.IntegerType(), "UINT32": T.LongType(), "FIXED32": T.LongType(), "INT64": T.LongType(),
    "SINT64": T.LongType(), "SFIXED64": T.LongType(), "UINT64": T.DecimalType(20, 0), "FIXED64": T.DecimalType(20, 0),
}  # fmt: skip
_TIMESTAMP = "google.protobuf.Timestamp"
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ProtobufReader:
    """A function from a body to a value of ``spark_type``, a struct of the message's fields: numbers without a sign of
    64 bits are decimals, enums their names, ``google.protobuf.Timestamp`` a timestamp, wrappers what they wrap; what
    is not set is null where the message can tell, else the default.

    ``descriptors`` is a FileDescriptorSet (``protoc --descriptor_set_out=FILE --include_imports``). UsageError when it
    is none, has no ``message``, or one that contains itself. It is pickled with the bytes only.
    """

    def __init__(self, descriptors: bytes, message: str, header_bytes: int = 0) -> None:
        if header_bytes < 0:
            raise UsageError(f"decode: header_bytes={header_bytes}: 0 or more")
        self._descriptors = descriptors
        self._message = message
        self._header_bytes = header_bytes
        self._class = _message_class(descriptors, message)
        self.spark_type = _struct(self._class.DESCRIPTOR, ())

    def __reduce__(self) -> tuple[type[ProtobufReader], tuple[bytes, str, int]]:
        return type(self), (self._descriptors, self._message, self._header_bytes)

    def __call__(self, body: bytes) -> Any:
        found = self._class()
        data = body[self._header_bytes :]
        if len(body) < self._header_bytes:
            raise ValueError(f"{len(body)} bytes are fewer than the {self._header_bytes} in front of a message")
        found.ParseFromString(data)
        # Bytes of another kind are often a message of nothing but unknown fields.
        if not found.ListFields() and _unknown(found):
            raise ValueError(f"{len(data)} bytes without a field of {self._message}")
        return _value(found, found.DESCRIPTOR)


def _message_class(descriptors: bytes, message: str) -> Any:
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise UsageError(
            "decoding Protobuf needs protobuf, on the executors too: pip install 'aiorocketmq[protobuf]'"
        ) from error
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
    except DecodeError as error:
        raise UsageError(
            f"decode: not a FileDescriptorSet, as protoc --descriptor_set_out writes it: {error}"
        ) from None
    if not files:  # bytes of anything else are often a message of nothing but unknown fields
        raise UsageError("decode: not a FileDescriptorSet, as protoc --descriptor_set_out writes it: no file in it")
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in files:
            pool.Add(file)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(message))
    except KeyError:
        names = sorted(f"{file.package}.{each.name}".lstrip(".") for file in files for each in file.message_type)
        raise UsageError(f"decode: there is no message {message!r:.100}; there are {', '.join(names)[:500]}") from None
    except TypeError as error:
        raise UsageError(f"decode: the descriptors do not fit together ({error}): --include_imports?") from None


def _unknown(found: Any) -> int:
    from google.protobuf.unknown_fields import UnknownFieldSet

    return len(UnknownFieldSet(found))


def _struct(message: Any, inside: tuple[str, ...]) -> T.StructType:
    if message.full_name in inside:
        raise UsageError(f"decode: the message {message.full_name} contains itself; Spark has no type for that")
    within = (*inside, message.full_name)
    return T.StructType([T.StructField(field.name, _field_type(field, within)) for field in message.fields])


def _field_type(field: Any, inside: tuple[str, ...]) -> T.DataType:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return T.MapType(_one_type(entry["key"], inside), _one_type(entry["value"], inside))
    one = _one_type(field, inside)
    return T.ArrayType(one) if field.is_repeated else one


def _one_type(field: Any, inside: tuple[str, ...]) -> T.DataType:
    message = field.message_type
    if message is None:
        return _PLAIN[_kind(field)]
    if message.full_name == _TIMESTAMP:
        return T.TimestampType()
    if message.full_name in _WRAPPERS:
        return _PLAIN[_kind(message.fields_by_name["value"])]
    return _struct(message, inside)


def _kind(field: Any) -> str:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    return str(FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_")


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _value(found: Any, message: Any) -> tuple[Any, ...]:
    return tuple(_field_value(found, field) for field in message.fields)


def _field_value(found: Any, field: Any) -> Any:
    value = getattr(found, field.name)
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return {_one_value(key, entry["key"]): _one_value(value[key], entry["value"]) for key in value}
    if field.is_repeated:
        return [_one_value(each, field) for each in value]
    if field.has_presence and not found.HasField(field.name):
        return None
    return _one_value(value, field)


def _one_value(value: Any, field: Any) -> Any:
    message = field.message_type
    if message is not None:
        if message.full_name == _TIMESTAMP:
            return _EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
        if message.full_name in _WRAPPERS:
            return _one_value(value.value, message.fields_by_name["value"])
        return _value(value, message)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return str(value) if named is None else named.name
    if isinstance(value, bytes):
        return bytearray(value)
    return Decimal(value) if _kind(field) in ("UINT64", "FIXED64") else value
