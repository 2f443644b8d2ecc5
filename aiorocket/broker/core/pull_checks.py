"""What a broker checks before it reads for a pull, in RocketMQ's order (5.3); the first check that fails answers."""

from __future__ import annotations

from aiorocket.broker.core.groups import BROADCASTING, ConsumerGroup, GroupConfig, Subscription, is_tag_type
from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.topics import Topic
from aiorocket_protocol import ResponseCode, SubscriptionData

__all__ = (
    "FLAG_COMMIT",
    "FLAG_SUBSCRIPTION",
    "FLAG_SUSPEND",
    "check_access",
    "parse_subscription",
    "registered_subscription",
)

#: Bits of a pull's sysFlag (5.1).
FLAG_COMMIT = 1
FLAG_SUSPEND = 2
FLAG_SUBSCRIPTION = 4


def check_access(config: GroupConfig, topic: Topic | None, name: str, queue_id: int) -> Refusal | None:
    """Checks 4 to 7: may this group read this queue at all."""
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
    return None


def parse_subscription(
    topic: str, expression: str | None, expression_type: str | None, version: int
) -> Subscription | Refusal:
    """Check 8a and 9: the request brings its own expression."""
    if not is_tag_type(expression_type):
        return Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {expression_type}: only TAG is served",
        )
    try:
        return Subscription(SubscriptionData.parse(topic, expression or "*", version))
    except ValueError as error:
        return Refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {error}")


def registered_subscription(
    group: str, config: GroupConfig, live: ConsumerGroup | None, topic: str, version: int
) -> Subscription | Refusal:
    """Checks 8b to 8e and 9: the subscription comes from the group's heartbeats."""
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
        return Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {known.data.expression_type}, only by TAG",
        )
    return known
