"""aiorocket store: what verify says, repair mends, dump shows and salvage takes along."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from aiorocket.cli.main import cli
from aiorocket.runtime.disk import RealDisk
from aiorocket.runtime.env import real_env
from aiorocket.storage import Snapshot
from aiorocket.storage.checksums import FORMAT
from tests.storage.stores import bodies, intact, opened, put


def called(*words: object) -> Result:
    return CliRunner().invoke(cli, ["store", *map(str, words)])


async def fill(directory: Path) -> None:
    env = real_env()
    store = await opened(env, str(directory))
    for number in range(60):
        await put(store, "T", number % 2, b"%d." % number * 800, tag="A")
    await store.close()
    await env.disk.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A closed store of 60 messages in two queues over three segments, with a state file beside it."""
    directory = tmp_path / "data"
    asyncio.run(fill(directory))
    (directory / "config").mkdir()
    Snapshot(RealDisk(), str(directory / "config" / "offsets")).save({"offsetTable": {}})
    return directory


def log_file(data: Path, number: int = 0) -> Path:
    return sorted(path for path in (data / "commitlog").iterdir() if path.suffix != ".sums")[number]


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def found_in(directory: Path) -> list[dict[int, bytes]]:
    async def read() -> list[dict[int, bytes]]:
        env = real_env()
        store = await opened(env, str(directory))
        found = [intact(store, "T", queue_id) for queue_id in (0, 1)]
        await store.close()
        await env.disk.close()
        return found

    return asyncio.run(read())


def test_a_whole_store(data: Path) -> None:
    result = called("verify", data)
    assert result.exit_code == 0 and "60 records in 2 queues" in result.output and "nothing is damaged" in result.output
    shown = [json.loads(line) for line in called("dump", data, "--topic", "T", "--queue", 1).output.splitlines()]
    assert [row["offset"] for row in shown] == list(range(30))
    assert shown[0]["body"] == "1." * 800 and shown[0]["properties"] == {"TAGS": "A"}
    assert len(called("dump", data, "--limit", 3).output.splitlines()) == 3


@pytest.mark.parametrize(
    "words",
    ["store verify", "store repair", "broker --port 0 --nameserver 127.0.0.1:1 --data"],
    ids=lambda words: words[:12],
)
def test_a_newer_store_is_refused_in_words_and_left_as_it_is(data: Path, words: str) -> None:
    checkpoint = Snapshot(RealDisk(), str(data / "checkpoint"))
    checkpoint.save({**(checkpoint.load() or {}), "format": FORMAT + 1})
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file() and path.name != "lock"}
    result = CliRunner().invoke(cli, [*words.split(), str(data)])
    assert result.exit_code == 1 and f"the store has format {FORMAT + 1}, this program knows up to" in result.output
    assert {path: path.read_bytes() for path in before} == before


def test_damage_is_named_and_what_is_lost(data: Path) -> None:
    flip(log_file(data), 5_000)
    result = called("verify", data)
    assert result.exit_code == 1
    assert f"{log_file(data)}: log offsets 3398 to 5097: " in result.output
    assert "lost: topic T queue 0 offset 1 (1)" in result.output
    said = json.loads(called("verify", data, "--json").output)
    assert said["lost"] == 1 and said["findings"][0]["kind"] == "log"
    assert "1 message lost" in called("repair", data).output
    found = found_in(data)
    assert sorted(found[0]) == [0, *range(2, 30)] and len(found[1]) == 30


@pytest.mark.parametrize("what", ["units", "queue file", "sums", "checkpoint", "checkpoints", "state", "states"])
def test_what_is_derived_or_kept_twice_is_mended(data: Path, what: str) -> None:
    queue = data / "consumequeue" / "T" / "1" / ("0" * 20)
    if what == "units":
        flip(queue, 205)
    elif what == "queue file":
        queue.unlink()
    elif what == "sums":
        Path(f"{log_file(data)}.sums").unlink()
    elif what == "checkpoint":
        flip(data / "checkpoint.a", 70)
    elif what == "checkpoints":
        for name in "ab":
            flip(data / f"checkpoint.{name}", 70)
    else:
        snapshot = Snapshot(RealDisk(), str(data / "config" / "offsets"))
        snapshot.load()
        snapshot.save({"offsetTable": {"T@g": {"0": 1}}})
        for name in "ab" if what == "states" else "a":
            flip(data / "config" / f"offsets.{name}", 30)
    assert called("verify", data).exit_code == 1
    result = called("repair", data)
    assert result.exit_code == 0 and "0 messages lost" in result.output
    again = called("verify", data)
    assert again.exit_code == 0 or what == "sums", again.output
    assert [len(found) for found in found_in(data)] == [30, 30]


def test_salvage_keeps_queue_offsets_and_leaves_the_old_store_alone(data: Path, tmp_path: Path) -> None:
    flip(log_file(data), 5_000)
    os.unlink(log_file(data, 1))
    flip(data / "config" / "offsets.a", 30)
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    target = tmp_path / "new"
    result = called("salvage", data, target)
    assert result.exit_code == 0, result.output
    assert f"{data}/config/offsets.a: the checksum does not fit" in result.output
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before
    assert called("verify", target).exit_code == 0
    new = found_in(target)
    called("repair", data)
    assert new == found_in(data) and 0 < len(new[0]) < 29
    assert (target / "config" / "offsets.b").exists()
    refused = called("salvage", data, target)
    assert refused.exit_code == 1 and "is not empty" in refused.output


async def test_a_store_in_use_or_no_store_is_refused(data: Path, tmp_path: Path) -> None:
    env = real_env()
    store = await opened(env, str(data))
    assert len(bodies(store, "T", 0)) == 30
    for command in ("verify", "repair", "dump"):
        result = called(command, data)
        assert result.exit_code == 1 and "another broker uses this directory" in result.output
    await store.close()
    await env.disk.close()
    said = called("verify", tmp_path).output
    assert "has no commitlog" in said and f"these are: {data}" in said  # as under standalone --brokers
