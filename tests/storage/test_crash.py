"""kill -9 of a real process in the middle of its appends: what it had told its parent is there, with the offsets it
told."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aiorocket.runtime.env import real_env
from tests.storage.stores import everything, opened

ROOT = Path(__file__).parents[2]

WRITER = """
import asyncio, os, sys
sys.path[:0] = [{root!r}, {protocol!r}]
from aiorocket.runtime.env import real_env
from tests.storage.stores import opened, put

async def main():
    store = await opened(real_env(), {directory!r}, flush={flush!r}, segment_size=1 << 18, checkpoint_interval=0.02)
    number = 0
    lines = []
    while True:
        pending = []
        for _ in range(20):
            number += 1
            future = put(store, "T", number % 3, b"%d|" % number * (1 + number % 300))
            pending.append((number % 3, future))
        for queue_id, future in pending:
            result = await future
            lines.append(b"%d %d %d\\n" % (queue_id, result.queue_offset, result.physical_offset))
        os.write(1, b"".join(lines))
        lines.clear()

asyncio.run(main())
"""


def write_until_killed(directory: str, flush: str, seconds: float) -> list[tuple[int, int, int]]:
    code = WRITER.format(root=str(ROOT), protocol=str(ROOT / "protocol"), directory=directory, flush=flush)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    first = process.stdout.readline()  # it is up and has stored something
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read()
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL, "the writer ended by itself"
    whole = (first + rest).rpartition(b"\n")[0]
    told = [tuple(map(int, line.split())) for line in whole.split(b"\n") if line]
    return [(queue_id, offset, place) for queue_id, offset, place in told]


async def told_is_there_after_kills(path: str, flush: str, kills: int, seconds: float) -> None:
    """A writer on one store is killed again and again, after up to ``seconds``: what it was told is there each time."""
    draw = random.Random(flush)
    told: dict[tuple[int, int], int] = {}
    env = real_env()
    for _ in range(kills):
        for queue_id, offset, place in write_until_killed(path, flush, draw.random() * seconds):
            assert (queue_id, offset) not in told, "an offset was given twice"
            told[queue_id, offset] = place
        store = await opened(env, path)
        recovery = store.recovery
        assert not recovery.clean and not recovery.rebuilt
        found = {
            (queue_id, view.queue_offset): view.physical_offset
            for queue_id in range(3)
            for view in everything(store, "T", queue_id, step=500)
        }
        assert told.items() <= found.items()
        told = found
        await store.close()
    await env.disk.close()


@pytest.mark.crash
@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_what_was_told_before_a_kill_is_there(tmp_path: Path, flush: str) -> None:
    await told_is_there_after_kills(str(tmp_path), flush, 5, 0.25)
