"""From a wish in seconds to a delay level."""

from __future__ import annotations

from bisect import bisect_left

from aiorocket.config import DELAY_LEVELS

__all__ = ("level_for",)


def level_for(seconds: float) -> int:
    """The first of RocketMQ's standard levels that is not shorter; the longest (18, two hours) beyond them. 1 or
    more."""
    return min(bisect_left(DELAY_LEVELS, seconds), len(DELAY_LEVELS) - 1) + 1
