"""Consume and pull statistics of a group, in the windows of RocketMQ's StatsItem.

Counters only rise; snapshots of them are kept every 10 s (7 of them: a minute), every 10 minutes (7: an hour) and every
hour (25: a day). A figure is the difference of the newest and the oldest snapshot of a window, so it changes when a
snapshot is taken, not between. Before the first one a zero is assumed one interval earlier, as in Java.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from aiorocket.client.core.namespace import wrap

__all__ = ("SAMPLE_INTERVAL", "ConsumeStats", "ConsumeStatus", "Snapshot", "StatsItem")

#: Seconds between two calls of ``ConsumeStats.sample``.
SAMPLE_INTERVAL = 10.0

_MINUTE = (10.0, 7)
_HOUR = (600.0, 7)
_DAY = (3600.0, 25)


class Snapshot(NamedTuple):
    """What happened in a window: ``sum`` of the values, ``times`` they were added, ``tps`` of the sum per second,
    ``avgpt`` the sum per time."""

    sum: float = 0.0
    tps: float = 0.0
    avgpt: float = 0.0
    times: int = 0


class ConsumeStatus(NamedTuple):
    """Of a topic and this group: average milliseconds and messages per second of the last minute (``consume_rt`` of the
    last hour when the minute had none), failed messages of the last hour. RocketMQ's ConsumeStatus."""

    pull_rt: float = 0.0
    pull_tps: float = 0.0
    consume_rt: float = 0.0
    consume_ok_tps: float = 0.0
    consume_failed_tps: float = 0.0
    consume_failed_msgs: int = 0


class _Window:
    """Snapshots (when, value, times), ``length`` at most."""

    __slots__ = ("_due", "_interval", "_kept")

    def __init__(self, interval: float, length: int) -> None:
        self._interval = interval
        self._due = float("-inf")
        self._kept: deque[tuple[float, float, int]] = deque(maxlen=length)

    def sample(self, now: float, value: float, times: int) -> None:
        if now < self._due - self._interval / 100:
            return
        # A sample that comes a little late does not shift those after it; one that is very late begins anew.
        self._due = self._due + self._interval if now - self._due < self._interval else now + self._interval
        if not self._kept:
            self._kept.append((now - self._interval, 0.0, 0))
        self._kept.append((now, value, times))

    def snapshot(self) -> Snapshot:
        if not self._kept:
            return Snapshot()
        (began, value_then, times_then), (ended, value, times) = self._kept[0], self._kept[-1]
        total, count = value - value_then, times - times_then
        return Snapshot(total, total / (ended - began), total / count if count else 0.0, count)


class StatsItem:
    """One counter and its windows."""

    __slots__ = ("_day", "_hour", "_minute", "times", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.times = 0
        self._minute = _Window(*_MINUTE)
        self._hour = _Window(*_HOUR)
        self._day = _Window(*_DAY)

    def add(self, value: float, times: int = 1) -> None:
        self.value += value
        self.times += times

    def sample(self, now: float) -> None:
        """Take the snapshots that are due at ``now`` (seconds of any clock that never goes back)."""
        for window in (self._minute, self._hour, self._day):
            window.sample(now, self.value, self.times)

    @property
    def minute(self) -> Snapshot:
        return self._minute.snapshot()

    @property
    def hour(self) -> Snapshot:
        return self._hour.snapshot()

    @property
    def day(self) -> Snapshot:
        return self._day.snapshot()


class TopicStats:
    """The five counters RocketMQ keeps per topic and group."""

    __slots__ = ("consume_failed", "consume_ok", "consume_rt", "pull", "pull_rt")

    def __init__(self) -> None:
        self.pull_rt = StatsItem()
        self.pull = StatsItem()
        self.consume_rt = StatsItem()
        self.consume_ok = StatsItem()
        self.consume_failed = StatsItem()

    def sample(self, now: float) -> None:
        for item in (self.pull_rt, self.pull, self.consume_rt, self.consume_ok, self.consume_failed):
            item.sample(now)


class ConsumeStats:
    """Of one consumer: by the topic of the queue a message came from, so retries count under ``%RETRY%group``. In
    ``topics`` they have their names on the wire."""

    def __init__(self, namespace: str = "") -> None:
        self._namespace = namespace
        self.topics: dict[str, TopicStats] = {}
        #: Called with ``now`` before each sample: whoever counts in runs adds what is not added yet.
        self.sources: list[Callable[[float], None]] = []

    def pulled(self, topic: str, messages: int, rt_ms: float) -> None:
        """A pull that brought ``messages``, and how long its answer took."""
        entry = self._of(topic)
        entry.pull_rt.add(rt_ms)
        entry.pull.add(messages)

    def consumed(self, topic: str, ok: int, failed: int, rt_ms: float, calls: int = 1) -> None:
        """``calls`` of a listener, which took ``rt_ms`` together and ended well for ``ok`` messages and badly for
        ``failed``."""
        # Warm: once per turn of a worker, so it does without calls.
        entry = self.topics.get(topic) or self._of(topic)
        item = entry.consume_rt
        item.value += rt_ms
        item.times += calls
        if ok:
            item = entry.consume_ok
            item.value += ok
            item.times += 1
        if failed:
            item = entry.consume_failed
            item.value += failed
            item.times += 1

    def sample(self, now: float) -> None:
        """To be called every ``SAMPLE_INTERVAL``; ``now`` in loop time."""
        for source in self.sources:
            source(now)
        for entry in self.topics.values():
            entry.sample(now)

    def status(self, topic: str) -> ConsumeStatus:
        """As of the last sample; zeros for a topic nothing is known of. With or without the namespace."""
        entry = self.topics.get(wrap(self._namespace, topic))
        if entry is None:
            return ConsumeStatus()
        rt = entry.consume_rt.minute
        return ConsumeStatus(
            pull_rt=entry.pull_rt.minute.avgpt,
            pull_tps=entry.pull.minute.tps,
            consume_rt=(rt if rt.sum else entry.consume_rt.hour).avgpt,
            consume_ok_tps=entry.consume_ok.minute.tps,
            consume_failed_tps=entry.consume_failed.minute.tps,
            consume_failed_msgs=int(entry.consume_failed.hour.sum),
        )

    def _of(self, topic: str) -> TopicStats:
        entry = self.topics.get(topic)
        if entry is None:
            entry = self.topics[topic] = TopicStats()
        return entry
