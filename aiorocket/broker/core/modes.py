"""How each group is to get the messages of a topic: by pulling the queues it is given, or by popping."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from aiorocket.broker.core.names import Refusal, full
from aiorocket.config import Limits
from aiorocket.model import Queue, average_share, circle_share
from aiorocket_protocol import ANY_QUEUE, POP_MODE, PULL_MODE

__all__ = ("Mode", "ModeTable", "assign")

_STRATEGIES = {"AVG": average_share, "AVG_BY_CIRCLE": circle_share}


class Mode(NamedTuple):
    """``share`` is popShareQueueNum: so many other members pop the queues that a member is given; 0 for everybody
    pops all."""

    name: str = PULL_MODE
    share: int = 0


class ModeTable:
    """(topic, group) → Mode, where an administrator set one."""

    def __init__(self, most: int = Limits().modes) -> None:
        self._most = most
        self._modes: dict[tuple[str, str], Mode] = {}
        self.version = 0

    def get(self, topic: str, group: str) -> Mode:
        return self._modes.get((topic, group), Mode())

    def put(self, topic: str, group: str, mode: Mode) -> Refusal | None:
        if (topic, group) not in self._modes and len(self._modes) >= self._most:
            return full("modes", self._most, f"the mode of group {group} for topic {topic} is not kept")
        self._modes[topic, group] = mode
        self.version += 1
        return None

    def to_dict(self) -> dict[str, Any]:
        return self.later()()

    def later(self) -> Callable[[], dict[str, Any]]:
        """``to_dict`` of now, for another thread."""
        modes = self._modes.copy()
        return lambda: {"modes": [[*key, *mode] for key, mode in modes.items()]}

    def load(self, data: Mapping[str, Any]) -> None:
        for topic, group, name, share in data.get("modes", ()):
            self._modes[str(topic), str(group)] = Mode(POP_MODE if name == POP_MODE else PULL_MODE, int(share))


def assign(mode: Mode, queues: Sequence[Queue], members: Sequence[str], me: str, strategy: str) -> list[Queue] | None:
    """What ``me`` of the group's ``members`` gets of a topic's queues; None when there is no such strategy, or no such
    member: it keeps what it has."""
    share = _STRATEGIES.get(strategy)
    members = sorted(set(members))
    if share is None or me not in members:
        return None
    queues, index, count = sorted(queues), members.index(me), len(members)
    if mode.name != POP_MODE:
        return queues[share(len(queues), index, count)]
    if mode.share <= 0 or mode.share >= count - 1:
        return sorted({queue._replace(queue_id=ANY_QUEUE) for queue in queues})
    if count > len(queues):
        return [queues[index % len(queues)]] if queues else []
    shared = (share(len(queues), (index + step) % count, count) for step in range(mode.share + 1))
    return sorted({queue for mine in shared for queue in queues[mine]})
