"""``aiorocket fuzz`` against servers of ours: no finding, no traceback, no flood of the log, no memory kept for
who has gone."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import pytest

from aiorocket.fuzz import Fuzzing, fuzz
from tests.harness.hostile_memory import listener, rss
from tests.interop.peers import our_server

pytestmark = pytest.mark.harness

#: MiB that a server may have more than before its fuzzer, when that has gone: the newest records, and what the
#: allocator keeps. It was 3 at the broker and none at the name server on 2026-11-29.
LEFT = 16


def _sockets(pid: int) -> int:
    """How many sockets a process has open."""
    found = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was open for a moment
            found += entry.readlink().name.startswith("socket:")
    return found


async def test_a_hundred_thousand_requests(tmp_path: Path) -> None:
    with our_server(tmp_path) as server:
        for address, role, frames in ((server.broker, "broker", 80_000), (server.nameserver, "nameserver", 20_000)):
            pid = listener(address)
            before, connections = rss(pid), _sockets(pid)
            report = await fuzz(
                Fuzzing(address, role, time.time_ns() // 1_000_000, frames=frames, pid=pid, growth=64, patience=60)
            )
            assert report.found == [], [str(sample.finding) for sample in report.found]
            assert report.answers > frames / 2 and report.rounds > 0
            async with asyncio.timeout(60):
                while _sockets(pid) > connections:
                    await asyncio.sleep(0.05)
            left = rss(pid) - before
            assert left < LEFT, f"{left:.0f} MiB more than before, and nobody is connected any more"
    for name in ("broker.log", "nameserver.log"):
        log = (tmp_path / name).read_text(errors="replace")
        assert "Traceback" not in log, log[log.index("Traceback") :][:3000]
        assert log.count("\n") < 5000
