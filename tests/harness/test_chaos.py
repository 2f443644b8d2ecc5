"""Faults drawn from more seeds than a plain run of the tests has time for."""

from __future__ import annotations

import pytest

from tests.sim.under_faults import holds

pytestmark = [pytest.mark.harness, pytest.mark.timeout(300)]


@pytest.mark.parametrize("seed", range(20, 80))
def test_what_is_promised_holds_under_faults(seed: int) -> None:
    holds(seed)
