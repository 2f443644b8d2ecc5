"""A broker process killed under load, judged by what its clients saw (crash.py)."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from tests.harness.crash import run
from tests.harness.crash_broker import POINTS
from tests.harness.crash_history import GROUPS, check, taken_over
from tests.harness.soak import GROWTH, Round, slower
from tests.harness.soak import run as soak

pytestmark = [pytest.mark.harness, pytest.mark.timeout(600)]


@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_a_broker_that_dies_fifty_times(flush: str, tmp_path: Path) -> None:
    assert await run(50, tmp_path, flush, seed=50, clocks=flush == "async", quiet=True) == []
    assert "queues taken over" in (tmp_path / "rounds.jsonl").read_text()


async def test_a_broker_that_nobody_kills_keeps_its_memory(tmp_path: Path) -> None:
    rounds = await soak(0.3, tmp_path, of_a_round=0.1, quiet=True)
    assert [line for one in rounds for line in one.broken] == [] and len(rounds) > 1
    assert max(one.rss for one in rounds) < rounds[0].rss + GROWTH
    assert max(one.files for one in rounds) < rounds[0].files + 100


@pytest.mark.parametrize(
    ("medians", "times"),
    [
        ([], 1.0),
        ([1, 9], 1.0),  # too few to say anything
        ([2, 2, 2], 1.0),
        ([2, 50, 2, 3, 2, 2, 2, 60, 2], 1.0),  # one slow round of others' work
        ([1, 1, 2, 3, 4, 5, 6, 7], 6.5),
    ],
)
def test_a_soak_says_how_much_slower_sends_became(medians: list[float], times: float) -> None:
    assert slower([Round(5, 1000, 40, 100, each, 9 * each, 100, []) for each in medians]) == times


def test_every_place_to_die_at_exists() -> None:
    for point in POINTS.values():
        module, _, path = point.function.partition(":")
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
        assert callable(found)


def test_the_checker_sees_what_is_broken() -> None:
    whole: list[list[Any]] = [["due", "b", 50], ["ok", "a", 0, 0], ["once", "b"], ["ok", "b", 0, 1], ["fail", "c"]]
    whole += [["got", body, "concurrent", 0, offset, 60, "x"] for offset, body in enumerate("ab")]
    whole += [["got", body, "in-order", 0, at, 60, "x", at, at, at + 0.5] for at, body in enumerate("ab")]
    whole += [["got", body, "popping", 0, offset, 60] for offset, body in enumerate("ab")]
    assert check(whole) == []
    assert "never reached popping" in check(whole[:-1])[0]
    assert "was refused" in check([*whole, ["got", "c", "concurrent", 0, 2, 60]])[0]
    assert "is a and b" in check([*whole, ["got", "b", "concurrent", 0, 0, 60]])[0]
    assert "is stored at" in check([*whole, ["got", "b", "concurrent", 0, 7, 60]])[0]
    late: list[list[Any]] = [["ok", "d", 0, 3], *(["got", "d", group, 0, 3, 60] for group in GROUPS)]
    late[2] += ["x", 2, 2, 2.5]
    assert "came first" in check([*whole, *late])[0]
    assert "never sent" in check([*whole, ["got", "x", "concurrent", 1, 0, 60]])[0]
    early = [[*row[:5], 40, *row[6:]] if row[0] == "got" else row for row in whole]
    assert "before its time" in check(early)[0] and check([*early, ["clock", "", 3600]]) == []
    again = ["got", "a", "popping", 5, 5, 60]
    assert check([*whole, again]) == []
    assert "popped again" in check([*whole, ["acked", "a"], again])[0]
    assert check([*whole, ["acked", "a"], again, ["clock", "", 3600]]) == []
    assert check([*whole, again, ["acked", "a"], again]) == []


def _called(
    owner: str, offset: int, began: float, ended: float, *, looked: float | None = None, what: str = "got"
) -> Any:
    return [what, f"m{offset}", "in-order", 3, offset, 0, owner, began if looked is None else looked, began, ended]


def test_the_checker_sees_two_owners_of_a_queue() -> None:
    sent: list[list[Any]] = [["ok", f"m{offset}", None, None] for offset in range(3)]
    sent += [["got", f"m{offset}", group, 3, offset, 0] for offset in range(3) for group in ("concurrent", "popping")]
    mine = [_called("member", offset, offset, offset + 0.9) for offset in range(3)]
    assert check([*sent, *mine]) == []
    assert check([*sent, *mine, _called("other", 2, 2.9, 3.1)]) == []
    assert check([*sent, *mine, _called("other", 1, 2.5, 2.6)]) == [
        "queue 3: member had offset 2 still when other got 1"
    ]
    assert check([*sent, *mine, _called("other", 2, 2.5, 2.6, what="cut")]) != []
    assert "m2 was acknowledged" in check([*sent, *mine[:2], _called("member", 2, 2, 2.9, what="cut")])[0]
    # Its process stood still in the call, or between the look at the lease and the call.
    still = _called("member", 0, 0, 9), _called("member", 0, 8.5, 8.6, looked=0.1)
    others = [_called("other", offset, 5 + offset, 5.9 + offset) for offset in range(4)]
    assert check([*sent, *still, *others[:3]]) == []
    assert len(check([*sent, *still, *others[:3], _called("third", 2, 7.5, 7.6)])) == 1


def test_the_checker_sees_a_position_that_goes_back() -> None:
    rows: list[list[Any]] = [["position", "", 1, 0, 5], ["position", "", 1, 1, 2], ["position", "", 1, 0, 7]]
    assert check([*rows, ["position", "", 3, 0, 6]]) == []  # a broker that died may have forgotten some
    assert "from 7 back to 6" in check([*rows, ["position", "", 1, 0, 6]])[0]


def test_who_takes_over_is_counted() -> None:
    calls = [_called("member", 0, 0, 0.1), _called("other", 0, 5, 5.1), _called("member", 1, 11, 11.1)]
    assert taken_over([*calls, ["stopped", "", 1, 10]]) == 1
    assert taken_over([*calls, ["stopped", "", 5.5, 10]]) == 0  # nobody went on with it
    assert taken_over([*calls[1:], ["stopped", "", 1, 10]]) == 0  # it was another's
