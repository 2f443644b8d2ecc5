"""Work that is done little by little: a generator that yields wherever others may have their turn, and returns what
came of it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

__all__ = ("A_SHORT_TURN", "A_TURN", "each", "whole")

#: Entries of a table looked at in one turn of the loop: about a millisecond.
A_TURN = 2_000
#: Topics or groups that are read, made or kept in one.
A_SHORT_TURN = 500

_T = TypeVar("_T")
_V = TypeVar("_V")


def each(make: Callable[[_V], _T], values: Iterable[_V]) -> Generator[None, None, list[_T]]:
    """``make`` of each topic or group."""
    made: list[_T] = []
    for value in values:
        if made and len(made) % A_SHORT_TURN == 0:
            yield
        made.append(make(value))
    if len(made) > 1:
        yield
    return made


def whole(work: Generator[None, None, _T]) -> _T:
    """All of it at once."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: _T = end.value
            return result
