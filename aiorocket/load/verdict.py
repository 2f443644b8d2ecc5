"""Load generator, machine or broker: who set the limit, and by what it is known."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ("Verdict", "verdict")

#: A generator's process that is busy for so much of a core cannot send more.
_FULL = 0.85
#: Milliseconds that a busy generator's loop is late: its latencies are then its own.
_LATE = 20.0
#: Of all cores.
_MACHINE_FULL = 0.92
#: What counts as having reached the rate that was asked for.
_REACHED = 0.98


class Verdict(NamedTuple):
    """``limit``: "load generator", "machine", "broker" or "none"."""

    limit: str
    why: str


def verdict(
    *, wanted: float, reached: float, cpu: float, lag_ms: float, machine: float | None, processes: int
) -> Verdict:
    """``wanted`` and ``reached``: messages a second, ``wanted`` 0 in a closed loop. Of the busiest generator: ``cpu``
    of a core; ``lag_ms``, 99 % of its loop's turns were no later. ``machine``: busy share of all cores, None when it is
    unknown."""
    behind = wanted > 0 and reached < wanted * _REACHED
    used = f"{cpu:.0%} of a core"
    late = f"its loop was up to {lag_ms:.1f} ms late"
    if (cpu >= _FULL or (lag_ms > _LATE and cpu >= 0.5)) and (behind or not wanted):
        return Verdict("load generator", f"a process of it used {used}, {late}: give more --processes than {processes}")
    if machine is not None and machine >= _MACHINE_FULL:
        return Verdict("machine", f"its cores were {machine:.0%} busy: put the load on another one")
    if lag_ms > _LATE:
        return Verdict("machine", f"the generator used {used}, and {late}: something else has the cores")
    if behind:
        why = f"{reached:,.0f} of {wanted:,.0f} messages a second, with a generator at {used}: it waited for answers"
        return Verdict("broker", why)
    if wanted:
        return Verdict("none", f"the rate of {wanted:,.0f} messages a second was reached, nothing was full")
    return Verdict("broker", f"the generator used {used} and waited; more in flight tells whether there is more")
