"""A broker process killed under load, judged by what its clients saw (crash.py)."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from tests.harness.crash import run
from tests.harness.crash_broker import POINTS
from tests.harness.crash_history import GROUPS, check
from tests.harness.soak import GROWTH, Round, slower
from tests.harness.soak import run as soak

pytestmark = [pytest.mark.harness, pytest.mark.timeout(600)]


@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_a_broker_that_dies_fifty_times(flush: str, tmp_path: Path) -> None:
    assert await run(50, tmp_path, flush, seed=50, clocks=flush == "async", quiet=True) == []


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
    whole += [["got", body, group, 0, offset, 60] for group in GROUPS for offset, body in enumerate("ab")]
    assert check(whole) == []
    assert "never reached popping" in check(whole[:-1])[0]
    assert "was refused" in check([*whole, ["got", "c", "concurrent", 0, 2, 60]])[0]
    assert "is a and b" in check([*whole, ["got", "b", "concurrent", 0, 0, 60]])[0]
    assert "is stored at" in check([*whole, ["got", "b", "concurrent", 0, 7, 60]])[0]
    late = [["ok", "d", 0, 3], *(["got", "d", group, 0, 3, 60] for group in GROUPS)]
    assert "came first" in check([*whole, *late])[0]
    assert "never sent" in check([*whole, ["got", "x", "concurrent", 1, 0, 60]])[0]
    early = [row if row[0] != "got" else [*row[:-1], 40] for row in whole]
    assert "before its time" in check(early)[0] and check([*early, ["clock", "", 3600]]) == []
    again = ["got", "a", "popping", 5, 5, 60]
    assert check([*whole, again]) == []
    assert "popped again" in check([*whole, ["acked", "a"], again])[0]
    assert check([*whole, ["acked", "a"], again, ["clock", "", 3600]]) == []
    assert check([*whole, again, ["acked", "a"], again]) == []
