"""A disk that has lost pages of a file: each read of them fails. What they held is damaged, nothing else is."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace

import pytest

from aiorocket.errors import StoreError
from aiorocket.runtime.disk import File
from aiorocket.runtime.env import Env, memory_env
from aiorocket.runtime.memory_disk import MemoryDisk, MemoryFile
from aiorocket.storage import MessageStore, Snapshot, StoreBusyError
from aiorocket.storage.checkup import survey
from aiorocket.storage.recovery import LogSteps
from tests.storage.stores import everything, intact, opened, put

LARGE = bytes(12_000)
FIRST = "/store/commitlog/" + "0" * 20


class _Lost(MemoryFile):
    __slots__ = ()

    def pread(self, size: int, offset: int) -> bytes:
        assert isinstance(self._disk, LossyDisk)
        for low, high in self._disk.lost.get(self.path, ()):
            if low < offset + size and offset < high:
                raise OSError(errno.EIO, "Input/output error", self.path)
        return super().pread(size, offset)

    def truncate(self, size: int) -> None:
        super().truncate(size)
        assert isinstance(self._disk, LossyDisk)
        if not size:
            self._disk.lost.pop(self.path, None)


class LossyDisk(MemoryDisk):
    """``lost`` are ranges of files that cannot be read; what is written in the place of such a file can."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: dict[str, list[tuple[int, int]]] = {}

    def _open(self, path: str, data: bytearray) -> File:
        return _Lost(self, path, data)

    def read_bytes(self, path: str) -> bytes:
        if self._path(path) in self.lost:
            raise OSError(errno.EIO, "Input/output error", path)
        return super().read_bytes(path)

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self.lost.pop(self._path(path), None)

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self.lost.pop(self._path(target), None)


async def lossy(count: int) -> tuple[Env, LossyDisk]:
    """A closed store of five messages a segment, with parts of its key index in files."""
    disk = LossyDisk()
    env = replace(memory_env(), disk=disk)
    store = await opened(env)
    store.keys._entries = 1
    for number in range(count):
        await put(store, "T", 0, b"%d|" % number + LARGE, tag="A")
        await find(store)
    await store.close()
    return env, disk


async def find(store: MessageStore) -> int:
    looked = await store.keys.find("T", "A", 0, 1 << 62, tag=True, limit=64, max_bytes=1 << 24)
    assert not looked.missing
    return len(looked.records)


@pytest.mark.parametrize("what", [".sums", "checkpoint.a", "checkpoint.b", "checkpoint", "consumequeue", "index/"])
async def test_files_beside_the_log_that_cannot_be_read_are_made_again(what: str) -> None:
    env, disk = await lossy(17)
    doomed = [path for path in disk.files if what in path]
    for path in doomed:
        disk.lost[path] = [(0, 1 << 62)]
    assert doomed and not survey(disk, "/store", lambda done, total: None).lost
    for _ in range(2):
        store = await opened(env, tail_cache=0)
        assert len(everything(store)) == 17 and await find(store) == 17 and not store.damaged
        await store._scrub.once()
        await store.close()
    assert not disk.lost


async def test_a_lookup_that_cannot_read_where_a_bucket_is_finds_its_messages() -> None:
    env, disk = await lossy(17)
    store = await opened(env, tail_cache=0)
    path = min(path for path in disk.files if "/index/" in path)
    disk.lost[path] = [(0, 1 << 15)]  # zeros there would be a bucket without entries
    assert await find(store) == 17
    await store.close()


async def test_nothing_is_stored_in_what_a_start_that_failed_took_for_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    env, disk = await lossy(3)

    def fails(steps: LogSteps) -> None:
        raise OSError(errno.EIO, "Input/output error")

    disk.lost[FIRST] = [(25_000, 25_001)]  # nothing good is behind it: the end of the log
    with monkeypatch.context() as patched, pytest.raises(StoreError):
        patched.setattr(LogSteps, "finish", fails)
        await opened(env)
    disk.lost.clear()  # somebody found the cable
    for number in range(3, 6):
        store = await opened(env, tail_cache=0)
        await put(store, "T", 0, b"%d|" % number + LARGE)
        found = intact(store)
        assert set(range(3, number + 1)) <= set(found), sorted(found)
        await store.close()


async def test_a_page_of_the_log_that_cannot_be_read_takes_no_key_along() -> None:
    env, disk = await lossy(12)
    for path in [path for path in disk.files if "/index/" in path]:
        disk.unlink(path)
    disk.lost[FIRST] = [(40_000, 40_001)]
    store = await opened(env, tail_cache=0)
    found = intact(store)
    assert sorted(found) == [0, 1, 5, 6, 7, 8, 9, 10, 11] and await find(store) == len(found)
    await store.close()


@pytest.mark.parametrize("zeros", [False, True])
async def test_units_lost_in_the_middle_do_not_end_a_queue_that_no_checkpoint_knows(zeros: bool) -> None:
    disk = LossyDisk()
    env = replace(memory_env(), disk=disk)
    store = await opened(env)
    for number in range(12_000):
        put(store, "T", 0, b"%d|" % number)
    for _ in range(1_500):
        arrived = put(store, "T", 1)
    await arrived
    await store.close()
    del disk.files["/store/checkpoint.a"], disk.files["/store/checkpoint.b"]
    path, low, high = "/store/consumequeue/T/0/" + "0" * 20, 5 << 15, 6 << 15
    assert low % 20 == 0  # no unit stands in two pages, which would show
    if zeros:
        disk.files[path][low:high] = bytes(high - low)
    else:
        disk.lost[path] = [(low, high)]
    store = await opened(env)
    assert store.max_offset("T", 0) == 12_000
    await store.close()


async def test_units_that_cannot_be_read_while_the_store_runs_are_made_again() -> None:
    env, disk = await lossy(12)
    store = await opened(env, tail_cache=0)
    disk.lost["/store/consumequeue/T/0/" + "0" * 20] = [(0, 20)]
    with pytest.raises(StoreBusyError):
        everything(store)
    disk.lost.clear()  # written to, a disk has another page for it
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(everything(store)) == 12
    await store.close()


async def test_a_segment_that_cannot_be_read_keeps_no_other_from_being_compacted() -> None:
    env, disk = await lossy(0)
    store = await opened(env, max_log_bytes=1, retention_interval=1e9, tail_cache=0)
    store.retention.needed = lambda: {("keep", 0): 0}
    for number in range(20):
        await put(store, "T", 0, b"%d|" % number + LARGE)
        await put(store, "keep", 0, b"%d" % number)
    disk.lost[FIRST] = [(500, 501)]
    await store.retention.sweep()
    bases = [segment.base for segment in store._log.segments[:-1]]
    used = [len(data) - data.count(0) for data in (disk.files[f"/store/commitlog/{base:020d}"] for base in bases)]
    assert len(bases) == 3 and used[0] > max(used[1:])
    assert sorted(store.retention._kept or ()) == sorted(map(str, bases))
    await store.close()


async def test_the_generation_of_a_state_that_can_be_read_counts() -> None:
    disk = LossyDisk()
    snapshot = Snapshot(disk, "state")
    for number in range(4):
        snapshot.save({"n": number})
    disk.lost["/state.b"] = disk.lost["/state.a"] = [(0, 1)]
    del disk.lost["/state.b"]
    again = Snapshot(disk, "state")
    value = again.load()
    assert value in ({"n": 2}, {"n": 3}) and len(again.problems) == 1
    again.save({"n": 9})
    assert Snapshot(disk, "state").load() == {"n": 9} and not disk.lost


async def test_nothing_is_stored_in_damage_that_a_start_without_checksums_finds_last() -> None:
    env, disk = await lossy(3)
    disk.unlink(FIRST + ".sums")
    end = len(bytes(disk.files[FIRST]).rstrip(b"\0"))
    disk.files[FIRST][end - 5_000] ^= 1
    store = await opened(env, tail_cache=0)
    for number in range(3, 5):
        await put(store, "T", 0, b"%d|" % number)
    assert sorted(intact(store)) == [0, 1, 3, 4]
    await store.close()


async def test_nothing_is_stored_in_damage_that_units_are_made_again_behind() -> None:
    env, disk = await lossy(3)
    store = await opened(env, tail_cache=0)
    end = len(bytes(disk.files[FIRST]).rstrip(b"\0"))
    disk.files[FIRST][end - 5_000] ^= 1
    disk.files["/store/consumequeue/T/0/" + "0" * 20][:60] = bytes(60)
    with pytest.raises(StoreBusyError):
        everything(store)
    for _ in range(20):
        await asyncio.sleep(0)
    for number in range(3, 5):
        await put(store, "T", 0, b"%d|" % number)
    assert sorted(intact(store)) == [0, 1, 3, 4]
    await store.close()
