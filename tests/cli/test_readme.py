"""What the README tells a newcomer to do is done here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aiorocket.cli.main import COMMANDS, cli

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_two_commands_come_first_and_are_one_line_each() -> None:
    run, test = (block.strip() for block in blocks("sh")[:2])
    assert "\n" not in run and run.endswith("aiorocket demo")
    assert "\n" not in test and test.endswith("pytest -q")
    assert README.index("```sh") == README.index("```")


def test_the_program_runs_and_shows_what_the_text_says(aiorocket: Any) -> None:
    (program,) = blocks("python")
    code = [line for line in program.splitlines() if line.strip()]
    assert len(code) <= 20, f"{len(code)} lines"
    out = aiorocket.python(program).splitlines()
    assert re.fullmatch(r"stored at offset 0 of queue [0-3]", sorted(out)[-1])
    assert [line for line in out if line.startswith("delivery")] == [
        "delivery 1 of ['o-1'] b'42 EUR'",
        "delivery 2 of ['o-1'] b'42 EUR'",
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_it(name: str) -> None:
    assert f"`aiorocket {name}" in README
    assert CliRunner().invoke(cli, [name, "--help"]).exit_code == 0


def test_every_folder_it_maps_is_there() -> None:
    folders = re.findall(r"^\| `([a-z_/.]+)` \|", README, re.MULTILINE)
    assert len(folders) >= 12
    assert [folder for folder in folders if not (ROOT / folder).exists()] == []
    packages = {path.parent for path in (ROOT / "aiorocket").glob("*/__init__.py")}
    assert {f"aiorocket/{path.name}" for path in packages} <= set(folders)
