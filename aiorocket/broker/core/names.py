"""Topic and group names with a meaning of their own, and the answer a decision gives when it says no."""

from __future__ import annotations

import re
from typing import NamedTuple

from aiorocket_protocol import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    MAX_TOPIC,
    NAME_CHARACTER,
    RETRY_PREFIX,
    REVIVE_TOPIC_PREFIX,
    SYSTEM_GROUP_PREFIX,
    SYSTEM_GROUPS,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    TRACE_TOPIC,
    ResponseCode,
)

__all__ = (
    "FORBIDDEN_TOPICS",
    "LONGEST_GROUP",
    "Refusal",
    "full",
    "is_forbidden",
    "is_group_name",
    "is_system_group",
    "is_system_topic",
    "is_topic_name",
)

#: Nobody but the broker itself writes to these, and to records of pops.
FORBIDDEN_TOPICS = SYSTEM_TOPICS - {AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}

#: RocketMQ allows MAX_GROUP, but %RETRY%group becomes a directory, and those have names of 255 at most.
LONGEST_GROUP = 255 - len(RETRY_PREFIX)

_TOPIC = re.compile(f"{NAME_CHARACTER}{{1,{MAX_TOPIC}}}", re.ASCII)
_GROUP = re.compile(f"{NAME_CHARACTER}{{1,{LONGEST_GROUP}}}", re.ASCII)


class Refusal(NamedTuple):
    """The answer "no": a response code of RocketMQ and a remark that names the value and what to do."""

    code: int
    remark: str


def full(limit: str, most: int, what: str) -> Refusal:
    """``what`` would pass the line ``limit`` of the broker's Limits."""
    return Refusal(ResponseCode.SYSTEM_BUSY, f"{what}: the broker's limit {limit}={most} is reached")


def is_topic_name(name: str) -> bool:
    """A topic becomes a directory of the store, so this whitelist is applied before anything else sees the name."""
    return _TOPIC.fullmatch(name) is not None


def is_group_name(name: str) -> bool:
    return _GROUP.fullmatch(name) is not None


def is_forbidden(topic: str) -> bool:
    """Nobody but the broker itself writes to it."""
    return topic in FORBIDDEN_TOPICS or topic.startswith(REVIVE_TOPIC_PREFIX)


def is_system_topic(name: str) -> bool:
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(name: str) -> bool:
    return name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX)
