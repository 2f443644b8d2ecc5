"""How far groups are behind, read in turns so that others have theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorocket.broker.broker import Broker

__all__ = ("MOST_PAIRS", "lags")

#: Pairs of a group and a topic that are looked at, unless told otherwise.
MOST_PAIRS = 2000
#: Pairs and queues looked at before others have their turn.
_TURN = 512


async def lags(broker: Broker, most: int) -> AsyncIterator[tuple[tuple[str, str], int]]:
    """(group, topic) and how many messages it has not consumed, of pairs in which it has an offset and that its
    members, if any, subscribe to, and of those that they subscribe to and have none in. What they do not have any more,
    because it was too old, is not counted. Beyond ``most`` pairs the number is 0."""
    store, looked, given = broker.store, 0, 0
    groups = {each.name for each in broker.configs}
    begun: dict[tuple[str, str], None] = {}
    for number, each in enumerate(list(broker.consumers), 1):
        begun.update(dict.fromkeys((each.name, name) for name in each.without_offset(broker.offsets)))
        if not number % _TURN:
            await asyncio.sleep(0)

    def pairs() -> Iterator[tuple[str, str]]:
        for pair in broker.offsets.pairs():
            begun.pop(pair, None)  # it has an offset meanwhile
            yield pair
        yield from begun

    for group, name in pairs():
        looked += 1
        if not looked % _TURN:
            await asyncio.sleep(0)
        topic, live = broker.topics.get(name), broker.consumers.get(group)
        if topic is None or group not in groups or (live and live.subscriptions and name not in live.subscriptions):
            continue
        lag = 0
        given += 1
        if given <= most:  # beyond that only their number is wanted
            for queue_id in range(topic.read_queues):
                looked += 1
                if not looked % _TURN:
                    await asyncio.sleep(0)
                offset = max(broker.offsets.query(group, name, queue_id) or 0, store.min_offset(name, queue_id))
                lag += max(0, store.max_offset(name, queue_id) - offset)
        yield (group, name), lag
