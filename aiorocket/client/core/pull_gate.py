"""May the next pull of a queue go out? The checks in RocketMQ's order, and the flags of a pull."""

from __future__ import annotations

from typing import Final, NamedTuple

from aiorocket_protocol import PULL_COMMIT, PULL_SUBSCRIPTION, PULL_SUSPEND

__all__ = ("Facts", "Hold", "gate", "pull_flags")


class Facts(NamedTuple):
    """What decides. ``full`` is the flow-control limit that is exceeded ("messages", "bytes", "span"), ``buffer``
    whether an async iterator has enough waiting; ``locked`` is True where no broker lock is needed."""

    dropped: bool
    running: bool
    paused: bool
    full: str | None
    buffer: bool
    locked: bool
    subscribed: bool


class Hold(NamedTuple):
    """Why not, and after how many seconds to look again at the latest (None: whoever removes the reason wakes us)."""

    reason: str
    wait: float | None


#: There is nothing left to pull for.
DROPPED: Final = Hold("dropped", None)
_PAUSED: Final = Hold("paused", None)
_BUFFER: Final = Hold("buffer", None)
_LOCK: Final = Hold("lock", None)


def gate(facts: Facts, error_delay: float) -> Hold | None:
    """The first reason that holds the pull back; None when it may go out. RocketMQ looks again after 50 ms to 1 s where
    this waits to be woken."""
    dropped, running, paused, full, buffer, locked, subscribed = facts
    if dropped:
        return DROPPED
    if not running:
        return Hold("not running", error_delay)
    if paused:
        return _PAUSED
    if full is not None:
        return Hold(full, None)
    if buffer:
        return _BUFFER
    if not locked:
        return _LOCK
    if not subscribed:
        return Hold("subscription", error_delay)
    return None


def pull_flags(*, commit: bool, suspend: bool, subscription: bool = False) -> int:
    """The sysFlag of a pull."""
    return commit * PULL_COMMIT | suspend * PULL_SUSPEND | subscription * PULL_SUBSCRIPTION
