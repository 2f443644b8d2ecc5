"""The arithmetic of queue locks, without a loop."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aiorocket.client.core.lease_table import LeaseTable
from aiorocket.model import Queue

A, B, C = (Queue("t", "broker-a", number) for number in range(3))


def granted(table: LeaseTable, queues: dict[Queue, int | None], sent_at: float, now: float) -> None:
    table.answer(table.ask(), list(queues), queues, sent_at, now)


def test_a_lease_counts_from_before_its_request() -> None:
    table = LeaseTable()
    granted(table, {A: 1}, sent_at=100.0, now=103.0)
    assert table.valid(A, 129.999)
    assert not table.valid(A, 130.0)
    assert (table.next_due(), table.next_expiry(), table.epoch(A)) == (120.0, 130.0, 1)


def test_what_is_not_returned_is_lost_at_once() -> None:
    table = LeaseTable()
    granted(table, {A: 1, B: 1}, 0.0, 0.0)
    change = table.answer(table.ask(), [A, B, C], {A: 1}, 20.0, 20.5)
    assert (change.won, change.lost) == ([], [B])
    assert table.valid(A, 49.0) and not table.valid(B, 20.5)
    # B is asked for again after 10 ms, then every 3 s; C was never ours, so it is nothing to us.
    assert table.due(20.51) == [B]
    table.answer(table.ask(), [B], {}, 20.51, 20.52)
    assert table.next_due() == 23.52
    assert table.queues() == [A, B]
    assert table.epoch(B) == 1
    change = table.answer(table.ask(), [B], {B: 3}, 23.52, 23.6)
    assert (change.won, table.epoch(B)) == ([B], 3)


def test_a_silent_broker_ends_a_lease_at_the_second_that_arithmetic_predicts() -> None:
    table = LeaseTable()
    granted(table, {A: 1}, 0.0, 0.0)
    assert table.due(19.9) == []
    assert table.due(20.0) == [A]
    table.failed([A], 23.0)
    assert table.valid(A, 29.9)
    assert table.next_due() == 26.0
    assert table.expire(29.9) == []
    assert table.expire(30.0) == [A]
    assert table.expire(30.0) == []
    assert not table.valid(A, 30.0)
    assert table.next_expiry() is None


def test_an_answer_that_took_longer_than_its_lease_grants_nothing() -> None:
    table = LeaseTable()
    change = table.answer(table.ask(), [A], {A: 1}, 0.0, 30.0)
    assert change.won == [] and not table.valid(A, 30.0)
    assert table.due(30.01) == [A]


def test_an_old_answer_does_not_undo_a_newer_one() -> None:
    table = LeaseTable()
    slow, quick = table.ask(), table.ask()
    table.answer(quick, [A], {A: 2}, 5.0, 5.1)
    assert table.answer(slow, [A], {}, 0.0, 6.0) == ([], [])
    assert table.until(A) == 35.0


def test_a_release_is_not_undone_by_a_grant_on_its_way() -> None:
    table = LeaseTable()
    granted(table, {A: 1}, 0.0, 0.0)
    ticket = table.ask()
    assert table.release(A)
    assert not table.release(A)
    assert table.answer(ticket, [A], {A: 1}, 1.0, 1.1) == ([], [])
    assert not table.valid(A, 1.1) and table.epoch(A) is None


def test_a_delayed_release_ends_the_renewals_and_a_new_grant_undoes_it() -> None:
    table = LeaseTable()
    granted(table, {A: 1}, 0.0, 0.0)
    table.release_later(A)
    assert table.next_due() is None and table.due(25.0) == []
    assert table.valid(A, 29.0) and table.releasing(A)
    granted(table, {A: 1}, 10.0, 10.0)
    assert not table.releasing(A) and table.next_due() == 30.0


def test_a_renewal_on_its_way_does_not_undo_a_delayed_release() -> None:
    table = LeaseTable()
    granted(table, {A: 1}, 0.0, 0.0)
    renewal = table.ask()
    table.release_later(A)
    table.answer(renewal, [A], {A: 1}, 20.0, 20.1)
    assert table.releasing(A) and table.next_due() is None
    assert table.until(A) == 50.0


def test_a_term_ends_with_the_first_gap() -> None:
    table = LeaseTable()
    assert table.term(A) is None
    granted(table, {A: 1}, 0.0, 0.0)
    first = table.term(A)
    granted(table, {A: 1}, 20.0, 20.1)
    assert table.term(A) == first is not None
    table.expire(50.0)
    assert table.term(A) is None
    granted(table, {A: 1}, 51.0, 51.1)
    second = table.term(A)
    table.release(A)
    granted(table, {A: 1}, 52.0, 52.1)
    assert len({first, second, table.term(A), None}) == 4


def test_renewals_of_different_ages_end_up_in_one_request() -> None:
    table = LeaseTable()
    granted(table, {A: 1}, 0.0, 0.0)
    granted(table, {B: 1}, 8.0, 8.0)
    granted(table, {C: 1}, 15.0, 15.0)
    assert table.due(20.0) == [A, B]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["grant", "refuse", "fail", "release", "late", "tick"]),
            st.sets(st.sampled_from([A, B, C]), min_size=1),
            st.floats(0.0, 25.0),
            st.floats(0.0, 40.0),
        ),
        max_size=30,
    )
)
def test_no_lease_outlives_its_request_by_more_than_its_validity(
    steps: list[tuple[str, set[Queue], float, float]],
) -> None:
    """Against a model that only knows when the last request that was granted had been sent."""
    table, now = LeaseTable(), 0.0
    sent: dict[Queue, float] = {}
    for what, queues, wait, rtt in steps:
        sent_at, ticket = now, table.ask()
        if what == "release":
            for queue in queues:
                table.release(queue)
                sent.pop(queue, None)
        elif what == "fail":
            table.failed(queues, now)
        elif what in ("grant", "late"):
            now += rtt if what == "late" else 0.0
            table.answer(ticket, queues, dict.fromkeys(queues, 1), sent_at, now)
            sent.update(dict.fromkeys(queues, sent_at))
        elif what == "refuse":
            table.answer(ticket, queues, {}, sent_at, now)
            for queue in queues:
                sent.pop(queue, None)
        now += wait
        table.expire(now)
        for queue in (A, B, C):
            assert table.valid(queue, now) == (queue in sent and now < sent[queue] + 30.0)
        expiry = table.next_expiry()
        assert expiry is None or expiry > now
