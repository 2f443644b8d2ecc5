"""A sample of the damage harness (tests/harness/damage.py says what is judged)."""

from __future__ import annotations

import asyncio
import errno

import pytest

from aiorocket.errors import StoreError
from aiorocket.runtime.env import memory_env
from aiorocket.runtime.memory_disk import MemoryDisk
from aiorocket.storage import MessageStore, Snapshot, StoreBusyError
from aiorocket.storage.checksums import PAGE
from aiorocket.storage.checkup import survey
from aiorocket.storage.consume_queue import UNIT
from aiorocket_protocol import split_records, tags_code
from tests.harness.damage import images, one_place, read_all
from tests.storage.stores import HOST, config, intact, opened, put, put_batch
from tests.storage.test_recovery import copy_of
from tests.storage.test_retention import World, fill


@pytest.mark.seeds(4)  # each one place of four
async def test_damage_is_never_served_and_takes_nothing_intact_along(seed: int) -> None:
    all_images = await images()
    for place in range(seed, 150, 4):
        await one_place(all_images, place)


async def test_the_oracle_knows_tags_that_are_no_text() -> None:
    await one_place(await images(), 701_391)


async def test_the_scrub_finds_damage_that_nobody_reads(caplog: pytest.LogCaptureFixture) -> None:
    env = memory_env()
    assert isinstance(env.disk, MemoryDisk)
    store = await opened(env, tail_cache=0)
    for number in range(300):
        await put(store, "T", number % 2, b"%d." % number * 200)
    env.disk.files["/store/commitlog/" + "0" * 20][5_000] ^= 1
    await store._scrub.once()
    await asyncio.sleep(0)
    [damage] = store.damaged
    assert damage.lost == (("T", 0, 5, 1),) and damage.offset <= 5_000 < damage.end
    assert "1 messages are lost: topic T queue 0 offset 5 (1)" in caplog.text
    assert sorted(intact(store, "T", 0)) == [offset for offset in range(150) if offset != 5]
    await store._scrub.once()
    await asyncio.sleep(0)
    assert len(store.damaged) == 1 and caplog.text.count("are lost") == 1, "said once"
    await store.close()


def test_the_scrub_begins_by_itself_keeps_its_rate_and_comes_again() -> None:
    world, hour = World(), 3600.0

    async def spoil_and_wait(store: MessageStore) -> None:
        """Each full segment gets a wrong byte where the scrub comes by in 4 s; when each was found, in seconds."""
        await fill(store, 16)
        began, found = world.loop.time(), list[float]()
        first, second, third, _ = world.files()
        for path in (first, second, third):
            world.disk.files[path][30_000] ^= 1
        while world.loop.time() < began + 120:
            await asyncio.sleep(0.1)
            found += [world.loop.time() - opened_at] * (len(store.damaged) - len(found))
        # One piece of 256 KiB at most, then a pause in which the rate would have read as much.
        assert found == pytest.approx([60, 64, 68], abs=0.5)
        world.disk.files[third][60_000] ^= 1
        await asyncio.sleep(hour - 120)
        assert len(store.damaged) == 3, "it has a rest"
        await asyncio.sleep(120)
        assert len(store.damaged) == 4

    async def left_alone(store: MessageStore) -> None:
        await asyncio.sleep(3 * hour)
        assert len(store.damaged) == 4

    opened_at = world.loop.time()
    world.run(spoil_and_wait, tail_cache=0, file_reserved_time=0, scrub_rate=64 * 1024, scrub_interval=hour)
    first = world.files()[0]
    world.disk.files[first][50_000] ^= 1
    world.run(left_alone, tail_cache=0, file_reserved_time=0, scrub_rate=0, scrub_interval=hour)
    world.loop.close()


async def test_a_message_of_which_only_the_beginning_is_damaged_is_counted_as_lost() -> None:
    """Checksums end with a page, messages do not."""
    env = memory_env()
    assert isinstance(env.disk, MemoryDisk)
    store = await opened(env, tail_cache=0)
    places = [(await put(store, "T", 0, b"%d." % number * 200)).physical_offset for number in range(300)]
    across = next(number for number, place in enumerate(places[1:]) if place > PAGE)
    env.disk.files["/store/commitlog/" + "0" * 20][PAGE - 1] ^= 1
    await store._scrub.once()
    await asyncio.sleep(0)
    [damage] = store.damaged
    assert damage.end == PAGE and damage.lost == (("T", 0, across, 1),)
    assert sorted(intact(store)) == [offset for offset in range(300) if offset != across]
    await store.close()


async def test_a_unit_that_reaches_into_damage_by_a_wrong_size_hides_nothing() -> None:
    env = memory_env()
    assert isinstance(env.disk, MemoryDisk)
    store = await opened(env)
    places = [(await put(store, "T", 0, b"%d." % number * 50)).physical_offset for number in range(10)]
    await store.close()
    env.disk.files["/store/commitlog/" + "0" * 20][places[3] + 100] ^= 1
    units = env.disk.files["/store/consumequeue/T/0/" + "0" * 20]
    units[20:60] = UNIT.pack(places[1], places[5] - places[1], 0) + UNIT.pack(1 << 40, 200, 0)
    store = await opened(env)
    found = await read_all(store, ("T", 0))
    assert sorted(found) == [0, 1, 2, *range(4, 10)]
    await store.close()


async def test_the_first_messages_of_queues_that_are_made_again_are_counted_as_lost() -> None:
    env = memory_env()
    assert isinstance(env.disk, MemoryDisk)
    store = await opened(env)
    places = [(await put(store, "T", number % 2, b"%d." % number * 20)).physical_offset for number in range(40)]
    await store.close()
    env.disk.files["/store/commitlog/" + "0" * 20][: places[10]] = bytes(places[10])
    del env.disk.files["/store/consumequeue/T/1/" + "0" * 20]
    found = survey(env.disk, "/store", lambda done, total: None)
    assert found.lost == 10
    store = await opened(env)
    await asyncio.sleep(0)
    assert store.recovery.rebuilt
    assert [damage.lost for damage in store.damaged] == [(("T", 0, 0, 5), ("T", 1, 0, 5))]
    for queue_id in (0, 1):
        assert sorted(intact(store, "T", queue_id)) == list(range(5, 20))
        assert store.min_offset("T", queue_id) == 0
    await store.close()


@pytest.mark.parametrize("sums", [False, True])
async def test_messages_of_a_first_segment_that_is_missing_are_counted_when_queues_are_made_again(sums: bool) -> None:
    env = memory_env()
    assert isinstance(env.disk, MemoryDisk)
    store = await opened(env)
    for number in range(300):
        last = await put(store, "T", number % 2, b"%d." % number * 200)
    assert last.physical_offset > 65_536
    left = sum(place >= 65_536 for queue_id in (0, 1) for place, _, _ in store.entries("T", queue_id, 0, 150))
    await store.close()
    for path in list(env.disk.files):
        gone = path.startswith("/store/commitlog/" + "0" * 20) or "/T/1/" in path
        if gone or (not sums and path.endswith(".sums")):
            del env.disk.files[path]
    store = await opened(env)
    await asyncio.sleep(0)
    assert store.recovery.rebuilt
    [damage] = store.damaged
    assert (damage.offset, damage.end, damage.messages) == (0, 65_536, 300 - left)
    assert len(intact(store, "T", 0)) + len(intact(store, "T", 1)) == left
    assert (store.min_offset("T", 0), store.min_offset("T", 1)) == (0, 0)
    await store.close()


async def test_the_scrub_makes_checksums_where_there_are_none() -> None:
    env = memory_env()
    assert isinstance(env.disk, MemoryDisk)
    store = await opened(env)
    for number in range(300):
        await put(store, "T", 0, b"%d." % number * 200)
    await store.close()
    first = "/store/commitlog/" + "0" * 20
    del env.disk.files[first + ".sums"]
    store = await opened(env)
    assert len(intact(store)) == 300 and store._log.unchecked
    await store._scrub.once()
    assert not store._log.unchecked and first + ".sums" in env.disk.files
    await store.close()
    env.disk.files[first][45] ^= 1  # the first born timestamp: a head has no CRC of its own
    store = await opened(env)
    assert sorted(intact(store))[0] > 0
    await store.close()


async def test_a_record_that_says_it_is_the_first_of_another_queue_takes_nothing_of_that_along() -> None:
    """Without checksums its head is not protected; but a topic that was deleted and made again would be known."""
    env = memory_env()
    assert isinstance(env.disk, MemoryDisk)
    store = await opened(env)
    for number in range(10):
        damaged = await put(store, "T", number % 2, b"%d" % number)
    await put(store, "T", 0, b"behind")
    await store.close()
    first = "/store/commitlog/" + "0" * 20
    del env.disk.files[first + ".sums"]
    head = damaged.physical_offset
    env.disk.files[first][head + 12 : head + 28] = bytes(8) + env.disk.files[first][head + 20 : head + 28]
    env.disk.files[first][head + 20 : head + 28] = bytes(8)  # queue 0, offset 0
    for _ in range(2):
        store = await opened(env)
        assert intact(store, "T", 0) == {**{at: b"%d" % (2 * at) for at in range(5)}, 5: b"behind"}
        assert intact(store, "T", 1) == {at: b"%d" % (2 * at + 1) for at in range(4)}
        assert store.max_offset("T", 1) == 5
        await store.close()


async def test_what_only_the_checksums_tell_of_is_said_to_be_cut() -> None:
    """A file that ends where a record ends looks whole; its checksums say that more was written."""
    env = memory_env()
    assert isinstance(env.disk, MemoryDisk)
    store = await opened(env, flush="async", flush_interval=100, checkpoint_interval=100)
    for number in range(5):
        last = await put(store, "T", 0, b"%d" % number)
    first = "/store/commitlog/" + "0" * 20
    whole = len(env.disk.files[first])
    del env.disk.files[first][last.physical_offset :]
    env.disk.locks.clear()
    again = await opened(env)
    assert again.recovery.truncated_bytes == whole - last.physical_offset
    assert sorted(intact(again)) == [0, 1, 2, 3]
    await again.close()
    await store.close()


async def test_a_filter_misses_nothing_for_a_damaged_tags_code(caplog: pytest.LogCaptureFixture) -> None:
    """It never sees the record that it passes over."""
    env = memory_env()
    assert isinstance(env.disk, MemoryDisk)
    store = await opened(env)
    for number in range(900):
        await put(store, "T", 0, b"%d" % number, "A" if number % 3 == 0 else "B")
    await store.close()
    units = env.disk.files["/store/consumequeue/T/0/" + "0" * 20]
    for number in (300, 301, 600):
        units[number * 20 + 19] ^= 3  # A for B, B for A
    store = await opened(env)
    found: list[bytes] = []
    offset = 0
    while offset < 900:
        try:
            result = store.read("T", 0, offset, 32, 1 << 20, tags_code("A").__eq__)
        except StoreBusyError:
            await asyncio.sleep(0)
            continue
        found += [view.raw_body for view in split_records(result.data)]
        offset = result.next_offset
    assert found == [b"%d" % number for number in range(0, 900, 3)]
    assert "contradicted the log: offsets 300 to 302" in caplog.text
    await store.close()


async def test_when_a_message_is_due_is_compared_with_its_record() -> None:
    """For some topics the code is a time, and a timer that was damaged would wait for years."""
    codes = {"timers": lambda record, said: record.born_timestamp}
    env = memory_env()
    assert isinstance(env.disk, MemoryDisk)
    store = await opened(env)
    for _ in range(3):
        await put(store, "timers", 0, tags_code=7)
    await store.close()
    env.disk.files["/store/consumequeue/timers/0/" + "0" * 20][32] ^= 0x40
    store = await MessageStore.open(env, config(), "store", store_host=HOST, codes=codes)
    with pytest.raises(StoreBusyError):
        store.entries("timers", 0, 0, 3)
    for _ in range(10):
        await asyncio.sleep(0)
    assert [code for _, _, code in store.entries("timers", 0, 0, 3)] == [7, 7, 7]
    await store.close()


async def test_each_record_of_a_batch_has_the_checksum_of_its_own_body() -> None:
    """The checksum file covers a batch as a whole; where there is none, one damaged body costs one message."""
    env = memory_env()
    assert isinstance(env.disk, MemoryDisk)
    store = await opened(env)
    stored = await put_batch(store, [b"%d|" % number * 50 for number in range(5)])
    await store.close()
    first = "/store/commitlog/" + "0" * 20
    del env.disk.files[first + ".sums"]
    env.disk.files[first][stored.physical_offsets[2] + 100] ^= 1
    store = await opened(env, tail_cache=0)
    assert sorted(intact(store)) == [0, 1, 3, 4]
    await store.close()


@pytest.mark.parametrize("by", ["scrub", "start"])
async def test_checksums_that_are_made_again_vouch_for_no_damage(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill before the checkpoint that knows of it would make a damaged body a good one."""
    env = memory_env()
    assert isinstance(env.disk, MemoryDisk)
    store = await opened(env)
    count = 300 if by == "scrub" else 30
    places = [(await put(store, "T", 0, b"%d." % number * 200)).physical_offset for number in range(count)]
    await store.close()
    first = "/store/commitlog/" + "0" * 20
    del env.disk.files[first + ".sums"]
    env.disk.files[first][places[5] + 150] ^= 1
    if by == "scrub":
        store = await opened(env)
        await store._scrub.once()
        killed = copy_of(env)
        await store.close()
    else:
        with monkeypatch.context() as patched:
            patched.setattr(Snapshot, "save", _fails)
            with pytest.raises(StoreError, match="cannot be used"):
                await opened(env)
        killed = env
    for _ in range(2):
        store = await opened(killed, tail_cache=0)
        assert intact(store) == {number: b"%d." % number * 200 for number in range(count) if number != 5}
        await asyncio.sleep(0)
        assert [damage.lost for damage in store.damaged] == [(("T", 0, 5, 1),)]
        await store.close()


def _fails(snapshot: Snapshot, value: object) -> None:
    raise OSError(errno.EIO, "the process ends here", snapshot.path)
