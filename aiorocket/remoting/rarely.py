"""Lines of log that a peer can cause, said now and then."""

from __future__ import annotations

from collections.abc import Hashable

__all__ = ("Rarely",)


class Rarely:
    """One in ``every`` seconds for each key, of which the caller sees to it that they are few."""

    __slots__ = ("_every", "_said")

    def __init__(self, every: float) -> None:
        self._every = every
        #: When the next may be said, and how many were not.
        self._said: dict[Hashable, tuple[float, int]] = {}

    def unsaid(self, key: Hashable, now: float) -> int | None:
        """How many were left out before this one, which may be said; None when it is left out itself."""
        until, unsaid = self._said.get(key, (now, 0))
        if now < until:
            self._said[key] = until, unsaid + 1
            return None
        self._said[key] = now + self._every, 0
        return unsaid
