"""How far streaming queries are behind their queues, from what Spark reports after each batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from aiorocket.errors import UsageError
from aiorocket.model import Queue
from aiorocket.spark.offsets import from_nested

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

__all__ = ("LagListener",)


class LagListener(StreamingQueryListener):
    """``spark.streams.addListener(LagListener())``: for every running query that reads RocketMQ, the messages that each
    queue held beyond the end of the query's last batch.

    ``callback(query, lag)`` is called after each batch with the query's name (its id if it has none) and the lag by
    queue, in the thread in which Spark calls listeners: keep it short. Under ``availableNow`` Spark reports what was
    there when the query began. Not for Spark Connect, whose listeners run in the server."""

    def __init__(self, callback: Callable[[str, Mapping[Queue, int]], object] | None = None) -> None:
        self._callback = callback
        self._lag: dict[str, dict[Queue, int]] = {}
        self._names: dict[str, str] = {}

    def lag(self, query: str | None = None) -> dict[Queue, int]:
        """By queue, of the query with this name or id, or of all; where several queries read a queue, the largest.
        Queries that have not finished a batch, or have ended, are not in it."""
        found: dict[Queue, int] = {}
        for number, queues in list(self._lag.items()):
            if query is None or query in (number, self._names.get(number)):
                _merge(found, queues)
        return found

    def lags(self) -> dict[str, dict[Queue, int]]:
        """``lag`` of each query, by its name (its id if it has none)."""
        return {self.name_of(number): dict(queues) for number, queues in list(self._lag.items())}

    def name_of(self, query: str) -> str:
        """The name of the query with this id; the id when it has none, or has ended."""
        return self._names.get(query, query)

    def total(self, query: str | None = None) -> int:
        """The messages that are waiting, over all queues of ``lag(query)``."""
        return sum(self.lag(query).values())

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        if event.name:
            self._names[str(event.id)] = event.name

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        found: dict[Queue, int] = {}
        for source in progress.sources:
            _merge(found, _behind(source.endOffset, source.latestOffset))
        if not found:
            return
        number = str(progress.id)
        self._lag[number] = found
        if progress.name:
            self._names[number] = progress.name
        if self._callback is not None:
            self._callback(progress.name or number, dict(found))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing moved, so nothing changes."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._lag.pop(str(event.id), None)
        self._names.pop(str(event.id), None)


def _merge(into: dict[Queue, int], queues: Mapping[Queue, int]) -> None:
    for queue, behind in queues.items():
        into[queue] = max(behind, into.get(queue, 0))


def _behind(end: str | None, latest: str | None) -> dict[Queue, int]:
    """By queue; empty for a source that is not ours."""
    read, there = _offsets(end), _offsets(latest)
    return {queue: max(0, offset - read.get(queue, offset)) for queue, offset in there.items()}


def _offsets(text: str | None) -> dict[Queue, int]:
    try:
        value: Any = json.loads(text or "null")
        return from_nested(value) if isinstance(value, dict) else {}
    except (ValueError, UsageError):
        return {}
