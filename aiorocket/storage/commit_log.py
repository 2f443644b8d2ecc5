"""The commit log: one sequence of records over preallocated segments, written in groups.

Group commit without a timer. A group is one pwritev from the loop. With ``flush="sync"`` one fdatasync beside the loop
follows, and whatever is appended meanwhile forms the next group. With ``flush="async"`` a loop turn is a group, and a
sync follows ``flush_interval`` later. A group that begins a segment is written in the disk's thread: files are made and
synced on the way. So is one that comes behind a job of that thread, ``ahead``, and a large one.

Offsets, in order: ``synced`` <= ``written`` <= ``end``. ``visible`` follows ``synced`` or ``written``, by the flush
mode. A segment is synced before the next one gets its first byte, so bad bytes in front of a non-empty segment are
damage, never a torn tail.

A full disk fails the group and everything gathered behind it, cuts the log back to where the group began and leaves
the store readable; space is looked for again with later appends. A failed sync is final: Linux marks pages
clean that it could not write, so a second sync that succeeds proves nothing.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from aiorocket.config import StoreConfig
from aiorocket.errors import StoreError, StoreFullError
from aiorocket.runtime.disk import Disk, File
from aiorocket.runtime.env import Env
from aiorocket.storage.commit_group import CommitGroup, Run, SyncError
from aiorocket.storage.damage import DamagedRanges
from aiorocket.storage.files import FileCache
from aiorocket.storage.results import PutStatus, StoreBrokenError, StoreBusyError
from aiorocket.storage.segment import Segment
from aiorocket.storage.walk import Bad
from aiorocket.storage.written import WrittenLog
from aiorocket_protocol import BLANK_SIZE, encode_blank

__all__ = ("CommitLog",)

#: Messages after which a group of flush="async" is written at once instead of at the end of the loop turn: a full
#: read holds a producer's whole window, and answering it in one piece makes producer and broker wait for each other.
#: As many as a connection may send in a turn, or each turn would be two groups.
_BURST = 64
_BURST_BYTES = 128 << 10
#: Bytes of a group that the loop writes itself: to copy 64 MiB and make their checksums took it 60 to 125 ms.
_IN_LOOP = 8 << 20
#: A group that gathers behind a slow one is whole with so many appends, or bytes, and another begins: to answer 40,000
#: sends, which fit into max_pending, took 0.3 s.
_WHOLE, _WHOLE_BYTES = 2048, 4 << 20

_LOG = logging.getLogger("aiorocket.storage")
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: Seconds between two looks at the free space while the store is full.
_PROBE = 0.25
#: Seconds between two syncs of the checksum file of a segment that is being written (flush="sync").
_SUMS_SYNC = 1.0


def _or_broken(step: Callable[..., None]) -> Callable[..., None]:
    """A ``step`` of the log after whose MemoryError it is broken: nobody would go on with what it stopped at."""

    def guarded(log: CommitLog, *args: object) -> None:
        try:
            step(log, *args)
        except MemoryError as error:
            log.broken(error if error.args else MemoryError("no memory"))
            log.flushing, log.scheduled = None, False
            log._wake()
            raise

    return guarded


class CommitLog(WrittenLog):
    """Appending is split: the store builds the record and files it under ``group``; everything after that is here.

    Fields without underscore are read and written by ``MessageStore.append``, which is one function for speed.
    """

    def __init__(
        self,
        env: Env,
        config: StoreConfig,
        directory: str,
        files: FileCache,
        committed: Callable[[CommitGroup], None],
        failed: Callable[[list[CommitGroup], PutStatus], None],
    ) -> None:
        super().__init__(env.disk, directory, files)
        self._config = config
        self._committed = committed
        self._failed = failed
        self._sync_mode = config.flush == "sync"
        #: Appends call ``flush`` when the group has this many messages.
        self.burst = _WHOLE if self._sync_mode else _BURST
        #: The same in bytes, for batches.
        self.burst_bytes = _WHOLE_BYTES if self._sync_mode else _BURST_BYTES
        self._loop = asyncio.get_running_loop()
        self._active: Segment | None = None
        self._spare: Segment | None = None
        self.end = self.synced = 0
        #: Up to here the consume queues are synced, by the last checkpoint.
        self.replay = 0
        #: Appends at or past this offset need another segment.
        self.limit = 0
        self.group = CommitGroup(0, [])
        self.buffers: list[bytes] = []
        #: Groups in front of that one, which are whole and not on their way yet.
        self.whole: deque[CommitGroup] = deque()
        #: Bytes that were assigned a place and are not written yet, and what is kept beside them; of whole groups.
        self.pending = self._sealed = 0
        self.scheduled = False
        #: Why appends are refused; None while they are not.
        self.refusal: StoreError | None = None
        #: What is on its way to the disk in a thread; and the last sync behind the writes, which may be done.
        self.flushing: CommitGroup | None = None
        self.syncing: asyncio.Future[None] | None = None
        self.ahead: asyncio.Future[None] | None = None
        self._committing = self._rolling_back = False
        self._probe_at = 0.0
        self._sync_timer: asyncio.TimerHandle | None = None
        self._sums_due = 0.0
        #: What is flushing is written by the disk's thread.
        self._in_thread = False
        self._idle: list[asyncio.Future[None]] = []

    # ---- opening and closing

    def start(self, segments: list[Segment], end: int, damage: list[Bad]) -> None:
        """Go on at ``end`` of what recovery found; everything below is durable."""
        self.segments = segments
        self.damage = DamagedRanges(damage)
        self.replay = end
        self.end = self.written = self.synced = end
        active = segments[-1] if segments and segments[-1].end > end else None
        self._active = active
        self.limit = active.end - BLANK_SIZE if active is not None else 0
        self._new_group()
        if active is None:
            self._spare = Segment(self._directory, end, self._config.segment_size)
            self._prepare(self._spare)
        else:
            self._prepare(active)

    async def drain(self) -> None:
        """Return when nothing waits for the disk any more."""
        while self.scheduled or self._rolling_back:
            waiter = self._loop.create_future()
            self._idle.append(waiter)
            await waiter

    async def close(self) -> None:
        """Write out what waits, sync, refuse everything later. A failure of the disk is in ``refusal`` only."""
        await self.drain()
        if self.refusal is None or isinstance(self.refusal, StoreFullError):
            await self.sync()
            if self.refusal is None or isinstance(self.refusal, StoreFullError):
                self.refusal = StoreError(f"the store in {self._directory} is closed")
        if self._sync_timer is not None:
            self._sync_timer.cancel()
            self._sync_timer = None
        # Last in the thread's queue, so no job is left that uses the handles.
        await self._disk.run(_nothing)
        for segment in self.segments:
            segment.close()
        if self._spare is not None:
            self._spare.close()

    # ---- appending

    def roll(self, size: int) -> int:
        """Make room for ``size`` bytes in a new segment; the offset at which they will stand."""
        capacity = self._config.segment_size
        if size + BLANK_SIZE > capacity:
            raise StoreError(f"{size} bytes at once do not fit into a segment of {capacity}: raise segment_size")
        active, spare = self._active, self._spare
        base = self.end if active is None else active.end
        segment = spare if spare is not None and spare.base == base else Segment(self._directory, base, capacity)
        run, limit, pending = Run(segment, 0), segment.end - BLANK_SIZE, self.pending + base - self.end
        try:
            self.group.go_on(run)
            self.segments.append(segment)
            if active is not None:
                self.buffers.append(encode_blank(base - self.end))
        except MemoryError:
            self.group.runs = [each for each in self.group.runs if each is not run]
            self.segments = [each for each in self.segments if each is not segment]
            raise
        self._spare, self._active, self.buffers = None, segment, run.buffers
        self.pending, self.end, self.limit = pending, base, limit
        return self.end

    def refuse(self) -> None:
        """Raise what stands against an append; returns when space has come back meanwhile."""
        refusal = self.refusal
        if refusal is None:
            raise StoreBusyError(
                f"what waits for the disk takes {self.pending} bytes, max_pending is {self._config.max_pending}:"
                " the disk is too slow for this rate"
            )
        if isinstance(refusal, StoreFullError) and not self._rolling_back and self._loop.time() >= self._probe_at:
            self._probe_at = self._loop.time() + _PROBE
            if self._disk.free_bytes(self._directory) >= self._needed():
                _LOG.warning("space is back in %s, appends are accepted again", self._directory)
                self.refusal = None
                return
        raise type(refusal)(*refusal.args)

    def _needed(self) -> int:
        """Free bytes without which the next append could not succeed."""
        active = self._active
        if active is None or active.file is None or self.end >= self.limit:
            return self._config.min_free + self._config.segment_size
        return self._config.min_free

    def check_space(self) -> None:
        """Refuse appends from now on if less than ``min_free`` is left (asked at checkpoints)."""
        free = self._disk.free_bytes(self._directory)
        if free < self._config.min_free and self.refusal is None:
            self._full(f"{free} bytes are free, min_free is {self._config.min_free}")

    def _full(self, why: str) -> None:
        self.refusal = StoreFullError(
            f"no space for messages in {self._directory}: {why}; free space or choose another disk"
        )
        self._probe_at = self._loop.time() + _PROBE
        _LOG.error("%s", self.refusal)

    def units_failed(self, error: BaseException) -> None:
        """A consume queue or the checkpoint could not be written. Without space memory would grow: refuse appends."""
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            if self.refusal is None:
                self._full(str(error))
        else:
            self.broken(error)

    def broken(self, error: BaseException) -> None:
        """The disk failed in a way after which nothing can be promised any more."""
        if not isinstance(self.refusal, StoreBrokenError):
            self.refusal = StoreBrokenError(
                f"writing to {self._directory} failed, look at the disk, then restart the broker: {error}"
            )
            _LOG.critical("%s", self.refusal)

    @property
    def is_broken(self) -> bool:
        """Nothing may be promised any more."""
        return isinstance(self.refusal, StoreBrokenError)

    # ---- group commit

    def _new_group(self) -> None:
        active = self._active
        runs = [] if active is None else [Run(active, self.end - active.base)]
        self.group = CommitGroup(self.end, runs)
        self.buffers = runs[0].buffers if runs else []

    @_or_broken
    def flush(self) -> None:
        """Write what has gathered. Called once per loop turn with appends, unless a flush is running, and at bursts."""
        group, whole = self.group, self.whole
        idle = self.flushing is None and not self._committing  # else its end begins the next flush
        if (many := len(group.dones)) and (
            many >= _WHOLE or self.end - group.start >= _WHOLE_BYTES or (idle and not whole)
        ):
            group.seal(self.end, self.pending - self._sealed)
            self._sealed = self.pending
            whole.append(group)
            self._new_group()
        if not idle:
            return
        if not whole:
            self.scheduled = False  # a burst has written what this was scheduled for
            self._wake()
            return
        self.flushing = group = whole.popleft()
        run = group.runs[0]
        self._in_thread = len(group.runs) > 1 or group.end - group.start > _IN_LOOP or not _ready(run, self.ahead)
        if self._in_thread:  # files are made, synced and closed on the way
            how = self._config.min_free, self.synced, self.replay, self._sync_mode
            self._disk.run(group.write, self._disk, *how).add_done_callback(partial(self._written, None))
        else:
            self._put(run)
        active = self._active
        if self._spare is None and active is not None and self.end - active.base > active.capacity // 2:
            self._spare = Segment(self._directory, active.end, self._config.segment_size)
            self._prepare(self._spare)

    def _put(self, run: Run) -> None:
        file = run.segment.file
        assert file is not None
        try:
            run.put(self.synced, self.replay, self._sync_mode)
        except (OSError, MemoryError) as error:
            if self._sync_mode:  # not now: the end that began this flush has its own to tell first
                failed: asyncio.Future[None] = self._loop.create_future()
                failed.add_done_callback(partial(self._written, None))
                failed.set_exception(error)
            else:
                self._ended(error)
        else:
            if self._sync_mode:
                self._disk.sync(file).add_done_callback(partial(self._written, run.segment))
                if self._loop.time() >= self._sums_due:
                    self._sums_due = self._loop.time() + _SUMS_SYNC
                    self._disk.run(run.segment.sync_sums).add_done_callback(partial(self._synced, 0))
            else:
                self._ended(None)

    @_or_broken
    def _written(self, synced: Segment | None, future: asyncio.Future[None]) -> None:
        """``synced`` is None where the future is not of its sync alone."""
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if synced is not None and isinstance(error, OSError):
            synced.failed, cause, error = error, error, SyncError()
            error.__cause__ = cause
        self._ended(error)

    def _ended(self, error: BaseException | None) -> None:
        group, self.flushing = self.flushing, None
        if group is None:  # given up before it came to its end
            return
        if error is not None:
            self._flush_failed(group, error)
            return
        self.written = group.end
        self.pending -= group.size
        self._sealed -= group.size
        for run in group.runs[:-1]:
            # Full and synced: from here on it is only read, and an error of closing loses nothing. In the thread,
            # behind a sync that may wait there for it.
            self._disk.run(run.segment.close).add_done_callback(_look)
            self.keep_sums(run.segment)
        if self._sync_mode:
            self.synced = group.end
        elif self._sync_timer is None:
            self._sync_timer = self._loop.call_later(self._config.flush_interval, self._sync_due)
        if self.whole or self.group.dones:
            if self._sync_mode:
                self.flush()  # the disk works on while we acknowledge
            else:
                self._loop.call_soon(self.flush)
        else:
            self.scheduled = False
            self._wake()
        # A callback may append, and many may make a burst: it waits for its turn, or they would nest without end.
        self._committing = True
        try:
            self._committed(group)
        finally:
            self._committing = False

    def _flush_failed(self, group: CommitGroup, error: BaseException) -> None:
        self.group.seal(self.end, 0)
        failed = [group, *self.whole, self.group]
        self.whole.clear()
        first = group.runs[0]
        if first.mark is not None:
            first.segment.restore(first.mark)
        base, spare, self._spare = first.segment.base, self._spare, None
        dropped = [segment for segment in (*self.segments, spare) if segment is not None and segment.base > base]
        self.segments = [segment for segment in self.segments if segment.base <= base]
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            status = PutStatus.FULL
            self._full(str(error))
            self._rolling_back = True
            self._disk.run(_cut_back, self._disk, first, dropped).add_done_callback(self._rolled_back)
        else:
            status = PutStatus.BROKEN
            self.broken(error.__cause__ or error)
            self._disk.run(_close, dropped).add_done_callback(_look)
        self.end, self.scheduled, self.pending, self._sealed = group.start, False, 0, 0
        self._active = first.segment
        self.limit = first.segment.end - BLANK_SIZE
        self._new_group()
        self._failed(failed, status)
        self._wake()

    def _rolled_back(self, future: asyncio.Future[None]) -> None:
        self._rolling_back = False
        if not future.cancelled() and (error := future.exception()) is not None:
            self.broken(error)
        self._wake()

    def _wake(self) -> None:
        if self._idle and not self.scheduled and not self._rolling_back:
            for waiter in self._idle:
                if not waiter.done():
                    waiter.set_result(None)
            self._idle.clear()

    def _prepare(self, segment: Segment) -> None:
        """Create a segment ahead of its use. If that fails, the group that needs it will meet the same and say so."""
        self._disk.run(segment.prepare, self._disk, self._config.min_free).add_done_callback(_look)

    # ---- syncing behind the writes (flush="async")

    def unsynced(self) -> Segment | None:
        """The one segment with bytes that are written and not synced; rolling synced all before it."""
        segment = self.segment_at(self.written - 1)
        if segment is None or segment.file is None:
            return None
        return segment if self.synced < self.written or segment.unsynced_sums else None

    def _sync_due(self) -> None:
        self._sync_timer = None
        segment = self.unsynced()
        if segment is not None and not isinstance(self.refusal, StoreBrokenError):
            self.syncing = self._disk.run(segment.sync)
            self.syncing.add_done_callback(partial(self._synced, self.written))

    def _synced(self, upto: int, future: asyncio.Future[None]) -> None:
        if future.cancelled():
            return
        if (error := future.exception()) is not None:
            self.broken(error)
            return
        self.synced = max(self.synced, upto)
        if self.synced < self.written and self._sync_timer is None:
            self._sync_timer = self._loop.call_later(self._config.flush_interval, self._sync_due)

    def stamp(self, replay: int) -> None:
        """A checkpoint is saved: say so in the checksum file too, where it outlives the checkpoint. OSError passes."""
        self.replay = replay
        segment = self.segments[-1] if self.segments else None
        if segment is None or segment.file is None or self._rolling_back:
            return
        if self.flushing is None or not self._in_thread:  # else the writer's thread is at the file
            segment.stamp(self.synced, replay)

    async def sync(self) -> None:
        """Make everything that is written durable. A failure ends up in ``refusal``."""
        # With flush="sync" only groups sync the log's file: of two syncs at once one would learn that bytes were lost.
        segment, upto = self.unsynced(), self.written
        if segment is None:
            return
        try:
            await self._disk.run(segment.sync_sums if self._sync_mode else segment.sync)
        except OSError as error:
            self.broken(error)
        else:
            self.synced = max(self.synced, upto)


def _ready(run: Run, ahead: asyncio.Future[None] | None) -> bool:
    return run.segment.file is not None and (ahead is None or ahead.done())


def _nothing() -> None:
    return None


def _look(future: asyncio.Future[File] | asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()


def _close(segments: list[Segment]) -> None:
    """Blocking, behind what may be making them."""
    for segment in segments:
        segment.close()


def _cut_back(disk: Disk, first: Run, dropped: list[Segment]) -> None:
    """Blocking: remove what a failed group may have left in the files, the newest first."""
    for segment in reversed(dropped):
        segment.remove(disk)
    if first.segment.file is not None:
        first.segment.cut(first.position)
