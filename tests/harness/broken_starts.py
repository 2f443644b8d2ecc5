"""Starts that are broken off while they deal with damage: the next one has to find, and to say, what one from beginning
to end would have.

    python -m tests.harness.broken_starts --places 10000
    python -m tests.harness.broken_starts --places 1 --first 4711    one place again

A place is a number: it draws a store and its damage as ``damage.py`` does, every other time in two files, and at which
calls of the disk the process is killed, or the power cut, once or twice. A torn tail may keep a message more: once its
checksums are cut, it is looked at record by record and not by what was written together.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
from types import MappingProxyType

from aiorocket.runtime.entropy import Entropy
from aiorocket.runtime.env import Env
from aiorocket.storage import StoreBusyError
from aiorocket.storage.opening import _open as open_blocking
from aiorocket.testing import SimClock, SimDisk, SimLoop
from tests.harness.damage import QUEUES, Damage, Image, Queue, draw_damage, images, read_all
from tests.storage.stores import config, opened

__all__ = ("one_start", "run")


class _DiedError(BaseException):
    """The process ended at a call of the disk."""


class _Disk(SimDisk):
    """``left`` calls, then the process dies."""

    left = 1 << 62

    def call(self, what: str, path: str) -> None:
        self.left -= 1
        if self.left < 0:
            raise _DiedError
        super().call(what, path)


def _disk(damage: Damage, seed: int) -> _Disk:
    disk = _Disk(seed)
    disk.directories.update(damage.image.directories)
    for path, data in damage.files.items():
        file = disk.open(path, create=True)
        file.pwritev([data], 0)
        file.fdatasync()
    for directory in damage.image.directories:
        disk.fsync_dir(directory)
    return disk


def _two(all_images: list[Image], place: int) -> Damage:
    """Every other time a second file is damaged too."""
    damage = draw_damage(all_images, place)
    image = damage.image
    more = place * 1000 + 1_000_000_000
    while place % 2:
        second = draw_damage([image], more)
        more += 1
        changed = [path for path in image.files if second.files.get(path) != image.files[path]]
        if changed and all(damage.files.get(path) == image.files[path] for path in changed):
            files = {path: data for path, data in damage.files.items() if path not in changed}
            files.update({path: second.files[path] for path in changed if path in second.files})
            return Damage(image, f"{damage.kind} in {damage.path} and {second.kind}", second.path, files)
    return damage


class _Start:
    """What a start found: records and bounds of each queue, the bytes that are damaged."""

    def __init__(self, disk: SimDisk, seed: int) -> None:
        self.found: dict[Queue, dict[int, bytes]] = {}
        self.bounds: dict[Queue, tuple[int, int]] = {}
        self.damaged: list[tuple[int, int]] = []
        self.cut = 0
        loop = SimLoop(seed)
        try:
            loop.run_until_complete(self._look(Env(SimClock(loop), Entropy(seed), disk)))
        finally:
            loop.close()

    async def _look(self, env: Env) -> None:
        store = await opened(env, checkpoint_interval=1000, scrub_rate=0)
        self.cut = store.recovery.truncated_bytes
        for queue in QUEUES:
            while queue not in self.found:
                try:
                    self.found[queue] = await read_all(store, queue)
                except StoreBusyError:
                    await asyncio.sleep(0.01)
            self.bounds[queue] = store.min_offset(*queue), store.max_offset(*queue)
        for bad in store._log.damage:
            low, high = bad.offset, bad.end
            if self.damaged and self.damaged[-1][1] >= low:
                low, high = self.damaged[-1][0], max(high, self.damaged.pop()[1])
            self.damaged.append((low, high))
        await store.close()


def one_start(all_images: list[Image], place: int) -> Damage:
    """Damage a store, break starts off, and compare; AssertionError says what differs."""
    draw = random.Random(f"broken off {place}")
    damage = _two(all_images, place)
    whole = _Start(_disk(damage, place), place)
    counted = _disk(damage, place)
    before = counted.calls
    open_blocking(counted, config(), "store", MappingProxyType({}), [])
    disk = _disk(damage, place)
    for _ in range(draw.choice((1, 1, 2))):
        disk.left = draw.randrange(counted.calls - before)
        try:
            open_blocking(disk, config(), "store", MappingProxyType({}), [])
        except _DiedError:
            pass
        disk.left = 1 << 62
        if draw.random() < 0.5:
            disk.crash()
        else:
            disk.process_died()
    again = _Start(disk, place)
    image = damage.image
    known = all(damage.files.get(path) == data for path, data in image.files.items() if "checkpoint" in path)
    for queue in QUEUES:
        first, then = whole.found[queue], again.found[queue]
        if not whole.cut and known:  # an older checkpoint may be from before retention
            assert whole.bounds[queue] == again.bounds[queue], f"{queue}: {whole.bounds[queue]}, {again.bounds[queue]}"
        for offset in {**first, **then}:
            torn = bool(whole.cut) and offset >= whole.bounds[queue][1]
            stored = image.stored[queue][offset][1] if offset in image.stored[queue] else None
            same = then.get(offset) == (stored if torn else first.get(offset))
            assert same or (not image.sums and torn), f"{queue} {offset} differs"
    ends = [(low, high) for low, high in whole.damaged if not any(a <= low < b for a, b in again.damaged)]
    assert not ends, f"nobody says any more that {ends} are damaged"
    return damage


def run(first: int, places: int) -> int:
    """How many places there are where it differs; each is printed."""
    all_images = asyncio.run(images())
    failed = 0
    for place in range(first, first + places):
        try:
            one_start(all_images, place)
        except Exception as error:  # noqa: BLE001 - each is a finding; the next place shall have its turn
            failed += 1
            print(f"place {place}: {_two(all_images, place)}: {type(error).__name__}: {error}", flush=True)
        if (done := place - first + 1) % 500 == 0 and done < places:
            print(f"{done} of {places} places, {failed} findings", flush=True)
    print(f"{places} places, {failed} findings")
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description="Break off starts of damaged stores and compare what the next finds.")
    parser.add_argument("--places", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the first place, to go on or to see one again")
    options = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL if options.places > 1 else logging.INFO)
    sys.exit(1 if run(options.first, options.places) else 0)


if __name__ == "__main__":
    main()
