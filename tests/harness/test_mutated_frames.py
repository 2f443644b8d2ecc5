"""Frames that are nearly right: no traceback, no flood of the log, and memory comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.mutated_frames import run

pytestmark = pytest.mark.harness


def test_a_hundred_thousand_frames(tmp_path: Path) -> None:
    outcome = run(100_000, seed=0, place=tmp_path)
    assert outcome.answers > 30_000
    assert not outcome.tracebacks, outcome.tracebacks[0][:3000]
    assert outcome.log_lines < 1000
    for before, after in zip(outcome.before, outcome.after, strict=True):
        assert after < before + 64, outcome
