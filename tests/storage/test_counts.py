"""Damage behind the last checkpoint of a store that was killed: each checksum file says how far its groups had brought
their queues, so what is lost has a name, and no number is given again."""

from __future__ import annotations

import asyncio
import errno
import zipfile
from collections.abc import Sequence

import pytest

from aiorocket.errors import StoreError
from aiorocket.runtime.env import Env, memory_env
from aiorocket.storage import recovery as recovery_module
from aiorocket.storage.checksums import (
    FORMAT,
    encode_block,
    encode_head,
    parse_counts,
    read_counts,
    read_entries,
    written_again,
)
from aiorocket.storage.checkup import survey
from aiorocket.storage.commit_group import COUNT
from tests.storage.stores import intact, opened, put
from tests.storage.test_golden import GOLDEN
from tests.storage.test_recovery import LOG, copy_of, disk_of

Lost = Sequence[tuple[str, int, int, int]]


async def killed(*, damage: str, batch: int = 1) -> Env:
    """Killed before a checkpoint, and damaged: the only message of a queue, and the last ones of others in between."""
    env = memory_env()
    store = await opened(env, checkpoint_interval=1e6)
    places: list[int] = []
    for first in range(0, 120, batch):
        topics = ["single" if number == 90 else "T" for number in range(first, first + batch)]
        found = await asyncio.gather(*(put(store, topic, 0, b"%d." % first * 250) for topic in topics))
        places += [result.physical_offset for result in found]
    assert places[88] > 65_536 > places[60]
    image = copy_of(env)
    await store.close()
    disk = disk_of(image)
    if damage == "segment":
        disk.unlink(f"{LOG}/{65_536:020d}")
    elif damage == "byte":
        disk.files[f"/{LOG}/{65_536:020d}"][places[90] - 65_536 + 100] ^= 1
    return image


async def lost(env: Env) -> Lost:
    """What a start says that is lost."""
    store = await opened(env, checkpoint_interval=1e6)
    await asyncio.sleep(0)
    rows = sorted(row for damage in store.damaged for row in damage.lost)
    for topic, queue_id, first, count in rows:
        assert store.max_offset(topic, queue_id) >= first + count
        assert not set(range(first, first + count)) & set(intact(store, topic, queue_id))
    await store.close()
    return rows


@pytest.mark.parametrize("batch", [1, 10])
async def test_the_only_message_of_a_queue_is_named_and_its_number_not_given_again(batch: int) -> None:
    env = await killed(damage="byte", batch=batch)
    assert survey(env.disk, "/store", lambda done, total: None).findings[0].lost == (("single", 0, 0, 1),)
    assert await lost(env) == [("single", 0, 0, 1)]
    store = await opened(env)
    assert (await put(store, "single", 0, b"next")).queue_offset == 1
    assert (await put(store, "T", 0, b"next")).queue_offset == 119
    assert intact(store, "single") == {1: b"next"} and len(intact(store)) == 120
    await store.close()


@pytest.mark.parametrize("batch", [1, 20])
async def test_what_stood_in_a_last_segment_that_is_missing_is_named(batch: int) -> None:
    """A group of twenty lies in both."""
    env = await killed(damage="segment", batch=batch)
    [damaged] = survey(env.disk, "/store", lambda done, total: None).findings
    rows = await lost(env)
    assert sorted(damaged.lost) == rows and "not every queue knows" not in damaged.what
    assert rows[1] == ("single", 0, 0, 1) and rows[0][:2] == ("T", 0) and sum(rows[0][2:]) == 119


async def test_a_group_that_lies_in_two_segments_is_counted_in_both() -> None:
    """A power cut took what the second checksum file had, which nothing had synced."""
    env = memory_env()
    store = await opened(env, checkpoint_interval=1e6)
    first = await put(store, "filler", 0, b"x" * 60_000)
    single, last = await asyncio.gather(put(store, "single"), put(store, "filler", 0, b"x" * 10_000))
    assert first.physical_offset < single.physical_offset < 65_536 == last.physical_offset
    image = copy_of(env)
    await store.close()
    disk_of(image).files[f"/{LOG}/{65_536:020d}.sums"].clear()
    disk_of(image).files[f"/{LOG}/{0:020d}"][single.physical_offset + 80] ^= 1
    assert await lost(image) == [("single", 0, 0, 1)]


async def test_what_stood_in_a_first_segment_that_is_missing_is_named() -> None:
    env = memory_env()
    store = await opened(env, checkpoint_interval=1e6)
    await put(store, "single")
    place = (await put(store, "filler", 0, b"x" * 65_300)).physical_offset
    assert (await put(store, "T")).physical_offset == 65_536 > place
    image = copy_of(env)
    await store.close()
    disk_of(image).unlink(f"{LOG}/{0:020d}")
    assert await lost(image) == [("filler", 0, 0, 1), ("single", 0, 0, 1)]


async def test_a_start_that_is_broken_off_forgets_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checksum file is written anew in front of the checkpoint that knows the queues; damage comes in between."""
    env = await killed(damage="none")

    def ends(*args: object, **more: object) -> None:
        raise OSError(errno.EIO, "the process ends here")

    with monkeypatch.context() as patched:
        patched.setattr(recovery_module, "checkpoint_state", ends)
        with pytest.raises(StoreError, match="cannot be used"):
            await opened(env)
    data = disk_of(env).files[f"/{LOG}/{65_536:020d}"]
    data[data.index(b"single") - 300] ^= 1
    assert await lost(env) == [("single", 0, 0, 1)]


async def test_a_topic_that_was_deleted_and_made_again_has_the_numbers_it_has_now() -> None:
    env = memory_env()
    store = await opened(env, checkpoint_interval=1e6)
    for _ in range(5):
        await put(store, "again")
    gone, kept = put(store, "gone"), put(store, "again")
    deleted = store.delete_topics("again", "gone")
    behind = put(store, "other")  # in the group in which the topics end
    await asyncio.gather(gone, kept, behind, deleted)
    await put(store, "again", 0, b"new")
    place = (await put(store, "single")).physical_offset
    for _ in range(2):
        await put(store, "other")
    image = copy_of(env)
    await store.close()
    disk_of(image).files[f"/{LOG}/{0:020d}"][place + 80] ^= 1
    assert await lost(image) == [("single", 0, 0, 1)]
    store = await opened(image)
    assert intact(store, "again") == {0: b"new"} and store.topics() == ["again", "other", "single"]
    await store.close()


async def test_a_store_of_format_2_goes_on_with_counts() -> None:
    env = memory_env()
    disk = disk_of(env)
    with zipfile.ZipFile(GOLDEN[1]) as archive:
        for name in archive.namelist():
            path = f"/store/{name}"
            disk.makedirs(path.rpartition("/")[0])
            disk.replace(path, archive.read(name))
    store = await opened(env, checkpoint_interval=1e6)
    place = (await put(store, "single")).physical_offset
    for _ in range(2):
        await put(store)
    image = copy_of(env)
    await store.close()
    base = place // 65_536 * 65_536
    disk_of(image).files[f"/{LOG}/{base:020d}"][place - base + 80] ^= 1
    assert await lost(image) == [("single", 0, 0, 1)]


def test_what_a_file_says_of_queues() -> None:
    disk = memory_env().disk
    counts = COUNT.pack(1, 7, 1 << 40) + b"T" + COUNT.pack(8, 65_535, 1) + b"%RETRY%g"
    blocks = [
        encode_block([10, 1, 20, 2], 100, 0, 0, counts),
        encode_block([], 130, 130, 0),
        encode_block([5, 3], 130, 130, 0),
    ]
    disk.replace("sums", encode_head(100) + b"".join(blocks))
    said = list(read_counts(disk, "sums", 100))
    assert said == [(130, counts), (135, b"")]
    assert list(parse_counts(counts)) == [("T", 7, 1 << 40), ("%RETRY%g", 65_535, 1)]
    entries = read_entries(disk, "sums", 100)
    assert entries is not None and entries.end == 35
    again = encode_head(100) + b"".join(blocks)
    assert written_again(disk, "sums", 100, entries, 130) == again + encode_block([], 135, 130, 0)
    again = encode_head(100) + b"".join(blocks[:2])
    assert written_again(disk, "sums", 100, entries.cut(34), 130) == again + encode_block([], 130, 130, 0)
    cut = encode_head(100) + encode_block([10, 1], 100, 110, 0)
    assert written_again(disk, "sums", 100, entries.cut(29), 110) == cut
    disk.replace("sums", encode_head(100, FORMAT - 1) + b"".join(blocks))
    assert list(read_counts(disk, "sums", 100)) == []
    assert written_again(disk, "sums", 100, entries.cut(10), 110) == cut
