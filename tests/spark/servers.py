"""A real ``aiorocket standalone`` process that can be killed and started again where it was."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PATHS = f"import sys; sys.path[:0] = [{str(_ROOT)!r}, {str(_ROOT / 'protocol')!r}]; "
_START = "from aiorocket.cli.main import main; main()"
_READY = re.compile(r"name server \S+?:(\d+), broker \S+ \S+?:(\d+)")


class Standalone:
    """Name server and broker of one process, on the same ports and the same directory at every start. ``prelude`` is
    what the process does before it begins."""

    def __init__(self, data: Path, prelude: str = "") -> None:
        self._data = data
        self._prelude = prelude
        self._ports = (_free_port(), _free_port())
        self._process: subprocess.Popen[str] | None = None

    @property
    def nameserver(self) -> str:
        return f"127.0.0.1:{self._ports[0]}"

    def start(self) -> None:
        """Return when it answers."""
        nameserver, broker = map(str, self._ports)
        start = _PATHS + self._prelude + _START
        command = [sys.executable, "-c", start, "standalone", "--port", nameserver, "--broker-port", broker]
        self._process = subprocess.Popen(
            [*command, "--data", str(self._data)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert _READY.search(line), f"standalone said {line!r}"

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Send ``how`` and wait for its end."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def standalone(data: Path) -> Iterator[Standalone]:
    server = Standalone(data)
    server.start()
    try:
        yield server
    finally:
        server.end(signal.SIGKILL)


@contextmanager
def own_temporary() -> Iterator[dict[str, str]]:
    """The environment of a driver that is killed: what its JVM then leaves (folders of Spark's, a library of lz4,
    sockets) goes with the block. A short path, for the sockets' names."""
    with tempfile.TemporaryDirectory(prefix="spark-", ignore_cleanup_errors=True) as place:
        yield {"TMPDIR": place, "SPARK_SUBMIT_OPTS": f"-Djava.io.tmpdir={place}"}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
