"""The seams: loop, clock, entropy, disk, tasks, deadlines. The only place that touches the outside by name."""

from aiorocket.runtime.clock import Clock, WallClock
from aiorocket.runtime.deadlines import DeadlineDriver, TimeoutQueue
from aiorocket.runtime.disk import Disk, File, Lock, RealDisk
from aiorocket.runtime.entropy import Entropy
from aiorocket.runtime.env import Env, memory_env, real_env
from aiorocket.runtime.loop import new_event_loop, run
from aiorocket.runtime.tasks import TaskScope

__all__ = (
    "Clock",
    "DeadlineDriver",
    "Disk",
    "Entropy",
    "Env",
    "File",
    "Lock",
    "RealDisk",
    "TaskScope",
    "TimeoutQueue",
    "WallClock",
    "memory_env",
    "new_event_loop",
    "real_env",
    "run",
)
