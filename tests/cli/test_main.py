"""The entry point: what it lists, what it loads, and how fast it starts."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click
import pytest
from click.testing import CliRunner

from aiorocket.cli.main import COMMANDS, cli


def test_the_help_names_every_command_and_imports_none(aiorocket: Any) -> None:
    script = (
        "import sys\n"
        "from aiorocket.cli.main import cli\n"
        "try:\n    cli(['--help'], prog_name='aiorocket')\n"
        "except SystemExit as end:\n    assert end.code == 0, end.code\n"
        "heavy = {'asyncio', 'rich', 'uvloop', 'msgpack', 'anyio', 'aiorocket.client', 'aiorocket.runtime'}\n"
        "print('loaded:', sorted(heavy & set(sys.modules)))\n"
    )
    out = aiorocket.python(script)
    for name in COMMANDS:
        assert f"\n  {name} " in out
    assert out.endswith("loaded: []\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_in_the_list_is_the_commands_own(name: str) -> None:
    module, text = COMMANDS[name]
    command = getattr(import_module(module), name)
    assert isinstance(command, click.Command)
    assert command.name == name
    assert command.help is not None and command.help.splitlines()[0] == text


def test_rich_is_loaded_by_no_command_until_a_bar_is_drawn(aiorocket: Any) -> None:
    script = (
        "import sys\n"
        + "".join(f"import {module}\n" for module, _ in COMMANDS.values())
        + "print('rich' in sys.modules)"
    )
    out = aiorocket.python(script)
    assert out == "False\n"


def test_an_unknown_command_is_bad_usage() -> None:
    result = CliRunner().invoke(cli, ["prodcue"])
    assert result.exit_code == 2
    assert "prodcue" in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0
    assert COMMANDS[name][1] in " ".join(result.output.split())
