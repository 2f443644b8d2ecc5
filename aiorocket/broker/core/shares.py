"""How much of what all share one connection, or one group, may have: never what others would be left without.

It gets no more of it while it has nine times what is left, so it may fill a limit to nine tenths when nobody else has
anything, and whoever comes then gets nine tenths of the rest. Below that nobody is refused and nothing is looked at.

What a connection has stands in its ``holds``. Messages and locks leave it when they go; of what stays and has no owner
(topics, groups, offsets) it is what the connection has made, which is never taken for more than there is.
"""

from __future__ import annotations

from aiorocket.broker.core.names import Refusal, full
from aiorocket_protocol import ResponseCode

__all__ = ("Holds", "begins", "refusal", "take")

#: A line of ``Limits`` -> what one connection has of it.
Holds = dict[str, int]

_TIMES = 9


def begins(most: int) -> int:
    """With less in use than this ``refusal`` finds no reason to refuse one more."""
    return most * _TIMES // (_TIMES + 1)


def refusal(
    limit: str, most: int, used: int, what: str, who: Holds | None, *, more: int = 1, of_group: int = 0
) -> Refusal | None:
    """Why ``what``, which takes ``more`` of a limit, may not be: all of it is ``used``, or too much by ``who`` asks or
    by the group. None is the broker itself, which has no share."""
    left = most - used - more + 1  # as if they came one by one, before the last of them
    if left <= 0:
        return full(limit, most, what)
    for owner, has in () if who is None else (("this connection", who.get(limit, 0)), ("the group", of_group)):
        if min(has, used) + more - 1 >= _TIMES * left:
            text = f"the broker's limit {limit}={most} is nearly reached, {owner} has {min(has, used)} of it"
            return Refusal(ResponseCode.SYSTEM_BUSY, f"{what}: {text}, and what is left is for others")
    return None


def take(who: Holds | None, limit: str, more: int = 1) -> None:
    """It has so much more of it, or less; what the broker has is nobody's."""
    if who is not None:
        who[limit] = who.get(limit, 0) + more
