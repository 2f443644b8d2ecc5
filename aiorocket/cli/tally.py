"""The demo's bookkeeping: every record that is delivered, what became of it, and whether the counts add up."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ("Stock", "Tally", "percentile")


class Stock(NamedTuple):
    """What the store says at one moment. Everything in it is an offset, so it survives the process."""

    #: Messages of the topic, and how many of them the group has not settled.
    sent: int
    open: int
    #: Messages sent back for a later attempt so far, and how many of those still wait or are not settled.
    retried: int
    waiting: int
    dead: int

    @property
    def pending(self) -> int:
        return self.open + self.waiting


class Tally:
    """Counts deliveries by record (topic, queue, offset). One that is delivered twice is a duplicate, not a message."""

    def __init__(self, consumers: int) -> None:
        self.sent = 0
        self.failed_sends: list[str] = []
        #: Messages sent in this run that will never be consumed, on purpose.
        self.doomed = 0
        self.deliveries = 0
        self.outcomes: dict[tuple[str, int, int], bool] = {}
        self.retry_records = 0
        self.latencies = array("d")
        #: Loop times of the first send and of the last delivery that was no retry.
        self.began: float | None = None
        self.arrived = 0.0
        self.sent_by_queue: Counter[int] = Counter()
        self.consumed_by_queue: list[Counter[int]] = [Counter() for _ in range(consumers)]

    def delivered(self, record: tuple[str, int, int], *, is_retry: bool, succeeded: bool) -> None:
        self.deliveries += 1
        if record not in self.outcomes:
            self.retry_records += is_retry
            self.outcomes[record] = succeeded
        elif succeeded:
            self.outcomes[record] = True

    @property
    def consumed(self) -> int:
        return sum(self.outcomes.values())

    @property
    def duplicates(self) -> int:
        return self.deliveries - len(self.outcomes)

    def rate(self) -> float | None:
        """Messages a second from the first send to the last first delivery; the waits of retries are no part of it."""
        if self.began is None or self.arrived <= self.began:
            return None
        return len(self.latencies) / (self.arrived - self.began)

    def finished(self, before: Stock, now: Stock) -> int:
        """Messages that have come to an end in this run, one way or the other."""
        return self.consumed + now.dead - before.dead

    def disagreements(self, before: Stock, after: Stock) -> list[str]:
        """Every equation that does not hold, in words; empty when the counts add up.

        After a kill -9 some messages are delivered again (at least once is the promise). Each such delivery may leave
        one more record behind, so the equations about outcomes allow as many as were counted; those about loss none.
        """
        wrong: list[str] = []

        def equal(left: int, right: int, text: str, slack: int = 0) -> None:
            if abs(left - right) > slack:
                wrong.append(f"{text}: {left} against {right}")

        dead = after.dead - before.dead
        first = len(self.outcomes) - self.retry_records
        failed = len(self.outcomes) - self.consumed
        again = self.duplicates
        equal(after.sent - before.sent, self.sent, "messages in the store against acknowledged sends")
        equal(after.pending, 0, "messages left pending")
        equal(first, before.open + self.sent, "first deliveries against messages pending and sent")
        equal(
            self.retry_records,
            before.waiting + after.retried - before.retried,
            "redeliveries against messages sent back",
        )
        equal(
            after.retried - before.retried + dead,
            failed,
            "sent back and dead-lettered against failed deliveries",
            again,
        )
        equal(
            self.consumed + dead,
            before.pending + self.sent,
            "consumed and dead-lettered against pending and sent",
            again,
        )
        if not before.pending:
            equal(dead, self.doomed, "dead-lettered against lines that always fail", again)
        if self.failed_sends:
            wrong.append(f"{len(self.failed_sends)} sends failed, the first one: {self.failed_sends[0]}")
        return wrong


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The smallest value that ``percent`` of ``values`` do not exceed; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100).__trunc__() - 1)]
