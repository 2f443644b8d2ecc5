"""What a batch reads and how it is shared out: arithmetic, tried on many inputs."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiorocket.model import Queue
from aiorocket.spark.options import ConnectionOptions, SourceOptions
from aiorocket.spark.planner import MERGE_ROWS, SPLIT_ROWS, QueueRange, admit, plan

CONNECTION = ConnectionOptions(name_servers=("127.0.0.1:9876",))


def options(
    min_partitions: int | None = None, max_partitions: int | None = None, rows_per_partition: int | None = None
) -> SourceOptions:
    return SourceOptions(
        connection=CONNECTION, topics=("t",), min_partitions=min_partitions, max_partitions=max_partitions,
        rows_per_partition=rows_per_partition,
    )  # fmt: skip


def queue(number: int) -> Queue:
    return Queue("t", f"broker-{number % 3}", number)


def ranges(*sizes: int) -> list[QueueRange]:
    return [QueueRange(queue(number), number * 7, number * 7 + size) for number, size in enumerate(sizes)]


SIZES = st.lists(st.one_of(st.integers(0, 50), st.integers(0, 3 * SPLIT_ROWS)), max_size=12)
MAYBE = st.one_of(st.none(), st.integers(1, 40))


def rows(part: tuple[QueueRange, ...]) -> int:
    return sum(each.end - each.begin for each in part)


@given(SIZES, st.integers(1, 8), MAYBE, MAYBE, st.one_of(st.none(), st.integers(20_000, 5_000_000)))
def test_every_row_is_planned_once(
    sizes: list[int], cores: int, least: int | None, most: int | None, each: int | None
) -> None:
    if least is not None and most is not None:
        least, most = min(least, most), max(least, most)
    wanted = ranges(*sizes)
    planned = plan(wanted, cores=cores, options=options(least, most, each))
    pieces: dict[Queue, list[QueueRange]] = defaultdict(list)
    for part in planned:
        assert part
        for piece in part:
            assert piece.begin < piece.end
            pieces[piece.queue].append(piece)
    for begin_queue, begin, end in wanted:
        at = begin
        for piece in pieces[begin_queue]:
            assert piece.begin == at
            at = piece.end
        assert at == end
    total = sum(sizes)
    if most is not None:
        assert len(planned) <= most
    if least is not None:
        assert len(planned) >= min(least, total)
    if each is not None and most is None:
        assert all(rows(part) <= each for part in planned)


def test_few_rows_of_many_queues_are_one_task() -> None:
    planned = plan(ranges(*[1] * 32), cores=4, options=options())
    assert len(planned) == 1
    assert len(planned[0]) == 32


def test_a_core_each_once_there_is_enough() -> None:
    assert len(plan(ranges(MERGE_ROWS, MERGE_ROWS - 1), cores=4, options=options())) == 1
    assert len(plan(ranges(MERGE_ROWS * 3), cores=4, options=options())) == 3
    assert len(plan(ranges(MERGE_ROWS * 100), cores=4, options=options())) == 4


def test_long_queues_are_split() -> None:
    assert len(plan(ranges(SPLIT_ROWS * 10), cores=2, options=options())) == 10
    assert len(plan(ranges(SPLIT_ROWS * 10), cores=2, options=options(), split=SPLIT_ROWS * 4)) == 3
    # However few cores the driver has, a topic of millions has work for a cluster.
    assert len(plan(ranges(8_000_000), cores=1, options=options())) == 16


def test_queues_of_about_the_same_length_stay_whole() -> None:
    planned = plan(ranges(20_000, 20_400, 19_900, 20_100), cores=4, options=options())
    assert [len(part) for part in planned] == [1, 1, 1, 1]


def test_the_options_say_how_many() -> None:
    wanted = ranges(1000, 1000)
    assert len(plan(wanted, cores=4, options=options(min_partitions=5))) == 5
    assert len(plan(wanted, cores=4, options=options(rows_per_partition=300))) == 7
    assert len(plan(wanted, cores=4, options=options(rows_per_partition=300, max_partitions=3))) == 3
    assert len(plan(ranges(2), cores=4, options=options(min_partitions=5))) == 2


def test_nothing_to_read_is_no_partition() -> None:
    assert plan([], cores=4, options=options(min_partitions=3)) == []
    assert plan(ranges(0, 0), cores=4, options=options()) == []


BACKLOGS = st.dictionaries(st.integers(0, 20).map(queue), st.tuples(st.integers(0, 10**9), st.integers(0, 10**6)))


@given(BACKLOGS, st.integers(1, 2 * 10**6))
def test_admission_keeps_its_bounds(backlogs: dict[Queue, tuple[int, int]], most: int) -> None:
    start = {each: begin for each, (begin, _) in backlogs.items()}
    latest = {each: begin + size for each, (begin, size) in backlogs.items()}
    ends = admit(start, latest, most)
    assert ends.keys() == latest.keys()
    assert all(start[each] <= ends[each] <= latest[each] for each in ends)
    waiting = [each for each in latest if latest[each] > start[each]]
    given_rows = sum(ends[each] - start[each] for each in ends)
    assert given_rows == min(most, sum(latest.values()) - sum(start.values()))
    if most >= len(waiting):
        assert all(ends[each] > start[each] for each in waiting)


@pytest.mark.parametrize("most", [1, 3, 7])
def test_queues_take_turns_when_the_cap_is_small(most: int) -> None:
    start = {queue(number): 0 for number in range(10)}
    latest = dict.fromkeys(start, 1_000)
    for _ in range(10):
        start = admit(start, latest, most)
    assert sum(start.values()) == 10 * most
    assert max(start.values()) - min(start.values()) <= 1


def test_admission_is_in_proportion() -> None:
    start = {queue(0): 0, queue(1): 100}
    ends = admit(start, {queue(0): 900, queue(1): 200}, 100)
    assert ends[queue(0)] == pytest.approx(90, abs=1)
    assert sum(ends.values()) == 200


def test_a_queue_behind_its_start_or_without_one_takes_no_rows() -> None:
    start = {queue(0): 50, queue(1): 0}
    latest = {queue(0): 10, queue(1): 100, queue(2): 7}
    for most in (10, 1000):
        assert admit(start, latest, most) == {queue(0): 50, queue(1): min(most, 100), queue(2): 7}
