"""Many Parquet files of one hour as few, in the order of broker, queue and offset, with little memory.

The files are read once, a stretch of rows at a time. What of it belongs to one queue is a piece; pieces wait in a
temporary file (to keep some in memory saves nothing) until all is read, and are then written in their order. Pieces of
a queue that reach into each other, which those of an archive do not, are sorted together.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aiorocket.model import Queue
from aiorocket.spark.columns import arrow_schema
from aiorocket.spark.steps.files.file_jobs import Held, held_by
from aiorocket.spark.steps.files.folder import Folder, unreadable
from aiorocket.spark.steps.files.hours import HourWriter, by_queue
from aiorocket.spark.steps.files.manifest import DataFile, partition_of

__all__ = ("Pieces", "batches_of", "merge", "merge_task")

#: What is read at a time.
_ROWS, _BYTES = 131_072, 64 << 20


def merge(folder: Folder, paths: Sequence[str], staging: str, columns: Sequence[str], parts: int) -> list[DataFile]:
    """Writes the rows of ``paths``, files of one topic and hour, below ``staging``: ``parts`` files of as many rows,
    each sorted, one after the other. RocketError when an offset of a queue is there twice."""
    topic = partition_of(paths[0])[0]
    schema = arrow_schema([name for name in columns if name != "topic"])
    writer = HourWriter(folder, staging)
    try:
        with tempfile.TemporaryFile() as file:
            pieces = Pieces(schema, file)
            for path in paths:
                for batch in batches_of(folder, path, schema):
                    for queue, places in by_queue(topic, batch):
                        pieces.add(queue, places, batch)
            each = -(-pieces.rows // parts)
            room = each
            for queue, batch in pieces.sorted():
                while batch.num_rows > room:
                    writer.add(queue, batch.slice(0, room))
                    writer.finish()
                    batch, room = batch.slice(room), each
                writer.add(queue, batch)
                room -= batch.num_rows
            return writer.finish()
    finally:
        writer.abandon()


def merge_task(task: tuple[str, str, Sequence[str], int, Sequence[str]]) -> Iterator[Held]:
    """``merge`` in a task: the folder's location, staging, columns, parts and paths."""
    location, staging, columns, parts, paths = task
    return held_by(merge(Folder(location), paths, staging, columns, parts))


def batches_of(folder: Folder, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The columns of ``schema`` of a file, with its types. RocketError for one that cannot be read."""
    try:
        with folder.filesystem.open_input_file(folder.full(path)) as stream:
            file = pq.ParquetFile(stream, page_checksum_verification=True)
            for number in range(file.num_row_groups):
                group = file.metadata.row_group(number)
                rows = max(1, min(_ROWS, group.num_rows * _BYTES // max(1, group.total_byte_size)))
                for batch in file.iter_batches(rows, [number], schema.names):
                    yield batch.select(schema.names).cast(schema)  # as Spark's own writer names the parts of a map
    except (OSError, pa.ArrowException) as error:
        raise unreadable(folder.uri(path), error) from error


class _Piece(NamedTuple):
    """Rows of a queue by offset: the first and the last of them, and where in the temporary file they are."""

    first: int
    last: int
    begin: int
    end: int


class Pieces:
    """Rows by queue, in ``file``, to be had again in the order of their offsets. ``rows`` is how many there are."""

    def __init__(self, schema: pa.Schema, file: IO[bytes]) -> None:
        self.rows = 0
        self._schema = schema
        self._file = file
        self._of: dict[Queue, list[_Piece]] = {}
        self._spilled: pa.Buffer | None = None

    def add(self, queue: Queue, places: np.ndarray[Any, np.dtype[np.int64]], batch: pa.RecordBatch) -> None:
        """The rows at ``places`` of ``batch``, all of ``queue``."""
        offsets = batch.column("queueOffset").to_numpy()[places]
        if not (np.diff(offsets) > 0).all():
            order = np.argsort(offsets, kind="stable")
            places, offsets = places[order], offsets[order]
        begin = self._file.tell()
        self._file.write(batch.take(pa.array(places)).serialize())
        self._of.setdefault(queue, []).append(_Piece(int(offsets[0]), int(offsets[-1]), begin, self._file.tell()))
        self.rows += len(places)

    @property
    def queues(self) -> list[Queue]:
        return sorted(self._of)

    def sorted(self) -> Iterator[tuple[Queue, pa.RecordBatch]]:
        """All rows, a queue after the other."""
        return ((queue, batch) for queue in self.queues for batch in self.sorted_of(queue))

    def sorted_of(self, queue: Queue) -> Iterator[pa.RecordBatch]:
        """The rows of a queue that has some; nothing can be added any more."""
        if self._spilled is None:  # one for all: each holds a file descriptor, and queues may be read side by side
            self._file.flush()
            self._spilled = pa.py_buffer(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))
        spilled = self._spilled
        pieces = sorted(self._of[queue])
        while pieces:
            count, last = 1, pieces[0].last
            while count < len(pieces) and pieces[count].first <= last:
                last = max(last, pieces[count].last)
                count += 1
            batches = [self._rows(piece, spilled) for piece in pieces[:count]]
            del pieces[:count]
            if count > 1:
                batches = pa.Table.from_batches(batches).sort_by("queueOffset").to_batches(_ROWS)
            yield from batches

    def _rows(self, piece: _Piece, spilled: pa.Buffer) -> pa.RecordBatch:
        return pa.ipc.read_record_batch(spilled.slice(piece.begin, piece.end - piece.begin), self._schema)
