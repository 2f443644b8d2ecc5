"""What to do about damage: say what it cost, and make units again that contradict the log.

Both go on beside everything else: a report looks at a few queues per loop turn, units are looked for in the log in
short jobs of the writer thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from itertools import islice

from aiorocket.runtime.disk import Disk
from aiorocket.storage.checkpoint import QueueTable
from aiorocket.storage.checksums import Entries, read_entries, sums_path
from aiorocket.storage.commit_log import CommitLog
from aiorocket.storage.consume_queue import GAP, UNIT, ConsumeQueue, write_units
from aiorocket.storage.files import FileCache
from aiorocket.storage.queue_recovery import Codes, code_of
from aiorocket.storage.results import Damage, StoreBusyError
from aiorocket.storage.segment import Segment
from aiorocket.storage.walk import Bad, Found, walk

__all__ = ("Mending",)

_LOG = logging.getLogger("aiorocket.storage")
#: Queues looked at per loop turn for a report.
_QUEUES_PER_TURN = 200
#: Records read per job.
_RECORDS_PER_JOB = 4096
#: Queues named in the line of a report.
_NAMED = 20


class Mending:
    """``damaged`` is what reports have said so far."""

    def __init__(
        self,
        disk: Disk,
        log: CommitLog,
        files: FileCache,
        queues: QueueTable,
        deleted: dict[str, int],
        codes: Codes,
        holds: Callable[[ConsumeQueue, int], bool],
    ) -> None:
        self._disk = disk
        self._log = log
        self._files = files
        self._queues = queues
        self._deleted = deleted
        self._codes = codes
        self._holds = holds
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[ConsumeQueue, asyncio.Task[None]] = {}
        self._reports: dict[asyncio.Task[None], None] = {}
        self._closed = False
        self.damaged: list[Damage] = []

    async def close(self) -> None:
        """End what runs; the next start or read finds the same again."""
        self._closed = True
        tasks = [*self._tasks.values(), *self._reports]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # ---- reports

    def report(self, bad: Bad, *, known: bool = False) -> None:
        """Say once which messages stood in a damaged range; one that is ``known`` is only counted."""
        if self._closed:
            return
        task = self._loop.create_task(self._report(bad, known=known), name="store damage report")
        self._reports[task] = None
        task.add_done_callback(self._reports.pop)

    async def _report(self, bad: Bad, *, known: bool) -> None:
        lost: list[tuple[str, int, int, int]] = []
        for number, queue in enumerate(list(self._queues.values()), 1):
            first, last = self._first(queue, bad.offset, ends=True), self._first(queue, bad.end, ends=False)
            if last > first:
                lost.append((queue.topic, queue.queue_id, first, last - first))
            if number % _QUEUES_PER_TURN == 0:
                await asyncio.sleep(0)
        damage = Damage(self._log.file_of(bad.offset), bad.offset, bad.end, bad.reason, tuple(lost))
        self.damaged.append(damage)
        if not known:
            named = [
                f"topic {topic} queue {queue_id} offset {first} ({count})" for topic, queue_id, first, count in lost
            ]
            text = ", ".join(named[:_NAMED]) + (f" and {len(named) - _NAMED} more queues" if named[_NAMED:] else "")
            total = sum(count for *_, count in lost)
            _LOG.error(
                "%s: log offsets %d to %d are damaged (%s); %s",
                damage.file, bad.offset, bad.end, bad.reason,
                f"{total} messages are lost: {text}" if text else "no queue knows of a message that stood there",
            )  # fmt: skip

    def _first(self, queue: ConsumeQueue, place: int, *, ends: bool) -> int:
        """The first queue offset whose record ends behind log offset ``place``, or begins there or behind it."""
        low, high = queue.min_offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            try:
                unit = queue.units(self._files, middle, 1)
            except OSError:
                unit = b""
            if len(unit) < UNIT.size:
                return low
            at, size, _ = UNIT.unpack(unit)
            if (at + max(size, 1) <= place) if ends else (at < place):
                low = middle + 1
            else:
                high = middle
        return low

    # ---- units

    def mend(self, queue: ConsumeQueue, offset: int) -> None:
        """Begin to make the units around ``offset`` again, unless that goes on already."""
        if queue in self._tasks or self._closed:
            return
        task = self._loop.create_task(self._mend(queue, offset), name=f"store mends {queue.directory}")
        self._tasks[queue] = task
        task.add_done_callback(lambda task: self._mended(queue, task))

    def _mended(self, queue: ConsumeQueue, task: asyncio.Task[None]) -> None:
        del self._tasks[queue]
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, StoreBusyError):  # after that whoever reads there begins anew
            _LOG.error("%s could not be made again: %s", queue.directory, error)

    async def _mend(self, queue: ConsumeQueue, offset: int) -> None:
        while offset < queue.tail_first and self._holds(queue, offset):
            offset += 1
        if offset >= queue.tail_first:
            return
        low, high = await self._bounds(queue, offset)
        log = self._log
        since = start = max(log.start_offset, self._deleted.get(queue.topic, 0))
        stop = log.written
        if low >= queue.min_offset:
            place, size = self._place(queue, low)
            start = place + max(size, 0)
        elif (segment := log.segment_at(start)) is not None:
            start = segment.base  # what was deleted may be a part of one filler
        if high < queue.max_offset:
            stop = self._place(queue, high)[0]
        units: dict[int, bytes] = {}
        records = self._walk(start, stop)
        try:
            while batch := await self._disk.run(_next, records):
                for item in batch:
                    if isinstance(item, Bad):
                        log.found_damage(item._replace(end=min(item.end, stop)))  # the log grows behind it
                    elif item.offset >= since and (item.queue_id, item.topic) == (queue.queue_id, queue.topic_bytes):
                        code = code_of(item, self._codes, queue.topic)
                        units[item.queue_offset] = UNIT.pack(item.offset, item.size, code)
        finally:
            records.close()
        if queue.deleted:
            return
        data, place = bytearray(), max(since, start)
        for index in range(low + 1, high):
            unit = units.get(index)
            data += UNIT.pack(place, GAP, 0) if unit is None else unit
            if unit is not None:
                place = UNIT.unpack(unit)[0]
        await self._disk.run(write_units, self._disk, queue.directory, low + 1, bytes(data), low + 1)
        self._files.forget(queue.directory + "/")
        found = sum(low < index < high for index in units)
        _LOG.error(
            "%s contradicted the log: offsets %d to %d were made again, %d of %d messages were found",
            queue.directory, low + 1, high, found, high - low - 1,
        )  # fmt: skip

    async def _bounds(self, queue: ConsumeQueue, offset: int) -> tuple[int, int]:
        """The nearest offsets below and above, in growing steps, whose units the log confirms; those outside the queue
        count as confirmed, and so do units that are in memory."""
        low, step = offset - 1, 1
        while low >= queue.min_offset and not self._holds(queue, low):
            low, step = max(queue.min_offset - 1, low - step), step * 2
            await asyncio.sleep(0)
        high, step = offset + 1, 1
        while high < queue.tail_first and not self._holds(queue, high):
            high, step = min(queue.tail_first, high + step), step * 2
            await asyncio.sleep(0)
        return low, high

    def _place(self, queue: ConsumeQueue, offset: int) -> tuple[int, int]:
        place, size, _ = UNIT.unpack(queue.units(self._files, offset, 1))
        return place, size

    def _walk(self, start: int, stop: int) -> Generator[Found | Bad]:
        for segment in list(self._log.segments):
            if segment.end <= start or segment.base >= stop:
                continue
            entries = read_entries(self._disk, sums_path(segment.path), segment.base)
            offset = max(start, segment.base)
            for item in walk(self._disk, segment.path, segment.base, segment.capacity, entries, offset, stop):
                if item.offset >= stop:
                    return
                if isinstance(item, Bad) and not self._is_as_before(segment, entries):
                    raise StoreBusyError(f"{segment.path} was removed or compacted meanwhile")
                yield item

    def _is_as_before(self, segment: Segment, entries: Entries | None) -> bool:
        """Whether retention has neither removed a segment nor exchanged it since these were its checksums."""
        now = read_entries(self._disk, sums_path(segment.path), segment.base)
        if segment not in self._log.segments or now is None or entries is None:
            return segment in self._log.segments and now is entries
        return now.crcs[: len(entries.crcs)] == entries.crcs


def _next(records: Generator[Found | Bad]) -> list[Found | Bad]:
    return list(islice(records, _RECORDS_PER_JOB))
