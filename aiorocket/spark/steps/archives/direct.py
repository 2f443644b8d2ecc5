"""The archive's direct mode: tasks write Parquet as they decode, and send back only which offsets went where.

No row passes through the JVM. A round is one batch job: the driver plans offset ranges from the manifest's end, tasks
write files to ``_staging``, the driver publishes what the job returned. A task that failed or was tried twice leaves
files there that nobody names.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from aiorocket.client.pipeline.reading import unwrap, wrap
from aiorocket.errors import NotConnectedError, ProtocolError, RocketError, UsageError
from aiorocket.model import Queue
from aiorocket.spark import cluster
from aiorocket.spark.bridge import call
from aiorocket.spark.bridge import client as shared_client
from aiorocket.spark.fetch import DataLossError
from aiorocket.spark.options import SourceOptions
from aiorocket.spark.partition import QueuePartition, read_partition
from aiorocket.spark.planner import QueueRange, admit, plan
from aiorocket.spark.steps.files.file_jobs import ANSWER_SQL, answer, answered, files_of, held_by
from aiorocket.spark.steps.files.folder import Folder
from aiorocket.spark.steps.files.hours import HourWriter
from aiorocket.spark.steps.files.manifest import Commit, Span, spans

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from aiorocket.client.pipeline.reading import Bounds
    from aiorocket.spark.steps.archives.archive_run import Run

__all__ = ("DirectArchive", "Rounds")

_log = logging.getLogger("aiorocket.spark")

_NAME = "rocketmq_direct_archive"
#: The most that one task writes: each leaves a file of each hour, so not many more of them than there are cores.
_SPLIT_ROWS = 2_000_000
#: How long a wait lasts before ``stop`` is looked at, in seconds.
_LOOK = 0.5


class DirectArchive(DataSource):
    """The job of one round, as a data source that the driver makes for itself: reading it writes the files."""

    @classmethod
    def name(cls) -> str:
        return _NAME

    def schema(self) -> str:
        return ANSWER_SQL

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Writing(json.loads(self.options["job"]))


class _Writing(DataSourceReader):
    def __init__(self, job: Mapping[str, Any]) -> None:
        self._job = job

    def partitions(self) -> Sequence[InputPartition]:
        return [
            QueuePartition([QueueRange(Queue(*each[:3]), *each[3:]) for each in part]) for part in self._job["plan"]
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        writer = HourWriter(Folder(self._job["path"]), self._job["staging"])
        options = SourceOptions.parse(self._job["options"])
        try:
            for batch in read_partition(partition, options, self._job["columns"]):
                # A batch is of one queue, and a file's topic is its folder's.
                queue = Queue(*(batch.column(name)[0].as_py() for name in ("topic", "brokerName", "queueId")))
                writer.add(queue, batch.drop_columns(["topic"]))
            files = writer.finish()
        finally:
            writer.abandon()
        yield from answer(held_by(files))


class Rounds:
    """The driver: round after round until the goal is reached, or for as long as it is to follow."""

    def __init__(self, run: Run) -> None:
        self._run = run
        # Positions are for the driver; a task must not stumble over them.
        self._text = {name: value for name, value in run.text.items() if not name.lower().startswith("starting")}
        self._options = run.options.for_stream()

    def go(self, follow: bool, interval: float, stop: Callable[[], bool] | None) -> None:
        self._run.spark.dataSource.register(DirectArchive)
        try:
            while True:
                self._run.find_goal(note=True)
                while ranges := self._next():
                    self._round(ranges)
                    if stop is not None and stop():
                        return
                if not follow or (stop is not None and stop()):
                    return
                self._wait(interval, stop)
        except KeyboardInterrupt:
            if not follow:
                raise

    def _next(self) -> list[QueueRange]:
        """What the next round reads: at most ``max_rows``, shared out among the queues."""
        goal, snapshot = self._run.goal, self._run.snapshot
        begins = dict(goal.begins)
        begins.update({queue: snapshot.queues[queue].end for queue in goal.ends if queue in snapshot.queues})
        for queue, bounds in self._run.bounds.items():
            begins[queue] = self._there(queue, begins[queue], bounds)
        ends = admit(begins, goal.ends, self._run.max_rows)
        ranges = [
            QueueRange(queue, begins[queue], ends[queue]) for queue in sorted(ends) if begins[queue] < ends[queue]
        ]
        if ranges:
            return ranges
        # When all others are archived: a broker may stay away for long.
        if gone := [queue for queue in snapshot.queues if queue not in goal.ends and self._asked(queue)]:
            self._gone(gone[0], snapshot.queues[gone[0]].end - 1)
        return []

    def _asked(self, queue: Queue) -> bool:
        named = self._name(queue)
        return self._stored(named.topic) == queue.topic and cluster.asked_for(self._options, named)

    def _gone(self, queue: Queue, last: int) -> None:
        # One that restarts takes its queues from the routes for a while, which is no loss.
        if self._options.fail_on_data_loss and not call(_is_lost, self._options, self._name(queue)):
            raise NotConnectedError(
                f"{queue} is archived up to {last}, and its broker was not registered just now: the archive goes on "
                "when it is back; failOnDataLoss=false archives the others"
            )
        self._lost(f"{queue} is not at its broker any more; it is archived up to {last}")

    def _stored(self, topic: str) -> str:
        return wrap(self._options.connection.namespace, topic)

    def _there(self, queue: Queue, begin: int, bounds: Bounds) -> int:
        if begin > bounds.end:
            raise UsageError(
                f"{queue} is archived up to offset {begin - 1}, and its broker ends at {bounds.end - 1}: the topic was "
                "made anew, or the broker lost data. Archive it to another folder"
            )
        if begin < bounds.begin:
            self._lost(f"{queue}: offsets {begin} to {bounds.begin - 1} were removed before they were archived")
        return max(begin, bounds.begin)

    def _lost(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}; failOnDataLoss=false archives what is there and notes the gap")

    def _round(self, ranges: list[QueueRange]) -> None:
        run = self._run
        staging = run.staging()
        named = [each._replace(queue=self._name(each.queue)) for each in ranges]
        cores = run.spark.sparkContext.defaultParallelism
        parts = plan(named, cores=cores, options=self._options, split=_SPLIT_ROWS)
        job = {
            "path": run.archive.folder.location, "staging": staging, "columns": run.archive.columns,
            "options": self._text,
            "plan": [[[*part.queue, part.begin, part.end] for part in parts_of_one] for parts_of_one in parts],
        }  # fmt: skip
        found = run.spark.read.format(_NAME).option("job", json.dumps(job)).load().collect()
        run.step("written")
        files = files_of(answered(found))
        counted = spans(files)
        spanned = {
            each.queue: Span(each.begin, each.end, counted[each.queue].rows if each.queue in counted else 0)
            for each in ranges
        }
        run.publish(staging, Commit(files, spanned))
        self._commit_offsets()

    def _name(self, queue: Queue) -> Queue:
        """As the source's options name it."""
        return queue._replace(topic=unwrap(self._options.connection.namespace, queue.topic))

    def _commit_offsets(self) -> None:
        """Tells the brokers how far the archive is, so that their tools show its lag: option ``commitOffsets``. Those
        that cannot be told now are told with the next round; the archive goes by its manifest."""
        group = self._options.group_id
        if self._options.commit_offsets and group is not None:
            archived = self._run.snapshot.queues  # a queue that never had a message is not among them
            ends = {self._name(queue): archived[queue].end for queue in self._run.goal.ends if queue in archived}
            try:
                call(_commit, self._options, group, ends)
            except (RocketError, ProtocolError) as error:
                _log.warning("group %s was not told of every offset of this round: %s", group, error)

    def _wait(self, interval: float, stop: Callable[[], bool] | None) -> None:
        """Until a queue has more, or ``interval`` seconds are over."""
        ends = {self._name(queue): end for queue, end in self._run.goal.ends.items()}
        left = interval
        while left > 0 and not (stop is not None and stop()):
            if call(_wait_for_more, self._options, ends, min(left, _LOOK)):
                return
            left -= _LOOK


async def _is_lost(options: SourceOptions, queue: Queue) -> bool:
    """Whether its broker is registered and has not got it: not of one that is back since the goal was looked up."""
    client = await shared_client(options.connection)
    if queue.broker_name not in await cluster.brokers(client):
        return False
    return queue not in await cluster.bounds(client, await cluster.queues(client, options))


async def _wait_for_more(options: SourceOptions, ends: Mapping[Queue, int], timeout: float) -> bool:
    """Whether it ended before ``timeout``, which means that there is something."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await cluster.wait_for_more(await shared_client(options.connection), ends, timeout)
    return loop.time() - began < timeout * 0.9


async def _commit(options: SourceOptions, group: str, offsets: Mapping[Queue, int]) -> None:
    await cluster.commit(await shared_client(options.connection), group, offsets)
