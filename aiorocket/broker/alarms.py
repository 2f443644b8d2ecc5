"""Looks at a running broker for what its operator should be told of: ``core/alarms.py`` has the table."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from aiorocket.broker.core.alarms import LOW_DISK, SLOW_FLUSH, Growing, Rising
from aiorocket.broker.core.groups import differences
from aiorocket.broker.lags import MOST_PAIRS, lags

if TYPE_CHECKING:
    from aiorocket.broker.broker import Broker

__all__ = ("keep_watching",)

_log = logging.getLogger("aiorocket.alarms")

#: Seconds between two looks at everything; at a flush that is under way there is one each second.
_LOOK, _FLUSH_LOOK = 60.0, SLOW_FLUSH


async def keep_watching(broker: Broker) -> None:
    """From a minute on keep ``broker.alarms`` true and write a line of log for each, until cancelled. A broker that is
    starting or ending is left alone."""
    loop = asyncio.get_running_loop()
    growing, dead, conflicts = Growing(), Rising(), Rising()
    slow_until = next_look = 0.0
    flushing: object | None = None
    await asyncio.sleep(_LOOK)  # a start reads and writes a lot, and those who were away come all at once
    while True:
        if broker.parts is not None:
            store, now = broker.store, loop.time()
            if store.flushing is not None and store.flushing is flushing:
                slow_until = now + _LOOK
            flushing = store.flushing
            found = {
                "flush_slow": {"": f"a flush took longer than {SLOW_FLUSH:g} s"} if now < slow_until else {},
                "write_dead": {"": store.problem} if store.problem is not None else {},
            }
            if now >= next_look:
                next_look = now + _LOOK
                counters = broker.counters
                groups = {each.name for each in broker.configs}
                behind: dict[str, int] = {}
                async for (group, _), lag in lags(broker, MOST_PAIRS):
                    behind[group] = behind.get(group, 0) + lag
                if broker.parts is None:
                    continue
                total, free = store.retention.space()
                found |= {
                    "disk_low": {"": f"{free / max(1, total):.1%} of the disk are free"}
                    if free < LOW_DISK * total
                    else {},
                    "lag_growing": {
                        group: f"{behind[group]} messages behind, {by} more than when it began to fall behind"
                        for group, by in growing.look(behind).items()
                    },
                    "dead_letters": _said(dead.look(now, _of(counters.dead_letters, groups)), "messages were given up"),
                    "lock_conflicts": _said(
                        conflicts.look(now, _of(counters.stale_commits, groups)), "commits refused"
                    ),
                    "subscriptions_differ": dict(differences(broker.consumers)),
                }
            for line in broker.alarms.look(now, found):
                _log.warning("%s", line)
        await asyncio.sleep(_FLUSH_LOOK)


def _of(counts: dict[str, int], groups: Collection[str]) -> dict[str, int]:
    return {group: count for group, count in counts.items() if group in groups}


def _said(risen: dict[str, int], what: str) -> dict[str, str]:
    return {group: f"{by} {what} of late" for group, by in risen.items()}
