"""Plans between being shown and being carried out."""

from __future__ import annotations

import asyncio
from typing import Any

from aiorocket.runtime.entropy import secret

__all__ = ("Plans",)

#: Plans that are kept, the newest, and for how many seconds.
_MOST, _SECONDS = 64, 900.0


class Plans:
    """By a ticket that stands in the form."""

    def __init__(self) -> None:
        self._plans: dict[str, tuple[float, Any]] = {}

    def keep(self, plan: Any) -> str:
        while len(self._plans) >= _MOST:
            del self._plans[next(iter(self._plans))]
        ticket = secret(16).hex()
        self._plans[ticket] = asyncio.get_running_loop().time() + _SECONDS, plan
        return ticket

    def take(self, ticket: str) -> Any | None:
        """It, once; None when it is not there (any more)."""
        until, plan = self._plans.pop(ticket, (0.0, None))
        return plan if asyncio.get_running_loop().time() < until else None
