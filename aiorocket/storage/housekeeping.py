"""What happens behind the appends: units written out, checkpoints, the files of deleted topics. Off the hot path, one
job of the writer thread at a time, so that flushes of the log get in between.

A checkpoint makes the next start short, it does not make anything durable: the log does that. Its order is what
counts: log synced, consume queues synced, then the file that vouches for both. The timer is armed by the first commit
after the last checkpoint, so an idle store does nothing; where much comes the checkpoint does not wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from itertools import chain

from aiorocket.config import StoreConfig
from aiorocket.runtime.disk import Disk
from aiorocket.storage.checkpoint import QueueRows, QueueTable, checkpoint_state
from aiorocket.storage.commit_log import CommitLog
from aiorocket.storage.consume_queue import UNIT_SIZE, ConsumeQueue, remove_queue, write_units
from aiorocket.storage.files import FileCache
from aiorocket.storage.snapshots import Snapshot
from aiorocket.storage.tail_cache import TailCache

__all__ = ("Housekeeping",)

OnDeletion = Callable[[Iterable[ConsumeQueue]], Awaitable[None]]

#: Seconds between two looks whether the log has written what a deletion is behind.
_A_MOMENT = 0.01
#: Queues written and synced by one job of the writer thread; flushes of the log wait behind it.
_QUEUES = 16
#: Queues looked at in one turn of the loop, and how often those are looked at again that changed meanwhile, if there
#: are more of them than that.
_A_TURN = 2_000
_ROUNDS = 8
#: A queue costs a checkpoint a file that is opened, written and synced, some 100 us of CPU and a sync of the disk, for
#: however few messages. So that of many queues is put off by one interval for each so many, twelve at most.
AN_INTERVAL = 500
_MOST_INTERVALS = 12
#: When the log has grown by so much since the last checkpoint there is another at once: reading it again at a start
#: takes a second.
_MOST_LOG = 256 << 20


class Housekeeping:
    """``dirty`` are queues with units that no checkpoint covers; ``deleting`` are topics whose files are being
    removed."""

    def __init__(
        self,
        disk: Disk,
        config: StoreConfig,
        log: CommitLog,
        files: FileCache,
        snapshot: Snapshot,
        queues: QueueTable,
        deleted: dict[str, int],
        timestamp: Callable[[], int],
    ) -> None:
        self._disk = disk
        self._interval = config.checkpoint_interval
        self._log = log
        self._files = files
        self._snapshot = snapshot
        self._queues = queues
        self._deleted = deleted
        self._timestamp = timestamp
        #: Called after each periodic checkpoint: what else is done behind the appends.
        self.on_checkpoint: list[Callable[[], None]] = []
        #: Awaited with the queues of deleted topics while these have their files.
        self.on_deletion: OnDeletion = _no_deletion
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._one_at_a_time = asyncio.Lock()
        self._closing = False
        self._put_off = 0
        self._covered = log.written
        #: Where the log is as long as it may become without a checkpoint that is asked for.
        self._much = log.written + _MOST_LOG
        #: What a checkpoint has read of the queues so far.
        self._rows = QueueRows()
        self.dirty: dict[ConsumeQueue, None] = {}
        self.deleting: dict[str, None] = {}

    def arm(self) -> None:
        """Something was committed: have a checkpoint within its interval, or now if a start had much to read."""
        if self._closing:
            return
        if self._log.written > self._much:
            self._much = self._log.written + _MOST_LOG  # not again with each commit, also if this one fails
            if self._timer is not None:
                self._timer.cancel()
            self._due()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._interval, self._due)

    async def close(self, *, clean: bool) -> None:
        """Finish what runs; with ``clean`` save the checkpoint after which a start has nothing to read."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        if clean:
            await self._checkpoint(clean=True)

    # ---- units of busy queues

    def write_out(self, queue: ConsumeQueue) -> None:
        """Put the gathered units of a queue into its file, without a sync, so that memory stays small."""
        if queue.writing or queue.deleted:
            return
        upto, first = queue.max_offset, queue.tail_first
        data = bytes(queue.tail[: (upto - first) * UNIT_SIZE])
        queue.writing = True
        job = self._disk.run(write_units, self._disk, queue.directory, first, data, None)
        job.add_done_callback(partial(self._written_out, queue, upto))

    def _written_out(self, queue: ConsumeQueue, upto: int, job: asyncio.Future[None]) -> None:
        queue.writing = False
        if job.cancelled():
            return
        error = job.exception()
        if error is None:
            queue.written(upto, synced=False)
        else:
            self._log.units_failed(error)

    # ---- checkpoints

    def _start(self, task: asyncio.Task[None]) -> None:
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._loop.call_exception_handler({"message": f"{task.get_name()} failed", "exception": error})

    def _due(self) -> None:
        self._timer = None
        self._start(self._loop.create_task(self._periodic(), name="store checkpoint"))

    async def _periodic(self) -> None:
        self._log.check_space()
        if not self._may_wait():
            await self._checkpoint(clean=False)
        if not self._closing:
            for call in self.on_checkpoint:
                call()
        if self.dirty and not self._log.is_broken:
            self.arm()

    def _may_wait(self) -> bool:
        waits = min(len(self.dirty) // AN_INTERVAL, _MOST_INTERVALS)
        if self._put_off >= waits or self._log.written - self._covered > _MOST_LOG:
            return False
        self._put_off += 1
        return True

    async def save(self) -> bool:
        """Have a checkpoint now; whether there is one."""
        return await self._checkpoint(clean=False)

    async def _checkpoint(self, *, clean: bool) -> bool:
        async with self._one_at_a_time:
            log, disk = self._log, self._disk
            # Queues lose what is old before the log does: a beginning from before they are looked at fits them.
            start = log.start_offset
            rows, dirty = await self._look()
            replay = log.written
            state = checkpoint_state(
                rows,
                start=start,
                replay=replay,
                durable=replay,
                timestamp=self._timestamp(),
                deleted=dict(self._deleted),
                damage=list(log.damage),
                clean=clean,
            )
            await log.sync()
            if log.is_broken:
                return False
            try:
                queues = list(dirty)
                for at in range(0, len(queues), _QUEUES):
                    some = [(queue, rows.count(queue)) for queue in queues[at : at + _QUEUES] if not queue.deleted]
                    await disk.run(_write_queues, disk, [_unwritten(queue, count) for queue, count in some])
                    for queue, count in some:
                        queue.written(count, synced=True)
                await disk.run(self._snapshot.save, state)
                log.stamp(replay)
                self._covered, self._much, self._put_off = replay, replay + _MOST_LOG, 0
            except OSError as error:
                self.dirty = dirty | self.dirty
                log.units_failed(error)
                return False
            return True

    async def _look(self) -> tuple[QueueRows, dict[ConsumeQueue, None]]:
        """How far the queues are at the moment when this returns, and which of them were dirty."""
        rows = self._rows = QueueRows()
        dirty, self.dirty = self.dirty, {}
        queues = list(self._queues.values())
        for number in range(1, _ROUNDS + 1):
            for at in range(0, len(queues), _A_TURN):
                if at:
                    await asyncio.sleep(0)
                rows.read(queues[at : at + _A_TURN])
            changed, self.dirty = self.dirty, {}
            dirty.update(changed)
            queues = list(changed)
            if len(queues) <= _A_TURN or number == _ROUNDS:
                break
        rows.read(queues)
        self._rows = QueueRows()
        return rows, dirty

    def behind_sync(self, work: Callable[..., None], *args: object) -> asyncio.Future[None]:
        """See MessageStore."""
        log = self._log
        segment = log.unsynced() if log.synced < log.written else None
        if segment is None:
            return self._disk.run(work, *args)
        job = self._disk.run(segment.sync_then, work, args)
        job.add_done_callback(lambda _: None if segment.failed is None else log.broken(segment.failed))
        return job

    def ahead(self, job: asyncio.Future[None]) -> None:
        """Nothing that is appended from now on is in the log before the end of ``job``, of the disk's thread."""
        self._log.ahead = job

    # ---- deleted topics

    def remove(
        self, doomed: dict[str, list[ConsumeQueue]], tail: TailCache, behind: asyncio.Future[None] | None
    ) -> asyncio.Future[None]:
        """Make the deletion of topics durable (one checkpoint no longer knows them), then remove their files."""
        for topic in doomed:
            self.deleting[topic] = None
            self._deleted[topic] = self._log.end
            self._rows.forget(topic)
        if not doomed:
            gone = self._loop.create_future()
            gone.set_result(None)
            return gone
        task = self._loop.create_task(self._remove(doomed, tail, behind), name=f"store removes {_some(doomed)}")
        self._start(task)
        gone = asyncio.shield(task)  # whoever gives up waiting does not stop it
        gone.add_done_callback(lambda _: gone.cancelled() or gone.exception())  # _ended tells what nobody waits for
        return gone

    def log_was_cut(self, end: int) -> None:
        """Appends from ``end`` on were taken back: later ones at the same places belong to nothing that was deleted."""
        for topic, upto in self._deleted.items():
            self._deleted[topic] = min(upto, end)

    async def _remove(
        self, doomed: dict[str, list[ConsumeQueue]], tail: TailCache, behind: asyncio.Future[None] | None
    ) -> None:
        log, directories = self._log, list[str]()
        failed: OSError | None = None
        try:
            for queues in doomed.values():
                for queue in queues:
                    tail.forget(queue, queue.cached_first)
                    self.dirty.pop(queue, None)
                    directories.append(queue.directory)
                    if len(directories) % _A_TURN == 0:
                        await asyncio.sleep(0)
            if behind is not None:
                await behind
            while any(log.written < self._deleted[topic] for topic in doomed) and not log.is_broken:  # noqa: ASYNC110 - it is rare, a flush is not
                await asyncio.sleep(_A_MOMENT)
            await self.on_deletion(chain.from_iterable(doomed.values()))
            await self._checkpoint(clean=False)
            for directory in directories:
                self._files.forget(directory + "/")
                try:
                    await self._disk.run(_remove_files, self._disk, directory)
                except OSError as error:
                    failed = error
            if failed is not None:
                raise failed
        finally:
            for topic in doomed:
                del self.deleting[topic]


async def _no_deletion(queues: Iterable[ConsumeQueue]) -> None:
    pass


def _some(topics: Collection[str]) -> str:
    return f"topic {next(iter(topics))}" + (f" and {len(topics) - 1} more" if len(topics) > 1 else "")


def _unwritten(queue: ConsumeQueue, count: int) -> tuple[str, int, bytes, int]:
    """Directory of a queue, its first unit that is not in a file, that and the others below ``count``, and from where
    on none is durable."""
    data = bytes(queue.tail[: max(0, count - queue.tail_first) * UNIT_SIZE])
    return queue.directory, queue.tail_first, data, queue.synced


def _write_queues(disk: Disk, queues: list[tuple[str, int, bytes, int]]) -> None:
    for queue in queues:
        write_units(disk, *queue)


def _remove_files(disk: Disk, path: str) -> None:
    if disk.is_dir(path):
        remove_queue(disk, path)
