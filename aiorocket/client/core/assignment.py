"""From what a group should have to what must change here."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from aiorocket.client.core.balance import Strategy, average
from aiorocket.model import Queue

__all__ = ("Change", "TopicView", "diff", "share", "wanted_queues")


class TopicView(NamedTuple):
    """What is known of one topic: its readable queues, and who of the group is alive (None: no broker told us; empty:
    every member reads all of them, as in broadcasting)."""

    queues: Sequence[Queue]
    client_ids: Sequence[str] | None


class Change(NamedTuple):
    added: list[Queue]
    removed: list[Queue]


def wanted_queues(
    views: Mapping[str, TopicView | None], me: str, held: Collection[Queue], strategy: Strategy = average
) -> set[Queue]:
    """The queues this member should hold.

    A topic of which nothing is known this round (no route, or no broker named the members) keeps what it has: giving
    queues up on a failed look-up would stop a healthy consumer because a name server is away.
    """
    wanted: set[Queue] = set()
    for topic, view in views.items():
        if view is None or view.client_ids is None:
            wanted.update(queue for queue in held if queue.topic == topic)
        elif not view.client_ids:
            wanted.update(view.queues)
        else:
            # A strategy may name queues whatever it is asked for (CONFIG): only those that exist can be taken.
            wanted.update(set(strategy(view.queues, view.client_ids, me)).intersection(view.queues))
    return wanted


def diff(held: Collection[Queue], wanted: Collection[Queue]) -> Change:
    """What to add and what to give up, both sorted. Topics that are not wanted at all are given up too."""
    return Change(sorted(set(wanted) - set(held)), sorted(set(held) - set(wanted)))


def share(limit: int, topic_limit: int, queues: int) -> int:
    """A queue's flow-control limit: ``limit``, or its part of what its topic may have (-1: no such limit) when
    ``queues`` of it are held here; at least 1 (RocketMQ's pullThresholdForTopic)."""
    return limit if topic_limit == -1 else max(1, topic_limit // max(1, queues))
