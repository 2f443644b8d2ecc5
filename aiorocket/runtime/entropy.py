"""The one source of randomness: ids, jitter, shuffles. Seeded in simulations, from the operating system otherwise."""

from __future__ import annotations

import os
import random
from typing import Any

__all__ = ("Entropy", "secret")

#: Of this process. A forked child begins anew, or it would draw the ids that its parent and every sibling draw.
_PROCESS = random.Random()
if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_PROCESS.seed)


class Entropy:
    """With a seed every draw is repeatable; without one it starts from the operating system's randomness, again in each
    forked child."""

    __slots__ = ("_random",)

    def __init__(self, seed: int | None = None) -> None:
        self._random = _PROCESS if seed is None else random.Random(seed)

    def random(self) -> float:
        """A float in [0, 1)."""
        return self._random.random()

    def randrange(self, n: int) -> int:
        """An int in [0, n)."""
        return self._random.randrange(n)

    def shuffle(self, items: list[Any]) -> None:
        self._random.shuffle(items)

    def token(self, n: int) -> bytes:
        """``n`` random bytes to tell instances apart. Not a secret."""
        return self._random.randbytes(n)

    def jitter(self, seconds: float) -> float:
        """``seconds`` spread evenly over 50 % to 100 % of itself, so that peers which failed together don't return
        together."""
        return seconds * (0.5 + 0.5 * self._random.random())


def secret(n: int) -> bytes:
    """``n`` bytes that nobody can guess, of the operating system; no seed repeats them."""
    return os.urandom(n)
