from __future__ import annotations

import pytest

from aiorocket.cli.tally import Stock, Tally, percentile

EMPTY = Stock(sent=0, open=0, retried=0, waiting=0, dead=0)


def run_of_three() -> Tally:
    """Line 0 is consumed at once, line 1 at its second delivery, line 2 never."""
    tally = Tally(1)
    tally.sent, tally.doomed = 3, 1
    tally.delivered(("t", 0, 0), is_retry=False, succeeded=True)
    tally.delivered(("t", 0, 1), is_retry=False, succeeded=False)
    tally.delivered(("t", 0, 2), is_retry=False, succeeded=False)
    tally.delivered(("r", 0, 0), is_retry=True, succeeded=True)
    tally.delivered(("r", 0, 1), is_retry=True, succeeded=False)
    return tally


AFTER = Stock(sent=3, open=0, retried=2, waiting=0, dead=1)


def test_a_whole_run_adds_up() -> None:
    tally = run_of_three()
    assert tally.disagreements(EMPTY, AFTER) == []
    assert (tally.consumed, tally.duplicates, tally.finished(EMPTY, AFTER)) == (2, 0, 3)


@pytest.mark.parametrize(
    "after",
    [
        AFTER._replace(sent=2),
        AFTER._replace(open=1),
        AFTER._replace(waiting=1),
        AFTER._replace(retried=1),
        AFTER._replace(dead=0),
        AFTER._replace(dead=2),
    ],
)
def test_one_off_anywhere_is_seen(after: Stock) -> None:
    assert run_of_three().disagreements(EMPTY, after)


def test_a_message_that_was_never_delivered_is_seen() -> None:
    tally = run_of_three()
    tally.sent += 1
    assert any("first deliveries" in text for text in tally.disagreements(EMPTY, AFTER._replace(sent=4)))


def test_a_second_run_counts_what_the_first_left_pending() -> None:
    before = Stock(sent=3, open=1, retried=2, waiting=1, dead=0)
    tally = Tally(1)
    tally.sent = 1
    tally.delivered(("t", 0, 2), is_retry=False, succeeded=True)
    tally.delivered(("r", 0, 1), is_retry=True, succeeded=False)
    tally.delivered(("t", 0, 3), is_retry=False, succeeded=True)
    assert tally.disagreements(before, Stock(sent=4, open=0, retried=2, waiting=0, dead=1)) == []


def test_a_delivery_that_came_twice_is_a_duplicate_and_not_a_message() -> None:
    tally = run_of_three()
    tally.delivered(("t", 0, 0), is_retry=False, succeeded=True)
    assert tally.duplicates == 1
    assert tally.disagreements(EMPTY, AFTER) == []


def test_a_failed_send_is_never_passed_over() -> None:
    tally = run_of_three()
    tally.failed_sends.append("line 4: no")
    assert "line 4: no" in tally.disagreements(EMPTY, AFTER)[0]


def test_percentiles_are_values_that_occurred() -> None:
    assert percentile([], 50) is None
    assert percentile([7.0], 99) == 7.0
    assert percentile(list(range(100, 0, -1)), 50) == 50
    assert percentile(list(range(1, 101)), 99) == 99
