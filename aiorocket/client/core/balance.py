"""Which queues of a topic one consumer of a group gets.

Every member of the group runs the same function on the same two sorted lists, so no member has to talk to another.
protocol/aiorocket_protocol/vectors/allocation.json holds what Apache's classes answer; members written in Java and
these agree on it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from hashlib import md5
from typing import Final

from aiorocket.client.core.namespace import wrap
from aiorocket.errors import ConfigError
from aiorocket.model import Queue, average, average_by_circle

__all__ = (
    "STRATEGIES",
    "Strategy",
    "average",
    "average_by_circle",
    "consistent_hash",
    "find_strategy",
    "fixed",
    "in_namespace",
    "machine_room",
    "machine_room_nearby",
)

Strategy = Callable[[Sequence[Queue], Sequence[str], str], list[Queue]]

#: Points of one member on the ring, as many as in Java: with another number a mixed group would disagree.
_VIRTUAL_NODES = 10


def consistent_hash(queues: Sequence[Queue], client_ids: Sequence[str], me: str) -> list[Queue]:
    """Each queue to the member that follows it on a ring (CONSISTENT_HASH): a member that comes or goes moves few
    queues. Empty when not a member."""
    members = sorted(set(client_ids))
    if me not in members:
        return []
    ring = {_point(f"{member}-{number}"): member for member in members for number in range(_VIRTUAL_NODES)}
    points = sorted(ring)
    mine = []
    for queue in sorted(queues):
        key = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
        if ring[points[bisect_left(points, _point(key)) % len(points)]] == me:
            mine.append(queue)
    return mine


def _point(key: str) -> int:
    return int.from_bytes(md5(key.encode(), usedforsecurity=False).digest()[:4])


def fixed(mine: Collection[Queue]) -> Strategy:
    """Always ``mine`` (CONFIG), whoever else there is. Retries are read only by whom the queues of the group's retry
    topic are given to."""
    queues = list(mine)
    return lambda _queues, _client_ids, _me: list(queues)


def machine_room(rooms: Collection[str]) -> Strategy:
    """Only queues of brokers called ``room@name`` with one of ``rooms`` (MACHINE_ROOM): equal blocks, then what is left
    over one by one to the first members."""
    wanted = frozenset(rooms)

    def allocate(queues: Sequence[Queue], client_ids: Sequence[str], me: str) -> list[Queue]:
        members = sorted(set(client_ids))
        if me not in members:
            return []
        ours = []
        for queue in sorted(queues):
            # Java's split leaves out empty parts at the end.
            parts = queue.broker_name.rstrip("@").split("@")
            if len(parts) == 2 and parts[0] in wanted:
                ours.append(queue)
        index, share = members.index(me), len(ours) // len(members)
        mine = ours[share * index : share * (index + 1)]
        if index < len(ours) % len(members):
            mine.append(ours[share * len(members) + index])
        return mine

    return allocate


def machine_room_nearby(
    inner: Strategy, room_of_broker: Callable[[Queue], str], room_of_client: Callable[[str], str]
) -> Strategy:
    """Queues of a room among its own members by ``inner``; those of rooms without members among all
    (MACHINE_ROOM_NEARBY). ConfigError when a queue or member is in no room."""

    def room(found: str, what: object) -> str:
        if not found:
            raise ConfigError(f"{what!r} is in no machine room: MACHINE_ROOM_NEARBY needs one for each")
        return found

    def allocate(queues: Sequence[Queue], client_ids: Sequence[str], me: str) -> list[Queue]:
        members = sorted(set(client_ids))
        if me not in members:
            return []
        queues_of: defaultdict[str, list[Queue]] = defaultdict(list)
        members_of: defaultdict[str, list[str]] = defaultdict(list)
        for queue in sorted(queues):
            queues_of[room(room_of_broker(queue), queue)].append(queue)
        for member in members:
            members_of[room(room_of_client(member), member)].append(member)
        here = room_of_client(me)
        mine = inner(queues_of.pop(here), members_of[here], me) if here in queues_of else []
        for name in sorted(queues_of):
            if name not in members_of:
                mine = mine + inner(queues_of[name], members, me)
        return mine

    return allocate


def in_namespace(namespace: str, strategy: Strategy) -> Strategy:
    """``strategy``, which is given names as on the wire (Java hashes those), and may answer with plain names."""
    if not namespace:
        return strategy
    return lambda queues, client_ids, me: [
        Queue(wrap(namespace, topic), broker_name, queue_id)
        for topic, broker_name, queue_id in strategy(queues, client_ids, me)
    ]


#: By RocketMQ's name of the strategy; those that need more than a name are made by their functions.
STRATEGIES: Final[dict[str, Strategy]] = {
    "AVG": average,
    "AVG_BY_CIRCLE": average_by_circle,
    "CONSISTENT_HASH": consistent_hash,
}


def find_strategy(allocate: str | Strategy) -> Strategy:
    """``ConsumerConfig.allocate``: a name in STRATEGIES, or a strategy itself. ConfigError for another name."""
    if callable(allocate):
        return allocate
    found = STRATEGIES.get(allocate)
    if found is None:
        raise ConfigError(
            f"allocate={allocate!r}: {', '.join(STRATEGIES)}, or a function such as fixed(queues) (CONFIG), "
            "machine_room(rooms) and machine_room_nearby(...)"
        )
    return found
