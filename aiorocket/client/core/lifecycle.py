"""Start and stop of a client, a producer and a consumer as one table; a missing entry is the error."""

from __future__ import annotations

from enum import Enum
from typing import Final

from aiorocket.errors import UsageError

__all__ = ("Lifecycle", "State")


class State(Enum):
    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


_TABLE: Final[dict[tuple[State, str], State]] = {
    (State.NEW, "start"): State.STARTING,
    (State.STARTING, "started"): State.RUNNING,
    (State.STARTING, "stop"): State.STOPPING,
    (State.STARTING, "failed"): State.STOPPING,
    # Stopped while it was starting: the start fails by that, and cleans up.
    (State.STOPPING, "failed"): State.STOPPING,
    (State.RUNNING, "stop"): State.STOPPING,
    (State.STOPPING, "stopped"): State.STOPPED,
    # Stopping what never started, or twice, is what every `finally` does; it is allowed and does nothing.
    (State.NEW, "stop"): State.STOPPED,
    (State.STOPPED, "stop"): State.STOPPED,
    # So is doing it from two places, as a signal's handler and a `with` block do: the second waits for the first.
    (State.STOPPING, "stop"): State.STOPPING,
}

_ADVICE: Final[dict[State, str]] = {
    State.NEW: "is not started: use 'async with' or await start() first",
    State.STARTING: "is still starting",
    State.RUNNING: "is already running",
    State.STOPPING: "is stopping",
    State.STOPPED: "was stopped and is used up: make a new one",
}


class Lifecycle:
    """One-shot: new, starting, running, stopping, stopped. ``what`` names the owner in errors."""

    __slots__ = ("state", "what")

    def __init__(self, what: str) -> None:
        self.what = what
        self.state = State.NEW

    def move(self, event: str) -> State:
        """Apply ``event`` (start, started, failed, stop, stopped) and return the new state; UsageError when it does not
        fit."""
        target = _TABLE.get((self.state, event))
        if target is None:
            raise UsageError(f"{self.what} {_ADVICE[self.state]}")
        self.state = target
        return target

    @property
    def running(self) -> bool:
        return self.state is State.RUNNING

    def need_running(self) -> None:
        """UsageError unless running."""
        if self.state is not State.RUNNING:
            raise UsageError(f"{self.what} {_ADVICE[self.state]}")
