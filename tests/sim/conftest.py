"""How many seeds each scenario gets: ``@pytest.mark.seeds(n)`` is its share of 200, AIOROCKET_SEEDS the number in
all."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest

#: Every test command runs this many (design: 200 seeds in all); more for a long run.
SEEDS = int(os.environ.get("AIOROCKET_SEEDS", "200"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "seeds(n): run with n of every 200 seeds (AIOROCKET_SEEDS, default 200)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("seeds")
    if mark is not None:
        metafunc.parametrize("seed", range(max(1, round(mark.args[0] * SEEDS / 200))))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """A failing seed says what to type to see it again."""
    report = yield
    callspec = getattr(item, "callspec", None)
    if report.failed and callspec is not None and "seed" in callspec.params:
        seeds = "" if SEEDS == 200 else f"AIOROCKET_SEEDS={SEEDS} "
        report.sections.append(("replay", f"{seeds}python -m pytest '{item.nodeid}'"))
    return report
