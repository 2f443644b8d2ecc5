"""Public tools for tests: a loop in virtual time with its network, a disk that fails, and ``simulate`` to run
scenarios."""

from aiorocket.testing.sim import SimClock, Simulation, simulate
from aiorocket.testing.sim_disk import SimDisk
from aiorocket.testing.sim_loop import SimDeadlock, SimLoop
from aiorocket.testing.sim_network import SimHost, SimNetwork

__all__ = ("SimClock", "SimDeadlock", "SimDisk", "SimHost", "SimLoop", "SimNetwork", "Simulation", "simulate")
