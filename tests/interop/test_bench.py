"""``aiorocket bench`` and ``aiorocket fuzz`` against Apache: counts add up, and what is fuzzed goes on serving."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import aiorocket
from aiorocket.fuzz import Fuzzing, compare, fuzz
from aiorocket.load import Scenario, measure
from aiorocket_protocol import JSON, ROCKETMQ
from tests.interop.peers import Server, apache_server, wait_for_statistics

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_a_short_load(apache: Server, orderly: bool) -> None:
    scenario = Scenario(rate=200, seconds=3, warmup=1, consumers=2, keys=20, queues=4, orderly=orderly, drain=60)
    found = await measure(scenario, aiorocket.ClientConfig(nameservers=(apache.nameserver,)))
    checks = found["checks"]
    # A machine that is behind sends fewer: what its time is over for is not sent.
    assert 0 < checks["acknowledged"] <= 800 and checks["lost"] == checks["out_of_order"] == 0
    assert found["verdict"]["limit"] and found["figures"]["send_p99_ms"] > 0


async def test_it_serves_under_frames_that_nobody_should_send(jars: Path, tmp_path: Path) -> None:
    """A broker of its own: afterwards it believes of its system's groups and queues what it was told. Only the healthy
    client sends: Apache's broker believes a send whose system flag says that its own address is IPv6, cannot read the
    record that it stored, and leaves out of its queues whatever the log holds behind it by then."""
    with apache_server(jars, tmp_path) as apache:
        wait_for_statistics(apache)  # it has begun all that it does beside its clients
        wanted = Fuzzing(apache.broker, "broker", time.time_ns() // 1_000_000, frames=1000, kinds=(JSON, ROCKETMQ),
                         codes=(11, 14, 15, 17, 30, 31, 34, 35, 38), patience=20, shrink=False)  # fmt: skip
        report = await fuzz(wanted)
    # Its answers with the names of Java's exceptions are findings, of which a run takes twenty.
    assert (report.frames >= 1000 or len(report.found) >= 20) and report.rounds > 0
    assert not [sample for sample in report.found if sample.finding.kind in ("crash", "neighbour")]


async def test_offsets_are_answered_alike(apache: Server, ours: Server) -> None:
    compared = await compare((ours.broker, apache.broker), "broker", now=time.time_ns() // 1_000_000, requests=300,
                             codes=(9999, 30, 31), loop_time=asyncio.get_running_loop().time)  # fmt: skip
    assert compared.requests >= 300
