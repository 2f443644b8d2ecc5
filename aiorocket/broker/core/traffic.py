"""How much passes through a broker: totals that only grow, and their growth over the last minute, hour and day.

Nothing is counted per message: what was stored is where the queues end, what was delivered is one number per pull
answer. Every ten seconds the totals are noted, RocketMQ's statistics are differences of these notes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = (
    "BROKER_GET_NUMS",
    "BROKER_PUT_NUMS",
    "GROUP_GET_NUMS",
    "SAMPLE",
    "TOPIC_PUT_NUMS",
    "Growth",
    "Key",
    "Traffic",
)

#: Seconds between two samples.
SAMPLE = 10.0
#: Samples in a minute, an hour and a day; one more is kept, from which they are counted.
_MINUTE, _HOUR, _DAY = 6, 6, 24
#: Names of RocketMQ's statistics; the keys beside them are ``topic``, ``topic@group`` or the cluster.
TOPIC_PUT_NUMS = "TOPIC_PUT_NUMS"
GROUP_GET_NUMS = "GROUP_GET_NUMS"
BROKER_PUT_NUMS = "BROKER_PUT_NUMS"
BROKER_GET_NUMS = "BROKER_GET_NUMS"

Key = tuple[str, str]
_Notes = tuple[tuple[float, int], ...]


class Growth(NamedTuple):
    total: int
    per_second: float


class _Samples:
    """(time, total) of the last minute, hour and day, oldest first; each holds at least one. Every topic has them, so
    they are tuples: deques took 2 KiB."""

    __slots__ = ("day", "hour", "minute")

    def __init__(self, now: float, total: int) -> None:
        self.minute: _Notes = ((now, total),)
        self.hour: _Notes = self.minute
        self.day: _Notes = self.minute

    def add(self, now: float, total: int) -> None:
        sample = (now, total)
        self.minute = (*self.minute[-_MINUTE:], sample)
        # A timer is late, never early; half a sample's time keeps its lateness from adding up.
        if now - self.hour[-1][0] > 600 - SAMPLE / 2:
            self.hour = (*self.hour[-_HOUR:], sample)
        if now - self.day[-1][0] > 3600 - SAMPLE / 2:
            self.day = (*self.day[-_DAY:], sample)


class Traffic:
    """Totals since the start and their samples. Times are the loop's, in seconds; ``day`` is any number of the calendar
    day."""

    def __init__(self, now: float, stored: Mapping[str, int], day: int) -> None:
        #: What grew since the start; a key is here when it did.
        self.totals: dict[Key, int] = {}
        #: ``totals`` as they were when today and yesterday began, 0 on the day of the start.
        self.this_morning: dict[Key, int] = {}
        self.yesterday_morning: dict[Key, int] = {}
        self._stored = dict(stored)
        self._samples: dict[Key, _Samples] = {}
        self._sampled = now
        self._day = day

    def count_stored(self, stored: Mapping[str, int]) -> dict[str, int]:
        """How many messages came into each topic since the last call; ``stored`` is the sum of where its queues end.
        A topic that has less than before was deleted and made anew; of one that is there no more nothing is kept."""
        before, self._stored = self._stored, dict(stored)
        for topic in before.keys() - stored.keys():
            key = TOPIC_PUT_NUMS, topic
            for totals in (self.totals, self.this_morning, self.yesterday_morning):
                totals.pop(key, None)
            self._samples.pop(key, None)
        grown = {}
        for topic, ends in stored.items():
            known = before.get(topic, 0)
            if ends != known:
                grown[topic] = ends - known if ends > known else ends
                self.add((TOPIC_PUT_NUMS, topic), grown[topic])
        return grown

    def stored(self, topic: str) -> int:
        """Where the queues of ``topic`` ended at the last call of ``count_stored``, in sum."""
        return self._stored.get(topic, 0)

    def add(self, key: Key, count: int) -> None:
        self.totals[key] = self.totals.get(key, 0) + count

    def sample(self, now: float, day: int) -> None:
        """Note the totals. What has not grown for a day is noted no more until it does."""
        samples = self._samples
        for key, total in self.totals.items():
            known = samples.get(key)
            if known is None:
                samples[key] = known = _Samples(self._sampled, 0)
            elif len(known.day) > _DAY and known.day[0][1] == total:
                continue
            known.add(now, total)
        self._sampled = now
        if day != self._day:
            self._day = day
            self.yesterday_morning, self.this_morning = self.this_morning, dict(self.totals)

    def grown(self, key: Key, now: float) -> tuple[Growth, Growth, Growth] | None:
        """In the last minute, hour and day; None for what never grew."""
        total = self.totals.get(key)
        if total is None:
            return None
        known = self._samples_of(key)
        minute, hour, day = (_growth(samples[0], now, total) for samples in (known.minute, known.hour, known.day))
        return minute, hour, day

    def rates(self, key: Key, now: float) -> tuple[float, float, float]:
        """Per second over the last 10 to 20 seconds, the last minute and the last 10 to 20 minutes."""
        total, known = self.totals.get(key, 0), self._samples_of(key)
        oldest = (known.minute[max(0, len(known.minute) - 2)], known.minute[0], known.hour[max(0, len(known.hour) - 2)])
        recent, minute, longer = (_growth(sample, now, total).per_second for sample in oldest)
        return recent, minute, longer

    def _samples_of(self, key: Key) -> _Samples:
        return self._samples.get(key) or _Samples(self._sampled, 0)


def _growth(since: tuple[float, int], now: float, total: int) -> Growth:
    then, before = since
    return Growth(total - before, (total - before) / max(1.0, now - then))
