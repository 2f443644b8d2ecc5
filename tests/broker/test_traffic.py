"""Totals and their growth, without a clock."""

from __future__ import annotations

from aiorocket.broker.core.traffic import SAMPLE, TOPIC_PUT_NUMS, Traffic

T = (TOPIC_PUT_NUMS, "T")


def steady(seconds: int, each: int, *, day: int = 1) -> tuple[Traffic, float]:
    """``each`` messages between two samples, for so long."""
    traffic, stored, now = Traffic(0.0, {"T": 1000}, day), 1000, 0.0
    while now < seconds:
        now += SAMPLE
        stored += each
        traffic.count_stored({"T": stored})
        traffic.sample(now, day)
    return traffic, now


def test_what_was_there_before_the_start_is_not_counted() -> None:
    traffic = Traffic(0.0, {"T": 1000}, 1)
    assert traffic.count_stored({"T": 1000}) == {} and traffic.grown(T, 5.0) is None
    assert traffic.count_stored({"T": 1007, "U": 2}) == {"T": 7, "U": 2}
    assert traffic.totals == {T: 7, (TOPIC_PUT_NUMS, "U"): 2}


def test_a_topic_that_was_deleted_and_made_anew_counts_on() -> None:
    traffic = Traffic(0.0, {"T": 10}, 1)
    traffic.count_stored({"T": 15})
    traffic.count_stored({"T": 3})
    assert traffic.totals[T] == 8


def test_of_a_topic_that_was_deleted_nothing_is_kept() -> None:
    traffic = Traffic(0.0, {}, 1)
    for number in range(100):
        traffic.count_stored({"T": number, f"made-up-{number}": 1})
        traffic.sample(number * SAMPLE, number // 10)
    traffic.count_stored({"T": 100})
    assert set(traffic.totals) == set(traffic.this_morning) == set(traffic._samples) == {T}


def test_minute_hour_and_day_of_a_steady_stream() -> None:
    for seconds, counts in (
        (50, (500, 500, 500)),
        (300, (600, 3000, 3000)),
        (7200, (600, 36_000, 72_000)),
        (2 * 86_400, (600, 36_000, 864_000)),
    ):
        traffic, now = steady(seconds, 100)
        grown = traffic.grown(T, now)
        assert grown is not None and tuple(each.total for each in grown) == counts, seconds
        assert {round(each.per_second, 6) for each in grown} == {10.0}
        assert traffic.rates(T, now) == (10.0, 10.0, 10.0)


def test_the_newest_seconds_count_at_once() -> None:
    traffic, now = steady(3600, 0)
    traffic.add(T, 30)
    grown = traffic.grown(T, now + 5)
    assert grown is not None and [each.total for each in grown] == [30, 30, 30]
    assert traffic.rates(T, now + 5)[0] == 6.0


def test_what_rests_for_a_day_costs_no_more_samples_and_counts_again_when_it_grows() -> None:
    traffic, now = steady(100, 10)
    for _ in range(2 * 8640):
        now += SAMPLE
        traffic.sample(now, 1)
    grown = traffic.grown(T, now)
    assert grown is not None and [each.total for each in grown] == [0, 0, 0]
    traffic.count_stored({"T": 2000})
    traffic.sample(now + SAMPLE, 1)
    grown = traffic.grown(T, now + SAMPLE)
    assert grown is not None and [each.total for each in grown] == [900, 900, 900]


def test_mornings() -> None:
    traffic, now = steady(100, 10)
    assert traffic.this_morning == traffic.yesterday_morning == {}
    traffic.sample(now + 10, 2)
    traffic.add(T, 5)
    assert traffic.this_morning == {T: 100} and traffic.totals[T] == 105
    traffic.sample(now + 20, 3)
    assert traffic.yesterday_morning == {T: 100} and traffic.this_morning == {T: 105}
