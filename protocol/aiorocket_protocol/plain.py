"""Typed access to the members of a decoded body (plain dicts and lists from JSON or msgpack)."""

from __future__ import annotations

from typing import Any

from aiorocket_protocol import forms
from aiorocket_protocol.errors import ProtocolError
from aiorocket_protocol.limits import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN

__all__ = ("Plain",)


class Plain:
    """One object of a body. Each reader gives the member in whatever form it comes (forms.py), or its default when it
    is absent or null; ProtocolError names the member that has no such form."""

    __slots__ = ("members", "where")

    def __init__(self, value: Any, where: str) -> None:
        if type(value) is not dict:
            raise ProtocolError(f"an object is needed, found {_shown(value)}", where=where)
        self.members: dict[Any, Any] = value
        self.where = where

    def text(self, key: str, default: str | None = None) -> str:
        value = self.members.get(key)
        if type(value) is str:
            return value
        value = self.text_or_none(key)
        if value is None:
            value = default
        if value is None:
            raise self._wrong(key, "text")
        return value

    def text_or_none(self, key: str) -> str | None:
        try:
            return forms.text(self.members.get(key))
        except ValueError:
            raise self._wrong(key, "text") from None

    def name(self, key: str, names: tuple[str, ...], default: str) -> str:
        try:
            return forms.name(self.members.get(key), names) or default
        except ValueError:
            raise self._wrong(key, f"one of {', '.join(names)}, or its ordinal,") from None

    def number(self, key: str, default: int | None = None) -> int:
        try:
            value = forms.number(self.members.get(key))
        except ValueError:
            raise self._wrong(key, "a 64-bit number") from None
        if value is None:
            value = default
        if value is None or not INT64_MIN <= value <= INT64_MAX:
            raise self._wrong(key, "a 64-bit number")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        try:
            value = forms.flag(self.members.get(key))
        except ValueError:
            raise self._wrong(key, "true or false") from None
        return default if value is None else value

    def items(self, key: str) -> list[Any]:
        value = self.members.get(key)
        if value is None:
            return []
        if type(value) is tuple:  # msgpack
            return list(value)
        if type(value) is not list:
            raise self._wrong(key, "an array")
        return value

    def texts(self, key: str) -> list[str]:
        """Nulls in it are left out, as from ``numbers``."""
        try:
            return [value for value in map(forms.text, self.items(key)) if value is not None]
        except ValueError:
            raise self._wrong(key, "an array of text") from None

    def numbers(self, key: str) -> list[int]:
        """32-bit ones."""
        try:
            values = [value for value in map(forms.number, self.items(key)) if value is not None]
        except ValueError:
            values = [INT32_MAX + 1]
        if not all(INT32_MIN <= value <= INT32_MAX for value in values):
            raise self._wrong(key, "an array of 32-bit numbers")
        return values

    def table(self, key: str) -> dict[Any, Any]:
        value = self.members.get(key)
        if value is None:
            return {}
        if type(value) is not dict:
            raise self._wrong(key, "an object")
        return value

    def text_table(self, key: str) -> dict[str, str]:
        """Nulls in it are left out."""
        table = self.table(key)
        try:
            found = {name: forms.text(value) for name, value in table.items()}
        except ValueError:
            raise self._wrong(key, "an object of text") from None
        if not all(type(name) is str for name in table):
            raise self._wrong(key, "an object of text")
        return {name: value for name, value in found.items() if value is not None}

    def inner(self, key: str) -> str:
        """``where`` of a value inside this object."""
        return f"{self.where}.{key}"

    def _wrong(self, key: str, needed: str) -> ProtocolError:
        value = self.members.get(key)
        found = "nothing" if value is None else _shown(value)
        return ProtocolError(f"{needed} is needed, found {found}", where=self.inner(key))


def _shown(value: Any) -> str:
    kind = type(value).__name__
    if isinstance(value, dict | list | tuple) and value:  # all of it as text could take longer than to read it
        return f"{kind} of {len(value)}"
    return f"{kind} {value!r:.60}"
