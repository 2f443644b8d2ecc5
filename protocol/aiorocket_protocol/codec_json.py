"""The JSON header (serialize type 0): what every official client speaks and what a connection starts with."""

from __future__ import annotations

from typing import Any

from aiorocket_protocol import forms
from aiorocket_protocol.command import JSON, LANGUAGE_CODES, LANGUAGE_NAMES, LANGUAGE_OTHER, RemotingCommand
from aiorocket_protocol.compiled import STRICT, encode_json, open_json
from aiorocket_protocol.errors import ProtocolError
from aiorocket_protocol.limits import INT32_MAX, INT32_MIN, MAX_EXT_FIELDS, MAX_PROPERTIES

__all__ = ("decode_header", "encode_header")

_LANGUAGES = tuple(LANGUAGE_NAMES.values())
#: Colons and opening brackets of a header that is not as Java writes it: a property string may be full of them, and
#: half a mebibyte of empty lists took 95 ms.
_MOST = MAX_PROPERTIES


def encode_header(command: RemotingCommand) -> bytes:
    """Compact JSON, keys sorted, nulls left out, every ext value a string (Go declares them so)."""
    plain: dict[str, Any] = {"code": int(command.code)}
    ext = command.ext_fields()
    if None in ext.values():
        ext = {key: value for key, value in ext.items() if value is not None}
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
        return encode_json(plain)
    except UnicodeEncodeError as error:
        raise ProtocolError(f"text that is not Unicode: {error.reason}", where="JSON header") from None


def decode_header(data: bytes) -> RemotingCommand:
    """Tolerates what real peers send: any form of a value (forms.py), unknown members, missing optional ones."""
    try:
        envelope = open_json(data)
    except (ValueError, RecursionError):
        return _decode_any_form(data)
    ext = envelope.extFields
    if ext is not None and len(ext) > MAX_EXT_FIELDS:
        raise _too_many(ext)
    return RemotingCommand(
        envelope.code,
        envelope.opaque,
        envelope.flag,
        _language(envelope.language),
        envelope.version,
        envelope.remark,
        ext,
        None,
        None,
        b"",
        JSON,
    )


def _decode_any_form(data: bytes) -> RemotingCommand:
    if sum(map(data.count, (b":", b"[", b"{"))) > _MOST:
        raise ProtocolError(f"more than {_MOST} members, objects and lists", where="JSON header")
    try:
        plain = STRICT.decode(data.decode())
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not JSON: {error}", where="JSON header") from None
    if type(plain) is not dict:
        raise ProtocolError(f"an object is needed, found {_kind(plain)}", where="JSON header")
    return RemotingCommand(
        _number(plain, "code", None),
        _number(plain, "opaque", None),
        _number(plain, "flag", 0),
        _language(plain.get("language")),
        _number(plain, "version", 0),
        None if (remark := plain.get("remark")) is None else _text(remark, "remark"),
        _ext(plain.get("extFields")),
        None,
        None,
        b"",
        JSON,
    )


def _language(value: object) -> int:
    """An unknown one does no harm."""
    if type(value) is str and value in LANGUAGE_CODES:
        return LANGUAGE_CODES[value]
    try:
        return LANGUAGE_CODES.get(forms.name(value, _LANGUAGES) or "", LANGUAGE_OTHER)
    except ValueError:
        return LANGUAGE_OTHER


def _ext(plain: object) -> dict[str, str | None] | None:
    if plain is None:
        return None
    if type(plain) is not dict:
        raise ProtocolError(f"an object is needed, found {_kind(plain)}", where="JSON header.extFields")
    if len(plain) > MAX_EXT_FIELDS:
        raise _too_many(plain)
    for key, value in plain.items():
        if type(value) is not str and value is not None:
            plain[key] = _text(value, f"extFields.{key:.100}")
    return plain


def _too_many(ext: dict[str, Any]) -> ProtocolError:
    return ProtocolError(f"{len(ext)} entries; at most {MAX_EXT_FIELDS}", where="JSON header.extFields")


def _text(value: object, where: str) -> str | None:
    try:
        return forms.text(value)
    except ValueError:
        what = f"text, a number or a boolean is needed, found {_kind(value)}"
        raise ProtocolError(what, where=f"JSON header.{where}") from None


def _number(plain: dict[str, object], key: str, default: int | None) -> int:
    value = plain.get(key)
    if type(value) is int and INT32_MIN <= value <= INT32_MAX:
        return value
    try:
        found = forms.number(value)
    except ValueError:
        found = INT32_MAX + 1
    if found is None:
        found = default
    if found is None or not INT32_MIN <= found <= INT32_MAX:
        shown = f"{value!r:.100}" if key in plain else "nothing"
        raise ProtocolError(f"a 32-bit number is needed, found {shown}", where=f"JSON header.{key}")
    return found


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
