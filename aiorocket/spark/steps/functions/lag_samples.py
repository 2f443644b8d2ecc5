"""How far behind a consumer group is, asked of the brokers: one sample now. Called again and again it becomes a table
over time (``latency.lag_table``, ``plots.draw``)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from aiorocket.errors import UsageError
from aiorocket.model import Queue, check_group
from aiorocket.spark import bridge, cluster
from aiorocket.spark.options import SourceOptions

__all__ = ("LagSample", "sample_lag")


class LagSample(NamedTuple):
    """One queue at one moment (``at_ms``: the clock of this machine). ``committed`` is the next offset the group will
    read, None when its broker knows none; ``begin`` and ``end`` are the queue's offsets."""

    at_ms: int
    group: str
    queue: Queue
    committed: int | None
    begin: int
    end: int

    @property
    def lag(self) -> int:
        """Messages not consumed yet and still there; all of them for a group that has not committed."""
        return max(0, self.end - max(self.begin, self.committed or 0))

    def row(self) -> tuple[object, ...]:
        """As ``latency.lag_table`` has it."""
        taken = datetime.fromtimestamp(self.at_ms / 1000, UTC)
        return (taken, self.group, *self.queue, self.committed, self.begin, self.end, self.lag)


def sample_lag(
    name_server: str, group: str, topics: str | Sequence[str], *, timeout: float = 30.0, **options: object
) -> list[LagSample]:
    """The lag of ``group`` in each queue of ``topics`` now. ``options`` are those of the source (``accessKey``,
    ``tls``, ``namespace``). TopicNotFoundError names a topic that is not there; other errors as of ``cluster``."""
    check_group(group)
    names = [topics] if isinstance(topics, str) else list(topics)
    if not names:
        raise UsageError("sample_lag: name a topic at least")
    settings = SourceOptions.parse(
        {"nameServer": name_server, "topic": ",".join(names), **{name: str(value) for name, value in options.items()}}
    )
    return bridge.call(_sample, settings, group, timeout=timeout)


async def _sample(settings: SourceOptions, group: str) -> list[LagSample]:
    client = await bridge.client(settings.connection)
    queues = await cluster.queues(client, settings)
    # The offsets first: what is committed in between must not look like more than there is.
    committed = await cluster.committed(client, group, queues)
    bounds = await cluster.bounds(client, queues)
    now = client.env.clock.wall_ms()
    return [
        LagSample(now, group, queue, committed.get(queue), bounds[queue].begin, bounds[queue].end)
        for queue in queues
        if queue in bounds
    ]
