"""How far what is on disk is behind the brokers: an archive, the table of a step, or the checkpoint of any streaming
query that reads RocketMQ. Offsets are read from files and asked of brokers; no session is needed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from aiorocket.client.pipeline.reading import unwrap
from aiorocket.errors import UsageError
from aiorocket.model import Queue
from aiorocket.spark import bridge, cluster
from aiorocket.spark.offsets import from_nested
from aiorocket.spark.options import SourceOptions
from aiorocket.spark.steps.files.folder import Folder
from aiorocket.spark.steps.files.manifest import Archive
from aiorocket.spark.steps.tables.table import Table

__all__ = ("Behind", "behind", "reached")


class Behind(NamedTuple):
    """One queue. ``reached`` is the next offset to be read, None for a queue that was never read; ``begin`` and ``end``
    are the broker's offsets, None for a queue that was read and is not there now: its broker is away, or no longer has
    it."""

    queue: Queue
    reached: int | None
    begin: int | None
    end: int | None

    @property
    def lag(self) -> int:
        """Messages that are there and not read."""
        return max(0, (self.end or 0) - max(self.begin or 0, self.reached or 0))

    @property
    def lost(self) -> int:
        """Messages that retention took before they were read."""
        return 0 if self.reached is None else max(0, (self.begin or 0) - self.reached)

    @property
    def ahead(self) -> int:
        """Messages that were read and that the broker does not have yet: it had others at these offsets."""
        return 0 if self.reached is None or self.end is None else max(0, self.reached - self.end)


def reached(path: str) -> dict[Queue, int]:
    """The next offset of each queue that the archive, the table or the checkpoint at ``path`` has read. UsageError when
    there is none of the three, or a checkpoint of other sources only."""
    table = Table.there(path)
    if table is not None:
        return {queue: end for queue, (_, end) in table.snapshot().ranges.items()}
    folder = Folder(path)
    if not folder.exists("offsets"):
        if not Archive.there(path):
            below = f"; there is one at {path}/archive" if Archive.there(f"{path}/archive") else ""
            raise UsageError(f"{path}: neither an archive nor a table of a step nor a checkpoint of Spark's{below}")
        return {queue: end for queue, (_, end) in Archive.open(path).snapshot().ranges().items()}
    done = [int(name) for name in folder.names("commits") if name.isdigit()]
    if not done:
        return {}
    found: dict[Queue, int] = {}
    # A version, the batch's own settings, then one line for each source of the query.
    for line in folder.read(f"offsets/{max(done)}").decode().splitlines()[2:]:
        for queue, end in _offsets(line).items():
            found[queue] = min(end, found.get(queue, end))
    if not found:
        raise UsageError(f"{path}: the checkpoint of a query that reads no RocketMQ")
    return found


def behind(
    name_server: str, path: str, topic: str | None = None, *, timeout: float = 30.0, **options: object
) -> list[Behind]:
    """Each queue of the topics that ``path`` is of (``topic``, several with commas between, when it has not read any
    yet): those that the route lists, and those that were read once. ``options`` are the source's (``accessKey``,
    ``tls``, ``namespace``). UsageError as of ``reached``, and when nobody says which topic; TopicNotFoundError for one
    that is gone."""
    known = reached(path)
    text = {name: str(value) for name, value in options.items()}
    names = {queue.topic for queue in known}
    if topic is None and not names:
        raise UsageError(f"{path}: nothing was read yet; say the topic whose messages are meant")
    first = SourceOptions.parse({"nameServer": name_server, "topic": topic or "any", **text})
    namespace = first.connection.namespace
    # An archive has the names as they are stored, a checkpoint as they are asked for.
    here = {queue._replace(topic=unwrap(namespace, queue.topic)): end for queue, end in known.items()}
    wanted = topic or ",".join(sorted({queue.topic for queue in here}))
    settings = SourceOptions.parse({"nameServer": name_server, "topic": wanted, **text})
    return bridge.call(_behind, settings, here, timeout=timeout)


async def _behind(settings: SourceOptions, here: Mapping[Queue, int]) -> list[Behind]:
    client = await bridge.client(settings.connection)
    bounds = await cluster.bounds(client, await cluster.queues(client, settings, here))
    # Of a topic that has fewer queues now, or of a broker that is away, the route lists nothing.
    unlisted = {queue for queue in here.keys() - bounds.keys() if cluster.asked_for(settings, queue)}
    bounds |= await cluster.bounds(client, unlisted, failures={})
    nothing = (None, None)
    return [Behind(queue, here.get(queue), *bounds.get(queue, nothing)) for queue in sorted(bounds.keys() | unlisted)]


def _offsets(line: str) -> dict[Queue, int]:
    try:
        value = json.loads(line)
        return from_nested(value) if isinstance(value, dict) else {}
    except (ValueError, UsageError):
        return {}
