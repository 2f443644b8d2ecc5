"""Do the members of a group want the same? If not, each heartbeat replaces what the others asked for, and messages are
passed over without anybody noticing."""

from __future__ import annotations

from collections.abc import Iterable

from aiorocket_protocol import TAG, ConsumerConnection, ConsumerData, SubscriptionData

__all__ = ("differences",)


def differences(mine: ConsumerData, theirs: ConsumerConnection, retry_topic: str) -> list[str]:
    """What a member that joins with ``mine`` would want otherwise than those that are there, one sentence each."""
    found = []
    if theirs.message_model and theirs.message_model != mine.message_model:
        found.append(f"they are {theirs.message_model}, this member is {mine.message_model}")
    here = {each.topic: each for each in _without(mine.subscriptions, retry_topic)}
    there = {each.topic: each for each in _without(theirs.subscriptions.values(), retry_topic)}
    for topic in sorted(here.keys() | there.keys()):
        ours, other = here.get(topic), there.get(topic)
        if ours is None:
            found.append(f"they subscribe to {topic!r}, this member does not")
        elif other is None:
            found.append(f"this member subscribes to {topic!r}, they do not")
        elif _filter(ours) != _filter(other):
            found.append(
                f"of {topic!r} they take {other.expression_type} {other.sub_string!r}, "
                f"this member {ours.expression_type} {ours.sub_string!r}"
            )
    return found


def _without(subscriptions: Iterable[SubscriptionData], topic: str) -> list[SubscriptionData]:
    return [each for each in subscriptions if each.topic != topic]


def _filter(subscription: SubscriptionData) -> tuple[str, object]:
    """Tags in any order are the same filter."""
    tags = subscription.expression_type == TAG and subscription.tags_set
    return subscription.expression_type, tags if tags else subscription.sub_string
