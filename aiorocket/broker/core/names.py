"""Topic and group names with a meaning of their own, and the answer a decision gives when it says no."""

from __future__ import annotations

import re
from typing import NamedTuple

from aiorocket_protocol import AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS, TRACE_TOPIC

__all__ = (
    "FORBIDDEN_TOPICS",
    "Refusal",
    "is_group_name",
    "is_system_topic",
    "is_topic_name",
)

#: Nobody but the broker itself writes to these.
FORBIDDEN_TOPICS = SYSTEM_TOPICS - {AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}

_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,127}", re.ASCII)
# RocketMQ allows 255, but %RETRY%group becomes a directory, and no file system of ours has longer names than 255.
_GROUP = re.compile(r"[%|a-zA-Z0-9_-]{1,248}", re.ASCII)


class Refusal(NamedTuple):
    """The answer "no": a response code of RocketMQ and a remark that names the value and what to do."""

    code: int
    remark: str


def is_topic_name(name: str) -> bool:
    """A topic becomes a directory of the store, so this whitelist is applied before anything else sees the name."""
    return _TOPIC.fullmatch(name) is not None


def is_group_name(name: str) -> bool:
    return _GROUP.fullmatch(name) is not None


def is_system_topic(name: str) -> bool:
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX)
