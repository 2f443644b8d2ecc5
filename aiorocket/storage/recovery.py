"""Opening a store: find the end of the log, cut a torn tail, bring the consume queues up to date.

1. The newest valid checkpoint says how far everything was durable (D) and up to which log offset the consume queues are
   complete; the checksum files say it again, with a D that is newer, so both generations of it may be lost.
2. The log is read from there on (walk.py). Bad bytes below D, or in a segment that has a non-empty one behind it, are
   damage: the range is quarantined, what it held is a gap in its queues, and reading goes on behind it. Later ones, and
   a record there that contradicts its queue, are a torn tail: it is cut, and the rest of the segment zeroed so that
   nothing in it can look like a record later.
3. Every record that was read is put into its consume queue. A consume queue that does not fit the checkpoint or the
   log makes all of them be built again from the beginning of the log.

All of it blocks and runs in the disk's writer thread. A checkpoint at the end makes the next start short.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, NamedTuple

from aiorocket.config import StoreConfig
from aiorocket.errors import ProtocolError
from aiorocket.runtime.disk import Disk, File
from aiorocket.storage.checkpoint import QueueRows, QueueTable, begun_state, checkpoint_state, load_checkpoint
from aiorocket.storage.checksums import (
    FORMAT,
    PAGE,
    Entries,
    load,
    read_entries,
    sums_path,
    written_again,
)
from aiorocket.storage.compaction import sums_that_fit
from aiorocket.storage.counts import Counts
from aiorocket.storage.damage import spoiled
from aiorocket.storage.files import end_of_written, last_written, read_pages
from aiorocket.storage.queue_recovery import (
    Codes,
    QueuesDoNotFitError,
    QueueSteps,
    TornEndError,
    count_units,
    sync_queue,
)
from aiorocket.storage.results import Recovery
from aiorocket.storage.segment import Segment
from aiorocket.storage.snapshots import Snapshot
from aiorocket.storage.walk import Bad, walk, walk_runs
from aiorocket_protocol import BLANK_SIZE, parse_blank

__all__ = ("LogSteps", "Recovered", "recover")

_WINDOW = 1 << 20
#: Bytes at the end of the log that every start compares with their checksums.
_NEWEST = 8 << 20
_LOG = logging.getLogger("aiorocket.storage")


class Recovered(NamedTuple):
    """A store ready to go on."""

    segments: list[Segment]
    end: int
    queues: QueueTable
    timestamp: int
    deleted: dict[str, int]
    #: Where checkpoints go.
    snapshot: Snapshot
    #: Ranges of the log that hold nothing any more, those of earlier starts too.
    damage: list[Bad]
    report: Recovery


def recover(disk: Disk, directory: str, config: StoreConfig, codes: Codes) -> Recovered:
    """Blocking. StoreCorruptedError when a newer program wrote the store; OSError passes."""
    snapshot = Snapshot(disk, f"{directory}/checkpoint")
    state, problems = load_checkpoint(snapshot)
    for problem in problems:
        _LOG.error("%s; what it said is taken from elsewhere", problem)
    steps = LogSteps(disk, directory, config, state, codes)
    steps.all_deletions_known = state is not None and not problems and state.get("begun", {}).get("sure", True)
    steps.find_segments()

    def remember() -> None:
        if state is not None:
            found, sure = steps.damage[steps.known :], steps.all_deletions_known
            snapshot.save(begun_state(state, steps.durable, found, steps.units, sure=sure))

    rebuilt = False
    try:
        if state is None and steps.segments:
            steps.do_without_checkpoint(_replay_of_sums(steps))
        if steps.last_end < steps.durable:
            for key, (first, count) in count_units(disk, steps.queue_directory, steps.deleted, steps.durable).items():
                earlier = steps.units.get(key, (first, 0))
                steps.units[key] = min(first, earlier[0]), max(count, earlier[1])
            remember()
        steps.load_queues()
        steps.scan()
    except QueuesDoNotFitError as error:
        _LOG.warning("the consume queues of %s are made again from the log: %s", directory, error)
        rebuilt = True
        steps.forget_queues()
        steps.scan()
    steps.check_newest()
    if len(steps.damage) > steps.known:
        remember()
    try:
        steps.finish()
        for queue in steps.queues.values():
            queue.cached_first = queue.max_offset
            if queue.synced < queue.max_offset and queue.min_offset < queue.max_offset:
                sync_queue(disk, queue)
        snapshot.save(
            checkpoint_state(
                QueueRows(steps.queues.values()),
                start=steps.start,
                replay=steps.end,
                durable=steps.end,
                timestamp=steps.timestamp,
                deleted=steps.deleted,
                damage=steps.damage,
                clean=False,
            )
        )
    except OSError:
        for segment in steps.segments:
            segment.close()
        raise
    unused = [steps.entries(segment.base) for segment in steps.unused]
    truncated = steps.truncated + sum(entries.end for entries in unused if entries is not None)
    report = Recovery(
        records=steps.records,
        scanned_bytes=steps.scanned,
        truncated_bytes=truncated,
        reason=(steps.reason or "its first bytes are missing") if truncated else "",
        clean=steps.clean,
        rebuilt=rebuilt,
        queues=len(steps.queues),
        end=steps.end,
        damaged=tuple(steps.damage[steps.known :]),
    )
    if truncated:
        _LOG.warning(
            "%s: %d bytes behind log offset %d had not been promised and were cut off (%s)",
            directory, truncated, steps.end, report.reason,
        )  # fmt: skip
    if steps.segments and steps.state.get("format", FORMAT) == 1 and config.file_reserved_time:
        _LOG.warning(
            "%s kept all messages so far; from now on those older than %g hours go (file_reserved_time, 0 keeps them)",
            directory, config.file_reserved_time,
        )  # fmt: skip
    return Recovered(
        steps.segments, steps.end, steps.queues, steps.timestamp, steps.deleted, snapshot, steps.damage, report
    )


class LogSteps(QueueSteps):
    """The steps that are about the log."""

    def __init__(
        self, disk: Disk, directory: str, config: StoreConfig, state: dict[str, Any] | None, codes: Codes
    ) -> None:
        super().__init__(disk, directory, state, codes)
        self.log_directory = f"{directory}/commitlog"
        self.config = config
        self.clean = bool(self.state.get("clean", False))
        self.durable: int = self.state.get("durable", 0)
        #: Empty segments behind the end of the log.
        self.unused: list[Segment] = []
        #: Checksum files without a segment.
        self.orphans: list[str] = []
        self.end = 0
        self.truncated = 0
        self.reason = ""
        self._entries: dict[int, Entries | None] = {}

    # ---- the log

    def find_segments(self) -> None:
        """List the segments, find what is missing between them, and learn how far the log was durable."""
        disk, directory = self.disk, self.log_directory
        names = disk.listdir(directory)
        bases = [int(name) for name in names if len(name) == 20 and name.isdigit()]
        sizes = {base: _size_of(disk, f"{directory}/{base:020d}") for base in bases}
        used = [base for base in bases if sizes[base][1] or _was_written(self.entries(base), base)]
        for name in names:
            base = int(name[:20]) if name.endswith(".sums") and name[:20].isdigit() else -1
            if base >= 0 and base not in sizes:
                self.orphans.append(f"{directory}/{name}")
                entries = self.entries(base)
                if entries is not None and entries.end:
                    self.durable = max(self.durable, base + entries.end)  # its segment is missing
        for base in used[-2:]:
            entries = self.entries(base)
            if entries is not None:
                self.durable = max(self.durable, entries.durable)
        for base in bases:
            segment = Segment(directory, base, max(self.config.segment_size, sizes[base][0]))
            if base > (used[-1] if used else bases[0]) and base >= self.durable:
                self.unused.append(segment)  # made ahead, or torn before anything was promised: made again when needed
            else:
                self.segments.append(segment)
        for before, after in zip(self.segments, self.segments[1:], strict=False):
            end = _end_of(disk, before, sizes[before.base][0], after.base)
            before.capacity = after.base - before.base
            before.end = after.base
            if end < after.base:
                self.lose(end, after.base, f"{before.path} ends there: a segment is missing or cut")
        if used:
            self.durable = max(self.durable, used[-1])
        self.start = self.segments[0].base if self.segments else 0
        known = self.state.get("start", self.start)
        if known < self.start:
            self.missing = self.start - known
            self.lose(known, self.start, f"segments in front of {self.segments[0].path} are missing")
            self.lost, self.gap = max(0, self.start - self.replay), self.replay
        self.replay = max(self.replay, self.start)

    def entries(self, base: int) -> Entries | None:
        """What the checksum file of the segment at ``base`` says."""
        if base not in self._entries:
            path = sums_that_fit(self.disk, f"{self.log_directory}/{base:020d}")
            self._entries[base] = read_entries(self.disk, path, base)
        return self._entries[base]

    @property
    def last_end(self) -> int:
        """Where the last segment ends."""
        return self.segments[-1].end if self.segments else self.start

    def counts_from(self, offset: int) -> Counts:
        """What the checksum files say of queues from about log offset ``offset`` on, those of missing segments too."""
        bases = [*(segment.base for segment in self.segments), *(int(path[-25:-5]) for path in self.orphans)]
        return Counts(self.disk, self.log_directory, sorted(bases), offset)

    def without_end(self, end: int) -> str:
        """What there is to say of a log that ends at ``end``, short of what was durable."""
        uncounted = self.durable - max(end, self.state.get("replay", 0), self.counts_from(end).end())
        behind = f"; what came in the last {uncounted} bytes of it, not every queue knows" if uncounted > 0 else ""
        return f"{self.log_directory} ends there: segments are missing{behind}"

    def scan(self) -> None:
        """Read from ``replay`` to the end of the log, dispatching every record; sets ``end``."""
        offset = self.end = self.replay
        self.counts = self.counts_from(self.gap if self.lost else offset)
        if offset > self.last_end:
            self.pass_over(self.last_end, offset, f"{self.log_directory} ends there: segments are missing")
        for segment in self.segments:
            if segment.end <= offset:
                continue
            last = segment is self.segments[-1]
            self.end = segment.end
            start = max(offset, segment.base)
            durable = max(self.durable, start) if last else None
            entries = self.entries(segment.base)
            self.trusted = segment.base + (0 if entries is None else entries.end)
            self.unpromised = sys.maxsize if durable is None else max(durable, self.trusted)
            for item in walk_runs(self.disk, segment.path, segment.base, segment.capacity, entries, start, durable):
                if not isinstance(item, Bad):
                    try:
                        self.dispatch(item)
                    except TornEndError as error:  # of a run of one: no checksum covers it
                        self.end, self.reason = item[0][0], str(error)
                        break
                elif durable is not None and item.offset >= durable:
                    self.end = item.offset
                    self.reason = item.reason
                else:
                    self.pass_over(item.offset, item.end, item.reason)
            if not last:
                del self._entries[segment.base]
        if self.durable > self.end:
            self.pass_over(self.end, self.durable, self.without_end(self.end))
            self.end = self.durable
        self.keep_counts(self.end)
        self._keep_numbers()

    def _keep_numbers(self) -> None:
        """Offsets that the checkpoint or units know as given are not given again, though their messages are lost."""
        if not self.lost and not self.rebuilding:
            return
        for topic, rows in self.state.get("queues", {}).items():
            for queue_id, minimum, count in rows:
                queue = self.queues.get((topic, queue_id))
                if queue is None:
                    queue = self._queue(topic, queue_id, minimum if self.lost else count)
                if queue.next_offset < count:
                    self._fill(queue, count)
        for (topic, queue_id), (minimum, count) in self.units.items():
            queue = self.queues.get((topic, queue_id)) or self._queue(topic, queue_id, minimum)
            if queue.next_offset < count:
                self._fill(queue, count)

    def check_newest(self) -> None:
        """Compare what was written last with its checksums, even if nothing had to be read."""
        segment = self.segments[-1] if self.segments else None
        if segment is None or not self.replay > segment.base:
            return
        entries = self.entries(segment.base)
        if entries is None:
            return
        upto = min(self.replay, self.end) - segment.base
        low = max(0, upto - _NEWEST)
        low -= low % PAGE
        file = self.disk.open(segment.path)
        try:
            data = read_pages(file, low, upto - upto % -PAGE - low)
        finally:
            file.close()
        data += bytes(max(0, upto - low - len(data)))
        for begin, end in entries.wrong(data, low):
            if begin < upto:
                self.lose(segment.base + begin, segment.base + end, "the checksum of the segment differs")

    def finish(self) -> None:
        """Cut what stands behind the end, and make everything before it durable."""
        for segment in reversed(self.unused):
            segment.remove(self.disk)
        for path in self.orphans:
            self.disk.unlink(path)
        # What was on its way when its topic was deleted may not have come: what does at its place is none of that.
        self.deleted = {topic: min(upto, self.end) for topic, upto in self.deleted.items() if upto > self.start}
        if not self.segments:
            return
        segment = self.segments[-1]
        if segment.end <= self.end:
            if self.records or not self.clean:
                _sync_full(self.disk, segment, self.durable - segment.base)
            self._close_sums(segment)
            return
        position = self.end - segment.base
        if not (self.clean and not self.records and _is_zero(self.disk, segment, position)):
            self.clean = False
            self.truncated = _cut_behind(self, segment, position)
        covered = self._resume_sums(segment, position)
        if covered < min(self.replay, self.end) - segment.base:
            _look_through(self, segment, min(self.replay, self.end))
        file = segment.prepare(self.disk, 0)
        if self.truncated:
            segment.cut(position)  # which reserves the space again
        _cover(segment, file, covered, position, self.end, self.damage)
        segment.sync_sums()

    def _close_sums(self, segment: Segment) -> None:
        """A process that was killed had filled the last segment and not closed its checksum file, which was read to its
        end just now: that is made up for. Where it cannot be, the scrub makes a new one."""
        path = sums_path(segment.path)
        entries = self.entries(segment.base)
        if entries is None or entries.torn or self.replay > segment.base + entries.end:
            return
        if load(self.disk, path, segment.base) is None:
            try:
                covered = self._resume_sums(segment, segment.capacity)
                _finish(self.disk, segment, covered, self.end, self.damage)
            except OSError as error:
                _LOG.warning("%s could not be closed: %s", path, error)
                segment.sums = None

    def _resume_sums(self, segment: Segment, position: int) -> int:
        """Take over the checksums of the last segment as far as they cover what stays; how far that is."""
        entries = self.entries(segment.base)
        if entries is None:
            return 0
        kept = entries.cut(position)
        at = entries.position
        # After an unclean stop in a new file: as in ``_write_again``.
        if entries.torn or len(kept.ends) < len(entries.ends) or not self.clean or entries.version < FORMAT:
            path = sums_path(segment.path)
            data = written_again(self.disk, path, segment.base, kept, min(self.durable, self.end))
            self.disk.replace(path, data)
            at = len(data)
        segment.resume(kept.checksums(), at)
        return kept.end


def _size_of(disk: Disk, path: str) -> tuple[int, bool]:
    """Size of a segment file, and whether it begins with a record."""
    file = disk.open(path)
    try:
        return file.size(), any(read_pages(file, 0, 4))
    finally:
        file.close()


def _was_written(entries: Entries | None, base: int) -> bool:
    """Whether a checksum file says that something was once written to its segment."""
    return entries is not None and entries.end > 0 and entries.durable > base


def _end_of(disk: Disk, segment: Segment, size: int, following: int) -> int:
    """Log offset where a full segment ends, by its file. A disk that reserves no space, or not all of it, leaves it
    shorter: the last bytes that are not zero are then the head of the blank."""
    if segment.base + size >= following:
        return following
    file = disk.open(segment.path)
    try:
        start = max(0, end_of_written(file, size) - BLANK_SIZE)
        blank = parse_blank(read_pages(file, start, BLANK_SIZE), 0)
        if blank is not None:
            return min(following, segment.base + start + blank)
    except ProtocolError:
        pass  # no blank
    finally:
        file.close()
    return segment.base + size


def _replay_of_sums(steps: LogSteps) -> int:
    """Up to where the consume queues were synced, by the newest checksum files."""
    found = [steps.entries(segment.base) for segment in steps.segments[-2:]]
    return max((entries.replay for entries in found if entries is not None), default=0)


def _is_zero(disk: Disk, segment: Segment, position: int) -> bool:
    """Whether nothing was written right at ``position``."""
    file = disk.open(segment.path)
    try:
        return not read_pages(file, position, 8).strip(b"\0")
    finally:
        file.close()


def _cut_behind(steps: LogSteps, segment: Segment, position: int) -> int:
    """The log ends at ``position`` of its last segment. What is behind it goes before its checksums do, which may be
    all that tells it from good records; how many bytes that is."""
    file = steps.disk.open(segment.path)
    try:
        _write_again(file, steps.durable - segment.base, position)
        entries = steps.entries(segment.base)
        # What its checksums tell of may be gone without a trace.
        last = max(last_written(file, position), 0 if entries is None else entries.end)
        if last > position:
            file.truncate(position)
        file.fdatasync()
        return max(0, last - position)
    finally:
        file.close()


def _look_through(steps: LogSteps, segment: Segment, upto: int) -> None:
    """Nothing vouches for the last segment (a store of format 1, or its checksum file is damaged), and it was not read:
    look at its records before checksums are made of what is there."""
    entries = steps.entries(segment.base)
    for item in walk(steps.disk, segment.path, segment.base, segment.capacity, entries, segment.base, upto):
        if item.offset >= upto:
            return
        if isinstance(item, Bad):
            steps.lose(item.offset, min(item.end, upto), item.reason)  # the log goes on behind ``upto``


def _sync_full(disk: Disk, segment: Segment, durable: int) -> None:
    """It is full, if only by a blank, but a process that was killed may not have come to its sync."""
    file = disk.open(segment.path)
    try:
        _write_again(file, durable, segment.capacity)
        file.fdatasync()
    finally:
        file.close()


def _write_again(file: File, position: int, upto: int) -> None:
    """The process before this one may have ended because a sync had failed. Then the kernel has its bytes and takes
    them for clean: no sync would put them on the disk, unless they are written once more."""
    position = max(0, position)
    while position < upto and (data := read_pages(file, position, min(_WINDOW, upto - position))):
        file.pwritev([data], position)
        position += len(data)


def _cover(segment: Segment, file: File, covered: int, position: int, durable: int, damage: list[Bad]) -> None:
    """Make checksums for what stands in a segment between two positions, which was checked before."""
    while covered < position:
        data = read_pages(file, covered, min(_WINDOW, position - covered))
        data += bytes(min(_WINDOW, position - covered) - len(data))
        segment.cover(spoiled(data, segment.base + covered, damage), covered, durable, 0)
        covered += len(data)


def _finish(disk: Disk, segment: Segment, covered: int, durable: int, damage: list[Bad]) -> None:
    try:
        file = segment.prepare(disk, 0)
        _cover(segment, file, covered, last_written(file, covered), durable, damage)
        segment.finish(durable, 0)
    finally:
        segment.close()
