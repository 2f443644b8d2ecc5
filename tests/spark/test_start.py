"""The start of Spark's JVM in a process of its own, which pyspark begins and only the JVM itself ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.spark.producing import create_topic

pytestmark = [pytest.mark.spark_long, pytest.mark.timeout(600)]

COMMANDS = {"archive": ["archive", "TOPIC", "lake"], "check": ["run", "file", "--check"]}
FILE = 'topic = "orders"\npath = "lake"\n[dedup]\n'


def until(done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 240
    while not done():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.skipif(sys.platform != "linux", reason="looks for its child in /proc")
def test_a_command_that_is_ended_while_spark_starts_leaves_no_jvm(
    nameserver: str, topic: str, tmp_path: Path, command: str
) -> None:
    create_topic(nameserver, topic, queues=1)  # one that is missed is told before Spark starts
    output = tmp_path / "output"
    (tmp_path / "file").write_text(FILE)
    arguments = [topic if word == "TOPIC" else word for word in COMMANDS[command]]
    call = [sys.executable, "-m", "aiorocket", "lake", *arguments]
    environment = os.environ | {"AIOROCKET_NAMESERVER": nameserver}
    with output.open("wb") as out, subprocess.Popen(
        call, stdout=out, stderr=out, start_new_session=True, cwd=tmp_path, env=environment
    ) as process:  # fmt: skip
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        try:
            until(lambda: bool(children.read_text()) or process.poll() is not None, "no JVM is started")
            process.terminate()
            assert process.wait(240) == 130
            until(lambda: is_gone(process.pid), "its JVM is still there")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert b"Traceback" not in output.read_bytes()
