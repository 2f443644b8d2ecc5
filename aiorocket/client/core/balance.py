"""Which queues of a topic one consumer of a group gets (rocketmq-protocol 6.4).

Every member of the group runs the same function on the same two sorted lists, so no member has to talk to another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from aiorocket.model import Queue

__all__ = ("STRATEGIES", "Strategy", "average", "average_by_circle")

Strategy = Callable[[Sequence[Queue], Sequence[str], str], list[Queue]]


def average(queues: Sequence[Queue], client_ids: Sequence[str], me: str) -> list[Queue]:
    """Contiguous blocks (AVG); the first ``len(queues) % len(client_ids)`` members get one more. Empty when not a
    member."""
    ordered, members = sorted(queues), sorted(set(client_ids))
    if me not in members:
        return []
    index, count = members.index(me), len(members)
    share, rest = divmod(len(ordered), count)
    start = index * share + min(index, rest)
    return ordered[start : start + share + (1 if index < rest else 0)]


def average_by_circle(queues: Sequence[Queue], client_ids: Sequence[str], me: str) -> list[Queue]:
    """Every ``len(client_ids)``-th queue (AVG_BY_CIRCLE). Empty when not a member."""
    members = sorted(set(client_ids))
    if me not in members:
        return []
    return sorted(queues)[members.index(me) :: len(members)]


#: By RocketMQ's name of the strategy.
STRATEGIES: Final[dict[str, Strategy]] = {"AVG": average, "AVG_BY_CIRCLE": average_by_circle}
