"""A failing run is made small, and many runs say what they came by."""

from __future__ import annotations

import pytest

from aiorocket.testing.__main__ import main
from aiorocket.testing.checkers import HistoryError, Violation
from aiorocket.testing.coverage import Coverage
from aiorocket.testing.history import Event, History
from aiorocket.testing.shrinking import shrink
from aiorocket.testing.swarm import FAULTS, faults_of

BROKEN = HistoryError(History(), [Violation("order_per_queue", "as planned")])


def test_a_failure_keeps_only_the_faults_the_time_and_the_members_it_needs() -> None:
    needed = set(faults_of(19)[:2])
    runs = []

    def run(seed: int, *, only: str, seconds: float, members: int) -> None:
        runs.append(only)
        if needed <= set(only.split()) and not 0 < seconds < 25 and members != 1:
            raise BROKEN
        if seconds:
            raise RuntimeError("something else")

    small = shrink(19, BROKEN, run)
    assert set(small.faults) == needed and (small.seconds, small.members) == (30.0, 2)
    command = "python -m aiorocket.testing --scenario swarm --seed 19 --only"
    assert small.command == f'{command} "{" ".join(small.faults)}" --seconds 30 --members 2'
    assert len(runs) <= 24


def test_a_failing_seed_of_swarm_is_printed_small(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(seed: int, **options: object) -> None:
        raise BROKEN

    monkeypatch.setattr("aiorocket.testing.__main__.swarm", run)
    monkeypatch.setattr("aiorocket.testing.__main__.shrink", lambda seed, error: shrink(seed, error, run))
    assert main(["--scenario", "swarm", "--seed", "4"]) == 1
    said = capsys.readouterr().out
    assert "--scenario swarm --seed 4 --only" in said and "--seconds 15 --members 1" in said
    assert main(["--scenario", "swarm", "--seed", "4", "--only", "weather"]) == 2
    assert "weather" in capsys.readouterr().err


def test_coverage_tells_lives_states_and_faults_that_never_met() -> None:
    coverage = Coverage(["cut", "late", "pause"])
    events = [
        Event(1, "P", "sent", "a"),
        Event(2, "P", "acknowledged", "a"),
        Event(3, "A", "delivered", "a", attempt=2),
    ]
    coverage.add(History(events=events), ["cut", "pause"])
    coverage.add(History(events=events), ["late"])
    text = coverage.text()
    assert "1 different lives of 2 messages in 2 runs" in text and "delivered, attempt 2 2" in text
    assert "1 of 3 pairs" in text and "cut and late, late and pause" in text
    assert {"cut", "late", "pause"} <= FAULTS.keys()
