"""What administrators set for consumer groups: their settings, and which topics they may not read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from aiorocket.broker.core import shares
from aiorocket.broker.core.attributes import AttributeRoom
from aiorocket.broker.core.names import LONGEST_GROUP, Refusal, full, is_group_name, is_system_group
from aiorocket.broker.core.shares import Holds
from aiorocket.broker.core.topics import MAX_QUEUES
from aiorocket.config import Limits
from aiorocket_protocol import SYSTEM_GROUPS, ResponseCode
from aiorocket_protocol.plain import Plain

__all__ = ("GroupConfig", "GroupConfigs")


class GroupConfig(NamedTuple):
    """What an administrator can set for a consumer group; the defaults are RocketMQ's."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queues: int = 1
    retry_max_times: int = 16
    notify_changes: bool = True
    attributes: Mapping[str, str] = {}
    #: What Apache's proxy asks: it has the gRPC clients of such a group consume in order.
    consume_orderly: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The keys of RocketMQ's SubscriptionGroupConfig JSON."""
        return {
            "attributes": dict(self.attributes),
            "brokerId": 0,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min_enable,
            "consumeMessageOrderly": self.consume_orderly,
            "consumeTimeoutMinute": 15,
            "groupName": self.name,
            "groupRetryPolicy": {"type": "CUSTOMIZED"},
            "groupSysFlag": 0,
            "notifyConsumerIdsChangedEnable": self.notify_changes,
            "retryMaxTimes": self.retry_max_times,
            "retryQueueNums": self.retry_queues,
            "whichBrokerWhenConsumeSlowly": 1,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GroupConfig:
        """ProtocolError names the member that is of another type."""
        plain = Plain(dict(data), "SubscriptionGroupConfig")
        return cls(
            name=plain.text("groupName"),
            consume_enable=plain.flag("consumeEnable", True),
            consume_from_min_enable=plain.flag("consumeFromMinEnable", True),
            consume_broadcast_enable=plain.flag("consumeBroadcastEnable", True),
            retry_queues=plain.number("retryQueueNums", 1),
            retry_max_times=plain.number("retryMaxTimes", 16),
            notify_changes=plain.flag("notifyConsumerIdsChangedEnable", True),
            attributes=plain.text_table("attributes"),
            consume_orderly=plain.flag("consumeMessageOrderly"),
        )


class GroupConfigs:
    """Name → GroupConfig; an unknown group is made with defaults on first use, unless ``auto_create`` is off
    (autoCreateSubscriptionGroup)."""

    def __init__(
        self,
        retry_max_times: int,
        auto_create: bool = True,
        most: int = Limits().groups,
        most_attributes: int = Limits().attributes,
        most_forbidden: int = Limits().forbidden,
    ) -> None:
        self._most = most
        self._most_forbidden = most_forbidden
        self._attributes = AttributeRoom(most_attributes)
        self.auto_create = auto_create
        self._retry_max_times = retry_max_times
        self._configs: dict[str, GroupConfig] = {}
        #: (group, topic) of what a group may not read, as an administrator said.
        self.forbidden: set[tuple[str, str]] = set()
        self.version = 0
        #: Bound once: the pull path calls it per request.
        self.get = self._configs.get

    def __iter__(self) -> Iterator[GroupConfig]:
        return iter(self._configs.values())

    def ensure(self, group: str, who: Holds | None = None) -> GroupConfig | Refusal:
        """The group's, made for ``who`` uses it first."""
        config = self._configs.get(group)
        if config is not None:
            return config
        if not is_group_name(group):
            return Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"group {group!r:.300}: 1 to {LONGEST_GROUP} of the characters % | a-z A-Z 0-9 _ - are allowed",
            )
        if not self.auto_create and not is_system_group(group):
            return Refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{group}] does not exist, and groups are not created by being used here: "
                "create it first",
            )
        if (refusal := self._full(group, who)) is not None:
            return refusal
        config = GroupConfig(group, retry_max_times=self._retry_max_times)
        self._configs[group] = config
        shares.take(who, "groups")
        self.version += 1
        return config

    def _full(self, group: str, who: Holds | None) -> Refusal | None:
        return shares.refusal("groups", self._most, len(self._configs), f"group {group} is not made", who)

    def put(self, config: GroupConfig, who: Holds | None = None) -> Refusal | None:
        """An administrator's create or update."""
        if not is_group_name(config.name):
            return Refusal(ResponseCode.INVALID_PARAMETER, f"group {config.name!r:.300}: illegal characters or length")
        if not _in_range(config):
            return Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"retryQueueNums {config.retry_queues} for group {config.name}: 0 to {MAX_QUEUES} are allowed",
            )
        known = self._configs.get(config.name)
        if known is None and (refusal := self._full(config.name, who)) is not None:
            return refusal
        had = None if known is None else known.attributes
        refusal = self._attributes.refusal([(f"group {config.name}", had, config.attributes)])
        if refusal is not None:
            return refusal
        if known != config:
            self._attributes.replaced(had, config.attributes)
            self._configs[config.name] = config
            self.version += 1
        if known is None:
            shares.take(who, "groups")
        return None

    def delete(self, group: str) -> bool:
        config = None if group in SYSTEM_GROUPS else self._configs.pop(group, None)
        if config is None:
            return False
        self._attributes.replaced(config.attributes, None)
        self.forbidden.difference_update([pair for pair in self.forbidden if pair[0] == group])
        self.version += 1
        return True

    def forbid(self, group: str, topic: str) -> Refusal | None:
        """``group`` may no longer read ``topic``."""
        if (group, topic) not in self.forbidden:
            if len(self.forbidden) >= self._most_forbidden:
                return full("forbidden", self._most_forbidden, f"group {group} is not kept from topic {topic}")
            self.forbidden.add((group, topic))
            self.version += 1
        return None

    def allow(self, group: str, topic: str) -> None:
        if (group, topic) in self.forbidden:
            self.forbidden.remove((group, topic))
            self.version += 1

    def forbidden_table(self) -> dict[str, dict[str, int]]:
        """Group → topic → bits of what is forbidden, RocketMQ's forbiddenTable."""
        return _table(self.forbidden)

    def to_dict(self) -> dict[str, Any]:
        return self.later()()

    def later(self) -> Callable[[], dict[str, Any]]:
        """``to_dict`` of now, for another thread."""
        configs, forbidden = list(self._configs.values()), self.forbidden.copy()

        def plain() -> dict[str, Any]:
            more = {"forbiddenTable": _table(forbidden)} if forbidden else {}
            return {"groups": [config.to_dict() for config in configs], **more}

        return plain

    def load(self, data: Mapping[str, Any]) -> None:
        for item in data.get("groups", ()):
            config = GroupConfig.from_dict(item)
            if is_group_name(config.name) and _in_range(config):
                self._attributes.replaced(None, config.attributes)
                self._configs[config.name] = config
        for group, topics in data.get("forbiddenTable", {}).items():
            self.forbidden.update((group, topic) for topic, bits in topics.items() if bits & _READ)


#: The bit of reading in a forbiddenTable.
_READ = 1 << 2


def _table(forbidden: Iterable[tuple[str, str]]) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = {}
    for group, topic in sorted(forbidden):
        table.setdefault(group, {})[topic] = _READ
    return table


def _in_range(config: GroupConfig) -> bool:
    return 0 <= config.retry_queues <= MAX_QUEUES
