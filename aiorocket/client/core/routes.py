"""A topic's route as the client uses it: queues to write to, queues to read from, and which address serves them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aiorocket.model import Queue
from aiorocket_protocol import MASTER_ID, PERM_READ, PERM_WRITE, ProtocolError, TopicRouteData

__all__ = ("TopicRoute", "check_route", "parse_nameservers")


class TopicRoute:
    """Immutable; a refreshed route that says the same compares equal, so nobody needs to react to it."""

    __slots__ = ("addresses", "publish", "subscribe", "topic")

    def __init__(
        self,
        topic: str,
        publish: Iterable[Queue],
        subscribe: Iterable[Queue],
        addresses: Mapping[str, Mapping[int, str]],
    ) -> None:
        self.topic = topic
        self.publish = tuple(publish)
        self.subscribe = tuple(subscribe)
        self.addresses = {name: dict(ids) for name, ids in addresses.items()}

    @classmethod
    def from_data(cls, topic: str, data: TopicRouteData, *, at_most: int | None = None) -> TopicRoute:
        """As Java reads a route: queues to read of every broker with read permission, queues to write of those with
        write permission and a master. ``at_most`` limits the writable queues per broker, for a route that was borrowed
        from the template topic of auto-creation."""
        addresses = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
        publish: list[Queue] = []
        subscribe: list[Queue] = []
        ordered = _parse_order_conf(data.order_topic_conf)
        for part in sorted(data.queue_datas, key=lambda part: part.broker_name):
            name = part.broker_name
            if name not in addresses:
                continue
            if part.perm & PERM_READ:
                subscribe.extend(Queue(topic, name, number) for number in range(part.read_queue_nums))
            if part.perm & PERM_WRITE and MASTER_ID in addresses[name] and not ordered:
                count = part.write_queue_nums if at_most is None else min(at_most, part.write_queue_nums)
                publish.extend(Queue(topic, name, number) for number in range(count))
        # An ordered topic's configuration names exactly the queues, also those of a broker that is away just now: a key
        # must not move to another queue because its broker restarts.
        publish.extend(Queue(topic, name, number) for name, count in ordered for number in range(count))
        return cls(topic, publish, subscribe, addresses)

    def master(self, broker_name: str) -> str | None:
        """Where to write, or None while the broker has no master."""
        return self.addresses.get(broker_name, {}).get(MASTER_ID)

    def reader(self, broker_name: str, suggested: int = MASTER_ID) -> str | None:
        """Where to pull from: the broker id the last answer suggested, else the master, else any."""
        ids = self.addresses.get(broker_name)
        if not ids:
            return None
        return ids.get(suggested) or ids.get(MASTER_ID) or ids[min(ids)]

    def all_addresses(self) -> set[str]:
        return {address for ids in self.addresses.values() for address in ids.values()}

    def masters(self) -> set[str]:
        return {ids[MASTER_ID] for ids in self.addresses.values() if MASTER_ID in ids}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TopicRoute):
            return NotImplemented
        return (self.topic, self.publish, self.subscribe, self.addresses) == (
            other.topic, other.publish, other.subscribe, other.addresses,
        )  # fmt: skip

    def __repr__(self) -> str:
        queues = f"publish={len(self.publish)}, subscribe={len(self.subscribe)}"
        return f"TopicRoute({self.topic!r}, {queues}, {self.addresses})"


def check_route(topic: str, data: TopicRouteData, most: int) -> TopicRouteData:
    """``data``, when it has no more than ``most`` queues. ProtocolError."""
    parts = data.queue_datas
    ordered = sum(count for _, count in _parse_order_conf(data.order_topic_conf))
    # A number below 0 is no queue, and must not make room for others.
    read = sum(max(0, part.read_queue_nums) for part in parts)
    write = sum(max(0, part.write_queue_nums) for part in parts)
    queues = max(ordered, read, write)
    if queues > most:
        what = f"{queues} queues for topic {topic:.200}; the client's limit route_queues={most} is lower"
        raise ProtocolError(what, where="route")
    return data


def _parse_order_conf(conf: str | None) -> list[tuple[str, int]]:
    """``broker-a:4;broker-b:2`` as pairs; parts that are not of this form are passed over (Java fails then)."""
    pairs: list[tuple[str, int]] = []
    for part in (conf or "").split(";"):
        name, colon, count = part.strip().rpartition(":")
        if colon and name and count.isascii() and count.isdigit() and len(count) < 10:
            pairs.append((name, int(count)))
    return pairs


def parse_nameservers(value: str | Iterable[str]) -> tuple[str, ...]:
    """``"a:1;b:2"``, ``"a:1,b:2"`` or a sequence of such texts as a tuple of HOST:PORT, duplicates removed."""
    texts = [value] if isinstance(value, str) else list(value)
    found = [part.strip() for text in texts for part in text.replace(",", ";").split(";")]
    return tuple(dict.fromkeys(part for part in found if part))
