"""Apache's Go and C++ clients and the Node client on our broker: what they send arrives under a tag filter, a batch
message by message, what fails once comes back, and what else each of them offers works."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.interop.conftest import absent
from tests.interop.peers import JavaRun, Server, ask, kept
from tests.interop.works import OFFERED

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

HERE = Path(__file__).resolve().parent
COUNT = 8
UPDATE_AND_CREATE_TOPIC, GET_ROUTEINFO_BY_TOPIC, GET_MAX_OFFSET = 17, 105, 30
#: Of a feature that no line of the program is about.
UNSAID = {"works": False, "why": "the program ended before, or never began: the first test of its features says why"}


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


@asynccontextmanager
async def started(command: list[str], place: Path, *arguments: str) -> AsyncIterator[JavaRun]:
    """The program, for as long as the block; what it prints are facts as those of Java's."""
    name, log = f"{command[0]} {arguments[0]}", place / f"{arguments[0]}.errors"
    program = await JavaRun.start(name, [*command, *arguments], log)
    try:
        yield program
    finally:
        await program.end()


async def run(command: list[str], place: Path, *arguments: str, limit: float) -> list[dict[str, Any]]:
    """The facts that the program prints until it is done."""
    async with started(command, place, *arguments) as program:
        return (await program.finish(limit=limit))[:-1]


def topic_of(name: str) -> dict[str, str]:
    """The fields that make a topic of four queues."""
    return {"topic": name, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}  # fmt: skip


def create(server: Server, topic: str) -> None:
    assert ask(server.broker, UPDATE_AND_CREATE_TOPIC, topic_of(topic))[0] == 0
    assert ask(server.nameserver, GET_ROUTEINFO_BY_TOPIC, {"topic": topic})[0] == 0


def stored(server: Server, topic: str) -> list[str]:
    """How many messages the broker has in each of the four queues, or the code that it answers with."""
    asked = [ask(server.broker, GET_MAX_OFFSET, {"topic": topic, "queueId": str(number)}) for number in range(4)]
    return [fields["offset"] if code == 0 else f"code {code}" for code, fields, _ in asked]


@pytest.mark.parametrize("client", ["go", "cpp", "node"])
async def test_send_and_consume_by_tag(
    client: str, ours: Server, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    command: list[str] = request.getfixturevalue(client)
    topic = f"tags-{client}"
    create(ours, topic)

    sent = await run(command, tmp_path, "send", ours.nameserver, topic, "m", str(COUNT), limit=120)
    assert all(one["status"] in (0, "SEND_OK") for one in sent)
    wanted = {f"m-{number}" for number in range(0, COUNT, 2)}
    if client != "node":  # whose client has no batches
        wanted.add("m-batch-0")

    arguments = ("consume", ours.nameserver, topic, f"group-{client}", "even||other", str(len(wanted)), "240")
    messages = await run(command, tmp_path, *arguments, limit=300)
    (failed,) = [one["body"] for one in messages if one["failed"]]
    consumed = {one["body"]: one for one in messages if not one["failed"]}
    assert consumed.keys() == wanted
    assert consumed[failed]["reconsumeTimes"] == 1
    for body, one in consumed.items():
        assert one["tags"] == "even"
        assert one["keys"] == f"key-{body} all"
        assert one["properties"]["from"].endswith(" grün")


@pytest.fixture(scope="session")
def said() -> dict[str, dict[str, dict[str, Any]]]:
    """Client -> feature -> what the program said of it; each ran once."""
    return {}


@pytest.mark.parametrize(
    ("client", "feature"), [(client, feature) for client in ("go", "cpp", "node") for feature in OFFERED[client]]
)
async def test_feature(
    client: str,
    feature: str,
    said: dict[str, dict[str, dict[str, Any]]],
    ours: Server,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    command: list[str] = request.getfixturevalue(client)
    if client not in said:
        said[client] = {}
        for name in OFFERED[client]:
            create(ours, f"f-{client}-{name}")
        create(ours, f"space%f-{client}-namespace")
        facts = await run(command, tmp_path, "features", ours.nameserver, ours.broker, f"f-{client}", limit=400)
        said[client] = {fact["name"]: fact for fact in facts}
    one = said[client].get(feature, UNSAID)
    topic = f"f-{client}-{feature}"
    # What the broker does not have its sender lost; what it has was not consumed.
    assert one["works"], f"{one['why']}; the broker has {stored(ours, topic)} in the queues of {topic}"
