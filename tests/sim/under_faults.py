"""A short time of dense faults, as ``test_chaos.py`` and the harness draw them from seeds."""

from __future__ import annotations

from aiorocket.testing import SCENARIOS, chaos
from aiorocket.testing.chaos_run import size_for

__all__ = ("holds",)

SINGLE = sorted(set(SCENARIOS) - {"mixed", "orderly"})


def holds(seed: int) -> None:
    """Run one; AssertionError when a checker finds something, or when hardly anything happened."""
    scenario = ("mixed", "orderly", "mixed", SINGLE[seed // 4 % len(SINGLE)])[seed % 4]
    report = chaos(seed, hours=0.1, scenario=scenario, pause=(2.0, 40.0), **size_for(seed))
    assert report.acknowledged > 50
    assert report.delivered >= report.acknowledged
