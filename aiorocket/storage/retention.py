"""Retention: what is old goes, oldest first, by whole segments of the log.

A segment is old when its newest message is older than ``file_reserved_time``, or when the log or the disk is too full.
Queues whose topic keeps messages for longer, and messages that somebody still waits for (``needed``: delays, timers,
open transactions), keep the segment they stand in; it is compacted (compaction.py). Queue offsets are never given
again: the ``min_offset`` of a queue rises, up to its end.

What deleted topics leave goes whatever its age. How much that is in each segment is counted by their units, before
these go; a segment is looked at when it is half of what it keeps. The count is only a reason to look: what goes is what
no queue has.

The order is what makes a crash harmless: first the checkpoint that no longer promises the old messages, then the files.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import chain, islice

from aiorocket.config import StoreConfig
from aiorocket.errors import ProtocolError, StoreCorruptedError, StoreError
from aiorocket.runtime.disk import Disk
from aiorocket.storage.checkpoint import QueueTable
from aiorocket.storage.commit_log import CommitLog
from aiorocket.storage.compaction import Compaction
from aiorocket.storage.consume_queue import FILE_SIZE, UNIT, UNIT_SIZE, ConsumeQueue
from aiorocket.storage.files import FileCache
from aiorocket.storage.key_index import KeyIndex
from aiorocket.storage.reader import Reader
from aiorocket.storage.results import StoreBusyError
from aiorocket.storage.segment import Segment
from aiorocket.storage.sizes import bytes_in_segments, bytes_of, pieces_of
from aiorocket.storage.snapshots import Snapshot

__all__ = ("Retention",)

#: Queues looked at before others have their turn: each may cost a read of the disk.
_TURN = 64
#: Units of a queue read in one turn.
_UNITS = 4096
#: So many of these, of deleted queues, are counted by one job of the disk's thread: some 2 ms.
_PIECES = 16
#: Used share of the disk above which also young messages go, if that is wanted (RocketMQ's
#: diskSpaceCleanForciblyRatio).
_FORCED = 0.85
_HOUR = 3_600_000

_LOG = logging.getLogger("aiorocket.storage")


async def _nothing() -> None:
    pass


class Retention:
    """``save`` makes the queues' new bounds durable and tells whether it did.

    The broker sets ``rules`` (what is old now; that of the configuration unless somebody changes it), ``reserved``
    (hours that a topic keeps its messages, None for the store's own), ``needed`` (the first offset of each queue that
    somebody still waits for) and ``before`` (what is to be durable before anything goes; raises nothing).
    """

    def __init__(
        self,
        disk: Disk,
        config: StoreConfig,
        directory: str,
        log: CommitLog,
        files: FileCache,
        queues: QueueTable,
        reader: Reader,
        keys: KeyIndex,
        wall_ms: Callable[[], int],
        save: Callable[[], Awaitable[bool]],
        deleted: Mapping[str, int],
    ) -> None:
        self._disk = disk
        self._config = config
        self._directory = directory
        self._log = log
        self._files = files
        self._queues = queues
        self._reader = reader
        self._keys = keys
        self._wall_ms = wall_ms
        self._save = save
        self._deleted = deleted
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[int] | None = None
        self._closed = False
        self._snapshot = Snapshot(disk, f"{directory.rpartition(chr(47))[0]}/retention")
        self._kept: dict[str, int] | None = None
        #: How much of that deleted topics have left, by the base of the segment.
        self._left: dict[str, int] = {}
        #: How many messages a segment had to keep when it was looked at last.
        self._looked_at: dict[str, int] = {}
        #: What no checkpoint promises any more and the disk still has.
        self._going: list[Segment] = []
        self.rules: Callable[[], StoreConfig] = lambda: config
        self.reserved: Callable[[str], float | None] = lambda topic: None
        self.needed: Callable[[], Mapping[tuple[str, int], int]] = dict
        self.before: Callable[[], Awaitable[None]] = _nothing

    def arm(self) -> None:
        """Look at what is old in a while, as long as there is a segment that could go."""
        if self._timer is None and not self._closed and len(self._log.segments) > 1:
            self._timer = self._loop.call_later(self._config.retention_interval, self._due)

    def _due(self) -> None:
        self._timer = None
        if self._task is None:
            self._start(by_hand=False).add_done_callback(self._report)

    async def close(self) -> None:
        """Finish what runs."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            await asyncio.wait([self._task])

    async def sweep(self) -> int:
        """Remove what is old now, whatever ``delete_when`` says; how many segments that were. OSError passes."""
        return await asyncio.shield(self._task or self._start(by_hand=True))

    def _start(self, *, by_hand: bool) -> asyncio.Task[int]:
        task = self._task = self._loop.create_task(self._sweep(by_hand=by_hand), name="store retention")
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[int]) -> None:
        self._task = None
        self.arm()

    def _report(self, task: asyncio.Task[int]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, (OSError, StoreError)):
            _LOG.warning("retention waits for its next turn: %s", error)
        elif error is not None:
            self._loop.call_exception_handler({"message": "store retention failed", "exception": error})

    # ---- what is old

    def space(self) -> tuple[int, int]:
        """Bytes of the disk, all and free ones; 0 and 0 when it does not say, as one that is gone."""
        try:
            return self._disk.total_bytes(self._directory), self._disk.free_bytes(self._directory)
        except OSError:
            return 0, 0

    def used(self) -> float | None:
        """The used share of the disk, 0 to 1; None when it does not say."""
        total, free = self.space()
        return 1 - free / total if total else None

    def earliest_time(self) -> int | None:
        """When the oldest message of the log was stored (ms)."""
        return self._reader.time_at(self._log.start_offset)

    def _old(self, *, by_hand: bool) -> tuple[int, int]:
        """Log offsets up to which messages are too old, and up to which there is no room for them."""
        config, log = self.rules(), self._log
        now, used = self._wall_ms(), self.used() or 0.0
        pressed = used > config.disk_max_used_space_ratio / 100
        hours = config.delete_when
        timely = by_hand or pressed or not hours or now // _HOUR % 24 in hours
        before = now - config.file_reserved_time * _HOUR if config.file_reserved_time and timely else None
        aged = full = log.start_offset
        complete = [segment for segment in log.segments[:-1] if segment.end <= log.written]
        # Store timestamps never go back in the log, so halving finds the first that is not old.
        low, high = 0, len(complete) if before is not None else 0
        while low < high:
            middle = at = (low + high) // 2
            # Damage where the next segment begins: the one behind says enough.
            while (newest := self._reader.time_at(complete[at].end)) is None and at < high - 1:
                at += 1
            if before is None or newest is None or newest >= before:
                high = middle
            else:
                low = at + 1
                aged = complete[at].end
        if config.max_log_bytes:
            for segment in complete:
                if log.written - segment.base <= config.max_log_bytes:
                    break
                full = segment.end
        if config.clean_file_forcibly and used > _FORCED and complete:
            full = max(full, complete[0].end)
        return aged, full

    async def _sweep(self, *, by_hand: bool) -> int:
        log = self._log
        aged, full = self._old(by_hand=by_hand)
        left, deserted = await self._deserted()
        floors = await self._floors(aged, full)
        before = {queue: queue.min_offset for queue in floors}
        for queue, floor in floors.items():
            queue.min_offset = max(queue.min_offset, floor)
        old = max(aged, full)
        upto = max([old, *(segment.end for segment in deserted)])
        holders = await self._holders(upto, young=bool(deserted)) if upto > log.start_offset else {}
        upto = min(holders.values(), default=upto)
        doomed = [segment for segment in log.segments[:-1] if segment.end <= upto]
        if not floors and not doomed and not self._going and not deserted:
            return 0
        deleted = dict(self._deleted)  # the checkpoint says so, of later ones it need not
        await self.before()
        del log.segments[: len(doomed)]
        # Both generations, if what goes is young: the older one may begin to read in the midst of it.
        if not await self._save() or (deserted and not await self._save()):
            log.segments[:0] = doomed
            return 0
        log.damage.forget_below(log.start_offset)
        self._keys.forget_before(log.start_offset)
        log.damage.forget_below(log.start_offset)
        self._going += doomed
        while self._going:  # in order, or what one that stays leaves behind it looks like missing segments
            segment = self._going[0]
            self._files.forget(segment.path)
            await self._disk.run(segment.remove, self._disk)
            del self._going[0]
        if doomed:
            _LOG.info("%s: %d segments were removed, it begins at %d", self._directory, len(doomed), log.start_offset)
        for queue, low in before.items():
            if low * UNIT_SIZE // FILE_SIZE < queue.min_offset * UNIT_SIZE // FILE_SIZE:
                await self._remove_units(queue)
        for segment in [segment for segment in log.segments[:-1] if segment.end <= old or segment in deserted]:
            if self._closed:
                break
            await self._compact(segment, holders, deleted, left)
            if segment in deserted:
                self._settle(segment, left)
            await asyncio.sleep(0)
        return len(doomed)

    async def _deserted(self) -> tuple[dict[str, int], dict[Segment, None]]:
        """How much deleted topics have left in each segment, and the full ones in which it is half of what is kept."""
        kept, log = await self._kept_bytes(), self._log
        left = {base: size for base, size in self._left.items() if size > 0}
        full = [segment for segment in log.segments[:-1] if segment.end <= log.written and str(segment.base) in left]
        half = [each for each in full if 2 * left[str(each.base)] >= kept.get(str(each.base), each.capacity)]
        return left, dict.fromkeys(half)

    def _settle(self, segment: Segment, left: dict[str, int]) -> None:
        """What was ``left`` there when the sweep began is dealt with; more may have come since."""
        base = str(segment.base)
        self._left[base] = self._left.get(base, 0) - left.pop(base, 0)

    async def _floors(self, aged: int, full: int) -> dict[ConsumeQueue, int]:
        """The new first offsets of queues that lose messages."""
        needed = self.needed()
        now = self._wall_ms()
        floors: dict[ConsumeQueue, int] = {}
        for number, (key, queue) in enumerate(list(self._queues.items())):
            if number % _TURN == _TURN - 1:
                await asyncio.sleep(0)
            low = queue.min_offset
            if queue.deleted or low == queue.max_offset:
                continue
            floor = self._at_place(queue, aged)
            hours = self.reserved(queue.topic)
            if hours is not None:
                floor = self._reader.offset_by_time(*key, now - int(hours * _HOUR), False)
            floor = max(floor, self._at_place(queue, full))
            floor = min(floor, needed.get(key, floor))
            if floor > low or key in needed or hours is not None:
                # What goes hangs on these units: one that is damaged is made again first (StoreBusyError).
                self._reader.entries(*key, max(low, floor - 1), 2)
            if floor > low:
                floors[queue] = floor
        return floors

    def _place(self, queue: ConsumeQueue, offset: int) -> int | None:
        """The place of a message in the log by its unit; None when that cannot be read."""
        try:
            unit = queue.units(self._files, offset, 1)
        except OSError:
            return None
        return UNIT.unpack(unit)[0] if unit else None

    def _at_place(self, queue: ConsumeQueue, place: int) -> int:
        """The first offset of a queue that stands at or behind a place of the log."""
        low, high = queue.min_offset, queue.max_offset
        first = self._place(queue, low)
        if first is None:
            self._reader.entries(queue.topic, queue.queue_id, low, 1)  # has it made again
            return low
        if first >= place:
            return low
        while low < high:
            middle = (low + high) // 2
            found = self._place(queue, middle)
            if found is not None and found < place:
                low = middle + 1
            else:
                high = middle
        return low

    async def _holders(self, end: int, *, young: bool) -> dict[ConsumeQueue, int]:
        """The queues that still have a message before ``end`` of the log, and where their first one is. What goes is
        old, or else all of it hangs on these units: one that is damaged is made again first (StoreBusyError)."""
        found: dict[ConsumeQueue, int] = {}
        turn = _TURN // 8 if young else _TURN  # which reads the log, too
        for number, queue in enumerate(list(self._queues.values())):
            if number % turn == turn - 1:
                await asyncio.sleep(0)
            if queue.min_offset < queue.max_offset and not queue.deleted:
                if young:
                    self._reader.entries(queue.topic, queue.queue_id, queue.min_offset, 1)
                place = self._place(queue, queue.min_offset)
                if place is None:
                    raise StoreBusyError(f"the units of {queue.directory} cannot be read")
                if place < end:
                    found[queue] = place
        return found

    # ---- removing

    async def _compact(
        self, segment: Segment, holders: dict[ConsumeQueue, int], deleted: Mapping[str, int], left: dict[str, int]
    ) -> None:
        """Take what nobody keeps out of a segment that has to stay, if at least half of it goes. ``deleted`` says of
        topics below which log offset nothing is theirs."""
        rows: list[tuple[ConsumeQueue, int, int]] = []
        for number, (queue, place) in enumerate(holders.items()):
            if number % _TURN == _TURN - 1:
                await asyncio.sleep(0)
            if place < segment.end:
                rows.append((queue, self._at_place(queue, segment.base), self._at_place(queue, segment.end)))
        kept = await self._kept_bytes()
        base, count = str(segment.base), sum(high - low for _, low, high in rows)
        if self._looked_at.get(base) == count or (base in kept and segment in self._log.unchecked):
            return
        size = 0
        for queue, low, high in rows:
            size += await self._size(queue, low, high)
        self._looked_at[base] = count
        if 2 * size > kept.get(base, segment.capacity):
            return
        wanted = {
            (queue.topic_bytes, queue.queue_id): (queue.min_offset, deleted.get(queue.topic, 0)) for queue, _, _ in rows
        }
        compaction = Compaction(self._disk, segment, wanted)
        try:
            done = False
            while not done:
                done = await self._disk.run(compaction.step)
        except (ValueError, ProtocolError) as error:
            _LOG.warning("%s is not compacted: %s", segment.path, error)
            await self._disk.run(compaction.give_up)
            kept[base] = size
        except OSError:
            await self._disk.run(compaction.give_up)
            del self._looked_at[base]
            raise
        else:
            kept[base] = size
            # Here nothing can read in between.
            self._files.forget(segment.path)
            segment.sums = None
            try:
                compaction.swap()
            except OSError:
                self._log.unchecked[segment] = None  # one of its two files may be the old one
                raise
            await self._disk.run(self._disk.fsync_dir, self._directory)
        self._settle(segment, left)
        await self._save_kept()

    async def _save_kept(self) -> None:
        kept, left = await self._kept_bytes(), self._left
        present = {str(segment.base) for segment in self._log.segments}
        for table in (kept, left, self._looked_at):
            for base in table.keys() - present:
                del table[base]
        await self._disk.run(self._snapshot.save, {"bytes": dict(kept), "left": dict(left)})

    async def _size(self, queue: ConsumeQueue, low: int, high: int) -> int:
        """Bytes of the messages of a queue from one offset to another."""
        total = 0
        while low < high and not queue.deleted:
            try:
                units = queue.units(self._files, low, min(high - low, _UNITS))
            except OSError:
                units = b""
                self._reader.entries(queue.topic, queue.queue_id, low, _UNITS)  # has them made again
            if not units:
                break
            total += bytes_of(units)
            low += len(units) // UNIT_SIZE
            await asyncio.sleep(0)
        return total

    async def _kept_bytes(self) -> dict[str, int]:
        """How much each segment had to keep when it was compacted, by its base."""
        if self._kept is None:
            try:
                state = await self._disk.run(self._snapshot.load) or {}
            except StoreCorruptedError:
                state = {}
            if self._kept is None:  # nor read by another meanwhile
                self._kept = dict(state.get("bytes", {}))  # an earlier program wrote numbers of messages
                self._left = dict(state.get("left", {}))
        return self._kept

    async def count_deleted(self, queues: Iterable[ConsumeQueue]) -> None:
        """Have the messages of deleted queues counted as gone, as long as these have their files. An OSError costs
        nothing but the count."""
        pieces, found = chain.from_iterable(map(pieces_of, queues)), False
        try:
            await self._kept_bytes()
            bases = [segment.base for segment in self._log.segments]
            while some := list(islice(pieces, _PIECES)):
                for base, size in (await self._disk.run(bytes_in_segments, self._disk, some, bases)).items():
                    self._left[str(base)] = self._left.get(str(base), 0) + size
                    found = True
            if found:
                await self._save_kept()
        except OSError as error:
            _LOG.warning("what deleted topics leave in %s goes when it is old: %s", self._directory, error)

    async def clean_queues(self) -> None:
        """Remove the files of queues that are all before their first message; those that a crash left too."""
        for queue in list(self._queues.values()):
            if queue.min_offset * UNIT_SIZE >= FILE_SIZE:  # a job for the disk waits for the syncs before it
                await self._remove_units(queue)

    async def _remove_units(self, queue: ConsumeQueue) -> None:
        if queue.deleted:
            return
        below = queue.min_offset * UNIT_SIZE
        for name in await self._disk.run(_files_below, self._disk, queue.directory, below):
            self._files.forget(name)
            await self._disk.run(self._disk.unlink, name)


def _files_below(disk: Disk, directory: str, position: int) -> list[str]:
    """Blocking: paths of a queue's files that end at or before a position. The newest stays: it says where the queue
    ends."""
    if not disk.is_dir(directory):
        return []
    bases = sorted(int(name) for name in disk.listdir(directory) if name.isdigit())
    return [f"{directory}/{base:020d}" for base in bases[:-1] if base + FILE_SIZE <= position]
