from __future__ import annotations

import pytest

from aiorocket.cli.ledger import Books, Stock
from aiorocket.cli.tally import Tally, percentile

NONE: frozenset[str] = frozenset()
EMPTY = Books(Stock(sent=0, unsettled=0, retried=0, dead_records=0), NONE, NONE)
AFTER = Books(Stock(sent=3, unsettled=0, retried=3, dead_records=1), NONE, frozenset({"never"}))


def run_of_three() -> Tally:
    """One line is consumed at once, one at its second delivery, one never (three deliveries)."""
    tally = Tally(1)
    tally.sent, tally.doomed = {"at once", "later", "never"}, {"never"}
    tally.delivered("at once", 0, succeeded=True)
    tally.delivered("later", 0, succeeded=False)
    tally.delivered("never", 0, succeeded=False)
    tally.delivered("later", 1, succeeded=True)
    tally.delivered("never", 1, succeeded=False)
    tally.delivered("never", 2, succeeded=False)
    return tally


def test_a_whole_run_adds_up() -> None:
    tally = run_of_three()
    assert tally.disagreements(EMPTY, AFTER) == []
    assert (len(tally.consumed), tally.failures, tally.duplicates) == (2, 4, 0)
    assert tally.finished(EMPTY.stock, AFTER.stock) == 3
    assert AFTER.consumed == 2


@pytest.mark.parametrize(
    "after",
    [
        AFTER._replace(stock=AFTER.stock._replace(sent=2)),
        AFTER._replace(stock=AFTER.stock._replace(unsettled=1)),
        AFTER._replace(stock=AFTER.stock._replace(retried=2)),
        AFTER._replace(stock=AFTER.stock._replace(dead_records=2)),
        AFTER._replace(dead=NONE),
        AFTER._replace(dead=frozenset({"at once"})),
        AFTER._replace(dead=frozenset({"never", "at once"})),
        AFTER._replace(dead=frozenset({"never", "of nobody"})),
    ],
)
def test_one_off_anywhere_is_seen(after: Books) -> None:
    assert run_of_three().disagreements(EMPTY, after)


def test_a_message_that_was_never_delivered_is_seen() -> None:
    tally = run_of_three()
    tally.sent.add("lost")
    after = AFTER._replace(stock=AFTER.stock._replace(sent=4))
    assert tally.disagreements(EMPTY, after) == ["pending and sent against consumed and dead-lettered: 4 against 3"]


def test_a_second_run_finishes_what_the_first_left_pending_and_copies_count_once() -> None:
    before = Books(Stock(sent=3, unsettled=4, retried=2, dead_records=1), frozenset({"a", "b"}), frozenset({"c"}))
    tally = Tally(1)
    tally.sent = {"d"}
    tally.delivered("a", 0, succeeded=True)  # was consumed before the crash, only the offset was not committed
    tally.delivered("b", 0, succeeded=False)
    tally.delivered("b", 1, succeeded=False)
    tally.delivered("b", 1, succeeded=False)  # a copy: sent back again by the delivery after the crash
    tally.delivered("c", 2, succeeded=False)  # is a dead letter already, and becomes a second record there
    tally.delivered("d", 0, succeeded=True)
    after = Books(Stock(sent=4, unsettled=0, retried=4, dead_records=4), NONE, frozenset({"b", "c"}))
    assert tally.disagreements(before, after) == []
    assert (tally.duplicates, after.consumed) == (1, 2)


def test_consumed_twice_is_a_duplicate_and_not_a_message() -> None:
    tally = run_of_three()
    tally.delivered("at once", 0, succeeded=True)
    assert (tally.duplicates, len(tally.consumed)) == (1, 2)
    assert tally.disagreements(EMPTY, AFTER) == []


def test_a_failed_send_is_never_passed_over() -> None:
    tally = run_of_three()
    tally.failed_sends.append("line 4: no")
    assert "line 4: no" in tally.disagreements(EMPTY, AFTER)[0]


def test_the_rate_is_of_first_deliveries() -> None:
    tally = Tally(1)
    assert tally.rate() is None
    tally.began, tally.arrived = 10.0, 12.0
    tally.latencies.extend([0.1] * 50)
    assert tally.rate() == 25.0


def test_percentiles_are_values_that_occurred() -> None:
    assert percentile([], 50) is None
    assert percentile([7.0], 99) == 7.0
    assert percentile(list(range(100, 0, -1)), 50) == 50
    assert percentile(list(range(1, 101)), 99) == 99
