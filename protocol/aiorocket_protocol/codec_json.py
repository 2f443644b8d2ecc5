"""The JSON header (serialize type 0): what every official client speaks and what a connection starts with."""

from __future__ import annotations

import json
from typing import Any

from aiorocket_protocol.command import JSON, LANGUAGE_CODES, LANGUAGE_NAMES, RemotingCommand
from aiorocket_protocol.errors import ProtocolError
from aiorocket_protocol.limits import INT32_MAX, INT32_MIN, MAX_EXT_FIELDS

__all__ = ("decode_header", "encode_header")

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


_decode = json.JSONDecoder(parse_constant=_no_constant).decode


def encode_header(command: RemotingCommand) -> bytes:
    """Compact JSON, keys sorted, nulls left out, every ext value a string (Go declares them so)."""
    plain: dict[str, Any] = {"code": int(command.code)}
    ext = {key: value for key, value in command.ext_fields().items() if value is not None}
    if ext:
        plain["extFields"] = ext
    plain["flag"] = command.flag
    plain["language"] = LANGUAGE_NAMES.get(command.language, "OTHER")
    plain["opaque"] = command.opaque
    if command.remark is not None:
        plain["remark"] = command.remark
    plain["serializeTypeCurrentRPC"] = "JSON"
    plain["version"] = command.version
    try:
        return _encode(plain).encode()
    except UnicodeEncodeError as error:
        raise ProtocolError(f"text that is not Unicode: {error.reason}", where="JSON header") from None


def decode_header(data: bytes) -> RemotingCommand:
    """Tolerates what real peers send (numbers and booleans in extFields, unknown members, missing optional ones)."""
    try:
        plain = _decode(data.decode())
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not JSON: {error}", where="JSON header") from None
    if type(plain) is not dict:
        raise ProtocolError(f"an object is needed, found {_kind(plain)}", where="JSON header")
    remark = plain.get("remark")
    if remark is not None and type(remark) is not str:
        raise ProtocolError(f"text is needed, found {_kind(remark)}", where="JSON header.remark")
    return RemotingCommand(
        _number(plain, "code", None),
        _number(plain, "opaque", None),
        _number(plain, "flag", 0),
        LANGUAGE_CODES.get(plain["language"], LANGUAGE_CODES["OTHER"])
        if type(plain.get("language")) is str
        else LANGUAGE_CODES["OTHER"],
        _number(plain, "version", 0),
        remark,
        _ext(plain.get("extFields")),
        None,
        None,
        b"",
        JSON,
    )


def _ext(plain: object) -> dict[str, str | None] | None:
    if plain is None:
        return None
    if type(plain) is not dict:
        raise ProtocolError(f"an object is needed, found {_kind(plain)}", where="JSON header.extFields")
    if len(plain) > MAX_EXT_FIELDS:
        raise ProtocolError(f"{len(plain)} entries; at most {MAX_EXT_FIELDS}", where="JSON header.extFields")
    for key, value in plain.items():
        if type(value) is not str and value is not None:
            plain[key] = _ext_text(key, value)
    return plain


def _ext_text(key: str, value: object) -> str:
    """The Node client sends raw numbers and booleans; Java turns them into this text too."""
    if type(value) is bool:
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    raise ProtocolError(
        f"text, a number or a boolean is needed, found {_kind(value)}", where=f"JSON header.extFields.{key:.100}"
    )


def _number(plain: dict[str, object], key: str, default: int | None) -> int:
    value = plain.get(key, default)
    if type(value) is not int or not INT32_MIN <= value <= INT32_MAX:
        found = f"{value!r:.100}" if key in plain else "nothing"
        raise ProtocolError(f"a 32-bit number is needed, found {found}", where=f"JSON header.{key}")
    return value


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
