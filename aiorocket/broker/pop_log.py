"""The log of what happens to popped messages, and what of it the store did not take at first."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from aiorocket.broker.core.pops import Pop, PopTable
from aiorocket.broker.core.swept_heap import SweptHeap
from aiorocket.errors import StoreError
from aiorocket.storage.results import PutResult, PutStatus, StoreBusyError

if TYPE_CHECKING:
    import asyncio

    from aiorocket.runtime.clock import Clock
    from aiorocket.storage import MessageStore

__all__ = ("PopLog",)

_OK = PutStatus.OK
#: Records that were not taken and are stored in a turn of the loop: some 5 ms.
_A_TURN = 200
#: Seconds after which one is tried again that nobody asks for.
_AGAIN_AFTER = 1.0


class PopLog:
    """``recorded()`` is called for each record that is stored, when ``table`` knows of it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        store: MessageStore,
        topic: str,
        table: PopTable,
        recorded: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._store = store
        self._topic = topic
        self._table = table
        self._recorded = recorded
        #: What the store did not take: pops, and records of what begins anew or is deleted, with their numbers.
        self._missing = SweptHeap[tuple[int, Pop | bytes]](_is_void)
        #: Of the newest record that came here; 0 when none did.
        self.number = 0
        #: Enough of these were stored in this turn.
        self._paused = False
        #: When records are tried again of which nobody else knows.
        self._later: asyncio.TimerHandle | None = None
        self._closed = False

    def close(self) -> None:
        """What the store did not take goes there now, as far as it takes it."""
        self._closed = True
        if self._later is not None:
            self._later.cancel()
        with suppress(StoreError, MemoryError):
            while self._missing:
                self._store_again(*self._missing.pop())

    def append(
        self, record: bytes, pop: Pop | None, done: Callable[[PutResult], None] | None, *, kept: bool = False
    ) -> None:
        """Behind those that the store did not take: what a record says would mean nothing without them, or pass over
        what they are about. Of a pop, or ``kept``, it is one of these itself when it is not taken. StoreError then, or
        MemoryError."""
        self.number += 1
        number, one = self.number, pop or (record if kept else None)
        try:
            self._store_missing()
            self._put(number, record, pop, one, done)
        except (StoreError, MemoryError):
            self._keep(number, one)
            raise

    def _store_missing(self) -> None:
        """StoreBusyError while there are more than one turn of the loop may store."""
        for _ in range(0 if self._paused else _A_TURN):
            if not self._missing:
                return
            self._store_again(*self._missing.pop())
        if self._missing:
            if not self._paused:
                self._paused = True
                self._loop.call_soon(self._go_on)
            raise StoreBusyError(f"{len(self._missing)} records of what was popped are stored before: try again")

    def _try_again(self) -> None:
        self._later = None
        self._go_on()

    def _go_on(self) -> None:
        self._paused = False
        with suppress(StoreError, MemoryError):
            self._store_missing()

    def _store_again(self, number: int, one: Pop | bytes) -> None:
        try:
            if not isinstance(one, Pop):
                self._put(number, one, None, one, None)
            elif not _is_void((number, one)):
                one.missing = False
                self._put(number, self._table.encode_pop(one, late=True), one, one, None)
        except (StoreError, MemoryError):
            self._keep(number, one)
            raise

    def _put(
        self,
        number: int,
        record: bytes,
        pop: Pop | None,
        kept: Pop | bytes | None,
        done: Callable[[PutResult], None] | None,
    ) -> None:
        def stored(result: PutResult) -> None:
            if result.status is _OK:
                self._table.recorded(pop, result.queue_offset)
                self._recorded()
            else:
                self._keep(number, kept)
            if done is not None:
                done(result)

        self._store.append(
            self._topic,
            0,
            record,
            b"",
            flag=0,
            sys_flag=0,
            born_timestamp=self._clock.wall_ms(),
            born_host=self._store.store_host,
            tags_code=0,
            done=stored,
        )

    def _keep(self, number: int, one: Pop | bytes | None) -> None:
        if one is None:
            return
        if isinstance(one, Pop):
            one.missing = True
        elif self._later is None and not self._closed:  # perhaps nobody pops anything for long
            self._later = self._loop.call_later(_AGAIN_AFTER, self._try_again)
        self._missing.push((number, one), self._missing.kept)


def _is_void(entry: tuple[int, Pop | bytes]) -> bool:
    """Whether it was acknowledged meanwhile: of that nothing is to be recorded."""
    one = entry[1]
    return isinstance(one, Pop) and not (one.left or one.changing)
