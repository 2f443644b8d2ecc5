"""Retention in virtual time: by age, by size, by topic, what is needed stays, crashes at every call."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from aiorocket.errors import StoreError
from aiorocket.runtime.entropy import Entropy
from aiorocket.runtime.env import Env, real_env
from aiorocket.storage import MessageStore, ReadStatus, StoreBusyError
from aiorocket.storage.checkup import records, salvage, survey
from aiorocket.storage.walk import Bad, Found
from aiorocket.testing import SimClock, SimDisk, SimLoop
from aiorocket_protocol import split_records
from tests.storage.stores import bodies, config, everything, opened, put

HOUR = 3600.0
#: Five fill a segment of 64 KiB.
LARGE = bytes(12_000)


class World:
    """A loop, a clock and a disk; ``run`` gives a coroutine an open store and closes it."""

    def __init__(self, seed: int = 1) -> None:
        self.loop = SimLoop(seed)
        self.disk = SimDisk(seed)
        self.env = Env(SimClock(self.loop), Entropy(seed), self.disk)

    def run(self, work: Callable[[MessageStore], Awaitable[None]], **changes: Any) -> None:
        async def go() -> None:
            store = await opened(self.env, **{"segment_size": 65_536, "file_reserved_time": 10, **changes})
            try:
                await work(store)
            finally:
                await store.close()

        self.loop.run_until_complete(go())

    def files(self, what: str = "commitlog") -> list[str]:
        return sorted(path for path in self.disk.files if path.startswith(f"/store/{what}/") and "." not in path)


async def fill(store: MessageStore, count: int, topic: str = "T", queue_id: int = 0, every: float = 0.0) -> None:
    for _ in range(count):
        number = store.max_offset(topic, queue_id)
        await put(store, topic, queue_id, b"%d|" % number + LARGE)
        if every:
            await asyncio.sleep(every)


def numbers(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[int]:
    return [int(body.partition(b"|")[0]) for body in bodies(store, topic, queue_id)]


@pytest.fixture
def world() -> Any:
    world = World()
    yield world
    world.loop.close()


def test_old_segments_go_by_themselves_and_offsets_go_on(world: World) -> None:
    async def work(store: MessageStore) -> None:
        await fill(store, 40, every=HOUR)  # five an each segment: one more expires every five hours
        assert store.max_offset("T", 0) == 40
        low = store.min_offset("T", 0)
        assert 20 <= low <= 30 and numbers(store) == list(range(low, 40))
        assert store.min_physical == 65_536 * (low // 5) and len(world.files()) <= 5
        below = store.read("T", 0, low - 1, 1, 1 << 20)
        assert below.status is ReadStatus.OFFSET_TOO_SMALL and below.next_offset == low
        assert store.read_record(0) is None
        await asyncio.sleep(100 * HOUR)
        assert store.min_offset("T", 0) == 35, "the segment that is written stays, as at Apache's"
        await fill(store, 1)
        assert numbers(store) == list(range(35, 41))
        await fill(store, 1, "new")
        for wanted in (False, True):
            earliest = store.offset_by_time("T", 0, 1, wanted)
            assert earliest == (0 if wanted else 35)

    async def again(store: MessageStore) -> None:
        assert numbers(store) == list(range(35, 41)) and store.recovery.records == 0
        await fill(store, 1)
        assert numbers(store)[-1] == 41

    world.run(work)
    world.run(again)


def test_what_was_read_before_a_sweep_is_still_what_it_was(world: World) -> None:
    """An answer goes to its socket while the segment that it was read from is removed."""

    async def work(store: MessageStore) -> None:
        await fill(store, 12)
        read = store.read("T", 0, 0, 5, 1 << 20)
        await asyncio.sleep(11 * HOUR)
        assert store.min_offset("T", 0) == 10 and len(world.files()) == 1
        assert [view.raw_body for view in split_records(read.data)] == [b"%d|" % number + LARGE for number in range(5)]

    world.run(work, tail_cache=0)


def test_a_queue_that_is_empty_now_never_gives_an_offset_again(world: World) -> None:
    async def work(store: MessageStore) -> None:
        await fill(store, 3, "quiet")
        await fill(store, 20, "busy")
        await asyncio.sleep(20 * HOUR)
        assert (store.min_offset("quiet", 0), store.max_offset("quiet", 0)) == (3, 3)
        read = store.read("quiet", 0, 0, 1, 1000)
        assert read.status is ReadStatus.OFFSET_TOO_SMALL and read.next_offset == 3
        assert store.read("quiet", 0, 3, 1, 1000).status is ReadStatus.OFFSET_OVERFLOW_ONE

    async def again(store: MessageStore) -> None:
        assert (store.min_offset("quiet", 0), store.max_offset("quiet", 0)) == (3, 3)
        result = await put(store, "quiet", 0, b"next")
        assert result.queue_offset == 3 and bodies(store, "quiet") == [b"next"]

    world.run(work)
    world.run(again)


def test_the_log_is_kept_below_its_size(world: World) -> None:
    async def work(store: MessageStore) -> None:
        await fill(store, 60, every=1.0)
        await asyncio.sleep(60)
        assert len(world.files()) <= 4 + 2 and numbers(store)[-1] == 59 and len(numbers(store)) >= 15

    world.run(work, max_log_bytes=4 * 65_536, retention_interval=5.0)


def test_verify_asks_for_no_unit_of_what_retention_took(world: World) -> None:
    """Queues that are made again have none of it, while the log has its messages for longer."""

    async def work(store: MessageStore) -> None:
        store.retention.reserved = {"T": 1.0}.get
        await fill(store, 2)
        await asyncio.sleep(2 * HOUR)
        await fill(store, 1)
        await store.retention.sweep()

    async def look(store: MessageStore) -> None:
        assert numbers(store) == [2] and store.recovery.rebuilt and store.read_record(0) is not None

    world.run(work)
    del world.disk.files["/store/consumequeue/T/0/" + "0" * 20]
    world.run(look)
    assert survey(world.disk, "store", lambda done, total: None).findings == []


def test_topics_may_keep_for_longer_shorter_and_for_ever(world: World) -> None:
    hours = {"long": 30.0, "short": 2.0, "ever": 1e6}

    async def work(store: MessageStore) -> None:
        store.retention.reserved = hours.get
        for _ in range(48):
            for topic in (*hours, "T"):
                await fill(store, 1, topic)
            await asyncio.sleep(HOUR)
        await store.retention.sweep()
        assert numbers(store, "ever") == list(range(48))
        assert store.min_offset("long", 0) in (18, 19) and store.min_offset("short", 0) in (46, 47)
        assert 48 - 10 - 2 <= store.min_offset("T", 0) <= 48 - 10

    world.run(work, retention_interval=HOUR)


def test_what_is_needed_stays_whatever_its_age_and_size(world: World) -> None:
    needed = {("T", 0): 7}

    async def work(store: MessageStore) -> None:
        store.retention.needed = lambda: needed
        await fill(store, 30)
        await fill(store, 5, "U")
        await asyncio.sleep(20 * HOUR)
        assert store.min_offset("T", 0) == 7 and numbers(store) == list(range(7, 30))
        assert store.min_offset("U", 0) == 0, "its segment is the one that is written"
        needed["T", 0] = 22
        await asyncio.sleep(120)
        assert store.min_offset("T", 0) == 22 and store.min_physical == 65_536 * 4

    world.run(work, max_log_bytes=65_536)


def test_hours_of_the_day_and_a_disk_that_is_too_full(world: World) -> None:
    async def work(store: MessageStore) -> None:
        await fill(store, 20)
        await asyncio.sleep(11 * HOUR)
        hour = world.env.clock.wall_ms() // 3_600_000 % 24
        assert store.min_offset("T", 0) == 0
        await asyncio.sleep(((4 - hour) % 24 + 1) * HOUR)
        assert store.min_offset("T", 0) == 15
        await fill(store, 20)
        await asyncio.sleep(11 * HOUR)
        assert store.min_offset("T", 0) == 15
        world.disk.free = sum(map(len, world.disk.files.values())) // 4
        assert 0.75 < store.retention.used() < 0.85
        await asyncio.sleep(120)
        assert store.min_offset("T", 0) == 35
        assert await store.retention.sweep() == 0

    world.run(work, delete_when=(4,))


def test_by_hand_deletes_at_any_hour(world: World) -> None:
    async def work(store: MessageStore) -> None:
        await fill(store, 20)
        await asyncio.sleep(11 * HOUR)
        assert store.min_offset("T", 0) == 0
        assert await store.retention.sweep() == 3 and store.min_offset("T", 0) == 15

    hour = world.env.clock.wall_ms() // 3_600_000 % 24
    world.run(work, delete_when=((hour + 20) % 24,))


def test_young_messages_go_only_when_that_is_wanted_and_the_disk_nearly_full(world: World) -> None:
    async def work(store: MessageStore) -> None:
        world.disk.free = 1 << 40
        await fill(store, 20)
        assert await store.retention.sweep() == 0
        world.disk.free = 30_000
        assert store.retention.used() > 0.85
        wanted = store._log._config.clean_file_forcibly
        assert await store.retention.sweep() == (1 if wanted else 0)

    world.run(work, clean_file_forcibly=False)
    world.run(work, clean_file_forcibly=True)


def test_files_of_units_go_with_their_messages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("consume_queue", "retention", "recovery", "reader"):
        for name, value in (("FILE_UNITS", 8), ("FILE_SIZE", 160)):
            monkeypatch.setattr(f"aiorocket.storage.{module}.{name}", value, raising=False)

    async def work(store: MessageStore) -> None:
        await fill(store, 40, every=HOUR)
        await asyncio.sleep(20 * HOUR)
        assert store.min_offset("T", 0) == 35
        assert [path[-20:] for path in world.files("consumequeue")] == [f"{4 * 160:020d}"]
        stale = f"/store/consumequeue/T/0/{0:020d}"
        world.disk.files[stale] = bytearray(160)  # a crash left it
        await store.retention.clean_queues()
        assert stale not in world.files("consumequeue")

    async def again(store: MessageStore) -> None:
        assert numbers(store) == list(range(35, 40))

    world.run(work)
    world.run(again)


def test_queues_that_begin_in_their_first_file_cost_the_disk_nothing(world: World) -> None:
    async def work(store: MessageStore) -> None:
        await fill(store, 3)
        jobs = []

        def run(fn: Any, *args: Any) -> Any:
            jobs.append(fn)
            return world.disk.__class__.run(world.disk, fn, *args)

        world.disk.run = run  # type: ignore[method-assign]  # what is asked of the disk
        await store.retention.clean_queues()
        assert jobs == []

    world.run(work)


def test_nothing_is_armed_while_nothing_could_go(world: World) -> None:
    async def work(store: MessageStore) -> None:
        assert store.retention._timer is None
        await fill(store, 3)
        await asyncio.sleep(1)
        assert store.retention._timer is None

    world.run(work)


def test_a_segment_that_could_not_be_removed_goes_with_the_next(world: World) -> None:
    """It stayed, and what was missing behind it was taken for damage by the next start."""

    async def work(store: MessageStore) -> None:
        await fill(store, 20)
        await asyncio.sleep(11 * HOUR)
        await fill(store, 20)
        unlink = world.disk.unlink

        def fails(path: str) -> None:
            world.disk.unlink = unlink  # type: ignore[method-assign]
            raise OSError(errno.EIO, "Input/output error", path)

        world.disk.unlink = fails  # type: ignore[method-assign]
        with pytest.raises(OSError, match="Input/output error"):
            await store.retention.sweep()
        assert len(world.files()) == 9
        await asyncio.sleep(11 * HOUR)
        await store.retention.sweep()
        assert len(world.files()) == 2 and numbers(store) == list(range(35, 40))

    async def again(store: MessageStore) -> None:
        assert not store.recovery.damaged and numbers(store) == list(range(35, 40))

    world.run(work, retention_interval=1e9)
    world.run(again, retention_interval=1e9)


async def mixed(store: MessageStore) -> None:
    """Four segments of a short topic, with a small message of a long one beside each."""
    for number in range(20):
        await put(store, "T", 0, b"%d|" % number + LARGE)
        await put(store, "long", number % 2, b"%d|" % number, tag="a")


def check_mixed(store: MessageStore) -> None:
    assert numbers(store) == list(range(15, 20))
    assert (numbers(store, "long", 0), numbers(store, "long", 1)) == (list(range(0, 20, 2)), list(range(1, 20, 2)))
    assert not store.recovery.damaged and not store.damaged


def written(world: World) -> int:
    """Bytes of the log that are not zeros."""
    return sum(len(world.disk.files[path]) - world.disk.files[path].count(0) for path in world.files())


def test_what_is_kept_stays_in_its_place_and_the_rest_is_given_back(world: World) -> None:
    places: list[int] = []
    long = {"long": 1000.0}

    async def work(store: MessageStore) -> None:
        store.retention.reserved = long.get
        await mixed(store)
        places.extend(place for queue_id in (0, 1) for place, _, _ in store.entries("long", queue_id, 0, 100))
        gone = [place for place, _, _ in store.entries("T", 0, 0, 15)]
        await store.keys.find("long", "a", 0, 1 << 62, tag=True, limit=64, max_bytes=1 << 20)
        await asyncio.sleep(11 * HOUR)
        check_mixed(store)
        assert store.min_physical == 0 and len(world.files()) == 5
        assert all(store.read_record(place) is not None for place in places)
        assert all(store.read_record(place) is None for place in gone)
        found, _ = await store.keys.find("long", "a", 0, 1 << 62, tag=True, limit=64, max_bytes=1 << 20)
        assert len(found) == 20
        assert store.offset_by_time("long", 0, 0) == 0
        calls = world.disk.calls
        await store.retention.sweep()
        assert world.disk.calls - calls < 200, "what was compacted is not compacted again"

    async def again(store: MessageStore) -> None:
        check_mixed(store)
        assert [place for queue_id in (0, 1) for place, _, _ in store.entries("long", queue_id, 0, 100)] == places

    async def shorter(store: MessageStore) -> None:
        check_mixed(store)
        await store.retention.sweep()
        assert numbers(store, "long") == [16, 18] and store.min_physical == 65_536 * 3

    world.run(work, tail_cache=0)
    world.run(again, tail_cache=0, file_reserved_time=0)
    for path in [path for path in world.disk.files if path.startswith("/store/consumequeue/")]:
        del world.disk.files[path]
    world.run(again, tail_cache=0, file_reserved_time=0)
    for path in [path for path in world.disk.files if path.startswith(("/store/consumequeue/", "/store/checkpoint"))]:
        del world.disk.files[path]
    world.run(again, tail_cache=0, file_reserved_time=0)
    world.run(shorter)


def test_a_lost_checkpoint_and_a_damaged_unit_hide_nothing(world: World) -> None:
    """Where a queue begins is then looked for in its units; and its first one is wrong."""
    low = 0

    async def work(store: MessageStore) -> None:
        nonlocal low
        await fill(store, 40, every=HOUR)
        low = store.min_offset("T", 0)
        assert len(world.files()) > 2 and numbers(store) == list(range(low, 40))

    async def again(store: MessageStore) -> None:
        assert (numbers(store), store.damaged) == (list(range(low, 40)), [])

    world.run(work)
    for path in [path for path in world.disk.files if path.startswith("/store/checkpoint")]:
        del world.disk.files[path]
    units = world.disk.files["/store/consumequeue/T/0/" + "0" * 20]
    units[low * 20 : low * 20 + 8] = bytes(7) + b"\1"
    world.run(again, file_reserved_time=0)


def test_units_made_again_while_retention_works_find_no_damage(world: World) -> None:
    async def work(store: MessageStore) -> None:
        await fill(store, 30)
        items = store._mending._walk(0, store._log.written)
        assert isinstance(next(items), Found)
        await asyncio.sleep(11 * HOUR)
        assert store.min_offset("T", 0) == 25
        with pytest.raises(StoreBusyError, match="removed or compacted"):
            assert not [item for item in items if isinstance(item, Bad)]

    world.run(work)


def test_a_segment_of_which_most_is_kept_is_not_copied(world: World) -> None:
    async def work(store: MessageStore) -> None:
        store.retention.reserved = {"T": 1000.0}.get
        await mixed(store)  # the large ones stay, the small ones go
        files = {path: id(world.disk.files[path]) for path in world.files()}
        await asyncio.sleep(11 * HOUR)
        assert store.min_offset("long", 0) > 0 and store.min_offset("T", 0) == 0
        assert {path: id(world.disk.files[path]) for path in world.files()} == files
        store.retention.reserved = {}.get
        store.retention.needed = lambda: {("T", 0): 3}
        await asyncio.sleep(11 * HOUR)
        assert numbers(store) == list(range(3, 20)), "and the first is compacted now"
        assert {path for path in world.files() if id(world.disk.files[path]) != files[path]} == {world.files()[0]}

    world.run(work)


def test_what_compaction_leaves_in_between_is_no_record_to_whoever_looks_through_a_store(world: World) -> None:
    async def work(store: MessageStore) -> None:
        store.retention.reserved = {"long": 1000.0}.get
        await mixed(store)
        await asyncio.sleep(11 * HOUR)

    world.run(work)
    found = survey(world.disk, "store", lambda done, total: None)
    assert (found.records, found.findings) == (5 + 20, [])
    assert {record.topic for record in records(world.disk, "store")} == {b"T", b"long"}
    assert salvage(world.disk, "store", "other", config(), lambda done, total: None).records == 5 + 20


def test_a_look_at_much_that_is_old_and_kept_is_short_and_ends_with_the_store(world: World) -> None:
    async def work(store: MessageStore) -> None:
        store.retention.needed = lambda: {("T", 0): 0}
        await fill(store, 1)
        await fill(store, 200, "U")
        await asyncio.sleep(11 * HOUR)
        sweep = asyncio.ensure_future(store.retention.sweep())
        await asyncio.sleep(0.01)
        assert not sweep.done()
        await store.close()
        assert sweep.done() and store.min_physical == 0 and store.min_offset("U", 0) == 199
        assert len(store.retention._kept or ()) < 20

    async def again(store: MessageStore) -> None:
        store.retention.needed = lambda: {("T", 0): 0}
        assert len(store._log.segments) == 41
        calls = world.disk.calls
        assert await store.retention.sweep() == 0
        assert world.disk.calls - calls < 60

    world.run(work, retention_interval=1e9, scrub_rate=0)
    world.run(again, retention_interval=1e9, scrub_rate=0)


def test_a_damaged_segment_is_not_compacted(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def work(store: MessageStore) -> None:
        store.retention.needed = lambda: {("long", 0): 0}
        await mixed(store)
        await asyncio.sleep(11 * HOUR)
        assert "is not compacted: bytes 0 to" in caplog.text
        assert store.read("long", 0, 0, 1, 1000).status is ReadStatus.FOUND

    async def fill_up(store: MessageStore) -> None:
        await mixed(store)

    world.run(fill_up, retention_interval=1e9)
    world.disk.files[world.files()[0]][500] ^= 1
    world.run(work, tail_cache=0)


def test_a_scrub_that_a_compaction_overtakes_finds_no_damage(world: World) -> None:
    async def fill_up(store: MessageStore) -> None:
        for number in range(120):
            await put(store, "T", 0, LARGE)
            if number % 3 == 0:
                await put(store, "long", 0, b"%d|" % (number // 3))
        await asyncio.sleep(11 * HOUR)

    async def work(store: MessageStore) -> None:
        store.retention.reserved = {"long": 1000.0}.get
        scrub = asyncio.ensure_future(store._scrub.once())
        await asyncio.sleep(0.01)  # it waits between the pieces of the first segment
        assert not scrub.done()
        await store.retention.sweep()
        await scrub
        assert not store.damaged and numbers(store, "long") == list(range(40))

    world.run(fill_up, segment_size=600_000, retention_interval=1e9)
    world.run(work, segment_size=600_000, tail_cache=0)


def test_damage_where_a_segment_begins_does_not_keep_the_rest(world: World) -> None:
    async def fill_up(store: MessageStore) -> None:
        await fill(store, 40)

    async def work(store: MessageStore) -> None:
        await asyncio.sleep(11 * HOUR)
        assert store.min_offset("T", 0) == 35 and len(world.files()) <= 2

    world.run(fill_up, retention_interval=1e9)
    world.disk.files[world.files()[2]][60] ^= 1
    world.run(work)


@pytest.mark.parametrize("unit", [bytes(20), b"\x10" * 20])
def test_a_damaged_unit_takes_no_message_that_is_young_or_needed(world: World, unit: bytes) -> None:
    async def fill_up(store: MessageStore) -> None:
        await fill(store, 1, "needed")
        await fill(store, 20)
        await asyncio.sleep(11 * HOUR)
        await fill(store, 20)
        await fill(store, 1, "needed")

    async def work(store: MessageStore) -> None:
        store.retention.needed = lambda: {("needed", 0): 0}
        for _ in range(9):  # what is busy is being made again
            with contextlib.suppress(StoreBusyError):
                await store.retention.sweep()
                numbers(store)
            await asyncio.sleep(1)
        assert numbers(store, "needed") == [0, 1] and store.min_physical == 0
        assert numbers(store)[0] in range(21) and numbers(store)[-1] == 39

    world.run(fill_up, retention_interval=1e9)
    for path, at in (("needed", 0), ("T", 20), ("T", 24), ("T", 30)):
        world.disk.files[f"/store/consumequeue/{path}/0/{0:020d}"][at * 20 : at * 20 + 20] = unit
    world.run(work, retention_interval=1e9, tail_cache=0)


def test_the_segment_that_is_written_stays_when_the_next_has_begun(world: World) -> None:
    async def work(store: MessageStore) -> None:
        await fill(store, 3)
        results = [put(store, "T", 0, b"%d|" % number + LARGE) for number in range(3, 7)]  # roll, but are not written
        assert len(store._log.segments) == 2
        assert await store.retention.sweep() == 0
        await asyncio.gather(*results)
        assert numbers(store) == list(range(7))

    world.run(work, max_log_bytes=1, retention_interval=1e9, tail_cache=0)


def test_a_queue_that_is_empty_costs_no_second_rebuild(world: World) -> None:
    async def work(store: MessageStore) -> None:
        await fill(store, 3, "quiet")
        await fill(store, 20, "busy")
        await asyncio.sleep(20 * HOUR)
        assert (store.min_offset("quiet", 0), store.max_offset("quiet", 0)) == (3, 3)

    rebuilt: list[bool] = []

    async def again(store: MessageStore) -> None:
        rebuilt.append(store.recovery.rebuilt)
        assert (store.min_offset("quiet", 0), store.max_offset("quiet", 0)) == (3, 3)

    world.run(work)
    del world.disk.files[f"/store/consumequeue/busy/0/{0:020d}"]
    world.run(again)
    world.run(again)
    assert rebuilt == [True, False]


def test_a_queue_that_compaction_left_its_oldest_message_begins_where_it_did(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The segment of the first one is not worth a compaction, that of the others is."""

    async def work(store: MessageStore) -> None:
        store.retention.reserved = {"long": 1000.0}.get
        await fill(store, 1, "short")
        await fill(store, 4, "long")
        await fill(store, 4, "short")
        await fill(store, 11, "long")
        await asyncio.sleep(20 * HOUR)
        assert (store.min_offset("short", 0), store.max_offset("short", 0)) == (5, 5)
        assert store.read_record(0) is not None and store.min_physical == 0

    async def again(store: MessageStore) -> None:
        assert store.recovery.rebuilt
        assert (store.min_offset("short", 0), store.max_offset("short", 0)) == (5, 5)
        assert numbers(store, "long") == list(range(15))
        await fill(store, 1, "short")

    async def once_more(store: MessageStore) -> None:
        assert store.recovery.rebuilt
        assert (store.min_offset("short", 0), numbers(store, "short")) == (5, [5])

    world.run(work, tail_cache=0)
    for look in (again, once_more):
        for path in [path for path in world.disk.files if path.startswith("/store/consumequeue/long/")]:
            del world.disk.files[path]
        world.run(look, file_reserved_time=0)
    assert "are lost" not in caplog.text


@pytest.mark.parametrize("more", [0, 1])
def test_what_retention_took_is_not_counted_as_lost_to_damage(world: World, more: int) -> None:
    """Of a queue that compaction left its oldest message and took the others."""

    async def work(store: MessageStore) -> None:
        store.retention.reserved = {"long": 1000.0}.get
        await fill(store, 1, "short")
        await fill(store, 4, "long")
        await fill(store, 4, "short")
        await fill(store, 11, "long")
        await asyncio.sleep(20 * HOUR)
        await fill(store, more, "short")

    world.run(work, tail_cache=0)
    world.disk.files[world.files()[2]][3000] ^= 1
    lost = [finding.lost for finding in survey(world.disk, "/store", lambda done, total: None).findings]
    assert lost == [(("long", 0, 5, 1),)]


def test_between_the_renames_of_a_compaction_nothing_is_damaged(world: World) -> None:
    """Whoever looks at the store before the next start ends it."""
    rename = world.disk.rename

    def dies(source: str, target: str) -> None:
        if source.endswith(".compact.sums"):
            raise OSError(errno.EIO, "the process ends here")
        rename(source, target)

    async def work() -> None:
        store = await opened(world.env, segment_size=65_536, file_reserved_time=10, retention_interval=1e9)
        store.retention.reserved = {"long": 1000.0}.get
        await mixed(store)
        await asyncio.sleep(11 * HOUR)
        world.disk.rename = dies  # type: ignore[method-assign]
        with pytest.raises(OSError, match="ends here"):
            await store.retention.sweep()
        for timer in (store.retention._timer, store._behind._timer):
            if timer is not None:
                timer.cancel()

    world.loop.run_until_complete(work())
    world.disk.rename = rename  # type: ignore[method-assign]
    world.disk.process_died()
    found = survey(world.disk, "/store", lambda done, total: None)
    assert not found.findings
    assert salvage(world.disk, "/store", "/new", config(), lambda done, total: None).records == found.records


async def test_a_file_system_gets_the_space_back(tmp_path: Path) -> None:
    env = real_env()
    store = await opened(env, str(tmp_path), segment_size=1 << 20, max_log_bytes=1 << 20, flush="async")
    store.retention.needed = lambda: {("keep", 0): 0}
    for number in range(500):
        await put(store, "T", 0, bytes(10_000))
        if not number % 100:
            await put(store, "keep", 0, b"%d|" % number)
    before = [path.stat().st_blocks * 512 for path in sorted((tmp_path / "commitlog").glob("*[0-9]"))]
    await store.retention.sweep()
    after = [path.stat().st_blocks * 512 for path in sorted((tmp_path / "commitlog").glob("*[0-9]"))]
    assert min(before[:3]) >= 1 << 20 and max(after[:3]) < 64 << 10
    assert numbers(store, "keep") == [0, 100, 200, 300, 400]
    await store.close()
    store = await opened(env, str(tmp_path), segment_size=1 << 20)
    assert numbers(store, "keep") == [0, 100, 200, 300, 400] and not store.recovery.damaged
    await store.close()
    await env.disk.close()


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.seeds(4)  # each one call of twelve
def test_a_crash_at_every_call_of_a_compaction_loses_nothing(power: bool, seed: int) -> None:
    for after in range((2 if power else 1) + 3 * seed, 206, 12):
        world = World(after)

        async def fill_up(store: MessageStore) -> None:
            await mixed(store)
            await asyncio.sleep(11 * HOUR)

        world.run(fill_up, retention_interval=1e9)

        async def sweep(world: World, after: int) -> None:
            store = await opened(world.env, segment_size=65_536, file_reserved_time=10, retention_interval=1e9)
            store.retention.reserved = {"long": 1000.0}.get
            world.disk.fail(after)
            with contextlib.suppress(OSError, StoreError):
                await store.retention.sweep()
            for timer in (store.retention._timer, store._behind._timer):
                if timer is not None:
                    timer.cancel()

        world.loop.run_until_complete(sweep(world, after))
        world.disk._failures.clear()
        if power:
            world.disk.crash()
        else:
            world.disk.process_died()

        async def look(store: MessageStore) -> None:
            store.retention.reserved = {"long": 1000.0}.get
            assert numbers(store, "long", 1) == list(range(1, 20, 2)) and not store.recovery.damaged
            await store.retention.sweep()
            check_mixed(store)

        world.run(look, retention_interval=1e9, tail_cache=0)
        assert not [path for path in world.disk.files if "compact" in path]
        world.loop.close()


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_at_every_call_of_a_sweep_loses_nothing_young(power: bool) -> None:
    """Whatever is found afterwards is whole, and what was young is there; the next sweep ends what this one began."""
    fails = 0
    for after in range(1, 60):
        world = World(after)

        async def fill_up(store: MessageStore) -> None:
            await fill(store, 12)
            await asyncio.sleep(11 * HOUR)
            await fill(store, 8)

        world.run(fill_up, retention_interval=1e9)
        broken = True

        async def sweep(after: int, world: World) -> None:
            nonlocal broken
            store = await opened(world.env, segment_size=65_536, file_reserved_time=10, retention_interval=1e9)
            world.disk.fail(after)
            try:
                await store.retention.sweep()
                broken = store.problem is not None
            except (OSError, StoreError):
                pass
            for timer in (store.retention._timer, store._behind._timer):
                if timer is not None:
                    timer.cancel()

        world.loop.run_until_complete(sweep(after, world))
        fails += broken
        world.disk._failures.clear()
        if power:
            world.disk.crash()
        else:
            world.disk.process_died()

        async def look(store: MessageStore) -> None:
            found = numbers(store)
            assert not store.recovery.damaged and found == list(range(found[0], 20)) and found[0] <= 10
            await store.retention.sweep()
            assert store.min_offset("T", 0) == 10 and everything(store)[0].queue_offset == 10

        world.run(look, retention_interval=1e9)
        world.loop.close()
    assert fails > 3
