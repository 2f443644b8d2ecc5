"""The restore step: rows of an archive become messages of a topic again.

It goes through the archive by offsets, a portion of every queue at a time, and notes how far it is after each portion.
What is interrupted goes on with the portion that was on the way, so some of its messages can come twice: each carries
``RESTORE_ID`` (topic, broker, queue and offset it was archived from), the same in every attempt.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pyspark.sql import Observation
from pyspark.sql import functions as F

from aiorocket.errors import RocketError, TopicNotFoundError, UsageError
from aiorocket.model import Queue
from aiorocket.spark import cluster
from aiorocket.spark.bridge import call
from aiorocket.spark.bridge import client as shared_client
from aiorocket.spark.options import SinkOptions, SourceOptions
from aiorocket.spark.planner import QueueRange, admit
from aiorocket.spark.steps.archives.restore_task import NEEDED, RESTORE_BORN, RESTORE_ID, restore_task
from aiorocket.spark.steps.files.claims import Claim, claim
from aiorocket.spark.steps.files.file_counts import count_files_by_queue
from aiorocket.spark.steps.files.file_jobs import run_tasks
from aiorocket.spark.steps.files.manifest import Archive, spans
from aiorocket.spark.steps.proof import count_by_queue, prove
from aiorocket.spark.steps.report import Progress, ProgressCall, StepReport, waiting
from aiorocket.spark.steps.rows import in_ranges, overlapping, read_files
from aiorocket_protocol import PROPERTY_SHARDING_KEY, RESERVED, TRANSIENT_PREFIX

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ("RESTORE_BORN", "RESTORE_ID", "restore")

_CHECKPOINTS = "_restore"
#: With a rate, a portion is what may go out in this many seconds: nobody asked for a burst and a long silence.
_RATE_SECONDS = 10.0
#: Rows of a request: with one under way for each queue, whose order holds, small ones would wait for the network.
_BATCH_SIZE = "4096"


@dataclass
class _Checkpoint:
    """How far a restore is: the next offset of each queue, rows sent, and where the target's queues ended before."""

    done: dict[Queue, int] = field(default_factory=dict)
    sent: int = 0
    target: dict[Queue, int] | None = None


def restore(
    spark: SparkSession,
    path: str,
    name_server: str,
    *,
    topics: Sequence[str] | None = None,
    to_topic: str | None = None,
    where: Column | str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int | None = None,
    rate: float | None = None,
    keep_queues: bool = False,
    max_rows: int = 500_000,
    dry_run: bool = False,
    name: str | None = None,
    on_progress: ProgressCall | None = None,
    on_step: Callable[[str], object] | None = None,
    **options: object,
) -> StepReport:
    """Sends the archived rows of ``topics`` (all of them) to ``to_topic``, or each to a topic of its own name.

    ``where`` (a condition on the row's columns), ``since`` and ``until`` (store time) select, ``limit`` bounds how many
    are sent in all, ``rate`` how many a second: portions are then what may go out in ten seconds. With ``keep_queues``
    a message goes to the queue number it had, in the order it had there; else the sink spreads them. Keys, tags, the
    sharding key and the sender's own properties are kept; those of RocketMQ's that tell of the old way are not.
    ``options`` are those of the sink.

    Each portion of ``max_rows`` is noted in the archive's folder when it is sent: the same call goes on there, and once
    all is sent it sends only what was archived since. ``name`` tells apart two restores that have the same arguments.
    ``dry_run`` only counts. ``on_step`` is called after "counted", "sent" and "noted" of each portion.

    In the report ``rows_in`` are the rows selected and ``rows_out`` those sent; ``missing`` counts offsets that the
    archive lacks (of an unfiltered restore). RocketError when fewer rows went out than were counted, or the target's
    queues did not grow by as many.
    """
    if max_rows < 1 or (limit is not None and limit < 0) or (rate is not None and rate <= 0):
        raise UsageError(f"max_rows={max_rows} limit={limit} rate={rate}: numbers above 0 are needed")
    archive = Archive.open(path)
    if lacking := [column for column in ("topic", *NEEDED) if column not in archive.columns]:
        raise UsageError(f"the archive at {path} has no {', '.join(lacking)}: messages can't be made from it")
    text = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in options.items()}
    text["nameServer"] = name_server
    if "batchsize" not in {key.lower() for key in text}:
        text["batchSize"] = _BATCH_SIZE
    asked = {
        "topics": sorted(topics) if topics is not None else None, "to_topic": to_topic, "limit": limit,
        "where": None if where is None else str(where), "since": _text(since), "until": _text(until),
        "keep_queues": keep_queues, "name_server": name_server,
    }  # fmt: skip
    selection, name = _Selection(spark, archive, topics, where, since, until), name or _name(asked)

    def job() -> _Restore:
        return _Restore(selection, text, to_topic, limit, keep_queues, name, asked, on_step)

    if dry_run:
        if on_progress is not None:
            on_progress(Progress("restore", 0, None, "counting, nothing is sent"))
        return job().count()
    with claim(archive.folder, f"restore-{name}", told=waiting("restore", on_progress)) as held:
        return job().run(rate, max_rows, held, on_progress)


class _Selection:
    """Which rows of the archive are meant."""

    def __init__(
        self,
        spark: SparkSession,
        archive: Archive,
        topics: Sequence[str] | None,
        where: Column | str | None,
        since: datetime | None,
        until: datetime | None,
    ) -> None:
        self.spark = spark
        self.archive = archive
        self.snapshot = archive.snapshot()
        self.snapshot.check_topics(topics)
        self.files = self.snapshot.select(topics, since, until)
        self.filtered = archive.filtered or where is not None or since is not None or until is not None
        #: Nothing is chosen by what is in a row.
        self.whole = where is None and since is None and until is None
        self._where = where
        self._since = since
        self._until = until
        spanned = spans(self.files)
        if self.filtered:
            self.ranges = {queue: (span.begin, span.end) for queue, span in spanned.items()}
        else:  # not only what there are rows of: a gap at the end shall show
            self.ranges = self.snapshot.ranges(topics)

    def rows(self, ranges: Sequence[QueueRange]) -> DataFrame | None:
        """The rows of these ranges; None where no file has any."""
        files = overlapping(self.files, ranges)
        if not files:
            return None
        df = in_ranges(read_files(self.spark, self.archive, files, self._since, self._until), ranges)
        return df if self._where is None else df.where(self._where)


class _Restore:
    def __init__(
        self,
        selection: _Selection,
        text: Mapping[str, str],
        to_topic: str | None,
        limit: int | None,
        keep_queues: bool,
        name: str,
        asked: Mapping[str, Any],
        on_step: Callable[[str], object] | None,
    ) -> None:
        self._selection = selection
        self._folder = selection.archive.folder
        self._text = dict(text)
        self._to_topic = to_topic
        self._limit = limit
        self._keep_queues = keep_queues
        self._file = f"{_CHECKPOINTS}/{name}.json"
        self._asked = asked
        self._step = on_step or (lambda name: None)
        #: Files are sent as they are: nothing is chosen among their rows, and each row counts for itself.
        self._plain = selection.whole and limit is None and SinkOptions.parse(text).mode == "atLeastOnce"
        self._checkpoint = self._load()
        self._began = perf_counter()
        self._missing: dict[Queue, int] = {}
        self._before = dict(self._checkpoint.done)
        self._selected = 0
        self._sent_before = self._checkpoint.sent

    def count(self) -> StepReport:
        """The dry run: what would be sent by a restore that has not begun."""
        ranges = self._selection.ranges
        rows = self._selection.rows([QueueRange(queue, *each) for queue, each in ranges.items()])
        counts = {} if rows is None else count_by_queue(rows)
        self._note_missing(counts, ranges)
        self._selected = sum(each.rows for each in counts.values())
        if self._limit is not None:
            self._selected = min(self._selected, self._limit)
        return self._report(ranges, {"dry_run": True})

    def run(self, rate: float | None, max_rows: int, held: Claim, on_progress: ProgressCall | None) -> StepReport:
        checkpoint, ranges = self._checkpoint, self._selection.ranges
        targets = sorted({self._to_topic} if self._to_topic else {queue.topic for queue in ranges})
        if checkpoint.target is None:
            checkpoint.target = call(_ends, self._text, targets)
            self._save()
        if rate is not None:
            max_rows = min(max_rows, max(1, int(rate * _RATE_SECONDS)))
        total = sum(end - begin for begin, end in ranges.values())
        ends = {queue: end for queue, (_, end) in ranges.items()}

        def tell(text: str) -> None:
            if on_progress is not None:
                left = sum(ends[queue] - max(checkpoint.done.get(queue, 0), ranges[queue][0]) for queue in ends)
                on_progress(Progress("restore", total - left, total, text))

        tell(f"{checkpoint.sent:,} messages were sent before" if checkpoint.sent else "reading the first portion")
        while self._left() is None or self._left():
            begins = {queue: max(begin, checkpoint.done.get(queue, begin)) for queue, (begin, _) in ranges.items()}
            until = admit(begins, ends, max_rows)
            part = [QueueRange(queue, begins[queue], until[queue]) for queue in ends if begins[queue] < until[queue]]
            if not part:
                break
            self._pace(rate)
            held.check()
            self._send(part)
            tell(f"{checkpoint.sent:,} messages sent")
        growth = self._check_growth(targets)
        restored = {
            queue: (max(begin, self._before.get(queue, begin)), checkpoint.done[queue])
            for queue, (begin, _) in ranges.items()
            if checkpoint.done.get(queue, begin) > max(begin, self._before.get(queue, begin))
        }
        return self._report(restored, {"dry_run": False, "target_growth": growth, "sent_in_all": checkpoint.sent})

    def _left(self) -> int | None:
        return None if self._limit is None else max(0, self._limit - self._checkpoint.sent)

    def _send(self, part: list[QueueRange]) -> None:
        sent = self._send_files(part) if self._plain else self._send_rows(part)
        self._step("sent")
        self._checkpoint.done.update({each.queue: each.end for each in part})
        self._checkpoint.sent += sent
        self._save()
        self._step("noted")

    def _send_files(self, part: list[QueueRange]) -> int:
        """Of an archive as it is: by tasks that read its files themselves."""
        selection, ranges = self._selection, {each.queue: (each.begin, each.end) for each in part}
        spark, files = selection.spark, overlapping(selection.files, part)
        counts = count_files_by_queue(spark, selection.archive, files, ranges)
        if counts is None:
            return self._send_rows(part)
        selected = sum(each.rows for each in counts.values())
        self._note_missing(counts, ranges)
        self._selected += selected
        self._step("counted")
        number = min(len(part), spark.sparkContext.defaultParallelism)
        tasks = []
        for own in (part[place::number] for place in range(number)):
            paths = [file.path for file in overlapping(files, own)]
            told = [[*each.queue, each.begin, each.end] for each in own]
            tasks.append((self._folder.location, paths, told, self._text, self._to_topic, self._keep_queues))
        sent = sum(held.span.rows for held in run_tasks(spark, restore_task, tasks))
        if sent != selected:
            raise RocketError(f"{selected} rows were counted and {sent} sent, of {part[0]} and others")
        return sent

    def _send_rows(self, part: list[QueueRange]) -> int:
        rows, sent = self._selection.rows(part), 0
        if rows is not None:
            counts = count_by_queue(rows)
            selected = sum(each.rows for each in counts.values())
            left = self._left()
            if left is not None and left < selected:
                rows, selected = rows.orderBy("topic", "brokerName", "queueId", "queueOffset").limit(left), left
            else:
                self._note_missing(counts, {each.queue: (each.begin, each.end) for each in part})
            self._step("counted")
            if selected:
                seen = Observation()
                messages = self._messages(rows).observe(seen, F.count(F.lit(1)).alias("rows"))
                messages.write.format("rocketmq").options(**self._text).mode("append").save()
                sent = int(seen.get["rows"])
                if sent != selected:
                    raise RocketError(f"{selected} rows were counted and {sent} sent, of {part[0]} and others")
            self._selected += selected
        else:
            self._note_missing({}, {each.queue: (each.begin, each.end) for each in part})
        return sent

    def _messages(self, rows: DataFrame) -> DataFrame:
        """Rows as the sink takes them; those of one queue in one task and in their order."""
        place = ["topic", "brokerName", "queueId"]
        rows = rows.repartition(*place).sortWithinPartitions(*place, "queueOffset")
        restored = F.map_from_arrays(
            F.array(F.lit(RESTORE_ID), F.lit(RESTORE_BORN)),
            F.array(
                F.concat_ws("@", *place, "queueOffset"),
                F.coalesce(F.floor(F.unix_micros("bornTimestamp") / 1000).cast("string"), F.lit("0")),
            ),
        )
        ours = [RESTORE_ID, RESTORE_BORN, *sorted(RESERVED)]
        kept = F.map_filter("properties", lambda key, _: ~key.isin(ours) & ~key.startswith(TRANSIENT_PREFIX))
        topic = F.lit(self._to_topic) if self._to_topic else F.col("topic")
        columns = [topic.alias("topic"), *map(F.col, ("body", "keys", "tags"))]
        columns.append(F.map_concat(kept, restored).alias("properties"))
        columns.append(F.nullif(F.col("properties")[PROPERTY_SHARDING_KEY], F.lit("")).alias("shardingKey"))
        if self._keep_queues:
            columns.append(F.col("queueId"))
        return rows.select(*columns)

    def _pace(self, rate: float | None) -> None:
        if rate is not None:
            early = (self._checkpoint.sent - self._sent_before) / rate - (perf_counter() - self._began)
            if early > 0:
                call(asyncio.sleep, early)

    def _check_growth(self, targets: Sequence[str]) -> int:
        before = self._checkpoint.target or {}
        now = call(_ends, self._text, targets)
        growth = sum(end - before.get(queue, 0) for queue, end in now.items())
        if growth < self._checkpoint.sent:
            raise RocketError(
                f"{self._checkpoint.sent} messages were sent, and the queues of {', '.join(targets)} grew by {growth}: "
                "a topic was made anew meanwhile, or brokers lost messages"
            )
        return growth

    def _note_missing(self, counts: Mapping[Queue, Any], ranges: Mapping[Queue, tuple[int, int]]) -> None:
        if not self._selection.filtered:
            for queue, lost in prove(counts, ranges).items():
                self._missing[queue] = self._missing.get(queue, 0) + lost

    def _report(self, ranges: Mapping[Queue, tuple[int, int]], details: dict[str, object]) -> StepReport:
        if self._selection.filtered:
            details["proof"] = "rows sent = rows selected; a filter was given, so offsets prove nothing"
        else:
            details["proof"] = "rows sent = rows selected = end - begin for every queue"
        return StepReport(
            "restore", self._selected, self._checkpoint.sent - self._sent_before, dict(ranges), (),
            perf_counter() - self._began, self._missing, {**details, "state": self._file},
        )  # fmt: skip

    def _load(self) -> _Checkpoint:
        try:
            value = self._folder.json(self._file)
        except FileNotFoundError:
            return _Checkpoint()
        if value["asked"] != self._asked:
            raise UsageError(
                f"{self._folder.uri(self._file)} belongs to a restore with other arguments ({value['asked']}): give "
                "another name"
            )
        target = value["target"]
        return _Checkpoint(_queues(value["done"]), value["sent"], None if target is None else _queues(target))

    def _save(self) -> None:
        checkpoint = self._checkpoint
        value = {
            "asked": self._asked,
            "done": [[*queue, at] for queue, at in sorted(checkpoint.done.items())],
            "sent": checkpoint.sent,
            "target": [[*queue, at] for queue, at in sorted((checkpoint.target or {}).items())],
        }
        self._folder.replace(self._file, (json.dumps(value) + "\n").encode())


def _queues(items: Sequence[Sequence[Any]]) -> dict[Queue, int]:
    return {Queue(*item[:3]): item[3] for item in items}


def _name(asked: Mapping[str, Any]) -> str:
    return sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]


def _text(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


async def _ends(text: Mapping[str, str], topics: Sequence[str]) -> dict[Queue, int]:
    """Where the queues of ``topics`` end now; nothing for a topic that is not there yet."""
    found: dict[Queue, int] = {}
    for topic in topics:
        options = SourceOptions.parse({**text, "topic": topic})
        client = await shared_client(options.connection)
        try:
            queues = await cluster.queues(client, options)
        except TopicNotFoundError:
            continue
        found.update({queue: each.end for queue, each in (await cluster.bounds(client, queues)).items()})
    return found
