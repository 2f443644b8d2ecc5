"""Commands as processes of their own, without the half second that an interpreter takes to import them: one has done it
and waits, and each command is a copy of it (``os.fork``). It has no loop, no thread and no file open but its link."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, Self

ROOT = Path(__file__).resolve().parents[2]


class Copy:
    """A command that runs; what tests use of a ``subprocess.Popen`` whose three standard files are pipes."""

    def __init__(self, stdin: BinaryIO, stdout: BinaryIO, stderr: BinaryIO, status: BinaryIO) -> None:
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self._status = status
        self.pid = int(status.readline())
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """subprocess.TimeoutExpired when it has not ended in ``timeout`` seconds."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("aiorocket", timeout or 0)
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def communicate(self, given: bytes = b"", timeout: float | None = None) -> tuple[bytes, bytes]:
        with ThreadPoolExecutor(2) as threads:
            out, err = threads.submit(self.stdout.read), threads.submit(self.stderr.read)
            try:
                try:
                    self.stdin.write(given)
                    self.stdin.close()
                except BrokenPipeError:
                    pass  # it has ended without reading all of it
                self.wait(timeout)
            except BaseException:
                self.kill()
                raise
            return out.result(), err.result()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Original:
    """The interpreter that copies are made of; ``with`` ends it."""

    def __init__(self) -> None:
        self._link, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(other.fileno())],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, pass_fds=[other.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def start(self, *arguments: str, cwd: Path, env: Mapping[str, str]) -> Copy:
        pipes = [os.pipe() for _ in range(4)]
        theirs = [pipes[0][0], *(written for _, written in pipes[1:])]
        order = json.dumps({"arguments": arguments, "cwd": str(cwd), "env": dict(env)})
        socket.send_fds(self._link, [order.encode() + b"\n"], theirs)
        self._link.recv(1)  # it has taken the files
        for number in theirs:
            os.close(number)
        readable = [os.fdopen(read, "rb") for read, _ in pipes[1:]]
        return Copy(os.fdopen(pipes[0][1], "wb"), *readable)


def become_a_command(link: socket.socket) -> None:
    """Returns in every copy, as the command it is to be; the original ends here when nobody holds the other end."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the copies' parents
    while True:
        order, files, *_ = socket.recv_fds(link, 65536, 4)
        while order and not order.endswith(b"\n"):
            order += link.recv(65536)
        if not order:
            sys.exit()
        if os.fork() == 0:
            break
        for number in files:
            os.close(number)
        link.send(b".")
    link.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *standard, status = files
    if (pid := os.fork()) != 0:
        for number in standard:
            os.close(number)
        os.write(status, b"%d\n" % pid)
        _, ended = os.waitpid(pid, 0)
        os.write(status, b"%d\n" % os.waitstatus_to_exitcode(ended))
        os._exit(0)
    os.close(status)
    for number, given in enumerate(standard):
        os.dup2(given, number)
        os.close(given)
    wanted = json.loads(order)
    os.chdir(wanted["cwd"])
    os.environ.clear()
    os.environ.update(wanted["env"])
    sys.argv = ["aiorocket", *wanted["arguments"]]


if __name__ == "__main__":
    from aiorocket.cli.main import COMMANDS, main

    for module in ("uvloop", *(module for module, _ in COMMANDS.values())):
        import_module(module)
    become_a_command(socket.socket(fileno=int(sys.argv[1])))
    main()
