"""Work that is done little by little: a generator that yields wherever others may have their turn, and returns what
came of it."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

__all__ = ("A_TURN", "whole")

#: Entries of a table looked at in one turn of the loop: about a millisecond.
A_TURN = 2_000

_T = TypeVar("_T")


def whole(work: Generator[None, None, _T]) -> _T:
    """All of it at once."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: _T = end.value
            return result
