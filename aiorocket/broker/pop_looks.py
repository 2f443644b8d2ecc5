"""What pops, peeks and notifications look at, and what pops take.

A pop reads where its group goes on, of one queue or of all of a topic, and of the group's retry topic: first of it
each fifth time, last of it else. What it finds is out from then on (core/pops.py). A topic may have thousands of
queues, and a filter may have to see every message: a look is a generator that yields when its share of a turn of the
loop is over. What it has found by then is its own, and nobody answers meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from aiorocket.broker.core.pop_answer import Found, Wanted
from aiorocket.broker.core.pops import QueueKey
from aiorocket.broker.core.record_filter import SCAN, RecordFilter
from aiorocket.broker.filtered import read_filtered
from aiorocket.storage.results import ReadResult, ReadStatus
from aiorocket_protocol import INIT_MIN, RETRY_PREFIX, pop_retry_topic, split_records

if TYPE_CHECKING:
    import asyncio

    from aiorocket.broker.core.shares import Holds
    from aiorocket.broker.core.tables import Tables
    from aiorocket.broker.revive import PopRevival
    from aiorocket.config import BrokerConfig
    from aiorocket.remoting.connection import Connection
    from aiorocket.runtime.clock import Clock
    from aiorocket.runtime.turns import Rounds
    from aiorocket.storage.store import MessageStore

__all__ = ("AN_END", "A_SLICE", "POP_WORK", "PopLooks")

#: What all looks may take of one turn of the loop, and one of them, in words of a filter: some 10 ms, and 2.
POP_WORK, A_SLICE = 40_000, 8_000
#: A queue, one that a group begins with, one that messages are taken of (a record is stored, and most pops are
#: answered with no other), and an answer's message.
_A_QUEUE, _A_BEGIN, _A_TAKE, _A_MESSAGE = 40, 60, 300, 8
#: An end before all was looked at, and its answer.
AN_END = 160
#: One pop in so many looks at retries first, so that neither they nor new messages wait for ever.
_RETRIES_FIRST = 5
#: Messages of a queue that one pop looks at when none matches.
_IN_VAIN = 4 * SCAN

_MOVED = frozenset(
    {
        ReadStatus.OFFSET_TOO_SMALL,
        ReadStatus.OFFSET_FOUND_NULL,
        ReadStatus.NO_MATCHED_MESSAGE,
        ReadStatus.MESSAGE_WAS_REMOVING,
    }
)


class PopLooks:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        config: BrokerConfig,
        tables: Tables,
        store: MessageStore,
        revival: PopRevival,
        rounds: Rounds,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._topics = tables.topics
        self._configs = tables.configs
        self._offsets = tables.offsets
        self._store = store
        self._revival = revival
        self._table = revival.table
        self._rounds = rounds
        self._max_bytes = config.max_pull_bytes
        self._most = config.limits.popped
        self._turn = 0
        #: Looks under way end with what they have.
        self.closed = False

    # ---- looks

    def take(self, connection: Connection, wanted: Wanted) -> Generator[None, None, Found]:
        """What a pop gets."""
        rounds = self._rounds
        found = Found(wanted.most, self._max_bytes, self._clock.wall_ms())
        for topic, queue_id in self._places(wanted):
            key, in_vain = QueueKey(topic, wanted.group, queue_id), 0
            while True:
                if rounds.over():
                    yield
                    if self._is_void(connection, wanted):
                        return found
                more = self._take(found, key, wanted, connection.holds)
                in_vain += more
                if not more:
                    break
                if in_vain >= _IN_VAIN:
                    found.unread = True
                    offset = self._table.next_offset(key, self._start(key, INIT_MIN))
                    found.rest += max(0, self._store.max_offset(topic, queue_id) - offset)
                    break
        rounds.spend(_A_MESSAGE * (wanted.most - found.count))
        return found

    def peek(self, connection: Connection, wanted: Wanted) -> Generator[None, None, Found]:
        """What the next pop would get; nothing goes out."""
        found = Found(wanted.most, self._max_bytes, self._clock.wall_ms())
        for topic, queue_id in self._places(wanted):
            if self._rounds.over():
                yield
                if self._is_void(connection, wanted):
                    break
            self._rounds.spend(_A_QUEUE)
            key = QueueKey(topic, wanted.group, queue_id)
            offset = self._table.next_offset(key, self._start(key, INIT_MIN))
            if found.count > 0 and found.size > 0:
                result = self._store.read(topic, queue_id, offset, found.count, found.size)
                if result.status is ReadStatus.FOUND:
                    found.pieces += result.pieces
                    found.count -= result.count
                    found.size -= sum(map(len, result.pieces))
                    offset = result.next_offset
            found.rest += max(0, self._store.max_offset(topic, queue_id) - offset)
        return found

    def has_messages(self, connection: Connection, wanted: Wanted) -> Generator[None, None, bool]:
        """Whether a pop would find something."""
        for topic, queue_id in self._places(wanted):
            if self._rounds.over():
                yield
                if self._is_void(connection, wanted):
                    break
            self._rounds.spend(_A_QUEUE)
            key = QueueKey(topic, wanted.group, queue_id)
            if wanted.in_order and self._table.is_blocked(key, wanted.attempt, self._loop.time()):
                continue
            if wanted.in_order and self._table.out(key):
                return True
            if self._store.max_offset(topic, queue_id) > self._table.next_offset(key, self._start(key, INIT_MIN)):
                return True
        return False

    def _is_void(self, connection: Connection, wanted: Wanted) -> bool:
        """Whether nobody wants it any more, or its topic or group was deleted meanwhile. Then it ends, and thousands
        may end together."""
        void = (
            self.closed
            or connection.closed
            or wanted.topic.name not in self._topics
            or self._configs.get(wanted.group) is None
        )
        if void:
            self._rounds.spend(AN_END)
        return void

    # ---- queues

    def _places(self, wanted: Wanted) -> Iterator[tuple[str, int]]:
        """The queues to look at, in order: another one first each time."""
        self._turn += 1
        topic, turn = wanted.topic, self._turn
        places: Iterator[tuple[str, int]]
        if wanted.queue_id >= 0:
            places = iter(((topic.name, wanted.queue_id),))
        else:
            count = topic.read_queues
            places = ((topic.name, (turn + number) % count) for number in range(count))
        retries = self._topics.get(pop_retry_topic(wanted.group, topic.name))
        if retries is None or wanted.in_order or topic.name.startswith(RETRY_PREFIX):
            return places
        name = retries.name
        of_retries = ((name, queue_id) for queue_id in range(retries.read_queues))
        return chain(of_retries, places) if turn % _RETRIES_FIRST == 0 else chain(places, of_retries)

    def _start(self, key: QueueKey, init_mode: int, who: Holds | None = None) -> int:
        """The group's offset, or where it begins when it has none; with ``who``, whose pop it is, that is where it
        begins from now on."""
        if self._offsets.resets and who is not None:
            reset = self._offsets.take_reset(key.group, key.topic, key.queue_id)
            if reset is not None:
                self._revival.begins(key, reset, who)
                return reset
        offset = self._offsets.query(key.group, key.topic, key.queue_id)
        if offset is not None:
            return offset
        store = self._store
        low, high = store.min_offset(key.topic, key.queue_id), store.max_offset(key.topic, key.queue_id)
        oldest = init_mode == INIT_MIN or key.topic.startswith(RETRY_PREFIX) or store.is_young(key.topic, key.queue_id)
        offset = low if oldest else max(0, high - 1)  # the newest message is popped, as at Apache's
        if who is not None:
            self._revival.begins(key, offset, who)
            self._rounds.spend(_A_BEGIN)
        return offset

    def _take(self, found: Found, key: QueueKey, wanted: Wanted, who: Holds) -> int:
        """What of one queue fits into the answer goes out. How many messages were looked at in vain when there are
        more to look at, else 0."""
        self._rounds.spend(_A_QUEUE)
        table, now = self._table, self._loop.time()
        found.refusal = self._offsets.refusal(key.group, key.topic, key.queue_id, who) or found.refusal
        if found.refusal is not None:
            return 0  # where it begins would not be kept, and it would begin there each time
        offset = table.next_offset(key, self._start(key, wanted.init_mode, who))
        count = min(found.count, self._most - table.count)
        if table.full(self._most, key.group, who) is not None:
            count = 0
        again = None
        if not wanted.in_order:
            self._revival.unordered(key)  # what it got in order before it went over to this
            if table.is_full(key):
                return 0
        else:
            if table.is_blocked(key, wanted.attempt, now):
                return 0  # what is behind does not count as rest: nobody can have it
            again = table.again(key)
            low = self._store.min_offset(key.topic, key.queue_id)
            if again is not None and again[0] < low:
                self._rounds.spend(_A_BEGIN * self._revival.gone(key, low))
                return 1
            if again is not None:
                offset, count = again[0], min(again[1], count)
        if count <= 0 or found.size <= 0:
            found.rest += max(0, self._store.max_offset(key.topic, key.queue_id) - offset)
            return 0
        # A retry was wanted once, and what goes out again in order would stop the queue if it was not any more.
        accept = wanted.accept if key.topic == wanted.topic.name and again is None else None
        result = self._read(key, offset, count, found.size, accept)
        if result.min_offset > offset:
            self._revival.say_overtaken(key, offset, result.min_offset)
        if result.status is not ReadStatus.FOUND:
            if result.status is ReadStatus.OFFSET_OVERFLOW_BADLY:  # the topic was made anew, or lost its end
                self._revival.begins(key, result.max_offset, who)
            elif result.next_offset > offset:
                table.skip(key, result.next_offset)
                if not table.out(key):
                    self._offsets.commit(key.group, key.topic, key.queue_id, result.next_offset, who)
            if result.status in _MOVED and result.next_offset not in (offset, result.max_offset):
                return min(max(1, result.next_offset - offset), SCAN)
            found.rest += max(0, result.max_offset - result.next_offset)
            return 0
        found.rest += max(0, result.max_offset - result.next_offset)
        data = result.data
        offsets = [view.queue_offset for view in split_records(data)]
        pop = table.take(
            key, offsets, result.next_offset,
            pop_time=found.pop_time, invisible_ms=wanted.invisible_ms, now=now,
            in_order=wanted.in_order, attempt=wanted.attempt, who=who,
        )  # fmt: skip
        self._rounds.spend(_A_TAKE)
        first = table.first_out(key)
        assert first is not None
        self._offsets.commit(key.group, key.topic, key.queue_id, first, who)
        found.add(key, data, offsets)
        if wanted.in_order:
            found.add_times(key, offsets, [table.times(key, one) for one in offsets])
        self._revival.took(pop)
        return 0

    def _read(
        self, key: QueueKey, offset: int, count: int, size: int, accept: Callable[[int], bool] | None
    ) -> ReadResult:
        if type(accept) is not RecordFilter:
            result = self._store.read(key.topic, key.queue_id, offset, count, size, accept)
            if accept is not None:
                self._rounds.spend(SCAN)
            return result
        result, took = read_filtered(
            self._store, key.topic, key.queue_id, offset, count, size, accept, work=A_SLICE, scan_bytes=self._max_bytes
        )
        self._rounds.spend(took)
        return result
