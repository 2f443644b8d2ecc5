"""Typed access to the members of a decoded body (plain dicts and lists from JSON or msgpack)."""

from __future__ import annotations

from typing import Any

from aiorocket_protocol.errors import ProtocolError

__all__ = ("Plain",)


class Plain:
    """One object of a body. Each reader gives the member or its default (absent and null are the same); ProtocolError
    names the member when it has another type. Text that holds a number or a boolean is taken for it, as Java does."""

    __slots__ = ("members", "where")

    def __init__(self, value: Any, where: str) -> None:
        if type(value) is not dict:
            raise ProtocolError(f"an object is needed, found {type(value).__name__} {value!r:.60}", where=where)
        self.members: dict[Any, Any] = value
        self.where = where

    def text(self, key: str, default: str | None = None) -> str:
        value = self.members.get(key)
        if value is None:
            value = default
        if type(value) is not str:
            raise self._wrong(key, "text")
        return value

    def text_or_none(self, key: str) -> str | None:
        return None if self.members.get(key) is None else self.text(key)

    def number(self, key: str, default: int | None = None) -> int:
        value = self.members.get(key)
        if value is None:
            value = default
        if type(value) is str and value.lstrip("-").isdecimal() and value.isascii() and len(value) <= 20:
            value = int(value) if value.count("-") <= 1 else None
        if type(value) is not int or not -(2**63) <= value < 2**63:
            raise self._wrong(key, "a 64-bit number")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.members.get(key)
        if value is None:
            return default
        if type(value) is str and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if type(value) is not bool:
            raise self._wrong(key, "true or false")
        return value

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
        values = self.items(key)
        if not all(type(value) is str for value in values):
            raise self._wrong(key, "an array of text")
        return values

    def table(self, key: str) -> dict[Any, Any]:
        value = self.members.get(key)
        if value is None:
            return {}
        if type(value) is not dict:
            raise self._wrong(key, "an object")
        return value

    def text_table(self, key: str) -> dict[str, str]:
        table = self.table(key)
        if not all(type(name) is str and type(value) is str for name, value in table.items()):
            raise self._wrong(key, "an object of text")
        return table

    def inner(self, key: str) -> str:
        """``where`` of a value inside this object."""
        return f"{self.where}.{key}"

    def _wrong(self, key: str, needed: str) -> ProtocolError:
        value = self.members.get(key)
        found = "nothing" if value is None else f"{type(value).__name__} {value!r:.60}"
        return ProtocolError(f"{needed} is needed, found {found}", where=self.inner(key))
