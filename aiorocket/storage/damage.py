"""The damaged ranges of the log: what is in one is not served, what is around it is."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from aiorocket.storage.walk import Bad

__all__ = ("DamagedRanges", "spoiled")

_OTHERS = bytes(range(255, -1, -1))


def spoiled(data: bytes, offset: int, damage: Iterable[Bad]) -> list[bytes]:
    """``data`` of log offset ``offset``, cut where damaged ranges begin and end, and each byte of these changed:
    checksums that are made of it vouch for the rest only, also when nobody knows of the damage any more."""
    parts: list[bytes] = []
    at = 0
    for bad in sorted(damage):
        low, high = max(at, bad.offset - offset), min(bad.end - offset, len(data))
        if low < high:
            parts += [data[at:low], data[low:high].translate(_OTHERS)]
            at = high
    return [part for part in (*parts, data[at:]) if part]


class DamagedRanges:
    """Sorted, merged where they overlap. ``changes`` counts additions, so that a reader notices one."""

    __slots__ = ("_ends", "_reasons", "_starts", "changes")

    def __init__(self, ranges: Iterable[Bad] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._reasons: list[str] = []
        self.changes = 0
        for bad in ranges:
            self.add(bad)

    def __iter__(self) -> Iterator[Bad]:
        return map(Bad, self._starts, self._ends, self._reasons)

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, bad: Bad) -> bool:
        """False when all of it is known already."""
        low = bisect_right(self._ends, bad.offset)
        if low < len(self._starts) and self._starts[low] <= bad.offset and bad.end <= self._ends[low]:
            return False
        high = low
        start, end, reason = bad
        while high < len(self._starts) and self._starts[high] < end:
            start, end = min(start, self._starts[high]), max(end, self._ends[high])
            reason = self._reasons[high]
            high += 1
        self._starts[low:high], self._ends[low:high], self._reasons[low:high] = [start], [end], [reason]
        self.changes += 1
        return True

    def touches(self, start: int, end: int) -> bool:
        """Whether any byte of log offsets ``start`` to ``end`` is damaged."""
        index = bisect_right(self._ends, start)
        return index < len(self._starts) and self._starts[index] < end

    def forget_below(self, offset: int) -> None:
        """The log begins at ``offset`` now."""
        gone = bisect_right(self._ends, offset)
        del self._starts[:gone], self._ends[:gone], self._reasons[:gone]
