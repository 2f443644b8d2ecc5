"""What msgspec does for headers in C, and the same without it.

msgspec is what makes headers cheap (a request with fourteen fields is read in 0.9 us, by msgpack and Python in 1.9),
and it is installed with the package. A Spark executor may have nothing but what its task brings with it, which is plain
Python: there the functions below end in msgpack and json, and typed reading in HeaderReader's slow way.

``open_msgpack``, ``open_json`` and what ``header_decoder`` and ``text_reader`` make raise ValueError or RecursionError
for whatever is not as our own encoders write it; ``read_json`` and ``read_strangers_json`` for what is no standard
JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

import msgpack

from aiorocket_protocol.limits import (
    INT32_MAX,
    INT32_MIN,
    INT64_MAX,
    INT64_MIN,
    MAX_EXT_FIELDS,
    MAX_HEADER_FIELDS,
)

try:
    import msgspec
except ImportError:
    if not TYPE_CHECKING:
        msgspec = None

__all__ = (
    "NIL",
    "STRICT",
    "Int32",
    "Int64",
    "Language",
    "Packed",
    "Record",
    "Version",
    "encode_json",
    "header_decoder",
    "open_json",
    "open_msgpack",
    "pack",
    "read_json",
    "read_strangers_json",
    "text_reader",
)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


#: Python's own JSON without the words that are no JSON (NaN, Infinity), which it takes by default.
STRICT = json.JSONDecoder(parse_constant=_no_constant)
_TEXTUAL = json.JSONDecoder(parse_float=str, parse_constant=_no_constant)

if msgspec is not None:
    #: Java's int and long.
    Int32 = Annotated[int, msgspec.Meta(ge=INT32_MIN, le=INT32_MAX)]
    Int64 = Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)]
    #: What a header says of its sender, in the array of codec_msgpack.py.
    Version = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]
    Language = Annotated[int, msgspec.Meta(ge=0, le=255)]
    #: A value that is still msgpack.
    Packed = msgspec.Raw
    NIL = msgspec.Raw(b"\xc0")
    #: Base of a class that is made per message, whose fields stand as in a dataclass: four times as fast to make.
    Record = msgspec.Struct

    class PackedHeader(msgspec.Struct, array_like=True, gc=False):
        """The array of codec_msgpack.py."""

        code: Int32
        flag: Int32
        opaque: Int32
        version: Version
        language: Language
        remark: str | None
        #: Its class is known to ``RemotingCommand.read``.
        fields: msgspec.Raw
        ext: msgspec.Raw = NIL

    class JsonHeader(msgspec.Struct, gc=False):
        """The object of codec_json.py as Java writes it."""

        code: Int32
        opaque: Int32
        flag: Int32 = 0
        language: str | None = None
        version: Int32 = 0
        remark: str | None = None
        extFields: dict[str, str | None] | None = None

    # Encoders are safe across threads: for numbers, text, None, dicts and tuples encode() runs no Python code, so it
    # holds the interpreter lock from start to end.
    pack: Callable[[object], bytes] = msgspec.msgpack.Encoder().encode
    encode_json: Callable[[object], bytes] = msgspec.json.Encoder().encode
    open_msgpack = msgspec.msgpack.Decoder(PackedHeader).decode
    open_json = msgspec.json.Decoder(JsonHeader).decode
    #: Any standard JSON.
    read_json: Callable[[bytes], Any] = msgspec.json.Decoder().decode
    #: The same with numbers that have a fraction or an exponent as text: of those like 1e299 each takes it 8 us.
    read_strangers_json: Callable[[bytes], Any] = msgspec.json.Decoder(float_hook=str).decode

    def header_decoder(header_class: type[Any]) -> Callable[[msgspec.Raw | bytes], Any]:
        """Reads the positional fields of ``header_class``, which may be any tuple's type."""
        return msgspec.msgpack.Decoder(header_class).decode

    def text_reader(header_class: type[Any], wires: tuple[str, ...]) -> Callable[[Mapping[str, str | None]], Any]:
        """Reads fields as text by these keys. (msgspec makes a struct of a dict twice as fast as a NamedTuple.)"""
        hints = get_type_hints(header_class, include_extras=True)
        names: tuple[str, ...] = header_class._fields
        required = len(names) - len(header_class._field_defaults)
        fields = [(name, hints[name], *(None,) * (at >= required)) for at, name in enumerate(names)]
        struct = msgspec.defstruct(header_class.__name__, fields, rename=dict(zip(names, wires, strict=True)), gc=False)
        convert, values, new = msgspec.convert, msgspec.structs.astuple, tuple.__new__
        return lambda ext: new(header_class, values(convert(ext, struct, strict=False)))

elif not TYPE_CHECKING:
    Int32 = Int64 = Language = Version = int
    Packed = bytes
    NIL = b"\xc0"

    class Record:
        def __init_subclass__(cls, **_options):
            dataclass(cls)

    pack = msgpack.Packer().pack

    class PackedHeader(NamedTuple):
        code: int
        flag: int
        opaque: int
        version: int
        language: int
        remark: str | None
        fields: bytes
        ext: bytes = NIL

    def open_msgpack(data):
        try:
            items = msgpack.unpackb(
                data, use_list=False, max_array_len=MAX_HEADER_FIELDS, max_map_len=MAX_EXT_FIELDS, max_ext_len=0
            )
        except msgpack.UnpackException as error:
            raise ValueError(error) from None
        if type(items) is not tuple or len(items) < 7:
            raise ValueError("an array of 7 or 8 items is needed")
        head = items[:5]
        if (
            any(type(number) is not int or not INT32_MIN <= number <= INT32_MAX for number in head)
            or not (items[3] >= 0 and 0 <= items[4] <= 255)
            or not (items[5] is None or type(items[5]) is str)
        ):
            raise ValueError(f"found {items[:6]!r:.100}")
        return PackedHeader(*items[:6], *map(pack, items[6:8]))

    def encode_json(plain):
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()

    def open_json(_data):
        raise ValueError("the slow way")

    def read_json(data):
        return STRICT.decode(data.decode())

    def read_strangers_json(data):
        return _TEXTUAL.decode(data.decode())

    def header_decoder(_header_class):
        return open_json

    def text_reader(_header_class, _wires):
        return open_json
