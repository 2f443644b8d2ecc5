"""The broker's topics: what exists, with how many queues, and which may come into being by being used.

``Topic`` is what the send and pull paths look at once per message, so everything they ask is an attribute computed when
the topic changes: ``plain`` is true when a message for it needs nothing but a queue id in range.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any

from aiorocket.broker.core import shares
from aiorocket.broker.core.attributes import AttributeRoom
from aiorocket.broker.core.names import Refusal, is_forbidden, is_system_topic, is_topic_name
from aiorocket.broker.core.shares import Holds
from aiorocket.broker.core.turns import A_SHORT_TURN
from aiorocket.config import DELAY_LEVELS, Limits
from aiorocket_protocol import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    DLQ_PREFIX,
    HALF_TOPIC,
    INT32_MAX,
    MAX_TOPIC,
    NAME_CHARACTER,
    OFFSET_MOVED_TOPIC,
    OP_TOPIC,
    PERM_ALL,
    PERM_INHERIT,
    PERM_READ,
    PERM_READ_WRITE,
    PERM_WRITE,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SINGLE_TAG,
    TIMER_TOPIC,
    ResponseCode,
    is_pop_retry_topic,
    reply_topic,
    revive_topic,
    tags_code,
)

__all__ = ("UNIT", "UNIT_SUB", "Topic", "TopicTable")

#: Bits of topicSysFlag: the topic belongs to one unit of a deployment in units; units subscribe to it.
UNIT = 1
UNIT_SUB = 2

#: Tags whose hashes are kept, and characters of the longest: who makes up tags must not fill the memory with them.
MAX_TAG_CACHE, LONGEST_TAG = 16_384, 64
#: More queues than this in one topic is a typing error, and each costs a file.
MAX_QUEUES = 65_536


class Topic:
    """One topic. Replaced as a whole when its configuration changes; never mutated by readers."""

    __slots__ = (
        "attributes",
        "filter_type",
        "max_queues",
        "name",
        "order",
        "perm",
        "plain",
        "read_queues",
        "readable",
        "sys_flag",
        "tag_codes",
        "write_queues",
    )

    def __init__(
        self,
        name: str,
        read_queues: int,
        write_queues: int,
        perm: int = PERM_READ_WRITE,
        *,
        order: bool = False,
        sys_flag: int = 0,
        filter_type: str = SINGLE_TAG,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.read_queues = read_queues
        self.write_queues = write_queues
        self.perm = perm
        self.order = order
        self.sys_flag = sys_flag
        self.filter_type = filter_type
        self.attributes = dict(attributes or {})
        self.max_queues = max(read_queues, write_queues)
        self.readable = bool(perm & PERM_READ)
        #: Nothing but the range of the queue id is left to check for a send.
        self.plain = bool(perm & PERM_WRITE) and not is_forbidden(name) and not name.startswith(RETRY_PREFIX)
        #: tag -> hash, of all topics of a table: look here, then ask ``tag_code``.
        self.tag_codes: dict[str, int] = {}

    def tag_code(self, tag: str) -> int:
        """The hash of a tag, known from now on when it is a short one."""
        code = tags_code(tag)
        if len(self.tag_codes) >= MAX_TAG_CACHE:
            self.tag_codes.clear()
        if len(tag) <= LONGEST_TAG:
            self.tag_codes[tag] = code
        return code

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Topic) and self.to_dict() == other.to_dict()

    def __repr__(self) -> str:
        return f"Topic({self.name!r}, read={self.read_queues}, write={self.write_queues}, perm={self.perm})"

    def to_dict(self) -> dict[str, Any]:
        """The keys of RocketMQ's TopicConfig JSON."""
        return {
            "attributes": self.attributes,
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queues,
            "topicFilterType": self.filter_type,
            "topicName": self.name,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write_queues,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Topic:
        return cls(
            str(data["topicName"]),
            int(data["readQueueNums"]),
            int(data["writeQueueNums"]),
            int(data.get("perm", PERM_READ_WRITE)),
            order=bool(data.get("order", False)),
            sys_flag=int(data.get("topicSysFlag", 0)),
            filter_type=str(data.get("topicFilterType", SINGLE_TAG)),
            attributes=data.get("attributes") or {},
        )


class TopicTable:
    """Name → Topic, with the rules of creation. ``version`` counts changes: it tells name servers and snapshots that
    there is news."""

    def __init__(
        self,
        *,
        broker: str,
        cluster: str,
        auto_create: bool,
        default_queues: int,
        delay_levels: int = len(DELAY_LEVELS),
        most: int = Limits().topics,
        most_queues: int = Limits().queues,
        most_attributes: int = Limits().attributes,
    ) -> None:
        self._most = most
        self._most_queues = most_queues
        self._attributes = AttributeRoom(most_attributes)
        self.auto_create = auto_create
        self._default_queues = default_queues
        self.version = 0
        self._topics: dict[str, Topic] = {}
        #: Bound once: the send path calls it per message.
        self.get = self._topics.get
        #: One for all topics, so that who makes up tags fills it once and not for each.
        self._tag_codes: dict[str, int] = {}
        self._queues = 0
        for topic in _built_in(broker, cluster, auto_create, default_queues, delay_levels):
            self._keep(topic)

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._topics.values())

    def __len__(self) -> int:
        return len(self._topics)

    def __contains__(self, name: object) -> bool:
        return name in self._topics

    def pop_retries(self, topic: str) -> list[str]:
        """Names of the topics that hold what was popped of it and is to come again, of all groups."""
        end = f"+{topic}"  # most are left out by a look at the end, without a call for each of 50,000
        return [name for name in self._topics if name.endswith(end) and is_pop_retry_topic(name, topic)]

    def put(self, topic: Topic) -> bool:
        """Create or replace; False when nothing changed, and then the version stays."""
        if self._topics.get(topic.name) == topic:
            return False
        self._attributes.replaced(self._attributes_of(topic.name), topic.attributes)
        self._keep(topic)
        self.version += 1
        return True

    def _keep(self, topic: Topic) -> None:
        topic.tag_codes = self._tag_codes
        self._queues += self._more_queues(topic)
        self._topics[topic.name] = topic

    def delete(self, name: str) -> bool:
        topic = self._topics.pop(name, None)
        if topic is None:
            return False
        self._attributes.replaced(topic.attributes, None)
        self._queues -= topic.max_queues
        self.version += 1
        return True

    def _more_queues(self, topic: Topic) -> int:
        known = self._topics.get(topic.name)
        return topic.max_queues - (0 if known is None else known.max_queues)

    def _no_queues(self, who: Holds | None, *topics: Topic) -> Refusal | None:
        """Why these cannot all have as many queues as they are to have."""
        growth, few = 0, shares.begins(self._most_queues)
        for topic in topics:
            more = self._more_queues(topic)
            growth += more
            if more > 0 and self._queues + growth > few:
                what = f"topic {topic.name} gets no {topic.max_queues} queues"
                refusal = shares.refusal("queues", self._most_queues, self._queues, what, who, more=growth)
                if refusal is not None:
                    return refusal
        return None

    def _attributes_of(self, name: str) -> Mapping[str, str] | None:
        topic = self._topics.get(name)
        return None if topic is None else topic.attributes

    def check(self, topic: Topic) -> Refusal | None:
        """Why an administrator may not have it so."""
        if not is_topic_name(topic.name):
            return Refusal(ResponseCode.INVALID_PARAMETER, topic_name_remark(topic.name))
        if is_system_topic(topic.name):
            return Refusal(ResponseCode.INVALID_PARAMETER, f"The topic[{topic.name}] is conflict with system topic.")
        return _out_of_range(topic)

    def configure(self, *topics: Topic, who: Holds | None = None) -> Refusal | bool:
        """An administrator's create or update, of all or none; the bool says whether anything changed."""
        refusal = next(filter(None, map(self.check, topics)), None)
        new = [*dict.fromkeys(topic.name for topic in topics if topic.name not in self._topics)]
        if refusal is None and new:
            refusal = self._full(new[-1], who, len(new))
        if refusal is None:
            refusal = self._no_queues(who, *topics) or self._attributes.refusal(
                (f"topic {topic.name}", self._attributes_of(topic.name), topic.attributes) for topic in topics
            )
        return True in [self._make(topic, who) for topic in topics] if refusal is None else refusal

    def _make(self, topic: Topic, who: Holds | None) -> bool:
        """``put``, and ``who`` has it."""
        shares.take(who, "topics", topic.name not in self._topics)
        shares.take(who, "queues", max(0, self._more_queues(topic)))
        return self.put(topic)

    def create_on_send(
        self, name: str, default_topic: str, queues: int, *, unit_mode: bool = False, of_group: bool = False,
        who: Holds | None = None,
    ) -> Topic | Refusal:  # fmt: skip
        """The topic for a send to an unknown name: from its template, or as a retry topic, or refused with
        TOPIC_NOT_EXIST. What a sender in unit mode makes is marked as its unit's, or a retry topic as units'.
        ``of_group``: the retries or dead letters of one that there is, which are nobody's."""
        if not is_topic_name(name):
            return Refusal(ResponseCode.INVALID_PARAMETER, topic_name_remark(name))
        if is_forbidden(name):
            return Refusal(ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
        sys_flag = 0 if not unit_mode else UNIT_SUB if name.startswith(RETRY_PREFIX) else UNIT
        template = self._topics.get(default_topic)
        if (
            template is not None
            and template.perm & PERM_INHERIT
            and (self.auto_create or default_topic != AUTO_CREATE_TOPIC)
        ):
            if (refusal := self._full(name, who)) is not None:
                return refusal
            count = max(1, min(queues, template.write_queues))
            topic = Topic(name, count, count, template.perm & ~PERM_INHERIT, sys_flag=sys_flag)
            if (refusal := self._no_queues(who, topic)) is not None:
                return refusal
        elif name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            if not of_group and (refusal := self._full(name, who)) is not None:
                return refusal
            topic = Topic(name, 1, 1, sys_flag=sys_flag)
        else:
            why = (
                "and auto-creation is off here"
                if not self.auto_create
                else f"and {default_topic!r} is no template for it"
            )
            return Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, {why}; create it first")
        self._make(topic, None if of_group else who)
        return topic

    def _full(self, name: str, who: Holds | None, more: int = 1) -> Refusal | None:
        return shares.refusal("topics", self._most, len(self._topics), f"topic {name} is not made", who, more=more)

    def set_auto_create(self, on: bool) -> None:
        """Whether topics come into being by being used."""
        self.auto_create = on
        if on and AUTO_CREATE_TOPIC not in self._topics:
            self.put(Topic(AUTO_CREATE_TOPIC, self._default_queues, self._default_queues, PERM_ALL))

    def ensure(self, name: str, queues: int, sys_flag: int = 0) -> Topic:
        """The retry or dead-letter topic of a group whose name was checked, made with ``queues`` and ``sys_flag`` when
        it is missing."""
        topic = self._topics.get(name)
        if topic is None:
            queues = min(max(queues, 0), MAX_QUEUES)  # 0: the group wants no retries
            topic = Topic(name, queues, queues, sys_flag=sys_flag)
            self.put(topic)
        return topic

    def make_orderly(self, names: Iterable[str]) -> Generator[None, None, bool]:
        """Topics that the name server has an order configuration for are order topics; True when one was not yet. Done
        little by little.

        Nothing undoes this but an administrator: a name server that lost its configuration must not.
        """
        changed = False
        for number, name in enumerate(names, 1):
            topic = self._topics.get(name)
            if topic is not None and not topic.order:
                changed |= self.put(Topic.from_dict({**topic.to_dict(), "order": True}))
            if number % A_SHORT_TURN == 0:
                yield
        return changed

    def to_dict(self) -> dict[str, Any]:
        return self.later()()

    def later(self) -> Callable[[], dict[str, Any]]:
        """``to_dict`` of now, for another thread."""
        version, topics = self.version, list(self._topics.values())
        return lambda: {"version": version, "topics": [topic.to_dict() for topic in topics]}

    def load(self, data: Mapping[str, Any]) -> None:
        """Take over a snapshot. Built-in topics keep today's configuration: settings may have changed since. What would
        be refused today is left out, or no name server would take the broker's registration."""
        built_in = set(self._topics)
        for item in data.get("topics", ()):
            topic = Topic.from_dict(item)
            if topic.name not in built_in and is_topic_name(topic.name) and _out_of_range(topic) is None:
                self._attributes.replaced(None, topic.attributes)
                self._keep(topic)
        self.version = max(self.version, int(data.get("version", 0)))


def _out_of_range(topic: Topic) -> Refusal | None:
    """Numbers that no route can carry, or that nobody can mean."""
    for what, number, most in (
        ("queues", topic.read_queues, MAX_QUEUES),
        ("queues", topic.write_queues, MAX_QUEUES),
        ("as perm", topic.perm, PERM_ALL),
        ("as topicSysFlag", topic.sys_flag, INT32_MAX),
    ):
        if not 0 <= number <= most:
            text = f"{number} {what} for topic {topic.name}: 0 to {most} are allowed"
            return Refusal(ResponseCode.INVALID_PARAMETER, text)
    return None


def topic_name_remark(name: str) -> str:
    return (
        f"topic {name!r:.200}: the specified topic contains illegal characters or is too long, "
        f"allowing only ^{NAME_CHARACTER}{{1,{MAX_TOPIC}}}$"
    )


def _built_in(broker: str, cluster: str, auto_create: bool, default_queues: int, delay_levels: int) -> Iterator[Topic]:
    """Those of RocketMQ's brokers. Cluster and broker names that cannot be topic names get no topic."""
    if auto_create:
        yield Topic(AUTO_CREATE_TOPIC, default_queues, default_queues, PERM_ALL)
    yield Topic(SELF_TEST_TOPIC, 1, 1)
    yield Topic(OFFSET_MOVED_TOPIC, 1, 1)
    yield Topic(BENCHMARK_TOPIC, 1024, 1024)
    if is_topic_name(cluster):
        yield Topic(cluster, 16, 16, PERM_ALL)
        yield Topic(reply_topic(cluster)[:MAX_TOPIC], 1, 1)
    if is_topic_name(broker):
        yield Topic(broker, 1, 1, PERM_ALL)
    levels = max(len(DELAY_LEVELS), delay_levels)
    yield Topic(SCHEDULE_TOPIC, levels, levels)
    yield Topic(HALF_TOPIC, 1, 1)
    yield Topic(OP_TOPIC, 1, 1)
    yield Topic(TIMER_TOPIC, 1, 1)
    yield Topic(revive_topic(cluster)[:MAX_TOPIC], 1, 1)
