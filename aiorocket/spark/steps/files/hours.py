"""The Parquet files of an archive: split by topic and hour, written without Spark, and counted after writing.

Rows go to the hour of their ``storeTimestamp``, UTC; those without one (a stamp that no timestamp can hold), or with
one before 1970 or after 9999, to the hour 0 of 1970. ``rows.with_hours`` is the same in Spark.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aiorocket.errors import RocketError
from aiorocket.model import Queue
from aiorocket.runtime.entropy import Entropy
from aiorocket.spark.columns import arrow_schema
from aiorocket.spark.steps.files.manifest import (
    DATA,
    LAST_HOUR,
    PARTITIONS,
    DataFile,
    FileOrigin,
    Span,
    partition_folder,
    partition_of,
)

if TYPE_CHECKING:
    from aiorocket.spark.steps.files.folder import Folder

__all__ = ("HourWriter", "by_queue", "count_files", "lasting", "table_schema", "tail_of", "written_files")

_HOUR_US = 3_600_000_000
#: A row group: large enough to compress and to scan well, small enough for a task's memory.
_GROUP_ROWS, _GROUP_BYTES = 131_072, 64 << 20
#: Of all hours that a task is writing together; a backlog of a month has many.
_WAITING_BYTES = 256 << 20
_OPEN_FILES = 64
#: Where the same values come again and again. For ids, bodies and offsets building a dictionary is lost time.
_DICTIONARIES = [
    "brokerName", "queueId", "tags", "bornHost", "storeHost", "reconsumeTimes", "sysFlag", "flag",
    "preparedTransactionOffset", "properties.key_value.key",
]  # fmt: skip
_PLACE = ["brokerName", "queueId", "queueOffset"]


def table_schema(columns: Sequence[str]) -> pa.Schema:
    """Of a table over an archive with these columns: what its files have, and what the names of their folders say."""
    schema = arrow_schema([column for column in columns if column != "topic"])
    for name in PARTITIONS:
        schema = schema.append(pa.field(name, pa.string()))
    return schema


class _Open(NamedTuple):
    name: str
    writer: pq.ParquetWriter
    stream: Any
    spans: dict[Queue, Span]


class _Waiting:
    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.rows = self.bytes = 0


class HourWriter:
    """Writes batches of rows below ``staging``, a file for each topic and hour. Nothing it writes is visible before the
    manifest names it. The rows of a queue have to come in the order of their offsets."""

    def __init__(self, folder: Folder, staging: str) -> None:
        self._folder = folder
        self._staging = staging
        self._token = Entropy().token(6).hex()
        self._count = 0
        self._waiting: dict[str, _Waiting] = {}
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._last: dict[Queue, int] = {}
        self._bytes = 0
        self._done: list[DataFile] = []

    def add(self, queue: Queue, batch: pa.RecordBatch) -> None:
        """Rows of one queue, in the columns of the file (without ``topic``). RocketError when an offset comes twice or
        too late: the archive would hold it twice."""
        if not batch.num_rows:
            return
        offsets = batch.column("queueOffset").to_numpy()
        if offsets[0] <= self._last.get(queue, -1) or not (np.diff(offsets) > 0).all():
            raise RocketError(f"{queue}: offsets {offsets[0]} to {offsets[-1]} came out of order or again")
        self._last[queue] = int(offsets[-1])
        hours = _hours(batch.column("storeTimestamp"))
        # Almost always one hour; stamps of a queue may step back with the broker's clock.
        values = np.unique(hours) if hours[0] != hours[-1] or (hours != hours[0]).any() else hours[:1]
        for hour in values.tolist():
            part = batch if len(values) == 1 else batch.filter(pa.array(hours == hour))
            self._wait(partition_folder(queue.topic, hour), queue, part)

    def finish(self) -> list[DataFile]:
        """Closes all files: what they hold, with paths below ``staging``."""
        for where in list(self._waiting):
            self._flush(where)
        while self._open:
            self._close()
        return self._done

    def abandon(self) -> None:
        """Closes what is open, after an error; what was written stays where nobody looks."""
        while self._open:
            _, opened = self._open.popitem()
            with opened.stream:
                opened.writer.close()

    def _wait(self, where: str, queue: Queue, part: pa.RecordBatch) -> None:
        held = self._file(where, part.schema).spans
        offsets = part.column("queueOffset")
        held[queue] = _widened(held.get(queue), offsets[0].as_py(), offsets[-1].as_py() + 1, part.num_rows)
        waiting = self._waiting.setdefault(where, _Waiting())
        waiting.batches.append(part)
        waiting.rows += part.num_rows
        waiting.bytes += part.nbytes
        self._bytes += part.nbytes
        if waiting.rows >= _GROUP_ROWS or waiting.bytes >= _GROUP_BYTES:
            self._flush(where)
        while self._bytes > _WAITING_BYTES:
            self._flush(max(self._waiting, key=lambda each: self._waiting[each].bytes))

    def _file(self, where: str, schema: pa.Schema) -> _Open:
        found = self._open.get(where)
        if found is not None:
            self._open.move_to_end(where)
            return found
        while len(self._open) >= _OPEN_FILES:
            self._close()
        name = f"{where}/{self._token}-{self._count:04d}.parquet"
        self._count += 1
        self._folder.make(f"{self._staging}/{where}")
        stream = self._folder.filesystem.open_output_stream(self._folder.full(f"{self._staging}/{name}"))
        writer = pq.ParquetWriter(
            stream, schema, compression="zstd", use_dictionary=_DICTIONARIES, write_page_checksum=True
        )
        self._open[where] = opened = _Open(name, writer, stream, {})
        return opened

    def _flush(self, where: str) -> None:
        waiting, opened = self._waiting.pop(where), self._open[where]
        self._bytes -= waiting.bytes
        with self._folder.naming(f"{self._staging}/{opened.name}"):
            opened.writer.write_table(pa.Table.from_batches(waiting.batches), row_group_size=_GROUP_ROWS)

    def _close(self) -> None:
        """Closes the file that got rows least recently."""
        where = next(iter(self._open))
        if where in self._waiting:
            self._flush(where)
        opened = self._open.pop(where)
        name = f"{self._staging}/{opened.name}"
        with self._folder.naming(name):
            opened.writer.close()
            opened.stream.close()
        size = self._folder.size(name)
        self._done.append(DataFile(opened.name, sum(span.rows for span in opened.spans.values()), size, opened.spans))


def _hours(stamps: pa.TimestampArray) -> np.ndarray[Any, np.dtype[np.int64]]:
    micros = stamps.cast(pa.int64())
    values: np.ndarray[Any, np.dtype[np.int64]] = (micros.fill_null(0) if micros.null_count else micros).to_numpy()
    hours = values // _HOUR_US
    return np.where((hours >= 0) & (hours <= LAST_HOUR), hours, 0)


def _widened(span: Span | None, begin: int, end: int, rows: int) -> Span:
    if span is None:
        return Span(begin, end, rows)
    return Span(min(span.begin, begin), max(span.end, end), span.rows + rows)


def count_files(folder: Folder, below: str, names: Sequence[str]) -> list[DataFile]:
    """Reads back which offsets these files hold (``names`` are below folder ``below``, in folders of topic and hour).

    RocketError when an offset of a queue is there twice, in one file or in two.
    """
    files, offsets_of = [], dict[Queue, list[Any]]()
    for name in names:
        topic = partition_of(f"{below}/{name}")[0]
        path = f"{below}/{name}"
        with folder.filesystem.open_input_file(folder.full(path)) as stream:
            file = pq.ParquetFile(stream, read_dictionary=["brokerName"], page_checksum_verification=True)
            table = file.read(columns=_PLACE)
        column = table.column("queueOffset").to_numpy()
        held = {queue: column[places] for queue, places in by_queue(topic, table)}
        for queue, offsets in held.items():
            offsets_of.setdefault(queue, []).append(offsets)
        counted = {queue: Span(int(at.min()), int(at.max()) + 1, len(at)) for queue, at in held.items()}
        files.append(DataFile(name, table.num_rows, folder.size(path), counted))
    for queue, parts in offsets_of.items():
        every = np.concatenate(parts)
        distinct = len(np.unique(every))
        if distinct != len(every):
            raise RocketError(f"{queue}: {len(every)} rows were written, of only {distinct} offsets")
    return files


def by_queue(
    topic: str, rows: pa.Table | pa.RecordBatch
) -> Iterator[tuple[Queue, np.ndarray[Any, np.dtype[np.int64]]]]:
    """At which places of ``rows``, in rising order, each queue is."""
    if not rows.num_rows:
        return
    brokers = rows.column("brokerName")
    brokers = (brokers.combine_chunks() if isinstance(brokers, pa.ChunkedArray) else brokers).dictionary_encode()
    names, ids = brokers.dictionary.to_pylist(), rows.column("queueId").to_numpy()
    keys = brokers.indices.to_numpy().astype(np.int64) << 32 | ids
    # Rows of a queue mostly stand together: runs of them are put in order, which are few.
    starts = np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1])
    runs = np.argsort(keys[starts], kind="stable")
    starts, lengths = starts[runs], np.diff(starts, append=len(keys))[runs]
    before = np.cumsum(lengths) - lengths
    order = np.repeat(starts - before, lengths) + np.arange(len(keys))
    values, firsts = np.unique(keys[starts], return_index=True)
    for key, places in zip(values.tolist(), np.split(order, before[firsts[1:]]), strict=True):
        yield Queue(topic, names[key >> 32], key & 0xFFFF_FFFF), places


def written_files(folder: Folder, below: str) -> list[DataFile]:
    """The Parquet files that Spark wrote to folder ``below``, counted."""
    names = [name.removeprefix(f"{below}/") for name in folder.walk(below)]
    data = [name for name in names if name.endswith(".parquet") and name.rpartition("/")[2][0] not in "._"]
    return count_files(folder, below, data)


def lasting(
    folder: Folder, files: Iterable[DataFile], staging: str, origin: FileOrigin
) -> tuple[list[DataFile], dict[str, str]]:
    """Files that were written below ``staging``, with their lasting paths and their tails, and the moves that bring
    them there. The names tell where they come from."""
    placed, moves = [], {}
    for file in files:
        where, _, name = file.path.rpartition("/")
        here, target = f"{staging}/{file.path}", f"{DATA}/{where}/{origin}-{name}"
        moves[here] = target
        tail, crc = tail_of(folder, here)
        placed.append(replace(file, path=target, tail=tail, crc=crc))
    return placed, moves


def tail_of(folder: Folder, name: str) -> tuple[int, int]:
    """What stands behind the last page of a Parquet file, where nothing has a checksum of its own (indexes and the
    footer, by which columns, pages and rows are found): how many bytes, and their CRC-32. Zeros in an object store,
    whose objects ``Folder.need`` does not look at."""
    if not folder.local:
        return 0, 0
    with folder.filesystem.open_input_file(folder.full(name)) as stream:
        metadata = pq.ParquetFile(stream).metadata
        end = len(b"PAR1")
        if metadata.num_row_groups:
            last = metadata.row_group(metadata.num_row_groups - 1)
            columns = [last.column(number) for number in range(last.num_columns)]
            begins = [each.dictionary_page_offset or each.data_page_offset for each in columns]
            end = max(begin + each.total_compressed_size for begin, each in zip(begins, columns, strict=True))
        data = stream.read_at(stream.size() - end, end)
    return len(data), crc32(data)
