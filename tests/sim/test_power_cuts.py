"""A store whose power fails again and again; ``tests/harness`` has twenty thousand times."""

from __future__ import annotations

import pytest

from aiorocket.testing.power_cuts import power_cuts

# A killed process's coroutine that held a lock is collected when its loop is closed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.parametrize("seed", [1, 50, 99])  # found: a full segment, a torn property, a killed creation not synced
def test_what_was_acknowledged_is_there_after_every_cut(seed: int) -> None:
    assert power_cuts(seed) > 50
