"""The program of ``docs/growing.md`` in a cluster of Apache's brokers: two masters and a slave, two name servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from aiorocket import PullConsumer
from tests.harness.test_growing import BILLED, program, said
from tests.interop.peers import NEWEST
from tests.interop.test_cluster import cluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


async def test_only_the_address_changes(tmp_path: Path) -> None:
    program(tmp_path)
    with cluster(NEWEST, tmp_path) as apaches:
        nameservers = ";".join(apaches.nameservers)
        assert await said(tmp_path, "program.py", nameservers) == BILLED
        async with PullConsumer("look", nameservers=nameservers) as look:
            assert {each.broker_name for each in await look.queues("orders")} == {"broker-a", "broker-b"}
