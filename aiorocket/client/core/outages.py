"""What is said about brokers that fail: when it begins, once a minute how often, and when it is over; however many
queues have failed by it."""

from __future__ import annotations

from aiorocket.errors import ConnectionLostError, NotConnectedError, RemoteError, RequestTimeoutError

__all__ = ("Outages", "cause_of")

#: Seconds between two lines of one cause.
_INTERVAL = 60.0
_GONE = "away"
_AWAY = (NotConnectedError, ConnectionLostError, RequestTimeoutError, TimeoutError)
#: After so many seconds without a failure the next one is a new beginning, also where nobody said that it is over.
_FORGOTTEN = 120.0


def cause_of(error: Exception) -> str:
    """Errors of one cause differ in their words only: a broker that is away is refused, lost and waited for in turn."""
    if isinstance(error, _AWAY):
        return _GONE
    return f"code {error.code}" if isinstance(error, RemoteError) else type(error).__name__


class _Outage:
    __slots__ = ("began", "count", "last", "said")

    def __init__(self, now: float) -> None:
        self.began = self.said = self.last = now
        #: Failures since the latest line.
        self.count = 0


class Outages:
    """By broker, then by cause. Times are of one clock, in seconds; the answers are lines for the log."""

    def __init__(self) -> None:
        #: What is not over.
        self.open: dict[str, dict[str, _Outage]] = {}

    def failed(self, broker: str, what: str, error: Exception, now: float) -> str | None:
        """``what`` failed at ``broker``. What is to be said, or None."""
        causes, cause = self.open.setdefault(broker, {}), cause_of(error)
        why = str(error) or "no answer in time"  # a TimeoutError of asyncio has no words
        outage = causes.get(cause)
        if outage is None or now - outage.last > _FORGOTTEN:
            causes[cause] = _Outage(now)
            return f"{what}: {why} (more of this from broker {broker} is counted, and told once a minute)"
        outage.last = now
        outage.count += 1
        if now - outage.said < _INTERVAL:
            return None
        count, outage.count, outage.said = outage.count, 0, now
        lasts = now - outage.began
        return f"broker {broker} fails for {lasts:.0f} s now, {count} times since the last line; {what}: {why}"

    def answered(self, broker: str, now: float, *, everything: bool) -> str | None:
        """``broker`` did what it was asked for: it is not away, and if that had failed before (``everything``), the
        other causes are over too."""
        causes = self.open.get(broker, {})
        over = [causes.pop(each) for each in list(causes) if everything or each == _GONE]
        if not causes:
            self.open.pop(broker, None)
        if not over:
            return None
        return f"broker {broker} answers again, after {now - min(each.began for each in over):.0f} s"
