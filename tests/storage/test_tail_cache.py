"""Reads at the tail: whatever was appended alone or as a batch, any piece of it comes back as it was."""

from __future__ import annotations

import asyncio
import sys
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from aiorocket.storage import ReadStatus
from aiorocket.storage.block import BLOCK_MASK
from aiorocket.storage.consume_queue import ConsumeQueue
from aiorocket.storage.tail_cache import TailCache, read_tail, scan_tail
from tests.storage.stores import opened, put, put_batch

#: Sizes of appends: 1 is a message alone, more is a batch; together they pass several blocks of 128.
APPENDS = st.lists(st.sampled_from([1, 1, 2, 3, 31, 100, 128, 129, 300]), min_size=1, max_size=12)


@given(APPENDS, st.data())
def test_any_piece_of_the_tail_is_what_was_appended(appends: list[int], data: st.DataObject) -> None:
    async def go() -> None:
        store = await opened(tail_cache=8 << 20, segment_size=8 << 20)
        # The buffers of large batches are handed out as they are.
        times = data.draw(st.sampled_from([1, 1, 300]), "times")
        for count in appends:
            await (put(store) if count == 1 else put_batch(store, [b"%d" % n * (n % 7) * times for n in range(count)]))
        total = sum(appends)
        sizes = [size for _, size, _ in store.entries("T", 0, 0, total)]
        whole = store.read("T", 0, 0, total, 1 << 30).data
        assert len(whole) == sum(sizes)
        ends = [0, *accumulate(sizes)]
        offset = data.draw(st.integers(0, total - 1), "offset")
        count = data.draw(st.integers(1, total + 5), "count")
        limit = data.draw(st.integers(1, sum(sizes) + 5), "bytes")
        fit = sum(end - ends[offset] <= limit for end in ends[offset + 1 :])
        taken = max(1, min(count, fit))
        found = store.read("T", 0, offset, count, limit)
        assert (found.status, found.count, found.next_offset) == (ReadStatus.FOUND, taken, offset + taken)
        assert found.data == whole[ends[offset] : ends[offset + taken]]
        # The same records one by one, as a filter picks them.
        picked = store.read("T", 0, offset, count, limit, lambda code: True)
        assert picked.data == found.data
        await store.close()

    asyncio.run(go())


async def test_large_batches_are_not_copied() -> None:
    store = await opened(tail_cache=8 << 20)
    for _ in range(3):
        await put_batch(store, [bytes(1000)] * 16)
    first, second = (store.read("T", 0, offset, 40, 1 << 30).pieces for offset in (0, 0))
    assert list(map(len, first)) == [len(first[0])] * 2 + [len(first[0]) // 2]
    assert [a is b for a, b in zip(first, second, strict=True)] == [True, True, False]
    await put(store)
    assert len(store.read("T", 0, 48, 1, 1 << 30).pieces) == 1
    await store.close()


def test_what_is_forgotten_inside_a_batch_leaves_its_beginning() -> None:
    queue, cache = ConsumeQueue("q", "T", 0), TailCache(1 << 20)
    block = cache.start(queue, 0)
    block.records, block.sizes, block.codes = [b"a", b"bbccdd", b"", b""], [1, 2, 2, 2], [0, 1, 2, 3]
    block.size = cache.size = 7
    cache.forget(queue, 2)
    assert (block.records, block.sizes, block.codes, block.size, cache.size) == ([b"a", b"bb"], [1, 2], [0, 1], 3, 3)
    queue.cached_first = 0
    block.records.append(b"C")
    block.sizes.append(1)
    block.codes.append(9)
    assert read_tail(queue, 0, BLOCK_MASK, 99) == ([b"abbC"], 3)
    assert scan_tail(queue, 1, 3, 9, 99, lambda code: code == 9) == ([b"C"], 3)


def test_a_queue_that_is_gone_is_held_by_nobody() -> None:
    """Whoever sends to a topic and deletes it, again and again, never reaches the budget."""
    queue, cache = ConsumeQueue("q", "T", 0), TailCache(1 << 20)
    alone = sys.getrefcount(queue)
    for offset in (0, BLOCK_MASK + 1):
        block = cache.start(queue, offset)
        block.records, block.sizes, block.codes, block.size = [b"a"], [1], [0], 1
        cache.size += 1
    cache.forget(queue, 0)
    assert (cache.size, sys.getrefcount(queue)) == (0, alone)
