"""What SQL92 filters compute with: texts, numbers, truth with an unknown, and how RocketMQ compares them.

Each function here makes one step of a compiled expression: a callable from a message's properties to a value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

__all__ = (
    "ORDERINGS",
    "TEXT_TESTS",
    "Long",
    "NotComparable",
    "Properties",
    "Run",
    "Value",
    "all_of",
    "any_of",
    "compare",
    "equality",
    "is_null",
    "membership",
    "minus",
    "negation",
    "ordering",
    "text_test",
)

Value = str | int | float | bool | None
Properties = Mapping[str, str]
Run = Callable[[Properties], Value]


class Long(int):
    """A number literal that needs 64 bits: texts beside it are converted to 64 bits, not to 32."""

    __slots__ = ()


class NotComparable(Exception):
    """A text that is no number beside a number: RocketMQ gives up on the whole expression."""


def any_of(runs: tuple[Run, ...]) -> Run:
    def run(properties: Properties) -> Value:
        found: bool | None = False
        for part in runs:
            value = part(properties)
            if value:
                return True
            if value is None:
                found = None
        return found

    return run


def all_of(runs: tuple[Run, ...]) -> Run:
    def run(properties: Properties) -> Value:
        found: bool | None = True
        for part in runs:
            value = part(properties)
            if value is None:
                found = None
            elif not value:
                return False
        return found

    return run


def negation(part: Run) -> Run:
    def run(properties: Properties) -> Value:
        value = part(properties)
        return None if value is None else not value

    return run


def minus(part: Run) -> Run:
    def run(properties: Properties) -> Value:
        value = part(properties)
        if isinstance(value, (bool, str)) or value is None:
            return None
        return type(value)(-value)

    return run


def is_null(part: Run, yes: bool) -> Run:
    return lambda properties: (part(properties) is None) is yes


def equality(left: Run, right: Run) -> Run:
    def run(properties: Properties) -> Value:
        a, b = left(properties), right(properties)
        if a is None:
            return None if b is not None else True
        if b is None:
            return False
        return compare(a, b) == 0

    return run


def ordering(holds: Callable[[int], bool], left: Run, right: Run) -> Run:
    def run(properties: Properties) -> Value:
        a = left(properties)
        if a is None:
            return None
        b = right(properties)
        if b is None:
            return None
        if isinstance(a, str) and isinstance(b, str):
            a, b = _double(a), _double(b)
        return holds(compare(a, b))

    return run


def membership(part: Run, texts: frozenset[str], no: bool) -> Run:
    def run(properties: Properties) -> Value:
        value = part(properties)
        return None if value is None else (value in texts) is not no

    return run


def text_test(holds: Callable[[str, str], bool], part: Run, text: str, no: bool) -> Run:
    def run(properties: Properties) -> Value:
        # Without a text on one side even the negated form is false.
        if not text:
            return False
        value = part(properties)
        return isinstance(value, str) and holds(value, text) is not no

    return run


ORDERINGS: dict[str, Callable[[int], bool]] = {
    ">": lambda sign: sign > 0,
    ">=": lambda sign: sign >= 0,
    "<": lambda sign: sign < 0,
    "<=": lambda sign: sign <= 0,
}
TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": str.__contains__,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def compare(left: Value, right: Value) -> int:
    """Below 0, 0 or above 0, as Java's ``compareTo`` after RocketMQ's conversions; neither is None."""
    a, b = type(left), type(right)
    if a is not b:
        if a is bool:
            if b is str:
                raise NotComparable  # Apache fails here too; the other way round it converts
            return -1
        if b is bool:
            if a is not str:
                return -1
            left = str(left).lower() == "true"
        elif a is str:
            left = _number(str(left), b)
        elif b is str:
            right = _number(str(right), a)
    if isinstance(left, float) or isinstance(right, float):
        low, high = _double_key(left), _double_key(right)
        return (low > high) - (low < high)
    return (left > right) - (left < right)  # type: ignore[operator]  # both texts, both numbers or both booleans


def _double_key(value: Value) -> tuple[bool, float, float]:
    """Java's order of doubles: -0.0 below 0.0, NaN equal to itself and above everything."""
    number = float(value)  # type: ignore[arg-type]  # text has been made a number by now
    if math.isnan(number):
        return True, 0.0, 1.0
    return False, number, math.copysign(1.0, number)


_INTEGER = re.compile(r"[+-]?[0-9]{1,4000}")
_DOUBLE = re.compile(r"([+-]?(?:NaN|Infinity|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?))[fFdD]?")
_SPACE = "".join(map(chr, range(0x21)))


def _number(text: str, kind: type) -> int | float:
    if kind is float:
        return _double(text)
    if _INTEGER.fullmatch(text) is None:
        raise NotComparable
    number = int(text)
    bound = 1 << (63 if kind is Long else 31)
    if not -bound <= number < bound:
        raise NotComparable
    return number


def _double(text: str) -> float:
    match = _DOUBLE.fullmatch(text.strip(_SPACE))
    if match is None:
        raise NotComparable
    return float(match.group(1))
