"""Work in turns of the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeVar

__all__ = ("Rounds", "Turns", "in_turns")

_T = TypeVar("_T")


async def in_turns(work: Generator[None, None, _T]) -> _T:
    """What ``work`` returns; everybody else is served wherever it yields."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: _T = end.value
            return result
        await asyncio.sleep(0)


class Turns:
    """Calls that thousands may ask for at once: ``most`` of them are made in a turn of the loop, in their order. One
    that returns a number counts for so many more."""

    __slots__ = ("_armed", "_calls", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: deque[Iterator[Callable[[], int | None]]] = deque()
        self._armed = False

    def soon(self, call: Callable[[], int | None]) -> None:
        """In the next turn or, behind all that came before it, in one to come."""
        self.all((call,))

    def all(self, calls: Iterable[Callable[[], int | None]]) -> None:
        """The same of many, each of which is made up when it is its turn."""
        self._calls.append(iter(calls))
        self._arm()

    def _arm(self) -> None:
        if self._calls and not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._make_some)

    def _make_some(self) -> None:
        self._armed, left = False, self._most
        try:
            for call in self._next():
                left -= 1 + (call() or 0)
                if left <= 0:
                    break
        finally:  # one that fails does not keep the others
            self._arm()

    def _next(self) -> Iterator[Callable[[], int | None]]:
        while self._calls:
            for call in self._calls[0]:  # noqa: UP028 - "yield from" closes what is not at its end
                yield call
            self._calls.popleft()


class Rounds:
    """Long works side by side. In each turn of the loop each goes on once, for ``a_slice`` of what the works say they
    ``spend``, until ``most`` of it is spent. A work yields when it is ``over``, and only then."""

    __slots__ = ("_armed", "_most", "_slice", "_spent", "_until", "_works", "turn")

    def __init__(self, most: int, a_slice: int) -> None:
        self._most, self._slice = most, a_slice
        self._spent = self._until = 0
        self._works: deque[Generator[None, None, object]] = deque()
        self._armed = False
        #: Which turn it is, of those in which something was spent or is to be done.
        self.turn = 0

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._works)

    def spend(self, cost: int) -> None:
        self._spent += cost
        self._arm()

    def over(self) -> bool:
        """Whether the work that asks has had its slice."""
        return self._spent >= self._until

    def full(self) -> bool:
        """Whether nothing is left of this turn."""
        return self._spent >= self._most

    def begin(self, work: Generator[None, None, object]) -> bool:
        """Go on with it at once if something of this turn is left, and in turns to come; whether it is at its end."""
        if not self.full() and self._is_done(work):
            return True
        self._works.append(work)
        self._arm()
        return False

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._armed, self._spent = False, 0
        self.turn += 1
        works = self._works
        try:
            for _ in range(len(works)):
                work = works.popleft()
                if not self._is_done(work):
                    works.append(work)
                if self._spent >= self._most:
                    break
        finally:  # one that fails does not keep the others
            if works:
                self._arm()

    def _is_done(self, work: Generator[None, None, object]) -> bool:
        self._until = min(self._spent + self._slice, self._most)
        try:
            next(work)
        except StopIteration:
            return True
        return False
