"""Reading full segments again now and then, so that damage is found while the message may still be elsewhere.

Slow on purpose: a piece at a time in the writer's thread, ``scrub_rate`` bytes a second. Segments without checksums (of
format 1, or whose file was damaged) are looked through record by record and get some.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from itertools import islice

from aiorocket.config import StoreConfig
from aiorocket.runtime.disk import Disk
from aiorocket.storage.checksums import Checksums, encode_block, encode_head, load, sums_path
from aiorocket.storage.damage import spoiled
from aiorocket.storage.files import read_pages
from aiorocket.storage.segment import Segment
from aiorocket.storage.walk import Bad, Found, walk
from aiorocket.storage.written import WrittenLog
from aiorocket_protocol import BLANK_SIZE

__all__ = ("Scrub",)

_LOG = logging.getLogger("aiorocket.storage")
_PIECE = 256 * 1024
_RECORDS = 512
#: Seconds after a start before the first pass.
_DELAY = 60.0


class Scrub:
    """Passes over all full segments, one after the other."""

    def __init__(self, disk: Disk, config: StoreConfig, log: WrittenLog) -> None:
        self._disk = disk
        self._log = log
        self._rate = config.scrub_rate
        self._interval = config.scrub_interval
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._arm(_DELAY)

    def _arm(self, delay: float) -> None:
        if self._rate:
            self._timer = self._loop.call_later(delay, self._begin)

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._pass(), name="store scrub")

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _pass(self) -> None:
        try:
            await self.once()
        except OSError as error:
            _LOG.error("scrubbing stopped for now: %s", error)
        self._arm(self._interval)

    async def once(self) -> None:
        """One pass over all full segments. OSError passes."""
        for segment in list(self._log.segments):
            if segment.end <= self._log.written and segment in self._log.segments:
                await self._segment(segment)

    async def _segment(self, segment: Segment) -> None:
        sums = await self._disk.run(load, self._disk, sums_path(segment.path), segment.base)
        if sums is None:
            await self._make(segment)
            return
        for low in range(0, sums.last[0], _PIECE):
            differs = await self._disk.run(_differs, self._disk, segment.path, sums, low)
            if segment not in self._log.segments:
                return  # retention took it
            if differs:
                # Compaction may have exchanged both files meanwhile; on the loop they fit each other.
                self._log.checked(segment.base + low, _PIECE)
                sums = await self._disk.run(load, self._disk, sums_path(segment.path), segment.base) or sums
            await asyncio.sleep(_PIECE / self._rate)

    async def _make(self, segment: Segment) -> None:
        """Checksums for a segment that has none, of what its records say."""
        items = walk(self._disk, segment.path, segment.base, segment.capacity, None, segment.base)
        sums, rows = Checksums(), list[int]()
        end = segment.base
        try:
            while batch := await self._disk.run(_next, items):
                for item in batch:
                    if isinstance(item, Bad):
                        self._log.found_damage(item)
                    else:
                        end = item.offset + item.size
                await asyncio.sleep(sum(_size(item) for item in batch) / self._rate)
        finally:
            items.close()
        end = min(end + BLANK_SIZE, segment.end) - segment.base
        for low in range(0, end, _PIECE):
            # A kill may come before a checkpoint knows of the damage.
            damage = list(self._log.damage)
            rows += await self._disk.run(_cover, self._disk, segment, sums, low, min(_PIECE, end - low), damage)
        if segment in self._log.segments:
            data = encode_head(segment.base) + encode_block(rows, segment.base, 0, 0) + sums.summary(segment.base, 0, 0)
            await self._disk.run(self._disk.replace, sums_path(segment.path), data)
            self._log.unchecked.pop(segment, None)
            _LOG.warning("%s has checksums now, made of what its records say", segment.path)


def _size(item: Found | Bad) -> int:
    return item.size if isinstance(item, Found) else 0


def _next(items: Generator[Found | Bad]) -> list[Found | Bad]:
    return list(islice(items, _RECORDS))


def _differs(disk: Disk, path: str, sums: Checksums, low: int) -> bool:
    """Blocking: whether a piece of a segment is not what was written."""
    size = min(_PIECE, sums.last[0] - low)
    try:
        file = disk.open(path)
    except FileNotFoundError:
        data = b""
    else:
        try:
            data = read_pages(file, low, size)
        finally:
            file.close()
    data += bytes(size - len(data))
    return bool(sums.wrong(data, low, sums.last))


def _cover(disk: Disk, segment: Segment, sums: Checksums, low: int, size: int, damage: list[Bad]) -> list[int]:
    file = disk.open(segment.path)
    try:
        data = read_pages(file, low, size)
    finally:
        file.close()
    return sums.add(spoiled(data + bytes(size - len(data)), segment.base + low, damage))
