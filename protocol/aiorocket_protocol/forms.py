"""Every form in which peers write a number, a flag, a text or a name of an enum; spec/forms.toml lists them.

RocketMQ reads all of these because fastjson does, and its clients rely on it: Go writes numbers as text, C++ ordinals
for names and 0 for false, Node raw numbers where text belongs. We write one form only. Each reader returns None for
what stands for nothing, and raises ValueError for what is no form of its type.
"""

from __future__ import annotations

import re

from aiorocket_protocol.errors import ProtocolError

__all__ = ("check_unicode", "flag", "name", "number", "text")

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}(?:\.[0-9]*)?", re.ASCII)
_EXPONENT = re.compile(r"[+-]?[0-9]{1,19}(?:\.[0-9]+)?[eE][+-]?[0-9]{1,2}", re.ASCII)


def number(value: object) -> int | None:
    """A number, perhaps as text; what follows a decimal point is cut off. true is 1."""
    if type(value) is str:
        if _INTEGER.fullmatch(value):
            return int(value)
        if _NUMBER.fullmatch(value):
            return int(value.partition(".")[0])
        if _EXPONENT.fullmatch(value):
            return int(float(value))
        if value and value.lower() != "null":
            raise ValueError(value)
        return None
    if isinstance(value, (int, float)):
        try:
            return int(value)
        except OverflowError:  # an infinity, which msgpack can hold
            raise ValueError(value) from None
    if value is not None:
        raise ValueError(value)
    return None


def flag(value: object) -> bool | None:
    """true or 1, perhaps as text in any case; every other text or number is false, but null nothing."""
    if value is None or type(value) is bool:
        return value
    if type(value) is str:
        text = value.lower()
        return None if text == "null" else text in ("true", "1")
    if isinstance(value, (int, float)):
        return value == 1
    raise ValueError(value)


def check_unicode(*texts: str, where: str) -> None:
    """ProtocolError for half a surrogate pair, which a header in JSON can have: what keeps it could tell it to nobody,
    nor whatever stands beside it."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise ProtocolError(f"text that is not Unicode: {error.reason}", where=where) from None


def text(value: object) -> str | None:
    """Text, or a number or flag in its decimal or Java's form."""
    if value is None or type(value) is str:
        return value
    if type(value) is bool:
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    raise ValueError(value)


def name(value: object, names: tuple[str, ...]) -> str | None:
    """One of ``names`` in any case, or its ordinal. Text that is neither is kept: a newer peer knows more names."""
    if type(value) is str and not _NUMBER.fullmatch(value):
        known = value.upper()
        return known if known in names else value or None
    ordinal = None if type(value) is bool else number(value)
    if ordinal is None and value is None:
        return None
    if ordinal is None or not 0 <= ordinal < len(names):
        raise ValueError(value)
    return names[ordinal]
