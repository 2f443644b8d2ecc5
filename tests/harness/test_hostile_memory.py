"""What hostile peers make a broker keep: its limits, and 64 MiB."""

from __future__ import annotations

from pathlib import Path

import pytest

from aiorocket.config import Limits, RemotingConfig
from tests.harness.hostile_memory import run

pytestmark = pytest.mark.harness


def test_memory_stays_within_the_limits_under_every_attack(tmp_path: Path) -> None:
    found = run(tmp_path)
    quiet, _ = found.pop("before")
    most = quiet + Limits().filter_memory / (1 << 20) + 64
    # What is lawful besides, and stays with the allocator: replies within max_in_flight_bytes, 64 MiB for each of four
    # that read nothing (write_limit), 200 MB of half frames (max_held).
    awaited = RemotingConfig().max_in_flight_bytes / (1 << 20)
    more = {"replies": awaited, "slow_readers": awaited + 4 * 64, "half_frames": awaited + 4 * 64 + 210}
    assert all(during <= most + more.get(name, 0) for name, (during, _) in found.items()), found
