"""Filters that must look into the messages themselves (SQL92), beside the tag filters that only see a hash."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiorocket_protocol import ProtocolError, decode_properties, split_records

if TYPE_CHECKING:
    from aiorocket.broker.core.sql92 import Expression

__all__ = ("COMPILING", "FILTER_WORK", "SCAN", "RecordFilter", "Selected")

#: Messages that one pull looks at, at least (RocketMQ's 16,000 bytes of consume queue).
SCAN = 800
#: Messages times ``cost`` that are looked at in one turn of the loop: some 20 ms.
FILTER_WORK = 80_000
#: The same for a character of an expression that is compiled.
COMPILING = 12
#: Words of an expression that take as long as reading a message's properties, about.
_PROPERTIES = 20
#: Bytes of properties that cost as much as a word once more, each time that one is compared.
_LONG = 1024


class Selected(NamedTuple):
    """``data`` is ``taken`` records back to back; ``seen`` records were decided, those that did not match included, for
    so much ``work``."""

    data: bytes
    taken: int
    seen: int
    work: int


class RecordFilter:
    """Stands where a tag filter's ``accept`` stands: called with a tags code it says "perhaps", so that a waiting pull
    is run again for every message, and ``select`` decides by the properties."""

    __slots__ = ("cost", "expression")

    def __init__(self, expression: Expression) -> None:
        self.expression = expression
        #: What a message takes, in words of an expression: about a quarter of a microsecond each.
        self.cost = expression.tokens + _PROPERTIES

    def __call__(self, tags_code: int) -> bool:
        return True

    def select(self, data: bytes, max_messages: int, max_bytes: int, work: int = FILTER_WORK) -> Selected:
        """What a pull may have of the stored records in ``data``: at most ``max_messages`` and ``max_bytes``, but at
        least one message when any matches, of those that are decided for so much ``work``, of which one is at
        least."""
        parts: list[bytes] = []
        total = seen = done = 0
        matches = self.expression.matches
        for view in split_records(data):
            raw = view.raw_properties
            cost = self.cost * (1 + len(raw) // _LONG)
            if seen and done + cost > work:
                break
            done += cost
            if matches(_properties(raw)):
                total += view.size
                if parts and (len(parts) == max_messages or total > max_bytes):
                    break
                parts.append(data[view.start : view.end])
            seen += 1
        return Selected(b"".join(parts), len(parts), seen, done)


def _properties(raw: bytes) -> dict[str, str]:
    """A property string that is not UTF-8 was stored as it came; it has no properties that could match."""
    try:
        return decode_properties(raw)
    except ProtocolError:
        return {}
