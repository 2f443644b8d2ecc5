"""A few random kills, with what ``kills.py`` counts after each; hundreds by its command."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from aiorocket.spark import bridge
from aiorocket.testing import broker_thread
from tests.interop.peers import missing_programs
from tests.spark.driver_kills import DriverKilling
from tests.spark.kills import ASKING, Killing, s3_environment, s3a_conf
from tests.spark.test_object_store import jars, s3


@pytest.mark.spark_long
@pytest.mark.timeout(900)
def test_no_row_is_lost_or_doubled_by_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Delta archive in S3: the claim of who was killed is taken over as well."""
    pytest.importorskip("moto", reason="the extra dev is not installed")
    if missing := missing_programs():
        pytest.skip(missing)
    with s3("lake", tmp_path / "moto") as address, broker_thread(broker=ASKING) as server:
        environment = s3_environment(address)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        try:
            told: list[str] = []
            conf = s3a_conf(address, jars())
            killing = Killing(server.nameserver_address, "s3://lake", "delta", environment, conf, told.append)
            found = killing.run(2, seed=5, took=9.0)  # in the sink, and in a compaction
        finally:
            bridge.close()
    assert all("'archived': 0" not in each for each in told), told
    assert found["kills"] == 2 and found["once"] == found["archived"] == 3 * 40


@pytest.mark.spark_long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("store", "format", "kills"), [("disk", "parquet", 17), ("disk", "delta", 17), ("s3", "delta", 16)]
)
def test_no_row_is_lost_or_doubled_by_kills_of_drivers(
    store: str, format: str, kills: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty, of what does without a JVM."""
    with ExitStack() as stack:
        server = stack.enter_context(broker_thread(broker=ASKING))
        stack.callback(bridge.close)
        place, environment = str(tmp_path), dict[str, str]()
        if store == "s3":
            pytest.importorskip("moto", reason="the extra dev is not installed")
            place, environment = "s3://lake", s3_environment(stack.enter_context(s3("lake", tmp_path / "moto")))
            for name, value in environment.items():
                monkeypatch.setenv(name, value)
        killing = DriverKilling(server.nameserver_address, place, format, environment, tell=lambda line: None)
        found = killing.run(kills, seed=7)
    assert found["kills"] == kills and found["rows"] == (kills + 2) * 40
