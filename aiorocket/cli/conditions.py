"""``--where``: conditions on a dead letter, written as ``FIELD OPERATOR VALUE``, from text to a function."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorocket import DeadMessage

__all__ = ("FIELDS", "condition", "every")

Where = Callable[["DeadMessage"], bool]

#: Field -> what it is in a message. ``keys`` are several: = and ~ ask for one that fits, != for none that is equal.
FIELDS: dict[str, Callable[[DeadMessage], list[str]]] = {
    "tag": lambda message: [message.tag],
    "keys": lambda message: message.keys,
    "topic": lambda message: [message.origin_topic],
    "id": lambda message: [message.msg_id],
    "body": lambda message: [message.body_or_raw.decode("utf-8", "replace")],
}
_NUMBERS: dict[str, Callable[[DeadMessage], int]] = {
    "reconsume_times": lambda message: message.reconsume_times,
    "queue": lambda message: message.queue.queue_id,
    "offset": lambda message: message.queue_offset,
}
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "=": lambda have, wanted: have == wanted,
    "!=": lambda have, wanted: have != wanted,
    "<": lambda have, wanted: have < wanted,
    "<=": lambda have, wanted: have <= wanted,
    ">": lambda have, wanted: have > wanted,
    ">=": lambda have, wanted: have >= wanted,
}
_PROPERTY = "property."
_FORM = re.compile(r"\s*([a-z_]+(?:\.[^\s=!<>~]+)?)\s*(!=|<=|>=|=|<|>|~)(.*)", re.DOTALL)


def condition(text: str) -> Where:
    """``tag=paid``, ``body~EUR`` (contains), ``reconsume_times>=16``, ``property.tenant!=acme``. ValueError says what
    is wrong with it."""
    form = _FORM.fullmatch(text)
    if form is None:
        raise ValueError(f"{text!r} is not FIELD=VALUE, nor with one of != < <= > >= ~ (contains)")
    field, operator, value = form[1], form[2], form[3].strip()
    if field in _NUMBERS:
        return _number(text, field, operator, value)
    if field.startswith(_PROPERTY):
        name = field.removeprefix(_PROPERTY)
        return _text(text, lambda message: [message.properties.get(name, "")], operator, value)
    if field in FIELDS:
        return _text(text, FIELDS[field], operator, value)
    known = ", ".join([*FIELDS, *_NUMBERS, f"{_PROPERTY}NAME"])
    raise ValueError(f"{text!r}: no field {field!r}; there are {known}")


def every(conditions: Iterable[Where]) -> Where | None:
    """All of them; None for none."""
    wanted = tuple(conditions)
    if not wanted:
        return None
    return lambda message: all(each(message) for each in wanted)


def _number(text: str, field: str, operator: str, value: str) -> Where:
    if operator not in _COMPARE or not re.fullmatch(r"[0-9]{1,18}", value):
        raise ValueError(f"{text!r}: {field} is compared with a number, by one of {' '.join(_COMPARE)}")
    of, compare, wanted = _NUMBERS[field], _COMPARE[operator], int(value)
    return lambda message: compare(of(message), wanted)


def _text(text: str, of: Callable[[DeadMessage], list[str]], operator: str, value: str) -> Where:
    if operator == "=":
        return lambda message: value in (of(message) or [""])
    if operator == "!=":
        return lambda message: value not in (of(message) or [""])
    if operator == "~":
        return lambda message: any(value in each for each in of(message))
    raise ValueError(f"{text!r}: text is compared by =, != or ~ (contains)")
