"""Messages that wait until they are due and are then stored again, under their own topic and queue.

One deadline is armed for the earliest. Due times are wall-clock stamps, the armed timer runs on the loop's clock, so
the wall clock is looked at again every ``MAX_SLEEP`` seconds while something waits: a clock that is set forward delays
nothing by more than that. How far delivery has come is saved by the broker with its other state, and never ahead of the
copies; after a crash a few messages may be delivered twice, none is lost.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from aiorocket.broker.copies import Copy, store_copy, where_read
from aiorocket.errors import RocketError, StoreError, StoreFullError, UsageError
from aiorocket.runtime.deadlines import DeadlineDriver
from aiorocket.runtime.turns import Turns
from aiorocket.storage.results import PutResult, PutStatus, StoreBusyError, TopicGoingError
from aiorocket_protocol import ProtocolError, RecordView

if TYPE_CHECKING:
    from aiorocket.broker.core.topics import TopicTable
    from aiorocket.runtime.clock import Clock
    from aiorocket.storage.store import MessageStore

__all__ = ("DueDelivery", "Schedule", "when_whole")

_log = logging.getLogger("aiorocket.broker")

MAX_SLEEP = 10.0
#: Messages that may wait for the store at once; more would only make the group behind them longer.
MAX_IN_FLIGHT = 1024
#: Messages that are moved in a turn of the loop, each counted once more for every so many bytes: some 5 ms.
_A_TURN, _BYTES = 128, 32 << 10
#: Seconds until a message that the store refused is tried again.
RETRY_AFTER = 1.0
#: Seconds that closing waits for messages on their way.
SETTLE = 2.0
#: How often a start looks whether damaged units are made again.
_TRIES = 60


async def when_whole(read: Callable[[], None], closed: Callable[[], bool]) -> None:
    """``read()``, which may begin anew. What the store makes again of the queue is waited for, before StoreBusyError
    passes: a start that gave up would end that too, and so would the next. UsageError when ``closed()`` meanwhile."""
    for left in reversed(range(_TRIES)):
        try:
            read()
            return
        except StoreBusyError:
            if not left:
                raise
            await asyncio.sleep(RETRY_AFTER)
            if closed():  # and so is the store: nobody would close the files that a read opens now
                raise UsageError("it was closed while it started") from None


class Schedule(Protocol):
    """What waits, each message named by two numbers."""

    @property
    def in_flight(self) -> int:
        """Handed out, and not yet known to be stored under their own topic."""

    def next_due(self) -> int | None:
        """The earliest due stamp, in wall-clock milliseconds; None while nothing can be handed out."""

    def stored(self, first: int, second: int, /) -> None:
        """It is stored under its own topic (or can never be)."""

    def failed(self, first: int, second: int, /) -> None:
        """It is not; ``retry`` hands it out again."""

    def retry(self) -> list[tuple[int, int]]: ...


S = TypeVar("S", bound=Schedule)


class DueDelivery(ABC, Generic[S]):
    """Moves due messages. ``close()`` ends it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        schedule: S,
        topics: TopicTable,
        store: MessageStore,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._schedule = schedule
        self._topics = topics
        self._store = store
        self._driver = DeadlineDriver(loop, self._next_deadline, self._due)
        self._retry: asyncio.TimerHandle | None = None
        self._turns = Turns(_A_TURN)
        #: The store took no more: what is due meanwhile is not read before it is tried again.
        self._refused = False
        #: Why something failed has been logged: once until it is tried again.
        self._told = False
        self._closed = False
        self._settled: asyncio.Future[None] | None = None
        #: Messages delivered since the start.
        self.delivered = 0

    @abstractmethod
    def _due(self, now: float) -> None:
        """Hand out what is due by the wall clock."""

    @abstractmethod
    def _place(self, first: int, second: int) -> int | None:
        """Where the log has a message that is tried again; None when it is gone. RocketError or OSError."""

    @abstractmethod
    def _copy(self, view: RecordView, first: int, second: int) -> Copy | None:
        """What becomes of a due message; None ends it here. KeyError, ValueError or ProtocolError: it can never be
        delivered."""

    @abstractmethod
    def _name(self, first: int, second: int) -> str:
        """For the log."""

    def clock_changed(self) -> None:
        """The wall clock was set: look now at what is due."""
        self._due(0.0)
        self._driver.update()

    async def close(self) -> None:
        """Deliver nothing more; wait a moment for what is on its way, so that it is not delivered twice."""
        self._closed = True
        self._driver.close()
        if self._retry is not None:
            self._retry.cancel()
        if self._schedule.in_flight:
            self._settled = self._loop.create_future()
            try:
                async with asyncio.timeout(SETTLE):
                    await self._settled
            except TimeoutError:
                pass  # a store that cannot write: these are delivered after the next start

    def _next_deadline(self) -> float | None:
        if self._schedule.in_flight >= MAX_IN_FLIGHT:
            return None
        due = self._schedule.next_due()
        if due is None:
            return None
        return self._loop.time() + min(max(0.0, (due - self._clock.wall_ms()) / 1000), MAX_SLEEP)

    def _move_all(self, due: Iterable[tuple[int, int, int]]) -> None:
        """Store messages, each named and with its place in the log, under their own topics: few in a turn."""
        self._turns.all(partial(self._move, *message) for message in due)

    def _move(self, first: int, second: int, physical: int | None) -> int:
        """One of them, or one that is tried again; how much it took."""
        try:
            return self._placed(first, second, physical)
        except Exception as error:  # noqa: BLE001 - of memory that lacks, or whatever it is: else in flight for ever
            told, self._told = self._told, True
            self._refused |= isinstance(error, MemoryError)  # what comes behind it may not overtake it: a recall
            self._failed(first, second)
            if not told:
                _log.error("%s could not be delivered yet: %r", self._name(first, second), error, exc_info=error)
            return 0

    def _placed(self, first: int, second: int, physical: int | None) -> int:
        """The same, without a way back from what nobody expects. The place of one that is tried again is looked
        for."""
        if self._settled is not None and self._settled.done():  # closed: it is still in flight, where a start begins
            return 0
        if self._refused:
            self._failed(first, second)
            return 0
        if physical is None:
            try:
                physical = self._place(first, second)
            except (RocketError, OSError):
                self._failed(first, second)
                return 0
        try:
            data = None if physical is None else self._store.read_record(physical)
        except OSError as error:
            _log.error("%s cannot be read: %s", self._name(first, second), error)
            self._failed(first, second)
            return 0
        except RocketError as error:
            self._give_up(first, second, error)
            return 0
        if data is None:
            self._give_up(first, second, "it is gone from the log")
            return 0
        try:
            copy = self._copy(RecordView(data, 0, len(data)), first, second)
        except (KeyError, ValueError, ProtocolError) as error:
            self._give_up(first, second, repr(error))
            return len(data) // _BYTES
        if copy is None:
            self._ended(first, second)
            return len(data) // _BYTES

        def done(result: PutResult) -> None:
            if result.status is PutStatus.OK:
                self.delivered += 1
                self._ended(first, second)
            else:
                self._failed(first, second)

        try:
            store_copy(self._store, where_read(self._topics, copy), done)
        except StoreError as error:
            alone = isinstance(error, TopicGoingError)
            self._refused = isinstance(error, StoreBusyError | StoreFullError) and not alone
            self._failed(first, second)
        except (RocketError, ProtocolError) as error:
            self._give_up(first, second, error)
        return len(data) // _BYTES

    def _ended(self, first: int, second: int) -> None:
        waiting = self._schedule
        full = waiting.in_flight >= MAX_IN_FLIGHT or waiting.next_due() is None
        waiting.stored(first, second)
        if full and not self._closed:
            self._driver.update()
        if self._settled is not None and not self._settled.done() and not waiting.in_flight:
            self._settled.set_result(None)

    def _give_up(self, first: int, second: int, why: object) -> None:
        """One message that can never be delivered must not stop those behind it; it stays in the log."""
        _log.error("%s cannot be delivered: %s", self._name(first, second), why)
        self._ended(first, second)

    def _failed(self, first: int, second: int) -> None:
        self._schedule.failed(first, second)
        if self._retry is None and not self._closed:
            self._retry = self._loop.call_later(RETRY_AFTER, self._again)

    def _again(self) -> None:
        self._turns.all(self._retries())

    def _retries(self) -> Iterator[Callable[[], int]]:
        """In line with what is due, or a recall could be met behind what it recalls."""
        self._retry, self._refused, self._told = None, False, False
        for message in self._schedule.retry():
            yield partial(self._move, *message, None)
