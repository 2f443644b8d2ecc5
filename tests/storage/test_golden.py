"""Stores as each version wrote them: they open, hold what they held, and take more. A newer version is refused.

python -m tests.storage.test_golden FILE      writes one as this version makes it, once for each version
"""

from __future__ import annotations

import asyncio
import sys
import zipfile
from pathlib import Path

import pytest

from aiorocket.errors import StoreCorruptedError
from aiorocket.runtime.disk import RealDisk
from aiorocket.runtime.env import memory_env, real_env
from aiorocket.runtime.memory_disk import MemoryDisk
from aiorocket.storage import Snapshot
from aiorocket.storage.checksums import FORMAT, encode_head
from tests.storage.stores import bodies, opened, put, put_batch

GOLDEN = sorted((Path(__file__).parent / "golden").glob("format*.zip"))


def test_there_is_one_of_each_version() -> None:
    assert [path.stem for path in GOLDEN] == [f"format{number}" for number in range(1, FORMAT + 1)]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
@pytest.mark.parametrize("left", ["all", "no checkpoint", "only the log"])
async def test_a_store_of_each_version_opens(path: Path, left: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path)
    if left != "all":
        for name in "ab":
            (tmp_path / f"checkpoint.{name}").unlink()
    if left == "only the log":
        for unit_file in (tmp_path / "consumequeue").rglob("0*"):
            if unit_file.is_file():
                unit_file.unlink()
    env = real_env()
    for start in range(2):
        store = await opened(env, str(tmp_path))
        assert not store.recovery.damaged and store.recovery.truncated_bytes == 0
        for queue_id in (0, 1):
            expected = [b"%d." % number * 300 for number in range(queue_id, 120, 2)]
            assert bodies(store, "T", queue_id) == [*expected, *[b"more"] * start]
            assert (await put(store, "T", queue_id, b"more")).queue_offset == 60 + start
        retries = [b"%d,%d" % (number, index) for number in range(0, 120, 10) for index in range(3)]
        assert bodies(store, "%RETRY%g", 0) == retries
        assert ("gone" in store.topics()) == (left != "all"), "only the checkpoint knows of a deletion"
        await store.close()
    await env.disk.close()


async def test_a_store_that_kept_everything_says_once_that_it_will_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with zipfile.ZipFile(GOLDEN[0]) as archive:
        archive.extractall(tmp_path)
    env = real_env()
    for _ in range(2):
        await (await opened(env, str(tmp_path))).close()
    assert caplog.text.count("older than 72 hours go (file_reserved_time, 0 keeps them)") == 1
    await env.disk.close()


@pytest.mark.parametrize("where", ["checkpoint", "checksums"])
async def test_a_newer_version_is_refused_in_words(where: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(GOLDEN[-1]) as archive:
        archive.extractall(tmp_path)
    if where == "checkpoint":
        snapshot = Snapshot(RealDisk(), str(tmp_path / "checkpoint"))
        snapshot.save({**(snapshot.load() or {}), "format": FORMAT + 1})
    else:
        sums = max((tmp_path / "commitlog").glob("*.sums"))
        head = encode_head(int(sums.name[:20]), FORMAT + 1)
        sums.write_bytes(head + sums.read_bytes()[len(head) :])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock"}
    env = real_env()
    with pytest.raises(StoreCorruptedError, match=rf"has (store )?format {FORMAT + 1}.*use a newer one"):
        await opened(env, str(tmp_path))
    await env.disk.close()
    assert {path: path.read_bytes() for path in before} == before


async def write(path: str) -> None:
    env = memory_env()
    assert isinstance(env.disk, MemoryDisk)
    store = await opened(env, checkpoint_interval=1e6)
    for first in range(0, 120, 10):
        waiting = [put(store, "T", number % 2, b"%d." % number * 300) for number in range(first, first + 10)]
        retries = put_batch(store, [b"%d,%d" % (first, index) for index in range(3)], "%RETRY%g")
        await asyncio.gather(*waiting, retries, put(store, "gone", 0, b"gone"))
    await store.delete_topics("gone")
    await store.close()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(env.disk.files.items()):
            if not name.endswith("/lock"):
                file = zipfile.ZipInfo(name.removeprefix("/store/"))
                archive.writestr(file, bytes(data), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1]))
