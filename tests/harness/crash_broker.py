"""The broker process of ``crash.py``, and the named places where it can be told to die.

A place is a function of the product and a side of it: the process kills itself (SIGKILL) in front of or behind the n-th
call. The functions are wrapped when the process starts, so the product knows nothing of it.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from aiorocket import BrokerConfig, run
from aiorocket.broker import Broker
from aiorocket.config import StoreConfig
from aiorocket.runtime import WallClock, real_env

__all__ = ("POINTS", "config_of")

_STORAGE, _BROKER = "aiorocket.storage.", "aiorocket.broker."
_DISK = "aiorocket.runtime.disk:RealDisk."


class Point(NamedTuple):
    """``ends``: only calls whose first argument ends so count."""

    function: str
    behind: bool = False
    ends: str = ""


POINTS = {
    "append: gathered, not written": Point(_STORAGE + "segment:Segment.write"),
    "append: written, not in the checksums": Point(_STORAGE + "segment:Segment.cover"),
    "append: in the checksums, not synced": Point(_STORAGE + "segment:Segment.write", True),
    "append: synced, not acknowledged": Point(_STORAGE + "commit_log:CommitLog._ended"),
    "append: acknowledged, no consumer told": Point(_STORAGE + "store:MessageStore._acknowledge", True),
    "roll: a new segment without checksums": Point(_STORAGE + "segment:Segment._open_sums"),
    "roll: a new segment that is not used": Point(_STORAGE + "segment:Segment.prepare", True),
    "roll: full, without its summary": Point(_STORAGE + "segment:Segment.finish"),
    "roll: closed by its summary": Point(_STORAGE + "segment:Segment.finish", True),
    "units: written out, not synced": Point(_STORAGE + "consume_queue:write_units", True),
    "checkpoint: units synced, not saved": Point(_STORAGE + "housekeeping:_write_queues", True),
    "checkpoint: saved, not in the checksums": Point(_STORAGE + "segment:Segment.stamp"),
    "retention: not promised any more, still there": Point(_STORAGE + "segment:Segment.remove"),
    "retention: a segment removed": Point(_STORAGE + "segment:Segment.remove", True),
    "compaction: a slice made": Point(_STORAGE + "compaction:Compaction.step", True),
    "compaction: made, not swapped": Point(_STORAGE + "compaction:Compaction.swap"),
    "compaction: between its two renames": Point(_DISK + "rename", True, ".compact"),
    "compaction: swapped": Point(_STORAGE + "compaction:Compaction.swap", True),
    "key index: a part made": Point(_STORAGE + "key_part:Growing.encode", True),
    "state: a table to be saved": Point(_STORAGE + "snapshots:Snapshot.save"),
    "state: written beside, not renamed": Point(_DISK + "rename", False, ".tmp"),
    "state: renamed, the directory not synced": Point(_DISK + "rename", True, ".tmp"),
    "state: saved": Point(_STORAGE + "snapshots:Snapshot.save", True),
    "recovery: the log read, nothing saved": Point(_STORAGE + "recovery:LogSteps.finish"),
    "recovery: the end cut, nothing saved": Point(_STORAGE + "recovery:LogSteps.finish", True),
    "delay or timer: copied, not noted": Point(_BROKER + "due:DueDelivery._ended"),
    "pop: out, its record on the way": Point(_BROKER + "revive:PopRevival.took", True),
    "pop: acknowledged, not answered": Point(_BROKER + "revive:PopRevival.acknowledge", True),
    "pop: changed, not answered": Point(_BROKER + "revive:PopRevival.changed", True),
    "pop: stored again, not recorded": Point(_BROKER + "revive:PopRevival.record_landed"),
    "pop: stored again and recorded": Point(_BROKER + "revive:PopRevival.landed"),
    "transaction: a half message stored": Point(_BROKER + "transaction_check:TransactionChecks.stored"),
    "transaction: ended, not on record": Point(_BROKER + "transaction_check:TransactionChecks._end"),
    "transaction: copied for a check": Point(_BROKER + "transaction_check:TransactionChecks._ask"),
    "lock: asked for, not on record": Point(_BROKER + "state:BrokerState.save"),
}


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _arm(name: str, count: int) -> None:
    """Die at the point ``name`` when it is reached for the ``count``-th time."""
    point = POINTS[name]
    module_name, _, path = point.function.partition(":")
    module = importlib.import_module(module_name)
    owner_name, _, attribute = path.rpartition(".")
    owner: Any = getattr(module, owner_name) if owner_name else module
    function: Callable[..., Any] = getattr(owner, attribute)
    left = count

    @functools.wraps(function)
    def mortal(*args: Any, **options: Any) -> Any:
        nonlocal left
        if point.ends and not str(args[1]).endswith(point.ends):
            return function(*args, **options)
        left -= 1
        if left == 0 and not point.behind:
            _die()
        result = function(*args, **options)
        if left == 0:
            _die()
        return result

    setattr(owner, attribute, mortal)
    if not owner_name:  # other modules have imported it by its name
        for other in list(sys.modules.values()):
            if getattr(other, attribute, None) is function:
                setattr(other, attribute, mortal)


def config_of(port: int, nameserver: str, data: str, flush: Any, log_bytes: int) -> BrokerConfig:
    """Small segments and short times, so that everything happens in a second."""
    store = StoreConfig(
        flush=flush, segment_size=1 << 18, min_free=1 << 20, checkpoint_interval=0.5, max_log_bytes=log_bytes,
        retention_interval=0.5, tail_cache=1 << 18,
    )  # fmt: skip
    return BrokerConfig(
        port=port, nameservers=(nameserver,), data=data, register_interval=0.5, channel_expiry=3.0, store=store,
        delay_levels=(0.3,), default_topic_queues=4, offset_flush_interval=0.5, lock_lease=4.0, lock_grace=2.0,
        transaction_timeout=1.0, transaction_check_interval=1.0, transaction_check_max=10_000,
    )  # fmt: skip


async def _main() -> None:
    port, nameserver, data, flush, skew, point, count, log_bytes = sys.argv[1:]
    if point:
        _arm(point, int(count))
    ahead = round(float(skew) * 1000)
    wall_ms = WallClock.wall_ms
    WallClock.wall_ms = lambda self: wall_ms(self) + ahead  # type: ignore[method-assign]  # the clock of a process
    broker = Broker(real_env(), config_of(int(port), nameserver, data, flush, int(log_bytes)))
    await broker.start()
    print(broker.port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    run(_main())
