"""The demo's bookkeeping: every delivery, what became of it, and whether the counts add up."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorocket.cli.ledger import Books, Stock

__all__ = ("Tally", "percentile")


class Tally:
    """Counts by message, whatever copies of it came by. What was delivered before in the same state is a duplicate."""

    def __init__(self, consumers: int) -> None:
        self.sent: set[str] = set()
        #: Of these the ones that are never consumed, on purpose.
        self.doomed: set[str] = set()
        self.failed_sends: list[str] = []
        self.consumed: set[str] = set()
        self.failures = 0
        self.duplicates = 0
        self._seen: set[tuple[str, int]] = set()
        self.latencies = array("d")
        #: Time of the first send and of the last delivery that was no retry.
        self.began: float | None = None
        self.arrived = 0.0
        self.sent_by_queue: Counter[int] = Counter()
        self.delivered_by_queue: list[Counter[int]] = [Counter() for _ in range(consumers)]

    def delivered(self, key: str, attempt: int, *, succeeded: bool) -> None:
        if (key, attempt) in self._seen or key in self.consumed:
            self.duplicates += 1
        self._seen.add((key, attempt))
        if succeeded:
            self.consumed.add(key)
        else:
            self.failures += 1

    def rate(self) -> float | None:
        """Messages a second from the first send to the last first delivery; the waits of retries are no part of it."""
        if self.began is None or self.arrived <= self.began:
            return None
        return len(self.latencies) / (self.arrived - self.began)

    def finished(self, before: Stock, now: Stock) -> int:
        """Messages that have come to an end in this run, near enough for a progress bar."""
        return len(self.consumed) + now.dead_records - before.dead_records

    def disagreements(self, before: Books, after: Books) -> list[str]:
        """Every equation that does not hold, in words; empty when the counts add up.

        Those about messages hold whatever was delivered twice (at least once is the promise, and after a kill -9 it is
        used). The one about deliveries is asked only when nothing was.
        """
        wrong: list[str] = []

        def equal(left: int, right: int, text: str) -> None:
            if left != right:
                wrong.append(f"{text}: {left} against {right}")

        due = self.sent | before.pending
        dead = after.dead - before.dead
        equal(after.stock.sent - before.stock.sent, len(self.sent), "messages in the store against acknowledged sends")
        equal(after.stock.unsettled, 0, "records left unsettled")
        equal(len(due), len(self.consumed) + len(dead), "pending and sent against consumed and dead-lettered")
        equal(len(self.consumed & after.dead), 0, "messages that were consumed and are dead letters too")
        equal(len((self.consumed | dead) - due), 0, "messages delivered that were neither pending nor sent")
        equal(len(self.doomed ^ (dead & self.sent)), 0, "lines that always fail against their dead letters, differing")
        if not self.duplicates and not before.pending:
            sent_back = after.stock.retried - before.stock.retried
            letters = after.stock.dead_records - before.stock.dead_records
            equal(sent_back + letters, self.failures, "sent back and dead-lettered against failed deliveries")
        if self.failed_sends:
            wrong.append(f"{len(self.failed_sends)} sends failed, the first one: {self.failed_sends[0]}")
        return wrong


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The smallest value that ``percent`` of ``values`` do not exceed; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, ceil(len(ordered) * percent / 100) - 1)]
