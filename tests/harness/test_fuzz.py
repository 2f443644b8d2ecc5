"""``aiorocket fuzz`` against servers of ours: no finding, no traceback, no flood of the log, memory comes back."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from aiorocket.fuzz import Fuzzing, fuzz
from tests.harness.hostile_memory import listener
from tests.interop.peers import our_server

pytestmark = pytest.mark.harness


async def test_a_hundred_thousand_requests(tmp_path: Path) -> None:
    with our_server(tmp_path) as server:
        for address, role, frames in ((server.broker, "broker", 80_000), (server.nameserver, "nameserver", 20_000)):
            report = await fuzz(
                Fuzzing(address, role, time.time_ns() // 1_000_000, frames=frames, pid=listener(address), growth=64,
                        patience=60)
            )  # fmt: skip
            assert report.found == [], [str(sample.finding) for sample in report.found]
            assert report.answers > frames / 2 and report.rounds > 0
    for name in ("broker.log", "nameserver.log"):
        log = (tmp_path / name).read_text(errors="replace")
        assert "Traceback" not in log, log[log.index("Traceback") :][:3000]
        assert log.count("\n") < 5000
