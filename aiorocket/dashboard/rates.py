"""How many messages go through each broker, over the last hour: asked every few seconds, kept in a ring."""

from __future__ import annotations

import asyncio
from collections import deque
from math import isfinite
from typing import NamedTuple

from aiorocket import Admin
from aiorocket.errors import ProtocolError, RocketError

__all__ = ("Rates", "Sample")

#: Samples of a broker that are kept, an hour of every five seconds; brokers beyond these have no plot.
_KEPT, _BROKERS = 720, 64


class Sample(NamedTuple):
    """Messages a second stored and given out, as the broker says of the last ten seconds, and the part of its disk that
    is used; ``at_ms`` by our clock."""

    at_ms: int
    put: float
    got: float
    disk: float


class Rates:
    """By broker."""

    def __init__(self, admin: Admin, every: float) -> None:
        self._admin, self._every = admin, every
        self.samples: dict[str, deque[Sample]] = {}
        #: Why the last look failed, if it did.
        self.why = ""

    async def sample_for_ever(self) -> None:
        while True:
            await self.sample()
            await asyncio.sleep(self._every)

    async def sample(self) -> None:
        try:
            runtimes = await self._admin.brokers.runtime()
        except (RocketError, ProtocolError) as error:
            self.why = str(error)
            return
        self.why = "; ".join(f"{each.server}: {each.why}" for each in runtimes.missing)
        now = self._admin.client.env.clock.wall_ms()
        for each in runtimes:
            if each.name not in self.samples and len(self.samples) >= _BROKERS:
                continue
            ring = self.samples.setdefault(each.name, deque(maxlen=_KEPT))
            said = each.values
            got = said.get("getTransferredTps") or said.get("getTransferedTps", "")  # 4.9 spells it so
            disk = said.get("commitLogDiskRatio", "")
            ring.append(Sample(now, _first(said.get("putTps", "")), _first(got), _first(disk)))


def _first(text: str) -> float:
    """RocketMQ says rates over 10 s, a minute and ten, with blanks between; Java's are NaN where no time has passed."""
    try:
        found = float(text.split()[0])
    except (IndexError, ValueError):
        return 0.0
    return found if isfinite(found) else 0.0
