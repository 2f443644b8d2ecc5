"""Brings back what was popped and not acknowledged in time, and keeps the record of what is with consumers.

A message whose invisible time is over is stored again in the retry topic of its topic and group with one more failed
attempt, or among the group's dead letters when it has had them all; right behind it, its place is recorded as done. A
power cut that tears the log between the two stores it twice. Messages popped in order stay where they are, and go out
again from there.

The records are messages of one queue of rmq_sys_REVIVE_LOG_cluster, read again when the broker starts; core/pops.py
says what they mean and why no more is needed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from aiorocket.broker.copies import NOT_COPIED, Copy, copied_properties, store_copy
from aiorocket.broker.core.pop_queues import ByQueue
from aiorocket.broker.core.pop_records import encode_acknowledged, encode_forgotten, encode_reset, forgotten_in
from aiorocket.broker.core.pops import Pop, PopTable, QueueKey
from aiorocket.broker.core.retry_policy import once_more
from aiorocket.broker.core.tables import Tables
from aiorocket.broker.due import when_whole
from aiorocket.broker.pop_log import PopLog
from aiorocket.errors import RocketError, StoreError
from aiorocket.remoting.rarely import Rarely
from aiorocket.runtime.deadlines import DeadlineDriver
from aiorocket.storage.results import PutResult, PutStatus
from aiorocket_protocol import (
    DLQ_PREFIX,
    PROPERTY_DELAY,
    PROPERTY_FIRST_POP_TIME,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    RETRY_PREFIX,
    REVIVE_GROUP,
    ProtocolError,
    RecordView,
    dlq_topic,
    encode_properties,
    pop_retry_topic,
    revive_topic,
)

if TYPE_CHECKING:
    import asyncio

    from aiorocket.broker.core.shares import Holds
    from aiorocket.runtime.clock import Clock
    from aiorocket.storage.store import MessageStore

__all__ = ("PopRevival", "base_topic")

_log = logging.getLogger("aiorocket.broker")

#: Records read at a time when a broker starts.
BATCH = 256
#: Pops, of at most 32 messages each, whose messages are on their way to the store at once.
MAX_REVIVING = 16
#: Of these in a turn of the loop: 4 MiB each at worst, 25 ms.
_A_TURN = 1
#: Messages that are gone and are recorded as done in one step: a millisecond.
_GONE = 32
#: Seconds until something that the store refused is tried again.
RETRY_AFTER = 1.0
#: Seconds between two lines of one kind about messages that cannot be had.
_SAY_AFTER = 60.0

_OK = PutStatus.OK


def base_topic(topic: str, group: str) -> str:
    """The topic whose retry topic ``topic`` is; itself when it is none of POP's."""
    return topic.removeprefix(pop_retry_topic(group, ""))


class PopRevival:
    """``start()`` makes the table from the records, ``close()`` brings nothing back any more. ``free(topic, group)`` is
    called when a queue that is popped in order may be popped again."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        tables: Tables,
        store: MessageStore,
        *,
        cluster: str,
        topics_changed: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self.store = store
        self._topics = tables.topics
        self._configs = tables.configs
        self._offsets = tables.offsets
        self._counters = tables.counters
        self._topics_changed = topics_changed
        self._log_topic = revive_topic(cluster)
        self._offsets.read_first = REVIVE_GROUP, self._log_topic
        self._driver = DeadlineDriver(loop, self._next_deadline, self._due)
        self._closed = False
        self._reviving = 0
        self._rewriting = False
        self._letting_go: asyncio.Future[None] | None = None
        self._lines = Rarely(_SAY_AFTER)
        self.free: Callable[[str, str], None] = lambda topic, group: None
        self.table = PopTable()
        self._log = PopLog(loop, clock, store, self._log_topic, self.table, self._recorded)

    # ---- life

    async def start(self) -> None:
        """Make the table from the records. OSError, StoreCorruptedError or StoreBusyError when they cannot be read."""
        store, topic = self.store, self._log_topic
        saved = self._offsets.query(REVIVE_GROUP, topic, 0) or 0
        low, high = store.min_offset(topic, 0), store.max_offset(topic, 0)
        self.table.end = min(max(saved, low), high)
        places: list[int] = []

        def read() -> None:
            while entries := store.entries(topic, 0, self.table.end + len(places), BATCH):
                places.extend(physical for physical, _, _ in entries)

        await when_whole(read, lambda: self._closed)
        self._replay(places)
        self._save_begin()
        self._driver.update()

    def _replay(self, places: list[int]) -> None:
        """A record that cannot be used may have been that of a pop. What it took is not known, so a group whose later
        pops step over something goes back there."""
        now, wall_ms = self._loop.time(), self._clock.wall_ms()
        reached, back = ByQueue[int](), ByQueue[int]()
        lost = 0

        def committed(key: QueueKey) -> int | None:
            offset = reached.get(key)
            return self._committed(key) if offset is None else offset

        for at, physical in enumerate(places, self.table.end):
            data = self.store.read_record(physical)
            try:
                if data is None:
                    raise ValueError("it is not in the log")
                body = RecordView(data, 0, len(data)).body
                if lost and (over := self.table.stepped_over(body, committed)) is not None:
                    first = back.get(over[0])
                    back.put(over[0], over[1] if first is None else min(over[1], first))
                found = self.table.replay(body, at, now=now, wall_ms=wall_ms)
                if found is not None:
                    reached.put(*found)
                elif (gone := forgotten_in(body)) is not None:  # or the next one of its name would begin there
                    reached.pop_all(*gone)
                    back.pop_all(*gone)
            except (LookupError, TypeError, ValueError, ProtocolError) as error:
                lost += 1
                _log.error("record %d of %s cannot be used and is left out: %r", at, self._log_topic, error)
                self.table.recorded(None, at)
        for key, offset in reached.items():
            if (first := back.get(key)) is not None:
                offset = self.table.go_back(key, first)
                _log.error(
                    "group %s: what it popped of topic %s queue %d from offset %d on comes again: %d records of who has"
                    " what are lost",
                    key.group, key.topic, key.queue_id, first, lost,
                )  # fmt: skip
            elif not self.table.out(key):
                # Pulls of the group may have come further than its last pop.
                offset = max(self._committed(key) or 0, offset)
            self._offsets.commit(key.group, key.topic, key.queue_id, offset)

    def _committed(self, key: QueueKey) -> int | None:
        return self._offsets.query(key.group, key.topic, key.queue_id)

    def close(self) -> None:
        self._closed = True
        self._driver.close()
        self._log.close()

    # ---- what the handlers report

    def took(self, pop: Pop) -> None:
        """Messages went out; its record is not waited for."""
        self._driver.update()
        self._record_pop(pop)

    def unordered(self, key: QueueKey) -> None:
        """A queue is about to be popped in no order."""
        if self.table.end_order(key, self._loop.time()):
            self._driver.update()

    def acknowledge(
        self, key: QueueKey, offsets: list[int], pop_time: int, done: Callable[[PutResult], None] | None
    ) -> bool:
        """Those of ``offsets`` that are out in that pop are done; ``done`` says when that is durable. False when none
        was out: nothing is stored then, and ``done`` is not called. StoreError, or MemoryError, when it cannot be
        stored; they are out as before then."""
        landed = [offset for offset in offsets if self.table.is_out_in(key, offset, pop_time)]
        if not landed:
            return False
        self._log.append(encode_acknowledged(key, landed, pop_time), None, done)
        for offset in landed:
            committed = self.table.acknowledge(key, offset, pop_time)
            if committed is not None:
                self._offsets.commit(key.group, key.topic, key.queue_id, committed)
        self._save_begin()
        return True

    def changed(self, pop: Pop, done: Callable[[PutResult], None]) -> None:
        """A message stays out longer, or less long; ``done`` says when that is durable. Raises as ``acknowledge``. What
        is not stored has not changed."""

        def stored(result: PutResult) -> None:
            if result.status is not _OK:
                self.table.undo(pop)
                self._driver.update()
            done(result)

        try:
            self._log.append(self.table.encode_pop(pop), pop, stored)
        except (StoreError, MemoryError):
            self.table.undo(pop)
            raise
        finally:
            self._driver.update()

    def begins(self, key: QueueKey, offset: int, who: Holds) -> None:
        """The group begins at ``offset`` of a queue: for the first time, by a pop of ``who``, or because an
        administrator said so."""
        self.table.reset(key)
        self._offsets.commit(key.group, key.topic, key.queue_id, offset, who)
        self._append_or_log(encode_reset(key, offset), kept=True)

    def forget_topics(self, topics: Collection[str]) -> None:
        """They are deleted."""
        self.table.forget(topics=topics)
        self._forgot([encode_forgotten(topic=topic) for topic in topics])

    def forget_group(self, group: str) -> None:
        """It is deleted with its offsets."""
        self.table.forget(group=group)
        self._forgot([encode_forgotten(group=group)])

    def _forgot(self, records: list[bytes]) -> None:
        # Also where nothing is out any more: what was may be read again for the sake of others, and how far it came.
        for record in records if self.table.end or self._log.number else ():
            self._append_or_log(record, kept=True)
        self._begin_to_let_go()

    def forgotten(self) -> asyncio.Future[None]:
        """Ends when offsets may be saved that are to be without those: from then on their records are not read again.
        For all who wait: shield it."""
        future = self._letting_go
        if future is None:
            future = self._loop.create_future()
            future.set_result(None)
        return future

    def _begin_to_let_go(self) -> None:
        if self._letting_go is not None:
            return
        if self.table.let_go():
            self._letting_go = self._loop.create_future()
            self._loop.call_soon(self._let_go, self._letting_go)
        self._save_begin()

    def _let_go(self, done: asyncio.Future[None]) -> None:
        if self.table.let_go():
            self._loop.call_soon(self._let_go, done)
            return
        self._letting_go = None
        self._save_begin()
        done.set_result(None)

    # ---- records

    def _record_pop(self, pop: Pop) -> None:
        try:
            self._log.append(self.table.encode_pop(pop), pop, None)
        except (StoreError, MemoryError) as error:
            why = str(error) or repr(error)
            self._warn("what is with consumers of %s cannot be recorded: %s%s", pop.key.group, why)

    def _append_or_log(self, record: bytes, *, kept: bool = False) -> bool:
        try:
            self._log.append(record, None, None, kept=kept)
        except (StoreError, MemoryError) as error:
            self._warn("a record of %s cannot be stored: %s%s", self._log_topic, str(error) or repr(error))
            return False
        return True

    def _recorded(self) -> None:
        """A record is stored."""
        self._save_begin()
        if not self._rewriting and self.table.outdated() is not None:
            self._rewriting = True  # what is stored meanwhile does not begin the next
            self._loop.call_soon(self._write_anew)

    def _save_begin(self) -> None:
        self._offsets.commit(REVIVE_GROUP, self._log_topic, 0, self.table.begin())

    def _write_anew(self) -> None:
        """One old record for each new one: the log behind stays short, whatever is kept out how long."""
        pop = self.table.outdated()
        if pop is None:
            self._rewriting = False
            return
        try:
            self._log.append(self.table.encode_pop(pop), pop, self._written_anew)
        except (StoreError, MemoryError):
            self._rewriting = False  # with the next record, then

    def _written_anew(self, result: PutResult) -> None:
        self._rewriting = False

    # ---- time is over

    def _next_deadline(self) -> float | None:
        return self.table.next_due() if self._reviving < MAX_REVIVING else None

    def _due(self, now: float) -> None:
        for pop, offsets in self.table.take_due(now, min(_A_TURN, MAX_REVIVING - self._reviving)):  # the driver goes on
            _Revival(self, pop, offsets)

    def begin_revival(self) -> None:
        self._reviving += 1

    def end_revival(self, pop: Pop, failed: bool) -> None:
        self._reviving -= 1
        self.table.give_back(pop, self._loop.time() + RETRY_AFTER if failed else None)
        self._driver.update()
        self.free(base_topic(pop.key.topic, pop.key.group), pop.key.group)

    def gone(self, key: QueueKey, low: int) -> int:
        """A queue begins at ``low`` by now: what is out below is to block nothing that is popped in order. How many of
        these were dealt with; there may be more."""
        found = self.table.below(key, low, _GONE)
        for pop, offsets in found.items():
            self.say_gone(pop, offsets)
            for offset in offsets:
                self.landed(pop, offset)
        return sum(map(len, found.values()))

    def say_failed(self, pop: Pop, offset: int, error: Exception) -> None:
        """A full disk fails every message each second."""
        why = str(error) or repr(error)
        self._warn("message %d of %s cannot be brought back: %s%s", offset, pop.key.topic, why)

    def say_gone(self, pop: Pop, offsets: list[int]) -> None:
        self._warn(
            "topic %s queue %d: %d messages from offset %d on are gone from the log while group %s had popped them and"
            " not acknowledged them: nobody can get them any more (retention took them, or damage)%s",
            pop.key.topic, pop.key.queue_id, len(offsets), offsets[0], pop.key.group,
        )  # fmt: skip

    def say_overtaken(self, key: QueueKey, offset: int, low: int) -> None:
        """A pop goes on at ``offset``, and the queue begins at ``low`` by now."""
        self._warn(
            "topic %s queue %d: retention has taken %d messages from offset %d on that group %s had not popped: keep"
            " them for longer, or consume faster%s",
            key.topic, key.queue_id, low - offset, offset, key.group,
        )  # fmt: skip

    def _warn(self, text: str, *values: object) -> None:
        """One line a minute of each kind, which is its text."""
        unsaid = self._lines.unsaid(text, self._loop.time())
        if unsaid is not None:
            _log.warning(text, *values, f" ({unsaid} more since the last such line)" if unsaid else "")

    def copy_of(self, pop: Pop, offset: int) -> Copy | None:
        """Where the message goes now; None when it stays where it is. LookupError when it is gone from the log."""
        key = pop.key
        entries = self.store.entries(key.topic, key.queue_id, offset, 1)
        data = self.store.read_record(entries[0][0]) if entries else None
        if data is None:
            raise LookupError(f"message {offset} of {key.topic}/{key.queue_id} is gone from the log")
        view = RecordView(data, 0, len(data))
        config = self._configs.get(key.group)
        failed = max(0, view.reconsume_times) + self.table.times(key, offset)
        dead = failed >= (16 if config is None else config.retry_max_times)
        if pop.in_order and not dead:
            return None
        properties = copied_properties(view)
        properties.setdefault(PROPERTY_FIRST_POP_TIME, str(pop.pop_time))
        if dead:
            properties.setdefault(PROPERTY_RETRY_TOPIC, base_topic(key.topic, key.group))
            properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, view.offset_msg_id)
            properties[PROPERTY_DELAY] = "0"  # as a message that was sent back has it
            name = dlq_topic(key.group)
        elif key.topic.startswith(RETRY_PREFIX):
            name = key.topic
        else:
            name = pop_retry_topic(key.group, key.topic)
        version = self._topics.version
        self._topics.ensure(name, 1)
        if self._topics.version != version:
            self._topics_changed()
        try:
            encoded = encode_properties(properties)
        except ProtocolError:  # too long: the message is worth more than what is said of it
            encoded = view.raw_properties
        return Copy(
            view,
            name,
            0,
            encoded,
            sys_flag=view.sys_flag & ~NOT_COPIED,
            reconsume_times=once_more(failed),
        )

    def record_landed(self, pop: Pop, offset: int) -> bool:
        """Whether the store took the record that a message is stored elsewhere."""
        return self._append_or_log(encode_acknowledged(pop.key, [offset], pop.pop_time))

    def landed(self, pop: Pop, offset: int, *, recorded: bool = False, dead: bool = False) -> None:
        """A message that was out is stored elsewhere, or gone."""
        key = pop.key
        if dead:
            self._counters.dead_letters[key.group] += 1
        committed = self.table.landed(pop, offset)
        if committed is not None:
            self._offsets.commit(key.group, key.topic, key.queue_id, committed)
            self._save_begin()
            if not recorded:
                self.record_landed(pop, offset)


class _Revival:
    """One pop whose time is over, until each of its messages is stored again or known to stay."""

    __slots__ = ("_copying", "_failed", "_gone", "_owner", "_pop")

    def __init__(self, owner: PopRevival, pop: Pop, offsets: list[int]) -> None:
        self._owner = owner
        self._pop = pop
        self._copying = 1
        self._failed = False
        self._gone: list[int] = []
        owner.begin_revival()
        for offset in offsets:
            self._revive(offset)
        if self._gone:
            owner.say_gone(pop, self._gone)
        self._end_one()

    def _revive(self, offset: int) -> None:
        owner = self._owner

        def done(result: PutResult) -> None:
            if result.status is _OK:
                dead = copy is not None and copy.topic.startswith(DLQ_PREFIX)
                owner.landed(self._pop, offset, recorded=recorded, dead=dead)
            else:
                self._failed = True
            self._end_one()

        self._copying += 1
        copy, recorded = None, False
        try:
            copy = owner.copy_of(self._pop, offset)
            if copy is not None:
                store_copy(owner.store, copy, done)
        except LookupError:
            self._gone.append(offset)
            owner.landed(self._pop, offset)
        except (RocketError, ProtocolError, OSError, MemoryError) as error:
            owner.say_failed(self._pop, offset, error)
            self._failed = True
        else:
            if copy is not None:
                # Right behind it in the log: what keeps one keeps both, but for a power cut that tears just there.
                recorded = owner.record_landed(self._pop, offset)
                return
        self._end_one()

    def _end_one(self) -> None:
        self._copying -= 1
        if not self._copying:
            self._owner.end_revival(self._pop, self._failed)
