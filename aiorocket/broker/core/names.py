"""Topic and group names with a meaning of their own, and the answer a decision gives when it says no."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = (
    "AUTO_CREATE_TOPIC",
    "DLQ_PREFIX",
    "FORBIDDEN_TOPICS",
    "RETRY_PREFIX",
    "SCHEDULE_TOPIC",
    "SYSTEM_GROUPS",
    "Refusal",
    "dlq_topic",
    "is_group_name",
    "is_system_topic",
    "is_topic_name",
    "retry_topic",
)

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
AUTO_CREATE_TOPIC = "TBW102"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"

#: Nobody but the broker itself writes to these.
FORBIDDEN_TOPICS = frozenset(
    {
        SCHEDULE_TOPIC,
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
SYSTEM_TOPICS = FORBIDDEN_TOPICS | {AUTO_CREATE_TOPIC, "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC"}
SYSTEM_GROUPS = frozenset(
    {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_RMQ_SYS_TRANS",
    }
)

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
    return name in SYSTEM_TOPICS or name.startswith("rmq_sys_")


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group
