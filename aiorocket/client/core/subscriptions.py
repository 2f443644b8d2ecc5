"""One subscription per topic out of many listeners, and which listener a message is for."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Generic, NamedTuple, TypeVar

from aiorocket.client.core.start_from import StartFrom, parse_start
from aiorocket.config import MissingTopics
from aiorocket.errors import UsageError
from aiorocket.model import check_topic
from aiorocket_protocol import ALL_TAGS, SQL92, ProtocolError, SubscriptionData

__all__ = ("Registration", "Subscriptions", "Wanted", "check_filter", "check_tags", "subscription_data", "wanted")

S = TypeVar("S")


def check_tags(expression: str) -> frozenset[str]:
    """The tags of an expression such as ``"a || b"``; empty for all. UsageError when it names none."""
    try:
        tags = frozenset(SubscriptionData.parse("", expression).tags_set)
    except ProtocolError as error:
        raise UsageError(f"tags={expression!r}: {error}; '*' for all, or tags between '||'") from None
    if any("," in tag for tag in tags):
        alternatives = " || ".join(part.strip() for part in expression.replace("||", ",").split(","))
        raise UsageError(
            f"tags={expression!r}: several tags are written {alternatives!r}; one with a comma in it is found by "
            "sql=\"TAGS = 'a,b'\""
        )
    return tags


def check_filter(tags: str, sql: str | None) -> frozenset[str]:
    """The tags of a subscription by ``tags`` or by ``sql``. UsageError for both at once, for what is no text, and for
    an empty expression; whether the expression means anything is for the broker to say."""
    if not isinstance(tags, str):
        raise UsageError(f"tags={tags!r}: text, with '||' between several: \"a || b\"")
    if sql is None:
        return check_tags(tags)
    if not isinstance(sql, str) or not sql.strip():
        raise UsageError(f'sql={sql!r}: an expression such as "amount > 5 AND region IS NOT NULL"')
    if tags.strip() not in ("", ALL_TAGS):
        raise UsageError(f"tags={tags!r} and sql={sql!r}: a topic is filtered by one of them (SQL knows TAGS too)")
    return frozenset()


class Wanted(NamedTuple):
    """What is wanted of one topic: messages with one of ``tags`` (empty: all), or that match ``sql``; where to begin in
    queues without an offset; what to do when nobody has the topic (None: what the client's config says)."""

    tags: frozenset[str] = frozenset()
    sql: str | None = None
    start: StartFrom = StartFrom("last")
    if_missing: MissingTopics | None = None


def wanted(
    topic: str, tags: str, sql: str | None, start_from: str | datetime | int, missing_topics: MissingTopics | None
) -> Wanted:
    """The parameters of a subscription, checked: UsageError says what is wrong with one."""
    check_topic(topic)
    if missing_topics not in (None, "wait", "create", "error"):
        raise UsageError(f"missing_topics={missing_topics!r}: 'wait', 'create' or 'error'")
    return Wanted(check_filter(tags, sql), sql, parse_start(start_from), missing_topics)


def subscription_data(topic: str, tags: Iterable[str], sql: str | None, version: int) -> SubscriptionData:
    """As heartbeats carry it: by ``sql``, else by ``tags``, all when there is none."""
    if sql is not None:
        return SubscriptionData(topic, sql, sub_version=version, expression_type=SQL92)
    return SubscriptionData.parse(topic, " || ".join(sorted(tags)) or ALL_TAGS, version)


class Registration(NamedTuple, Generic[S]):
    """Whoever takes messages of one topic (``sink``): those with one of ``tags``, or all when it is empty; with ``sql``
    those the broker finds by it."""

    topic: str
    tags: frozenset[str]
    sink: S
    sql: str | None = None


class Subscriptions(Generic[S]):
    """What a group wants. The broker knows one expression per topic, so it is the union of all sinks' tags."""

    __slots__ = ("_by_topic",)

    def __init__(self) -> None:
        self._by_topic: dict[str, list[Registration[S]]] = {}

    def add(self, topic: str, tags: Iterable[str], sink: S, sql: str | None = None) -> None:
        """UsageError when an earlier sink of the topic takes some of the same messages: who should get them?"""
        wanted = frozenset(tags)
        present = self._by_topic.setdefault(topic, [])
        for other in present:
            if not wanted or not other.tags or wanted & other.tags:
                common = " || ".join(sorted(wanted & other.tags)) or ALL_TAGS
                raise UsageError(f"topic {topic!r}, tags {common!r}: there is a listener for these messages already")
        present.append(Registration(topic, wanted, sink, sql))

    def topics(self) -> list[str]:
        return list(self._by_topic)

    def __contains__(self, topic: str) -> bool:
        return topic in self._by_topic

    def tags(self, topic: str) -> frozenset[str]:
        """The union; empty for all."""
        registrations = self._by_topic.get(topic, ())
        if any(not each.tags for each in registrations):
            return frozenset()
        return frozenset().union(*(each.tags for each in registrations))

    def data(self, topic: str, version: int) -> SubscriptionData:
        """As heartbeats carry it."""
        sql = next((each.sql for each in self._by_topic.get(topic, ()) if each.sql is not None), None)
        return subscription_data(topic, self.tags(topic), sql, version)

    def only(self, topic: str) -> S | None:
        """The sink of a topic that has one, so that whole runs of messages go there without a look at each."""
        registrations = self._by_topic.get(topic, ())
        return registrations[0].sink if len(registrations) == 1 else None

    def find(self, topic: str, tag: str) -> S | None:
        """The sink for one message. A retried message keeps going to its topic's first sink when its tag has been
        unsubscribed since; None when nobody takes the topic any more."""
        registrations = self._by_topic.get(topic)
        if not registrations:
            return None
        for each in registrations:
            if not each.tags or tag in each.tags:
                return each.sink
        return registrations[0].sink

    def sinks(self, topic: str | None = None) -> list[S]:
        """Of ``topic``; of all without one."""
        groups = self._by_topic.values() if topic is None else [self._by_topic.get(topic, [])]
        return list(dict.fromkeys(each.sink for group in groups for each in group))
