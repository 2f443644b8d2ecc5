"""Sends a portion of a restore from a Spark task: the files are read by pyarrow, and no row passes through the JVM."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aiorocket.model import Queue
from aiorocket.spark import bridge, sink_work
from aiorocket.spark.columns import arrow_schema
from aiorocket.spark.options import SinkOptions
from aiorocket.spark.outgoing_rows import Columns, OutgoingRow
from aiorocket.spark.steps.archives.merge import Pieces, batches_of
from aiorocket.spark.steps.files.file_jobs import Held
from aiorocket.spark.steps.files.folder import Folder
from aiorocket.spark.steps.files.hours import by_queue
from aiorocket.spark.steps.files.manifest import Span, partition_of
from aiorocket_protocol import PROPERTY_SHARDING_KEY, RESERVED, TRANSIENT_PREFIX

__all__ = ("NEEDED", "RESTORE_BORN", "RESTORE_ID", "restore_task")

#: Property: ``topic@broker@queueId@queueOffset`` of the archived message.
RESTORE_ID = "RESTORE_ID"
#: Property: when the archived message was born, milliseconds since 1970 UTC.
RESTORE_BORN = "RESTORE_BORN"
NEEDED = ("brokerName", "queueId", "queueOffset", "body", "properties", "keys", "tags", "bornTimestamp")
#: What is messages at a time: rows of each queue, bytes of all queues together.
_ROWS, _BYTES = 8_192, 64 << 20
_TYPES = {
    "topic": "string", "body": "binary", "keys": "string", "tags": "string", "properties": "map<string,string>",
    "queueId": "int", "shardingKey": "string",
}  # fmt: skip


def restore_task(task: tuple[str, Sequence[str], Sequence[Any], Mapping[str, str], str | None, bool]) -> Iterator[Held]:
    """In a task: sends the rows of ranges (topic, broker, queue, begin, end each), in their queues' order, and answers
    how many of each queue when all are acknowledged. Rows that were there before are sent as they come."""
    location, paths, told, text, to_topic, keep_queues = task
    ranges = {Queue(*each[:3]): each[3:] for each in told}
    settings = SinkOptions.parse(text)
    folder, schema = Folder(location), arrow_schema(NEEDED)
    names = ["topic", "body", "keys", "tags", "properties", "shardingKey", *["queueId"] * keep_queues]
    columns = Columns(names, [_TYPES[name] for name in names], topic=None, transactional=False)
    with tempfile.TemporaryFile() as file:
        pieces = Pieces(schema, file)
        for path in paths:
            for batch in batches_of(folder, path, schema):
                offsets = batch.column("queueOffset").to_numpy()
                for queue, places in by_queue(partition_of(path)[0], batch):
                    begin, end = ranges.get(queue, (0, 0))
                    own = places[(offsets[places] >= begin) & (offsets[places] < end)]
                    if len(own):
                        pieces.add(queue, own, batch)
        room = _BYTES // max(1, len(pieces.queues))
        waiting = {queue: _short(pieces.sorted_of(queue), room) for queue in pieces.queues}
        sent = dict.fromkeys(waiting, 0)
        while waiting:
            rows: list[OutgoingRow] = []
            for queue, batches in list(waiting.items()):
                batch = next(batches, None)
                if batch is None:
                    del waiting[queue]
                    continue
                where = f"{queue}, offsets {batch.column('queueOffset')[0]} on"
                messages = _messages(queue, batch, to_topic or queue.topic, names)
                rows += columns.rows(messages, where=where, first=len(rows))
                sent[queue] += batch.num_rows
            if rows:
                bridge.call(sink_work.send, settings, rows, location)
    for queue, count in sent.items():
        yield Held("", 0, queue, Span(0, 0, count))


def _short(batches: Iterator[pa.RecordBatch], room: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = max(1, min(_ROWS, batch.num_rows * room // max(1, batch.nbytes)))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def _messages(queue: Queue, batch: pa.RecordBatch, topic: str, names: Sequence[str]) -> pa.RecordBatch:
    """Rows of ``queue`` as the sink takes them."""
    count = batch.num_rows
    given = batch.column("properties")
    keys, items, offsets = given.keys, given.items, given.offsets.to_numpy()
    row_of = np.repeat(np.arange(count), np.diff(offsets))
    keys, items = (each.slice(int(offsets[0]), len(row_of)) for each in (keys, items))
    kept = pc.invert(
        pc.or_(pc.is_in(keys, pa.array(_OURS, pa.string())), pc.starts_with(keys, TRANSIENT_PREFIX))
    ).to_numpy(zero_copy_only=False)
    values: dict[str, Any] = {
        "topic": pa.repeat(topic, count),
        **{name: batch.column(name) for name in ("body", "keys", "tags", "queueId")},
    }
    places = np.full(count, -1)
    found = np.flatnonzero(pc.equal(keys, PROPERTY_SHARDING_KEY).to_numpy(zero_copy_only=False))
    places[row_of[found]] = found
    sharding = items.take(pa.array(places, mask=places < 0))
    values["shardingKey"] = pc.if_else(pc.equal(sharding, ""), None, sharding)
    # The two of ours come behind what is kept of each row.
    place = f"{queue.topic}@{queue.broker_name}@{queue.queue_id}@"
    ids = pc.binary_join_element_wise(place, batch.column("queueOffset").cast(pa.string()), "")
    born = pc.fill_null(pc.floor_temporal(batch.column("bornTimestamp"), unit="millisecond").cast(pa.int64()), 0)
    borns = pc.divide(born, 1000).cast(pa.string())
    of_row = np.concatenate([row_of[kept], np.arange(count), np.arange(count)])
    order = pa.array(np.argsort(of_row, kind="stable"))
    both = pa.concat_arrays([items.filter(pa.array(kept)), ids, borns])
    named = pa.concat_arrays(
        [keys.filter(pa.array(kept)), pa.repeat(RESTORE_ID, count), pa.repeat(RESTORE_BORN, count)]
    )
    starts = np.concatenate([[0], np.cumsum(np.bincount(of_row, minlength=count))]).astype(np.int32)
    values["properties"] = pa.MapArray.from_arrays(pa.array(starts), named.take(order), both.take(order))
    return pa.RecordBatch.from_arrays([values[name] for name in names], names=list(names))


_OURS = [RESTORE_ID, RESTORE_BORN, *sorted(RESERVED)]
