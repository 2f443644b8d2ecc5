"""Real processes of the command line, each ended by its own fixture."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from aiorocket.testing.server import RocketMQServer, broker_thread
from tests.cli.copies import Copy, Original


def environment(**more: str) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("AIOROCKET_")}
    return {**clean, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **more}


class Result(NamedTuple):
    code: int
    out: str
    err: str


class Aiorocket:
    """Runs ``aiorocket`` in a directory of its own."""

    def __init__(self, original: Original, directory: Path) -> None:
        self.directory = directory
        self.processes: list[Copy] = []
        self._original = original

    def run(self, *arguments: str, stdin: bytes = b"", timeout: float = 200, **env: str) -> Result:
        process = self.start(*arguments, **env)
        out, err = process.communicate(stdin, timeout)
        return Result(process.wait(), out.decode(), err.decode())

    def python(self, script: str) -> str:
        """What a script prints in a fresh interpreter that finds the same packages as this one."""
        return subprocess.run(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            env=environment(),
            text=True,
            timeout=200,
            check=True,
        ).stdout

    def program(self, path: Path, **env: str) -> str:
        """What a Python program prints."""
        command = [sys.executable, str(path)]
        return subprocess.run(
            command, stdout=subprocess.PIPE, env=environment(**env), text=True, timeout=200, check=True
        ).stdout

    @staticmethod
    def line(process: Copy) -> str:
        """The next line that it prints."""
        return read_line(process)

    def start(self, *arguments: str, **env: str) -> Copy:
        process = self._original.start(*arguments, cwd=self.directory, env=environment(**env))
        self.processes.append(process)
        return process

    def server(self, *arguments: str) -> tuple[Copy, str]:
        """A server that has said it is ready, and the line it said."""
        process = self.start(*arguments)
        line = read_line(process)
        assert "ready" in line, (line, process.stderr.read().decode() if process.poll() is not None else "")
        return process, line

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(60)
            for pipe in (process.stdin, process.stdout, process.stderr):
                pipe.close()


def read_line(process: Copy, timeout: float = 60) -> str:
    readable, _, _ = select.select([process.stdout], [], [], timeout)
    assert readable, "nothing was printed in time"
    return process.stdout.readline().decode()


def stop(process: Copy, number: signal.Signals = signal.SIGTERM) -> Result:
    process.send_signal(number)
    code = process.wait(60)  # not communicate(): it would close standard input, which ends some commands by itself
    return Result(code, process.stdout.read().decode(), process.stderr.read().decode())


def ports(line: str) -> list[int]:
    return [int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", line)]


@pytest.fixture(scope="session")
def original() -> Iterator[Original]:
    with Original() as original:
        yield original


@pytest.fixture
def aiorocket(original: Original, tmp_path: Path) -> Iterator[Aiorocket]:
    directory = tmp_path / "here"
    directory.mkdir()
    commands = Aiorocket(original, directory)
    yield commands
    commands.end()


@pytest.fixture(scope="module")
def server() -> Iterator[RocketMQServer]:
    with broker_thread() as server:
        yield server


@pytest.fixture
def standalone(aiorocket: Aiorocket) -> str:
    """A running standalone server; the address of its name server."""
    _, line = aiorocket.server("standalone", "--port", "0", "--broker-port", "0", "--data", "store")
    return f"127.0.0.1:{ports(line)[0]}"


Stopper = Callable[..., Result]


@pytest.fixture(name="stop")
def _stop() -> Stopper:
    return stop


@pytest.fixture(name="ports")
def _ports() -> Callable[[str], list[int]]:
    return ports


@pytest.fixture(name="read_line")
def _read_line() -> Callable[..., str]:
    return read_line
