"""Looking through a store that no broker uses: what is damaged, what each record says, and a copy of what is intact.

Everything here blocks and only ``salvage`` writes, to another directory. ``progress`` is called with bytes done and
bytes in all. The caller holds the lock of the directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import NamedTuple

from aiorocket.config import StoreConfig
from aiorocket.errors import StoreCorruptedError, StoreError
from aiorocket.runtime.disk import Disk, File
from aiorocket.storage.checkpoint import load_checkpoint
from aiorocket.storage.checksums import sums_path
from aiorocket.storage.consume_queue import FILE_SIZE, UNIT, UNIT_SIZE
from aiorocket.storage.files import read_pages
from aiorocket.storage.queue_recovery import Codes, code_of, count_units
from aiorocket.storage.recovery import LogSteps
from aiorocket.storage.segment import Segment
from aiorocket.storage.snapshots import Snapshot
from aiorocket.storage.walk import Bad, Found, walk
from aiorocket_protocol import BLANK_SIZE, PHYSICAL_OFFSET_AT, SYS_FLAG_AT, encode_blank

__all__ = ("Finding", "Salvaged", "Survey", "records", "salvage", "state_files", "survey")

Progress = Callable[[int, int], None]

#: Units of a queue read at once.
_UNITS = 2048
#: Bytes gathered before they are written to the new store.
_WRITE = 4 << 20


class Finding(NamedTuple):
    """``kind`` is "log", "checksums", "queue" or "state"; ``offset`` to ``end`` are log offsets, or queue offsets of a
    "queue", or 0. ``lost`` are the messages that are missing for it: (topic, queue id, first queue offset, number)."""

    kind: str
    file: str
    offset: int
    end: int
    what: str
    lost: tuple[tuple[str, int, int, int], ...] = ()


class Survey(NamedTuple):
    records: int
    bytes: int
    queues: int
    #: Bytes behind the last record that had not been promised to anybody: what a crash leaves, no damage.
    torn: int
    findings: list[Finding]

    @property
    def lost(self) -> int:
        return sum(count for finding in self.findings for *_, count in finding.lost)


class Salvaged(NamedTuple):
    records: int
    bytes: int
    skipped: int
    #: State files that could not be read, and why: what they said is older now, or missing.
    problems: list[str]


class _Log:
    """The segments of a store as recovery sees them, without changing any."""

    def __init__(self, disk: Disk, directory: str) -> None:
        if not disk.is_dir(f"{directory}/commitlog"):
            raise StoreError(f"{directory} has no commitlog: it is not the data directory of a broker")
        self.disk = disk
        try:
            state, self.problems = load_checkpoint(Snapshot(disk, f"{directory}/checkpoint"))
        except StoreCorruptedError as error:
            raise StoreError(str(error)) from None
        self.state = state or {}
        self.steps = LogSteps(disk, directory, StoreConfig(), state, {})
        self.steps.find_segments()
        self.size = sum(segment.capacity for segment in self.steps.segments)

    def walk(self, progress: Progress) -> Iterator[tuple[Segment, Found | Bad, bool]]:
        """Every record and every range without one; True for a range that is a torn tail."""
        steps = self.steps
        done = 0
        for segment in steps.segments:
            last = segment is steps.segments[-1]
            durable = max(steps.durable, segment.base) if last else None
            entries = steps.entries(segment.base)
            for item in walk(self.disk, segment.path, segment.base, segment.capacity, entries, segment.base, durable):
                if isinstance(item, Found) and not item.topic:
                    continue  # filler: what compaction left where a message was
                yield segment, item, durable is not None and isinstance(item, Bad) and item.offset >= durable
                if isinstance(item, Found) and item.size + item.start > len(item.buffer) - 4096:
                    progress(done + item.offset - segment.base, self.size)
            done += segment.capacity
            progress(done, self.size)


def records(disk: Disk, directory: str) -> Iterator[Found]:
    """Every good record, in the order of the log."""
    for _, item, _ in _Log(disk, directory).walk(lambda done, total: None):
        if isinstance(item, Found):
            yield item


class _Units:
    """The consume queues as they are in their files, each read front to back."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._windows: dict[tuple[str, int], tuple[int, bytes]] = {}

    def unit(self, key: tuple[str, int], offset: int) -> tuple[int, int, int] | None:
        first, data = self._windows.get(key, (0, b""))
        at = (offset - first) * UNIT_SIZE
        if not 0 <= at <= len(data) - UNIT_SIZE:
            base = offset * UNIT_SIZE // FILE_SIZE * FILE_SIZE
            file: File | None = None
            try:
                file = self._disk.open(f"{self._directory}/{key[0]}/{key[1]}/{base:020d}")
                data = file.pread(
                    min(_UNITS * UNIT_SIZE, base + FILE_SIZE - offset * UNIT_SIZE), offset * UNIT_SIZE - base
                )
            except OSError:
                data = b""
            finally:
                if file is not None:
                    file.close()
            self._windows[key] = offset, data
            at = 0
        return UNIT.unpack_from(data, at) if len(data) - at >= UNIT_SIZE else None


def survey(disk: Disk, directory: str, progress: Progress, codes: Codes = MappingProxyType({})) -> Survey:
    """Look at every byte of the log, its checksums, the consume queues and the state files; ``codes`` as for a store.
    StoreError when the directory is no store, or one of a newer program."""
    log = _Log(disk, directory)
    findings = [Finding("state", f"{directory}/checkpoint", 0, 0, problem) for problem in log.problems]
    units = _Units(disk, f"{directory}/consumequeue")
    table = [(topic, *row) for topic, rows in log.state.get("queues", {}).items() for row in rows]
    counts = {(topic, int(queue_id)): int(count) for topic, queue_id, _, count in table}
    minimum = {(topic, int(queue_id)): int(low) for topic, queue_id, low, _ in table}
    deleted: dict[str, int] = dict(log.state.get("deleted", {}))
    following: dict[tuple[str, int], int] = {}
    bad: list[tuple[Bad, str, list[tuple[str, int, int, int]]]] = []
    wrong: dict[tuple[str, int], list[int]] = {}
    number = size = torn = reached = 0
    for segment, item, is_torn in log.walk(progress):
        if isinstance(item, Bad):
            if is_torn:
                torn = _written_behind(disk, segment, item.offset)
            else:
                bad.append((item, segment.path, []))
                reached = item.end
            continue
        reached = item.offset + item.size
        number += 1
        size += item.size
        topic = item.topic.decode(errors="replace")
        if item.offset < deleted.get(topic, 0):
            continue
        key = (topic, item.queue_id)
        # What is before the beginning was removed by retention.
        expected = max(following.get(key, 0), minimum.get(key, 0))
        known = key in following or (log.state and not log.problems)
        if known and expected < item.queue_offset and bad:
            bad[-1][2].append((topic, item.queue_id, expected, item.queue_offset - expected))
        following[key] = item.queue_offset + 1
        if minimum.get(key, 0) <= item.queue_offset < counts.get(key, 0):
            unit = units.unit(key, item.queue_offset)
            if unit is None or unit != (item.offset, item.size, code_of(item, codes, topic, unit[2])):
                wrong.setdefault(key, []).append(item.queue_offset)
    steps = log.steps
    end = max(steps.durable, log.state.get("replay", 0))
    if steps.last_end < end or (bad and bad[-1][0].end >= end):  # the end of the log is missing
        for key, (low, count) in count_units(disk, steps.queue_directory, deleted, end).items():
            counts[key] = max(counts.get(key, 0), count)
            minimum.setdefault(key, low)
    if steps.last_end < end:
        bad.append((Bad(steps.last_end, end, steps.without_end(steps.last_end)), steps.log_directory, []))
    given = steps.counts_from(bad[0][0].offset).upto(max(reached, end), deleted) if bad else {}
    for key, (first, count) in given.items():
        minimum.setdefault(key, 0 if log.state or not steps.start else following.get(key, first - 1))
        counts[key] = max(counts.get(key, 0), count)
    for key, count in counts.items():
        first = max(following.get(key, 0), minimum.get(key, 0))
        if bad and first < count:
            bad[-1][2].append((*key, first, count - first))
    findings += [Finding("log", path, item.offset, item.end, item.reason, tuple(lost)) for item, path, lost in bad]
    for (topic, queue_id), offsets in wrong.items():
        what = f"{len(offsets)} units contradict the log"
        file = f"{directory}/consumequeue/{topic}/{queue_id}"
        findings.append(Finding("queue", file, offsets[0], offsets[-1] + 1, what))
    for segment in log.steps.segments:
        entries = log.steps.entries(segment.base)
        if entries is None or entries.torn:
            what = "missing or of another segment" if entries is None else "damaged"
            findings.append(Finding("checksums", sums_path(segment.path), segment.base, segment.end, what))
    for snapshot in state_files(disk, directory):
        try:
            snapshot.load()
        except StoreCorruptedError:
            pass  # its problems say so
        findings += [Finding("state", snapshot.path, 0, 0, problem) for problem in snapshot.problems]
    return Survey(number, size, len(following), torn, findings)


def _written_behind(disk: Disk, segment: Segment, offset: int) -> int:
    file = disk.open(segment.path)
    try:
        data = read_pages(file, offset - segment.base, segment.end - offset)
    finally:
        file.close()
    return len(data.rstrip(b"\0"))


def state_files(disk: Disk, directory: str) -> list[Snapshot]:
    """The state files of the broker that used the store."""
    config = f"{directory}/config"
    if not disk.is_dir(config):
        return []
    names = dict.fromkeys(name[:-2] for name in disk.listdir(config) if name.endswith((".a", ".b")))
    return [Snapshot(disk, f"{config}/{name}") for name in names]


def salvage(disk: Disk, directory: str, target: str, config: StoreConfig, progress: Progress) -> Salvaged:
    """Write every good record to a new store in ``target``, with the queue offsets they had, and the newest good state
    files. Consume queues are made by the first start."""
    if disk.exists(target) and disk.listdir(target):
        raise StoreError(f"{target} is not empty: give a new directory")
    log = _Log(disk, directory)
    deleted: dict[str, int] = dict(log.state.get("deleted", {}))
    disk.makedirs(f"{target}/commitlog")
    place = count = skipped = gathered = 0
    segment = _new_segment(disk, target, 0, config)
    buffers: list[bytes] = []

    def write() -> None:
        nonlocal gathered
        if buffers:
            segment.write(buffers, place - gathered - segment.base, place - gathered, 0)
            buffers.clear()
            gathered = 0

    try:
        for _, item, is_torn in log.walk(progress):
            if isinstance(item, Bad):
                skipped += 0 if is_torn else item.end - item.offset
                continue
            if item.offset < deleted.get(item.topic.decode(errors="replace"), 0):
                continue
            record = item.buffer[item.start : item.start + item.size]
            if place + item.size > segment.end - BLANK_SIZE:
                buffers.append(encode_blank(segment.end - place))
                gathered += BLANK_SIZE
                place += BLANK_SIZE
                write()
                segment.sync()
                segment.finish(segment.end, 0)
                segment.close()
                place = segment.end
                wanted = max(config.segment_size, item.size + BLANK_SIZE)
                segment = _new_segment(disk, target, place, config, wanted)
            buffers.append(record[:PHYSICAL_OFFSET_AT] + place.to_bytes(8, "big") + record[SYS_FLAG_AT:])
            place += item.size
            gathered += item.size
            count += 1
            if gathered >= _WRITE:
                write()
        write()
        segment.stamp(place, 0)
        segment.sync()
    finally:
        segment.close()
    disk.makedirs(f"{target}/config")
    problems: list[str] = []
    for snapshot in state_files(disk, directory):
        try:
            value = snapshot.load()
        except StoreCorruptedError:
            value = None
        problems += snapshot.problems
        if value is not None:
            name = snapshot.path.rpartition("/")[2]
            Snapshot(disk, f"{target}/config/{name}").save(value)
    return Salvaged(count, place, skipped, problems)


def _new_segment(disk: Disk, target: str, base: int, config: StoreConfig, size: int = 0) -> Segment:
    segment = Segment(f"{target}/commitlog", base, max(size, config.segment_size))
    segment.prepare(disk, 0)
    return segment
