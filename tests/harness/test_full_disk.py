"""A small file system that really fills up: appends are refused, reads go on, nothing acknowledged is lost, and space
that comes back (by hand, by retention) is used. Mounting it needs root."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from aiorocket.errors import StoreError, StoreFullError
from aiorocket.runtime.env import real_env
from aiorocket.storage import MessageStore, PutStatus
from tests.harness.crash import run as crashes
from tests.storage.stores import bodies, opened, put

pytestmark = pytest.mark.harness

MIB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=0700", "aiorocket-test", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        # Lazily: a store that a failed test left open would keep the place.
        subprocess.run(["umount", "-l", str(place)], timeout=20, check=True)


async def until_full(store: MessageStore, kept: list[bytes]) -> None:
    for number in range(10_000):
        body = b"%d|" % number + bytes(20_000)
        try:
            result = await put(store, "T", 0, body)
        except StoreFullError:
            return
        if result.status is PutStatus.FULL:
            return
        assert result.status is PutStatus.OK
        kept.append(body)
    raise AssertionError("it never fills up")


async def until_room(store: MessageStore, kept: list[bytes]) -> None:
    """It looks for room again a while after it found none."""
    async with asyncio.timeout(60):
        while True:
            with suppress(StoreFullError):
                if (await put(store, "T", 0, b"room")).status is PutStatus.OK:
                    return kept.append(b"room")
            await asyncio.sleep(0.01)


@pytest.mark.timeout(300)
async def test_a_broker_that_dies_on_a_disk_that_fills_up(small_disk: Path, tmp_path: Path) -> None:
    (small_disk / "store").mkdir()
    (tmp_path / "store").symlink_to(small_disk / "store")
    assert await crashes(6, tmp_path, "sync", seed=7, small=True, quiet=True) == []
    assert "a full disk first" in (tmp_path / "rounds.jsonl").read_text()


@pytest.mark.timeout(120)
async def test_a_start_on_a_disk_without_a_byte_serves_what_there_is(small_disk: Path) -> None:
    env = real_env()
    try:
        store = await opened(env, str(small_disk / "store"), segment_size=2 * MIB, min_free=0)
        await put(store, "T", 0, b"kept")
        await store.close()
        before = len(os.listdir("/proc/self/fd"))
        filler = small_disk / "filler"

        def fill() -> None:
            with filler.open("ab", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(4096))

        fill()
        store = await opened(env, str(small_disk / "store"), segment_size=2 * MIB, min_free=4 * MIB)
        assert bodies(store) == [b"kept"]
        with pytest.raises(StoreFullError, match="free space"):
            await put(store, "T", 0, b"no room")
        await store.close()
        fill()
        with pytest.raises(StoreError, match="make room on the disk"):  # nothing is reserved any more
            await opened(env, str(small_disk / "store"), segment_size=2 * MIB, min_free=0)
        assert len(os.listdir("/proc/self/fd")) == before
        filler.unlink()
        store = await opened(env, str(small_disk / "store"), segment_size=2 * MIB, min_free=0)
        await put(store, "T", 0, b"room")
        assert bodies(store) == [b"kept", b"room"]
        await store.close()
    finally:
        await env.disk.close()


@pytest.mark.parametrize("min_free", [0, 4 * MIB])
@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_a_disk_that_fills_up(small_disk: Path, min_free: int, flush: str) -> None:
    env = real_env()
    options = {"segment_size": 2 * MIB, "min_free": min_free, "flush": flush, "checkpoint_interval": 0.05}
    kept: list[bytes] = []
    filler = small_disk / "filler"
    filler.write_bytes(bytes(8 * MIB))
    try:
        store = await opened(env, str(small_disk / "store"), **options)
        await until_full(store, kept)
        assert len(kept) > 200 and bodies(store) == kept
        assert store.problem is not None and "free space" in store.problem
        with pytest.raises(StoreError):
            await put(store, "T", 0, bytes(100_000))
        assert os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize >= min_free
        filler.unlink()
        before = len(kept)
        await until_room(store, kept)
        await until_full(store, kept)
        assert len(kept) > before + 100 and bodies(store) == kept
        await store.close()

        store = await opened(env, str(small_disk / "store"), **options)
        assert bodies(store) == kept and not store.recovery.damaged
        await store.close()

        store = await opened(env, str(small_disk / "store"), max_log_bytes=8 * MIB, **options)
        assert await store.retention.sweep() > 0
        low = store.min_offset("T", 0)
        await until_room(store, kept)
        await until_full(store, kept)
        assert low > 0 and bodies(store) == kept[low:]
        await store.close()
    finally:
        await env.disk.close()
