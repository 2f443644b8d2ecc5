"""Breakages: each takes one protection away, and a simulated run finds it (``swarm``, ``power_cuts``, ``store_days``, a
part of ``features``, ``groups``, or damaged stores). A protection that can be removed without a seed failing is not
known to protect.

A breakage is an edit of one function: the text that is replaced stands in it exactly once, so a breakage that no longer
fits the code is an error and not a test that passes. ``FOUND`` says after how many seeds each was found, from 0 on:

    python -m tests.sim.breakages                      # all: prints the table anew (hours)
    python -m tests.sim.breakages "ack before fsync"   # one
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import logging
import sys
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import pytest

from aiorocket.testing.features import features
from aiorocket.testing.groups import broadcasting, long_calls
from aiorocket.testing.power_cuts import power_cuts
from aiorocket.testing.sim_loop import SimDeadlock
from aiorocket.testing.store_days import store_days
from aiorocket.testing.swarm import swarm
from tests.harness import damage

# Not here, because another protection stands in for each, whatever happens:
# * the look at the log when a queue's files are opened: every read compares a unit with its record and makes it again;
# * the cut of the log's end when a start is about done: it was cut before its checksums went;
# * a lock given up when the broker does not name it: it ends at the client 30 s before it ends at the broker;
# * the group's offset at the oldest message that a pop has out: a start makes what is out from the records of pops,
#   which are durable before the offset is saved; only statistics read it in between;
# * a recall that is saved: it is met in one turn with its message, unless more is due in that millisecond than may be
#   on its way (tests/broker/test_timers.py).

#: Seeds within which each has to be found.
SEEDS = 200


@functools.cache
def _images() -> list[damage.Image]:
    return asyncio.run(damage.images())


def damaged_stores(seed: int) -> None:
    """Twenty damaged stores of ``tests/harness/damage.py``."""
    for place in range(20 * seed, 20 * seed + 20):
        asyncio.run(damage.one_place(_images(), place))


_timers, _transactions, _once, _pops, _filters = (
    functools.partial(features, only=part) for part in ("timers", "transactions", "once", "pops", "filters")
)


#: Nothing but brokers that die with much on its way to a slow disk, more often than a seed of the others has it.
_cuts = functools.partial(swarm, only="cut", seconds=600.0)


class Breakage(NamedTuple):
    """In ``where`` ("module:Class.function") ``old`` becomes ``new``. ``run`` is what finds it."""

    where: str
    old: str
    new: str
    run: Callable[[int], object] = swarm


_DISK = "aiorocket.runtime.disk"
_LOG = "aiorocket.storage.commit_log:CommitLog"
_STORE = "aiorocket.storage.store:MessageStore"
_READER = "aiorocket.storage.reader:Reader"
_RETENTION = "aiorocket.storage.retention:Retention"
_COMPACTION = "aiorocket.storage.compaction:Compaction"
_TIMERS = "aiorocket.broker.core.timers:TimerSchedule"
_CHECKS = "aiorocket.broker.transaction_check:TransactionChecks"
_TX = "aiorocket.broker.core.transactions:TransactionTable"
_REVIVAL = "aiorocket.broker.revive:PopRevival"
_LOCKS = "aiorocket.broker.core.locks:LockTable"
_LOCK_HANDLERS = "aiorocket.broker.handlers.locks:LockHandlers"
_LEASES = "aiorocket.client.group.leases:Leases"
_LEASE_TABLE = "aiorocket.client.core.lease_table:LeaseTable"
_SETTLE = "aiorocket.client.push.settlement:Settlement"
_REBALANCER = "aiorocket.client.group.rebalancer:Rebalancer"
_LOCAL_OFFSETS = "aiorocket.client.group.local_offsets:LocalOffsets"
_CONNECTION = "aiorocket.remoting.connection:Connection"
_ROUTES = "aiorocket.nameserver.core.routes:RouteInfo"

BREAKAGES: Final[dict[str, Breakage]] = {
    # -- the disk --
    "ack before fsync": Breakage(
        f"{_LOG}._put", "self._disk.sync(file)", "self._disk.run(lambda: None)", power_cuts
    ),
    "recovery without CRC": Breakage(
        "aiorocket.storage.walk:_careful", "check_crc=not is_covered", "check_crc=False", power_cuts
    ),
    "recovery that overlooks a sector never written": Breakage(
        "aiorocket.storage.walk:_careful", "and _has_lost_sector(view, position)", "and False", power_cuts
    ),
    "recovery that believes a record anywhere": Breakage(
        "aiorocket.storage.walk:_careful", "view.physical_offset != base + position", "False", damaged_stores
    ),
    "recovery that does not zero the rest": Breakage(
        "aiorocket.storage.recovery:_cut_behind",
        "if last > position:\n            file.truncate(position)\n        file.fdatasync()\n"
        "        return max(0, last - position)",
        "file.fdatasync()\n        return 0", power_cuts,
    ),
    "recovery that does not sync what it found": Breakage(
        "aiorocket.storage.recovery:LogSteps.finish", "if self.records or not self.clean:", "if False:", power_cuts
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
        "aiorocket.storage.commit_group:CommitGroup.write", "if sync or run is not last:",
        "if sync and run is last:", power_cuts,
    ),
    "a durable point ahead of the disk": Breakage(
        "aiorocket.storage.commit_group:Run.put", "self.position, durable,",
        "self.position, self.segment.base + self.position + sum(map(len, self.buffers)),", power_cuts,
    ),
    "queues that are not cut to the checkpoint": Breakage(
        "aiorocket.storage.queue_recovery:sync_queue", "write_units(", "(lambda *_: None)(", power_cuts
    ),
    "state saved without fsync": Breakage(f"{_DISK}:replace", "file.fdatasync()", "None", power_cuts),
    "state renamed and its directory not synced": Breakage(
        f"{_DISK}:replace", "disk.fsync_dir(", "(lambda _: None)(", power_cuts
    ),
    "state saved in place": Breakage(f"{_DISK}:replace", 'temporary = path + ".tmp"', "temporary = path", power_cuts),
    "state without a checksum": Breakage(
        "aiorocket.storage.snapshots:_parse", 'checksum != b"%08x" % zlib.crc32(covered)', "False", damaged_stores
    ),
    "topics saved with the rest": Breakage(
        "aiorocket.broker.parts:Parts._topics_changed", 'self._state.begin("topics")', "None"
    ),
    # -- delays, timers, offsets at the broker --
    "delay progress before its copy is stored": Breakage(
        "aiorocket.broker.core.delay:DelaySchedule.take", "entry.in_flight.add(offset)", "self.version += 1", _cuts
    ),
    "timer progress before its copy is stored": Breakage(
        "aiorocket.broker.core.timers:TimerSchedule._delivered", "if self._in_flight:", "if False:", _cuts
    ),
    "delay progress never saved": Breakage(
        "aiorocket.broker.core.delay:DelaySchedule.stored", "self.version += 1", "None"
    ),
    "a delayed message the store refused is given up": Breakage(
        "aiorocket.broker.due:DueDelivery._failed", "self._schedule.failed(first, second)",
        "self._schedule.stored(first, second)", _timers,
    ),
    "timers begin behind what waits": Breakage(
        "aiorocket.broker.core.timers:TimerSchedule.to_dict", "first = self.first", "first = self.next"
    ),
    "offsets never flushed": Breakage(
        "aiorocket.broker.core.offsets:ConsumerOffsets.commit", "self.version += 1", "None"
    ),
    # -- queue locks at the broker --
    "locks forgotten at a restart": Breakage(
        f"{_LOCKS}.load", "self._groups, self._held, self._count, self.counter = groups, held, count, ",
        "self.counter = "
    ),
    "no grace when the record of locks is lost": Breakage(
        f"{_LOCKS}.start", "self._opens = now + self._grace", "self._opens = now"
    ),
    "a lock granted before it is recorded": Breakage(
        f"{_LOCK_HANDLERS}._lock",
        "return self._when_recorded(connection, command, request, self._recorded(), too_many)",
        "self._table.recorded(self._table.counter, now)",
    ),
    "a lock that lasts half as long as clients trust it": Breakage(
        f"{_LOCKS}.recorded", "now + self.lease", "now + self.lease / 4"
    ),
    "a lock granted while another holds it": Breakage(
        f"{_LOCKS}.lock", "elif not entry.owner or entry.until <= now:", "elif True:", long_calls
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
        f"{_LEASE_TABLE}.answer", "lease.until = sent_at + self.validity", "lease.until = now + self.validity",
        long_calls,
    ),
    "a lease that is never renewed": Breakage(
        f"{_LEASES}.renew_forever", "await self.acquire(self.table.due(max(self._loop.time(), due or 0.0)))",
        "await asyncio.sleep(3600)",
    ),
    "a lease that never ends": Breakage(
        f"{_LEASES}._on_expiry", "self.lost(queue)", "None", long_calls
    ),
    "a lease that is not looked at before a call": Breakage(
        "aiorocket.client.push.orderly:OrderlyDelivery._consume_singly",
        "while ready and not lane.revoked and not worker.stop:\n        if now >= lane.until and",
        "while ready and not lane.revoked and not worker.stop:\n        if False and", long_calls,
    ),
    "a lock given back while its listener runs": Breakage(
        f"{_LEASES}.release", "if self._held_back[queue]:", "if False:", long_calls
    ),
    # -- what members do with messages --
    "a dropped queue that still delivers": Breakage(
        "aiorocket.client.core.process_queue:ProcessQueue.drop",
        "self.dropped = True\n    for entry in self._order:\n        entry._process_queue = None", "None",
    ),
    "a send-back that failed counted as done": Breakage(
        f"{_SETTLE}.send_back", "message._local_attempts += 1",
        "message._process_queue and message._process_queue.done(message)\n        return True",
    ),
    "commits that run ahead": Breakage(
        "aiorocket.client.core.process_queue:ProcessQueue.committable",
        "return order[0].queue_offset if order else self.next_offset", "return self.next_offset",
    ),
    "commits never flushed": Breakage(
        "aiorocket.client.group.commits:Commits.forever", "await self.flush(fetchers())", "None", broadcasting
    ),
    "a late result that finishes another assignment's message": Breakage(
        "aiorocket.client.core.process_queue:ProcessQueue.done", "entry._process_queue is not self", "False"
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
    # -- the store --
    "a read one too far": Breakage(
        f"{_READER}.read", "queue.min_offset, queue.max_offset", "queue.min_offset, queue.next_offset", store_days
    ),
    "a read that counts too many": Breakage(
        f"{_READER}.read", "max(max_messages, 1), high", "max_messages + 1, high", store_days
    ),
    "a read without a limit of bytes": Breakage(
        f"{_READER}.read", "if taken > 1 and total > max_bytes:", "if False:", store_days
    ),
    "a filtered read that passes over a message": Breakage(
        "aiorocket.storage.tail_cache:scan_tail", "return parts, block.first + index + 1",
        "return parts, block.first + index + 2", store_days,
    ),
    "a filtered read that stops at the first": Breakage(
        f"{_READER}._scan", "following = offsets[taken]", "following = offsets[0]", damaged_stores
    ),
    "a rolled-back append keeps its tail": Breakage(
        "aiorocket.storage.consume_queue:ConsumeQueue.roll_back",
        "del self.tail[max(0, self.max_offset - self.tail_first) * UNIT_SIZE :]", "None", store_days,
    ),
    "a rolled-back append keeps its offset": Breakage(
        "aiorocket.storage.consume_queue:ConsumeQueue.roll_back", "self.next_offset = self.max_offset", "None",
        store_days,
    ),
    "a rolled-back append stays in memory": Breakage(
        f"{_STORE}._failed", "self._tail.forget(queue, queue.max_offset)", "None", store_days
    ),
    "a rolled-back append keeps its checksum": Breakage(
        f"{_LOG}._flush_failed", "first.segment.restore(first.mark)", "None", store_days
    ),
    "a rolled-back append keeps its segment": Breakage(
        f"{_LOG}._flush_failed",
        "self.segments = [segment for segment in self.segments if segment.base <= base]", "None",
        store_days,
    ),
    "a rolled-back append stays in the file": Breakage(
        "aiorocket.storage.commit_log:_cut_back", "first.segment.cut(first.position)", "None", store_days
    ),
    "a write that failed is acknowledged": Breakage(f"{_LOG}._ended", "if error is not None:", "if False:", store_days),
    "a store that goes on after a failed sync": Breakage(
        f"{_LOG}._flush_failed", "self.broken(error.__cause__ or error)", "None", store_days
    ),
    "what a failed sync left is not written again": Breakage(
        "aiorocket.storage.recovery:_write_again", "while position < upto and", "while False and", store_days
    ),
    "a full disk for ever": Breakage(f"{_LOG}.refuse", "self.refusal = None\n            return", "pass", store_days),
    "bytes that wait are never counted down": Breakage(
        f"{_LOG}._ended", "self.pending -= group.size", "None", store_days
    ),
    "what is written is never synced": Breakage(
        f"{_LOG}._ended", "elif self._sync_timer is None:", "elif False:", store_days
    ),
    "a stop that is not clean": Breakage(
        "aiorocket.storage.housekeeping:Housekeeping.close", "clean=True", "clean=False", store_days
    ),
    "a checkpoint without the units it counts": Breakage(
        "aiorocket.storage.housekeeping:Housekeeping._checkpoint",
        "await disk.run(_write_queues, disk, [_unwritten(queue, count) for queue, count in some])", "None", store_days,
    ),
    "a checkpoint that forgets where queues begin": Breakage(
        "aiorocket.storage.checkpoint:QueueRows.read", "queue.min_offset, queue.max_offset", "0, queue.max_offset",
        store_days,
    ),
    "a time that goes back with the clock": Breakage(
        f"{_STORE}.append", "if now < self._timestamp:", "if False:", store_days
    ),
    "a batch that stands beside itself in memory": Breakage(
        f"{_STORE}.append_batch", "at = places[taken] - start", "at = 0", store_days
    ),
    "a batch that rolls over with its old places": Breakage(
        f"{_STORE}.append_batch", "start = log.roll(total)\n        records, sizes = encoded(physical_offset=start)",
        "start = log.roll(total)", store_days,
    ),
    "a record that rolls over with its old place": Breakage(
        f"{_STORE}.append", "record = _moved(record, physical)", "None", store_days
    ),
    "memory that forgets one message too few": Breakage(
        "aiorocket.storage.tail_cache:TailCache.evict", "queue.cached_first = block.first + len(block.records)",
        "queue.cached_first = block.first", store_days,
    ),
    "a piece of the log as it was once": Breakage(
        "aiorocket.storage.chunk_cache:ChunkCache._chunk", "len(data) < CHUNK and start + len(data) <= offset",
        "not data", store_days,
    ),
    "a search by time that ends one too late": Breakage(
        f"{_READER}.offset_by_time", "low = at + 1", "low = at + 2", store_days
    ),
    "a key index that is not kept up": Breakage(
        "aiorocket.storage.key_index:KeyIndex.find", "while self._lacks(upto) and", "while False and", store_days
    ),
    "a deleted topic that comes back": Breakage(
        "aiorocket.storage.housekeeping:Housekeeping.remove", "self._deleted[topic] = self._log.end",
        "self._deleted[topic] = 0", store_days,
    ),
    "a deleted topic whose files stay": Breakage(
        "aiorocket.storage.housekeeping:Housekeeping._remove",
        "await self._disk.run(_remove_files, self._disk, directory)", "None", store_days,
    ),
    # -- what is old --
    "retention by the oldest message of a segment": Breakage(
        f"{_RETENTION}._old", "self._reader.time_at(complete[at].end)", "self._reader.time_at(complete[at].base)",
        store_days,
    ),
    "retention takes what is needed": Breakage(
        f"{_RETENTION}._floors", "floor = min(floor, needed.get(key, floor))", "None", store_days
    ),
    "retention forgets the hours of a topic": Breakage(
        f"{_RETENTION}._floors", "hours = self.reserved(queue.topic)", "hours = None", store_days
    ),
    "retention removes a segment that a queue stands in": Breakage(
        f"{_RETENTION}._sweep", "upto = min(holders.values(), default=upto)", "None", store_days
    ),
    "retention that never removes a segment": Breakage(
        f"{_RETENTION}._sweep", "if segment.end <= upto]", "if False]", store_days
    ),
    "files removed before the checkpoint": Breakage(
        f"{_RETENTION}._sweep", "if not await self._save() or", "if False and", store_days
    ),
    "a queue that begins in front of its log": Breakage(
        f"{_RETENTION}._sweep", "queue.min_offset = max(queue.min_offset, floor)", "None", store_days
    ),
    "compaction takes the first message that stays": Breakage(
        f"{_COMPACTION}.step", "view.queue_offset >= kept", "view.queue_offset > kept", store_days
    ),
    "compaction mistakes a queue for another": Breakage(
        f"{_COMPACTION}.step", "(view.raw_topic, view.queue_id)", "(view.raw_topic, 0)", store_days
    ),
    "compaction moves what stays": Breakage(
        f"{_COMPACTION}.step", "self._fill(low + start)\n            self._emit(data[start : start + size])",
        "self._emit(data[start : start + size])", store_days,
    ),
    "compaction under the old checksums": Breakage(f"{_RETENTION}._compact", "segment.sums = None", "None", store_days),
    # -- timers --
    "a timer that comes early": Breakage(
        f"{_TIMERS}.take", "if code >> 2 > now_ms:", "if code >> 2 > now_ms + 500:", _timers
    ),
    "a timer that comes again after a restart": Breakage(
        f"{_TIMERS}.add", "if offset < self._known:", "if False:", _timers
    ),
    "a recall ignored": Breakage(
        "aiorocket.broker.timers:TimerDelivery._copy", "if self._schedule.is_recalled(values, topic):", "if False:",
        _timers,
    ),
    "a recall that is met after its message": Breakage(
        "aiorocket.broker.core.timers:wait_code", "_RECALL if PROPERTY_TIMER_DEL_UNIQKEY in values else _MESSAGE",
        "3 if PROPERTY_TIMER_DEL_UNIQKEY in values else _MESSAGE", _timers,
    ),
    "a recall answered before it is durable": Breakage(
        "aiorocket.broker.handlers.recall:RecallHandler.recall", "return None",
        "return RemotingCommand.response(0, RecallMessageResponseHeader(handle.unique))", _timers,
    ),
    "timers that are only looked for at a start": Breakage(
        "aiorocket.broker.timers:TimerDelivery.arrived", "self._driver.update()", "None", _timers
    ),
    "timers in the queue not looked for at a start": Breakage(
        "aiorocket.broker.timers:TimerDelivery.start", "await when_whole(self.arrived, lambda: self._closed)",
        "self._schedule.next = self._store.max_offset(TIMER_TOPIC, 0)", _timers,
    ),
    "a timer due while another waits": Breakage(
        f"{_TIMERS}.add", "self._parts.append((offset, key - 1))", "None", _timers
    ),
    # -- transactions --
    "a half message never checked": Breakage(
        f"{_CHECKS}._next_deadline", "self.table.next_due() if self._copying < MAX_IN_FLIGHT else None", "None",
        _transactions,
    ),
    "a half message that everybody gets": Breakage(
        "aiorocket.broker.core.transactions:is_transactional",
        'values.get(PROPERTY_TRAN_MSG, "").lower() == "true" and not retried', "False", _transactions,
    ),
    "a rollback that commits": Breakage(
        f"{_CHECKS}.rollback", "self._end(half, HalfState.OPEN, ended)",
        "(data := self._store.read_record(half.physical)) and self.commit(half, RecordView(data, 0, len(data)), ended)",
        _transactions,
    ),
    "an end of a transaction without its op record": Breakage(
        f"{_CHECKS}._place", "self._end(half, state, ended)", "ended(None)", _transactions
    ),
    "open transactions forgotten at a restart": Breakage(
        f"{_TX}.restore", "self._open[found.name] = Half(", "Half(", _transactions
    ),
    "ended transactions open again after a restart": Breakage(
        f"{_TX}.restore", "if found.name in over or found.offset in over:", "if False:", _transactions
    ),
    "transactions read from behind what is open": Breakage(
        f"{_TX}.progress", "half = next(iter(self._open.values())).offset if self._open else self._next_half",
        "half = self._next_half", _transactions,
    ),
    "op records read from behind what they end": Breakage(
        f"{_TX}.progress", "self._ops[0][0] if self._ops else self._next_op", "self._next_op", _transactions
    ),
    "a transaction asked about once": Breakage(
        f"{_TX}.copied", "half.state is HalfState.COPYING and self.reopen(half, now + self.interval)", "False",
        _transactions,
    ),
    "a check that nobody is asked": Breakage(f"{_CHECKS}._ask", "connection.oneway(request)", "None", _transactions),
    # -- sends that count once --
    "a repetition stored again": Breakage(
        "aiorocket.broker.core.sent_once:SentOnce.begin", "if result is not None:", "if False:", _once
    ),
    "a repetition of what is under way stored again": Breakage(
        "aiorocket.broker.core.sent_once:SentOnce.begin", "if waiting is not None:", "if False:", _once
    ),
    "sends that count once forgotten at a restart": Breakage(
        "aiorocket.broker.core.sent_once:SentTable.load", "producer + number", "number", _once
    ),
    "sends that count once since the last save forgotten": Breakage(
        "aiorocket.broker.repetitions:Repetitions._read_ends",
        "await self._read_end(topic, queue_id, at, known, others)", "pass", _once,
    ),
    "sends that count once on another queue": Breakage(
        "aiorocket.client.sending.attempts:Attempts.run", "message._replace(once=True), False",
        "message._replace(once=True), True", _once,
    ),
    # -- pops --
    "an acknowledgement of a pop lost": Breakage(
        f"{_REVIVAL}.acknowledge", "self._log.append(encode_acknowledged(key, landed, pop_time), None, done)",
        "done and done(PutResult(_OK, 0, 0, 0))", _pops,
    ),
    "an acknowledgement of a pop that changes nothing": Breakage(
        f"{_REVIVAL}.acknowledge", "committed = self.table.acknowledge(key, offset, pop_time)", "committed = None",
        _pops,
    ),
    "a pop that is never revived": Breakage(f"{_REVIVAL}._due", "_Revival(self, pop, offsets)", "None", _pops),
    "a revived pop that stays out": Breakage(
        "aiorocket.broker.revive:_Revival._revive",
        "owner.landed(self._pop, offset, recorded=recorded, dead=dead)", "None", _pops,
    ),
    "a revived pop that is not stored again": Breakage(
        "aiorocket.broker.revive:_Revival._revive", "store_copy(owner.store, copy, done)",
        "done(PutResult(_OK, 0, 0, 0))", _pops,
    ),
    "pops forgotten at a restart": Breakage(
        "aiorocket.broker.core.pops:PopTable.replay", "if offsets:\n        queue = self._put",
        "if False:\n        queue = self._put", _pops,
    ),
    "a pop that is over at once after a restart": Breakage(
        "aiorocket.broker.core.pops:PopTable.replay",
        "min(max(pop_time + invisible - wall_ms, 0), invisible) / 1000", "0.0", _pops,
    ),
    "a changed invisible time that counts for nothing": Breakage(
        "aiorocket.broker.core.pops:PopTable.change", "self._put(pop, queue.next)", "None", _pops
    ),
    "a renewal that is never sent": Breakage(
        "aiorocket.client.pop.renewals:Renewals._renew", "self._scope.start(self._one(message), name=\"renewal\")",
        "None", _pops,
    ),
    "messages popped while somebody has them": Breakage(
        "aiorocket.broker.core.pops:PopTable.next_offset", "max(queue.next, committed)", "committed", _pops
    ),
    "records of pops begun from behind what is out": Breakage(
        "aiorocket.broker.core.pops:PopTable.begin", "next(iter(self._recorded), self.end)", "self.end", _pops
    ),
    # -- filters and flow control --
    "a limit on what waits that is never released": Breakage(
        "aiorocket.client.core.process_queue:ProcessQueue._notify_room", "self._call_room()", "None", _filters
    ),
    "a pull that goes on one too far": Breakage(
        "aiorocket.client.push.fetcher:Fetcher._take", "self.process_queue.put(messages, size, next_offset)",
        "self.process_queue.put(messages, size, next_offset + 1)", _filters,
    ),
    "a filter that takes what it does not want": Breakage(
        "aiorocket.broker.core.record_filter:RecordFilter.select", "if matches(_properties(raw)):", "if True:",
        _filters,
    ),
    "a filter that counts what it did not look at": Breakage(
        "aiorocket.broker.core.record_filter:RecordFilter.select", "seen += 1", "seen += 2", _filters
    ),
    # -- who reads what --
    "a rebalance that gives nothing up": Breakage(
        f"{_REBALANCER}.round", "await self._assignment.give_up(sorted({*change.removed, *idle}))", "None"
    ),
    "a rebalance that takes nothing": Breakage(
        f"{_REBALANCER}.round", "starts = await self._starts(change.added, problems, optional)", "starts = {}"
    ),
    "a member that knows only itself": Breakage(
        f"{_REBALANCER}._view", "await self._members(topic, route)", "[self._session.client_id]"
    ),
    # -- broadcasting --
    "broadcasting offsets that stay in memory": Breakage(
        f"{_LOCAL_OFFSETS}.write", "await self._disk.run(self._replace, write_offset_file(wanted))", "None",
        broadcasting,
    ),
    "broadcasting offsets of one queue in place of all": Breakage(
        f"{_LOCAL_OFFSETS}.write", "wanted = {**offsets, **dict(due)}", "wanted = dict(due)", broadcasting
    ),
    "broadcasting offsets that are not read": Breakage(
        f"{_LOCAL_OFFSETS}.read", "return (await self._loaded()).get(queue, -1)", "return -1", broadcasting
    ),
    # -- the wire --
    "an answer taken for that of the oldest request": Breakage(
        f"{_CONNECTION}._handle", "requests.pop(command.opaque, None)", "requests.pop(next(iter(requests), 0), None)"
    ),
    "a request that waits for ever": Breakage(
        f"{_CONNECTION}.request", "self._timeouts.add(timeout, opaque, command.code)", "None"
    ),
    # -- name servers --
    "a registration whose topics are not kept": Breakage(
        f"{_ROUTES}.registering", "on[what.name] = queues", "None"
    ),
    # -- damage --
    "a checksum never checked": Breakage(
        "aiorocket.storage.written:WrittenLog.checked", "if wrong:", "if False:", damaged_stores
    ),
    "a unit that is believed": Breakage(
        f"{_READER}._records", "not belong:", "False:", damaged_stores
    ),
    "a record without checksums that is believed": Breakage(
        f"{_READER}._records", "if log.unchecked:", "if False:", damaged_stores
    ),
    "damage that is served": Breakage(
        f"{_READER}._undamaged", "if count and damage and", "if False and", damaged_stores
    ),
    "a reader that stays in front of damage": Breakage(
        f"{_READER}._behind", "offset += 1", "return offset", damaged_stores
    ),
    "damage that ends the log": Breakage(
        "aiorocket.storage.recovery:LogSteps.scan", "durable = max(self.durable, start) if last",
        "durable = start if last", damaged_stores,
    ),
    "damage that is not said": Breakage(
        "aiorocket.storage.recovery:LogSteps.scan", "self.pass_over(item.offset, item.end, item.reason)", "None",
        damaged_stores,
    ),
    "units made again without the last": Breakage(
        "aiorocket.storage.mending:Mending._mend", "range(low + 1, high)", "range(low + 1, high - 1)", damaged_stores
    ),
    "offsets of lost messages given again": Breakage(
        "aiorocket.storage.recovery:LogSteps._keep_numbers", "if not self.lost and not self.rebuilding:", "if True:",
        damaged_stores,
    ),
    "messages that only checksum files know are not counted": Breakage(
        "aiorocket.storage.queue_recovery:QueueSteps.keep_counts", "if self.lost else ()", "if False else ()",
        damaged_stores,
    ),
}  # fmt: skip

#: What the project was asked to find; the harness tries to each time.
NAMED: Final = (
    "recovery without CRC",
    "delay progress before its copy is stored",
    "offsets never flushed",
    "a stale epoch accepted",
    "an overtaken unlock",
    "a lease counted from the answer",
    "a lease that is never renewed",
    "a dropped queue that still delivers",
    "a send-back that failed counted as done",
)

#: Seeds tried until it was found.
FOUND: Final[dict[str, int]] = {
    "ack before fsync": 1,
    "recovery without CRC": 1,
    "recovery that overlooks a sector never written": 7,
    "recovery that believes a record anywhere": 2,
    "recovery that does not zero the rest": 2,
    "recovery that does not sync what it found": 11,
    "a torn tail taken for damage": 1,
    "a segment used before its directory is synced": 1,
    "a segment found and its directory not synced": 100,
    "a full segment that is not synced": 1,
    "a durable point ahead of the disk": 1,
    "queues that are not cut to the checkpoint": 1,
    "state saved without fsync": 1,
    "state renamed and its directory not synced": 1,
    "state saved in place": 4,
    "state without a checksum": 24,
    "topics saved with the rest": 10,
    "delay progress before its copy is stored": 81,
    "timer progress before its copy is stored": 38,
    "delay progress never saved": 1,
    "a delayed message the store refused is given up": 1,
    "timers begin behind what waits": 14,
    "offsets never flushed": 1,
    "locks forgotten at a restart": 2,
    "no grace when the record of locks is lost": 22,
    "a lock granted before it is recorded": 22,
    "a lock granted while another holds it": 1,
    "a lock that lasts half as long as clients trust it": 4,
    "a stale epoch accepted": 26,
    "an overtaken unlock": 26,
    "a lock that anybody can give back": 22,
    "a lease counted from the answer": 2,
    "a lease that is never renewed": 4,
    "a lease that never ends": 2,
    "a lease that is not looked at before a call": 1,
    "a lock given back while its listener runs": 1,
    "a dropped queue that still delivers": 1,
    "a send-back that failed counted as done": 7,
    "commits that run ahead": 1,
    "commits never flushed": 1,
    "one attempt too many": 1,
    "a dead letter one attempt early": 1,
    "turns of a key not kept": 1,
    "a late result that finishes another assignment's message": 1,
    "a read one too far": 1,
    "a read that counts too many": 1,
    "a read without a limit of bytes": 1,
    "a filtered read that passes over a message": 2,
    "a filtered read that stops at the first": 2,
    "a rolled-back append keeps its tail": 1,
    "a rolled-back append keeps its offset": 1,
    "a rolled-back append stays in memory": 2,
    "a rolled-back append keeps its checksum": 1,
    "a rolled-back append keeps its segment": 110,
    "a rolled-back append stays in the file": 1,
    "a write that failed is acknowledged": 1,
    "a store that goes on after a failed sync": 2,
    "what a failed sync left is not written again": 14,
    "a full disk for ever": 1,
    "bytes that wait are never counted down": 4,
    "what is written is never synced": 2,
    "a stop that is not clean": 1,
    "a checkpoint without the units it counts": 1,
    "a checkpoint that forgets where queues begin": 2,
    "a time that goes back with the clock": 10,
    "a batch that stands beside itself in memory": 4,
    "a batch that rolls over with its old places": 4,
    "a record that rolls over with its old place": 1,
    "memory that forgets one message too few": 1,
    "a piece of the log as it was once": 1,
    "a search by time that ends one too late": 1,
    "a key index that is not kept up": 1,
    "a deleted topic that comes back": 37,
    "a deleted topic whose files stay": 57,
    "retention by the oldest message of a segment": 2,
    "retention takes what is needed": 2,
    "retention forgets the hours of a topic": 2,
    "retention removes a segment that a queue stands in": 2,
    "retention that never removes a segment": 13,
    "files removed before the checkpoint": 8,
    "a queue that begins in front of its log": 2,
    "compaction takes the first message that stays": 2,
    "compaction mistakes a queue for another": 2,
    "compaction moves what stays": 2,
    "compaction under the old checksums": 5,
    "a timer that comes early": 1,
    "a timer that comes again after a restart": 3,
    "a recall ignored": 1,
    "a recall that is met after its message": 1,
    "a recall answered before it is durable": 19,
    "timers that are only looked for at a start": 1,
    "timers in the queue not looked for at a start": 1,
    "a timer due while another waits": 16,
    "a half message never checked": 1,
    "a half message that everybody gets": 1,
    "a rollback that commits": 1,
    "an end of a transaction without its op record": 1,
    "open transactions forgotten at a restart": 1,
    "ended transactions open again after a restart": 36,
    "transactions read from behind what is open": 1,
    "op records read from behind what they end": 36,
    "a transaction asked about once": 6,
    "a check that nobody is asked": 1,
    "a repetition stored again": 12,
    "a repetition of what is under way stored again": 2,
    "sends that count once forgotten at a restart": 12,
    "sends that count once since the last save forgotten": 40,
    "sends that count once on another queue": 40,
    "an acknowledgement of a pop lost": 3,
    "an acknowledgement of a pop that changes nothing": 1,
    "a pop that is never revived": 1,
    "a revived pop that stays out": 2,
    "a revived pop that is not stored again": 3,
    "pops forgotten at a restart": 2,
    "a pop that is over at once after a restart": 14,
    "a renewal that is never sent": 15,
    "a changed invisible time that counts for nothing": 42,
    "messages popped while somebody has them": 1,
    "records of pops begun from behind what is out": 3,
    "a limit on what waits that is never released": 1,
    "a pull that goes on one too far": 1,
    "a filter that takes what it does not want": 1,
    "a filter that counts what it did not look at": 1,
    "a rebalance that gives nothing up": 1,
    "a rebalance that takes nothing": 1,
    "a member that knows only itself": 1,
    "broadcasting offsets that stay in memory": 1,
    "broadcasting offsets of one queue in place of all": 3,
    "broadcasting offsets that are not read": 1,
    "an answer taken for that of the oldest request": 1,
    "a request that waits for ever": 1,
    "a registration whose topics are not kept": 1,
    "a checksum never checked": 1,
    "a unit that is believed": 10,
    "a record without checksums that is believed": 10,
    "damage that is served": 1,
    "a reader that stays in front of damage": 1,
    "offsets of lost messages given again": 6,
    "messages that only checksum files know are not counted": 7,
    "damage that ends the log": 1,
    "damage that is not said": 1,
    "units made again without the last": 1,
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
    for module in [module for each, module in sys.modules.items() if each.startswith("aiorocket")]:
        if getattr(module, name, None) is function:  # it was imported by its name
            patch.setattr(module, name, made[name])


def seeds_until_found(breakage: Breakage, first: Sequence[int] = ()) -> int | None:
    """How many seeds it takes, None when ``SEEDS`` are not enough. Those of ``first`` are tried before all others,
    which is cheap when one of them found it the last time."""
    _images()  # whole ones
    with pytest.MonkeyPatch.context() as patch:
        apply(patch, breakage)
        for seed in [*first, *range(SEEDS)]:
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
