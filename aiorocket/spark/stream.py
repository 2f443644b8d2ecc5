"""The stream reader: which offsets a micro-batch ends at, and what it reads.

Spark writes the end of a batch into its log before the batch runs, and takes the start from the end of the one before.
So an end once returned decides what is read, in this process and after a restart, and everything else here may be
forgotten: no method relies on ``stop``, which Spark seldom calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from aiorocket.errors import NotConnectedError, ProtocolError, RocketError, TopicNotFoundError, UsageError
from aiorocket.model import Queue
from aiorocket.spark import bridge, cluster
from aiorocket.spark.failures import untraced
from aiorocket.spark.fetch import DataLossError
from aiorocket.spark.offsets import from_nested, queue_path, to_nested
from aiorocket.spark.partition import QueuePartition, cores, read_partition
from aiorocket.spark.planner import QueueRange, admit, plan
from aiorocket.spark.positions import present, starting_offsets

if TYPE_CHECKING:
    import pyarrow as pa

    from aiorocket.client.pipeline.reading import Bounds, Session
    from aiorocket.spark.options import SourceOptions

__all__ = ("StreamReader",)

_log = logging.getLogger("aiorocket.spark")

#: How long Spark waits in here for messages. It asks again at once, and a query that stops waits for nothing.
_POLL = 0.5


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the columns ``names`` of what is stored from a start on.

    A queue that appears later is read from its first message; one whose broker cannot be reached stays where it is and
    goes on when the broker is back. DataLossError, with ``failOnDataLoss``, when messages that the query has not read
    are gone.
    """

    def __init__(self, options: SourceOptions, names: tuple[str, ...]) -> None:
        self.options = options
        self.names = names
        self._initial: dict[str, Any] | None = None
        #: Queues that begin at their end, until the first batch has recorded that.
        self._pinned: frozenset[Queue] = frozenset()
        #: With availableNow: where the query ends.
        self._target: dict[Queue, Bounds] | None = None
        self._seen: dict[Queue, Bounds] = {}
        self._latest: dict[Queue, int] = {}
        self._triggered: float | None = None
        self._committed: dict[Queue, int] = {}
        #: Warnings: those of trouble that may pass, and those that are given once for all.
        self._said: set[str] = set()
        self._told: set[str] = set()
        #: Whether the name server knew all topics when it was last asked.
        self._listed = True

    @untraced
    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins. Spark asks twice for the first batch, so it is kept."""
        if self._initial is None:
            self._initial = to_nested(bridge.call(self._start))
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """``maxOffsetsPerTrigger``; ``minOffsetsPerTrigger`` alone when there is no such cap."""
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.min_offsets_per_trigger is not None:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @untraced
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end. It fails when a broker cannot be asked: what is available there is not known. So does the first
        batch, where a broker that the query has read from before is in no route still; one that is back is read up to
        what it has then."""
        self._target = bridge.call(self._all_bounds)

    @untraced
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of a batch that begins at ``start``; ``start`` itself when there is nothing to read after half a
        second."""
        if start != self._initial:
            # Spark's own call for a batch comes with the next one, and so for the last one in the query's next run.
            self.commit(start)
        begins = from_nested(start)
        if self._pinned and start == self._initial:
            pinned, self._pinned = self._pinned, frozenset()
        else:
            pinned = frozenset()
        ends = bridge.call(self._end, begins, limit, pinned)
        return start if ends == begins else to_nested(ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends of the queues when they were last looked at, for the progress report."""
        return to_nested(self._latest) if self._latest else None

    @untraced
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begins, ends = from_nested(start), from_nested(end)
        if begins == ends:
            return []
        # Nothing was seen so far where Spark does a batch again that a crash has cut short.
        ranges = bridge.call(self._ranges, begins, ends, start == self._initial and not self._seen)
        return [QueuePartition(part) for part in plan(ranges, cores=cores(self.options), options=self.options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, self.options, self.names)

    @untraced
    def commit(self, end: dict[str, Any]) -> None:
        """With ``commitOffsets``, the group's offsets become ``end``, for whoever watches the group: the query itself
        goes by its checkpoint. A broker that cannot be told now is told with the next batch."""
        group = self.options.group_id
        if not self.options.commit_offsets or group is None:
            return
        moved = {queue: offset for queue, offset in from_nested(end).items() if self._committed.get(queue) != offset}
        if not moved:
            return
        try:
            bridge.call(self._commit, group, moved)
        except (RocketError, ProtocolError) as error:
            _log.warning("group %s was not told of every offset of this batch: %s", group, error)
        else:
            self._committed.update(moved)

    async def _commit(self, group: str, offsets: Mapping[Queue, int]) -> None:
        client = await bridge.client(self.options.connection)
        with bridge.holding(client):
            await cluster.commit(client, group, offsets)

    async def _all_bounds(self) -> dict[Queue, Bounds]:
        client = await bridge.client(self.options.connection)
        with bridge.holding(client):
            return await present(client, self.options)

    async def _start(self) -> dict[Queue, int]:
        client = await bridge.client(self.options.connection)
        with bridge.holding(client):
            bounds = await present(client, self.options)
            found = await starting_offsets(client, self.options, bounds)
        # Spark does not record where a query begins before its first batch has an end. Asked again after a crash, an
        # end would be a later one, and the messages in between lost: the first batch reads nothing of these queues.
        if self.options.starting is not None and self.options.starting.kind != "earliest":
            self._pinned = frozenset(queue for queue, offset in found.items() if offset >= bounds[queue].end)
        return found

    async def _end(self, begins: dict[Queue, int], limit: ReadLimit, pinned: frozenset[Queue]) -> dict[Queue, int]:
        client = await bridge.client(self.options.connection)
        with bridge.holding(client):
            queues = await self._queues(client, begins)
            ends = self._admitted(begins, await self._look(client, begins, queues), limit, pinned)
            if ends == begins and not pinned and self._target is None:
                waiting = {queue: offset for queue, offset in self._latest.items() if queue in queues}
                await cluster.wait_for_more(client, waiting, _POLL)
                ends = self._admitted(begins, await self._look(client, begins, queues), limit, pinned)
            return ends

    async def _queues(self, client: Session, begins: Mapping[Queue, int]) -> set[Queue]:
        """The queues there are now, and those the query has read so far. With availableNow, those of its beginning."""
        known = {queue for queue in begins if cluster.asked_for(self.options, queue)}
        for queue in sorted(begins.keys() - known):
            self._tell(f"{queue_path(queue)} stays at {begins[queue]}: the options do not ask for it any more")
        if self._target is not None:
            return known | self._target.keys()
        missing = dict[str, TopicNotFoundError]()
        try:
            found = await cluster.queues(client, self.options, missing=missing)
        except UsageError:
            raise
        except RocketError as error:
            if not known:
                raise
            self._listed = False
            self._say(f"looking for queues: {error}; going on with the {len(known)} known ones")
            return known
        # A broker that restarts takes its topics from the name server for a while.
        if missing and not known:
            raise next(iter(missing.values()))
        self._listed = not missing
        for topic in missing.keys() - {queue.topic for queue in known}:  # of the others ``_look`` tells
            self._say(f"looking for queues: {missing[topic]}; going on with the other topics")
        return {*known, *found}

    async def _look(self, client: Session, begins: Mapping[Queue, int], queues: set[Queue]) -> dict[Queue, Bounds]:
        failures: dict[Queue, Exception] = {}
        seen = await cluster.bounds(client, queues, failures=failures)
        await _drop_deleted(client, failures)
        _drop_replicas(client, begins, seen, failures)
        for queue, error in failures.items():
            target = self._target.get(queue) if self._target is not None else None
            if target is not None and target.end >= begins.get(queue, 0):
                # The query is not over without these: the task waits for the broker, and reports it.
                seen[queue] = target
            elif self._target is not None and target is None and self.options.fail_on_data_loss:
                # Its broker had left the routes when the end was fixed.
                raise NotConnectedError(
                    f"{queue_path(queue)}, which the query has read up to {begins[queue]}: what is available there is "
                    f"not known ({error}). Begin again when its broker is back; where it is gone for good, or the "
                    "topic from it, failOnDataLoss=false ends without it"
                ) from error
            else:
                self._say(f"{queue_path(queue)} stays at {begins.get(queue, 'its beginning')} for now: {error}")
        for queue in sorted(queues & begins.keys()):
            if queue not in seen and queue not in failures:
                self._lost(queue, f"is gone from its broker, the query stands at {begins[queue]}", "leaves it alone")
        if not failures and self._listed:
            self._said.clear()
        if self._target is not None:
            # Its broker had left the routes when the end was fixed, and is back.
            self._target = {**seen, **self._target}
        self._seen = seen
        return seen

    def _admitted(
        self, starts: Mapping[Queue, int], seen: Mapping[Queue, Bounds], limit: ReadLimit, pinned: frozenset[Queue]
    ) -> dict[Queue, int]:
        """The end of the batch: an offset for each queue of ``starts``, and for each new one its first."""
        begins = {queue: self._begin(queue, start, seen.get(queue)) for queue, start in starts.items()}
        ends = dict(begins)
        self._latest = dict(starts)
        for queue, found in seen.items():
            end = found.end
            if self._target is not None:
                end = min(end, self._target[queue].end)
            self._latest[queue] = max(end, begins.get(queue, found.begin))
            if queue in begins and queue not in pinned:
                ends[queue] = self._latest[queue]
        rows = sum(ends[queue] - begins[queue] for queue in ends)
        if not self._is_due(rows, limit):
            return dict(starts)
        if isinstance(limit, ReadMaxRows):
            ends = admit(begins, ends, limit.max_rows)
        return ends | {queue: found.begin for queue, found in seen.items() if self._is_new(queue, starts)}

    def _is_new(self, queue: Queue, starts: Mapping[Queue, int]) -> bool:
        # After the end of an availableNow query was fixed there are no new queues, or it might never end.
        return queue not in starts and (self._target is None or queue in self._target)

    def _is_due(self, rows: int, limit: ReadLimit) -> bool:
        """Whether ``minOffsetsPerTrigger`` lets a batch begin: as with Kafka, the first one, one that is large enough,
        and any that has messages ``maxTriggerDelay`` after the last one. Not asked of availableNow, nor of the trigger
        that reads everything once."""
        least = self.options.min_offsets_per_trigger
        if least is None or not rows or self._target is not None or isinstance(limit, ReadAllAvailable):
            return True
        now = asyncio.get_running_loop().time()
        late = self._triggered is None or now - self._triggered >= self.options.max_trigger_delay
        if rows < least and not late:
            return False
        self._triggered = now
        return True

    def _begin(self, queue: Queue, start: int, bounds: Bounds | None) -> int:
        """Where reading can go on: at ``start``, or at the first message there is."""
        if bounds is None or bounds.begin <= start <= bounds.end:
            return start
        if start < bounds.begin:
            text = f"has lost the messages {start} to {bounds.begin - 1}, to retention most likely: the query stands at"
            self._lost(queue, f"{text} {start}, the broker begins at {bounds.begin}", f"reads on from {bounds.begin}")
        else:
            text = f"ends at {bounds.end}, and the query has read up to {start}: the topic was made anew, or the broker"
            self._lost(queue, f"{text} lost its last messages", f"reads it from its first message, {bounds.begin}")
        return bounds.begin

    async def _ranges(self, begins: dict[Queue, int], ends: dict[Queue, int], first: bool) -> list[QueueRange]:
        # A queue that is not in `begins` entered with its first offset as the end: there is nothing of it yet.
        moved = {queue: end for queue, end in ends.items() if begins.get(queue, end) != end}
        if first:
            # After a crash in the first batch the start is looked up anew, and may lie behind the recorded end.
            moved = {queue: end for queue, end in moved.items() if begins[queue] < end}
        asked, unasked = await self._bounds_for(moved)
        ranges = [QueueRange(queue, begins[queue], moved[queue]) for queue in unasked]
        for queue, end in moved.items():
            if queue in unasked:
                continue
            found = asked.get(queue)
            if found is None:
                self._lost(queue, f"is gone, with the messages {begins[queue]} to {end - 1}", "goes on without them")
                continue
            if found.end < end:
                text = f"ends at {found.end}, and this batch at {end}: the broker lost its last messages"
                self._lost(queue, text, "reads what is there")
            begin = found.begin
            if begins[queue] < end:
                begin = self._begin(queue, begins[queue], found)
            else:
                text = f"begins this batch at {begins[queue]} and ends it at {end}: the topic was made anew"
                self._lost(queue, text, f"reads it from its first message, {begin}")
            ranges.append(QueueRange(queue, begin, min(end, found.end)))
        return [part for part in ranges if part.begin < part.end]

    async def _bounds_for(self, moved: Mapping[Queue, int]) -> tuple[dict[Queue, Bounds], set[Queue]]:
        """What ``latestOffset`` has just seen; after a restart the brokers are asked. The second: could not be asked,
        which is for the task to find out, and to report."""
        seen = {queue: self._seen[queue] for queue in moved if queue in self._seen}
        stale = {queue for queue in moved if queue not in seen or moved[queue] > seen[queue].end}
        failures: dict[Queue, Exception] = {}
        if stale:
            client = await bridge.client(self.options.connection)
            with bridge.holding(client):
                asked = await cluster.bounds(client, sorted(stale), failures=failures)
                await _drop_deleted(client, failures)
                _drop_replicas(client, moved, asked, failures)
            seen = {queue: found for queue, found in seen.items() if queue not in stale} | asked
        return seen, set(failures)

    def _lost(self, queue: Queue, what: str, otherwise: str) -> None:
        text = f"data loss: queue {queue_path(queue)} {what}"
        if self.options.fail_on_data_loss:
            raise DataLossError(f"{text}. failOnDataLoss=false {otherwise}; a new checkpoint begins at startingOffsets")
        self._tell(f"{text}; failOnDataLoss=false {otherwise}")

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            _log.warning("%s", text)

    def _say(self, text: str) -> None:
        """A warning, once while the trouble lasts: Spark asks many times a second."""
        if text not in self._said:
            self._said.add(text)
            _log.warning("%s", text)


async def _drop_deleted(client: Session, failures: dict[Queue, Exception]) -> None:
    """Without a route a topic was deleted, or its brokers are down. A broker brings all its topics when it registers,
    so one that is registered does not have the topic: that is no failure to ask it."""
    without = [queue for queue, error in failures.items() if isinstance(error, TopicNotFoundError)]
    if without:
        try:
            registered = await cluster.brokers(client)
        except NotConnectedError:
            return
        for queue in without:
            if queue.broker_name in registered:
                del failures[queue]


def _drop_replicas(
    client: Session, least: Mapping[Queue, int], seen: dict[Queue, Bounds], failures: dict[Queue, Exception]
) -> None:
    """A replica that stands in for its master may lack the last messages: one that ends before ``least`` says nothing
    about them."""
    for queue, offset in least.items():
        if queue in seen and seen[queue].end < offset and not cluster.has_master(client, queue):
            found = seen.pop(queue)
            failures[queue] = NotConnectedError(f"only a replica can be asked, which ends at {found.end}")
