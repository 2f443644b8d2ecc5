"""The real disk, the one in memory and the simulated one behave alike; the simulated one fails on demand."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest

from aiorocket.errors import StoreLockedError
from aiorocket.runtime import Disk, RealDisk
from aiorocket.runtime.memory_disk import MemoryDisk
from aiorocket.testing import SimDisk


@pytest.fixture(params=["real", "memory", "sim"])
def disk(request: pytest.FixtureRequest) -> Disk:
    return {"real": RealDisk, "memory": MemoryDisk, "sim": SimDisk}[request.param]()


@pytest.fixture
def root(disk: Disk, tmp_path: Path) -> str:
    path = str(tmp_path / "a" / "b")
    disk.makedirs(path)
    return path


def test_zeros_over_reserved_ones_change_nothing_that_is_read(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/f", create=True)
    file.allocate(10_000)
    file.pwritev([b"x" * 5_000], 0)
    file.zero(5_000, 4_000)
    file.fdatasync()
    assert file.pread(10_000, 0).rstrip(b"\0") == b"x" * 5_000
    assert file.size() in (10_000, 5_000)  # memory reserves nothing
    file.close()


def test_read_write_truncate(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/f", create=True)
    file.pwritev([b"ab", bytearray(b"cd"), memoryview(b"ef")], 3)
    assert file.size() == 9
    assert file.pread(100, 0) == b"\0\0\0abcdef"
    assert file.pread(2, 4) == b"bc"
    assert file.pread(2, 50) == b""
    file.pwritev([b"x"] * 3000, 0)  # more buffers than one system call takes
    file.fdatasync()
    assert file.size() == 3000
    file.truncate(4)
    assert file.pread(10, 0) == b"xxxx"
    file.close()
    assert disk.read_bytes(f"{root}/f") == b"xxxx"


def test_directories_and_names(disk: Disk, root: str) -> None:
    disk.makedirs(root)
    disk.makedirs(f"{root}/sub")
    disk.open(f"{root}/b", create=True).close()
    disk.rename(f"{root}/b", f"{root}/a")
    disk.fsync_dir(root)
    assert disk.listdir(root) == ["a", "sub"]
    assert disk.is_dir(f"{root}/sub") and not disk.is_dir(f"{root}/a")
    disk.unlink(f"{root}/a")
    disk.rmdir(f"{root}/sub")
    assert disk.listdir(root) == [] and not disk.exists(f"{root}/a")
    assert disk.free_bytes(root) > 0


@pytest.mark.parametrize("call", ["open", "read_bytes", "listdir", "unlink"])
def test_what_is_missing_is_named(disk: Disk, root: str, call: str) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        getattr(disk, call)(f"{root}/missing")
    assert "missing" in str(caught.value)


def test_a_directory_below_a_regular_file(disk: Disk, root: str) -> None:
    disk.open(f"{root}/file", create=True).close()
    with pytest.raises(OSError) as caught:
        disk.makedirs(f"{root}/file/store")
    assert caught.value.errno in (errno.ENOTDIR, errno.EEXIST)


def test_replace_leaves_one_whole_file(disk: Disk, root: str) -> None:
    disk.replace(f"{root}/state", b"long old content")
    disk.replace(f"{root}/state", b"new")
    assert disk.read_bytes(f"{root}/state") == b"new"
    assert disk.listdir(root) == ["state"]


def test_lock_is_exclusive(disk: Disk, root: str) -> None:
    lock = disk.lock(f"{root}/lock")
    with pytest.raises(StoreLockedError, match="lock"):
        disk.lock(f"{root}/lock")
    lock.release()
    lock.release()
    disk.lock(f"{root}/lock").release()


def test_what_it_makes_is_its_owners(tmp_path: Path) -> None:
    disk, root = RealDisk(), str(tmp_path / "a" / "b")
    disk.makedirs(root)
    disk.replace(f"{root}/state", b"secret")
    disk.open(f"{root}/log", create=True).close()
    disk.lock(f"{root}/lock").release()
    for name, mode in (("..", 0o700), (".", 0o700), ("state", 0o600), ("log", 0o600), ("lock", 0o600)):
        assert os.stat(f"{root}/{name}").st_mode & 0o777 == mode, name


async def test_jobs_run_in_order_and_report(disk: Disk, root: str) -> None:
    done: list[int] = []
    first = [disk.run(done.append, n) for n in range(20)]
    failing = disk.run(os.stat, f"{root}/nothing")
    await asyncio.gather(*first)
    with pytest.raises(FileNotFoundError):
        await failing
    assert done == list(range(20))
    await disk.close()
    assert await disk.run(len, "abc") == 3  # usable again
    await disk.close()


async def test_an_abandoned_job_is_still_done(disk: Disk) -> None:
    done: list[int] = []
    disk.run(done.append, 1).cancel()
    await disk.run(done.append, 2)
    await disk.close()
    assert done in ([1, 2], [2])  # a thread pool may drop what had not begun


async def test_a_cancelled_close_ends_the_thread_all_the_same() -> None:
    disk, go, done = RealDisk(), threading.Event(), []
    before = set(threading.enumerate())
    job = disk.run(lambda: done.append(go.wait(10)))
    (thread,) = set(threading.enumerate()) - before
    closing = asyncio.ensure_future(disk.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    go.set()
    thread.join(10)
    assert not thread.is_alive()
    await job
    assert done == [True]


def test_crash_keeps_what_was_synced_and_tears_the_rest() -> None:
    torn = set()
    for seed in range(60):
        disk = SimDisk(seed)
        disk.makedirs("/s")
        file = disk.open("/s/log", create=True)
        file.allocate(4096)
        file.pwritev([b"A" * 1024], 0)
        file.fdatasync()
        disk.fsync_dir("/s")
        file.pwritev([b"B" * 2048], 1024)
        disk.crash()
        data = disk.read_bytes("/s/log")
        assert data[:1024] == b"A" * 1024 and len(data) == 4096
        torn.add(bytes(data[1024 + 512 * n] for n in range(4)))
        with pytest.raises(OSError, match="before the crash"):
            file.pread(1, 0)
    assert len(torn) > 8  # sectors are lost independently of each other


def test_names_without_a_directory_sync_may_be_lost() -> None:
    outcomes = set()
    for seed in range(40):
        disk = SimDisk(seed)
        disk.makedirs("/s")
        disk.replace("/s/state", b"one")
        disk.open("/s/new", create=True).close()
        disk.crash()
        assert disk.read_bytes("/s/state") == b"one"
        outcomes.add(disk.exists("/s/new"))
    assert outcomes == {True, False}


def test_a_full_disk_takes_a_prefix_and_recovers() -> None:
    disk = SimDisk(capacity=1000)
    file = disk.open("/f", create=True)
    with pytest.raises(OSError) as caught:
        file.pwritev([b"x" * 600, b"y" * 600], 0)
    assert caught.value.errno == errno.ENOSPC
    assert file.size() == 1000 and disk.free_bytes("/") == 0
    file.truncate(0)
    file.pwritev([b"x" * 600], 0)
    with pytest.raises(OSError):
        file.allocate(2000)


def test_every_call_can_be_made_to_fail() -> None:
    def script(disk: SimDisk) -> None:
        disk.makedirs("/s")
        disk.replace("/s/state", b"one")

    clean = SimDisk()
    script(clean)
    for n in range(1, clean.calls + 1):
        disk = SimDisk()
        disk.fail(n, errno.EIO)
        with pytest.raises(OSError, match="simulated"):
            script(disk)


def test_after_a_failed_sync_the_bytes_count_as_clean_and_are_lost() -> None:
    for seed in range(20):
        disk = SimDisk(seed)
        file = disk.open("/f", create=True)
        disk.fsync_dir("/")
        file.allocate(512)
        file.fdatasync()
        file.pwritev([b"x" * 512], 0)
        disk.fail()
        with pytest.raises(OSError):
            file.fdatasync()
        file.fdatasync()
        assert file.pread(1, 0) == b"x"
        disk.crash()
        assert disk.read_bytes("/f") == bytes(512)
