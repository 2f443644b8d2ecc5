"""Syncs without a thread: their ends, their errors, and what happens where there are none."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from aiorocket.runtime import RealDisk, kernel_sync
from aiorocket.runtime.disk import RealFile
from aiorocket.runtime.kernel_sync import KernelSync


@pytest.fixture
async def kernel() -> KernelSync:
    try:
        return KernelSync(asyncio.get_running_loop())
    except OSError as error:
        pytest.skip(f"no such calls here: {error}")


async def test_each_learns_its_own_end(kernel: KernelSync, tmp_path: Path) -> None:
    files = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in range(20)]
    try:
        for file in files:
            os.pwrite(file, bytes(5000), 0)
        first = [kernel.sync(file) for file in files[:10]]
        first[3].cancel()  # whoever waited for it does not any more
        results = await asyncio.gather(*first, *(kernel.sync(file) for file in files[10:]), return_exceptions=True)
        assert [number for number, result in enumerate(results) if result is not None] == [3]
    finally:
        await kernel.close()
        for file in files:
            os.close(file)


async def test_a_sync_that_fails_is_told_to_whom_it_belongs(
    kernel: KernelSync, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    good, bad = (kernel._waiting.setdefault(number, loop.create_future()) for number in (7, 8))

    def ended(number: int, *_: int) -> int:
        for at, (key, result) in enumerate([(8, -errno.EIO), (7, 0)]):
            kernel_sync._EVENT.pack_into(kernel._events, at * kernel_sync._EVENT.size, key, 0, result, 0)
        return 2

    with monkeypatch.context() as patch:
        patch.setattr(kernel, "_call", ended)
        kernel._tell()
    await good
    with pytest.raises(OSError, match="Input/output error") as caught:
        await bad
    assert caught.value.errno == errno.EIO
    await kernel.close()


async def test_more_ends_than_one_call_tells_of_are_told_in_one_turn(
    kernel: KernelSync, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, room = asyncio.get_running_loop(), kernel_sync._ROOM
    futures = [kernel._waiting.setdefault(number, loop.create_future()) for number in range(2 * room + 4)]
    left = list(range(len(futures)))

    def ended(number: int, *_: int) -> int:
        told, left[:] = left[:room], left[room:]
        for at, key in enumerate(told):
            kernel_sync._EVENT.pack_into(kernel._events, at * kernel_sync._EVENT.size, key, 0, 0, 0)
        return len(told)

    with monkeypatch.context() as patch:
        patch.setattr(kernel, "_call", ended)
        kernel._tell()
    assert all(future.done() for future in futures) and not kernel._waiting
    await kernel.close()


async def test_what_the_kernel_does_not_take_is_refused_at_once(kernel: KernelSync) -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(OSError) as caught:
            kernel.sync(writing)
        assert caught.value.errno == errno.EINVAL
    finally:
        os.close(reading)
        os.close(writing)
        await kernel.close()


async def test_a_signal_while_nothing_has_ended_is_no_error(
    kernel: KernelSync, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: int) -> int:
        raise InterruptedError(errno.EINTR, "Interrupted system call")

    with monkeypatch.context() as patch:
        patch.setattr(kernel, "_call", interrupted)
        kernel._tell()
    await kernel.close()


async def test_a_sync_that_finds_no_memory_is_not_begun(kernel: KernelSync, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def create_future(self) -> None:
            raise MemoryError

    begun: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(kernel, "loop", Full())
        patch.setattr(kernel, "_call", lambda number, *_: begun.append(number))
        with pytest.raises(MemoryError):
            kernel.sync(0)
    assert not begun and not kernel._waiting
    await kernel.close()


async def test_a_close_waits_for_what_is_under_way(kernel: KernelSync, tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file:
        file.write(bytes(1 << 20))
        file.flush()
        ended = kernel.sync(file.fileno())
        await kernel.close()
    assert ended.done()


@pytest.mark.parametrize("machine", [None, "sparc64"])
async def test_a_disk_syncs_with_the_kernel_or_with_its_thread(
    machine: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if machine is not None:
        monkeypatch.setattr(kernel_sync.platform, "machine", lambda: machine)
    disk = RealDisk()
    for _ in range(2):  # a disk that was closed begins anew
        file = disk.open(str(tmp_path / "file"), create=True)
        file.pwritev([b"durable"], 0)
        await disk.sync(file)
        assert (disk._thread is None) == (disk._kernel is not None)
        file.close()
        reading, writing = os.pipe()
        with pytest.raises(OSError) as caught:  # from the thread
            await disk.sync(RealFile("pipe", writing))
        assert caught.value.errno == errno.EINVAL
        os.close(reading)
        os.close(writing)
        await disk.close()
    assert machine is None or disk._kernel is None


@pytest.mark.parametrize("machine", [None, "sparc64"])
async def test_a_close_leaves_nothing_of_what_began_meanwhile(
    machine: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = KernelSync.close

    async def later(self: KernelSync) -> None:
        await asyncio.sleep(0)  # as if one was under way still
        await close(self)

    monkeypatch.setattr(KernelSync, "close", later)
    if machine is not None:
        monkeypatch.setattr(kernel_sync.platform, "machine", lambda: machine)
    disk = RealDisk()
    file = disk.open(str(tmp_path / "file"), create=True)
    file.pwritev([b"durable"], 0)
    first = disk.sync(file)
    closing = asyncio.ensure_future(disk.close())
    await asyncio.sleep(0)
    assert not closing.done()
    second = disk.sync(file)
    await asyncio.gather(first, second, closing)
    assert disk._kernel is None and disk._thread is None
    file.close()


def test_a_disk_that_outlives_a_loop_syncs_on_the_next(tmp_path: Path) -> None:
    disk = RealDisk()
    file = disk.open(str(tmp_path / "file"), create=True)

    async def sync(last: bool) -> None:
        await asyncio.wait_for(disk.sync(file), 30)
        if last:
            await disk.close()

    asyncio.run(sync(False))
    first = disk._kernel
    asyncio.run(sync(True))
    file.close()
    assert first is None or disk._kernel is None
