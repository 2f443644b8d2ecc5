"""Committable positions per queue: they only grow, unless a repair says otherwise, and remember what the broker
knows. And the file that members of a broadcasting group keep theirs in, as Java's LocalFileOffsetStore writes it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from aiorocket.model import Queue
from aiorocket_protocol import MessageQueue, ProtocolError, fastjson

__all__ = ("OffsetTable", "read_offset_file", "write_offset_file")


def write_offset_file(offsets: Mapping[Queue, int]) -> bytes:
    """``{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:42,...}}``, sorted by queue."""
    return fastjson.dumps({"offsetTable": {MessageQueue(*queue): offset for queue, offset in sorted(offsets.items())}})


def read_offset_file(data: bytes) -> dict[Queue, int]:
    """What ``write_offset_file`` or a Java client wrote. ProtocolError for anything else, such as a torn file."""
    value = fastjson.loads(data)
    table = value.get("offsetTable") if isinstance(value, dict) else None
    if not isinstance(table, dict):
        raise ProtocolError(f"no offsetTable in {data!r:.100}", where="offset file")
    found: dict[Queue, int] = {}
    for key, offset in table.items():
        names = dict(key) if isinstance(key, tuple) else {}
        topic, broker_name, queue_id = names.get("topic"), names.get("brokerName"), names.get("queueId")
        if not (isinstance(topic, str) and isinstance(broker_name, str)) or type(queue_id) is not int:
            raise ProtocolError(f"{key!r:.100} is not a queue", where="offset file")
        if type(offset) is not int:
            raise ProtocolError(f"{offset!r:.100} is not an offset", where="offset file")
        found[Queue(topic, broker_name, queue_id)] = offset
    return found


class OffsetTable:
    """Offset to commit and offset last committed, per queue."""

    __slots__ = ("_committed", "_position")

    def __init__(self) -> None:
        self._position: dict[Queue, int] = {}
        self._committed: dict[Queue, int] = {}

    def begin(self, queue: Queue, offset: int, *, committed: bool) -> None:
        """A queue was assigned at ``offset``; ``committed`` says whether the broker already stores exactly that."""
        self._position[queue] = offset
        self._committed[queue] = offset if committed else -1

    def advance(self, queue: Queue, offset: int) -> bool:
        """Move forward only. False, and no change, for a queue that is not held or an offset behind the present one."""
        position = self._position.get(queue)
        if position is None or offset <= position:
            return False
        self._position[queue] = offset
        return True

    def set(self, queue: Queue, offset: int) -> None:
        """Set, also backwards, what an orderly listener has committed. Nothing happens for a queue that is not held."""
        if queue in self._position:
            self._position[queue] = offset

    def repair(self, queue: Queue, offset: int) -> None:
        """Set, also backwards: the broker said that the position does not exist (OFFSET_ILLEGAL) or it was reset."""
        self._position[queue] = offset
        self._committed[queue] = -1

    def forget(self, queue: Queue) -> None:
        """The queue is not ours any more: later results of it change nothing."""
        self._position.pop(queue, None)
        self._committed.pop(queue, None)

    def position(self, queue: Queue) -> int:
        """The offset to commit, or -1 for a queue that is not held."""
        return self._position.get(queue, -1)

    def committed(self, queue: Queue) -> int:
        """The offset the broker is known to store, or -1."""
        return self._committed.get(queue, -1)

    def dirty(self) -> list[tuple[Queue, int]]:
        """What should be committed now, sorted by queue."""
        committed = self._committed
        return [(queue, offset) for queue, offset in sorted(self._position.items()) if offset != committed[queue]]

    def ahead(self, due: Iterable[tuple[Queue, int]]) -> list[tuple[Queue, int]]:
        """Of those due several of whose topic go to a broker that is not known to store any of that topic: one each.
        Not known by a 0 either: of a young queue brokers say that to a group without an offset."""
        stored = {queue[:2] for queue, offset in self._committed.items() if offset > 0}
        first: defaultdict[tuple[str, str], list[tuple[Queue, int]]] = defaultdict(list)
        for entry in due:
            if entry[0][:2] not in stored:
                first[entry[0][:2]].append(entry)
        return [entries[0] for entries in first.values() if len(entries) > 1]

    def note_committed(self, queue: Queue, offset: int) -> None:
        """The broker acknowledged ``offset``."""
        if queue in self._position:
            self._committed[queue] = offset
