"""What a loop does not cover, bundled: wall clock, randomness, files. Constructors take one ``Env`` and nothing
global."""

from __future__ import annotations

from dataclasses import dataclass

from aiorocket.runtime.clock import Clock, WallClock
from aiorocket.runtime.disk import Disk, RealDisk
from aiorocket.runtime.entropy import Entropy

__all__ = ("Env", "memory_env", "real_env")


@dataclass(slots=True)
class Env:
    """The seams of one process or one simulated host. Whoever makes it closes ``disk``."""

    clock: Clock
    entropy: Entropy
    disk: Disk


def real_env() -> Env:
    """The machine's clock, randomness and disk."""
    return Env(WallClock(), Entropy(), RealDisk())


def memory_env() -> Env:
    """The machine's clock and randomness; files live in memory and end with this object."""
    from aiorocket.runtime.memory_disk import MemoryDisk  # nothing for a client

    return Env(WallClock(), Entropy(), MemoryDisk())
