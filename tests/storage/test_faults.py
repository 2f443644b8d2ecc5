"""Faults in virtual time: power cuts at any moment, every storage call failing once, full and slow disks, failed
syncs.

What must hold after each: whatever was acknowledged is there, with the offsets that were told; nothing else than what
was sent is there; a message that was told FULL is not.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from aiorocket.errors import StoreError, StoreFullError
from aiorocket.runtime.disk import File
from aiorocket.runtime.env import Env, memory_env
from aiorocket.runtime.memory_disk import MemoryDisk, MemoryFile
from aiorocket.storage import MessageStore, PutResult, PutStatus, StoreBrokenError
from aiorocket.storage.commit_log import _WHOLE
from aiorocket.testing import SimDisk, Simulation, simulate
from tests.storage.stores import bodies, everything, opened, put, put_batch

Outcomes = list[tuple[int, bytes, "asyncio.Future[PutResult]"]]


async def script(env: Env, outcomes: Outcomes, **changes: Any) -> None:
    """Open, singles and batches over two queues, segments rolling, checkpoints, close."""
    store = await opened(env, **changes)
    number = 0
    for turn in range(12):
        for _ in range(3):
            number += 1
            body = b"%d|" % number * (300 + 100 * (number % 5))
            outcomes.append((number % 2, body, put(store, "T", number % 2, body)))
        pair = [b"%d,%d|" % (turn, index) * 200 for index in range(2)]
        outcomes.append((0, b"".join(pair), put_batch(store, pair)))
        if turn % 2:
            await outcomes[-1][2]
        await asyncio.sleep(0.02)
    await store.close()


def check(store: MessageStore, outcomes: Outcomes) -> None:
    """Acknowledged messages are where they were said to be; refused ones are nowhere; queues hold nothing foreign."""
    found = {
        (queue_id, view.queue_offset): view.raw_body for queue_id in (0, 1) for view in everything(store, "T", queue_id)
    }
    sent = b"".join(body for _, body, _ in outcomes)
    for (queue_id, offset), body in found.items():
        assert body in sent, (queue_id, offset)
    for queue_id, body, future in outcomes:
        if not future.done():
            continue
        result = future.result()
        if result.status is PutStatus.OK:
            count = max(1, len(result.physical_offsets))
            stored = b"".join(found[queue_id, result.queue_offset + index] for index in range(count))
            assert stored == body, (queue_id, result)
        elif result.status is PutStatus.FULL:
            assert body not in found.values()


async def after(env: Env, outcomes: Outcomes, *, may_rebuild: bool = True) -> None:
    """A new process opens the store, finds what it must, stores more, and so does the next one."""
    for _ in range(2):
        store = await opened(env)
        recovery = store.recovery
        assert may_rebuild or not recovery.rebuilt, "a checkpoint vouches for consume queues that were not synced"
        check(store, outcomes)
        body = b"later %d" % len(outcomes)
        future = put(store, "T", 1, body)
        await future
        outcomes.append((1, body, future))
        check(store, outcomes)
        await store.close()


def run(scenario: Callable[[Simulation], Awaitable[None]], seed: int = 0) -> None:
    simulate(scenario, seed)


@pytest.mark.parametrize(("flush", "whole"), [("sync", _WHOLE), ("sync", 1), ("async", _WHOLE)])
@pytest.mark.parametrize("kind", ["power", "kill"])
@pytest.mark.seeds(4)  # each one moment of four
def test_the_machine_or_the_process_dies_at_any_moment(
    flush: str, whole: int, kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiorocket.storage.commit_log._WHOLE", whole)
    for moment in range(seed, 60, 4):

        async def scenario(simulation: Simulation) -> None:
            disk = simulation.disk()
            env = simulation.env(disk=disk)
            outcomes: Outcomes = []
            host = simulation.host("10.0.0.1")
            # Nothing is synced but by rolling and checkpoints.
            host.start(script(env, outcomes, flush=flush, flush_interval=100))
            await asyncio.sleep(0.3 * simulation.env().entropy.random())
            host.kill()
            if kind == "power":
                disk.crash()
            else:
                disk.process_died()
            if flush == "async" and kind == "power":
                # This mode promises nothing for a power cut: opening must work, and what is there must be whole.
                store = await opened(env, flush=flush)
                for queue_id in (0, 1):
                    sent = b"".join(body for _, body, _ in outcomes)
                    assert all(body in sent for body in bodies(store, "T", queue_id))
                await store.close()
                return
            await after(env, outcomes, may_rebuild=False)

        run(scenario, moment)


@pytest.mark.parametrize(("flush", "whole"), [("sync", _WHOLE), ("sync", 1), ("async", _WHOLE)])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_every_storage_call_fails_once(flush: str, whole: int, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in one of these four ways; in all of them in harness/test_storage_calls.py. Also where many groups wait
    behind the one that fails."""
    monkeypatch.setattr("aiorocket.storage.commit_log._WHOLE", whole)
    first = 1 + (flush == "sync") + 2 * (code == errno.EIO)
    storage_calls_fail_once(flush, code, range(first, 2000, 4))


def storage_calls_fail_once(flush: str, code: int, calls: range) -> None:
    last = 0
    for call in calls:
        finished = False

        async def scenario(simulation: Simulation, call: int = call) -> None:
            nonlocal finished
            disk = simulation.disk()
            env = simulation.env(disk=disk)
            outcomes: Outcomes = []
            disk.fail(call, code)
            try:
                await script(env, outcomes, flush=flush)
            except StoreError:
                pass
            finished = disk.calls < call
            for _ in range(3):
                await asyncio.sleep(0.1)
            assert all(future.done() for _, _, future in outcomes), "every append has an outcome"
            disk._failures.clear()
            disk.process_died()
            await after(env, outcomes)

        run(scenario)
        if finished:
            last = call
            break
    assert last > 60, "the script makes more calls than that"


def test_what_is_on_its_way_cannot_be_read() -> None:
    async def scenario(simulation: Simulation) -> None:
        store = await opened(simulation.env(disk=simulation.disk()), checkpoint_interval=1000)
        await put(store, body=b"there")
        under_way = put(store, body=b"under way")
        for offset, found in ((0, 1), (1, 0), (2, 0)):
            result = store.read("T", 0, offset, 32, 1 << 20)
            assert (result.count, result.max_offset) == (found, 1)
            assert result.next_offset == 1
        assert len(store.entries("T", 0, 0, 32)) == 1
        await under_way
        assert bodies(store) == [b"there", b"under way"]
        await store.close()

    run(scenario)


def test_an_append_that_is_taken_back_leaves_no_unit() -> None:
    """What comes at its offset is found by its own."""

    async def scenario(simulation: Simulation) -> None:
        disk = simulation.disk()
        store = await opened(simulation.env(disk=disk), checkpoint_interval=1000, tail_cache=0)
        await put(store, body=b"before")
        disk.fail(1, errno.ENOSPC)
        refused = [put(store, body=b"refused" * size) for size in (10, 20)]
        assert [(await each).status for each in refused] == [PutStatus.FULL] * 2
        await asyncio.sleep(1)
        for body in (b"one", b"two", b"three"):
            await put(store, body=body)
        assert bodies(store) == [b"before", b"one", b"two", b"three"]
        assert len(store.entries("T", 0, 0, 99)) == 4
        await store.close()
        store = await opened(simulation.env(disk=disk))
        assert bodies(store) == [b"before", b"one", b"two", b"three"]
        await store.close()

    run(scenario)


@pytest.mark.parametrize("call", [2, 3])  # of pwritev, fdatasync, and perhaps that of the checksums
def test_what_the_kernel_kept_of_a_failed_sync_is_on_the_disk_after_a_restart(call: int) -> None:
    """The pages count as clean then, so a sync alone would not bring them there."""

    async def scenario(simulation: Simulation) -> None:
        disk = simulation.disk()
        store = await opened(simulation.env(disk=disk), checkpoint_interval=1000)
        await put(store, body=b"before")
        disk.fail(call)
        doomed = put(store, body=b"doomed" * 300)
        await doomed
        await asyncio.sleep(2)
        more = [put(store, body=b"more")] if doomed.result().status is PutStatus.OK else []
        await asyncio.gather(*more)
        await store.close()
        store = await opened(simulation.env(disk=disk), checkpoint_interval=1000)
        assert (await put(store, body=b"after")).status is PutStatus.OK
        found = bodies(store)
        await store.close()
        disk.crash()
        store = await opened(simulation.env(disk=disk), checkpoint_interval=1000)
        assert bodies(store) == found and not store.damaged
        await store.close()

    run(scenario)


def test_no_progress_is_saved_behind_a_sync_that_failed() -> None:
    """A later one that succeeds proves nothing."""
    failed: list[int] = []

    async def scenario(simulation: Simulation) -> None:
        disk = simulation.disk()
        store = await opened(simulation.env(disk=disk), flush="async", flush_interval=100, checkpoint_interval=1000)
        for _ in range(6):
            await put(store, body=bytes(10_000))
        await asyncio.sleep(1)  # the next segment is there
        disk.fail(1 + simulation.loop.seed)
        await put(store, body=bytes(10_000))  # the segment is full
        saved: list[str] = []
        try:
            await store.behind_sync(saved.append, "progress")
        except OSError:
            pass
        if "in fdatasync" in (store.problem or ""):
            failed.append(simulation.loop.seed)
            assert not saved
        await store.close()

    for seed in range(8):
        run(scenario, seed)
    assert len(failed) > 1


def test_a_failed_sync_is_final_until_a_restart() -> None:
    async def scenario(simulation: Simulation) -> None:
        disk = simulation.disk()
        env = simulation.env(disk=disk)
        store = await opened(env, checkpoint_interval=100)
        outcomes: Outcomes = [(0, b"before", put(store, "T", 0, b"before"))]
        await outcomes[0][2]
        disk.fail(2)  # pwritev, then fdatasync
        outcomes.append((0, b"lost", put(store, "T", 0, b"lost")))
        assert (await outcomes[-1][2]).status is PutStatus.BROKEN
        for _ in range(2):
            with pytest.raises(StoreBrokenError, match="restart"):
                put(store, "T", 0, b"never")
        assert bodies(store) == [b"before"], "reads go on, and nothing undurable is visible"
        await store.close()
        disk.crash()
        await after(env, outcomes)

    run(scenario)


def test_a_full_disk_refuses_loses_nothing_and_recovers_when_space_returns() -> None:
    for seed in range(20):

        async def scenario(simulation: Simulation) -> None:
            disk = simulation.disk(capacity=150_000 + 777 * simulation.loop.seed)
            env = simulation.env(disk=disk)
            store = await opened(env)
            outcomes: Outcomes = []
            refused = 0
            for number in range(300):
                body = b"%d|" % number * 400
                try:
                    outcomes.append((number % 2, body, put(store, "T", number % 2, body)))
                except StoreFullError as error:
                    refused += 1
                    assert "space" in str(error)
                if number % 4 == 0:
                    await asyncio.sleep(0.002)
            await asyncio.sleep(0.1)
            assert refused and store.problem
            full = [future.result().status for _, _, future in outcomes]
            assert PutStatus.BROKEN not in full and PutStatus.OK in full
            check(store, outcomes)
            disk.capacity = 1 << 30
            await asyncio.sleep(1)
            future = put(store, "T", 0, b"space again")
            assert (await future).status is PutStatus.OK and store.problem is None
            outcomes.append((0, b"space again", future))
            check(store, outcomes)
            disk.process_died()
            await store.close()
            disk.crash()
            await after(env, outcomes)

        run(scenario, seed)


@pytest.mark.parametrize("killed", [False, True])
def test_a_start_without_a_free_byte_serves_what_there_is(killed: bool) -> None:
    """It has to write what it found, and takes the room from what the log had reserved."""
    for seed in range(10):

        async def scenario(simulation: Simulation) -> None:
            disk = simulation.disk()
            env = simulation.env(disk=disk)
            store = await opened(env, checkpoint_interval=1e9)
            outcomes: Outcomes = []
            for number in range(3 + 17 * simulation.loop.seed):
                body = b"%d|" % number * 300
                outcomes.append((number % 2, body, put(store, "T", number % 2, body)))
                await outcomes[-1][2]
            if killed:
                disk.process_died()
            await store.close()
            disk.capacity -= disk.room()
            store = await opened(env)
            check(store, outcomes)
            assert not store.damaged
            disk.capacity = 1 << 40
            outcomes.append((0, b"space again", put(store, "T", 0, b"space again")))
            assert (await outcomes[-1][2]).status is PutStatus.OK
            disk.process_died()
            await store.close()
            disk.crash()
            await after(env, outcomes)

        run(scenario, seed)


def test_a_start_without_a_free_byte_keeps_zeros_that_end_the_last_record() -> None:
    """Room is taken behind what was written, and the length of no properties is two zeros."""

    async def scenario(simulation: Simulation) -> None:
        disk = simulation.disk()
        env = simulation.env(disk=disk)
        store = await opened(env, checkpoint_interval=1e9)
        outcomes: Outcomes = [(0, b"last", put(store, "T", 0, b"last"))]
        await outcomes[-1][2]
        disk.process_died()
        await store.close()
        disk.unlink(f"store/commitlog/{0:020d}.sums")
        disk.capacity -= disk.room()
        store = await opened(env)
        check(store, outcomes)
        await store.close()

    run(scenario)


def test_a_power_cut_after_a_full_disk_brings_no_old_checksums_back() -> None:
    """The group that did not fit had closed its segment, checksums and all; what stands there later has others."""
    for seed in range(20):

        async def scenario(simulation: Simulation) -> None:
            disk = simulation.disk()
            env = simulation.env(disk=disk)
            store = await opened(env, checkpoint_interval=1e9)
            outcomes: Outcomes = [(0, b"first", put(store, "T", 0, b"first"))]
            await outcomes[0][2]
            disk.capacity = disk.capacity - disk.room() + 20_000  # no second segment
            await asyncio.sleep(2)
            large = [put(store, "T", 0, bytes([number]) * 6000) for number in range(12)]
            assert {result.status for result in await asyncio.gather(*large)} == {PutStatus.FULL}
            disk.capacity = 1 << 40
            await asyncio.sleep(0.5)
            outcomes.append((0, b"second" * 500, put(store, "T", 0, b"second" * 500)))
            assert (await outcomes[1][2]).status is PutStatus.OK
            disk.process_died()
            await store.close()
            disk.crash()
            await after(env, outcomes)

        run(scenario, seed)


def test_the_end_of_a_segment_that_a_killed_process_wrote_outlives_a_power_cut() -> None:
    """Killed between the blank that fills a segment and its sync; the next start finds nothing else that is new."""
    for seed in range(40):

        async def scenario(simulation: Simulation) -> None:
            disk = simulation.disk()
            env = simulation.env(disk=disk)
            outcomes: Outcomes = []

            async def process(*messages: bytes) -> None:
                store = await opened(env)
                disk.latency = (0.001, 0.001)
                outcomes.extend((0, body, put(store, "T", 0, body)) for body in messages)
                await asyncio.sleep(0.0008)  # the next segment is prepared

            store = await opened(env)
            outcomes += [(0, body, put(store, "T", 0, body)) for body in (bytes([n]) * 12_000 for n in range(1, 6))]
            await asyncio.gather(*(future for _, _, future in outcomes))
            await store.close()
            host = simulation.host("1.1.1.1")
            await host.run(process(b"next" * 3000))
            host.kill()
            disk.process_died()  # in the midst of writing the blank and what comes behind it
            host = simulation.host("1.1.1.1")
            await host.run(process())
            host.kill(power_cut=True)
            disk.crash()
            store = await opened(env)
            assert not store.recovery.damaged
            await store.close()
            await after(env, outcomes)

        run(scenario, seed)


def test_a_slow_disk_gathers_and_the_loop_goes_on() -> None:
    async def scenario(simulation: Simulation) -> None:
        disk = simulation.disk()
        store = await opened(simulation.env(disk=disk))
        disk.latency = (2.0, 2.0)
        loop = asyncio.get_running_loop()
        start = loop.time()
        futures = [put(store)]
        for _ in range(50):
            await asyncio.sleep(0.01)  # the loop is free while the disk works
            futures.append(put(store))
        assert not futures[0].done() and loop.time() - start < 1
        calls = disk.calls
        await asyncio.gather(*futures)
        assert loop.time() - start < 6.5, "the first alone, then the other fifty together"
        assert disk.calls - calls < 40
        disk.latency = (0.0001, 0.0001)
        await store.close()

    run(scenario)


def test_async_syncs_behind_the_writes_once_per_interval_and_not_when_idle() -> None:
    async def scenario(simulation: Simulation) -> None:
        disk = simulation.disk()
        store = await opened(simulation.env(disk=disk), flush="async", flush_interval=0.5, checkpoint_interval=1000)
        await asyncio.sleep(0.1)
        await put(store, body=b"kept")
        await asyncio.sleep(0.7)
        calls = disk.calls
        await asyncio.sleep(60)
        assert disk.calls == calls, "an idle store does nothing"
        disk.crash()
        await store.close()
        again = await opened(Env(simulation.env().clock, simulation.env().entropy, disk))
        assert bodies(again) == [b"kept"]
        await again.close()

    run(scenario)


def test_deleting_a_topic_while_power_fails() -> None:
    for seed in range(40):

        async def scenario(simulation: Simulation) -> None:
            disk = simulation.disk()
            env = simulation.env(disk=disk)
            made_again: list[PutResult] = []

            async def process() -> None:
                store = await opened(env)
                await asyncio.gather(*[put(store, "T", number % 2, b"old %d" % number) for number in range(20)])
                await put(store, "kept", 0, b"kept")
                await store.delete_topics("T")
                made_again.append(await put(store, "T", 0, b"new"))

            host = simulation.host("10.0.0.1")
            running = host.start(process())
            await asyncio.wait([running], timeout=0.02 * simulation.env().entropy.random())
            host.kill()
            disk.crash()
            again = await opened(env)
            found = bodies(again, "T")
            old = [b"old %d" % number for number in range(0, 20, 2)]
            if made_again:
                assert found == [b"new"] and bodies(again, "kept") == [b"kept"]
            else:  # before the deletion, after it, or the new message stored and not yet told
                assert found == [b"new"] or found == old[: len(found)]
            await again.close()

        run(scenario, seed)


@pytest.mark.parametrize("full", [False, True])
def test_deleting_a_topic_while_its_messages_are_being_written(full: bool) -> None:
    """They go with the topic, stored or refused; what is stored after the topic was made again stays, also in a
    rebuild."""

    async def scenario(simulation: Simulation) -> None:
        disk = simulation.disk()
        env = simulation.env(disk=disk)
        host = simulation.host("10.0.0.1")
        new = [b"new %d" % number for number in range(3)]

        async def process() -> None:
            store = await opened(env)
            await put(store, "kept", 0, b"kept")
            if full:
                disk.fail(1, errno.ENOSPC)
            going = [put(store, "T", 0, b"old" * 100) for _ in range(5)]
            await asyncio.sleep(0)
            await store.delete_topics("T")
            assert all(future.done() for future in going)
            await asyncio.sleep(1)  # the store looks for space again
            for body in new:
                assert (await put(store, "T", 0, body)).queue_offset == new.index(body)
            await asyncio.sleep(1)  # a checkpoint
            assert bodies(store, "T") == new

        await host.run(process())
        host.kill()
        disk.process_died()
        for _ in range(2):
            again = await opened(env)
            assert bodies(again, "T") == new and bodies(again, "kept") == [b"kept"]
            await again.close()
            for queue in ("T", "kept"):
                disk.unlink(f"store/consumequeue/{queue}/0/{0:020d}")

    run(scenario)


def test_the_simulated_disk_is_what_these_tests_need() -> None:
    """A write that was never synced is lost in some crash; else the tests above prove nothing."""
    lost = 0
    for seed in range(20):
        disk = SimDisk(seed)
        disk.makedirs("d")
        file = disk.open("d/f", create=True)
        disk.fsync_dir("d")
        file.pwritev([b"x" * 4096], 0)
        disk.crash()
        lost += disk.read_bytes("d/f") != b"x" * 4096
    assert lost > 10


class Handle:
    """An open file of a disk that counts those; what is done after ``close`` fails as on a closed descriptor."""

    def __init__(self, file: File, handles: set[Handle]) -> None:
        self._file, self._handles = file, handles
        handles.add(self)

    def __getattr__(self, name: str) -> Any:
        def call(*args: object) -> Any:
            if self not in self._handles:
                raise OSError(errno.EBADF, f"{name} of a closed file")
            return getattr(self._file, name)(*args)

        return call

    def close(self) -> None:
        self._handles.discard(self)
        self._file.close()


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_full_segment_keeps_no_file_open(flush: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often the log rolls, also while syncs of the segment before wait for the thread."""

    async def scenario(simulation: Simulation) -> None:
        handles: set[Handle] = set()
        disk = simulation.disk()
        plain = disk._open
        monkeypatch.setattr(disk, "_open", lambda path, data: Handle(plain(path, data), handles))
        disk.latency = (0.001, 0.003)
        store = await opened(simulation.env(disk=disk), flush=flush, flush_interval=0.0005, checkpoint_interval=0.01)
        for _ in range(200):
            results = [put(store, body=bytes(5000)) for _ in range(3)]
            assert {(await result).status for result in results} == {PutStatus.OK}
            assert len(handles) <= 4, handles  # the active segment, the next one, the last one, a consume queue
        assert len(disk.listdir("store/commitlog")) > 40
        await store.close()
        assert not handles

    for seed in range(5):
        run(scenario, seed)


@pytest.mark.parametrize(("topics", "saved"), [(9, 12), (60, 2)])
def test_checkpoints_of_many_queues_are_put_off_and_cost_a_start_nothing_but_reading(
    topics: int, saved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each queue is a file to sync: thousands of them every few seconds cost more than the messages."""
    monkeypatch.setattr("aiorocket.storage.housekeeping.AN_INTERVAL", 10)

    async def scenario(simulation: Simulation) -> None:
        disk = simulation.disk()
        store = await opened(simulation.env(disk=disk), checkpoint_interval=5)
        saves: list[bool] = []
        save = store._behind._checkpoint

        async def counted(*, clean: bool) -> bool:
            saves.append(clean)
            return await save(clean=clean)

        monkeypatch.setattr(store._behind, "_checkpoint", counted)
        for number in range(61):
            await asyncio.gather(*(put(store, f"T{topic}", body=b"%d" % number) for topic in range(topics)))
            await asyncio.sleep(1)
        assert abs(len(saves) - saved) <= 1
        disk.crash()
        store = await opened(simulation.env(disk=disk))
        for topic in range(topics):
            assert bodies(store, f"T{topic}") == [b"%d" % number for number in range(61)]
        await store.close()

    run(scenario)


@pytest.mark.parametrize("topics", [1, 30])
def test_what_a_start_reads_again_is_bounded_in_bytes(topics: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the interval, however many queues: some seconds of a fast producer are gigabytes."""
    most = 100_000
    monkeypatch.setattr("aiorocket.storage.housekeeping._MOST_LOG", most)
    monkeypatch.setattr("aiorocket.storage.housekeeping.AN_INTERVAL", 10)

    async def scenario(simulation: Simulation) -> None:
        disk = simulation.disk()
        store = await opened(simulation.env(disk=disk), checkpoint_interval=1e6)
        for turn in range(1, 8):
            for _ in range(50 + turn):
                await asyncio.gather(*(put(store, f"T{number % topics}", body=bytes(300)) for number in range(30)))
            await asyncio.sleep(1)
            disk.crash()
            store = await opened(simulation.env(disk=disk), checkpoint_interval=1e6)
            assert store.recovery.scanned_bytes < 1.2 * most
            assert sum(store.ends().values()) == sum(30 * (50 + each) for each in range(1, turn + 1))
        await store.close()

    run(scenario)


def test_a_checkpoint_that_fails_is_not_tried_with_each_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiorocket.storage.housekeeping._MOST_LOG", 100_000)

    async def scenario(simulation: Simulation) -> None:
        store = await opened(simulation.env(), checkpoint_interval=1e6)
        tries: list[bool] = []

        async def failing(*, clean: bool) -> bool:
            tries.append(clean)
            return False

        monkeypatch.setattr(store._behind, "_checkpoint", failing)
        for _ in range(500):
            await put(store, body=bytes(1000))
        assert 4 <= len(tries) <= 5
        monkeypatch.undo()
        await store.close()

    run(scenario)


def test_a_deletion_waits_for_a_slow_disk_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(sim: Simulation) -> None:
        disk = sim.disk()
        store = await opened(sim.env(disk=disk))
        await put(store)
        jobs: list[object] = []
        run, sync = disk.run, disk.sync

        async def slowly(file: File) -> None:
            await asyncio.sleep(1)
            await sync(file)

        def counted(fn: Callable[..., Any], *args: object) -> asyncio.Future[Any]:
            jobs.append(fn)
            return run(fn, *args)

        monkeypatch.setattr(disk, "sync", lambda file: asyncio.ensure_future(slowly(file)))
        monkeypatch.setattr(disk, "run", counted)
        put(store)
        await asyncio.sleep(0)
        await store.delete_topics("T")
        assert len(jobs) < 100
        await store.close()

    simulate(main)


@pytest.mark.parametrize("rolls", [False, True])
async def test_a_store_whose_disk_failed_closes_the_files_of_segments_that_it_gave_up(rolls: bool) -> None:
    """The one made ahead, and those that were gathered for."""
    held: dict[int, str] = {}

    class Held(MemoryFile):
        __slots__ = ()

        def fdatasync(self) -> None:
            if failing and self.path.endswith("/" + "0" * 20):
                raise OSError(errno.EIO, "Input/output error")

        def close(self) -> None:
            held.pop(id(self), None)

    class Disk(MemoryDisk):
        def _open(self, path: str, data: bytearray) -> File:
            file = Held(self, path, data)
            files.append(file)
            held[id(file)] = path
            return file

    files: list[Held] = []
    failing = False
    store = await opened(replace(memory_env(), disk=Disk()))
    for _ in range(4):
        await put(store, body=bytes(12_000))
    assert any("commitlog" in path and path.endswith(f"{65_536:020d}") for path in held.values())
    failing = True
    results = await asyncio.gather(*(put(store, body=bytes(12_000)) for _ in range(4 if rolls else 1)))
    assert {result.status for result in results} == {PutStatus.BROKEN}
    await store.close()
    assert not held
