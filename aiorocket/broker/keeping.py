"""What the store must keep although it is old, and for how long topics keep their messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from aiorocket.broker.core.tables import Tables
from aiorocket.storage.retention import Retention
from aiorocket_protocol import HALF_TOPIC, OP_TOPIC, REVIVE_GROUP, SCHEDULE_TOPIC, TIMER_TOPIC, revive_topic

__all__ = ("RESERVE_TIME", "keep", "needed", "reserved")

#: Topic attribute: hours that its messages are kept; without it, or when it is not above 0, as long as the broker's
#: fileReservedTime says. (RocketMQ has the attribute for its tiered store.)
RESERVE_TIME = "reserve.time"


def keep(retention: Retention, tables: Tables, cluster: str, save_sent: Callable[[], Awaitable[None]]) -> None:
    """Have the store keep what these say, from now on, and nothing go before ``save_sent`` has ended, or failed: a
    start learns from the log which messages of idempotent producers were stored since the last save."""

    async def before() -> None:
        with suppress(OSError):  # it is logged; where the disk is full, room comes first
            await save_sent()

    retention.before = before
    retention.rules = lambda: tables.settings.config.store
    retention.reserved = partial(reserved, tables)
    retention.needed = partial(needed, tables, cluster)


def reserved(tables: Tables, topic: str) -> float | None:
    """Hours that a topic keeps its messages; None when it says nothing of its own."""
    known = tables.topics.get(topic)
    text = "" if known is None else known.attributes.get(RESERVE_TIME, "")
    return float(text) if text.isascii() and text.isdigit() and 0 < int(text) < 1 << 40 else None


def needed(tables: Tables, cluster: str) -> dict[tuple[str, int], int]:
    """The first offset of each queue that somebody still waits for: delays and timers that are not delivered, half
    messages that have not ended and what ended others, pops that are out."""
    half, op = tables.transactions.progress()
    revive = revive_topic(cluster)
    found = {
        (HALF_TOPIC, 0): min(half, tables.transactions.first()),
        (OP_TOPIC, 0): op,
        (TIMER_TOPIC, 0): tables.timers.first,
        (revive, 0): tables.offsets.query(REVIVE_GROUP, revive, 0) or 0,
    }
    for level in tables.delays.levels:
        found[SCHEDULE_TOPIC, level - 1] = tables.delays.progress(level)
    return found
