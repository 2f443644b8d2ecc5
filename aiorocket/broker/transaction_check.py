"""Ends transactions, and asks the producers of those that do not end by themselves.

A half message is asked about ``transaction_timeout`` seconds after it was stored (or as long as it asks to be left
alone) and then every ``transaction_check_interval``: a copy of it is stored, and CHECK_TRANSACTION_STATE (39) with the
copy's offsets goes to one live connection of its producer group, a different one each time. After
``transaction_check_max`` checks it goes to TRANS_CHECK_MAX_TIME_TOPIC. One deadline is armed for the earliest of all;
with no open transaction there is none.

What ends a transaction is stored in this order: the message under its own topic, then the op record, then the answer.
A crash in between asks the producer again and may deliver twice; it never loses a commit that was answered, and never
delivers what was rolled back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from aiorocket.broker.answers import put_refusal, store_refusal
from aiorocket.broker.copies import Copy, store_copy, where_read
from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.shares import Holds
from aiorocket.broker.core.tables import Tables
from aiorocket.broker.core.transactions import Half, HalfState, Stored, decode_op, encode_op, immunity
from aiorocket.broker.due import when_whole
from aiorocket.errors import RocketError, StoreError
from aiorocket.runtime.deadlines import DeadlineDriver
from aiorocket.storage.results import PutResult, PutStatus
from aiorocket_protocol import (
    HALF_TOPIC,
    MAX_CHECKS_TOPIC,
    OP_TOPIC,
    PROPERTY_PGROUP,
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TRAN_PREPARED_QUEUE_OFFSET,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
    SYS_FLAG_TRANSACTION_COMMIT,
    SYS_FLAG_TRANSACTION_MASK,
    CheckTransactionStateRequestHeader,
    ProtocolError,
    RecordView,
    RemotingCommand,
    RequestCode,
    encode_properties,
    encode_record,
    offset_msg_id,
    tags_code,
)

if TYPE_CHECKING:
    from aiorocket.broker.core.groups import GroupTable
    from aiorocket.remoting.connection import Connection
    from aiorocket.runtime.clock import Clock
    from aiorocket.storage.store import MessageStore

__all__ = ("Ended", "TransactionChecks")

_log = logging.getLogger("aiorocket.broker")

#: Copies that may wait for the store at once.
MAX_IN_FLIGHT = 256
#: Transactions that are looked at in a turn of the loop: 4 MiB each at worst, 17 ms.
_A_TURN = 2
#: Queue entries read at a time when a broker starts.
BATCH = 256
#: Seconds until something that the store refused is tried again.
RETRY_AFTER = 1.0
#: Seconds that closing waits for ends on their way.
SETTLE = 2.0

_OK = PutStatus.OK
_OP_CODE = tags_code("d")
_OP_PROPERTIES = encode_properties({PROPERTY_TAGS: "d"})

#: Called with None when the transaction has ended, else with the reason why it has not.
Ended = Callable[[Refusal | None], None]


class TransactionChecks:
    """``start()`` finds the open transactions in the store, ``close()`` asks no more. ``topics_changed`` is called when
    TRANS_CHECK_MAX_TIME_TOPIC was made. ``may_send`` says whether who is on a connection may send to a topic."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        tables: Tables,
        store: MessageStore,
        *,
        broker: str,
        topics_changed: Callable[[], None],
        may_send: Callable[[Connection, str], bool],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._store = store
        self._broker = broker
        self._producers: GroupTable[Connection] = tables.producers
        self._topics = tables.topics
        self._topics_changed = topics_changed
        self._may_send = may_send
        self._driver = DeadlineDriver(loop, self._next_deadline, self._due)
        self._copying = 0
        self._ending = 0
        self._turn = 0
        self._closed = False
        self._settled: asyncio.Future[None] | None = None
        self.table = tables.transactions

    # ---- life

    async def start(self) -> None:
        """Make the table from the queues. OSError, StoreCorruptedError or StoreBusyError when they cannot be read."""
        await when_whole(self._restore, lambda: self._closed)

    def _restore(self) -> None:
        store = self._store
        ends = [(store.min_offset(topic, 0), store.max_offset(topic, 0)) for topic in (HALF_TOPIC, OP_TOPIC)]
        half, op = self.table.starts(*ends)
        self.table.restore(
            self._halves(half),
            ((offset, decode_op(view.body)) for offset, view in self._records(OP_TOPIC, op)),
            now=self._loop.time(),
            wall_ms=self._clock.wall_ms(),
        )
        self._driver.update()

    async def close(self) -> None:
        """Ask no more; wait a moment for ends on their way, so that nothing is delivered and then asked about again."""
        self._closed = True
        self._driver.close()
        if self._ending:
            self._settled = self._loop.create_future()
            try:
                async with asyncio.timeout(SETTLE):
                    await self._settled
            except TimeoutError:
                pass  # a store that cannot write: these are asked about after the next start

    def _records(self, topic: str, offset: int) -> Iterator[tuple[int, RecordView]]:
        store = self._store
        while entries := store.entries(topic, 0, offset, BATCH):
            for physical, _, _ in entries:
                data = store.read_record(physical)
                if data is None:
                    _log.error("message %d of %s cannot be read and is left out", offset, topic)
                else:
                    yield offset, RecordView(data, 0, len(data))
                offset += 1

    def _halves(self, offset: int) -> Iterator[Stored]:
        for at, view in self._records(HALF_TOPIC, offset):
            values = view.properties
            checks = values.get(PROPERTY_TRANSACTION_CHECK_TIMES, "0")
            yield Stored(
                at,
                view.physical_offset,
                name_of(view),
                int(checks) if checks.isascii() and checks.isdigit() else 0,
                view.store_timestamp,
                immunity(values),
            )

    # ---- what the handlers report

    def stored(self, result: PutResult, wait: float | None, who: Holds) -> None:
        """A half message is stored, which came on the connection ``who``; ``wait`` is its immunity."""
        if self.table.add(result.queue_offset, result.physical_offset, self._loop.time(), wait, who):
            self._driver.update()

    def commit(self, half: Half, view: RecordView, ended: Ended) -> None:
        """Deliver the half message in ``view`` and end its transaction."""
        if half.state is HalfState.DELIVERED:  # it lacked only the op record
            self._end(half, HalfState.DELIVERED, ended)
            return
        try:
            properties = dict(view.properties)
            topic = properties.pop(PROPERTY_REAL_TOPIC)
            queue_id = int(properties.pop(PROPERTY_REAL_QID))
            text = encode_properties(properties)
        except (KeyError, ValueError, ProtocolError) as error:
            ended(Refusal(1, f"the half message at {view.physical_offset} does not say where it belongs: {error!r}"))
            return
        sys_flag = view.sys_flag & ~SYS_FLAG_TRANSACTION_MASK | SYS_FLAG_TRANSACTION_COMMIT
        copy = Copy(view, topic, queue_id, text, sys_flag=sys_flag, prepared=view.physical_offset)
        self._place(half, HalfState.DELIVERED, where_read(self._topics, copy), ended)

    def rollback(self, half: Half, ended: Ended) -> None:
        """End a transaction whose message is not to be delivered."""
        self._end(half, HalfState.OPEN, ended)

    # ---- ending

    def _place(self, half: Half, state: HalfState, copy: Copy, ended: Ended) -> None:
        """Store the message where it belongs now, and then the op record; ``state`` is what holds in between."""

        def done(result: PutResult) -> None:
            if result.status is _OK:
                self._end(half, state, ended)
            else:
                self._reopen(half, HalfState.OPEN)
                ended(put_refusal(result))
            self._left()

        self.table.begin(half, HalfState.ENDING)
        self._ending += 1
        try:
            store_copy(self._store, copy, done)
        except (RocketError, MemoryError) as error:
            self._reopen(half, HalfState.OPEN)
            self._left()
            ended(_refusal(error))

    def _end(self, half: Half, state: HalfState, ended: Ended) -> None:
        """Store the op record. If that fails the transaction is in ``state``, and is looked at again soon."""

        def done(result: PutResult) -> None:
            if result.status is _OK:
                self.table.ended(half, result.queue_offset)
                ended(None)
            else:
                self._reopen(half, state)
                ended(put_refusal(result))
            self._left()

        self.table.begin(half, HalfState.ENDING)
        self._ending += 1
        try:
            self._store.append(
                OP_TOPIC,
                0,
                encode_op(half),
                _OP_PROPERTIES,
                flag=0,
                sys_flag=0,
                born_timestamp=self._clock.wall_ms(),
                born_host=self._store.store_host,
                tags_code=_OP_CODE,
                done=done,
            )
        except (StoreError, MemoryError) as error:
            self._reopen(half, state)
            self._left()
            ended(_refusal(error))

    def _reopen(self, half: Half, state: HalfState) -> None:
        if self.table.reopen(half, self._loop.time() + RETRY_AFTER, state):
            self._driver.update()

    def _left(self) -> None:
        self._ending -= 1
        if not self._ending and self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    # ---- checking

    def _next_deadline(self) -> float | None:
        return self.table.next_due() if self._copying < MAX_IN_FLIGHT else None

    def _due(self, now: float) -> None:
        for half in self.table.take_due(now, min(_A_TURN, MAX_IN_FLIGHT - self._copying)):  # the driver goes on
            if half.state is not HalfState.OPEN:
                self._end(half, half.state, _nobody)
                continue
            try:
                self._check(half)
            except MemoryError:
                _log.error("half message %d could not be looked at: there is no memory", half.offset)
                self._reopen(half, HalfState.OPEN)

    def _check(self, half: Half) -> None:
        try:
            data = self._store.read_record(half.physical)
        except (RocketError, OSError) as error:
            _log.error("half message %d cannot be read: %s", half.offset, error)
            self._reopen(half, HalfState.OPEN)
            return
        if data is None:
            _log.error("half message %d is gone from the log; its transaction ends here", half.offset)
            self.table.forget(half)
            return
        view = RecordView(data, 0, len(data))
        try:
            properties = dict(view.properties)
            real = properties[PROPERTY_REAL_TOPIC].encode(), int(properties[PROPERTY_REAL_QID])
            if self.table.is_hopeless(half):
                self._give_up(half, view)
                return
            properties[PROPERTY_TRANSACTION_CHECK_TIMES] = str(half.checks + 1)
            properties[PROPERTY_TRAN_PREPARED_QUEUE_OFFSET] = str(half.name)
            properties[PROPERTY_WAIT] = "false"
            text = encode_properties(properties)
        except (KeyError, ValueError, ProtocolError) as error:
            _log.error("half message %d cannot be used: %r; its transaction ends here", half.offset, error)
            self.table.forget(half)
            return

        def done(result: PutResult) -> None:
            was_full = self._copying >= MAX_IN_FLIGHT
            self._copying -= 1
            if result.status is _OK:
                waiting = half.state is HalfState.COPYING
                news = self.table.copied(half, result.queue_offset, result.physical_offset, self._loop.time())
                if waiting:
                    self._ask(view, result, text, *real)
            else:
                news = half.state is HalfState.COPYING and self.table.reopen(half, self._loop.time() + RETRY_AFTER)
            if news or was_full:
                self._driver.update()

        self.table.begin(half, HalfState.COPYING)
        self._copying += 1
        try:
            store_copy(self._store, Copy(view, HALF_TOPIC, 0, text), done)
        except (StoreError, MemoryError):
            self._copying -= 1
            self._reopen(half, HalfState.OPEN)

    def _give_up(self, half: Half, view: RecordView) -> None:
        """Asked often enough: the message goes where an administrator finds it."""

        def ended(_: Refusal | None) -> None:
            if half.state is HalfState.OPEN:  # it found no room there, and is tried again
                return
            _log.warning(
                "transaction of half message %d (%s, group %s) ended after %d checks without an answer; it is in %s",
                half.name, view.properties.get(PROPERTY_REAL_TOPIC), view.properties.get(PROPERTY_PGROUP), half.checks,
                MAX_CHECKS_TOPIC,
            )  # fmt: skip

        version = self._topics.version
        self._topics.ensure(MAX_CHECKS_TOPIC, 1)
        if self._topics.version != version:
            self._topics_changed()
        self._place(half, HalfState.DISCARDED, Copy(view, MAX_CHECKS_TOPIC, 0, view.raw_properties), ended)

    def _ask(self, view: RecordView, copy: PutResult, properties: bytes, topic: bytes, queue_id: int) -> None:
        """Send CHECK_TRANSACTION_STATE for a copy that is stored. Without a connection this check is lost, as at
        Apache's."""
        values = view.properties
        connection = self._connection(values.get(PROPERTY_PGROUP, ""), topic.decode())
        if connection is None:
            return
        unique = values.get(PROPERTY_UNIQ_KEY)
        header = CheckTransactionStateRequestHeader(
            copy.queue_offset,
            copy.physical_offset,
            unique,
            unique,
            offset_msg_id(self._store.store_host, copy.physical_offset),
            topic.decode(),
        )
        body = encode_record(
            topic=topic,
            body=view.raw_body,
            properties=properties,
            queue_id=queue_id,
            queue_offset=copy.queue_offset,
            physical_offset=copy.physical_offset,
            flag=view.flag,
            sys_flag=view.sys_flag,
            born_timestamp=view.born_timestamp,
            born_host=view.born_host_bytes,
            store_timestamp=copy.store_timestamp,
            store_host=self._store.store_host,
            reconsume_times=view.reconsume_times,
        )
        request = RemotingCommand.request(
            RequestCode.CHECK_TRANSACTION_STATE, header, body=body, oneway=True, ext={"bname": self._broker}
        )
        try:
            connection.oneway(request)
        except RocketError:
            pass  # it is closing, or takes nothing; another one is asked next time

    def _connection(self, group: str, topic: str) -> Connection | None:
        """A live connection of a producer of ``group`` that may send to ``topic``, the next one each time."""
        live = self._producers.get(group)
        if live is None:
            return None
        members = list(live.members)
        self._turn += 1
        for index in range(len(members)):
            connection = members[(self._turn + index) % len(members)]
            if not connection.closed and self._may_send(connection, topic):
                return connection
        return None


def name_of(view: RecordView) -> int:
    """The transaction a half message belongs to: the queue offset of its first half message."""
    first = view.properties.get(PROPERTY_TRAN_PREPARED_QUEUE_OFFSET, "")
    return int(first) if first.isascii() and first.isdigit() and len(first) < 20 else view.queue_offset


def _refusal(error: RocketError | MemoryError) -> Refusal:
    return store_refusal(error) if isinstance(error, StoreError) else Refusal(1, str(error) or "there is no memory")


def _nobody(refusal: Refusal | None) -> None:
    """Nobody waits for this end; a failure is tried again."""
