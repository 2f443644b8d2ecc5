"""Consume queue: queue offset -> place in the commit log, 20 bytes each, in files of 300,000 (RocketMQ's layout).

Everything here is derived: recovery checks it against the log and makes it again when it does not fit. Units that are
not on the disk yet sit in ``tail``; the store writes them out in larger pieces and syncs them at a checkpoint, never
per message.
"""

from __future__ import annotations

import re
import struct
from itertools import accumulate, chain

from aiorocket.errors import UsageError
from aiorocket.runtime.disk import Disk
from aiorocket.storage.block import Block
from aiorocket.storage.files import FileCache
from aiorocket_protocol import NAME_CHARACTER
from aiorocket_protocol.fast import twin

__all__ = (
    "FILE_SIZE",
    "FILE_UNITS",
    "GAP",
    "MAX_QUEUE_ID",
    "UNIT",
    "UNIT_SIZE",
    "ConsumeQueue",
    "queue_directory",
    "remove_queue",
    "topic_directory",
    "units_of",
    "write_units",
)

#: physical offset, size, tags code
UNIT = struct.Struct(">qiq")
UNIT_SIZE = UNIT.size
#: The size in the unit of a message that the log has lost; nothing that damage makes of a unit looks like it.
GAP = -0x47_41_50_21
FILE_UNITS = 300_000
FILE_SIZE = FILE_UNITS * UNIT_SIZE
MAX_QUEUE_ID = 65_535

# A topic becomes a directory: nothing that could leave the store or exceed a file name gets through (CVE-2019-17572).
# The plus stands in names of POP's retry topics.
_TOPIC = re.compile(rf"(?:{NAME_CHARACTER}|\+){{1,255}}", re.ASCII)


@twin
def units_of(start: int, sizes: list[int], codes: list[int]) -> tuple[tuple[int, ...], bytes]:
    """Where records of these sizes are that stand one behind the other from ``start`` on, and their units."""
    places = tuple(accumulate(sizes[:-1], initial=start))
    return places, struct.pack(">" + "qiq" * len(sizes), *chain.from_iterable(zip(places, sizes, codes, strict=True)))


def topic_directory(root: str, topic: str) -> str:
    """Where the queues of ``topic`` live; UsageError when the name cannot be a directory name."""
    if not _TOPIC.fullmatch(topic):
        raise UsageError(
            f"topic {topic!r:.300}: 1 to 255 of the characters % | a-z A-Z 0-9 _ - + are allowed in a store"
        )
    return f"{root}/{topic}"


def queue_directory(root: str, topic: str, queue_id: int) -> str:
    """Where the files of one queue live; UsageError for a bad topic name or queue id."""
    if not 0 <= queue_id <= MAX_QUEUE_ID:
        raise UsageError(f"queue id {queue_id} of topic {topic}: 0 to {MAX_QUEUE_ID} is allowed")
    return f"{topic_directory(root, topic)}/{queue_id}"


class ConsumeQueue:
    """One queue. ``next_offset`` is given to the next append; consumers see only what is below ``max_offset``.

    The fields from ``block`` on belong to the tail cache, ``marked``/``code`` to the group that gathers in the commit
    log.
    """

    __slots__ = (
        "block",
        "blocks",
        "cached_first",
        "code",
        "compared",
        "deleted",
        "directory",
        "marked",
        "max_offset",
        "min_offset",
        "next_offset",
        "queue_id",
        "synced",
        "tail",
        "tail_first",
        "topic",
        "topic_bytes",
        "writing",
    )

    def __init__(self, directory: str, topic: str, queue_id: int, count: int = 0, minimum: int = 0) -> None:
        self.directory = directory
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.queue_id = queue_id
        self.min_offset = minimum
        self.max_offset = count
        self.next_offset = count
        self.tail = bytearray()
        self.tail_first = count
        #: Units below this survive a power cut.
        self.synced = count
        self.writing = False
        self.deleted = False
        self.block: Block | None = None
        self.blocks: dict[int, Block] = {}
        self.cached_first = count
        self.marked = False
        self.code: int | None = None
        #: Ranges of offsets (first, end) whose tags codes in the files agreed with the log.
        self.compared: tuple[tuple[int, int], ...] = ()

    def units(self, files: FileCache, offset: int, count: int) -> bytes:
        """The units from ``offset`` on, at most ``count`` and none from ``max_offset`` on; shorter where a file is
        missing."""
        count = min(count, self.max_offset - offset)
        if count <= 0:
            return b""
        in_tail = offset - self.tail_first
        if in_tail >= 0:
            return bytes(self.tail[in_tail * UNIT_SIZE : (in_tail + count) * UNIT_SIZE])
        wanted = min(count, -in_tail)
        inside = offset % FILE_UNITS
        wanted = min(wanted, FILE_UNITS - inside)  # a read that crosses files ends there; callers ask again
        path = f"{self.directory}/{(offset - inside) * UNIT_SIZE:020d}"
        try:
            data = files.open(path).pread(wanted * UNIT_SIZE, inside * UNIT_SIZE)
        except FileNotFoundError:
            return b""
        usable = len(data) - len(data) % UNIT_SIZE
        if wanted < count and wanted == -in_tail and usable == wanted * UNIT_SIZE:
            return data + bytes(self.tail[: (count - wanted) * UNIT_SIZE])
        return data if usable == len(data) else data[:usable]

    def written(self, upto: int, *, synced: bool) -> None:
        """The units below ``upto`` are in the files now: memory may let them go."""
        if upto > self.tail_first:
            del self.tail[: (upto - self.tail_first) * UNIT_SIZE]
            self.tail_first = upto
        if synced and upto > self.synced:
            self.synced = upto

    def roll_back(self) -> None:
        """Take back every append that has not become visible; their group failed."""
        self.next_offset = self.max_offset
        del self.tail[max(0, self.max_offset - self.tail_first) * UNIT_SIZE :]
        self.marked = False


def write_units(disk: Disk, directory: str, first: int, data: bytes, sync_from: int | None) -> None:
    """Blocking: put units ``first`` ... into the files; with ``sync_from`` make everything from that offset on
    durable."""
    disk.makedirs(directory)
    start = first * UNIT_SIZE
    end = start + len(data)
    begin = start if sync_from is None else min(start, sync_from * UNIT_SIZE)
    base = begin - begin % FILE_SIZE
    view = memoryview(data)
    named = True
    while base < end:
        path = f"{directory}/{base:020d}"
        file = disk.open(path, create=True)
        try:
            low, high = max(base, start), min(base + FILE_SIZE, end)
            if low < high:
                file.pwritev([view[low - start : high - start]], low - base)
            if sync_from is not None:
                file.fdatasync()
        finally:
            file.close()
        # A file with units that were durable before has a name that is.
        named = named and sync_from is not None and base < sync_from * UNIT_SIZE
        base += FILE_SIZE
    if sync_from is not None and not named:
        disk.fsync_dir(directory)


def remove_queue(disk: Disk, directory: str) -> None:
    """Blocking: delete the files of one queue and its directory."""
    for name in disk.listdir(directory):
        disk.unlink(f"{directory}/{name}")
    disk.rmdir(directory)
