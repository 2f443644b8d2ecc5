"""CPU time of Spark's processes: neighbours on the machine disturb it less than they do the clock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bench.processes import TICKS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ("jvm", "own", "with_workers")


def jvm(spark: SparkSession) -> int:
    """The process id of its driver, which with a ``local`` master runs all tasks."""
    process: int = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]  # Spark keeps it nowhere public
    return process


def own(process: int) -> float:
    """Seconds of all its threads so far; 0.0 when it has ended, and where there is no /proc."""
    return sum(_times(process)[1:3])


def with_workers(process: int) -> tuple[float, float]:
    """Its own seconds, and those of all processes below it, of which Spark's daemon has waited for the ended."""
    below: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        below.setdefault(int(_times(int(path.name))[0]), []).append(int(path.name))
    seconds, found = 0.0, list(below.get(process, ()))
    for each in found:
        seconds += sum(_times(each)[1:])
        found += below.get(each, ())
    return own(process), seconds


def _times(process: int) -> tuple[float, ...]:
    """Its parent, then user and system time, and those of its children that it has waited for."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return (0.0,) * 5
    return (int(fields[1]), *(int(field) / TICKS for field in fields[11:15]))
