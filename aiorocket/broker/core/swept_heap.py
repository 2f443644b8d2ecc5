"""A heap of which entries become void while they are in it."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Generic, TypeVar

__all__ = ("SweptHeap",)

_T = TypeVar("_T", bound=tuple[Any, ...])

#: Entries that may always be here.
_FEW = 1024


class SweptHeap(Generic[_T]):
    """Where many are void, two of all are looked at with each push: to drop 500,000 at once takes 0.3 s."""

    __slots__ = ("_heap", "_is_void", "_old", "kept")

    def __init__(self, is_void: Callable[[_T], bool]) -> None:
        self._is_void = is_void
        self._heap: list[_T] = []
        #: What is to be looked at. It goes from its end, so it stays a heap.
        self._old: list[_T] = []
        #: Of the last look at all, or so far of the one under way, what was not void.
        self.kept = 0

    def __len__(self) -> int:
        return len(self._heap) + len(self._old)

    def first(self) -> _T:
        """The smallest, perhaps void."""
        return self._with_first()[0]

    def pop(self) -> _T:
        return heappop(self._with_first())

    def push(self, entry: _T, needed: int) -> None:
        heappush(self._heap, entry)
        self.sweep(2, needed)

    def sweep(self, most: int, needed: int) -> bool:
        """Look at so many; whether there are more to be looked at. A look at all begins when there are more than twice
        as many as are ``needed`` by and large."""
        if not self._old and len(self._heap) > _FEW + 2 * needed:
            self._heap, self._old, self.kept = [], self._heap, 0
        heap, old = self._heap, self._old
        for _ in range(min(most, len(old))):
            entry = old.pop()
            if not self._is_void(entry):
                heappush(heap, entry)
                self.kept += 1
        return bool(old)

    def _with_first(self) -> list[_T]:
        heap, old = self._heap, self._old
        return old if old and not (heap and heap[0] < old[0]) else heap
