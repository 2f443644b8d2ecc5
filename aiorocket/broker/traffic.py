"""What passes through the broker, read off where it is known anyway: queues end further on, pull answers were counted,
the commit log grew."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING

from aiorocket.broker.core.names import is_system_topic
from aiorocket.broker.core.tables import Tables
from aiorocket.broker.core.traffic import (
    BROKER_GET_NUMS,
    BROKER_PUT_NUMS,
    GROUP_GET_NUMS,
    SAMPLE,
    TOPIC_PUT_NUMS,
    Growth,
    Key,
    Traffic,
)

if TYPE_CHECKING:
    from aiorocket.runtime.clock import Clock
    from aiorocket.storage.store import MessageStore

__all__ = ("GETS_FOUND", "GETS_MISSED", "PUTS", "TrafficMeter")

#: Pull requests that were answered with messages and without, and messages stored, those of system topics included.
GETS_FOUND: Key = ("GETS_FOUND", "")
GETS_MISSED: Key = ("GETS_MISSED", "")
PUTS: Key = ("PUTS", "")
#: Totals younger than this are not made again: tools ask for one topic after the other.
_FRESH = 1.0


class TrafficMeter:
    """``put`` and ``got`` are the broker's own totals, without system topics. A total costs a look at every queue."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, cluster: str, tables: Tables, store: MessageStore
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._topics = tables.topics
        self._counters = tables.counters
        self._store = store
        self.put: Key = (BROKER_PUT_NUMS, cluster)
        self.got: Key = (BROKER_GET_NUMS, cluster)
        self._counted = loop.time()
        self._traffic = Traffic(self._counted, store.ends(), self._today())
        self._first_byte = store.max_physical

    @property
    def bytes_stored(self) -> int:
        """What the commit log grew by since the start."""
        return self._store.max_physical - self._first_byte

    def time(self) -> float:
        return self._loop.time()

    def now(self) -> Traffic:
        """With totals that are a second old at most."""
        if self._loop.time() - self._counted >= _FRESH or not self._traffic.totals:
            self._count()
        return self._traffic

    def grown(self, key: Key) -> tuple[Growth, Growth, Growth] | None:
        """In the last minute, hour and day; None for what never grew. What the totals do not have is looked at now:
        they may be a second old, and a topic that has a message is not unknown."""
        traffic = self.now()
        if key not in traffic.totals and self._has_grown(*key):
            self._count()
        return traffic.grown(key, self._loop.time())

    def _has_grown(self, kind: str, name: str) -> bool:
        if kind == TOPIC_PUT_NUMS:
            known = self._topics.get(name)
            queues = range(known.max_queues) if known is not None else ()
            return sum(self._store.max_offset(name, queue_id) for queue_id in queues) != self._traffic.stored(name)
        if kind == GROUP_GET_NUMS:
            topic, _, group = name.partition("@")
            return (topic, group) in self._counters.delivered
        return (kind, name) in (self.put, self.got)

    async def keep_sampling(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE)
            self._count()
            self._traffic.sample(self._counted, self._today())

    def _count(self) -> None:
        traffic, counters = self._traffic, self._counters
        self._counted = self._loop.time()
        grown = traffic.count_stored(self._store.ends())
        totals = traffic.totals
        if grown:
            traffic.add(PUTS, sum(grown.values()))
            traffic.add(self.put, sum(count for topic, count in grown.items() if not is_system_topic(topic)))
        got = 0
        for (topic, group), count in counters.delivered.items():
            totals[GROUP_GET_NUMS, f"{topic}@{group}"] = count
            if not is_system_topic(topic):
                got += count
        if got:
            totals[self.got] = got
        totals[GETS_FOUND] = counters.gets_found
        totals[GETS_MISSED] = counters.gets_missed

    def _today(self) -> int:
        """Days begin where the machine is, as RocketMQ's do."""
        return datetime.fromtimestamp(self._clock.wall_ms() / 1000).toordinal()
