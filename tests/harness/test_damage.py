"""Damage in every kind and file: nothing wrong is served, nothing intact is passed over, every loss is said, also when
the start that deals with it is broken off."""

from __future__ import annotations

import pytest

from tests.harness import broken_starts
from tests.harness.damage import run

pytestmark = pytest.mark.harness


async def test_two_thousand_places() -> None:
    assert await run(0, 2_000) == 0


def test_six_hundred_starts_that_are_broken_off() -> None:
    assert broken_starts.run(300, 600) == 0
