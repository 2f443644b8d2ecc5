"""Our client on Apache's older line: what the other tests show on the newest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop import test_consumers as consumers
from tests.interop import test_dead_letters as dead_letters
from tests.interop import test_queries as queries
from tests.interop import test_smoke as smoke
from tests.interop import test_transactions as transactions
from tests.interop.peers import Command, JavaClient, Server

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


async def test_send_consume_retry(java: JavaClient, request: pytest.FixtureRequest) -> None:
    await smoke.test_send_consume_retry("apache_older", "ours", "ours", java, request)


async def test_everybody_in_a_broadcasting_group_gets_everything(
    apache_older: Server, java: JavaClient, tmp_path: Path
) -> None:
    await consumers.test_everybody_in_a_broadcasting_group_gets_everything(apache_older, java, tmp_path)


@pytest.fixture
def server(apache_older: Server) -> Server:
    """Where ``mqadmin`` asks."""
    return apache_older


async def test_traces(server: Server, mqadmin: Command) -> None:
    await queries.test_mqadmin_reads_our_message_trace(server, mqadmin)


async def test_sql_filters(apache_older: Server) -> None:
    await consumers.test_our_sql_filters(apache_older)


async def test_transactions_with_check_back(request: pytest.FixtureRequest) -> None:
    await transactions.test_our_transactions(request, "apache_older")


async def test_dead_letters(apache_older: Server) -> None:
    await dead_letters.test_dead_letters_are_read_and_replayed_once(apache_older)
