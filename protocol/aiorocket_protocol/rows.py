"""``NamedTuple`` for modules with very many of them: ``typing``'s takes 140 us to make a class, this one 15.

A hundred headers and bodies are made each time a process starts, and a broker shall answer 200 ms after its start. Type
checkers see the real one:

    if TYPE_CHECKING:
        from typing import NamedTuple
    else:
        from aiorocket_protocol.rows import NamedTuple
"""

from __future__ import annotations

from collections import _tuplegetter  # type: ignore[attr-defined]  # the field access of namedtuple itself
from typing import Any

__all__ = ("NamedTuple",)

_new = tuple.__new__


class _RowType(type):
    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        if not any(isinstance(base, _RowType) for base in bases):
            return type.__new__(mcs, name, bases, namespace)  # NamedTuple itself
        fields = tuple(namespace.get("__annotations__", ()))
        defaults = tuple(namespace[field] for field in fields if field in namespace)
        for index, field in enumerate(fields):
            namespace[field] = _tuplegetter(index, None)
        namespace["__slots__"] = ()
        namespace["_fields"] = namespace["__match_args__"] = fields
        namespace["_defaults"] = defaults
        namespace["_field_defaults"] = dict(zip(fields[len(fields) - len(defaults) :], defaults, strict=True))
        return type.__new__(mcs, name, bases, namespace)


class NamedTuple(tuple[Any, ...], metaclass=_RowType):
    """As ``typing.NamedTuple``: fields by annotation, defaults for the last of them, methods allowed."""

    __slots__ = ()

    _fields: tuple[str, ...]
    _defaults: tuple[Any, ...]

    def __new__(cls, *values: Any, **named: Any) -> Any:
        if not named:
            missing = len(cls._fields) - len(values)
            if not missing:
                return _new(cls, values)
            if 0 < missing <= len(cls._defaults):
                return _new(cls, values + cls._defaults[-missing:])
        return _new(cls, _complete(cls, values, named))

    @classmethod
    def _make(cls, values: Any) -> Any:
        row = _new(cls, values)
        if len(row) != len(cls._fields):
            raise TypeError(f"{cls.__name__} has {len(cls._fields)} fields, {len(row)} values were given")
        return row

    def _replace(self, **named: Any) -> Any:
        row = _new(type(self), map(named.pop, self._fields, self))
        if named:
            raise ValueError(f"{type(self).__name__} has no field {', '.join(map(repr, named))}")
        return row

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def __repr__(self) -> str:
        inside = ", ".join(f"{field}={value!r}" for field, value in zip(self._fields, self, strict=True))
        return f"{type(self).__name__}({inside})"

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)


def _complete(cls: type[NamedTuple], values: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    """All values in order; TypeError for what is missing, unknown or given twice."""
    fields, defaults = cls._fields, cls._defaults
    if len(values) > len(fields):
        raise TypeError(f"{cls.__name__} has {len(fields)} fields, {len(values)} values were given")
    row = list(values)
    required = len(fields) - len(defaults)
    for index in range(len(values), len(fields)):
        field = fields[index]
        if field in named:
            row.append(named.pop(field))
        elif index >= required:
            row.append(defaults[index - required])
        else:
            raise TypeError(f"{cls.__name__} needs a value for {field!r}")
    if named:
        field = next(iter(named))
        why = "has two values for" if field in fields else "has no field"
        raise TypeError(f"{cls.__name__} {why} {field!r}")
    return row
