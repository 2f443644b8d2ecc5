"""Thousands of simulated power cuts, days of a store, features and runs where few faults meet, and proof that these
find what is broken."""

from __future__ import annotations

import pytest

from aiorocket.testing.features import features
from aiorocket.testing.power_cuts import power_cuts
from aiorocket.testing.store_days import store_days
from aiorocket.testing.swarm import swarm
from tests.sim.breakages import BREAKAGES, FOUND, NAMED, SEEDS, apply, seeds_until_found

pytestmark = [
    pytest.mark.harness,
    pytest.mark.timeout(900),
    # A killed process's coroutine that held a lock is collected when its loop is closed.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

#: Breakages that cost little to find again; the others are found by the command. Seeds mean something else whenever the
#: code changes, so the one that found it the last time is only the first that is tried.
QUICK = [name for name, seeds in FOUND.items() if seeds <= (2 if BREAKAGES[name].run is swarm else 4)]


@pytest.mark.parametrize("block", range(8))  # so that every core has some
def test_twenty_thousand_power_cuts(block: int) -> None:
    for seed in range(50 * block, 50 * block + 50):
        assert power_cuts(seed) > 0


def test_a_store_is_what_it_was_told() -> None:
    for seed in range(1000, 1060):
        assert store_days(seed) > 0


def test_what_came_of_each_feature_is_what_was_asked_for() -> None:
    for seed in range(100, 140):
        assert features(seed) > 20


@pytest.mark.parametrize("seed", range(100, 110))
def test_what_is_promised_holds_where_few_faults_meet(seed: int) -> None:
    report = swarm(seed)
    assert report.delivered >= report.acknowledged > 50


def test_every_breakage_fits_the_code() -> None:
    assert FOUND.keys() <= BREAKAGES.keys()
    assert len(FOUND) >= 100 and max(FOUND.values()) <= SEEDS
    for breakage in BREAKAGES.values():
        with pytest.MonkeyPatch.context() as patch:
            apply(patch, breakage)


@pytest.mark.parametrize("name", [*NAMED, *(name for name in QUICK if name not in NAMED)])
def test_a_breakage_is_found(name: str) -> None:
    found = seeds_until_found(BREAKAGES[name], [FOUND[name] - 1])
    assert found is not None, f'again: python -m tests.sim.breakages "{name}"'
