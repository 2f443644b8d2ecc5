"""What a broker checks before it stores a message, in RocketMQ's order; the first check that fails answers.

The send path tests ``Topic.plain`` and the queue's range itself and comes here only when one of them does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import NamedTuple

from aiorocket.broker.core.group_configs import GroupConfigs
from aiorocket.broker.core.names import Refusal, is_forbidden, is_topic_name
from aiorocket.broker.core.retry_policy import for_retry_send
from aiorocket.broker.core.shares import Holds
from aiorocket.broker.core.timers import TIMER_PROPERTIES
from aiorocket.broker.core.topics import Topic, TopicTable
from aiorocket_protocol import (
    DEFAULT_REGION,
    DLQ_PREFIX,
    PERM_WRITE,
    PROPERTY_CLUSTER,
    PROPERTY_DELAY,
    PROPERTY_MSG_REGION,
    PROPERTY_TAGS,
    PROPERTY_TRACE_ON,
    RETRY_PREFIX,
    BatchItem,
    ResponseCode,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    find_property,
)
from aiorocket_protocol.fast import twin
from aiorocket_protocol.limits import MAX_PROPERTIES

__all__ = (
    "Admitted",
    "SendFacts",
    "SendHeader",
    "added_properties",
    "admit",
    "batch_codes",
    "check_sizes",
    "no_timer",
    "property_value",
    "unserved_batch",
)

#: Characters that the tags of a batch may have: each different one counts once, and more than it has, and what looks
#: like one counts beside them. 8,192 that differ took 60 to 110 ms.
TAGS_OF_BATCH, _A_TAG, _A_NEW_TAG = 192 << 10, 8, 32
_TAG_NAME = PROPERTY_TAGS.encode()
_TAGS, _END = _TAG_NAME + b"\1", 2

#: Both forms of the header of a send.
SendHeader = SendMessageRequestHeader | SendMessageRequestHeaderV2


class SendFacts(NamedTuple):
    """What a send says of itself. ``draw`` is any non-negative number; it picks the queue when the sender leaves it
    open."""

    topic: str
    default_topic: str
    default_queues: int
    queue_id: int
    reconsume_times: int
    max_reconsume_times: int | None
    client_version: int
    draw: int
    unit_mode: bool = False


class Admitted(NamedTuple):
    """``dead`` means the message goes to the dead letters instead, and waits for nothing."""

    topic: Topic
    queue_id: int
    dead: bool


def admit(
    topics: TopicTable,
    configs: GroupConfigs,
    facts: SendFacts,
    has_locks: Callable[[str], bool] = lambda group: False,
    who: Holds | None = None,
) -> Admitted | Refusal:
    """Where the message goes; creates topics and groups that may come into being by being used.

    ``has_locks(group)`` says whether somebody holds a queue of the group, that is: whether it consumes in order.
    ``who`` asks on its connection.
    """
    name = facts.topic
    if is_forbidden(name):
        return Refusal(ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
    topic = topics.get(name)
    if topic is None:
        of_group = False
        if name.startswith(RETRY_PREFIX) and is_topic_name(name):
            if isinstance(config := configs.ensure(name.removeprefix(RETRY_PREFIX), who), Refusal):
                return config
            of_group = True
        elif name.startswith(DLQ_PREFIX):
            of_group = configs.get(name.removeprefix(DLQ_PREFIX)) is not None
        made = topics.create_on_send(
            name, facts.default_topic, facts.default_queues, unit_mode=facts.unit_mode, of_group=of_group, who=who
        )
        if isinstance(made, Refusal):
            return made
        topic = made
    if not topic.perm & PERM_WRITE:
        advice = f"`aiorocket topic update {name} --permission RW` lets it be written"
        return Refusal(ResponseCode.NO_PERMISSION, f"topic[{name}] is not writable (perm {topic.perm}): {advice}")
    queue_id = facts.queue_id
    if queue_id >= topic.max_queues:
        return Refusal(
            ResponseCode.INVALID_PARAMETER,
            f"request queueId[{queue_id}] is illegal, topic[{name}] has queues 0 to {topic.max_queues - 1}",
        )
    if queue_id < 0:
        queue_id = facts.draw % max(1, topic.write_queues)
    if name.startswith(RETRY_PREFIX):
        config = configs.ensure(name[len(RETRY_PREFIX) :], who)
        if isinstance(config, Refusal):
            return config
        dead = for_retry_send(
            config,
            reconsume_times=facts.reconsume_times,
            limit=facts.max_reconsume_times,
            client_version=facts.client_version,
            locked=has_locks(config.name),
        )
        if dead is not None:
            return Admitted(topics.ensure(dead.topic, dead.queues), 0, True)
    return Admitted(topic, queue_id, False)


def check_sizes(body: int, properties: int, max_body: int) -> Refusal | None:
    """Sizes in bytes of what would be stored."""
    if body > max_body:
        return Refusal(ResponseCode.MESSAGE_ILLEGAL, f"message body of {body} bytes: this broker accepts {max_body}")
    if properties > MAX_PROPERTIES:
        return Refusal(
            ResponseCode.MESSAGE_ILLEGAL,
            f"message properties of {properties} bytes: at most {MAX_PROPERTIES} can be stored",
        )
    return None


def added_properties(cluster: str) -> dict[str, str]:
    """What a broker adds to a message: a reply finds its way by the first, Java's consumers trace by the others."""
    return {PROPERTY_CLUSTER: cluster, PROPERTY_MSG_REGION: DEFAULT_REGION, PROPERTY_TRACE_ON: "true"}


@twin
def property_value(properties: str, name: str) -> str | None:
    """The value of ``name`` in a property string, None when it is absent; the last one that is not empty wins, as in
    every parser.

    The caller has seen ``name`` + 0x01 in the string already, so this runs only when there is something to find.
    """
    mark = name + "\x01"
    end = len(properties)
    while (at := properties.rfind(mark, 0, end)) >= 0:
        if at == 0 or properties[at - 1] == "\x02":
            start = at + len(mark)
            stop = properties.find("\x02", start)
            if value := properties[start:] if stop < 0 else properties[start:stop]:
                return value
        end = at
    return None


def no_timer(values: Container[str], what: str) -> Refusal | None:
    """Promises this broker cannot keep are refused, never broken in silence."""
    name = next((name for name in TIMER_PROPERTIES if name in values), None)
    if name is None:
        return None
    return Refusal(ResponseCode.MESSAGE_ILLEGAL, f"{what} cannot be a timer message (property {name})")


def unserved_batch(every: bytes) -> Refusal | None:
    """``every`` is all property strings of a batch, each behind a separator: to read 4 MiB of them took 0.3 s."""
    found = {name for name in (PROPERTY_DELAY, *TIMER_PROPERTIES) if b"\2%b\1" % name.encode() in every}
    if PROPERTY_DELAY in found:
        return Refusal(ResponseCode.MESSAGE_ILLEGAL, "a message of a batch cannot be delayed (property DELAY)")
    return no_timer(found, "a message of a batch")


def batch_codes(topic: Topic, messages: Iterable[BatchItem], tags: int) -> list[int] | Refusal:
    """The tags code of each message of a batch, in which ``tags`` places look like one."""
    codes: list[int] = []
    known, left = dict[bytes | None, int]({None: 0}), TAGS_OF_BATCH - _A_TAG * tags
    for _, _, own in messages:
        at = own.rfind(_TAGS)
        if at < 0:
            codes.append(0)
            continue
        if not at or own[at - 1] == _END:  # as nearly always: a tag's, and the one that counts unless it is empty
            stop = own.find(_END, at)
            code = known.get(own[at + len(_TAGS) :] if stop < 0 else own[at + len(_TAGS) : stop])
            if code is not None:
                codes.append(code)
                continue
        tag = find_property(own, _TAG_NAME) if left >= 0 else None
        if tag is not None and tag not in known:
            left -= _A_NEW_TAG + len(tag)
            name = tag.decode("utf-8", "replace")
            known[tag] = topic.tag_codes.get(name) or topic.tag_code(name)
        if left < 0:
            text = (
                f"a batch with {tags} tags: all may have {TAGS_OF_BATCH} characters, each counts {_A_TAG}, and one "
                f"that differs its length and {_A_NEW_TAG}"
            )
            return Refusal(ResponseCode.MESSAGE_ILLEGAL, text)
        codes.append(known[tag])
    return codes
