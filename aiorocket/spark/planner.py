"""Decides what a micro-batch reads and which task reads what: pure arithmetic on offsets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from aiorocket.model import Queue

if TYPE_CHECKING:
    from aiorocket.spark.options import SourceOptions

__all__ = ("MERGE_ROWS", "SPLIT_ROWS", "QueueRange", "admit", "plan")

#: One more task costs a micro-batch about as much as this many rows cost to decode (measured: some 25 ms on two
#: cores), so fewer rows than this are not shared out.
MERGE_ROWS = 8_192
#: The most that one task reads, a second's worth: a long topic has tasks for executors that nobody told of, as Spark's
#: own files have by their size; and one that fails reads less again.
SPLIT_ROWS = 500_000
#: A cut moves to the end of a queue that is this near, as a share of a partition: no slivers.
_SNAP = 0.1


class QueueRange(NamedTuple):
    """The messages of ``queue`` from ``begin`` up to ``end``, which is not one of them."""

    queue: Queue
    begin: int
    end: int


def plan(
    ranges: Iterable[QueueRange], *, cores: int, options: SourceOptions, split: int = SPLIT_ROWS
) -> list[tuple[QueueRange, ...]]:
    """One tuple for each Spark partition; together they are ``ranges``, without the empty ones, each row once.

    The rows are laid end to end in queue order and cut into equal parts, so short queues share a partition and long
    ones are split. How many parts: ``rowsPerPartition`` at most in each, else one a core once there are ``MERGE_ROWS``
    for each, and none above ``split``; not below ``minPartitions`` and, before all else, not above
    ``maxPartitions``.
    """
    wanted = sorted(part for part in ranges if part.begin < part.end)
    ends = list(accumulate(part.end - part.begin for part in wanted))
    if not wanted:
        return []
    rows = ends[-1]
    count = _partitions(rows, cores, options, split)
    snap = 0 if options.rows_per_partition else int(rows / count * _SNAP)
    partitions: list[tuple[QueueRange, ...]] = []
    index = done = 0
    for number in range(1, count + 1):
        cut = _snapped(rows * number // count, ends, snap)
        partition: list[QueueRange] = []
        while done < cut:
            queue, _, end = wanted[index]
            upto = min(cut, ends[index])
            # Counted from the end of the queue's share: `done` may lie within it.
            partition.append(QueueRange(queue, end - (ends[index] - done), end - (ends[index] - upto)))
            done = upto
            index += done == ends[index]
        partitions.append(tuple(partition))
    return partitions


def _partitions(rows: int, cores: int, options: SourceOptions, split: int) -> int:
    if options.rows_per_partition:
        count = -(-rows // options.rows_per_partition)
    else:
        count = max(min(cores, rows // MERGE_ROWS), -(-rows // split))
    count = max(count, options.min_partitions or 1)
    return min(count, options.max_partitions or count, rows)


def _snapped(cut: int, ends: list[int], snap: int) -> int:
    at = bisect_left(ends, cut)
    near = min(ends[max(0, at - 1) : at + 1], key=lambda end: abs(end - cut))
    return near if abs(near - cut) <= snap else cut


def admit(start: Mapping[Queue, int], latest: Mapping[Queue, int], max_rows: int) -> dict[Queue, int]:
    """Where a batch of at most ``max_rows`` ends: an offset for every queue of ``latest``, not beyond it.

    Each queue gets rows in proportion to what it has, and one at least while ``max_rows`` allows that; when it does
    not, the queues take turns. A queue that ``start`` does not know ends at its ``latest``, uncounted, and one that is
    at the end or beyond it stays at its start.
    """
    behind = ((queue, latest[queue] - start.get(queue, latest[queue])) for queue in sorted(latest))
    waiting = {queue: rows for queue, rows in behind if rows > 0}
    total = sum(waiting.values())
    if total <= max_rows:
        return {queue: max(end, start.get(queue, end)) for queue, end in latest.items()}
    given = _shares(waiting, max_rows, turn=sum(start[queue] for queue in waiting))
    return {queue: start.get(queue, end) + given.get(queue, 0) for queue, end in latest.items()}


def _shares(waiting: Mapping[Queue, int], rows: int, *, turn: int) -> dict[Queue, int]:
    count = len(waiting)
    if rows <= count:
        # The sum of the offsets moves on by `rows` with each batch, and the turn with it: nobody is left out for good.
        order = list(waiting)
        return {order[(turn + step) % count]: 1 for step in range(rows)}
    spare, more = rows - count, sum(waiting.values()) - count
    given = {queue: 1 + spare * (size - 1) // more for queue, size in waiting.items()}
    left = rows - sum(given.values())
    remainders = sorted(waiting, key=lambda queue: (-(spare * (waiting[queue] - 1) % more), queue))
    for queue in remainders[:left]:
        given[queue] += 1
    return given
