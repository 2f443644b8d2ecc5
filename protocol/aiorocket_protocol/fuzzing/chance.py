"""Where chance comes from: whoever draws brings it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

__all__ = ("Draw", "pick", "some_bytes")

T = TypeVar("T")


class Draw(Protocol):
    """A source of chance; ``random.Random`` is one."""

    def random(self) -> float: ...
    def getrandbits(self, k: int, /) -> int: ...


def pick(draw: Draw, among: Sequence[T]) -> T:
    """One of them."""
    return among[int(draw.random() * len(among))]


def some_bytes(draw: Draw, count: int) -> bytes:
    """So many, of any value."""
    return draw.getrandbits(8 * count).to_bytes(count, "big") if count else b""
