"""Sends of idempotent producers, as the store has them: a repetition is answered with the first one's result.

What is known of them is saved with the broker's other small state (``SentTable``). What was stored since, before a
crash, is read from the log when the broker starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.sent_once import SentOnce, SentTable, content_of, producer_of
from aiorocket.broker.core.topics import Topic
from aiorocket.errors import StoreError, UsageError
from aiorocket.storage.results import PutResult, PutStatus, StoreBusyError
from aiorocket_protocol import PROPERTY_UNIQ_KEY, RecordView, ResponseCode, find_property, split_records

if TYPE_CHECKING:
    from aiorocket.storage.store import MessageStore

__all__ = ("Repetitions",)

_log = logging.getLogger("aiorocket.broker")

Done = Callable[[PutResult], None]

_UNIQ_KEY = PROPERTY_UNIQ_KEY.encode()
#: Newest bytes of the log that are read for it at most: of what came since the table was saved (seconds ago, but where
#: that failed), and where it is lost. Messages, or queues, between which others have their turn.
_SINCE, _WITHOUT, _A_TURN = 1 << 30, 64 << 20, 256
#: Bytes of messages read at once, if it is more than one.
_READ = 256 << 10
#: Characters of a UNIQ_KEY that is remembered: the longest of any client has 56.
_LONGEST = 128
#: How often a start looks whether damaged units are made again, and seconds between.
_TRIES, _AGAIN_AFTER = 60, 1.0


class Repetitions:
    """``broker`` is the name of this one, ``most`` its limit ``repetitions``. ``start()`` comes before the first send,
    ``close()`` before the table is saved for the last time."""

    def __init__(self, store: MessageStore, broker: str, table: SentTable, most: int) -> None:
        self._store = store
        self._broker = broker
        self._table = table
        self._once = SentOnce[PutResult](self._stored, most)
        self._closed = False

    async def start(self, topics: Iterable[Topic], first: Callable[[], None]) -> None:
        """Learn what was stored since the table was saved. ``first`` saves it. UsageError when it is closed
        meanwhile."""
        store, table = self._store, self._table
        # What is stored does not say whether its producer is idempotent: those that are known to be come first.
        known, others = table.producers(), SentTable(most=table.most)
        end = store.max_physical
        at = max(0, end - _WITHOUT) if table.at is None else max(table.at, end - _SINCE)
        if (table.at is None or table.used) and at < end:
            queues = [(topic.name, queue_id) for topic in topics for queue_id in range(topic.max_queues)]
            for left in reversed(range(_TRIES)):
                queues = await self._read_ends(queues, at, known, others, wait=left > 0)
                if not queues or self._closed:
                    break
                await asyncio.sleep(_AGAIN_AFTER)
        if self._closed:
            raise UsageError("it was closed while it started")
        table.fill(others)
        table.begin(lambda: store.max_physical, first)

    def close(self) -> None:
        """End a start that is under way. The table is saved once more for what others have sent since: it is complete
        up to there, and the next start need not read it."""
        self._closed = True
        self._table.changes += self._table.used

    def begin(
        self,
        topic: str,
        queue_id: int,
        unique: str,
        broker: str | None,
        body: bytes,
        sys_flag: int,
        done: Done,
        elsewhere: tuple[str, int] | None = None,
    ) -> Done | Refusal | None:
        """For a send that began at ``broker``: what the store is to call; None when ``done`` was called, or will be,
        because an attempt was stored there or ``elsewhere``."""
        if broker != self._broker:
            text = f"this send began at broker {broker!r:.150}, which may have it; this is {self._broker!r}"
            return Refusal(ResponseCode.INVALID_PARAMETER, text)
        if len(unique) > _LONGEST:
            text = f"a UNIQ_KEY of {len(unique)} characters cannot be sent once only: {_LONGEST} are remembered at most"
            return Refusal(ResponseCode.INVALID_PARAMETER, text)

        def stored(result: PutResult) -> None:
            if result.status is PutStatus.OK:
                self._table.keep(topic, queue_id, unique, result.queue_offset)
            done(result)

        content = content_of(body, sys_flag)
        self._table.use()  # saved before the first message can be in the log
        try:
            return self._once.begin(topic, queue_id, unique, content, stored, elsewhere)
        except (StoreError, OSError) as error:
            return Refusal(ResponseCode.SYSTEM_ERROR, f"whether this send is a repetition cannot be read: {error}")

    def failed(self, topic: str, queue_id: int, unique: str) -> None:
        """The store refused it before it began."""
        self._once.failed(topic, queue_id, unique)

    def _stored(self, topic: str, queue_id: int, unique: str) -> tuple[PutResult, int | None] | None:
        offset = self._table.offset(topic, queue_id, unique)
        if offset is None:
            return None
        if offset < self._store.min_offset(topic, queue_id):  # it was, and has gone with what is old
            return PutResult(PutStatus.OK, 0, offset, 0), None
        for found, view in self._records(topic, queue_id, offset, 1):
            if found == unique:
                result = PutResult(PutStatus.OK, view.physical_offset, view.queue_offset, view.store_timestamp)
                return result, content_of(view.raw_body, view.sys_flag)
        return None  # the topic was deleted meanwhile, or the message is damaged

    async def _read_ends(
        self, queues: list[tuple[str, int]], at: int, known: set[str], others: SentTable, *, wait: bool
    ) -> list[tuple[str, int]]:
        """Those of the queues that the store makes again at present, when these are to ``wait``. What cannot be read
        is left out."""
        busy: list[tuple[str, int]] = []
        for number, (topic, queue_id) in enumerate(queues):
            if number % _A_TURN == _A_TURN - 1:
                await asyncio.sleep(0)
            if self._closed:  # and soon the store: nobody would close the files that a read opens then
                break
            try:
                await self._read_end(topic, queue_id, at, known, others)
            except (StoreError, OSError) as error:
                if wait and isinstance(error, StoreBusyError):
                    busy.append((topic, queue_id))
                else:
                    _log.warning("what of %s queue %d may be sent again cannot be read: %s", topic, queue_id, error)
        return busy

    async def _read_end(self, topic: str, queue_id: int, at: int, known: set[str], others: SentTable) -> None:
        """Keep what a queue has behind a log offset, among the ``others`` what is not of ``known`` producers."""
        store = self._store
        low, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        first = end
        # One that is lost has no place in the log, and says nothing of those before it.
        while first > low and not 0 <= store.entries(topic, queue_id, first - 1, 1)[0][0] < at:
            first = max(low, first - _A_TURN)
        while first < end and not self._closed:
            for unique, view in self._records(topic, queue_id, first, _A_TURN, at):
                table = self._table if producer_of(unique) in known else others
                table.keep(topic, queue_id, unique, view.queue_offset)
            first += _A_TURN
            await asyncio.sleep(0)

    def _records(
        self, topic: str, queue_id: int, first: int, count: int, at: int = 0
    ) -> Iterator[tuple[str, RecordView]]:
        """Those of ``count`` messages that stand at ``at`` or behind it; what is damaged is left out, as the log of
        damage says."""
        stop = first + count
        while first < stop:
            result = self._store.read(topic, queue_id, first, stop - first, _READ)
            for view in split_records(result.data):
                unique = (find_property(view.raw_properties, _UNIQ_KEY) or b"").decode("utf-8", "replace")
                if view.physical_offset >= at and 0 < len(unique) <= _LONGEST:
                    yield unique, view
            if result.next_offset <= first:  # the end of the queue, or its topic was deleted
                break
            first = result.next_offset
