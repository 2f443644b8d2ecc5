"""What checksum files say of queues, read along the log: how many numbers each had given behind a group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from aiorocket.runtime.disk import Disk
from aiorocket.storage.checksums import parse_counts, read_counts
from aiorocket.storage.compaction import sums_that_fit

__all__ = ("Counts",)


class Counts:
    """Of the segments in ``directory`` that begin at ``bases``, without those that end at or before log offset
    ``offset``. Nothing is read before somebody asks."""

    def __init__(self, disk: Disk, directory: str, bases: Sequence[int], offset: int) -> None:
        self._blocks = _blocks(disk, directory, bases, offset)
        self._ahead: tuple[int, bytes] | None = (offset, b"")

    def upto(self, offset: int, deleted: Mapping[str, int]) -> dict[tuple[str, int], tuple[int, int]]:
        """(Topic, queue id) -> what the first and the last block say of a queue, of those that end at or below log
        offset ``offset`` and behind what the call before was told; ``deleted`` topics count from an offset on."""
        found: dict[tuple[str, int], tuple[int, int]] = {}
        while self._ahead is not None and self._ahead[0] <= offset:
            end, counts = self._ahead
            for topic, queue_id, count in parse_counts(counts):
                if end > deleted.get(topic, 0):
                    first, last = found.get((topic, queue_id), (count, count))
                    found[topic, queue_id] = (first if last <= count else count), count  # else it was made again
            self._ahead = next(self._blocks, None)
        return found

    def end(self) -> int:
        """The log offset up to which they say something; 0 if nowhere. Nothing is left to ask for then."""
        return max((end for end, _ in self._blocks), default=0)


def _blocks(disk: Disk, directory: str, bases: Sequence[int], offset: int) -> Iterator[tuple[int, bytes]]:
    for number, base in enumerate(bases):
        if number + 1 == len(bases) or bases[number + 1] > offset:
            yield from read_counts(disk, sums_that_fit(disk, f"{directory}/{base:020d}"), base)
