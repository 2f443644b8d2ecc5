"""kill -9 in the middle of appends and checkpoints, again and again on one store: what was told is there each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.test_crash import told_is_there_after_kills

pytestmark = pytest.mark.harness


@pytest.mark.parametrize("flush", ["sync", "async"])
async def test_forty_kills_of_a_store(tmp_path: Path, flush: str) -> None:
    await told_is_there_after_kills(str(tmp_path), flush, 40, 0.1)
