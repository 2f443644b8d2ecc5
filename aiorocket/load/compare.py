"""Two results side by side, with intervals that say whether a difference is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import NormalDist, fmean, variance
from typing import Any, NamedTuple

from aiorocket.errors import ConfigError

__all__ = ("Difference", "compare")

#: Name in a run -> (what it is called, whether more is better).
_FIGURES = {
    "acknowledged_per_s": ("sent/s", True),
    "received_per_s": ("received/s", True),
    "send_p50_ms": ("send p50 ms", False),
    "send_p99_ms": ("send p99 ms", False),
    "end_to_end_p99_ms": ("end to end p99 ms", False),
    "generator_cpu_us": ("generator CPU us/message", False),
}


class Difference(NamedTuple):
    """``low`` to ``high``: the interval in which ``second - first`` lies with 95 % confidence, in the figure's unit.
    ``word``: better, worse, or alike when the interval holds 0; "one run" when there is nothing to estimate it from."""

    figure: str
    first: float
    second: float
    low: float
    high: float
    word: str


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """Welch's interval over the runs of two results. ConfigError when they are none."""
    found = []
    for name, (title, more) in _FIGURES.items():
        one, two = _samples(first, name), _samples(second, name)
        if not one or not two:
            continue
        change = fmean(two) - fmean(one)
        margin = _margin(one, two)
        if margin is None:
            found.append(Difference(title, fmean(one), fmean(two), change, change, "one run"))
            continue
        low, high = change - margin, change + margin
        word = "alike" if low <= 0 <= high else "better" if (change > 0) == more else "worse"
        found.append(Difference(title, fmean(one), fmean(two), low, high, word))
    return found


def _samples(result: Mapping[str, Any], name: str) -> list[float]:
    try:
        return [float(run["figures"][name]) for run in result["runs"] if run["figures"].get(name) is not None]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"not a result of aiorocket bench: {error!r}") from None


def _margin(one: Sequence[float], two: Sequence[float]) -> float | None:
    if len(one) < 2 or len(two) < 2:
        return None
    parts = variance(one) / len(one), variance(two) / len(two)
    whole = sum(parts)
    if whole == 0:
        return 0.0
    degrees = whole**2 / (parts[0] ** 2 / (len(one) - 1) + parts[1] ** 2 / (len(two) - 1))
    return _student(degrees) * sqrt(whole)


def _student(degrees: float) -> float:
    """The 97.5 % point of Student's t: the normal one's with the first terms of its expansion, from 4 degrees on within
    1 %; below, the exact ones."""
    exact = {1: 12.706, 2: 4.303, 3: 3.182}
    if degrees < 4:
        return exact[max(1, int(degrees))]
    z = NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
