"""RemotingCommand: one request or response. (codec.py makes bytes of it.)

A command that is sent carries its declared fields as a header NamedTuple in ``header``. A received one carries them as
text in ``ext`` (JSON, ROCKETMQ) or as the bytes of an array in ``fields`` (msgpack); ``read(HeaderClass)`` gives the
typed header of any. msgspec reads, in C, what is written as the spec says; for whatever it refuses HeaderReader finds
the form that is meant, or the field that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

import msgpack

from aiorocket_protocol import forms
from aiorocket_protocol.compiled import Packed, Record, header_decoder, text_reader
from aiorocket_protocol.errors import ProtocolError
from aiorocket_protocol.headers import REQUEST_HEADERS, SPECS
from aiorocket_protocol.limits import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, MAX_HEADER_FIELDS
from aiorocket_protocol.names import VERSION
from aiorocket_protocol.spec import FieldSpec

__all__ = (
    "FLAG_ONEWAY",
    "FLAG_RESPONSE",
    "JSON",
    "LANGUAGE_CODES",
    "LANGUAGE_JAVA",
    "LANGUAGE_NAMES",
    "LANGUAGE_OTHER",
    "LANGUAGE_PYTHON",
    "MSGPACK",
    "ROCKETMQ",
    "RemotingCommand",
)


#: Serialize types, the first byte of a frame's second word: how its header is written.
JSON, ROCKETMQ, MSGPACK = 0, 1, 0x4D

LANGUAGE_NAMES: dict[int, str] = {
    0: "JAVA", 1: "CPP", 2: "DOTNET", 3: "PYTHON", 4: "DELPHI", 5: "ERLANG", 6: "RUBY", 7: "OTHER", 8: "HTTP", 9: "GO",
    10: "PHP", 11: "OMS", 12: "RUST", 13: "NODE_JS",
}  # fmt: skip
LANGUAGE_CODES: dict[str, int] = {name: code for code, name in LANGUAGE_NAMES.items()}
LANGUAGE_JAVA, LANGUAGE_PYTHON, LANGUAGE_OTHER = 0, 3, 7

#: Bits of ``flag``.
FLAG_RESPONSE, FLAG_ONEWAY = 1, 2

H = TypeVar("H", bound="tuple[Any, ...]")


class RemotingCommand(Record, gc=False):
    """One request or response.

    ``opaque`` is given by the connection. ``ext`` holds the fields no header declares; of a received JSON or ROCKETMQ
    command it holds all fields. A field absent or None is not sent.
    """

    code: int
    opaque: int = 0
    flag: int = 0
    language: int = LANGUAGE_PYTHON
    version: int = VERSION
    remark: str | None = None
    ext: dict[str, str | None] | None = None
    header: tuple[Any, ...] | None = None
    fields: Packed | None = None
    body: bytes = b""
    serialize_type: int = JSON

    @staticmethod
    def request(
        code: int,
        header: tuple[Any, ...] | None = None,
        *,
        ext: Mapping[str, str | None] | None = None,
        body: bytes = b"",
        oneway: bool = False,
    ) -> RemotingCommand:
        """A request; ``header`` is one of the NamedTuples of ``headers``."""
        return RemotingCommand(
            code,
            0,
            FLAG_ONEWAY if oneway else 0,
            LANGUAGE_PYTHON,
            VERSION,
            None,
            dict(ext) if ext else None,
            header,
            None,
            body,
        )

    @staticmethod
    def response(
        code: int = 0,
        header: tuple[Any, ...] | None = None,
        *,
        remark: str | None = None,
        ext: Mapping[str, str | None] | None = None,
        body: bytes = b"",
    ) -> RemotingCommand:
        """A response; the connection copies the request's opaque into it."""
        return RemotingCommand(
            code, 0, FLAG_RESPONSE, LANGUAGE_PYTHON, VERSION, remark, dict(ext) if ext else None, header, None, body
        )

    @property
    def is_response(self) -> bool:
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & FLAG_ONEWAY != 0

    def read(self, header_class: type[H]) -> H:
        """The declared fields as ``header_class``.

        A value may come in any form that means it (forms.py); ProtocolError names the field and the value when one is
        missing, has no such form or is out of its range. Fields behind the declared ones (a newer peer) are ignored,
        optional ones that are missing are None.
        """
        reader = _READERS.get(header_class)
        if reader is None:
            reader = _new_reader(header_class)
        fields = self.fields
        if fields is not None:
            try:
                found: H = reader.decode(fields)
            except (ValueError, RecursionError):
                return tuple.__new__(header_class, reader.from_positions(positions(fields)))
            return found
        header = self.header
        if type(header) is header_class:
            return header
        ext = self.ext_fields() if header is not None else self.ext or {}
        try:
            found = reader.convert(ext)
        except ValueError:
            return tuple.__new__(header_class, reader.from_text(ext))
        return found

    def ext_value(self, key: str) -> str | None:
        """The text of one undeclared field (of any field, for a command received in JSON or ROCKETMQ), or None."""
        ext = self.ext
        return ext.get(key) if ext else None

    def ext_fields(self, header_class: type[tuple[Any, ...]] | None = None) -> dict[str, str | None]:
        """Every field as the text JSON would carry.

        A msgpack command needs ``header_class`` for its names, unless it is a request whose code has a header.
        ProtocolError when there are positional fields and no class is known.
        """
        values = self.header
        if values is None:
            values = None if self.fields is None else positions(self.fields)
            if values is None:
                return self.ext or {}
            if header_class is None and not self.flag & FLAG_RESPONSE:
                header_class = REQUEST_HEADERS.get(self.code)
            if header_class is None:
                if not values:
                    return self.ext or {}
                raise ProtocolError(f"positional fields of code {self.code} have no names", where="msgpack header")
        else:
            header_class = type(values)
        texts = dict(self.ext) if self.ext else {}
        reader = _READERS.get(header_class) or _new_reader(header_class)
        for wire, value in zip(reader.wires, values, strict=False):
            if value is not None:
                texts[wire] = value if type(value) is str else _text(value)
        return texts


def _text(value: object) -> str:
    if value is True:
        return "true"
    if value is False:
        return "false"
    return str(value)


# ---- typed headers

_FORMS: dict[str, Callable[[object], Any]] = {
    "str": forms.text, "int": forms.number, "long": forms.number, "bool": forms.flag,
}  # fmt: skip
_RANGES = {"int": (INT32_MIN, INT32_MAX), "long": (INT64_MIN, INT64_MAX)}


def positions(fields: Packed) -> tuple[Any, ...]:
    """The values of a positional header."""
    try:
        found: tuple[Any, ...] = msgpack.unpackb(
            fields, use_list=False, max_array_len=MAX_HEADER_FIELDS, max_map_len=0, max_ext_len=0
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise ProtocolError(f"not msgpack: {str(error) or type(error).__name__}", where="msgpack header") from None
    return found


class HeaderReader:
    """Received fields as one header class.

    ``decode`` and ``convert`` raise ValueError for whatever is not as the spec says; ``from_positions`` and
    ``from_text`` read every form, and say what is wrong in a ProtocolError.
    """

    __slots__ = ("convert", "decode", "header_class", "specs", "wires")

    def __init__(self, header_class: type[tuple[Any, ...]], specs: tuple[FieldSpec, ...]) -> None:
        self.header_class = header_class
        self.specs = specs
        self.wires = tuple(spec.wire for spec in specs)
        self.decode = header_decoder(header_class)
        self.convert = text_reader(header_class, self.wires)

    def from_positions(self, fields: tuple[Any, ...]) -> list[Any]:
        """Positional fields, cut or filled up to the declared ones."""
        padded = (*fields, *(None,) * (len(self.specs) - len(fields)))
        return list(map(self._value, self.specs, padded))

    def from_text(self, ext: Mapping[str, str | None]) -> list[Any]:
        """Fields as text, by their wire keys."""
        return [self._value(spec, ext.get(spec.wire)) for spec in self.specs]

    def _value(self, spec: FieldSpec, value: Any) -> Any:
        kind = spec.kind
        if type(value) is str and kind == "str":
            return value
        if value is None and not spec.required:
            return None
        try:
            found = _FORMS[kind](value)
        except ValueError:
            self._fail(spec, f"{kind} is needed, found {_shown(value)}")
        if found is None:
            if spec.required:
                self._fail(spec, "missing" if value is None else f"{kind} is needed, found {_shown(value)}")
            return None
        limits = _RANGES.get(kind)
        if limits is not None and not limits[0] <= found <= limits[1]:
            self._fail(spec, f"{value!r:.100} does not fit {kind}")
        return found

    def _fail(self, spec: FieldSpec, what: str) -> NoReturn:
        raise ProtocolError(what, where=f"{self.header_class.__name__}.{spec.wire}")


def _shown(value: object) -> str:
    return f"{value!r:.100}" if type(value) is str else f"{type(value).__name__} {value!r:.100}"


_READERS: dict[type, HeaderReader] = {}


def _new_reader(header_class: type[tuple[Any, ...]]) -> HeaderReader:
    specs = SPECS.get(header_class)
    if specs is None:
        raise TypeError(f"{header_class!r} is not one of the header classes of aiorocket_protocol.headers")
    reader = _READERS[header_class] = HeaderReader(header_class, specs)
    return reader
