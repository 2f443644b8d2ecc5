"""How many seeds each scenario gets: ``@pytest.mark.seeds(n)`` is its share of 200, AIOROCKET_SEEDS the number in
all."""

from __future__ import annotations

import os

import pytest

#: Every test command runs this many (200 seeds in all); more for a long run.
SEEDS = int(os.environ.get("AIOROCKET_SEEDS", "200"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "seeds(n): run with n of every 200 seeds (AIOROCKET_SEEDS, default 200)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("seeds")
    if mark is not None:
        metafunc.parametrize("seed", range(max(1, round(mark.args[0] * SEEDS / 200))))
