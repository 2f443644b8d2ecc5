"""Runs that each have a few kinds of faults only; ``tests/harness`` has more of them, and proof of what they find."""

from __future__ import annotations

import pytest

from aiorocket.testing.swarm import FAULTS, swarm

# A killed process's coroutine that held a lock is collected when its loop is closed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.parametrize("seed", [6, 15])
def test_what_is_promised_holds_where_few_faults_meet(seed: int) -> None:
    report = swarm(seed)
    assert report.delivered >= report.acknowledged > 100
    assert report.orderly == bool(seed & 1) and set(report.faults) <= set(FAULTS)
