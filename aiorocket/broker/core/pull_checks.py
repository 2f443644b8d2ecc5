"""What a broker checks before it reads for a pull, in RocketMQ's order; the first check that fails answers."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from aiorocket.broker.core.group_configs import GroupConfig
from aiorocket.broker.core.groups import ConsumerGroup, Subscription, is_tag_type
from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.topics import Topic
from aiorocket_protocol import ALL_TAGS, BROADCASTING, SQL92, ResponseCode, SubscriptionData

__all__ = (
    "check_access",
    "check_filter_type",
    "parse_subscription",
    "registered_subscription",
)


def check_access(
    config: GroupConfig, topic: Topic | None, name: str, queue_id: int, forbidden: Container[tuple[str, str]]
) -> Refusal | None:
    """May this group read this queue at all? The first checks of a pull."""
    if not config.consume_enable:
        return Refusal(ResponseCode.NO_PERMISSION, f"subscription group no permission, {config.name}")
    if topic is None:
        return Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!")
    if not topic.readable:
        return Refusal(ResponseCode.NO_PERMISSION, f"the topic[{name}] pulling message is forbidden")
    if not 0 <= queue_id < topic.read_queues:
        return Refusal(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{queue_id}] is illegal, topic:[{name}] topicConfig.readQueueNums:[{topic.read_queues}]",
        )
    if (config.name, name) in forbidden:
        return Refusal(ResponseCode.NO_PERMISSION, f"the consumer group[{config.name}] is forbidden for topic[{name}]")
    return None


def check_filter_type(kind: str | None, property_filter: bool) -> Refusal | None:
    """The last check: filters other than TAG have to be switched on, and of those there is only SQL92."""
    if is_tag_type(kind) or (kind == SQL92 and property_filter):
        return None
    why = "only TAG and SQL92 are served" if property_filter else "property_filter is off here, only TAG is served"
    return Refusal(
        ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {kind!s:.50}: {why}"
    )


def parse_subscription(
    topic: str, expression: str | None, expression_type: str | None, version: int, property_filter: bool = True
) -> Subscription | Refusal:
    """The request brings its own expression."""
    if not is_tag_type(expression_type):
        known = Subscription(SubscriptionData(topic, expression or "", sub_version=version, expression_type=SQL92))
        if known.error and expression_type == SQL92:
            return Refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription: {known.error}")
        return check_filter_type(expression_type, property_filter) or known
    try:
        return Subscription(SubscriptionData.parse(topic, expression or ALL_TAGS, version))
    except ValueError as error:
        return Refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {error}")


def registered_subscription(
    group: str,
    config: GroupConfig,
    live: ConsumerGroup[Any] | None,
    topic: str,
    version: int,
    property_filter: bool = True,
) -> Subscription | Refusal:
    """The subscription comes from the group's heartbeats."""
    if live is None:
        return Refusal(
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            f"the consumer's group info not exist: no heartbeat of group {group} has arrived yet",
        )
    if live.message_model == BROADCASTING and not config.consume_broadcast_enable:
        return Refusal(ResponseCode.NO_PERMISSION, f"the consumer group[{group}] can not consume by broadcast way")
    known = live.subscriptions.get(topic)
    if known is None:
        return Refusal(
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            f"the consumer's subscription not exist: {group} does not subscribe {topic}",
        )
    if known.version < version:
        return Refusal(
            ResponseCode.SUBSCRIPTION_NOT_LATEST,
            f"the consumer's subscription not latest: heartbeats of {group} brought version {known.version}, "
            f"the pull has {version}",
        )
    if not known.is_tag:
        if known.error:  # 8f: at Apache's such a subscription never gets filter data
            return Refusal(
                ResponseCode.FILTER_DATA_NOT_EXIST,
                f"The broker's consumer filter data is not exist! Your expression may be wrong: {known.error}",
            )
        return check_filter_type(known.data.expression_type, property_filter) or known
    return known
