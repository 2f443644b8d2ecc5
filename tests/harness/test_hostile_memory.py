"""What hostile peers make servers keep: their limits, and 64 MiB."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.hostile_memory import ATTACKS, run
from tests.interop.peers import our_server

pytestmark = pytest.mark.harness


def test_memory_stays_within_the_limits_under_every_attack(tmp_path: Path) -> None:
    """All at the same two servers: what one leaves behind is there for the next."""
    with our_server(tmp_path) as server:
        for attack in ATTACKS:
            found = run(server, attack)
            assert found.is_well, (attack.__name__, found)
