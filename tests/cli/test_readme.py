"""What the README tells a newcomer to do is done here."""

from __future__ import annotations

import re
import textwrap
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
    program, _ = blocks("python")
    code = [line for line in program.splitlines() if line.strip()]
    assert len(code) <= 20, f"{len(code)} lines"
    out = aiorocket.python(program).splitlines()
    assert re.fullmatch(r"stored at offset 0 of queue [0-3]", sorted(out)[-1])
    assert [line for line in out if line.startswith("delivery")] == [
        "delivery 1 of ['o-1'] b'42 EUR'",
        "delivery 2 of ['o-1'] b'42 EUR'",
    ]


def test_its_other_examples_run_as_they_stand(aiorocket: Any) -> None:
    _, examples = blocks("python")
    out = aiorocket.python(_AROUND.format(examples=textwrap.indent(examples, " " * 8)))
    assert out.split() == ["42", "p-1", "5"]


#: What the examples take for granted: a database, topics, and somebody who answers.
_AROUND = """
import asyncio
import aiorocket

class Database:
    def __init__(self):
        self.applied, self.loaded, self.paid = [], 0, None
        self.done = asyncio.Event()
    async def apply(self, body):
        self.applied.append(body)
        if len(self.applied) == 4:
            self.done.set()
    async def mark_paid(self, key, transaction):
        self.paid = key
    async def load(self, rows):
        self.loaded += len(rows)

async def check(message):
    return aiorocket.TxState.UNKNOWN

async def main():
    database = Database()
    steps, clicks = aiorocket.Router("steps"), aiorocket.Router("clicks")
    async with (
        aiorocket.embed() as mq,
        mq.producer("shop") as producer,
        mq.transaction_producer("payments", checker=check) as payments,
    ):
        for topic in ("steps", "clicks", "payments", "questions", "orders"):
            await mq.create_topic(topic, queues=1)
        for number in range(5):
            await producer.send("orders", b"order")
        teacher = mq.consumer("teacher")

        @teacher.listener("questions", start_from="first")
        async def on_question(message):
            await producer.reply(message, b"42")

        await teacher.start()
{examples}
        async with mq.consumer("steps", router=steps), mq.consumer("clicks", router=clicks):
            for number in range(2):
                await producer.send("steps", b"step", keys=["k"])
                await producer.send("clicks", b"click", keys=["k"])
            await database.done.wait()
        await teacher.stop()
        print(answer.body.decode(), database.paid, database.loaded)

aiorocket.run(main())
"""


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
