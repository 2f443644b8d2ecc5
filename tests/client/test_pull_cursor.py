"""A pull consumer's cache, decided without a network: order, fairness, positions, seeks."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from aiorocket.client.core.pull_cursor import PullBuffer, PullCursor


class Cached(NamedTuple):
    """A message of 10 bytes."""

    queue: int
    queue_offset: int
    start: int = 0
    end: int = 10


def run_of(queue: int, begin: int, count: int) -> list[Cached]:
    return [Cached(queue, offset) for offset in range(begin, begin + count)]


def filled(buffer: PullBuffer[Cached], *counts: int) -> list[PullCursor[Cached]]:
    cursors = [PullCursor[Cached](0) for _ in counts]
    for number, (cursor, count) in enumerate(zip(cursors, counts, strict=True)):
        assert buffer.put(cursor, 0, run_of(number, 0, count), 10 * count, count)
    return cursors


def test_a_queue_with_much_does_not_hide_the_others() -> None:
    buffer: PullBuffer[Cached] = PullBuffer()
    filled(buffer, 100, 2, 2)
    taken = buffer.take(9)
    assert [sum(each.queue == queue for each in taken) for queue in range(3)] == [5, 2, 2]
    assert buffer.count == 95


def test_one_message_at_a_time_goes_round() -> None:
    buffer: PullBuffer[Cached] = PullBuffer()
    filled(buffer, 3, 3, 3)
    assert [buffer.take(1)[0].queue for _ in range(9)] == [0, 1, 2] * 3
    assert buffer.take(1) == []


def test_paused_and_closing_queues_hand_out_nothing() -> None:
    buffer: PullBuffer[Cached] = PullBuffer()
    paused, closing = filled(buffer, 2, 2)
    paused.paused = closing.closing = True
    assert buffer.take(10) == []
    paused.paused = False
    buffer.line_up(paused)
    assert [each.queue for each in buffer.take(10)] == [0, 0]
    assert closing.position == 0, "what was not handed out is not passed"


def test_the_answer_to_a_pull_from_before_a_seek_is_not_wanted() -> None:
    buffer: PullBuffer[Cached] = PullBuffer()
    (cursor,) = filled(buffer, 5)
    old = cursor.generation
    buffer.seek(cursor, 2)
    assert (buffer.count, cursor.size, cursor.position) == (0, 0, 2)
    assert not buffer.put(cursor, old, run_of(0, 5, 3), 30, 8)
    assert buffer.put(cursor, cursor.generation, run_of(0, 2, 3), 30, 5)
    assert [each.queue_offset for each in buffer.take(10)] == [2, 3, 4]


def test_what_was_filtered_out_is_passed_once_nothing_before_it_is_cached() -> None:
    buffer: PullBuffer[Cached] = PullBuffer()
    (cursor,) = filled(buffer, 2)
    buffer.put(cursor, 0, [], 0, 50)
    assert cursor.position == 0
    buffer.take(2)
    assert cursor.position == 50 and cursor.finish(50) == 50


def test_a_commit_goes_back_only_after_a_seek_back() -> None:
    cursor: PullCursor[Cached] = PullCursor(0)
    cursor.put(0, run_of(0, 0, 10), 100, 10)
    cursor.take(10)
    assert cursor.finish(8) == 8
    assert cursor.finish(3) == 8, "an older batch that comes later"
    cursor.seek(5)
    assert cursor.finish(5) == 5, "done up to the one that is tried again"
    assert cursor.finish(10) == 5, "no further than it has been handed out since"


kinds = st.sampled_from(["put", "take", "seek", "finish", "pause", "resume"])
steps = st.lists(st.tuples(kinds, st.integers(0, 2), st.integers(1, 30)), max_size=60)


@given(steps)
def test_whatever_happens_order_counts_and_positions_hold(plan: list[tuple[str, int, int]]) -> None:
    buffer: PullBuffer[Cached] = PullBuffer()
    cursors = [PullCursor[Cached](0) for _ in range(3)]
    expected = [0, 0, 0]
    for what, number, amount in plan:
        cursor = cursors[number]
        if what == "put":
            begin = cursor.next_offset
            buffer.put(cursor, cursor.generation, run_of(number, begin, amount), 10 * amount, begin + amount)
        elif what == "take":
            for message in buffer.take(amount):
                assert message.queue_offset == expected[message.queue], "in order, without gaps"
                expected[message.queue] += 1
        elif what == "seek":
            buffer.seek(cursor, amount)
            expected[number] = amount
        elif what == "finish":
            before = cursor.done
            assert before <= cursor.finish(amount) <= cursor.position
        elif what == "pause":
            cursor.paused = True
        else:
            cursor.paused = False
            buffer.line_up(cursor)
        assert buffer.count == sum(each.count for each in cursors)
        for each, offset in zip(cursors, expected, strict=True):
            assert each.done <= each.position <= each.next_offset
            assert each.position == offset and each.size == 10 * each.count
