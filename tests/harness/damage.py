"""Stores that a disk has damaged, opened and read: what is served, what is missing, what was said.

    python -m tests.harness.damage --places 100000            every kind of damage in every file
    python -m tests.harness.damage --places 1 --first 4711    one place again

A place is a number: it draws the store (clean stop or killed, flush mode, with or without checksum files, before or
after retention), the file, the kind of damage and where: segments, their checksums, units, checkpoints, parts of the
key index, and what retention notes. The oracle knows nothing of the store but the records as they were acknowledged
and the bytes that were changed. For each place:

* no record is served that differs from the one that was acknowledged there (its body, where a segment and its checksum
  file are damaged at once);
* every record whose bytes are unchanged is served, to a filter for its tag too; in a killed store a record behind the
  last durable mark may be cut off, which the recovery says;
* every record that is not served is accounted for: by a damaged range, or by the bytes that recovery cut;
* a lookup in the key index finds what is served;
* the store opens, takes a message, and says the same when it is opened again;
* the reports name every message that is lost by topic, queue and offset, no other one and none that is served, and no
  offset is given again. Where units of the queue are damaged too, the line that says that they are made again has the
  count. Not so where a segment and its checksum file are damaged at once, and in a store without checksum files, as one
  of format 1 is: what came behind the last checkpoint of one that was killed only the log knows, and of one that was
  stopped only its checkpoint. How often is counted and printed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
import time
from collections import Counter
from typing import NamedTuple

from aiorocket.errors import ProtocolError
from aiorocket.runtime.env import Env, memory_env
from aiorocket.runtime.memory_disk import MemoryDisk
from aiorocket.storage import MessageStore, ReadStatus, StoreBusyError
from aiorocket_protocol import RecordView, split_records, tags_code
from tests.storage.stores import opened, put, put_batch

__all__ = ("Image", "images", "one_place")

Queue = tuple[str, int]
LOG = "/store/commitlog/"
KINDS = ("flip", "byte", "zero", "garbage", "swap", "repeat", "cut out", "truncate", "delete")
QUEUES: tuple[Queue, ...] = (("T", 0), ("T", 1), ("%RETRY%g", 0))


class Image(NamedTuple):
    """Files of a store, and what it had acknowledged: (log offset, record) by queue and offset."""

    name: str
    files: dict[str, bytes]
    directories: dict[str, None]
    stored: dict[Queue, dict[int, tuple[int, bytes]]]
    #: Where the queues begin: retention has taken what is before.
    begins: dict[Queue, int]
    #: From here on the log was not known to be durable when the process was killed.
    unsure: int
    #: There are checksum files. Without them (a store of format 1) heads and properties are not protected.
    sums: bool
    #: Log offsets of a batch -> where it begins and ends: it is protected as a whole.
    batches: dict[int, tuple[int, int]]


async def _image(
    name: str, flush: str, *, killed: bool, seed: int, sums: bool = True, turns: int = 60, kept: int = 0
) -> Image:
    """``kept`` bytes of the log stay, if that is not 0, when retention comes by; what waits for its retry too."""
    draw = random.Random(seed)
    env = memory_env()
    assert isinstance(env.disk, MemoryDisk)
    store = await opened(env, flush=flush, checkpoint_interval=1000, flush_interval=1000, max_log_bytes=kept)
    store.keys._entries = 16
    store.retention.needed = lambda: {("%RETRY%g", 0): 40}
    stored: dict[Queue, dict[int, tuple[int, bytes]]] = {queue: {} for queue in QUEUES}
    number = 0
    last = 0
    rows: list[tuple[int, ...]] = []
    for turn in range(turns):
        if turn == turns - 20:
            await _found(store)  # which makes parts of the index
            if kept:
                _note(store, stored)
                await store.retention.sweep()
            await store._behind._checkpoint(clean=False)
        waiting = []
        for _ in range(draw.randrange(1, 4)):
            topic, queue_id = draw.choice(QUEUES)
            number += 1
            if draw.random() < 0.2:
                bodies = [b"%d.%d|" % (number, index) * draw.randrange(1, 60) for index in range(3)]
                waiting.append(put_batch(store, bodies, topic, queue_id))
            else:
                body = b"%d|" % number * draw.randrange(1, 400)
                waiting.append(put(store, topic, queue_id, body, draw.choice(["", "A", "B"])))
        results = [await result for result in waiting]
        last = min(result.physical_offset for result in results)
        rows += [result.physical_offsets for result in results if result.physical_offsets]
    if not killed:
        await store.close()
    disk = env.disk
    files = {path: bytes(data) for path, data in disk.files.items() if sums or not path.endswith(".sums")}
    if seed % 2:  # as on a disk that reserves space
        files.update({path: data.ljust(65_536, b"\0") for path, data in files.items() if path[len(LOG) :].isdigit()})
    source = store
    if not killed:
        source = await opened(_env(files, disk.directories))
    _note(source, stored)
    begins = {queue: source.min_offset(*queue) for queue in QUEUES}
    await source.close()
    sizes = {place: len(record) for records in stored.values() for place, record in records.values()}
    batches = {place: (row[0], row[-1] + sizes[row[-1]]) for row in rows for place in row}
    unsure = last if killed else 1 << 62
    if killed and (flush == "async" or not sums):
        # Nothing was synced since the last checkpoint or the last roll, or nothing that says so is left.
        segments = [int(path[len(LOG) :]) for path, data in files.items() if path[len(LOG) :].isdigit() and any(data)]
        unsure = max(segments)
    return Image(name, files, dict(disk.directories), stored, begins, unsure, sums, batches)


def _note(store: MessageStore, stored: dict[Queue, dict[int, tuple[int, bytes]]]) -> None:
    for (topic, queue_id), records in stored.items():
        first = store.min_offset(topic, queue_id)
        for offset, (place, _, _) in enumerate(store.entries(topic, queue_id, first, 10_000), first):
            records[offset] = place, store.read_record(place) or b""


async def _found(store: MessageStore) -> set[bytes]:
    """What the key index has of the messages with the tag A."""
    found = set()
    for topic in ("T", "%RETRY%g"):
        looked = await store.keys.find(topic, "A", 0, 1 << 62, tag=True, limit=10_000, max_bytes=1 << 30)
        found.update(looked.records)
    return found


def _env(files: dict[str, bytes], directories: dict[str, None]) -> Env:
    env = memory_env()
    assert isinstance(env.disk, MemoryDisk)
    env.disk.files = {path: bytearray(data) for path, data in files.items()}
    env.disk.directories = dict(directories)
    return env


async def images() -> list[Image]:
    return [
        await _image("clean", "sync", killed=False, seed=1),
        await _image("killed", "sync", killed=True, seed=2),
        await _image("killed async", "async", killed=True, seed=3),
        await _image("clean, retained", "sync", killed=False, seed=6, turns=180, kept=100_000),
        await _image("killed, retained", "sync", killed=True, seed=7, turns=180, kept=100_000),
        await _image("clean, no checksums", "sync", killed=False, sums=False, seed=4),
        await _image("killed, no checksums", "sync", killed=True, sums=False, seed=5),
    ]


class Damage(NamedTuple):
    image: Image
    kind: str
    path: str
    files: dict[str, bytes]
    #: Messages of which no report says that they are lost.
    unnamed: int = 0

    def __str__(self) -> str:
        return f"{self.image.name}: {self.kind} in {self.path}"


def draw_damage(all_images: list[Image], place: int) -> Damage:
    draw = random.Random(place)
    image = draw.choice(all_images)
    kind = draw.choice(KINDS)
    files = dict(image.files)
    path = draw.choice([path for path, data in files.items() if data and not path.endswith("/lock")])
    data = bytearray(files[path])
    used = len(data.rstrip(b"\0")) or len(data)
    at = draw.randrange(used)
    width = draw.choice([1, 20, 512, 4096])
    if kind == "flip":
        data[at] ^= 1 << draw.randrange(8)
    elif kind == "byte":
        data[at] = draw.randrange(256)
    elif kind == "zero":
        at -= at % min(width, 512)
        data[at : at + width] = bytes(len(data[at : at + width]))
    elif kind == "garbage":
        data[at : at + width] = draw.randbytes(len(data[at : at + width]))
    elif kind == "swap":
        other = draw.choice([name for name in files if files[name] and not name.endswith("/lock")])
        there = data if other == path else bytearray(files[other])
        to = draw.randrange(len(there))
        width = min(width, len(data) - at, len(there) - to)
        if other != path or abs(at - to) >= width:
            data[at : at + width], there[to : to + width] = there[to : to + width], data[at : at + width]
        files[other] = bytes(there)
    elif kind == "repeat":
        source = draw.randrange(used)
        width = min(width, len(data) - at, len(data) - source)
        data[at : at + width] = data[source : source + width]
    elif kind == "cut out":
        del data[at : at + width]
    elif kind == "truncate":
        del data[at:]
    if kind == "delete":
        del files[path]
    else:
        files[path] = bytes(data)
    return Damage(image, kind, path, files)


def _unchanged(damage: Damage, place: int, record: bytes) -> bool:
    """Whether a record, or the batch it was sent in, still stands where it was stored."""
    image = damage.image
    start, end = image.batches.get(place, (place, place + len(record)))
    bases = [int(path[len(LOG) :]) for path in image.files if path[len(LOG) :].isdigit()]
    base = max(base for base in bases if base <= place)
    path = f"{LOG}{base:020d}"
    was, now = image.files[path][start - base : end - base], damage.files.get(path, b"")[start - base : end - base]
    return was == now


def _both(damage: Damage, place: int) -> bool:
    """Whether a segment and its checksum file are damaged at once: then a page is lost as a whole, and how far the log
    was durable is not on record. Without checksum files that is so for any two files."""
    if not damage.image.sums:
        return sum(damage.files.get(path) != data for path, data in damage.image.files.items()) > 1
    base = f"{LOG}{place // 65_536 * 65_536:020d}"
    return all(damage.files.get(path) != damage.image.files.get(path) for path in (base, base + ".sums"))


def _tag(record: bytes) -> str:
    try:
        return RecordView(record, 0, len(record)).tag or ""
    except ProtocolError:  # without checksums properties are not protected
        return ""


def _body(record: bytes) -> bytes:
    return RecordView(record, 0, len(record)).raw_body


async def read_all(store: MessageStore, queue: Queue, tag: str = "") -> dict[int, bytes]:
    """What a consumer gets of a queue, all or what has a tag: records by offset."""
    code = tags_code(tag)
    found: dict[int, bytes] = {}
    topic, queue_id = queue
    offset = store.min_offset(topic, queue_id)
    tries = 0
    while offset < store.max_offset(topic, queue_id):
        try:
            result = store.read(topic, queue_id, offset, 7, 1 << 20, code.__eq__ if tag else None)
        except StoreBusyError:
            tries += 1
            if tries > 2000:
                raise
            await asyncio.sleep(0)
            continue
        tries = 0
        if result.next_offset <= offset:
            raise AssertionError(f"a read at {offset} goes on at {result.next_offset}: {result.status}")
        if result.status is ReadStatus.FOUND:
            for view in split_records(result.data):
                found[view.queue_offset] = view.buffer[view.start : view.end]
        offset = result.next_offset
    return found


def _named(store: MessageStore) -> set[tuple[Queue, int]]:
    """The messages that reports name."""
    return {
        ((topic, queue_id), offset)
        for damage in store.damaged
        for topic, queue_id, first, count in damage.lost
        for offset in range(first, first + count)
    }


def _promised(store: MessageStore, damage: Damage) -> tuple[set[tuple[Queue, int]], set[tuple[Queue, int]]]:
    """The messages that are known to be durable if the log was cut; all of them, and those that have to be named."""
    image, cut = damage.image, store.recovery.truncated_bytes
    rows = [
        (queue, offset, at)
        for queue, records in image.stored.items()
        for offset, (at, _) in records.items()
        if offset >= image.begins[queue] and not (cut and at >= image.unsure)
    ]
    strict = image.sums or (image.name.startswith("clean") and _is_intact(damage, "/checkpoint"))
    both = {base for base in {at // 65_536 for _, _, at in rows} if image.sums and _both(damage, base * 65_536)}
    named = {(queue, offset) for queue, offset, at in rows if strict and at // 65_536 not in both}
    return {(queue, offset) for queue, offset, _ in rows}, named


def _is_intact(damage: Damage, what: str) -> bool:
    """Whether all files are as they were that have this in their path."""
    return all(damage.files.get(path) == data for path, data in damage.image.files.items() if what in path)


async def one_place(all_images: list[Image], place: int) -> Damage:
    """Damage a store and judge what comes of it; AssertionError says what is wrong."""
    damage = draw_damage(all_images, place)
    unnamed = 0
    image = damage.image
    env = _env(damage.files, image.directories)
    earlier: dict[Queue, dict[int, bytes]] = {}
    cut = 0
    for start in range(2):
        store = await opened(env, checkpoint_interval=1000)
        cut += store.recovery.truncated_bytes
        now: dict[Queue, dict[int, bytes]] = {}
        for queue in QUEUES:
            tagged = await read_all(store, queue, "A") if (place + start) % 3 == 0 else None
            found = now[queue] = await read_all(store, queue)
            assert tagged is None or tagged == {at: record for at, record in found.items() if _tag(record) == "A"}, (
                f"a filter gets others of {queue}"
            )
            for offset, record in found.items():
                expected = image.stored[queue][offset][1] if offset in image.stored[queue] else None
                fits = record == expected or offset in earlier.get(queue, {})
                weak = not image.sums or (expected is not None and _both(damage, image.stored[queue][offset][0]))
                assert fits or weak, f"wrong bytes at {queue} {offset}"
            for offset, (at, record) in image.stored[queue].items():
                if offset in found:
                    weak = not image.sums or _both(damage, at)
                    same = found[offset] == record or (weak and _body(found[offset]) == _body(record))
                    assert same, f"wrong bytes at {queue} {offset}"
                if offset in found or offset < image.begins[queue]:
                    continue
                unsure = at >= image.unsure and cut > 0
                unsure |= not image.sums and at >= 65_536  # a checkpoint may be all that knew of the last segment
                unsure |= _both(damage, at)
                assert unsure or not _unchanged(damage, at, record), f"{queue} {offset} is intact and is not served"
                known = any(bad.offset < at + len(record) and at < bad.end for bad in store._log.damage)
                assert unsure or known or cut or not image.sums, f"{queue} {offset} is lost and nobody says so"
        tagged = {record for found in now.values() for record in found.values() if _tag(record) == "A"}
        assert await _found(store) == tagged or not image.sums, "the key index finds others"
        await asyncio.sleep(0)  # reports are made
        if start == 0:
            promised, strict = _promised(store, damage)
            named = _named(store)
            served = {(queue, offset) for queue, found in now.items() for offset in found}
            unnamed = len(promised - served - named)
            whole = [queue for queue in QUEUES if _is_intact(damage, "/consumequeue/{}/{}/".format(*queue))]
            missing = sorted(each for each in strict - served - named if image.sums and each[0] in whole)
            assert not missing, f"no report names {missing}"
            assert named <= {(queue, offset) for queue, records in image.stored.items() for offset in records}, named
            wrong = sorted(each for each in named & served if each[0] in whole)
            assert not wrong, f"a report names {wrong}, which are served"
            again = sorted(each for each in strict if each[1] >= store.max_offset(*each[0]))
            assert not again, f"offsets will be given again: {again}"
        new = await put(store, "new", 0, b"%d" % start)
        assert new.queue_offset == start
        for queue, found in earlier.items():
            assert now[queue] == found, f"{queue} is another after a second start"
        earlier = now
        await asyncio.sleep(0)
        await store.close()
    return damage._replace(unnamed=unnamed)


async def run(first: int, places: int) -> int:
    all_images = await images()
    kinds: Counter[str] = Counter()
    unnamed: Counter[str] = Counter()
    failed = 0
    began = said = time.perf_counter()
    for place in range(first, first + places):
        try:
            damage = await one_place(all_images, place)
        except Exception as error:  # noqa: BLE001 - each is a finding; the next place shall have its turn
            failed += 1
            damage = draw_damage(all_images, place)
            print(f"place {place}: {damage}: {type(error).__name__}: {error}", flush=True)
        kinds[damage.kind] += 1
        unnamed[damage.image.name] += damage.unnamed > 0
        if time.perf_counter() - said > 60:
            said = time.perf_counter()
            print(f"{place - first + 1} of {places} places, {failed} findings, {said - began:.0f} s", flush=True)
    took = time.perf_counter() - began
    print(f"{places} places in {took:.0f} s ({', '.join(f'{n} {kind}' for kind, n in sorted(kinds.items()))})")
    of_which = ", ".join(f"{n} {name}" for name, n in sorted(unnamed.items()) if n)
    print(f"{unnamed.total()} places lost messages that no report names ({of_which})")
    print(f"{failed} findings")
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description="Damage stores and judge what is served.")
    parser.add_argument("--places", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the first place, to go on or to see one again")
    options = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL if options.places > 1 else logging.INFO)
    sys.exit(1 if asyncio.run(run(options.first, options.places)) else 0)


if __name__ == "__main__":
    main()
