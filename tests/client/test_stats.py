"""The windows of the statistics, against sums worked out by hand from RocketMQ's StatsItem."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aiorocket.client.core.stats import SAMPLE_INTERVAL, ConsumeStats, ConsumeStatus, Snapshot, StatsItem


def test_nothing_is_known_before_the_first_sample() -> None:
    stats = ConsumeStats()
    stats.consumed("t", 5, 1, 12.0)
    assert stats.status("t") == ConsumeStatus()
    assert stats.status("other") == ConsumeStatus()


def test_the_first_sample_assumes_a_zero_one_interval_earlier() -> None:
    item = StatsItem()
    item.add(40, 8)
    item.sample(1000.0)
    assert item.minute == Snapshot(40, 4.0, 5.0, 8)
    assert item.hour == Snapshot(40, 40 / 600, 5.0, 8)
    assert item.day == Snapshot(40, 40 / 3600, 5.0, 8)


def test_a_minute_is_the_difference_over_seven_snapshots() -> None:
    item = StatsItem()
    for tick in range(20):
        item.add(tick)
        item.sample(10.0 * tick)
    # Snapshots of ticks 13 to 19: what was added after the one of tick 13.
    assert item.minute == Snapshot(sum(range(14, 20)), sum(range(14, 20)) / 60, sum(range(14, 20)) / 6, 6)


def test_an_hour_and_a_day_have_their_own_pace() -> None:
    item = StatsItem()
    seconds = 0.0
    while seconds <= 30 * 3600:
        item.add(10)
        item.sample(seconds)
        seconds += SAMPLE_INTERVAL
    assert (item.hour.sum, item.hour.tps) == (3600.0, 1.0)
    assert (item.day.sum, item.day.tps) == (86_400.0, 1.0)
    assert item.minute.times == 6


def test_a_late_sample_does_not_shift_the_others() -> None:
    item = StatsItem()
    for seconds in (0.0, 10.0, 23.0, 30.0, 40.0, 200.0, 210.0):
        item.add(1)
        item.sample(seconds)
    assert item.minute == Snapshot(6.0, 6 / 210, 1.0, 6)


def test_the_status_of_a_topic() -> None:
    stats = ConsumeStats()
    stats.pulled("t", 30, 4.0)
    stats.pulled("t", 10, 8.0)
    stats.consumed("t", 30, 0, 90.0, 30)
    stats.consumed("t", 5, 5, 20.0)
    stats.consumed("%RETRY%g", 5, 0, 1.0)
    stats.sample(500.0)
    status = stats.status("t")
    assert status == ConsumeStatus(6.0, 4.0, 110 / 31, 3.5, 0.5, 5)
    # Two minutes of rest: the average of the listener's time is the hour's then, all others are of the minute.
    for tick in range(1, 13):
        stats.sample(500.0 + 10 * tick)
    assert stats.status("t") == ConsumeStatus(0.0, 0.0, 110 / 31, 0.0, 0.0, 5)


def test_who_counts_in_runs_is_asked_before_a_sample() -> None:
    stats = ConsumeStats()
    asked: list[float] = []
    stats.sources.append(asked.append)
    stats.sources.append(lambda now: stats.consumed("t", 1, 0, 1.0))
    stats.sample(10.0)
    assert asked == [10.0]
    assert stats.status("t").consume_ok_tps == 0.1


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=400))
def test_the_minute_is_what_was_added_in_it(values: list[int]) -> None:
    item = StatsItem()
    for tick, value in enumerate(values):
        item.add(value)
        item.sample(10.0 * tick)
    kept = values if len(values) < 7 else values[-6:]
    assert item.minute.sum == sum(kept)
    assert item.minute.tps == item.minute.sum / (10 * len(kept))
