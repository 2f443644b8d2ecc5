"""Where a message goes that its consumer could not handle: later to the retry topic, or for good to the dead
letters."""

from __future__ import annotations

from typing import NamedTuple

from aiorocket.broker.core.group_configs import GroupConfig
from aiorocket_protocol import FIRST_RETRY_LEVEL, INT32_MAX, VERSION_WITH_MAX_RECONSUME, dlq_topic, retry_topic

__all__ = ("Destination", "after_failure", "for_retry_send", "once_more")


class Destination(NamedTuple):
    """``delay_level`` 0 stores at once; ``queues`` is how many the topic gets when it must be made."""

    topic: str
    delay_level: int
    queues: int


def after_failure(
    config: GroupConfig, *, reconsume_times: int, delay_level: int, limit: int | None, client_version: int
) -> Destination:
    """For CONSUMER_SEND_MSG_BACK. ``reconsume_times`` is that of the message that failed, 0 on its first delivery; it
    is what its sender wrote, a number below 0 perhaps.

    ``delay_level`` is the consumer's wish: below 0 dead letters, 0 the broker decides, above 0 that level.
    """
    most = limit if limit is not None and client_version >= VERSION_WITH_MAX_RECONSUME else config.retry_max_times
    if reconsume_times >= most or delay_level < 0:
        return Destination(dlq_topic(config.name), 0, 1)
    level = delay_level or FIRST_RETRY_LEVEL + max(0, reconsume_times)
    return Destination(retry_topic(config.name), level, config.retry_queues)


def once_more(reconsume_times: int) -> int:
    """The count of the next delivery: at least 1, and no more than a record can hold."""
    return min(max(0, reconsume_times) + 1, INT32_MAX)


def for_retry_send(
    config: GroupConfig, *, reconsume_times: int, limit: int | None, client_version: int, locked: bool
) -> Destination | None:
    """For an ordinary send to ``%RETRY%group`` (the client's fall-back when a send-back failed): None means "as
    addressed".

    ``reconsume_times`` here is already that of the next delivery, so the limit itself is still allowed. A group with
    live queue locks consumes in order and repeats locally, so what it sends has used up its attempts.
    """
    most = limit if limit is not None and client_version >= VERSION_WITH_MAX_RECONSUME else config.retry_max_times
    if reconsume_times > most or locked:
        return Destination(dlq_topic(config.name), 0, 1)
    return None
