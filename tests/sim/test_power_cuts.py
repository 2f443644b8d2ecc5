"""A store whose power fails again and again; ``tests/harness`` has twenty thousand times."""

from __future__ import annotations

import pytest

from aiorocket.testing.power_cuts import power_cuts

# A killed process's coroutine that held a lock is collected when its loop is closed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


#: Found: a full segment, a torn property, a killed creation not synced, a torn queue offset, a full segment whose file
#: is shorter than it was to be.
SEEDS = [1, 50, 99, 10_287, 20_335]


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_acknowledged_is_there_after_every_cut(seed: int) -> None:
    assert power_cuts(seed) > 50
