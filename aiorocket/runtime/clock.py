"""Wall-clock stamps. Durations and leases never come from here: they use ``loop.time()``."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ("Clock", "WallClock")


class Clock(Protocol):
    """Where stored stamps (born, store, delivery time) come from."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 UTC. May jump in either direction, so never subtract two of them for a duration."""


class WallClock:
    """The machine's clock."""

    __slots__ = ()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000
