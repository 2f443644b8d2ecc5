"""Child processes of a measurement: started under this login, told what to do by lines, answering in JSON lines.

No child gets a session of its own: the kernel's autogroup scheduling would then divide the cores by session, not by
need.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class BenchError(RuntimeError):
    """A measurement that cannot be trusted: a child that failed, or counts that do not add up."""


def environment() -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "protocol")]
    if already := os.environ.get("PYTHONPATH"):
        paths.append(already)
    inherited = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    # An installed package is started from its bytecode; without it every start would compile 25,000 lines.
    inherited.pop("PYTHONDONTWRITEBYTECODE", None)
    return inherited


class Child:
    """One process of a scenario; ``argv`` follows ``program``, which is the Python interpreter. Use as a context
    manager."""

    def __init__(
        self, name: str, *argv: str, patience: float = 180.0, quiet: bool = False, program: str = sys.executable
    ) -> None:
        self.name = name
        self.patience = patience
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [program, *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else None,
            text=True,
            env=environment(),
            cwd=ROOT,
        )

    def line(self) -> str:
        """The next line of the child's output; BenchError when it ends or stays silent for ``patience`` seconds."""
        assert self.process.stdout is not None
        watchdog = threading.Timer(self.patience, self.process.kill)
        watchdog.start()
        try:
            line = self.process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise BenchError(f"{self.name} ended without an answer, exit code {self.process.wait()}")
        return line.rstrip("\n")

    def answer(self) -> dict[str, Any]:
        text = self.line()
        try:
            value = json.loads(text)
        except ValueError:
            raise BenchError(f"{self.name} said {text!r:.200} where a JSON object was due") from None
        if not isinstance(value, dict):
            raise BenchError(f"{self.name} said {text!r:.200} where a JSON object was due")
        return value

    def tell(self, **command: object) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise BenchError(f"{self.name} is gone, exit code {self.process.wait()}") from None

    def ask(self, **command: object) -> dict[str, Any]:
        self.tell(**command)
        return self.answer()

    def cpu(self) -> float:
        """CPU seconds of all its threads so far (resolution 10 ms); 0.0 where there is no /proc."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / TICKS

    def rss_mib(self, field: str = "VmRSS") -> float:
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:
            return 0.0
        for line in status.splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) / 1024
        return 0.0

    def close(self) -> None:
        if self.process.stdin is not None and not self.process.stdin.closed:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass  # it has ended already
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
