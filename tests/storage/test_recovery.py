"""Opening what a crash left: torn tails are cut exactly, damage below the durable mark is quarantined, queues are made
again."""

from __future__ import annotations

import asyncio
import errno
import random
from typing import Any

import pytest

from aiorocket.errors import StoreCorruptedError, StoreError
from aiorocket.runtime.entropy import Entropy
from aiorocket.runtime.env import Env, memory_env
from aiorocket.runtime.memory_disk import MemoryDisk
from aiorocket.storage import MessageStore, Recovery, Snapshot, StoreBusyError, housekeeping
from aiorocket.storage import recovery as recovery_module
from aiorocket.storage.checkup import survey
from aiorocket.storage.consume_queue import FILE_SIZE, FILE_UNITS, GAP, UNIT
from aiorocket.storage.queue_recovery import QueueSteps, sync_queue
from aiorocket.storage.segment import Segment
from aiorocket.testing import SimClock, SimDisk, SimLoop
from aiorocket_protocol import RecordView
from tests.storage.stores import HOST, as_format_2, bodies, config, intact, opened, put

LOG = "store/commitlog"
QUEUES = "store/consumequeue"


def disk_of(env: Env) -> MemoryDisk:
    assert isinstance(env.disk, MemoryDisk)
    return env.disk


def copy_of(env: Env) -> Env:
    """What another process finds when this one is killed now."""
    copy = memory_env()
    disk = disk_of(copy)
    disk.files = {path: bytearray(data) for path, data in disk_of(env).files.items()}
    disk.directories = dict(disk_of(env).directories)
    return copy


async def reopen(env: Env, **changes: Any) -> tuple[MessageStore, Recovery]:
    store = await opened(env, **changes)
    return store, store.recovery


async def filled(count: int, *, checkpoint_at: int = 0, size: int = 40) -> tuple[Env, MessageStore, list[int]]:
    """A store with ``count`` messages over two queues whose last checkpoint came after ``checkpoint_at`` of them."""
    env = memory_env()
    store = await opened(env, checkpoint_interval=1000)
    places = []
    for number in range(count):
        if number == checkpoint_at and number:
            await store._behind._checkpoint(clean=False)
        result = await put(store, "T", number % 2, b"%d." % number * size)
        places.append(result.physical_offset)
    return env, store, places


async def test_a_clean_stop_leaves_nothing_to_scan() -> None:
    env, store, _ = await filled(50)
    await store.close()
    again, recovery = await reopen(env)
    assert recovery.clean and (recovery.records, recovery.scanned_bytes, recovery.truncated_bytes) == (0, 0, 0)
    assert len(bodies(again, "T", 0)) == 25
    killed = copy_of(env)
    await again.close()
    third, recovery = await reopen(killed)
    assert not recovery.clean, "the mark of a clean stop is gone as soon as the store is open"
    await third.close()


async def test_a_kill_loses_nothing_that_was_written_and_reads_only_what_came_after_the_checkpoint() -> None:
    env, store, _ = await filled(60, checkpoint_at=40)
    killed = copy_of(env)
    await store.close()
    again, recovery = await reopen(killed)
    assert (recovery.records, recovery.truncated_bytes, recovery.rebuilt) == (20, 0, False)
    assert bodies(again, "T", 1) == [b"%d." % number * 40 for number in range(1, 60, 2)]
    assert (await put(again, "T", 0)).queue_offset == 30
    await again.close()


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_checkpoint_of_many_queues_is_made_in_turns(deleted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is appended, made or deleted while it looks at queue after queue, it fits the log."""
    monkeypatch.setattr(housekeeping, "_A_TURN", 2)
    env = memory_env()
    store = await opened(env, checkpoint_interval=1000)
    for number in range(40):
        await put(store, f"t{number % 10}", number % 2, b"%d" % number)
    job = asyncio.ensure_future(store._behind.save())
    turns, waiting = 0, []
    while not job.done():
        turns += 1
        if turns <= 200:  # some behind and some in front of where it looks, and new ones
            waiting.append(put(store, f"t{turns % 9 + 1}" if turns % 3 else f"new{turns}", 0, b"more"))
        if deleted and turns == 4:
            gone = store.delete_topics("t0")
        await asyncio.sleep(0)
    assert await job and turns > 10
    image = copy_of(env)
    results = [await result for result in waiting]
    if deleted:
        await gone
    killed = copy_of(env)
    await store.close()
    for env in (image, killed):
        again, recovery = await reopen(env)
        assert not recovery.rebuilt and not again.damaged
        assert all(again.read_record(result.physical_offset) for result in results) or env is image
        for number in range(1, 10):
            assert len(bodies(again, f"t{number}", 0)) >= 4 * (number % 2 == 0)
        assert not deleted or not again.queues("t0") or env is image
        await again.close()


@pytest.mark.seeds(4)  # each one byte of four
async def test_the_last_batch_cut_at_every_byte_with_zeros_and_garbage_behind(seed: int) -> None:
    env, store, places = await filled(5, size=20)
    await store._behind._checkpoint(clean=False)
    group = [put(store, "T", number % 2, b"%d." % number * 20) for number in range(5, 8)]
    places += [(await result).physical_offset for result in group]
    image = copy_of(env)
    await store.close()
    path = f"{LOG}/{0:020d}"
    data = bytes(disk_of(image).files["/" + path])
    end, first = len(data), places[5]
    draw = random.Random(5)
    for cut in range(first + seed, end + 1, 4):
        for filler in (b"", bytes(end - cut), draw.randbytes(end - cut), data[first:][: end - cut]):
            broken = copy_of(image)
            torn = data[:cut] + filler
            whole = sum(torn[:stop] == data[:stop] for stop in [*places[1:], end])
            disk_of(broken).files["/" + path][:] = torn
            again, recovery = await reopen(broken)
            assert recovery.end == [*places, end][whole], (cut, filler)
            assert again.max_offset("T", 0) + again.max_offset("T", 1) == whole
            assert len(bodies(again, "T", 0)) == (whole + 1) // 2
            assert bytes(disk_of(broken).files["/" + path][recovery.end :]).strip(b"\0") == b""
            assert (await put(again, "T", whole % 2)).queue_offset == whole // 2
            await again.close()


async def test_old_records_behind_a_tear_never_come_back() -> None:
    """The first of two unsynced records was lost; once its place is filled again the second must not reappear."""
    env, store, places = await filled(6)
    await store._behind._checkpoint(clean=False)
    group = [put(store, "T", number % 2, b"%d." % number * 40) for number in (6, 7)]
    places += [(await result).physical_offset for result in group]
    image = copy_of(env)
    await store.close()
    path = f"{LOG}/{0:020d}"
    disk_of(image).files["/" + path][places[6] : places[7]] = bytes(places[7] - places[6])
    again, recovery = await reopen(image)
    assert recovery.end == places[6] and recovery.truncated_bytes > 0 and recovery.reason
    await put(again, "T", 0, b"6." * 40)
    killed = copy_of(image)
    await again.close()
    third, recovery = await reopen(killed)
    assert third.max_offset("T", 1) == 3 and third.max_offset("T", 0) == 4
    await third.close()


@pytest.mark.parametrize("sums", [True, False])
async def test_a_property_sector_that_was_never_written_is_a_tear(sums: bool) -> None:
    env = memory_env()
    store = await opened(env)
    properties = b"name\x01" + b"v" * 1500 + b"\x02"
    done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    store.append(
        "T", 0, b"body", properties, flag=0, sys_flag=0, born_timestamp=1, born_host=bytes(8), tags_code=0,
        done=done.set_result,
    )  # fmt: skip
    await done
    image = copy_of(env)
    await store.close()
    disk_of(image).files[f"/{LOG}/{0:020d}"][512:1024] = bytes(512)
    if not sums:
        del disk_of(image).files[f"/{LOG}/{0:020d}.sums"]
    again, recovery = await reopen(image)
    assert recovery.end == 0 and ("checksum" if sums else "sector") in recovery.reason
    await again.close()


@pytest.mark.parametrize("sums", [True, False])
@pytest.mark.parametrize("damage", ["body", "magic", "size", "place", "zeros"])
async def test_damage_below_the_durable_mark_is_a_gap_and_everything_else_is_there(damage: str, sums: bool) -> None:
    env, store, places = await filled(40, checkpoint_at=30)
    await store._behind._checkpoint(clean=False)
    image = copy_of(env)
    await store.close()
    disk = disk_of(image)
    disk.unlink("store/checkpoint.a")  # the newest is gone too: the older one tells of the first 30
    log = disk.files[f"/{LOG}/{0:020d}"]
    at, lost = places[20], [20]
    if not sums:
        del disk.files[f"/{LOG}/{0:020d}.sums"]
    if damage == "body":
        log[at + 100] ^= 1
    elif damage == "magic":
        log[at + 4] ^= 1
    elif damage == "size":
        log[at : at + 4] = (1 << 30).to_bytes(4, "big")
    elif damage == "place":
        log[at + 30] ^= 1
    else:
        log[at : at + 1000] = bytes(1000)
        lost = [number for number in range(20, 30) if places[number] < at + 1000]
    disk.files["/store/consumequeue/T/0/" + "0" * 20].clear()  # forces a look at the whole log
    again, recovery = await reopen(image)
    assert recovery.rebuilt
    [bad] = recovery.damaged
    assert bad.offset == at and bad.end == places[lost[-1] + 1]
    for number in range(3):
        for queue_id in (0, 1):
            numbers = [number for number in range(queue_id, 40, 2) if number not in lost]
            expected = {number // 2: b"%d." % number * 40 for number in numbers}
            found = intact(again, "T", queue_id)
            assert {offset: body for offset, body in found.items() if offset < 20} == expected
        assert (await put(again, "T", 0, b"later")).queue_offset == 20 + number
        await again.close()
        again, recovery = await reopen(image)
        assert not recovery.damaged, "it is reported once"
    await again.close()


async def test_damage_in_front_of_a_used_segment_is_never_a_torn_tail() -> None:
    env, store, places = await filled(400, size=100)
    assert places[-1] > 65_536
    image = copy_of(env)
    await store.close()
    disk = disk_of(image)
    disk.files[f"/{LOG}/{0:020d}"][places[10] + 95] ^= 255
    again, recovery = await reopen(image)
    assert recovery.truncated_bytes == 0 and recovery.damaged[0][:2] == (places[10], places[11])
    assert len(intact(again, "T", 0)) == 199 and len(intact(again, "T", 1)) == 200
    await again.close()


async def test_missing_segments_are_gaps() -> None:
    env, store, places = await filled(900, size=100)
    assert places[-1] > 2 * 65_536
    await store._behind._checkpoint(clean=False)
    image = copy_of(env)
    await store.close()
    segments = [int(name) for name in disk_of(image).listdir(LOG) if name.isdigit() and int(name) <= places[-1]]
    for doomed in (segments[:1], segments[1:2], segments[-1:], segments[1:], segments):
        broken = copy_of(image)
        for base in doomed:
            disk_of(broken).unlink(f"{LOG}/{base:020d}")
        again, recovery = await reopen(broken)
        assert recovery.damaged and recovery.end > places[-1]
        left = [place for place in places if max(base for base in segments if base <= place) not in doomed]
        found = [intact(again, "T", queue_id) for queue_id in (0, 1)]
        assert len(found[0]) + len(found[1]) == len(left)
        assert (await put(again, "T", 0, b"new")).queue_offset == 450, "an offset is never given twice"
        await again.close()
        again, recovery = await reopen(broken)
        assert not recovery.damaged
        assert intact(again, "T", 0) == {**found[0], 450: b"new"}
        await again.close()
    again, _ = await reopen(image)
    await again.close()


@pytest.mark.parametrize("first", [0, 10, FILE_UNITS + 10])
def test_the_file_of_a_queue_that_is_made_again_survives_a_power_cut(first: int) -> None:
    """Of one that did not begin at 0 the name was taken for one that was durable."""
    for seed in range(8):
        disk = SimDisk(seed)
        queue = QueueSteps(disk, "store", None, {})._queue("T", 0, first)
        queue.tail += UNIT.pack(0, GAP, 0)
        queue.next_offset = queue.max_offset = first + 1
        sync_queue(disk, queue)
        disk.crash()
        assert [int(name) for name in disk.listdir(queue.directory)] == [first // FILE_UNITS * FILE_SIZE]


async def test_a_last_segment_that_goes_with_its_first_bytes_is_spoken_of() -> None:
    """With flush="async" nothing of it was promised; all of it was removed without a word."""
    env = memory_env()
    store = await opened(env, flush="async", flush_interval=1e6, checkpoint_interval=1e6)
    for _ in range(6):
        last = await put(store, "T", 0, b"x" * 20_000)
    assert last.physical_offset > 65_536
    image = copy_of(env)
    await store.close()
    disk_of(image).files[f"/{LOG}/{65_536:020d}"][:4] = bytes(4)
    store, found = await reopen(image)
    assert (found.end, found.truncated_bytes) == (65_536, 3 * 20_092), found
    assert found.reason == "its first bytes are missing" and store.max_offset("T", 0) == 3
    await store.close()
    store, found = await reopen(image)
    assert not found.truncated_bytes
    await store.close()


async def test_of_a_log_that_lost_its_end_units_say_what_no_checkpoint_knows(caplog: pytest.LogCaptureFixture) -> None:
    """Of format 2, killed before its first checkpoint. It was told that 0 messages are lost, and gave their offsets
    again."""
    env = memory_env()
    store = await opened(env, checkpoint_interval=1e6, segment_size=1 << 20)
    for _ in range(40):
        await asyncio.gather(*(put(store) for _ in range(100)))
    queue = store._queues["T", 0]
    async with asyncio.timeout(30):
        while queue.writing or not queue.tail_first:
            await asyncio.sleep(0.001)
    image = copy_of(env)
    await store.close()
    as_format_2(image.disk)
    log = [name for name in disk_of(image).listdir(LOG) if name.isdigit()]
    disk_of(image).unlink(f"{LOG}/{log[0]}")
    units = len(disk_of(image).files[f"/store/consumequeue/T/0/{0:020d}"]) // 20
    assert 3_000 < units < 4_000, "the rest of them was in memory"
    found = survey(image.disk, "/store", lambda done, total: None)
    assert [each.lost for each in found.findings] == [(("T", 0, 0, units),)]
    again = await opened(image, checkpoint_interval=1e6, segment_size=1 << 20)
    async with asyncio.timeout(30):
        while not again.damaged:
            await asyncio.sleep(0)
    assert again.damaged[0].lost == (("T", 0, 0, units),) and again.max_offset("T", 0) == units
    assert f"{units} messages are lost: topic T queue 0 offset 0 ({units})" in caplog.text
    assert "not every queue knows" in caplog.text
    await again.close()


@pytest.mark.parametrize("step", ["scan", "finish", "sync_queue"])
@pytest.mark.parametrize("rebuilt", [False, True])
@pytest.mark.parametrize("counted", [False, True])
async def test_what_a_start_that_is_broken_off_found_is_not_forgotten(
    step: str, rebuilt: bool, counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cuts the queues and makes them again, and removes checksum files; only their old units, or these, knew which
    offsets had been given."""
    env = memory_env()
    store = await opened(env, checkpoint_interval=1e6)
    await put(store, "T", 0, b"known")
    await store._behind.save()
    for _ in range(40):
        await asyncio.gather(*(put(store) for _ in range(100)))
    async with asyncio.timeout(30):
        while store._queues["T", 0].writing or store._queues["T", 0].tail_first < 3_000:
            await asyncio.sleep(0.001)
    image = copy_of(env)
    await store.close()
    disk = disk_of(image)
    if not counted:
        as_format_2(disk)
    for name in [name for name in disk.listdir(LOG) if name.isdigit()][1:]:
        disk.unlink(f"{LOG}/{name}")
    if rebuilt:
        disk.files[f"/store/consumequeue/T/0/{0:020d}"][0] ^= 1
    whole, broken = copy_of(image), image
    starts = []
    for env in (whole, broken):
        if env is broken:
            with monkeypatch.context() as patched:
                where = recovery_module if step == "sync_queue" else recovery_module.LogSteps
                patched.setattr(where, step, _ends)
                with pytest.raises(StoreError, match="cannot be used"):
                    await opened(env)
        again, found = await reopen(env)
        await asyncio.sleep(0)
        losses = [damage.lost for damage in again.damaged]
        starts.append((again.max_offset("T", 0), sorted(intact(again, "T", 0)), losses))
        assert found.rebuilt == rebuilt or env is broken
        await again.close()
    assert starts[0] == starts[1] and starts[0][0] > 3_000 and (starts[0][0] == 4_001) == counted


def _ends(*args: object) -> None:
    raise OSError(errno.EIO, "the process ends here")


async def test_of_a_log_that_lost_its_end_is_never_said_that_nothing_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    env, store, places = await filled(20)
    image = copy_of(env)
    await store.close()
    for checkpoint in (True, False):
        broken = copy_of(image)
        disk_of(broken).unlink(f"{LOG}/{0:020d}")
        if not checkpoint:
            for generation in "ab":
                disk_of(broken).files.pop(f"/store/checkpoint.{generation}", None)
        found = survey(broken.disk, "/store", lambda done, total: None)
        assert [(each.offset, each.end > places[-1]) for each in found.findings if each.kind == "log"] == [(0, True)]
        again, recovery = await reopen(broken)
        assert [each[:1] for each in recovery.damaged] == [(0,)]
        async with asyncio.timeout(30):
            while not again.damaged:
                await asyncio.sleep(0)
        assert " 0 messages are lost" not in caplog.text
        await again.close()


@pytest.mark.parametrize("loss", ["checkpoint", "queue", "file", "short", "wrong", "both", "garbage"])
async def test_consume_queues_are_made_again_from_the_log(loss: str) -> None:
    env, store, _ = await filled(90, checkpoint_at=60)
    image = copy_of(env)
    await store.close()
    disk = disk_of(image)
    queue = f"/{QUEUES}/T/1/{0:020d}"
    if loss in ("checkpoint", "both"):
        for name in "ab":
            disk.files.pop(f"/store/checkpoint.{name}", None)
    if loss == "garbage":
        for name in "ab":
            disk.files[f"/store/checkpoint.{name}"][:] = b"no state"
    if loss == "file":
        disk.unlink(queue[1:])
    if loss in ("queue", "both"):
        disk.unlink(queue[1:])
        disk.rmdir(f"{QUEUES}/T/1")
    if loss == "short":
        del disk.files[queue][-7:]
    if loss == "wrong":
        disk.files[queue][-17] ^= 3
    again, recovery = await reopen(image)
    assert recovery.rebuilt and recovery.records == 90
    for queue_id in (0, 1):
        assert bodies(again, "T", queue_id) == [b"%d." % number * 40 for number in range(queue_id, 90, 2)]
    await again.close()


async def test_without_a_checkpoint_only_the_end_is_read() -> None:
    env, store, _ = await filled(900, checkpoint_at=800, size=100)
    image = copy_of(env)
    await store.close()
    for name in "ab":
        disk_of(image).files.pop(f"/store/checkpoint.{name}", None)
    again, recovery = await reopen(image)
    assert not recovery.rebuilt and recovery.records == 100
    for queue_id in (0, 1):
        assert bodies(again, "T", queue_id) == [b"%d." % number * 100 for number in range(queue_id, 900, 2)]
    await again.close()


async def test_surplus_units_and_unknown_queues_go() -> None:
    env, store, _ = await filled(40, checkpoint_at=30)
    image = copy_of(env)
    await store.close()
    disk = disk_of(image)
    disk.files[f"/{QUEUES}/T/1/{0:020d}"] += b"\xff" * 47
    disk.makedirs(f"{QUEUES}/ghost/3")
    disk.open(f"{QUEUES}/ghost/3/{0:020d}", create=True).pwritev([bytes(200)], 0)
    again, recovery = await reopen(image)
    assert not recovery.rebuilt and recovery.records == 10
    assert len(bodies(again, "T", 1)) == 20 and again.topics() == ["T"]
    await again.close()


async def test_a_newer_format_is_refused_in_words() -> None:
    env, store, _ = await filled(3)
    await store.close()
    snapshot = Snapshot(env.disk, "store/checkpoint")
    state = snapshot.load()
    assert state is not None
    snapshot.save({**state, "format": 99})
    with pytest.raises(StoreCorruptedError, match="newer"):
        await reopen(env)


async def test_store_time_goes_on_after_a_restart() -> None:
    env = memory_env()

    class Stuck:
        def wall_ms(self) -> int:
            return now

    env.clock = Stuck()
    now = 9000
    store = await opened(env)
    await put(store)
    killed = copy_of(env)
    await store.close()
    now = 10
    for image in (env, killed):
        image.clock = Stuck()
        again, _ = await reopen(image)
        assert (await put(again)).store_timestamp == 9000
        await again.close()


async def test_another_segment_size_after_a_restart() -> None:
    env, store, _ = await filled(300, size=100)
    await store.close()
    expected = [b"%d." % number * 100 for number in range(0, 300, 2)]
    for segment_size in (131_072, 65_536, 400_000):
        again, recovery = await reopen(env, segment_size=segment_size)
        assert recovery.clean and bodies(again, "T", 0) == expected
        for number in range(300):
            expected.append(b"%d/" % number * 100)
            await put(again, "T", 0, expected[-1])
        assert bodies(again, "T", 0) == expected
        await again.close()
    for name in "ab":
        disk_of(env).unlink(f"store/checkpoint.{name}")
    disk_of(env).files[f"/{QUEUES}/T/0/{0:020d}"].clear()
    again, recovery = await reopen(env)
    assert recovery.rebuilt and bodies(again, "T", 0) == expected
    await again.close()


async def test_deletion_survives_a_kill_and_a_rebuild() -> None:
    env, store, _ = await filled(20, checkpoint_at=10)
    await put(store, "kept")
    deleting = store.delete_topics("T")
    with pytest.raises(StoreBusyError):
        put(store, "T")
    await deleting
    await put(store, "T", 0, b"new")
    image = copy_of(env)
    await store.close()
    disk = disk_of(image)
    disk.files[f"/{QUEUES}/kept/0/{0:020d}"].clear()  # so that everything is read again
    again, recovery = await reopen(image)
    assert recovery.rebuilt and again.queues("T") == [0]
    assert bodies(again, "T") == [b"new"] and bodies(again, "kept") == [b"x"]
    lost = copy_of(image)
    await again.close()
    for name in "ab":
        disk_of(lost).files.pop(f"/store/checkpoint.{name}", None)
    third, _ = await reopen(lost)
    assert bodies(third, "T") == [b"new"], "even without a checkpoint offset 0 says that the topic began again"
    await third.close()


def test_a_deletion_takes_nothing_that_came_in_place_of_what_was_on_its_way() -> None:
    """The checkpoint said that the topic was deleted up to behind the end that the log had after a power cut."""
    loop, disk = SimLoop(1), SimDisk(1)
    env = Env(SimClock(loop), Entropy(1), disk)

    async def power_cut() -> None:
        store = await opened(env, checkpoint_interval=1000)
        await put(store, "kept")
        sync = disk.sync
        disk.sync = lambda file: loop.create_future()  # type: ignore[method-assign]  # a slow one
        put(store, "T", 0, bytes(5_000))
        await asyncio.sleep(0.1)
        store.delete_topics("T")
        assert await store._behind.save()
        disk.sync = sync  # type: ignore[method-assign]
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def kill() -> None:
        store = await opened(env, checkpoint_interval=1000)
        assert store.topics() == ["kept"] and store.max_physical < 5_000
        assert (await put(store, "T", 0, b"new")).queue_offset == 0

    async def look() -> None:
        store = await opened(env)
        assert bodies(store, "T") == [b"new"] and bodies(store, "kept") == [b"x"]
        await store.close()

    loop.run_until_complete(power_cut())
    disk.crash()
    loop.run_until_complete(kill())
    disk.process_died()
    loop.run_until_complete(look())
    loop.close()


async def test_units_of_delay_queues_are_computed_by_the_owner() -> None:
    env = memory_env()
    store = await opened(env, checkpoint_interval=1000)
    await put(store, "SCHEDULE_TOPIC_XXXX", 2, tags_code=123_456_789_012)
    killed = copy_of(env)
    await store.close()
    seen: list[str] = []

    def deliver_at(view: RecordView, said: int | None) -> int:
        seen.append(view.topic)
        return view.store_timestamp + 5000

    again = await MessageStore.open(
        killed, config(), "store", store_host=HOST, codes={"SCHEDULE_TOPIC_XXXX": deliver_at}
    )
    [(_, _, code)] = again.entries("SCHEDULE_TOPIC_XXXX", 2, 0, 5)
    assert set(seen) == {"SCHEDULE_TOPIC_XXXX"} and code == (again.store_time("SCHEDULE_TOPIC_XXXX", 2, 0) or 0) + 5000
    await again.close()


async def test_a_mutated_store_opens_and_takes_messages() -> None:
    env, store, _ = await filled(120, checkpoint_at=80, size=60)
    image = copy_of(env)
    await store.close()

    draw = random.Random(11)
    for _ in range(150):
        broken = copy_of(image)
        disk = disk_of(broken)
        path = draw.choice([path for path, data in disk.files.items() if data])
        data = disk.files[path]
        at = draw.randrange(len(data))
        kind = draw.randrange(3)
        if kind == 0:
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            data[at : at + 512] = bytes(len(data[at : at + 512]))
        else:
            del data[at:]
        again, recovery = await reopen(broken)
        assert recovery.end <= 2 * 65_536
        await put(again, "other")
        await again.close()


async def test_without_checksums_a_record_of_a_wrong_queue_costs_itself_only() -> None:
    env, store, places = await filled(40, checkpoint_at=10)
    image = copy_of(env)
    await store.close()
    disk = disk_of(image)
    disk.files[f"/{LOG}/{0:020d}"][places[20] + 15] ^= 4  # queue 0 says 4; heads of format 1 have no checksum
    del disk.files[f"/{LOG}/{0:020d}.sums"]
    again, recovery = await reopen(image)
    assert recovery.damaged and recovery.damaged[0].offset == places[20]
    assert sorted(intact(again, "T", 0)) == [offset for offset in range(20) if offset != 10]
    assert len(intact(again, "T", 1)) == 20
    await again.close()


async def test_a_segment_that_was_full_when_the_process_died_has_its_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the last byte of a segment and the summary of its checksums."""
    env = memory_env()
    killed: list[Env] = []
    finish = Segment.finish

    def seen(segment: Segment, durable: int, replay: int) -> None:
        killed.append(copy_of(env))
        finish(segment, durable, replay)

    monkeypatch.setattr(Segment, "finish", seen)
    store = await opened(env)
    for number in range(10):
        await put(store, "T", 0, b"%d|" % number * 4000)
    await store.close()
    monkeypatch.undo()
    store = await opened(killed[0], tail_cache=0)
    assert len(bodies(store)) >= 4 and not store._log.unchecked
    await put(store, "T", 0, b"behind")
    await store.close()
    store = await opened(killed[0], tail_cache=0)
    assert bodies(store)[-1] == b"behind" and not store._log.unchecked
    await store.close()


@pytest.mark.parametrize("killed", [False, True])
async def test_a_segment_that_ended_before_segments_became_longer_is_read_to_its_end(killed: bool) -> None:
    """A kill between a full segment and the next one; the store is opened with a larger ``segment_size`` then."""
    env = memory_env()
    store = await opened(env)
    for number in range(6):
        await put(store, "T", 0, b"%d|" % number + bytes(12_000))
    await store.close()
    files = disk_of(env).files
    for path in [path for path in files if f"/{65536:020d}" in path or "consumequeue" in path or "checkpoint" in path]:
        del files[path]
    store = await opened(env)
    assert store.max_offset("T", 0) == 5 and store.max_physical == 65_536
    await store.close()
    store = await opened(env, segment_size=200_000)
    for number in range(5, 12 if killed else 30):
        await put(store, "T", 0, b"%d|" % number + bytes(12_000))
    count = store.max_offset("T", 0)
    if killed:
        env = copy_of(env)
        files = disk_of(env).files
    await store.close()
    for path in [path for path in files if "consumequeue" in path or "checkpoint" in path]:
        del files[path]
    found = survey(disk_of(env), "/store", lambda done, total: None)
    assert (found.records, found.lost) == (count, 0)
    store, recovery = await reopen(env, segment_size=200_000)
    assert recovery.rebuilt and not recovery.damaged
    assert [int(body.partition(b"|")[0]) for body in bodies(store, "T", 0)] == list(range(count))
    await store.close()


async def test_a_start_that_is_broken_off_leaves_no_record_without_its_checksum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A head has no CRC of its own: the next start took the record for a good one."""
    env = memory_env()
    store = await opened(env, flush="async", flush_interval=100, checkpoint_interval=100)
    places = [(await put(store, "T", 0, b"%d" % number)).physical_offset for number in range(5)]
    image = copy_of(env)
    await store.close()
    disk_of(image).files[f"/{LOG}/{0:020d}"][places[3] + 45] ^= 1
    with monkeypatch.context() as patched:
        patched.setattr(Segment, "prepare", _ends)
        with pytest.raises(StoreError, match="cannot be used"):
            await opened(image)
    again, _ = await reopen(image)
    assert sorted(intact(again)) == [0, 1, 2]
    await again.close()
