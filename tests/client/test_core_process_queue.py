from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aiorocket.client.core.process_queue import Limits, ProcessQueue

LIMITS = Limits(1000, 1 << 20, 2000)


class Item:
    def __init__(self, offset: int, size: int = 10) -> None:
        self.queue_offset = offset
        self.start, self.end = 0, size
        self._process_queue: ProcessQueue | None = None


def filled(*offsets: int, limits: Limits = LIMITS) -> tuple[ProcessQueue, list[Item]]:
    queue = ProcessQueue(offsets[0] if offsets else 0, limits)
    items = [Item(offset) for offset in offsets]
    queue.put(items, 10 * len(items), (offsets[-1] + 1) if offsets else 0)
    return queue, items


def test_what_may_be_committed_is_the_smallest_unfinished_offset() -> None:
    queue, items = filled(5, 6, 7)
    assert queue.committable() == 5
    queue.done(items[1])
    assert queue.committable() == 5
    queue.done(items[0])
    assert queue.committable() == 7
    queue.done(items[2])
    assert queue.committable() == 8
    assert (queue.count, queue.size, queue.taken) == (0, 0, 3)


def test_filtered_tail_is_committable_once_nothing_is_unfinished() -> None:
    queue, items = filled(5)
    queue.put([], 0, 40)
    assert queue.committable() == 5
    queue.done(items[0])
    assert queue.committable() == 40


def test_a_second_result_of_one_message_changes_nothing() -> None:
    queue, items = filled(1, 2)
    assert queue.done(items[0])
    assert not queue.done(items[0])
    assert queue.count == 1


def test_a_message_of_another_assignment_is_not_ours() -> None:
    old, items = filled(1)
    new = ProcessQueue(1, LIMITS)
    assert not new.done(items[0])
    assert old.done(items[0])


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60, unique=True).map(sorted), st.randoms())
def test_committable_equals_the_minimum_in_any_order(offsets: list[int], random: object) -> None:
    queue, items = filled(*offsets)
    left = list(items)
    random.shuffle(left)  # type: ignore[attr-defined]
    while left:
        queue.done(left.pop())
        want = min((item.queue_offset for item in left), default=queue.next_offset)
        assert queue.committable() == want


def test_each_limit_is_named_and_room_is_told_once() -> None:
    queue, items = filled(*range(4), limits=Limits(2, 1000, 2000))
    assert queue.full() == "messages"
    told: list[int] = []
    queue.on_room = lambda: told.append(queue.count)
    for item in items:
        queue.done(item)
    assert told == [2]
    assert filled(1, 2, limits=Limits(10, 15, 100))[0].full() == "bytes"
    assert filled(1, 2, 300, limits=Limits(10, 1000, 100))[0].full() == "span"
    assert filled(1, 2)[0].full() is None


def test_dropping_wakes_whoever_waits_for_room() -> None:
    queue, _ = filled(1)
    told: list[bool] = []
    queue.on_room = lambda: told.append(queue.dropped)
    queue.drop()
    assert told == [True]
