"""An archive as the direct mode writes it, made without a broker and without Spark: rows of eight queues, of about 350
bytes as a broker stores them, with bodies, JSON of a number and a text, that do not compress below three quarters.

More than ``DISTINCT`` rows are several topics with the same files, which lie on the disk once: a step reads, decodes
and counts each of them as if it were another."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aiorocket.model import Queue
from aiorocket.spark.columns import ROW_COLUMNS, arrow_schema
from aiorocket.spark.steps.files.hours import HourWriter, lasting
from aiorocket.spark.steps.files.manifest import Archive, Commit, FileOrigin, Snapshot, spans

__all__ = ("DISTINCT", "QUEUES", "RECORD_BYTES", "TOPIC", "make_archive")

TOPIC = "orders"
#: What a stored record of these takes in a broker's log, on average.
RECORD_BYTES = 350
QUEUES = 8
#: Rows of a topic at most, which take 130 bytes of disk each.
DISTINCT = 60_000_000
_CHUNK = 8_192
#: Rows stored in an hour, unless there would be fewer hours than that: what is done by hours has them to share.
_HOUR, _HOURS = 1_000_000, 4
#: Files of an hour, each of a commit.
_FILES = 4
_BEGIN_US = 1_767_225_600_000_000  # 2026-01-01T00:00Z
_LETTERS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_TAGS = pa.array(("paid", "open", "void"))
#: Around the number and the text of a body.
_BEFORE, _BETWEEN, _BEHIND = b'{"id":', b',"text":"', b'"}'
_DIGITS = 10
_PROPERTIES = ("KEYS", "TAGS", "UNIQ_KEY", "number", "source")


def make_archive(
    path: Path, rows: int, told: Callable[[int], object] = lambda done: None, *, distinct: int = DISTINCT
) -> Archive:
    """Each thousandth id comes a second time. ``told`` hears how many rows are there. Of more than ``distinct`` rows,
    ``rows`` are to be a multiple of the topics that takes."""
    topics = -(-rows // distinct)
    if rows % topics:
        raise ValueError(f"{rows} rows are no multiple of {topics} topics")
    rows //= topics
    rows_an_hour = max(_FILES * QUEUES, min(_HOUR, rows // _HOURS))
    archive = Archive.create(str(path), format="parquet", columns=ROW_COLUMNS)
    draw = np.random.default_rng(7)
    snapshot, done = archive.snapshot(), 0
    offsets = [0] * QUEUES
    while done < rows:
        number = snapshot.last + 1
        staging = f"_staging/{number:010d}-made"
        writer = HourWriter(archive.folder, staging)
        until = min(rows, done + rows_an_hour // _FILES)
        while done < until:
            for queue in range(QUEUES):
                count = min(_CHUNK, -(-(until - done) // (QUEUES - queue)))
                writer.add(
                    Queue(TOPIC, "broker-a", queue), _rows(draw, queue, offsets[queue], count, done, rows_an_hour)
                )
                offsets[queue] += count
                done += count
        placed, moves = lasting(archive.folder, writer.finish(), staging, FileOrigin(False, number))
        archive.folder.move(moves)
        archive.folder.remove_tree(staging)
        snapshot = archive.publish(snapshot, Commit(placed, spans(placed)))
        told(done)
    for number in range(1, topics):
        snapshot = _same_files(archive, snapshot, f"{TOPIC}-{number}")
        told(done * (number + 1))
    return archive


def _same_files(archive: Archive, snapshot: Snapshot, topic: str) -> Snapshot:
    """A topic more, with the files of the first: a file does not say its topic, its folder does."""
    linked = []
    for file in snapshot.files:
        if any(queue.topic != TOPIC for queue in file.queues):
            continue
        path = file.path.replace(f"topic={TOPIC}/", f"topic={topic}/")
        target = Path(archive.folder.full(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(archive.folder.full(file.path), target)
        queues = {queue._replace(topic=topic): span for queue, span in file.queues.items()}
        linked.append(replace(file, path=path, queues=queues))
    return archive.publish(snapshot, Commit(linked, spans(linked)))


def _rows(draw: Any, queue: int, offset: int, count: int, first: int, rows_an_hour: int) -> pa.RecordBatch:
    number = np.arange(first, first + count)
    stored = _BEGIN_US + number * 3_600_000_000 // rows_an_hour
    born = stored - draw.gamma(2.0, 800.0, count).astype(np.int64) // 1000 * 1000
    identity = np.where(number % 1000 == 999, number - 1, number)
    ids, numbers = pc.utf8_lpad(_texts(identity), 32, "0"), _texts(number)
    keys, tags = pc.binary_join_element_wise("o", numbers, "-"), _TAGS.take(pa.array(number % len(_TAGS)))
    texts = pa.concat_arrays([keys, tags, ids, numbers, pa.array(["bench"] * count)])
    places = np.arange(count)[:, None] + np.arange(len(_PROPERTIES)) * count
    starts = pa.array(np.arange(count + 1, dtype=np.int32) * len(_PROPERTIES))
    properties = pa.MapArray.from_arrays(
        starts, pa.array(_PROPERTIES * count), texts.take(pa.array(places.reshape(-1)))
    )
    lengths = 100 + number % 90
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    body = _LETTERS[draw.integers(0, 64, int(ends[-1]))]
    digits = (10 ** (_DIGITS - 1) + number)[:, None] // 10 ** np.arange(_DIGITS)[::-1] % 10 + ord("0")
    at = ends[:-1]
    for part in (_BEFORE, digits, _BETWEEN):
        letters = np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part
        body[at[:, None] + np.arange(letters.shape[-1])] = letters
        at = at + letters.shape[-1]
    body[ends[1:, None] - np.arange(len(_BEHIND), 0, -1)] = np.frombuffer(_BEHIND, np.uint8)
    values: dict[str, Any] = {
        "brokerName": pa.array(["broker-a"] * count), "queueId": pa.array(np.full(count, queue, np.int32)),
        "queueOffset": pa.array(np.arange(offset, offset + count)), "msgId": ids, "offsetMsgId": ids, "keys": keys,
        "tags": tags, "body": pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(body)]),
        "properties": properties, "bornTimestamp": pa.array(born), "storeTimestamp": pa.array(stored // 1000 * 1000),
        "bornHost": pa.array(["10.0.0.7:50123"] * count), "storeHost": pa.array(["10.0.0.1:10911"] * count),
        "bodyCrc": pa.array(draw.integers(0, 2**31, count).astype(np.int32)),
        "physicalOffset": pa.array(number * RECORD_BYTES),
    }  # fmt: skip
    schema = arrow_schema([name for name in ROW_COLUMNS if name != "topic"])
    zero = np.zeros(count, np.int64)
    arrays = [values[field.name] if field.name in values else pa.array(zero) for field in schema]
    return pa.RecordBatch.from_arrays(
        [array.cast(field.type) for array, field in zip(arrays, schema, strict=True)], schema=schema
    )


def _texts(numbers: Any) -> pa.StringArray:
    return pa.array(numbers).cast(pa.string())
