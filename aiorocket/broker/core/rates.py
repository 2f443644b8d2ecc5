"""So much a second under each of many names, such as topics: token buckets, one number for each."""

from __future__ import annotations

__all__ = ("BURST", "Rate")

#: What a name that was quiet may have at once, in seconds of its rate.
BURST = 1.0
_FEW = 1024


class Rate:
    """``per_second`` for each name. What is asked for passes whole while the bucket is not overdrawn, and what it took
    too much is waited for, so that nothing is too large to pass: in t seconds at most ``per_second * (t + BURST)`` and
    the last that passed. Times are the loop's, in seconds. 0 is no limit.
    """

    def __init__(self, per_second: float) -> None:
        self.per_second = per_second
        #: When the bucket of each name will be full again. One that is full need not be known: ``_most`` is when those
        #: are dropped next, so names that are used no more are not kept.
        self._full_at: dict[str, float] = {}
        self._most = _FEW

    def __len__(self) -> int:
        return len(self._full_at)

    def change(self, per_second: float) -> None:
        """Another rate from now on. What was taken too much is forgotten: waiting for it at the old one could take
        days."""
        if per_second != self.per_second:
            self.per_second = per_second
            self._full_at.clear()

    def wait(self, name: str, now: float) -> float:
        """Seconds until something may pass under ``name``; 0 when it may now."""
        if not self.per_second:
            return 0.0
        return max(0.0, self._full_at.get(name, now) - now - BURST)

    def spend(self, name: str, amount: float, now: float) -> None:
        """It passed."""
        if not self.per_second:
            return
        known = self._full_at
        known[name] = max(known.get(name, now), now) + amount / self.per_second
        if len(known) > self._most:
            self._full_at = {name: full_at for name, full_at in known.items() if full_at > now}
            self._most = max(_FEW, 2 * len(self._full_at))
