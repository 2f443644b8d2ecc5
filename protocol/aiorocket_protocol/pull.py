"""The request header of a pull (codes 11 and 361), by the names of its fields."""

from __future__ import annotations

from aiorocket_protocol.headers import PullMessageRequestHeader
from aiorocket_protocol.names import ALL_TAGS, PULL_SUBSCRIPTION, TAG

__all__ = ("pull_header",)


def pull_header(
    group: str,
    topic: str,
    queue_id: int,
    offset: int,
    max_messages: int,
    *,
    flags: int = PULL_SUBSCRIPTION,
    commit_offset: int = 0,
    hold_ms: int = 0,
    version: int = 0,
    expression: str | None = ALL_TAGS,
    expression_type: str | None = TAG,
    max_bytes: int | None = None,
) -> PullMessageRequestHeader:
    """Everything from ``offset`` on, at once, unless more is said. ``flags`` are the PULL_ bits: ``commit_offset``
    counts with PULL_COMMIT only, ``hold_ms`` with PULL_SUSPEND, ``expression`` with PULL_SUBSCRIPTION; without that the
    broker takes what heartbeats said, at least of this ``version``. Apache's brokers have limits of their own below
    ``max_messages`` and ``max_bytes``."""
    return PullMessageRequestHeader(
        group, topic, queue_id, offset, max_messages, flags, commit_offset, hold_ms, version, expression,
        expression_type, max_bytes,
    )  # fmt: skip
