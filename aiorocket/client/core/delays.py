"""RocketMQ's delay levels: from a wish in seconds to a level, and back."""

from __future__ import annotations

from bisect import bisect_left

from aiorocket.config import DELAY_LEVELS

__all__ = ("level_for", "seconds_of")


def level_for(seconds: float) -> int:
    """The first of RocketMQ's standard levels that is not shorter; the longest (18, two hours) beyond them. 1 or
    more."""
    return min(bisect_left(DELAY_LEVELS, seconds), len(DELAY_LEVELS) - 1) + 1


def seconds_of(level: int) -> float:
    """How long a standard level delays; the longest for those beyond it."""
    return DELAY_LEVELS[min(level, len(DELAY_LEVELS)) - 1]
