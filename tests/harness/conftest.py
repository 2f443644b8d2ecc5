"""It takes minutes and processes: skipped unless ``-m harness`` or AIOROCKET_HARNESS=1 asks for it."""

from __future__ import annotations

import os

import pytest


def _wanted(config: pytest.Config) -> bool:
    if os.environ.get("AIOROCKET_HARNESS") == "1":
        return True
    return "harness" in str(config.getoption("markexpr", "")).replace("not harness", "")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("harness") is not None and not _wanted(item.config):
        pytest.skip("the harness is run by .ci/run; by hand: -m harness or AIOROCKET_HARNESS=1")
