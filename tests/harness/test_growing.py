"""The program of ``docs/growing.md``: alone, beside a server, on two brokers; in ``interop``, on Apache's cluster."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from aiorocket import PullConsumer

pytestmark = pytest.mark.harness

ROOT = Path(__file__).parents[2]
BILLED = "60 orders, 1770 EUR\n"


def program(place: Path) -> None:
    """Its files, as the page has them."""
    page = (ROOT / "docs" / "growing.md").read_text()
    for name, text in re.findall(r'^```python title="([\w.]+)"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL):
        (place / name).write_text(text)


async def started(place: Path, *command: str) -> asyncio.subprocess.Process:
    path = os.pathsep.join([str(ROOT), str(ROOT / "protocol")])
    return await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=place, env={**os.environ, "PYTHONPATH": path},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def said(place: Path, *command: str) -> str:
    process = await started(place, *command)
    out, err = await asyncio.wait_for(process.communicate(), 180)
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_alone(tmp_path: Path) -> None:
    program(tmp_path)
    assert await said(tmp_path, "alone.py") == BILLED


@pytest.mark.parametrize("brokers", [1, 2])
async def test_beside_a_server(tmp_path: Path, brokers: int) -> None:
    program(tmp_path)
    ports = ("--port", "0", "--broker-port", "0")
    server = await started(
        tmp_path, "-m", "aiorocket", "standalone", *ports, "--data", "store", "--brokers", str(brokers)
    )
    try:
        assert server.stdout is not None
        line = (await asyncio.wait_for(server.stdout.readline(), 120)).decode()
        address = re.findall(r"127\.0\.0\.1:\d+", line)[0]
        assert await said(tmp_path, "program.py", address) == BILLED
        async with PullConsumer("look", nameservers=address) as look:
            assert len({each.broker_name for each in await look.queues("orders")}) == brokers
    finally:
        if server.returncode is None:
            server.terminate()
        await asyncio.wait_for(server.communicate(), 60)
