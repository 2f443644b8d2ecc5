"""Breakages: each takes one protection away, and ``swarm`` or ``power_cuts`` finds it. A protection that
can be removed without a seed failing is not known to protect.

A breakage is an edit of one function: the text that is replaced stands in it exactly once, so a breakage that no longer
fits the code is an error and not a test that passes. ``FOUND`` says after how many seeds each was found, from 0 on:

    python -m tests.sim.breakages                      # all: prints the table anew (hours)
    python -m tests.sim.breakages "ack before fsync"   # one
"""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
import textwrap
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pytest

from aiorocket.testing.power_cuts import power_cuts
from aiorocket.testing.sim_loop import SimDeadlock
from aiorocket.testing.swarm import swarm

#: Seeds within which each has to be found.
SEEDS = 200


class Breakage(NamedTuple):
    """In ``where`` ("module:Class.function") ``old`` becomes ``new``. ``run`` is what finds it."""

    where: str
    old: str
    new: str
    run: Callable[[int], object] = swarm


_DISK = "aiorocket.runtime.disk"
_LOG = "aiorocket.storage.commit_log:CommitLog"
_LOCKS = "aiorocket.broker.core.locks:LockTable"
_LOCK_HANDLERS = "aiorocket.broker.handlers.locks:LockHandlers"
_LEASES = "aiorocket.client.group.leases:Leases"
_LEASE_TABLE = "aiorocket.client.core.lease_table:LeaseTable"
_SETTLE = "aiorocket.client.push.settlement:Settlement"

BREAKAGES: Final[dict[str, Breakage]] = {
    # -- the disk --
    "ack before fsync": Breakage(f"{_LOG}._write", "file.fdatasync()", "None", power_cuts),
    "recovery without CRC": Breakage(
        "aiorocket.storage.walk:_careful", "check_crc=not is_covered", "check_crc=False", power_cuts
    ),
    "recovery that overlooks a sector never written": Breakage(
        "aiorocket.storage.walk:_careful", "and _has_lost_sector(view, position)", "and False", power_cuts
    ),
    "recovery that believes a record anywhere": Breakage(
        "aiorocket.storage.walk:_careful", "view.physical_offset != base + position", "False", power_cuts
    ),
    "recovery that does not zero the rest": Breakage(
        "aiorocket.storage.recovery:LogSteps.finish", "segment.cut(position)", "None", power_cuts
    ),
    "recovery that does not sync what it found": Breakage(
        "aiorocket.storage.recovery:LogSteps.finish", "if self.records:", "if False:", power_cuts
    ),
    "a torn tail taken for damage": Breakage(
        "aiorocket.storage.recovery:LogSteps.scan", "durable is not None and item.offset >= durable", "False",
        power_cuts,
    ),
    "a segment used before its directory is synced": Breakage(
        "aiorocket.storage.segment:Segment.prepare", "disk.fsync_dir(self.directory)", "None", power_cuts
    ),
    "a segment found and its directory not synced": Breakage(
        "aiorocket.storage.opening:_open", 'disk.fsync_dir(f"{directory}/commitlog")', "None", power_cuts
    ),
    "a full segment that is not synced": Breakage(
        f"{_LOG}._write", "if self._sync_mode or run is not last:",
        "if self._sync_mode and run is last:", power_cuts,
    ),
    "a durable point ahead of the disk": Breakage(
        f"{_LOG}._write", "run.position, self.synced, self.replay)", "run.position, self.end, self.replay)", power_cuts
    ),
    "queues trusted without a look at the log": Breakage(
        "aiorocket.storage.queue_recovery:QueueSteps._check_unit", "place, size, _ = UNIT.unpack(unit)", "return",
        power_cuts,
    ),
    "queues that are not cut to the checkpoint": Breakage(
        "aiorocket.storage.queue_recovery:sync_queue", "write_units(", "(lambda *_: None)(", power_cuts
    ),
    "state saved without fsync": Breakage(f"{_DISK}:_replace", "file.fdatasync()", "None", power_cuts),
    "state renamed and its directory not synced": Breakage(
        f"{_DISK}:_replace", "disk.fsync_dir(", "(lambda _: None)(", power_cuts
    ),
    "state saved in place": Breakage(f"{_DISK}:_replace", 'temporary = path + ".tmp"', "temporary = path", power_cuts),
    "state without a checksum": Breakage(
        "aiorocket.storage.snapshots:_parse", 'checksum != b"%08x" % zlib.crc32(covered)', "False", power_cuts
    ),
    "topics saved with the rest": Breakage(
        "aiorocket.broker.parts:Parts._topics_changed", 'self._state.begin("topics")', "None"
    ),
    # -- delays, timers, offsets at the broker --
    "delay progress before its copy is stored": Breakage(
        "aiorocket.broker.core.delay:DelaySchedule.take", "entry.in_flight.add(offset)", "self.version += 1"
    ),
    "timer progress before its copy is stored": Breakage(
        "aiorocket.broker.core.timers:TimerSchedule._delivered", "if self._in_flight:", "if False:"
    ),
    "delay progress never saved": Breakage(
        "aiorocket.broker.core.delay:DelaySchedule.stored", "self.version += 1", "None"
    ),
    "a delayed message the store refused is given up": Breakage(
        "aiorocket.broker.due:DueDelivery._failed", "self._waiting.failed(first, second)",
        "self._waiting.stored(first, second)",
    ),
    "timers begin behind what waits": Breakage(
        "aiorocket.broker.core.timers:TimerSchedule.to_dict", "first = self.first", "first = self.next"
    ),
    "offsets never flushed": Breakage(
        "aiorocket.broker.core.offsets:ConsumerOffsets.commit", "self.version += 1", "None"
    ),
    # -- queue locks at the broker --
    "locks forgotten at a restart": Breakage(
        f"{_LOCKS}.load", "self._groups, self._count, self.counter = groups, count, ", "self.counter = "
    ),
    "no grace when the record of locks is lost": Breakage(
        f"{_LOCKS}.start", "self._opens = now + self._grace", "self._opens = now"
    ),
    "a lock granted before it is recorded": Breakage(
        f"{_LOCK_HANDLERS}.lock", "return self._when_recorded(connection, command, request)",
        "self._table.recorded(self._table.counter, now)",
    ),
    "a lock that lasts half as long as clients trust it": Breakage(
        f"{_LOCKS}.recorded", "now + self.lease", "now + self.lease / 4"
    ),
    "a lock granted while another holds it": Breakage(
        f"{_LOCKS}.lock", "elif not entry.owner or entry.until <= now:", "elif True:"
    ),
    "a stale epoch accepted": Breakage(
        f"{_LOCK_HANDLERS}.stale", "queue = QueueKey(topic, self._broker, queue_id)", "return None"
    ),
    "an overtaken unlock": Breakage(
        f"{_LOCK_HANDLERS}._is_overtaken", "self._server.number(connection) < last[0]", "False"
    ),
    "a lock that anybody can give back": Breakage(
        f"{_LOCKS}.unlock", "elif entry.owner == client and not entry.claim:", "elif entry.owner and not entry.claim:"
    ),
    # -- leases at the client --
    "a lease counted from the answer": Breakage(
        f"{_LEASE_TABLE}.answer", "lease.until = sent_at + self.validity", "lease.until = now + self.validity"
    ),
    "a lease that is never renewed": Breakage(
        f"{_LEASES}.renew_forever", "await self.acquire(self.table.due(max(self._loop.time(), due or 0.0)))",
        "await asyncio.sleep(3600)",
    ),
    "a lease that never ends": Breakage(f"{_LEASE_TABLE}.expire", "lease.held and lease.until <= now", "False"),
    "a lock kept that the broker no longer names": Breakage(
        f"{_LEASE_TABLE}.answer", "change.lost.append(queue)\n    return change",
        "lease.held = True\n    return change",
    ),
    "a lease that is not looked at before a call": Breakage(
        "aiorocket.client.push.orderly:OrderlyDelivery._consume_singly",
        "while ready and not lane.revoked and not worker.stop:\n        if now >= lane.until and",
        "while ready and not lane.revoked and not worker.stop:\n        if False and",
    ),
    "a lock given back while its listener runs": Breakage(
        f"{_LEASES}.release", "if self._held_back[queue]:", "if False:"
    ),
    # -- what members do with messages --
    "a dropped queue that still delivers": Breakage(
        "aiorocket.client.core.process_queue:ProcessQueue.drop",
        "self.dropped = True\n    for entry in self._order:\n        entry.process_queue = None", "None",
    ),
    "a send-back that failed counted as done": Breakage(
        f"{_SETTLE}.send_back", "message.local_attempts += 1",
        "message.process_queue and message.process_queue.done(message)\n        return True",
    ),
    "commits that run ahead": Breakage(
        "aiorocket.client.core.process_queue:ProcessQueue.committable",
        "return order[0].queue_offset if order else self.next_offset", "return self.next_offset",
    ),
    "commits never flushed": Breakage(
        "aiorocket.client.group.commits:Commits.forever", "await self.flush(fetchers())", "None"
    ),
    "a late result that finishes another assignment's message": Breakage(
        "aiorocket.client.core.process_queue:ProcessQueue.done", "entry.process_queue is not self", "False"
    ),
    "one attempt too many": Breakage(
        "aiorocket.broker.core.retry_policy:after_failure", "reconsume_times >= most", "reconsume_times > most"
    ),
    "a dead letter one attempt early": Breakage(
        f"{_SETTLE}._by_broker", "limit - 1", "limit - 2"
    ),
    "turns of a key not kept": Breakage(
        "aiorocket.client.sending.in_flight:InFlight.turn", "line = self._turns.get((topic, key))", "return",
    ),
    "a read one too far": Breakage(
        "aiorocket.storage.reader:Reader.read", "queue.min_offset, queue.max_offset",
        "queue.min_offset, queue.next_offset",
    ),
}  # fmt: skip

#: Seeds tried until it was found. What is not here was not found yet, or only other protections stand in for it.
FOUND: Final[dict[str, int]] = {
    "ack before fsync": 1,
    "recovery without CRC": 3,
    "recovery that does not zero the rest": 15,
    "recovery that does not sync what it found": 1,
    "a torn tail taken for damage": 1,
    "a segment used before its directory is synced": 1,
    "a full segment that is not synced": 1,
    "a durable point ahead of the disk": 1,
    "state saved without fsync": 1,
    "state renamed and its directory not synced": 1,
    "state saved in place": 13,
    "topics saved with the rest": 10,
    "delay progress before its copy is stored": 23,
    "timers begin behind what waits": 14,
    "offsets never flushed": 1,
    "locks forgotten at a restart": 2,
    "a lock granted before it is recorded": 18,
    "a lock granted while another holds it": 2,
    "an overtaken unlock": 12,
    "a lease counted from the answer": 122,
    "a lease that is never renewed": 4,
    "a dropped queue that still delivers": 1,
    "a send-back that failed counted as done": 7,
    "commits that run ahead": 1,
    "a stale epoch accepted": 10,
    "timer progress before its copy is stored": 10,
    "a late result that finishes another assignment's message": 1,
}


def apply(patch: pytest.MonkeyPatch, breakage: Breakage) -> None:
    """Break the code until ``patch`` is undone."""
    module_name, _, path = breakage.where.partition(":")
    owner: Any = importlib.import_module(module_name)
    *outer, name = path.split(".")
    for each in outer:
        owner = getattr(owner, each)
    function = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(breakage.old) != 1:
        raise LookupError(f"{breakage.where} has {breakage.old!r} {source.count(breakage.old)} times, not once")
    made: dict[str, Any] = {}
    exec(compile(source.replace(breakage.old, breakage.new), breakage.where, "exec"), function.__globals__, made)
    patch.setattr(owner, name, made[name])


def seeds_until_found(breakage: Breakage, most: int = SEEDS) -> int | None:
    """How many seeds it takes, None when ``most`` are not enough."""
    with pytest.MonkeyPatch.context() as patch:
        apply(patch, breakage)
        for seed in range(most):
            try:
                breakage.run(seed)
            except (AssertionError, SimDeadlock, Exception):  # noqa: BLE001 - whatever it dies of, it is noticed
                return seed + 1
    return None


def main(names: list[str]) -> int:
    logging.disable(logging.CRITICAL)
    missed = 0
    for name in names or BREAKAGES:
        found = seeds_until_found(BREAKAGES[name])
        missed += found is None
        print(f'    "{name}": {found},' if found else f"    # {name}: not found in {SEEDS} seeds", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
