"""A broker process killed under load, judged by what its clients saw (crash.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.crash import check, run

pytestmark = [pytest.mark.harness, pytest.mark.timeout(600)]


@pytest.mark.parametrize(("flush", "cycles"), [("sync", 50), ("async", 50)])
async def test_a_broker_killed_fifty_times(flush: str, cycles: int, tmp_path: Path) -> None:
    assert await run(cycles, tmp_path, flush, seed=cycles, quiet=True) == []


def test_the_checker_sees_what_is_broken() -> None:
    whole = [["ok", "a", 0, 0], ["ok", "b", 0, 1], ["fail", "c"]]
    whole += [
        ["got", body, group, 0, offset] for group in ("concurrent", "in-order") for offset, body in enumerate("ab")
    ]
    assert check(whole) == []
    assert "never reached in-order" in check(whole[:-1])[0]
    assert "was refused" in check([*whole, ["got", "c", "concurrent", 0, 2]])[0]
    assert "is a and b" in check([*whole, ["got", "b", "concurrent", 0, 0]])[0]
    assert "came first" in check([*whole, ["ok", "d", 0, 3], ["got", "d", "in-order", 0, 3]])[0]
    assert "never sent" in check([*whole, ["got", "x", "concurrent", 1, 0]])[0]
