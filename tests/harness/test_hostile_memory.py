"""What hostile peers make a broker keep: its limits, and 64 MiB."""

from __future__ import annotations

from pathlib import Path

import pytest

from aiorocket.config import Limits
from tests.harness.hostile_memory import run

pytestmark = pytest.mark.harness


def test_memory_stays_within_the_limits_under_every_attack(tmp_path: Path) -> None:
    found = run(tmp_path)
    quiet, _ = found.pop("before")
    most = quiet + Limits().filter_memory / (1 << 20) + 64
    # 200 MB of half frames are within max_held.
    assert all(after <= most + 210 * (name == "half_frames") for name, (after, _) in found.items()), found
