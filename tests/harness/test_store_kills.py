"""kill -9 in the middle of appends and checkpoints, again and again on one store: what was told is there each time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from aiorocket.runtime.env import real_env
from tests.storage.stores import everything, opened
from tests.storage.test_crash import write_until_killed

pytestmark = pytest.mark.harness


@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_forty_kills_of_a_store(tmp_path: Path, flush: str) -> None:
    draw = random.Random(flush)
    told: dict[tuple[int, int], int] = {}
    env = real_env()
    for _ in range(40):
        for queue_id, offset, place in write_until_killed(str(tmp_path), flush, draw.random() * 0.1):
            assert (queue_id, offset) not in told, "an offset was given twice"
            told[queue_id, offset] = place
        store = await opened(env, str(tmp_path))
        found = {
            (queue_id, view.queue_offset): view.physical_offset
            for queue_id in range(3)
            for view in everything(store, "T", queue_id, step=500)
        }
        assert told.items() <= found.items()
        told = found
        await store.close()
    await env.disk.close()
