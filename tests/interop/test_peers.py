"""What the tests started ends with them, even where they cannot end it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.interop.peers import ROOT

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with the one that started it"),
]

#: Says the numbers of two processes that it started in both of the ways that tests do, and waits.
STARTS = """
import asyncio, os, sys
from pathlib import Path
from tests.interop.peers import JavaRun, Process

async def main(place):
    with Process("a server", ["sleep", "100"], place / "server.log", os.environ) as server:
        program = await JavaRun.start("a program", ["sleep", "100"], place / "program.log")
        print(server.pid, program._process.pid, flush=True)
        await asyncio.sleep(100)

asyncio.run(main(Path(sys.argv[1])))
"""


def test_what_a_worker_started_ends_with_it(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", STARTS, tmp_path], cwd=ROOT, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        numbers = worker.stdout.readline().split()
        started = [os.pidfd_open(int(number)) for number in numbers]
        for number in numbers:  # until then it is setpriv, which has perhaps not asked yet to be ended
            while Path(f"/proc/{int(number)}/comm").read_text() != "sleep\n":
                time.sleep(0.01)
        worker.kill()
    try:
        assert len(started) == 2
        for process in started:
            assert select.select([process], [], [], 30)[0] == [process]
    finally:
        for process in started:
            os.close(process)
