"""Sends of idempotent producers, as the store has them: a repetition is answered with the first one's result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from aiorocket.broker.core.names import Refusal
from aiorocket.broker.core.sent_once import SentOnce, window
from aiorocket.errors import StoreError
from aiorocket.storage.results import PutResult, PutStatus
from aiorocket_protocol import PROPERTY_UNIQ_KEY, RecordView, ResponseCode

if TYPE_CHECKING:
    from aiorocket.storage.store import MessageStore

__all__ = ("Repetitions",)

Done = Callable[[PutResult], None]


class Repetitions:
    """``broker`` is the name of this one."""

    def __init__(self, store: MessageStore, broker: str) -> None:
        self._store = store
        self._broker = broker
        self._once = SentOnce[PutResult](self._last_stored)

    def begin(
        self,
        topic: str,
        queue_id: int,
        unique: str,
        broker: str | None,
        done: Done,
        elsewhere: tuple[str, int] | None = None,
    ) -> Done | Refusal | None:
        """For a send that began at ``broker``: what the store is to call; None when ``done`` was called, or will be,
        because an attempt was stored there or ``elsewhere``."""
        if broker != self._broker:
            text = f"this send began at broker {broker!r:.150}, which may have it; this is {self._broker!r}"
            return Refusal(ResponseCode.INVALID_PARAMETER, text)

        def stored(result: PutResult) -> None:
            if result.status is PutStatus.OK:
                self._once.keep(topic, queue_id, unique, result)
            done(result)

        try:
            return self._once.begin(topic, queue_id, unique, stored, elsewhere)
        except (StoreError, OSError) as error:
            return Refusal(ResponseCode.SYSTEM_ERROR, f"whether this send is a repetition cannot be read: {error}")

    def failed(self, topic: str, queue_id: int, unique: str) -> None:
        """The store refused it before it began."""
        self._once.failed(topic, queue_id, unique)

    def _last_stored(self, topic: str, queue_id: int) -> Iterator[tuple[str, PutResult]]:
        store = self._store
        count = window(topic)
        first = max(store.min_offset(topic, queue_id), store.max_offset(topic, queue_id) - count)
        for offset, (physical, _, _) in enumerate(store.entries(topic, queue_id, first, count), first):
            data = store.read_record(physical)
            if data is None:
                continue  # damaged: the log of damage says so
            view = RecordView(data, 0, len(data))
            unique = view.properties.get(PROPERTY_UNIQ_KEY)
            if unique:
                yield unique, PutResult(PutStatus.OK, physical, offset, view.store_timestamp)
