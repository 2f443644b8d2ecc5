"""MessageStore without faults: appends, publication, reads with every status, deletion, limits, refusals."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import threading
from itertools import count
from pathlib import Path
from typing import Any, Literal

import pytest

from aiorocket.errors import ProtocolError, StoreError, StoreFullError, StoreLockedError, UsageError
from aiorocket.runtime.env import memory_env, real_env
from aiorocket.runtime.memory_disk import MemoryDisk, MemoryFile
from aiorocket.storage import PutResult, PutStatus, ReadStatus, StoreBusyError, opening
from aiorocket.storage import store as store_module
from aiorocket.storage.commit_group import KEPT, CommitGroup, Run
from aiorocket.storage.consume_queue import ConsumeQueue
from aiorocket.storage.segment import Segment
from aiorocket.storage.tail_cache import TailCache
from aiorocket_protocol import RecordView, split_records, tags_code
from aiorocket_protocol.fast import PURE
from tests.storage.stores import HOST, HOST_V6, bodies, everything, opened, put, put_batch


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("tail_cache", [0, 3000, 1 << 20])
async def test_what_is_appended_is_read_back_from_memory_and_from_files(flush: str, tail_cache: int) -> None:
    store = await opened(flush=flush, tail_cache=tail_cache)
    expected: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    pending = []
    for number in range(900):
        body = b"%d-" % number * (1 + number % 40)
        expected[number % 3].append(body)
        pending.append(put(store, "T", number % 3, body))
        if number % 50 == 49:
            await pending[-1]
    results = [await future for future in pending]
    assert all(result.status is PutStatus.OK for result in results)
    for queue_id, wanted in expected.items():
        for step in (1, 7, 200, 1024):
            assert bodies(store, "T", queue_id, step) == wanted
    await store.close()


async def test_result_names_where_the_message_lies() -> None:
    store = await opened()
    first, second = await put(store, body=b"one"), await put(store, body=b"two!")
    assert (first.queue_offset, second.queue_offset) == (0, 1)
    record = store.read_record(second.physical_offset)
    assert record is not None
    view = RecordView(record, 0, len(record))
    assert (view.raw_body, view.queue_offset, view.physical_offset) == (b"two!", 1, second.physical_offset)
    assert (view.store_timestamp, view.born_timestamp) == (second.store_timestamp, 7)
    assert store.entries("T", 0, 0, 9) == [
        (first.physical_offset, 95, 0),
        (second.physical_offset, 96, 0),
    ]
    assert store.read_record(second.physical_offset + 1) is None
    assert store.read_record(1 << 40) is None
    assert store.max_physical == second.physical_offset + 96
    assert store.min_physical == 0
    await store.close()


async def test_in_the_midst_of_a_record_no_more_is_read_than_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may ask for a message by its place could else have a whole segment read and checked."""
    store = await opened(tail_cache=0)
    first = await put(store, body=b"\x00\x00\x7f\x00" * 1000)  # as a size it is 32,512
    await put(store, body=bytes(40_000))
    log = type(store._log)
    read = log.checked
    sizes: list[int] = []
    monkeypatch.setattr(log, "checked", lambda self, at, size: sizes.append(size) or read(self, at, size))
    assert all(store.read_record(first.physical_offset + at) is None for at in range(1, 4000))
    assert max(sizes) < 100
    assert len(store.read_record(first.physical_offset) or b"") > 4000
    monkeypatch.undo()
    await store.close()


async def test_a_batch_is_one_append_with_consecutive_offsets() -> None:
    store = await opened()
    await put(store, body=b"before")
    result = await put_batch(store, [b"a", b"bb", b"ccc"])
    assert (result.queue_offset, len(result.physical_offsets)) == (1, 3)
    assert result.physical_offsets[0] == result.physical_offset
    for place, body in zip(result.physical_offsets, (b"a", b"bb", b"ccc"), strict=True):
        record = store.read_record(place)
        assert record is not None and RecordView(record, 0, len(record)).raw_body == body
    assert bodies(store) == [b"before", b"a", b"bb", b"ccc"]
    with pytest.raises(StoreError, match="at least one"):
        put_batch(store, [])
    await store.close()


async def test_nothing_is_visible_before_it_is_durable() -> None:
    store = await opened(flush="sync")
    arrivals: list[Any] = []
    store.on_arrival = lambda *news: arrivals.append(news)
    future = put(store)
    await asyncio.sleep(0)
    assert store.max_offset("T", 0) == 0 and not arrivals
    assert store.read("T", 0, 0, 1, 100).status is ReadStatus.NO_MESSAGE_IN_QUEUE
    await future
    assert arrivals == [("T", 0, 1, 0)]
    assert store.read("T", 0, 0, 1, 100).status is ReadStatus.FOUND
    await store.close()


async def test_arrival_is_told_once_per_queue_and_group_with_the_code_if_there_is_only_one() -> None:
    store = await opened()
    arrivals: list[Any] = []
    store.on_arrival = lambda *news: arrivals.append(news)
    futures = [put(store, "T", 0, tag="A"), put(store, "T", 0, tag="A"), put(store, "T", 1, tag="A")]
    futures.append(put(store, "T", 1, tag="B"))
    await asyncio.gather(*futures)
    assert arrivals == [("T", 0, 2, tags_code("A")), ("T", 1, 2, None)]
    await store.close()


async def test_done_is_called_after_publication_and_its_error_keeps_nobody_from_an_answer() -> None:
    loop = asyncio.get_running_loop()
    reported: list[Any] = []
    loop.set_exception_handler(lambda _, context: reported.append(context["message"]))
    store = await opened()
    seen: list[int] = []
    more: dict[str, Any] = {"flag": 0, "sys_flag": 0, "born_timestamp": 1, "born_host": HOST, "tags_code": 0}

    def broken(result: object) -> None:
        raise RuntimeError("a callback with a bug")

    store.append("T", 0, b"1", b"", done=broken, **more)
    store.append("T", 0, b"2", b"", done=lambda result: seen.append(store.max_offset("T", 0)), **more)
    await put(store)
    assert seen == [2] or seen == [3]
    assert len(reported) == 1
    await store.close()


async def test_an_error_that_cannot_even_be_reported_keeps_nobody_from_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    store = await opened()
    seen: list[object] = []
    more: dict[str, Any] = {"flag": 0, "sys_flag": 0, "born_timestamp": 1, "born_host": HOST, "tags_code": 0}

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(loop, "call_exception_handler", fail)
    arrived: list[object] = []
    store.on_arrival = lambda *news: arrived.append(news)
    store.append("T", 0, b"1", b"", done=fail, **more)
    store.append("T", 0, b"2", b"", done=seen.append, **more)
    await put(store)
    assert len(seen) == 1 and arrived
    await store.close()


async def test_statuses_of_reads_outside_the_queue() -> None:
    store = await opened()
    status = ReadStatus.NO_MATCHED_LOGIC_QUEUE
    assert store.read("T", 0, 5, 1, 100)[:3] == (status, (), 0)
    await asyncio.gather(*[put(store) for _ in range(3)])
    assert store.read("T", 0, 3, 1, 100)[:3] == (ReadStatus.OFFSET_OVERFLOW_ONE, (), 3)
    assert store.read("T", 0, 9, 1, 100)[:3] == (ReadStatus.OFFSET_OVERFLOW_BADLY, (), 3)
    assert store.read("T", 0, -1, 1, 100)[:3] == (ReadStatus.OFFSET_TOO_SMALL, (), 0)
    assert store.read("T", 1, 0, 1, 100).status is ReadStatus.NO_MATCHED_LOGIC_QUEUE
    assert store.entries("T", 1, 0, 5) == [] and store.entries("T", 0, 3, 5) == []
    await store.close()


@pytest.mark.parametrize("tail_cache", [0, 1 << 20])
async def test_limits_count_messages_and_bytes_but_one_message_always_comes(tail_cache: int) -> None:
    store = await opened(tail_cache=tail_cache)
    await asyncio.gather(*[put(store, body=b"x" * 1000) for _ in range(10)])
    size = 94 + 1000 - 2
    size = store.entries("T", 0, 0, 1)[0][1]
    assert store.read("T", 0, 0, 4, 1 << 20).count == 4
    assert store.read("T", 0, 0, 99, 3 * size).count == 3
    assert store.read("T", 0, 0, 99, 3 * size - 1).count == 2
    assert store.read("T", 0, 0, 99, 1).count == 1
    assert store.read("T", 0, 0, 0, 1).count == 1
    everything_accepted = store.read("T", 0, 0, 99, 3 * size, lambda code: True)
    assert (everything_accepted.count, everything_accepted.next_offset) == (3, 3)
    await store.close()


@pytest.mark.parametrize("tail_cache", [0, 1 << 20])
async def test_a_filter_skips_and_the_next_offset_says_how_far_it_looked(tail_cache: int) -> None:
    store = await opened(tail_cache=tail_cache, segment_size=1 << 20)
    wanted = tags_code("A")
    await asyncio.gather(*[put(store, tag="A" if number % 3 == 0 else "B") for number in range(2000)])

    def accept(code: int) -> bool:
        return code == wanted

    result = store.read("T", 0, 0, 10, 1 << 20, accept)
    assert (result.status, result.count) == (ReadStatus.FOUND, 10)
    assert [view.queue_offset for view in split_records(result.data)] == list(range(0, 30, 3))
    assert result.next_offset in (28, 30)
    none = store.read("T", 0, 0, 10, 1 << 20, lambda code: False)
    assert (none.status, none.next_offset, none.data) == (ReadStatus.NO_MATCHED_MESSAGE, 800, b"")
    seen, offset = 0, 0
    while offset < 2000:
        result = store.read("T", 0, offset, 32, 1 << 20, accept)
        assert result.next_offset > offset
        seen, offset = seen + result.count, result.next_offset
    assert seen == 667
    await store.close()


async def test_offset_by_time() -> None:
    env = memory_env()

    class Steps:
        now = 1000

        def wall_ms(self) -> int:
            return self.now

    env.clock = clock = Steps()
    store = await opened(env)
    for stamp in (1000, 1000, 2000, 4000):
        clock.now = stamp
        await put(store)
    clock.now = 500
    late = await put(store)
    assert late.store_timestamp == 4000, "the store's time never goes back"
    find = store.offset_by_time
    assert [find("T", 0, ms) for ms in (0, 1000, 1001, 2000, 4000, 4001)] == [0, 0, 2, 2, 3, 5]
    assert [find("T", 0, ms, True) for ms in (0, 1000, 1999, 2000, 4000, 9999)] == [0, 1, 1, 2, 4, 4]
    assert store.store_time("T", 0, 2) == 2000 and store.store_time("T", 0, 5) is None
    assert find("other", 0, 5) == 0
    await store.close()


async def test_ipv6_hosts() -> None:
    store = await opened()
    result = await put(store, born_host=HOST_V6)
    record = store.read_record(result.physical_offset)
    assert record is not None
    view = RecordView(record, 0, len(record))
    assert view.born_host == "[::1]:10911" and view.store_host == "127.0.0.1:10911"
    assert store.store_time("T", 0, 0) == result.store_timestamp
    await store.close()


async def test_a_queue_is_young_until_its_first_message_is_far_from_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await opened()
    assert store.is_young("T", 0)
    await put(store)
    monkeypatch.setattr("aiorocket.storage.reader.YOUNG_BYTES", store.max_physical)
    assert store.is_young("T", 0)
    await put(store, queue_id=1)
    assert not store.is_young("T", 0) and store.is_young("T", 1) and store.is_young("T", 2)
    await store.close()


async def test_a_full_segment_ends_with_a_blank_and_records_never_span() -> None:
    store = await opened()
    places = []
    for number in range(200):
        places.append((await put(store, body=bytes([number]) * 3000)).physical_offset)
    size = store.entries("T", 0, 0, 1)[0][1]
    assert all(place % 65_536 + size + 8 <= 65_536 for place in places)
    assert store.max_physical > 9 * 65_536
    assert [body[0] for body in bodies(store)] == list(range(200))
    await store.close()


async def test_a_message_larger_than_a_segment_is_refused_and_nothing_else_suffers() -> None:
    store = await opened()
    await put(store)
    with pytest.raises(StoreError, match="segment_size"):
        put(store, body=b"x" * 65_536)
    with pytest.raises(StoreError, match="segment_size"):
        put_batch(store, [b"x" * 30_000] * 3)
    assert (await put(store)).queue_offset == 1
    await store.close()


@pytest.mark.parametrize("topic", ["../../etc", "a/b", "", ".", "..", "a\0b", "ü", "x" * 256])
async def test_topics_that_could_leave_the_directory_are_refused(topic: str) -> None:
    store = await opened()
    with pytest.raises(UsageError, match="topic"):
        put(store, topic)
    with pytest.raises(UsageError, match="queue id"):
        put(store, "T", -1)
    with pytest.raises(ProtocolError):
        put(store, "T", 0, flag=1 << 40)
    assert store.topics() == ["T"] and store.max_offset("T", 0) == 0
    assert (await put(store)).queue_offset == 0
    await store.close()


async def test_too_many_waiting_bytes_are_busy_and_pass() -> None:
    store = await opened(max_pending=5000 + 5 * KEPT)
    futures = []
    with pytest.raises(StoreBusyError, match="max_pending"):
        for _ in range(100):
            futures.append(put(store, body=b"x" * 1000))
    assert len(futures) == 5
    await asyncio.gather(*futures)
    await put(store)
    assert len(bodies(store)) == 6
    await store.close()


async def test_too_little_free_space_refuses_appends_until_space_is_back() -> None:
    env = memory_env()
    disk = env.disk
    assert isinstance(disk, MemoryDisk)
    store = await opened(env, min_free=1 << 20)
    await put(store, body=b"before")
    disk.free = 1000
    async with asyncio.timeout(30):
        while store.problem is None:  # a checkpoint looks at the space
            await asyncio.sleep(0.01)
    with pytest.raises(StoreFullError, match="min_free"):
        put(store)
    assert store.problem is not None and bodies(store) == [b"before"]
    disk.free = 1 << 40
    async with asyncio.timeout(30):
        while True:  # until it looks again
            try:
                await put(store, body=b"after")
                break
            except StoreFullError:
                await asyncio.sleep(0.01)
    assert store.problem is None and bodies(store) == [b"before", b"after"]
    await store.close()


async def test_a_closed_store_refuses_and_closes_once() -> None:
    store = await opened()
    waiting = put(store)
    await store.close()
    assert waiting.done(), "close answers what was accepted"
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        put(store)


async def test_a_deleted_topic_is_gone_and_starts_again_at_zero() -> None:
    env = memory_env()
    store = await opened(env)
    await asyncio.gather(*[put(store, "T", queue_id) for queue_id in (0, 1)], put(store, "kept"))
    pending = put(store, "T", 0)
    deleted = store.delete_topics("T")
    assert store.queues("T") == [] and store.topics() == ["kept"]
    with pytest.raises(StoreBusyError, match="being deleted"):
        put(store, "T")
    await deleted
    await store.delete_topics("unknown")
    assert pending.done()
    assert (await put(store, "T", body=b"new")).queue_offset == 0
    assert bodies(store, "T") == [b"new"]
    assert not env.disk.exists("store/consumequeue/T/1")
    await store.close()
    again = await opened(env)
    assert bodies(again, "T") == [b"new"] and bodies(again, "kept") == [b"x"] and again.queues("T") == [0]
    await again.close()


async def test_topics_that_are_deleted_together_are_so_by_one_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 took 1,000, in all 40 s with 3,000 other queues, and of as many retry topics their own was the last."""
    store = await opened(checkpoint_interval=3600)
    await asyncio.gather(*[put(store, f"t{number}") for number in range(50)], put(store, "kept"))
    saved, save = list[bool](), store._behind._checkpoint

    async def counted(*, clean: bool) -> bool:
        saved.append(clean)
        return await save(clean=clean)

    monkeypatch.setattr(store._behind, "_checkpoint", counted)
    await store.delete_topics(*(f"t{number}" for number in range(50)))
    assert len(saved) == 1 and store.topics() == ["kept"]
    assert (await put(store, "t7", body=b"new")).queue_offset == 0
    await store.close()


async def test_nobody_has_to_wait_for_a_deletion_that_fails() -> None:
    said = list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context["message"]))
    store = await opened()
    await asyncio.gather(put(store, "T"), put(store, "U"))
    behind: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    behind.set_exception(OSError(errno.ENOSPC, "full"))
    store.delete_topics("T", "U", behind=behind)
    await store.close()
    gc.collect()
    assert said == ["store removes topic T and 1 more failed"]


@pytest.mark.parametrize("others", [0, 65_000])
async def test_of_a_topic_with_many_queues_little_is_forgotten_in_a_turn(
    others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """65,536 queues held the loop for 0.12 s."""
    store = await opened()
    for queue_id in range(2_500):
        waiting = put(store, "T", queue_id, b"x")
    await waiting
    other = ConsumeQueue("d", "other", 0)
    store._queues.update({("other", queue_id): other for queue_id in range(others)})
    turns, forget = [0], TailCache.forget

    def counted(tail: TailCache, queue: ConsumeQueue, offset: int) -> None:
        turns[-1] += 1
        forget(tail, queue, offset)

    monkeypatch.setattr(TailCache, "forget", counted)
    deleting = store.delete_topics("T")
    assert store.topics() == (["other"] if others else []) and not store.max_offset("T", 0)
    with pytest.raises(StoreBusyError):
        await put(store, "T", 0, b"too early")
    while not deleting.done():
        turns.append(0)
        await asyncio.sleep(0)
    await deleting
    assert sum(turns) == 2_500 and max(turns) <= 2_000 and not store._tail.size
    store._queues.clear()
    await store.close()


async def test_consume_queues_leave_memory_and_cross_files(monkeypatch: pytest.MonkeyPatch) -> None:
    from aiorocket.storage import consume_queue, queue_recovery, reader

    monkeypatch.setattr(consume_queue, "FILE_UNITS", 100)
    monkeypatch.setattr(reader, "FILE_UNITS", 100)
    monkeypatch.setattr(consume_queue, "FILE_SIZE", 2000)
    monkeypatch.setattr(queue_recovery, "FILE_SIZE", 2000)
    env = memory_env()
    store = await opened(env, tail_cache=0, segment_size=1 << 20)
    expected = [b"%d" % number for number in range(750)]
    for start in range(0, 750, 50):
        await asyncio.gather(*[put(store, body=body) for body in expected[start : start + 50]])
        await asyncio.sleep(0.02)
    assert bodies(store) == expected and len(store.entries("T", 0, 0, 1000)) == 750
    await store.close()
    assert len(env.disk.listdir("store/consumequeue/T/0")) == 8
    again = await opened(env, tail_cache=0, segment_size=1 << 20)
    assert not again.recovery.rebuilt
    assert bodies(again, step=1000) == expected
    await put(again, body=b"more")
    assert bodies(again) == [*expected, b"more"]
    await again.close()


# ---- directories


async def test_a_cancelled_open_keeps_the_lock_until_its_thread_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recover, begun, end = opening.recover, threading.Event(), threading.Event()

    def slowly(*arguments: Any) -> Any:
        begun.set()
        end.wait(10)
        return recover(*arguments)

    monkeypatch.setattr(opening, "recover", slowly)
    env = real_env()
    attempt = asyncio.create_task(opened(env, str(tmp_path)))
    await asyncio.to_thread(begun.wait, 10)
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    with pytest.raises(StoreLockedError):
        env.disk.lock(str(tmp_path / "lock"))
    end.set()
    await (await opened(env, str(tmp_path))).close()
    await env.disk.close()


async def test_two_stores_cannot_share_a_directory(tmp_path: Path) -> None:
    env = real_env()
    first = await opened(env, str(tmp_path))
    with pytest.raises(StoreLockedError, match=str(tmp_path)):
        await opened(env, str(tmp_path))
    await put(first)
    await first.close()
    second = await opened(env, str(tmp_path))
    assert bodies(second) == [b"x"]
    await second.close()
    await env.disk.close()


async def test_a_directory_below_a_regular_file_is_one_clear_error(tmp_path: Path) -> None:
    env = real_env()
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StoreError, match=r"data directory .*file/store cannot be used"):
        await opened(env, str(tmp_path / "file" / "store"))
    with pytest.raises(StoreError, match="cannot be used"):
        await opened(env, str(tmp_path / "file"))
    await env.disk.close()


async def test_real_files_keep_everything_over_restarts(tmp_path: Path) -> None:
    env = real_env()
    expected: list[bytes] = []
    for turn in range(3):
        store = await opened(env, str(tmp_path), flush=("sync", "async")[turn % 2])
        recovery = store.recovery
        assert recovery.truncated_bytes == 0 and not recovery.rebuilt and recovery.records == 0
        assert bodies(store) == expected
        more = [b"%d/%d " % (turn, number) * 50 for number in range(300)]
        await asyncio.gather(*[put(store, body=body) for body in more])
        expected += more
        assert bodies(store) == expected
        await store.close()
    await env.disk.close()


async def test_large_records_and_sparse_queues_are_read_one_by_one() -> None:
    store = await opened(tail_cache=0, segment_size=4 << 20)
    for number in range(30):
        await put(store, "big", 0, bytes([number]) * 100_000)
        await put(store, "small", 0, bytes([number]))
    assert [body[0] for body in bodies(store, "big")] == list(range(30))
    assert [body[0] for body in bodies(store, "small")] == list(range(30))
    assert len(everything(store, "big", max_bytes=1)) == 30
    await store.close()


async def test_callbacks_that_append_in_bursts_do_not_nest() -> None:
    store = await opened(flush="async", segment_size=1 << 20)
    more: dict[str, Any] = {"flag": 0, "sys_flag": 0, "born_timestamp": 1, "born_host": HOST, "tags_code": 0}
    wanted = 20_000
    sent = told = 0
    finished = asyncio.get_running_loop().create_future()

    def send() -> None:
        nonlocal sent
        sent += 1
        store.append("T", sent % 3, b"%d" % sent, b"", done=done, **more)

    def done(result: object) -> None:
        nonlocal told
        told += 1
        if sent < wanted:
            send()
        elif told == wanted:
            finished.set_result(None)

    for _ in range(200):
        send()
    await finished
    assert sum(store.max_offset("T", queue_id) for queue_id in range(3)) == wanted
    await store.close()


@pytest.mark.parametrize(("many", "size", "most", "groups"), [(1, 1, 2_048, 9), (500, 500, 7_500, 2)])
async def test_of_what_waited_for_a_sync_little_is_told_in_a_turn(
    many: int, size: int, most: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40,000 sends, which fit into max_pending, were answered in one: 0.3 s. ``groups`` stand before the last one."""
    env, loop = memory_env(), asyncio.get_running_loop()
    store = await opened(env, flush="sync", segment_size=32 << 20)
    log, stands, told, order = store._log, loop.create_future(), [0], list[int]()

    def done(result: PutResult) -> None:
        assert result.status is PutStatus.OK
        if not told[-1]:
            loop.call_soon(told.append, 0)
        told[-1] += many
        order.append(result.queue_offset)

    await put(store)
    with monkeypatch.context() as patch:
        patch.setattr(env.disk, "sync", lambda file: stands)
        first = put(store)
        await asyncio.sleep(0)
    more: dict[str, Any] = {"sys_flag": 0, "born_timestamp": 7, "born_host": HOST, "done": done}
    for _ in range(20_000 // many):
        if many == 1:
            store.append("T", 0, bytes(size), b"", flag=0, tags_code=0, **more)
        else:
            store.append_batch("T", 0, [(bytes(size), 0, b"")] * many, [0] * many, **more)
    assert len(log.whole) == groups and log.flushing is not None and not order and store.max_offset("T", 0) == 1
    stands.set_result(None)
    await store.close()  # it waits for all of them
    assert first.done() and order == sorted(order) and sum(told) == 20_000 and max(told) <= most
    assert log.pending == log._sealed == 0
    store = await opened(env, segment_size=32 << 20)
    assert store.max_offset("T", 0) == 20_002
    await store.close()


async def test_open_files_are_bounded() -> None:
    """However many segments are read: those that were read last stay open, which is why their number grows at first."""
    store = await opened(tail_cache=0)
    for _ in range(200):
        await put(store, body=bytes(60_000))
    assert len(everything(store)) == 200
    assert 100 < len(store._files._files) <= 128
    await store.close()


@pytest.mark.parametrize("flush", ["async", "sync"])
@pytest.mark.parametrize("step", ["_new_group", "put", "_committed"])
async def test_a_group_without_memory_breaks_the_store(
    step: str, flush: Literal["async", "sync"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would write or acknowledge what it stopped at: appends are refused, and a close does not wait for it."""
    env = memory_env()
    store = await opened(env, flush=flush)
    await put(store, body=b"before")
    log = store._log

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Run if step == "put" else log, step, fail)
        future = put(store)
        with contextlib.suppress(MemoryError):
            log.flush()
        while log.flushing is not None:
            await asyncio.sleep(0)
    assert future.done() == (step == "put")
    if future.done():
        assert future.result().status is PutStatus.BROKEN
    assert "look at the disk" in (store.problem or "")
    with pytest.raises(StoreError):
        await put(store)
    await store.close()
    store = await opened(env)
    assert bodies(store)[:1] == [b"before"]
    await store.close()


async def test_segments_are_preallocated(tmp_path: Path) -> None:
    """A full disk shows when a segment is made, not in the middle of it; the next one stands there before it is
    needed."""
    env = real_env()
    store = await opened(env, str(tmp_path / "store"))
    directory = tmp_path / "store" / "commitlog"

    def sizes() -> list[int]:
        files = sorted(path for path in directory.iterdir() if path.name.isdigit())
        if hasattr(os, "posix_fallocate"):
            assert all(path.stat().st_blocks * 512 >= 65_536 for path in files)
        return [path.stat().st_size for path in files]

    await env.disk.run(int)  # behind what opening left to its thread
    assert sizes() == [65_536]
    await put(store, body=b"x" * 10_000)
    assert sizes() == [65_536]
    await put(store, body=b"x" * 30_000)
    await env.disk.run(int)
    assert store.max_physical < 65_536 and sizes() == [65_536, 65_536]
    await store.close()
    await env.disk.close()


async def test_small_groups_that_are_synced_find_their_places_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync of a place that was only reserved waits for the file system's journal too."""
    zeros: list[tuple[int, int]] = []

    def zero(_: MemoryFile, offset: int, size: int) -> None:
        zeros.append((offset, offset + size))
        raise OSError(errno.ENOSPC, "as after a full disk, whose segment could not be reserved again")

    monkeypatch.setattr(MemoryFile, "zero", zero)
    capacity = 1 << 20
    store = await opened(flush="sync", segment_size=capacity)
    for size, groups, seen in [
        (1_000, 5, 1),  # the first groups of a segment are taken for small
        (280_000, 1, 1),  # six groups for 256 KiB
        (140_000, 2, 1),
        (30_000, 8, 1),
        (30_000, 8, 2),
    ]:
        for _ in range(groups):
            assert (await put(store, body=bytes(size))).status is PutStatus.OK
        assert len(zeros) == seen, size
    first, last = zeros
    assert first[1] - first[0] == 256 << 10
    assert last[1] == capacity, "no further than the segment"
    assert len(bodies(store)) == 24
    await store.close()
    zeros.clear()
    lax = await opened(flush="async")
    await put(lax)
    await lax.close()
    assert not zeros


@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_a_large_group_is_written_beside_the_loop(flush: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB that had waited for a sync were copied and summed up in one callback: 60 to 125 ms."""
    written: list[tuple[bool, int]] = []
    in_thread, put_run, write = [False], Run.put, CommitGroup.write

    def noted(run: Run, *args: Any) -> None:
        written.append((in_thread[-1], sum(map(len, run.buffers))))
        put_run(run, *args)

    def job(group: CommitGroup, *args: Any) -> None:
        in_thread.append(True)
        write(group, *args)
        in_thread.pop()

    monkeypatch.setattr(Run, "put", noted)
    monkeypatch.setattr(CommitGroup, "write", job)
    store = await opened(flush=flush, segment_size=64 << 20)
    await put(store, body=b"it opens the segment")
    written.clear()
    body = bytes(3 << 20)
    for count_of in (1, 2, 3, 1, 5):
        results = await asyncio.gather(*[put(store, body=body) for _ in range(count_of)])
        assert {result.status for result in results} == {PutStatus.OK}
    assert written and all(beside is (size > 8 << 20) for beside, size in written)
    assert {beside for beside, _ in written} == {True, False}
    assert bodies(store)[1:] == [body] * 12
    await store.close()


@pytest.mark.parametrize("many, before", [(0, 0), (0, 5), (0, 128), (0, 704), (5, 125), (2, 703)])
@pytest.mark.seeds(4)  # each one allocation of four
async def test_without_memory_nothing_is_assigned_and_the_next_append_goes_on(
    many: int, before: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each allocation of an append fails once."""
    memory = pytest.importorskip("_testcapi", reason="this interpreter has no allocator that fails when told to")
    for name in {"encode_records", "units_of"} & PURE.keys():
        # Compiled code answers with an error of its own, before anything is touched.
        monkeypatch.setattr(store_module, name, PURE[name])
    more = {"sys_flag": 0, "born_timestamp": 7, "born_host": HOST}
    for allocation in count(5 + seed, 4):
        env, done = memory_env(), list[PutResult]()
        store = await opened(env, checkpoint_interval=1000)
        for _ in range(min(1, before)):
            await put_batch(store, [b"x"] * before)
        await env.disk.run(int)  # nothing is in its thread
        items, codes = [(b"many", 0, b"")] * many, [0] * many
        failed = False
        gc.disable()
        memory.set_nomemory(allocation, allocation + 1)
        try:
            if many:
                store.append_batch("T", 0, items, codes, done=done.append, **more)
            else:
                store.append("T", 0, b"one", b"", flag=0, tags_code=0, done=done.append, **more)
        except MemoryError:
            failed = True
        finally:
            memory.remove_mem_hooks()
            gc.enable()
        for _ in range(2):
            await put(store, body=b"after")
        stored = [*[b"x"] * before, *([] if failed else [b"many"] * many or [b"one"]), b"after", b"after"]
        assert (len(done), bodies(store)) == (not failed, stored), allocation
        store._tail.budget = 0
        store._tail.evict()
        assert (store._tail.size, bodies(store)) == (0, stored), allocation
        await store.close()
        store = await opened(env)
        assert (bodies(store), store.damaged) == (stored, []), allocation
        await store.close()
        if not failed:
            return


async def test_nothing_but_its_groups_syncs_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells once of bytes that it could not write: another sync beside a group's might be the one to learn
    it, and the group be acknowledged."""
    store = await opened(flush="sync")

    def fail(segment: Segment) -> None:
        pytest.fail(f"{segment.path} is synced beside its groups")

    monkeypatch.setattr(Segment, "sync", fail)
    for _ in range(3):
        await put(store)
        assert await store._behind.save()
    await store.close()
