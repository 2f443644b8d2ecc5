"""Work in turns of the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import TypeVar

__all__ = ("Turns", "in_turns")

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
    """Calls that thousands may ask for at once: ``most`` of them are made in a turn of the loop, in their order."""

    __slots__ = ("_armed", "_calls", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: deque[Iterator[Callable[[], object]]] = deque()
        self._armed = False

    def soon(self, call: Callable[[], object]) -> None:
        """In the next turn or, behind all that came before it, in one to come."""
        self.all((call,))

    def all(self, calls: Iterable[Callable[[], object]]) -> None:
        """The same of many, each of which is made up when it is its turn."""
        self._calls.append(iter(calls))
        self._arm()

    def _arm(self) -> None:
        if self._calls and not self._armed:
            self._armed = True
            asyncio.get_running_loop().call_soon(self._make_some)

    def _make_some(self) -> None:
        self._armed = False
        try:
            for call in islice(self._next(), self._most):
                call()
        finally:  # one that fails does not keep the others
            self._arm()

    def _next(self) -> Iterator[Callable[[], object]]:
        while self._calls:
            for call in self._calls[0]:  # noqa: UP028 - "yield from" closes what is not at its end
                yield call
            self._calls.popleft()
