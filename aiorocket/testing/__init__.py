"""Public tools for tests: a loop in virtual time with its network, disks that fail, whole clusters with a history of
what they did, checkers for that history, runs under faults drawn from a seed, and a broker for one test.

Names are imported when they are first used: pytest loads the plugin in this package wherever aiorocket is installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiorocket.testing import checkers as checkers
    from aiorocket.testing.chaos_run import SCENARIOS as SCENARIOS
    from aiorocket.testing.chaos_run import ChaosReport as ChaosReport
    from aiorocket.testing.chaos_run import chaos as chaos
    from aiorocket.testing.checkers import HistoryError as HistoryError
    from aiorocket.testing.checkers import Violation as Violation
    from aiorocket.testing.checkers import check as check
    from aiorocket.testing.cluster import SimCluster as SimCluster
    from aiorocket.testing.faults import WireFaults as WireFaults
    from aiorocket.testing.history import Event as Event
    from aiorocket.testing.history import History as History
    from aiorocket.testing.local import LocalRocketMQ as LocalRocketMQ
    from aiorocket.testing.local import local_rocketmq as local_rocketmq
    from aiorocket.testing.machines import SimBroker as SimBroker
    from aiorocket.testing.machines import SimMember as SimMember
    from aiorocket.testing.machines import SimNameServer as SimNameServer
    from aiorocket.testing.machines import SimSender as SimSender
    from aiorocket.testing.server import RocketMQServer as RocketMQServer
    from aiorocket.testing.server import broker_thread as broker_thread
    from aiorocket.testing.sim import SimClock as SimClock
    from aiorocket.testing.sim import Simulation as Simulation
    from aiorocket.testing.sim import simulate as simulate
    from aiorocket.testing.sim_disk import SimDisk as SimDisk
    from aiorocket.testing.sim_host import SimHost as SimHost
    from aiorocket.testing.sim_loop import SimDeadlock as SimDeadlock
    from aiorocket.testing.sim_loop import SimLoop as SimLoop
    from aiorocket.testing.sim_network import SimNetwork as SimNetwork

_HOMES = {
    "chaos_run": "SCENARIOS ChaosReport chaos",
    "checkers": "HistoryError Violation check",
    "cluster": "SimCluster",
    "faults": "WireFaults",
    "history": "Event History",
    "local": "LocalRocketMQ local_rocketmq",
    "machines": "SimBroker SimMember SimNameServer SimSender",
    "server": "RocketMQServer broker_thread",
    "sim": "SimClock Simulation simulate",
    "sim_disk": "SimDisk",
    "sim_host": "SimHost",
    "sim_loop": "SimDeadlock SimLoop",
    "sim_network": "SimNetwork",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted((*_HOME_OF, "checkers"))


def __getattr__(name: str) -> object:
    if name == "checkers":
        return import_module("aiorocket.testing.checkers")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'aiorocket.testing' has no attribute {name!r}")
    value = getattr(import_module(f"aiorocket.testing.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
