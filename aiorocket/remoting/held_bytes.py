"""How much memory the connections of one server hold for their peers."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ("HeldBytes",)


class HeldBytes:
    """Half frames that came and answers that are not read, of all connections together, ``most`` bytes of them.

    A connection adds what it holds more, and is to end when ``exceeded`` is true. What peers have read meanwhile is
    known only when it is looked for, so ``recount`` brings ``total`` up to date before anybody is told so.
    """

    __slots__ = ("_recount", "most", "total")

    def __init__(self, most: int, recount: Callable[[], None]) -> None:
        self.most = most
        self.total = 0
        self._recount = recount

    def exceeded(self) -> bool:
        if self.total <= self.most:
            return False
        self._recount()
        return self.total > self.most
