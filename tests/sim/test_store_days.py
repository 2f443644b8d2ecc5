"""A store against a list of what it must hold, over full and failing disks, restarts and what gets old."""

from __future__ import annotations

import pytest

from aiorocket.testing.store_days import store_days

# A killed process's coroutine that held a lock is collected when its loop is closed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.parametrize("seed", [0, 12, 57, 216])  # found: what a failed sync had left to the kernel, and a power cut
def test_a_store_is_what_it_was_told(seed: int) -> None:
    assert store_days(seed) > 20
