"""How much the attributes of topics, or of groups, may take: of each and of all together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aiorocket.broker.core.names import Refusal, full
from aiorocket_protocol import ResponseCode

__all__ = ("MAX_ATTRIBUTES", "AttributeRoom")

#: Characters of the attributes of one topic or group, names and values: updates add to them.
MAX_ATTRIBUTES = 4_096

_NONE: Mapping[str, str] = {}


class AttributeRoom:
    """``used`` of ``most`` characters. A table asks before a change, and tells of it afterwards."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.used = 0

    def refusal(self, changes: Iterable[tuple[str, Mapping[str, str] | None, Mapping[str, str]]]) -> Refusal | None:
        """Why these cannot all be so: (topic or group, what it has, what it is to have)."""
        growth = 0
        for name, old, new in changes:
            size = _size(new)
            if size > MAX_ATTRIBUTES:
                text = f"{size} characters of attributes for {name}: {MAX_ATTRIBUTES} are allowed"
                return Refusal(ResponseCode.INVALID_PARAMETER, text)
            growth += size - _size(old or _NONE)
            if growth > 0 and self.used + growth > self._most:
                return full("attributes", self._most, f"{name} gets no more of them")
        return None

    def replaced(self, old: Mapping[str, str] | None, new: Mapping[str, str] | None) -> None:
        """One has others now; None stands for one that is not there."""
        self.used += _size(new or _NONE) - _size(old or _NONE)


def _size(attributes: Mapping[str, str]) -> int:
    return sum(len(name) + len(value) for name, value in attributes.items())
