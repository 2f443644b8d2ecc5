"""Faults drawn from seeds, proof that the checkers would notice, and the command that replays a seed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

import aiorocket
from aiorocket.broker.core.locks import LockTable
from aiorocket.client.core.balance import STRATEGIES
from aiorocket.client.core.process_queue import ProcessQueue
from aiorocket.client.exits import Retry
from aiorocket.client.message import Message
from aiorocket.config import BrokerConfig, StoreConfig
from aiorocket.testing import (
    HistoryError,
    SimCluster,
    Simulation,
    chaos,
    check,
    checkers,
    simulate,
)
from aiorocket.testing.__main__ import main
from tests.sim.under_faults import holds

#: Where the package under test lies.
ROOT = Path(aiorocket.__file__).parents[1]


@pytest.mark.seeds(20)  # and three times as many in harness/test_chaos.py
def test_what_is_promised_holds_under_faults(seed: int) -> None:
    holds(seed)


# -- the checkers notice --


def test_a_commit_that_runs_ahead_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProcessQueue, "committable", lambda self: self.next_offset)
    with pytest.raises(HistoryError) as caught:
        chaos(1, hours=0.1, scenario="members")
    assert "commits_never_ahead" in {violation.rule for violation in caught.value.violations}


def test_a_broker_that_acknowledges_before_the_disk_has_it_is_found() -> None:
    """It is ``flush="async"``, whose promise is smaller: after a power cut acknowledged messages are missing, or their
    offsets belong to others."""
    store = StoreConfig(segment_size=256 * 1024, min_free=256 * 1024, flush="async")

    async def scenario(sim: Simulation) -> None:
        async with SimCluster(sim, broker=BrokerConfig(store=store)) as cluster:
            await cluster.create_topic("t", 1)
            await cluster.consumer("g", "t")
            sender = await cluster.producer()
            for round_ in range(5):
                for number in range(50):
                    await sender.send("t", f"m{round_}-{number}")
                await cluster.brokers[0].restart(power_cut=True)
            await asyncio.sleep(60)
        check(cluster.history, checkers.CLUSTER)

    with pytest.raises(HistoryError) as caught:
        simulate(scenario)
    assert {violation.rule for violation in caught.value.violations} & {"no_message_lost", "offsets_stable"}


def test_a_send_back_that_is_answered_and_not_stored_is_found() -> None:
    async def scenario(sim: Simulation) -> None:
        async def fail_once(message: Message) -> None:
            if message.attempt == 1:
                raise Retry

        async with SimCluster(sim) as cluster:
            await cluster.create_topic("t", 1)
            cluster.brokers[0].faults.next("CONSUMER_SEND_MSG_BACK", reply="SUCCESS")
            await cluster.consumer("g", "t", fail_once)
            sender = await cluster.producer()
            for number in range(3):
                await sender.send("t", f"m{number}")
            await cluster.settled({"g": ["t"]})
        check(cluster.history, checkers.CLUSTER)

    with pytest.raises(HistoryError, match="no_message_lost: m0 was acknowledged and group g never finished it"):
        simulate(scenario)


@pytest.mark.parametrize("forgets", [False, True])
def test_a_broker_that_forgets_its_locks_when_it_restarts_is_found(
    forgets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Apache's does: the member that the broker cannot see any more still trusts its lease."""
    if forgets:
        start = LockTable.start
        monkeypatch.setattr(LockTable, "load", lambda self, data: None)
        monkeypatch.setattr(LockTable, "start", lambda self, now, *, lost, floor: start(self, now, lost=False, floor=0))

    async def scenario(sim: Simulation) -> None:
        async def work(message: Message) -> None:
            await asyncio.sleep(1)

        async with SimCluster(sim) as cluster:
            broker = cluster.brokers[0]
            await cluster.create_topic("t", 4)
            sender = await cluster.producer()
            members = [await cluster.consumer("g", "t", work, orderly=True) for _ in range(2)]
            await asyncio.sleep(70)
            for number in range(200):
                await sender.send("t", f"m{number}")
            cluster.partition([members[0].address], [broker.address])
            await broker.restart(power_cut=True, pause=0.5)
            await asyncio.sleep(100)
            cluster.heal()
            await cluster.settled({"g": ["t"]})
        check(cluster.history, [*checkers.CLUSTER, lambda history: checkers.one_at_a_time(history, "g")])

    if not forgets:
        simulate(scenario)
        return
    with pytest.raises(HistoryError) as caught:
        simulate(scenario)
    assert {violation.rule for violation in caught.value.violations} >= {"leases_exclusive", "one_at_a_time"}


def test_a_queue_of_two_owners_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES, "AVG", lambda queues, client_ids, me: list(queues))
    with pytest.raises(HistoryError, match=r"every_queue_owned_once: .* is held by \['10.1.0.1', '10.1.0.2'\]"):
        chaos(0, hours=0.05, scenario="calm", consumers=2)


# -- the commands --


def test_the_command_counts_what_held(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    assert main(["--seed", "3", "--hours", "0.02", "--scenario", "network", "--history", str(history)]) == 0
    text = capsys.readouterr().out
    assert "seed 3 network: held" in text
    assert "1 runs held, 0 failed; 0.02 cluster-hours" in text
    assert history.read_text().count("\n") > 50


def test_a_seed_that_fails_says_how_to_see_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ProcessQueue, "committable", lambda self: self.next_offset)
    assert main(["--seeds", "2", "--hours", "0.1", "--scenario", "members", "--first", "1", "--fail-fast"]) == 1
    text = capsys.readouterr().out
    assert "seed 1 members: FAILED" in text
    assert "replay: python -m aiorocket.testing --scenario members --hours 0.1 --seed 1" in text
    assert "commits_never_ahead: group" in text
    assert "0 runs held, 1 failed" in text
    arguments = text.partition("-m aiorocket.testing ")[2].partition("\n")[0].split()
    history = tmp_path / "history.jsonl"
    assert main([*arguments, "--history", str(history)]) == 1
    assert '"op": "committed"' in history.read_text()


def test_a_failing_seed_of_a_test_prints_the_command_that_runs_it_again(tmp_path: Path) -> None:
    (tmp_path / "test_odd.py").write_text(
        "import pytest\n\n\n@pytest.mark.seeds(4)\ndef test_even(seed):\n    assert seed != 2, f'seed {seed}'\n"
    )

    def run(command: str) -> str:
        found = {
            "PYTHONPATH": f"{ROOT}:{ROOT / 'protocol'}",
            "PYTEST_ADDOPTS": "-p tests.conftest",
            "AIOROCKET_SEEDS": "200",
        }
        done = subprocess.run(
            command, shell=True, cwd=tmp_path, env={**os.environ, **found}, capture_output=True, text=True, timeout=140
        )
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stdout

    python = f"{sys.executable} -m pytest"
    said = run(python)
    assert "1 failed, 3 passed" in said
    [again] = [line for line in said.splitlines() if "python -m pytest " in line]
    assert again == "AIOROCKET_SEEDS=200 python -m pytest 'test_odd.py::test_even[2]'"
    said = run(again.replace("python -m pytest", python))
    assert "seed 2" in said and "1 failed" in said and "passed" not in said


def test_bad_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0"]) == 2
    assert "at least 1" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["--scenario", "weather"])
    assert caught.value.code == 2
    with pytest.raises(ValueError, match="weather"):
        chaos(0, scenario="weather")


def test_a_seed_gives_the_same_history_in_every_process(tmp_path: Path) -> None:
    """Also when sets of text iterate in another order."""
    texts = []
    for number in range(2):
        file = tmp_path / f"{number}.jsonl"
        done = subprocess.run(
            [sys.executable, "-m", "aiorocket.testing", "--seed", "5", "--hours", "0.1", "--history", str(file)],
            env={**os.environ, "PYTHONHASHSEED": str(number), "PYTHONPATH": f"{ROOT}:{ROOT / 'protocol'}"},
            cwd=tmp_path, capture_output=True, text=True, timeout=140,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        texts.append(file.read_text())
    assert texts[0] == texts[1]
