"""A command that only says what it does starts quickly: what it imports is click and little more. Modules are counted,
which a busy machine cannot disturb."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aiorocket.cli.options import HERE
from aiorocket_protocol import NAMESERVER_PORT

#: Of click there are 75 on 3.11; asyncio alone would be 60 more, a client 180.
MOST = 140

_COUNT = """
import sys
from aiorocket.cli.main import cli
try:
    cli(sys.argv[1:], prog_name="aiorocket")
except SystemExit:
    print(len(sys.modules), "asyncio" in sys.modules, "aiorocket_protocol" in sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize("command", ["", "produce", "consume", "dlq list", "topic", "group lag", "doctor"])
def test_a_client_command_that_says_what_it_does_imports_little(command: str) -> None:
    told = subprocess.run(
        [sys.executable, "-c", _COUNT, *command.split(), "--help"], capture_output=True, text=True, timeout=60
    )
    count, asyncio, protocol = told.stderr.split()[-3:]
    assert "Usage: aiorocket" in told.stdout and (asyncio, protocol) == ("False", "False")
    assert int(count) <= MOST


def test_the_name_server_of_this_machine_is_where_one_listens() -> None:
    assert f"127.0.0.1:{NAMESERVER_PORT}" == HERE
