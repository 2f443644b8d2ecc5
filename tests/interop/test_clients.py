"""Apache's Go and C++ clients and the Node client on our broker: what they send arrives under a tag filter, a batch
message by message, and what fails once comes back."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.interop.conftest import absent
from tests.interop.peers import JavaRun, Server, ask, kept

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

HERE = Path(__file__).resolve().parent
COUNT = 8
UPDATE_AND_CREATE_TOPIC, GET_ROUTEINFO_BY_TOPIC = 17, 105


def made(name: str, tools: Sequence[str], *steps: list[str]) -> Path:
    """A copy of the client's folder and what ``steps`` make in it, kept while its files are the same."""
    if missing := [tool for tool in tools if shutil.which(tool) is None]:
        absent(f"not on PATH: {', '.join(missing)}")
    source = HERE / name
    content = b"".join(path.read_bytes() for path in sorted(source.iterdir()) if path.is_file())
    with kept() as home:
        place = home / f"{name}-{hashlib.sha256(content).hexdigest()[:12]}"
        if place.is_dir():
            return place
        partial = place.with_suffix(f".{os.getpid()}")
        shutil.copytree(source, partial, ignore=shutil.ignore_patterns("__pycache__"))
        for step in steps:
            done = subprocess.run(step, cwd=partial, capture_output=True, text=True, timeout=600, check=False)
            if done.returncode != 0:
                shutil.rmtree(partial)
                raise RuntimeError(f"{' '.join(step)} failed:\n{done.stdout}{done.stderr}")
        partial.rename(place)
        return place


@pytest.fixture(scope="session")
def go() -> list[str]:
    return [str(made("go", ["go"], ["go", "build", "-o", "smoke", "."]) / "smoke")]


@pytest.fixture(scope="session")
def node() -> list[str]:
    place = made("node", ["node", "npm"], ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"])
    return ["node", str(place / "smoke.js")]


@pytest.fixture(scope="session")
def cpp() -> list[str]:
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        absent("the C++ client's package is for Linux on x86-64")
    pip = ["pip3", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--target=.", "rocketmq==0.4.4"]
    return [sys.executable, str(made("cpp", ["pip3"], pip) / "smoke.py")]


async def run(command: list[str], place: Path, *arguments: str, limit: float) -> list[dict[str, Any]]:
    """The facts that the program prints until it is done."""
    log = place / f"{arguments[0]}.errors"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *command, *arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, cwd=place,
            env={**os.environ, "HOME": str(place)},
        )  # fmt: skip
    program = JavaRun(f"{command[0]} {arguments[0]}", process, log)
    try:
        return (await program.finish(limit=limit))[:-1]
    finally:
        await program.end()


@pytest.mark.parametrize("client", ["go", "cpp", "node"])
async def test_send_and_consume_by_tag(
    client: str, ours: Server, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    command: list[str] = request.getfixturevalue(client)
    topic = f"tags-{client}"
    fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
              "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}  # fmt: skip
    assert ask(ours.broker, UPDATE_AND_CREATE_TOPIC, fields)[0] == 0
    assert ask(ours.nameserver, GET_ROUTEINFO_BY_TOPIC, {"topic": topic})[0] == 0

    sent = await run(command, tmp_path, "send", ours.nameserver, topic, "m", str(COUNT), limit=60)
    assert all(one["status"] in (0, "SEND_OK") for one in sent)
    wanted = {f"m-{number}" for number in range(0, COUNT, 2)}
    if client != "node":  # whose client has no batches
        wanted.add("m-batch-0")

    arguments = ("consume", ours.nameserver, topic, f"group-{client}", "even||other", str(len(wanted)), "120")
    messages = await run(command, tmp_path, *arguments, limit=150)
    (failed,) = [one["body"] for one in messages if one["failed"]]
    consumed = {one["body"]: one for one in messages if not one["failed"]}
    assert consumed.keys() == wanted
    assert consumed[failed]["reconsumeTimes"] == 1
    for body, one in consumed.items():
        assert one["tags"] == "even"
        assert one["keys"] == f"key-{body} all"
        assert one["properties"]["from"].endswith(" grün")
