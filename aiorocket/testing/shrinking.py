"""A failing run of ``swarm`` made small: fewer kinds of faults, fewer members, less time, as long as it still breaks
the same rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from aiorocket.testing.checkers import HistoryError
from aiorocket.testing.swarm import faults_of, swarm

__all__ = ("Small", "shrink")

#: Below this nothing happens any more.
_SHORTEST = 10.0


class Small(NamedTuple):
    """A run of ``swarm`` as its arguments; zeros where the seed decides."""

    seed: int
    faults: tuple[str, ...]
    seconds: float = 0.0
    members: int = 0

    @property
    def command(self) -> str:
        """What to type to see it."""
        parts = [f'python -m aiorocket.testing --scenario swarm --seed {self.seed} --only "{" ".join(self.faults)}"']
        parts += [f"--seconds {self.seconds:g}"] * bool(self.seconds) + [f"--members {self.members}"] * bool(
            self.members
        )
        return " ".join(parts)


def shrink(seed: int, error: Exception, run: Callable[..., Any] = swarm, most: int = 24) -> Small:
    """The smallest run found in ``most`` tries that fails as ``error`` does, with which ``run(seed)`` ended."""
    wanted = _kinds(error)
    small = Small(seed, tuple(faults_of(seed)))
    tries = 0
    found = True
    while found:
        found = False
        for smaller in _smaller(small):
            tries += 1
            if tries > most:
                return small
            if wanted & _end(run, smaller):
                small, found = smaller, True
                break
    return small


def _smaller(run: Small) -> Iterator[Small]:
    if len(run.faults) > 1:
        for fault in run.faults:
            yield run._replace(faults=tuple(each for each in run.faults if each != fault))
    seconds = (run.seconds or 240.0) / 2
    if seconds >= _SHORTEST:
        yield run._replace(seconds=seconds)
    if run.members != 1:
        yield run._replace(members=(run.members or 3) - 1)


def _end(run: Callable[..., Any], small: Small) -> set[str]:
    try:
        run(small.seed, only=" ".join(small.faults), seconds=small.seconds, members=small.members)
    except Exception as error:  # noqa: BLE001 - whatever it dies of, it is compared with what the first one died of
        return _kinds(error)
    return set()


def _kinds(error: Exception) -> set[str]:
    """The rules that a history broke, or what else ended a run."""
    if isinstance(error, HistoryError):
        return {violation.rule for violation in error.violations}
    return {type(error).__name__}
