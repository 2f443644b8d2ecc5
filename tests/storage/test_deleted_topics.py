"""What deleted topics leave in the log: it is given back, whatever its age, and nothing else is."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Sequence
from functools import partialmethod
from typing import Any

import pytest

from aiorocket.errors import StoreError
from aiorocket.storage import MessageStore, StoreBusyError
from aiorocket.storage.checkup import records, salvage, survey
from aiorocket.storage.consume_queue import UNIT
from aiorocket.storage.reader import Reader
from aiorocket.storage.retention import Retention
from aiorocket.storage.sizes import bytes_in_segments
from tests.storage.stores import config, intact, opened, put
from tests.storage.test_retention import HOUR, LARGE, World, fill, numbers, written

#: Nothing is ever old.
EVER: dict[str, Any] = {"file_reserved_time": 0, "retention_interval": 1e9, "tail_cache": 0}


@pytest.fixture
def world() -> Any:
    world = World()
    yield world
    world.loop.close()


async def beside(store: MessageStore, count: int = 20) -> None:
    """Four segments of a large topic with a small message of another beside each of its own."""
    for number in range(count):
        await put(store, "T", number % 2, b"%d|" % number + LARGE)
        await put(store, "small", number % 2, b"%d|" % number, tag="a")


def check_small(store: MessageStore, count: int = 20) -> None:
    found = numbers(store, "small", 0), numbers(store, "small", 1)
    assert found == (list(range(0, count, 2)), list(range(1, count, 2)))
    assert not store.recovery.damaged and not store.damaged


def test_a_topic_alone_gives_its_segments_back(world: World) -> None:
    """Of 592 KB nothing had gone after an hour; with ``file_reserved_time`` 0 it never went."""

    async def work(store: MessageStore) -> None:
        await fill(store, 40)
        await fill(store, 1, "other")
        assert len(world.files()) == 9
        await store.delete_topics("T")
        await asyncio.sleep(121)
        assert len(world.files()) == 1 and store.min_physical == 8 * 65_536
        assert numbers(store, "other") == [0]
        await fill(store, 1)
        assert numbers(store) == [0]

    async def again(store: MessageStore) -> None:
        assert numbers(store) == numbers(store, "other") == [0] and not store.recovery.damaged

    world.run(work, file_reserved_time=0)
    world.run(again, file_reserved_time=0)


def test_what_is_beside_stays_in_its_place(world: World) -> None:
    places: list[int] = []

    async def work(store: MessageStore) -> None:
        await beside(store)
        places.extend(place for queue_id in (0, 1) for place, _, _ in store.entries("small", queue_id, 0, 100))
        gone = [place for queue_id in (0, 1) for place, _, _ in store.entries("T", queue_id, 0, 100)]
        before = written(world)
        await store.keys.find("small", "a", 0, 1 << 62, tag=True, limit=64, max_bytes=1 << 20)
        await store.delete_topics("T")
        assert await store.retention.sweep() == 0
        check_small(store)
        assert written(world) < before and store.min_physical == 0
        assert all(store.read_record(place) is not None for place in places)
        last = store._log.segments[-1].base
        assert all(store.read_record(place) is None for place in gone if place < last)
        found, _ = await store.keys.find("small", "a", 0, 1 << 62, tag=True, limit=64, max_bytes=1 << 20)
        assert len(found) == 20
        await put(store, "small", 0, b"20|")  # a checkpoint has something to say
        await asyncio.sleep(1)
        calls = world.disk.calls
        assert await store.retention.sweep() == 0
        assert world.disk.calls - calls < 20, "what was looked at is not looked at again"
        await store._scrub.once()
        assert not store.damaged

    def look(store: MessageStore) -> None:
        assert numbers(store, "small", 0) == [*range(0, 20, 2), 20] and numbers(store, "small", 1) == list(
            range(1, 20, 2)
        )
        found = [place for queue_id in (0, 1) for place, _, _ in store.entries("small", queue_id, 0, 100)]
        assert sorted(set(places) - set(found)) == [] and len(found) == 21
        assert not store.recovery.damaged and not store.damaged

    async def again(store: MessageStore) -> None:
        look(store)
        assert store.topics() == ["small"]

    async def without(store: MessageStore) -> None:
        look(store)  # which topics were deleted nothing says any more

    world.run(work, **EVER)
    world.run(again, **EVER)
    found = survey(world.disk, "store", lambda done, total: None)
    assert not found.findings and found.queues == 2
    topics = [record.topic for record in records(world.disk, "store")]
    assert topics.count(b"small") == 21 and topics.count(b"T") == 5
    assert salvage(world.disk, "store", "other", config(), lambda done, total: None).records == 21
    for path in [path for path in world.disk.files if path.startswith("/store/consumequeue/")]:
        del world.disk.files[path]
    world.run(again, **EVER)
    for path in [path for path in world.disk.files if path.startswith("/store/checkpoint")]:
        del world.disk.files[path]
    world.run(without, **EVER)


@pytest.mark.parametrize("generation", "ab")
def test_one_lost_generation_of_the_checkpoint_tells_no_damage(world: World, generation: str) -> None:
    """The other one was from before, and began to read in the midst of what was no record any more."""

    async def work() -> None:
        store = await opened(world.env, segment_size=65_536, checkpoint_interval=1e9, **EVER)
        store.retention.reserved = {"short": 1.0}.get
        await fill(store, 3)
        await store.delete_topics("T")  # here that checkpoint ends
        await fill(store, 2, "short")
        for number in range(20):
            await put(store, "small", number % 2, b"%d|" % number)
        await fill(store, 5, "U")
        await asyncio.sleep(2 * HOUR)
        await store.retention.sweep()
        assert store.min_offset("short", 0) == 2 and store.read_record(0) is None
        for timer in (store.retention._timer, store._behind._timer):
            if timer is not None:
                timer.cancel()

    async def look(store: MessageStore) -> None:
        check_small(store)
        assert store.topics() == ["U", "short", "small"] and numbers(store, "U") == list(range(5))

    world.loop.run_until_complete(work())
    world.disk.process_died()
    del world.disk.files[f"/store/checkpoint.{generation}"]
    world.run(look, **EVER)


@pytest.mark.parametrize("lives", [False, True])
def test_without_a_checkpoint_what_is_left_of_a_topic_made_again_is_no_damage(world: World, lives: bool) -> None:
    """Its first messages had gone, and the next stood in front of the offset that the topic before it had come to."""

    async def work(store: MessageStore) -> None:
        store.retention.reserved = {"T": 1.0}.get
        for number in range(9):
            await put(store, "T", 0, b"%d|" % number)
        await fill(store, 5, "V")
        await store.delete_topics("T")
        await fill(store, 1, "U")
        for number in range(5):
            await put(store, "T", 0, b"%d|" % number)
        await fill(store, 4, "U")
        await fill(store, 2)
        await fill(store, 3, "V")
        await asyncio.sleep(2 * HOUR)
        await fill(store, 1)
        await store.delete_topics("U", *(() if lives else ("T",)))
        await store.retention.sweep()
        assert numbers(store) == ([7] if lives else []) and store.read_record(0) is not None

    async def look(store: MessageStore) -> None:
        assert not store.recovery.damaged and numbers(store, "V") == list(range(8))
        assert numbers(store) == [5, 6, 7]

    world.run(work, **EVER)
    for path in [path for path in world.disk.files if path.startswith(("/store/checkpoint", "/store/consumequeue/"))]:
        del world.disk.files[path]
    world.run(look, **EVER)


@pytest.mark.parametrize("lost", [(), ("consumequeue",)])
def test_of_a_topic_that_is_made_again_the_new_messages_stay(world: World, lost: Sequence[str]) -> None:
    async def work(store: MessageStore) -> None:
        await put(store, "small", 0, b"0|")
        await fill(store, 7)
        await store.delete_topics("T")
        await fill(store, 3)  # in a segment of those
        await fill(store, 5, "U")
        kept = written(world)
        assert await store.retention.sweep() == 0, "the first is compacted, half of the second is not deleted"
        assert kept - 7 * 12_000 < written(world) < kept
        await store.delete_topics("U")
        await fill(store, 10)
        await store.retention.sweep()
        look(store)

    def look(store: MessageStore) -> None:
        assert numbers(store) == list(range(13)) and numbers(store, "small") == [0]
        assert not store.recovery.damaged and not store.damaged

    async def again(store: MessageStore) -> None:
        look(store)

    world.run(work, **EVER)
    for path in [path for path in world.disk.files if any(path.startswith(f"/store/{name}/") for name in lost)]:
        del world.disk.files[path]
    world.run(again, **EVER)


def test_messages_of_before_and_behind_a_deletion_in_one_segment_are_told_apart(world: World) -> None:
    """They have the same topic and queue, and those of before the greater offsets."""

    async def work(store: MessageStore) -> None:
        await fill(store, 3)
        await store.delete_topics("T")
        await put(store, "T", 0, b"0|")
        await fill(store, 6, "U")
        await put(store, "T", 0, b"1|")
        place = store.entries("T", 0, 0, 1)[0][0]
        assert place < 65_536
        await store.retention.sweep()
        assert numbers(store) == [0, 1] and numbers(store, "U") == list(range(6))
        assert store.read_record(0) is None

    async def again(store: MessageStore) -> None:
        assert numbers(store) == [0, 1] and numbers(store, "U") == list(range(6)) and not store.recovery.damaged

    world.run(work, **EVER)
    world.run(again, **EVER)
    for path in [path for path in world.disk.files if path.startswith("/store/consumequeue/")]:
        del world.disk.files[path]
    world.run(again, **EVER)


def test_less_than_half_of_a_segment_is_left_alone_until_it_is_half(world: World) -> None:
    """Also when a start lies between."""
    files: dict[str, int] = {}

    async def work(store: MessageStore) -> None:
        for _ in range(20):  # two fifths, two fifths, one fifth
            for topic in ("T", "U", "T", "U", "V"):
                await fill(store, 1, topic)
        files.update((path, id(world.disk.files[path])) for path in world.files())
        await store.delete_topics("T")
        await store.retention.sweep()
        assert {path: id(world.disk.files[path]) for path in world.files()} == files

    async def again(store: MessageStore) -> None:
        await store.delete_topics("U")
        await store.retention.sweep()
        assert [path for path in world.files() if id(world.disk.files[path]) == files[path]] == world.files()[-1:]
        assert numbers(store, "V") == list(range(20))
        await store.delete_topics("V")
        assert await store.retention.sweep() == 19, "all that they kept then"

    world.run(work, **EVER)
    world.run(again, **EVER)


def test_what_is_deleted_while_a_sweep_works_goes_with_the_next(world: World) -> None:
    async def work(store: MessageStore) -> None:
        for _ in range(20):
            for topic in ("T", "U", "V", "U", "T"):
                await fill(store, 1, topic)
        await store.delete_topics("T")
        await store.delete_topics("V")
        sweep = asyncio.ensure_future(store.retention.sweep())
        while not store.retention._looked_at:
            await asyncio.sleep(0.0001)
        await store.delete_topics("U")
        await sweep
        assert len(store._log.segments) == 20
        assert await store.retention.sweep() == 19

    world.run(work, **EVER)


@pytest.mark.parametrize("unit", [bytes(20), UNIT.pack(1 << 20, 500, 0)])
def test_a_damaged_unit_takes_no_message_of_another_topic(world: World, unit: bytes) -> None:
    async def fill_up(store: MessageStore) -> None:
        await beside(store)
        await store.delete_topics("T")

    async def work(store: MessageStore) -> None:
        for _ in range(9):  # what is busy is being made again
            with contextlib.suppress(StoreBusyError):
                await store.retention.sweep()
            await asyncio.sleep(1)
        assert len(intact(store, "small", 0)) == len(intact(store, "small", 1)) == 10 and not store.damaged

    world.run(fill_up, **EVER)
    world.disk.files["/store/consumequeue/small/0/" + "0" * 20][:20] = unit
    world.run(work, **EVER)


def test_units_of_a_topic_made_again_are_looked_for_from_where_a_record_begins(world: World) -> None:
    """Up to where the deletion counts there may be a part of filler, and what is behind it looked like damage."""

    async def work(store: MessageStore) -> None:
        await fill(store, 2)
        await store.delete_topics("T")
        await fill(store, 2, "U")  # filler as well, in one piece
        await fill(store, 4)
        await store.delete_topics("U")
        await store.retention.sweep()
        assert store.read_record(0) is None

    async def look(store: MessageStore) -> None:
        with pytest.raises(StoreBusyError):
            numbers(store)
        await asyncio.sleep(1)
        assert numbers(store) == list(range(4)) and not store.damaged

    world.run(work, **EVER)
    world.disk.files["/store/consumequeue/T/0/" + "0" * 20][:20] = bytes(20)
    world.run(look, **EVER)


def test_what_somebody_waits_for_stays(world: World) -> None:
    async def work(store: MessageStore) -> None:
        store.retention.needed = lambda: {("small", 0): 3}
        await beside(store)
        await asyncio.sleep(11 * HOUR)
        await store.delete_topics("T")
        await store.retention.sweep()
        assert numbers(store, "small", 0)[0] == 6

    world.run(work, retention_interval=1e9, tail_cache=0)


def test_units_are_read_once_and_the_log_is_not(world: World) -> None:
    """By the thread of the disk, so many at a time."""

    async def work(store: MessageStore) -> None:
        for number in range(200):
            waiting = put(store, f"t{number % 100}", number // 100, b"x" * 500)
        await waiting
        jobs: list[int] = []
        run = world.disk.run

        def counted(fn: Any, *args: Any) -> Any:
            jobs.extend(len(args[1]) for _ in (0,) if fn is bytes_in_segments)
            return run(fn, *args)

        world.disk.run = counted  # type: ignore[method-assign]  # what is asked of the disk
        await store.delete_topics(*(f"t{number}" for number in range(100)))
        world.disk.run = run  # type: ignore[method-assign]
        assert max(jobs) == 16 and len(jobs) == 13
        assert store.retention._left.keys() == {"0", "65536"} and sum(store.retention._left.values()) > 200 * 500

    world.run(work, **EVER)


async def test_a_look_beside_many_queues_is_made_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """4,000 held the loop for 80 ms."""
    turns: dict[str, list[int]] = {"entries": [0], "_at_place": [0]}

    def count(owner: object, name: str, call: Any, *args: Any) -> Any:
        turns[name][-1] += 1
        return call(owner, *args)

    store = await opened(**EVER)
    for number in range(300):
        waiting = put(store, "small", number, b"x")
    await waiting
    await fill(store, 5)
    await store.delete_topics("T")
    for owner, name in ((Retention, "_at_place"), (Reader, "entries")):
        monkeypatch.setattr(owner, name, partialmethod(count, name, getattr(owner, name)))
    sweep = asyncio.ensure_future(store.retention.sweep())
    while not sweep.done():
        for counts in turns.values():
            counts.append(0)
        await asyncio.sleep(0)
    assert (max(turns["entries"]), sum(turns["entries"])) == (8, 300)
    assert max(turns["_at_place"]) <= 2 * 64 + 1 and sum(turns["_at_place"]) >= 600
    await store.close()


def test_bytes_are_counted_for_the_segment_in_which_they_stand(world: World) -> None:
    units = b"".join(
        UNIT.pack(place, size, 1) for place, size in ((5, 9), (20, 8), (99, 1), (100, 50), (150, -7), (350, 9))
    )
    assert bytes_in_segments(world.disk, [units, b""], [20, 100, 200, 300]) == {20: 9, 100: 50, 300: 9}
    assert bytes_in_segments(world.disk, [units], []) == {}


def test_a_disk_that_fails_to_count_keeps_no_topic(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def work(store: MessageStore) -> None:
        await beside(store)
        await asyncio.sleep(1)
        replace = world.disk.replace

        def full(path: str, data: bytes) -> None:
            if "retention" in path:
                raise OSError(errno.ENOSPC, "No space left on device", path)
            replace(path, data)

        world.disk.replace = full  # type: ignore[method-assign]
        await store.delete_topics("T")
        world.disk.replace = replace  # type: ignore[method-assign]
        assert store.topics() == ["small"] and "goes when it is old" in caplog.text
        await store.retention.sweep()
        check_small(store)

    world.run(work, **EVER)
    assert not [path for path in world.files("consumequeue") if "/T/" in path]


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.seeds(4)  # each one call of twelve
def test_a_crash_at_every_call_of_a_deletion_and_a_sweep_loses_nothing(power: bool, seed: int) -> None:
    """The topic is whole, or it is gone, and the next sweep ends what this one began."""
    for after in range((2 if power else 1) + 3 * seed, 260, 12):
        world = World(after)

        async def fill_up(store: MessageStore) -> None:
            await beside(store)

        async def sweep(world: World, after: int) -> None:
            store = await opened(world.env, segment_size=65_536, **EVER)
            world.disk.fail(after)
            with contextlib.suppress(OSError, StoreError):
                await store.delete_topics("T")
                await store.retention.sweep()
            for timer in (store.retention._timer, store._behind._timer):
                if timer is not None:
                    timer.cancel()

        async def look(store: MessageStore) -> None:
            check_small(store)
            both = [*numbers(store, "T", 0), *numbers(store, "T", 1)]
            assert sorted(both) == (list(range(20)) if both else [])
            await store.delete_topics("T")
            await store.retention.sweep()
            check_small(store)

        world.run(fill_up, **EVER)
        world.loop.set_exception_handler(lambda loop, context: None)
        world.loop.run_until_complete(sweep(world, after))
        world.disk._failures.clear()
        if power:
            world.disk.crash()
        else:
            world.disk.process_died()
        world.run(look, **EVER)
        assert not [path for path in world.disk.files if "compact" in path]
        world.loop.close()
