"""Timers, transactions, pops, sends that count once and filters, over restarts, power cuts and lost answers; groups
whose calls take long, and broadcasting ones."""

from __future__ import annotations

import pytest

from aiorocket.testing.features import PARTS, features
from aiorocket.testing.groups import broadcasting, long_calls

# A killed process's coroutine that held a lock is collected when its loop is closed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.parametrize("part", PARTS)
def test_what_came_of_each_is_what_was_asked_for(part: str) -> None:
    for seed in range(2):
        assert features(seed, only=part) > 20


def test_no_call_outlasts_its_lock() -> None:
    assert long_calls(1) >= 12


def test_each_broadcasting_member_reads_everything_once() -> None:
    assert broadcasting(1) == 40
