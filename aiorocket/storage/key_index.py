"""Key index: which records of a topic carry a key. Derived from the log, never trusted over it.

A part covers a range of the log and is one file, ``index/START-END`` (key_part.py). The newest part grows in memory and
becomes a file when it has ``PART_ENTRIES``; after a restart it is read from the log again. What an entry points at is
read with its CRC and compared, so an entry that is wrong finds nothing; a part whose checksums do not fit is thrown
away and made again.

Nothing of this is on the way of an append. The log is read behind the checkpoints by the disk's thread, and taken in by
some records in a turn of the loop, the more the further the index is behind. A lookup hurries it, for a second: it
answers from what is there then, and says what it lacks.

Keys are RocketMQ's: UNIQ_KEY and each word of KEYS in one space of names, tags in one of their own, as 5.5 keeps them;
no message that rolls a transaction back.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

from aiorocket.errors import StoreCorruptedError
from aiorocket.runtime.disk import Disk
from aiorocket.storage.commit_log import CommitLog
from aiorocket.storage.files import FileCache
from aiorocket.storage.key_part import (
    NO_CUT,
    Growing,
    Part,
    behind_bad,
    hash_of,
    keys_of,
    places_of,
    read_cut,
    read_entries,
    read_head,
)
from aiorocket_protocol import RecordView

__all__ = ("PART_ENTRIES", "KeyIndex", "Part", "Parts", "load_parts")

#: Entries of a part: 2 MiB.
PART_ENTRIES = 1 << 18
#: A part covers at most this much of the log, so that places fit 32 bits.
_PART_BYTES = 1 << 30
#: Records that a turn of the loop takes in, some 0.15 ms of it, and the seconds up to the next one. For each ``_FAR``
#: bytes that the index is behind it is as many more, ``_MOST`` times as many in the end: then it takes half of a core.
_RECORDS, _PAUSE = 64, 0.002
_FAR, _MOST = 16 << 20, 16
#: Records that a turn takes in while somebody looks something up, and the seconds that a lookup waits for them.
_HURRIED, _PATIENCE = 256, 1.0

#: Bytes of records read before others have their turn, and what a record takes beside them.
_A_TURN, _A_LOOK = 1 << 20, 8 << 10
_LOG = logging.getLogger("aiorocket.storage")

Read = Callable[[int], "bytes | None"]


class Parts(NamedTuple):
    """The ``found`` files of an index in ``directory``."""

    directory: str
    found: list[Part]


class Looked(NamedTuple):
    """What a lookup found. ``missing`` bytes of the log, its newest, were not in the index yet."""

    records: list[bytes]
    missing: int


class _DamagedPart(Exception):
    """The file of ``part`` is not what was written."""

    def __init__(self, what: str, part: Part) -> None:
        super().__init__(what)
        self.part = part


def load_parts(disk: Disk, directory: str, start: int, end: int) -> Parts:
    """Blocking: the parts in ``directory`` that belong to a log of ``start`` to ``end``, ascending. Others go: a log
    that was cut goes on with other records at the same places."""
    disk.makedirs(directory)
    parts: list[Part] = []
    for name in disk.listdir(directory):
        path = f"{directory}/{name}"
        file = disk.open(path)
        try:
            part = read_head(file, name)
        finally:
            file.close()
        if part is None or not start < part.end <= end or (parts and part.start < parts[-1].end):
            disk.unlink(path)
        else:
            parts.append(part)
    return Parts(directory, parts)


class KeyIndex:
    """``read`` gives the checked record at a log offset, or None, ``time_at`` when it was stored."""

    def __init__(
        self,
        disk: Disk,
        log: CommitLog,
        files: FileCache,
        parts: Parts,
        read: Read,
        time_at: Callable[[int], int | None],
    ) -> None:
        self._disk = disk
        self._log = log
        self._files = files
        self._directory = parts.directory
        self._read = read
        self._time_at = time_at
        self._entries = PART_ENTRIES
        self._loop = asyncio.get_running_loop()
        self._one_at_a_time = asyncio.Lock()
        self._searching = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.parts = parts.found
        self._growing = Growing(0)
        self._cut = NO_CUT
        self._begin()

    # ---- growing

    @property
    def behind(self) -> int:
        """Bytes of the log that are not indexed yet."""
        return self._lacks(self._log.written)

    @property
    def reached(self) -> tuple[int, int]:
        """How far it is: the store timestamp of its newest message (ms), and up to which offset it has the log."""
        parts = [part for part in self.parts if part.end <= self._growing.start]
        return max((part.newest for part in (*parts, self._growing.part())), default=0), self._growing.end

    def _gaps(self) -> Iterator[tuple[int, int]]:
        """Ranges of the log that no file covers."""
        at = self._log.start_offset
        for part in self.parts:
            if part.start > at:
                yield at, part.start
            at = max(at, part.end)
        yield at, max(at, self._log.written)

    def _lacks(self, upto: int) -> int:
        """Bytes of the log below an offset that are not indexed. What grows is in the first gap."""
        end = self._growing.end
        return sum(max(0, min(stop, upto) - max(start, end)) for start, stop in self._gaps())

    def _begin(self) -> None:
        start, _ = next(self._gaps())
        self._growing = Growing(start)
        self._cut = NO_CUT

    def _stop(self) -> int:
        """Where the growing part has to end."""
        at = bisect_right(self.parts, self._growing.start, key=lambda part: part.start)
        return self.parts[at].start if at < len(self.parts) else self._log.written

    def keep_up(self) -> None:
        """Index what has come, in the background; does nothing while that runs."""
        if self._task is None and not self._closed and self.behind:
            self._task = self._loop.create_task(self._keep_up(), name="store key index")

    async def _keep_up(self) -> None:
        try:
            while True:
                behind = self._log.written - self._growing.end
                async with self._one_at_a_time:
                    if not await self._step(_RECORDS * min(1 + behind // _FAR, _MOST)):
                        return
                await asyncio.sleep(_PAUSE)
        except OSError as error:
            _LOG.warning("the key index in %s waits for the next checkpoint: %s", self._directory, error)
        finally:
            self._task = None

    async def close(self) -> None:
        """End what runs."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _step(self, records: int) -> bool:
        """Take in some ``records``, in one turn of the loop; False when there is nothing left. OSError passes."""
        growing, log = self._growing, self._log
        if growing.start < log.start_offset:
            self._begin()  # retention took what this covered
            growing = self._growing
        stop = self._stop()
        if growing.count >= self._entries or (growing.end == stop < log.written) or _is_wide(growing):
            await self._disk.run(self._disk.replace, f"{self._directory}/{growing.part().name}", growing.encode())
            self.parts.append(growing.part())
            self.parts.sort()
            self._begin()
            return True
        if growing.end >= stop:
            self._cut = NO_CUT
            return False
        if growing.take(self._cut, records, self._entries):
            return True
        segments = log.segments
        segment = segments[bisect_right(segments, growing.end, key=lambda each: each.base) - 1]
        stop = min(stop, segment.end)
        self._cut = await self._disk.run(read_cut, self._disk, segment, growing.end, stop)
        if not growing.take(self._cut, records, self._entries):
            growing.end = await self._disk.run(behind_bad, self._disk, segment, growing.end, stop)
        return True

    def forget_before(self, offset: int) -> None:
        """The log begins at ``offset`` now. Parts that are all before it go, their files behind this call."""
        for part in [part for part in self.parts if part.end <= offset]:
            self._drop(part)

    def _drop(self, part: Part) -> None:
        self.parts.remove(part)
        path = f"{self._directory}/{part.name}"
        self._files.forget(path)
        self._disk.run(self._disk.unlink, path).add_done_callback(_look)

    # ---- lookups

    async def find(
        self, topic: str, key: str, begin: int, end: int, *, tag: bool, limit: int, max_bytes: int
    ) -> Looked:
        """The newest ``limit`` messages of a topic with a key (or ``tag``) stored in ``begin`` to ``end`` (ms), in the
        order of the log; at most ``max_bytes`` of them, but at least one. Everything that was visible at the call is
        looked at, unless the index is so far behind that a second is not enough: then what it has by then. OSError
        when a file cannot be read, StoreCorruptedError when the disk does not keep what is written."""
        wanted = (b"T#" if tag else b"") + key.encode()
        upto = self._log.written  # no more: senders may be as fast as the index
        until = self._loop.time() + _PATIENCE
        damaged = 0
        while True:
            while self._lacks(upto) and self._loop.time() < until:
                async with self._one_at_a_time:
                    if not await self._step(_HURRIED):
                        break
                await asyncio.sleep(0)
            missing = self._lacks(upto)
            try:
                async with self._searching:  # one works in turns of the loop, not each of many
                    return Looked(await self._search(topic.encode(), wanted, begin, end, limit, max_bytes), missing)
            except _DamagedPart as damage:
                damaged += 1
                if damaged > len(self.parts) + 1:
                    raise StoreCorruptedError(f"{damage}, also when it was made again: look at the disk") from None
                _LOG.warning("%s; the part is made again from the log", damage)
                if damage.part in self.parts:
                    self._drop(damage.part)
                    self._begin()

    async def _search(
        self, topic: bytes, wanted: bytes, begin: int, end: int, limit: int, max_bytes: int
    ) -> list[bytes]:
        found: list[bytes] = []
        size = looked = 0
        for places in self._places(hash_of(topic, wanted), begin, end):
            await asyncio.sleep(0)  # before the first, too: each of 64 that came together may find there what it wants
            for place in reversed(places[: bisect_right(places, end, key=self._stamp)]):
                # Keys of others may have the same hash, as many as somebody likes.
                looked += _A_LOOK
                if looked > _A_TURN:
                    looked = 0
                    await asyncio.sleep(0)
                record = self._read(place)
                if record is None:
                    continue
                looked += len(record)
                view = RecordView(record, 0, len(record))
                if view.store_timestamp < begin:
                    return found[::-1]
                if view.store_timestamp <= end and view.raw_topic == topic and wanted in keys_of(view.raw_properties):
                    size += len(record)
                    if found and size > max_bytes:
                        return found[::-1]
                    found.append(record)
                    if len(found) == limit:
                        return found[::-1]
        return found[::-1]

    def _stamp(self, place: int) -> int:
        """Store timestamps rise with the log; what cannot be read any more is old."""
        return self._time_at(place) or 0

    def _places(self, number: int, begin: int, end: int) -> Iterator[list[int]]:
        """Log offsets of what may be meant, the newest part first, ascending in each. The one that grows is not always
        the newest: it may stand for a file that was damaged."""
        growing = self._growing
        for part in sorted([*self.parts, growing.part()], reverse=True):
            if part.newest < begin or part.oldest > end or part.oldest == 0:
                continue
            is_growing = part.start == growing.start
            entries = growing.entries(number) if is_growing else self._entries_of(part, number)
            yield [part.start + place for place in places_of(number, entries)]

    def _entries_of(self, part: Part, number: int) -> bytes:
        path = f"{self._directory}/{part.name}"
        try:
            file = self._files.open(path)
        except FileNotFoundError:
            raise _DamagedPart(f"{path} is missing", part) from None
        entries = read_entries(file, number)
        if entries is None:
            raise _DamagedPart(f"{path}: a bucket does not fit its checksum", part)
        return entries


def _is_wide(growing: Growing) -> bool:
    return growing.end - growing.start > _PART_BYTES


def _look(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()
