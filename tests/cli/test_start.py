"""A command that only says what it does starts quickly: what it imports is click and little more. Modules are counted,
which a busy machine cannot disturb."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiorocket.cli.options import HERE
from aiorocket.testing.server import RocketMQServer, broker_thread
from aiorocket_protocol import NAMESERVER_PORT

#: Of click there are 75 on 3.11; asyncio alone would be 60 more, a client 180.
MOST = 115

_COUNT = """
import sys
from aiorocket.cli.main import cli
try:
    cli(prog_name="aiorocket", terminal_width=80)
except SystemExit:
    print(len(sys.modules), "asyncio" in sys.modules, "aiorocket_protocol" in sys.modules,
          {"base64", "dataclasses", "json", "shutil"} & sys.modules.keys(), file=sys.stderr)
"""


#: A command that asks a server, with some room for what an interpreter brings: on 3.11 asyncio and click are 170 of
#: these, msgspec and msgpack 22, the protocol 33.
MOST_ASKING = 295
#: What it leaves to those who need it.
_OTHERS = (
    "aiorocket.broker", "aiorocket.client.answering", "aiorocket.client.message", "aiorocket.client.middleware",
    "aiorocket.client.push", "aiorocket.client.sending", "aiorocket.cli.serving", "aiorocket.config.server",
    "aiorocket.config.settings", "aiorocket.remoting.server", "aiorocket.remoting.streams", "aiorocket.storage",
    "ipaddress", "prometheus_client", "rich", "tomllib", "uvicorn",
)  # fmt: skip

_LIST = """
import sys
from aiorocket.cli.main import cli
try:
    cli(sys.argv[1:], prog_name="aiorocket")
except SystemExit as end:
    print(end.code, *sys.modules, file=sys.stderr)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[RocketMQServer]:
    with broker_thread() as server:
        server.create_topic("orders", queues=2)
        yield server


@pytest.mark.parametrize("command", ["topic list", "topic status orders", "group list", "cluster list"])
def test_a_command_that_asks_a_server_imports_what_its_question_needs(server: RocketMQServer, command: str) -> None:
    words = [*command.split(), "--json", "--nameserver", server.nameserver_address]
    told = subprocess.run([sys.executable, "-c", _LIST, *words], capture_output=True, text=True, timeout=140)
    code, *modules = told.stderr.split()
    assert code == "0" and told.stdout.startswith("{")
    assert not [name for name in _OTHERS if name in modules]
    assert len(modules) <= MOST_ASKING, len(modules)


@pytest.mark.parametrize("command", ["", "produce", "consume", "dlq list", "topic", "group lag", "doctor"])
def test_a_client_command_that_says_what_it_does_imports_little(command: str) -> None:
    told = subprocess.run(
        [sys.executable, "-c", _COUNT, *command.split(), "--help"], capture_output=True, text=True, timeout=140
    )
    count, asyncio, protocol, others = told.stderr.split(maxsplit=3)
    assert "Usage: aiorocket" in told.stdout and (asyncio, protocol, others) == ("False", "False", "set()\n")
    assert int(count) <= MOST


#: What is registered runs when the interpreter is taken apart, and not when the process just ends.
_LEAVE = """
import atexit, sys
from aiorocket.cli.main import main
atexit.register(print, "taken apart", file=sys.stderr)
main()
"""


@pytest.mark.parametrize(
    ("command", "code", "apart"),
    [("--help", 0, False), ("topic list", 0, False), ("group lag nobody", 1, False),
     ("store verify {tmp_path}", 1, True), ("dlq list nobody", 1, True)],
)  # fmt: skip
def test_what_told_all_it_had_to_tell_leaves_at_once(
    server: RocketMQServer, tmp_path: Path, command: str, code: int, apart: bool
) -> None:
    words = command.format(tmp_path=tmp_path).split()
    told = subprocess.run(
        [sys.executable, "-c", _LEAVE, *words], capture_output=True, text=True, timeout=140,
        env={**os.environ, "AIOROCKET_NAMESERVER": server.nameserver_address},
    )  # fmt: skip
    assert told.returncode == code, told
    assert ("taken apart" in told.stderr) == apart
    assert code or told.stdout.endswith("\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["--help", "config show"])
def test_output_that_does_not_come_through_is_a_failure(command: str, unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        told = subprocess.run(
            [sys.executable, "-m", "aiorocket", *command.split()], stdout=full, timeout=140, check=False,
            stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    assert told.returncode == 1 and told.stderr == b"Error: No space left on device\n"


def test_without_an_output_there_is_no_failure() -> None:
    closed = subprocess.run(["sh", "-c", f"{shlex.quote(sys.executable)} -m aiorocket --help >&-"], timeout=60,
                            capture_output=True, check=False)  # fmt: skip
    assert (closed.returncode, closed.stderr) == (0, b"")


def test_closed_standard_files_are_nothing(server: RocketMQServer) -> None:
    """Nobody's socket gets their numbers: uvloop ends a process that closes one."""
    asks = f"{shlex.quote(sys.executable)} -m aiorocket topic list --nameserver {server.nameserver_address}"
    for closed in ("<&-", ">&-", "<&- >&- 2>&-"):
        told = subprocess.run(["sh", "-c", f"{asks} {closed}"], timeout=140, capture_output=True, check=False)
        assert (told.returncode, told.stderr) == (0, b""), (closed, told)


def test_help_is_as_wide_as_the_terminal_and_no_wider_than_is_read() -> None:
    told = [
        subprocess.run(
            [sys.executable, "-m", "aiorocket", "--help"], capture_output=True, text=True, timeout=140,
            env={**os.environ, "COLUMNS": columns},
        ).stdout
        for columns in ("60", "500", "none")
    ]  # fmt: skip
    widest = [max(map(len, each.splitlines())) for each in told]
    assert 50 < widest[0] <= 60 and 80 < widest[1] <= 110 and 60 < widest[2] <= 80


def test_the_name_server_of_this_machine_is_where_one_listens() -> None:
    assert f"127.0.0.1:{NAMESERVER_PORT}" == HERE
