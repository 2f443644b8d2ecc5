"""Damage in every kind and file: nothing wrong is served, nothing intact is passed over, every loss is said."""

from __future__ import annotations

import pytest

from tests.harness.damage import run

pytestmark = pytest.mark.harness


async def test_two_thousand_places() -> None:
    assert await run(0, 2_000) == 0
