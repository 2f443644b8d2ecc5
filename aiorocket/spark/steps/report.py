"""What a step did, in numbers that can be checked: the report that drivers return, and their progress on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from aiorocket.model import Queue

__all__ = ("Progress", "ProgressCall", "StepReport", "waiting")


class Progress(NamedTuple):
    """One line of progress. ``total_rows`` is None where nobody can know it (a step that follows a topic). One that
    ``waits`` is about another run's claim, before the step begins."""

    step: str
    done_rows: int
    total_rows: int | None
    text: str
    waits: bool = False


#: What a driver calls with each piece of progress, in its caller's thread or in a thread of Spark's.
ProgressCall = Callable[[Progress], object]


def waiting(step: str, on_progress: ProgressCall | None) -> Callable[[str], object]:
    """Progress of ``step`` while it waits for a claim."""
    return lambda text: None if on_progress is None else on_progress(Progress(step, 0, None, text, waits=True))


@dataclass(frozen=True)
class StepReport:
    """The outcome of one run of a step.

    ``ranges`` holds the offsets ``[begin, end)`` of each queue that this run is answerable for, ``missing`` how many
    rows of them are not there (queues with nothing missing are left out), ``files`` the files written, as paths
    relative to the archive, ``seconds`` how long the run took. What only one step has to say is in ``details``.
    """

    step: str
    rows_in: int
    rows_out: int
    ranges: Mapping[Queue, tuple[int, int]] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    seconds: float = 0.0
    missing: Mapping[Queue, int] = field(default_factory=dict)
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether no row is missing."""
        return not any(self.missing.values())

    def as_dict(self) -> dict[str, object]:
        """The report as plain values that ``json.dumps`` takes; queues become lists in sorted order."""
        return {
            "step": self.step,
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "seconds": round(self.seconds, 3),
            "complete": self.complete,
            "ranges": [[*queue, *self.ranges[queue]] for queue in sorted(self.ranges)],
            "missing": [[*queue, self.missing[queue]] for queue in sorted(self.missing)],
            "files": list(self.files),
            "details": dict(self.details),
        }
