"""MessageStore: the one object the broker stores to and reads from. It wires commit log, consume queues and caches
together.

Appends are assigned their offsets at once and acknowledged by a callback when their group is as durable as
``StoreConfig.flush`` promises; only then they become visible, in order. Reads are plain calls: from memory at the
tail, from files otherwise.

``append`` is one long function on purpose: it runs once per message and a call costs as much as any of its steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any

from aiorocket.config import StoreConfig
from aiorocket.errors import StoreError
from aiorocket.runtime.env import Env
from aiorocket.storage.block import BLOCK_MASK
from aiorocket.storage.checkpoint import QueueTable
from aiorocket.storage.chunk_cache import ChunkCache
from aiorocket.storage.commit_group import KEPT, KEPT_EACH, CommitGroup, Done
from aiorocket.storage.commit_log import CommitLog
from aiorocket.storage.consume_queue import MAX_QUEUE_ID, UNIT, ConsumeQueue, queue_directory, units_of
from aiorocket.storage.files import FileCache
from aiorocket.storage.housekeeping import Housekeeping
from aiorocket.storage.key_index import KeyIndex
from aiorocket.storage.mending import Mending
from aiorocket.storage.opening import Opened, open_files
from aiorocket.storage.queue_recovery import WRITE_OUT, Codes
from aiorocket.storage.reader import Reader
from aiorocket.storage.results import Damage, PutResult, PutStatus, ReadResult, Recovery, TopicGoingError
from aiorocket.storage.retention import Retention
from aiorocket.storage.scrub import Scrub
from aiorocket.storage.tail_cache import TailCache
from aiorocket.storage.take_back import take_back
from aiorocket_protocol import PHYSICAL_OFFSET_AT, SYS_FLAG_AT, BatchItem, encode_record, encode_records

__all__ = ("Arrival", "MessageStore")

_pack_unit = UNIT.pack
_new_result = tuple.__new__
_OK = PutStatus.OK
#: What stands in a block for the records of a batch behind the first.
_NOTHING = [b""] * (BLOCK_MASK + 1)

#: (topic, queue id, max offset, tags code of what arrived or None when the codes differ)
Arrival = Callable[[str, int, int, "int | None"], None]


def _no_arrival(topic: str, queue_id: int, max_offset: int, code: int | None) -> None:
    return None


class MessageStore:
    """A store in a directory, made by ``open``. ``on_arrival`` hears of visible messages, once per queue and group."""

    def __init__(
        self, env: Env, config: StoreConfig, directory: str, store_host: bytes, opened: Opened, codes: Codes
    ) -> None:
        found = opened.found
        self.directory = directory
        #: What opening it found.
        self.recovery: Recovery = found.report
        self.on_arrival: Arrival = _no_arrival
        self._loop = asyncio.get_running_loop()
        self._wall_ms = env.clock.wall_ms
        self._max_pending = config.max_pending
        self._store_host = store_host
        self._queue_directory = f"{directory}/consumequeue"
        self._files = files = FileCache(env.disk)
        self._tail = TailCache(config.tail_cache)
        self._queues: QueueTable = found.queues
        self._timestamp = found.timestamp
        self._lock = opened.lock
        self._log = log = CommitLog(env, config, f"{directory}/commitlog", files, self._committed, self._failed)
        chunks = ChunkCache(log, max(4 << 20, config.tail_cache))
        self._reader = reader = Reader(log, chunks, files, self._queues, codes, lambda *at: self._mending.mend(*at))
        self._mending = Mending(env.disk, log, files, self._queues, found.deleted, codes, reader.holds)
        log.start(found.segments, found.end, found.damage)
        log.on_damage = self._mending.report
        for bad in log.damage:
            self._mending.report(bad, known=bad not in self.recovery.damaged)
        self._scrub = Scrub(env.disk, config, log)
        #: Looks messages up by their keys.
        self.keys = KeyIndex(env.disk, log, files, opened.parts, self._reader.read_record, self._reader.time_at)
        self._behind = Housekeeping(
            env.disk, config, log, files, found.snapshot, self._queues, found.deleted, lambda: self._timestamp
        )
        #: The first runs a job of the disk's thread once what was acknowledged so far survives a power cut (OSError,
        #: with nothing done, when the disk fails). What is appended later is written behind a job the second is given.
        self.behind_sync, self.ahead = self._behind.behind_sync, self._behind.ahead
        #: Removes what is old.
        self.retention = Retention(
            env.disk, config, f"{directory}/commitlog", log, files, self._queues, self._reader, self.keys,
            self._wall_ms, self._behind.save, found.deleted,
        )  # fmt: skip
        self._behind.on_deletion = self.retention.count_deleted
        self._behind.on_checkpoint += (self.retention.arm, self.keys.keep_up)
        self._closed = False
        log.check_space()
        self.retention.arm()

    # ---- life

    @classmethod
    async def open(
        cls,
        env: Env,
        config: StoreConfig,
        directory: str,
        *,
        store_host: bytes,
        codes: Codes = MappingProxyType({}),
    ) -> MessageStore:
        """Lock the directory, recover, start. ``store_host`` is the broker's address as 8 (IPv4) or 20 (IPv6) packed
        bytes. ``codes`` says by topic what stands beside a record in its queue, where that is something else than the
        hash of TAGS (the delay queues): recovery asks it for every record of theirs.

        StoreLockedError, StoreCorruptedError, or StoreError for an unusable directory.
        """
        directory = directory.rstrip("/") or "/"
        opened = await open_files(env.disk, config, directory, codes)
        return cls(env, opened.config, directory, store_host, opened, codes)

    async def close(self) -> None:
        """Write and acknowledge what waits, save a checkpoint that makes the next start scan nothing, unlock."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._scrub.close()
            await self._mending.close()
            await self.retention.close()
            await self._log.drain()
            await self.keys.close()
            await self._behind.close(clean=not self._log.is_broken)
            await self._log.close()
        finally:
            self._files.close()
            self._lock.release()

    @property
    def problem(self) -> str | None:
        """Why appends are refused at present (full, broken, closed), else None."""
        return None if self._log.refusal is None else str(self._log.refusal)

    @property
    def flushing(self) -> object | None:
        """The flush that is under way, another object for each; None when there is none."""
        syncing = self._log.syncing
        return self._log.flushing or (syncing if syncing is not None and not syncing.done() else None)

    @property
    def damaged(self) -> list[Damage]:
        """The ranges of the log that were found damaged, by this process or an earlier one. What stood in them is not
        served; pulls go on behind them."""
        return self._mending.damaged

    @property
    def store_host(self) -> bytes:
        """The broker's address as it stands in every record, 8 or 20 packed bytes."""
        return self._store_host

    # ---- appending

    def appending(self) -> dict[str, Any]:
        """What the compiled way of a plain append works with: all that ``append`` does, in the same fields."""
        fields = {name: getattr(self, f"_{name}") for name in ("log", "tail", "queues", "wall_ms", "max_pending")}
        return {**fields, "take_back": take_back}

    def append(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes,
        *,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        tags_code: int,
        done: Done,
    ) -> None:
        """Give the message its place now; ``done(PutResult)`` is called on the loop when it is durable (or cannot
        be); with ``flush="async"`` that may be before this returns.

        Raises, with nothing assigned: StoreFullError, StoreBusyError (too much waits), StoreBrokenError, StoreError
        (larger than a segment), UsageError (topic or queue id), ProtocolError (a number or length that a record
        cannot hold).
        """
        log = self._log
        if log.refusal is not None or log.pending > self._max_pending:
            log.refuse()
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._new_queue(topic, queue_id)
        now = self._wall_ms()
        if now < self._timestamp:
            now = self._timestamp
        else:
            self._timestamp = now
        offset = queue.next_offset
        physical = log.end
        record = encode_record(  # by position: names cost a tenth of it
            queue.topic_bytes, body, properties, queue_id, offset, physical, flag, sys_flag, born_timestamp, born_host,
            now, self._store_host, reconsume_times, prepared_transaction_offset,
        )  # fmt: skip
        size = len(record)
        if physical + size > log.limit:
            physical = log.roll(size)
            record = _moved(record, physical)
        if not log.scheduled:
            self._loop.call_soon(log.flush)
            log.scheduled = True
        group, tail, block = log.group, self._tail, queue.block
        # What may find no memory comes first, and leaves nothing then.
        result = _new_result(PutResult, (_OK, physical, offset, now, ()))
        unit = _pack_unit(physical, size, tags_code)
        end, pending, following, cached = physical + size, log.pending + size + KEPT, offset + 1, tail.size + size
        try:
            if block is None or not offset & BLOCK_MASK:
                block = tail.start(queue, offset)
            of_block = block.size + size
            block.records.append(record)
            block.sizes.append(size)
            block.codes.append(tags_code)
            queue.tail += unit
            log.buffers.append(record)
            if not queue.marked:
                group.touched.append(queue)
            group.dones.append(done)
            group.results.append(result)
        except MemoryError:
            take_back(log, tail, (queue,), record)
            raise
        log.end = end
        log.pending = pending
        queue.next_offset = following
        block.size = of_block
        if not queue.marked:
            queue.marked = True
            queue.code = tags_code
        elif queue.code != tags_code:
            queue.code = None
        tail.size = cached
        if cached > tail.budget:
            tail.evict()
        if len(group.dones) >= log.burst:
            log.flush()

    def append_batch(
        self,
        topic: str,
        queue_id: int,
        items: Sequence[BatchItem],
        codes: list[int],
        extra_properties: bytes = b"",
        *,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int = 0,
        done: Done,
    ) -> None:
        """Several messages with consecutive queue offsets in one piece of the log, acknowledged by one ``done``.
        ``codes`` are their tags codes, ``extra_properties`` follow each one's own. Raises as ``append``."""
        if not items:
            raise StoreError("a batch needs at least one message")
        log = self._log
        if log.refusal is not None or log.pending > self._max_pending:
            log.refuse()
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._new_queue(topic, queue_id)
        now = self._timestamp = max(self._wall_ms(), self._timestamp)
        first = queue.next_offset
        encoded = partial(
            encode_records, items, extra_properties, topic=queue.topic_bytes, queue_id=queue_id, queue_offset=first,
            sys_flag=sys_flag, born_timestamp=born_timestamp, born_host=born_host, store_timestamp=now,
            store_host=self._store_host, reconsume_times=reconsume_times,
        )  # fmt: skip
        start = log.end
        records, sizes = encoded(physical_offset=start)
        total = len(records)
        if start + total > log.limit:
            start = log.roll(total)
            records, sizes = encoded(physical_offset=start)
        if not log.scheduled:
            self._loop.call_soon(log.flush)
            log.scheduled = True
        # The same as for one message, in a few steps for all of them.
        tail, group = self._tail, log.group
        count = len(sizes)
        places, units = units_of(start, sizes, codes)
        result = PutResult(_OK, start, first, now, places)
        end, pending = start + total, log.pending + total + KEPT + KEPT_EACH * count
        code = codes[0] if codes.count(codes[0]) == count else None
        offset, taken = first, 0
        try:
            while taken < count:
                block = queue.block
                if block is None or not offset & BLOCK_MASK:
                    block = tail.start(queue, offset)
                upto = min(count, taken + BLOCK_MASK + 1 - (offset & BLOCK_MASK))
                size = sum(sizes[taken:upto])
                of_block, cached = block.size + size, tail.size + size
                # A batch that passes the end of a block is cut there.
                at = places[taken] - start
                block.records.append(records if size == total else records[at : at + size])
                block.records += _NOTHING[1 : upto - taken]
                block.sizes += sizes[taken:upto]
                block.codes += codes[taken:upto]
                block.size, tail.size = of_block, cached
                offset += upto - taken
                taken = upto
            queue.tail += units
            log.buffers.append(records)
            if not queue.marked:
                group.touched.append(queue)
            group.dones.append(done)
            group.results.append(result)
        except MemoryError:
            take_back(log, tail, (queue,), records)
            raise
        log.end = end
        log.pending = pending
        queue.next_offset = offset
        if not queue.marked:
            queue.marked = True
            queue.code = code
        elif queue.code != code:
            queue.code = None
        if tail.size > tail.budget:
            tail.evict()
        if len(group.dones) >= log.burst or (len(group.dones) > 1 and end - group.start >= log.burst_bytes):
            log.flush()

    def _new_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        if topic in self._behind.deleting:
            raise TopicGoingError(f"topic {topic} is being deleted; try again in a moment")
        queue = ConsumeQueue(queue_directory(self._queue_directory, topic, queue_id), topic, queue_id)
        self._queues[topic, queue_id] = queue
        return queue

    # ---- what the commit log reports

    def _committed(self, group: CommitGroup) -> None:
        dirty = self._behind.dirty
        for queue, upto, _ in group.marks:
            if not queue.deleted:
                queue.max_offset = upto
                dirty[queue] = None
        self._acknowledge(group)
        arrived = self.on_arrival
        for queue, upto, code in group.marks:
            if queue.deleted:
                continue
            try:
                arrived(queue.topic, queue.queue_id, upto, code)
            except Exception as error:  # noqa: BLE001 - the messages are stored whatever the listener does with the news
                self._report("on_arrival", error)
            if len(queue.tail) >= WRITE_OUT:
                self._behind.write_out(queue)
        self._behind.arm()

    def _acknowledge(self, group: CommitGroup) -> None:
        pairs = zip(group.dones, group.results, strict=True)
        while True:
            try:
                for done, result in pairs:
                    done(result)
                return
            except Exception as error:  # noqa: BLE001 - one broken callback must not keep the others from their answer
                self._report("done", error)

    def _failed(self, groups: list[CommitGroup], status: PutStatus) -> None:
        for group in groups:
            for queue, _, _ in group.marks:
                queue.roll_back()
                self._tail.forget(queue, queue.max_offset)
        self._behind.log_was_cut(self._log.end)
        for group in groups:
            group.results = [result._replace(status=status) for result in group.results]
            self._acknowledge(group)

    def _report(self, what: str, error: Exception) -> None:
        with suppress(MemoryError):  # as of the callback, perhaps; the others are to be called all the same
            text = f"{what} callback of {self.directory} failed"
            self._loop.call_exception_handler({"message": text, "exception": error})

    # ---- reading; see reader.py

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int,
        accept: Callable[[int], bool] | None = None,
    ) -> ReadResult:
        """Stored records from ``offset`` on as one buffer: at most ``max_messages`` and ``max_bytes``, but at least
        one message.

        ``accept`` is asked with the tags code of each; at most max(800, max_messages) are looked at. Statuses are
        RocketMQ's. OSError when a file cannot be read, StoreCorruptedError when it is missing.
        """
        return self._reader.read(topic, queue_id, offset, max_messages, max_bytes, accept)

    def read_record(self, physical_offset: int) -> bytes | None:
        """The record at a log offset, checked with its CRC; None when no record begins there or it is not visible
        yet."""
        return self._reader.read_record(physical_offset)

    def entries(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        """(physical offset, size, tags code) of up to ``count`` visible messages from ``offset`` on."""
        return self._reader.entries(topic, queue_id, offset, count)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Oldest queue offset that can be read; 0 for an unknown queue."""
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The queue offset after the newest visible message; 0 for an unknown queue."""
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else queue.max_offset

    def offset_by_time(self, topic: str, queue_id: int, ms: int, upper: bool = False) -> int:
        """First queue offset stored at or after ``ms`` (the end if none is); with ``upper`` the last one stored at or
        before it (0 if none is, as RocketMQ 5 says)."""
        return self._reader.offset_by_time(topic, queue_id, ms, upper)

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Store timestamp (ms) of one message, None when there is none at ``offset``."""
        return self._reader.store_time(topic, queue_id, offset)

    def is_young(self, topic: str, queue_id: int) -> bool:
        """Whether a group without an offset begins the queue at 0: nothing was ever written to it, or its first message
        is close enough to the end of the log that it may still be in the page cache."""
        return self._reader.is_young(topic, queue_id)

    def ends(self) -> dict[str, int]:
        """Topic → the sum of where its queues end: how many messages it was ever given."""
        return self._reader.ends()

    def queues(self, topic: str) -> list[int]:
        """Ids of the queues of a topic that have ever been written to."""
        return sorted(queue_id for name, queue_id in self._queues if name == topic)

    def topics(self) -> list[str]:
        """Topics with at least one queue."""
        return sorted({topic for topic, _ in self._queues})

    @property
    def min_physical(self) -> int:
        """Log offset of the oldest byte that is kept."""
        return self._log.start_offset

    @property
    def timestamp(self) -> int:
        """When the newest message was stored (ms); 0 before the first."""
        return self._timestamp

    @property
    def max_physical(self) -> int:
        """Log offset after the newest visible message."""
        return self._log.written

    # ---- deleting

    def delete_topics(self, *topics: str, behind: asyncio.Future[None] | None = None) -> asyncio.Future[None]:
        """Forget their queues at once; retention gives the space of their records back. One made again starts at 0.

        The future ends when that is durable, which comes behind ``behind``, and the files are gone. Until then appends
        to a topic raise TopicGoingError. Nobody has to await it: ``close`` does, and an OSError also reaches the loop's
        exception handler.
        """
        queues, names, ids = self._queues, dict.fromkeys(topics), range(MAX_QUEUE_ID + 1)
        few = len(queues) <= len(names) * len(ids)
        doomed: dict[str, list[ConsumeQueue]] = {}
        for key in [key for key in queues if key[0] in names] if few else product(names, ids):
            if (queue := queues.pop(key, None)) is not None:
                queue.deleted = True
                doomed.setdefault(key[0], []).append(queue)
        return self._behind.remove(doomed, self._tail, behind)


def _moved(record: bytes, physical: int) -> bytes:
    """The same record at another place of the log."""
    return record[:PHYSICAL_OFFSET_AT] + physical.to_bytes(8, "big") + record[SYS_FLAG_AT:]
