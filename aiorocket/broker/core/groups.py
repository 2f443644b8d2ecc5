"""Consumer and producer groups: who is connected, what each group subscribes to, and who must hear of a change.

A member is one connection with one client id; it lives until its connection closes, it unregisters, or it has sent no
heartbeat for ``expiry`` seconds. Members are kept in the order of their last heartbeat, so the next to expire is always
the first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import islice
from typing import Generic, TypeVar

from aiorocket.broker.core import shares
from aiorocket.broker.core.names import LONGEST_GROUP, Refusal, full, is_group_name
from aiorocket.broker.core.offsets import ConsumerOffsets
from aiorocket.broker.core.record_filter import RecordFilter
from aiorocket.broker.core.turns import A_TURN
from aiorocket.config import Limits
from aiorocket_protocol import (
    CLUSTERING,
    CONSUME_FROM_LAST_OFFSET,
    CONSUME_PASSIVELY,
    RETRY_PREFIX,
    TAG,
    ResponseCode,
    SubscriptionData,
    retry_topic,
)

__all__ = (
    "ConsumerGroup",
    "GroupTable",
    "Member",
    "Subscription",
    "differences",
    "filter_refusal",
    "weight_of",
)


#: A connection: whoever makes the tables says of what kind. Here it is only told from others.
C = TypeVar("C", bound=Hashable)
#: Of clients, topics and differences so many are named in one line.
_MANY = 4
#: Groups whose differences are told at once: each takes some 30 us, or a millisecond where they want a thousand topics.
_SAID = 20


class Subscription:
    """What a group wants of one topic, ready for the pull path: ``accept`` is None for "everything", a RecordFilter for
    a SQL92 filter. ``error`` says why there is no filter, "" when there is one."""

    __slots__ = ("accept", "data", "error", "is_tag", "version")

    def __init__(self, data: SubscriptionData) -> None:
        self.data = data
        self.version = data.sub_version
        self.is_tag = is_tag_type(data.expression_type)
        codes = frozenset(data.code_set)
        self.accept: Callable[[int], bool] | None = codes.__contains__ if codes and data.sub_string != "*" else None
        self.error = ""
        if not self.is_tag:
            self.accept = None
            # Imported when somebody has such a filter: few brokers do, and all of them should start quickly.
            from aiorocket.broker.core.sql92 import Sql92Error, parse

            try:
                self.accept = RecordFilter(parse(data.sub_string))
            except Sql92Error as error:
                self.error = str(error)


_NONE: Mapping[str, Subscription] = {}
#: (topic, expression type, expression) of everything a member subscribes to, written so that equal wishes are equal.
Wish = frozenset[tuple[str, str, str]]


class Member(Generic[C]):
    """One connection that speaks for one client id in one group."""

    __slots__ = ("client_id", "connection", "group", "language", "peer", "seen", "version", "weight", "wish")

    def __init__(
        self, group: str, connection: C, client_id: str, language: int, version: int, peer: str, seen: float
    ) -> None:
        self.group = group
        self.connection = connection
        self.client_id = client_id
        self.language = language
        self.version = version
        self.peer = peer
        self.seen = seen
        #: Bytes that its subscriptions take, about.
        self.weight = 0
        #: What it subscribes to, for comparing members; None until it says.
        self.wish: Wish | None = None


class ConsumerGroup(Generic[C]):
    """The members and subscriptions of one consumer group that has members."""

    __slots__ = (
        "_ids", "_is_new", "_reported", "_wishes", "consume_from_where", "consume_type", "fingerprint", "members",
        "message_model", "name", "subscriptions",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.consume_type = CONSUME_PASSIVELY
        self.message_model = CLUSTERING
        self.consume_from_where = CONSUME_FROM_LAST_OFFSET
        self.members: dict[C, Member[C]] = {}
        self._ids: list[str] | None = None
        self.subscriptions: dict[str, Subscription] = {}
        #: Of the last heartbeat of version 2; None when there was none.
        self.fingerprint: int | None = None
        self._wishes: dict[Wish, dict[C, Member[C]]] = {}
        self._reported: frozenset[Wish] = frozenset()
        self._is_new = False  # there is a wish, or one is gone, since they were compared: 16,000 take 2 ms

    def client_ids(self) -> list[str]:
        """In order, the same list, which nobody changes, until a member comes or goes: of 16,000 all ask then."""
        if self._ids is None:
            self._ids = sorted({member.client_id for member in self.members.values()})
        return self._ids

    def put(self, member: Member[C]) -> None:
        self.members[member.connection], self._ids = member, None

    def pop(self, connection: C) -> Member[C] | None:
        self._ids = None
        return self.members.pop(connection, None)

    def subscribe(self, wanted: Iterable[SubscriptionData], compiled: Mapping[str, Subscription]) -> bool:
        """Newer subscription versions win, topics that are gone are forgotten. True when the set of topics changed.
        Some of them are ``compiled``, by their topics."""
        changed = False
        topics = set()
        for data in wanted:
            topics.add(data.topic)
            known = self.subscriptions.get(data.topic)
            if known is None:
                changed = True
            if known is None or known.version < data.sub_version:
                ready = compiled.get(data.topic)
                self.subscriptions[data.topic] = ready if ready and ready.data is data else Subscription(data)
        for topic in [topic for topic in self.subscriptions if topic not in topics]:
            del self.subscriptions[topic]
            changed = True
        return changed

    def wants(self, member: Member[C], wish: Wish | None) -> None:
        """Remember what one member subscribes to; None when it is gone."""
        if member.wish == wish:
            return
        if member.wish is not None:
            agreeing = self._wishes[member.wish]
            del agreeing[member.connection]
            if not agreeing:
                del self._wishes[member.wish]
                self._is_new = True
        if wish is not None:
            self._is_new = self._is_new or wish not in self._wishes
            self._wishes.setdefault(wish, {})[member.connection] = member
        member.wish = wish

    def without_offset(self, offsets: ConsumerOffsets) -> list[str]:
        """What its members subscribe to and have no offset in: who hangs on the first message has none yet. Those of a
        broadcasting group keep theirs."""
        if self.message_model != CLUSTERING:
            return []
        return [name for name in self.subscriptions if not offsets.width(self.name, name)]

    @property
    def differs(self) -> bool:
        """Whether its members subscribe to different things."""
        return len(self._wishes) > 1

    def difference(self) -> str:
        """Who subscribes to what where members of the group disagree, "" when they do not.

        Every member must subscribe to the same: queues are shared out as if they did, and messages of the topic or tag
        that a queue's owner does not want are lost to the group.
        """
        if not self.differs:
            return ""
        texts = [
            f"{_some({member.client_id for member in agreeing.values()})} subscribe to {_said(wish)}"
            for wish, agreeing in islice(self._wishes.items(), _MANY)
        ]
        more = len(self._wishes) - len(texts)
        return "; ".join([*texts, f"{more} more subscribe to other things"] if more else texts)

    def new_difference(self) -> str:
        """The same, once for each change of what they disagree about."""
        if not self._is_new:
            return ""
        self._is_new = False
        if len(self._wishes) < 2:
            self._reported = frozenset()
            return ""
        wishes = frozenset(self._wishes)
        if wishes == self._reported:
            return ""
        self._reported = wishes
        return self.difference()


class GroupTable(Generic[C]):
    """All groups of one kind, with their members' leases. Effects come back as the names of groups whose members must
    be told."""

    def __init__(self, expiry: float, limits: Limits | None = None) -> None:
        self._expiry = expiry
        self._limits = limits or Limits()
        #: Bytes that the subscriptions of all members take, and those of each connection.
        self._weight = 0
        self._weights: dict[C, int] = {}
        self._groups: dict[str, ConsumerGroup[C]] = {}
        self._by_age: OrderedDict[tuple[str, C], Member[C]] = OrderedDict()
        self._by_connection: dict[C, set[str]] = {}
        self._by_client: dict[str, dict[tuple[str, C], Member[C]]] = {}
        #: Bound once: the pull path calls it per request.
        self.get = self._groups.get

    def __iter__(self) -> Iterator[ConsumerGroup[C]]:
        return iter(self._groups.values())

    def refusal(
        self, group: str, connection: C, client_id: str, subscriptions: Sequence[SubscriptionData] = ()
    ) -> Refusal | None:
        """Why this heartbeat would hold more here than anybody may."""
        limits = self._limits
        what = f"group {group:.255} of client {client_id:.100}"
        if len(client_id) > limits.client_id:
            return full("client_id", limits.client_id, f"{what}: an id of {len(client_id)} characters")
        if not is_group_name(group):
            return Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"group {group!r:.300}: 1 to {LONGEST_GROUP} of the characters % | a-z A-Z 0-9 _ - are allowed",
            )
        entry = self._groups.get(group)
        member = entry.members.get(connection) if entry is not None else None
        if member is None:
            if len(self._by_age) >= limits.members:
                return full("members", limits.members, what)
            if len(self._by_connection.get(connection, ())) >= limits.groups_per_connection:
                return full("groups_per_connection", limits.groups_per_connection, what)
        if len(subscriptions) > limits.subscriptions:
            return full("subscriptions", limits.subscriptions, f"{what} subscribes to {len(subscriptions)} topics")
        for data in subscriptions:
            if len(data.topic) > LONGEST_GROUP + len(RETRY_PREFIX):
                return Refusal(ResponseCode.INVALID_PARAMETER, f"{what}: no topic is called {data.topic!r:.200}")
            if (refusal := filter_refusal(data.sub_string, limits)) is not None:
                return refusal
            if max(len(data.tags_set), len(data.code_set)) > limits.filter_tags:
                return full("filter_tags", limits.filter_tags, f"{what}: {len(data.tags_set)} tags of {data.topic}")
        held = member.weight if member is not None else 0
        more, most = sum(map(weight_of, subscriptions)) - held, limits.filter_memory
        if more <= 0 or self._weight + more <= shares.begins(most):
            return None
        who = {"filter_memory": self._weights.get(connection, 0)}
        return shares.refusal("filter_memory", most, self._weight, f"{what}: its subscriptions", who, more=more)

    def is_new(self, group: str, data: SubscriptionData) -> bool:
        """Whether a subscription is to be compiled when it is registered."""
        entry = self._groups.get(group)
        known = None if entry is None else entry.subscriptions.get(data.topic)
        return known is None or known.version < data.sub_version

    def register(
        self,
        group: str,
        *,
        connection: C,
        client_id: str,
        now: float,
        language: int = 0,
        version: int = 0,
        peer: str = "",
        subscriptions: Iterable[SubscriptionData] | None = None,
        compiled: Mapping[str, Subscription] = _NONE,
        consume_type: str = CONSUME_PASSIVELY,
        message_model: str = CLUSTERING,
        consume_from_where: str = CONSUME_FROM_LAST_OFFSET,
    ) -> bool:
        """A heartbeat. True when the other members must rebalance: a new member, or another set of subscribed topics.

        A mere change of subscription versions is not one: every rebalance changes them, so telling would never end.
        """
        entry = self._groups.get(group)
        if entry is None:
            entry = self._groups[group] = ConsumerGroup(group)
        member = entry.members.get(connection)
        changed = member is None or member.client_id != client_id
        if member is None or changed:
            if member is not None:
                entry.wants(member, None)
                self._forget_client(member)
                self._weighs(member, 0)
            member = Member(group, connection, client_id, language, version, peer, now)
            entry.put(member)
            self._by_connection.setdefault(connection, set()).add(group)
            self._by_client.setdefault(client_id, {})[group, connection] = member
        member.seen = now
        self._by_age[group, connection] = member
        self._by_age.move_to_end((group, connection))
        if subscriptions is not None:
            subscriptions = list(subscriptions)
            entry.wants(member, _wish(group, subscriptions))
            self._weighs(member, sum(map(weight_of, subscriptions)))
            entry.consume_type = consume_type
            entry.message_model = message_model
            entry.consume_from_where = consume_from_where
            if entry.subscribe(subscriptions, compiled):
                changed = True
        return changed

    def unregister(self, group: str, connection: C) -> bool:
        """True when it was a member, so that the others must be told."""
        return self._remove(group, connection)

    def lost(self, connection: C) -> list[str]:
        """A connection closed: the groups it was in."""
        return [group for group in sorted(self._by_connection.get(connection, ())) if self._remove(group, connection)]

    def expire(self, now: float) -> list[str]:
        """Forget members whose last heartbeat is older than the expiry: the groups that lost some. Of very many it is
        some, and ``next_deadline`` is over still."""
        groups: dict[str, None] = {}
        for _ in range(min(len(self._by_age), A_TURN)):
            (group, connection), member = next(iter(self._by_age.items()))
            if member.seen + self._expiry > now:
                break
            self._remove(group, connection)
            groups[group] = None
        return list(groups)

    def next_deadline(self) -> float | None:
        for member in self._by_age.values():
            return member.seen + self._expiry
        return None

    def find_client(self, client_id: str) -> C | None:
        """The connection on which a client id was registered last, in whatever group; None when it is not known."""
        known = self._by_client.get(client_id)
        return next(reversed(known.values())).connection if known else None

    def _weighs(self, member: Member[C], weight: int) -> None:
        more = weight - member.weight
        self._weight += more
        self._weights[member.connection] = self._weights.get(member.connection, 0) + more
        member.weight = weight

    def _forget_client(self, member: Member[C]) -> None:
        known = self._by_client[member.client_id]
        del known[member.group, member.connection]
        if not known:
            del self._by_client[member.client_id]

    def _remove(self, group: str, connection: C) -> bool:
        entry = self._groups.get(group)
        member = entry.pop(connection) if entry is not None else None
        if entry is None or member is None:
            return False
        entry.wants(member, None)
        self._forget_client(member)
        self._weighs(member, 0)
        del self._by_age[group, connection]
        groups = self._by_connection[connection]
        groups.discard(group)
        if not groups:
            del self._by_connection[connection], self._weights[connection]
        if not entry.members:
            del self._groups[group]
        return True


def differences(groups: Iterable[ConsumerGroup[C]]) -> Iterator[tuple[str, str]]:
    """Groups whose members disagree, and about what; of more than some the first."""
    return ((group.name, group.difference()) for group in islice((each for each in groups if each.differs), _SAID))


def weight_of(data: SubscriptionData) -> int:
    """Bytes, about, that a subscription takes here: its text, a set of tags, which need not be those of the text, or a
    compiled expression (200 to 300 for a name, constant or operator: 60 of a character in usual ones, 120 in those of
    short words)."""
    size = max(len(data.sub_string), sum(map(len, data.tags_set))) + len(data.expression_type or "")
    compiled = 0 if is_tag_type(data.expression_type) else 80 * len(data.sub_string)
    return 300 + 2 * size + 150 * len(data.code_set) + compiled


def filter_refusal(expression: str | None, limits: Limits) -> Refusal | None:
    """Why an expression is too long."""
    if expression is None or len(expression) <= limits.filter_length:
        return None
    return Refusal(
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        f"a filter expression of {len(expression)} characters: the broker's limit filter_length="
        f"{limits.filter_length} is lower",
    )


def is_tag_type(expression_type: str | None) -> bool:
    """A missing type means TAG (ali-ons sends none)."""
    return not expression_type or expression_type == TAG


def _wish(group: str, subscriptions: Iterable[SubscriptionData]) -> Wish:
    own = retry_topic(group)
    return frozenset(
        (
            data.topic,
            TAG if is_tag_type(data.expression_type) else data.expression_type,
            " || ".join(sorted(data.tags_set)) or "*" if is_tag_type(data.expression_type) else data.sub_string,
        )
        for data in subscriptions
        if data.topic != own
    )


def _said(wish: Wish) -> str:
    return _some([f"{topic} ({kind} {expression:.100})" for topic, kind, expression in wish]) if wish else "nothing"


def _some(texts: Collection[str]) -> str:
    first = nsmallest(_MANY, texts)
    return ", ".join(first) if len(texts) <= _MANY else f"{', '.join(first[:-1])} and {len(texts) - _MANY + 1} more"
