"""Latency fault tolerance: a broker that failed or was slow is left alone for a while, if there is another.

The tables are those of Java's MQFaultStrategy 5.x (4.9 leaves a broker alone for 30 s after 550 ms, and for ten
minutes after a failure). The detector of 5.x, which asks brokers on the side whether they are back, is not here: the
time runs out by itself.
"""

from __future__ import annotations

from typing import Final, TypeVar

from aiorocket.client.core.queue_choice import OnBroker, QueueChoice

__all__ = ("FAILED_AS", "LATENCIES", "LatencyTable", "pause_for")

T = TypeVar("T", bound=OnBroker)

#: (a send that took this many seconds or more, seconds to leave the broker alone), the longest first.
LATENCIES: Final = ((15.0, 30.0), (5.0, 10.0), (3.0, 6.0), (1.8, 5.0), (0.55, 2.0), (0.1, 0.0), (0.05, 0.0))
#: A failed send counts as one that took this many seconds.
FAILED_AS: Final = 10.0


def pause_for(took: float) -> float:
    """Seconds to leave a broker alone whose answer took ``took`` seconds."""
    for least, pause in LATENCIES:
        if took >= least:
            return pause
    return 0.0


class LatencyTable:
    """What the latest send to each broker says of it. ``now`` is loop time."""

    __slots__ = ("_back_at",)

    def __init__(self) -> None:
        self._back_at: dict[str, float] = {}

    def note(self, broker_name: str, took: float, now: float, *, failed: bool = False) -> None:
        """A send to ``broker_name`` ended after ``took`` seconds. The latest one decides: a quick answer brings a
        broker back at once."""
        pause = pause_for(FAILED_AS if failed else took)
        if pause:
            self._back_at[broker_name] = now + pause
        else:
            self._back_at.pop(broker_name, None)

    def available(self, broker_name: str, now: float) -> bool:
        """Whether the broker has failed nobody lately."""
        back_at = self._back_at.get(broker_name)
        return back_at is None or now >= back_at

    def choose(self, choice: QueueChoice[T], now: float, last: str | None = None) -> T:
        """The next queue in turn on an available broker other than ``last`` (where the send just failed), else on any
        broker other than ``last``, else any: having nobody good to send to is no reason not to try."""
        for _ in choice.queues:
            queue = choice.next()
            if queue.broker_name != last and self.available(queue.broker_name, now):
                return queue
        return choice.next() if last is None else choice.next_avoiding(last)
