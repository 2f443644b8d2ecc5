"""Brokers that end in the middle of something, at another request than in ``tests/sim``."""

from __future__ import annotations

import pytest

from tests.sim.restarts import PHASES, nothing_acknowledged_is_lost

pytestmark = pytest.mark.harness


@pytest.mark.parametrize("how", [None, False, True], ids=["stop", "kill", "power-cut"])
@pytest.mark.parametrize("phase", PHASES)
def test_nothing_acknowledged_is_lost(phase: str, how: bool | None) -> None:
    nothing_acknowledged_is_lost(phase, how, 1)
