"""Reading: by queue offset (pull), by log offset (view), by time. Plain calls, no waiting; see tail_cache and
chunk_cache.

What comes from files is not believed. The log is compared with its checksums; a unit must point at a record that
names the same topic, queue and queue offset. A filter passes over messages by the tags codes of their units and never
sees the records, so the codes are compared with these the first time that a filter comes by. A message that touches
damage of the log is gone: a read ends in front of it, and one that begins there says where the next message is. Units
that contradict the log are made again from it (mending.py), and until that is done the queue cannot be read there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from struct import Struct
from struct import error as StructError
from typing import NoReturn

from aiorocket.errors import ProtocolError
from aiorocket.storage.agreement import belong_each, belong_even, plausible, starts_of, unpack_head
from aiorocket.storage.checkpoint import QueueTable
from aiorocket.storage.chunk_cache import ChunkCache, in_parts, runs
from aiorocket.storage.commit_log import CommitLog
from aiorocket.storage.consume_queue import FILE_UNITS, GAP, UNIT, ConsumeQueue
from aiorocket.storage.files import FileCache
from aiorocket.storage.queue_recovery import Codes, code_of, tags_code_in
from aiorocket.storage.results import ReadResult, ReadStatus, StoreBusyError
from aiorocket.storage.tail_cache import LARGE, read_tail, scan_tail
from aiorocket.storage.walk import Bad, Found
from aiorocket_protocol import MIN_RECORD, V4_HEAD, RecordView, check_record
from aiorocket_protocol.fast import compiled
from aiorocket_protocol.record_layout import ANY_V6

__all__ = ("YOUNG_BYTES", "Reader")

#: A message this close to the end of the log counts as "in memory" (Apache: 40 % of the machine's memory).
YOUNG_BYTES = 1 << 30
#: Units looked at per filtered read, at least (Apache: 16,000 bytes of consume queue).
_SCAN = 800
#: Bytes of records that one filtered read looks at to compare tags codes, not counting the first record.
_COMPARED = 1 << 20
#: Ranges of a queue that are remembered as compared, one for each group that is far behind.
_RANGES = 8
_iter_units = UNIT.iter_unpack
#: What stands for a message that the log has lost.
_NOWHERE = (-1, GAP, 0)
_new_result = tuple.__new__
_cut_units = compiled("cut_units")
_are_records = compiled("are_records")
_FOUND = ReadStatus.FOUND


@lru_cache(maxsize=64)
def _places_and_sizes(count: int) -> Callable[[bytes], tuple[int, ...]]:
    """Unpacks ``count`` units at once, without their tags codes: a third of the time of one by one."""
    return Struct(">" + "qi8x" * count).unpack


class Reader:
    """Answers from what is visible. ``queues`` is the store's own table."""

    __slots__ = ("_chunks", "_codes", "_files", "_log", "_mending", "_queues")

    def __init__(
        self,
        log: CommitLog,
        chunks: ChunkCache,
        files: FileCache,
        queues: QueueTable,
        codes: Codes,
        mending: Callable[[ConsumeQueue, int], None],
    ) -> None:
        self._log = log
        self._chunks = chunks
        self._files = files
        self._queues = queues
        self._codes = codes
        self._mending = mending

    def _mend(self, queue: ConsumeQueue, offset: int) -> NoReturn:
        self._mending(queue, offset)
        raise StoreBusyError(
            f"what {queue.directory} says of offset {offset} is not in the log: it is being made again, try again"
        )

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
        units = self._units(queue, offset, min(count, queue.cached_first - offset))
        if (plain := self._plain(queue, offset, units, max_bytes)) is not None:
            pieces, taken = plain
            return _new_result(ReadResult, (_FOUND, pieces, offset + taken, low, high, taken))
        taken = len(units) // UNIT.size
        numbers = _places_and_sizes(taken)(units)
        places, sizes = numbers[::2], numbers[1::2]
        total = sum(sizes)
        if taken > 1 and total > max_bytes:
            taken = max(1, bisect_right(list(accumulate(sizes)), max_bytes))
            places, sizes = places[:taken], sizes[:taken]
        pieces, taken = self._records(queue, places, sizes, range(offset, offset + taken))
        if not taken:
            return ReadResult(ReadStatus.MESSAGE_WAS_REMOVING, (), self._behind(queue, offset), low, high, 0)
        return _new_result(ReadResult, (_FOUND, pieces, offset + taken, low, high, taken))

    def _plain(self, queue: ConsumeQueue, offset: int, units: bytes, max_bytes: int) -> tuple[list[bytes], int] | None:
        """The records of these units in compiled code, as many as fit, and their number. None for what is to be looked
        at with care (damage, a gap, a segment without checksums, what does not belong), and where nothing is
        compiled."""
        log = self._log
        if _cut_units is None or log.unchecked:
            return None
        found = _cut_units(units, max_bytes, log.start_offset, log.written)
        if found is None:
            return None
        taken, total, starts, lengths = found
        damage = log.damage
        changes = damage.changes
        if damage and damage.touches(starts[0], starts[-1] + lengths[-1]):
            return None
        pieces = self._chunks.read(starts, lengths)
        if damage.changes != changes or log.unchecked:
            return None
        if not _are_records(pieces, units, taken, offset, queue.queue_id, queue.topic_bytes):
            return None
        return [b"".join(pieces)] if len(pieces) * LARGE > total else pieces, taken

    def _units(self, queue: ConsumeQueue, offset: int, count: int) -> bytes:
        """Units of visible messages. StoreBusyError when the file does not have what it must."""
        try:
            units = queue.units(self._files, offset, count)
        except OSError:
            units = b""  # what cannot be read is made again elsewhere
        if len(units) < UNIT.size * min(count, FILE_UNITS - offset % FILE_UNITS, queue.max_offset - offset):
            self._mend(queue, offset + len(units) // UNIT.size)
        return units

    def _records(
        self, queue: ConsumeQueue, places: Sequence[int], sizes: Sequence[int], offsets: Sequence[int]
    ) -> tuple[list[bytes], int]:
        """The records of a queue at these log and queue offsets, as many as can be served up to the first damage, and
        their number: few large pieces, or one. StoreBusyError when a unit is wrong."""
        log = self._log
        taken = sizes.index(GAP) if GAP in sizes else len(places)
        while True:
            taken = self._undamaged(places, sizes, taken)
            if not taken:
                if sizes[0] != GAP and not self._in_order(queue, offsets[0]):
                    self._mend(queue, offsets[0])
                return [], 0
            if not plausible(places[:taken], sizes[:taken], log.start_offset, log.written):
                self._mend(queue, offsets[0])
            places, sizes, offsets = places[:taken], sizes[:taken], offsets[:taken]
            changes = log.damage.changes
            starts, lengths = runs(places, sizes)
            parts = self._chunks.read(starts, lengths)
            if log.damage.changes == changes or self._undamaged(places, sizes, taken) == taken:
                break
        total = sum(sizes)
        if sum(map(len, parts)) != total:
            self._mend(queue, offsets[0])
        if len(parts) == 1 or len(parts) * LARGE > total:
            parts = [b"".join(parts)]
            belong = belong_even(parts[0], places, sizes, queue, offsets) or belong_each(
                parts * taken, starts_of(sizes), places, sizes, queue, offsets
            )
        else:
            belong = belong_each(*in_parts(parts, starts, lengths, places), places, sizes, queue, offsets)
        if not belong:
            self._mend(queue, offsets[0])
        if log.unchecked:
            self._check_each(b"".join(parts), places, sizes)
            if self._undamaged(places, sizes, taken) != taken:
                return self._records(queue, places, sizes, offsets)
        return parts, taken

    def holds(self, queue: ConsumeQueue, offset: int) -> bool:
        """Whether the log confirms the unit of one message, or has lost it."""
        try:
            unit = queue.units(self._files, offset, 1)
        except OSError:
            return False
        if len(unit) < UNIT.size:
            return False
        place, size, code = UNIT.unpack(unit)
        log = self._log
        if size == GAP:
            return True
        if log.damage.touches(place, place + size):
            return self._in_order(queue, offset)
        if not plausible((place,), (size,), log.start_offset, log.written):
            return False
        data = log.checked(place, size)
        if log.damage.touches(place, place + size):
            return self._in_order(queue, offset)
        if len(data) != size or not belong_each([data], [0], (place,), (size,), queue, (offset,)):
            return False
        return self._wrong_code(queue, data, (size,), (code,)) is None

    def _wrong_code(self, queue: ConsumeQueue, data: bytes, sizes: Sequence[int], codes: Sequence[int]) -> int | None:
        """The first of these records that says another code than its unit."""
        at, plain = 0, queue.topic not in self._codes
        behind_body = V4_HEAD + 1 + len(queue.topic_bytes) + 2
        for index, (size, code) in enumerate(zip(sizes, codes, strict=True)):
            *_, flags, body = unpack_head(data, at)
            first = at + behind_body + body
            if not plain or flags & ANY_V6 or tags_code_in(data, first, at + size) != code:
                try:
                    view = RecordView(data, at, at + size)
                    found = Found(0, size, b"", 0, 0, 0, data, at, view.end - len(view.raw_properties))
                except (ProtocolError, IndexError, StructError):  # without checksums anything may stand there
                    return index
                if code_of(found, self._codes, queue.topic, code) != code:
                    return index
            at += size
        return None

    def _compared(self, queue: ConsumeQueue, offset: int, stop: int) -> int:
        """Compare the codes of units in files with their records, as far as that was not done since the start; up to
        where it is now, ``stop`` at most. StoreBusyError when one is wrong."""
        ranges = list(queue.compared)
        low, high = next((each for each in ranges if each[0] <= offset <= each[1]), (offset, offset))
        if high >= stop:
            return stop
        rows = list(_iter_units(self._units(queue, high, stop - high)))
        sizes = list(accumulate(max(0, size) for _, size, _ in rows))
        del rows[max(1, bisect_right(sizes, _COMPARED)) :]
        self._check_units(queue, high, rows, with_codes=True)
        if (low, high) in ranges:
            ranges.remove((low, high))
        queue.compared = (*ranges[1 - _RANGES :], (low, high + len(rows)))
        return high + len(rows)

    def _in_order(self, queue: ConsumeQueue, offset: int) -> bool:
        """Whether a unit that points at damage fits between those beside it, and says the size that its record does, if
        that is intact where it begins; nothing else can be asked."""
        first = max(queue.min_offset, offset - 1)
        rows = list(_iter_units(b"".join(queue.units(self._files, at, 1) for at in range(first, offset + 2))))
        place, size, _ = rows[offset - first]
        log = self._log
        segment = log.segment_at(place)
        if place + size > (log.written if segment is None else segment.end):
            return False
        head = log.checked(place, 4)
        if not log.damage.touches(place, place + 4) and int.from_bytes(head) != size:
            return False
        return all(size == GAP or size >= MIN_RECORD for _, size, _ in rows) and all(
            place + max(size, 0) <= following for (place, size, _), (following, _, _) in pairwise(rows)
        )

    def _undamaged(self, places: Sequence[int], sizes: Sequence[int], count: int) -> int:
        """How many of the records come before the first that touches damage."""
        damage = self._log.damage
        if count and damage and damage.touches(places[0], places[count - 1] + sizes[count - 1]):
            for index in range(count):
                if damage.touches(places[index], places[index] + sizes[index]):
                    return index
        return count

    def _check_each(self, data: bytes, places: Sequence[int], sizes: Sequence[int]) -> None:
        """Records of segments without checksums have their body's CRC at least."""
        at = 0
        for place, size in zip(places, sizes, strict=True):
            if not self._log.is_checked(place):
                try:
                    check_record(data[at : at + size], 0)
                except ProtocolError as error:
                    self._log.found_damage(Bad(place, place + size, error.what))
            at += size

    def _behind(self, queue: ConsumeQueue, offset: int) -> int:
        """The queue offset of the next message at or behind ``offset`` that is not known to be lost."""
        log = self._log
        while offset < min(queue.max_offset, queue.cached_first):
            units = self._units(queue, offset, _SCAN)
            for place, size, _ in _iter_units(units):
                if size != GAP and not log.damage.touches(place, place + size):
                    return offset
                offset += 1
        return offset

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
        units = self._units(queue, offset, self._compared(queue, offset, min(stop, queue.cached_first)) - offset)
        places: list[int] = []
        sizes: list[int] = []
        offsets: list[int] = []
        total = 0
        following = offset
        for place, size, code in _iter_units(units):
            if size == GAP:
                break
            if accept(code):
                total += size
                if places and (total > max_bytes or len(places) == count):
                    break
                places.append(place)
                sizes.append(size)
                offsets.append(following)
            following += 1
        if not places:
            if following > offset:
                return ReadResult(ReadStatus.NO_MATCHED_MESSAGE, (), following, low, high, 0)
            return ReadResult(ReadStatus.MESSAGE_WAS_REMOVING, (), self._behind(queue, offset), low, high, 0)
        pieces, taken = self._records(queue, places, sizes, offsets)
        if taken < len(places):
            following = offsets[taken]
        if not taken:
            if following > offset:
                return ReadResult(ReadStatus.NO_MATCHED_MESSAGE, (), following, low, high, 0)
            return ReadResult(ReadStatus.MESSAGE_WAS_REMOVING, (), self._behind(queue, offset), low, high, 0)
        return ReadResult(_FOUND, pieces, following, low, high, taken)

    def entries(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        """See MessageStore.entries."""
        queue = self._queues.get((topic, queue_id))
        if queue is None or offset < queue.min_offset:
            return []
        found: list[tuple[int, int, int]] = []
        count = min(count, queue.max_offset - offset)
        while len(found) < count:
            first = offset + len(found)
            rows = list(_iter_units(self._units(queue, first, count - len(found))))
            in_files = rows[: max(0, queue.tail_first - first)]
            self._check_units(queue, first, in_files, with_codes=topic in self._codes)
            found += rows
        return [_NOWHERE if row[1] == GAP else row for row in found]

    def _check_units(
        self, queue: ConsumeQueue, offset: int, rows: list[tuple[int, int, int]], *, with_codes: bool
    ) -> None:
        """StoreBusyError unless the records of these units say the same."""
        index = 0
        while index < len(rows):
            places, sizes, codes = zip(*rows[index:], strict=True)
            pieces, taken = self._records(queue, places, sizes, range(offset + index, offset + len(rows)))
            if with_codes:
                wrong = self._wrong_code(queue, b"".join(pieces), sizes[:taken], codes[:taken])
                if wrong is not None:
                    self._mend(queue, offset + index + wrong)
            index += max(taken, 1)  # what cannot be served is no contradiction

    def read_record(self, physical_offset: int) -> bytes | None:
        """See MessageStore.read_record."""
        head = self._log.checked(physical_offset, MIN_RECORD)
        if len(head) < MIN_RECORD:
            return None
        size = int.from_bytes(head[:4], "big", signed=True)
        # In the midst of a record four bytes are any number: so many would be read, up to a whole segment.
        if size < MIN_RECORD or RecordView(head, 0, MIN_RECORD).physical_offset != physical_offset:
            return None
        data = self._log.checked(physical_offset, size)
        if self._log.damage.touches(physical_offset, physical_offset + size):
            return None
        try:
            view = RecordView(data, 0, size)
            # Without a topic it is filler.
            if check_record(data, 0) != len(data) or not view.raw_topic:
                return None
        except ProtocolError:
            return None
        return data

    def store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """See MessageStore.store_time."""
        found = self.entries(topic, queue_id, offset, 1)
        return self.time_at(found[0][0]) if found else None

    def time_at(self, place: int) -> int | None:
        """Store timestamp of the record at a log offset; None when none can be read there."""
        head = self._log.checked(place, MIN_RECORD)
        if len(head) < MIN_RECORD or self._log.damage.touches(place, place + MIN_RECORD):
            return None
        view = RecordView(head, 0, MIN_RECORD)
        return view.store_timestamp if view.physical_offset == place else None

    def offset_by_time(self, topic: str, queue_id: int, ms: int, upper: bool) -> int:
        """See MessageStore.offset_by_time. Store timestamps never go back in the log, so halving finds it."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return 0
        low, high = queue.min_offset, queue.max_offset
        while low < high:
            middle = at = (low + high) // 2
            # A message that cannot be read is as old as the next one that can.
            while (stored := self.store_time(topic, queue_id, at)) is None and at < high - 1:
                at += 1
            if stored is None or (stored > ms if upper else stored >= ms):
                high = middle
            else:
                low = at + 1
        if upper:
            return low - 1 if low > queue.min_offset else 0
        return low

    def is_young(self, topic: str, queue_id: int) -> bool:
        """See MessageStore.is_young."""
        queue = self._queues.get((topic, queue_id))
        if queue is None or queue.max_offset == 0:
            return True
        first = self.entries(topic, queue_id, 0, 1)
        return bool(first) and self._log.written - first[0][0] <= YOUNG_BYTES

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
