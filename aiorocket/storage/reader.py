"""Reading: by queue offset (pull), by log offset (view), by time. Plain calls, no waiting; see tail_cache and
chunk_cache."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from struct import Struct

from aiorocket.errors import ProtocolError
from aiorocket.storage.chunk_cache import ChunkCache
from aiorocket.storage.commit_log import CommitLog
from aiorocket.storage.consume_queue import FILE_UNITS, UNIT, ConsumeQueue
from aiorocket.storage.files import FileCache
from aiorocket.storage.recovery import QueueTable
from aiorocket.storage.results import ReadResult, ReadStatus
from aiorocket.storage.tail_cache import read_tail, scan_tail
from aiorocket_protocol import BLANK_SIZE, MIN_RECORD, RecordView, check_record

__all__ = ("YOUNG_BYTES", "Reader")

#: A message this close to the end of the log counts as "in memory" (Apache: 40 % of the machine's memory).
YOUNG_BYTES = 1 << 30
#: Units looked at per filtered read, at least (Apache: 16,000 bytes of consume queue).
_SCAN = 800
_iter_units = UNIT.iter_unpack
_new_result = tuple.__new__
_FOUND = ReadStatus.FOUND


@lru_cache(maxsize=64)
def _places_and_sizes(count: int) -> Callable[[bytes], tuple[int, ...]]:
    """Unpacks ``count`` units at once, without their tags codes: a third of the time of one by one."""
    return Struct(">" + "qi8x" * count).unpack


class Reader:
    """Answers from what is visible. ``queues`` is the store's own table."""

    __slots__ = ("_chunks", "_files", "_log", "_queues")

    def __init__(self, log: CommitLog, chunks: ChunkCache, files: FileCache, queues: QueueTable) -> None:
        self._log = log
        self._chunks = chunks
        self._files = files
        self._queues = queues

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        max_bytes: int,
        accept: Callable[[int], bool] | None,
    ) -> ReadResult:
        """See MessageStore.read."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return ReadResult(ReadStatus.NO_MATCHED_LOGIC_QUEUE, (), 0, 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if not low <= offset < high:
            status, following = _outside(offset, low, high)
            return ReadResult(status, (), following, low, high, 0)
        count = min(max(max_messages, 1), high - offset)
        if accept is not None:
            return self._scan(queue, offset, max(max_messages, 1), max_bytes, accept)
        if offset >= queue.cached_first:
            pieces, taken = read_tail(queue, offset, count, max_bytes)
            return _new_result(ReadResult, (_FOUND, pieces, offset + taken, low, high, taken))
        units = queue.units(self._files, offset, min(count, queue.cached_first - offset))
        if not units:
            return ReadResult(ReadStatus.OFFSET_FOUND_NULL, (), self._next_file(queue, offset), low, high, 0)
        taken = len(units) // UNIT.size
        numbers = _places_and_sizes(taken)(units)
        places, sizes = numbers[::2], numbers[1::2]
        total = sum(sizes)
        if taken > 1 and total > max_bytes:
            taken = max(1, bisect_right(list(accumulate(sizes)), max_bytes))
            places, sizes = places[:taken], sizes[:taken]
            total = sum(sizes)
        data = b"".join(self._chunks.read(places, sizes))
        if len(data) != total:
            return ReadResult(ReadStatus.MESSAGE_WAS_REMOVING, (), offset + taken, low, high, 0)
        return _new_result(ReadResult, (_FOUND, (data,), offset + taken, low, high, taken))

    def _scan(
        self, queue: ConsumeQueue, offset: int, count: int, max_bytes: int, accept: Callable[[int], bool]
    ) -> ReadResult:
        """Filtered read of at most max(_SCAN, count) messages."""
        low, high = queue.min_offset, queue.max_offset
        stop = min(high, offset + max(_SCAN, count))
        if offset >= queue.cached_first:
            parts, following = scan_tail(queue, offset, stop, count, max_bytes, accept)
            status = _FOUND if parts else ReadStatus.NO_MATCHED_MESSAGE
            return ReadResult(status, (b"".join(parts),), following, low, high, len(parts))
        units = queue.units(self._files, offset, min(stop, queue.cached_first) - offset)
        if not units:
            return ReadResult(ReadStatus.OFFSET_FOUND_NULL, (), self._next_file(queue, offset), low, high, 0)
        places: list[int] = []
        sizes: list[int] = []
        total = 0
        for place, size, code in _iter_units(units):
            if accept(code):
                total += size
                if places and (total > max_bytes or len(places) == count):
                    break
                places.append(place)
                sizes.append(size)
            offset += 1
        if not places:
            return ReadResult(ReadStatus.NO_MATCHED_MESSAGE, (), offset, low, high, 0)
        data = b"".join(self._chunks.read(places, sizes))
        if len(data) != sum(sizes):
            return ReadResult(ReadStatus.MESSAGE_WAS_REMOVING, (), offset, low, high, 0)
        return ReadResult(_FOUND, (data,), offset, low, high, len(places))

    def _next_file(self, queue: ConsumeQueue, offset: int) -> int:
        return min(queue.max_offset, offset - offset % FILE_UNITS + FILE_UNITS)

    def entries(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        """See MessageStore.entries."""
        queue = self._queues.get((topic, queue_id))
        if queue is None or offset < queue.min_offset:
            return []
        found: list[tuple[int, int, int]] = []
        while len(found) < count:
            units = queue.units(self._files, offset + len(found), count - len(found))
            if not units:
                break
            found += _iter_units(units)
        return found

    def read_record(self, physical_offset: int) -> bytes | None:
        """See MessageStore.read_record."""
        head = self._log.piece(physical_offset, BLANK_SIZE)
        if len(head) < BLANK_SIZE:
            return None
        size = int.from_bytes(head[:4], "big", signed=True)
        if size <= BLANK_SIZE:
            return None
        data = self._log.piece(physical_offset, size)
        try:
            if check_record(data, 0) != len(data) or RecordView(data, 0, size).physical_offset != physical_offset:
                return None
        except ProtocolError:
            return None
        return data

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """See MessageStore.store_time."""
        found = self.entries(topic, queue_id, offset, 1)
        return self._time_at(found[0][0]) if found else None

    def _time_at(self, place: int) -> int | None:
        head = self._log.piece(place, MIN_RECORD)
        return RecordView(head, 0, MIN_RECORD).store_timestamp if len(head) == MIN_RECORD else None

    def offset_by_time(self, topic: str, queue_id: int, ms: int, upper: bool) -> int:
        """See MessageStore.offset_by_time. Store timestamps never go back in the log, so halving finds it."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return 0
        low, high = queue.min_offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            stored = self.store_time(topic, queue_id, middle)
            if stored is not None and (stored > ms if upper else stored >= ms):
                high = middle
            else:
                low = middle + 1
        return max(queue.min_offset, low - 1) if upper else low

    def is_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        """See MessageStore.is_in_memory."""
        found = self.entries(topic, queue_id, offset, 1)
        return bool(found) and self._log.written - found[0][0] <= YOUNG_BYTES

    def ends(self) -> dict[str, int]:
        """See MessageStore.ends."""
        ends: dict[str, int] = {}
        for (topic, _), queue in self._queues.items():
            ends[topic] = ends.get(topic, 0) + queue.max_offset
        return ends


def _outside(offset: int, low: int, high: int) -> tuple[ReadStatus, int]:
    """Status and next offset for an offset that no message has, as RocketMQ answers."""
    if high == 0:
        return ReadStatus.NO_MESSAGE_IN_QUEUE, 0
    if offset < low:
        return ReadStatus.OFFSET_TOO_SMALL, low
    if offset == high:
        return ReadStatus.OFFSET_OVERFLOW_ONE, offset
    return ReadStatus.OFFSET_OVERFLOW_BADLY, high
