"""Each checker finds the violation it is there for in a history written by hand, and none in a correct one."""

from __future__ import annotations

import json
from functools import partial

import pytest

from aiorocket.model import Queue
from aiorocket.testing import checkers
from aiorocket.testing.checkers import Checker, HistoryError, check
from aiorocket.testing.history import Event, History, What

Q = Queue("t", "broker-1", 0)
RETRY = Queue("%RETRY%g", "broker-1", 0)


def ev(time: float, what: What, key: str = "", host: str = "A", **fields: object) -> Event:
    return Event(time, host, what, key)._replace(**fields)  # type: ignore[arg-type]


def sent(time: float, key: str, offset: int, *, shard: str = "", host: str = "P") -> list[Event]:
    return [
        ev(time, "sent", key, host, until=time + 3, shard=shard),
        ev(time + 0.01, "acknowledged", key, host, queue=Q, offset=offset),
    ]


def given(time: float, key: str, offset: int, host: str = "A", queue: Queue = Q, attempt: int = 1) -> Event:
    return ev(time, "delivered", key, host, group="g", queue=queue, offset=offset, attempt=attempt)


def ended(
    time: float, key: str, offset: int, outcome: str = "ok", host: str = "A", queue: Queue = Q, attempt: int = 1
) -> Event:
    return ev(time, "finished", key, host, group="g", queue=queue, offset=offset, attempt=attempt, outcome=outcome)


def committed(time: float, offset: int) -> Event:
    return ev(time, "committed", "", "B", group="g", queue=Q, offset=offset)


def granted(time: float, client: str, until: float) -> Event:
    return ev(time, "granted", client, "B", group="g", queue=Q, until=until)


JOINED = ev(0, "joined", "t", group="g")

GOOD = [
    JOINED,
    *sent(1, "a", 0, shard="s"), *sent(2, "b", 1, shard="s"), granted(2.5, "A@1", 62.5),
    given(3, "a", 0), ended(3.1, "a", 0), committed(3.2, 1), given(3.5, "b", 1), ended(4, "b", 1), committed(5, 2),
]  # fmt: skip


BAD: dict[str, tuple[Checker, list[Event]]] = {
    "a send that never ends": (checkers.sends_end, [ev(1, "sent", "a", until=4)]),
    "a send that ends too late": (
        checkers.sends_end, [ev(1, "sent", "a", until=4), ev(4.5, "unknown", "a")]
    ),
    "a send that ends twice": (
        checkers.sends_end, [*sent(1, "a", 0), ev(2, "rejected", "a", "P")]
    ),
    "a delivery of what nobody sent": (checkers.nothing_invented, [given(1, "ghost", 0)]),
    "a delivery of what was rejected for certain": (
        checkers.nothing_invented, [ev(1, "sent", "a"), ev(2, "rejected", "a"), given(3, "a", 0)]
    ),
    "an offset acknowledged twice": (checkers.offsets_stable, [*sent(1, "a", 0), *sent(2, "b", 0)]),
    "another message at the acknowledged offset": (checkers.offsets_stable, [*sent(1, "a", 0), given(3, "b", 0)]),
    "a message nobody got": (checkers.no_message_lost, [JOINED, *sent(1, "a", 0)]),
    "a message whose listener did not end": (
        checkers.no_message_lost, [JOINED, *sent(1, "a", 0), given(2, "a", 0), ended(3, "a", 0, "interrupted")]
    ),
    "a message that failed and never came again": (
        checkers.no_message_lost, [JOINED, *sent(1, "a", 0), given(2, "a", 0), ended(3, "a", 0, "retry")]
    ),
    "a message overtaken in its queue": (checkers.order_per_queue, [given(1, "b", 1), given(2, "a", 0)]),
    "a duplicate out of the blue": (
        checkers.duplicates_explained, [JOINED, given(1000, "a", 0), ended(1000, "a", 0), given(1001, "a", 0)]
    ),
    "a commit that passes a running listener": (
        checkers.commits_never_ahead, [*sent(1, "a", 0), given(2, "a", 0), committed(3, 1), ended(4, "a", 0)]
    ),
    "a commit that passes what was never delivered": (
        checkers.commits_never_ahead,
        [*sent(1, "a", 0), *sent(1, "b", 1), given(2, "a", 0), ended(2, "a", 0), committed(3, 2)],
    ),
    "a commit that passes an interrupted listener": (
        checkers.commits_never_ahead, [given(2, "a", 0), ended(3, "a", 0, "interrupted"), committed(3, 1)]
    ),
    "a dead letter with attempts left": (
        partial(checkers.dead_letters_exact, group="g", max_attempts=3),
        [given(1, "a", 0), ended(1, "a", 0, "retry"), ev(2, "dead", "a", group="g")],
    ),
    "an exhausted message that is nowhere": (
        partial(checkers.dead_letters_exact, group="g", max_attempts=2),
        [given(1, "a", 0, queue=RETRY, attempt=2), ended(1, "a", 0, "retry", queue=RETRY, attempt=2)],
    ),
    "a lease granted while another is valid": (
        checkers.leases_exclusive, [granted(0, "c1", 30), granted(20, "c1", 50), granted(49, "c2", 79)]
    ),
    "a lease released by somebody else": (
        checkers.leases_exclusive,
        [granted(0, "c1", 30), ev(1, "released", "c2", group="g", queue=Q), granted(2, "c2", 32)],
    ),
    "an orderly message before the one in front ended": (
        partial(checkers.orderly, group="g"),
        [*sent(1, "a", 0), *sent(1, "b", 1), given(2, "a", 0), ended(3, "a", 0, "retry"), given(4, "b", 1)],
    ),
    "a sharding key out of order": (
        partial(checkers.orderly, group="g", by="shard"),
        [*sent(1, "a", 0, shard="s"), *sent(1, "x", 1), *sent(1, "b", 2, shard="s"), given(2, "b", 2)],
    ),
    "two listeners in one orderly queue": (
        partial(checkers.one_at_a_time, group="g"),
        [given(1, "a", 0), given(1.5, "a", 0, "B"), ended(2, "a", 0), ended(2, "a", 0, host="B")],
    ),
    "a call when the lease had ended": (
        partial(checkers.leases_in_time, group="g"), [granted(0, "A@1", 60), given(30.5, "a", 0)]
    ),
    "a call under somebody else's lease": (
        partial(checkers.leases_in_time, group="g"), [granted(0, "B@1", 60), given(1, "a", 0)]
    ),
    "a message stored for one attempt too many": (
        partial(checkers.attempts_kept, group="g", max_attempts=2), [given(1, "a", 0, attempt=3)]
    ),
    "a message kept back although nothing stood between it and the broker": (
        partial(checkers.attempts_kept, group="g", max_attempts=2, troubled=[(40, 50)]),
        [given(1, "a", 0), ended(2, "a", 0, "retry"), given(7, "a", 0, attempt=2)],
    ),
    "an attempt more that no failure asked for": (
        partial(checkers.attempts_kept, group="g", max_attempts=2, troubled=[(0, 9)]),
        [given(1, "a", 0), ended(2, "a", 0), given(7, "a", 0, attempt=2)],
    ),
    "an attempt more for what failed at somebody else": (
        partial(checkers.attempts_kept, group="g", max_attempts=2, troubled=[(0, 9)]),
        [given(1, "a", 0), ended(2, "a", 0, "retry"), given(7, "a", 0, "B", attempt=2)],
    ),
    "an attempt more for what failed in the process before": (
        partial(checkers.attempts_kept, group="g", max_attempts=2, troubled=[(0, 9)]),
        [given(1, "a", 0), ended(2, "a", 0, "retry"), ev(3, "joined", "t"), given(7, "a", 0, attempt=2)],
    ),
    "a call that outlasts its lease": (
        partial(checkers.calls_end_in_time, group="g"),
        [granted(0, "A@1", 60), given(29, "a", 0), ended(31, "a", 0, "interrupted")],
    ),
    "an orderly position that goes back": (
        partial(checkers.commits_never_back, group="g"), [committed(1, 5), committed(2, 4)]
    ),
    "a message that comes again after the power failed": (
        partial(checkers.settled_for_good, since=100.0), [given(1, "a", 0), given(101, "a", 0)]
    ),
    "a message of a queue that was given up": (
        checkers.no_strays, [given(1, "a", 0), ev(1, "stray", "a", group="g", queue=Q, offset=0)]
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_checker_catches(what: str) -> None:
    checker, events = BAD[what]
    found = checker(History(events=events))
    assert found, what
    assert all(violation.text and violation.rule for violation in found)


@pytest.mark.parametrize("what", BAD)
def test_the_same_checker_accepts_a_good_history(what: str) -> None:
    checker, _ = BAD[what]
    assert checker(History(events=GOOD)) == []


EXCUSED: dict[str, tuple[Checker, list[Event]]] = {
    "a send of a killed host": (checkers.sends_end, [ev(1, "sent", "a", until=4), ev(2, "killed", "kill -9")]),
    "an unknown send that was stored": (
        checkers.nothing_invented, [ev(1, "sent", "a"), ev(4, "unknown", "a"), given(5, "a", 0)]
    ),
    "a duplicate after a member left": (
        checkers.duplicates_explained, [given(1000, "a", 0), ev(1001, "left", host="B"), given(1002, "a", 0)]
    ),
    "repeats from the committed position": (
        checkers.order_per_queue, [given(1, "a", 0), given(2, "b", 1), given(3, "a", 0, "B"), given(4, "b", 1, "B")]
    ),
    "a lost message that is a dead letter": (
        checkers.no_message_lost, [JOINED, *sent(1, "a", 0), ev(9, "dead", "a", group="g")]
    ),
    "a takeover at the second the lease ends": (
        checkers.leases_exclusive, [granted(0, "c1", 30), granted(30, "c2", 60)]
    ),
    "a takeover after an unlock": (
        checkers.leases_exclusive,
        [granted(0, "c1", 30), ev(5, "released", "c1", group="g", queue=Q), granted(5, "c2", 35)],
    ),
    "a takeover from a killed host": (
        partial(checkers.one_at_a_time, group="g"),
        [given(1, "a", 0), ev(2, "killed", "power cut"), given(62, "a", 0, "B"), ended(63, "a", 0, host="B")],
    ),
    "a message that is stored twice, each at its place": (
        checkers.offsets_stable, [*sent(1, "a", 0), given(2, "a", 0), given(3, "a", 1), given(4, "a", 0, "B")]
    ),
    "a commit over what failed and was stored again": (
        checkers.commits_never_ahead,
        [*sent(1, "a", 0), given(2, "a", 0), ended(3, "a", 0, "retry"), committed(4, 1)],
    ),
    "a commit over an offset that holds nobody's message": (
        checkers.commits_never_ahead,
        [*sent(1, "a", 0), *sent(1, "b", 2), given(2, "a", 0), ended(2, "a", 0), committed(3, 2)],
    ),
    "a dead letter that was one before its last attempt, as its listener said": (
        partial(checkers.dead_letters_exact, group="g", max_attempts=3),
        [given(1, "a", 0), ended(1, "a", 0, "dead"), ev(2, "dead", "a", group="g"), ev(2, "dead", "x", group="other")],
    ),
    "an orderly message again, after the one behind it": (
        partial(checkers.orderly, group="g"),
        [
            *sent(1, "a", 0), *sent(1, "b", 1), given(2, "a", 0), ended(3, "a", 0), given(4, "b", 1),
            given(5, "a", 0, "B"), ended(5, "a", 0, host="B"), given(6, "b", 1, "B"),
        ],
    ),
    "an orderly message behind one that used up its attempts": (
        partial(checkers.orderly, group="g", max_attempts=2),
        [
            *sent(1, "a", 0), *sent(1, "b", 1), given(2, "a", 0, attempt=2), ended(3, "a", 0, "retry", attempt=2),
            given(4, "b", 1),
        ],
    ),
    "a call in the last second of a lease, and one after its renewal": (
        partial(checkers.leases_in_time, group="g"),
        [granted(0, "A@1", 60), given(29.9, "a", 0), granted(35, "A@1", 95), given(60, "b", 1)],
    ),
    "the last attempt": (partial(checkers.attempts_kept, group="g", max_attempts=2), [given(1, "a", 0, attempt=2)]),
    "attempts more while the broker is out of reach, and the first again at another member": (
        partial(checkers.attempts_kept, group="g", max_attempts=2, troubled=[(5, 8)]),
        [
            given(1, "a", 0), ended(2, "a", 0, "retry"), given(7, "a", 0, attempt=2),
            ended(8, "a", 0, "retry", attempt=2), given(13, "a", 0, attempt=3), given(40, "a", 0, "B"),
        ],
    ),
    "a call that goes on under a renewed lease": (
        partial(checkers.calls_end_in_time, group="g"),
        [granted(0, "A@1", 60), given(1, "a", 0), granted(20, "A@1", 80), ended(50.4, "a", 0)],
    ),
    "a position that goes back with a broker that died": (
        partial(checkers.commits_never_back, group="g"),
        [committed(1, 5), ev(2, "killed", "power cut", "B"), committed(3, 4), committed(4, 4)],
    ),
    "what is delivered again long before the power fails": (
        partial(checkers.settled_for_good, since=100.0), [given(1, "a", 0), given(99, "a", 0, "B"), ended(200, "a", 0)]
    ),
    "a call that goes on when its queue is given up": (
        checkers.no_strays, [given(1, "a", 0), ev(2, "left"), ended(9, "a", 0)]
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", EXCUSED)
def test_what_is_allowed_is_not_reported(what: str) -> None:
    checker, events = EXCUSED[what]
    assert checker(History(events=events)) == []


def test_every_checker_has_a_history_that_breaks_it_and_an_odd_one_that_does_not() -> None:
    no_checkers = {"CLUSTER", "HistoryError", "Violation", "check"}

    def names(histories: dict[str, tuple[Checker, list[Event]]]) -> set[str]:
        return {getattr(checker, "func", checker).__name__ for checker, _ in histories.values()}

    assert names(BAD) == names(EXCUSED) == set(checkers.__all__) - no_checkers


def test_a_killed_listener_is_still_unfinished_for_the_commit() -> None:
    events = [given(1, "a", 0), ev(2, "killed", "kill -9"), committed(3, 1)]
    assert len(checkers.commits_never_ahead(History(events=events))) == 1


def test_an_error_shows_the_rule_the_events_and_the_fault_before_them() -> None:
    history = History(events=[JOINED, *sent(1, "lost", 0), ev(2, "fault", "a slow disk", "B"), given(3, "lost", 0)])
    with pytest.raises(HistoryError) as caught:
        check(history, checkers.CLUSTER)
    text = str(caught.value)
    assert "no_message_lost: lost was acknowledged and group g never finished it" in text
    assert "a slow disk" in text
    assert "t/broker-1/0@0" in text
    assert [violation.rule for violation in caught.value.violations] == ["no_message_lost"]


def test_a_history_is_json_lines_in_jepsens_shape() -> None:
    lines = [json.loads(line) for line in History(events=GOOD).lines()]
    assert [line["op"] for line in lines[:3]] == ["joined", "sent", "acknowledged"]
    assert lines[1]["outcome"] == "invoke"
    assert lines[2] == {
        "t": 1.01, "proc": "P", "op": "acknowledged", "key": "a", "value": {"queue": list(Q), "offset": 0},
        "outcome": "ok",
    }  # fmt: skip


def test_a_history_without_a_clock_says_so() -> None:
    with pytest.raises(RuntimeError, match="no clock"):
        History().add("sent", "P", "a")
