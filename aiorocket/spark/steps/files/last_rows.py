"""When the last row that an archive has of a queue was stored: what a broker has at that offset is of the same time, or
it is another queue of that name, as of a topic that was made anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from aiorocket.client.pipeline.reading import unwrap, wrap
from aiorocket.errors import RocketError
from aiorocket.model import Queue
from aiorocket.spark import bridge, cluster
from aiorocket.spark.options import SourceOptions
from aiorocket.spark.steps.files.hours import by_queue
from aiorocket.spark.steps.files.manifest import Archive, DataFile, Snapshot, partition_of

__all__ = ("LastRow", "last_rows", "stored_at")


class LastRow(NamedTuple):
    """``stored_ms`` is the broker's stamp, in milliseconds since 1970 UTC."""

    offset: int
    stored_ms: int


def last_rows(archive: Archive, snapshot: Snapshot, ranges: Mapping[Queue, tuple[int, int]]) -> dict[Queue, LastRow]:
    """Of each queue whose last archived row is in its range ``[begin, end)``. Left out are stamps that no timestamp
    holds, and files that cannot be read: that is for ``verify`` to tell, and what is new has to be archived."""
    newest: dict[Queue, DataFile] = {}
    for file in snapshot.files:
        for queue, span in file.queues.items():
            if queue not in newest or span.end > newest[queue].queues[queue].end:
                newest[queue] = file
    ends: dict[str, dict[Queue, int]] = {}
    for queue, (begin, end) in ranges.items():
        if queue in newest and begin < newest[queue].queues[queue].end <= end:
            ends.setdefault(newest[queue].path, {})[queue] = newest[queue].queues[queue].end
    found = {}
    for path, wanted in ends.items():
        try:
            archive.folder.need([file for file in newest.values() if file.path == path][:1])
            rows = pq.read_table(
                archive.folder.full(path), filesystem=archive.folder.filesystem, partitioning=None,
                page_checksum_verification=True,
                columns=["brokerName", "queueId", "queueOffset", "storeTimestamp"],
                filters=[("queueOffset", "in", [end - 1 for end in wanted.values()])],
            )  # fmt: skip
        except (OSError, pa.ArrowException, RocketError):
            continue
        offsets = rows.column("queueOffset").to_numpy()
        for queue, places in by_queue(partition_of(path)[0], rows):
            at = places[offsets[places] == wanted.get(queue, 0) - 1]
            stored = rows.column("storeTimestamp")[int(at[0])].cast(pa.int64()).as_py() if len(at) else None
            if stored is not None:
                found[queue] = LastRow(int(offsets[at[0]]), stored // 1000)
    return found


def stored_at(options: SourceOptions, offsets: Mapping[Queue, int]) -> dict[Queue, int | None]:
    """What brokers have there: as ``cluster.stored_at``, of topics by the names they are stored under."""
    namespace = options.connection.namespace
    asked = {queue._replace(topic=unwrap(namespace, queue.topic)): offset for queue, offset in offsets.items()}
    found = bridge.call(_stored_at, options, asked) if asked else {}
    return {queue._replace(topic=wrap(namespace, queue.topic)): stored for queue, stored in found.items()}


async def _stored_at(options: SourceOptions, offsets: Mapping[Queue, int]) -> dict[Queue, int | None]:
    return await cluster.stored_at(await bridge.client(options.connection), offsets)
