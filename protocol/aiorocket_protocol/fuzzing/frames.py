"""Frames of requests, put together from fields that are encoded once: a fuzzer writes the same few values millions of
times. What they say is what ``encode`` says; the fields of a JSON header come in declared order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from json import dumps
from struct import Struct
from typing import Any

from aiorocket_protocol.codec_msgpack import pack
from aiorocket_protocol.command import JSON, LANGUAGE_PYTHON, MSGPACK
from aiorocket_protocol.names import VERSION

__all__ = ("framed", "header_of")

_pack_words = Struct(">II").pack
_pack_fixed = Struct(">hBhiiii").pack  # ..., flag, no remark, length of the fields
_pack_short = Struct(">h").pack
_pack_int = Struct(">i").pack
_JSON_END = f',"language":"PYTHON","serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
_KEPT = 1 << 14


def framed(kind: int, header: bytes, body: bytes) -> bytes:
    """The frame."""
    return _pack_words(4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def header_of(
    kind: int, code: int, opaque: int, flag: int, wires: Sequence[str] | None, values: Sequence[Any]
) -> bytes:
    """The header; a field whose value is None is left out. ``wires`` is None for codes that have no fields."""
    if kind == MSGPACK:
        return pack((code, flag, opaque, VERSION, LANGUAGE_PYTHON, None, None if wires is None else values))
    if kind == JSON:
        head = f'{{"code":{code},"flag":{flag},"opaque":{opaque}'
        fields = ",".join([_in_json(*field) for field in zip(wires or (), values, strict=True) if field[1] is not None])
        return (f'{head},"extFields":{{{fields}}}{_JSON_END}' if fields else head + _JSON_END).encode()
    ext = b"".join([_in_binary(*field) for field in zip(wires or (), values, strict=True) if field[1] is not None])
    return _pack_fixed(code, LANGUAGE_PYTHON, VERSION, opaque, flag, 0, len(ext)) + ext


@lru_cache(_KEPT, typed=True)
def _in_json(wire: str, value: Any) -> str:
    return f"{dumps(wire)}:{dumps(_text(value), ensure_ascii=False)}"


@lru_cache(_KEPT, typed=True)
def _in_binary(wire: str, value: Any) -> bytes:
    name, content = wire.encode(), _text(value).encode()
    return _pack_short(len(name)) + name + _pack_int(len(content)) + content


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
