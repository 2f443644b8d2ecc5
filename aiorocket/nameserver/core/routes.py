"""Which brokers live and which topics they carry. Leases and connections decide; nothing here survives the process.

A broker is one (broker name, broker id). Its holder is the connection that registered it last. A second one with the
same name and id at another address is refused while that connection lives: two masters under one name would split one
queue's messages over two logs. The same address is the same broker come back on a new connection, before the old one
was noticed to be dead.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from heapq import merge
from typing import NamedTuple, TypeVar

from aiorocket.config import Limits
from aiorocket_protocol import PERM_WRITE, BrokerData, DataVersion, QueueData, TopicRouteData

__all__ = ("A_TURN", "BrokerReport", "RouteInfo", "whole")

#: Topics looked at in one turn of the loop: about a millisecond.
A_TURN = 2_000

_T = TypeVar("_T")

#: Characters of a name or address in a registration.
LONGEST_NAME = 255


class BrokerReport(NamedTuple):
    """What a broker says of itself. ``topics`` is None when it only renews its lease; ``acting``: as a slave it acts as
    master while there is none, None for brokers that know nothing of that (before 5.0)."""

    cluster: str
    name: str
    broker_id: int
    address: str
    topics: Mapping[str, QueueData] | None = None
    version: DataVersion = DataVersion(0, 0)
    expiry: float | None = None
    acting: bool | None = None


class _Broker:
    __slots__ = ("address", "cluster", "connection", "expiry", "seen", "version")

    def __init__(self, report: BrokerReport, connection: Hashable, now: float, expiry: float) -> None:
        self.cluster = report.cluster
        self.address = report.address
        self.connection = connection
        self.seen = now
        self.expiry = expiry
        self.version: DataVersion | None = None


class RouteInfo:
    """The name server's memory. ``connection`` is anything that stands for a live connection."""

    def __init__(self, expiry: float, limits: Limits | None = None) -> None:
        self._expiry = expiry
        self._limits = limits or Limits()
        #: (topic, broker) that are kept.
        self._count = 0
        #: By name and id. No name without a broker.
        self._brokers: dict[str, dict[int, _Broker]] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}
        #: Of each name its topics: whoever goes is not looked for in those of others.
        self._carried: dict[str, set[str]] = {}
        #: The same of names whose last broker has gone: what is not forgotten yet.
        self._leaving: dict[str, set[str]] = {}

    def register(self, what: BrokerReport, *, connection: Hashable, now: float) -> str | None:
        """None when accepted, else why not (for the remark of a SYSTEM_ERROR)."""
        return whole(self.registering(what, connection=connection, now=now))

    def registering(self, what: BrokerReport, *, connection: Hashable, now: float) -> Generator[None, None, str | None]:
        """``register``, little by little; one at a time. What becomes of the broker meanwhile is respected."""
        new_routes = 0
        for number, topic in enumerate(what.topics or (), 1):
            new_routes += what.name not in self._topics.get(topic, ())
            if number % A_TURN == 0:
                yield
        while what.name in self._leaving:  # what it carried when it was here before is not what it carries now
            self.forget()
            yield
        known = self._known(what.name, what.broker_id)
        if known is not None and known.address != what.address and known.connection != connection:
            return (
                f"broker name {what.name} with id {what.broker_id} is held by {known.address}, still connected; "
                f"{what.address} needs another name, or the other broker must stop first"
            )
        other = next(iter(self._brokers.get(what.name, {}).values()), None)
        if other is not None and other.cluster != what.cluster and other.connection != connection:
            # Who may register in one cluster has no say in another, not even about a broker at the address it gives.
            return (
                f"broker name {what.name} is one of cluster {other.cluster}, held by {other.address}, still connected; "
                f"one of cluster {what.cluster} needs another name, or the other broker must stop first"
            )
        if known is None and what.topics is not None and len(what.topics) == 1:
            return (
                f"broker {what.name} is not registered and sends exactly one topic, which is an incremental update; "
                "register with the whole topic table first"
            )
        if what.name not in self._brokers:  # perhaps it had gone, and its topics with it, while they were counted
            new_routes = len(what.topics or ())
        if (over := self._over(what, known is None, new_routes)) is not None:
            return over
        if known is None:
            known = _Broker(what, connection, now, self._expiry)
            self._brokers.setdefault(what.name, {})[what.broker_id] = known
        known.cluster = what.cluster
        known.address = what.address
        known.connection = connection
        known.seen = now
        known.expiry = what.expiry or self._expiry
        changed = known.version != what.version
        # While there is no master, the word of its first slave counts; who acts as master takes no messages.
        leads = what.broker_id == 0 or (what.acting is not None and what.broker_id == min(self._brokers[what.name]))
        acts = what.broker_id != 0 and what.acting
        if what.topics is not None and leads and (changed or new_routes):
            carried = self._carried.setdefault(what.name, set())
            for number, (topic, queues) in enumerate(what.topics.items(), 1):
                carried.add(topic)
                on = self._topics.setdefault(topic, {})
                new = what.name not in on
                self._count += new
                if new or changed:  # without a change it keeps what 205 made of its permissions
                    on[what.name] = queues._replace(perm=queues.perm & ~PERM_WRITE) if acts else queues
                if number % A_TURN == 0:
                    yield
                    if self._known(what.name, what.broker_id) is not known:  # it has gone, and its topics with it
                        return None
            known.version = what.version
        return None

    def _over(self, what: BrokerReport, new: bool, new_routes: int) -> str | None:
        """Which of the limits the report would pass."""
        limits, topics = self._limits, what.topics or {}
        most = {
            "brokers": (limits.brokers, sum(map(len, self._brokers.values())) + new),
            "broker_topics": (limits.broker_topics, len(topics)),
            "routes": (limits.routes, self._count + new_routes),
        }
        over = [f"{name}={limit}" for name, (limit, count) in most.items() if count > limit]
        if over:
            return f"broker {what.name:.200} is not registered: the name server's limit {', '.join(over)} is reached"
        if (longest := max(map(len, (what.name, what.cluster, what.address, *topics)))) > LONGEST_NAME:
            return f"a name of {longest} characters in a registration: at most {LONGEST_NAME} are kept"
        return None

    def renew(
        self, name: str, address: str, cluster: str, broker_id: int, version: DataVersion, now: float
    ) -> DataVersion | None:
        """QUERY_DATA_VERSION: the version known here (None for an unknown broker, or one that does not hold the name);
        an equal one renews the lease."""
        known = self._known(name, broker_id)
        if known is None or (known.address, known.cluster) != (address, cluster):
            return None
        if known.version == version:
            known.seen = now
        return known.version

    def touch(self, name: str, address: str, cluster: str, broker_id: int, now: float) -> None:
        """BROKER_HEARTBEAT renews the lease of the broker that holds the name, and nothing else."""
        known = self._known(name, broker_id)
        if known is not None and (known.address, known.cluster) == (address, cluster):
            known.seen = now

    def unregister(self, name: str, broker_id: int, address: str, cluster: str) -> bool:
        """A broker says goodbye; one that no longer holds the name changes nothing."""
        known = self._known(name, broker_id)
        if known is None or (known.address, known.cluster) != (address, cluster):
            return False
        self._take_out(name, broker_id)
        self.forget()
        return True

    def lost(self, connection: Hashable) -> list[str]:
        """A connection closed: the addresses of the brokers that went with it."""
        return self._remove_all(lambda broker: broker.connection == connection)

    def expire(self, now: float) -> list[str]:
        """The addresses of brokers whose lease ends."""
        return self._remove_all(lambda broker: broker.seen + broker.expiry <= now)

    @property
    def is_leaving(self) -> bool:
        """Whether there is something to ``forget``."""
        return bool(self._leaving)

    def forget(self) -> bool:
        """Some of the topics that only those had who have gone; call it again in the next turn while it is True. Routes
        have none of them any more, lists may."""
        left = A_TURN
        while self._leaving and left:
            name, topics = next(iter(self._leaving.items()))
            while topics and left:
                topic = topics.pop()
                queues = self._topics[topic]
                del queues[name]
                if not queues:
                    del self._topics[topic]
                self._count -= 1
                left -= 1
            if not topics:
                del self._leaving[name]
        return bool(self._leaving)

    def next_deadline(self) -> float | None:
        return min((broker.seen + broker.expiry for _, _, broker in self._all()), default=None)

    def holder(self, name: str, broker_id: int) -> str | None:
        known = self._known(name, broker_id)
        return None if known is None else known.address

    def topic_route(self, topic: str, order_conf: str | None = None) -> TopicRouteData | None:
        """Queues and brokers of ``topic``; None when no live broker carries it."""
        queues = [data for name, data in sorted(self._topics.get(topic, {}).items()) if name in self._brokers]
        if not queues:
            return None
        brokers = [self._broker_data(data.broker_name) for data in queues]
        return TopicRouteData(queue_datas=queues, broker_datas=brokers, order_topic_conf=order_conf)

    def brokers(self) -> list[BrokerData]:
        return [self._broker_data(name) for name in sorted(self._brokers)]

    def topics(self) -> list[str]:
        return whole(self.all_topics())

    def all_topics(self) -> Generator[None, None, list[str]]:
        """``topics``, little by little."""
        return _sorted(list(self._topics))

    def flagged(self, flag: int, *, without: int = 0) -> Generator[None, None, list[str]]:
        """Topics whose topicSysFlag has ``flag`` and not ``without`` on some broker, little by little."""
        found = []
        for number, topic in enumerate(list(self._topics), 1):  # names alone: 50,000 pairs wake the collector
            for data in self._topics.get(topic, {}).values():
                if data.topic_sys_flag & flag and not data.topic_sys_flag & without:
                    found.append(topic)
                    break
            if number % A_TURN == 0:
                yield
        return (yield from _sorted(found))

    def topics_of_cluster(self, cluster: str) -> Generator[None, None, list[str]]:
        """Those of its brokers, little by little."""
        found: set[str] = set()
        for name in [data.broker_name for data in self.brokers() if data.cluster == cluster]:
            found |= self._carried.get(name, set())
            yield
        return (yield from _sorted(list(found)))

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget ``topic``, on the brokers of one cluster only when it is given."""
        queues = self._topics.get(topic)
        if queues is None:
            return
        for name in list(queues):
            if not cluster or self._broker_data(name).cluster == cluster:
                del queues[name]
                (self._carried if name in self._carried else self._leaving)[name].discard(topic)
                self._count -= 1
        if not queues:
            del self._topics[topic]

    def setting_writable(self, broker_name: str, writable: bool) -> Generator[None, None, int]:
        """Give or take the write permission in all topics of one broker, little by little; says how many it has."""
        count = 0
        for number, topic in enumerate(list(self._carried.get(broker_name, ())), 1):
            queues = self._topics.get(topic, {})
            data = queues.get(broker_name)
            if data is not None:
                perm = data.perm | PERM_WRITE if writable else data.perm & ~PERM_WRITE
                queues[broker_name] = data._replace(perm=perm)
                count += 1
            if number % A_TURN == 0:
                yield
        return count

    def _known(self, name: str, broker_id: int) -> _Broker | None:
        return self._brokers.get(name, {}).get(broker_id)

    def _all(self) -> Iterator[tuple[str, int, _Broker]]:
        for name, brokers in self._brokers.items():
            for broker_id, broker in brokers.items():
                yield name, broker_id, broker

    def _broker_data(self, name: str) -> BrokerData:
        brokers = self._brokers.get(name, {})
        cluster = next((broker.cluster for broker in brokers.values()), "")
        addresses = {broker_id: broker.address for broker_id, broker in sorted(brokers.items())}
        return BrokerData(cluster=cluster, broker_name=name, broker_addrs=addresses)

    def _remove_all(self, gone: Callable[[_Broker], bool]) -> list[str]:
        found = [(name, broker_id) for name, broker_id, broker in self._all() if gone(broker)]
        addresses = [self._take_out(name, broker_id).address for name, broker_id in found]
        self.forget()
        return addresses

    def _take_out(self, name: str, broker_id: int) -> _Broker:
        brokers = self._brokers[name]
        broker = brokers.pop(broker_id)
        if not brokers:
            del self._brokers[name]
            if carried := self._carried.pop(name, None):
                self._leaving[name] = carried
        return broker


def _sorted(names: list[str]) -> Generator[None, None, list[str]]:
    parts = []
    for at in range(0, len(names), A_TURN):
        parts.append(sorted(names[at : at + A_TURN]))
        yield
    if len(parts) < 2:
        return parts[0] if parts else []
    found = []
    for number, name in enumerate(merge(*parts), 1):
        found.append(name)
        if number % A_TURN == 0:
            yield
    return found


def whole(work: Generator[None, None, _T]) -> _T:
    """All of it at once."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: _T = end.value
            return result
