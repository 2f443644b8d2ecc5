"""JSON as Java's fastjson has it: strict JSON, or with unquoted numeric keys, objects as keys, trailing commas and
control characters within text.

``{0:"10.0.0.1:10911"}`` and ``{{"brokerName":"b","queueId":3,"topic":"T"}:42}`` are what peers really send
(spec/headers.md).
"""

from __future__ import annotations

import json
import re
from json import decoder as json_decoder
from typing import Any

from aiorocket_protocol.compiled import STRICT, read_json, read_strangers_json
from aiorocket_protocol.errors import ProtocolError
from aiorocket_protocol.limits import MAX_NESTING

__all__ = ("Tolerant", "check_pairs", "dumps", "loads", "strict_part", "text_of")


#: The value of standard JSON at a place of a text, and where it ends; ValueError, RecursionError or StopIteration.
strict_part: Any = STRICT.scan_once  # type: ignore[attr-defined]
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode

_BLANK = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)
_WORDS = {"true": True, "false": False, "null": None}
_WORD = re.compile(r"true|false|null")
_MAX_DIGITS = 64
#: Characters of JSON that is not standard for each value that it may have.
_OF_A_VALUE = 32
#: Objects and lists, and colons, of standard JSON for each such value.
_OF_STANDARD = 16
_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
# The C scanner of the standard library; its stubs leave it out.
_scan_string: Any = json_decoder.scanstring  # type: ignore[attr-defined]


def loads(data: bytes, *, most: int | None = None) -> Any:
    """The value in ``data`` (UTF-8). Unquoted numeric keys become text; an object used as a key becomes the tuple of
    its sorted ``(name, value)`` pairs. ProtocolError when neither reading works: non-standard JSON may be nested
    MAX_NESTING deep and have ``most`` values of 32 characters, standard JSON as deep as the standard library follows
    and have 16 times as many objects and lists, and as many colons. With ``most`` numbers with a fraction or an
    exponent become text."""
    text = text_of(data)
    # 1 MiB of empty ones takes 80 ms, of members with names of their own 70.
    if most is not None and max(text.count("{") + text.count("["), text.count(":")) > _OF_STANDARD * most:
        raise ProtocolError(f"more than {_OF_STANDARD * most} objects and lists, or colons", where="JSON")
    check_pairs(text)
    try:
        value = read_json(data) if most is None else read_strangers_json(data)
    except (ValueError, RecursionError) as error:
        if most is not None and len(text) > _OF_A_VALUE * most:  # it was read once already
            raise ProtocolError(
                f"{error}; JSON that is not standard may have {_OF_A_VALUE * most} characters", where="JSON"
            ) from None
        return Tolerant(text, most).document()
    return value


def text_of(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"not UTF-8 at byte {error.start}: {error.reason}", where="JSON") from None


def check_pairs(text: str) -> None:
    """ProtocolError for half a surrogate pair."""
    if ("\\ud" in text or "\\uD" in text) and _HALF.search(_PAIR.sub("", text.replace("\\\\", ""))):
        # It could be kept and then not be told to anybody else: no JSON and no UTF-8 has it.
        raise ProtocolError("half a surrogate pair is no text", where="JSON")


def dumps(value: Any) -> bytes:
    """Compact JSON (Go's route parser breaks on blanks); a key that is a NamedTuple with ``to_plain`` is written as an
    object, the only form of such maps that Java, Go and mqadmin all read. ProtocolError for what JSON cannot say."""
    try:
        try:
            return _encode(value).encode()
        except TypeError:  # a key that is a value, perhaps
            return _text(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"cannot be written: {error}", where="JSON") from None


def _text(value: Any) -> str:
    if isinstance(value, dict) and any(type(key) is not str for key in value):
        return "{" + ",".join([f"{_key(key)}:{_text(item)}" for key, item in value.items()]) + "}"
    if isinstance(value, dict):
        return "{" + ",".join([f"{_encode(key)}:{_text(item)}" for key, item in value.items()]) + "}"
    if isinstance(value, list):
        return "[" + ",".join([_text(item) for item in value]) + "]"
    return _encode(value)


def _key(key: Any) -> str:
    to_plain = getattr(key, "to_plain", None)
    return _encode(to_plain()) if to_plain is not None else _encode(str(key))


class Tolerant:
    """Recursive descent over the text; ``at`` is the next character, ``left`` are the values it may still have."""

    def __init__(self, text: str, most: int | None) -> None:
        self.text = text
        self.at = 0
        self.most = most
        self.left = len(text) if most is None else most

    def document(self) -> Any:
        try:
            value = self.value(0)
            self.blank()
        except (ValueError, IndexError) as error:
            if isinstance(error, ProtocolError):
                raise
            raise self.error("unexpected end or bad text") from None
        if self.at != len(self.text):
            raise self.error("something follows the value")
        return value

    def error(self, what: str) -> ProtocolError:
        found = self.text[self.at : self.at + 20]
        return ProtocolError(f"{what} at character {self.at}, found {found!r}", where="JSON")

    def blank(self) -> str:
        """Skip blanks; the character after them, or "" at the end."""
        found = self.text[self.at : self.at + 1]
        if found > " ":  # as nearly always
            return found
        match = _BLANK.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.text[self.at : self.at + 1]

    def value(self, depth: int) -> Any:
        if depth > MAX_NESTING:
            raise self.error(f"more than {MAX_NESTING} levels")
        self.left -= 1
        if self.left < 0:
            raise self.error(f"more than {self.most} values in JSON that is not standard")
        first = self.blank()
        if first == '"':
            return self.string()
        if first == "{":
            return self.object(depth)
        if first == "[":
            return self.array(depth)
        if match := _NUMBER.match(self.text, self.at):
            return self.number(match)
        if match := _WORD.match(self.text, self.at):
            self.at = match.end()
            return _WORDS[match.group()]
        raise self.error("a value is needed")

    def number(self, match: re.Match[str]) -> int | float | str:
        text = match.group()
        if len(text) > _MAX_DIGITS:
            raise self.error("a number of unreasonable length")
        self.at = match.end()
        if text.lstrip("-").isdigit():
            return int(text)
        return float(text) if self.most is None else text

    def string(self) -> str:
        # Control characters too, as fastjson reads them: Go's client writes the lines of its stacks like that.
        text, self.at = _scan_string(self.text, self.at + 1, False)
        return str(text)

    def array(self, depth: int) -> list[Any]:
        self.at += 1
        items: list[Any] = []
        while self.blank() != "]":
            items.append(self.value(depth + 1))
            if not self.separator("]"):
                break
        self.at += 1
        return items

    def object(self, depth: int) -> dict[Any, Any]:
        self.at += 1
        members: dict[Any, Any] = {}
        while self.blank() != "}":
            key = self.key(depth + 1)
            if self.blank() != ":":
                raise self.error("':' is needed after a key")
            self.at += 1
            members[key] = self.value(depth + 1)
            if not self.separator("}"):
                break
        self.at += 1
        return members

    def separator(self, closing: str) -> bool:
        """Past a comma (more may follow), or at the closing bracket (False)."""
        found = self.blank()
        if found == ",":
            self.at += 1
            return True
        if found != closing:
            raise self.error(f"',' or '{closing}' is needed")
        return False

    def key(self, depth: int) -> Any:
        first = self.blank()
        if first == '"':
            return self.string()
        if first == "{":
            if depth > MAX_NESTING:
                raise self.error(f"more than {MAX_NESTING} levels")
            self.left -= 1
            return _frozen(self.object(depth))
        if match := _NUMBER.match(self.text, self.at):
            self.at = match.end()
            return match.group()
        if match := _WORD.match(self.text, self.at):
            self.at = match.end()
            return match.group()
        raise self.error("a key is needed")


def _frozen(value: Any) -> Any:
    """A hashable form: an object's members sorted by name (names of mixed kinds by their text)."""
    if isinstance(value, dict):
        return tuple(sorted(((key, _frozen(item)) for key, item in value.items()), key=lambda pair: str(pair[0])))
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    return value
